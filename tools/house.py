"""Measure the size and the shape of the code, and what it costs to start it.

    python tools/house.py [--root CHECKOUT] [--rounds 5] [--no-timing] [--json]

The same script measures any checkout, old or new. It imports the checkout in child processes only, with ``src`` and
``paper/src`` of the checkout in front of everything else on the path. What is counted:

library, paper
    Python files of ``src/askew``, and of ``paper/`` without ``paper/tests``. A checkout without ``paper/`` has the
    paper's code inside the library; those files are then in both counts. All that follows is counted in both.
code
    Lines that are neither docstring, comment nor blank.
rooms
    Packages and modules directly below ``askew``. A leading underscore makes a module private: no room.
family tests
    ``isinstance`` and ``issubclass`` calls that name at least one class of the family, and ``case`` patterns with such
    a class, outside ``divergences`` and ``potentials``. A call counts once, however many classes its tuple has; a tuple
    that the module keeps under a name counts like one that is written out. The family: ``Divergence``, ``Potential``,
    what derives from them in those two rooms, and the modules defined in ``encoders``. A name counts if the file
    defines it or imports it from askew: ``nn.Linear`` is no class of the family.
private accesses
    ``thing._name`` where ``_name`` is defined (as a function, class, variable or attribute of ``self``) in another room
    but not in the room of the file. ``self``, ``cls``, ``super()``, dunder names and names that askew does not define
    (private parts of other libraries) do not count. Also ``from askew.room import _name`` and imports through
    ``askew.room._module`` from another room; ``askew._module`` belongs to all rooms of askew.
import cycles
    Groups of rooms, and groups of modules, that import each other in a circle. Imports inside functions, under
    ``TYPE_CHECKING`` and by ``import_module`` or ``optional_import`` with a literal name count. That Python runs the
    ``__init__`` of a package before its modules does not.
CPU seconds
    User and system time of a child process with one thread, the least of all rounds; the cases run in turn.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import resource
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

LONG = 450
PACKAGES = ("askew", "askew_paper")
FAMILY_ROOMS = ("askew.divergences", "askew.potentials")
ENCODER_BASES = {"Rebuildable", "Module", "Linear", "Sequential"}
HEAVY = ("torch", "sklearn", "pandas", "scipy", "numpy")
COMMANDS = {"--version": ["--version"], "--help": ["--help"], "(no words)": [], "nonsense": ["nonsense"]}
# Where the paper's code was while it was part of the library.
OLD_PAPER = ["experiments", "data", "report/page.py", "report/tables.py", "report/curves.py", "cli/experiments.py"]
OLD_PAPER += ["encoders/resnets.py", "encoders/weights.py"]
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
IMPORTERS = {"import_module", "__import__", "optional_import"}


class Source:
    """A Python file as a module of ``askew`` or ``askew_paper``."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.label = path, path.relative_to(root).as_posix()
        self.text = path.read_text("utf-8")
        self.lines = self.text.count("\n")
        parts = path.relative_to(root).with_suffix("").parts
        first = next((i for i, part in enumerate(parts) if part in PACKAGES), 0)
        self.package = parts[first:-1]
        self.module = self.package if parts[-1] == "__init__" else parts[first:]
        self.name, self.room = ".".join(self.module), ".".join(self.module[:2])
        self.tree = ast.parse(self.text)
        self.nodes = sorted(ast.walk(self.tree), key=lambda node: getattr(node, "lineno", 0))
        self.classes = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def code(self) -> int:
        """The number of lines that are neither docstring, comment nor blank."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in LAYOUT:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in self.nodes:
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
                first = node.body[0]
                if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                    lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        written = self.text.splitlines()
        return sum(bool(written[line - 1].strip()) for line in lines)

    @cached_property
    def imports(self) -> list[tuple[str, str | None, str, int]]:
        """Module, name taken from it (None for the module itself), the name it gets here, and the line of each."""
        found: list[tuple[str, str | None, str, int]] = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(a.name, None, a.asname or a.name.split(".")[0], node.lineno) for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = self.package[: len(self.package) - node.level + 1] if node.level else ()
                origin = ".".join((*above, node.module or "")).strip(".")
                found += [(origin, a.name, a.asname or a.name, node.lineno) for a in node.names]
            elif isinstance(node, ast.Call) and last_name(node.func) in IMPORTERS:
                first = getattr(node.args[0], "value", None) if node.args else None
                found += [(first, None, "", node.lineno)] if isinstance(first, str) else []
        return [entry for entry in found if entry[0].split(".")[0] in PACKAGES]

    @cached_property
    def private(self) -> set[str]:
        """The names with one leading underscore that the file defines."""
        names = set()
        for node in self.nodes:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
                names.add(node.attr)
        return {name for name in names if is_private(name)}


def checkout(root: Path) -> tuple[list[Source], list[Source]]:
    """Return the files of the library and those of the paper."""
    library = [Source(path, root) for path in sorted((root / "src" / "askew").rglob("*.py"))]
    paper = root / "paper"
    if paper.is_dir():
        files = (path for path in sorted(paper.rglob("*.py")) if paper / "tests" not in path.parents)
        return library, [Source(path, root) for path in files]
    old = {root / "src" / "askew" / name for name in OLD_PAPER}
    return library, [source for source in library if old & {source.path, *source.path.parents}]


def is_private(name: str) -> bool:
    """Return whether a name has exactly one leading underscore."""
    return name.startswith("_") and not name.startswith("__") and name != "_"


def is_own(node: ast.AST) -> bool:
    """Return whether an expression is ``self``, ``cls`` or ``super()``."""
    return getattr(node.func if isinstance(node, ast.Call) else node, "id", "") in ("self", "cls", "super")


def last_name(node: ast.AST) -> str:
    """Return ``c`` of ``a.b.c``."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


