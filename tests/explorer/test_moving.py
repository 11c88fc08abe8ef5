"""What the pointer, the keys and the controls do, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import askew
from askew.explorer import write_explorer

pytest.importorskip("selenium", reason="no selenium: pip install selenium")
from selenium.webdriver import Keys

LABELS = ("<b>first</b>", "second & last", "third")
FEATURES = ("a", "b", "c", '<script>alert("d")</script>')


def test_dragging_moves_the_point_and_both_balls(page: Any) -> None:
    before, pixels = page.now(), page.picture()
    page.drag(150, -60)
    after = page.now()
    width, height = before["limits"][1] - before["limits"][0], before["limits"][3] - before["limits"][2]
    side = before["box"]["width"]
    assert after["c"][0] - before["c"][0] == pytest.approx(150 / side * width, rel=0.02)
    assert after["c"][1] - before["c"][1] == pytest.approx(60 / side * height, rel=0.02)
    assert all(a != b for a, b in zip(before["covered"], after["covered"], strict=True))
    assert all(count > 0 for count in after["borders"])
    changed = np.mean(pixels != page.picture())
    assert changed > 0.02
    assert page.errors() == []


def test_a_click_elsewhere_moves_the_point_and_leaves_x_behind(page: Any) -> None:
    before = page.now()
    page.pointer(460, 460).click().perform()
    after = page.now()
    assert after["x"] == before["c"]
    assert after["c"] != before["c"]


def test_hovering_moves_x_only(page: Any) -> None:
    before = page.now()
    page.pointer(460, 460).perform()
    after = page.now()
    assert after["c"] == before["c"]
    assert after["x"] != before["x"]
    assert after["forth"] != before["forth"]


@pytest.mark.parametrize("handle", ["c", "x"])
def test_a_finger_drags_what_it_touches(handle: str, page: Any) -> None:
    page.pointer(500, 150).perform()  # x away from c
    before = page.now()
    frame = page.run("const { x, y } = document.getElementById('plane').getBoundingClientRect(); return [x, y]")
    start = before["pixels"] if handle == "c" else (500, 150)
    for kind, right in (("touchStart", 0), ("touchMove", 20), ("touchMove", 40), ("touchEnd", None)):
        place = {"x": frame[0] + start[0] + (right or 0), "y": frame[1] + start[1]}
        touches = {"type": kind, "touchPoints": [] if right is None else [place]}
        page.session.execute_cdp_cmd("Input.dispatchTouchEvent", touches)
    after = page.now()
    other = "x" if handle == "c" else "c"
    assert after[handle][0] > before[handle][0]
    assert after[other] == before[other]


def test_keys_move_both_points_and_change_the_radius(page: Any) -> None:
    before = page.now()
    plane = page.find("#plane")
    plane.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_UP)
    right = page.now()
    assert right["c"][0] > before["c"][0]
    assert right["c"][1] > before["c"][1]
    assert right["x"] == before["x"]
    plane.send_keys(Keys.SHIFT, Keys.ARROW_LEFT, Keys.ARROW_DOWN)
    left = page.now()
    assert left["c"] == right["c"]
    assert left["x"][0] < right["x"][0]
    assert left["x"][1] < right["x"][1]
    plane.send_keys(Keys.PAGE_UP)
    assert page.now()["r"] > left["r"]
    plane.send_keys(Keys.PAGE_DOWN, Keys.PAGE_DOWN)
    assert page.now()["r"] < left["r"]


def test_what_the_keys_did_is_spoken(page: Any) -> None:
    page.find("#plane").send_keys(Keys.ARROW_RIGHT)
    spoken = page.find("#spoken")
    assert spoken.get_attribute("aria-live") == "polite"
    page.session.execute_async_script("setTimeout(arguments[0], 700)")
    assert spoken.get_attribute("textContent").startswith("c at ")


def test_the_switch_changes_the_field(page: Any) -> None:
    learned = page.now()
    for mode in ("euclidean", "mahalanobis"):
        page.run("document.querySelector(`input[value=${arguments[0]}]`).click()", mode)
        seen = page.now()
        assert seen["mode"] == mode
        assert seen["forth"] == pytest.approx(seen["back"], rel=1e-9)
        assert seen["forth"] != pytest.approx(learned["forth"], rel=1e-3)
        assert seen["covered"][0] == pytest.approx(seen["covered"][1], abs=1e-9)
        assert page.find("#says").text == "Symmetric: x is as far from c as c is from x."
        assert page.find("#table-first").is_displayed()
        assert not page.find("#table-second").is_displayed()
    page.run("document.querySelector('input[value=model]').click()")
    assert page.now()["forth"] == learned["forth"]


def test_the_slider_changes_both_balls(page: Any) -> None:
    covered = []
    for share in (0.2, 0.8):
        script = (
            "const s = document.getElementById('radius'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))"
        )
        page.run(script, share)
        covered.append(page.now()["covered"])
    assert covered[0][0] < covered[1][0]
    assert covered[0][1] < covered[1][1]


def point_on_plane(table: Any, plane: str, c: list[float]) -> Any:
    """Return c in all features, by what the page is to show."""
    if plane == "features":
        held = table[7].copy()
        held[[1, 3]] = c
        return held
    mean, std = table.mean(0), table.std(0)
    _, _, directions = np.linalg.svd((table - mean) / std, full_matrices=False)
    signs = np.sign(directions[:2][[0, 1], np.abs(directions[:2]).argmax(1)])
    return mean + std * (np.array(c) * signs @ directions[:2])


@pytest.mark.parametrize("plane", ["principal", "features"])
def test_neighbours_are_those_of_pytorch_on_every_plane(
    plane: str, page: Any, model: askew.Embedded, table: Any
) -> None:
    if plane == "features":
        for name, text in (("across", "b"), ("up", FEATURES[3]), ("held", "a data point")):
            page.select(name, text)
        page.select("row", "7")
    page.drag(60, -80)
    seen = page.now()
    c = torch.from_numpy(point_on_plane(table, plane, seen["c"]))[None]
    points = torch.from_numpy(table)
    forth, back = model.pairwise(points, c)[:, 0], model.pairwise(c, points)[0]
    assert seen["near"]["first"] == forth.argsort()[:5].tolist()
    assert seen["near"]["second"] == back.argsort()[:5].tolist()
    rows = page.find_all("#table-second tr")
    for row, index in zip(rows, seen["near"]["second"], strict=True):
        number, label, one, two = (cell.text for cell in row.find_elements("css selector", "td"))
        assert int(number) == index
        assert label.split(maxsplit=1)[1] == LABELS[index // 20]
        assert float(one) == pytest.approx(forth[index].item(), rel=1e-2)
        assert float(two) == pytest.approx(back[index].item(), rel=1e-2)
    x = torch.from_numpy(point_on_plane(table, plane, seen["x"]))[None]
    assert seen["forth"] == pytest.approx(model(x, c).item(), rel=1e-4)
    assert seen["back"] == pytest.approx(model(c, x).item(), rel=1e-4)
    inside = [int((values <= seen["r"]).sum()) for values in (forth, back)]
    assert seen["near"]["inside"][:2] == inside


def test_a_neighbour_can_be_visited(page: Any) -> None:
    index = page.now()["near"]["first"][2]
    page.find("#table-first tr:nth-child(3) button").click()
    seen = page.now()
    assert seen["near"]["first"][0] == seen["near"]["second"][0] == index
    assert page.find("#table-first").text.split()[0] == str(index)
    assert float(page.find("#table-first .by").text) == pytest.approx(0, abs=1e-9)


def test_the_point_stays_inside_of_the_domain(explorer: Any, tmp_path: Path) -> None:
    explorer.show(write_explorer(askew.make("itakura-saito", 2), tmp_path / "page.html"))
    limits = explorer.now()["limits"]
    assert limits[0] == limits[2] == 0
    plane, pixels = explorer.find("#plane").size, explorer.now()["pixels"]
    explorer.drag(5 - round(pixels[0]), plane["height"] - 5 - round(pixels[1]))
    seen = explorer.now()
    assert 0 < seen["c"][0] < 0.01
    assert 0 < seen["c"][1] < 0.01
    assert explorer.errors() == []
