"""How pages look: on a screen of any size, light or dark, and on paper."""

from __future__ import annotations

import base64
import hashlib
import html

__all__ = ["STYLE", "document"]

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --soft: #f1f3f5; --line: #d0d5da; --dim: #5c6670;
  --better: #0b6b3a; --within: #33508a; --worse: #a33208; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #15181b; --soft: #20252a; --line: #3a4148;
  --dim: #a2adb8; --better: #63d297; --within: #9db8f2; --worse: #ff9a6b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 75rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: anywhere; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
a { color: var(--within); } li, caption { color: var(--dim); } caption strong, nav li { color: var(--ink); }
.frame { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; padding: .3rem 0; position: sticky; left: 0; max-width: min(90vw, 70rem); }
th, td { padding: .3rem .6rem; border: 1px solid var(--line); text-align: left; white-space: nowrap; }
thead th { background: var(--soft); } tbody th { position: sticky; left: 0; background: var(--soft); font-weight: 600; }
.better { color: var(--better); } .within { color: var(--within); } .worse { color: var(--worse); }
.missing { color: var(--dim); font-style: italic; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font: 14px system-ui, sans-serif; }
@media (max-width: 40rem) { svg text { font-size: 18px; } }
svg .grid { stroke: var(--line); stroke-width: 1; }
figure { margin: 1rem 0; } summary { cursor: pointer; } figcaption { color: var(--dim); }
.verdict { font-size: 1.15rem; padding: .8rem 1rem; border-left: 4px solid var(--better); background: var(--soft); }
.maps { display: flex; flex-wrap: wrap; gap: 1rem; } .maps figure { flex: 1 1 20rem; min-width: 0; max-width: 34rem; }
.legend { display: flex; flex-wrap: wrap; gap: .4rem; padding: 0; }
.legend button, th button { font: inherit; color: inherit; background: none; border: 1px solid var(--line);
  border-radius: 4px; padding: .2rem .6rem; cursor: pointer; min-height: 2rem; }
.legend button[aria-pressed="false"] { opacity: .45; text-decoration: line-through; }
.legend svg { width: 1rem; height: 1rem; vertical-align: middle; margin-right: .3rem; }
th button { border: 0; padding: 0; font-weight: 600; } th button::after { content: " \\2195"; color: var(--dim); }
th[aria-sort="ascending"] button::after { content: " \\2191"; }
th[aria-sort="descending"] button::after { content: " \\2193"; }
:focus-visible { outline: 3px solid var(--within); outline-offset: 2px; }
@media print { :root { --ink: #000; --paper: #fff; --soft: #fff; --dim: #444; } details > * { display: block; }
  section, figure, tr { break-inside: avoid; } .legend button { border: 0; }
  th button::after { content: "" !important; } }
""".strip()


def document(title: str, body: str, script: str = "") -> str:
    """Return a whole page that loads nothing, and runs nothing but the script that is given here.

    Whatever stands in the body, the policy of the page lets no other script run and nothing be loaded.

    Parameters
    ----------
    title
        Plain text.
    body
        HTML, with all text from data escaped.
    script
        JavaScript that is put at the end.

    Examples
    --------
    >>> document("A < B", "<p>text</p>").count("A &lt; B")
    1
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scripts = f"; script-src 'sha256-{digest}'" if script else ""
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{scripts}"
    end = f"<script>{script}</script>" if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body>{body}{end}</body></html>\n"
    )
