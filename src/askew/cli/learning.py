"""Commands that learn: compare, learn.

The library is imported inside the commands, so that help and usage errors do not wait for torch.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from askew._messages import check_name, message
from askew.cli import options
from askew.cli.shell import WIDTH, app, print_json, say, table

OUTPUT = Path("askew-out")
REPORT = "report.html"
MODEL = "model"
# Finished folds of a comparison.
FOLDS = "folds.jsonl"
# Columns whose importance is printed.
MATTERING = 5


@app.command("compare", epilog="Example: askew compare flowers.csv --label species")
def _compare(
    file: options.TableFile = None,
    label: options.Label = None,
    pairs: options.PairTable = None,
    target: options.Target = None,
    bins: options.Bins = None,
    triplets: options.TripletTable = None,
    relevance: options.Relevance = None,
    queries: options.Queries = None,
    items: options.Items = None,
    dataset: options.Dataset = None,
    divergence: Annotated[str, typer.Option(metavar="usual|all|NAME,...", help="Divergences to compare.")] = "usual",
    by: Annotated[str | None, typer.Option(help="Score that decides.", show_default="the first one printed")] = None,
    folds: Annotated[int, typer.Option(help="Folds of the cross-validation.")] = 5,
    steps: Annotated[int | None, typer.Option(help="Steps of each training; few for a quick look.")] = None,
    name: options.TupleId = None,
    drop: options.Drop = None,
    keep: options.Keep = None,
    category: options.Category = None,
    number: options.Number = None,
    date: options.Date = None,
    na: options.Na = None,
    no_header: options.NoHeader = False,
    seed: options.Seed = 0,
    jobs: Annotated[
        int | None, typer.Option(help="Parallel trainings.", show_default="one per core, or 1 for small work")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the model and the report.")] = OUTPUT,
    json: options.Json = False,
) -> None:
    """Find the best divergence for a table.

    Learns from classes, numbers, pairs, triplets or clicks. Prints a leaderboard with baselines, and writes the best
    model and a report. A second run with the same settings goes on from the folds that an interrupted one has finished.
    """
    tables = {"--pairs": pairs, "--triplets": triplets, "--relevance": relevance}
    given: dict[str, Any] = {"--label": label, "--target": target, **tables}
    kind = options.kind_of(given, dataset) if any(given.values()) else "--label"
    options.check_inputs(file, dataset, tables | {"--queries": queries, "--items": items})
    options.check_bins(bins, kind)
    names = options.divergence_names(divergence, kind)
    if folds < 2:
        raise ValueError(message("--folds", "at least 2", folds))
    import numpy as np

    from askew import io
    from askew.cli import inputs, tasks
    from askew.cli.comparison import compare_task, held_out, importance, settings_of
    from askew.cli.relevance import read_relevance
    from askew.cli.report import write_comparison
    from askew.cli.supervision import read_supervised

    choices = {"drop": drop, "keep": keep, "category": category, "number": number, "date": date, "na": na}
    column = label if kind == "--label" else target
    data: Any
    if relevance is not None and queries is not None and items is not None:
        data = read_relevance((relevance, queries, items), name, json, **choices)
    else:
        data = read_supervised(kind, file, dataset, no_header, column, pairs or triplets, name, json, **choices)
    io.writable_folder(output, "the folder of -o")  # fails now, not after the training
    inputs.tell_replaced([output / MODEL / inputs.MODEL_FILE, output / REPORT], json)
    whole = tasks.KINDS[kind](data.points, data.truth, bins)
    task = whole.sample(seed)
    if by is not None:
        check_name(by, task.deciding, "--by")
    progress = False if json else None
    settings: dict[str, Any] = {"folds": folds, "steps": steps, "random_state": seed}

    def tell(standing: Any) -> None:
        scores = [f"{heading} {standing.mean(score):.{digits}f}" for score, (heading, digits) in task.headings.items()]
        found = "failed" if standing.problem else ", ".join(scores)
        say(f"{standing.name:16} {found}", json)

    say(quiet=json)
    kept: dict[str, Any] = {"keep": output / FOLDS, "done": tell}
    board = compare_task(task, names, by=by, jobs=jobs, progress=progress, **settings, **kept)
    best = board.best.name
    learner = whole.fit(np.arange(len(whole.points)), **settings_of(best, steps, seed), progress=progress)
    notes = {inputs.COLUMNS: data.columns.to_json(), **data.kept, **whole.kept(learner)}
    io.save(learner, output / MODEL, notes=notes | inputs.names_in(data.names, learner.points_))
    fold = held_out(task, best, **settings)
    _save_held_out(task, fold, output, data)
    drops = importance(task, fold, inputs.features_of(data.columns), seed)
    source = str(dataset or file or relevance)
    whence = data.kept.get(inputs.LABELS, given[kind])
    given_settings = settings | {"steps": "by the table" if steps is None else steps}
    report = write_comparison(
        output / REPORT,
        board,
        learner,
        task,
        fold,
        importance=drops,
        title=f"Divergences for {Path(source).name}",
        feature_names=data.columns.get_feature_names_out().tolist(),
        names=inputs.names_in(data.names, task.points).get(inputs.NAMES) if task.groups() is not None else None,
        notes=[f"{source}: {data.size}.", *data.notes],
        settings=given_settings | {kind[2:]: str(whence), "decided by": task.headings[board.by][0]},
    )
    if json:
        files = {"model": str(output / MODEL), "report": str(report)}
        mattering = {column: drop for column, (drop, _) in drops.items()}
        print_json(
            board.to_dict() | files | {"columns": data.notes, "choice": learner.choice_, "importance": mattering}
        )
        return
    _show(board, list(drops.items())[:MATTERING])
    say()
    say(f"Learned {best} on all {task.rows}: {learner.choice_}")
    say(f"Model: {output / MODEL}   Report: {report}")
    _say_next(learner, data.kept, output / MODEL, output)


def _save_held_out(task: Any, fold: Any, folder: Path, data: Any) -> None:
    """Save the model of a fold with some of the rows that it has and has not seen, which ``askew explore`` shows."""
    from askew import io
    from askew.cli.comparison import shown_rows
    from askew.cli.inputs import COLUMNS, HELD_OUT, names_in
    from askew.explorer import can_show

    groups = task.groups()
    shutil.rmtree(folder / HELD_OUT, ignore_errors=True)  # of an earlier run
    if groups is not None and can_show(fold.learner.model_):
        rows, training = shown_rows(groups, fold)
        shown = {"points": task.points[rows].tolist(), "labels": groups[rows].tolist(), "training": training.tolist()}
        shown |= names_in(data.names, task.points[rows], "ids")
        io.save(fold.learner, folder / HELD_OUT, notes={COLUMNS: data.columns.to_json(), HELD_OUT: shown})


def _show(board: Any, drops: list[tuple[str, tuple[float, float]]]) -> None:
    """Print a leaderboard, its verdict, and which columns matter."""
    left_out = () if shutil.get_terminal_size((WIDTH, 0)).columns > WIDTH else ("purity", "rand")  # else lines wrap
    scores = [score for score in board.headings if score not in left_out]
    places = [2 + list(board.headings).index(score) for score in scores]
    lines = []
    for line in board.cells(clear=" *"):
        texts = [text for text, _ in line]
        failed = len(texts) == 3
        lines.append([texts[0], "failed"] if failed else [*texts[:2], *(texts[place] for place in places), texts[-1]])
    say()
    header = ("divergence", "encoder", *(board.headings[score][0] for score in scores), "over euclidean")
    table(header, lines, best=board.standings.index(board.best))
    say(f"Means and standard deviations over {board.folds} folds. * larger than its spread over folds.")
    for standing in board.standings:
        say(f"{standing.name} failed: {standing.problem}", not standing.problem)
    say()
    say(board.verdict())
    for note in board.notes:
        say(note)
    listed = ", ".join(f"{name} {drop:.3f}" for name, (drop, _) in drops if drop > 0)
    heading = next(iter(board.headings.values()))[0]
    say(f"Columns that matter most, by the drop in {heading} if permuted: {listed}", not listed)


@app.command("learn", epilog="Example: askew learn flowers.csv --label species -o model")
def _learn(
    file: options.TableFile = None,
    label: options.Label = None,
    pairs: options.PairTable = None,
    target: options.Target = None,
    bins: options.Bins = None,
    triplets: options.TripletTable = None,
    relevance: options.Relevance = None,
    queries: options.Queries = None,
    items: options.Items = None,
    dataset: options.Dataset = None,
    divergence: Annotated[
        str | None,
        typer.Option(metavar="auto|NAME", help="Divergence to learn.", show_default="nbd; auto of pairs and clicks"),
    ] = None,
    encoder: Annotated[
        str, typer.Option(metavar="auto|none|mlp|two-sided", help="Network in front of it, or one for each point.")
    ] = "auto",
    name: options.TupleId = None,
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
    """Learn a divergence from a table, pairs, triplets or clicks."""
    tables = {"--pairs": pairs, "--triplets": triplets, "--relevance": relevance}
    kind = options.kind_of({**tables, "--label": label, "--target": target}, dataset)
    divergence = divergence or ("nbd" if pairs is None and relevance is None else "auto")
    check_name(divergence, ("auto", *options.LEARNED, *options.CLOSED), "--divergence")
    check_name(encoder, ("auto", "none", "mlp", "two-sided"), "--encoder")
    options.check_inputs(file, dataset, tables | {"--queries": queries, "--items": items})
    options.check_bins(bins, kind)
    from askew import io
    from askew.cli import inputs
    from askew.cli.supervision import read_supervised
    from askew.cli.targets import learn_target
    from askew.estimators import DivergenceLearner, PairRegressor, TripletLearner

    settings: dict[str, Any] = {
        "divergence": divergence,
        "encoder": None if encoder == "none" else encoder,
        "steps": steps,
        "random_state": seed,
        "progress": False if json else None,
    }
    io.writable_folder(output, "the folder of -o")  # fails now, not after the training
    chosen = {"drop": drop, "keep": keep, "category": category, "number": number, "date": date, "na": na}
    if relevance is not None and queries is not None and items is not None:
        from askew.cli.relevance import learn_relevance, read_relevance

        clicked = read_relevance((relevance, queries, items), name, json, **chosen)
        inputs.tell_replaced([output / inputs.MODEL_FILE], json)
        learned = learn_relevance(clicked, output, settings)
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
        _say_next(learned.learner, clicked.kept, output)
        return
    column = label if kind == "--label" else target
    data = read_supervised(kind, file, dataset, no_header, column, pairs or triplets, name, json, **chosen)
    inputs.tell_replaced([output / inputs.MODEL_FILE], json)
    kept, choice = data.kept, ""
    scores: dict[str, float] = {}
    learner: DivergenceLearner | PairRegressor | TripletLearner
    if kind == "--pairs":
        learner = PairRegressor(**settings).fit(data.points, data.truth)
    elif kind == "--triplets":
        learner = TripletLearner(**settings).fit(data.points)
    elif kind == "--target":
        learner, numbers, scores, choice = learn_target(data.points, data.truth, bins=bins, **settings)
        kept[inputs.VALUES] = numbers.tolist()
    else:
        learner = DivergenceLearner(**settings).fit(data.points, data.truth)
    notes = {inputs.COLUMNS: data.columns.to_json(), **kept, **inputs.names_in(data.names, learner.points_)}
    io.save(learner, output, notes=notes)
    choice = choice or learner.choice_
    if json:
        found: dict[str, Any] = {"model": str(output), "divergence": divergence, "choice": choice}
        found |= {"r2": scores} if scores else {}
        print_json(found | {"features": data.columns.get_feature_names_out().tolist(), "columns": data.notes})
        return
    say(f"Learned {divergence}: {choice}", lines=True)
    say(f"Model: {output}")
    _say_next(learner, kept, output)


def _say_next(learner: Any, kept: dict[str, Any], folder: Path, shown: Path | None = None) -> None:
    """Print the commands that take a new model, which has these notes."""
    from askew.cli.inputs import of_two_tables
    from askew.explorer import can_show

    commands = [f"askew index {folder} ITEMS -o index"]
    if not of_two_tables(learner, kept):
        explore = [f"askew explore {shown or folder}"] if can_show(learner.model_) else []
        commands = [*explore, *commands, f"askew score {folder} TEST-TABLE"]
    say(f"Next: {'   or   '.join(commands)}")
