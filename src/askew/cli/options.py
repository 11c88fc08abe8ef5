"""Options that several commands share, with the checks of them that need neither torch nor pandas."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from askew._messages import check_name, message

# Example tables, and the functions of scikit-learn that load them.
DATASETS = {"iris": "load_iris", "wine": "load_wine", "breast-cancer": "load_breast_cancer", "digits": "load_digits"}
# Divergences by name: those that are learned and those in closed form, as in the catalogue (a test compares them). They
# are listed here to answer a typo before torch is imported.
LEARNED = (
    *("nbd", "nbd-paper", "deep-div", "deep-div-affine", "pbdl", "deepnorm", "widenorm", "widenorm-legacy"),
    *("mahalanobis", "mahalanobis-norm", "bregman-sqrt", "bregman-gs", "iqe", "mrn"),
    *("drift", "drift-root", "drift-mahalanobis"),
)
CLOSED = (
    *("euclidean", "euclidean-norm", "kl", "kl-simplex", "itakura-saito", "logistic", "log-sum-exp"),
    *("exponential", "hyperbolic", "power"),
)
# What is compared by default: nothing learned, a linear map, another learner, and ours. The convex program of "pbdl"
# takes more time than all others together.
USUAL = ("euclidean", "mahalanobis", "deep-div", "nbd")
# The same for numbers, pairs and triplets, which may have a direction; a convex program of all pairs would take hours.
USUAL_OTHERWISE = ("euclidean", "mahalanobis", "drift", "nbd")
# What is learned from.
KINDS = ("--label", "--target", "--pairs", "--triplets", "--relevance")
# Files that are tables.
ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".xlsx", ".parquet", ".npy", ".npz")

TableFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="TABLE",
        help="CSV, TSV, Excel, Parquet, .npz or .npy; - for CSV from standard input.",
        show_default=False,
    ),
]
Label = Annotated[str | None, typer.Option(help="Column with the classes.")]
PairTable = Annotated[Path | None, typer.Option("--pairs", help="Table of pairs of rows of TABLE and their values.")]
Target = Annotated[
    str | None, typer.Option(help="Column of numbers to learn from; with --pairs, its values of D(first, second).")
]
Bins = Annotated[
    int | None, typer.Option(help="Split --target into this many classes instead of learning from differences.")
]
TripletTable = Annotated[
    Path | None, typer.Option("--triplets", help="Table of rows of TABLE: anchor, nearer, farther.")
]
Relevance = Annotated[
    Path | None, typer.Option(help="Table of clicks: query, item[, grade], with --queries and --items.")
]
Queries = Annotated[Path | None, typer.Option(help="Table of queries, in place of TABLE.")]
Items = Annotated[Path | None, typer.Option(help="Table of items, in place of TABLE.")]
TupleId = Annotated[str | None, typer.Option("--id", help="Column of TABLE by which --pairs and --triplets name rows.")]
Dataset = Annotated[str | None, typer.Option(help=f"Example table in place of TABLE: {', '.join(DATASETS)}.")]
Drop = Annotated[list[str] | None, typer.Option(help="Column to leave out; may be repeated.")]
Keep = Annotated[list[str] | None, typer.Option(help="Column to use even if it looks like names; may be repeated.")]
Category = Annotated[list[str] | None, typer.Option(help="Column whose values are categories; may be repeated.")]
Number = Annotated[list[str] | None, typer.Option(help="Column whose values are numbers; may be repeated.")]
Date = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN[=FORMAT]", help="Column of dates, such as signup=%d.%m.%Y; may be repeated."),
]
Na = Annotated[list[str] | None, typer.Option(help="Value that means missing, such as -999; may be repeated.")]
NoHeader = Annotated[bool, typer.Option("--no-header", help="The first line of TABLE has values, not column names.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder written by compare or learn.")]
# Sides of a model: the first and the second points of D(x, y).
SIDES: dict[str, Literal["first", "second"]] = {"queries": "first", "items": "second"}
Side = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(SIDES), help="Which rows these are, if the model encodes queries and items differently."
    ),
]
Id = Annotated[str | None, typer.Option("--id", help="Column that names the rows.", show_default="numbers from 0")]


def divergence_names(asked: str, kind: str = "--label") -> list[str]:
    """Return names of divergences from one text: ``all``, ``usual``, or names separated by commas."""
    if asked == "usual":
        return list(USUAL if kind == "--label" else USUAL_OTHERWISE)
    if asked == "all":
        # Closed forms are for positive numbers or distributions, and have nothing to learn.
        left_out = ("widenorm-legacy",) if kind == "--label" else ("widenorm-legacy", "pbdl")
        return ["euclidean", *(name for name in LEARNED if name not in left_out)]
    return [check_name(name.strip(), (*LEARNED, *CLOSED), "--divergence") for name in asked.split(",")]


def kind_of(given: Mapping[str, object], dataset: str | None) -> str:
    """Return the option, of those that are given, that says what to learn from; example tables have classes."""
    found = [option for option, value in given.items() if value is not None]
    if "--pairs" in found and "--target" in found:
        found.remove("--target")
    if dataset is not None and not found:
        found = ["--label"]
    if len(found) != 1:
        *most, last = [option for option in KINDS if option in given]
        must = f"one of {', '.join(most)} and {last}"
        raise ValueError(message("what to learn from", must, " and ".join(found) or "none"))
    return found[0]


def check_bins(bins: int | None, kind: str) -> None:
    """Raise for a number of classes that cannot be made of a target."""
    if bins is not None and (kind != "--target" or bins < 2):
        raise ValueError(message("--bins", "at least 2, and given with --target", bins))


def check_source(path: Path | None, dataset: str | None) -> None:
    """Raise unless either a file that may be a table or the name of an example table is given."""
    if (path is None) == (dataset is None):
        got = "both" if path is not None else "neither"
        raise ValueError(message("input", "either a TABLE or --dataset NAME", got))
    if path is not None:
        check_file(path)
    else:
        check_name(dataset, DATASETS, "--dataset")


def check_inputs(file: Path | None, dataset: str | None, tables: Mapping[str, Path | None]) -> None:
    """Raise unless the files that a command reads exist, and those of ``--relevance`` stand alone and together."""
    if tables["--relevance"] is None:
        check_source(file, dataset)
    elif file is not None or dataset is not None or tables["--queries"] is None or tables["--items"] is None:
        got = "TABLE" if file is not None or dataset is not None else "only one of them or none"
        raise ValueError(message("input with --relevance", "--queries FILE and --items FILE", got))
    for option, path in tables.items():
        if path is not None:
            check_file(path, option)


def table_ending(path: Path) -> str:
    """Return the ending that tells the format of a file, both parts of ``.csv.gz``.

    Examples
    --------
    >>> table_ending(Path("2021.sales.CSV.gz")), table_ending(Path("sales.v2.csv"))
    ('.csv.gz', '.csv')
    """
    ending = path.suffix.lower()
    return Path(path.stem).suffix.lower() + ending if ending == ".gz" else ending


def check_file(path: str | os.PathLike[str], what: str = "TABLE") -> Path:
    """Return the path of a file that exists and has the ending of a table; ``-`` is standard input."""
    place, shown = Path(path), repr(str(path))
    if str(path) == "-":
        return place
    if not place.is_file():
        hint = "It is a folder: name a file in it." if place.is_dir() else "Check the name."
        raise FileNotFoundError(message(what, "a file that exists", shown, hint))
    if table_ending(place) not in ENDINGS:
        must = f"a file that ends in {', '.join(ENDINGS)}"
        raise ValueError(message(what, must, shown, "Save the table as CSV."))
    return place
