"""The page of a comparison: whole, self-contained, and safe whatever the data are called."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from askew.cli.comparison import SCORES, Leaderboard, Standing
from askew.cli.report import write_comparison
from askew.cli.report.page import document, flat_map
from askew.estimators import DivergenceLearner

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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    X, y = load_iris(return_X_y=True)
    labels = np.where(y == 0, EVIL, np.where(y == 1, "b", "c"))
    learner = DivergenceLearner("mahalanobis", encoder=None, steps=20, random_state=0).fit(X, labels)
    values = dict.fromkeys(SCORES, (0.9, 0.8))
    standings = (
        Standing("mahalanobis", values),
        Standing("euclidean", dict.fromkeys(SCORES, (0.5, 0.6))),
        Standing("kl", {}, problem=f"not positive {EVIL}"),
    )
    board = Leaderboard(standings, 2, 150, 4, 3, notes=(EVIL,))
    path = tmp_path_factory.mktemp("report") / "report.html"
    written = write_comparison(
        path, board, learner, X, labels, title=EVIL, feature_names=[EVIL], notes=[EVIL], settings={EVIL: EVIL}
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
    assert page.count("row 149") == 2  # on both maps


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
    learner = DivergenceLearner("euclidean", encoder=None).fit(np.ones((4, 2)), ["a", "a", "b", "b"])
    board = Leaderboard((Standing("euclidean", dict.fromkeys(SCORES, (0.5,))),), 1, 4, 2, 2)
    page = write_comparison(tmp_path / "a.html", board, learner, np.ones((4, 2)), ["a", "a", "b", "b"]).read_text()
    assert page.count("translate(230.0,230.0)") == 8
    assert "nan" not in page


def test_many_classes_share_the_last_colour(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    labels = np.repeat([f"class {i:02}" for i in range(20)], 3)
    learner = DivergenceLearner("euclidean", encoder=None).fit(X, labels)
    board = Leaderboard((Standing("euclidean", dict.fromkeys(SCORES, (0.5,))),), 1, 60, 2, 20)
    page = write_comparison(tmp_path / "a.html", board, learner, X, labels).read_text()
    assert page.count('aria-pressed="true"') == 13
    assert ">others</button>" in page
