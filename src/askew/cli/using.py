"""Commands that use a model: index, search, cluster, explore.

The library is imported inside the commands, so that help and usage errors do not wait for torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from askew._messages import check_name, message
from askew.cli import options
from askew.cli.shell import app, print_json, say, table

# The key of the names of the items in the notes of an index.
NAMES = "names"
DIRECTIONS = ("query-first", "query-second")
KINDS = ("auto", "exact", "flat", "ivf", "hnsw", "ivf-pq")
# Hits that are printed for people; files and --json have all.
SHOWN = 20


@app.command("index", epilog="Example: askew index askew-out/model items.csv --id sku -o index")
def _index(
    model: options.Model,
    file: Annotated[Path, typer.Argument(metavar="ITEMS", help="Table of items to search among.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the index.")] = Path("index"),
    direction: Annotated[
        str, typer.Option(metavar="|".join(DIRECTIONS), help="Search by D(query, item) or by D(item, query).")
    ] = "query-first",
    kind: Annotated[
        str, typer.Option(metavar="|".join(KINDS), help="Exact, or an index of FAISS, which auto chooses.")
    ] = "auto",
    name: options.Id = None,
    no_header: options.NoHeader = False,
    json: options.Json = False,
) -> None:
    """Index items, to search them by a divergence."""
    check_name(direction, DIRECTIONS, "--direction")
    check_name(kind, KINDS, "--kind")
    options.check_file(file)
    from askew.cli import inputs
    from askew.io import writable_folder
    from askew.search import ExactIndex, FaissIndex

    learned, columns, saved, _, items, names = inputs.load_and_read(model, file, name, no_header, "items")
    writable_folder(output, "the folder of -o")
    inputs.tell_replaced([output / "index.json"], json)
    index: ExactIndex | FaissIndex
    if kind == "exact":
        index = ExactIndex(learned, direction)
    else:
        index = FaissIndex(learned, direction, kind=None if kind == "auto" else kind)
    index.add(items)
    notes = {} if columns is None else {inputs.COLUMNS: columns.to_json()}
    if hasattr(learned, "n_item_features_in_"):  # queries may have other columns
        notes |= {key: saved[key] for key in (inputs.QUERY_COLUMNS,) if key in saved}
    index.save(output, notes=notes | {NAMES: names})
    used = "exact" if isinstance(index, ExactIndex) else index.kind
    if json:
        print_json({"index": str(output), "items": len(items), "kind": used, "direction": direction})
        return
    say(f"{len(items)} items in {output} ({used}, {direction}).")
    say(f"Next: askew search {output} QUERIES -k 10")


@app.command("search", epilog="Example: askew search index queries.csv -k 5 -o hits.csv")
def _search(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder written by askew index.")],
    file: Annotated[Path, typer.Argument(metavar="QUERIES", help="Table of queries.")],
    k: Annotated[int, typer.Option("-k", help="Hits for each query.")] = 10,
    name: options.Id = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="CSV file for all hits.")] = None,
    no_header: options.NoHeader = False,
    json: options.Json = False,
) -> None:
    """Find the items nearest to each query."""
    options.check_file(file)
    from askew.cli import inputs
    from askew.search import load_index

    opened = load_index(index)
    columns = inputs.columns_in(opened.notes, index, "queries")
    frame = inputs.read_table(file, None, no_header)
    queries = inputs.points_for(columns, frame, None)
    asked = inputs.names_of(inputs.with_names(frame, file, [name], no_header), name)
    items = _names_in(opened.notes, index, len(opened))
    if k > len(opened):
        raise ValueError(message("-k", f"at most {len(opened)}, the number of items", k))
    values, places = opened.search(queries, k)
    hits = [
        (query, rank, items[place], float(value))
        for query, row, divergences in zip(asked, places, values, strict=True)
        for rank, (place, value) in enumerate(zip(row, divergences, strict=True), start=1)
        if place >= 0
    ]
    put_out("hits", ("query", "rank", "item", "divergence"), hits, output, json, {"direction": opened.direction})


@app.command("cluster", epilog="Example: askew cluster askew-out/model customers.csv -k 5 -o clusters.csv")
def _cluster(
    model: options.Model,
    file: Annotated[Path, typer.Argument(metavar="TABLE", help="Rows to cluster.")],
    k: Annotated[int, typer.Option("-k", help="Number of clusters.")],
    name: options.Id = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="CSV file for the clusters.")] = None,
    no_header: options.NoHeader = False,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Cluster rows by k-means under a divergence."""
    options.check_file(file)
    from askew.cli import inputs
    from askew.clustering import BregmanKMeans

    learned, _, _, _, points, names = inputs.load_and_read(model, file, name, no_header)
    kmeans = BregmanKMeans(k, divergence=learned, n_init=5, random_state=seed).fit(points)
    clusters = [(row, int(label)) for row, label in zip(names, kmeans.labels_, strict=True)]
    if output is not None:
        write_csv(output, ("row", "cluster"), clusters, json)
    members = [[row for row, label in clusters if label == number] for number in range(k)]
    if json:
        rows = [{"row": row, "cluster": label} for row, label in clusters]
        print_json({"sizes": [len(each) for each in members], "inertia": float(kmeans.inertia_), "rows": rows})
        return
    examples = [", ".join(each[:5]) + (", ..." if len(each) > 5 else "") for each in members]
    lines = [(str(number), str(len(each)), examples[number]) for number, each in enumerate(members)]
    table(("cluster", "rows", "such as"), lines)
    say(f"All rows: {output}." if output is not None else "-o FILE.csv writes the cluster of every row.")


