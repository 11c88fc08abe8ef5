"""The command ``demo``: walking times in hilly country, from pairs with times to isochrones, search and a page.

The library is imported inside the command, so that help does not wait for torch.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askew.cli.shell import app, say, table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Compared next to the baselines: symmetric, convex, with a direction, and a quasimetric.
METHODS = ("mahalanobis-norm", "nbd", "drift", "drift-root", "iqe")
FOLDS = 2
# Side of the land in km; tops of the hills in km, their heights in m, and their width.
LAND, TOPS, HEIGHTS, WIDTH = 3.0, ((0.8, 0.9), (2.2, 1.6), (1.0, 2.5)), (260.0, 320.0, 200.0), 0.35
# The place of the isochrones, in shares of the land: on a slope. Their minutes; the middle one is printed.
HERE, MINUTES = (0.65, 0.39), (5.0, 10.0, 15.0)
# Minutes for a km, and for a m of climbing (Naismith's rule).
PER_KM, PER_METRE = 12.0, 0.1
# Places of the maps along each side.
FINE = 73


def heights(places: Floats) -> Floats:
    """Return the height in m of places in km, ``(n, 2)``."""
    import numpy as np

    distances = ((places[:, None] - np.array(TOPS)) ** 2).sum(-1)
    return np.asarray(np.exp(-distances / WIDTH) @ np.array(HEIGHTS))


def grid(side: int) -> Floats:
    """Return places in km, ``(side * side, 2)``, east and north."""
    import numpy as np

    return np.stack(np.meshgrid(*[np.linspace(0, LAND, side)] * 2, indexing="ij"), -1).reshape(-1, 2)


def walking_times(side: int) -> Floats:
    """Return the minutes of the fastest walk from each place of a grid to each other one.

    Examples
    --------
    >>> times = walking_times(5)
    >>> times.shape, bool((times != times.T).any())
    ((25, 25), True)
    """
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    places, number = grid(side), np.arange(side**2).reshape(side, side)
    # Paths to the four neighbours and across the squares.
    ways = [(number[:-1], number[1:]), (number[:, :-1], number[:, 1:])]
    ways += [(number[:-1, :-1], number[1:, 1:]), (number[:-1, 1:], number[1:, :-1])]
    one, other = (np.concatenate([way[end].ravel() for way in ways]) for end in (0, 1))
    start, end = np.concatenate([one, other]), np.concatenate([other, one])
    climb = np.maximum(heights(places[end]) - heights(places[start]), 0)
    minutes = PER_KM * np.linalg.norm(places[end] - places[start], axis=1) + PER_METRE * climb
    times: Floats = dijkstra(coo_array((minutes, (start, end)), shape=(side**2,) * 2).tocsr())
    return times


def write_tables(folder: Path, side: int, walks: int, seed: int = 0) -> Floats:
    """Write places and walks between some of them, there and back, as two CSV files; return the minutes of all."""
    import numpy as np
    import pandas

    from askew.io import atomic_write

    places, times = grid(side), walking_times(side)
    names = [f"{string.ascii_uppercase[i // side]}{i % side + 1}" for i in range(side**2)]
    pairs = np.array(np.triu_indices(side**2, 1)).T
    pairs = pairs[np.random.default_rng(seed).permutation(len(pairs))[:walks]]
    start, end = np.concatenate([pairs, pairs[:, ::-1]]).T
    tables = {
        "places": {"place": names, "east": places[:, 0].round(4), "north": places[:, 1].round(4)},
        "walks": {"start": np.take(names, start), "end": np.take(names, end), "minutes": times[start, end].round(2)},
    }
    for name, columns in tables.items():
        with atomic_write(folder / f"{name}.csv") as temporary:
            pandas.DataFrame(columns).to_csv(temporary, index=False, lineterminator="\n")
    return times


@app.command("demo")
def _demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for all that is written.")] = Path("askew-out"),
    side: Annotated[int, typer.Option(min=4, max=26, help="Places along each side of the land.")] = 22,
    walks: Annotated[int, typer.Option(min=50, help="Walks whose time is known, each there and back.")] = 2000,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 300,
    jobs: Annotated[int | None, typer.Option(help="Parallel trainings.", show_default="one per core")] = None,
) -> None:
    """Show what askew is for, in a minute, on made-up data.

    Learns walking times in hilly country, where uphill is slower: compares divergences, saves the best, draws both
    isochrones around a place, searches in both directions, and writes pages to look at.
    """
    import numpy as np

    from askew import io
    from askew.cli import inputs
    from askew.cli.comparison import compare_task, settings_of
    from askew.cli.report import isochrones, write_comparison
    from askew.cli.supervision import read_supervised
    from askew.cli.tasks import Pairs
    from askew.divergences import make
    from askew.explorer import can_show, write_explorer
    from askew.search import ExactIndex

    io.writable_folder(output, "the folder of -o")
    times = write_tables(output, side, walks)
    files = output / "places.csv", output / "walks.csv"
    choices: dict[str, Any] = dict.fromkeys(("drop", "keep", "category", "number", "date", "na"))
    data = read_supervised("--pairs", files[0], None, False, "minutes", files[1], "place", True, **choices)
    places = grid(side)
    names = inputs.names_of(inputs.read_table(files[0]), "place")
    back = np.abs(times - times.T).sum() / times.sum()
    say("Walking times in hilly country: uphill is slower. A model sees where two places")
    say(f"are (east, north) and the minutes of {len(data.truth)} walks between {len(places)} places. There and")
    say(f"back differ by {100 * back:.0f} % of the mean time. Comparing models, about a minute ...")

    task = Pairs(data.points, data.truth)
    settings: dict[str, Any] = {"folds": FOLDS, "steps": steps, "random_state": 0}
    board = compare_task(task, METHODS, jobs=jobs, **settings)
    lines = []
    for one in board.standings:
        made = None if one.name in board.trivial else make(one.name.partition("+")[0], 2)
        kind = "-" if made is None else "symmetric" if made.symmetric else "asymmetric"
        scores = "failed" if one.problem else f"{100 * one.mean('direction'):.0f} %"
        lines.append((one.name, kind, f"{one.mean('r2'):.3f}", scores))
    say()
    header = ("model", "", "R squared", "knows which way is faster")
    table(header, lines, best=board.standings.index(board.best))
    say(f"On held-out walks, {FOLDS} folds. A symmetric distance can only toss a coin: 50 %.")

    best = board.best.name
    learner = task.fit(np.arange(len(task.points)), **settings_of(best, steps, 0), progress=False)
    notes = {inputs.COLUMNS: data.columns.to_json()}
    io.save(learner, output / "model", notes=notes)
    nearest = int(np.linalg.norm(places - LAND * np.array(HERE), axis=1).argmin())
    here, fine = places[[nearest]], grid(FINE)
    minutes = MINUTES[len(MINUTES) // 2]
    charts = []
    say()
    for kind, direction, title, true in (
        ("from", "query-first", f"From {names[nearest]}: where can I get in {minutes:.0f} minutes?", times[nearest]),
        ("to", "query-second", f"To {names[nearest]}: who can reach me in {minutes:.0f} minutes?", times[:, nearest]),
    ):
        index = ExactIndex(learner, direction)
        index.add(places)
        index.save(output / f"index-{kind}", notes=notes | {"names": names})
        values, rows = index.search(here, len(places))
        count = int((values <= minutes).sum())
        farthest = zip(rows[0, :count][-2:], values[0, :count][-2:], strict=True)
        listed = ", ".join(f"{names[row]} {value:.1f} (true: {true[row]:.1f})" for row, value in farthest)
        say(f"{title} {count} places (true: {(true <= minutes).sum()}).")
        say(f"  The farthest of them: {listed}")
        learned = learner.pairwise(here, fine)[0] if kind == "from" else learner.pairwise(fine, here)[:, 0]
        charts.append(isochrones.Map(kind, title, learned.reshape(FINE, FINE), true.reshape(side, side)))
    single, joined = isochrones.draw(charts, heights(fine).reshape(FINE, FINE), here[0] / LAND, MINUTES)
    io.write_text(output / "isochrones.svg", joined)
    report = write_comparison(
        output / "report.html",
        board,
        learner,
        task,
        None,
        title="Walking times in hilly country",
        feature_names=data.columns.get_feature_names_out().tolist(),
        notes=[f"{files[0]}: {data.size}.", *data.notes],
        settings=settings,
        sections={"Both isochrones around one place": isochrones.section(charts, single, MINUTES)},
    )
    say()
    say(f"Best: {best}, saved in {output / 'model'}.")
    say(f"Open {report} (both isochrones)")
    if can_show(learner.model_):  # not if a quasimetric is best
        features, title = data.columns.get_feature_names_out().tolist(), "Walking times: drag the point"
        page = write_explorer(learner, output / "explorer.html", places, feature_names=features, title=title, ids=names)
        say(f" and {page} (drag a place; both areas follow).")
    say()
    say("Next:")
    say(f"  askew search {output / 'index-to'} {files[0]} --id place -k 3")
    say(f"  askew learn {files[0]} --id place \\")
    say(f"    --pairs {files[1]} --target minutes -o {output / 'own'}")
    say("  askew compare --dataset wine -o wine")
