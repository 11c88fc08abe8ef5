"""The shape of the code: imports point one way, the top level holds names only, nothing runs foreign code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import askew

ROOT = Path(askew.__file__).parent

# Data flows down this list; a module imports only from those above it or from its own package.
ORDER = (
    "_version",
    "_messages",
    "_torch_compat",
    "checks",
    "_progress",
    "_parallel",
    "_dask",
    "io",
    "potentials",
    "divergences",
    "encoders",
    "losses",
    "training",
    "pbdl",
    "search",
    "clustering",
    "metrics",
    "estimators",
    "plot",
    "explorer",
    "cli",
)
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
CODE_RUNNERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
SOURCES = sorted(ROOT.rglob("*.py"))
MODULES = [path for path in SOURCES if path != ROOT / "__init__.py"]


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def name_of(path: Path) -> tuple[str, ...]:
    """Return a file's module name without ``askew``: ``("divergences", "base")``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the first part after ``askew.`` of all that a module of ``package`` imports, also in functions.

    An import of ``askew`` itself, which holds everything, is yielded as "".
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                source = ".".join(("askew", *package[: len(package) - node.level + 1], *source.split("."))).strip(".")
            # A name taken from `askew` itself is a module or one of the public names.
            whole = source == "askew"
            targets = [f"askew.{alias.name}" for alias in node.names] if whole else [source]
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__", "optional_import"}:
            first = node.args[0] if node.args else None
            targets = [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
        else:
            continue
        for target in targets:
            if target.split(".")[0] == "askew_paper":
                yield "askew_paper"
            if target == "askew" or target.startswith("askew."):
                part = target.removeprefix("askew").lstrip(".").split(".")[0]
                yield part if part in ORDER else ""


def called(node: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def misdirected(source: str, module: tuple[str, ...], *, is_package: bool = False) -> list[str]:
    """Return the imports of a module that point downwards."""
    package = module if is_package else module[:-1]
    place = ORDER.index(module[0])
    names = imported(ast.parse(source), package)
    return [name or "askew" for name in names if name not in ORDER[: place + 1]]


def dangers(source: str) -> list[str]:
    """Return what could run code that comes with data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in CODE_RUNNERS]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found += [module] if module.split(".")[0] in CODE_RUNNERS else []
            found += ["torch.load"] if module == "torch" and any(alias.name == "load" for alias in node.names) else []
        elif isinstance(node, ast.Name) and node.id in {"eval", "exec"}:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in {"builtins.eval", "builtins.exec"}:
            found.append(node.attr)
        elif isinstance(node, ast.Call):
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if ast.unparse(node.func) == "torch.load" and options.get("weights_only") != "True":
                found.append("torch.load")
            if options.get("allow_pickle", "False") != "False":
                found.append("allow_pickle")
    return found


def statements(source: str) -> list[str]:
    """Return the statements of the top level other than imports, names, and what imports a name when it is used."""
    body = ast.parse(source).body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    found = []
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        plain = all(isinstance(t, ast.Name) and t.id in {"__all__", "__version__", "_PACKAGES"} for t in targets)
        if not (plain or isinstance(node, (ast.Import, ast.ImportFrom)) or loads_names(node)):
            found.append(ast.unparse(node))
    return found


def loads_names(node: ast.stmt) -> bool:
    """Whether a statement imports names for type checkers, and defines how Python imports them."""
    return (
        isinstance(node, ast.If)
        and ast.unparse(node.test) == "TYPE_CHECKING"
        and all(isinstance(part, (ast.Import, ast.ImportFrom)) for part in node.body)
        and all(isinstance(part, ast.FunctionDef) and part.name in {"__getattr__", "__dir__"} for part in node.orelse)
    )


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_imports_point_upwards(path: Path) -> None:
    module = name_of(path)
    assert module[0] in ORDER, f"{label(path)} has no place in the order of the design; give it one"
    wrong = misdirected(path.read_text("utf-8"), module, is_package=path.name == "__init__.py")
    assert not wrong, f"{label(path)} imports {wrong}, which it must not know"


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_nothing_runs_code_that_comes_with_data(path: Path) -> None:
    assert not dangers(path.read_text("utf-8"))


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_names_say_what_is_inside(path: Path) -> None:
    assert not VAGUE_NAMES & set(path.relative_to(ROOT).with_suffix("").parts)


def test_top_level_holds_names_only() -> None:
    assert not statements((ROOT / "__init__.py").read_text("utf-8"))


@pytest.mark.parametrize(
    ("source", "module", "wrong"),
    [
        ("from askew import checks", "losses", []),
        ("from askew import metrics, checks", "losses", ["metrics"]),
        ("from askew_paper.data.images import read", "losses", ["askew_paper"]),
        ("import askew.cli", "losses", ["cli"]),
        ("import askew", "losses", ["askew"]),
        ("from askew import NeuralBregman", "cli.report", ["askew"]),
        ("def f():\n    from askew.cli import main", "losses", ["cli"]),
        ("import importlib\nimportlib.import_module('askew.cli')", "losses", ["cli"]),
        ("from askew.search.exact import ExactIndex", "search.faiss", []),
        ("from .exact import ExactIndex", "search.faiss", []),
        ("from .. import encoders", "search.faiss", []),
        ("from .. import estimators", "search.faiss", ["estimators"]),
        ("from ..estimators.pairs import PairRegressor", "search.faiss", ["estimators"]),
        ("import torch\nfrom askewed import anything", "checks", []),
    ],
)
def test_direction_is_recognised(source: str, module: str, wrong: list[str]) -> None:
    assert misdirected(source, tuple(module.split("."))) == wrong


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["pickle"]),
        ("def f():\n    from pickle import loads", ["pickle"]),
        ("eval('1')", ["eval"]),
        ("run = exec", ["exec"]),
        ("model.eval()", []),
        ("torch.load(path)", ["torch.load"]),
        ("torch.load(path, weights_only=False)", ["torch.load"]),
        ("torch.load(path, weights_only=True)", []),
        ("from torch import load", ["torch.load"]),
        ("np.load(path, allow_pickle=True)", ["allow_pickle"]),
        ("np.load(path, allow_pickle=False)", []),
    ],
)
def test_dangers_are_recognised(source: str, found: list[str]) -> None:
    assert dangers(source) == found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""Names."""\nfrom askew import checks\n__all__ = ["checks"]\n__version__ = "0.1.0"', 0),
        ("from askew import checks\nchecks.REAL", 1),
        ("def f():\n    pass\nDEBUG: bool = True", 2),
        ("if TYPE_CHECKING:\n    from askew import io\nelse:\n    def __getattr__(name):\n        pass", 0),
        ("if TYPE_CHECKING:\n    from askew import io\nelse:\n    def f():\n        pass", 1),
        ("if TYPE_CHECKING:\n    f()", 1),
    ],
)
def test_code_at_the_top_level_is_recognised(source: str, count: int) -> None:
    assert len(statements(source)) == count
