"""Search in FAISS by a divergence that ranks as an inner product does."""

from __future__ import annotations

import hashlib
import math
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
from askew._parallel import over_blocks, release_memory
from askew.search.base import RowNumbers
from askew.search.certified import ScannedKeys, Sizes, largest_products, sizes_of
from askew.search.columns import Mask
from askew.search.engines import (
    KINDS,
    import_faiss,
    kind_for,
    make_engine,
    most_effort,
    read_engine,
    search_engine,
)
from askew.search.folder import INDEX
from askew.search.inner_product import InnerProductForm, form_for, sample_of
from askew.search.local import LocalIndex
from askew.search.store import empty_rows

ALL_KINDS = ("flat", *KINDS)
# All items that pass a filter are scanned if they are a smaller fraction than this.
SCANNED_FRACTION = 1 / 16
# From this many queries on each thread has some of its own, and at most so many at a time.
QUERIES_TO_SHARE = 64
BLOCK_QUERIES = 4096
# Queries that set the effort, and how many neighbours of each are to be found.
TUNING_QUERIES = 256
TUNING_NEIGHBOURS = 10


@dataclass(kw_only=True)
class _EngineKeys(ScannedKeys):
    """Keys that an engine of FAISS holds as well, in the Euclidean form: behind a key is the rest of its row there."""

    kind: str
    engine: Any
    effort: int

    def extension(self, items: Tensor, owner: str) -> Callable[[], None] | None:
        """Return a function that adds items; None if the form cannot hold them."""
        rows = np.empty((len(items), self.array.shape[1]), np.float32)
        sizes = _fill_keys(rows, self.form, items, owner)
        if sizes.whole > self.form.radius:
            return None
        extend = self.extended_by(rows, sizes)

        def add() -> None:
            self.engine.add(rows)
            extend()

        return add


