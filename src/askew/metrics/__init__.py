"""Scores of rankings, clusterings and regressions, and diagnostics of a learned divergence."""

from askew.metrics.agreement import adjusted_rand, mae, nmi, purity, r2, rand, spearman
from askew.metrics.diagnostics import asymmetry, conditioning, dead_units, diagnose, triangle_violations
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
from askew.metrics.reports import Conditioning, Diagnosis, TriangleViolations

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
