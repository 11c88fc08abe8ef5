"""The page in a browser, for all tests of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import chromium, console_errors, open_page, requests

import askew
from askew.explorer import write_explorer

# A driver writes these; a page must show them as they are.
LABELS = ("<b>first</b>", "second & last", "third")
FEATURES = ("a", "b", "c", '<script>alert("d")</script>')


@dataclass(frozen=True)
class Explorer:
    """A browser, and what tests do with the page in it."""

    session: Any

    def show(self, file: Path, width: int = 1280, height: int = 1000, scheme: str = "light") -> None:
        self.resize(width, height)
        self.colour(scheme)
        open_page(self.session, file)
        self.ready()

    def resize(self, width: int, height: int, scale: int = 1) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.session.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def colour(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.session.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def ready(self) -> None:
        """Wait for the fine grid."""
        self.session.execute_async_script("askewExplorer.ready().then(arguments[0])")

    def now(self) -> dict[str, Any]:
        """Return what is shown."""
        self.ready()
        found: dict[str, Any] = self.session.execute_script("return askewExplorer.now()")
        return found

    def run(self, script: str, *arguments: object) -> Any:
        return self.session.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.session.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[Any]:
        found: list[Any] = self.session.find_elements("css selector", selector)
        return found

    def select(self, name: str, text: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.find(f"#{name}")).select_by_visible_text(text)
        self.ready()

    def errors(self) -> list[str]:
        return console_errors(self.session)

    def requests(self) -> list[str]:
        return requests(self.session)

    def picture(self) -> Any:
        """Return some of the colours of the canvas."""
        script = """
            const canvas = document.getElementById("plane");
            const { width, height } = canvas;
            const copy = Object.assign(document.createElement("canvas"), { width, height });
            const context = copy.getContext("2d", { willReadFrequently: true });
            context.drawImage(canvas, 0, 0);
            const data = context.getImageData(0, 0, width, height).data;
            return Array.from({ length: 3000 }, (_, i) => data[Math.floor((i * data.length) / 3000)]);
        """
        return np.array(self.run(script))

    def pointer(self, right: float, down: float) -> Any:
        """Return a chain of actions that begins at a place of the canvas, in pixels from its corner."""
        from selenium.webdriver import ActionChains

        canvas = self.find("#plane")
        offset = round(right) - canvas.size["width"] // 2, round(down) - canvas.size["height"] // 2
        return ActionChains(self.session, duration=20).move_to_element_with_offset(canvas, *offset)

    def drag(self, right: int, down: int) -> None:
        """Drag c by some pixels."""
        chain = self.pointer(*self.now()["pixels"]).click_and_hold().move_by_offset(right // 2, down // 2)
        chain.move_by_offset(right - right // 2, down - down // 2).release().perform()


@pytest.fixture(scope="session")
def explorer() -> Iterator[Explorer]:
    with chromium() as session:
        yield Explorer(session)


@pytest.fixture(scope="session")
def table() -> Any:
    """Return three groups of 20 points with 4 features."""
    means = np.repeat([[0, 0, 0, 0], [3, 1, 0, 2], [1, 4, 2, 0]], 20, axis=0)
    return means + np.random.default_rng(0).normal(size=(60, 4))


@pytest.fixture(scope="session")
def model(table: Any) -> askew.Embedded:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        scale = askew.encoders.Standardize(4).fit(torch.from_numpy(table))
        encoder = askew.encoders.MLP(4, 5, (16,), activation="silu")
        torch.nn.init.normal_(encoder.last.weight)  # embeddings far apart, where the divergence is far from symmetric
        divergence = askew.NeuralBregman(5, widths=(16, 16))
    return askew.Embedded(torch.nn.Sequential(scale, encoder), divergence).requires_grad_(False).eval()


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory, model: askew.Embedded, table: Any) -> Path:
    place = tmp_path_factory.mktemp("page") / "page.html"
    return write_explorer(model, place, table, np.repeat(LABELS, 20), feature_names=FEATURES, title="<i>Test</i>")


@pytest.fixture
def page(explorer: Explorer, file: Path) -> Explorer:
    """Return the page as it is after loading."""
    explorer.show(file)
    return explorer
