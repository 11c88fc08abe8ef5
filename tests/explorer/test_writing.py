"""The file: what goes into it, what is refused, and that it is whole or absent."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import askew
from askew import potentials
from askew.checks import REAL, SIMPLEX
from askew.divergences import CATALOGUE, Bregman, Divergence, Embedded, Euclidean, Jensen, Reversed
from askew.encoders import SmallCNN
from askew.explorer import can_show, description, write_explorer
from askew.explorer.description import pack
from askew.explorer.scene import chosen_rows, make_scene

GENERATOR = np.random.default_rng(0)
TABLE = GENERATOR.normal(size=(60, 3)) * [1.0, 10.0, 0.1] + 5
LABELS = np.repeat(["b", "a", "c"], 20)


def content(file: Path) -> dict[str, Any]:
    """Return the data of a page."""
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', file.read_text("utf-8"), re.S)
    assert found is not None
    result: dict[str, Any] = json.loads(found[1])
    return result


def with_hole() -> Any:
    table = TABLE.copy()
    table[4, 1] = np.nan
    return table


def numbers(packed: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(packed["data"]), f"<{packed['type']}").reshape(packed["shape"])


@pytest.fixture(scope="module")
def learner() -> askew.DivergenceLearner:
    return askew.DivergenceLearner(encoder=None, steps=5, random_state=0).fit(TABLE, LABELS)


# ---------------------------------------------------------------------- models


def test_a_learner_brings_its_points_and_labels(learner: askew.DivergenceLearner, tmp_path: Path) -> None:
    file = write_explorer(learner, tmp_path / "page.html")
    assert file == tmp_path / "page.html"
    found = content(file)
    np.testing.assert_array_equal(numbers(found["points"]), TABLE)
    assert found["labels"] == LABELS.tolist()
    assert found["classes"] == ["a", "b", "c"]
    assert found["rows"] == list(range(60))
    assert found["features"] == ["feature 1", "feature 2", "feature 3"]
    assert found["name"] == "Learned"


def test_given_points_replace_those_of_the_learner_and_its_labels(
    learner: askew.DivergenceLearner, tmp_path: Path
) -> None:
    found = content(write_explorer(learner, tmp_path / "page.html", TABLE[:4]))
    assert found["points"]["shape"] == [4, 3]
    assert found["labels"] is None


def test_all_that_load_returns_can_be_shown(learner: askew.DivergenceLearner, tmp_path: Path) -> None:
    classifier = askew.DivergenceNeighborsClassifier(learner).fit(TABLE, LABELS)
    pairs = np.stack([TABLE[:30], TABLE[30:]], 1)
    regressor = askew.PairRegressor(encoder=None, steps=2, random_state=0).fit(pairs, np.ones(30))
    for i, model in enumerate((learner, classifier, regressor, learner.model_, Reversed(learner.model_))):
        askew.save(model, tmp_path / str(i))
        found = content(write_explorer(askew.load(tmp_path / str(i)), tmp_path / f"{i}.html"))
        assert found["dim"] == 3
        assert [step["kind"] for step in found["model"]["encoder"]] == ["scale"]
        assert (found["points"] is None) == isinstance(model, Divergence)


def test_names_of_the_data_frame_are_those_of_the_axes(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(TABLE, columns=["length", "width", "height"])
    learner = askew.DivergenceLearner("mahalanobis", encoder=None, steps=2, random_state=0).fit(frame, LABELS)
    assert content(write_explorer(learner, tmp_path / "page.html"))["features"] == ["length", "width", "height"]
    named = write_explorer(learner, tmp_path / "page.html", feature_names=["x", "y", "z"])
    assert content(named)["features"] == ["x", "y", "z"]


SHOWN = {"nbd", "nbd-paper", "mahalanobis", "mahalanobis-norm", "euclidean", "euclidean-norm", "bregman-sqrt"}
SHOWN |= {
    "bregman-gs",
    "kl",
    "kl-simplex",
    "itakura-saito",
    "logistic",
    "log-sum-exp",
    "exponential",
    "hyperbolic",
    "power",
}
SHOWN |= {"deep-div-affine", "pbdl", "hyperbolic", "drift", "drift-root", "drift-mahalanobis"}


@pytest.mark.parametrize("name", CATALOGUE)
def test_each_of_the_catalogue_is_shown_or_refused_in_words(name: str, tmp_path: Path) -> None:
    if name in SHOWN:
        assert write_explorer(askew.make(name, 3), tmp_path / "page.html").stat().st_size > 10_000
        return
    with pytest.raises(TypeError, match=r"model of write_explorer must be the Bregman divergence of a potential .*Got"):
        write_explorer(askew.make(name, 3), tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (Jensen(askew.make("kl", 3)), TypeError, "Got Jensen instead. .*askew.plot.balls"),
        (
            Bregman(potentials.FromFunction(lambda x: x.pow(2).sum(-1), 3)),
            TypeError,
            "Got a Bregman divergence of FromF",
        ),
        (askew.divergences.Dual(askew.NeuralBregman(3)), TypeError, "Got a Bregman divergence of Conjugate"),
        (Embedded(nn.GELU(), Euclidean(3)), TypeError, "encoder of write_explorer must be of Standardize.* Got GELU"),
        (Embedded(SmallCNN(1, 8, 4), Euclidean(4)), TypeError, "Got SmallCNN instead"),
        (askew.DivergenceLearner(), ValueError, "Got a DivergenceLearner that is not fitted instead. Call its fit"),
        (askew.DivergenceNeighborsClassifier(), ValueError, "Got a DivergenceNeighborsClassifier that is not fitted"),
        ("nbd", TypeError, "a fitted learner, the Bregman divergence .* Got str instead"),
        (Euclidean(1), ValueError, "at least 2 features. Got 1"),
        (askew.make("kl-simplex", 4), ValueError, "given for distributions"),
        (Embedded(nn.Identity(), Euclidean(2)), None, ""),
    ],
)
def test_what_cannot_be_shown_says_what_can(
    model: object, error: type[Exception] | None, message: str, tmp_path: Path
) -> None:
    if error is None:
        write_explorer(model, tmp_path / "page.html")
        return
    with pytest.raises(error, match=message):
        write_explorer(model, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_asking_what_can_be_shown_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "pack", None)
    assert can_show(Embedded(nn.Linear(3, 2), askew.NeuralBregman(2)))
    assert not can_show(askew.make("deepnorm", 3))
    with pytest.raises(TypeError, match="not callable"):
        description.describe(askew.NeuralBregman(2)).to_json()


# ---------------------------------------------------------------------- data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points": TABLE[:, :2]}, r"points of write_explorer must be of shape \(n, 3\)"),
        ({"points": TABLE[:0]}, "with at least one row"),
        ({"points": with_hole()}, "Got row 4, column 1 = nan"),
        ({"points": [["a", "b", "c"]]}, "must be numbers"),
        ({"points": TABLE, "labels": LABELS[:9]}, r"labels of write_explorer must be of shape \(60,\)"),
        ({"labels": LABELS}, "points of write_explorer must be given where labels are"),
        ({"points": TABLE, "feature_names": ["a", "b"]}, "a sequence of 3 names. Got 2 names"),
        ({"points": TABLE, "feature_names": "abc"}, "a sequence of 3 names. Got 'abc'"),
    ],
)
def test_wrong_data_is_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        write_explorer(Euclidean(3), tmp_path / "page.html", **arguments)


def test_many_points_are_thinned_by_class_and_the_page_says_so(tmp_path: Path) -> None:
    labels = np.repeat(["many", "some", "few"], [3000, 400, 20])
    points = GENERATOR.normal(size=(3420, 3))
    file = write_explorer(Euclidean(3), tmp_path / "page.html", points, labels)
    found = content(file)
    shown = np.array(found["labels"])
    assert [(shown == name).sum() for name in ("many", "some", "few")] == [240, 240, 20]
    np.testing.assert_array_equal(numbers(found["points"]), points[found["rows"]])
    assert "Shows 500 of 3,420 data points, spread evenly over the classes." in file.read_text("utf-8")
    np.testing.assert_allclose(numbers(found["mean"]), points.mean(0))  # of all points, not of those shown


@pytest.mark.parametrize("n", [1, 499, 500, 501, 5000])
@pytest.mark.parametrize("classes", [0, 1, 3, 700])
def test_rows_are_distinct_in_order_and_at_most_500(n: int, classes: int) -> None:
    labels = [str(i % classes) for i in range(n)] if classes else None
    rows = chosen_rows(labels, n)
    assert len(rows) == min(n, 500)
    assert (np.diff(rows) > 0).all()
    assert rows.max() < n


def test_rare_classes_share_a_colour() -> None:
    labels = [str(i) for i in range(30)] + ["7"] * 5
    points = GENERATOR.normal(size=(35, 2))
    classes = make_scene(points, labels, None, 2, REAL, None).content["classes"]
    assert len(classes) == 11
    assert "7" in classes
    assert classes == sorted(classes, key=float)


def test_principal_plane_measures_what_it_steps() -> None:
    principal = make_scene(TABLE, None, None, 3, REAL, None).content["principal"]
    steps, measure = numbers(principal["steps"]), numbers(principal["measure"])
    np.testing.assert_allclose(measure @ steps.T, np.eye(2), atol=1e-12)
    assert 0 < principal["shares"][1] <= principal["shares"][0] < 1


def test_plane_of_distributions_stays_among_them() -> None:
    points = GENERATOR.dirichlet([1, 2, 3, 4], size=50)
    steps = numbers(make_scene(points, None, None, 4, SIMPLEX, None).content["principal"]["steps"])
    np.testing.assert_allclose(steps.sum(1), 0, atol=1e-12)


def test_mahalanobis_leaves_out_what_does_not_vary() -> None:
    points = np.column_stack([TABLE, TABLE.sum(1), np.ones(60)])
    whitening = numbers(make_scene(points, None, None, 5, REAL, None).content["mahalanobis"])
    assert whitening.shape == (5, 3)
    embeddings = points @ whitening
    np.testing.assert_allclose(np.cov(embeddings, rowvar=False, bias=True), np.eye(3), atol=1e-8)


def test_without_data_the_page_looks_where_the_model_was_scaled_to(
    learner: askew.DivergenceLearner, tmp_path: Path
) -> None:
    found = content(write_explorer(learner.model_, tmp_path / "page.html"))
    np.testing.assert_allclose(numbers(found["mean"]), TABLE.mean(0))
    np.testing.assert_allclose(numbers(found["std"]), 1.5 * TABLE.std(0))
    network = askew.NeuralBregman(3)
    network.calibrate(*torch.from_numpy(TABLE).float().split(30))
    found = content(write_explorer(network, tmp_path / "page.html"))
    np.testing.assert_allclose(numbers(found["mean"]), TABLE.mean(0), rtol=1e-5)
    found = content(write_explorer(askew.NeuralBregman(3), tmp_path / "page.html"))
    np.testing.assert_array_equal(numbers(found["mean"]), np.zeros(3))


# ---------------------------------------------------------------------- the file


def test_the_file_needs_nothing_else(learner: askew.DivergenceLearner, tmp_path: Path) -> None:
    text = write_explorer(learner, tmp_path / "page.html").read_text("utf-8")
    assert not re.search(r"https?://|//www|@import|url\(|\bimport\b *[({'\"]|\bfetch\(|XMLHttp|WebSocket", text)
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "default-src 'none'" in text
    assert "%%" not in text


def test_text_cannot_end_the_script_or_open_a_tag(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script><!-- %%data%% & \u2028"
    labels = np.where(np.arange(60) < 30, bad, "other")
    file = write_explorer(Euclidean(3), tmp_path / "page.html", TABLE, labels, feature_names=[bad, "b", "c"], title=bad)
    text = file.read_text("utf-8")
    assert "alert(1)</script>" not in text
    found = content(file)
    assert found["features"][0] == found["labels"][0] == bad
    assert text.count("</script>") == 2


def test_an_old_page_is_replaced_or_kept_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("old", "utf-8")
    with pytest.raises(TypeError):
        write_explorer(askew.make("iqe", 3), file)
    assert file.read_text("utf-8") == "old"
    write_explorer(Euclidean(3), str(file))
    assert file.read_text("utf-8").startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(FileNotFoundError, match="could not be written: No such file or directory"):
        write_explorer(Euclidean(3), tmp_path / "nowhere" / "page.html")


def test_same_model_and_data_give_the_same_file(learner: askew.DivergenceLearner, tmp_path: Path) -> None:
    files = [write_explorer(learner, tmp_path / f"{i}.html") for i in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_numbers_are_packed_lowest_byte_first() -> None:
    packed = pack(torch.tensor([[1.0, -2.5]]), wide=True)
    np.testing.assert_array_equal(numbers(packed), [[1.0, -2.5]])
    assert pack(np.float64(0.1))["shape"] == []
