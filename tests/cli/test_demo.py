"""The demo, on a small land."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from askew.cli import demo, main
from askew.cli.report.isochrones import loops


def test_demo_fits_a_screen_and_its_next_commands_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "METHODS", ("drift",))
    with pytest.raises(SystemExit, match="0"):
        main(["demo", "--side", "6", "--walks", "100", "--steps", "40", "--jobs", "1"])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("\n") <= 40
    shares = {line.split()[0]: int(line.split()[-2]) for line in out.splitlines() if line.endswith(" %")}
    assert shares.pop("drift") > 60
    assert set(shares.values()) == {50}
    folder = tmp_path / "askew-out"
    assert {path.name for path in folder.iterdir()} == {
        *("places.csv", "walks.csv", "model", "index-from", "index-to"),
        *("report.html", "explorer.html", "isochrones.svg"),
    }
    assert (folder / "report.html").read_text("utf-8").count('class="isochrones"') == 2
    assert '"A1"' in (folder / "explorer.html").read_text("utf-8")
    commands = [line.split() for line in re.findall(r"^  askew (.*)$", out.replace("\\\n", " "), re.MULTILINE)]
    assert len(commands) == 3
    for words in commands[:2]:  # the third is the comparison on wine, which takes minutes
        steps = ["--steps", "5"] if words[0] == "learn" else []
        with pytest.raises(SystemExit, match="0"):
            main([*words, *steps])
    assert commands[2] == ["compare", "--dataset", "wine", "-o", "wine"]


def test_walks_obey_the_rule_and_the_triangle_inequality() -> None:
    places, times = demo.grid(7), demo.walking_times(7)
    flat = demo.PER_KM * np.linalg.norm(places[:, None] - places, axis=-1)
    climb = demo.heights(places)[None] - demo.heights(places)[:, None]
    assert (times >= flat + demo.PER_METRE * np.maximum(climb, 0) - 1e-9).all()
    assert (times <= (times[:, :, None] + times[None]).min(1) + 1e-9).all()


def test_loops_follow_saddles_and_borders() -> None:
    values = np.array([[0.0, 1.0], [1.0, 0.0]])
    (joined,) = loops(values, 0.4)[:1]
    assert joined.min() >= -1e-6
    assert joined.max() <= 1 + 1e-6
    assert len(loops(values, 0.4)) in (1, 2)
    assert loops(values, -1.0) == []
    area = sum(abs(np.sum(x * np.roll(y, 1) - y * np.roll(x, 1))) / 2 for x, y in (part.T for part in loops(values, 2)))
    assert area == pytest.approx(1, abs=1e-6)
