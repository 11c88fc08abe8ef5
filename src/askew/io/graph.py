"""Export models as graphs for other runtimes: torch.export and ONNX."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from askew import checks
from askew.io.files import atomic_write

# Rows of an example; two numbers that no other size is likely to have, so that none is taken for the other.
ROWS, OTHER_ROWS = 7, 5


def export(
    model: nn.Module, path: str | os.PathLike[str], what: str | None = None, example: Tensor | None = None
) -> None:
    r"""Write a model as a graph that runs without askew, for any number of rows.

    ``.pt2`` is read by ``torch.export.load``, ``.onnx`` by runtimes such as onnxruntime, where the values agree with
    those of PyTorch to 1e-5. The graph does not check its input. It is made in evaluation mode, and the file is whole
    or absent.

    An exported ``pairwise`` is the matrix product alone: near pairs, which ``model.pairwise`` recomputes, keep its
    rounding error. Models that solve equations at each call, such as the :class:`~askew.divergences.Dual` of a
    network, cannot be exported.

    Parameters
    ----------
    model
        A divergence or an encoder.
    path
        Of the file, ending in ``.pt2`` or ``.onnx``.
    what
        ``"forward"``: D(x, y) of n rows each, ``(n, ...), (n, ...) -> (n,)``, the default of a divergence.
        ``"pairwise"``: all pairs, ``(n, ...), (m, ...) -> (n, m)``.
        ``"encoder"``: the encoder of an :class:`~askew.divergences.Embedded`, or the model itself where it is an
        encoder, ``(n, ...) -> (n, dim)``.
    example
        Some points of the kind the model takes, at least two; for models whose input has a known shape it may be left
        out.

    Raises
    ------
    ImportError
        For ONNX, without the packages of ``askew[onnx]``.
    ValueError
        If the model cannot be exported; the message says why.

    Examples
    --------
    >>> import tempfile
    >>> from askew.divergences import Mahalanobis
    >>> D, x, y = Mahalanobis(3), torch.randn(5, 3), torch.randn(2, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(D, f"{folder}/D.pt2", what="pairwise")
    ...     again = torch.export.load(f"{folder}/D.pt2").module()
    >>> torch.allclose(again(x, y), D.pairwise(x, y))
    True
    """
    if not isinstance(model, nn.Module):
        hint = "For an estimator, pass its fitted divergence."
        raise TypeError(checks.message("model of export", "a divergence or an encoder", type(model).__name__, hint))
    ending = Path(path).suffix
    if ending not in (".pt2", ".onnx"):
        raise ValueError(checks.message("path of export", "a path that ends in .pt2 or .onnx", repr(str(path))))
    if ending == ".onnx":
        for package in ("onnx", "onnxscript"):
            checks.optional_import(package, "onnx", "Export to ONNX")
    graph, arguments, names = _chosen(model, what, example)
    shapes = {name: torch.export.Dim(name, min=1) for name in names.values()}
    dynamic = tuple({0: shapes[name]} for name in names.values())
    with _quiet(), torch.no_grad():
        graph(*arguments)  # A wrong example is better told of by the model than by the exporter.
        try:
            program = torch.export.export(graph, arguments, dynamic_shapes=dynamic, strict=False)
            converted = _converted(program, arguments, names) if ending == ".onnx" else None
        except Exception as error:  # Any code of the model is run, and exporters raise many kinds.
            must = f"one that {'ONNX' if ending == '.onnx' else 'torch.export'} can express"
            reason = f"{type(error).__name__}: ... {' '.join(str(error).split())[-300:]}"
            got = f"{type(model).__name__} ({reason})"
            raise ValueError(checks.message("model of export", must, got)) from error
        with atomic_write(path) as temporary:
            if converted is not None:
                converted.save(temporary, external_data=False)
            else:
                # By the open file: torch refuses paths with another ending than its own.
                with temporary.open("wb") as file:
                    torch.export.save(program, file)


class _Call(nn.Module):
    """One method of a model as ``forward``, the only one that exporters know."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = getattr(self.model, self.method)(x, y)
        return result


def _chosen(
    model: nn.Module, what: str | None, example: Tensor | None
) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, str]]:
    """Return what to trace, an example of its arguments, and their names with those of their rows."""
    encoder = _encoder(model)
    choices: dict[str, nn.Module] = dict.fromkeys(("forward", "pairwise"), model) if hasattr(model, "pairwise") else {}
    if encoder is not None:
        choices["encoder"] = encoder
    wanted = next(iter(choices)) if what is None else what
    chosen = checks.check_name(wanted, choices, f"what of {type(model).__name__}")
    rows = _points(model, example, ROWS)
    # A copy keeps the mode of the model; frozen, so that nothing is recorded for a backward pass.
    frozen = copy.deepcopy(choices[chosen]).eval().requires_grad_(False).cpu()
    if chosen == "encoder":
        return frozen, (rows,), {"x": "n"}
    others = rows.flip(0).clone() if chosen == "forward" else _points(model, example, OTHER_ROWS)
    return _Call(frozen, chosen), (rows, others), {"x": "n", "y": "n" if chosen == "forward" else "m"}


