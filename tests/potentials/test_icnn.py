"""The input-convex network: what it guarantees of values, gradients, calibration and training."""

from __future__ import annotations

import copy
from itertools import product

import mpmath
import pytest
import textbook
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from askew.divergences import NeuralBregman
from askew.potentials import ICNN
from askew.potentials.icnn.activations import ACTIVATIONS
from askew.potentials.icnn.terms import NONNEGATIVE

DIM = 3
INITS = ("averaging", "linear")
# The whole product of what goes into a layer, then every other option by itself.
LAYERS = [
    {"widths": (6, 5), "activation": activation, "nonnegative": nonnegative, "init": init}
    for activation, nonnegative, init in product(ACTIVATIONS, NONNEGATIVE, INITS)
]
OTHERS: list[dict[str, object]] = [
    {"widths": (1,)},
    {"widths": (512,)},
    {"widths": (512, 512)},
    {"widths": (4, 3, 2, 3)},
    {"widths": [7]},
    {"widths": (6, 5), "quadratic": 0},
    {"widths": (6, 5), "quadratic": 1},
    {"widths": (6, 5), "quadratic": 7},
    {"widths": (6, 5), "separable": 0},
    {"widths": (6, 5), "separable": 1},
    {"widths": (6, 5), "quadratic": 0, "separable": 0},
    {"widths": (6, 5), "calibrated": False},
    {"widths": (1,), "activation": "softplus", "quadratic": 0, "separable": 0, "calibrated": False},
]
SMOOTH = [options for options in LAYERS + OTHERS if options.get("activation") != "relu"]


def describe(options: dict[str, object]) -> str:
    return "-".join(f"{key}={value}" for key, value in options.items()).replace(" ", "")


by_options = pytest.mark.parametrize("options", LAYERS + OTHERS, ids=describe)
by_smooth = pytest.mark.parametrize("options", SMOOTH, ids=describe)


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(options: dict[str, object] | None = None, dim: int = DIM, trained: bool = False) -> NeuralBregman:
    """Return a divergence in float64 whose buffers are not the trivial ones."""
    torch.manual_seed(0)
    model = NeuralBregman(dim, **({"widths": (6, 5)} if options is None else options)).double()  # type: ignore[arg-type]
    x, y = normals(60, dim, seed=1) * 2 + 1, normals(60, dim, seed=2)
    target = (x - y).relu().sum(-1) ** 1.5
    model.calibrate(x, y, target)
    if trained:
        # Steps large enough to break a constraint that is not built in.
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(8):
            optimizer.zero_grad()
            (model(x, y) - target).square().mean().backward()
            optimizer.step()
    return model


