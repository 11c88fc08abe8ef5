"""Search in FAISS by a divergence that ranks as an inner product does."""

from __future__ import annotations

import hashlib
import os
import secrets
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks, io
from askew._parallel import release_memory, slices
from askew.search.base import RowNumbers
from askew.search.certified import ScannedKeys, largest_products, sizes_of
from askew.search.engines import (
    KINDS,
    import_faiss,
    kind_for,
    make_engine,
    most_effort,
    read_engine,
    search_engine,
)
from askew.search.exact import nearest_in_blocks
from askew.search.folder import INDEX
from askew.search.inner_product import InnerProductForm, form_for, sample_of
from askew.search.local import LocalIndex
from askew.search.store import empty_rows

ALL_KINDS = ("flat", *KINDS)
# From this many features on FAISS scans all keys faster than torch in blocks; measured at 33 and 129.
WIDE = 96
# Queries that set the effort, and how many neighbours of each are to be found.
TUNING_QUERIES = 256
TUNING_NEIGHBOURS = 10
# Items whose keys are computed at a time for an exact search.
EXACT_ROWS = 1 << 16


@dataclass
class _EngineState:
    """An engine of FAISS that holds the keys of all rows, in the Euclidean form."""

    kind: str
    engine: Any
    form: InnerProductForm
    built_for: int
    effort: int

    def extension(self, items: Tensor, owner: str) -> Callable[[], None] | None:
        """Return a function that adds items; None if the form cannot hold them."""
        # Plain keys first: they tell whether it can.
        keys = self.form.plain_keys(items).float().numpy()
        if sizes_of(keys, owner).whole > self.form.radius:
            return None
        keys = np.pad(keys, ((0, 0), (0, 1)))
        _fill_last_feature(keys, self.form.radius)
        padded = KINDS[self.kind].padded(keys)
        return lambda: self.engine.add(padded)

    def mask(self, rows: RowNumbers) -> None:
        """Do nothing: a search is told which rows are live."""


