"""Tables with what is to be learned from them: classes, numbers, pairs or triplets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from askew import checks
from askew.cli import inputs
from askew.cli.shell import say
from askew.cli.tables import read_frame
from askew.estimators import Columns
from askew.estimators.cells import as_text
from askew.estimators.columns import check_column
from askew.estimators.judging import IDENTIFIER


class Supervised(NamedTuple):
    """Points and what is known about them.

    ``points`` are rows, ``(n, dim)``, or pairs or triplets of them, ``(n, size, dim)``; ``truth`` is one value for
    each, None for triplets. ``kept`` are notes for the model, ``size`` and ``notes`` are for people. ``names`` are
    those of the rows, by the bytes of their points, if a column names them.
    """

    points: Any
    truth: Any
    columns: Columns
    kept: dict[str, Any]
    size: str
    notes: list[str]
    names: dict[bytes, str]


def read_supervised(
    kind: str,
    file: Path | None,
    dataset: str | None,
    no_header: bool,
    column: str | None,
    table: Path | None,
    name: str | None,
    quiet: bool,
    **choices: Sequence[str] | None,
) -> Supervised:
    """Read what ``kind``, an option, names; print the size of the table and what became of its columns.

    ``column`` holds the classes or numbers, of the table or with ``--pairs`` of their ``table``, where it is the third
    of three unless given; ``name`` names the rows. ``choices`` are those of :func:`~askew.cli.inputs.fit_columns`.
    """
    frame = inputs.read_table(file, dataset, no_header)
    others = None if table is None else read_frame(table)
    names: list[str] = []
    if others is not None:
        texts = inputs.with_names(others, table, others.columns)
        if kind == "--pairs":
            if column is None and others.shape[1] != 3:
                must = f"the column of values, one of {', '.join(others.columns)}"
                raise ValueError(checks.message("--target", must, "none"))
            values = others.pop(check_column(others, column or others.columns[2], "--target"))
        texts = texts[others.columns].apply(as_text)
        named = inputs.with_names(frame, file, [name, *filter(IDENTIFIER.fullmatch, frame.columns)], no_header)
        name = name or next(iter(inputs.naming_columns(named, texts.to_numpy().ravel())), None)
        names = inputs.names_of(named, name)
        others = others if name is None else texts  # the row 7 may be written 007, the name may not
    aside = {} if name is None else {name: "the names of the rows"}
    kept: dict[str, Any] = {}
    truth: Any = None
    notes: list[str] = []
    if kind == "--label":
        column = inputs.label_column(frame, column, dataset)
        aside[column], kept = "the classes", {inputs.LABELS: column}
    elif kind == "--target":
        column = check_column(frame, str(column), "--target")
        aside[column], kept = "the numbers to learn from", {inputs.TARGET: column}
    columns = inputs.fit_columns(frame, aside, **choices)
    points: Any = columns.transform(frame)
    found = name or inputs.id_column(frame, columns)
    naming: dict[bytes, str] = {}
    if found is not None:
        naming = inputs.by_point(points, inputs.names_of(inputs.with_names(frame, file, [found], no_header), found))
        columns.notes_ = tuple(
            note.replace(" [--keep", "; names the points in the explorer [--keep")
            if note.startswith(f"{found}: ")
            else note
            for note in columns.notes_
        )
    if kept:
        supervision: Any = inputs.classes_of if kind == "--label" else inputs.targets_of
        known, truth, notes = supervision(frame[column], choices["na"] or ())
        points = points[known]
    if found is not None:
        kept = kept | {inputs.ID: found}
    size = f"{len(points)} rows, {points.shape[1]} features"
    if kind == "--label":
        size += f", {len(np.unique(truth))} classes"
    if others is not None:
        if kind == "--pairs":
            try:
                truth = values.to_numpy(dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise ValueError(checks.message(f"values in {values.name!r}", "numbers", but=str(error))) from None
        rows = inputs.numbers_of(others, names, 2 if kind == "--pairs" else 3, kind)
        points = points[rows]
        size += f", {len(rows)} {kind[2:]}"
    notes += inputs.condensed(columns.notes_)
    say(f"{dataset or file}: {size}", quiet)
    inputs.tell(notes, quiet)
    return Supervised(points, truth, columns, kept, size, notes, naming)
