"""Compilers, exporters, function transforms, devices and wrappers for training: all agree with plain eager code.

`python tests/divergences/test_transforms.py` prints the table of docs/transforms.md.
"""

from __future__ import annotations

import copy
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.autograd.forward_ad as forward_mode
from members import BREGMAN_WRAPPERS, DIM, WRAPPERS, into_domain
from torch import Tensor, distributed, nn
from torch._dynamo.testing import CompileCounter
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap

from askew import divergences
from askew.divergences import (
    CATALOGUE,
    Divergence,
    Embedded,
    GeneralizedSymmetrized,
    NeuralBregman,
    Sqrt,
    make,
    wrappers,
)

PAGE = Path(__file__).parents[2] / "docs" / "transforms.md"

COLUMNS = ("compile", "export", "vmap", "grad of grad")
# Rows of the page after the catalogue, of a neural Bregman divergence: the names of members.py, and how the page
# calls them. `Sqrt` and `GeneralizedSymmetrized` are in the catalogue.
OTHERS = {
    "embedded": "`Embedded`",
    "symmetrized": "`Symmetrized`",
    "scaled": "`Scaled`",
    "reversed": "`Reversed`",
    "jensen": "`Jensen`",
    "generalized-squared": "`GeneralizedSymmetrized(root=False)`",
    "dual-closed": "`Dual` of a closed form",
    "dual": "`Dual` of a network",
}
# All else works; a test below finds out if one of these does too.
UNSUPPORTED = {"dual": ("compile", "export", "vmap")}
PIECEWISE_LINEAR = "piecewise linear: second derivatives are zero"
NOTES = {
    "deep-div": PIECEWISE_LINEAR,
    "deep-div-affine": PIECEWISE_LINEAR,
    "pbdl": PIECEWISE_LINEAR,
    "deepnorm": PIECEWISE_LINEAR,
    "iqe": f"{PIECEWISE_LINEAR}; `vmap` of a gradient goes row by row, with a warning of torch",
    "dual": "a solver looks at values: outside of compilers and `torch.func` only",
}

LABELS = [*CATALOGUE, *OTHERS]
SOLVER = "newton chooses its steps by the values it sees"
METHODS = ("forward", "pairwise")
by_label = pytest.mark.parametrize("label", LABELS)
by_formula = pytest.mark.parametrize("label", [label for label in LABELS if label not in UNSUPPORTED])
by_method = pytest.mark.parametrize("method", METHODS)
pytestmark = [
    # Torch warns of what it does itself: the first in forward mode, the second when it compiles an autograd function.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    # A batching rule for the gradient of `cummax`, which iqe uses, is missing.
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]


def small_network() -> NeuralBregman:
    """Wrappers add a few operations to what they wrap, so a small network does and compiles in less time."""
    return NeuralBregman.paper(DIM, widths=(3,))


def build(label: str, seed: int = 0) -> Divergence:
    torch.manual_seed(seed)
    divergence: Divergence
    if label in CATALOGUE:
        divergence = make(label, DIM)
        if isinstance(divergence, (Sqrt, GeneralizedSymmetrized)):
            divergence.divergence = small_network()
    elif label == "dual-closed":
        kl = make("kl", DIM)
        divergence = BREGMAN_WRAPPERS["dual"](kl)  # type: ignore[arg-type]
    elif label == "dual":  # all gradients of a quadratic term have a point, those of a network alone do not
        divergence = BREGMAN_WRAPPERS[label](NeuralBregman(DIM, widths=(3,), separable=0))
    else:
        divergence = {**WRAPPERS, **BREGMAN_WRAPPERS}[label](small_network())  # type: ignore[operator]
    return divergence.double()


def points(divergence: Divergence, n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return into_domain(divergence.domain, torch.randn(n, DIM, generator=generator, dtype=torch.float64))


class Method(nn.Module):
    """One method of a divergence as a module, which is what exporters take."""

    def __init__(self, divergence: Divergence, method: str) -> None:
        super().__init__()
        self.divergence = divergence
        self.method = method

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = getattr(self.divergence, self.method)(x, y)
        return result


@pytest.fixture
def _compiler() -> Iterator[None]:
    # All members share the code of `forward`, which may be compiled for a few of them only at a time.
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def values_and_gradients(
    module: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, *more: Tensor
) -> list[Tensor]:
    """Return D and the gradients of a weighted sum of it with respect to x, y and more."""
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    value = module(x, y)
    weights = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).view_as(value)
    gradients = torch.autograd.grad((value * weights).sum(), (x, y, *more), allow_unused=True, materialize_grads=True)
    return [value.detach(), *gradients]


