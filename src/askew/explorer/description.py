"""Models as JSON, for the page to evaluate potentials, encoders and the divergences made of them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from askew import checks, divergences, encoders, potentials
from askew.checks import REAL, Domain
from askew.divergences import Divergence
from askew.potentials.icnn.terms import Network, QuadraticTerm, SeparableTerm

# A part of a model: values that JSON can hold, and tensors, which become JSON when the page is written.
Part = dict[str, Any]

SHOWN = (
    "the Bregman divergence of a potential of askew other than FromFunction and Conjugate (NeuralBregman, KL, "
    "Itakura-Saito, ...), Drift on one, MaxAffine (PBDL), Mahalanobis, Euclidean, their Reversed, Scaled, Sqrt, "
    "Symmetrized and GeneralizedSymmetrized forms, or one of these behind one or two encoders"
)
HINT = "Draw it with askew.plot.balls, which shows any divergence."


def pack(numbers: Tensor | ArrayLike, *, wide: bool = False) -> dict[str, Any]:
    """Return an array as a JSON value: shape, type and bytes in base64; 32 bits a number, or 64 if ``wide``.

    Examples
    --------
    >>> pack([1.0, 2.0])
    {'shape': [2], 'type': 'f4', 'data': 'AACAPwAAAEA='}
    """
    array = numbers.detach().cpu().double().numpy() if isinstance(numbers, Tensor) else np.asarray(numbers)
    kind = "f8" if wide else "f4"
    data = np.ascontiguousarray(array, dtype=f"<{kind}").tobytes()
    return {"shape": list(array.shape), "type": kind, "data": base64.b64encode(data).decode("ascii")}


@dataclass(frozen=True)
class Description:
    """A divergence as the page evaluates it.

    ``encoder`` has the steps from points of ``dim`` features to embeddings, ``potential`` is the convex function of
    embeddings, which must lie in ``domain``, and ``changes`` are the steps from its values of D(x, y) and D(y, x) to
    those of the model. ``second`` are the steps for second points, None if they are those of the first. Tensors are
    packed when JSON is asked for.
    """

    encoder: tuple[Part, ...]
    potential: Part
    changes: tuple[Part, ...]
    domain: Domain
    dim: int | None
    second: tuple[Part, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what the page reads."""
        parts = {"encoder": list(self.encoder), "potential": self.potential, "changes": list(self.changes)}
        parts |= {} if self.second is None else {"second": list(self.second)}
        return {name: _packed(part) for name, part in parts.items()}


def _packed(value: Any) -> Any:
    """Return a value with its tensors packed; those of 64 bits stay wide."""
    if isinstance(value, dict):
        return {name: _packed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_packed(item) for item in value]
    return pack(value, wide=value.dtype == torch.float64) if isinstance(value, Tensor) else value


def describe(model: Divergence) -> Description:
    """Return a divergence as the page evaluates it; one that it cannot evaluate is a TypeError.

    Examples
    --------
    >>> from askew.divergences import make
    >>> describe(make("kl", 3)).to_json()
    {'encoder': [], 'potential': {'kind': 'entropy'}, 'changes': []}
    """
    with torch.no_grad():
        return _divergence(model)


def can_show(model: Divergence) -> bool:
    """Whether the page can evaluate a divergence.

    Examples
    --------
    >>> from askew.divergences import make
    >>> can_show(make("nbd", 3)), can_show(make("deepnorm", 3))
    (True, False)
    """
    try:
        describe(model)
    except TypeError:
        return False
    return True


def _handler(table: Mapping[type, Callable[..., Any]], part: object) -> Callable[..., Any] | None:
    """Return the function for the class of a part, or for the nearest of its base classes; None if there is none."""
    return next((table[cls] for cls in type(part).__mro__ if cls in table), None)


# ---------------------------------------------------------------------- divergences


def _divergence(model: Divergence) -> Description:
    handler = _handler(DIVERGENCES, model)
    if handler is None:
        hint = "Learn divergence='nbd', or draw it with askew.plot.balls, which shows any divergence."
        raise TypeError(checks.message("model of write_explorer", SHOWN, type(model).__name__, hint))
    description: Description = handler(model)
    return description


