"""Ablation: the effect of each choice in our network and its training, one change at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from askew import checks
from askew.divergences import Divergence, NeuralBregman
from askew.potentials.icnn.terms import NONNEGATIVE
from askew_paper.data.targets import DIM, target_pairs
from askew_paper.experiment import MAE, Cell, Claim, Experiment, Outcome, Score
from askew_paper.experiments.regression import SIZES, learn_target
from askew_paper.experiments.timing import interleaved, training_step
from askew_paper.experiments.training import Plan
from askew_paper.notes import read_notes

SETTINGS = ("euclidean/none", "xlogx/none", "xlogx/high")
STEP = Score("step", "Processor time of a training step relative to the first row", lower_is_better=True, digits=2)
ROUNDS = {"toy": 2, "quick": 15, "paper": 30}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": functional.softplus,
    "relu": torch.relu,
    "squareplus": lambda a: (a + torch.sqrt(a * a + 4)) / 2,
}


class _DoubleBackpropagation(Divergence):
    r"""The divergence of a plain network by the textbook formula, with gradients by automatic differentiation.

    .. math:: D(x, y) = \phi(x) - \phi(y) - \langle \nabla\phi(y), x - y \rangle

    Training differentiates the gradient a second time, hence the name. :class:`NeuralBregman` computes the same
    function in another form. This one is slower, and it loses digits to cancellation where points are near.

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
        potential: Any = network.potential
        if len(potential.terms) != 1:
            must = "one without quadratic and separable terms"
            raise ValueError(checks.message("network of DoubleBackpropagation", must, repr(potential)))
        super().__init__(network.dim)
        self.network = network

    def calibrate(self, x: Tensor, y: Tensor, targets: Tensor | None = None, median: float = 1.0) -> None:
        """Set the scales of the network."""
        self.network.calibrate(x, y, targets)

    def _value(self, x: Tensor) -> Tensor:
        """Return phi(x), ``(n, dim) -> (n,)``, in plain operations."""
        potential: Any = self.network.potential
        [term] = potential.terms
        positive, activation = NONNEGATIVE[term.nonnegative][0], ACTIVATIONS[term.activation.name]
        v = (x - potential.shift) * potential.inverse_spread if potential.calibrated else x
        lifts = list(term.lifts)
        z = activation(v @ lifts[0][:-1] + lifts[0][-1])
        for mix, lift in zip(term.mixes, lifts[1:], strict=True):
            z = activation(v @ lift[:-1] + lift[-1] + z @ positive(mix))
        value: Tensor = z @ positive(term.out)
        return value * potential.output_scale if potential.calibrated else value

    def compute(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = torch.broadcast_tensors(x, y)
        training = torch.is_grad_enabled()
        with torch.enable_grad():
            point = y if y.requires_grad else y.detach().requires_grad_()
            at_y = self._value(point)
            (slope,) = torch.autograd.grad(at_y.sum(), point, create_graph=training)
        result = self._value(x) - at_y - ((x - y) * slope).sum(-1)
        return result if training else result.detach()


# ---------------------------------------------------------------------- variants


@dataclass(frozen=True)
class Variant:
    """One row of the table: what it changes in the network and in the training.

    Parameters
    ----------
    network
        Arguments of :class:`NeuralBregman`.
    learning_rate, schedule
        As in :class:`askew_paper.experiments.training.Plan`.
    calibrate
        Whether the scales of the network are set by the data.
    textbook
        Whether D is computed by double backpropagation.
    """

    network: dict[str, Any] = field(default_factory=dict)
    learning_rate: float = 3e-2
    schedule: str = "linear"
    calibrate: bool = True
    textbook: bool = False

    def options(self) -> dict[str, Any]:
        """Return it as options of a cell."""
        options = asdict(self)
        return {**options.pop("network"), **options}

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
                sizes = {name: size[name] for name in ("train", "test", "epochs", "batch")}
                options = {**sizes, **variant.options(), "rounds": ROUNDS[scale]}
                yield Cell("ablation", setting, method, seed, scale, tuple(sorted(options.items())))


def run(cell: Cell) -> Outcome:
    """Train one variant, and time a step of it against one of our network."""
    target, correlation = cell.setting.split("/")
    train, test = target_pairs(target, correlation, cell["train"], cell["test"], seed=cell.seed)
    variant = VARIANTS[cell.method]
    model = variant.model()
    outcome = learn_target(model, train, test, Plan.of(cell), cell.seed, calibrate=variant.calibrate)
    batch = [torch.from_numpy(part[: cell["batch"]]) for part in train]
    steps = [training_step(each.model(), *batch) for each in (variant, VARIANTS["nbd"])]
    seconds, reference = interleaved(steps, cell["rounds"], clock=time.process_time)
    ratio = statistics.median(one / other for one, other in zip(seconds, reference, strict=True))
    chosen = dict(outcome.chosen)
    if isinstance(model, _DoubleBackpropagation):
        chosen["difference"] = _difference(model.cpu(), batch[0], batch[1])
    return Outcome({**outcome.scores, "step": ratio}, outcome.curves, chosen)


@torch.no_grad()
def _difference(model: _DoubleBackpropagation, x: Tensor, y: Tensor) -> float:
    """Return the largest difference between the two forms of D, relative to the largest value."""
    ours: Tensor = model.network(x, y)
    return float((model(x, y) - ours).abs().max() / ours.abs().max())


NOTES = read_notes("ablation")
ABLATION = Experiment(
    "ablation",
    "What each choice in our network and its training is worth",
    ("a table of ours",),
    (MAE, STEP),
    seeds={"toy": 1, "quick": 1, "paper": 3},
    minutes={"toy": 0.1, "quick": 1.5, "paper": 150.0},
    cells=cells,
    run=run,
    notes=NOTES.notes,
    claims=(
        Claim(NOTES.claim("relu-plain"), MAE.name, ("plain, softplus",), ("plain, ReLU",), factor=0.5),
        Claim(NOTES.claim("relu-terms"), MAE.name, ("nbd",), ("ReLU",), factor=0.5),
        Claim(NOTES.claim("width"), MAE.name, ("plain, 64x64", "plain, 256x256"), ("plain",), each=True, factor=1.25),
        Claim(
            NOTES.claim("depth"),
            MAE.name,
            ("plain, 128", "plain, 128x128x128", "plain, 128x128x128x128"),
            ("plain",),
            each=True,
            factor=1.25,
        ),
        Claim(NOTES.claim("residual-form"), STEP.name, ("plain",), ("plain, double backpropagation",)),
    ),
)
