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
from askew.io.classes import VECTORS, resolve
from askew.io.files import atomic_write

# Rows of an example; two numbers that no other size is likely to have, so that none is taken for the other.
ROWS, OTHER_ROWS = 7, 5
# Graphs of vectors for an engine.
VECTORS_OF = ("key", "query")


def export(
    model: object,
    path: str | os.PathLike[str],
    what: str | None = None,
    example: Tensor | tuple[Tensor, Tensor] | None = None,
    direction: str | None = None,
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
        A divergence, a fitted learner, an encoder, or what :func:`askew.search.keys_and_queries` returned.
    path
        Of the file, ending in ``.pt2`` or ``.onnx``.
    what
        ``"forward"``: D(x, y) of n rows each, ``(n, ...), (n, ...) -> (n,)``, the default of a divergence.
        ``"pairwise"``: all pairs, ``(n, ...), (m, ...) -> (n, m)``.
        ``"encoder"``: the (first) encoder of an :class:`~askew.divergences.Embedded`, or the model itself where it is
        an encoder, ``(n, ...) -> (n, dim)``.
        ``"key"`` and ``"query"``: the vectors that an engine stores for items and is searched with, ``(n, ...) ->
        (n, size)``, by inner product unless the model is a Euclidean form of
        :func:`~askew.search.keys_and_queries`. There, a key that is too long has NaN in its last feature.
    example
        Some points of the kind the model takes, at least two, or a tuple of first and of second points where these
        differ; for models whose input has a known shape it may be left out.
    direction
        For ``"key"`` and ``"query"`` of a divergence or a learner: ``"query-first"``, the default, for the smallest
        D(query, item), or ``"query-second"`` for D(item, query). Both graphs must have the same.

    Raises
    ------
    ImportError
        For ONNX, without the packages of the extra ``onnx``.
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
    module = _module(model, what, direction)
    ending = Path(path).suffix
    if ending not in (".pt2", ".onnx"):
        raise ValueError(checks.message("path of export", "a path that ends in .pt2 or .onnx", repr(str(path))))
    if ending == ".onnx":
        for package in ("onnx", "onnxscript"):
            checks.optional_import(package, "onnx", "Export to ONNX")
    graph, arguments, names = _chosen(module, what, example)
    shapes = {name: torch.export.Dim(name, min=1) for name in names.values()}
    dynamic = tuple({0: shapes[name]} for name in names.values())
    with _quiet(), torch.no_grad():
        graph(*arguments)  # A wrong example is better told of by the model than by the exporter.
        try:
            program = torch.export.export(graph, arguments, dynamic_shapes=dynamic, strict=False)
            output = "vectors" if what in VECTORS_OF else "points" if len(names) == 1 else "divergence"
            converted = _converted(program, arguments, names, output) if ending == ".onnx" else None
        except Exception as error:  # Any code of the model is run, and exporters raise many kinds.
            must = f"one that {'ONNX' if ending == '.onnx' else 'torch.export'} can express"
            reason = f"{type(error).__name__}: ... {' '.join(str(error).split())[-300:]}"
            got = f"{type(module).__name__} ({reason})"
            raise ValueError(checks.message("model of export", must, got)) from error
        with atomic_write(path) as temporary:
            if converted is not None:
                converted.save(temporary, external_data=False)
            else:
                # By the open file: torch refuses paths with another ending than its own.
                with temporary.open("wb") as file:
                    torch.export.save(program, file)


def _module(model: object, what: str | None, direction: str | None) -> nn.Module:
    """Return what to export as a module: for vectors the maps of the model, for a learner its divergence."""
    wants_vectors = what in VECTORS_OF
    if direction is not None and (not wants_vectors or hasattr(model, "graph")):
        must = f"given only for {' and '.join(map(repr, VECTORS_OF))} of a divergence or a learner"
        raise ValueError(checks.message("direction of export", must, repr(direction)))
    converts = not isinstance(model, type) and callable(getattr(model, "as_divergence", None))
    if wants_vectors and converts:
        maps: nn.Module = resolve("keys_and_queries", VECTORS)(model, direction or "query-first")
        return maps
    if converts and not isinstance(model, nn.Module):
        model = model.as_divergence()  # type: ignore[attr-defined]
    if not isinstance(model, nn.Module):
        must = "a divergence, a fitted learner or an encoder"
        raise TypeError(checks.message("model of export", must, type(model).__name__))
    return model


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
    model: nn.Module, what: str | None, example: Tensor | tuple[Tensor, Tensor] | None
) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, str]]:
    """Return what to trace, an example of its arguments, and their names with those of their rows."""
    if hasattr(model, "graph"):  # keys and queries
        chosen = checks.check_name(what or "none", VECTORS_OF, f"what of {type(model).__name__}")
        maps: Any = copy.deepcopy(model).requires_grad_(False).cpu()
        graph = maps.graph(chosen).eval()
        return graph, (_points(graph.input, example, ROWS, maps.centre.dtype),), {"x": "n"}
    encoder = _encoder(model)
    choices: dict[str, nn.Module] = dict.fromkeys(("forward", "pairwise"), model) if hasattr(model, "pairwise") else {}
    if encoder is not None:
        choices["encoder"] = encoder
    wanted = next(iter(choices)) if what is None else what
    vectors = VECTORS_OF if "forward" in choices else ()
    chosen = checks.check_name(wanted, [*choices, *vectors], f"what of {type(model).__name__}")
    first, second = example if isinstance(example, tuple) and len(example) == 2 else (example, example)
    rows = _points(model, first, ROWS)
    # A copy keeps the mode of the model; frozen, so that nothing is recorded for a backward pass.
    frozen = copy.deepcopy(choices[chosen]).eval().requires_grad_(False).cpu()
    if chosen == "encoder":
        return frozen, (rows,), {"x": "n"}
    others = _points(model, second, ROWS if chosen == "forward" else OTHER_ROWS, side="second").flip(0)
    return _Call(frozen, chosen), (rows, others), {"x": "n", "y": "n" if chosen == "forward" else "m"}


