"""What each choice in our network and its training is worth: one changed at a time, on targets of the regression."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from askew import checks
from askew.divergences import Divergence, NeuralBregman
from askew.potentials import ICNN
from askew.potentials.icnn.terms import NONNEGATIVE, Network
from askew_paper.data.targets import DIM, target_pairs
from askew_paper.experiment import MAE, Cell, Claim, Experiment, Outcome, Score
from askew_paper.experiments.regression import SIZES, learn
from askew_paper.experiments.timing import interleaved, training_step

__all__ = ["ABLATION", "VARIANTS", "Variant"]

SETTINGS = ("euclidean/none", "xlogx/none", "xlogx/high")
STEP = Score("step", "Processor time of a training step relative to the first line", lower_is_better=True, digits=2)
ROUNDS = {"toy": 2, "quick": 15, "paper": 30}


# ---------------------------------------------------------------------- the textbook's formula


class _DoubleBackpropagation(Divergence):
    r"""The divergence of a plain network by the textbook's formula, with gradients by automatic differentiation.

    .. math:: D(x, y) = \phi(x) - \phi(y) - \langle \nabla\phi(y), x - y \rangle

    Training differentiates the gradient once more, hence the name. It is what :class:`NeuralBregman` computes
    in another form, and here to be compared with that: it is slower, and cancels where points are near.

    Parameters
    ----------
    network
        A neural Bregman divergence without quadratic and separable terms; its parameters are shared.

    Examples
    --------
    >>> network = NeuralBregman(3, widths=(8, 8), quadratic=0, separable=0)
    >>> x, y = torch.randn(2, 5, 3)
    >>> torch.allclose(_DoubleBackpropagation(network)(x, y), network(x, y), atol=1e-4)
    True
    """

    def __init__(self, network: NeuralBregman) -> None:
        potential = network.potential
        if not (isinstance(potential, ICNN) and len(potential.terms) == 1):
            must = "one without quadratic and separable terms"
            raise ValueError(checks.message("network of DoubleBackpropagation", must, repr(potential)))
        super().__init__(network.dim)
        self.network = network

    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None) -> None:
        """Set the scales of the network."""
        self.network.calibrate(x, y, targets)

    def _value(self, x: Tensor) -> Tensor:
        """Return phi(x), ``(n, dim) -> (n,)``, in plain operations."""
        potential = self.network.potential
        term = potential.terms[0]
        if not isinstance(term, Network):
            raise TypeError(checks.message("term of DoubleBackpropagation", "a network", type(term).__name__))
        positive = NONNEGATIVE[term.nonnegative][0]
        v = (x - potential.shift) * potential.inverse_spread if potential.calibrated else x
        lifts = list(term.lifts)
        z = self._activated(v @ lifts[0][:-1] + lifts[0][-1], term.activation.name)
        for mix, lift in zip(term.mixes, lifts[1:], strict=True):
            z = self._activated(v @ lift[:-1] + lift[-1] + z @ positive(mix), term.activation.name)
        value = z @ positive(term.out)
        return value * potential.output_scale if potential.calibrated else value

    @staticmethod
    def _activated(a: Tensor, activation: str) -> Tensor:
        if activation == "softplus":
            return torch.nn.functional.softplus(a)
        return a.relu() if activation == "relu" else (a + torch.sqrt(a * a + 4)) / 2

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = torch.broadcast_tensors(x, y)
        training = torch.is_grad_enabled()
        with torch.enable_grad():
            point = y if y.requires_grad else y.detach().requires_grad_()
            at_y = self._value(point)
            (slope,) = torch.autograd.grad(at_y.sum(), point, create_graph=training)
        result = self._value(x) - at_y - ((x - y) * slope).sum(-1)
        return result if training else result.detach()


# ---------------------------------------------------------------------- what is changed


@dataclass(frozen=True)
class Variant:
    """One line of the table: what it changes in the network and in the training.

    Parameters
    ----------
    network
        Arguments of :class:`NeuralBregman`.
    learning_rate, schedule, calibrate
        As in :func:`askew_paper.experiments.regression.learn`.
    textbook
        Whether D is computed by double backpropagation.
    """

    network: dict[str, Any] = field(default_factory=dict)
    learning_rate: float = 3e-2
    schedule: str = "linear"
    calibrate: bool = True
    textbook: bool = False

    def options(self) -> dict[str, Any]:
        """Return all that the result depends on."""
        return {
            **self.network,
            "learning_rate": self.learning_rate,
            "schedule": self.schedule,
            "calibrate": self.calibrate,
            "textbook": self.textbook,
        }

    def model(self) -> Divergence:
        """Return a new network."""
        network = NeuralBregman(DIM, **self.network)
        return _DoubleBackpropagation(network) if self.textbook else network


PLAIN: dict[str, Any] = {"quadratic": 0, "separable": 0}

VARIANTS: dict[str, Variant] = {
    "nbd": Variant(),
    # Terms.
    "no quadratic term": Variant({"quadratic": 0}),
    "no separable term": Variant({"separable": 0}),
    "plain": Variant(PLAIN),
    # How weights are kept non-negative, and where they start; on the network alone, which the terms would hide.
    "plain, weights abs": Variant({**PLAIN, "nonnegative": "abs"}),
    "plain, weights clamp": Variant({**PLAIN, "nonnegative": "clamp"}),
    "plain, weights square": Variant({**PLAIN, "nonnegative": "square"}),
    "plain, weights exp": Variant({**PLAIN, "nonnegative": "exp"}),
    "plain, init linear": Variant({**PLAIN, "init": "linear"}),
    "plain, weights abs, init linear": Variant({**PLAIN, "nonnegative": "abs", "init": "linear"}),
    "plain, weights clamp, init linear": Variant({**PLAIN, "nonnegative": "clamp", "init": "linear"}),
    # Activation.
    "plain, softplus": Variant({**PLAIN, "activation": "softplus"}),
    "plain, ReLU": Variant({**PLAIN, "activation": "relu"}),
    "ReLU": Variant({"activation": "relu"}),
    # Width and depth.
    "plain, 32x32": Variant({**PLAIN, "widths": (32, 32)}),
    "plain, 64x64": Variant({**PLAIN, "widths": (64, 64)}),
    "plain, 256x256": Variant({**PLAIN, "widths": (256, 256)}),
    "plain, 128": Variant({**PLAIN, "widths": (128,)}),
    "plain, 128x128x128": Variant({**PLAIN, "widths": (128, 128, 128)}),
    "plain, 128x128x128x128": Variant({**PLAIN, "widths": (128, 128, 128, 128)}),
    # The form of D: the same network, the same numbers.
    "plain, double backpropagation": Variant(PLAIN, textbook=True),
    # Training.
    "no calibration": Variant(calibrate=False),
    "cosine": Variant(schedule="cosine"),
    "one cycle": Variant(schedule="one-cycle"),
    "constant 0.03": Variant(schedule="constant"),
    "constant 0.001": Variant(schedule="constant", learning_rate=1e-3),
    "rate 0.01": Variant(learning_rate=1e-2),
    "rate 0.1": Variant(learning_rate=1e-1),
    "plain, constant 0.001": Variant(PLAIN, schedule="constant", learning_rate=1e-3),
    "plain, no calibration": Variant(PLAIN, calibrate=False),
}


# ---------------------------------------------------------------------- the experiment


def cells(scale: str, seeds: int) -> Iterator[Cell]:
    """Yield a cell for every seed, target and variant."""
    size = SIZES[scale]
    for seed in range(seeds):
        for setting in SETTINGS if scale != "toy" else SETTINGS[:1]:
            for method, variant in VARIANTS.items():
                sizes = {"train": size.train, "test": size.test, "epochs": size.epochs, "batch": size.batch}
                options = {**sizes, **variant.options(), "rounds": ROUNDS[scale]}
                yield Cell("ablation", setting, method, seed, scale, tuple(sorted(options.items())))


def run(cell: Cell) -> Outcome:
    """Train one variant, and time a step of it against one of our network."""
    target, correlation = cell.setting.split("/")
    train, test = target_pairs(target, correlation, cell["train"], cell["test"], seed=cell.seed)
    variant = VARIANTS[cell.method]
    model = variant.model()
    learned = learn(
        model,
        train,
        test,
        epochs=cell["epochs"],
        batch=cell["batch"],
        learning_rate=variant.learning_rate,
        schedule=variant.schedule,
        seed=cell.seed,
        calibrate=variant.calibrate,
    )
    batch = [torch.from_numpy(part[: cell["batch"]]) for part in train]
    steps = [training_step(some.model(), *batch) for some in (variant, VARIANTS["nbd"])]
    own, usual = interleaved(steps, cell["rounds"], clock=time.process_time)
    ratio = statistics.median(one / other for one, other in zip(own, usual, strict=True))
    outcome = learned.outcome(step=ratio)
    if isinstance(model, _DoubleBackpropagation):
        difference = _difference(model.cpu(), batch[0], batch[1])
        return dataclasses.replace(outcome, chosen={**outcome.chosen, "difference": difference})
    return outcome


@torch.no_grad()
def _difference(model: _DoubleBackpropagation, x: Tensor, y: Tensor) -> float:
    """Return how far the two forms of D are apart at most, relative to the largest value."""
    ours: Tensor = model.network(x, y)
    return float((model(x, y) - ours).abs().max() / ours.abs().max())


ABLATION = Experiment(
    "ablation",
    "What each choice in our network and its training is worth",
    ("a table of ours",),
    (MAE, STEP),
    seeds={"toy": 1, "quick": 1, "paper": 3},
    minutes={"toy": 0.1, "quick": 1.5, "paper": 150.0},
    cells=cells,
    run=run,
    claims=(
        Claim(
            "ReLU fails: softplus has less than half of its error",
            MAE.name,
            ("plain, softplus",),
            ("plain, ReLU",),
            factor=0.5,
        ),
        Claim(
            "ReLU fails also with a quadratic and a separable term beside it: less than half of its error",
            MAE.name,
            ("nbd",),
            ("ReLU",),
            factor=0.5,
        ),
        Claim(
            "Robust to width: with 64 or 256 units the error is at most a quarter larger",
            MAE.name,
            ("plain, 64x64", "plain, 256x256"),
            ("plain",),
            each=True,
            factor=1.25,
        ),
        Claim(
            "Robust to depth: with 1, 3 or 4 layers the error is at most a quarter larger",
            MAE.name,
            ("plain, 128", "plain, 128x128x128", "plain, 128x128x128x128"),
            ("plain",),
            each=True,
            factor=1.25,
        ),
        Claim(
            "The residual form trains faster than double backpropagation",
            STEP.name,
            ("plain",),
            ("plain, double backpropagation",),
        ),
    ),
    notes=(
        "nbd is our network as it is by default: squareplus, 2 x 128 units, softplus of raw weights that start as "
        "averages, a quadratic and a separable term, scales set by the data, a learning rate of 0.03 that rises "
        "over the first 2.5 % of the steps and then falls to 0. Each other line changes what its name says.",
        "plain has neither of the two terms. What concerns the network is changed there, as the terms alone "
        "can represent these targets and would hide it. init linear: raw weights start as those of torch.nn.Linear do.",
        "ReLU has no curvature: D is 0 for near points and its gradient teaches nothing through y. With the two terms "
        "beside it, these represent what it cannot.",
        "double backpropagation computes the same function by the textbook's formula. Its weights begin alike and "
        "the pairs come in the same order, so that errors differ by rounding only, which training enlarges. Each of "
        "its rows has the largest difference of D in the two forms after training, relative to the largest D, under "
        "chosen, difference.",
        "The processor time of a step is measured in turn with one of nbd. Two runs of one seed differ in this "
        "ratio, but not in the error.",
    ),
)
