"""The progress bar: there when it is wanted, and nowhere else."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import sys
from typing import Any

import pytest

from askew._progress import progress_bar, remaining


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(show: bool | None, monkeypatch: pytest.MonkeyPatch, stream: Any) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(show, 10, "working") as move:
        move(3)
        move(10)
    return str(stream.getvalue()) if stream is not None else ""


def test_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "working" in run(None, monkeypatch, Terminal())
    assert run(None, monkeypatch, io.StringIO()) == ""
    assert run(None, monkeypatch, None) == ""


def test_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(False, monkeypatch, Terminal()) == ""
    text = run(True, monkeypatch, io.StringIO())
    assert "working" in text
    assert "10/10" in text


def test_not_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    assert run(None, monkeypatch, Terminal()) == ""


def test_nothing_on_standard_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(True, monkeypatch, io.StringIO())
    assert capsys.readouterr().out == ""


def test_number_beside_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(True, 5, "training", value="loss") as move:
        move(5, 0.125)
    assert "loss 0.125" in stream.getvalue()
    assert "5/5" in stream.getvalue()


def test_no_number_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(True, 5, "training", value="loss"):
        pass
    assert "0/5" in stream.getvalue()
    assert "loss" not in stream.getvalue()
    assert "nan" not in stream.getvalue()


def test_steps_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(True, 8, "resuming", done=6):
        pass
    assert "6/8" in stream.getvalue()


@pytest.mark.parametrize("show", [True, False])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_errors_pass_through(show: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())

    def fail() -> None:
        with progress_bar(show, 3, "failing") as move:
            move(1)
            raise error

    with pytest.raises(error):
        fail()
    with progress_bar(show, 3, "again") as move:  # and the next one is free to show itself
        move(3)


def test_two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(True, 3, "outer") as outer:
        with progress_bar(True, 3, "inner") as inner:
            inner(3)
        outer(3)
    assert "inner" in stream.getvalue()
    assert "outer" in stream.getvalue()


def test_the_estimate_of_time_does_not_jump_where_steps_differ() -> None:
    times = [1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 9.0, 1.0]
    done = [sum(times[: k + 1]) for k in range(len(times))]
    totals = [at + float(remaining(at, at, k + 1, len(times) - k - 1) or 0) for k, at in enumerate(done)]
    assert max(abs(after - before) for before, after in itertools.pairwise(totals)) <= 2 * max(times)
    assert totals[-1] == sum(times)
    assert remaining(5.0, 0.0, 0, 8) is None  # nothing is known before the first step
    assert remaining(30.0, 10.0, 1, 1) == 0.0
