"""``import askew`` imports nothing else until a name is used."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import askew

SOURCE = Path(askew.__file__)


def printed(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def typed_names() -> dict[str, str]:
    """Return the names that type checkers see, and the packages that these come from."""
    tree = ast.parse(SOURCE.read_text("utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        package = str(node.module).removeprefix("askew").lstrip(".")
        found |= {alias.name: package or alias.name for alias in node.names}
    return found


def test_type_checkers_and_python_see_the_same_names() -> None:
    names = {name: package for package, given in askew._PACKAGES.items() for name in (package, *given)}
    assert typed_names() == names
    assert sorted(askew.__all__) == sorted([*names, "__version__"])
    assert set(askew.__all__) <= set(dir(askew))


@pytest.mark.parametrize("name", askew.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(askew, name)
    home = typed_names().get(name)
    if home == name:
        assert value is sys.modules[f"askew.{name}"]
    elif home is not None:
        assert value is getattr(sys.modules[f"askew.{home}"], name)


def test_every_package_but_the_command_is_public() -> None:
    rooms = {path.stem for path in SOURCE.parent.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert {room for room in rooms if not room.startswith("_")} - {"cli"} == set(askew._PACKAGES)


def test_unknown_names_are_errors() -> None:
    with pytest.raises(AttributeError, match="module 'askew' has no attribute 'NeuralBergman'"):
        _ = askew.NeuralBergman  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'NeuralBergman' from 'askew'"):
        from askew import NeuralBergman  # type: ignore[attr-defined]  # noqa: F401


def test_names_are_imported_when_first_used() -> None:
    code = """
import sys, askew
print(askew.__version__, *sorted({"torch", "numpy", "sklearn", "pandas", "rich"} & set(sys.modules)), "-")
print(len([name for name in sys.modules if name.startswith("askew.")]))
askew.losses.AllTriplets, askew.search.ExactIndex
print("askew.losses" in sys.modules, "askew.cli" in sys.modules, "askew.explorer" in sys.modules)
from askew import *
print(fit.__name__, explorer.__name__, "askew.explorer" in sys.modules)
"""
    version, dash, modules, *loaded = printed(code)
    assert (version, dash) == (askew.__version__, "-")
    assert loaded == ["True", "False", "False", "fit", "askew.explorer", "True"]
    assert int(modules) <= 5


def test_the_version_is_written_in_one_place() -> None:
    assert importlib.metadata.version("askew") == askew.__version__
    assert 'dynamic = ["version"]' in (Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8")
