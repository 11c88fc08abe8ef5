"""Clustering with Bregman divergences: hard and soft."""

from askew.clustering.kmeans import BregmanKMeans
from askew.clustering.lloyd import Clustering, kmeans
from askew.clustering.mixture import BregmanMixture

__all__ = ["BregmanKMeans", "BregmanMixture", "Clustering", "kmeans"]
