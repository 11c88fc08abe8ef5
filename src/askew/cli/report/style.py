"""HTML documents that load nothing, for screens of any size, light or dark, and for print."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib import resources

__all__ = ["document"]


def document(title: str, body: str, script: str = "") -> str:
    """Return a whole page, whose content policy lets nothing be loaded and no script run but the one given.

    Parameters
    ----------
    title
        Plain text.
    body
        HTML, with all text from data escaped.
    script
        JavaScript to put at the end.

    Examples
    --------
    >>> document("A < B", "<p>text</p>").count("A &lt; B")
    1
    """
    style = (resources.files("askew.cli.report") / "page.css").read_text("utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scripts = f"; script-src 'sha256-{digest}'" if script else ""
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{scripts}"
    end = f"<script>{script}</script>" if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>\n"
        f"<body>{body}{end}</body></html>\n"
    )
