"""``--relevance`` of learn and compare: two tables and the clicks between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from askew import checks, io, metrics
from askew.cli import inputs
from askew.cli.tables import read_frame
from askew.estimators import Columns, RelevanceLearner
from askew.estimators.cells import as_text
from askew.estimators.columns import check_column
from askew.estimators.judgements import grades_of, judgement_columns
from askew.estimators.judging import IDENTIFIER, first_of

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# Columns that name the rows of each table, unless --id says another one; else any that has all names in the clicks.
NAMING = {"queries": ("query", "query_id", "id"), "items": ("item", "item_id", "id")}
# Share of the queries with clicks that is held out for the score, and how many there must be.
HELD_OUT, ENOUGH = 0.2, 10


@dataclass(frozen=True)
class Learned:
    """What was learned: the model, its encoding of tables, and what to tell."""

    learner: RelevanceLearner
    columns: Columns
    notes: list[str]
    scores: dict[str, float]

    def sentence(self) -> str:
        """Return the scores in a line."""
        return "NDCG@10 on held-out queries: " + ", ".join(f"{name} {score:.3f}" for name, score in self.scores.items())


@dataclass(frozen=True)
class Clicked:
    """Queries, items and judgements as numbers; how their tables are encoded, notes for the model and for people.

    ``names`` are those of the items, by the bytes of their points, if a column names them.
    """

    points: NDArray[np.float64]
    items: NDArray[np.float64]
    judgements: NDArray[np.float64]
    columns: Columns
    item_columns: Columns
    kept: dict[str, Any]
    size: str
    notes: list[str]
    names: dict[bytes, str]

    @property
    def truth(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What is known about the queries."""
        return self.items, self.judgements


def read_relevance(
    paths: tuple[Path, Path, Path],
    name: str | None = None,
    quiet: bool = False,
    **choices: Sequence[str] | None,
) -> Clicked:
    """Read files of clicks, queries and items, and print what became of their columns.

    ``choices`` are those of :func:`~askew.cli.inputs.fit_columns`; each is for the tables that have such a column.
    """
    clicks, queries, items = (read_frame(path) for path in paths)
    names, notes, aside, used = {}, [], {}, {}
    places = judgement_columns([str(column) for column in clicks.columns], "--relevance")
    texts = inputs.with_names(clicks, paths[0], clicks.columns[places[:2]])
    if name is not None and name not in queries.columns:
        check_column(items, name, "--id of queries and items")
    for side, table, path, place in zip(NAMING, (queries, items), paths[1:], places, strict=False):
        used[side] = as_text(texts.iloc[:, place])
        if used[side].isna().any():
            but = f"click {used[side].isna().argmax()}, counted from 0, has no {NAMING[side][0]}"
            raise ValueError(checks.message("--relevance", "a table with a query and an item in each row", but=but))
        candidates = [name, *NAMING[side], *filter(IDENTIFIER.fullmatch, table.columns)]
        named = inputs.with_names(table, path, candidates)
        found = inputs.naming_columns(named, used[side])
        column = next((c for c in (name, *NAMING[side], *found) if c in table), None)
        if column is None:  # the row 7 may be written 007, the name may not
            used[side] = as_text(clicks.iloc[:, place])
        names[side] = inputs.names_of(named, column, side)
        aside[side] = {} if column is None else {column: f"the names of the {side}"}
        by = "their numbers from 0" if column is None else f"the column {column!r}"
        notes.append(f"{len(table)} {side}, which clicks name by {by}")
    columns = inputs.fit_columns(items, aside["items"], **_of_table(choices, items, queries))
    of_queries, remarks = _columns_of_queries(queries, columns, aside["queries"], _of_table(choices, queries, items))
    shared = of_queries is columns
    notes += [*inputs.condensed(columns.notes_), *remarks]
    inputs.tell(notes, quiet)
    judgements = _judgements(clicks, places, used, names)
    without = len(queries) - len(np.unique(judgements[judgements[:, 2] > 0, 0]))
    if without:
        notes.append(f"{without} queries without a relevant item")
        inputs.tell(notes[-1:], quiet)
    kept = {inputs.COLUMNS: columns.to_json()}
    kept |= {} if shared else {inputs.QUERY_COLUMNS: of_queries.to_json()}
    points = of_queries.transform(queries), columns.transform(items)
    size = f"{len(queries)} queries, {len(items)} items, {len(judgements)} clicks"
    naming = inputs.by_point(points[1], names["items"]) if aside["items"] else {}
    return Clicked(*points, judgements, of_queries, columns, kept, size, notes, naming)


