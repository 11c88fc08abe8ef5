"""The page of a comparison: whole, self-contained, and safe whatever the data are called."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from askew.cli.comparison import SCORES, Fold, Leaderboard, Standing
from askew.cli.report import write_comparison
from askew.cli.report.page import document, flat_map
from askew.cli.tasks import Classes, Numbers, Triplets

EVIL = '<script>alert("x")</script>&"'


class Reader(HTMLParser):
    """Collects the tags of a page, and whether they close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def fold_of(X: np.ndarray, labels: np.ndarray, name: str = "euclidean") -> tuple[Classes, Fold]:
    """Every other row is held out."""
    task, rows = Classes(X, labels), np.arange(len(X))
    learner = task.fit(rows[::2], divergence=name, encoder=None, steps=20, random_state=0)
    return task, Fold(learner, rows[::2], rows[1::2])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    X, y = load_iris(return_X_y=True)
    labels = np.where(y == 0, EVIL, np.where(y == 1, "b", "c"))
    task, fold = fold_of(X, labels, "mahalanobis")
    values = dict.fromkeys(SCORES, (0.9, 0.8))
    standings = (
        Standing("mahalanobis", values),
        Standing("euclidean", dict.fromkeys(SCORES, (0.5, 0.6))),
        Standing("kl", {}, problem=f"not positive {EVIL}"),
    )
    board = Leaderboard(standings, 2, 150, 4, 3, notes=(EVIL,))
    path = tmp_path_factory.mktemp("report") / "report.html"
    written = write_comparison(
        path,
        board,
        fold.learner,
        task,
        fold,
        importance={EVIL: (0.5, 0.1), "noise": (-0.01, 0.1)},
        title=EVIL,
        feature_names=[EVIL],
        notes=[EVIL],
        settings={EVIL: EVIL},
    )
    assert written == path
    return path.read_text(encoding="utf-8")


def test_page_is_whole_and_loads_nothing(page: str) -> None:
    reader = Reader(page)
    assert reader.open == []
    assert reader.addresses == []
    assert reader.tags.count("h1") == 1
    assert reader.tags.count("script") == 1
    assert "http-equiv" in page
    assert not re.search(r"url\(|@import", page)


def test_text_from_data_is_escaped(page: str) -> None:
    assert 'alert("x")' not in page
    assert page.count("&lt;script&gt;") >= 8


def test_says_what_was_found(page: str) -> None:
    assert "Best: mahalanobis, MAP 0.850." in page
    assert "(clear)" in page
    assert "failed: not positive" in page
    assert "Symmetric: D(x, y) = D(y, x)" in page
    assert page.count("row 149, c<") == 2  # held out, on both maps
    assert page.count("row 148, c, training row<") == 2
    assert page.count("class=hollow") == 2 * 75
    assert page.index("<h2>The data") < page.index("<h2>Leaderboard")
    assert "width:100.0%" in page
    assert "width:0.0%" in page
    assert '<tr class="best"><th scope="row">mahalanobis' in page


def test_only_the_own_script_may_run() -> None:
    page = document("title", "<p>text</p>", "let a = 1;")
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'", page)


def test_map_keeps_distances_of_a_plane() -> None:
    points = np.random.default_rng(0).normal(size=(30, 2))
    matrix = ((points[:, None] - points) ** 2).sum(2)
    places, share = flat_map(matrix)
    np.testing.assert_allclose(((places[:, None] - places) ** 2).sum(2), matrix, atol=1e-9)
    assert share == pytest.approx(1)
    lopsided, _ = flat_map(matrix + np.triu(matrix))
    assert np.isfinite(lopsided).all()
    assert flat_map(np.zeros((3, 3)))[0].tolist() == [[0, 0]] * 3


def test_map_of_equal_points(tmp_path: Path) -> None:
    task, fold = fold_of(np.ones((8, 2)), np.array(list("aaaabbbb")))
    board = Leaderboard((Standing("euclidean", dict.fromkeys(SCORES, (0.5,))),), 1, 4, 2, 2)
    page = write_comparison(tmp_path / "a.html", board, fold.learner, task, fold).read_text()
    assert page.count("translate(230.0,230.0)") == 16
    assert "nan" not in page


def test_many_classes_share_the_last_colour(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    labels = np.repeat([f"class {i:02}" for i in range(20)], 3)
    task, fold = fold_of(X, labels)
    board = Leaderboard((Standing("euclidean", dict.fromkeys(SCORES, (0.5,))),), 1, 60, 2, 20)
    page = write_comparison(tmp_path / "a.html", board, fold.learner, task, fold).read_text()
    assert page.count('aria-pressed="true"') == 13
    assert ">others</button>" in page


def test_map_is_of_rows_that_were_not_learned(tmp_path: Path) -> None:
    """Classes of noise, learned by heart: training rows would look separated."""
    random = np.random.default_rng(0)
    X, labels = random.normal(size=(300, 6)), np.array(["a", "b"])[random.integers(2, size=300)]
    task, rows = Classes(X, labels), np.arange(300)
    learner = task.fit(rows[::2], divergence="euclidean", encoder="mlp", steps=300, random_state=0)
    board = Leaderboard((Standing("euclidean", dict.fromkeys(SCORES, (0.5,))),), 1, 300, 6, 2)

    def shown(fold: Fold) -> int:
        page = write_comparison(tmp_path / "a.html", board, learner, task, fold).read_text()
        found = re.search(r"Learned: euclidean. For (\d+) %", page)
        assert found is not None
        return int(found[1])

    assert shown(Fold(learner, rows[::2], rows[1::2])) < 65
    assert shown(Fold(learner, rows[1::2], rows[::2])) > 90  # what the page showed before


def test_pages_of_numbers_and_triplets(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows, X = np.arange(40), random.normal(size=(40, 3, 2))
    for task in (Numbers(X[:, 0], X[:, 0, 0]), Triplets(X)):
        settings = {"divergence": "euclidean", "encoder": None, "random_state": 0}
        fold = Fold(task.fit(rows[::2], **settings), rows[::2], rows[1::2])
        standing = Standing("euclidean", dict.fromkeys(task.headings, (0.5,)))
        board = Leaderboard((standing,), 1, 40, 2, 0, by=task.deciding[0], headings=task.headings)
        page = write_comparison(tmp_path / "a.html", board, fold.learner, task, fold).read_text()
        assert ("4 highest quarter" in page) == ("<svg" in page) == isinstance(task, Numbers)
