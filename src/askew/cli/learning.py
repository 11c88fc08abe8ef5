"""Commands that learn: compare, learn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from askew import checks, io
from askew.cli.comparison import DEFAULT, SCORES, Leaderboard, compare
from askew.cli.inputs import (
    COLUMNS,
    Dataset,
    Drop,
    Json,
    Keep,
    NoHeader,
    Seed,
    TableFile,
    divergence_names,
    labelled,
    names_of,
    read_table,
    tell,
)
from askew.cli.report import write_comparison
from askew.cli.shell import app, print_json, say, table
from askew.cli.tables import Columns, check_column, read_frame
from askew.divergences import CATALOGUE
from askew.estimators import DivergenceLearner, PairRegressor, TripletLearner
from askew.explorer import can_show

__all__: list[str] = []

OUTPUT = Path("askew-out")
REPORT = "report.html"
MODEL = "model"


# ---------------------------------------------------------------------- compare


@app.command("compare", epilog="Example: askew compare flowers.csv --label species")
def _compare(
    file: TableFile = None,
    label: Annotated[str | None, typer.Option(help="Column with the classes.")] = None,
    dataset: Dataset = None,
    divergence: Annotated[
        str, typer.Option(metavar="usual|all|NAME,...", help="Which divergences to compare.")
    ] = "usual",
    folds: Annotated[int, typer.Option(help="Parts of the table, each held out once.")] = 5,
    steps: Annotated[int | None, typer.Option(help="Of each training; few for a quick look.")] = None,
    drop: Drop = None,
    keep: Keep = None,
    no_header: NoHeader = False,
    seed: Seed = 0,
    jobs: Annotated[int | None, typer.Option(help="Trainings at a time.", show_default="one a core")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the model and the report.")] = OUTPUT,
    json: Json = False,
) -> None:
    """Find the best divergence for a table with classes: a leaderboard, the best model and a report."""
    frame = read_table(file, dataset, no_header)
    frame, label, notes = labelled(frame, label, dataset)
    columns = Columns.of(frame, drop=[label, *(drop or [])], keep=keep or [])
    points, labels = columns.encode(frame), _classes(frame[label])
    names = divergence_names(divergence, DEFAULT)
    io.writable_folder(output, "-o")  # what cannot be written should fail now, not after the training
    said = [*notes, *columns.notes]
    size = f"{len(points)} rows, {points.shape[1]} features, {len(np.unique(labels))} classes"
    say(f"{dataset or file}: {size}", json)
    tell(said, json)
    board = compare(
        points, labels, names, folds=folds, steps=steps, random_state=seed, jobs=jobs, progress=False if json else None
    )
    best = board.best.name
    learner = DivergenceLearner(
        best,
        encoder=None if best == "euclidean" else "auto",
        steps=steps,
        random_state=seed,
        progress=False if json else None,
    ).fit(points, labels)
    _save(learner, columns, output / MODEL)
    source = str(dataset or file)
    report = write_comparison(
        output / REPORT,
        board,
        learner,
        points,
        labels,
        title=f"Divergences for {Path(source).name}",
        feature_names=columns.features,
        notes=[f"{source}: {size}.", *said],
        settings={"seed": seed, "folds": folds, "steps": "by the table" if steps is None else steps, "label": label},
    )
    if json:
        print_json(
            board.to_dict()
            | {"model": str(output / MODEL), "report": str(report), "columns": said, "choice": learner.choice_}
        )
        return
    say()
    _print_board(board)
    say()
    say(board.verdict())
    for note in board.notes:
        say(note)
    say()
    say(f"Learned {best} on all rows: {learner.choice_}")
    say(f"Model: {output / MODEL}   Report: {report}")
    _say_next(learner, output / MODEL)


def _say_next(learner: Any, folder: Path) -> None:
    """Print what can be done with a model."""
    steps = [f"askew index {folder} ITEMS -o index"]
    if can_show(learner.model_):
        steps.insert(0, f"askew explore {folder}")
    say(f"Next: {'   or   '.join(steps)}")


def _classes(values: Any) -> NDArray[Any]:
    """Return labels as text, so that 1 and 1.0 or classes of several types are no problem."""
    whole = values.dtype.kind == "f" and (values % 1 == 0).all()
    return np.array([str(int(value)) if whole else str(value) for value in values])


def _print_board(board: Leaderboard) -> None:
    rows = []
    for standing in board.standings:
        if standing.problem:
            rows.append((standing.name, f"failed: {standing.problem}"[:60], *[""] * len(SCORES)))
            continue
        fields = []
        for score, (_, digits) in SCORES.items():
            mean, spread = standing.mean(score), standing.spread(score)
            between = "" if math.isnan(spread) or score == "seconds" else f" ± {spread:.{digits}f}"
            fields.append(f"{mean:.{digits}f}{between}")
        gain, spread = board.gain(standing)
        known = not math.isnan(gain) and standing.name != "euclidean"
        clear = " *" if known and gain > spread else ""
        rows.append((standing.name, *fields, f"{gain:+.3f}{clear}" if known else ""))
    table(("divergence", *(name for name, _ in SCORES.values()), "over euclidean"), rows, best=0)
    say(f"Means and standard deviations over {board.folds} folds. * more than the spread of the gain over folds.")


# ---------------------------------------------------------------------- learn


@app.command("learn", epilog="Example: askew learn flowers.csv --label species -o model")
def _learn(
    file: TableFile = None,
    label: Annotated[str | None, typer.Option(help="Column with the classes.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Table of pairs of rows of TABLE, with --target.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of --pairs with the values of D(first, second).")] = None,
    triplets: Annotated[Path | None, typer.Option(help="Table of rows of TABLE: anchor, nearer, farther.")] = None,
    dataset: Dataset = None,
    divergence: Annotated[str, typer.Option(metavar="NAME", help="Which divergence to learn.")] = "nbd",
    encoder: Annotated[str, typer.Option(metavar="auto|none|mlp", help="A network in front of it.")] = "auto",
    name: Annotated[
        str | None, typer.Option("--id", help="Column of TABLE that --pairs and --triplets call rows by.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Of the training.", show_default="by the table")] = None,
    drop: Drop = None,
    keep: Keep = None,
    no_header: NoHeader = False,
    seed: Seed = 0,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the model.")] = Path(MODEL),
    json: Json = False,
) -> None:
    """Learn one divergence from classes, from values of pairs, or from triplets."""
    given = [option for option, value in (("--pairs", pairs), ("--triplets", triplets)) if value is not None]
    if label is not None or (dataset is not None and not given):
        given.append("--label")
    if len(given) != 1:
        must = "one of --label, --pairs (with --target) and --triplets"
        raise ValueError(checks.message("what to learn from", must, " and ".join(given) or "none"))
    checks.check_name(divergence, CATALOGUE, "--divergence")
    checks.check_name(encoder, ("auto", "none", "mlp"), "--encoder")
    frame = read_table(file, dataset, no_header)
    options: dict[str, Any] = {
        "divergence": divergence,
        "encoder": None if encoder == "none" else encoder,
        "steps": steps,
        "random_state": seed,
        "progress": False if json else None,
    }
    notes: list[str] = []
    dropped = list(drop or [])
    io.writable_folder(output, "-o")  # now, not after the training
    learner: DivergenceLearner | PairRegressor | TripletLearner
    if given == ["--label"]:
        frame, label, notes = labelled(frame, label, dataset)
        columns = Columns.of(frame, drop=[label, *dropped], keep=keep or [])
        tell([*notes, *columns.notes], json)
        learner = DivergenceLearner(**options).fit(columns.encode(frame), _classes(frame[label]))
    else:
        names = names_of(frame, name)
        columns = Columns.of(frame, drop=[*([name] if name else []), *dropped], keep=keep or [])
        tell(columns.notes, json)
        points = columns.encode(frame)
        if pairs is not None:
            others = read_frame(pairs)
            if target is None:
                shown = ", ".join(others.columns)
                raise ValueError(checks.message("--target", f"the column of values, one of {shown}", "none"))
            values = others[check_column(others, target, "--target")]
            rows = _rows(others.drop(columns=target), names, 2, "--pairs")
            learner = PairRegressor(**options).fit(points[rows], values.to_numpy(dtype=np.float64))
        else:
            rows = _rows(read_frame(triplets or ""), names, 3, "--triplets")
            learner = TripletLearner(**options).fit(points[rows])
    _save(learner, columns, output)
    found = {
        "model": str(output),
        "divergence": divergence,
        "choice": learner.choice_,
        "features": columns.features,
        "columns": [*notes, *columns.notes],
    }
    if json:
        print_json(found)
        return
    say(f"Learned {divergence}: {learner.choice_}")
    say(f"Model: {output}")
    _say_next(learner, output)


def _rows(frame: Any, names: list[str], size: int, option: str) -> NDArray[np.int64]:
    """Return which rows of the table the rows of another one name, ``(n, size)``."""
    if frame.shape[1] != size:
        must = f"a table with {size} columns that name rows of TABLE"
        raise ValueError(checks.message(option, must, ", ".join(map(str, frame.columns))))
    places = {name: number for number, name in enumerate(names)}
    texts = [[str(value) for value in frame[column]] for column in frame.columns]
    unknown = next((text for column in texts for text in column if text not in places), None)
    if unknown is not None:
        hint = "Rows are called by their numbers from 0; name a column of TABLE by --id to call them by its values."
        raise ValueError(checks.message(f"values in {option}", "names of rows of TABLE", repr(unknown), hint))
    return np.array([[places[text] for text in column] for column in texts], dtype=np.int64).T


def _save(learner: Any, columns: Columns, folder: Path) -> None:
    io.save(learner, folder, notes={COLUMNS: columns.to_json()})
