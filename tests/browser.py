"""A headless Chromium for tests of pages; where there is none, such tests are skipped and say so."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["chromium", "console_errors", "open_page", "requests"]

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)
BROWSERS, DRIVERS = ("chromium", "chromium-browser", "google-chrome"), ("chromedriver",)


@contextlib.contextmanager
def chromium(width: int = 1280, height: int = 1000) -> Iterator[Any]:
    """Give a driver of a browser with an empty profile, which logs its console and its requests; skip without one."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = next(filter(None, map(shutil.which, DRIVERS)), None)
    if browser is None or driver is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, pytest.MonkeyPatch.context() as patch:
        # The driver is on this machine; a proxy for the rest of the world must not be asked for it.
        patch.setenv("NO_PROXY", "localhost,127.0.0.1")
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(executable_path=driver)
        session = webdriver.Chrome(options=options, service=service)
        session.set_script_timeout(60)
        try:
            yield session
        finally:
            session.quit()


def open_page(session: Any, page: Path) -> None:
    """Load a file, and forget what was logged before."""
    session.get("about:blank")
    for log in ("browser", "performance"):
        session.get_log(log)
    session.get(page.resolve().as_uri())


def console_errors(session: Any) -> list[str]:
    """Return the errors and warnings that the console has shown since the last call."""
    return [entry["message"] for entry in session.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requests(session: Any) -> list[str]:
    """Return the addresses that were asked for since the last call, other than files and data in the page itself."""
    messages = [json.loads(entry["message"])["message"] for entry in session.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("file:", "data:", "blob:"))]
