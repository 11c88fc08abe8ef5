"""Modules as JSON: every member is made again exactly, and nothing else is."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from askew_paper.encoders import ResNet18, ResNet20
from hypothesis import given, settings
from hypothesis import strategies as st
from members import CATALOGUE, DIM, REAL, Case, build, cases, into_domain, random_points, train
from torch import Tensor, nn

from askew import divergences, encoders, io, potentials
from askew.divergences import Bregman, Divergence, Dual, Embedded, Euclidean, NeuralBregman, Sqrt, make
from askew.potentials import ICNN, AffinePrecomposed, FromFunction, NegativeEntropy, Potential, Quadratic, Sum


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def written(module: nn.Module) -> Any:
    """Return a description as a file would give it back."""
    return json.loads(json.dumps(io.describe(module), allow_nan=False))


def again(module: nn.Module, **given: Any) -> Any:
    description = written(module)
    io.recipes.check_rebuildable(module, description)
    tensors = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    return io.recipes.build(description, tensors, **given)


def same_state(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return list(first) == list(second) and all(
        tensor.dtype == second[name].dtype and torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


# ---------------------------------------------------------------------- all members


@pytest.mark.parametrize(
    "case", [case for case in cases() if case.trained or not CATALOGUE[case.name].learned], ids=str
)
def test_every_member_with_every_wrapper(case: Case) -> None:
    divergence = build(case)
    copied = again(divergence)
    assert type(copied) is type(divergence)
    assert same_state(copied, divergence)
    assert repr(copied) == repr(divergence)
    if case.wrapper == "dual" and CATALOGUE[case.name].learned:
        return  # the same module, and slow to evaluate
    x, y = random_points(case, 5, 0), random_points(case, 4, 1)
    with torch.no_grad():
        assert torch.equal(copied(x[:4], y), divergence(x[:4], y))
        assert torch.equal(copied.pairwise(x, y), divergence.pairwise(x, y))


@pytest.mark.parametrize("name", CATALOGUE)
def test_other_dtypes(name: str) -> None:
    divergence = make(name, DIM)
    if CATALOGUE[name].learned:
        train(divergence)
    divergence.bfloat16()
    copied = again(divergence)
    assert same_state(copied, divergence)
    assert copied.dtype == divergence.dtype
    dtype = divergence.dtype or torch.float32
    x, y = (into_domain(divergence.domain, torch.randn(4, DIM)).to(dtype) for _ in range(2))
    assert torch.equal(copied(x, y), divergence(x, y))


ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "identity": lambda: encoders.Identity(4),
    "identity-any": lambda: encoders.Identity(),
    "linear": lambda: encoders.Linear(4, 3),
    "mlp": lambda: encoders.MLP(4, 3, [5, 6]),
    "cnn": lambda: encoders.SmallCNN(1, 8, out=3, filters=(2, 4), hidden=5),
    "resnet20": lambda: ResNet20(),
    "resnet20-head": lambda: ResNet20(out=3),
    "resnet18-head": lambda: ResNet18(out=3),
    "layers": lambda: nn.Sequential(
        nn.Conv2d(1, 4, (3, 5), stride=2, padding="valid", bias=False),
        nn.BatchNorm2d(4, eps=1e-3),
        nn.LeakyReLU(0.2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Sequential(nn.Linear(8, 5), nn.LayerNorm(5), nn.GELU("tanh"), nn.Dropout(0.3)),
        nn.Linear(5, 3, bias=False),
        nn.Softmax(-1),
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name: str) -> None:
    encoder = ENCODERS[name]()
    copied = again(encoder)
    assert type(copied) is type(encoder)
    assert same_state(copied, encoder)
    assert repr(copied) == repr(encoder)


def test_no_class_of_the_library_is_forgotten() -> None:
    known = {io.classes.resolve(name) for name in io.classes.MODULES}
    for package in (divergences, potentials, encoders):
        for name in package.__all__:
            cls = getattr(package, name)
            if isinstance(cls, type) and issubclass(cls, nn.Module):
                assert cls in known, name


# ---------------------------------------------------------------------- what is recorded


def arguments(module: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = io.describe(module)["special"]["dict"]["arguments"]["dict"]
    return found


def test_the_outermost_constructor_counts() -> None:
    class Small(NeuralBregman):
        def __init__(self, size: int, *, deep: bool = False) -> None:
            super().__init__(size, widths=(4, 4) if deep else (4,), separable=0)

    class Smaller(Small):
        pass

    for cls in (Small, Smaller):
        module = cls(3, deep=True)
        assert arguments(module) == {"size": 3, "deep": True}
        copied = again(module, classes=[cls])
        assert type(copied) is cls
        assert same_state(copied, module)
    with pytest.raises(
        ValueError, match=r"classes must be given, as the model has the class '.*Small', which is not of"
    ):
        io.recipes.build(written(Small(3)), Small(3).state_dict())


def test_lists_of_the_caller_may_change() -> None:
    widths = [5, 6]
    module = encoders.MLP(4, 3, widths)
    widths.append(7)
    assert arguments(module)["widths"] == {"tuple": [5, 6]}


def test_what_was_changed_since_is_what_is_written() -> None:
    module = Bregman(Quadratic(3))
    module.pairwise_rtol = 0.25
    module.potential = NegativeEntropy(3)
    copied = again(module)
    assert copied.pairwise_rtol == 0.25
    assert isinstance(copied.potential, NegativeEntropy)
    total = Sum([Quadratic(2), Quadratic(2)])
    total.potentials[1] = ICNN(2, widths=(3,))
    assert same_state(again(total), total)
    wrapped = Embedded(nn.Linear(3, 2), Euclidean(2))
    wrapped.encoder = nn.Sequential(nn.Linear(5, 2))
    assert again(wrapped).encoder[0].in_features == 5


def test_a_module_that_no_longer_is_what_it_was_made_as() -> None:
    module = NeuralBregman(3)
    module.potential = ICNN(3, widths=(7,))
    with pytest.raises(ValueError, match=r"the tensors of a NeuralBregman that is to be saved must be those of"):
        io.recipes.check_rebuildable(module, io.describe(module))


def test_tensors_that_are_arguments() -> None:
    fixed = Bregman(Quadratic(3, torch.randn(2, 3)))
    learned = Bregman(AffinePrecomposed(ICNN(2, (3,)), nn.Parameter(torch.randn(2, 3)), torch.randn(2)))
    for module in (fixed, learned, learned.double()):
        copied = again(module)
        assert same_state(copied, module)
        assert [name for name, _ in copied.named_parameters()] == [name for name, _ in module.named_parameters()]


def test_a_potential_from_a_module_and_its_domain() -> None:
    class Cube(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.pow(3).sum(-1)

    phi = FromFunction(Cube(), 2, potentials.NegativeEntropy(2).domain)
    copied = again(phi, encoder=Cube())
    assert copied.domain is phi.domain
    x, y = torch.rand(3, 2), torch.rand(3, 2)
    assert torch.equal(copied.divergence(x, y), phi.divergence(x, y))


def test_copies_pickles_and_state_dicts() -> None:
    module = Dual(NeuralBregman(3, widths=(4,)))
    assert not any("record" in name for name in module.state_dict())
    assert "record" not in repr(module)
    copied = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1)
    assert same_state(again(copied), copied)
    # A copy that multiprocessing sends must not drag in the original.
    sent = pickle.loads(pickle.dumps(copied))
    assert same_state(again(sent), copied)
    module.double()
    assert again(module).dtype == torch.float64


def test_no_second_reference_is_kept() -> None:
    first = nn.Linear(3, 2)
    module = Embedded(first, Euclidean(2))
    assert not any(part is first for part in module._record.values())


def test_building_leaves_the_random_numbers_alone() -> None:
    module = NeuralBregman(3)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again(module)
    assert torch.equal(torch.rand(3), expected)


def test_the_signature_is_still_the_one_of_the_class() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dim'"):
        NeuralBregman()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'wdths'"):
        NeuralBregman(3, wdths=(4,))  # type: ignore[call-arg]


def test_compilers_and_transforms_do_not_notice() -> None:
    module = Sqrt(Euclidean(3))
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, y), module(x, y))
    torch.testing.assert_close(torch.func.vmap(module)(x, y), module(x, y))


# ---------------------------------------------------------------------- classes of the user


class OwnEncoder(nn.Module):
    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(size, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh()


class OwnPotential(Potential):
    def __init__(self, dim: int, power: float = 2.0) -> None:
        super().__init__(dim)
        self.power = power
        self.factor = nn.Parameter(torch.ones(dim))

    def compute_value(self, x: Tensor) -> Tensor:
        return (self.factor * x).square().sum(-1)

    def compute_gradient(self, x: Tensor) -> Tensor:
        return 2 * self.factor.square() * x

    def compute_divergence(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        return self._value(h)


def test_an_encoder_of_the_user_is_handed_in() -> None:
    module = Embedded(OwnEncoder(), NeuralBregman(2, widths=(4,)))
    given = OwnEncoder()
    before = copy.deepcopy(given)
    copied = again(module, encoder=given)
    assert same_state(copied, module)
    assert copied.encoder is not given
    assert same_state(given, before)
    message = (
        f"encoder must be a module of the class '{__name__}.OwnEncoder', which is not of askew. Got none instead. "
        "Pass one: askew.load(folder, encoder=OwnEncoder(...))."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        io.recipes.build(written(module), module.state_dict())
    with pytest.raises(
        ValueError, match=re.escape("encoder.layer.weight of shape (2, 5). Got encoder.layer.weight of")
    ):
        io.recipes.build(written(module), module.state_dict(), encoder=OwnEncoder(5))


def test_a_potential_of_the_user_is_made_from_its_class() -> None:
    module = Bregman(OwnPotential(3, power=4.0))
    copied = again(module, classes=[OwnPotential])
    assert copied.potential.power == 4.0
    assert same_state(copied, module)


def test_layers_of_torch_that_were_derived_from_are_not_taken_for_them() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    description = written(nn.Sequential(Doubled(3, 2)))
    assert description["special"]["dict"]["layers"]["dict"]["0"]["special"]["dict"]["source"] == "unknown"


def test_functions_cannot_be_described() -> None:
    module = Bregman(FromFunction(lambda x: x.square().sum(-1), 2))
    with pytest.raises(
        TypeError,
        match=r"Bregman cannot be saved: the value at 'arguments.potential.arguments.function' must be one that can be "
        r"saved. Got function instead.*classes=\[...\]",
    ):
        io.describe(module)


def test_arrays_that_are_not_kept_cannot_be_described() -> None:
    class Shifted(Divergence):
        def __init__(self, shift: Tensor) -> None:
            super().__init__(2)
            self.origin = shift

        def compute(self, x: Tensor, y: Tensor) -> Tensor:
            return (x - y).abs().sum(-1)

    with pytest.raises(TypeError, match=r"arguments.shift of Shifted must be a parameter or a buffer of that name"):
        io.describe(Shifted(torch.zeros(2)))


# ---------------------------------------------------------------------- hostile descriptions


def module_json(name: object, source: object = "library", **given: object) -> dict[str, Any]:
    return {"special": {"dict": {"class": name, "source": source, "arguments": {"dict": given}}}}


@pytest.mark.parametrize(
    "description",
    [
        None,
        3,
        [],
        {},
        {"special": 3},
        {"special": {"dict": {}}},
        {"special": {"dict": {"class": "divergences.Euclidean"}}},
        module_json("os.system", command="true"),
        module_json("builtins.eval"),
        module_json("divergences._Wrapper"),
        module_json("divergences.Divergence", dim=3),
        module_json("divergences.nowhere"),
        module_json(["divergences.Euclidean"]),
        module_json("divergences.Euclidean", source="user", dim=3),
        module_json("Bilinear", source="torch"),
        module_json("Linear", source="torch", in_features="a", out_features=2),
        module_json("divergences.Euclidean", dim="three"),
        module_json("divergences.Euclidean", dim=-1),
        module_json("divergences.Euclidean", dim=3, other=1),
        module_json("divergences.Mahalanobis", dim=10**400),
        module_json("divergences.Mahalanobis", dim=10**12, rank=10**12),
        module_json("divergences.Bregman", potential=3),
        module_json("potentials.FromFunction", function="print", dim=2),
        module_json("potentials.Quadratic", dim=2, matrix={"special": {"dict": {"shape": [-1], "dtype": "float32"}}}),
        module_json("potentials.Quadratic", dim=2, matrix={"special": {"dict": {"shape": [2, 2], "dtype": "O"}}}),
    ],
    ids=lambda value: json.dumps(value)[:80],
)
def test_hostile_descriptions_are_refused(description: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        io.recipes.build(description, {})


@pytest.mark.parametrize(
    "description",
    [
        module_json("divergences.NeuralBregman", dim=1 << 20, widths={"tuple": [1 << 20, 1 << 20]}),
        module_json("divergences.DeepDiv", dim=1 << 20, pieces=1 << 20, hidden=1 << 10),
        module_json("divergences.IQE", dim=1 << 20, components=1 << 10, size=1 << 10),
        module_json("divergences.WideNorm", dim=1 << 20, components=1 << 10, width=1 << 10),
        module_json("divergences.MRN", dim=1 << 20, width=1 << 20, hidden={"tuple": [1 << 20]}),
        module_json("encoders.SmallCNN", channels=1, image_size=1 << 20),
        module_json("Linear", source="torch", in_features=1 << 20, out_features=1 << 20, bias=True),
        module_json(
            "potentials.Quadratic",
            dim=1 << 20,
            matrix={"special": {"dict": {"shape": [1 << 20, 1 << 20], "dtype": "float64", "parameter": False}}},
        ),
    ],
    ids=lambda value: json.dumps(value)[:80],
)
def test_a_small_file_takes_no_large_memory(description: object) -> None:
    # Terabytes, if any of these were made for real.
    with pytest.raises(ValueError, match=r"the tensors of the file must be those of .*, with .* of shape .* Got no"):
        io.recipes.build(description, {})


names = st.one_of(st.sampled_from(sorted(io.classes.MODULES)), st.text(max_size=5))
values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4))
nested = st.recursive(
    st.builds(
        lambda name, given: module_json(name, **given),
        names,
        st.dictionaries(
            st.sampled_from(["dim", "widths", "p", "rank", "pieces", "squared", "out"]), values, max_size=3
        ),
    ),
    lambda inner: st.builds(
        lambda name, key, given: module_json(name, **{key: given}),
        names,
        st.sampled_from(["potential", "divergence", "encoder"]),
        inner,
    ),
    max_leaves=3,
)


@settings(max_examples=75, deadline=None, derandomize=True)
@given(nested)
def test_any_description_is_understood_or_refused(description: object) -> None:
    try:
        module = io.recipes.build(description, {})
    except ValueError:
        return
    assert isinstance(module, nn.Module)
    assert not module.state_dict()


def test_members_of_every_domain_are_among_the_cases() -> None:
    assert {build(case).domain == REAL for case in cases() if case.wrapper == "plain"} == {True, False}
