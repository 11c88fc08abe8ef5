"""The documentation: its links, its figures, and the site that is built from it."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest
from browser import chromium, console_errors, open_page, requests

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *DOCS.rglob("*.md")])
PACKAGES = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers.python", "latex2mathml")

# Two pages name what they show: most of these modules is for the library itself.
WHOLE = sorted({path.stem for path in (DOCS / "api").glob("*.md")} - {"index", "checks", "io"})
APPLICATION = ("comparison", "tables")


def missing_packages() -> list[str]:
    def absent(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is None
        except ModuleNotFoundError:
            return True

    return [name for name in PACKAGES if absent(name)]


needs_mkdocs = pytest.mark.skipif(
    bool(missing_packages()), reason=f'building the pages needs {missing_packages()}: pip install ".[docs]"'
)


# ---------------------------------------------------------------------- links between pages


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return what the headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^a-z0-9_ -]", "", line.lower()).strip().replace(" ", "-") for line in headings}


def dead_links(page: Path, text: str) -> list[str]:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if "://" in target:
            continue
        # The theme shows a picture with one of these endings in one colour scheme only.
        path, _, anchor = re.sub(r"(\.png)#only-(light|dark)$", r"\1", target).partition("#")
        file = page.parent / path if path else page
        read = text if not path else file.read_text("utf-8") if file.suffix == ".md" and file.is_file() else ""
        # Pictures have the theme's marks for light and dark where pages have headings.
        if not file.exists() or (anchor and file.suffix != ".png" and anchor not in anchors(read)):
            dead.append(target)
    return dead


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    assert dead_links(path, path.read_text("utf-8")) == []


def test_dead_links_are_found() -> None:
    text = (
        "# A title\n[a](search.md) [b](search.md#which-index) [c](#a-title) [d](https://x.org)\n```\n[e](no.md)\n```\n"
    )
    assert dead_links(DOCS / "index.md", text) == []
    text = "# A title\n[a](serch.md) [b](search.md#which) [c](#title)"
    assert dead_links(DOCS / "index.md", text) == ["serch.md", "search.md#which", "#title"]


def test_pages_begin_with_one_title() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
        assert text.startswith("# "), page
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, page


# ---------------------------------------------------------------------- figures


def test_measured_purities_are_those_of_the_results() -> None:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in (ROOT / "paper" / "results" / "clustering.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["scale"] == "paper":
            found[row["setting"], row["method"]].append(row["scores"]["purity"])
    text = (DOCS / "choosing.md").read_text("utf-8")
    for noise in ("exponential", "multinomial", "Gaussian"):
        (line,) = re.findall(rf"^\| {noise} clusters, purity \|.*$", text, re.MULTILINE)
        shown = [float(cell) for cell in re.findall(r"\d\.\d{3}", line)]
        methods = ("euclidean", "mahalanobis", "nbd")
        # The table rounds; half a unit of its last digit, and what binary fractions add.
        assert shown == pytest.approx([mean(found[noise.lower(), name]) for name in methods], abs=5.01e-4)
    oracle = [mean(found[noise, "oracle"]) for noise in ("exponential", "multinomial", "gaussian")]
    told = re.search(r"reaches (\d\.\d+), (\d\.\d+) and (\d\.\d+) on the last three tasks", " ".join(text.split()))
    assert told is not None
    assert [float(figure) for figure in told.groups()] == pytest.approx(oracle, abs=5.01e-4)


def test_scorecard_of_the_readme_is_that_of_the_results() -> None:
    results = (DOCS / "results.md").read_text("utf-8").splitlines()
    rows = re.findall(
        r"^\| (.*?): (.*?) \| (\S+) \| (\S+), (.*?) \| (.*?) \|$", (ROOT / "README.md").read_text("utf-8"), re.M
    )
    assert len(rows) >= 8
    for task, score, ours, other, name, verdict in rows:
        (line,) = [line for line in results if line.startswith((f"| {task} |", f"| {task}: {score} |"))]
        cells = [cell.strip() for cell in line.split("|")]
        assert cells[2] == verdict, task
        assert re.search(rf" {re.escape(ours)}(±|$)", cells[4]), task
        assert cells[5].startswith(name), task
        assert re.search(rf" {re.escape(other)}(±|$)", cells[5]), task


# ---------------------------------------------------------------------- the site


class Loaded(HTMLParser):
    """What a browser fetches for a page, apart from the page itself, and the text that it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.identifiers: set[str] = set()
        self.tags: set[str] = set()
        self.shown: list[str] = []
        self.inside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.identifiers.add(values.get("id", ""))
        self.tags.add(tag)
        if tag == "link" and values.get("rel") in ("stylesheet", "preconnect", "icon", "preload"):
            self.addresses.append(values["href"])
        if tag in ("script", "img", "iframe", "source"):
            self.addresses.append(values.get("src", ""))
        if tag in ("script", "style", "pre", "code"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.shown.append(data)


def parsed(path: Path) -> Loaded:
    page = Loaded()
    page.feed(path.read_text("utf-8"))
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    # The second is a notice of the theme about its own future.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "WARNING" not in result.stderr
    return folder


@needs_mkdocs
def test_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for path in pages:
        assert not [address for address in parsed(path).addresses if "//" in address], path
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']*", path.read_text("utf-8")), path


@needs_mkdocs
def test_marks_of_other_languages_do_not_show(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = parsed(path)
        assert "grad" not in page.tags, (path.name, "an inner product in angle brackets was taken for a tag")
        text = " ".join(page.shown)
        for mark in (
            ":func:",
            ":class:",
            ":meth:",
            ":math:",
            "..  math::",
            ".. math::",
            "$$",
            r"\langle",
            r"\phi",
            ":::",
        ):
            assert mark not in text, (path.name, mark)


@needs_mkdocs
@pytest.mark.parametrize("package", WHOLE)
def test_api_pages_have_all_that_is_public(site: Path, package: str) -> None:
    path = f"askew.cli.{package}" if package in APPLICATION else f"askew.{package}"
    module = importlib.import_module(path)
    shown = parsed(site / "api" / f"{package}.html").identifiers
    values = {name: getattr(module, name) for name in module.__all__}
    described = {
        name: (f"{path}.{name}", f"{value.__module__}.{name}") for name, value in values.items() if callable(value)
    }
    assert [name for name, paths in described.items() if shown.isdisjoint(paths)] == []


@pytest.mark.parametrize("package", sorted(set(WHOLE) - set(APPLICATION)))
def test_public_classes_have_an_example(package: str) -> None:
    module = importlib.import_module(f"askew.{package}")
    classes = {name: value for name in module.__all__ if isinstance(value := getattr(module, name), type)}
    assert [name for name, value in classes.items() if ">>>" not in (vars(value)["__doc__"] or "")] == []


@needs_mkdocs
def test_formulas_are_shown_without_a_script(site: Path) -> None:
    text = (site / "mathematics.html").read_text("utf-8")
    source = re.sub(r"```.*?```", "", (DOCS / "mathematics.md").read_text("utf-8"), flags=re.DOTALL)
    assert text.count("<math ") == len(re.findall(r"\$\$.*?\$\$|\$[^$]+\$", source, re.DOTALL)) > 50
    assert 'alttext="D(x, y) = \\phi(x) - \\phi(y) - \\langle \\nabla\\phi(y), x - y \\rangle"' in text
    assert "<math " in (site / "api" / "divergences.html").read_text("utf-8")


@needs_mkdocs
def test_search_from_a_folder_and_pages_on_a_phone(site: Path) -> None:
    with chromium() as session:
        open_page(session, site / "index.html")
        session.execute_script("document.querySelector('input.md-search__input').focus()")
        box = session.find_element("css selector", "input.md-search__input")
        wait_for(
            session, "return !document.querySelector('.md-search-result__meta').textContent.includes('Initializing')"
        )
        for words in ("GPU", "missing value", "baseline", "relevance", "Qdrant"):
            box.send_keys(words)
            hits = wait_for(session, f"const links = {FOUND}; return links.length && links")
            assert any(page in hit for hit in hits for page in ("gpu", "faq", "relevance", "engines")), (words, hits)
            box.clear()
            box.send_keys(" ")
            wait_for(session, f"return !{FOUND}.length")
        assert console_errors(session) == requests(session) == []
        phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        session.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        for page in ("choosing", "mathematics", "coming-from", "engines", "results", "api/divergences"):
            open_page(session, site / f"{page}.html")
            assert session.execute_script("return document.documentElement.scrollWidth") <= 390, page


FOUND = "[...document.querySelectorAll('.md-search-result__item a')].map(link => link.href)"


def wait_for(session: Any, script: str) -> Any:
    """Return the value of a script as soon as it is true."""
    for _ in range(200):
        if value := session.execute_script(script):
            return value
        time.sleep(0.1)
    pytest.fail(f"not true within 20 seconds: {script}")


@needs_mkdocs
def test_examples_and_notebook_are_pages(site: Path) -> None:
    names = {path.stem for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")}
    assert names | {"index"} == {path.stem for path in (site / "examples").glob("*.html")}


@pytest.fixture
def building() -> ModuleType:
    specification = importlib.util.spec_from_file_location("building", DOCS / "building.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@needs_mkdocs
def test_docstrings_become_markdown(building: ModuleType) -> None:
    assert doctest.testmod(building, optionflags=doctest.ELLIPSIS).failed == 0
    text = "One.\n\n.. math:: a\n    + b\n\nWith :math:`c` and <grad phi(y), h>, not ``<x, y>``.\n\n>>> f(<a, b>)\n"
    expected = "One.\n\n$$\na + b\n$$\n\nWith $c$ and ⟨grad phi(y), h⟩, not ``<x, y>``.\n\n>>> f(<a, b>)"
    assert building.as_markdown(text) == expected
