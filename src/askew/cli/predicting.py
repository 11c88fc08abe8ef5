"""Commands that apply a model to new rows: score, predict, transform.

The library is imported inside the commands, so that help and usage errors do not wait for torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from askew._messages import check_name, message
from askew.cli import options
from askew.cli.shell import app, print_json, say, table
from askew.cli.using import put_out, write_csv

# Neighbours that vote on a class; the mean of a number is over more.
VOTES = 5
# Rows that are scored at most: all of them are compared with all training rows.
MOST_ROWS = 2000

Neighbours = Annotated[
    int | None, typer.Option("-k", min=1, help="Nearest training rows.", show_default="5 for classes, 10 for numbers")
]
Rows = Annotated[Path, typer.Argument(metavar="TABLE", help="New rows, with the columns that were learned from.")]


@app.command("score", epilog="Example: askew score askew-out/model test.csv")
def _score(
    model: options.Model,
    file: Rows,
    label: Annotated[
        str | None, typer.Option(help="Column with the true classes or numbers.", show_default="as when it was learned")
    ] = None,
    k: Neighbours = None,
    no_header: options.NoHeader = False,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Measure a model on rows whose classes or numbers are known.

    Classes: mean average precision, and accuracy of the vote of the nearest training rows. Numbers: R squared of the
    mean of the nearest training rows. Baselines are printed with them.
    """
    options.check_file(file)
    import numpy as np

    from askew import metrics
    from askew.cli import inputs, targets
    from askew.estimators import DivergenceLearner

    learned, columns, notes, frame, points, _ = inputs.load_and_read(model, file, None, no_header)
    missing = [] if columns is None else columns.na
    numbers = _values_in(learned, notes, model)
    name = label or notes.get(inputs.LABELS if numbers is None else inputs.TARGET)
    name = inputs.label_column(frame, name)
    truth: Any
    if numbers is None:
        known, truth, remarks = inputs.classes_of(frame[name], missing, least=1)
    else:
        known, truth, remarks = inputs.targets_of(frame[name], missing)
    points = points[known]
    inputs.tell(remarks, json)
    if len(points) > MOST_ROWS:
        say(f"  Scored on {MOST_ROWS} of {len(points)} rows, drawn at random.", json)
        rows = np.random.default_rng(seed).choice(len(points), MOST_ROWS, replace=False)
        points, truth = points[rows], truth[rows]
    learned_from = {point.tobytes() for point in getattr(learned, "points_", ())}
    seen = sum(point.tobytes() in learned_from for point in points)
    if seen:
        say(f"  {seen} of {len(points)} rows were learned from: new rows will have lower scores.", json)
    scores: dict[str, dict[str, float]]
    if numbers is not None:
        k = k or targets.NEIGHBOURS
        learned_r2 = metrics.r2(truth, targets.predict(learned, numbers, points, k))
        plain = targets.euclidean_r2(learned.points_, numbers, points, truth, k)
        scores = {"model": {"R squared": learned_r2}, "euclidean": {"R squared": plain}}
    else:
        items, labels = (learned.points_, learned.labels_) if hasattr(learned, "labels_") else (points, truth)
        alone = items is points
        plainly = DivergenceLearner("euclidean", encoder=None).fit(items, labels)
        scores = {
            what: _ranked(each.pairwise(points, items), truth, labels, alone, k or VOTES)
            for what, each in (("model", learned), ("euclidean", plainly))
        }
        classes, counts = np.unique(labels, return_counts=True)
        scores["largest class"] = {"kNN accuracy": float(np.mean(truth == classes[counts.argmax()]))}
    if json:
        print_json({"rows": len(points), "learned_from": seen, "column": name, "scores": scores})
        return
    header = list(scores["model"])
    lines = [[what, *(f"{each[one]:.3f}" if one in each else "" for one in header)] for what, each in scores.items()]
    table(("", *header), lines, best=0)
    say(f"On {len(points)} rows." + (" R squared of always the mean is 0." if numbers is not None else ""))


def _ranked(matrix: Any, truth: Any, labels: Any, alone: bool, k: int) -> dict[str, float]:
    """Return the scores of rows against training rows, or of rows against each other."""
    import numpy as np

    from askew import metrics

    precision = metrics.mean_average_precision(matrix, truth, labels, exclude_self=alone)
    if alone:
        matrix = matrix + np.diag(np.full(len(matrix), np.inf))
    k = min(k, matrix.shape[1] - alone)
    return {"MAP": precision, "kNN accuracy": metrics.knn_accuracy(matrix, truth, labels, k)}


