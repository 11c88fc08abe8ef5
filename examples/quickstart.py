"""Learn an asymmetric divergence from example values, compare it with two baselines and draw its balls.

    python examples/quickstart.py            # less than a minute on most machines
    python examples/quickstart.py --quick    # a few seconds, less accurate

The task is the x log x regression of Lu, Raff, Ferraro (2023): points have 20 features, 10 of which matter, and
the value to be learned is D(x, y) = sum x log(x / y) - x + y over these 10. The models are not told which.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

import askew
from askew import Divergence, checks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEATURES, INFORMATIVE = 20, 10
BATCH = 1000
TRUE = askew.make("kl", INFORMATIVE)

# The palette of Okabe and Ito, which colour-blind readers can tell apart; the line styles differ as well.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#4D4D4D"


class Pairs(NamedTuple):
    """Pairs of points, ``(n, 20)`` each, and the divergence of each pair, ``(n,)``."""

    x: Tensor
    y: Tensor
    targets: Tensor


def draw_pairs(count: int, generator: torch.Generator) -> Pairs:
    """Return random pairs: normal features, of which the first ten are made positive and determine the target."""
    points = torch.randn(2, count, FEATURES, generator=generator)
    # A random number may be exactly 0, where the logarithm is not finite.
    points[..., :INFORMATIVE] = points[..., :INFORMATIVE].abs().clamp_min(1e-6)
    x, y = points
    return Pairs(x, y, TRUE(x[:, :INFORMATIVE], y[:, :INFORMATIVE]))


def train(model: Divergence, pairs: Pairs, epochs: int, generator: torch.Generator, label: str) -> None:
    """Fit a divergence to the targets by least squares: Adam, a short warm-up, then a linear decay to 0."""
    count = len(pairs.targets)
    steps = epochs * len(range(0, count, BATCH))
    warm_up = min(100, steps // 2)

    def rate(step: int) -> float:
        return min((step + 1) / (warm_up + 1), (steps - step) / (steps - warm_up))

    # Sets the scales of input and output, which are not learned; a model without such scales ignores it.
    model.calibrate(*(values[:5000] for values in pairs))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    step = 0
    for _ in range(epochs):
        for rows in torch.randperm(count, generator=generator).split(BATCH):
            loss = (model(pairs.x[rows], pairs.y[rows]) - pairs.targets[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            show_progress(label, step, steps)


def show_progress(label: str, step: int, steps: int) -> None:
    """Draw a progress bar over the current line, on a terminal only; wipe it at the end."""
    if not sys.stderr.isatty():
        return
    filled = 30 * step // steps
    line = f"\r{label:<22}[{'#' * filled:<30}] {100 * step // steps:3d} %"
    print(line if step < steps else "\r" + " " * len(line) + "\r", end="", file=sys.stderr, flush=True)


@torch.no_grad()
def mean_absolute_error(model: Divergence, pairs: Pairs) -> float:
    return float((model(pairs.x, pairs.y) - pairs.targets).abs().mean())


@torch.no_grad()
def draw_balls(models: Sequence[tuple[str, str, Divergence]], middle: Tensor, note: str, path: Path) -> None:
    """Draw the balls around four centres in the plane of the first two features, true and learned.

    Parameters
    ----------
    models
        Title, colour and divergence, one for each column.
    middle
        What the other features are set to, ``(20,)``.
    note
        A line below the title.
    path
        The PNG file to write.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    end, radius = 2.5, 0.1
    axis = torch.linspace(0.005, end, 150)
    places = torch.tensor([[0.3, 0.3], [1.6, 0.3], [0.3, 1.6], [1.6, 1.6]])
    grid, centres = (in_the_plane(points, middle) for points in (torch.cartesian_prod(axis, axis), places))

    figure = Figure(figsize=(8.6, 9.6), layout="constrained")
    spacing = {"hspace": 0.06, "wspace": 0.04}
    panels = figure.subplots(2, len(models), sharex=True, sharey=True, squeeze=False, gridspec_kw=spacing)
    for row, direction in enumerate(("D(x, c)", "D(c, x)")):
        reverse = row == 1
        truth = distances(TRUE, grid[:, :INFORMATIVE], centres[:, :INFORMATIVE], reverse)
        for panel, (title, colour, model) in zip(panels[row], models, strict=True):
            for height in distances(model, grid, centres, reverse):
                contour(panel, axis, height, radius, colour, "solid", 3.0)
            for height in truth:
                contour(panel, axis, height, radius, "black", "dashed", 1.2)
            panel.plot(*places.T.tolist(), "+", color="black", markersize=8, markeredgewidth=1.4)
            panel.set(xlim=(0, end), ylim=(0, end), aspect="equal")
            panel.set_title(f"{title}:  {direction} = {radius:g}", fontsize=12)
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(labelsize=9)
    for panel in panels[-1]:
        panel.set_xlabel("feature 1", fontsize=10)
    for panel in panels[:, 0]:
        panel.set_ylabel("feature 2", fontsize=10)
    lines = [Line2D([], [], color=colour, linewidth=3.0, label=f"learned, {title}") for title, colour, _ in models]
    lines.append(Line2D([], [], color="black", linestyle="dashed", linewidth=1.2, label="true"))
    lines.append(Line2D([], [], color="black", marker="+", linestyle="none", markersize=8, label="centre c"))
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), fontsize=10, frameon=False)
    figure.suptitle(f"All points x at divergence {radius:g} from a centre, in both directions\n\n", fontsize=14)
    figure.text(0.5, 0.956, note, ha="center", va="center", fontsize=9.5, color=GREY)

    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        figure.savefig(part, format="png", dpi=150)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def in_the_plane(points: Tensor, middle: Tensor) -> Tensor:
    """Return points of the plane, ``(n, 2)``, with the other features set to the middle, ``(n, 20)``."""
    return torch.cat([points, middle[2:].expand(len(points), -1)], 1)