class FaissIndex(LocalIndex):
    """Search by a Bregman divergence in FAISS, in either direction.

    A Bregman divergence ranks items as an inner product or, with one more feature, as a Euclidean distance does (see
    :func:`keys_and_queries`). FAISS finds candidates by these vectors, products in full precision rank them, and the
    divergence is evaluated where rounding matters; see :meth:`search` for the precision of values. Besides Bregman
    divergences, this holds for Euclidean and Mahalanobis distances, for Bregman-GS, and for roots and multiples of all
    of them.

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
    _state: ScannedKeys | _EngineKeys | None = None

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
        return self._state.kind if isinstance(self._state, _EngineKeys) else "flat"

    @property
    def effort(self) -> int:
        """How many lists (ivf) or nodes (hnsw) a search visits; may be set. A flat index visits all items."""
        return self._state.effort if isinstance(self._state, _EngineKeys) else 1

    @effort.setter
    def effort(self, effort: int) -> None:
        checks.check_size(effort, "effort of FaissIndex")
        if isinstance(self._state, _EngineKeys):
            self._state.effort = effort

    # ------------------------------------------------------------------ changes

    def _build(self, items: Tensor) -> ScannedKeys | _EngineKeys:
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

    def _build_engine(self, kind: str, items: Tensor) -> tuple[_EngineKeys, float]:
        """Return the state for items, and the recall that was measured with some of them as queries."""
        sample = sample_of(items)
        form, owner = self._form(sample).balanced(sample), type(self).__name__
        keys = empty_rows((len(items), KINDS[kind].features(form.size)), np.float32, self._scratch)
        sizes = _fill_keys(keys, form, items, owner)
        if self._scratch is not None:  # memory is scarce then, and the codes come next
            release_memory()
        form = form.with_radius(sizes.whole)
        _fill_last_feature(keys, form)
        rows = np.sort(np.random.RandomState(0).permutation(len(items))[:TUNING_QUERIES])
        plain = form.plain_queries(form.as_queries(items[torch.from_numpy(rows)])).float()
        neighbours = min(TUNING_NEIGHBOURS, len(items))
        _, truth = largest_products(plain, torch.from_numpy(keys[:, : plain.shape[1]]), neighbours)
        vectors = form.stretched(plain).numpy()
        engine: Any = None
        for codes in KINDS[kind].codes:
            del engine  # not two at a time
            engine = make_engine(kind, codes, keys, self._scratch)
            effort, recall = _least_effort(kind, engine, vectors, truth.numpy(), self.recall_target, None)
            if recall >= KINDS[kind].goal(self.recall_target):
                break
        return self._engine_keys(kind, engine, form, keys, sizes, len(items), effort), recall

    def _engine_keys(
        self,
        kind: str,
        engine: Any,
        form: InnerProductForm,
        keys: NDArray[np.float32],
        sizes: Sizes,
        built_for: int,
        effort: int,
    ) -> _EngineKeys:
        return _EngineKeys(
            form=form,
            array=keys,
            rows=len(keys),
            sizes=sizes,
            built_for=built_for,
            scratch=self._scratch,
            kind=kind,
            engine=engine,
            effort=effort,
        )

    # ------------------------------------------------------------------ search

    def _search(self, queries: Tensor, k: int, allowed: Mask | None = None) -> tuple[Tensor, RowNumbers]:
        store, state = self._items, self._state
        count = len(store) if allowed is None else int(allowed.sum())
        # Few items are scanned: they are in few of the lists, and nodes lead to others.
        if not isinstance(state, _EngineKeys) or count < SCANNED_FRACTION * len(store):
            return super()._search(queries, k, allowed)
        threads = torch.get_num_threads()
        if threads == 1 or len(queries) < QUERIES_TO_SHARE:
            return self._visit(state, queries, k, count, allowed)

        # Each thread takes its queries through all steps. Threads that FAISS starts spin for a while after its step, in
        # the way of ours: a batch takes a fifth longer then.
        def work(part: slice) -> tuple[Tensor, RowNumbers]:
            import_faiss().omp_set_num_threads(1)  # of this thread alone
            return self._visit(state, queries[part], k, count, allowed)

        parts = over_blocks(len(queries), min(BLOCK_QUERIES, -(-len(queries) // threads)), work)
        values, ids = zip(*parts, strict=True)
        return torch.cat(values), np.concatenate(ids)

    def _visit(
        self, state: _EngineKeys, queries: Tensor, k: int, count: int, allowed: Mask | None
    ) -> tuple[Tensor, RowNumbers]:
        """Return the nearest of the items that the engine visits, of ``count`` that pass a filter."""
        store, kind, asked = self._items, KINDS[state.kind], state.asked(queries)
        vectors = kind.padded(state.form.stretched(asked.vectors).numpy())
        width, mask = min(kind.candidates(k), count), store.live if allowed is None else allowed
        effort = state.effort * len(store) // count  # as many items that pass are visited as there are without a filter
        effort = min(effort, max(most_effort(state.kind, state.engine), state.effort))
        rows = search_engine(state.kind, state.engine, vectors, width, effort, mask)
        if rows.size and (rows.max() >= store.rows or rows.min() < -1):
            raise ValueError(io.damaged("the FAISS index", "it names rows that are not there"))
        values, best = self._rank(asked, rows, k)
        ids = store.ids[best]
        short = np.flatnonzero((best < 0).any(1))
        if len(short):  # the lists that were visited held fewer than k items
            values[short], ids[short] = self._exact(queries[torch.from_numpy(short)], k, allowed)
        return values, ids

    def _exact(self, queries: Tensor, k: int, allowed: Mask | None = None) -> tuple[Tensor, RowNumbers]:
        return super()._search(queries, k, allowed)

    def tune(self, queries: ArrayLike | Tensor, k: int = 10, recall: float | None = None) -> int:
        """Set the effort that finds this fraction of the k nearest of some hundred typical queries, and return it.

        ``recall`` is ``recall_target`` by default.
        """
        k = checks.check_size(k, "k of FaissIndex.tune")
        target = self.recall_target if recall is None else _check_fraction(recall, "recall of FaissIndex.tune")
        with self._searching(queries, 1, "tune") as embeddings:
            state, store = self._state, self._items
            if isinstance(state, _EngineKeys) and len(embeddings):
                _, ids = self._exact(embeddings, min(k, len(store)))
                truth = store.find(ids.reshape(-1)).reshape(ids.shape)
                vectors = state.form.queries(embeddings).float().numpy()
                self.effort, _ = _least_effort(state.kind, state.engine, vectors, truth, target, store.live)
        return self.effort

    # ------------------------------------------------------------------ on disk

    def _settings(self) -> dict[str, object]:
        state = self._state
        common = {"asked": self._asked, "kind": self.kind, "recall_target": self.recall_target, "effort": self.effort}
        if not isinstance(state, _EngineKeys):
            return {**common}
        form = {"centre": state.form.centre[0].tolist(), **state.form.settings()}
        return {**common, "made_for": state.built_for, "reduction": form}

    def _write_parts(self, folder: Path, parts: dict[str, str]) -> dict[str, Any]:
        if not isinstance(self._state, _EngineKeys):
            return {}
        engine, faiss = self._state.engine, import_faiss()
        # Computed again, they would take longer than all the rest of loading.
        tensors = {"keys": torch.from_numpy(self._state.array[: self._state.rows])}
        parts["keys"] = f"keys-{io.checksum(None, tensors)[:16]}.safetensors"
        io.save_tensors(folder / parts["keys"], tensors, {"kind": "keys"})
        name = parts["engine"] = f"faiss-{secrets.token_hex(8)}.index"
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
        return {"engine": {"file": name, "sha256": digest.hexdigest()}, "keys": {"file": parts["keys"]}}

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
            of_keys = files["keys"]["file"] if "keys" in files else None  # not in those of askew 0.1
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(io.damaged(shown_file, f"its settings are incomplete: {error}")) from None
        if not INDEX.is_part(name) or not name.startswith("faiss-"):
            raise ValueError(io.damaged(shown_file, "the name of its FAISS file is wrong"))
        path = folder / name
        if _digest(path) != sha256:
            raise ValueError(io.damaged(repr(str(path)), "its checksum does not fit"))
        shape = (store.rows, KINDS[kind].features(form.size))
        engine = read_engine(path, kind, shape[1], shape[0])
        if of_keys is None:
            keys = empty_rows(shape, np.float32, None)
            sizes = _fill_keys(keys, form, torch.from_numpy(store.values), type(self).__name__)
        else:
            if not INDEX.is_part(of_keys) or not of_keys.startswith("keys-"):
                raise ValueError(io.damaged(shown_file, "the name of its file of keys is wrong"))
            tensors, _ = io.load_tensors(folder / of_keys, "keys", mapped=True)
            if set(tensors) != {"keys"} or (tensors["keys"].dtype, tensors["keys"].shape) != (torch.float32, shape):
                raise ValueError(io.damaged(shown_file, "its keys are not as they were written"))
            keys = tensors["keys"].numpy()
            sizes = sizes_of(keys[:, : form.size - 1], type(self).__name__)
        self._state = self._engine_keys(kind, engine, form, keys, sizes, built_for, effort)


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
    effort, low = (1, 0) if kind.startswith("ivf") else (16, 16)
    goal = KINDS[kind].goal(target)

    def measured(effort: int) -> float:
        rows = search_engine(kind, engine, vectors, width, effort, live)
        return sum(len(np.intersect1d(a, b)) for a, b in zip(rows, truth, strict=True)) / truth.size

    while (recall := measured(min(effort, most))) < goal and effort < most:
        low, effort = effort, 2 * effort
    effort = min(effort, most)
    while recall >= goal and effort - low > max(1, low // 8):
        middle = (low + effort) // 2
        between = measured(middle)
        if between >= goal:
            effort, recall = middle, between
        else:
            low = middle
    return effort, recall


def _check_fraction(value: float, what: str) -> float:
    if checks.check_positive(value, what) > 1:
        raise ValueError(checks.message(what, "at most 1", value))
    return float(value)


def _fill_keys(rows: NDArray[np.float32], form: InnerProductForm, items: Tensor, owner: str) -> Sizes:
    """Write keys of items to the rows of an engine, and return their sizes."""
    plain = rows[:, : form.size - 1]
    form.fill_plain_keys(items, torch.from_numpy(plain))
    rows[:, form.size :] = 0
    sizes = sizes_of(plain, owner)
    _fill_last_feature(rows, form)
    return sizes


def _fill_last_feature(rows: NDArray[np.float32], form: InnerProductForm) -> None:
    """Set the feature behind each key to what gives all of them the length of the form's radius."""
    if math.isfinite(form.radius):
        plain = rows[:, : form.size - 1]
        squares = np.einsum("ij,ij->i", plain, plain)
        rows[:, form.size - 1] = np.sqrt(np.maximum(form.radius**2 - squares, 0))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
