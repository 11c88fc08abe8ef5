"""Models on disk: they come back exactly, survive being killed, and what is wrong with a file is said."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from askew_paper.encoders import ResNet20
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from members import CATALOGUE, DIM, into_domain, train
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

import askew
from askew import encoders, estimators, io
from askew.divergences import Bregman, Divergence, Dual, Embedded, Euclidean, NeuralBregman, Sqrt, make
from askew.io import load, load_tensors, save, saving
from askew.potentials import ICNN, FromFunction, NegativeEntropy
from askew.training import History


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def weights_of(folder: Path) -> str:
    name: str = json.loads((folder / "model.json").read_text())["weights"]["file"]
    return name


def same_state(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return list(first) == list(second) and all(
        tensor.dtype == second[name].dtype and torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


class OwnEncoder(nn.Module):
    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(size, 2)
        self.register_buffer("seen", torch.tensor(7))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh()


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_divergence_comes_back_exactly(tmp_path: Path, name: str) -> None:
    divergence = make(name, DIM)
    if CATALOGUE[name].learned:
        train(divergence, steps=3)
    save(divergence, tmp_path)
    again = load(tmp_path)
    assert type(again) is type(divergence)
    assert same_state(again, divergence)
    x, y = (into_domain(divergence.domain, torch.randn(5, DIM)) for _ in range(2))
    assert torch.equal(again(x, y), divergence(x, y))
    assert names(tmp_path) == {"model.json", weights_of(tmp_path)}


MODELS: dict[str, Callable[[], nn.Module]] = {
    "embedded": lambda: Embedded(encoders.MLP(3, 2, (4,)), NeuralBregman(2, widths=(4,)).double()),
    "embedded-layers": lambda: Embedded(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), Sqrt(Euclidean(2))),
    "dual": lambda: Dual(Bregman(NegativeEntropy(3))),
    "potential": lambda: ICNN(3, widths=(4,)),
    "encoder": lambda: ResNet20(out=4),
    "half-encoder": lambda: Embedded(encoders.Linear(3, 2).bfloat16(), Euclidean(2)),
}


@pytest.mark.parametrize("name", MODELS)
def test_other_modules_come_back_exactly(tmp_path: Path, name: str) -> None:
    module = MODELS[name]()
    save(module, tmp_path)
    again = load(tmp_path)
    assert type(again) is type(module)
    assert same_state(again, module)
    assert repr(again) == repr(module)


def test_frozen_parameters_and_modes_come_back(tmp_path: Path) -> None:
    module = Embedded(ResNet20(out=4), NeuralBregman(4, widths=(4,)))
    module.encoder.eval().requires_grad_(False)
    module.encoder.layer1.train()
    save(module, tmp_path)
    again = load(tmp_path)
    assert [part.training for part in again.modules()] == [part.training for part in module.modules()]
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in module.parameters()]
    save(module.eval(), tmp_path)
    assert not load(tmp_path).training


def test_wrappers_of_torch_are_taken_off(tmp_path: Path) -> None:
    module = NeuralBregman(3, widths=(4,))
    save(torch.compile(module, backend="eager"), tmp_path)
    assert same_state(load(tmp_path), module)


def test_the_same_model_gives_the_same_files(tmp_path: Path) -> None:
    module = NeuralBregman(3, widths=(4,))
    for folder in ("a", "b"):
        save(module, tmp_path / folder)
    assert names(tmp_path / "a") == names(tmp_path / "b")
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_an_encoder_of_the_user(tmp_path: Path) -> None:
    module = Embedded(OwnEncoder(), NeuralBregman(2, widths=(4,)))
    save(module, tmp_path)
    assert same_state(load(tmp_path, encoder=OwnEncoder()), module)
    with pytest.raises(ValueError, match=r"encoder must be a module of the class '.*OwnEncoder'.*Pass one"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"with encoder.layer.weight of shape \(2, 4\). Got encoder.layer.weight of"):
        load(tmp_path, encoder=OwnEncoder(4))
    with pytest.raises(TypeError, match=r"encoder of load must be a torch.nn.Module. Got type instead."):
        load(tmp_path, encoder=OwnEncoder)  # type: ignore[arg-type]
    save(module.encoder, tmp_path)
    assert same_state(load(tmp_path, encoder=OwnEncoder()), module.encoder)


def test_an_encoder_that_is_not_wanted(tmp_path: Path) -> None:
    save(Euclidean(2), tmp_path)
    with pytest.raises(
        ValueError, match=r"encoder of load must be None, as the model in this folder can be made without"
    ):
        load(tmp_path, encoder=OwnEncoder())


def test_several_classes_that_nobody_knows(tmp_path: Path) -> None:
    class Other(OwnEncoder):
        pass

    with pytest.raises(
        ValueError, match=r"must be made of classes of askew, and at most one other. Got .*OwnEncoder, .*Other"
    ):
        save(Embedded(nn.Sequential(OwnEncoder(), Other(2)), Euclidean(2)), tmp_path)
    assert names(tmp_path) == set()


def test_a_divergence_of_the_user(tmp_path: Path) -> None:
    class Cityblock(Divergence):
        def __init__(self, dim: int, weight: float = 1.0) -> None:
            super().__init__(dim)
            self.weight = weight

        def compute(self, x: Tensor, y: Tensor) -> Tensor:
            return self.weight * (x - y).abs().sum(-1)

    save(Cityblock(3, weight=2.5), tmp_path)
    assert load(tmp_path, classes=[Cityblock]).weight == 2.5
    with pytest.raises(ValueError, match=r"classes must be given.*Cityblock.*Pass it: askew.load\(folder, classes="):
        load(tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        History([{"step": 1, "loss": float("nan")}, {"step": 2, "loss": 0.1}], "early", 2),
        History(),
        {"step": 3, "state": {0: torch.arange(3)}, "best": (1.5, None), "name": "run"},
    ],
    ids=["history", "empty-history", "values"],
)
def test_histories_and_states(tmp_path: Path, value: object) -> None:
    save(value, tmp_path)
    again = load(tmp_path)
    assert type(again) is type(value)
    assert repr(again) == repr(value)


# ---------------------------------------------------------------------- estimators


class Learner:
    """What a scikit-learn estimator of the library looks like from here."""

    saved_attributes: ClassVar[tuple[str, ...]] = (
        "divergence_",
        "encoder_",
        "classes_",
        "items_",
        "history_",
        "parts_",
        "inner_",
        "never_",
    )

    def __init__(
        self,
        divergence: str | Divergence = "nbd",
        encoder: nn.Module | None = None,
        rates: object = (0.1, 1),
        random_state: object = None,
    ) -> None:
        self.divergence = divergence
        self.encoder = encoder
        self.rates = rates
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, object]:
        assert not deep
        return {name: getattr(self, name) for name in ("divergence", "encoder", "rates", "random_state")}

    def fit(self) -> Learner:
        self.divergence_ = NeuralBregman(2, widths=(4,))
        self.encoder_ = copy.deepcopy(self.encoder)
        self.classes_ = np.array(["no", "yes"])
        self.items_ = np.random.default_rng(0).normal(size=(3, 2))
        self.history_ = History([{"step": np.int64(1), "loss": 0.5}])  # type: ignore[dict-item]
        self.parts_ = {
            "folds": [self.divergence_, None],
            "labels": np.array([1, "a"], dtype=object),
            "score": np.float64(0.1),
        }
        self.inner_ = Learner(divergence="kl")
        self.temporary_ = object()
        return self


@pytest.fixture
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(saving.ESTIMATORS, "Learner", (__name__, "Learner"))


@pytest.mark.usefixtures("_known")
def test_an_estimator_comes_back_exactly(tmp_path: Path) -> None:
    learner = Learner(encoder=encoders.Linear(3, 2), rates={"a": [1, 2.5]}, random_state=3).fit()
    save(learner, tmp_path)
    again = load(tmp_path)
    assert type(again) is Learner
    assert (again.divergence, again.rates, again.random_state) == ("nbd", {"a": [1, 2.5]}, 3)
    for name in ("encoder", "encoder_", "divergence_"):
        assert same_state(getattr(again, name), getattr(learner, name))
    assert again.encoder is not again.encoder_
    assert again.parts_["folds"][0] is again.divergence_
    assert again.classes_.dtype == learner.classes_.dtype
    assert again.items_.dtype == np.float64
    assert np.array_equal(again.items_, learner.items_)
    assert again.history_["step"] == [1]
    assert again.parts_["labels"].tolist() == [1, "a"]
    assert type(again.parts_["score"]) is np.float64
    assert again.inner_.divergence == "kl"
    assert not hasattr(again, "never_")
    assert not hasattr(again, "temporary_")


def fitted() -> tuple[askew.DivergenceLearner, NDArray[Any], NDArray[Any]]:
    random, labels = np.random.default_rng(0), np.arange(3000) % 3
    points = random.normal(size=(3000, 5)) + 3 * random.normal(size=(3, 5))[labels]
    return askew.DivergenceLearner("nbd", "mlp", steps=2, random_state=0).fit(points, labels), points, labels


def test_a_learner_stores_its_points_once(tmp_path: Path) -> None:
    learner, points, labels = fitted()
    save(learner, tmp_path)
    (weights,) = tmp_path.glob("*.safetensors")
    numbers = sum(p.numel() for p in learner.model_.parameters())
    assert weights.stat().st_size < points.nbytes + labels.nbytes + 4 * numbers + 20_000
    again = load(tmp_path)
    for got, want in zip(again.kneighbors(points[:50]), learner.kneighbors(points[:50]), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(again.items_, learner.items_)
    assert again.score(points[:20], labels[:20]) == learner.score(points[:20], labels[:20])


def test_a_learner_without_its_points(tmp_path: Path) -> None:
    learner, points, labels = fitted()
    save(learner, tmp_path / "all")
    save(learner, tmp_path, points=False)
    (weights,) = tmp_path.glob("*.safetensors")
    tensors, _ = load_tensors(weights, "weights")
    assert not [name for name, tensor in tensors.items() if len(tensor.shape) and tensor.shape[0] == len(points)]
    again = load(tmp_path)
    np.testing.assert_array_equal(again.pairwise(points[:9], points[:7]), learner.pairwise(points[:9], points[:7]))
    np.testing.assert_array_equal(again.transform(points[:9]), learner.transform(points[:9]))
    index = askew.search.ExactIndex(again)
    index.add(points[:100])
    assert index.search(points[:3], 1)[1].ravel().tolist() == [0, 1, 2]
    message = r"items_ of DivergenceLearner must be there.*saved with points=False instead\. Save it with points=True"
    for call in (lambda: again.kneighbors(points[:5]), lambda: again.score(points, labels), lambda: again.items_):
        with pytest.raises(AttributeError, match=message):
            call()
    assert not hasattr(again, "points_")
    assert not hasattr(again, "labels_")
    save(again, tmp_path / "second")  # what is not there is not missed
    assert load(tmp_path / "second").n_features_in_ == 5
    assert pickle.loads(pickle.dumps(again)).choice_ == learner.choice_
    classifier = askew.DivergenceNeighborsClassifier(learner).fit(points, labels)
    save(classifier, tmp_path / "classifier", points=False)
    with pytest.raises(AttributeError, match="saved with points=False"):
        load(tmp_path / "classifier").predict(points[:2])


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_weights_have_the_permissions_of_their_description(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        save(NeuralBregman(2, widths=(4,)), tmp_path / "model")
        index = askew.search.ExactIndex(Euclidean(2))
        index.add(np.zeros((3, 2)))
        index.save(tmp_path / "index")
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}


@pytest.mark.usefixtures("_known")
def test_an_estimator_with_modules_of_the_user(tmp_path: Path) -> None:
    learner = Learner(divergence=Euclidean(2), encoder=OwnEncoder()).fit()
    with torch.no_grad():
        learner.encoder_.layer.weight.zero_()
    save(learner, tmp_path)
    again = load(tmp_path, encoder=OwnEncoder())
    assert same_state(again.encoder, learner.encoder)
    assert same_state(again.encoder_, learner.encoder_)
    assert again.encoder is not again.encoder_


@pytest.mark.usefixtures("_known")
def test_an_estimator_derived_by_the_user(tmp_path: Path) -> None:
    class Mine(Learner):
        pass

    save(Mine(random_state=5), tmp_path)
    with pytest.raises(
        ValueError, match=r"the class of the estimator in .* must be one of .*'Learner'. Got 'Mine' instead"
    ):
        load(tmp_path)
    assert load(tmp_path, classes=[Mine]).random_state == 5


@pytest.mark.usefixtures("_known")
@pytest.mark.parametrize(
    "state", [np.random.RandomState(0), np.random.default_rng(0)], ids=["RandomState", "Generator"]
)
def test_random_states_are_refused(tmp_path: Path, state: object) -> None:
    with pytest.raises(TypeError, match=r"the value at 'parameters.random_state' must be one that can be saved"):
        save(Learner(random_state=state), tmp_path)
    assert names(tmp_path) == set()


# ---------------------------------------------------------------------- folders


def test_a_folder_is_made_and_other_files_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    first, second = NeuralBregman(3, widths=(4,)), NeuralBregman(3, widths=(4,))
    save(first, folder)
    old = weights_of(folder)
    strangers = {"notes.txt", "weights.safetensors", "weights-0123456789abcdef.safetensors", ".hidden"}
    for name in strangers:
        (folder / name).write_text("mine")
    save(second, str(folder))
    assert weights_of(folder) != old
    assert names(folder) == {"model.json", weights_of(folder), *strangers}
    assert all((folder / name).read_text() == "mine" for name in strangers)
    assert same_state(load(folder), second)
    save(second, folder)
    assert same_state(load(folder), second)


@pytest.mark.parametrize("content", ['{"model": 1}', "text", "", '{"format": 1, "kind": "model"}'])
def test_a_stranger_s_description_is_not_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(
        ValueError, match=r"folder must be without model.json, or with one that askew wrote.*another folder"
    ):
        save(Euclidean(2), tmp_path)
    assert (tmp_path / "model.json").read_text() == content
    assert names(tmp_path) == {"model.json"}


def test_what_cannot_be_saved_changes_nothing(tmp_path: Path) -> None:
    save(Euclidean(2), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    changed = NeuralBregman(3)
    changed.potential = ICNN(3, widths=(5,))
    for model, error, message in (
        (Bregman(FromFunction(lambda x: x.square().sum(-1), 2)), TypeError, "cannot be saved"),
        (3, TypeError, "model of save must be a divergence, an encoder, an estimator, a History or a dict. Got int"),
        (changed, ValueError, "the tensors of a NeuralBregman that is to be saved must be"),
        ({"a": object()}, TypeError, "the value at 'a' must be one that can be saved"),
    ):
        with pytest.raises(error, match=message):
            save(model, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "model"):
        with pytest.raises(OSError, match=r"folder must be one that can be written to. Got .*file"):
            save(Euclidean(2), path)
        with pytest.raises(FileNotFoundError, match=r"folder must be one that askew.save wrote, with its model.json"):
            load(path)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = NeuralBregman(3, widths=(4,))
    save(module, tmp_path)
    before = names(tmp_path)

    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    # A user who may do everything, as in a container, is not stopped by the mode of a folder.
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError, match=r"one that can be written to.*Permission denied.*before is untouched"):
        save(NeuralBregman(3, widths=(4,)), tmp_path)
    monkeypatch.undo()
    assert names(tmp_path) == before
    assert same_state(load(tmp_path), module)


def test_a_model_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = NeuralBregman(2, widths=(3,)), NeuralBregman(2, widths=(3,))
    save(first, tmp_path)
    read = io.load_tensors

    def late(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if not same_state_of(tmp_path, second):
            save(second, tmp_path)
        return read(path, kind)

    def same_state_of(folder: Path, module: nn.Module) -> bool:
        return weights_of(folder) == f"weights-{fingerprint(module)[:16]}.safetensors"

    def fingerprint(module: nn.Module) -> str:
        tensors = {f"modules.0.{name}": tensor for name, tensor in module.state_dict().items()}
        return io.checksum(None, tensors)

    monkeypatch.setattr("askew.io.saving.load_tensors", late)
    assert same_state(load(tmp_path), second)


# ---------------------------------------------------------------------- wrong files


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None], *, sealed: bool = True) -> None:
    """Change a description, and seal it again as somebody who knows the format would."""
    description = json.loads((folder / "model.json").read_text())
    change(description)
    if sealed:
        description.pop("checksum", None)
        description["checksum"] = io.checksum(description)
    (folder / "model.json").write_text(json.dumps(description))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(Embedded(encoders.Linear(3, 2), NeuralBregman(2, widths=(4,))), tmp_path)
    return tmp_path


def test_every_damaged_byte_of_the_description_is_noticed(folder: Path) -> None:
    whole = (folder / "model.json").read_bytes()
    for place in range(0, len(whole), 5):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 7
        (folder / "model.json").write_bytes(damaged)
        try:
            load(folder)
        except ValueError as error:
            message = str(error)
        else:  # white space may change into other white space
            message = "must be" if json.loads(damaged) == json.loads(whole) else ""
        assert "must be" in message, place


def test_damaged_weights_are_noticed(folder: Path) -> None:
    path = folder / weights_of(folder)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"must be a whole askew file. Got one that is damaged or cut short"):
            load(folder)
    save_file({"x": torch.ones(2)}, path)
    with pytest.raises(ValueError, match=r"must be a file written by askew. Got a file of another program"):
        load(folder)
    path.unlink()
    with pytest.raises(ValueError, match=r"its weights '.*' are missing"):
        load(folder)


def test_weights_of_another_model_are_noticed(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save(Embedded(encoders.Linear(3, 2), NeuralBregman(2, widths=(4,))), other)
    (folder / weights_of(folder)).write_bytes((other / weights_of(other)).read_bytes())
    with pytest.raises(ValueError, match="belongs to another model"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=2, askew="7.0"), "written by a newer askew (7.0) instead. Install a newer"),
        (lambda d: d.update(kind="checkpoint"), "must be an askew model. Got an askew checkpoint instead."),
        (lambda d: d.pop("format"), "Got a file of another program"),
        (lambda d: d.pop("modules"), "parts of it are missing"),
        (lambda d: d.pop("content"), "parts of it are missing"),
        (lambda d: d.update(modules={}), "parts of it are missing"),
        (lambda d: d.update(modules=[3]), "the description of a module is incomplete"),
        (lambda d: d["modules"][0].pop("recipe"), "the description of a module is incomplete"),
        (lambda d: d["modules"][0].update(recipe=3), "the description of a module must be"),
        (lambda d: d["modules"][0].update(training=1), "the description of a module is incomplete"),
        (lambda d: d["modules"][0].update(frozen="encoder"), "the description of a module is incomplete"),
        (lambda d: d.update(content={"special": {"dict": {"module": 7}}}), "a part of it is unknown"),
        (lambda d: d.update(content={"special": {"dict": {"module": -1}}}), "a part of it is unknown"),
        (lambda d: d.update(content={"special": {"dict": {"history": {"dict": {"x": 1}}}}}), "cannot be made"),
        (lambda d: d.update(content={"special": [1]}), "a part of it is unknown"),
        (lambda d: d.update(content={"tensor": "a"}), "a tensor of the description must be one of those in the file"),
        (lambda d: d.update(weights="weights"), "must be the name of a file in its folder"),
        (
            lambda d: d["weights"].update(file="../weights-0123456789abcdef.safetensors"),
            "the name of a file in its folder",
        ),
        (lambda d: d["weights"].update(file="/etc/passwd"), "must be the name of a file in its folder"),
        (lambda d: d["weights"].update(file=["a"]), "must be the name of a file in its folder"),
        (lambda d: d["weights"].update(sha256="0" * 64), "belongs to another model"),
        (lambda d: d["weights"].update(file="weights-0123456789abcdef.safetensors"), "are missing"),
    ],
)
def test_wrong_descriptions_are_refused(folder: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(folder)


def test_an_unsealed_change_is_noticed(folder: Path) -> None:
    rewrite(folder, lambda d: d.update(askew="0.0.1"), sealed=False)
    with pytest.raises(ValueError, match="its checksum does not fit"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"[]", b"null", b'{"format": 1e400}'])
def test_what_is_no_description_at_all(folder: Path, content: bytes) -> None:
    (folder / "model.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"model.json' must be a"):
        load(folder)


def test_sizes_that_do_not_fit_the_weights(folder: Path) -> None:
    def grow(description: dict[str, Any]) -> None:
        text = json.dumps(description["modules"]).replace('"dim": 3', f'"dim": {1 << 40}')
        description["modules"] = json.loads(text)

    rewrite(folder, grow)
    with pytest.raises(ValueError, match=r"the tensors of the file must be those of Embedded, with encoder.weight of"):
        load(folder)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all parts of a JSON value."""
    items: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_part_may_be_replaced_by_anything(tmp_path: Path, data: st.DataObject) -> None:
    save(Embedded(encoders.Linear(3, 2), Sqrt(Euclidean(2))), tmp_path / "model")
    whole = json.loads((tmp_path / "model" / "model.json").read_text())
    place = data.draw(st.sampled_from([place for place in places(whole) if place]))
    value = data.draw(json_values)

    def change(description: Any) -> None:
        for key in place[:-1]:
            description = description[key]
        description[place[-1]] = value

    rewrite(tmp_path / "model", change)
    try:
        load(tmp_path / "model")
    except ValueError as error:
        message = str(error)
    else:
        message = "must be"  # such as another number for an argument that no weight depends on
    finally:
        (tmp_path / "model" / "model.json").unlink()
    assert "must be" in message


