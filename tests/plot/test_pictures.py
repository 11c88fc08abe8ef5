"""The pictures of the page and the program that draws them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from askew import plot

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/plots.md").read_text("utf-8")
GALLERY = (ROOT / "docs/gallery.md").read_text("utf-8")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    specification = importlib.util.spec_from_file_location("pictures", ROOT / "examples/pictures.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_page_shows_all_that_the_program_draws(pictures: ModuleType) -> None:
    shown = re.findall(r"!\[[^]]+\]\(pictures/([\w-]+)\.png#only-(?:light|dark)\)", PAGE + GALLERY)
    files = sorted((ROOT / "docs/pictures").glob("*.png"))
    drawn = [name + ending for name in pictures.PICTURES for ending in ("", "-dark")]
    assert sorted(set(shown)) == sorted(drawn) == sorted(path.stem for path in files)
    assert all(path.read_bytes().startswith(PNG) for path in files)
    assert sum(path.stat().st_size for path in files) < 1_200_000


def test_every_function_has_its_section() -> None:
    for name in plot.__all__:
        assert f"`{name}`](#" in PAGE
        assert f"plot.{name}" in PAGE


def test_the_program_draws_what_it_is_asked_for(
    pictures: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures.main(["--out", str(tmp_path / "new"), "--only", "cells"])
    dark, light = sorted((tmp_path / "new").iterdir())
    assert (light.name, dark.name) == ("cells.png", "cells-dark.png")
    assert capsys.readouterr().out.startswith(f"{light} (")
    for path, corner in ((light, 255 * 3), (dark, 0x1E + 0x21 + 0x29)):
        content = path.read_bytes()
        assert content.startswith(PNG)
        assert [int.from_bytes(content[i : i + 4], "big") for i in (16, 20)] == [960, 540]
        assert len(content) > 15_000, "an empty picture compresses to less"
        assert sum(Image.open(path).convert("RGB").getpixel((0, 0))) == pytest.approx(corner, abs=6)


def test_a_folder_that_cannot_be_made_is_told_first(pictures: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(SystemExit, match="File exists"):
        pictures.main(["--out", str(tmp_path / "file")])