@app.command("explore", epilog="Example: askew explore askew-out/model --data flowers.csv --label species")
def _explore(
    model: options.Model,
    data: Annotated[
        Path | None,
        typer.Option(help="Table of points to show.", show_default="held-out rows of compare, or training rows"),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column of --data with classes, for colours.")] = None,
    name: Annotated[str | None, typer.Option("--id", help="Column of --data that names the points.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML page to write.")] = Path("explorer.html"),
    no_header: options.NoHeader = False,
    json: options.Json = False,
) -> None:
    """Write a page that shows a divergence.

    On the page you drag a point and see its neighbours, in both directions.
    """
    if data is not None:
        options.check_file(data, "--data")
    elif label is not None or name is not None:
        raise ValueError(message("--label" if label else "--id", "given with --data", "without"))
    from askew.cli import inputs
    from askew.explorer import write_explorer

    if data is None:
        learned, columns, points, labels, training, ids = inputs.load_shown(model)
    else:
        learned, columns, notes = inputs.load_all(model)
        labels = training = None
        frame = inputs.read_table(data, None, no_header)
        named = inputs.with_names(frame, data, [name, notes.get(inputs.ID)], no_header)
        if label is not None:
            known, classes, _ = inputs.classes_of(frame[inputs.label_column(frame, label)], least=1)
            frame, named, labels = frame[known], named[known], classes.tolist()
        points = inputs.points_for(columns, frame, inputs.dim_of(learned))
        if name is None:
            name = next(
                (each for each in named if each == notes.get(inputs.ID) and inputs.names_all(named[each])), None
            )
        ids = None if name is None else inputs.names_of(named, name)
    features = None if columns is None else columns.get_feature_names_out().tolist()
    title = f"{model.name}: the learned divergence" + ", with held-out rows" * (training is not None)
    inputs.tell_replaced([output], json)
    about: dict[str, Any] = {"feature_names": features, "title": title, "ids": ids, "training": training}
    path = write_explorer(learned, output, points, labels, **about)
    if json:
        print_json({"explorer": str(path)})
        return
    say(f"Open {path} in a browser.")


# ---------------------------------------------------------------------- files


def _names_in(notes: Mapping[str, Any], folder: Path, count: int) -> list[str]:
    """Return the names of the items of an index, or their numbers if it was made without names."""
    from askew.io import damaged

    names = notes.get(NAMES, [str(number) for number in range(count)])
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise ValueError(damaged(repr(str(folder)), "it has not a name for each item"))
    return names


def put_out(
    what: str,
    header: Sequence[str],
    rows: Sequence[Sequence[Any]],
    output: Path | None,
    json: bool,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write rows to a file, and print them: the first ones for people, all for programs."""
    if output is not None:
        write_csv(output, header, rows, json)
    if json:
        print_json(dict(about or {}) | {what: [dict(zip(header, row, strict=True)) for row in rows]})
        return
    table(header, [[f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows[:SHOWN]])
    if len(rows) > SHOWN:
        say(f"... and {len(rows) - SHOWN} more" + ("; all are in the file." if output else "; -o writes all."))
    if output is not None:
        say(f"{len(rows)} {what} in {output}.")


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]], quiet: bool) -> None:
    """Write a table to a file, which is replaced as a whole."""
    import pandas

    from askew.cli.inputs import tell_replaced
    from askew.io import write_text

    tell_replaced([path], quiet)
    write_text(path, pandas.DataFrame(rows, columns=list(header)).to_csv(index=False, lineterminator="\n"))
