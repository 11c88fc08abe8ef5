"""Draw every picture of docs/plots.md and docs/gallery.md, on a light and on a dark background.

python examples/pictures.py                       # into docs/pictures, in less than a minute
python examples/pictures.py --out /tmp/pictures   # elsewhere
python examples/pictures.py --only cells balls    # some of them
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.datasets import load_wine

import askew
from askew import checks, plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
SEED = 0


# ---------------------------------------------------------------------- what is drawn


@cache
def three_groups() -> tuple[Array, Array]:
    """Return points of three groups with two features, and the number of the group of each."""
    generator = np.random.default_rng(SEED)
    noise = generator.normal(size=(3, 70, 2))
    shapes = np.array([[[0.9, 0.5], [0.0, 0.4]], [[0.4, 0.0], [0.0, 0.8]], [[0.6, -0.3], [0.0, 0.5]]])
    means = np.array([[0.0, 0.0], [3.0, 0.5], [1.0, 3.0]])
    return (noise @ shapes + means[:, None]).reshape(-1, 2), np.repeat(np.arange(3), 70)


@cache
def learned_from_labels() -> askew.DivergenceLearner:
    """Return a neural Bregman divergence that was learned from the three groups."""
    points, labels = three_groups()
    return askew.DivergenceLearner("nbd", encoder=None, steps=200, random_state=SEED).fit(points, labels)


@cache
def learned_from_values() -> askew.PairRegressor:
    """Return a neural Bregman divergence that was learned from values of another divergence."""
    turned = torch.tensor([[1.2, 0.7], [-0.5, 1.0]], dtype=torch.float64)
    true = askew.make("exponential", 2)
    pairs = torch.from_numpy(np.random.default_rng(SEED).uniform(-1.5, 1.5, size=(3000, 2, 2)))
    targets = true(*(pairs @ turned.T).unbind(1))
    return askew.PairRegressor("nbd", encoder=None, steps=600, random_state=SEED).fit(pairs.numpy(), targets.numpy())


@cache
def mahalanobis() -> askew.Divergence:
    divergence = askew.make("mahalanobis", 2)
    divergence.load_state_dict({"weight": torch.tensor([[0.9, -0.5], [-0.1, 0.75]])})
    return divergence


@cache
def spectra() -> tuple[Array, Array]:
    """Return points that spread in proportion to their size, and the five points they spread from."""
    centres = np.array([[0.5, 0.5], [2.4, 0.6], [0.7, 2.3], [2.6, 2.5], [1.25, 1.2]])
    noise = np.random.default_rng(SEED).gamma(12, 1 / 12, size=(5, 40, 2))
    return (centres[:, None] * noise).reshape(-1, 2), centres


# ---------------------------------------------------------------------- pictures


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def draw_balls() -> Figure:
    """Four divergences, both kinds of balls."""
    figure = new_figure(8.2, 8.4)
    positive = [[0.6, 0.6], [2.6, 0.6], [0.6, 2.6], [2.6, 2.6]]
    around_zero = [[-0.9, -0.9], [0.9, -0.9], [-0.9, 0.9], [0.9, 0.9]]
    panels: list[tuple[str, object, object, float]] = [
        ("Mahalanobis", mahalanobis(), positive, 0.3),
        ("Kullback-Leibler", "kl", positive, 0.2),
        ("Itakura-Saito", "itakura-saito", positive, 0.13),
        ("learned neural Bregman", learned_from_values(), around_zero, 0.25),
    ]
    axes = figure.subplots(2, 2).flat
    for ax, (title, divergence, centres, radius) in zip(axes, panels, strict=True):
        plot.balls(divergence, centres, radius, legend=False, ax=ax)
        ax.set_title(f"{title}, r = {radius:g}", fontsize=11)
    lines, labels = axes[0].get_legend_handles_labels()
    labels = [label.replace("0.3", "r") for label in labels]
    figure.legend(lines, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=11)
    return figure


def draw_simplex() -> Figure:
    """The triangle of distributions over three outcomes."""
    figure = new_figure(9.6, 4.8)
    centres = [[1 / 3, 1 / 3, 1 / 3], [0.8, 0.1, 0.1], [0.1, 0.82, 0.08], [0.06, 0.14, 0.8]]
    left, right = figure.subplots(1, 2)
    plot.balls("kl-simplex", centres, 0.12, ax=left)
    left.set_title("balls", fontsize=11)
    plot.cells(centres, "kl-simplex", dual=True, ax=right)
    right.set_title("cells, centre first", fontsize=11)
    return figure


def draw_levels() -> Figure:
    """The potential that labels taught, with and without a tangent plane."""
    figure = new_figure(9.6, 5.0)
    points, _ = three_groups()
    left, right = figure.subplots(1, 2)
    plot.levels(learned_from_labels(), points=points, ax=left)
    left.set_title("phi as it was learned", fontsize=11)
    plot.levels(learned_from_labels(), points=points, at=[1.3, 1.2], ax=right)
    right.set_title("phi less its tangent plane at +", fontsize=11)
    return figure


def draw_asymmetry() -> Figure:
    """Kullback-Leibler and Itakura-Saito against one point."""
    figure = new_figure(10.4, 4.4)
    for ax, name in zip(figure.subplots(1, 2), ("kl", "itakura-saito"), strict=True):
        plot.asymmetry(name, [1.2, 0.8], limits=(0, 3, 0, 3), ax=ax)
        ax.set_title({"kl": "Kullback-Leibler", "itakura-saito": "Itakura-Saito"}[name], fontsize=11)
    return figure


def draw_cells() -> Figure:
    """Both kinds of cells of one set of centres."""
    figure = new_figure(9.6, 5.4)
    points, centres = spectra()
    for ax, dual in zip(figure.subplots(1, 2), (False, True), strict=True):
        plot.cells(centres, "itakura-saito", points=points, dual=dual, limits=(0, 4.4, 0, 4.4), ax=ax)
        ax.set_title("centre first: curved" if dual else "data first: straight", fontsize=11)
    return figure


def draw_plane() -> Figure:
    """A learned divergence of 13 features on the plane on which the data varies most."""
    table, labels = load_wine(return_X_y=True)
    table = (table - table.mean(0)) / table.std(0)
    learner = askew.DivergenceLearner("nbd", encoder=None, steps=100, random_state=SEED).fit(table, labels)
    plane = plot.Plane.pca(table)
    centres = np.stack([table[labels == i].mean(0) for i in range(3)])
    figure = new_figure(6.4, 5.6)
    ax = plot.cells(centres, learner, points=table, plane=plane, ax=figure.subplots())
    ax.set_title("178 wines, 13 features: cells of the means of three cultivars", fontsize=11)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "balls": draw_balls,
    "simplex": draw_simplex,
    "levels": draw_levels,
    "asymmetry": draw_asymmetry,
    "cells": draw_cells,
    "plane": draw_plane,
}


# Colours of the dark pictures: those of the pages when they are dark.
DARK = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "#1e2129"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#d5d7e0"),
}


# ---------------------------------------------------------------------- program


def write(figure: Figure, path: Path) -> None:
    """Write a picture, whole or not at all, with 256 colours, which makes the file half as large."""
    from PIL import Image

    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    picture = Image.open(content).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        picture.save(part, format="png", optimize=True)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="folder for the pictures")
    parser.add_argument(
        "--only", nargs="+", choices=list(PICTURES), metavar="NAME", help=f"some of {', '.join(PICTURES)}"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    try:
        matplotlib = checks.optional_import("matplotlib", "plot", "This example")
        options.out.mkdir(parents=True, exist_ok=True)
    except (ImportError, OSError) as error:
        sys.exit(f"pictures.py: {error}")

    # The matrices are small: on a busy machine several threads wait for each other longer than they compute.
    torch.set_num_threads(1)
    for name in options.only or PICTURES:
        for ending, colours in (("", {}), ("-dark", DARK)):
            path = options.out / f"{name}{ending}.png"
            with matplotlib.rc_context(colours):
                write(PICTURES[name](), path)
            print(f"{path} ({path.stat().st_size / 1000:.0f} kB)", flush=True)


if __name__ == "__main__":
    main()
