"""Modules as JSON."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from torch import Tensor, nn

from askew import checks, io
from askew.checks import Domain
from askew.io.classes import name_of, resolve
from askew.io.recording import Rebuildable, argument_of

__all__ = ["LAYERS", "describe"]

# Layers of torch.nn that are common in encoders, and the attributes that are the arguments of their constructors.
LAYERS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    layer.__name__: (layer, tuple(arguments.split()))
    for layer, arguments in (
        (nn.Identity, ""),
        (nn.Linear, "in_features out_features bias"),
        (nn.Conv1d, "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"),
        (nn.Conv2d, "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"),
        (nn.BatchNorm1d, "num_features eps momentum affine track_running_stats"),
        (nn.BatchNorm2d, "num_features eps momentum affine track_running_stats"),
        (nn.LayerNorm, "normalized_shape eps elementwise_affine bias"),
        (nn.MaxPool2d, "kernel_size stride padding dilation ceil_mode"),
        (nn.AvgPool2d, "kernel_size stride padding ceil_mode count_include_pad"),
        (nn.AdaptiveAvgPool2d, "output_size"),
        (nn.Flatten, "start_dim end_dim"),
        (nn.Dropout, "p"),
        (nn.ReLU, ""),
        (nn.LeakyReLU, "negative_slope"),
        (nn.ELU, "alpha"),
        (nn.GELU, "approximate"),
        (nn.SiLU, ""),
        (nn.Sigmoid, ""),
        (nn.Tanh, ""),
        (nn.Softplus, "beta threshold"),
        (nn.Softmax, "dim"),
    )
}


def describe(module: nn.Module) -> dict[str, Any]:
    """Return how a module was made, with the modules inside of it, as JSON.

    A class of the library or of a common layer is described by its name and the arguments of its
    constructor, as is a class of the user that derives from one of the library. Any other module is described
    by its name alone, and marked: somebody must hand it in when it is built again.

    Parameters
    ----------
    module
        A divergence, a potential, an encoder.

    Returns
    -------
    dict
        Class, source and arguments in the form of :func:`askew.io.flatten`, where modules among the
        arguments are described in place.

    Raises
    ------
    TypeError
        If an argument is something that JSON cannot hold, such as a Python function.

    Examples
    --------
    >>> from askew.divergences import Euclidean, Sqrt
    >>> describe(Sqrt(Euclidean(2)))["special"]["dict"]["class"]
    'divergences.Sqrt'
    """
    try:
        tensors, description = io.flatten(module, _special)
    except TypeError as error:
        hint = (
            "What holds a Python function cannot be saved without running code later: write it as a class derived from "
            "askew.potentials.Potential or askew.Divergence, and hand that to askew.load(folder, classes=[...])."
        )
        raise TypeError(f"{type(module).__name__} cannot be saved: {error} {hint}") from None
    if tensors:
        must = "kept by it as a parameter or a buffer of that name"
        raise TypeError(checks.message(f"{next(iter(tensors))} of {type(module).__name__}", must, "one that is not"))
    result: dict[str, Any] = description
    return result


@dataclass(frozen=True)
class _Kept:
    """A tensor whose values are in the state dict."""

    tensor: Tensor


def _special(value: object) -> dict[str, object] | None:
    """Return what stands for a module, or for what only they are made with."""
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
    kept = {id(tensor) for tensor in (*module._parameters.values(), *module._buffers.values())}
    arguments = {name: argument_of(module, name) for name in module._record.names}
    return {n: _Kept(v) if isinstance(v, Tensor) and id(v) in kept else v for n, v in arguments.items()}