def close(found: object, wanted: object, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


@contextmanager
def untraced() -> Iterator[None]:
    """Pytest listens to all loggers; torch would format every graph for a log that nobody reads."""
    logger = logging.getLogger("torch.__trace")
    handlers, logger.handlers = logger.handlers, []
    try:
        yield
    finally:
        logger.handlers = handlers


@untraced()
def compile_and_compare(divergence: Divergence, method: str, backend: str) -> None:
    module = Method(divergence, method)
    x, y = points(divergence, 5, 0), points(divergence, 5, 1)
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    found = values_and_gradients(compiled, x, y, *divergence.parameters())
    close(found, values_and_gradients(module, x, y, *divergence.parameters()))


# ---------------------------------------------------------------------- compilers and exporters


@pytest.mark.usefixtures("_compiler")
@by_method
@by_label
def test_compile(label: str, method: str) -> None:
    divergence = build(label)
    if "compile" in UNSUPPORTED.get(label, ()):
        with pytest.raises(torch._dynamo.exc.Unsupported, match=SOLVER):
            compile_and_compare(divergence, method, "eager")
        return
    # Splitting the captured graph into a forward and a backward one takes longest. Closed forms, wrappers and
    # `pairwise` have few operations of their own, so it is done for some of them only; all are compared.
    learned = label in CATALOGUE and CATALOGUE[label].learned
    split = learned if method == "forward" else label in ("nbd-paper", "mahalanobis")
    compile_and_compare(divergence, method, "aot_eager" if split or label in ("kl", "embedded") else "eager")


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
@pytest.mark.usefixtures("_compiler")
@pytest.mark.parametrize("activation", ["squareplus", "softplus"])
def test_compile_to_machine_code(activation: str) -> None:
    torch.manual_seed(0)
    divergence = NeuralBregman(DIM, widths=(3,), activation=activation, separable=0)  # C++ compilers take their time
    compile_and_compare(divergence.double(), "forward", "inductor")


@pytest.mark.usefixtures("_compiler")
@by_method
@pytest.mark.parametrize("activation", ["squareplus", "softplus"])
@untraced()
def test_one_compilation_serves_all_batch_sizes(activation: str, method: str) -> None:
    divergence = NeuralBregman(DIM, widths=(3,), activation=activation, separable=0).double()
    counter = CompileCounter()
    compiled = torch.compile(getattr(divergence, method), fullgraph=True, dynamic=True, backend=counter)
    for n in (5, 3, 9):
        x, y = points(divergence, n, n), points(divergence, n, n + 1)
        close(compiled(x, y), getattr(divergence, method)(x, y))
    assert counter.frame_count == 1


@pytest.mark.usefixtures("_compiler")
@untraced()
def test_compile_of_vmap() -> None:
    divergence = build("nbd")
    x, y = points(divergence, 5, 0), points(divergence, 5, 1)
    rows = vmap(lambda x, y: divergence(x, y))
    close(torch.compile(rows, fullgraph=True, backend="eager")(x, y), divergence(x, y))
    with torch.no_grad():
        fixed = vmap(lambda x, y: divergence(x, y), in_dims=(0, None))
        close(torch.compile(fixed, fullgraph=True, backend="eager")(x, y[0]), divergence(x, y[0]))


@by_method
@by_label
@untraced()
def test_export_with_a_free_batch_size(label: str, method: str) -> None:
    divergence = build(label)
    module = Method(divergence, method)
    n, m = torch.export.Dim("n", min=1), torch.export.Dim("m", min=1)
    shapes = ({0: n}, {0: n if method == "forward" else m})
    x, y = points(divergence, 5, 0), points(divergence, 5 if method == "forward" else 4, 1)
    if "export" in UNSUPPORTED.get(label, ()):
        with pytest.raises(RuntimeError, match=SOLVER):
            torch.export.export(module, (x, y), dynamic_shapes=shapes, strict=False)
        return
    program = torch.export.export(module, (x, y), dynamic_shapes=shapes, strict=False).module()
    for size in (8, 1):
        x, y = points(divergence, size, 2), points(divergence, size, 3)
        with torch.no_grad():
            close(program(x, y), module(x, y))


# ---------------------------------------------------------------------- function transforms


@pytest.mark.parametrize("recorded", [False, True], ids=["inference", "training"])
@by_label
def test_vmap(label: str, recorded: bool) -> None:
    divergence = build(label)
    x, y = points(divergence, 5, 0), points(divergence, 5, 1)
    with torch.set_grad_enabled(recorded):
        if "vmap" in UNSUPPORTED.get(label, ()):
            with pytest.raises(RuntimeError, match=SOLVER):
                vmap(divergence)(x, y)
            return
        matrix = divergence.pairwise(x, y)
        close(vmap(divergence)(x, y), matrix.diagonal())
        close(vmap(divergence, in_dims=(0, None))(x, y[0]), matrix[:, 0])
        close(vmap(divergence, in_dims=(None, 0))(x[0], y), matrix[0])
        close(vmap(vmap(divergence, in_dims=(None, 0)), in_dims=(0, None))(x, y), matrix)
        sets = torch.stack([x, x.flip(0)])
        close(vmap(divergence.pairwise, in_dims=(0, None))(sets, y), torch.stack([matrix, matrix.flip(0)]))


@by_formula
def test_derivatives_by_function_transforms(label: str) -> None:
    divergence = build(label)
    x, y = points(divergence, 4, 0), points(divergence, 4, 1)
    start = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(divergence(start, y).sum(), start, create_graph=True)
    second = torch.stack([rows(slope[:, i], start) for i in range(DIM)], 1)
    close(vmap(grad(divergence))(x, y), slope)
    close(vmap(jacrev(divergence))(x, y), slope)
    close(jacrev(divergence)(x, y), torch.einsum("nm,nd->nmd", torch.eye(4, dtype=x.dtype), slope))
    close(vmap(hessian(divergence))(x, y), second, rtol=1e-7, atol=1e-8)
    direction = torch.randn(4, DIM, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    value, tangent = jvp(lambda x: divergence(x, y), (x,), (direction,))
    close(value, divergence(x, y))
    close(tangent, (slope * direction).sum(-1))


def rows(values: Tensor, start: Tensor) -> Tensor:
    if not values.requires_grad:  # constant
        return torch.zeros_like(start)
    (found,) = torch.autograd.grad(values.sum(), start, retain_graph=True, allow_unused=True, materialize_grads=True)
    return found


@by_label
def test_gradient_of_a_gradient(label: str) -> None:
    """Double backward in eager code against differences of the first gradient."""
    assert "grad of grad" not in UNSUPPORTED.get(label, ())
    divergence = build(label)
    x, y = points(divergence, 4, 0), points(divergence, 4, 1)
    direction = torch.randn(4, DIM, generator=torch.Generator().manual_seed(2), dtype=x.dtype)

    def slope(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(divergence(x, y).sum(), x, create_graph=True)
        return found, x

    size = 1e-6
    found, start = slope(x)
    wanted = (slope(x + size * direction)[0] - slope(x - size * direction)[0]) / (2 * size)
    # The Hessian is symmetric: one backward pass of <gradient, direction> gives its product with the direction.
    close(rows(found * direction, start), wanted.detach(), rtol=1e-5, atol=1e-7)


@by_method
def test_vmap_over_an_ensemble(method: str) -> None:
    members = [Method(build("nbd", seed), method) for seed in range(3)]
    x, y = points(members[0].divergence, 4, 0), points(members[0].divergence, 4, 1)
    parameters, buffers = stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        value: Tensor = functional_call(base, (parameters, buffers), (x, y))
        return value.square().sum()

    found, gradients = vmap(torch.func.grad_and_value(loss))(parameters, buffers)[::-1]
    for i, member in enumerate(members):
        wanted = member(x, y).square().sum()
        close(found[i], wanted)
        names, tensors = zip(*member.named_parameters(), strict=True)
        for name, gradient in zip(names, torch.autograd.grad(wanted, tensors), strict=True):
            close(gradients[name][i], gradient)


@by_method
@by_label
def test_forward_mode(label: str, method: str) -> None:
    """The tangent is right or there is an error; what must not happen is that a tangent gets lost."""
    divergence = build(label)
    x, y = points(divergence, 4, 0), points(divergence, 4, 1)
    direction = torch.randn(4, DIM, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    start = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(getattr(divergence, method)(start, y).sum(), start)
    with forward_mode.dual_level():
        dual = forward_mode.make_dual(x, direction)
        if label in UNSUPPORTED:
            with pytest.raises(RuntimeError, match=SOLVER):
                getattr(divergence, method)(dual, y)
            return
        tangent = forward_mode.unpack_dual(getattr(divergence, method)(dual, y)).tangent
        close(tangent.sum(), (slope * direction).sum())


def test_transformed_pairs_are_rounded_but_not_negative() -> None:
    divergence = NeuralBregman(DIM)
    x = 10 + points(divergence, 50, 0).float()
    eager = divergence.pairwise(x, x)
    transformed = vmap(divergence.pairwise, in_dims=(0, None))(x[None], x)[0]
    assert (eager.diagonal() == 0).all()
    assert (transformed >= 0).all()
    assert (transformed.diagonal() > 0).any(), "near pairs are exact now: docs/transforms.md says otherwise"
    close(transformed, eager, rtol=1e-3, atol=1e-5 * eager.max().item())


# ---------------------------------------------------------------------- no autograd in the forward pass


@by_method
@by_formula
def test_no_gradient_is_taken_inside(label: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    divergence = build(label)
    x, y = points(divergence, 5, 0).requires_grad_(), points(divergence, 5, 1).requires_grad_()

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("autograd was called inside")

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    getattr(divergence, method)(x, y).sum().backward()
    assert x.grad is not None
    assert x.grad.any()
    monkeypatch.undo()
    with torch.inference_mode():
        inside = getattr(divergence, method)(x, y)
    close(inside.clone(), getattr(divergence, method)(x, y).detach())


# ---------------------------------------------------------------------- devices


def tensors_in(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple, set)):
        return [tensor for item in value for tensor in tensors_in(item)]
    if isinstance(value, dict):
        return tensors_in(list(value.values()))
    return []


@pytest.mark.parametrize("made", ["on it", "moved"])
@by_label
def test_meta_device(label: str, made: str) -> None:
    """Shapes without numbers: a value that is looked at or a tensor left on another device is an error."""
    if made == "moved":
        divergence = build(label).to("meta")
    else:
        with torch.device("meta"):
            divergence = build(label)
    for module in divergence.modules():
        registered = {"_parameters", "_buffers", "_modules"}
        assert not tensors_in([value for name, value in vars(module).items() if name not in registered])
    assert all(tensor.is_meta for tensor in (*divergence.parameters(), *divergence.buffers()))
    x, y = (torch.empty(n, DIM, dtype=torch.float64, device="meta", requires_grad=True) for n in (6, 5))
    if label in UNSUPPORTED:
        with pytest.raises(RuntimeError, match=SOLVER):
            divergence(x[:5], y)
        return
    with torch.no_grad():
        assert divergence(x[:5], y).shape == (5,)
        assert divergence.pairwise(x, y).shape == (6, 5)
    if made == "on it":  # the backward pass does not depend on how it came there
        return
    value, matrix = divergence(x[:5], y), divergence.pairwise(x, y)
    assert (value.shape, matrix.shape) == ((5,), (6, 5))
    assert value.is_meta
    assert matrix.is_meta
    (value.sum() + matrix.sum()).backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


# ---------------------------------------------------------------------- distributed training


@pytest.fixture
def _one_process(tmp_path: Path) -> Iterator[None]:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def with_encoder() -> Divergence:
    return Embedded(nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, DIM)), NeuralBregman(DIM)).double()


@pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed package")
@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("make_one", [lambda: build("nbd"), with_encoder], ids=["nbd", "embedded"])
def test_distributed_data_parallel_takes_the_same_step(make_one: Callable[[], Divergence]) -> None:
    torch.manual_seed(0)
    plain = make_one()
    copied = copy.deepcopy(plain)
    parallel = nn.parallel.DistributedDataParallel(copied, find_unused_parameters=False)
    x, y = points(plain, 16, 0), points(plain, 16, 1)
    for module, owner in ((plain, plain), (parallel, copied)):
        optimizer = torch.optim.SGD(owner.parameters(), lr=0.1)
        for _ in range(2):  # the second step fails if a parameter of the first had no gradient
            optimizer.zero_grad()
            (module(x, y) - 1).square().mean().backward()
            optimizer.step()
    for (name, wanted), found in zip(plain.named_parameters(), copied.parameters(), strict=True):
        assert wanted.grad is not None, name
        close(found.grad, wanted.grad)
        close(found, wanted)


# ---------------------------------------------------------------------- the page


def table() -> str:
    """Return the table of docs/transforms.md: one row for all that have the same answers and notes."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for label in LABELS:
        cells = ["no" if column in UNSUPPORTED.get(label, ()) else "yes" for column in COLUMNS]
        rows.setdefault((*cells, NOTES.get(label, "")), []).append(OTHERS.get(label, f"`{label}`"))
    lines = [f"| divergence | {' | '.join(COLUMNS)} | notes |", f"|{'---|' * (len(COLUMNS) + 2)}"]
    lines += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in rows.items()]
    return "\n".join(line.replace("|  |", "| |") for line in lines)


def test_the_page_has_the_table_that_these_tests_check() -> None:
    assert table() in PAGE.read_text("utf-8"), f"put this into {PAGE.name}:\n{table()}"


def test_every_wrapper_has_a_row() -> None:
    assert {type(build(label)) for label in LABELS} >= {
        value
        for name, value in vars(wrappers).items()
        if isinstance(value, type) and value.__module__ == wrappers.__name__ and name in divergences.__all__
    }


@by_label
def test_notes_on_second_derivatives(label: str) -> None:
    divergence = build(label)
    x, y = points(divergence, 4, 0).requires_grad_(), points(divergence, 4, 1)
    (slope,) = torch.autograd.grad(divergence(x, y).sum(), x, create_graph=True)
    curved = any(rows(slope[:, i], x).abs().max() > 1e-9 for i in range(DIM))
    assert curved != (PIECEWISE_LINEAR in NOTES.get(label, ""))


if __name__ == "__main__":
    print(table())
