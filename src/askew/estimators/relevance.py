"""Learning from clicks and judgements: which items are relevant to a query, and how much."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor, nn

from askew import checks, io, metrics
from askew.divergences import Divergence, make
from askew.divergences.base import Side
from askew.encoders import as_points, for_numpy
from askew.estimators.base import BaseLearner, Data
from askew.estimators.choice import Candidate, Choice
from askew.estimators.judgements import RelevanceBatches, grades_of
from askew.estimators.plans import Plan, relevance_plan
from askew.search import ExactIndex
from askew.training import History, fit

logger = logging.getLogger("askew")

# Judged items of each query in a batch, and random items.
LISTED, SAMPLED = 4, 256
# Models are compared by NDCG at this rank, on at most this number of queries and about this number of items.
PLACES, COMPARED_QUERIES, COMPARED_ITEMS = 10, 300, 20_000
# Entries of the largest block of divergences that a score takes at a time.
BLOCK_ENTRIES = 1 << 25
# Hard negatives are drawn from the nearest items behind the first ones, many of which are relevant and were not judged.
# Their training has this share of the steps and of the learning rate.
HARD_RANKS, HARD_STEPS, HARD_RATE = (10, 100), 0.5, 0.3
# Features of embeddings are those of the points, within these bounds.
EMBEDDING_BOUNDS = (16, 64)


class RelevanceLearner(BaseLearner):
    """Learn a divergence D(query, item) from clicks or graded judgements, so that relevant items are near.

    Judgements say which items were clicked, bought or rated for which query. Each batch has some queries and judged
    items of theirs; items that another query wanted and random ones are the negatives, unless they are known to be
    relevant (:class:`askew.losses.GradedSoftmax`). The learner ranks all items by D(query, item), which an index of
    :mod:`askew.search` does as fast as it finds inner products: ``FaissIndex(learner)`` takes raw points.

    Parameters
    ----------
    divergence
        As in :class:`DivergenceLearner`. ``"auto"`` compares ``nbd`` and ``drift`` by the NDCG@10 of held-out queries;
        both of them can be put into an engine. A divergence that cannot is announced before it is
        trained.
    encoder
        ``"auto"``, None, ``"mlp"`` or a module as in :class:`DivergenceLearner`, or ``"two-sided"``: a perceptron for
        queries and another one for items, which may then have other features than queries. For other encoders give the
        divergence ``askew.make("nbd", 16, encoder=of_queries, second=of_items)``.
    hard
        Number of hard negatives of each query in a batch; 0 for none. They are mined after the training from the items
        that the model finds near, and the training goes on with them for half as many steps. Use it where
        judgements are nearly complete. With clicks, near items are often relevant items that nobody has seen.
    scale, steps, batch_size, learning_rate, random_state, device, progress
        As in :class:`DivergenceLearner`; the batch size counts queries.

    Attributes
    ----------
    points_, items_ : array
        The items and their embeddings, among which :meth:`kneighbors` searches.
    n_item_features_in_ : int
        Features of an item.
    item_feature_names_in_ : array of str
        Their names; only where the items of :meth:`fit` were a data frame.

    See Also
    --------
    BaseLearner : the other attributes.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> queries, items = random.normal(size=(100, 4)), random.normal(size=(500, 4))
    >>> wanted = np.abs(queries[:, None, 0] - items[:, 0]).argsort(1)[:, :5]  # only the first feature counts
    >>> clicks = np.stack([np.repeat(np.arange(100), 5), wanted.ravel()], 1)
    >>> learner = RelevanceLearner("mahalanobis", None, steps=300, random_state=0).fit(queries, items, clicks)
    >>> learner.score(queries, items, clicks) > 0.5  # NDCG@10
    True
    >>> divergences, rows = learner.kneighbors(queries[:2], 3)
    >>> rows.shape
    (2, 3)
    """

    saved_attributes: ClassVar[tuple[str, ...]] = (
        *BaseLearner.saved_attributes,
        "n_item_features_in_",
        "item_feature_names_in_",
    )
    # Short trainings favour a Mahalanobis distance, which learns fast and ends behind (NDCG@10 of .77 to .89 and of .63
    # to .83 on validation tasks); the quadratic term of the NBD is one.
    _candidates = ("nbd", "drift")
    _rows = "queries"
    _rows_to_hold_out = 50
    _score_name = "NDCG@10 on {} held-out queries"
    _items_side = "second"
    # The folder of the checkpoints of the fit under way.
    _folder: Path | None = None

    def __init__(
        self,
        divergence: str | Divergence = "auto",
        encoder: str | nn.Module | None = "auto",
        *,
        hard: int = 0,
        scale: bool = True,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        random_state: Any = None,
        device: str | None = None,
        progress: bool | None = None,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name not in ("self", "hard", "__class__")}
        super().__init__(**settings)
        self.hard = hard

    def fit(
        self,
        queries: ArrayLike,
        items: ArrayLike,
        judgements: Any,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> RelevanceLearner:
        """Learn from queries, items and judgements, ``(n, dim), (m, dim), (k, 2 or 3)``.

        Parameters
        ----------
        queries, items
            Points. They have the same features, unless each side has its own encoder.
        judgements
            Row of the query, row of the item and, optionally, a grade of zero or above: an array ``(k, 2)`` or
            ``(k, 3)``, a tuple of arrays, or a data frame with columns ``query``, ``item`` and ``grade``. Without
            grades all are 1. Grade 0 means judged and not relevant; grades of a pair that comes twice are added up.
        checkpoint
            A folder. The state of each training is written there, and the same call with the same data and an integer
            ``random_state`` resumes where a previous one was interrupted, with the same result.
        """
        self._check_choices()
        owner = type(self).__name__
        if isinstance(self.hard, bool) or not isinstance(self.hard, (int, np.integer)) or self.hard < 0:
            raise ValueError(checks.message(f"hard of {owner}", "a number of items, zero or above", repr(self.hard)))
        whole = for_numpy(queries, f"queries of {owner}")
        first = validate_data(self, whole, dtype=np.float64, order="C", ensure_min_features=1)
        of_items = for_numpy(items, f"items of {owner}")
        second, names = self._items(of_items), _names(of_items)
        self._check_sides(first.shape[1], second.shape[1], names)
        grades = grades_of(judgements, len(first), len(second), owner)
        useful = np.flatnonzero(grades.max(axis=1).toarray() > 0)
        if len(useful) < len(first):
            count = f"{len(first) - len(useful)} of {len(first)} queries"
            logger.warning("%s: %s have no relevant item; nothing is learned from them", owner, count)
        self._announce_exact_search_only()
        self._folder = self._checkpoints(checkpoint)
        self.n_item_features_in_ = second.shape[1]
        self.__dict__.pop("item_feature_names_in_", None)
        if names is not None:
            self.item_feature_names_in_ = names
        try:
            self._fit((as_points(first)[useful], as_points(second), grades[useful]))
        finally:
            self._folder = None
        return self

    def score(self, queries: ArrayLike, items: ArrayLike, judgements: Any) -> float:
        """Return the NDCG@10 of queries over all items, ``(n, dim), (m, dim), (k, 2 or 3)``.

        Give queries that were not learned from. Queries without a relevant item are left out.
        """
        check_is_fitted(self, "divergence_")
        first, second = self._points(queries), self._points(items, "second")
        grades = grades_of(judgements, len(first), len(second), type(self).__name__)
        embedded = self._embed(first), self._embed(second, "second")
        with torch.inference_mode():
            return float(np.nanmean(_ndcg(self.divergence_, *embedded, grades)))

    def kneighbors(
        self, X: ArrayLike | None = None, n_neighbors: int = 5, return_distance: bool = True
    ) -> tuple[NDArray[Any], NDArray[np.int64]] | NDArray[np.int64]:
        """Return the nearest items of each query, by D(query, item), and their divergences.

        Parameters
        ----------
        X
            Queries, ``(n, dim)``.
        n_neighbors, return_distance
            As in :meth:`DivergenceLearner.kneighbors`.
        """
        if X is None:
            raise ValueError(checks.message(f"X of {type(self).__name__}.kneighbors", "queries", "None"))
        return super().kneighbors(X, n_neighbors, return_distance)

    # ------------------------------------------------------------------ checks

    def _items(self, items: ArrayLike) -> NDArray[np.float64]:
        array: NDArray[np.float64] = check_array(
            items, dtype=np.float64, order="C", estimator=self, input_name="items", ensure_min_features=1
        )
        if len(array) < 2:
            hint = "With one item there is nothing to rank."
            raise ValueError(checks.message(f"items of {type(self).__name__}", "at least two", len(array), hint))
        return array

    def _points(self, X: ArrayLike, side: Side = "first") -> Tensor:
        if side == "first":
            return super()._points(X)
        check_is_fitted(self, "divergence_")
        whole = for_numpy(X, "items")
        array = check_array(whole, dtype=np.float64, order="C", estimator=self, input_name="items")
        if hasattr(self, "item_feature_names_in_"):  # not after fit without names, nor in older files
            _names(whole, self.item_feature_names_in_)
        if array.shape[1] != self.n_item_features_in_:
            must = f"of {self.n_item_features_in_} features, as in fit"
            raise ValueError(checks.message(f"items of {type(self).__name__}", must, array.shape[1]))
        return as_points(array)

    def _check_sides(self, of_queries: int, of_items: int, names: NDArray[Any] | None) -> None:
        """Raise if queries and items differ in features, or in the order of their columns, and have one encoder."""
        if self.encoder == "two-sided" or getattr(self.divergence, "second", None) is not None:
            return
        owner, known = type(self).__name__, getattr(self, "feature_names_in_", None)
        if of_queries != of_items and self.encoder != "auto":
            must = f"of {of_queries} features, as queries, where both have one encoder"
            raise ValueError(checks.message(f"items of {owner}", must, of_items, "Give encoder='two-sided'."))
        if known is None or names is None or sorted(known) != sorted(names):
            return
        for first, second in zip(known, names, strict=True):
            if first != second:
                must, hint = "in the order of queries, where both have one encoder", "Give items[queries.columns]."
                got = f"{second!r} in place of {first!r}"
                raise ValueError(checks.message(f"columns of items of {owner}", must, got, hint))

    def _announce_exact_search_only(self) -> None:
        """Warn, before the training, of a divergence that no engine can search."""
        given = self.divergence
        if given == "auto":
            return
        divergence = make(given, 2) if isinstance(given, str) else given
        while divergence.inner is not None and hasattr(divergence, "encoder"):
            divergence = divergence.inner
        if divergence.ranks_like() is None:
            name = repr(given) if isinstance(given, str) else type(given).__name__
            hint = "'drift' (directed) and 'nbd' can; divergence='auto' chooses among such."
            what = f"divergence of {type(self).__name__}"
            must = "one that ranks by inner products to be put into FAISS, Milvus or another engine"
            got = f"{name}, which ExactIndex searches pair by pair,"
            warnings.warn(checks.message(what, must, got, hint), UserWarning, stacklevel=3)

    def _checkpoints(self, folder: str | os.PathLike[str] | None) -> Path | None:
        if folder is None:
            return None
        if not isinstance(self.random_state, (int, np.integer)):
            must = "an integer for checkpoint=, so that a resumed fit makes the same choices"
            raise ValueError(checks.message(f"random_state of {type(self).__name__}", must, repr(self.random_state)))
        io.writable_folder(Path(folder), "checkpoint")
        return Path(folder)

    # ------------------------------------------------------------------ hooks of BaseLearner

    def _dims(self, data: Data) -> tuple[int, int]:
        return data[0].shape[-1], data[1].shape[-1]

    def _part(self, data: Data, rows: Any) -> Data:
        queries, items, grades = data
        return queries[rows], items, grades[rows.numpy() if isinstance(rows, Tensor) else rows]

    def _scalings(self, data: Data, candidate: Candidate) -> tuple[nn.Module, nn.Module]:
        queries, items = data[:2]
        if candidate.encoder == "two-sided" or queries.shape[1] != items.shape[1]:
            return self._scaling(queries, candidate), self._scaling(items, candidate)
        scaling = self._scaling(torch.cat([queries, items]), candidate)
        return scaling, scaling

    def _scaled(self, data: Data, scalings: tuple[nn.Module, nn.Module]) -> Data:
        return scalings[0](data[0]), scalings[1](data[1]), data[2]

    def _points_to_keep(self, data: Data) -> Tensor:
        items: Tensor = data[1]
        return items

    def _batches(self, data: Data, batch_size: int, seed: int) -> RelevanceBatches:
        queries, items, grades = data
        checks.check_size(batch_size, f"batch_size of {type(self).__name__}")
        return RelevanceBatches(queries, items, grades, batch_size, LISTED, SAMPLED, seed)

    def _encoders(self, dims: tuple[int, int]) -> tuple[str | None, ...]:
        return (None, "mlp", "two-sided") if dims[0] == dims[1] else ("two-sided",)

    def _choice_without_comparison(self, n: int, dims: tuple[int, int]) -> Choice | None:
        choice = super()._choice_without_comparison(n, dims)
        if dims[0] == dims[1] or self.encoder != "auto" or hasattr(self.divergence, "encoder"):
            return choice
        divergence: str | Divergence = self.divergence
        if divergence == "auto":
            if choice is None:
                return None
            divergence = choice.candidate.divergence
        reason = f"encoder 'two-sided': queries have {dims[0]} features and items {dims[1]}"
        return Choice(Candidate(divergence, "two-sided"), reason, {})

    def _embedding_features(self, dims: tuple[int, int]) -> int:
        return min(max(min(dims), EMBEDDING_BOUNDS[0]), EMBEDDING_BOUNDS[1])

    def _checkpoint(self, candidate: Candidate, share: float, gentle: bool) -> Path | None:
        if self._folder is None:
            return None
        name = f"{candidate} {share:.3f}{' gentle' * gentle}"
        return self._folder / ("".join(c if c.isalnum() or c in ".-" else "_" for c in name) + ".checkpoint")

    def _learn(
        self, data: Data, candidate: Candidate, seed: int, share: float = 1.0, gentle: bool = False
    ) -> tuple[Divergence, History]:
        model, history = super()._learn(data, candidate, seed, share, gentle)
        if not self.hard or share < 1 or not history.rows:
            return model, history
        queries, items, _ = data
        plan = self._plan(candidate, data)
        batches = self._batches(data, self.batch_size if self.batch_size is not None else plan.batch_size, seed)
        batches.mined, batches.hard = _mined(model, queries, items), int(self.hard)
        rate = self.learning_rate if self.learning_rate is not None else plan.learning_rate
        first = self._checkpoint(candidate, share, gentle)
        more = fit(
            model,
            batches,
            plan.loss,
            steps=max(1, round(HARD_STEPS * history.rows[-1]["step"])),
            learning_rate=HARD_RATE * rate,
            calibrate=False,
            checkpoint=None if first is None else first.with_suffix(".hard"),
            seed=seed,
            device=self.device,
            progress=self.progress,
        )
        if more.stopped == "interrupted":
            raise KeyboardInterrupt
        last = history.rows[-1]
        rows = [row | {key: row[key] + last[key] for key in ("step", "epoch", "seconds")} for row in more.rows]
        return model.cpu(), History(history.rows + rows, more.stopped, None)

    def _plan(self, candidate: Candidate, data: Data) -> Plan:
        return relevance_plan(candidate.encoder is not None, len(data[0]))

    def _solve(self, data: Data, seed: int) -> Divergence:
        hint = "Take 'deep-div-affine', the same functions learned by gradient."
        must = "one that is learned by gradient"
        raise ValueError(checks.message("divergence of RelevanceLearner", must, "'pbdl'", hint))

    def _scores(self, model: Divergence, known: Data, asked: Data) -> Tensor:
        return torch.from_numpy(_ndcg(model, *_sample(asked)))

    def _trivial_score(self, asked: Data) -> float:
        queries, items, grades = _sample(asked)
        zeros = np.zeros((1, len(items)), np.float32)
        return float(np.mean([metrics.ndcg_at_k(zeros, grades[[row]], PLACES) for row in range(len(queries))]))


def _names(items: ArrayLike, known: NDArray[Any] | None = None) -> NDArray[Any] | None:
    """Return the names of the columns of items, if they have some; where some are known, scikit-learn checks them."""
    learner = RelevanceLearner()  # whose features are those of items
    if known is not None:
        learner.feature_names_in_ = known
    validate_data(learner, items, reset=known is None, skip_check_array=True)
    return getattr(learner, "feature_names_in_", None)


def _sample(data: Data) -> Data:
    """Return queries, their relevant items and random other ones, as many as a comparison takes; always the same."""
    queries, items, grades = data
    step = max(1, len(queries) // COMPARED_QUERIES)
    queries, grades = queries[::step], grades[::step]
    if len(items) > COMPARED_ITEMS:
        others = np.random.default_rng(0).choice(len(items), COMPARED_ITEMS, replace=False)
        rows = np.union1d(grades.indices, others)
        items, grades = items[rows], grades[:, rows]
    return queries, items, grades


def _ndcg(model: Divergence, queries: Tensor, items: Tensor, grades: Any) -> NDArray[np.float64]:
    """Return the NDCG of each query over all items, by the order in which search has them."""
    rows = max(1, BLOCK_ENTRIES // len(items))
    scores = []
    for start in range(0, len(queries), rows):
        known = grades[start : start + rows]
        if known.max() > 0:
            matrix = model.pairwise_order(queries[start : start + rows], items)
            scores.append(metrics.relevance_per_query(matrix, known, PLACES)["ndcg"])
        else:
            scores.append(np.full(known.shape[0], np.nan))
    return np.concatenate(scores)


def _mined(model: Divergence, queries: Tensor, items: Tensor) -> NDArray[np.int64]:
    """Return the rows of items that a model finds near to each query, ``(n, count)``, the very nearest left out."""
    index = ExactIndex(model, progress=False)
    index.add(items)
    first, last = HARD_RANKS
    near = index.search(queries, min(last, len(items)))[1]
    return near[:, min(first, near.shape[1] - 1) :]
