"""How exact is float32? Prints the relative error of D(x, y) against float64, for near and far points and far-off data.

    python benchmarks/numerics.py

Rows are a divergence and an offset that is added to both points, columns are |x - y| / |x|. A cell has the median and
the largest relative error of 200 pairs. The row below it, "textbook", is phi(x) - phi(y) - <grad phi(y), x - y> in the
same float32 with the gradient from autograd, and the share of its values that are negative. Both get exactly the same
points. Values too small for float32 to hold are left out; where all are, the cell has a dash.

The errors of a single unit (nbd-paper (1,), network alone (1,)) are those of one scalar product that may cancel.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from askew.checks import POSITIVE, SIMPLEX, UNIT_BOX, Domain
from askew.divergences import Bregman, NeuralBregman, make

DIM = 16
PAIRS = 200
RATIOS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
OFFSETS = (0.0, 1.0, 10.0, 100.0, 1000.0)
# The smallest number that float32 has with all its digits.
SMALLEST = torch.finfo(torch.float32).tiny
WIDTHS = ((1,), (128, 128), (512, 512))
CLOSED = ("kl", "kl-simplex", "itakura-saito", "logistic", "log-sum-exp", "exponential", "power")


def pairs(domain: Domain, offset: float, ratio: float, seed: int = 0, n: int = PAIRS) -> tuple[Tensor, Tensor]:
    """Return float32 points x and y of a domain, around an offset, with |x - y| about ratio times |x|."""
    generator = torch.Generator().manual_seed(seed)
    z, u = (torch.randn(n, DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    if domain == UNIT_BOX:
        y = z.sigmoid()
        x = y + 0.9 * ratio * u.tanh() * torch.minimum(y, 1 - y)
    elif domain == SIMPLEX:
        y = z.softmax(-1)
        x = y * (1 + 0.9 * ratio * u.tanh())
        x = x / x.sum(-1, keepdim=True)
    elif domain == POSITIVE:
        y = (z / 2).exp() + offset
        x = y * (1 + 0.9 * ratio * u.tanh())
    else:
        y = z + offset
        x = y + ratio * y.norm(dim=-1, keepdim=True) * u / u.norm(dim=-1, keepdim=True)
    return x.float(), y.float()


def network(kind: str, widths: tuple[int, ...], offset: float, steps: int) -> Bregman:
    """Return a network, trained for some steps on points around the offset; calibrated to them if it is to be."""
    torch.manual_seed(0)
    if kind == "nbd-paper":
        model = NeuralBregman.paper(DIM, widths)
    elif kind == "network alone":
        model = NeuralBregman(DIM, widths, quadratic=0, separable=0)
    else:
        model = NeuralBregman(DIM, widths)
    x, y = pairs(model.domain, offset, 1e-2, seed=1)
    y = y.flip(0)
    target = (x - y).relu().sum(-1) ** 1.5
    if kind == "nbd, calibrated":
        model.calibrate(x, y, target)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x, y) - target).abs().mean().backward()
        optimizer.step()
    return model


def rows() -> Iterator[tuple[str, float, Bregman]]:
    """Return name, offset and divergence of every row of the table."""
    for kind in ("nbd", "nbd, calibrated", "network alone", "nbd-paper"):
        for widths in WIDTHS:
            for offset in OFFSETS:
                yield f"{kind} {widths}", offset, network(kind, widths, offset, steps=10)
    for name in CLOSED:
        divergence = make(name, DIM)
        assert isinstance(divergence, Bregman)
        bounded = divergence.domain in (SIMPLEX, UNIT_BOX)
        for offset in OFFSETS:
            # e^89 is beyond float32.
            if (bounded and offset > 0) or (name == "exponential" and offset > 10):
                continue
            yield name, offset, divergence


def textbook(divergence: Bregman, x: Tensor, y: Tensor) -> Tensor:
    """Return the definition, as it is usually coded."""
    y = y.clone().requires_grad_()
    value = divergence.potential(y)
    (gradient,) = torch.autograd.grad(value.sum(), y)
    with torch.no_grad():
        result: Tensor = divergence.potential(x) - value - (gradient * (x - y)).sum(-1)
    return result


def errors(
    formula: Callable[[Bregman, Tensor, Tensor], Tensor], model: Bregman, x: Tensor, y: Tensor
) -> list[float] | None:
    """Return median and largest relative error against float64 and the share of negative values."""
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double(), y.double())
    found = formula(model, x, y).detach()
    keep = exact > SMALLEST
    if not keep.any():
        return None
    relative = ((found.double() - exact).abs() / exact)[keep]
    return torch.stack([relative.median(), relative.amax(), (found < 0).double().mean()]).tolist()


def ours(model: Bregman, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(x, y)
    return result


def cell(numbers: list[float] | None, *, signs: bool) -> str:
    if numbers is None:
        return "-"
    median, largest = (f"{number:.0e}".replace("e-0", "e-").replace("e+0", "e") for number in numbers[:2])
    return f"{median} / {largest}" + (f", {numbers[2]:.0%} < 0" if signs else "")


def main() -> None:
    torch.set_num_threads(1)
    start = time.perf_counter()
    print("| divergence | offset | " + " | ".join(f"{ratio:g}" for ratio in RATIOS) + " |")
    print("| --- | ---: |" + " ---: |" * len(RATIOS))
    for name, offset, model in rows():
        exact, usual = [], []
        for ratio in RATIOS:
            x, y = pairs(model.domain, offset, ratio)
            exact.append(cell(errors(ours, model, x, y), signs=False))
            usual.append(cell(errors(textbook, model, x, y), signs=True))
        print(f"| {name} | {offset:g} | " + " | ".join(exact) + " |")
        print("| *textbook* | | " + " | ".join(usual) + " |")
    print(f"\n{time.perf_counter() - start:.0f} s on one thread, torch {torch.__version__}, {PAIRS} pairs a cell.")


if __name__ == "__main__":
    main()
