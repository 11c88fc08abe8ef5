"""Other engines find the nearest items by a trained divergence, in both directions, by the code of the example."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def example() -> ModuleType:
    specification = importlib.util.spec_from_file_location("engines_example", ROOT / "examples" / "engines.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["engines_example"] = module
    specification.loader.exec_module(module)
    return module


shown = example()


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: shown.learned(name, 6, 60) for name in ("nbd", "drift")}


# What other packages warn of when they are imported or used is not ours to repair.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", shown.ENGINES)
def test_recall_with_trained_divergences_in_both_directions(
    name: str, models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shown.missing(name):
        pytest.skip(shown.missing(name))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    items, queries = shown.data(600, 6, 2)[0], shown.data(20, 6, 3)[0]
    for model in models.values():
        for direction in ("query-first", "query-second"):
            found = shown.search(name, model, direction, items, queries, 10)
            assert found.shape == (20, 10)
            assert shown.recall(model, direction, items, queries, found) >= 0.99


def test_recall_counts_what_is_missing(models: dict[str, Any]) -> None:
    items, queries = shown.data(600, 6, 2)[0], shown.data(20, 6, 3)[0]
    wrong = np.tile(np.arange(10), (20, 1))
    assert shown.recall(models["nbd"], "query-first", items, queries, wrong) < 0.2


@pytest.mark.parametrize("name", shown.ENGINES)
def test_an_engine_that_is_not_installed_is_named_with_its_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    extra = shown.ENGINES[name].extra
    with pytest.raises(ImportError, match=rf'{name} needs the package .*Run: pip install "\.\[{extra}\]"'):
        shown.search(name, None, "query-first", None, None, 1)


def test_extras_and_page_have_every_engine() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    page = (ROOT / "docs" / "engines.md").read_text("utf-8")
    for engine in shown.ENGINES.values():
        assert f"\n{engine.extra} = [" in project
        assert f"| `{engine.form}` | `{engine.metric}`" in page