def _encoder(model: nn.Module) -> nn.Module | None:
    """Return the encoder of a model, or the model itself where it is no divergence."""
    encoder = getattr(model, "encoder", None) if hasattr(model, "pairwise") else model
    return encoder if isinstance(encoder, nn.Module) else None


def _points(model: nn.Module, example: Tensor | None, count: int) -> Tensor:
    """Return an example of so many rows."""
    if example is not None:
        if not isinstance(example, Tensor) or example.ndim < 2 or example.shape[0] < 1:
            got = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
            raise ValueError(checks.message("example of export", "a tensor of points, (n, ...)", got))
        times = -(-count // example.shape[0])
        return torch.cat([example.detach().cpu()] * times)[:count].contiguous()
    tensors = (*model.parameters(), *model.buffers())
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
    inner = _encoder(model) or model
    shape = _shape(inner)
    if shape is None:
        must = "given, as the shape of the points is not known"
        hint = "Example: example=torch.zeros(2, 3, 224, 224)."
        raise ValueError(checks.message(f"example of export for {type(inner).__name__}", must, "None", hint))
    domain = getattr(model, "domain", checks.REAL)
    return torch.full((count, *shape), domain.middle(shape[-1]), dtype=dtype)


def _shape(module: nn.Module) -> tuple[int, ...] | None:
    """Return the shape of one point of a divergence or an encoder, where it says so itself."""
    if isinstance(module, nn.Sequential) and len(module) > 0:
        return _shape(module[0])
    choices = [("in_features",), ("dim",), ("channels", "image_size", "image_size")]
    if not list(module.parameters()):  # only of the identity is the output like the input
        choices.append(("out",))
    for names in choices:
        sizes: tuple[Any, ...] = tuple(getattr(module, name, None) for name in names)
        if all(isinstance(size, int) for size in sizes):
            return sizes
    return None


def _converted(program: torch.export.ExportedProgram, arguments: tuple[Tensor, ...], names: dict[str, str]) -> Any:
    if any(node.target is torch.ops.aten.cummax.default for node in program.graph.nodes):
        # ONNX has no running maximum.
        program = program.run_decompositions({torch.ops.aten.cummax.default: _running_maximum})
    # Of a program this only names the axes, each of which has one name.
    axes = tuple({} if rows in list(names.values())[:i] else {0: rows} for i, rows in enumerate(names.values()))
    return torch.onnx.export(
        program,
        arguments,
        input_names=list(names),
        output_names=["points" if len(names) == 1 else "divergence"],
        dynamic_shapes=axes,
        dynamo=True,
        verbose=False,
    )


def _running_maximum(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the running maximum and where it is, by steps of doubled length."""
    size = x.shape[dim]
    values, places = x.movedim(dim, -1), torch.arange(size, device=x.device).expand_as(x.movedim(dim, -1))
    step = 1
    while step < size:
        later, earlier = values[..., step:], values[..., :-step]
        keep = later >= earlier
        places = torch.cat([places[..., :step], torch.where(keep, places[..., step:], places[..., :-step])], -1)
        values = torch.cat([values[..., :step], torch.maximum(later, earlier)], -1)
        step *= 2
    return values.movedim(-1, dim), places.movedim(-1, dim)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of the exporters about their own code."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)  # That torchvision, which no model here uses, is not installed.
    try:
        with warnings.catch_warnings():
            # Torch copies its own tree specifications by a way that it has deprecated itself.
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            yield
    finally:
        registration.setLevel(level)
