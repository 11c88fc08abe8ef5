"""Deep metric learning: its cells, its training on triplets of images, and what is measured."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from askew_paper.catalogue import EXPERIMENTS
from askew_paper.data.images import SETS
from askew_paper.encoders import IMAGENET_MEAN, IMAGENET_STD, ResNet20
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments import deep_metric, images
from askew_paper.experiments.deep_metric import DEEP_METRIC, METHODS, learn_metric, retrieval, run
from askew_paper.experiments.images import Labelled, Pixels, drawn_images, encoder_of, some_images
from askew_paper.experiments.training import Learned, Plan
from askew_paper.heads import make_head
from askew_paper.published import published
from askew_paper.runner import Failed, compute, reproduce
from torch import Tensor, nn

from askew.divergences import make
from askew.metrics import ranking

TOY = {cell.method: cell for cell in DEEP_METRIC.checked_cells("toy")}


def scores(cell: Cell) -> dict[str, float]:
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    return dict(found.scores)


# ---------------------------------------------------------------------- cells


def test_toy_run_gives_every_row(tmp_path: Path) -> None:
    rows = reproduce([DEEP_METRIC], tmp_path, "toy")
    assert [row.cell.method for row in rows] == list(METHODS)
    for row in rows:
        assert set(row.scores) == {"map@10", "precision@1"}
        assert all(0 <= value <= 100 for value in row.scores.values())
        assert len(row.curves.get("training loss", ())) == dict(row.cell.options).get("epochs", 0)


def test_all_that_is_published_is_there() -> None:
    assert EXPERIMENTS["deep-metric"] is DEEP_METRIC
    cells = DEEP_METRIC.checked_cells("paper", 1)
    assert {(c.setting, c.method) for c in cells} >= {(p.setting, p.method) for p in published("deep-metric")}
    paper = {"encoder": "resnet18", "side": 224, "train": None, "test": None, "epochs": 30, "batch": 64}
    paper |= {"embedding": 32, "rates": (1e-4,), "margin": 0.2}
    [ours, *_] = [c for c in cells if c.method == "nbd-paper"]
    assert {name: ours[name] for name in paper} == paper
    # The paper's figures are in percent, as ours are.
    assert all(50 < entry.mean < 100 for entry in DEEP_METRIC.published)


def test_quick_scale_has_stl10_where_its_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKEW_DATA", str(tmp_path))
    assert {c.setting for c in DEEP_METRIC.cells("quick", 1)} == {"cifar10", "svhn"}
    for source in SETS["stl10"].train + SETS["stl10"].test:
        path = tmp_path / source.file
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert {c.setting for c in DEEP_METRIC.cells("quick", 1)} == {"cifar10", "svhn", "stl10"}


def test_a_cell_without_its_files_says_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKEW_DATA", str(tmp_path))
    [cell, *_] = [c for c in DEEP_METRIC.cells("paper", 1) if c.setting == "stl10"]
    found = compute(run, cell)
    assert isinstance(found, Failed)
    assert "stl10" in found.error
    assert "Download it from http" in found.error
    with pytest.raises(FileNotFoundError, match=r"resnet18-f37072fd.pth must be in .* Download it from https"):
        encoder_of("resnet18", 32, 224)


@pytest.mark.parametrize("method", ["nbd", "deep-div", "untrained"])
def test_same_seed_gives_the_same_row(method: str) -> None:
    first = scores(TOY[method])
    torch.rand(3)  # what happened before does not matter
    assert scores(TOY[method]) == first
    assert scores(dataclasses.replace(TOY[method], seed=1)) != first


@pytest.mark.parametrize("method", METHODS[1:])
def test_all_methods_start_with_half_of_the_margin(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep_metric, "learn", lambda *parts, **settings: Learned("finished", (), {}))
    torch.manual_seed(0)
    train, encoder = drawn_images(200, side=8, seed=0), encoder_of("small-cnn", 8, side=8)
    divergence = make_head(method, 8, standardised=True)
    learn_metric(encoder, divergence, train, Plan(1, 20, (1e-3,)), seed=0, margin=0.2)
    points = images.embed(encoder, train.pixels)
    assert divergence(points[:100], points[100:]).median().item() == pytest.approx(0.1, rel=0.02)


# ---------------------------------------------------------------------- images and encoders


def test_stored_images_are_normalised_and_resized() -> None:
    pixels = torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    keep = encoder_of(nn.Identity(), None, side=8)
    mean, std = (torch.tensor(value)[:, None, None] for value in (IMAGENET_MEAN, IMAGENET_STD))
    torch.testing.assert_close(keep(pixels), (pixels.float() / 255 - mean) / std)
    torch.testing.assert_close(keep(pixels.float() / 255), keep(pixels))
    halved = Pixels(nn.Identity(), side=4)(pixels)
    assert halved.shape == (3, 3, 4, 4)
    even = torch.full((1, 3, 8, 8), 128, dtype=torch.uint8)
    torch.testing.assert_close(Pixels(nn.Identity(), side=4)(even), keep(even)[:, :, :4, :4])


def test_encoders_by_name_and_own_ones() -> None:
    own = ResNet20(out=5)
    assert encoder_of(own, None, side=16).encoder is own
    with pytest.raises(ValueError, match=r"name of an encoder must be one of .* Did you mean 'resnet20'"):
        encoder_of("resnet-20", 32, 32)
    with pytest.raises(ValueError, match=r"side of Pixels must be a positive integer\. Got 0 instead\."):
        Pixels(own, 0)


def test_published_weights_are_read_and_the_last_layer_starts_at_random() -> None:
    _published("resnet20/resnet20-12fca82f.th")
    one, two = (encoder_of("resnet20", 32, 32).encoder.state_dict() for _ in range(2))
    different = {name for name in one if not torch.equal(one[name], two[name])}
    assert different == {"linear.weight", "linear.bias"}


def test_images_are_drawn_once_each_and_by_the_seed() -> None:
    _published("cifar-10-batches-py/test_batch")
    one, again, other = (some_images("cifar10", "test", 50, 32, seed) for seed in (0, 0, 1))
    assert torch.equal(one.pixels, again.pixels)
    assert torch.equal(one.labels, again.labels)
    assert not torch.equal(one.pixels, other.pixels)
    assert (one.pixels.shape, one.pixels.dtype) == ((50, 3, 32, 32), torch.uint8)
    assert len({pixels.numpy().tobytes() for pixels in one.pixels}) == 50


def _published(name: str) -> None:
    """Skip the test where a file of the experiments' data is missing."""
    folder = os.environ.get("ASKEW_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"ASKEW_DATA has no {name}")


def test_training_and_test_images_are_different() -> None:
    train, test = (some_images("drawn", split, 20, 8, seed=0) for split in ("train", "test"))
    assert not torch.equal(train.pixels, test.pixels)


# ---------------------------------------------------------------------- learning and measuring


class Counting(nn.Module):
    """A linear map that counts the batches and the images that go through it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(192, 4)
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        result: Tensor = self.linear(x.flatten(1))
        return result


def test_each_image_of_a_batch_is_encoded_once() -> None:
    own = Counting()
    train = drawn_images(60, side=8, seed=0)
    encoder = encoder_of(own, None, side=8)
    learn_metric(encoder, make("nbd", 4), train, Plan(2, 20, (1e-3,)), seed=0, margin=0.2)
    assert own.sizes == [60] + 6 * [20]  # for the scales of the divergence, then the steps


def test_training_helps() -> None:
    train, test = drawn_images(300, side=8, seed=0), drawn_images(100, side=8, seed=1)
    torch.manual_seed(0)
    encoder, divergence = encoder_of("small-cnn", 8, side=8), make("nbd", 8)
    before = retrieval(encoder, divergence, test, train)
    learned = learn_metric(encoder, divergence, train, Plan(15, 50, (5e-3,)), seed=0, margin=0.2)
    after = retrieval(encoder, divergence, test, train)
    assert learned.stopped == "finished"
    assert learned.losses[-1] < learned.losses[0]
    assert after["map@10"] > before["map@10"] + 20


def test_diverged_training_is_measured_where_it_was_good() -> None:
    train = drawn_images(60, side=8, seed=0)
    torch.manual_seed(0)
    encoder, divergence = encoder_of("small-cnn", 8, side=8), make("mahalanobis", 8)
    learned = learn_metric(encoder, divergence, train, Plan(30, 20, (1e30,)), seed=0, margin=0.2)
    assert learned.stopped == "diverged"
    assert 0 <= retrieval(encoder, divergence, train, train)["map@10"] <= 100


@pytest.mark.parametrize("method", ["nbd", "deep-div"])
def test_blocks_of_queries_give_what_the_whole_matrix_gives(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    queries, pool = drawn_images(33, side=8, seed=0), drawn_images(80, side=8, seed=1)
    encoder, divergence = encoder_of("small-cnn", 8, side=8).eval(), make(method, 8)
    with torch.no_grad():
        matrix = divergence.pairwise(encoder(queries.pixels), encoder(pool.pixels))
    expected = ranking(matrix, queries.labels, pool.labels, k=10)
    monkeypatch.setattr(deep_metric, "ENTRIES", 500)
    monkeypatch.setattr(images, "IMAGES", 7)
    found = retrieval(encoder, divergence, queries, pool)
    assert found == pytest.approx({name: 100 * expected[name] for name in ("map@10", "precision@1")})


def test_map_divides_by_the_relevant_images_where_they_are_few() -> None:
    flat = encoder_of(nn.Flatten(), None, side=1)
    grey = torch.tensor([0, 10, 20, 200], dtype=torch.uint8)[:, None, None, None].expand(4, 3, 1, 1)
    query, pool = Labelled(grey[:1], torch.tensor([5])), Labelled(grey, torch.tensor([5, 1, 5, 1]))
    found = retrieval(flat, make("euclidean", 3), query, pool)
    assert found["map@10"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert found["precision@1"] == 100