# ---------------------------------------------------------------------- what is counted


def family(library: list[Source]) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the names of the classes of the family, and module and name of all other classes."""
    parents = {(s.name, c): set(map(last_name, node.bases)) for s in library for c, node in s.classes.items()}
    room = {(s.name, c): s.room for s in library for c in s.classes}
    encoders = {key for key in parents if room[key] == "askew.encoders" and parents[key] & ENCODER_BASES}
    ours = {key for key in parents if room[key] in FAMILY_ROOMS}
    members = {key for key in ours if key[1] in ("Divergence", "Potential")}
    while new := {key for key in ours - members if parents[key] & {name for _, name in members}}:
        members |= new
    members |= encoders
    return {name for _, name in members}, set(parents) - members


def family_tests(source: Source, names: set[str], others: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the places where a file asks for a class of the family."""
    known = {name: (source.name, name) for name in source.classes}
    known |= {local: (origin, name or local) for origin, name, local, _ in source.imports}
    kept = {t.id: n.value for n in source.tree.body if isinstance(n, ast.Assign) for t in n.targets if hasattr(t, "id")}

    def classes(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Name) and node.id in kept:
            yield from classes(kept[node.id])
        elif isinstance(node, ast.Name) and node.id in known:
            origin, name = known[node.id]
            yield from [name] if name in names and (origin, name) not in others else []
        elif isinstance(node, ast.Attribute) and ast.unparse(node).split(".")[0] in known:
            yield from [node.attr] if node.attr in names else []
        elif isinstance(node, (ast.Tuple, ast.BinOp, ast.Starred)):
            for part in ast.iter_child_nodes(node):
                yield from classes(part)

    for node in source.nodes if source.room not in FAMILY_ROOMS else ():
        if isinstance(node, ast.Call) and last_name(node.func) in ("isinstance", "issubclass") and len(node.args) == 2:
            asked = list(classes(node.args[1]))
        else:
            asked = list(classes(node.cls)) if isinstance(node, ast.MatchClass) else []
        if asked:
            yield f"{source.label}:{getattr(node, 'lineno', 0)} {', '.join(asked)}"


def private_accesses(source: Source, defined: dict[str, set[str]]) -> Iterator[str]:
    """Yield the places where a file uses a private name of another room."""
    own = defined[source.room]
    others = set().union(*defined.values()) - own
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in others and not is_own(node.value):
            yield f"{source.label}:{node.lineno} {ast.unparse(node)}"
    for origin, name, _, line in source.imports:
        path = [*origin.split("."), *([name] if name else [])]
        shared = path[0] == source.module[0] and is_private(path[1] if len(path) > 1 else "")
        if any(map(is_private, path)) and ".".join(path[:2]) != source.room and not shared:
            yield f"{source.label}:{line} {'.'.join(path)}"


