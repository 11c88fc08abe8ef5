"""What is shipped is whole, and what it depends on may be used by everybody who may use askew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "dependencies.md"
EXTRAS = ("dask", "excel", "faiss", "images", "metric-learning", "milvus", "onnx", "parquet", "plot")
# Licences that let anybody use, change and pass on a program that depends on what is under them.
FREE = re.compile(
    r"\b(MIT|MIT-CMU|MIT-0|BSD|0BSD|Apache|ISC|ISCL|MPL|Mozilla Public|PSF|Python Software Foundation|Zlib|CC0|"
    r"BSL-1\.0|HPND|Unlicense)\b",
    re.IGNORECASE,
)
STRICT = re.compile(r"\b(AGPL|LGPL|GPL|SSPL|BUSL|Commons Clause|Proprietary)", re.IGNORECASE)
# What says nothing of its licence where programs look for it: read in their files.
READ = {"nmslib": "Apache-2.0"}


def licence(name: str) -> str:
    """Return what an installed package says of its licence, or nothing."""
    about = metadata.metadata(name)
    classifiers = [text.split("::")[-1].strip() for text in about.get_all("Classifier") or [] if "License ::" in text]
    # A whole text begins with its title.
    text = (about.get("License") or "").strip().split("\n")[0]
    found = about.get("License-Expression") or ", ".join(classifiers) or text
    return READ.get(name, "") if found in ("", "UNKNOWN") else found


def wanted(text: str, extras: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    """Return the name and the extras of a requirement, if it holds here."""
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    marker = requirement.marker
    if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
        return None
    return requirement.name, tuple(sorted(requirement.extras))


def all_needed() -> dict[str, bool]:
    """Return the installed packages that askew with its extras brings along, and whether it names them itself."""
    pytest.importorskip("packaging")
    found: dict[str, bool] = {}
    waiting = [("askew", EXTRAS, True)]
    seen = set()
    while waiting:
        name, extras, named = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # an extra that is not installed
            continue
        key = name.lower().replace("_", "-")
        if key != "askew":
            found[key] = found.get(key, False) or named
        for text in requirements:
            other = wanted(text, extras)
            if other is not None:
                waiting.append((*other, name == "askew"))
    return found


def test_all_licences_are_free() -> None:
    needed = all_needed()
    assert len(needed) > 20
    for name in needed:
        text = licence(name)
        assert FREE.search(text), f"{name}: {text!r}"
        # Several licences at choice are as good as the best of them.
        assert not STRICT.search(text) or " OR " in text, f"{name}: {text!r}"


def test_every_direct_dependency_is_listed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9_-]+)` \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    direct = {name for name, named in all_needed().items() if named}
    assert direct <= set(rows), f"missing in {PAGE.name}: {sorted(direct - set(rows))}"
    for name in direct:
        said, listed = licence(name), rows[name]
        assert any(word.lower() in said.lower() for word in re.findall(r"[A-Za-z]{3,}", listed)), f"{name}: {said!r}"


def test_every_extra_is_listed() -> None:
    extras = re.search(r"optional-dependencies]\n(.*?)# Peers", (ROOT / "pyproject.toml").read_text("utf-8"), re.DOTALL)
    assert extras is not None
    names = set(re.findall(r'"([a-z0-9-]+)[^"]*>=', extras[1]))
    assert names <= set(re.findall("`([a-z0-9-]+)`", PAGE.read_text("utf-8")))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python bring other packages along")
def test_what_comes_along_is_listed_with_its_licence() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|`]+) \| (`[^|]+`) \|$", page, re.MULTILINE)
    listed = {name: text for text, names in rows for name in re.findall(r"`([a-z0-9_-]+)`", names)}
    others = {name for name, named in all_needed().items() if not named}
    direct = set(re.findall(r"^\| `([a-z0-9_-]+)` \|", page, re.MULTILINE))
    assert others - direct <= set(listed), f"missing in {PAGE.name}: {sorted(others - direct - set(listed))}"
    for name in others - direct:
        said = licence(name).replace("Mozilla Public License 2.0", "MPL")
        assert listed[name].split("-")[0] in said, f"{name}: {said!r}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, capture_output=True
    )
    return folder


def test_the_wheel_has_all_that_the_source_has(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("askew/")}
        assert not [name for name in archive.namelist() if "paper" in name]
        about = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    source = ROOT / "src"
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=False)
    files = listed.stdout.split() if listed.returncode == 0 else []
    expected = {str((ROOT / name).relative_to(source)) for name in files}
    assert inside >= expected
    assert "askew/py.typed" in inside
    for extra in EXTRAS:
        assert f"Provides-Extra: {extra}" in about


def test_the_sdist_holds_no_data(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert any(name.endswith("tests/packaging/test_packages.py") for name in names)
    kinds = (".npz", ".mat", ".th", ".pth", ".tntp", ".jpg")
    assert not [name for name in names if name.endswith(kinds) and "/tests/saved/" not in name]
    assert sdist.stat().st_size < 20_000_000


def test_the_wheel_works_without_the_source(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import askew, sys; assert askew.__file__.startswith(sys.argv[1]); "
        "from askew.cli import main; main(['learn', '--dataset', 'iris', '--divergence', 'mahalanobis', '--encoder', "
        "'none', '--steps', '2', '-o', 'model'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "model.json").is_file()
