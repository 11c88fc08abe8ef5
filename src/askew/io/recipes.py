"""Modules as JSON and back: subclasses of `Rebuildable` record their constructor arguments.

:func:`describe` writes down how a module was constructed, :func:`build` constructs it again: only classes of the
library, common layers of ``torch.nn``, and classes that the caller passes.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from askew import checks
from askew.checks import Domain
from askew.io.classes import name_of, resolve
from askew.io.trees import flatten, unflatten

# ---------------------------------------------------------------------- record


class Rebuildable(nn.Module):
    """A module that records the arguments of its constructor, so that it can be saved without pickle.

    Subclasses have nothing to do. The record is a plain attribute: not part of the state dict, copied with the module.

    Examples
    --------
    >>> from askew.encoders import Linear
    >>> describe(Linear(3, out=2))["special"]["dict"]["arguments"]
    {'dict': {'dim': 3, 'out': 2}}
    """

    # Arguments of the constructor by their names; ... stands for the value of the attribute of that name. So modules,
    # tensors and numbers are read when needed: no second reference is kept, and changes that a user made are seen.
    _record: dict[str, object]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]


def _recording(initialise: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor to record its arguments, unless a subclass's constructor calls it."""
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def __init__(self: Rebuildable, *arguments: Any, **named: Any) -> None:  # noqa: N807
        initialise(self, *arguments, **named)
        if type(self).__init__ is not __init__:
            return  # called by the constructor of a subclass, whose arguments are the ones that count
        bound = signature.bind(self, *arguments, **named)
        bound.apply_defaults()
        given = list(bound.arguments.items())[1:]
        self._record = {name: ... if _follows(self, name, value) else _snapshot(value) for name, value in given}

    return __init__


def _held(module: nn.Module, name: str) -> object:
    """Return an attribute of the instance, or None, without calling properties."""
    for place in (module.__dict__, module._parameters, module._buffers, module._modules):
        if name in place:
            return place[name]
    return None


def _follows(module: nn.Module, name: str, value: object) -> bool:
    """Return whether the attribute of this name holds the argument."""
    held = _held(module, name)
    if isinstance(value, (bool, int, float, str)):
        return type(held) is type(value) and held == value
    if isinstance(value, (list, tuple)) and any(isinstance(item, nn.Module) for item in value):
        return isinstance(held, nn.ModuleList) and len(held) == len(value)
    return isinstance(value, (nn.Module, Tensor)) and isinstance(held, (nn.Module, Tensor))


def _snapshot(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return tuple(_snapshot(item) for item in value)
    return value


# ---------------------------------------------------------------------- describe

CONVOLUTION = "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"
NORMALISATION = "num_features eps momentum affine track_running_stats"
# Layers of torch.nn that are common in encoders, and the attributes that are the arguments of their constructors.
LAYERS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    layer.__name__: (layer, tuple(arguments.split()))
    for layer, arguments in (
        *((layer, "") for layer in (nn.Identity, nn.ReLU, nn.SiLU, nn.Sigmoid, nn.Tanh)),
        *((layer, CONVOLUTION) for layer in (nn.Conv1d, nn.Conv2d)),
        *((layer, NORMALISATION) for layer in (nn.BatchNorm1d, nn.BatchNorm2d)),
        (nn.Linear, "in_features out_features bias"),
        (nn.LayerNorm, "normalized_shape eps elementwise_affine bias"),
        (nn.MaxPool2d, "kernel_size stride padding dilation ceil_mode"),
        (nn.AvgPool2d, "kernel_size stride padding ceil_mode count_include_pad"),
        (nn.AdaptiveAvgPool2d, "output_size"),
        (nn.Flatten, "start_dim end_dim"),
        (nn.Dropout, "p"),
        (nn.LeakyReLU, "negative_slope"),
        (nn.ELU, "alpha"),
        (nn.GELU, "approximate"),
        (nn.Softplus, "beta threshold"),
        (nn.Softmax, "dim"),
    )
}


