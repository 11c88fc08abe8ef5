"""Results of the diagnostics of a divergence; ``print`` them to read them as text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TriangleViolations:
    """The share of the triples with D(a, c) > D(a, b) + D(b, c), and by how much.

    The excess of such a triple is 1 - (D(a, b) + D(b, c)) / D(a, c): how much shorter the detour is, as a share of the
    direct way. Mean and maximum are 0 if no triple violates the inequality.

    Examples
    --------
    >>> import askew, torch
    >>> askew.metrics.triangle_violations(askew.make("euclidean-norm", 2), torch.randn(50, 2)).share
    0.0
    """

    share: float
    mean_excess: float
    max_excess: float
    triples: int

    def __str__(self) -> str:
        if self.share == 0:
            return f"The triangle inequality holds in all {self.triples} triples looked at."
        mean, largest = _percent(self.mean_excess), _percent(self.max_excess)
        return (
            f"The triangle inequality fails in {_percent(self.share)} of {self.triples} triples; there the detour is "
            f"shorter by {mean} on average, {largest} at most."
        )


@dataclass(frozen=True)
class Conditioning:
    """Condition numbers of the Hessian of a potential; infinite if the smallest eigenvalue is lost in rounding.

    Examples
    --------
    >>> import askew, torch
    >>> str(askew.metrics.conditioning(askew.make("itakura-saito", 2), torch.tensor([[1.0, 2.0]])))
    'The potential bends 4 times as much in its steepest direction as in its flattest (median; at most 4 times).'
    """

    median: float
    maximum: float
    points: int

    def __str__(self) -> str:
        if self.median == float("inf"):
            return "The potential has a direction in which it does not bend, so that D does not see it."
        most = "without bound" if self.maximum == float("inf") else f"{self.maximum:.3g} times"
        return (
            f"The potential bends {self.median:.3g} times as much in its steepest direction as in its flattest "
            f"(median; at most {most})."
        )


@dataclass(frozen=True)
class Diagnosis:
    """All diagnostics of a divergence at given points.

    ``conditioning`` is None if there is no potential, ``dead_units`` if there are neither hidden units nor pieces;
    ``unit`` says which of the two it counts.

    Examples
    --------
    >>> print(Diagnosis("NBD", 50, 0.2, TriangleViolations(0.25, 0.1, 0.5, 99), Conditioning(12, 340, 9), None, ""))
    NBD at 50 points
    Not symmetric: D(x, y) and D(y, x) differ by 20 % of their sum on average (0 % is symmetric, 100 % one-sided).
    The triangle inequality fails in 25 % of 99 triples; there the detour is shorter by 10 % on average, 50 % at most.
    The potential bends 12 times as much in its steepest direction as in its flattest (median; at most 340 times).
    """

    name: str
    points: int
    asymmetry: float
    triangle: TriangleViolations
    conditioning: Conditioning | None
    dead_units: float | None
    unit: str

    def __str__(self) -> str:
        lines = [f"{self.name} at {self.points} points"]
        if self.asymmetry == 0:
            lines.append("Symmetric: D(x, y) = D(y, x) for all pairs looked at.")
        else:
            lines.append(
                f"Not symmetric: D(x, y) and D(y, x) differ by {_percent(self.asymmetry)} of their sum on average "
                "(0 % is symmetric, 100 % one-sided)."
            )
        lines += [str(part) for part in (self.triangle, self.conditioning) if part is not None]
        if self.dead_units is not None:
            idle = "never bend" if self.unit == "hidden units" else "are never the best"
            lines.append(f"{_percent(self.dead_units)} of the {self.unit} {idle} at these points.")
        return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