def learn_relevance(data: Clicked, folder: Path, settings: dict[str, Any]) -> Learned:
    """Learn from clicks, save the model, and score it on queries that it has not seen."""
    first, second, judgements = data.points, data.items, data.judgements
    wanted = np.unique(judgements[judgements[:, 2] > 0, 0])
    held_out = wanted[:0]
    if len(wanted) >= ENOUGH:
        held_out = np.random.default_rng(settings["random_state"]).permutation(wanted)[: int(HELD_OUT * len(wanted))]
    asked = np.isin(judgements[:, 0], held_out)
    learner = RelevanceLearner(**settings)
    seen = np.unique(judgements[~asked, 0])
    known = judgements[~asked]
    known[:, 0] = np.searchsorted(seen, known[:, 0])
    learner.fit(first[seen.astype(int)], second, known)
    io.save(learner, folder, notes=data.kept | inputs.names_in(data.names, learner.points_))
    scores = _scores(learner, first, second, judgements[asked]) if len(held_out) else {}
    return Learned(learner, data.item_columns, data.notes, scores)


def _of_table(choices: dict[str, Sequence[str] | None], table: DataFrame, other: DataFrame) -> dict[str, Any]:
    """Return the choices about columns of a table; a column that neither table has is an error."""
    mine: dict[str, Any] = {"na": choices["na"]}
    for option, names in choices.items():
        if option == "na":
            continue
        places = {text: text if option != "date" else text.partition("=")[0] for text in names or ()}
        mine[option] = [text for text, name in places.items() if name in table.columns]
        for name in places.values():
            if name not in other.columns:
                check_column(table, name, f"--{option}")
    return mine


def _columns_of_queries(
    queries: DataFrame, of_items: Columns, aside: dict[str, str], choices: dict[str, Any]
) -> tuple[Columns, list[str]]:
    """Return the columns of queries, and notes.

    They are those of items, unless queries lack one of these or have another one that can be learned from.
    """
    shared = {column.name for column in of_items.columns_}
    lacking, others = shared - set(queries.columns), set(queries.columns) - {*shared, *aside}
    notes: list[str] = []
    if lacking or others:
        of_queries = inputs.fit_columns(queries, aside, **choices)
        more = {column.name for column in of_queries.columns_} - shared
        if lacking or more:
            told = f"have columns that items lack ({first_of(more)})"
            if not more:
                told = f"lack columns that items have ({first_of(lacking)})"
            notes = [f"queries: {note}" for note in inputs.condensed(of_queries.notes_)]
            return of_queries, [f"queries {told}: each side is encoded by its own columns [--drop]", *notes]
        notes = [note for name, note in zip(queries.columns, of_queries.notes_, strict=True) if name not in shared]
    return of_items, [f"queries: {note}" for note in (*inputs.condensed(notes), *of_items.unseen(queries))]


def _judgements(
    clicks: DataFrame, places: list[int], used: dict[str, Series], names: dict[str, list[str]]
) -> NDArray[np.float64]:
    """Return rows of queries, rows of items and grades, ``(n, 3)``: names of rows, and the column of grades if any."""
    rows = [_rows(used[side], names[side], side) for side in NAMING]
    grades = np.ones(len(clicks))
    if len(places) == 3:
        try:
            grades = clicks.iloc[:, places[2]].to_numpy(dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(checks.message("grades in --relevance", "numbers", str(error))) from None
    result = np.stack([*rows, grades], 1)
    grades_of(result, len(names["queries"]), len(names["items"]), "--relevance")  # raises before anything is trained
    return result


def _rows(values: Series, names: list[str], side: str) -> NDArray[np.int64]:
    places = {name: number for number, name in enumerate(names)}
    unknown = next((name for name in values if name not in places), None)
    if unknown is not None:
        what, columns = f"values in --relevance that name {side}", ", ".join(NAMING[side])
        hint = f"They are values of --id, of a column {columns} or of one that has them all, else row numbers from 0."
        raise ValueError(checks.message(what, "rows there are", repr(unknown), hint))
    return np.array([places[name] for name in values], dtype=np.int64)


def _scores(
    learner: RelevanceLearner, queries: NDArray[Any], items: NDArray[Any], judgements: NDArray[np.float64]
) -> dict[str, float]:
    """Return the NDCG@10 of the learned divergence and, where both have the same features, of cosine and Euclidean."""
    scores = {"learned": learner.score(queries, items, judgements)}
    if queries.shape[1] != items.shape[1]:
        return scores
    asked, judgements = np.unique(judgements[:, 0]).astype(int), judgements.copy()
    judgements[:, 0] = np.searchsorted(asked, judgements[:, 0])
    grades = grades_of(judgements, len(asked), len(items), "--relevance")
    scores["cosine"] = euclidean_ndcg(normalize(queries[asked]), normalize(items), grades)
    scores["euclidean"] = euclidean_ndcg(queries[asked], items, grades)
    return scores


def euclidean_ndcg(queries: NDArray[Any], items: NDArray[Any], grades: Any) -> float:
    """Return the mean NDCG@10 of queries that all have a relevant item, by their Euclidean distance from the items."""
    lengths = (items**2).sum(1)[None]
    values = [metrics.ndcg_at_k(lengths - 2 * queries[[k]] @ items.T, grades[[k]]) for k in range(len(queries))]
    return float(np.mean(values))
