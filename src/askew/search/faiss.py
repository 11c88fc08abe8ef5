"""Search by a Bregman divergence in FAISS."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks, io
from askew._parallel import release_memory
from askew.search.engines import (
    KINDS,
    candidates,
    check_engine,
    features,
    kind_for,
    make_engine,
    most_effort,
    padded,
    read_engine,
    search_engine,
)
from askew.search.folder import PART, part_name
from askew.search.forms import HEADROOM, Reduction, balanced, ranking, reduce
from askew.search.local import OUTGROWN, Keys, LocalIndex, Sizes, empty_key, fill_keys, sample_of, sizes_of
from askew.search.scan import largest_products
from askew.search.store import Store, empty_rows

__all__ = ["FaissIndex"]

# From this many features on FAISS is faster in looking at all keys than torch in blocks; measured at 33 and 129.
WIDE = 96
# Queries that set the effort, and how many neighbours of each are to be found.
TUNING_QUERIES = 256
TUNING_NEIGHBOURS = 10


class FaissIndex(LocalIndex):
    """Search by a Bregman divergence in FAISS, in either direction, with exact values.

    A Bregman divergence ranks items as an inner product or, with one more feature, as a Euclidean distance does (see
    :func:`keys_and_queries`). FAISS finds candidates by these vectors, and the form of the divergence that does not
    cancel ranks them. Besides Bregman divergences, this holds for Euclidean and Mahalanobis distances, for Bregman-GS,
    and for roots and multiples of all of them.

    Parameters
    ----------
    divergence
        A divergence, also behind an encoder; a fitted learner; or the name of one that needs no learning. It is copied.
    direction
        ``"query-first"`` for the smallest D(query, item), ``"query-second"`` for the smallest D(item, query).
    kind
        ``"flat"`` looks at all items and is exact. ``"ivf"`` looks at some lists of items, ``"hnsw"`` follows a graph,
        ``"ivf-pq"`` has lists of short codes, for more items than fit into memory otherwise. None chooses by size: flat
        below 50,000 items, ivf up to 20 million, ivf-pq beyond, and changes over as the index grows; flat too where
        these miss the recall target, as with one feature, or with some items a thousand times as long as others.
    recall_target
        The share of the true neighbours that a search should find. The effort (lists or nodes that are looked at) is
        set for it when the index is made, with some of the items as queries; :meth:`tune` does it with other ones, and
        :meth:`recall` measures.
    progress
        Whether to show a progress bar while items are encoded; None means on a terminal.
    scratch
        A folder for items that are larger than memory: they are then kept in a file there, which is gone with the
        index, and so are their keys while the index is made. With kind ``"ivf-pq"`` what is left in memory are some
        bytes for each item. A saved index needs none: its items stay in its own folder.

    Attributes
    ----------
    effort : int
        How many lists (ivf) or nodes (hnsw) a search looks at; may be set.

    Notes
    -----
    The Euclidean form needs a bound on the length of keys. It is set with some headroom, and when an item is added
    beyond it, the index is made anew with a wider one; as bounds grow by a factor, that is rare.

    Examples
    --------
    >>> index = FaissIndex("kl", direction="query-second")
    >>> index.add([[0.5, 0.5], [0.9, 0.1], [0.1, 0.9]], ids=[7, 8, 9])
    >>> values, ids = index.search([[0.8, 0.2]], k=2)
    >>> ids, index.kind
    (array([[8, 7]]), 'flat')
    """

    def __init__(
        self,
        divergence: object,
        direction: str = "query-first",
        kind: str | None = None,
        recall_target: float = 0.99,
        progress: bool | None = None,
        scratch: str | os.PathLike[str] | None = None,
    ) -> None:
        if scratch is not None and not Path(scratch).is_dir():
            raise FileNotFoundError(checks.message("scratch of FaissIndex", "a folder that exists", repr(str(scratch))))
        self._scratch = None if scratch is None else Path(scratch)
        self._faiss: ModuleType = checks.optional_import("faiss", "faiss", "FaissIndex")
        super().__init__(divergence, direction, progress)
        if kind is not None:
            checks.check_name(kind, KINDS, "kind of FaissIndex")
        self._asked = kind
        self.recall_target = _checked_share(recall_target, "recall_target of FaissIndex")
        self.kind = self._tried = kind or "flat"
        self.effort = 1
        self._engine: Any = None
        self._reduction: Reduction | None = None
        self._made_for = 0
        self._sizes = Sizes()
        if self._divergence is not None:
            self._check_divergence()

    def _set_divergence(self, dim: int) -> None:
        super()._set_divergence(dim)
        self._check_divergence()

    def _check_divergence(self) -> None:
        if ranking(self.divergence) is None:
            # Raises, and says which ones there are.
            reduce(self.divergence, self.direction, "inner-product", None, type(self).__name__)

    # ------------------------------------------------------------------ items come and go

    def _taken_in(self, images: Tensor, store: Store) -> Callable[[], None]:
        total = len(store) + len(images)
        kind = self._asked or kind_for(total)
        if self._asked is None and kind_for(2 * total) == self._tried:
            kind = self._tried  # items that come and go near the border must not change it each time
        outgrown = total > OUTGROWN * self._made_for
        if self._engine is None or self._reduction is None or kind != self._tried or outgrown:
            return self._made(kind, store, images)
        flat = self.kind == "flat"
        # Plain keys first: only they tell whether the Euclidean form can hold them.
        keys = self._reduction.plain_keys(images).float().numpy()
        sizes = sizes_of(keys, type(self).__name__)
        if not flat and sizes.whole > self._reduction.radius:
            return self._made(kind, store, images)
        if not flat:
            keys = _euclidean(keys, self._reduction.radius)
        keys = padded(self.kind, keys)

        def put() -> None:
            self._engine.add(keys)
            self._sizes = self._sizes.joined(sizes)

        return put

    def _take_out(self, rows: NDArray[np.int64]) -> None:
        if self.kind == "flat":
            stored = self._flat_keys()
            stored[torch.from_numpy(rows)] = empty_key(stored)

    def _made_anew(self, store: Store) -> Callable[[], None]:
        return self._made(self._asked or kind_for(len(store)), store, torch.from_numpy(store.values[:0]))

    def _made(self, kind: str, store: Store, images: Tensor, tried: str | None = None) -> Callable[[], None]:
        """Make the index of the items in the store and of new ones; ``tried`` is the kind that was not good enough."""
        owner = type(self).__name__
        dense = store.compacted()
        dense.reserve(len(images))
        parts = [torch.from_numpy(dense.values), images]
        count = dense.rows + len(images)
        if count == 0:
            return self._change(store, dense, _engine=None, _reduction=None, _made_for=0)
        sample = sample_of(parts)
        reduction = reduce(self.divergence, self.direction, "inner-product", sample, owner)
        flat = kind == "flat"
        size = reduction.size
        if not flat:
            reduction = balanced(reduction, sample)
        keys = empty_rows(count, features(kind, reduction.size), np.float32, self._scratch)
        keys[:, size:] = 0
        fill_keys(keys[:, :size], reduction, parts)
        if self._scratch is not None:  # memory is what matters then, and the codes come next
            release_memory()
        sizes = sizes_of(keys[:, :size], owner)
        if not flat:
            reduction = replace(reduction, radius=HEADROOM * max(sizes.whole, 1e-30))
            _fill_euclidean(keys[:, : reduction.size], reduction.radius)
        engine: Any = None
        for codes in KINDS[kind].codes:
            del engine  # not two at a time
            engine = make_engine(self._faiss, kind, codes, keys, self._scratch)
            effort, recall = (1, 1.0) if flat else self._first_effort(kind, engine, reduction, parts, keys)
            if recall >= _goal(self.recall_target):
                break
        if recall < self.recall_target and self._asked is None:
            return self._made("flat", store, images, tried=kind)
        if recall < self.recall_target:
            found = f"FaissIndex of kind {kind!r} finds {recall:.1%} of the nearest items, below its recall_target"
            warnings.warn(f"{found}. Use kind='flat', or scale items that are far longer than others.", stacklevel=4)
        made = {"_engine": engine, "_reduction": reduction, "_sizes": sizes, "_made_for": count}
        return self._change(store, dense, **made, kind=kind, effort=effort, _tried=tried or kind)

    def _first_effort(
        self, kind: str, engine: Any, reduction: Reduction, parts: list[Tensor], keys: NDArray[np.float32]
    ) -> tuple[int, float]:
        """Return the effort that finds the neighbours of some of the items, and their share."""
        count = len(keys)
        rows = np.random.RandomState(0).permutation(count)[:TUNING_QUERIES]
        rows.sort()
        border = len(parts[0])
        queries = torch.cat(
            [parts[0][torch.from_numpy(rows[rows < border])], parts[1][torch.from_numpy(rows[rows >= border] - border)]]
        )
        queries = reduction.like_queries(queries)
        k = min(TUNING_NEIGHBOURS, count)
        vectors = reduction.plain_queries(queries).float()
        _, truth = largest_products(vectors, torch.from_numpy(keys[:, : vectors.shape[1]]).split(1 << 16), k)
        vectors = reduction.queries(queries).float()
        return self._effort(kind, engine, vectors.numpy(), truth.numpy(), self.recall_target, None)

    def _effort(
        self,
        kind: str,
        engine: Any,
        vectors: NDArray[np.float32],
        truth: NDArray[np.int64],
        target: float,
        live: NDArray[np.bool_] | None,
    ) -> tuple[int, float]:
        """Return the least of some efforts whose candidates hold the true neighbours, and what share of them."""
        width = min(candidates(kind, truth.shape[1]), engine.ntotal)
        vectors = padded(kind, vectors)
        most = most_effort(kind, engine)
        effort = 1 if kind.startswith("ivf") else 16
        while True:
            effort = min(effort, most)
            found = search_engine(self._faiss, kind, engine, vectors, width, effort, live)
            recall = sum(len(np.intersect1d(a, b)) for a, b in zip(found, truth, strict=True)) / truth.size
            if recall >= _goal(target) or effort == most:
                return effort, recall
            effort = _next_effort(effort)

    def _copied(self, memo: dict[int, Any]) -> dict[str, Any]:
        memo[id(self._faiss)] = self._faiss  # a module, which has no copies
        if self._engine is not None:
            memo[id(self._engine)] = self._faiss.clone_index(self._engine)
        return super()._copied(memo)

    # ------------------------------------------------------------------ search

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, NDArray[np.int64]]:
        store, reduction = self._items, self._reduction
        if reduction is None:
            raise ValueError(checks.message("FaissIndex", "filled before it is searched", "no items"))
        checks.check_size(self.effort, "effort of FaissIndex")
        if self.kind == "flat":
            keys = Keys(self._flat_keys(), self._sizes)
            if self._engine.d >= WIDE:
                keys = WideKeys(keys.keys, self._sizes, self._engine)
            return self._by_keys(queries, k, reduction, keys)
        vectors = padded(self.kind, reduction.queries(queries).float().numpy())
        width = min(candidates(self.kind, k), len(store))
        rows = search_engine(self._faiss, self.kind, self._engine, vectors, width, self.effort, store.live)
        if rows.size and (rows.max() >= store.rows or rows.min() < -1):
            raise ValueError(io.damaged("the FAISS index", "it names rows that are not there"))
        values, best = self._reranked(queries, store.values, rows, k)
        few = np.flatnonzero((best < 0).any(1))
        ids = store.ids[best]
        if len(few):  # the lists that were looked at held fewer than k items
            values[few], ids[few] = self._exact(queries[torch.from_numpy(few)], k)
        return values, ids

    def tune(self, queries: ArrayLike | Tensor, k: int = 10, recall: float | None = None) -> int:
        """Set the effort so that searches like these queries find their neighbours, and return it.

        Parameters
        ----------
        queries
            Typical queries, some hundreds, ``(n, dim)``.
        k
            How many neighbours each wants.
        recall
            The share of true neighbours to find; ``recall_target`` by default.
        """
        k = checks.check_size(k, "k of FaissIndex.tune")
        target = self.recall_target if recall is None else _checked_share(recall, "recall of FaissIndex.tune")
        if len(self) == 0:
            raise ValueError(checks.message("FaissIndex", "filled before it is tuned", "no items", "Call add first."))
        images = self._images(queries, "queries", is_first=self.direction == "query-first")
        with self._reading():
            if self.kind != "flat" and self._reduction is not None and len(images) and len(self):
                _, ids = self._exact(images, min(k, len(self)))
                truth = self._items.find(ids.reshape(-1)).reshape(ids.shape)
                vectors = self._reduction.queries(images).float().numpy()
                self.effort, _ = self._effort(self.kind, self._engine, vectors, truth, target, self._items.live)
        return self.effort

    def _flat_keys(self) -> Tensor:
        """Return the keys of a flat index where FAISS has them, without a copy."""
        engine = self._engine
        keys: NDArray[np.float32] = self._faiss.rev_swig_ptr(engine.get_xb(), engine.ntotal * engine.d)
        return torch.from_numpy(keys.reshape(engine.ntotal, engine.d))

    # ------------------------------------------------------------------ on disk

    def _settings(self) -> dict[str, object]:
        reduction = self._reduction
        return {
            "asked": self._asked,
            "kind": self.kind,
            "tried": self._tried,
            "recall_target": self.recall_target,
            "effort": self.effort,
            "made_for": self._made_for,
            "sizes": list(self._sizes),
            "reduction": None
            if reduction is None
            else {
                "centre": reduction.centre[0].tolist(),
                "radius": None if reduction.form == "inner-product" else reduction.radius,
                "offset": reduction.offset,
                "stretch": reduction.stretch,
            },
        }

    def _write_parts(self, folder: Path) -> dict[str, Any]:
        if self._engine is None:
            return {}
        name = part_name("faiss", "index")
        digest = hashlib.sha256()
        # By the open file: where FAISS itself closes a file, it does not tell that the last bytes found no room.
        with io.atomic_write(folder / name) as temporary, temporary.open("xb") as file:

            def write(block: bytes) -> None:
                file.write(block)
                digest.update(block)

            try:
                self._faiss.write_index(self._engine, self._faiss.PyCallbackIOWriter(write))
            except RuntimeError as error:
                raise OSError(f"FAISS could not write it: {str(error).splitlines()[0]}") from error
        return {"engine": {"file": name, "sha256": digest.hexdigest()}}

    def _restore(self, settings: dict[str, Any], folder: Path, files: dict[str, Any], shown_file: str) -> None:
        try:
            asked, self.kind = settings["asked"], checks.check_name(settings["kind"], KINDS, f"kind in {shown_file}")
            self._asked = None if asked is None else checks.check_name(asked, KINDS, f"kind in {shown_file}")
            self._tried = checks.check_name(settings["tried"], KINDS, f"kind in {shown_file}")
            self.recall_target = float(settings["recall_target"])
            self.effort = checks.check_size(settings["effort"], f"effort in {shown_file}")
            self._made_for = int(settings["made_for"])
            self._sizes = Sizes(*(float(size) for size in settings["sizes"]))
            numbers = settings["reduction"]
            if numbers is None or self._store is None:
                return
            like = reduce(self.divergence, self.direction, "inner-product", None, type(self).__name__)
            dtype = self.divergence.dtype or self._own_dtype()
            centre = torch.tensor([[float(value) for value in numbers["centre"]]], dtype=dtype)
            if centre.shape != (1, self._store.values.shape[1]):
                raise ValueError("its centre has another number of features")
            self._reduction = replace(
                like,
                form=KINDS[self.kind].form,
                centre=centre.to(like.centre.device),
                radius=float(numbers["radius"] or "inf"),
                offset=float(numbers["offset"]),
                stretch=float(numbers["stretch"]),
            )
            name, digest = files["engine"]["file"], files["engine"]["sha256"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(io.damaged(shown_file, f"its settings are incomplete: {error}")) from None
        path = folder / part_checked(name, shown_file)
        if _digest(path) != digest:
            raise ValueError(io.damaged(repr(str(path)), "its checksum does not fit"))
        size = features(self.kind, self._reduction.size)
        engine = read_engine(self._faiss, path, self.kind, self._store.rows)
        self._engine = check_engine(self._faiss, self.kind, engine, size, self._store.rows, repr(str(path)))


class WideKeys(Keys):
    """Keys with so many features that FAISS is faster in looking at all of them."""

    def __init__(self, keys: Tensor, sizes: Sizes, engine: Any) -> None:
        super().__init__(keys, sizes)
        self.engine = engine

    def largest(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k largest inner products of each vector with the keys, and the rows of these keys."""
        scores, rows = self.engine.search(vectors.contiguous().numpy(), k)
        scores[rows < 0] = np.nan  # FAISS passes over products that are NaN
        return torch.from_numpy(scores), torch.from_numpy(rows)


