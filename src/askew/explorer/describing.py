"""Models as JSON: what the page needs to evaluate potentials, encoders and the divergences made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from askew import checks
from askew.checks import REAL, Domain
from askew.divergences import (
    Bregman,
    Divergence,
    Embedded,
    Euclidean,
    GeneralizedSymmetrized,
    Mahalanobis,
    MaxAffine,
    Reversed,
    Scaled,
    Sqrt,
    Symmetrized,
)
from askew.encoders import MLP, Identity, Standardize
from askew.explorer.packing import Packed, pack
from askew.potentials import (
    ICNN,
    AffinePrecomposed,
    Burg,
    Conjugate,
    Exponential,
    FermiDirac,
    LogSumExp,
    NegativeEntropy,
    Potential,
    PowerNorm,
    Quadratic,
    Sum,
)
from askew.potentials import Scaled as ScaledPotential
from askew.potentials.closed_form import ClosedForm
from askew.potentials.icnn.terms import Network, QuadraticTerm, SeparableTerm, Term

__all__ = ["SHOWN", "Description", "can_show", "describe"]

SHOWN = (
    "the Bregman divergence of a potential of askew other than FromFunction (NeuralBregman, Kullback-Leibler, "
    "Itakura-Saito, ...), MaxAffine (PBDL), Mahalanobis, Euclidean, their "
    "Reversed, Scaled, Sqrt, Symmetrized and GeneralizedSymmetrized "
    "forms, or one of these behind an encoder"
)
LAYERS = "Standardize, MLP, Linear, Identity, and Sequential of these and of common activations, Dropout, BatchNorm1d"
ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.SiLU: "silu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
}


@dataclass(frozen=True)
class Description:
    """A divergence as the page evaluates it: images of points, the potential of images, what is done to the values.

    Attributes
    ----------
    encoder : tuple of dict
        The steps from points to images, in order.
    potential : dict
        The convex function of images.
    changes : tuple of dict
        What turns the two values D(x, y) and D(y, x) of the potential into those of the model, in order.
    domain : Domain
        Where images must lie.
    dim : int or None
        Number of features of a point, where the model says it.
    """

    encoder: tuple[Packed, ...]
    potential: Packed
    changes: tuple[Packed, ...]
    domain: Domain
    dim: int | None

    def to_json(self) -> dict[str, Any]:
        """Return what the page reads."""
        return {"encoder": list(self.encoder), "potential": self.potential, "changes": list(self.changes)}


def describe(model: Divergence) -> Description:
    """Return a divergence as the page evaluates it; one that it cannot evaluate is an error.

    Examples
    --------
    >>> from askew.divergences import make
    >>> describe(make("kl", 3)).to_json()
    {'encoder': [], 'potential': {'kind': 'entropy', 'simplex': False}, 'changes': []}
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


# ---------------------------------------------------------------------- divergences


def _divergence(model: Divergence) -> Description:
    if isinstance(model, Embedded):
        inner = _divergence(model.divergence)
        steps = _encoder(model.encoder)
        return replace(inner, encoder=(*steps, *inner.encoder), dim=_dim(model.encoder) or inner.dim)
    if isinstance(model, Bregman):
        potential = model.potential
        return Description((), _potential(potential), (), potential.domain, potential.dim)
    if isinstance(model, MaxAffine):
        pieces = {"kind": "pieces", "slopes": pack(model.slopes), "intercepts": pack(model.intercepts)}
        return Description((), pieces, (), REAL, model.dim)
    if isinstance(model, (Euclidean, Mahalanobis)):
        matrix = model.weight if isinstance(model, Mahalanobis) else None
        root = () if model.squared else ({"kind": "root"},)
        return Description((), _quadratic(matrix), root, REAL, model.dim)
    if isinstance(model, GeneralizedSymmetrized):
        # Half the squared distance between u(x) and u(y), u(x) = x + grad phi(x): u is one more step of the encoder.
        phi = model.divergence.potential
        step = {"kind": "plus-gradient", "potential": _potential(phi)}
        half = _scaled(_quadratic(None), 0.5)
        return Description((step,), half, ({"kind": "root"},) if model.root else (), phi.domain, phi.dim)
    if isinstance(model, (Reversed, Scaled, Sqrt, Symmetrized)):
        inner = _divergence(model.divergence)
        return replace(inner, changes=(*inner.changes, _change(model)))
    got = type(model).__name__
    hint = "Learn divergence='nbd', or draw it with askew.plot.balls, which shows any divergence."
    raise TypeError(checks.message("model of write_explorer", SHOWN, got, hint))


