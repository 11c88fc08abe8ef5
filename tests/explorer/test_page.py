"""The page as it is loaded, in a real browser: complete, silent, and fit for its window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import askew
from askew.explorer import write_explorer

LABELS = ("<b>first</b>", "second & last", "third")


def test_loads_without_an_error_or_a_request(page: Any) -> None:
    assert page.now()["size"] == 200
    assert page.errors() == []
    assert page.requests() == []


def test_says_what_is_seen(page: Any) -> None:
    page.pointer(600, 100).perform()
    seen = page.now()
    for name, key in (("first", "forth"), ("second", "back")):
        shown = float(page.find(f"#value-{name}").text)
        assert shown == pytest.approx(seen[key], rel=1e-2)
    larger, smaller = ("x", "c") if seen["forth"] > seen["back"] else ("c", "x")
    says = page.find("#says").text
    assert says.startswith(f"{larger} is ")
    assert says.endswith(f"times as far from {smaller} as {smaller} is from {larger}.")
    assert "of 60 points by D(x, c)" in page.find("#inside").text


def test_text_of_the_data_is_text(page: Any) -> None:
    assert page.find("h1").text == "<i>Test</i>"
    assert [item.text.split(maxsplit=1)[1] for item in page.find_all("#classes > span")] == list(LABELS)
    assert not page.find_all("#classes b, #neighbours td b")
    options = [option.text for option in page.find_all("#across option")]
    assert options[-1] == '<script>alert("d")</script>'


@pytest.mark.parametrize("control", ["colour", "levels", "count", "data-shown"])
def test_each_layer_can_be_taken_away(control: str, page: Any) -> None:
    before = page.picture()
    if control == "data-shown":
        page.find("#data-shown").click()
    else:
        page.select(control, "0" if control == "count" else "none")
    page.ready()
    assert (page.picture() != before).any()
    if control == "count":
        assert not page.find("#neighbours").is_displayed()


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (800, "light"), (1600, "dark")])
def test_everything_fits_at_every_width(width: int, scheme: str, explorer: Any, file: Path) -> None:
    explorer.show(file, width, 800, scheme)
    script = """
        const outside = [...document.querySelectorAll("body *")].filter((node) => {
          const box = node.getBoundingClientRect();
          return box.width > 1 && (box.right > innerWidth + 0.5 || box.left < -0.5);
        });
        return [document.documentElement.scrollWidth, outside.map((node) => node.id || node.tagName)];
    """
    assert explorer.run(script) == [width, []]
    plane = explorer.find("#plane").size
    assert min(plane.values()) > 250
    assert plane["height"] <= 800
    assert explorer.errors() == []


def test_points_have_names_and_far_ones_arrows_that_lead_to_them(explorer: Any, tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(size=(60, 2))
    points[7] = 40.0
    names, training = [f"place {i}" for i in range(60)], np.arange(60) < 30
    explorer.show(
        write_explorer(askew.make("euclidean", 2), tmp_path / "page.html", points, ids=names, training=training), 390
    )
    assert max(explorer.now()["limits"]) < 5
    assert explorer.find("#far").text == "1 of 60 points lie far outside; arrows at the edge point to them."
    assert [item.text.split(maxsplit=1)[1] for item in explorer.find_all("#classes > span")] == ["training", "held out"]
    assert explorer.find("#table-first tr button").text.startswith("place ")
    assert not explorer.find("#table-second").is_displayed()
    explorer.find("#whole").click()
    assert max(explorer.now()["limits"]) > 40
    assert explorer.find("#far").text == ""


def test_resizing_keeps_the_point_in_its_place(page: Any) -> None:
    before = page.now()
    page.resize(380, 800, scale=2)
    after = page.now()
    assert after["c"] == before["c"]
    assert after["pixels"] != before["pixels"]
    assert 0 < after["pixels"][0] < 380
    assert page.run("return document.getElementById('plane').width") > 600  # two of the canvas for each


def test_dark_mode_is_dark_also_when_it_comes_later(explorer: Any, file: Path) -> None:
    explorer.show(file)
    light = np.mean(explorer.picture())
    explorer.colour("dark")
    explorer.ready()
    dark = np.mean(explorer.picture())
    assert dark < light - 40
    body = explorer.find("body").value_of_css_property("background-color")
    assert body.startswith(("rgba(16, 21, 28", "rgb(16, 21, 28"))


@pytest.mark.parametrize("given", [True, False])
def test_distributions_fill_a_triangle(given: bool, explorer: Any, tmp_path: Path) -> None:
    points = np.random.default_rng(0).dirichlet([1, 1, 1], size=30) if given else None
    explorer.show(write_explorer(askew.make("kl-simplex", 3), tmp_path / "page.html", points))
    seen = explorer.now()
    assert all(0 < share < 0.9 for share in seen["covered"])
    assert seen["forth"] > 0
    assert explorer.errors() == []


def test_measures_itself(page: Any) -> None:
    found = page.session.execute_async_script("askewExplorer.measure(3).then(arguments[0])")
    assert found["grid"] == 200
    assert found["frames"] == 3
    assert found["framesPerSecond"] > 0
