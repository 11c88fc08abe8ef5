"""Charts as SVG that takes its colours from the page, so that it is right in light, in dark and in print."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["COLOURS", "Dots", "Line", "lines_chart", "ranges_chart", "scatter_chart", "ticks"]

# The palette of Okabe and Ito, which colour-blind readers can tell apart; then the same again with other shapes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#8C8C8C")
DASHES = ("", "6 4", "2 3", "8 3 2 3")
SHAPES = ("circle", "square", "triangle", "cross")
# Pixels of the picture, which scales with the page.
WIDTH, HEIGHT = 720, 360
MARGIN = 48


@dataclass(frozen=True)
class Line:
    """A curve: its name and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Dots:
    """Points of one class: its name, places and what to say of each."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    titles: Sequence[str]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers between two others, about so many.

    Examples
    --------
    >>> ticks(0.13, 0.97)
    [0.2, 0.4, 0.6, 0.8]
    """
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    step = 10 ** math.floor(math.log10(span / count))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= count)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def ranges_chart(rows: Sequence[tuple[str, float, float, Sequence[float]]], label: str) -> str:
    """Return a chart with a line for each name: mean, standard deviation and single values.

    Parameters
    ----------
    rows
        Name, mean, deviation and values; drawn from above.
    label
        What the numbers are.

    Examples
    --------
    >>> chart = ranges_chart([("nbd", 0.9, 0.02, [0.88, 0.92])], "MAP")
    >>> chart.startswith("<svg"), chart.count("<circle")
    (True, 3)
    """
    numbers = [value for _, mean, spread, values in rows for value in (*values, *_ends(mean, spread))]
    low, high = min(numbers), max(numbers)
    pad = (high - low or 1.0) * 0.06
    low, high = low - pad, high + pad
    left, step = 150, 34
    height = step * len(rows) + 60

    def at(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - 24)

    parts = []
    for tick in ticks(low, high):
        parts.append(f'<line class="grid" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="8" y2="{height - 44}"/>')
        parts.append(f'<text x="{at(tick):.1f}" y="{height - 26}" text-anchor="middle">{tick:g}</text>')
    for number, (name, mean, spread, values) in enumerate(rows):
        y = 8 + step * (number + 0.5)
        colour = COLOURS[0] if number == 0 else "var(--dim)"
        parts.append(f'<text x="{left - 12}" y="{y + 5:.1f}" text-anchor="end">{_short(name, 18)}</text>')
        first, last = _ends(mean, spread)
        parts.append(
            f'<line x1="{at(first):.1f}" x2="{at(last):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
            'stroke-width="3" stroke-linecap="round" opacity="0.5"/>'
        )
        parts += [f'<circle cx="{at(v):.1f}" cy="{y:.1f}" r="3" fill="{colour}" opacity="0.55"/>' for v in values]
        text = f"{html.escape(name)}: {mean:.3f}" + ("" if math.isnan(spread) else f" ± {spread:.3f}")
        parts.append(f'<circle cx="{at(mean):.1f}" cy="{y:.1f}" r="6" fill="{colour}"><title>{text}</title></circle>')
    middle = (left + WIDTH - 24) / 2
    parts.append(f'<text x="{middle:.1f}" y="{height - 6}" text-anchor="middle">{html.escape(label)}</text>')
    spoken = ", ".join(f"{name} {mean:.3f}" for name, mean, _, _ in rows)
    return _svg(parts, f"{label}: {spoken}", height)


def lines_chart(lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """Return a chart of curves with a legend.

    Examples
    --------
    >>> "polyline" in lines_chart([Line("nbd", [1, 2], [0.9, 0.8])], "place", "precision")
    True
    """
    xs = [value for line in lines for value in line.x]
    ys = [value for line in lines for value in line.y]
    x_at, y_at, parts = _axes(min(xs), max(xs), min(ys), max(ys), x_label, y_label)
    keys = []
    for number, line in enumerate(lines):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        points = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
        style = f'stroke="{colour}" stroke-width="2.5" fill="none" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{points}" {style}><title>{html.escape(line.name)}</title></polyline>')
        keys.append((line.name, f'<line x1="0" x2="26" y1="-4" y2="-4" {style}/>'))
    names = ", ".join(f"{line.name} from {line.y[0]:.3g} to {line.y[-1]:.3g}" for line in lines)
    legend, height = _legend(keys) if len(lines) > 1 else ([], 0)
    moved = [*legend, f'<g transform="translate(0,{height})">', *parts, "</g>"]
    return _svg(moved, f"{y_label} by {x_label}: {names}", HEIGHT + height)