def _encoder(model: nn.Module, side: str = "first") -> nn.Module | None:
    """Return the encoder of one side of a model, or the model itself where it is no divergence."""
    encoder = getattr(model, "encoder", None) if hasattr(model, "pairwise") else model
    if side == "second":
        encoder = getattr(model, "second", None) or encoder
    return encoder if isinstance(encoder, nn.Module) else None


def _points(
    model: nn.Module, example: object, count: int, dtype: torch.dtype | None = None, side: str = "first"
) -> Tensor:
    """Return an example input of one side with this number of rows."""
    if example is not None:
        if not isinstance(example, Tensor) or example.ndim < 2 or example.shape[0] < 1:
            got = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
            raise ValueError(checks.message("example of export", "a tensor of points, (n, ...)", got))
        times = -(-count // example.shape[0])
        return torch.cat([example.detach().cpu()] * times)[:count].contiguous()
    tensors = (*model.parameters(), *model.buffers())
    dtype = dtype or next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
    inner = _encoder(model, side) or model
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


def _converted(
    program: torch.export.ExportedProgram, arguments: tuple[Tensor, ...], names: dict[str, str], output: str
) -> Any:
    if any(node.target is torch.ops.aten.cummax.default for node in program.graph.nodes):
        # ONNX has no running maximum.
        program = program.run_decompositions({torch.ops.aten.cummax.default: _running_maximum})
    # Of a program this only names the axes, each of which has one name.
    axes = tuple({} if rows in list(names.values())[:i] else {0: rows} for i, rows in enumerate(names.values()))
    return torch.onnx.export(
        program,
        arguments,
        input_names=list(names),
        output_names=[output],
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