def _embedded(model: divergences.Embedded) -> Description:
    inner = _divergence(model.divergence)
    dim = _dim(model.encoder) or inner.dim
    first = (*_encoder(model.encoder), *inner.encoder)
    if model.second is None and inner.second is None:
        return replace(inner, encoder=first, dim=dim)
    behind = model.encoder if model.second is None else model.second
    other = _dim(behind) or inner.dim
    if dim != other:
        hint = "Show one side: write_explorer(model.divergence, ...) of the embeddings."
        must = "a model whose two points have the same features"
        raise TypeError(checks.message("model of write_explorer", must, f"one of {dim} and {other} features", hint))
    second = (*_encoder(behind), *(inner.encoder if inner.second is None else inner.second))
    return replace(inner, encoder=first, second=second, dim=dim)


def _norm(model: Any, matrix: Tensor | None) -> Description:
    return Description((), _quadratic(matrix), () if model.squared else (ROOT,), REAL, model.dim)


def _generalized(model: divergences.GeneralizedSymmetrized) -> Description:
    # Half the squared distance between u(x) and u(y), u(x) = x + grad phi(x): u is one more step of the encoder.
    phi = model.divergence.potential
    step = {"kind": "plus-gradient", "potential": _potential(phi)}
    return Description((step,), _scaled(_quadratic(None), 0.5), (ROOT,) if model.root else (), phi.domain, phi.dim)


def _drift(model: divergences.Drift) -> Description:
    # The drift changes what a point brings as the second one: grad phi(y) - v(y) in place of grad phi(y).
    phi, factor = model.divergence.potential, model.inverse_spread.double()
    steps: list[Part] = [{"kind": "scale", "shift": model.shift.double(), "factor": factor}, *_encoder(model.drift)]
    steps += [{"kind": "scale", "shift": torch.zeros_like(factor), "factor": factor * model.size.double() / model.dim}]
    changes = ({"kind": "root", "floor": float(model.floor)},) if model.root else ()
    return Description((), {"kind": "drift", "inner": _potential(phi), "steps": steps}, changes, phi.domain, model.dim)


def _changed(model: Any, change: Part) -> Description:
    inner = _divergence(model.divergence)
    return replace(inner, changes=(*inner.changes, change))


ROOT: Part = {"kind": "root"}
DIVERGENCES: dict[type, Callable[[Any], Description]] = {
    divergences.Embedded: _embedded,
    divergences.Bregman: lambda D: Description((), _potential(D.potential), (), D.potential.domain, D.dim),
    divergences.MaxAffine: lambda D: Description(
        (), {"kind": "pieces", "slopes": D.slopes.float(), "intercepts": D.intercepts.float()}, (), REAL, D.dim
    ),
    divergences.Drift: _drift,
    divergences.Euclidean: lambda D: _norm(D, None),
    divergences.Mahalanobis: lambda D: _norm(D, D.weight),
    divergences.GeneralizedSymmetrized: _generalized,
    divergences.Reversed: lambda D: _changed(D, {"kind": "reversed"}),
    divergences.Scaled: lambda D: _changed(D, {"kind": "scaled", "factor": float(D.log_factor.exp())}),
    divergences.Sqrt: lambda D: _changed(D, ROOT),
    divergences.Symmetrized: lambda D: _changed(D, {"kind": "symmetrized"}),
}


# ---------------------------------------------------------------------- potentials


def _potential(potential: Any) -> Part:
    handler = _handler(COMPOSED, potential)
    if handler is None and type(potential) in CLOSED_FORMS:
        return {"kind": CLOSED_FORMS[type(potential)]}
    if handler is None:
        got = f"a Bregman divergence of {type(potential).__name__}"
        raise TypeError(checks.message("model of write_explorer", SHOWN, got, HINT))
    part: Part = handler(potential)
    return part


def _quadratic(matrix: Tensor | None) -> Part:
    return {"kind": "quadratic", "matrix": None if matrix is None else matrix.t().float()}


def _scaled(inner: Part, factor: float) -> Part:
    return {"kind": "scaled", "inner": inner, "factor": factor}


def _affine(potential: potentials.AffinePrecomposed) -> Part:
    offset = None if potential.offset is None else potential.offset.float()
    inner = _potential(potential.potential)
    return {"kind": "affine", "inner": inner, "matrix": potential.matrix.t().float(), "offset": offset}


def _icnn(potential: potentials.ICNN) -> Part:
    calibrated = potential.calibrated
    return {
        "kind": "icnn",
        "terms": [TERMS[type(term)](term) for term in potential.terms],
        # A shift far from 0 needs more digits than a weight.
        "shift": potential.shift.double() if calibrated else None,
        "inverse_spread": potential.inverse_spread.double() if calibrated else None,
        "scale": float(potential.output_scale) if calibrated else 1.0,
    }


