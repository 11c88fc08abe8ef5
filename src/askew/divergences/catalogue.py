"""The catalogue of divergences by name, for estimators, experiments and the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from askew import checks, potentials
from askew.checks import POSITIVE, REAL, SIMPLEX, UNIT_BOX, Domain
from askew.divergences.base import Bregman, Divergence
from askew.divergences.drift import Drift
from askew.divergences.max_affine import DeepDiv, MaxAffine
from askew.divergences.neural import NeuralBregman
from askew.divergences.norms import DeepNorm, Euclidean, Mahalanobis, WideNorm
from askew.divergences.quasimetrics import IQE, MRN
from askew.divergences.wrappers import Embedded, GeneralizedSymmetrized, Sqrt

# Units of a drift behind an encoder. On raw features few are better where there is no direction to learn; behind an
# encoder many make it robust to a large learning rate.
HEAD_HIDDEN = 128


@dataclass(frozen=True)
class Entry:
    """One divergence of the catalogue.

    Attributes
    ----------
    name : str
        Its name for :func:`make`.
    factory : callable
        Makes it from the number of features.
    summary : str
        One line for lists.
    learned : bool
        Whether it has parameters to learn.
    domain : Domain
        Where its points must lie.
    head : callable or None
        Makes it behind an encoder, where that is another form; the user gives the same name.

    Examples
    --------
    >>> CATALOGUE["kl"].learned, str(CATALOGUE["kl"].domain)
    (False, 'positive')
    """

    name: str
    factory: Callable[[int], Divergence]
    summary: str
    learned: bool = True
    domain: Domain = REAL
    head: Callable[[int], Divergence] | None = None


def _closed(name: str, potential: Callable[[int], potentials.Potential], summary: str, domain: Domain = REAL) -> Entry:
    return Entry(name, lambda dim: Bregman(potential(dim)), summary, learned=False, domain=domain)


def _head(dim: int) -> NeuralBregman:
    """Return the NBD behind an encoder: the quadratic term would only repeat the encoder's last layer."""
    return NeuralBregman(dim, quadratic=0)


def _light(dim: int) -> Drift:
    return Drift(NeuralBregman(dim, widths=(), separable=0), root=True)


CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("nbd", NeuralBregman, "neural Bregman divergence with quadratic and separable terms", head=_head),
        Entry("nbd-paper", NeuralBregman.paper, "neural Bregman divergence as in the paper"),
        Entry(
            "drift",
            lambda dim: Drift(NeuralBregman(dim)),
            "neural Bregman divergence with a learned direction",
            head=lambda dim: Drift(_head(dim), hidden=HEAD_HIDDEN),
        ),
        Entry(
            "drift-root",
            lambda dim: Drift(NeuralBregman(dim), root=True),
            "square root of drift, for targets that grow like a distance",
            head=lambda dim: Drift(_head(dim), root=True, hidden=HEAD_HIDDEN),
        ),
        Entry("drift-mahalanobis", _light, "drift on a Mahalanobis distance: the lightest directed one"),
        Entry("deep-div", DeepDiv, "maximum of 50 small networks (Cilingir et al. 2020)"),
        Entry("deep-div-affine", MaxAffine, "maximum of 50 affine functions, learned by gradient"),
        Entry("pbdl", MaxAffine, "maximum of affine functions, the form of PBDL (Siahkamari et al. 2020)"),
        Entry("deepnorm", DeepNorm, "asymmetric norm from a constrained network (Pitis et al. 2020)"),
        Entry("widenorm", WideNorm, "asymmetric norm from many Mahalanobis norms (Pitis et al. 2020)"),
        Entry(
            "widenorm-legacy",
            lambda dim: WideNorm(dim, legacy_bias=True),
            "widenorm with the bias that lets D(x, x) > 0",
        ),
        Entry("mahalanobis", Mahalanobis, "squared norm of a learned linear map"),
        Entry("mahalanobis-norm", lambda dim: Mahalanobis(dim, squared=False), "norm of a learned linear map"),
        Entry("euclidean", Euclidean, "squared Euclidean distance", learned=False),
        Entry("euclidean-norm", lambda dim: Euclidean(dim, squared=False), "Euclidean distance", learned=False),
        Entry("bregman-sqrt", lambda dim: Sqrt(NeuralBregman(dim)), "square root of a neural Bregman divergence"),
        Entry(
            "bregman-gs",
            lambda dim: GeneralizedSymmetrized(NeuralBregman(dim)),
            "generalised symmetrised Bregman distance",
        ),
        Entry("iqe", IQE, "interval quasimetric embedding (Wang and Isola 2022)"),
        Entry("mrn", MRN, "metric residual network (Liu et al. 2023)"),
        _closed("kl", potentials.NegativeEntropy, "generalised Kullback-Leibler divergence", POSITIVE),
        _closed(
            "kl-simplex",
            lambda dim: potentials.NegativeEntropy(dim, simplex=True),
            "Kullback-Leibler divergence of distributions",
            SIMPLEX,
        ),
        _closed("itakura-saito", potentials.Burg, "Itakura-Saito divergence", POSITIVE),
        _closed("logistic", potentials.FermiDirac, "logistic loss divergence on the unit box", UNIT_BOX),
        _closed("log-sum-exp", potentials.LogSumExp, "divergence of log-sum-exp, the dual of KL on the simplex"),
        _closed("exponential", potentials.Exponential, "divergence of the sum of exponentials"),
        _closed("hyperbolic", potentials.Hyperbolic, "ranks like the distance of hyperbolic space"),
        _closed("power", potentials.PowerNorm, "divergence of sum |x|^1.5"),
    )
}


def names() -> list[str]:
    """Return the names of all divergences.

    Examples
    --------
    >>> names()[:3]
    ['nbd', 'nbd-paper', 'drift']
    """
    return list(CATALOGUE)


def make(name: str, dim: int, encoder: nn.Module | None = None, second: nn.Module | None = None) -> Divergence:
    """Return a new divergence by its name, alone or behind an encoder.

    Parameters
    ----------
    name
        One of :func:`names`.
    dim
        Number of features that it compares: of the points, or of what the encoder returns.
    encoder
        A module that maps points to ``(n, dim)``, to be learned with it: the result is an :class:`Embedded`. Behind an
        encoder ``"nbd"``, ``"drift"`` and ``"drift-root"`` have no quadratic term, which the encoder's last layer
        makes superfluous.
    second
        The encoder of the second argument, if that is another one.

    Examples
    --------
    >>> make("kl", 3)
    Bregman(
      dim=3, symmetric=False, triangle=False, domain=positive
      (potential): NegativeEntropy(dim=3, domain=positive)
    )
    >>> import torch
    >>> make("drift", 16, encoder=nn.Linear(100, 16)).pairwise(torch.randn(4, 100), torch.randn(5, 100)).shape
    torch.Size([4, 5])
    """
    checks.check_name(name, CATALOGUE, "name of a divergence")
    dim, entry = checks.check_size(dim, f"dim of {name!r}"), CATALOGUE[name]
    if encoder is None:
        if second is not None:
            raise ValueError(checks.message("second of make", "given together with encoder", "no encoder"))
        return entry.factory(dim)
    return Embedded(encoder, (entry.head or entry.factory)(dim), second)
