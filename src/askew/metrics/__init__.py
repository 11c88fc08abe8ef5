"""How good a clustering, a ranking or a regression is, and what a learned divergence is like."""

from askew.metrics.clustering import adjusted_rand, nmi, purity, rand
from askew.metrics.diagnostics import asymmetry, conditioning, dead_units, diagnose, triangle_violations
from askew.metrics.findings import Conditioning, Diagnosis, TriangleViolations
from askew.metrics.ranking import (
    auc,
    knn_accuracy,
    map_at_k,
    mean_average_precision,
    precision_at_1,
    ranking,
    ranking_per_query,
    recall_at_k,
)
from askew.metrics.regression import mae, r2, spearman

__all__ = [
    "Conditioning",
    "Diagnosis",
    "TriangleViolations",
    "adjusted_rand",
    "asymmetry",
    "auc",
    "conditioning",
    "dead_units",
    "diagnose",
    "knn_accuracy",
    "mae",
    "map_at_k",
    "mean_average_precision",
    "nmi",
    "precision_at_1",
    "purity",
    "r2",
    "rand",
    "ranking",
    "ranking_per_query",
    "recall_at_k",
    "spearman",
    "triangle_violations",
]