def close(found: Tensor, wanted: Tensor, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


# ---------------------------------------------------------------------- value, gradient, Hessian, divergence


@pytest.mark.parametrize("trained", [False, True])
@by_options
def test_convex(options: dict[str, object], trained: bool) -> None:
    if trained and options["widths"] == (512, 512):
        pytest.skip("nothing new, and slow to train")
    phi = network(options, trained=trained).potential
    x, y = 3 * normals(200, DIM, seed=3), 3 * normals(200, DIM, seed=4)
    share = torch.rand(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        chord = share[:, 0] * phi(x) + (1 - share[:, 0]) * phi(y)
        below = chord - phi(share * x + (1 - share) * y)
        assert (below >= -1e-10 * (1 + chord.abs())).all()
        if options.get("activation") != "relu" or options.get("quadratic") != 0:
            assert below.max() > 0.01


@by_options
def test_divergence_is_that_of_the_textbook(options: dict[str, object]) -> None:
    model = network(options, trained=options["widths"] != (512, 512))
    x, y = normals(50, DIM, seed=3), normals(50, DIM, seed=4)
    with torch.no_grad():
        close(model.potential(x), textbook.value(model.potential, x))
        wanted = textbook.divergence(model.potential, x, y).detach()
        assert wanted.min() > -1e-12
        close(model(x, y), wanted, atol=1e-11 * (1 + model.potential(x).abs().max().item()))
        close(model.pairwise(x, y).diagonal(), wanted, atol=1e-9 * (1 + wanted.max().item()))


@by_smooth
def test_gradient_and_hessian_are_those_of_autograd(options: dict[str, object]) -> None:
    phi = network(options).potential
    x = normals(7, DIM, seed=3).requires_grad_()
    (wanted,) = torch.autograd.grad(textbook.value(phi, x).sum(), x)
    with torch.no_grad():
        close(phi.gradient(x), wanted)
        rows = [torch.autograd.functional.hessian(lambda p: textbook.value(phi, p), row) for row in x.detach()]
        close(phi.hessian(x), torch.stack(rows))
        close(phi.hessian(x[:6].view(2, 3, DIM)), torch.stack(rows[:6]).view(2, 3, DIM, DIM))


@by_smooth
def test_difference_of_gradients(options: dict[str, object]) -> None:
    phi = network(options).potential
    x, y = normals(20, DIM, seed=3), normals(20, DIM, seed=4)
    with torch.no_grad():
        close(phi.gradient_difference(x, y), phi.gradient(x) - phi.gradient(y))
        close(phi.gradient_difference(x[:, None], y[None])[3, 4], phi.gradient(x[3]) - phi.gradient(y[4]))
        assert (phi.gradient_difference(x, x) == 0).all()


@by_options
@pytest.mark.parametrize("recorded", [False, True])
def test_seen_from_a_centre_it_is_the_same_divergence(options: dict[str, object], recorded: bool) -> None:
    phi, centre, points = network(options).potential, normals(1, DIM, seed=3), normals(3000, DIM, seed=4)
    with torch.set_grad_enabled(recorded):
        seen = phi.seen_from(centre)
        values, differences = seen.change(points)
        torch.testing.assert_close(values, phi.divergence(points, centre))
        torch.testing.assert_close(differences, phi.gradient_difference(points, centre))
        torch.testing.assert_close(seen.value(points), values)
        assert seen.value(centre).tolist() == [0.0]  # exactly
    assert values.requires_grad == recorded


def test_what_is_kept_at_a_centre_has_no_part_in_gradients() -> None:
    torch.manual_seed(0)
    phi, x, centre = ICNN(DIM, widths=(8,)), torch.randn(5, DIM), torch.randn(1, DIM)
    seen = phi.seen_from(centre)
    with torch.no_grad():
        seen.value(x)
    weights = list(phi.parameters())
    found = torch.autograd.grad(seen.value(x).sum(), weights, allow_unused=True)
    wanted = torch.autograd.grad(phi.divergence(x, centre).sum(), weights, allow_unused=True)
    assert any(grad is not None and bool(grad.any()) for grad in found)
    for one, two in zip(found, wanted, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("activation", ["squareplus", "softplus"])
def test_difference_of_gradients_of_near_points_keeps_its_digits(activation: str) -> None:
    phi = network({"widths": (6, 5), "activation": activation}, trained=True).potential
    y = normals(200, DIM, seed=3).float()
    for size in (1e-2, 1e-4, 1e-6):
        x = (y.double() + size * normals(200, DIM, seed=4)).float()
        with torch.no_grad():
            single = copy.deepcopy(phi).float().gradient_difference(x, y).double()
            # In float64 the plain difference has enough digits left to judge float32 by.
            wanted = phi.gradient(x.double()) - phi.gradient(y.double())
            exact = phi.gradient_difference(x.double(), y.double())
        scale = wanted.norm(dim=-1, keepdim=True)
        assert ((exact - wanted) / scale).abs().max() < 1e-13 / size
        assert ((single - exact) / scale).abs().max() < 2e-5


@pytest.mark.parametrize("options", [{"widths": (4, 3)}, {"widths": (3,), "activation": "softplus"}], ids=describe)
def test_divergence_against_fifty_digits(options: dict[str, object]) -> None:
    model = network(options, trained=True)
    rtol = 1e-12 if "activation" not in options else 1e-10
    y = normals(2, DIM, seed=3)
    for offset, size in product((0.0, 1e3), (1.0, 1e-3, 1e-6, 1e-9)):
        x = y + offset + size * normals(2, DIM, seed=4)
        with torch.no_grad():
            found = model(x, y + offset)
        with mpmath.workdps(60):
            for i in range(2):
                wanted = textbook.exact_divergence(model.potential, x[i], y[i] + offset)
                assert abs(found[i].item() - wanted) <= rtol * wanted


# ---------------------------------------------------------------------- derivatives


def functional(model: NeuralBregman) -> tuple[object, tuple[Tensor, ...]]:
    """Return the divergence as a function of x, y and all parameters, and the parameters."""
    names = [name for name, _ in model.named_parameters()]

    def evaluate(x: Tensor, y: Tensor, *values: Tensor) -> Tensor:
        # Through the ordinary forward pass; function transforms would take another way.
        for name, value in zip(names, values, strict=True):
            owner = model.get_submodule(name.rpartition(".")[0])
            del owner._parameters[name.rpartition(".")[2]]
            setattr(owner, name.rpartition(".")[2], value)
        try:
            result: Tensor = model(x, y)
        finally:
            for name, value in zip(names, values, strict=True):
                owner, last = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
                delattr(owner, last)
                owner._parameters[last] = torch.nn.Parameter(value.detach())
        return result

    return evaluate, tuple(p.detach().clone().requires_grad_() for p in model.parameters())


SMALL: list[dict[str, object]] = [
    {"widths": (3, 2), "separable": 2, "quadratic": 1},
    {"widths": (2,), "activation": "softplus", "separable": 0, "quadratic": 0, "nonnegative": "square"},
    {"widths": (2, 2, 2), "activation": "softplus", "separable": 1, "quadratic": 0, "nonnegative": "exp"},
    {"widths": (1,), "separable": 0, "calibrated": False},
]


@pytest.mark.parametrize("options", SMALL, ids=describe)
def test_derivatives_in_points_and_parameters(options: dict[str, object]) -> None:
    evaluate, parameters = functional(network(options, dim=2))
    x, y = normals(3, 2, seed=3).requires_grad_(), normals(3, 2, seed=4).requires_grad_()
    assert gradcheck(evaluate, (x, y, *parameters))  # type: ignore[arg-type]
    assert gradgradcheck(evaluate, (x, y, *parameters))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", SMALL, ids=describe)
def test_derivatives_with_broadcasting(options: dict[str, object]) -> None:
    model = network(options, dim=2)
    x, y = normals(3, 1, 2, seed=3).requires_grad_(), normals(2, 2, seed=4).requires_grad_()
    assert gradcheck(model, (x, y))
    assert gradgradcheck(model, (x, y))


def gradients(loss: Tensor, model: NeuralBregman, *points: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters()) | {f"point {i}": point for i, point in enumerate(points)}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: torch.zeros_like(t) if g is None else g for (name, t), g in zip(named.items(), found, strict=True)}


@pytest.mark.parametrize("options", [{"widths": (6, 5)}, {"widths": (6, 5), "activation": "softplus"}], ids=describe)
@pytest.mark.parametrize("through", ["x", "y", "both", "parameters"])
def test_gradient_penalty_has_the_right_second_derivatives(options: dict[str, object], through: str) -> None:
    model = network(options)
    x, y = normals(8, DIM, seed=3).requires_grad_(), normals(8, DIM, seed=4).requires_grad_()
    by = {"x": [x], "y": [y], "both": [x, y], "parameters": list(model.parameters())}[through]

    def losses(values: Tensor) -> tuple[Tensor, Tensor]:
        """The penalty by itself, and mixed with terms that take the first derivative only."""
        penalty = torch.zeros((), dtype=torch.float64)
        for gradient in torch.autograd.grad(values.sum(), by, create_graph=True):
            penalty = penalty + gradient.square().sum()
        return penalty, (values - 1).square().mean() + 0.3 * penalty + values.log().mean()

    for which in range(2):
        found = gradients(losses(model(x, y))[which], model, x, y)
        wanted = gradients(losses(textbook.divergence(model.potential, x, y))[which], model, x, y)
        for name, gradient in found.items():
            close(gradient, wanted[name], rtol=1e-8, atol=1e-9)
            assert gradient.abs().max() > 1e-6, f"{name} gets no gradient from the penalty"


@by_smooth
def test_gradients_that_can_be_differentiated_equal_the_plain_ones(options: dict[str, object]) -> None:
    model = network(options)
    x, y = normals(8, DIM, seed=3).requires_grad_(), normals(8, DIM, seed=4).requires_grad_()
    inputs = {"x": x, "y": y} | dict(model.named_parameters())
    plain = torch.autograd.grad(model(x, y).sum(), list(inputs.values()))
    graph = torch.autograd.grad(model(x, y).sum(), list(inputs.values()), create_graph=True)
    for name, first, second in zip(inputs, plain, graph, strict=True):
        assert second.requires_grad, name
        torch.testing.assert_close(second.detach(), first, rtol=1e-9, atol=1e-11, msg=f"{name} differs")


def test_two_backward_passes_through_one_graph() -> None:
    model = network()
    x, y = normals(8, DIM, seed=3).requires_grad_(), normals(8, DIM, seed=4)
    total = model(x, y).sum()
    (first,) = torch.autograd.grad(total, x, retain_graph=True)
    (second,) = torch.autograd.grad(total, x)
    assert torch.equal(first, second)


@by_options
def test_gradients_are_zero_at_the_same_point(options: dict[str, object]) -> None:
    model = network(options)
    x = normals(5, DIM, seed=3).requires_grad_()
    y = x.detach().clone().requires_grad_()
    model(x, y).sum().backward()
    for tensor in (x, y, *model.parameters()):
        assert tensor.grad is not None
        assert (tensor.grad == 0).all()


@by_options
def test_every_parameter_gets_a_gradient(options: dict[str, object]) -> None:
    """Distributed training waits for each of them."""
    for call in ("forward", "pairwise"):
        model = network(options)
        getattr(model, call)(normals(40, DIM, seed=3), normals(40, DIM, seed=4)).sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
            if options.get("activation") != "relu":
                assert parameter.grad.abs().max() > 0, name


# ---------------------------------------------------------------------- calibration


def data() -> tuple[Tensor, Tensor]:
    scale, shift = torch.tensor([1.0, 100.0, 1e-3]), torch.tensor([5.0, -3e3, 0.0])
    x, y = normals(500, DIM, seed=3).float(), normals(500, DIM, seed=4).float() ** 2
    return x * scale + shift, y * scale + shift


def test_calibration_standardises_the_input() -> None:
    model, (x, y) = NeuralBregman(DIM), data()
    model.calibrate(x, y)
    inner = model.potential._rows(torch.cat([x, y])).double()
    close(inner.mean(0), torch.zeros(DIM, dtype=torch.float64), atol=1e-4)
    close(inner.std(0, correction=0), torch.ones(DIM, dtype=torch.float64), rtol=1e-4)
    # The steps are those of the standardised points, without their shift.
    steps = model.potential._steps(x - y).double()
    close(steps, model.potential._rows(x).double() - model.potential._rows(y).double(), rtol=1e-3, atol=1e-4)


def test_calibration_scales_the_output() -> None:
    model, (x, y) = NeuralBregman(DIM), data()
    with torch.no_grad():
        model.calibrate(x, y)
        assert model(x, y).median().item() == pytest.approx(1, rel=1e-5)
        targets = torch.linspace(0, 74, 500)
        model.calibrate(x, y, targets)
        assert model(x, y).mean().item() == pytest.approx(37, rel=1e-5)
        # Nothing is left of the first calibration.
        again = copy.deepcopy(model)
        again.calibrate(x, y, targets)
        assert torch.equal(again(x, y), model(x, y))


def test_calibration_leaves_constant_features_alone() -> None:
    model, (x, y) = NeuralBregman(DIM), data()
    for points in (x, y):
        points[:, 0] = 0.1  # has no exact mean in binary
        points[:, 2] = 0.0
    model.calibrate(x, y)
    assert model.potential.inverse_spread[[0, 2]].tolist() == [1.0, 1.0]
    assert model.potential.shift[0].item() == pytest.approx(0.1)
    with torch.no_grad():
        assert torch.isfinite(model(x, y)).all()


def test_calibration_without_any_distance_keeps_the_scale() -> None:
    x = normals(10, DIM).float()
    for targets in (None, torch.zeros(10)):
        model = NeuralBregman(DIM)
        model.calibrate(x, x, targets)
        assert model.potential.output_scale == 1
    model.calibrate(x, x.flip(0), torch.zeros(10))
    assert model.potential.output_scale == 1


def test_calibration_can_be_switched_off() -> None:
    model, (x, y) = NeuralBregman(DIM, calibrated=False), data()
    before = copy.deepcopy(model.state_dict())
    model.calibrate(x, y)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert before.keys() == dict(model.named_parameters()).keys()  # no scales are saved
    assert model.potential.output_scale == 1


def test_calibration_of_one_point_and_of_more_dimensions() -> None:
    model = NeuralBregman(DIM)
    model.calibrate(normals(1, DIM).float(), normals(1, DIM, seed=1).float())
    assert all(torch.isfinite(buffer).all() for buffer in model.buffers())
    x, y = data()
    model.calibrate(x, y)
    found = [buffer.clone() for buffer in model.buffers()]
    model.calibrate(x.view(5, 100, DIM), y.view(5, 100, DIM))
    for before, after in zip(found, model.buffers(), strict=True):
        torch.testing.assert_close(after, before)


def spoilt(value: float) -> Tensor:
    points = torch.zeros(4, DIM)
    points[2, 1] = value
    return points


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (spoilt(torch.nan), torch.zeros(4, DIM), r"x of ICNN\.calibrate must be finite\. Got x\[2, 1\] = nan"),
        (torch.zeros(4, DIM), spoilt(torch.inf), r"y of ICNN\.calibrate must be finite\. Got y\[2, 1\] = inf"),
        (torch.zeros(0, DIM), torch.zeros(0, DIM), r"x of ICNN\.calibrate must be at least one point\. Got \(0, 3\)"),
        (torch.zeros(4, 2), torch.zeros(4, 2), r"x of ICNN must be of shape \(\.\.\., 3\)\. Got \(4, 2\)"),
        (torch.zeros(4, DIM), torch.zeros(3, DIM), r"y of ICNN must be of a shape that broadcasts with x, \(4, 3\)"),
    ],
)
def test_calibration_says_what_is_wrong_with_the_data(x: Tensor, y: Tensor, text: str) -> None:
    model = NeuralBregman(DIM)
    with pytest.raises(ValueError, match=text):
        model.calibrate(x, y)
    assert model.potential.output_scale == 1
    assert (model.potential.shift == 0).all()


