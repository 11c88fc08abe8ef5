"""The scorecard: verdicts by intervals, and who competes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from askew_paper.experiment import MAE, PURITY, Cell, Claim, Experiment, Outcome, Score, grid
from askew_paper.published import Published
from askew_paper.rows import Row
from askew_paper.scorecard import anchors, scorecard

METHODS = ("nbd", "drift-root", "iqe", "mahalanobis", "mean")


def make(
    values: dict[str, list[float]], score: Score = MAE, missing: tuple[str, ...] = ()
) -> tuple[list[Row], Experiment]:
    """Return an experiment with one setting and rows with these scores, one for each seed."""
    methods = [method for method in METHODS if method in values or method in missing]

    def cells(scale: str, seeds: int) -> Iterator[Cell]:
        return grid("sums", scale, seeds, ["small"], methods, {})

    def never(cell: Cell) -> Outcome:
        raise AssertionError("a report computes nothing")

    experiment = Experiment("sums", "Sums: of numbers", (), (score,), {"quick": 3}, {"quick": 1.0}, cells, never)
    rows = [
        Row(cell, {score.name: values[cell.method][cell.seed]}, 1.0, "")
        for cell in cells("quick", 3)
        if cell.seed < len(values.get(cell.method, ()))
    ]
    return rows, experiment


@pytest.mark.parametrize(
    ("ours", "verdict", "by"),
    [
        ([1.0, 1.0, 1.03], "▲ ahead", "-50%"),
        ([1.9, 2.1, 2.0], "● tie", "+0%"),
        ([3.0, 3.01, 3.02], "▼ behind", "+50%"),
    ],
)
def test_a_difference_counts_if_the_intervals_do_not_overlap(ours: list[float], verdict: str, by: str) -> None:
    rows, experiment = make({"nbd": [9.0, 9.1, 9.2], "drift-root": ours, "iqe": [1.99, 2.0, 2.01], "mean": [0.1] * 3})
    short, long = scorecard(rows, [experiment])
    assert long["Verdict"].tolist() == [verdict]
    assert long["By"].tolist() == [by]
    assert long["Best other"].str.startswith("iqe").all()  # a trivial prediction does not compete
    assert short["NBD"].tolist() == ["▼ 1 behind"]
    assert short["Task"].tolist() == ["sums"]


def test_larger_scores_are_better_where_they_say_so() -> None:
    rows, experiment = make({"nbd": [0.9, 0.91, 0.92], "iqe": [0.5, 0.51, 0.52]}, PURITY)
    _, long = scorecard(rows, [experiment])
    assert long[["Verdict", "By"]].values.tolist() == [["▲ ahead", "+0.400"]]


def test_one_seed_is_in_doubt_and_few_seeds_do_not_compete() -> None:
    rows, experiment = make({"nbd": [1.0], "iqe": [2.0]})
    assert scorecard(rows, [experiment])[1]["Verdict"].tolist() == ["▲ ahead?"]
    rows, experiment = make({"nbd": [1.0, 1.1, 1.2], "iqe": [2.0, 2.1, 2.2]}, missing=("mahalanobis",))
    short, long = scorecard(rows, [experiment])
    assert (short["NBD"].tolist(), long["Verdict"].tolist()) == (["▲ 1 ahead?"], ["▲ ahead?"])
    rows, experiment = make({"nbd": [1.0, 1.1, 1.2], "iqe": [2.0, 2.1, 2.2], "mahalanobis": [0.1]})
    assert scorecard(rows, [experiment])[1]["Best other"].str.startswith("iqe").all()
    # A trivial prediction takes no time, and its seeds ask nothing of the others.
    rows, experiment = make({"nbd": [1.0], "iqe": [2.0], "mean": [9.0, 9.0, 9.0]})
    assert scorecard(rows, [experiment])[1]["Verdict"].tolist() == ["▲ ahead?"]


def test_the_best_of_ours_is_chosen_on_held_out_data() -> None:
    rows, experiment = make({"nbd": [1.0, 1.1, 1.2], "drift-root": [0.5, 0.6, 0.7], "iqe": [2.0, 2.1, 2.2]})
    held_out: dict[str, object] = {"nbd": {"one test": 0.4, "another": 0.2}, "drift-root": 0.4}

    def with_choice(row: Row) -> Row:
        error = held_out.get(row.cell.method)
        return row if error is None else dataclasses.replace(row, chosen={"validation": error})

    assert scorecard(rows, [experiment])[1]["Best of ours"].str.startswith("drift-root").all()
    assert scorecard(list(map(with_choice, rows)), [experiment])[1]["Best of ours"].str.startswith("nbd").all()
    del held_out["drift-root"]  # it cannot be chosen, however good it is on test data
    assert scorecard(list(map(with_choice, rows)), [experiment])[1]["Best of ours"].str.startswith("nbd").all()


def test_without_rows_there_is_nothing_to_say() -> None:
    short, long = scorecard([], [make({}, missing=("nbd",))[1]])
    assert short.empty
    assert long.empty


def test_each_setting_counts_at_its_largest_scale() -> None:
    rows, quick = make({"nbd": [1.0], "iqe": [2.0]})
    both = dataclasses.replace(quick, seeds={"quick": 3, "medium": 1}, minutes={"quick": 1.0, "medium": 9.0})
    longer = [dataclasses.replace(row, cell=dataclasses.replace(row.cell, scale="medium")) for row in rows]
    assert scorecard([*rows, longer[0]], [both])[0]["Scale"].tolist() == ["quick"]  # the others have no row there
    assert scorecard([*rows, *longer], [both])[0]["Scale"].tolist() == ["medium"]


def test_a_larger_scale_counts_once_all_methods_of_the_claims_have_rows() -> None:
    rows, quick = make({"nbd": [1.0], "iqe": [2.0], "mahalanobis": [3.0]})
    claim = Claim("NBD is best", MAE.name, ("nbd",), ("iqe", "mahalanobis"))
    times = {"seeds": {"quick": 3, "medium": 1}, "minutes": {"quick": 1.0, "medium": 9.0}}
    both = dataclasses.replace(quick, claims=(claim,), **times)
    longer = [
        dataclasses.replace(row, cell=dataclasses.replace(row.cell, scale="medium"), scores={"mae": 9.0 - number})
        for number, row in enumerate(rows)
    ]
    card = scorecard([*rows, *longer[:2]], [both])[0]
    assert card[["Scale", "The paper's claims"]].values.tolist() == [["quick", "1 of 1, 0 clearly"]]
    card = scorecard([*rows, *longer], [both])[0]
    assert card[["Scale", "The paper's claims"]].values.tolist() == [["medium", "0 of 1"]]
    assert scorecard(longer[:2], [both])[0]["Scale"].tolist() == ["medium"]  # there is nothing else


def test_claims_of_ours_and_of_added_settings_are_counted_apart() -> None:
    rows, sums = make({"nbd": [1.0, 1.1, 1.2], "iqe": [1.05, 1.2, 1.35]})
    claims = (
        Claim("NBD is best", MAE.name, ("nbd",), ("iqe",)),
        Claim("NBD is far ahead", MAE.name, ("nbd",), ("iqe",), factor=0.1, ours=True),
    )
    card = scorecard(rows, [dataclasses.replace(sums, claims=claims)])[0]
    assert card[["The paper's claims", "Our claims"]].values.tolist() == [["1 of 1, 0 clearly", "0 of 1"]]
    card = scorecard(rows, [dataclasses.replace(sums, claims=claims, added=("small",))])[0]
    assert card[["The paper's claims", "Our claims"]].values.tolist() == [["", "1 of 2, 0 clearly"]]


def test_published_figures_stand_next_to_ours() -> None:
    rows, sums = make({"nbd": [60.0], "iqe": [70.0]}, Score("f1", "F1", lower_is_better=False, digits=1))
    rows = [dataclasses.replace(row, cell=dataclasses.replace(row.cell, experiment="closure")) for row in rows]
    papers = tuple(
        Published("", "small", name, "f1", mean, None, name) for name, mean in (("box", 80.0), ("cone", 75.0))
    )
    cells = {row.cell.group: row.cell for row in rows}.values()
    closure = dataclasses.replace(sums, name="closure", published=papers, cells=lambda scale, seeds: cells)
    [line] = anchors(rows, [closure]).itertuples(index=False)
    assert tuple(line) == ("closure, small: F1", "80.0 box", "▼ behind?", "60.0", "nbd 60.0", "iqe 70.0")
    assert scorecard(rows, [closure])[1].empty
