"""What divergences are compared on: classes, numbers, values of pairs, triplets, or clicks."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.preprocessing import normalize

from askew import checks, metrics
from askew.cli import inputs, targets
from askew.cli.board import ENCODED, PLAIN, SCORES
from askew.cli.relevance import euclidean_ndcg
from askew.clustering.any_divergence import cluster_from_euclidean
from askew.encoders import Standardize
from askew.estimators import DivergenceLearner, PairRegressor, RelevanceLearner, TripletLearner
from askew.estimators.judgements import grades_of

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]

NEIGHBOURS = 5
# Starts of k-means whose scores are averaged.
STARTS = 5
# Colours of numbers on a map.
QUARTERS = ("1 lowest quarter", "2 second quarter", "3 third quarter", "4 highest quarter")


class Task(ABC):
    """Points and what is known about them, how to learn from some and to judge on others.

    Attributes
    ----------
    points : array of shape (n, dim) or (n, size, dim)
        Rows, or pairs or triplets of them.
    truth : array of shape (n,)
        What is known about each.
    notes : list of str
        Remarks for people.
    """

    # Heading and digits of each score, the baselines that are learned, and those that are no model.
    headings: Mapping[str, tuple[str, int]]
    baselines: tuple[str, ...] = (PLAIN, ENCODED)
    trivial: tuple[str, ...]
    rows: ClassVar[str] = "rows"
    # Most rows that are compared on: rankings take all pairs of a fold with the rest.
    most_rows: ClassVar[int] = 6000

    def __init__(self, points: ArrayLike, truth: ArrayLike, bins: int | None = None) -> None:
        checks.check_plain(points, "X of compare")
        checks.check_plain(truth, "y of compare")
        self.points, self.truth = np.asarray(points, dtype=np.float64), np.asarray(truth)
        self.bins = bins
        self.notes: list[str] = []
        self._check()

    def sample(self, seed: int) -> Task:
        """Return the task on as many rows as are compared on at most."""
        n = len(self.points)
        if n <= self.most_rows:
            return self
        rows, _ = train_test_split(np.arange(n), train_size=self.most_rows, stratify=self._even(), random_state=seed)
        rows.sort()
        part = copy.copy(self)
        part.points, part.truth = self.points[rows], self.truth[rows]
        part.notes = [f"Compared on {self.most_rows} of {n} {self.rows}, drawn at random."]
        return part

    @property
    def deciding(self) -> list[str]:
        """The scores that may decide, the default first."""
        return [score for score in self.headings if score != "seconds"]

    def kept(self, learner: Any) -> dict[str, Any]:
        """Return notes to save with a learner of all rows."""
        return {}

    def content(self) -> Sequence[NDArray[Any]]:
        """Return what else a result depends on, besides points and truth."""
        return ()

    def groups(self) -> NDArray[np.str_] | None:
        """Return what the rows of a map are coloured by; None if there is no map."""
        return None

    def _check(self) -> None:
        if self.points.ndim < 2 or self.truth.shape != self.points.shape[:1]:
            got = f"{self.points.shape} and {self.truth.shape}"
            raise ValueError(checks.message("X and y of compare", "of shapes (n, dim) and (n,)", got))
        if not np.isfinite(self.points).all():
            hint = "Fill or drop missing values."
            raise ValueError(checks.message("X of compare", "finite numbers", "NaN or infinity", hint))

    def _even(self) -> NDArray[Any] | None:
        """Return labels whose shares stay the same in a sample."""
        return None

    def folds(self, count: int, seed: int) -> list[tuple[Rows, Rows]]:
        """Return the rows to learn from and those that are held out, of each fold."""
        n = len(self.points)
        _check_folds(count, n // 2, f"half of the number of {self.rows}")
        return list(KFold(count, shuffle=True, random_state=seed).split(self.points))

    def remarks(self, count: int) -> list[str]:
        """Return remarks for the user about the folds."""
        return []

    @abstractmethod
    def fit(self, rows: Rows, **settings: Any) -> Any:
        """Return a learner with these settings, learned from some rows."""

    @abstractmethod
    def judge(self, learner: Any, rows: Rows, rest: Rows, seed: int) -> dict[str, float]:
        """Return the scores of a learner of some rows on the rest, without the seconds."""

    @abstractmethod
    def guesses(self, rows: Rows, rest: Rows) -> Sequence[dict[str, float]]:
        """Return the scores of each baseline that is no model, without the seconds."""

    @abstractmethod
    def quality(self, learner: Any, rows: Rows, rest: Rows, points: Floats) -> float:
        """Return the first of the scores on the rest, whose points may be other ones."""


def _check_folds(count: int, most: int, why: str) -> None:
    if 2 <= checks.check_size(count, "folds of compare") <= most:
        return
    if most < 2:
        raise ValueError(
            checks.message("rows of compare", "enough for two folds", f"at most {most}, {why}", "Add rows.")
        )
    must = f"2, as {why} is 2" if most == 2 else f"from 2 to {most}, {why}"
    raise ValueError(checks.message("folds of compare", must, count))


class Classes(Task):
    """Rows and their classes: how well held-out rows rank the others, and cluster."""

    headings = SCORES
    trivial = ("largest class",)

    def _check(self) -> None:
        super()._check()
        counts = np.unique(self.truth, return_counts=True)[1]
        if len(counts) < 2 or counts.max() < 2:
            got = f"{len(counts)} classes, the largest with {counts.max(initial=0)} rows"
            hint = "Numbers to predict are for PairRegressor."
            raise ValueError(checks.message("y of compare", "at least two classes, one with two rows", got, hint))

    def _even(self) -> NDArray[Any] | None:
        counts = np.unique(self.truth, return_counts=True)[1]
        return self.truth if counts.min() > 1 and len(counts) <= self.most_rows // 2 else None

    def folds(self, count: int, seed: int) -> list[tuple[Rows, Rows]]:
        """Return folds with equal shares of each class."""
        counts = np.unique(self.truth, return_counts=True)[1]
        _check_folds(count, int(counts.max()), "the number of rows of the largest class")
        with warnings.catch_warnings():  # the remark below says it
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            return list(StratifiedKFold(count, shuffle=True, random_state=seed).split(self.points, self.truth))

    def remarks(self, count: int) -> list[str]:
        """Name classes that are too small for the folds."""
        sizes = zip(*np.unique(self.truth, return_counts=True), strict=True)
        small = [f"{name} ({size})" for name, size in sizes if size < count]
        listed = ", ".join(small[:5]) + (", ..." if len(small) > 5 else "")
        return [f"Classes with fewer rows than folds are judged in some folds only: {listed}."] if small else []

    def groups(self) -> NDArray[np.str_]:
        """Return the classes."""
        return self.truth.astype(str)

    def fit(self, rows: Rows, **settings: Any) -> DivergenceLearner:
        """Return a learner of labels."""
        return DivergenceLearner(**settings).fit(self.points[rows], self.truth[rows])

    def judge(self, learner: Any, rows: Rows, rest: Rows, seed: int) -> dict[str, float]:
        """Return MAP, AUC and the accuracy of a vote of the 5 nearest, purity and Rand of clusters of the rest."""
        queries, asked, known = self.points[rest], self.truth[rest], self.truth[rows]
        matrix = learner.pairwise(queries, self.points[rows])
        ranking = metrics.ranking(matrix, asked, known, k=1)
        scaling = Standardize(queries.shape[1]).fit(torch.from_numpy(self.points[rows]))
        clusters = cluster_from_euclidean(
            scaling(torch.from_numpy(queries)),
            torch.from_numpy(learner.transform(queries)),
            learner.divergence_,
            min(len(np.unique(asked)), len(rest)),
            [seed * STARTS + number for number in range(STARTS)],
        )
        votes = metrics.knn_accuracy(matrix, asked, known, k=min(NEIGHBOURS, len(rows)))
        return {"map": ranking["map"], "auc": ranking["auc"], "knn": votes} | _agreement(asked, clusters)

    def guesses(self, rows: Rows, rest: Rows) -> Sequence[dict[str, float]]:
        """Return the scores of equal divergences, of always the largest class, and of a single cluster."""
        asked, known = self.truth[rest], self.truth[rows]
        ranking = metrics.ranking(np.zeros((len(rest), len(rows))), asked, known, k=1)
        classes, counts = np.unique(known, return_counts=True)
        votes = float(np.mean(asked == classes[counts.argmax()]))
        scores = {"map": ranking["map"], "auc": ranking["auc"], "knn": votes}
        return [scores | _agreement(asked, [np.zeros(len(rest), dtype=np.int64)])]

    def quality(self, learner: Any, rows: Rows, rest: Rows, points: Floats) -> float:
        """Return the MAP."""
        matrix = learner.pairwise(points, self.points[rows])
        return float(metrics.mean_average_precision(matrix, self.truth[rest], self.truth[rows]))


def _agreement(labels: NDArray[Any], clusters: list[NDArray[Any]]) -> dict[str, float]:
    return {
        score: float(np.mean([measure(labels, each) for each in clusters]))
        for score, measure in (("purity", metrics.purity), ("rand", metrics.rand))
    }


class _Regression(Task):
    headings: Mapping[str, tuple[str, int]] = {
        "r2": ("R squared", 3),
        "spearman": ("Spearman", 3),
        "seconds": ("fit seconds", 1),
    }
    trivial = ("mean",)

    def _check(self) -> None:
        super()._check()
        self.truth = self.truth.astype(np.float64)

    @abstractmethod
    def predict(self, learner: Any, rows: Rows, points: Floats) -> Floats:
        """Return the predictions for points by a learner of some rows."""

    def judge(self, learner: Any, rows: Rows, rest: Rows, seed: int) -> dict[str, float]:
        """Return R squared and the rank correlation."""
        predicted, truth = self.predict(learner, rows, self.points[rest]), self.truth[rest]
        return {"r2": metrics.r2(truth, predicted), "spearman": metrics.spearman(truth, predicted, constant=0.0)}

    def guesses(self, rows: Rows, rest: Rows) -> Sequence[dict[str, float]]:
        """Return the scores of always the mean."""
        return [{"r2": metrics.r2(self.truth[rest], np.full(len(rest), self.truth[rows].mean())), "spearman": 0.0}]

    def quality(self, learner: Any, rows: Rows, rest: Rows, points: Floats) -> float:
        """Return R squared."""
        return float(metrics.r2(self.truth[rest], self.predict(learner, rows, points)))


class Numbers(_Regression):
    """Rows and their numbers: how well the mean of the 10 nearest rows predicts the number of a held-out one."""

    def kept(self, learner: Any) -> dict[str, Any]:
        """Return the number of each point that the learner keeps, for predictions."""
        return {inputs.VALUES: targets.values_of(learner, self.points, self.truth).tolist()}

    def groups(self) -> NDArray[np.str_]:
        """Return the quarter of each number."""
        places = np.searchsorted(np.quantile(self.truth, [0.25, 0.5, 0.75]), self.truth, side="left")
        return np.array(QUARTERS)[places]

    def fit(self, rows: Rows, **settings: Any) -> Any:
        """Return a learner of differences, or of classes if there are bins."""
        return targets.learn_target(self.points[rows], self.truth[rows], bins=self.bins, measure=False, **settings)[0]

    def predict(self, learner: Any, rows: Rows, points: Floats) -> Floats:
        """Return the mean number of the nearest rows."""
        return targets.predict(learner, targets.values_of(learner, self.points[rows], self.truth[rows]), points)


class Pairs(_Regression):
    """Pairs of points and the value wanted for each: how well D predicts that of held-out pairs.

    Where pairs come in both orders, both are held out together, and a score says how often D knows which of D(x, y)
    and D(y, x) is larger: 0.5 for every symmetric divergence.
    """

    rows = "pairs"
    most_rows = 50_000

    def _check(self) -> None:
        super()._check()
        if (_opposite(self.points) >= 0).any():
            first, *others = self.headings.items()
            self.headings = dict([first, ("direction", ("direction", 3)), *others])

    def folds(self, count: int, seed: int) -> list[tuple[Rows, Rows]]:
        """Return folds that hold out a pair in both orders, and as often as it comes, or not at all."""
        numbers: dict[frozenset[bytes], int] = {}
        of_pair = np.array([numbers.setdefault(frozenset(ends), len(numbers)) for ends in _ends(self.points)])
        _check_folds(count, len(numbers) // 2, f"half of the number of {self.rows} that differ")
        parts = KFold(count, shuffle=True, random_state=seed).split(np.arange(len(numbers)))
        return [
            (np.flatnonzero(np.isin(of_pair, rows)), np.flatnonzero(np.isin(of_pair, rest))) for rows, rest in parts
        ]

    def judge(self, learner: Any, rows: Rows, rest: Rows, seed: int) -> dict[str, float]:
        """Return R squared, the rank correlation, and how often the larger direction is known."""
        scores = super().judge(learner, rows, rest, seed)
        return scores | {"direction": self._direction(self.predict(learner, rows, self.points[rest]), rest)}

    def guesses(self, rows: Rows, rest: Rows) -> Sequence[dict[str, float]]:
        """Return the scores of always the mean, which is the same in both directions."""
        return [scores | {"direction": 0.5} for scores in super().guesses(rows, rest)]

    def _direction(self, predicted: Floats, rest: Rows) -> float:
        """Return the share of pairs in both orders whose larger value is predicted larger; equal ones count half."""
        back, truth = _opposite(self.points[rest]), self.truth[rest]
        differ = (back >= 0) & (truth != truth[back])
        if not differ.any():
            return 0.5
        gap, total = predicted - predicted[back], predicted + predicted[back]
        right = np.sign(gap) == np.sign(truth - truth[back])
        # Rounding makes symmetric divergences differ in their last digits.
        return float(np.where(np.abs(gap) <= 1e-5 * total, 0.5, right)[differ].mean())

    def remarks(self, count: int) -> list[str]:
        """Say what is not new in a held-out pair."""
        return ["Pairs are held out, not rows: pairs of rows that are in no training pair may have lower scores."]

    def fit(self, rows: Rows, **settings: Any) -> PairRegressor:
        """Return a learner of values."""
        return PairRegressor(**settings).fit(self.points[rows], self.truth[rows])

    def predict(self, learner: Any, rows: Rows, points: Floats) -> Floats:
        """Return D of each pair; what has nothing to learn, as Euclidean, is given the scale of the values."""
        predicted = np.asarray(learner.predict(points), dtype=np.float64)
        if any(True for _ in learner.model_.parameters()):
            return predicted
        known = np.asarray(learner.predict(self.points[rows]), dtype=np.float64)
        return predicted * (float(known @ self.truth[rows]) / max(float(known @ known), 1e-300))


def _ends(pairs: Floats) -> list[tuple[bytes, bytes]]:
    """Return what tells the first and the second point of each pair from others."""
    return list(zip(inputs.bytes_of(pairs[:, 0]), inputs.bytes_of(pairs[:, 1]), strict=True))


def _opposite(pairs: Floats) -> Rows:
    """Return the number of the pair that is each one in the other order, -1 if there is none."""
    ends = _ends(pairs)
    places = {pair: number for number, pair in enumerate(ends)}
    return np.array([places.get((y, x), -1) if x != y else -1 for x, y in ends], dtype=np.int64)


class Triplets(Task):
    """Triplets of points: the share of held-out ones that D puts in the right order."""

    headings: Mapping[str, tuple[str, int]] = {"order": ("in order", 3), "seconds": ("fit seconds", 1)}
    trivial = ("coin toss",)
    rows = "triplets"
    most_rows = 50_000

    def __init__(self, points: ArrayLike, truth: None = None, bins: int | None = None) -> None:
        super().__init__(points, np.ones(len(np.asarray(points))))

    def remarks(self, count: int) -> list[str]:
        """Say what is not new in a held-out triplet."""
        return ["Triplets are held out, not rows: rows that are in no training triplet may have lower scores."]

    def fit(self, rows: Rows, **settings: Any) -> TripletLearner:
        """Return a learner of triplets."""
        return TripletLearner(**settings).fit(self.points[rows])

    def judge(self, learner: Any, rows: Rows, rest: Rows, seed: int) -> dict[str, float]:
        """Return the share in order."""
        return {"order": self.quality(learner, rows, rest, self.points[rest])}

    def guesses(self, rows: Rows, rest: Rows) -> Sequence[dict[str, float]]:
        """Return a half."""
        return [{"order": 0.5}]

    def quality(self, learner: Any, rows: Rows, rest: Rows, points: Floats) -> float:
        """Return the share in order."""
        return float(learner.score(points))


class Clicks(Task):
    """Queries, and items with grades for them: the NDCG@10 of held-out queries over all items.

    ``truth`` is the pair of items, ``(m, dim)``, and judgements as :class:`~askew.RelevanceLearner` takes them. Queries
    without a relevant item are left out.
    """

    headings: Mapping[str, tuple[str, int]] = {"ndcg": ("NDCG@10", 3), "seconds": ("fit seconds", 1)}
    trivial: tuple[str, ...] = ("random order", "cosine")
    rows = "queries"

    def __init__(self, points: ArrayLike, truth: tuple[ArrayLike, Any], bins: int | None = None) -> None:
        super().__init__(points, np.arange(len(np.asarray(points))))
        self.items = np.asarray(truth[0], dtype=np.float64)
        grades = grades_of(truth[1], len(self.points), len(self.items), "compare")
        wanted = np.flatnonzero(grades.max(axis=1).toarray() > 0)
        self.points, self.grades, self.truth = self.points[wanted], grades[wanted], np.arange(len(wanted))
        if self.points.shape[1] != self.items.shape[1]:  # the features of two tables cannot be compared as they are
            self.baselines, self.trivial = (), self.trivial[:1]

    def content(self) -> Sequence[NDArray[Any]]:
        """Return the items and the judgements."""
        return self.items, self.grades.indptr, self.grades.indices, self.grades.data

    def remarks(self, count: int) -> list[str]:
        """Say what is not new in a held-out query."""
        return ["Queries are held out, not items: new items may have lower scores."]

    def _judgements(self, rows: Rows) -> NDArray[np.float64]:
        grades = self.grades[self.truth[rows]].tocoo()
        return np.stack([grades.row, grades.col, grades.data], 1)

    def fit(self, rows: Rows, **settings: Any) -> RelevanceLearner:
        """Return a learner of clicks."""
        return RelevanceLearner(**settings).fit(self.points[rows], self.items, self._judgements(rows))

    def judge(self, learner: Any, rows: Rows, rest: Rows, seed: int) -> dict[str, float]:
        """Return the NDCG."""
        return {"ndcg": self.quality(learner, rows, rest, self.points[rest])}

    def guesses(self, rows: Rows, rest: Rows) -> Sequence[dict[str, float]]:
        """Return the NDCG if all items are equally near, and that of the cosine."""
        grades, items = self.grades[self.truth[rest]], np.zeros_like(self.items)
        scores = [{"ndcg": euclidean_ndcg(np.zeros((len(rest), items.shape[1])), items, grades)}]
        if len(self.trivial) > 1:
            scores.append({"ndcg": euclidean_ndcg(normalize(self.points[rest]), normalize(self.items), grades)})
        return scores

    def quality(self, learner: Any, rows: Rows, rest: Rows, points: Floats) -> float:
        """Return the NDCG."""
        return float(learner.score(points, self.items, self._judgements(rest)))


KINDS: dict[str, type[Any]] = {
    "--label": Classes,
    "--target": Numbers,
    "--pairs": Pairs,
    "--triplets": Triplets,
    "--relevance": Clicks,
}
