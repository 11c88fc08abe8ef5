"""Scores of rankings, clusterings and regressions, and diagnostics of a learned divergence."""

from askew.metrics.agreement import mae, purity, r2, rand, spearman
from askew.metrics.diagnostics import asymmetry, conditioning, dead_units, diagnose, triangle_violations
from askew.metrics.ranking import auc, knn_accuracy, mean_average_precision, ranking, ranking_per_query
from askew.metrics.relevance import mrr, ndcg_at_k, recall_at_k, relevance_per_query
from askew.metrics.reports import Conditioning, Diagnosis, TriangleViolations

__all__ = [
    "Conditioning",
    "Diagnosis",
    "TriangleViolations",
    "asymmetry",
    "auc",
    "conditioning",
    "dead_units",
    "diagnose",
    "knn_accuracy",
    "mae",
    "mean_average_precision",
    "mrr",
    "ndcg_at_k",
    "purity",
    "r2",
    "rand",
    "ranking",
    "ranking_per_query",
    "recall_at_k",
    "relevance_per_query",
    "spearman",
    "triangle_violations",
]