def import_edges(files: list[Source]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return what imports what, by rooms and by modules."""
    modules = {source.name: source for source in files}
    rooms: dict[str, set[str]] = {source.room: set() for source in files}
    edges: dict[str, set[str]] = {name: set() for name in modules}
    for source in files:
        for origin, taken, _, _ in source.imports:
            target = modules.get(f"{origin}.{taken}", modules.get(origin))
            if target is not None and target is not source:
                edges[source.name].add(target.name)
                rooms[source.room] |= {target.room} - {source.room}
    return rooms, edges


def circles(edges: dict[str, set[str]]) -> list[str]:
    """Return the groups of nodes that reach each other."""
    reach = {node: set(targets) for node, targets in edges.items()}
    for middle in edges:
        for node in edges:
            if middle in reach[node]:
                reach[node] |= reach[middle]
    groups = {frozenset(other for other in reach[node] if node in reach[other]) for node in edges}
    return sorted(" <-> ".join(sorted(group)) for group in groups if len(group) > 1)


# ---------------------------------------------------------------------- what is run


def run(root: Path, code: str) -> tuple[str, float]:
    """Return the last line that Python code prints in a child process, and the CPU seconds that it took."""
    path = os.pathsep.join([str(root / "src"), str(root / "paper" / "src")])
    environment = dict(os.environ, PYTHONPATH=path, PYTHONSAFEPATH="1", OMP_NUM_THREADS="1")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (done.stdout.splitlines() or [""])[-1], seconds


def command(root: Path, words: list[str]) -> str:
    """Return code that runs the command ``askew`` and prints, as its last line, which heavy packages it imported."""
    entry = re.search(r'^askew = "([\w.]+):(\w+)"', (root / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    module, function = entry.groups() if entry else ("askew.cli", "main")
    return (
        f"import sys\nsys.argv = {['askew', *words]}\nfrom {module} import {function} as main\n"
        f"try:\n    sys.exit(main())\nfinally:\n    print(', '.join(n for n in {HEAVY} if n in sys.modules) or 'none')"
    )


def starting(root: Path, rounds: int) -> dict[str, Any]:
    """Return what ``import askew`` loads and, if there are rounds, what it and the command cost."""
    ours = "[m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'askew' and getattr(m, '__file__', None)]"
    files = [Path(name) for name in json.loads(run(root, f"import json, sys, askew; print(json.dumps({ours}))")[0])]
    if not all(root in file.parents for file in files):
        raise RuntimeError(f"askew was imported from {files[0]}, not from {root}.")
    commands = {f"askew {name}": command(root, words) for name, words in COMMANDS.items()}
    cases = {"import torch": "import torch", "import askew": "import askew"} | commands
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, code in cases.items():
            times[name].append(run(root, code)[1])
    return {
        "modules": len(files),
        "code": sum(Source(file, root).code for file in files),
        "imports": {name: run(root, code)[0] for name, code in commands.items()},
        "seconds": {name: min(seconds) for name, seconds in times.items() if seconds},
    }


# ---------------------------------------------------------------------- the table


def measure(root: Path, rounds: int) -> dict[str, Any]:
    """Return everything that is measured on a checkout."""
    library, paper = checkout(root)
    files = library + [source for source in paper if source not in library]
    rooms: dict[str, list[int]] = {}
    defined: dict[str, set[str]] = {source.room: set() for source in files}
    for source in files:
        defined[source.room] |= source.private
        if source in library and len(source.module) > 1 and not source.module[1].startswith("_"):
            lines, code = rooms.get(source.room, (0, 0))
            rooms[source.room] = [lines + source.lines, code + source.code]
    by_room, by_module = import_edges(files)
    return {
        "library": [sum(s.lines for s in library), sum(s.code for s in library)],
        "paper": [sum(s.lines for s in paper), sum(s.code for s in paper)],
        "rooms": rooms,
        "long files": [f"{s.label}: {s.lines}" for s in files if s.lines > LONG],
        "family tests": [place for source in files for place in family_tests(source, *family(library))],
        "private accesses": [place for source in files for place in private_accesses(source, defined)],
        "cycles of rooms": circles(by_room),
        "cycles of modules": circles(by_module),
        "start": starting(root, rounds),
    }


def table(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, measured value and target of every row."""
    for name, lines, code in (("library", "<= 22,000", "<= 13,000"), ("paper", "<= 8,500", "")):
        yield f"{name}: lines", f"{found[name][0]:,}", lines
        yield f"{name}: code", f"{found[name][1]:,}", code
    yield "rooms", str(len(found["rooms"])), "<= 15"
    yield f"files above {LONG} lines", str(len(found["long files"])), "0"
    places = found["family tests"]
    yield "family tests", f"{len(places)} in {len({p.split(':')[0] for p in places})} files", "<= 12"
    for name in ("private accesses", "cycles of rooms", "cycles of modules"):
        yield name, str(len(found[name])), "0"
    start = found["start"]
    yield "import askew: modules, code", f"{start['modules']}, {start['code']:,}", "<= 45 modules"
    for name, seconds in start["seconds"].items():
        ratio = f" = {seconds / start['seconds']['import torch']:.2f} x torch" if name == "import askew" else ""
        wanted = "<= 1.2 x torch" if ratio else "" if name.startswith("import") else "<= 0.3"
        yield f"{name}: CPU seconds", f"{seconds:.2f}{ratio}", wanted
    for name, heavy in start["imports"].items():
        yield f"{name}: imports", heavy, "none"


def main() -> None:
    """Print the table for a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout; default: this one")
    parser.add_argument("--rounds", type=int, default=5, help="of measuring times")
    parser.add_argument("--no-timing", action="store_true", help="measure no times")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON document")
    options = parser.parse_args()
    found = measure(options.root.resolve(), 0 if options.no_timing else options.rounds)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, value, wanted in (("", "measured", "wanted"), *table(found)):
        print(f"{name:30} {value:38} {wanted}".rstrip())
    print("\nrooms: lines, code")
    for name, (lines, code) in found["rooms"].items():
        print(f"  {name.removeprefix('askew.'):14} {lines:6,} {code:6,}")
    for title in ("long files", "family tests", "private accesses", "cycles of rooms", "cycles of modules"):
        if found[title]:
            print("\n  ".join([f"\n{title}: {len(found[title])}", *found[title]]))


if __name__ == "__main__":
    main()
