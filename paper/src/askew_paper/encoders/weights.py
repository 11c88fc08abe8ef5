"""Weights of encoders from local files, which are read without executing anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from askew import checks

__all__ = ["LoadedWeights", "load_weights"]

# What published classifiers call their last layer.
HEADS = ("linear.weight", "linear.bias", "fc.weight", "fc.bias")


class LoadedWeights(NamedTuple):
    """What :func:`load_weights` did not load.

    Attributes
    ----------
    missing
        Names of the encoder's tensors that the file has no values for; they keep those they had.
    dropped
        Names in the file that the encoder has no place for.
    """

    missing: tuple[str, ...]
    dropped: tuple[str, ...]


def load_weights(encoder: nn.Module, path: str | os.PathLike[str], *, strict: bool = True) -> LoadedWeights:
    r"""Read trained weights from a local file into an encoder.

    The file is a ``.safetensors`` file or one that ``torch.save`` wrote; the latter is read with
    ``weights_only=True``, so that no code in it can run. It holds a state dict, bare or under
    ``"state_dict"``; a prefix ``module.`` is removed. The last layer of a classifier (``linear`` or ``fc``) is
    left out where the encoder has none of that shape, so that its weights serve any ``out``. The encoder
    is changed only if all is well.

    Parameters
    ----------
    encoder
        The module to fill.
    path
        A file on this machine; nothing is downloaded.
    strict
        Whether a name that only one side has is an error. A shape that differs always is.

    Returns
    -------
    LoadedWeights
        What was not loaded: at most the last layer, where ``strict``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not a weight file or not one of this encoder.

    Examples
    --------
    >>> import tempfile, torch
    >>> from askew_paper.encoders import ResNet20, load_weights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(ResNet20(out=10).state_dict(), f"{folder}/classifier.pt")
    ...     load_weights(ResNet20(), f"{folder}/classifier.pt")
    LoadedWeights(missing=(), dropped=('linear.weight', 'linear.bias'))
    """
    given = _read_weights(Path(path))
    own = encoder.state_dict()
    if all(name.startswith("module.") for name in given) and not any(name.startswith("module.") for name in own):
        given = {name.removeprefix("module."): tensor for name, tensor in given.items()}
    source = f"the weights in {os.fspath(path)!r}"

    other_head = {name.split(".")[0] for name in HEADS if name in given and _shape(own, name) != given[name].shape}
    head = {name for name in HEADS if name.split(".")[0] in other_head}
    kept = {name: tensor for name, tensor in given.items() if name in own and name not in head}
    if not kept:
        must = f"named as those of {type(encoder).__name__}, such as {next(iter(own), None)!r}"
        raise ValueError(checks.message(source, must, f"names such as {next(iter(given))!r}"))
    for name, tensor in kept.items():
        if tensor.shape != own[name].shape:
            must = f"of the shapes of {type(encoder).__name__}, which has {name} of shape {tuple(own[name].shape)}"
            hint = "Build the encoder with the sizes of the file."
            raise ValueError(checks.message(source, must, tuple(tensor.shape), hint))

    # Files older than this counter of batch normalisation lack it, and nothing here depends on it.
    missing = tuple(name for name in own if name not in kept and not name.endswith("num_batches_tracked"))
    dropped = tuple(name for name in given if name not in kept)
    if strict:
        _refuse(source, "complete", "no values for", [name for name in missing if name not in head])
        _refuse(source, f"those of {type(encoder).__name__}", "unknown names", [n for n in dropped if n not in head])
    encoder.load_state_dict(kept, strict=False)
    return LoadedWeights(missing, dropped)


def _shape(tensors: dict[str, Tensor], name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None


def _refuse(source: str, must: str, label: str, names: list[str]) -> None:
    """Raise if there are ``names``, showing the first three."""
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        hint = "Load what fits with strict=False."
        raise ValueError(checks.message(source, must, f"{label} {', '.join(names[:3])}{more}", hint))


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return the named tensors of a file."""
    if not path.is_file():
        raise FileNotFoundError(checks.message("path of load_weights", "a file", repr(str(path))))
    try:
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError:
        raise
    except Exception as error:  # Readers raise many kinds for a file that is not theirs; all mean the same here.
        raise ValueError(_not_weights(path, f"a file that cannot be read as such ({type(error).__name__})")) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise ValueError(_not_weights(path, f"a {type(content).__name__}" if content != {} else "an empty dict"))
    for name, tensor in content.items():
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise ValueError(_not_weights(path, f"a dict with {name!r}: {type(tensor).__name__}"))
    return content


def _not_weights(path: Path, got: str) -> str:
    must = "a weight file: a state dict of tensors, bare or under 'state_dict'"
    return checks.message(f"{str(path)!r}", must, got, "Save one with torch.save(encoder.state_dict(), path).")
