"""The page of a comparison in a real browser: silent, fit for a phone, and its buttons work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, console_errors, open_page, requests
from sklearn.datasets import load_iris

from askew.cli.comparison import SCORES, Leaderboard, Standing
from askew.cli.report import write_comparison
from askew.estimators import DivergenceLearner


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bunch = load_iris()
    learner = DivergenceLearner("mahalanobis", encoder=None, steps=20, random_state=0).fit(bunch.data, bunch.target)
    standings = tuple(
        Standing(name, dict.fromkeys(SCORES, (value, value + 0.01)))
        for name, value in (("mahalanobis", 0.9), ("nbd", 0.8), ("euclidean", 0.7))
    )
    path = tmp_path_factory.mktemp("report") / "report.html"
    board = Leaderboard(standings, 2, 150, 4, 3)
    return write_comparison(path, board, learner, bunch.data, bunch.target_names[bunch.target])


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def opened(session: Any, page: Path) -> Any:
    session.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    open_page(session, page)
    return session


def test_nothing_is_asked_for_and_nothing_fails(opened: Any) -> None:
    assert console_errors(opened) == []
    assert requests(opened) == []


def test_columns_are_sorted_by_their_buttons(opened: Any) -> None:
    def names() -> list[str]:
        return [cell.text for cell in opened.find_elements("css selector", "tbody th")]

    assert names() == ["mahalanobis", "nbd", "euclidean"]
    button = opened.find_elements("css selector", "thead th button")[1]
    button.click()
    assert names() == ["mahalanobis", "nbd", "euclidean"]
    button.click()
    assert names() == ["euclidean", "nbd", "mahalanobis"]
    head = opened.find_elements("css selector", "thead th")[1]
    assert head.get_attribute("aria-sort") == "ascending"


def test_classes_are_hidden_by_their_buttons(opened: Any) -> None:
    button = opened.find_element("css selector", ".legend button")
    groups = opened.find_elements("css selector", 'g.class[data-class="0"]')
    assert len(groups) == 2  # the learned map and the Euclidean one
    assert all(group.is_displayed() for group in groups)
    button.send_keys(" ")  # by keyboard
    assert not any(group.is_displayed() for group in groups)
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert all(group.is_displayed() for group in groups)


@pytest.mark.parametrize("width", [360, 1280])
def test_page_is_no_wider_than_its_window(width: int, opened: Any) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