# ---------------------------------------------------------------------- the inverse gradient


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    "options", [{"widths": (6, 5)}, {"widths": (64, 64)}, {"widths": (6,), "activation": "softplus"}], ids=describe
)
def test_inverse_gradient_finds_the_way_back(options: dict[str, object], trained: bool) -> None:
    phi = network(options, trained=trained).potential
    x = 2 * normals(30, DIM, seed=3)
    with torch.no_grad():
        gradient = phi.gradient(x)
    found = phi.inverse_gradient(gradient)
    close(found.point, x, rtol=1e-6, atol=1e-7)
    assert found.residual.shape == (30,)
    assert found.residual.max() < 1e-9 * (1 + gradient.abs().max())
    with torch.no_grad():
        wanted = (phi.gradient(found.point) - gradient).abs().amax(-1)
    close(found.residual, wanted, atol=1e-12)
    assert 0 < found.iterations < 50
    single = copy.deepcopy(phi).float().inverse_gradient(gradient.float())
    close(single.point.double(), x, rtol=1e-3, atol=1e-4)


def test_inverse_gradient_starts_from_a_good_guess() -> None:
    phi = network(trained=True).potential
    x = 2 * normals(30, DIM, seed=3)
    with torch.no_grad():
        gradient = phi.gradient(x)
    cold = phi.inverse_gradient(gradient).iterations
    assert phi.inverse_gradient(gradient, start=x + 1e-3 * normals(30, DIM, seed=4)).iterations < cold
    assert phi.inverse_gradient(gradient, start=x).iterations <= 1


