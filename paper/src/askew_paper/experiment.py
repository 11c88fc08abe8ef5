"""What an experiment is: the cells of a table or figure, and how one of them is computed."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from askew import checks
from askew_paper.published import Published

# toy: seconds, shows only that it runs. quick: minutes on two cores. medium: hours on them, long enough to converge.
# paper: the paper's epochs, sizes, repetitions.
SCALES = ("toy", "quick", "medium", "paper")
SORTED = "Make them with tuple(sorted(mapping.items()))."

Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | None"


def check_scale(scale: object) -> str:
    """Return ``scale`` if it is one of :data:`SCALES`."""
    return checks.check_name(scale, SCALES, "scale")


@dataclass(frozen=True)
class Score:
    """A reported quantity.

    Examples
    --------
    >>> MAE.label, MAE.lower_is_better, PURITY.lower_is_better
    ('MAE', True, False)
    """

    name: str  # in rows and in published values
    label: str  # in tables
    lower_is_better: bool
    digits: int = 3  # decimals in tables; differences below half of the last one count as zero


PURITY = Score("purity", "Purity", lower_is_better=False)
RAND = Score("rand", "Rand index", lower_is_better=False)
MAP = Score("map", "MAP", lower_is_better=False)
AUC = Score("auc", "AUC", lower_is_better=False)
MAE = Score("mae", "MAE", lower_is_better=True)
MSE = Score("mse", "MSE", lower_is_better=True)
SECONDS = Score("seconds", "Seconds", lower_is_better=True, digits=4)
RATIO = Score("ratio", "Time relative to Mahalanobis", lower_is_better=True, digits=2)


@dataclass(frozen=True)
class Cell:
    """One run of one method.

    Examples
    --------
    >>> cell = Cell("clustering", "gaussian", "nbd", 0, "quick", (("epochs", 20),))
    >>> cell["epochs"], cell.key
    (20, '0b9f68d57040d3b0')
    """

    experiment: str
    setting: str  # data set, target or protocol: a column of the table
    method: str  # such as the name of a divergence of the catalogue
    seed: int  # of all random numbers; the data are the same for all methods
    scale: str  # one of SCALES
    options: tuple[tuple[str, Value], ...] = ()  # all else that the result depends on, sorted by name

    def __post_init__(self) -> None:
        for name in ("experiment", "setting", "method"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text:
                raise ValueError(checks.message(f"{name} of a cell", "a string that is not empty", repr(text)))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(checks.message("seed of a cell", "an integer of at least 0", repr(self.seed)))
        check_scale(self.scale)
        pairs = self.options
        if not isinstance(pairs, tuple) or any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
            must = "a tuple of pairs (name, value)"
            raise ValueError(checks.message("options of a cell", must, repr(pairs), SORTED))
        for name, value in pairs:
            if not isinstance(name, str) or not _is_plain(value):
                must = "a name with a string, a finite number, a boolean, None or a tuple of them"
                raise ValueError(checks.message("each option of a cell", must, repr((name, value))))
        names = [name for name, _ in pairs]
        if names != sorted(set(names)):
            raise ValueError(checks.message("options of a cell", "sorted by name, each name once", names, SORTED))

    def __getitem__(self, option: str) -> Any:
        """Return the value of an option."""
        return dict(self.options)[checks.check_name(option, [name for name, _ in self.options], "option of a cell")]

    def __str__(self) -> str:
        return f"{self.experiment}: {self.setting}, {self.method}, seed {self.seed}, {self.scale} scale"

    def description(self) -> dict[str, Any]:
        """Return the cell as it is written to JSON."""
        names = ("experiment", "setting", "method", "seed", "scale")
        return {name: getattr(self, name) for name in names} | {"options": dict(self.options)}

    @functools.cached_property
    def key(self) -> str:
        """Identifies the cell, on all machines."""
        return _digest(self.description())

    @functools.cached_property
    def group(self) -> str:
        """Identifies the cell and its repetitions with other seeds."""
        return _digest(self.description() | {"seed": None})


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))


def _digest(description: Mapping[str, Any]) -> str:
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Outcome:
    """The result of a cell.

    Examples
    --------
    >>> Outcome({"mae": 0.17}, curves={"test MAE": [0.4, 0.2, 0.17]}).scores["mae"]
    0.17
    """

    scores: Mapping[str, float]  # finite, by the names of the experiment's scores
    curves: Mapping[str, Iterable[float]] = field(default_factory=dict)  # by step, such as the error after each epoch
    chosen: Mapping[str, Any] = field(default_factory=dict)  # choices made on the way; anything that JSON can hold


@dataclass(frozen=True)
class Claim:
    """A statement that the results confirm or not: some methods are ahead of others.

    The best of ``ahead`` must be better than the best of ``behind``; methods that a setting does not have are ignored.

    Examples
    --------
    >>> Claim("NBD is best", "mse", ahead=("nbd",), behind=("mahalanobis", "deep-div")).holds(1.0, 1.2, True)
    True
    """

    text: str
    score: str  # the name of the score that decides
    ahead: tuple[str, ...]
    behind: tuple[str, ...]
    each: bool = False  # whether all of `ahead` must be better, not only the best
    factor: float = 1.0  # the error may be larger by this factor: 1.25 for "close to", 0.5 for "far ahead of"
    settings: tuple[str, ...] = ()  # where it applies; everywhere if empty
    by: str = ""  # an option: the claim is judged for each of its values; without one, a method's best cell counts
    ours: bool = False  # whether it is a statement of ours, that the paper does not make

    def holds(self, ahead: float, behind: float, lower_is_better: bool) -> bool:
        """Return whether one value is as far ahead of another, or as close to it, as the claim says."""
        return ahead < self.factor * behind if lower_is_better else ahead * self.factor > behind


@dataclass(frozen=True, eq=False)
class Experiment:
    """One table or figure.

    Examples
    --------
    >>> def cells(scale, seeds):
    ...     return grid("sums", scale, seeds, settings=["small"], methods=["exact"], options={"size": 3})
    >>> def run(cell):
    ...     return Outcome({"mae": 0.0 * cell["size"]})
    >>> sums = Experiment("sums", "Sums of numbers", ("table 1",), (MAE,), {"quick": 2}, {"quick": 1.0}, cells, run)
    >>> [str(cell) for cell in sums.cells("quick", sums.seeds["quick"])]
    ['sums: small, exact, seed 0, quick scale', 'sums: small, exact, seed 1, quick scale']
    """

    name: str  # lower-case letters, digits and hyphens; also the name of the file of rows
    title: str
    makes: tuple[str, ...]  # the tables and figures of the paper that it reproduces
    scores: tuple[Score, ...]
    seeds: Mapping[str, int]  # default number of repetitions, by scale
    minutes: Mapping[str, float]  # rough duration of these on two cores, by scale
    cells: Callable[[str, int], Iterable[Cell]]  # from scale and number of seeds; fast, as reports call it; see grid
    run: Callable[[Cell], Outcome]  # random numbers are seeded before it is called
    needs: tuple[str, ...] = ()  # data and packages, as text
    published: tuple[Published, ...] = ()  # the paper's values, with our names of settings and scores
    against: Mapping[str, str] = field(default_factory=dict)  # the published method of a method of another name
    notes: tuple[str, ...] = ()  # what a reader has to know to understand the tables
    claims: tuple[Claim, ...] = ()
    # Settings where the paper had other data, and at which scales: its values are shown without a mark.
    incomparable: Mapping[str, Sequence[str]] = field(default_factory=dict)
    added: tuple[str, ...] = ()  # settings that the paper does not have: its claims are ours there
    alone: bool = False  # whether its cells run one at a time, because they measure times

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z][a-z0-9-]*", self.name):
            must = "lower-case letters, digits and hyphens"
            raise ValueError(checks.message("name of an experiment", must, repr(self.name)))
        for name in ("makes", "scores", "needs", "published", "notes", "claims", "added"):
            if not isinstance(getattr(self, name), tuple):
                raise TypeError(checks.message(f"{name} of {self.name!r}", "a tuple", repr(getattr(self, name))))
        if not self.scores:
            raise ValueError(checks.message(f"scores of {self.name!r}", "at least one Score", "none"))
        names = [score.name for score in self.scores]
        for what, entries in (("published score", self.published), ("score of a claim", self.claims)):
            for entry in entries:
                checks.check_name(entry.score, names, f"{what} of {self.name!r}")
        for scale, number in self.seeds.items():
            checks.check_size(number, f"seeds[{check_scale(scale)!r}] of {self.name!r}")
            checks.check_positive(self.minutes.get(scale, 0), f"minutes[{scale!r}] of {self.name!r}")

    def checked_cells(self, scale: str, seeds: int | None = None) -> list[Cell]:
        """Return the cells, each once; ``seeds=None`` takes the default number of repetitions."""
        checks.check_name(scale, self.seeds, f"scale of {self.name!r}")
        number = self.seeds[scale] if seeds is None else checks.check_size(seeds, "seeds")
        cells: dict[str, Cell] = {}
        for cell in self.cells(scale, number):
            if (cell.experiment, cell.scale) != (self.name, scale):
                raise ValueError(checks.message(f"each cell of {self.name!r}", f"one of it at {scale} scale", cell))
            if cells.setdefault(cell.key, cell) is not cell:
                raise ValueError(checks.message(f"each cell of {self.name!r}", "there once", f"{cell} twice"))
        return list(cells.values())


def grid(
    experiment: str,
    scale: str,
    seeds: int,
    settings: Iterable[str],
    methods: Iterable[str],
    options: Mapping[str, Value] | Callable[[str, str], Mapping[str, Value]],
) -> Iterator[Cell]:
    """Yield a cell for every seed, setting and method. Seeds are outermost: a run that is stopped has whole tables.

    The options are the same for all cells, or a function of setting and method.

    Examples
    --------
    >>> [cell.method for cell in grid("sums", "quick", 1, ["small"], ["exact", "fast"], {})]
    ['exact', 'fast']
    """
    settings, methods = list(settings), list(methods)
    for seed in range(seeds):
        for setting in settings:
            for method in methods:
                chosen = options(setting, method) if callable(options) else options
                yield Cell(experiment, setting, method, seed, scale, tuple(sorted(chosen.items())))
