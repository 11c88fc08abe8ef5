"""The page of a comparison in a real browser: silent, fit for a phone, and its buttons work."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, console_errors, open_page, requests
from sklearn.datasets import load_iris

from askew.cli.comparison import SCORES, Leaderboard, Standing, held_out
from askew.cli.report import write_comparison
from askew.cli.tasks import Classes


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bunch = load_iris()
    task = Classes(bunch.data, bunch.target_names[bunch.target])
    fold = held_out(task, "mahalanobis", folds=2, steps=20)
    standings = tuple(
        Standing(name, dict.fromkeys(SCORES, (value, value + 0.01)))
        for name, value in (("mahalanobis", 0.9), ("nbd", 0.8), ("euclidean", 0.7))
    )
    path = tmp_path_factory.mktemp("report") / "report.html"
    board = Leaderboard(standings, 2, 150, 4, 3)
    drops = {name: (0.1 * (i + 1), 0.01) for i, name in enumerate([*bunch.feature_names, "m" * 60])}
    return write_comparison(path, board, fold.learner, task, fold, importance=drops)


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
        return [cell.text for cell in opened.find_elements("css selector", ".frame tbody th")]

    assert names() == ["mahalanobis", "nbd", "euclidean"]
    button = opened.find_elements("css selector", "thead th button")[2]
    button.click()
    assert names() == ["mahalanobis", "nbd", "euclidean"]
    button.click()
    assert names() == ["euclidean", "nbd", "mahalanobis"]
    head = opened.find_elements("css selector", "thead th")[2]
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


def luminance(session: Any, selector: str, what: str) -> float:
    colour = session.execute_script(
        "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]].match(/[0-9.]+/g).map(Number)",
        selector, what,
    )[:3]  # fmt: skip
    parts = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_winner_bars_and_maps_are_readable(scheme: str, opened: Any) -> None:
    opened.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    paper = luminance(opened, "body", "backgroundColor")
    for selector, what, least in (
        ("tr.best th", "color", 4.5),
        ("tr.best td", "color", 4.5),
        (".bar", "backgroundColor", 3.0),
        ("g.c0 g:not(.hollow) circle", "fill", 3.0),
    ):
        light = luminance(opened, selector, what)
        assert (max(light, paper) + 0.05) / (min(light, paper) + 0.05) >= least, selector
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_colours_of_classes_can_be_told_apart() -> None:
    style = (resources.files("askew.cli.report") / "page.css").read_text("utf-8")
    schemes = [dict(re.findall(r"--(c\d): (#\w{6})", block)) for block in style.split(":root {")[1:3]]  # light, dark
    fixed = dict(re.findall(r"\.(c\d) { --c: (#\w{6})", style))
    for scheme in schemes:
        colours = [tuple(bytes.fromhex(colour[1:])) for colour in (scheme | fixed).values()]
        assert len(colours) == 8
        assert min(math.dist(a, b) for a, b in itertools.combinations(colours, 2)) > 45


def test_chart_text_is_body_text(opened: Any) -> None:
    sizes = opened.execute_script(
        "return ['body', '.bars th', '.bars td:last-child', 'figcaption'].map("
        "s => getComputedStyle(document.querySelector(s)).fontSize)"
    )
    assert set(sizes) == {"16px"}