def test_inverse_gradient_reports_what_cannot_be_reached() -> None:
    """A network without a quadratic term has bounded gradients."""
    phi = network({"widths": (6,), "quadratic": 0, "separable": 0}).potential
    found = phi.inverse_gradient(torch.full((1, DIM), 1e3, dtype=torch.float64))
    assert found.residual.item() > 100


# ---------------------------------------------------------------------- state


def test_names_of_the_state_do_not_change() -> None:
    """Saved models depend on these."""
    assert {
        name: tuple(t.shape) for name, t in NeuralBregman(DIM, (6, 5), quadratic=2, separable=4).state_dict().items()
    } == {
        "potential.shift": (3,),
        "potential.inverse_spread": (3,),
        "potential.output_scale": (),
        "potential.terms.0.lifts.0": (4, 6),
        "potential.terms.0.lifts.1": (4, 5),
        "potential.terms.0.mixes.0": (6, 5),
        "potential.terms.0.out": (5,),
        "potential.terms.1.matrix": (3, 2),
        "potential.terms.2.place": (3, 4),
        "potential.terms.2.log_sharpness": (3, 4),
        "potential.terms.2.amplitude": (3, 4),
    }
    assert list(NeuralBregman.paper(DIM, (6, 5)).state_dict()) == [
        "potential.terms.0.out",
        "potential.terms.0.lifts.0",
        "potential.terms.0.lifts.1",
        "potential.terms.0.mixes.0",
    ]