def distances(model: Divergence, grid: Tensor, centres: Tensor, reverse: bool) -> Tensor:
    """Return D(grid, centre) or, reversed, D(centre, grid), as ``(centres, grid)``."""
    return model.pairwise(centres, grid) if reverse else model.pairwise(grid, centres).T


def contour(panel: Axes, axis: Tensor, height: Tensor, level: float, colour: str, style: str, width: float) -> None:
    heights = height.view(len(axis), len(axis)).T
    panel.contour(
        axis.tolist(), axis.tolist(), heights.tolist(), [level], colors=colour, linestyles=style, linewidths=width
    )


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive integer. Got {text!r} instead.")
    return int(text)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=positive, help="passes over the training pairs (default: 40; quick: 15)")
    parser.add_argument("--seed", type=int, default=0, help="of the data and of the models (default: 0)")
    parser.add_argument("--quick", action="store_true", help="a few seconds on fewer pairs; less accurate")
    parser.add_argument("-o", "--output", type=Path, default=Path("askew-out"), help="folder for the picture")
    options = parser.parse_args(arguments)
    options.epochs = options.epochs or (15 if options.quick else 40)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    # What could go wrong goes wrong here, before the training.
    try:
        checks.optional_import("matplotlib", "plot", "The picture")
        options.output.mkdir(parents=True, exist_ok=True)
    except (ImportError, OSError) as error:
        sys.exit(f"quickstart.py: {error}")

    # The matrices are small: on a busy machine several threads wait for each other longer than they compute.
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    training = draw_pairs(10_000 if options.quick else 50_000, generator)
    test = draw_pairs(10_000, generator)
    setting = f"{len(training.targets)} training pairs, {options.epochs} epochs, seed {options.seed}"
    if options.quick:
        setting = f"quick run, {setting}"
    print(f"x log x regression ({setting})\n")
    print("Mean absolute error on 10000 test pairs:")

    constant = (training.targets.median() - test.targets).abs().mean().item()
    print(f"  {'constant (training median)':<28} {constant:.4f}", flush=True)
    models = {
        "Mahalanobis, squared": askew.make("mahalanobis", FEATURES),
        "NBD": askew.make("nbd", FEATURES),
    }
    for name, model in models.items():
        train(model, training, options.epochs, generator, name)
        print(f"  {name:<28} {mean_absolute_error(model, test):.4f}", flush=True)

    mahalanobis, nbd = models.values()
    x, y = test.x[:1000], test.y[:1000]
    with torch.no_grad():
        forth, back, same = nbd(x, y), nbd(y, x), nbd(x, x)
    smallest, largest = forth.min().item(), same.max().item()
    print(f"\nNBD on 1000 of them: smallest D(x, y) = {smallest:.2g}, largest D(x, x) = {largest:g},")
    print(f"mean |D(x, y) - D(y, x)| = {(forth - back).abs().mean().item():.2f}")

    path = options.output / "balls.png"
    note = f"a plane of the {FEATURES} features, the others equal in x and c ({setting})"
    columns = [("Mahalanobis", VERMILION, mahalanobis), ("NBD", BLUE, nbd)]
    draw_balls(columns, training.x.median(0).values, note, path)
    print(f"\nPicture of its balls: {path}")


if __name__ == "__main__":
    main()