def _network(term: Network) -> Part:
    network = term.layers()
    return {
        "kind": "network",
        "activation": term.activation.name,
        "gain": term.activation.gain,
        "lifts": [layer.wxb.float() for layer in network.layers],
        "mixes": [layer.wz.float() for layer in network.layers if layer.wz is not None],
        "out": network.out.float(),
    }


def _separable(term: SeparableTerm) -> Part:
    sharpness, offset, weight = term.units()
    return {"kind": "atoms", "sharpness": sharpness.float(), "offset": offset.float(), "weight": weight.float()}


CLOSED_FORMS: dict[type, str] = {
    potentials.Burg: "burg",
    potentials.Exponential: "exponential",
    potentials.FermiDirac: "fermi-dirac",
    potentials.Hyperbolic: "hyperbolic",
    potentials.LogSumExp: "log-sum-exp",
}
COMPOSED: dict[type, Callable[[Any], Part]] = {
    potentials.AffinePrecomposed: _affine,
    potentials.ICNN: _icnn,
    potentials.NegativeEntropy: lambda _: {"kind": "entropy"},
    potentials.PowerNorm: lambda phi: {"kind": "power", "p": phi.p},
    potentials.Quadratic: lambda phi: _quadratic(phi.matrix),
    potentials.Scaled: lambda phi: _scaled(_potential(phi.potential), float(phi.factor)),
    potentials.Sum: lambda phi: {"kind": "sum", "parts": [_potential(part) for part in phi.parts]},
}
TERMS: dict[type, Callable[[Any], Part]] = {
    Network: _network,
    QuadraticTerm: lambda term: _quadratic(term.matrix.t()),
    SeparableTerm: _separable,
}


# ---------------------------------------------------------------------- encoders


def _encoder(encoder: nn.Module) -> list[Part]:
    """Return the steps of an encoder."""
    handler = _handler(LAYERS, encoder)
    if handler is None and type(encoder) in ACTIVATIONS:
        return [{"kind": ACTIVATIONS[type(encoder)]}]
    if handler is None or (type(encoder) is nn.BatchNorm1d and encoder.running_mean is None):
        must = "of Standardize, MLP, Linear, Identity, and Sequential of these and of common activations, Dropout, "
        must += "BatchNorm1d with running statistics"
        raise TypeError(checks.message("encoder of write_explorer", must, type(encoder).__name__, HINT))
    steps: list[Part] = handler(encoder)
    return steps


def _linear(layer: nn.Linear) -> list[Part]:
    bias = None if layer.bias is None else layer.bias.float()
    return [{"kind": "linear", "weight": layer.weight.t().float(), "bias": bias}]


def _mlp(encoder: encoders.MLP) -> list[Part]:
    hidden = [step for layer in encoder.hidden for step in (*_encoder(layer), {"kind": encoder.activation})]
    return [*hidden, *_encoder(encoder.last)]


def _standardize(layer: encoders.Standardize) -> list[Part]:
    if bool((layer.mean == 0).all() and (layer.std == 1).all()):
        return []
    # In 64 bits, as it is kept: features far from 0 would lose their digits.
    return [{"kind": "scale", "shift": layer.mean.double(), "factor": layer.std.double().reciprocal()}]


def _batch_norm(layer: Any) -> list[Part]:
    shift, factor = layer.running_mean.double(), (layer.running_var.double() + layer.eps).rsqrt()
    if layer.affine:
        # gamma f (x - m) + beta = g (x - (m - beta / g)); a gamma of 0 has no such form and is made tiny.
        factor = factor * torch.where(layer.weight == 0, 1e-30, layer.weight.double())
        shift = shift - layer.bias.double() / factor
    return [{"kind": "scale", "shift": shift, "factor": factor}]


ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.SiLU: "silu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
LAYERS: dict[type, Callable[[Any], list[Part]]] = {
    encoders.Identity: lambda _: [],
    encoders.MLP: _mlp,
    encoders.Standardize: _standardize,
    nn.BatchNorm1d: _batch_norm,
    nn.Dropout: lambda _: [],
    nn.Identity: lambda _: [],
    nn.Linear: _linear,
    nn.Sequential: lambda layers: [step for layer in layers for step in _encoder(layer)],
}


def _dim(encoder: nn.Module) -> int | None:
    """Return the number of features that an encoder takes, from its first layer that tells it."""
    for layer in encoder.modules():
        # The output of a layer is its input only where it changes nothing.
        names = ("in_features", "num_features", "dim", *(["out"] if type(layer) is encoders.Identity else []))
        for size in (getattr(layer, name, None) for name in names):
            if isinstance(size, int):
                return size
    return None