def describe(module: nn.Module) -> dict[str, Any]:
    """Return how a module was constructed, including the modules inside it, as JSON.

    Classes of the library, your own subclasses of them and common layers are described by their name and constructor
    arguments. Any other module is described by its name alone, and marked: it must be passed when the model is built.
    An argument that JSON cannot hold, such as a Python function, is a TypeError.

    Examples
    --------
    >>> from askew.divergences import Euclidean, Sqrt
    >>> describe(Sqrt(Euclidean(2)))["special"]["dict"]["class"]
    'divergences.Sqrt'
    """
    try:
        tensors, description = flatten(module, _special)
    except TypeError as error:
        hint = (
            "A Python function cannot be loaded without running code: write it as a subclass of "
            "askew.potentials.Potential or askew.Divergence, and pass that to askew.load(folder, classes=[...])."
        )
        raise TypeError(f"{type(module).__name__} cannot be saved: {error} {hint}") from None
    if tensors:
        must = "a parameter or a buffer of that name"
        raise TypeError(checks.message(f"{next(iter(tensors))} of {type(module).__name__}", must, "one that is not"))
    return dict(description)


@dataclass(frozen=True)
class _Kept:
    """A tensor whose values are in the state dict."""

    tensor: Tensor


def _special(value: object) -> dict[str, object] | None:
    if isinstance(value, _Kept):
        dtype, parameter = str(value.tensor.dtype).removeprefix("torch."), isinstance(value.tensor, nn.Parameter)
        return {"shape": list(value.tensor.shape), "dtype": dtype, "parameter": parameter}
    if isinstance(value, Domain):
        return {"domain": astuple(value)}
    if not isinstance(value, nn.Module):
        return None
    cls = type(value)
    if isinstance(value, Rebuildable):
        name = name_of(cls)
        source = "library" if resolve(name) is cls else "user"
        return {"class": name, "source": source, "arguments": _arguments(value)}
    if cls is nn.Sequential:
        return {"class": "Sequential", "source": "torch", "layers": dict(value.named_children())}
    layer, attributes = LAYERS.get(cls.__name__, (None, ()))
    if cls is layer:
        arguments = {name: getattr(value, name) for name in attributes}
        if "bias" in arguments:
            arguments["bias"] = arguments["bias"] is not None
        return {"class": cls.__name__, "source": "torch", "arguments": arguments}
    return {"class": name_of(cls), "source": "unknown"}


def _arguments(module: Rebuildable) -> dict[str, object]:
    """Return the present values of the constructor arguments."""
    kept = {id(tensor) for tensor in (*module._parameters.values(), *module._buffers.values())}
    arguments: dict[str, object] = {}
    for name, recorded in module._record.items():
        value = _held(module, name) if recorded is ... else recorded
        if isinstance(value, nn.ModuleList):
            value = tuple(value)
        arguments[name] = _Kept(value) if isinstance(value, Tensor) and id(value) in kept else value
    return arguments


# ---------------------------------------------------------------------- build


def build(
    description: object, tensors: Mapping[str, Tensor], encoder: nn.Module | None = None, classes: Sequence[type] = ()
) -> nn.Module:
    """Construct a module from its description and fill it with the tensors of its state dict.

    No more memory is taken than ``tensors`` have: the module is first built on the meta device, and built for real only
    if all shapes agree. A description or tensors that do not fit are a ValueError.

    Parameters
    ----------
    description
        What :func:`describe` returned.
    tensors
        The state dict. Parameters get its dtypes.
    encoder
        Stands for a module of a class that askew does not know, such as your own encoder. A copy of it is filled.
    classes
        Your own subclasses of the library's classes.

    Examples
    --------
    >>> from askew.encoders import Linear
    >>> linear = Linear(3, 2)
    >>> again = build(describe(linear), linear.state_dict())
    >>> bool((again.weight == linear.weight).all())
    True
    """
    known = {cls.__name__: cls for cls in classes}
    with torch.device("meta"):
        _check_fit(_Maker(known, encoder).checked(description), tensors, "the tensors of the file")
    # Constructors draw random weights that are overwritten: keep the caller's random state.
    with torch.random.fork_rng(devices=[]):
        module = _Maker(known, copy.deepcopy(encoder)).checked(description)
    # A module of one dtype has its other buffers in that dtype as well.
    floating = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(floating) == 1:
        module.to(floating.pop())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if name in tensors:
            tensor.data = tensor.data.to(tensors[name].dtype)
    module.load_state_dict(dict(tensors))
    return module