def part_checked(name: object, shown_file: str) -> str:
    """Return the name of the FAISS file of a folder, if it is one."""
    if not isinstance(name, str) or not PART.fullmatch(name) or not name.startswith("faiss-"):
        raise ValueError(io.damaged(shown_file, "the name of its FAISS file is wrong"))
    return name


def _goal(target: float) -> float:
    """Return the share of neighbours to find: other queries are a little harder, so only half may be missed."""
    return 1 - (1 - target) / 2


def _next_effort(effort: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 and so on."""
    is_power = effort & (effort - 1) == 0
    return effort + max(1, effort // 2 if is_power else effort // 3)


def _checked_share(value: float, what: str) -> float:
    if checks.check_positive(value, what) > 1:
        raise ValueError(checks.message(what, "at most 1", value))
    return float(value)


def _euclidean(keys: NDArray[np.float32], radius: float) -> NDArray[np.float32]:
    result = np.empty((len(keys), keys.shape[1] + 1), np.float32)
    result[:, :-1] = keys
    _fill_euclidean(result, radius)
    return result


def _fill_euclidean(keys: NDArray[np.float32], radius: float) -> None:
    """Set the last feature of keys so that all have the same length."""
    plain = keys[:, :-1]
    squares = np.einsum("ij,ij->i", plain, plain)
    keys[:, -1] = np.sqrt(np.maximum(radius**2 - squares, 0))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 22):
            digest.update(block)
        return digest.hexdigest()
