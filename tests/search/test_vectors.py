"""Keys and queries from raw points: saved, exported, and served where there is no torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import askew
from askew.divergences import Divergence, Embedded, make
from askew.encoders import MLP
from askew.search import ExactIndex, KeysAndQueries, keys_and_queries

ROOT = Path(__file__).parents[2]
DIRECTIONS = ("query-first", "query-second")


def two_sided() -> Divergence:
    """Return a drift whose queries and items have other numbers of features."""
    torch.manual_seed(0)
    model = make("drift", 3, encoder=MLP(5, 3, widths=(8,)), second=MLP(4, 3, widths=(8,)))
    return Embedded(model.encoder, model.divergence, model.second)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def learner() -> askew.DivergenceLearner:
    random = np.random.default_rng(0)
    labels = random.integers(3, size=200)
    points = 50 + 10 * (random.normal(size=(200, 4)) + 3 * random.normal(size=(3, 4))[labels])
    fitted: askew.DivergenceLearner = askew.DivergenceLearner(
        "nbd", "mlp", steps=20, random_state=0, progress=False
    ).fit(points, labels)
    return fitted


def sides(model: object, direction: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return items and queries that a model takes."""
    random = np.random.default_rng(1)
    first, second = (5, 4) if isinstance(model, Divergence) else (4, 4)
    wide, narrow = random.normal(size=(2, 300, 5)).astype(np.float32)
    queries, items = (wide[:, :first], narrow[:, :second])
    if direction == "query-second":
        queries, items = (wide[:, :second], narrow[:, :first])
    return (items, queries[:20]) if isinstance(model, Divergence) else (50 + 10 * items, 50 + 10 * queries[:20])


def nearest(maps: KeysAndQueries, keys: NDArray[Any], queries: NDArray[Any], k: int) -> NDArray[Any]:
    scores = queries.astype(np.float64) @ keys.T.astype(np.float64)
    if maps.form == "euclidean":
        scores = 2 * scores - np.square(keys.astype(np.float64)).sum(1)
    return np.argsort(-scores, 1)[:, :k]