@pytest.mark.parametrize("name", estimators.__all__)
def test_every_estimator_predicts_the_same_afterwards(tmp_path: Path, name: str) -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(60, 4))
    labels = np.where(rows[:, 0] > 0, "right", "left")
    pairs, triplets = rows[:40].reshape(20, 2, 4), rows.reshape(20, 3, 4)
    nearest = np.stack([np.arange(60), np.abs(rows[:, :1] - rows[:, 0]).argsort(1)[:, 1]], 1)
    data: dict[str, tuple[Any, ...]] = {
        "DivergenceLearner": (rows, labels),
        "DivergenceNeighborsClassifier": (rows, labels),
        "PairClassifier": (pairs, np.where(np.arange(20) % 2, 1, -1)),
        "PairRegressor": (pairs, np.abs(pairs[:, 0] - pairs[:, 1]).sum(1)),
        "RelevanceLearner": (rows, rows, nearest),
        "TripletLearner": (triplets,),
    }
    if name not in data:
        pytest.skip(f"{name} is no learner, and is tested with its own kind")
    learner = getattr(estimators, name)()
    if "learner" in learner.get_params():
        learner.set_params(learner=estimators.DivergenceLearner(steps=5, random_state=0, progress=False))
    else:
        learner.set_params(steps=5, random_state=0, progress=False)
    learner.fit(*data[name])
    save(learner, tmp_path)
    again = load(tmp_path)
    assert type(again) is type(learner)
    assert repr(again.get_params()) == repr(learner.get_params())
    method = "predict" if hasattr(learner, "predict") else "transform"
    assert np.array_equal(getattr(again, method)(data[name][0]), getattr(learner, method)(data[name][0]))
    if hasattr(learner, "items_"):  # is computed when it is used
        np.testing.assert_array_equal(again.items_, learner.items_)
    assert {key for key in vars(learner) if key.endswith("_")} == {key for key in vars(again) if key.endswith("_")}