@app.command("predict", epilog="Example: askew predict askew-out/model new.csv -o predictions.csv")
def _predict(
    model: options.Model,
    file: Rows,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="CSV file for all predictions.")] = None,
    k: Neighbours = None,
    name: options.Id = None,
    no_header: options.NoHeader = False,
    json: options.Json = False,
) -> None:
    """Predict the class or the number of new rows.

    By the nearest training rows: the class that most of them have, with their share, or the mean of their numbers.
    """
    options.check_file(file)
    import numpy as np

    from askew.cli import inputs, targets

    learned, _, notes, _, points, names = inputs.load_and_read(model, file, name, no_header)
    numbers = _values_in(learned, notes, model)
    if numbers is None and not hasattr(learned, "labels_"):
        must = "a model that was learned from --label or --target"
        raise ValueError(message("MODEL", must, f"{str(model)!r} with a {type(learned).__name__}"))
    rows: list[tuple[Any, ...]]
    if numbers is not None:
        header: tuple[str, ...] = ("row", str(notes[inputs.TARGET]))
        values = targets.predict(learned, numbers, points, k or targets.NEIGHBOURS)
        rows = [(row, float(value)) for row, value in zip(names, values, strict=True)]
    else:
        header = ("row", str(notes.get(inputs.LABELS, "class")), "share")
        nearest = learned.kneighbors(points, min(k or VOTES, len(learned.labels_)), return_distance=False)
        votes = np.searchsorted(learned.classes_, learned.labels_)[nearest]
        shares = np.stack([(votes == number).mean(1) for number in range(len(learned.classes_))], axis=1)
        winners = learned.classes_[shares.argmax(1)]
        rows = [(row, str(one), float(part)) for row, one, part in zip(names, winners, shares.max(1), strict=True)]
    put_out("predictions", header, rows, output, json)


@app.command("transform", epilog="Example: askew transform askew-out/model new.csv -o vectors.csv")
def _transform(
    model: options.Model,
    file: Rows,
    output: Annotated[Path, typer.Option("-o", "--output", help="CSV or .npy file for the embeddings.")],
    side: options.Side = None,
    name: options.Id = None,
    no_header: options.NoHeader = False,
    json: options.Json = False,
) -> None:
    """Write the embeddings of rows.

    The learned divergence compares these vectors; other measures, such as the Euclidean distance, do not rank like it.
    """
    options.check_file(file)
    if side is not None:
        check_name(side, options.SIDES, "--side")
    import numpy as np

    from askew.cli import inputs
    from askew.io import atomic_write

    learned, _, notes, _, points, names = inputs.load_and_read(model, file, name, no_header, side)
    if not hasattr(learned, "transform"):
        got = f"{str(model)!r} with a {type(learned).__name__}"
        raise ValueError(message("MODEL", "a learner, which has an encoder or scales its features", got))
    two_sided = hasattr(learned, "second_encoder_") or inputs.QUERY_COLUMNS in notes
    if two_sided != (side is not None):
        must = "queries or items, which MODEL encodes differently" if two_sided else "left out: MODEL has one encoder"
        raise ValueError(message("--side", must, side or "none"))
    vectors = learned.transform(points) if side is None else learned.transform(points, options.SIDES[side])
    if output.suffix == ".npy":
        inputs.tell_replaced([output], json)
        with atomic_write(output) as temporary, temporary.open("wb") as stream:
            np.save(stream, vectors)
    else:
        header = ("row", *(f"e{number}" for number in range(vectors.shape[1])))
        write_csv(output, header, [(row, *vector) for row, vector in zip(names, vectors.tolist(), strict=True)], json)
    if json:
        print_json({"vectors": str(output), "rows": len(vectors), "features": vectors.shape[1]})
        return
    say(f"{len(vectors)} vectors of {vectors.shape[1]} features in {output}.")


def _values_in(learned: Any, notes: dict[str, Any], folder: Path) -> Any:
    """Return the numbers of the training points of a model that was learned from --target; None for others."""
    import numpy as np

    from askew.cli import inputs
    from askew.io import damaged

    if inputs.TARGET not in notes:
        return None
    try:
        values = np.array(notes.get(inputs.VALUES), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape != np.shape(getattr(learned, "points_", ()))[:1] or not np.isfinite(values).all():
        raise ValueError(damaged(repr(str(folder)), "it has not a number for each of its points"))
    return values