def _change(model: Reversed | Scaled | Sqrt | Symmetrized) -> Packed:
    if isinstance(model, Scaled):
        return {"kind": "scaled", "factor": float(model.log_factor.exp())}
    if isinstance(model, Reversed):
        return {"kind": "reversed"}
    return {"kind": "root"} if isinstance(model, Sqrt) else {"kind": "symmetrized"}


# ---------------------------------------------------------------------- potentials


def _potential(potential: Potential, inverted: bool = False) -> Packed:
    """Return a potential; ``inverted`` says that the page has to invert its gradient, too."""
    if isinstance(potential, ICNN):
        return _icnn(potential)
    if isinstance(potential, Sum):
        return {"kind": "sum", "parts": [_potential(part) for part in potential.parts]}
    if isinstance(potential, ScaledPotential):
        return _scaled(_potential(potential.potential, inverted), float(potential.factor))
    if isinstance(potential, AffinePrecomposed):
        offset = potential.offset
        return {
            "kind": "affine",
            "inner": _potential(potential.potential),
            "matrix": pack(potential.matrix.t()),
            "offset": None if offset is None else pack(offset),
        }
    if isinstance(potential, Conjugate) and _invertible(potential.potential):
        return {"kind": "conjugate", "inner": _potential(potential.potential, inverted=True)}
    found = _closed(potential, inverted)
    if found is None:
        got = type(potential).__name__
        if isinstance(potential, Conjugate):
            got = f"the Conjugate of {type(potential.potential).__name__}, which has no formula"
        hint = "Draw it with askew.plot.balls, which shows any divergence."
        raise TypeError(checks.message("model of write_explorer", SHOWN, f"a Bregman divergence of {got}", hint))
    return found


def _closed(potential: Potential, inverted: bool) -> Packed | None:
    if isinstance(potential, Quadratic):
        return _quadratic(potential.matrix, inverted)
    if isinstance(potential, NegativeEntropy):
        return {"kind": "entropy", "simplex": potential.simplex}
    if isinstance(potential, PowerNorm):
        return {"kind": "power", "p": potential.p}
    names: dict[type[Potential], str] = {
        Burg: "burg",
        FermiDirac: "fermi-dirac",
        Exponential: "exponential",
        LogSumExp: "log-sum-exp",
    }
    name = names.get(type(potential))
    return None if name is None else {"kind": name}


def _invertible(potential: Potential) -> bool:
    """Whether the page can invert the gradient by a formula."""
    if isinstance(potential, ScaledPotential):
        return _invertible(potential.potential)
    if isinstance(potential, Quadratic) and potential.matrix is not None:
        return int(torch.linalg.matrix_rank(potential.matrix)) == potential.dim
    return isinstance(potential, (ClosedForm, Conjugate))


def _scaled(inner: Packed, factor: float) -> Packed:
    return {"kind": "scaled", "inner": inner, "factor": factor}


def _quadratic(matrix: Tensor | None, inverted: bool = False) -> Packed:
    if matrix is None:
        return {"kind": "quadratic", "matrix": None, "inverse": None}
    inverse = None
    if inverted:
        root = torch.linalg.pinv(matrix.double())
        inverse = pack(root @ root.t() / 2, wide=True)
    return {"kind": "quadratic", "matrix": pack(matrix.t()), "inverse": inverse}


