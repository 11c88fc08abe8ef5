"""Commands that learn: compare, learn.

The library is imported inside the commands, so that help and usage errors do not wait for torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from askew._messages import check_name, message
from askew.cli import options
from askew.cli.shell import app, print_json, say, table

OUTPUT = Path("askew-out")
REPORT = "report.html"
MODEL = "model"


@app.command("compare", epilog="Example: askew compare flowers.csv --label species")
def _compare(
    file: options.TableFile = None,
    label: Annotated[str | None, typer.Option(help="Column with the classes.")] = None,
    dataset: options.Dataset = None,
    divergence: Annotated[str, typer.Option(metavar="usual|all|NAME,...", help="Divergences to compare.")] = "usual",
    folds: Annotated[int, typer.Option(help="Folds of the cross-validation.")] = 5,
    steps: Annotated[int | None, typer.Option(help="Steps of each training; few for a quick look.")] = None,
    drop: options.Drop = None,
    keep: options.Keep = None,
    category: options.Category = None,
    number: options.Number = None,
    date: options.Date = None,
    na: options.Na = None,
    no_header: options.NoHeader = False,
    seed: options.Seed = 0,
    jobs: Annotated[int | None, typer.Option(help="Parallel trainings.", show_default="one per core")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the model and the report.")] = OUTPUT,
    json: options.Json = False,
) -> None:
    """Find the best divergence for a table with classes.

    Prints a leaderboard, and writes the best model and a report.
    """
    options.check_source(file, dataset)
    names = options.divergence_names(divergence)
    if folds < 2:
        raise ValueError(message("--folds", "at least 2", folds))
    from askew import io
    from askew.cli import inputs
    from askew.cli.comparison import SCORES, compare
    from askew.cli.report import write_comparison
    from askew.estimators import DivergenceLearner

    frame = inputs.read_table(file, dataset, no_header)
    label = inputs.label_column(frame, label, dataset)
    chosen = {"drop": drop, "keep": keep, "category": category, "number": number, "date": date, "na": na}
    columns = inputs.fit_columns(frame, {label: "the classes"}, **chosen)
    known, labels, notes = inputs.classes_of(frame[label], na or ())
    points = columns.transform(frame)[known]
    io.writable_folder(output, "-o")  # fails now, not after the training
    inputs.tell_replaced([output / MODEL / inputs.MODEL_FILE, output / REPORT], json)
    notes += inputs.condensed(columns.notes_)
    source = str(dataset or file)
    size = f"{len(points)} rows, {points.shape[1]} features, {len(set(labels))} classes"
    say(f"{source}: {size}", json)
    inputs.tell(notes, json)
    progress = False if json else None
    board = compare(points, labels, names, folds=folds, steps=steps, random_state=seed, jobs=jobs, progress=progress)
    best = board.best.name
    encoder = None if best == "euclidean" else "auto"
    learner = DivergenceLearner(best, encoder=encoder, steps=steps, random_state=seed, progress=progress)
    learner.fit(points, labels)
    io.save(learner, output / MODEL, notes={inputs.COLUMNS: columns.to_json(), inputs.LABELS: label})
    report = write_comparison(
        output / REPORT,
        board,
        learner,
        points,
        labels,
        title=f"Divergences for {Path(source).name}",
        feature_names=columns.get_feature_names_out().tolist(),
        notes=[f"{source}: {size}.", *notes],
        settings={"seed": seed, "folds": folds, "steps": "by the table" if steps is None else steps, "label": label},
    )
    if json:
        files = {"model": str(output / MODEL), "report": str(report)}
        print_json(board.to_dict() | files | {"columns": notes, "choice": learner.choice_})
        return
    say()
    lines = [[text[:60] for text, _ in line] for line in board.cells(clear=" *")]
    table(("divergence", *(name for name, _ in SCORES.values()), "over euclidean"), lines, best=0)
    say(f"Means and standard deviations over {board.folds} folds. * larger than its spread over folds.")
    say()
    say(board.verdict())
    for note in board.notes:
        say(note)
    say()
    say(f"Learned {best} on all rows: {learner.choice_}")
    say(f"Model: {output / MODEL}   Report: {report}")
    _say_next(learner, output / MODEL)


@app.command("learn", epilog="Example: askew learn flowers.csv --label species -o model")
def _learn(
    file: options.TableFile = None,
    label: Annotated[str | None, typer.Option(help="Column with the classes.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Table of pairs of rows of TABLE, with --target.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Column of numbers to learn from; with --pairs, its values of D(first, second).")
    ] = None,
    bins: Annotated[int | None, typer.Option(help="Learn --target by so many classes, not by differences.")] = None,
    triplets: Annotated[Path | None, typer.Option(help="Table of rows of TABLE: anchor, nearer, farther.")] = None,
    relevance: Annotated[
        Path | None, typer.Option(help="Table of clicks: query, item[, grade], with --queries and --items.")
    ] = None,
    queries: Annotated[Path | None, typer.Option(help="Table of queries, in place of TABLE.")] = None,
    items: Annotated[Path | None, typer.Option(help="Table of items, in place of TABLE.")] = None,
    dataset: options.Dataset = None,
    divergence: Annotated[
        str | None,
        typer.Option(metavar="auto|NAME", help="Divergence to learn.", show_default="nbd; auto of pairs and clicks"),
    ] = None,
    encoder: Annotated[
        str, typer.Option(metavar="auto|none|mlp|two-sided", help="Network in front of it, or one for each point.")
    ] = "auto",
    name: Annotated[
        str | None, typer.Option("--id", help="Column of TABLE by which --pairs and --triplets name rows.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the training.", show_default="by the table")] = None,
    drop: options.Drop = None,
    keep: options.Keep = None,
    category: options.Category = None,
    number: options.Number = None,
    date: options.Date = None,
    na: options.Na = None,
    no_header: options.NoHeader = False,
    seed: options.Seed = 0,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the model.")] = Path(MODEL),
    json: options.Json = False,
) -> None:
    """Learn a divergence from classes, numbers, pairs, triplets or clicks."""
    tables = (("--pairs", pairs), ("--triplets", triplets), ("--relevance", relevance))
    given = [option for option, value in tables if value is not None]
    if label is not None or (dataset is not None and not given and target is None):
        given.append("--label")
    if target is not None and pairs is None:
        given.append("--target")
    if len(given) != 1:
        must = "one of --label, --target, --pairs (with --target), --triplets and --relevance"
        raise ValueError(message("what to learn from", must, " and ".join(given) or "none"))
    divergence = divergence or ("nbd" if pairs is None and relevance is None else "auto")
    check_name(divergence, ("auto", *options.LEARNED, *options.CLOSED), "--divergence")
    check_name(encoder, ("auto", "none", "mlp", "two-sided"), "--encoder")
    if relevance is None:
        options.check_source(file, dataset)
    elif file is not None or dataset is not None or queries is None or items is None:
        got = "TABLE" if file is not None or dataset is not None else "only one of them or none"
        raise ValueError(message("input with --relevance", "--queries FILE and --items FILE", got))
    if bins is not None and (given != ["--target"] or bins < 2):
        raise ValueError(message("--bins", "at least 2, and given with --target", bins))
    for option, path in (*tables, ("--queries", queries), ("--items", items)):
        if path is not None:
            options.check_file(path, option)
    import numpy as np

    from askew import io
    from askew.cli import inputs
    from askew.cli.tables import read_frame
    from askew.cli.targets import learn_target
    from askew.estimators import DivergenceLearner, PairRegressor, TripletLearner
    from askew.estimators.columns import check_column

    settings: dict[str, Any] = {
        "divergence": divergence,
        "encoder": None if encoder == "none" else encoder,
        "steps": steps,
        "random_state": seed,
        "progress": False if json else None,
    }
    io.writable_folder(output, "-o")  # fails now, not after the training
    inputs.tell_replaced([output / inputs.MODEL_FILE], json)
    chosen = {"drop": drop, "keep": keep, "category": category, "number": number, "date": date, "na": na}
    if relevance is not None and queries is not None and items is not None:
        from askew.cli.relevance import learn_relevance

        paths = relevance, queries, items
        learned = learn_relevance(paths, output, settings, name=name, quiet=json, **chosen)
        if json:
            told = {"model": str(output), "divergence": divergence, "choice": learned.learner.choice_}
            print_json(
                told
                | {
                    "ndcg@10": learned.scores,
                    "features": learned.columns.get_feature_names_out().tolist(),
                    "notes": learned.notes,
                }
            )
            return
        say(f"Learned {divergence}: {learned.learner.choice_}", lines=True)
        if learned.scores:
            say(learned.sentence())
        say(f"Model: {output}")
        _say_next(learned.learner, output)
        return
    frame = inputs.read_table(file, dataset, no_header)
    notes: list[str] = []
    kept: dict[str, Any] = {}
    scores: dict[str, float] = {}
    choice = ""
    learner: DivergenceLearner | PairRegressor | TripletLearner
    aside = {} if name is None else {name: "the names of the rows"}
    column: Any = None
    if given == ["--label"]:
        column = inputs.label_column(frame, label, dataset)
        aside[column], kept = "the classes", {inputs.LABELS: column}
    elif given == ["--target"]:
        column = check_column(frame, str(target), "--target")
        aside[column] = "the numbers to learn from"
    names = inputs.names_of(frame, name) if column is None else []
    columns = inputs.fit_columns(frame, aside, **chosen)
    points: Any = columns.transform(frame)
    truth: Any = None
    if column is not None:
        supervision: Any = inputs.classes_of if given == ["--label"] else inputs.targets_of
        known, truth, notes = supervision(frame[column], na or ())
        points = points[known]
    notes += inputs.condensed(columns.notes_)
    say(f"{dataset or file}: {len(points)} rows, {points.shape[1]} features", json)
    inputs.tell(notes, json)
    if pairs is not None:
        others = read_frame(pairs)
        if target is None:
            must = f"the column of values, one of {', '.join(others.columns)}"
            raise ValueError(message("--target", must, "none"))
        wanted = others[check_column(others, target, "--target")].to_numpy(dtype=np.float64)
        rows = inputs.numbers_of(others.drop(columns=target), names, 2, "--pairs")
        learner = PairRegressor(**settings).fit(points[rows], wanted)
    elif triplets is not None:
        rows = inputs.numbers_of(read_frame(triplets), names, 3, "--triplets")
        learner = TripletLearner(**settings).fit(points[rows])
    elif given == ["--target"]:
        learner, numbers, scores, choice = learn_target(points, truth, bins=bins, **settings)
        kept = {inputs.TARGET: column, inputs.VALUES: numbers.tolist()}
    else:
        learner = DivergenceLearner(**settings).fit(points, truth)
    io.save(learner, output, notes={inputs.COLUMNS: columns.to_json(), **kept})
    choice = choice or learner.choice_
    if json:
        found: dict[str, Any] = {"model": str(output), "divergence": divergence, "choice": choice}
        found |= {"r2": scores} if scores else {}
        print_json(found | {"features": columns.get_feature_names_out().tolist(), "columns": notes})
        return
    say(f"Learned {divergence}: {choice}", lines=True)
    say(f"Model: {output}")
    _say_next(learner, output)


def _say_next(learner: Any, folder: Path) -> None:
    """Print the commands that take a new model."""
    from askew.explorer import can_show

    explore = f"askew explore {folder}   or   " if can_show(learner.model_) else ""
    say(f"Next: {explore}askew index {folder} ITEMS -o index   or   askew score {folder} TEST-TABLE")
