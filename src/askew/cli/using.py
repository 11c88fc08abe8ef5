"""Commands that put a model to work: index, search, cluster, explore."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from askew import checks
from askew import io as askew_io
from askew.cli.inputs import (
    COLUMNS,
    Json,
    NoHeader,
    Seed,
    columns_in,
    labelled,
    load_model,
    names_of,
    points_for,
    read_table,
)
from askew.cli.shell import app, print_json, say, table
from askew.clustering import BregmanKMeans
from askew.divergences import Divergence
from askew.explorer import write_explorer
from askew.search import ExactIndex, FaissIndex, load_index

__all__: list[str] = []

# What the notes of an index call the names of its items.
NAMES = "names"
KINDS = ("auto", "exact", "flat", "ivf", "hnsw", "ivf-pq")
# Hits that are printed for people; files and --json have all.
SHOWN = 20

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that compare or learn wrote.")]
Id = Annotated[str | None, typer.Option("--id", help="Column that names the rows.", show_default="numbers from 0")]


@app.command("index", epilog="Example: askew index askew-out/model items.csv --id sku -o index")
def _index(
    model: Model,
    file: Annotated[Path, typer.Argument(metavar="ITEMS", help="Table of items to search among.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the index.")] = Path("index"),
    direction: Annotated[
        str, typer.Option(metavar="query-first|query-second", help="By D(query, item) or D(item, query).")
    ] = "query-first",
    kind: Annotated[
        str, typer.Option(metavar="auto|exact|flat|ivf|hnsw|ivf-pq", help="Exact, or FAISS, which auto takes.")
    ] = "auto",
    name: Id = None,
    no_header: NoHeader = False,
    json: Json = False,
) -> None:
    """Make an index of items, to search by a learned divergence in either direction."""
    checks.check_name(kind, KINDS, "--kind")
    learned, columns = load_model(model)
    frame = read_table(file, None, no_header)
    items = points_for(columns, frame, _dim(learned))
    names = names_of(frame, name)
    askew_io.writable_folder(output, "-o")
    made: ExactIndex | FaissIndex
    if kind == "exact":
        made = ExactIndex(learned, direction)
    else:
        made = FaissIndex(learned, direction, kind=None if kind == "auto" else kind)
    made.add(items)
    taken = {} if columns is None else {COLUMNS: columns.to_json()}
    made.save(output, notes=taken | {NAMES: names})
    used = "exact" if isinstance(made, ExactIndex) else made.kind
    if json:
        print_json({"index": str(output), "items": len(items), "kind": used, "direction": direction})
        return
    say(f"{len(items)} items in {output} ({used}, {direction}).")
    say(f"Next: askew search {output} QUERIES -k 10")


@app.command("search", epilog="Example: askew search index queries.csv -k 5 -o hits.csv")
def _search(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder that askew index wrote.")],
    file: Annotated[Path, typer.Argument(metavar="QUERIES", help="Table of queries.")],
    k: Annotated[int, typer.Option("-k", help="Hits for each query.")] = 10,
    name: Id = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="CSV file for all hits.")] = None,
    no_header: NoHeader = False,
    json: Json = False,
) -> None:
    """Find the items nearest to each query."""
    opened = load_index(index)
    columns = columns_in(opened.notes, index)
    frame = read_table(file, None, no_header)
    queries = points_for(columns, frame, None)
    asked = names_of(frame, name)
    items = _names_in(opened.notes, index, len(opened))
    values, places = opened.search(queries, k)
    hits = [
        (query, rank + 1, items[place], float(value))
        for query, row, some in zip(asked, places, values, strict=True)
        for rank, (place, value) in enumerate(zip(row, some, strict=True))
        if place >= 0
    ]
    header = ("query", "rank", "item", "divergence")
    if output is not None:
        _write_csv(output, header, hits)
    if json:
        print_json({"direction": opened.direction, "hits": [dict(zip(header, hit, strict=True)) for hit in hits]})
        return
    shown = hits if output is None and len(hits) <= SHOWN else hits[:SHOWN]
    table(header, [(query, str(rank), item, f"{value:.6g}") for query, rank, item, value in shown])
    if len(shown) < len(hits):
        say(f"... and {len(hits) - len(shown)} more" + ("; all are in the file." if output else "; -o writes all."))
    if output is not None:
        say(f"{len(hits)} hits in {output}.")


@app.command("cluster", epilog="Example: askew cluster askew-out/model customers.csv -k 5 -o clusters.csv")
def _cluster(
    model: Model,
    file: Annotated[Path, typer.Argument(metavar="TABLE", help="Rows to cluster.")],
    k: Annotated[int, typer.Option("-k", help="Number of clusters.")],
    name: Id = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="CSV file for the clusters.")] = None,
    no_header: NoHeader = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Cluster rows by k-means under a learned divergence."""
    learned, columns = load_model(model)
    frame = read_table(file, None, no_header)
    points = points_for(columns, frame, _dim(learned))
    names = names_of(frame, name)
    found = BregmanKMeans(k, divergence=learned, n_init=5, random_state=seed).fit(points)
    lines = [(row, int(label)) for row, label in zip(names, found.labels_, strict=True)]
    if output is not None:
        _write_csv(output, ("row", "cluster"), lines)
    sizes = np.bincount(found.labels_, minlength=k)
    if json:
        clusters = [{"row": row, "cluster": label} for row, label in lines]
        print_json({"sizes": sizes.tolist(), "inertia": float(found.inertia_), "rows": clusters})
        return
    shown = []
    for number, size in enumerate(sizes):
        some = [row for row, label in lines if label == number][:5]
        shown.append((str(number), str(size), ", ".join(some) + (", ..." if size > 5 else "")))
    table(("cluster", "rows", "such as"), shown)
    say(f"All rows: {output}." if output is not None else "-o FILE.csv writes the cluster of every row.")