def scatter_chart(classes: Sequence[Dots], label: str) -> str:
    """Return a map of points with a colour and a shape for each class; both axes have the same scale.

    Examples
    --------
    >>> scatter_chart([Dots("a", [0, 1], [0, 1], ["row 0", "row 1"])], "map").count("<title>")
    2
    """
    xs = [value for dots in classes for value in dots.x]
    ys = [value for dots in classes for value in dots.y]
    size = 460
    span = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    parts = []
    for number, dots in enumerate(classes):
        colour = COLOURS[number % len(COLOURS)]
        shape = SHAPES[number // len(COLOURS) % len(SHAPES)]
        mark = _mark(shape)
        marks = []
        for x, y, title in zip(dots.x, dots.y, dots.titles, strict=True):
            across = size / 2 + (x - middle_x) / span * (size - 30)
            down = size / 2 - (y - middle_y) / span * (size - 30)
            place = f"translate({across:.1f},{down:.1f})"
            marks.append(f'<g transform="{place}">{mark}<title>{html.escape(title)}</title></g>')
        parts.append(f'<g class="class" data-class="{number}" fill="{colour}" stroke="{colour}">{"".join(marks)}</g>')
    return _svg(parts, label, size, size)


# ---------------------------------------------------------------------- parts


def _ends(mean: float, spread: float) -> tuple[float, float]:
    return (mean, mean) if math.isnan(spread) else (mean - spread, mean + spread)


def _mark(shape: str) -> str:
    return {
        "circle": '<circle r="4" stroke="none"/>',
        "square": '<rect x="-3.5" y="-3.5" width="7" height="7" stroke="none"/>',
        "triangle": '<path d="M0 -5 L4.5 3.5 L-4.5 3.5 Z" stroke="none"/>',
        "cross": '<path d="M-4 -4 L4 4 M-4 4 L4 -4" stroke-width="2" fill="none"/>',
    }[shape]


def _axes(
    x_low: float, x_high: float, y_low: float, y_high: float, x_label: str, y_label: str
) -> tuple[Callable[[float], float], Callable[[float], float], list[str]]:
    """Return functions from values to places, and the axes."""
    pad = (y_high - y_low or abs(y_high) or 1.0) * 0.06
    y_low, y_high = y_low - pad, y_high + pad
    x_high = x_high if x_high > x_low else x_low + 1

    def x_at(value: float) -> float:
        return 70 + (value - x_low) / (x_high - x_low) * (WIDTH - 94)

    def y_at(value: float) -> float:
        return HEIGHT - MARGIN - (value - y_low) / (y_high - y_low) * (HEIGHT - MARGIN - 12)

    parts = []
    for tick in ticks(y_low, y_high):
        parts.append(f'<line class="grid" x1="70" x2="{WIDTH - 24}" y1="{y_at(tick):.1f}" y2="{y_at(tick):.1f}"/>')
        parts.append(f'<text x="62" y="{y_at(tick) + 5:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in ticks(x_low, x_high, 8):
        parts.append(f'<text x="{x_at(tick):.1f}" y="{HEIGHT - MARGIN + 20}" text-anchor="middle">{tick:g}</text>')
    middle = HEIGHT / 2 - 20
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(x_label)}</text>')
    turned = f'x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})"'
    parts.append(f"<text {turned}>{html.escape(y_label)}</text>")
    return x_at, y_at, parts


def _legend(keys: Sequence[tuple[str, str]]) -> tuple[list[str], int]:
    """Return what names the curves, above them, and how high that is."""
    parts, x, y = [], 70, 18
    for name, sign in keys:
        shown = _short(name, 30)
        width = 50 + 8 * len(shown)
        if x + width > WIDTH and x > 70:
            x, y = 70, y + 24
        parts.append(f'<g transform="translate({x},{y})">{sign}<text x="32" y="0">{shown}</text></g>')
        x += width
    return parts, y + 8


def _short(text: str, length: int) -> str:
    return html.escape(text if len(text) <= length else text[: length - 1] + "…")


def _svg(parts: Sequence[str], label: str, height: int, width: int = WIDTH) -> str:
    spoken = html.escape(label)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{spoken}" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg>"
    )