def _icnn(potential: ICNN) -> Packed:
    calibrated = potential.calibrated
    return {
        "kind": "icnn",
        "terms": [_term(term) for term in potential._terms()],
        # A shift far from 0 needs more digits than a weight.
        "shift": pack(potential.shift, wide=True) if calibrated else None,
        "inverse_spread": pack(potential.inverse_spread, wide=True) if calibrated else None,
        "scale": float(potential.output_scale) if calibrated else 1.0,
    }


def _term(term: Term) -> Packed:
    if isinstance(term, Network):
        network = term.layers()
        return {
            "kind": "network",
            "activation": term.activation.name,
            "gain": term.activation.gain,
            "lifts": [pack(layer.wxb) for layer in network.layers],
            "mixes": [pack(layer.wz) for layer in network.layers if layer.wz is not None],
            "out": pack(network.out),
        }
    if isinstance(term, QuadraticTerm):
        return _quadratic(term.matrix.t())
    if isinstance(term, SeparableTerm):
        sharpness, offset, weight = term.units()
        return {"kind": "atoms", "sharpness": pack(sharpness), "offset": pack(offset), "weight": pack(weight)}
    raise TypeError(checks.message("terms of an ICNN of write_explorer", "those of askew", type(term).__name__))


# ---------------------------------------------------------------------- encoders


def _encoder(encoder: nn.Module) -> list[Packed]:
    if isinstance(encoder, nn.Sequential):
        return [step for layer in encoder for step in _encoder(layer)]
    if isinstance(encoder, (nn.Identity, Identity, nn.Dropout)):
        return []
    if isinstance(encoder, Standardize):
        if bool((encoder.mean == 0).all() and (encoder.std == 1).all()):
            return []
        # In 64 bits, as it is kept: features far from 0 would lose their digits.
        factor = encoder.std.double().reciprocal()
        return [{"kind": "scale", "shift": pack(encoder.mean, wide=True), "factor": pack(factor, wide=True)}]
    if isinstance(encoder, nn.Linear):
        bias = encoder.bias
        return [{"kind": "linear", "weight": pack(encoder.weight.t()), "bias": None if bias is None else pack(bias)}]
    if isinstance(encoder, MLP):
        steps: list[Packed] = []
        for layer in encoder.hidden:
            steps += [*_encoder(layer), {"kind": encoder.activation}]
        return [*steps, *_encoder(encoder.last)]
    if isinstance(encoder, nn.BatchNorm1d) and encoder.running_mean is not None and encoder.running_var is not None:
        factor = (encoder.running_var.double() + encoder.eps).rsqrt()
        shift = encoder.running_mean.double()
        if encoder.affine:
            # gamma f (x - m) + beta = g (x - (m - beta / g)); a gamma of 0 has no such form and is made tiny.
            factor = factor * torch.where(encoder.weight == 0, 1e-30, encoder.weight.double())
            shift = shift - encoder.bias.double() / factor
        return [{"kind": "scale", "shift": pack(shift, wide=True), "factor": pack(factor, wide=True)}]
    name = ACTIVATIONS.get(type(encoder))
    if name is None:
        hint = "Draw it with askew.plot.balls, which shows any divergence."
        raise TypeError(checks.message("encoder of write_explorer", f"of {LAYERS}", type(encoder).__name__, hint))
    return [{"kind": name}]


def _dim(encoder: nn.Module) -> int | None:
    """Return the number of features that an encoder takes, where it says so."""
    for layer in encoder.modules():
        for name in ("in_features", "num_features", "dim", "out"):
            size = getattr(layer, name, None)
            # The output of a layer is its input only where it changes nothing.
            if isinstance(size, int) and (name != "out" or isinstance(layer, Identity)):
                return size
    return None