def check_rebuildable(module: nn.Module, description: object) -> None:
    """Raise unless a module can be built from its description, given its parts of unknown classes."""
    # By bare name, as the reader of a file will pass them; a part of the library must not hide one of the user's.
    users = {type(part).__name__: type(part) for part in module.modules() if isinstance(part, Rebuildable)}
    layers = {layer for layer, _ in LAYERS.values()}
    others = [part for part in module.modules() if not isinstance(part, Rebuildable) and type(part) not in layers]
    parts = {type(part).__name__: part for part in others}
    with torch.device("meta"):
        rebuilt = _Maker(users, None, parts).checked(description)
    _check_fit(rebuilt, module.state_dict(), f"the tensors of a {type(module).__name__} that is to be saved")


def _check_fit(module: nn.Module, tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise unless the tensors have the names and shapes of a module's state dict."""
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wanted != found:
        name = next(name for name in (*wanted, *found) if wanted.get(name) != found.get(name))
        shape = f"with {name} of shape {wanted[name]}" if name in wanted else f"without {name}"
        got = f"{name} of shape {found[name]}" if name in found else f"no {name}"
        raise ValueError(checks.message(what, f"those of {type(module).__name__}, {shape}", got))


@dataclass
class _Maker:
    classes: Mapping[str, type]
    encoder: nn.Module | None
    parts: Mapping[str, nn.Module] = field(default_factory=dict)

    def checked(self, description: object) -> nn.Module:
        try:
            made = unflatten({}, description, self.special)
            if isinstance(made, nn.Module):
                return made
            raise TypeError(f"a {type(made).__name__} is no module")
        except _MissingError:
            raise
        except Exception as error:  # Constructors refuse wrong arguments in many ways; all mean the same here.
            got = f"one that cannot be built ({type(error).__name__}: {str(error)[:200]})"
            what, must = "the description of a module", "of a form that askew writes"
            raise ValueError(checks.message(what, must, got)) from error

    def special(self, value: Any) -> object:
        if "domain" in value:
            domain = Domain(*value["domain"])
            named = (checks.REAL, checks.POSITIVE, checks.NEGATIVE, checks.UNIT_BOX, checks.SIMPLEX)
            # Divergences compare domains by identity.
            return next((each for each in named if each == domain), domain)
        if "shape" in value:
            tensor = torch.zeros(value["shape"], dtype=_DTYPES[value["dtype"]])
            return nn.Parameter(tensor) if value["parameter"] else tensor
        name, source = value["class"], value["source"]
        if source == "torch" and name == "Sequential":
            return nn.Sequential(OrderedDict(value["layers"]))
        # The bare name of a class of the user: it may have moved to another module since.
        bare = name.rpartition(".")[2]
        if source == "unknown":
            given = self.encoder if self.encoder is not None else self.parts.get(bare)
            if given is None:
                hint = f"Pass one: askew.load(folder, encoder={bare}(...))."
                must = f"a module of the class {name!r}, which is not of askew"
                raise _MissingError(checks.message("encoder", must, "none", hint))
            return given
        if source == "user" and bare not in self.classes:
            hint = f"Pass it: askew.load(folder, classes=[{bare}])."
            must = f"given, as the model has the class {name!r}, which is not of askew"
            raise _MissingError(checks.message("classes", must, "none of that name", hint))
        sources = {"user": self.classes.get(bare), "torch": LAYERS.get(name, (None,))[0], "library": resolve(name)}
        if sources[source] is None:
            must = "one of askew or torch.nn that this version can build"
            raise _MissingError(checks.message("the class of a module", must, repr(name)))
        return sources[source](**value["arguments"])


_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


class _MissingError(ValueError):
    """A class that is not there; its message needs no further explanation."""
