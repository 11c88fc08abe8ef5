"""Modules from JSON."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from askew import checks, io
from askew.checks import Domain
from askew.io.classes import resolve
from askew.io.describing import LAYERS

__all__ = ["build", "check_rebuildable"]


def build(
    description: object,
    tensors: Mapping[str, Tensor],
    encoder: nn.Module | None = None,
    classes: Sequence[type[nn.Module]] = (),
) -> nn.Module:
    """Return a module that was described, filled with the tensors of its state dict.

    Nothing is imported, and no memory is taken for more than there is in ``tensors``: the module is first made
    without any, and made for real only if all shapes are those of the tensors.

    Parameters
    ----------
    description
        What :func:`describe` returned.
    tensors
        The state dict. Parameters get its dtypes.
    encoder
        Stands in for a module of a class that askew does not know, such as the user's own encoder. A copy of it is
        filled.
    classes
        Classes of the user that derive from one of the library.

    Raises
    ------
    ValueError
        If the description or the tensors are not those of such a module.

    Examples
    --------
    >>> from askew.encoders import Linear
    >>> from askew.io import describe
    >>> linear = Linear(3, 2)
    >>> again = build(describe(linear), linear.state_dict())
    >>> bool((again.weight == linear.weight).all())
    True
    """
    known = {cls.__name__: cls for cls in classes}
    with torch.device("meta"):
        _check_fit(_Maker(known, encoder).checked(description), tensors, "the tensors of the file")
    # The numbers that a constructor draws are not kept, so they must not show in those of the user.
    with torch.random.fork_rng(devices=[]):
        module = _Maker(known, copy.deepcopy(encoder)).checked(description)
    return _fill(module, tensors)


def check_rebuildable(module: nn.Module, description: object) -> None:
    """Raise unless a module can be built from its description, or could if its unknown parts were handed in."""
    parts = {type(part).__name__: part for part in module.modules()}
    with torch.device("meta"):
        # Looks a part up by its name, as the reader of a file will hand it in.
        rebuilt = _Maker({name: type(part) for name, part in parts.items()}, None, parts).checked(description)
    _check_fit(rebuilt, module.state_dict(), f"the tensors of a {type(module).__name__} that is to be saved")


def _check_fit(module: nn.Module, tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise unless the tensors have the names and shapes of a module's state dict."""
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wanted != found:
        names = [name for name in (*wanted, *found) if wanted.get(name) != found.get(name)]
        shown = names[0]
        must = (
            f"those of {type(module).__name__}, with {shown} of shape {wanted[shown]}"
            if shown in wanted
            else f"those of {type(module).__name__}"
        )
        got = f"{shown} of shape {found[shown]}" if shown in found else f"no {shown}"
        raise ValueError(checks.message(what, must, got))
    outside = [t for n, t in (*module.named_parameters(), *module.named_buffers()) if n not in wanted]
    if sum(tensor.numel() for tensor in outside) > 1 << 20:
        raise ValueError(
            checks.message(f"the buffers of {type(module).__name__}", "in the file", "large ones that are not")
        )


def _fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Copy tensors into a module that they fit, in their dtypes."""
    floating = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(floating) == 1:
        module.to(floating.pop())
    for name, parameter in module.named_parameters():
        parameter.data = parameter.data.to(tensors[name].dtype)
    for name, buffer in module.named_buffers():
        if name in tensors and buffer.dtype != tensors[name].dtype:
            owner, _, last = name.rpartition(".")
            module.get_submodule(owner)._buffers[last] = buffer.to(tensors[name].dtype)
    module.load_state_dict(dict(tensors))
    return module


@dataclass
class _Maker:
    classes: Mapping[str, type[nn.Module]]
    encoder: nn.Module | None
    parts: Mapping[str, nn.Module] = field(default_factory=dict)

    def checked(self, description: object) -> nn.Module:
        try:
            made = io.unflatten({}, description, self.special)
        except _RefusedError as error:
            raise ValueError(str(error)) from None
        except Exception as error:  # Constructors refuse wrong arguments in many ways; all mean the same here.
            got = f"one that cannot be built ({type(error).__name__}: {str(error)[:200]})"
            raise ValueError(
                checks.message("the description of a module", "of a form that askew writes", got)
            ) from error
        if not isinstance(made, nn.Module):
            got = type(made).__name__
            raise ValueError(checks.message("the description of a module", "of a form that askew writes", got))
        return made

    def special(self, value: Any) -> object:
        """Return a module, or what only they are made with, whose parts have been made already."""
        if "domain" in value:
            domain = Domain(*value["domain"])
            named = (checks.REAL, checks.POSITIVE, checks.NEGATIVE, checks.UNIT_BOX, checks.SIMPLEX)
            # Members compare domains by identity.
            return next((each for each in named if each == domain), domain)
        if "shape" in value:
            tensor = torch.zeros(value["shape"], dtype=_DTYPES[value["dtype"]])
            return nn.Parameter(tensor) if value["parameter"] else tensor
        name, source = value["class"], value["source"]
        if source == "torch" and name == "Sequential":
            return nn.Sequential(OrderedDict(value["layers"]))
        bare = name.rpartition(".")[2]
        if source == "unknown":
            given = self.encoder if self.encoder is not None else self.parts.get(bare)
            if given is None:
                raise _RefusedError(_missing(name, source))
            return given
        known = None
        if source == "library":
            known = resolve(name)
        elif source == "torch":
            known = LAYERS[name][0] if name in LAYERS else None
        elif source == "user":
            # A class may have moved to another module since; who hands it in vouches for it.
            known = self.classes.get(bare)
        if known is None:
            raise _RefusedError(_missing(name, source))
        return known(**value["arguments"])


_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


class _RefusedError(Exception):
    """A reason that says it all, not to be wrapped by another."""


def _missing(name: str, source: object) -> str:
    if source == "user":
        hint = f"Hand it in: askew.load(folder, classes=[{name.rpartition('.')[2]}])."
        return checks.message(
            "classes", f"given, as the model has the class {name!r}, which is not of askew", "none of that name", hint
        )
    if source == "unknown":
        hint = f"Hand one in: askew.load(folder, encoder={name.rpartition('.')[2]}(...))."
        return checks.message("encoder", f"a module of the class {name!r}, which is not of askew", "none", hint)
    return checks.message("the class of a module", "one of askew or torch.nn that this version can build", repr(name))
