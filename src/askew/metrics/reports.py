"""What diagnostics of a divergence return."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Conditioning", "Diagnosis", "TriangleViolations"]


@dataclass(frozen=True)
class TriangleViolations:
    """How often and by how much D(a, c) > D(a, b) + D(b, c).

    Attributes
    ----------
    share : float
        Share of the triples that break the inequality.
    mean_excess, max_excess : float
        Mean and maximum over those of 1 - (D(a, b) + D(b, c)) / D(a, c): how much shorter the detour is, as a
        share of the direct way, from 0 to 1. Both 0 where no triple breaks it.
    triples : int
        Triples looked at.

    Examples
    --------
    >>> print(TriangleViolations(0.25, 0.1, 0.5, 1000))
    The triangle inequality fails in 25 % of 1000 triples; there the detour is shorter by 10 % on average, 50 % at most.
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
    """Condition numbers of the Hessian of a potential over points.

    Attributes
    ----------
    median, maximum : float
        Of largest over smallest eigenvalue; infinite where the smallest is lost in rounding.
    points : int
        Points looked at.

    Examples
    --------
    >>> print(Conditioning(12.0, 340.0, 100))
    The potential bends 12 times as much in its steepest direction as in its flattest (median; at most 340 times).
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
    """What ``diagnose`` found; ``print`` it for plain words.

    Attributes
    ----------
    name : str
        The divergence.
    points : int
        Points given.
    asymmetry : float
        From 0, symmetric, to 1, one-sided.
    triangle : TriangleViolations
        How far from a metric.
    conditioning : Conditioning or None
        How evenly the potential bends; None where there is no potential.
    dead_units : float or None
        Share of the model that is idle; None where there are neither hidden units nor pieces.
    unit : str
        What `dead_units` counts: ``"hidden units"``, ``"pieces"``, or ``""``.

    Examples
    --------
    >>> print(Diagnosis("Euclidean", 50, 0.0, TriangleViolations(0.0, 0.0, 0.0, 1000), None, None, ""))
    Euclidean at 50 points
    Symmetric: D(x, y) = D(y, x) for all pairs looked at.
    The triangle inequality holds in all 1000 triples looked at.
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
        lines.append(str(self.triangle))
        if self.conditioning is not None:
            lines.append(str(self.conditioning))
        if self.dead_units is not None:
            idle = "never bend" if self.unit == "hidden units" else "are never the best"
            lines.append(f"{_percent(self.dead_units)} of the {self.unit} {idle} at these points.")
        return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