@app.command("explore", epilog="Example: askew explore askew-out/model --data flowers.csv --label species")
def _explore(
    model: Model,
    data: Annotated[
        Path | None, typer.Option(help="Table of points to show.", show_default="the training rows")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column of --data with classes, for colours.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("explorer.html"),
    no_header: NoHeader = False,
    json: Json = False,
) -> None:
    """Write a page on which you drag a point and see what is near to it, in both directions."""
    learned, columns = load_model(model)
    points, labels = None, None
    if data is not None:
        frame = read_table(data, None, no_header)
        if label is not None:
            frame, label, _ = labelled(frame, label, None)
            labels = [str(value) for value in frame[label]]
        points = points_for(columns, frame, _dim(learned))
    elif label is not None:
        raise ValueError(checks.message("--label", "given with --data", "without"))
    features = None if columns is None else columns.features
    title = f"{model.name}: the learned divergence"
    path = write_explorer(learned, output, points, labels, feature_names=features, title=title)
    if json:
        print_json({"explorer": str(path)})
        return
    say(f"Open {path} in a browser.")


# ---------------------------------------------------------------------- files


def _dim(model: Any) -> int | None:
    """Return the number of features a model takes, where it is known."""
    found = model.dim if isinstance(model, Divergence) else model.n_features_in_
    return None if found is None else int(found)


def _names_in(notes: Mapping[str, Any], folder: Path, count: int) -> list[str]:
    """Return the names of the items of an index; their numbers where it was made without."""
    names = notes.get(NAMES, [str(number) for number in range(count)])
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise ValueError(askew_io.damaged(repr(str(folder)), "it has not a name for each item"))
    return names


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table aside and rename it, so that it is whole or absent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    try:
        with askew_io.atomic_write(path) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8", newline="")
    except OSError as error:
        got = f"{str(path)!r} ({error.strerror or error})"
        raise type(error)(checks.message("-o", "a file that can be written", got)) from error
