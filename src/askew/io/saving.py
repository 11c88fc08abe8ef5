"""Save and load models: a folder of one JSON file and one safetensors file, without pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from askew import checks
from askew.io.classes import ESTIMATORS, HISTORY, resolve
from askew.io.files import checksum, damaged, load_tensors, save_tensors
from askew.io.folder import FolderFormat, read_description, settled, write_folder
from askew.io.recipes import build, check_rebuildable, describe
from askew.io.trees import flatten, unflatten

MODEL = FolderFormat("model", r"weights-[0-9a-f]{16}\.safetensors", lambda content: [content["weights"]["file"]])


def save(
    model: object,
    folder: str | os.PathLike[str],
    notes: Mapping[str, object] | None = None,
    *,
    points: bool = True,
) -> None:
    r"""Write a model to a folder, without pickle.

    The folder gets ``model.json``, which says how to construct the model, and ``weights-<hash>.safetensors`` with all
    its numbers. A process killed at any moment leaves the old model or the new one. If several processes save to one
    folder, each waits for the one before it, and the last one wins. Weights of the model that was there before and
    temporary files of killed processes are removed; other files are left alone.

    You can save divergences, potentials and encoders of askew, with common layers of ``torch.nn`` and with your own
    subclasses of them; estimators, and pipelines of scikit-learn made of them; a :class:`~askew.training.History`;
    dicts of numbers, strings and tensors. An encoder of any other class is saved by its weights; pass it to
    :func:`load` again. Numbers and dtypes are kept bit for bit, as are frozen parameters and the training mode of
    modules. Not kept: hooks, devices, and attributes set by hand that are no constructor argument.

    Parameters
    ----------
    model
        What to save. A model inside ``torch.compile`` or ``DistributedDataParallel`` is unwrapped.
    folder
        Where to; created if it does not exist.
    notes
        JSON values that are kept with the model and replaced together with it; see :func:`load_with_notes`.
    points
        Whether the folder of a fitted learner gets its training points and their labels. Without them the loaded
        learner compares, embeds and serves indexes, but has no ``kneighbors`` and no ``score`` against them.

    Raises
    ------
    TypeError, ValueError
        If the model cannot be rebuilt from a file, for example because it holds a Python function.
    OSError
        If the folder cannot be written. What was there is untouched.

    Examples
    --------
    >>> import tempfile, torch
    >>> from askew.divergences import NeuralBregman
    >>> D, x, y = NeuralBregman(3), torch.randn(5, 3), torch.randn(5, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(D, folder)
    ...     again = load(folder)
    >>> bool((again(x, y) == D(x, y)).all())
    True
    """
    packer = _Packer(points)
    content = packer.pack(_unwrapped(model))
    digest = checksum(None, packer.tensors)

    def write(place: Path, parts: dict[str, str]) -> dict[str, Any]:
        name = parts["weights"] = f"weights-{digest[:16]}.safetensors"
        save_tensors(place / name, packer.tensors, {"kind": "weights", "sha256": digest})
        return {
            "weights": {"file": name, "sha256": digest},
            "modules": packer.descriptions,
            "content": content,
            "notes": dict(notes or {}),
        }

    write_folder(MODEL, folder, write)


def load(folder: str | os.PathLike[str], encoder: nn.Module | None = None, classes: Sequence[type] = ()) -> Any:
    """Return the model that :func:`save` wrote, in main memory.

    No code from the folder is run. A file that is truncated, damaged, of another program or of a newer askew is an
    error, and a description takes no more memory than the weights that come with it.

    Parameters
    ----------
    folder
        Where it is.
    encoder
        For a model whose encoder is of your own class: one of the same shape. A copy of it gets the weights. Not needed
        for encoders of askew and for common layers of ``torch.nn``.
    classes
        Your own subclasses of askew's classes that the model consists of.

    Returns
    -------
    object
        Of the class that was saved.

    Raises
    ------
    FileNotFoundError
        If there is no model.
    ValueError
        If it cannot be used; the message says why.

    Examples
    --------
    >>> load("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: folder must be one that askew.save wrote, with its model.json. Got 'nowhere' instead.
    """
    return load_with_notes(folder, encoder, classes)[0]


def load_with_notes(
    folder: str | os.PathLike[str], encoder: nn.Module | None = None, classes: Sequence[type] = ()
) -> tuple[Any, dict[str, Any]]:
    """Return the model that :func:`save` wrote and the notes that were saved with it, read in one step.

    Parameters
    ----------
    folder, encoder, classes
        As in :func:`load`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save({"answer": 42}, folder, notes={"source": "a table"})
    ...     load_with_notes(folder)
    ({'answer': 42}, {'source': 'a table'})
    """
    if encoder is not None and not isinstance(encoder, nn.Module):
        raise TypeError(checks.message("encoder of load", "a torch.nn.Module", type(encoder).__name__))
    shown = repr(str(Path(folder) / MODEL.description))
    description, tensors = settled(MODEL, folder, lambda: _read(folder, shown))
    entries, notes = description.get("modules"), description.get("notes", {})
    if not isinstance(entries, list) or not isinstance(notes, dict) or "content" not in description:
        raise ValueError(damaged(shown, "parts of it are missing"))
    if encoder is not None and not any(_unknown_classes(entry) for entry in entries):
        must = "None, as the model in this folder can be made without it"
        raise ValueError(checks.message("encoder of load", must, type(encoder).__name__))
    unpacker = _Unpacker(encoder, classes, shown)
    for i, entry in enumerate(entries):
        unpacker.add_module(entry, _under(f"modules.{i}.", tensors))
    return unflatten(_under("values.", tensors), description["content"], unpacker.special), notes


def _read(folder: str | os.PathLike[str], shown: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description and the tensors of a model, which belong together."""
    description = read_description(MODEL, folder, "askew.save")
    weights = description.get("weights")
    name = weights.get("file") if isinstance(weights, dict) else None
    if not isinstance(weights, dict) or not MODEL.is_part(name):
        must = "the name of a file in its folder, as askew writes it"
        raise ValueError(checks.message(f"weights in {shown}", must, repr(name)[:80]))
    try:
        tensors, header = load_tensors(Path(folder) / str(name), "weights")
    except FileNotFoundError:
        raise ValueError(damaged(shown, f"its weights {name!r} are missing")) from None
    if header.get("sha256") != weights.get("sha256"):
        raise ValueError(damaged(shown, f"{name!r} belongs to another model"))
    return description, tensors


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass
class _Packer:
    """Collects the modules and the numbers of a model."""

    points: bool = True
    tensors: dict[str, Tensor] = field(default_factory=dict)
    descriptions: list[dict[str, object]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)

    def pack(self, model: object) -> Any:
        if not isinstance(model, (nn.Module, resolve("History", HISTORY), dict)) and not (
            _is_estimator(model) or _is_pipeline(model)
        ):
            must = "a divergence, an encoder, an estimator, a History or a dict"
            raise TypeError(checks.message("model of save", must, type(model).__name__))
        tensors, content = flatten(model, self.special)
        self.tensors.update({f"values.{name}": tensor for name, tensor in tensors.items()})
        unknown = sorted({name for entry in self.descriptions for name in _unknown_classes(entry)})
        if len(unknown) > 1:
            must = "made of classes of askew, and at most one other"
            hint = "Derive the others from askew.io.Rebuildable, or combine them in one module."
            raise ValueError(checks.message("a model that is saved", must, ", ".join(unknown), hint))
        return content

    def special(self, value: object) -> dict[str, object] | None:
        """Return what stands for a module, an estimator or a history."""
        if isinstance(value, nn.Module):
            return {"module": self.number(value)}
        if isinstance(value, resolve("History", HISTORY)):
            return {"history": asdict(value)}
        if _is_pipeline(value):
            return {"estimator": "Pipeline", "parameters": {"steps": value.steps}, "fitted": {}}  # type: ignore[attr-defined]
        if _is_estimator(value):
            estimator: Any = value
            skipped = set(getattr(value, "recomputed", ()))
            skipped |= set() if self.points else set(getattr(value, "training_data", ()))
            kept = [name for name in estimator.saved_attributes if name not in skipped]
            fitted = {name: getattr(value, name) for name in kept if hasattr(value, name)}
            # Labels of dask's data may be as large as the data, and predict gives them: they are not computed here.
            fitted = {name: one for name, one in fitted.items() if not checks.is_lazy(one)}
            parameters = estimator.get_params(deep=False)
            return {"estimator": type(value).__name__, "parameters": parameters, "fitted": fitted}
        return None

    def number(self, module: nn.Module) -> int:
        """Return the number of a module; one that is met twice has one number."""
        if id(module) not in self.numbers:
            number = self.numbers[id(module)] = len(self.descriptions)
            recipe = describe(module)
            check_rebuildable(module, recipe)
            self.tensors.update({f"modules.{number}.{name}": tensor for name, tensor in module.state_dict().items()})
            switched = [name for name, part in module.named_modules() if part.training != module.training]
            frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
            modes = {"training": module.training, "switched": switched, "frozen": frozen}
            self.descriptions.append({"recipe": recipe, **modes})
        return self.numbers[id(module)]


def _unwrapped(model: object) -> object:
    """Return the module inside of what compilers and data parallelism put around it."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return _unwrapped(model.module)
    if isinstance(model, nn.Module) and "_orig_mod" in model._modules:
        return _unwrapped(model._modules["_orig_mod"])
    return model


def _is_pipeline(value: object) -> bool:
    # By its name: scikit-learn is not imported to save a divergence.
    return (type(value).__module__, type(value).__name__) == ("sklearn.pipeline", "Pipeline")


def _is_estimator(value: object) -> bool:
    return isinstance(getattr(value, "saved_attributes", None), tuple) and hasattr(value, "get_params")


def _unknown_classes(node: object) -> set[str]:
    """Return the names of the classes in a description that somebody must hand in."""
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    own = {str(node.get("class"))} if isinstance(node, dict) and node.get("source") == "unknown" else set[str]()
    return own.union(*map(_unknown_classes, items))


# ---------------------------------------------------------------------- out of a file


@dataclass
class _Unpacker:
    encoder: nn.Module | None
    classes: Sequence[type]
    shown: str
    modules: list[nn.Module] = field(default_factory=list)

    def add_module(self, entry: object, state: dict[str, Tensor]) -> None:
        """Add a module with its numbers, frozen and switched as it was."""
        match entry:
            case {"recipe": recipe, "training": bool(training), "switched": list(switched), "frozen": list(frozen)}:
                module = build(recipe, state, self.encoder, self.classes)
            case _:
                raise ValueError(damaged(self.shown, "the description of a module is incomplete"))
        for name, part in module.named_modules():
            part.training = training != (name in switched)
        for name, parameter in module.named_parameters():
            if parameter.is_floating_point():
                parameter.requires_grad_(name not in frozen)
        self.modules.append(module)

    def special(self, value: Any) -> object:
        """Return the module, the estimator or the history that a description stands for."""
        try:
            match value:
                case {"module": int(number)} if 0 <= number < len(self.modules):
                    return self.modules[number]
                case {"history": dict(fields)}:
                    return resolve("History", HISTORY)(**fields)
                case {"estimator": name, "parameters": dict(parameters), "fitted": dict(fitted)}:
                    return self.estimator(name, parameters, fitted)
        except TypeError as error:
            raise ValueError(damaged(self.shown, f"a part of it cannot be made: {error}")) from None
        raise ValueError(damaged(self.shown, "a part of it is unknown"))

    def estimator(self, name: object, parameters: dict[str, Any], fitted: dict[str, Any]) -> object:
        given = {cls.__name__: cls for cls in self.classes}
        known = checks.check_name(name, {**given, **ESTIMATORS}, f"the class of the estimator in {self.shown}")
        cls: Any = resolve(known, ESTIMATORS) or given[known]
        if not set(fitted) <= set(getattr(cls, "saved_attributes", ())):
            raise ValueError(damaged(self.shown, "its estimator has other attributes than this askew knows"))
        result = cls(**parameters)
        for attribute, value in fitted.items():
            setattr(result, attribute, value)
        return result
