"""The catalogue of divergences by name, for estimators, experiments and the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from askew import checks, potentials
from askew.checks import POSITIVE, REAL, SIMPLEX, UNIT_BOX, Domain
from askew.divergences.base import Bregman, Divergence
from askew.divergences.max_affine import DeepDiv, MaxAffine
from askew.divergences.neural import NeuralBregman
from askew.divergences.norms import DeepNorm, Euclidean, Mahalanobis, WideNorm
from askew.divergences.quasimetrics import IQE, MRN
from askew.divergences.wrappers import GeneralizedSymmetrized, Sqrt


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
    """

    name: str
    factory: Callable[[int], Divergence]
    summary: str
    learned: bool = True
    domain: Domain = REAL


def _closed(name: str, potential: Callable[[int], potentials.Potential], summary: str, domain: Domain = REAL) -> Entry:
    return Entry(name, lambda dim: Bregman(potential(dim)), summary, learned=False, domain=domain)


CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("nbd", NeuralBregman, "neural Bregman divergence with quadratic and separable terms"),
        Entry("nbd-paper", NeuralBregman.paper, "neural Bregman divergence as in the paper"),
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
        _closed("power", potentials.PowerNorm, "divergence of sum |x|^1.5"),
    )
}


def names() -> list[str]:
    """Return the names of all divergences.

    Examples
    --------
    >>> names()[:3]
    ['nbd', 'nbd-paper', 'deep-div']
    """
    return list(CATALOGUE)


def make(name: str, dim: int) -> Divergence:
    """Return a new divergence by its name.

    Parameters
    ----------
    name
        One of :func:`names`.
    dim
        Number of features.

    Examples
    --------
    >>> make("kl", 3)
    Bregman(
      dim=3, symmetric=False, triangle=False, domain=positive
      (potential): NegativeEntropy(dim=3, domain=positive)
    )
    """
    checks.check_name(name, CATALOGUE, "name of a divergence")
    return CATALOGUE[name].factory(checks.check_size(dim, f"dim of {name!r}"))