@by_options
def test_the_seed_decides_the_weights(options: dict[str, object]) -> None:
    def weights(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return list(NeuralBregman(DIM, **options).parameters())  # type: ignore[arg-type]

    assert all(torch.equal(a, b) for a, b in zip(weights(0), weights(0), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(weights(0), weights(1), strict=True))


@pytest.mark.parametrize("nonnegative", NONNEGATIVE)
def test_weights_of_a_fresh_network_average(nonnegative: str) -> None:
    torch.manual_seed(0)
    network = ICNN(DIM, (200, 100), nonnegative=nonnegative).terms[0]
    layers = network.layers()
    first, second = layers.layers[1].wz, layers.out
    close(first.sum(0).mean(), torch.tensor(1.0), rtol=0.02)
    close(second.sum(), torch.tensor(1.0), rtol=0.2)
    assert (first >= 0).all()
    assert (second >= 0).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"widths": (), "quadratic": 0, "separable": 0}, r"terms of ICNN must be at least one of widths, quadratic"),
        ({"widths": (8, 0)}, r"each of widths of ICNN must be a positive integer\. Got 0"),
        ({"widths": 8}, r"widths of ICNN must be a sequence of positive integers\. Got 8"),
        ({"activation": "softpluss"}, r"activation must be one of .* Did you mean 'softplus'"),
        (
            {"nonnegative": "relu"},
            r"nonnegative must be one of 'softplus', 'abs', 'clamp', .* Got 'relu'",
        ),
        (
            {"init": "linaer"},
            r"init must be one of 'averaging', 'linear'\. Got 'linaer' .* mean 'linear'",
        ),
        ({"quadratic": -1}, r"quadratic of ICNN must be a positive integer\. Got -1"),
        ({"separable": 1.5}, r"separable of ICNN must be a positive integer\. Got 1\.5"),
    ],
)
def test_options_that_do_not_exist(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ICNN(DIM, **options)  # type: ignore[arg-type]