class FaissIndex(LocalIndex):
    """Search by a Bregman divergence in FAISS, in either direction, with exact values.

    A Bregman divergence ranks items as an inner product or, with one more feature, as a Euclidean distance does (see
    :func:`keys_and_queries`). FAISS finds candidates by these vectors, and the form of the divergence that does not
    cancel ranks them. Besides Bregman divergences, this holds for Euclidean and Mahalanobis distances, for Bregman-GS,
    and for roots and multiples of all of them.

    Parameters
    ----------
    divergence, direction, progress
        As in :class:`Index`.
    kind
        ``"flat"`` scans all items and is exact. ``"ivf"`` visits some lists of items, ``"hnsw"`` follows a graph,
        ``"ivf-pq"`` has lists of short codes, for more items than fit into memory otherwise. None chooses by size: flat
        below 50,000 items, ivf up to 20 million, ivf-pq beyond, and changes as the index grows. It is also flat where
        these miss the recall target, as with one feature, or with some items a thousand times as long as others.
    recall_target
        The fraction of the true neighbours that a search should find. The effort (lists or nodes that are visited) is
        set for it when the index is built, with some of the items as queries; :meth:`tune` does it with other ones, and
        :meth:`recall` measures.
    scratch
        A folder for items that are larger than memory: they are then kept in a temporary file there, and so are their
        keys while the index is built. With kind ``"ivf-pq"`` only some bytes for each item stay in memory. A saved
        index needs none: its items stay in its own folder.

    Notes
    -----
    The Euclidean form needs a bound on the length of keys. It is set with some headroom, and an item beyond it makes
    the index rebuild with a larger one; as bounds grow by a factor, that is rare.

    Examples
    --------
    >>> index = FaissIndex("kl", direction="query-second")
    >>> index.add([[0.5, 0.5], [0.9, 0.1], [0.1, 0.9]], ids=[7, 8, 9])
    >>> values, ids = index.search([[0.8, 0.2]], k=2)
    >>> ids, index.kind
    (array([[8, 7]]), 'flat')
    """

    _needs_inner_products = True
    _state: ScannedKeys | _EngineState | None = None

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
        import_faiss()
        super().__init__(divergence, direction, progress)
        self._asked = None if kind is None else checks.check_name(kind, ALL_KINDS, "kind of FaissIndex")
        self.recall_target = _check_fraction(recall_target, "recall_target of FaissIndex")

    @property
    def kind(self) -> str:
        """The kind of the index as it is now."""
        return self._state.kind if isinstance(self._state, _EngineState) else "flat"

    @property
    def effort(self) -> int:
        """How many lists (ivf) or nodes (hnsw) a search visits; may be set. A flat index visits all items."""
        return self._state.effort if isinstance(self._state, _EngineState) else 1

    @effort.setter
    def effort(self, effort: int) -> None:
        checks.check_size(effort, "effort of FaissIndex")
        if isinstance(self._state, _EngineState):
            self._state.effort = effort

    # ------------------------------------------------------------------ changes

    def _build(self, items: Tensor) -> ScannedKeys | _EngineState:
        kind = self._asked or kind_for(len(items))
        if kind == "flat":
            return self._flat(items)
        state, recall = self._build_engine(kind, items)
        if recall < self.recall_target and self._asked is None:
            return self._flat(items)
        if recall < self.recall_target:
            what = f"FaissIndex of kind {kind!r} finds {recall:.1%} of the nearest items, below its recall_target"
            warnings.warn(f"{what}. Use kind='flat', or scale items that are far longer than others.", stacklevel=5)
        return state

    def _flat(self, items: Tensor) -> ScannedKeys:
        return ScannedKeys.of(self._form(items), items, np.float32, self._scratch, type(self).__name__)

    def _outgrown(self, count: int, built_for: int) -> bool:
        # Fewer items are no reason: those that come and go near the border must not change the kind each time.
        other_kind = self._asked is None and kind_for(max(count, built_for)) != kind_for(built_for)
        return other_kind or super()._outgrown(count, built_for)

    def _build_engine(self, kind: str, items: Tensor) -> tuple[_EngineState, float]:
        """Return the state for items, and the recall that was measured with some of them as queries."""
        sample = sample_of(items)
        form = self._form(sample)
        plain = form.size
        form = form.balanced(sample)
        keys = empty_rows((len(items), KINDS[kind].features(form.size)), np.float32, self._scratch)
        keys[:, plain:] = 0
        form.fill_plain_keys(items, torch.from_numpy(keys[:, :plain]))
        if self._scratch is not None:  # memory is scarce then, and the codes come next
            release_memory()
        form = form.with_radius(sizes_of(keys[:, :plain], type(self).__name__).whole)
        _fill_last_feature(keys[:, : form.size], form.radius)
        rows = np.sort(np.random.RandomState(0).permutation(len(items))[:TUNING_QUERIES])
        queries = form.as_queries(items[torch.from_numpy(rows)])
        neighbours = min(TUNING_NEIGHBOURS, len(items))
        _, truth = largest_products(form.plain_queries(queries).float(), torch.from_numpy(keys[:, :plain]), neighbours)
        vectors = form.queries(queries).float().numpy()
        engine: Any = None
        for codes in KINDS[kind].codes:
            del engine  # not two at a time
            engine = make_engine(kind, codes, keys, self._scratch)
            effort, recall = _least_effort(kind, engine, vectors, truth.numpy(), self.recall_target, None)
            if recall >= _goal(self.recall_target):
                break
        return _EngineState(kind, engine, form, len(items), effort), recall

    # ------------------------------------------------------------------ search

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        store, state = self._items, self._state
        if not isinstance(state, _EngineState):
            return super()._search(queries, k)
        kind = KINDS[state.kind]
        vectors = kind.padded(state.form.queries(queries).float().numpy())
        width = min(kind.candidates(k), len(store))
        rows = search_engine(state.kind, state.engine, vectors, width, state.effort, store.live)
        if rows.size and (rows.max() >= store.rows or rows.min() < -1):
            raise ValueError(io.damaged("the FAISS index", "it names rows that are not there"))
        values, best = self._ranked(queries, store.values, rows, k)
        short = np.flatnonzero((best < 0).any(1))
        ids = store.ids[best]
        if len(short):  # the lists that were visited held fewer than k items
            values[short], ids[short] = self._exact(queries[torch.from_numpy(short)], k)
        return values, ids

    def _scan(self, vectors: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if keys.shape[1] < WIDE:
            return super()._scan(vectors, keys, k)
        faiss = import_faiss()
        found = faiss.knn(vectors.contiguous().numpy(), keys.numpy(), k, faiss.METRIC_INNER_PRODUCT)
        scores, numbers = map(torch.from_numpy, found)
        return scores.masked_fill(numbers < 0, torch.nan), numbers  # FAISS skips products that are NaN

    def _exact(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        store = self._items
        rows = np.arange(store.rows) if store.live is None else np.flatnonzero(store.live)
        blocks = ((store.values[rows[part]], rows[part]) for part in slices(len(rows), EXACT_ROWS))
        values, nearest = nearest_in_blocks(self, blocks, queries, k)
        return values, store.ids[nearest]

    def tune(self, queries: ArrayLike | Tensor, k: int = 10, recall: float | None = None) -> int:
        """Set the effort that finds this fraction of the k nearest of some hundred typical queries, and return it.

        ``recall`` is ``recall_target`` by default.
        """
        k = checks.check_size(k, "k of FaissIndex.tune")
        target = self.recall_target if recall is None else _check_fraction(recall, "recall of FaissIndex.tune")
        with self._searching(queries, 1, "tune") as embeddings:
            state, store = self._state, self._items
            if isinstance(state, _EngineState) and len(embeddings):
                _, ids = self._exact(embeddings, min(k, len(store)))
                truth = store.find(ids.reshape(-1)).reshape(ids.shape)
                vectors = state.form.queries(embeddings).float().numpy()
                self.effort, _ = _least_effort(state.kind, state.engine, vectors, truth, target, store.live)
        return self.effort

    # ------------------------------------------------------------------ on disk

    def _settings(self) -> dict[str, object]:
        state = self._state
        common = {"asked": self._asked, "kind": self.kind, "recall_target": self.recall_target, "effort": self.effort}
        if not isinstance(state, _EngineState):
            return {**common}
        form = {"centre": state.form.centre[0].tolist(), **state.form.settings()}
        return {**common, "made_for": state.built_for, "reduction": form}

    def _write_parts(self, folder: Path) -> dict[str, Any]:
        if not isinstance(self._state, _EngineState):
            return {}
        engine = self._state.engine
        faiss = import_faiss()
        name = f"faiss-{secrets.token_hex(8)}.index"
        digest = hashlib.sha256()
        # By the open file: where FAISS itself closes a file, it does not report that the last bytes found no room.
        with io.atomic_write(folder / name) as temporary, temporary.open("xb") as file:

            def write(block: bytes) -> None:
                file.write(block)
                digest.update(block)

            try:
                faiss.write_index(engine, faiss.PyCallbackIOWriter(write))
            except RuntimeError as error:
                raise OSError(f"FAISS could not write it: {str(error).splitlines()[0]}") from error
        return {"engine": {"file": name, "sha256": digest.hexdigest()}}

    def _restore(self, settings: dict[str, Any], folder: Path, files: dict[str, Any], shown_file: str) -> None:
        what, store = f"kind in {shown_file}", self._store
        try:
            asked = settings["asked"]
            self._asked = None if asked is None else checks.check_name(asked, ALL_KINDS, what)
            self.recall_target = float(settings["recall_target"])
            kind = checks.check_name(settings["kind"], ALL_KINDS, what)
            effort = checks.check_size(settings["effort"], f"effort in {shown_file}")
            if store is None or len(store) == 0:
                return
            if kind == "flat":  # which is built faster than read
                self._state = self._flat(torch.from_numpy(store.values))
                return
            numbers = settings["reduction"]
            like = form_for(self.divergence, self.direction, "inner-product", None, type(self).__name__)
            dtype = self.divergence.dtype or store.dtype
            centre = torch.tensor([[float(value) for value in numbers["centre"]]], dtype=dtype)
            if centre.shape != (1, store.values.shape[1]):
                raise ValueError("its centre has another number of features")
            form = like.restored("euclidean", centre, numbers)
            name, sha256, built_for = files["engine"]["file"], files["engine"]["sha256"], int(settings["made_for"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(io.damaged(shown_file, f"its settings are incomplete: {error}")) from None
        if not INDEX.is_part(name) or not name.startswith("faiss-"):
            raise ValueError(io.damaged(shown_file, "the name of its FAISS file is wrong"))
        path = folder / name
        if _digest(path) != sha256:
            raise ValueError(io.damaged(repr(str(path)), "its checksum does not fit"))
        engine = read_engine(path, kind, KINDS[kind].features(form.size), store.rows)
        self._state = _EngineState(kind, engine, form, built_for, effort)


def _least_effort(
    kind: str,
    engine: Any,
    vectors: NDArray[np.float32],
    truth: RowNumbers,
    target: float,
    live: NDArray[np.bool_] | None,
) -> tuple[int, float]:
    """Return the least of some efforts whose candidates hold the true neighbours, and what fraction of them."""
    width = min(KINDS[kind].candidates(truth.shape[1]), engine.ntotal)
    vectors = KINDS[kind].padded(vectors)
    most = most_effort(kind, engine)
    effort = 1 if kind.startswith("ivf") else 16
    while True:
        effort = min(effort, most)
        rows = search_engine(kind, engine, vectors, width, effort, live)
        recall = sum(len(np.intersect1d(a, b)) for a, b in zip(rows, truth, strict=True)) / truth.size
        if recall >= _goal(target) or effort == most:
            return effort, recall
        # The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 and so on.
        is_power = effort & (effort - 1) == 0
        effort += max(1, effort // 2 if is_power else effort // 3)


def _goal(target: float) -> float:
    """Return the recall to tune for: other queries are a little harder, so only half may be missed."""
    return 1 - (1 - target) / 2


def _check_fraction(value: float, what: str) -> float:
    if checks.check_positive(value, what) > 1:
        raise ValueError(checks.message(what, "at most 1", value))
    return float(value)


def _fill_last_feature(keys: NDArray[np.float32], radius: float) -> None:
    """Set the last feature of keys to what gives all of them the length ``radius``."""
    plain = keys[:, :-1]
    squares = np.einsum("ij,ij->i", plain, plain)
    keys[:, -1] = np.sqrt(np.maximum(radius**2 - squares, 0))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
