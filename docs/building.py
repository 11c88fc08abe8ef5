r"""What building the pages needs beyond mkdocs: formulas without a script, docstrings as Markdown, files as pages.

Formulas are written as in LaTeX, ``$...$`` within a line and ``$$...$$`` alone, and become MathML, which browsers
show by themselves. The scripts, the notebook and CONTRIBUTING.md lie outside of this folder: links to them lead to
pages that are made from them here, so that the same link works in a clone and on the site.
"""

from __future__ import annotations

import ast
import html
import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

# ---------------------------------------------------------------------- formulas

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAYED = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the formulas of a page into MathML."""
    content = DISPLAYED.sub(lambda match: mathml(match[1], "block"), content)
    return INLINE.sub(lambda match: mathml(match[1], "inline"), content)


def mathml(formula: str, display: str) -> str:
    """Return a formula as MathML that carries its LaTeX for those who cannot see it.

    Examples
    --------
    >>> mathml("x^2", "inline")
    '<math xmlns="http://www.w3.org/1998/Math/MathML" alttext="x^2" display="inline">...</math>'
    """
    formula = " ".join(html.unescape(formula).split())
    # Two commands that the converter does not know.
    known = formula.replace(r"\tfrac", r"\frac").replace(r"\bigl", "").replace(r"\bigr", "")
    code = convert(known, display=display).replace(" display=", f' alttext="{html.escape(formula)}" display=', 1)
    # A box of its own, so that a formula wider than a phone scrolls, also by keyboard.
    return code if display == "inline" else f'<div class="formula" tabindex="0">{code}</div>'


# ---------------------------------------------------------------------- docstrings

ROLE = re.compile(r":(?:py:)?(?:class|func|meth|mod|data|attr|exc|obj):`(~?)([^`]+)`")
MATH_ROLE = re.compile(r":math:`([^`]+)`")
MATH_DIRECTIVE = re.compile(r"^( *)\.\. math::(.*)\n((?:\n|\1 +.*\n)*)", re.MULTILINE)
CODE = re.compile(r"(```.*?```|``.*?``|`[^`\n]*`|\$\$.*?\$\$|^ *>>>.*?$)", re.DOTALL | re.MULTILINE)
ANGLES = re.compile(r"<((?:grad|[a-z](?:_[a-z])?,|[a-z]_[a-z], )[^<>]*)>")


class Docstrings(Extension):
    """Docstrings as Markdown: roles become links, directives formulas."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.is_class:
            obj.members.pop("extra_repr", None)  # of torch's modules: what repr shows, nothing to call
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value, obj)


def as_markdown(text: str, obj: Object | None = None) -> str:
    """Return a docstring with the marks of Markdown instead of those of reStructuredText.

    Examples
    --------
    >>> as_markdown("See :func:`~askew.fit`.")
    'See <autoref optional identifier="askew.fit"><code>fit</code></autoref>.'
    """
    text = MATH_DIRECTIVE.sub(_displayed, text + "\n").rstrip("\n")
    text = MATH_ROLE.sub(r"$\1$", text)
    text = ROLE.sub(lambda match: _link(match[1], match[2], obj), text)
    return plain_angles(text)


def plain_angles(text: str) -> str:
    """Return a text in which inner products such as <grad phi(y), h>, which Markdown takes for tags, are no tags."""
    parts = CODE.split(text)
    return "".join(part if CODE.fullmatch(part) else ANGLES.sub("⟨\\1⟩", part) for part in parts)


def _displayed(match: re.Match[str]) -> str:
    indent, formula = match[1], " ".join((match[2] + " " + match[3]).split())
    return f"{indent}$$\n{indent}{formula}\n{indent}$$\n\n"


def _link(short: str, target: str, obj: Object | None) -> str:
    """Return a link to a name as it is known where the docstring stands; the mere name where there is no such page."""
    shown = target.rpartition(".")[2] if short else target
    path = target
    if obj is not None:
        try:
            path = obj.resolve(target)
        except Exception:  # griffe has several; a name that is not found is no reason to fail
            path = target
    return f'<autoref optional identifier="{path}"><code>{html.escape(shown)}</code></autoref>'


# ---------------------------------------------------------------------- pages from files

OUTSIDE = re.compile(r"\]\(((?:\.\./)+)(examples/|CONTRIBUTING\.md|README\.md)([^)#\s]*)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each example and for CONTRIBUTING.md."""
    pages = {"contributing.md": (ROOT / "CONTRIBUTING.md").read_text("utf-8")}
    for path in sorted((ROOT / "examples").glob("*.py")):
        pages[f"examples/{path.stem}.md"] = script_page(path)
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        pages[f"examples/{path.stem}.md"] = notebook_page(path)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of this folder to the pages made from these files, and keep formulas from being taken for tags."""
    depth = page.file.src_uri.count("/")

    def inside(match: re.Match[str]) -> str:
        ups, folder, name = match.groups()
        if ups != "../" * (depth + 1):
            return match[0]  # not out of this folder, or too far
        if folder == "examples/":
            name = re.sub(r"\.(py|ipynb)$", ".md", name) or "index.md"
            return f"]({'../' * depth}examples/{name}"
        return f"]({'../' * depth}{'contributing.md' if folder == 'CONTRIBUTING.md' else 'index.md'}"

    return plain_angles(OUTSIDE.sub(inside, markdown))


def script_page(path: Path) -> str:
    """Return a script as a page: its first docstring as text, then its code."""
    source = path.read_text("utf-8")
    first = ast.parse(source).body[0]
    title, _, rest = inspect.cleandoc(ast.literal_eval(ast.get_source_segment(source, first) or "''")).partition("\n")
    # Commands are the indented lines; the rest is Markdown as it is.
    rest = re.sub(r"(?m)(?:^    .*\n)+", lambda match: f"```bash\n{textwrap.dedent(match[0])}```\n", rest + "\n")
    code = "\n".join(source.splitlines()[first.end_lineno or 0 :]).strip("\n")
    return f"# {path.name}\n\n{title}\n\n{rest.strip()}\n\n## The script\n\n```python\n{code}\n```\n"


def notebook_page(path: Path) -> str:
    """Return the cells of a notebook as a page."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells)
    kinds = (cell["cell_type"] for cell in cells)
    blocks = (f"```python\n{text}\n```" if kind == "code" else text for kind, text in zip(kinds, texts, strict=True))
    return "\n\n".join(blocks) + f"\n\nThis page is `examples/{path.name}`; open it in Jupyter to run it.\n"
