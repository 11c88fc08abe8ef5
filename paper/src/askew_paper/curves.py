"""Curves of results as pictures: the mean over seeds and its 95 % band."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew import checks
from askew.plot.frame import CYCLE
from askew_paper.rows import Row
from askew_paper.summary import OURS, interval

STYLES = ("-", "--", "-.", ":")
COLUMNS = 3
# Curves that span more than this factor are drawn on a logarithmic scale.
WIDE = 8.0
# Values beyond this are not drawn: differences, margins and powers of them do not fit float64.
LARGEST = 1e150


@dataclass(frozen=True)
class Curve:
    """One curve of one method in one setting; it has as many steps as the shortest over the seeds."""

    name: str
    setting: str
    method: str
    mean: NDArray[np.float64]  # (steps,)
    half: NDArray[np.float64]  # half the width of the 95 % interval, (steps,); NaN for a single seed
    seeds: int

    @property
    def drawable(self) -> bool:
        """Whether all its values fit a picture; a mean of finite values may be infinite."""
        values = self.mean if self.seeds == 1 else np.concatenate([self.mean, self.half])
        return bool((np.abs(values) <= LARGEST).all())


def curves(rows: Iterable[Row]) -> list[Curve]:
    """Return the curves of rows of one experiment and scale, in the order of the rows.

    Examples
    --------
    >>> from askew_paper.experiment import Cell
    >>> cells = [Cell("sums", "small", "exact", seed, "quick") for seed in range(2)]
    >>> rows = [Row(c, {"mae": 1.0}, 1.0, "", curves={"error": (3.0, 1.0 + 2 * c.seed)}) for c in cells]
    >>> curves(rows)[0].mean
    array([3., 2.])
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for name in row.curves:
            groups.setdefault((name, row.cell.group), []).append(row)
    found = []
    for (name, _), same in groups.items():
        steps = min(len(row.curves[name]) for row in same)
        values = np.array([row.curves[name][:steps] for row in same], dtype=np.float64).reshape(len(same), steps)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not drawn
            mean, half = np.array([interval(column) for column in values.T], dtype=np.float64).reshape(steps, 2).T
        found.append(Curve(name, same[0].cell.setting, same[0].cell.method, mean, half, len(same)))
    return found


def draw(some: Sequence[Curve], title: str) -> bytes:
    """Return a picture of curves as PNG, one panel for each setting. The same curves give the same bytes.

    On a logarithmic scale the lower edge of a band is that of the interval of the logarithm, which is above 0.

    All curves have one name and are drawable.
    """
    figures = checks.optional_import("matplotlib.figure", "plot", "Drawing curves")
    settings = list(dict.fromkeys(curve.setting for curve in some))
    # Ours come first: the lines that are seen at once, wide, solid and in the first colours.
    methods = sorted(dict.fromkeys(curve.method for curve in some), key=lambda method: not method.startswith(OURS))
    columns = min(COLUMNS, len(settings))
    lines = math.ceil(len(settings) / columns)
    # As high as the panels, or as the list of methods next to them.
    height = max(2.8 * lines + 0.6, 0.21 * len(methods) + 0.5)
    figure = figures.Figure(figsize=(3.6 * columns + 1.6, height), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    # One scale for all panels, so that they can be compared.
    is_log = any(_is_wide([curve for curve in some if curve.setting == setting]) for setting in settings)
    is_log = is_log and all(curve.mean.min() > 0 for curve in some if len(curve.mean))
    handles = {}
    for panel, setting in zip(panels, settings, strict=False):
        for curve in (curve for curve in some if curve.setting == setting):
            style, colour = divmod(methods.index(curve.method), len(CYCLE))
            ours = curve.method.startswith(OURS)
            look: dict[str, Any] = {"color": CYCLE[colour], "linestyle": STYLES[style % len(STYLES)]}
            look |= {"linewidth": 2.5, "linestyle": "-", "zorder": 3} if ours else {"linewidth": 1.0, "alpha": 0.7}
            steps = np.arange(1, len(curve.mean) + 1)
            dot = "o" if len(steps) == 1 else ""  # no line shows a single value
            (handles[_plain(curve.method)],) = panel.plot(steps, curve.mean, marker=dot, **look)
            if curve.seeds > 1:
                with np.errstate(over="ignore"):
                    low = curve.mean * np.exp(-curve.half / curve.mean) if is_log else curve.mean - curve.half
                band = {"color": CYCLE[colour], "alpha": 0.2 if ours else 0.08, "linewidth": 0}
                panel.fill_between(steps, low, curve.mean + curve.half, **band)
        panel.set_yscale("log" if is_log else "linear")
        panel.set_title(_plain(setting), fontsize="medium")
        panel.set_xlabel("epoch")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    for panel in panels[len(settings) :]:
        panel.set_axis_off()
    names = [_plain(method) for method in methods]
    figure.legend([handles[name] for name in names], names, loc="outside right upper", frameon=False, fontsize="small")
    # No wider than the panels: the names of methods are next to it.
    figure.suptitle(textwrap.fill(_plain(title), 45 * columns), x=0.01, ha="left", fontsize="medium")
    figure.supylabel(_plain(some[0].name), fontsize="medium")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def _is_wide(some: Sequence[Curve]) -> bool:
    """Return whether curves span such a large factor that a linear scale would hide most of them."""
    values = np.concatenate([curve.mean for curve in some])
    return bool(len(values) and values.min() > 0 and values.max() > WIDE * values.min())


def _plain(text: str) -> str:
    """Return text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")
