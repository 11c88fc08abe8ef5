"""Search in FAISS by a divergence that ranks as an inner product does."""

from __future__ import annotations

import copy
import hashlib
import os
import secrets
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from askew import checks, io
from askew._parallel import release_memory, slices
from askew.encoders import as_points
from askew.search.base import RowNumbers
from askew.search.certified import NO_SIZES, Sizes, largest_products, masked_key, sizes_of
from askew.search.engines import (
    KINDS,
    check_engine,
    import_faiss,
    kind_for,
    make_engine,
    most_effort,
    read_engine,
    search_engine,
)
from askew.search.exact import nearest_in_blocks
from askew.search.folder import INDEX
from askew.search.inner_product import InnerProductForm, fill_keys, form_for, sample_of
from askew.search.local import OUTGROWN, LocalIndex
from askew.search.store import empty_rows

# From this many features on FAISS scans all keys faster than torch in blocks; measured at 33 and 129.
WIDE = 96
# Queries that set the effort, and how many neighbours of each are to be found.
TUNING_QUERIES = 256
TUNING_NEIGHBOURS = 10
# Items whose keys are computed at a time for an exact search.
EXACT_ROWS = 1 << 16


@dataclass
class _State:
    """An engine that holds the keys of all rows, and how it was built."""

    kind: str
    # The kind for this number of items; flat takes its place where it misses too many neighbours.
    tried: str
    effort: int = 1
    engine: Any = None
    form: InnerProductForm | None = None
    sizes: Sizes = NO_SIZES
    built_for: int = 0

    def flat_keys(self) -> Tensor:
        """Return the keys of a flat engine where FAISS has them, without a copy."""
        count, size = self.engine.ntotal, self.engine.d
        keys: NDArray[np.float32] = import_faiss().rev_swig_ptr(self.engine.get_xb(), count * size)
        return torch.from_numpy(keys.reshape(count, size))

    def __deepcopy__(self, memo: dict[int, Any]) -> _State:
        engine = None if self.engine is None else import_faiss().clone_index(self.engine)
        return replace(self, form=copy.deepcopy(self.form, memo), engine=engine)


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
    _state: _State

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
        self._asked = None if kind is None else checks.check_name(kind, KINDS, "kind of FaissIndex")
        self.recall_target = _check_fraction(recall_target, "recall_target of FaissIndex")
        self._state = _State(kind or "flat", kind or "flat")

    @property
    def kind(self) -> str:
        """The kind of the index as it is now."""
        return self._state.kind

    @property
    def effort(self) -> int:
        """How many lists (ivf) or nodes (hnsw) a search visits; may be set."""
        return self._state.effort

    @effort.setter
    def effort(self, effort: int) -> None:
        self._state.effort = effort

    # ------------------------------------------------------------------ changes

    def _prepare_add(self, embeddings: Tensor, total: int) -> Callable[[], None] | None:
        state = self._state
        if state.form is None or self._kind_for(total) != state.tried or total > OUTGROWN * state.built_for:
            return None
        # Plain keys first: they tell whether the Euclidean form can hold them.
        keys = state.form.plain_keys(embeddings).float().numpy()
        sizes = sizes_of(keys, type(self).__name__)
        if state.kind != "flat":
            if sizes.whole > state.form.radius:
                return None
            keys = np.pad(keys, ((0, 0), (0, 1)))
            _fill_last_feature(keys, state.form.radius)
        keys, sizes = KINDS[state.kind].padded(keys), state.sizes.joined(sizes)

        def extend() -> None:
            state.engine.add(keys)
            state.sizes = sizes

        return extend

    def _kind_for(self, total: int) -> str:
        if self._asked is None and kind_for(2 * total) == self._state.tried:
            return self._state.tried  # items that come and go near the border must not change it each time
        return self._asked or kind_for(total)

    def _mask(self, rows: RowNumbers) -> None:
        if self.kind == "flat":
            keys = self._state.flat_keys()
            keys[torch.from_numpy(rows)] = masked_key(keys)

    def _build(self, parts: list[Tensor]) -> _State:
        count = sum(map(len, parts))
        if count == 0:
            return _State(self.kind, self._state.tried, self.effort)
        kind = self._kind_for(count) if len(parts) > 1 else self._asked or kind_for(count)
        state, recall = self._build_kind(kind, parts)
        if recall < self.recall_target and self._asked is None:
            state, _ = self._build_kind("flat", parts)
            state.tried = kind
        elif recall < self.recall_target:
            what = f"FaissIndex of kind {kind!r} finds {recall:.1%} of the nearest items, below its recall_target"
            warnings.warn(f"{what}. Use kind='flat', or scale items that are far longer than others.", stacklevel=4)
        return state

    def _build_kind(self, kind: str, parts: list[Tensor]) -> tuple[_State, float]:
        """Return the state for several sets of items, and the recall that was measured on some of them."""
        owner, count, flat = type(self).__name__, sum(map(len, parts)), kind == "flat"
        sample = sample_of(parts)
        form = form_for(self.divergence, self.direction, "inner-product", sample, owner)
        size = form.size
        if not flat:
            form = form.balanced(sample)
        keys = empty_rows(count, KINDS[kind].features(form.size), np.float32, self._scratch)
        keys[:, size:] = 0
        fill_keys(keys[:, :size], form, parts)
        if self._scratch is not None:  # memory is scarce then, and the codes come next
            release_memory()
        sizes = sizes_of(keys[:, :size], owner)
        if not flat:
            form = form.with_radius(sizes.whole)
            _fill_last_feature(keys[:, : form.size], form.radius)
        engine: Any = None
        for codes in KINDS[kind].codes:
            del engine  # not two at a time
            engine = make_engine(kind, codes, keys, self._scratch)
            effort, recall = (1, 1.0) if flat else self._first_effort(kind, engine, form, parts, keys)
            if recall >= _goal(self.recall_target):
                break
        return _State(kind, kind, effort, engine, form, sizes, count), recall

    def _first_effort(
        self, kind: str, engine: Any, form: InnerProductForm, parts: list[Tensor], keys: NDArray[np.float32]
    ) -> tuple[int, float]:
        """Return the effort that finds the neighbours of some of the items, and the recall."""
        count, border = len(keys), len(parts[0])
        rows = np.random.RandomState(0).permutation(count)[:TUNING_QUERIES]
        rows.sort()
        chosen = [parts[0][torch.from_numpy(rows[rows < border])]]
        if len(parts) > 1:
            chosen.append(parts[1][torch.from_numpy(rows[rows >= border] - border)])
        queries = form.as_queries(torch.cat(chosen))
        vectors = form.plain_queries(queries).float()
        blocks = torch.from_numpy(keys[:, : vectors.shape[1]]).split(1 << 16)
        _, truth = largest_products(vectors, blocks, min(TUNING_NEIGHBOURS, count))
        vectors = form.queries(queries).float()
        return _least_effort(kind, engine, vectors.numpy(), truth.numpy(), self.recall_target, None)

    # ------------------------------------------------------------------ search

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, RowNumbers]:
        store, state = self._items, self._state
        if state.form is None:
            raise ValueError(checks.message("FaissIndex", "filled before it is searched", "no items"))
        checks.check_size(state.effort, "effort of FaissIndex")
        if state.kind == "flat":
            scanner = state.engine if state.engine.d >= WIDE else None
            return self._by_keys(queries, k, state.form, state.flat_keys(), state.sizes, scanner)
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
        if len(self) == 0:
            raise ValueError(checks.message("FaissIndex", "filled before it is tuned", "no items", "Call add first."))
        embeddings = self._embed(as_points(queries), "queries")
        with self._reading():
            state, store = self._state, self._items
            if state.kind != "flat" and state.form is not None and len(embeddings) and len(store):
                _, ids = self._exact(embeddings, min(k, len(store)))
                truth = store.find(ids.reshape(-1)).reshape(ids.shape)
                vectors = state.form.queries(embeddings).float().numpy()
                state.effort, _ = _least_effort(state.kind, state.engine, vectors, truth, target, store.live)
            return state.effort

    # ------------------------------------------------------------------ on disk

    def _settings(self) -> dict[str, object]:
        state = self._state
        form = None if state.form is None else {"centre": state.form.centre[0].tolist(), **state.form.settings()}
        return {
            "asked": self._asked,
            "kind": state.kind,
            "tried": state.tried,
            "recall_target": self.recall_target,
            "effort": state.effort,
            "made_for": state.built_for,
            "sizes": list(state.sizes),
            "reduction": form,
        }

    def _write_parts(self, folder: Path) -> dict[str, Any]:
        if self._state.engine is None:
            return {}
        faiss = import_faiss()
        name = f"faiss-{secrets.token_hex(8)}.index"
        digest = hashlib.sha256()
        # By the open file: where FAISS itself closes a file, it does not report that the last bytes found no room.
        with io.atomic_write(folder / name) as temporary, temporary.open("xb") as file:

            def write(block: bytes) -> None:
                file.write(block)
                digest.update(block)

            try:
                faiss.write_index(self._state.engine, faiss.PyCallbackIOWriter(write))
            except RuntimeError as error:
                raise OSError(f"FAISS could not write it: {str(error).splitlines()[0]}") from error
        return {"engine": {"file": name, "sha256": digest.hexdigest()}}

    def _restore(self, settings: dict[str, Any], folder: Path, files: dict[str, Any], shown_file: str) -> None:
        what = f"kind in {shown_file}"
        try:
            asked = settings["asked"]
            self._asked = None if asked is None else checks.check_name(asked, KINDS, what)
            self.recall_target = float(settings["recall_target"])
            kind, tried = (checks.check_name(settings[name], KINDS, what) for name in ("kind", "tried"))
            state = _State(kind, tried, checks.check_size(settings["effort"], f"effort in {shown_file}"))
            state.built_for = int(settings["made_for"])
            state.sizes = Sizes(*(float(size) for size in settings["sizes"]))
            self._state, numbers = state, settings["reduction"]
            if numbers is None or self._store is None:
                return
            like = form_for(self.divergence, self.direction, "inner-product", None, type(self).__name__)
            dtype = self.divergence.dtype or self._item_dtype()
            centre = torch.tensor([[float(value) for value in numbers["centre"]]], dtype=dtype)
            if centre.shape != (1, self._store.values.shape[1]):
                raise ValueError("its centre has another number of features")
            state.form = like.restored(KINDS[kind].form, centre, numbers)
            name, sha256 = files["engine"]["file"], files["engine"]["sha256"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(io.damaged(shown_file, f"its settings are incomplete: {error}")) from None
        if not INDEX.is_part(name) or not name.startswith("faiss-"):
            raise ValueError(io.damaged(shown_file, "the name of its FAISS file is wrong"))
        path, count = folder / name, self._store.rows
        if _digest(path) != sha256:
            raise ValueError(io.damaged(repr(str(path)), "its checksum does not fit"))
        engine = read_engine(path, kind, count)
        state.engine = check_engine(kind, engine, KINDS[kind].features(state.form.size), count, repr(str(path)))


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
