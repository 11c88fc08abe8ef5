"""Options that several commands share, with the checks of them that need neither torch nor pandas."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

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
# What is compared by default: nothing learned, a linear map, two other learners, and ours.
USUAL = ("euclidean", "mahalanobis", "deep-div", "pbdl", "nbd")
# Files that are tables.
ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".npy", ".npz")

TableFile = Annotated[
    Path | None, typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet, .npz or .npy.", show_default=False)
]
Dataset = Annotated[str | None, typer.Option(help=f"Example table in place of TABLE: {', '.join(DATASETS)}.")]
Drop = Annotated[list[str] | None, typer.Option(help="Column to leave out; may be repeated.")]
Keep = Annotated[list[str] | None, typer.Option(help="Column to use even if it looks like names; may be repeated.")]
NoHeader = Annotated[bool, typer.Option("--no-header", help="The first line of TABLE has values, not column names.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder written by compare or learn.")]
Id = Annotated[str | None, typer.Option("--id", help="Column that names the rows.", show_default="numbers from 0")]


def divergence_names(asked: str) -> list[str]:
    """Return names of divergences from one text: ``all``, ``usual``, or names separated by commas."""
    if asked == "usual":
        return list(USUAL)
    if asked == "all":
        # Closed forms are for positive numbers or distributions, and have nothing to learn.
        return ["euclidean", *(name for name in LEARNED if name != "widenorm-legacy")]
    return [check_name(name.strip(), (*LEARNED, *CLOSED), "--divergence") for name in asked.split(",")]


def check_source(path: Path | None, dataset: str | None) -> None:
    """Raise unless either a file that may be a table or the name of an example table is given."""
    if (path is None) == (dataset is None):
        got = "both" if path is not None else "neither"
        raise ValueError(message("input", "either a TABLE or --dataset NAME", got))
    if path is not None:
        check_file(path)
    else:
        check_name(dataset, DATASETS, "--dataset")


def check_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that exists and has the ending of a table."""
    place, shown = Path(path), repr(str(path))
    if not place.is_file():
        hint = "It is a folder: name a file in it." if place.is_dir() else "Check the name."
        raise FileNotFoundError(message("TABLE", "a file that exists", shown, hint))
    if place.suffix.lower() not in ENDINGS:
        must = f"a file that ends in {', '.join(ENDINGS)}"
        raise ValueError(message("TABLE", must, shown, "Save the table as CSV."))
    return place