@pytest.mark.parametrize("form", ["inner-product", "euclidean"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("which", ["learner", "two-sided"])
def test_raw_points_are_ranked_as_by_an_index_also_after_saving(
    learner: askew.DivergenceLearner, which: str, direction: str, form: str, tmp_path: Path
) -> None:
    model = learner if which == "learner" else two_sided()
    items, queries = sides(model, direction)
    index = ExactIndex(model, direction)
    index.add(items)
    _, ids = index.search_order(queries, 5)
    maps = keys_and_queries(model, direction, form, items)
    keys, vectors = maps.keys(items), maps.queries(queries)
    assert keys.shape == (300, maps.size)
    assert maps.metric == {"inner-product": "ip", "euclidean": "l2"}[form]
    found = nearest(maps, keys.numpy(), vectors.numpy(), 5)
    assert np.mean(found == ids) > 0.97  # rounding exchanges near ones
    askew.save(maps, tmp_path)
    again = askew.load(tmp_path)
    assert isinstance(again, KeysAndQueries)
    assert (again.direction, again.form) == (direction, form)
    assert torch.equal(again.keys(items), keys)
    assert torch.equal(again.queries(queries), vectors)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("which", ["learner", "two-sided"])
def test_exported_vectors_are_those_of_the_maps(
    learner: askew.DivergenceLearner, which: str, direction: str, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model: Any = learner if which == "learner" else two_sided()
    items, queries = sides(model, direction)
    # Of a learner the inner-product form, of the other model the Euclidean one.
    exported = model if which == "learner" else keys_and_queries(model, direction, "euclidean", items)
    maps = keys_and_queries(model, direction) if which == "learner" else exported
    given = {"direction": direction} if which == "learner" else {}
    for what, points, expected in (("key", items, maps.keys(items)), ("query", queries, maps.queries(queries))):
        askew.export(exported, tmp_path / f"{what}.onnx", what=what, **given)
        session = onnxruntime.InferenceSession(tmp_path / f"{what}.onnx")
        (argument,), (output,) = session.get_inputs(), session.get_outputs()
        assert (argument.name, argument.type, argument.shape) == ("x", "tensor(float)", ["n", points.shape[1]])
        assert (output.name, output.shape) == ("vectors", ["n", maps.size])
        for n in (1, len(points)):
            (vectors,) = session.run(None, {"x": points[:n]})
            np.testing.assert_allclose(vectors, expected[:n], rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    if maps.form == "euclidean" and which == "two-sided":
        far = onnxruntime.InferenceSession(tmp_path / "key.onnx").run(None, {"x": 1000 * items[:1]})[0]
        assert np.isnan(far[0, -1])


def test_maps_are_a_copy_and_take_whole_batches_only(learner: askew.DivergenceLearner) -> None:
    model = Embedded(nn.Linear(4, 3), make("nbd", 3))
    maps, points = keys_and_queries(model), torch.randn(5, 4)
    before = maps.keys(points)
    with torch.no_grad():
        model.encoder.weight.mul_(2)  # type: ignore[operator,union-attr]
    assert torch.equal(maps.keys(points), before)
    with pytest.raises(ValueError, match=r"items of keys_and_queries must be a batch of points. Got shape \(4,\)"):
        maps.keys(points[0])
    with pytest.raises(ValueError, match=r"queries of keys_and_queries must be finite. Got queries\[0, 0\] = nan"):
        maps.queries(points * torch.nan)
    with pytest.raises(ValueError, match=r"a DivergenceLearner that is not fitted instead\. Call its fit first"):
        keys_and_queries(askew.DivergenceLearner())
    # A point of the default form is not on the scale of the data, but the order is right all the same.
    assert keys_and_queries(learner).size == learner.divergence_.dim + 1


@pytest.mark.parametrize(
    ("what", "direction", "error", "message"),
    [
        ("forward", "query-first", ValueError, "direction of export must be given only for 'key' and 'query'"),
        ("query", "query-third", ValueError, "direction of keys_and_queries must be one of"),
        ("querry", None, ValueError, "Did you mean 'query'"),
    ],
)
def test_bad_exports(tmp_path: Path, what: str, direction: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        askew.export(make("nbd", 3), tmp_path / "a.pt2", what=what, direction=direction)
    assert not list(tmp_path.iterdir())


def test_maps_have_one_direction_and_two_graphs(tmp_path: Path) -> None:
    maps = keys_and_queries(make("euclidean", 3))
    with pytest.raises(ValueError, match="direction of export must be given only for"):
        askew.export(maps, tmp_path / "a.pt2", what="key", direction="query-first")
    for what in (None, "forward"):
        with pytest.raises(ValueError, match="what of KeysAndQueries must be one of 'key', 'query'"):
            askew.export(maps, tmp_path / "a.pt2", what=what)
    with pytest.raises(TypeError, match=r"a Bregman divergence, a drift.*Got IQE"):
        askew.export(make("iqe", 8), tmp_path / "a.pt2", what="key")
    askew.export(maps, tmp_path / "a.pt2", what="key")
    x = torch.randn(4, 3)
    torch.testing.assert_close(torch.export.load(tmp_path / "a.pt2").module()(x), maps.keys(x))


# ---------------------------------------------------------------------- without torch

# An import of torch or askew raises, as in an environment that has neither.
WITHOUT = """
import sys, time
sys.modules["torch"] = sys.modules["askew"] = None
start = time.process_time()
exec(open("serve.py").read())
print(time.process_time() - start)
print(ids[:, 0].tolist())
"""


def test_the_page_serves_a_faiss_index_without_torch(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    pytest.importorskip("onnxruntime")
    page = (ROOT / "docs" / "export.md").read_text("utf-8").partition("## Serve without torch")[2]
    build, serve = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[:2]
    names: dict[str, Any] = {}
    exec(build.replace("tempfile.mkdtemp()", repr(str(tmp_path))), names)
    (tmp_path / "serve.py").write_text(f"folder = {str(tmp_path)!r}\n{serve}", "utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seconds, answers = done.stdout.splitlines()
    assert float(seconds) < 1, "import and first query, in seconds of CPU"
    index = ExactIndex(names["learner"])
    index.add(names["items"])
    assert answers == str(index.search(names["queries"], 1)[1][:, 0].tolist())
