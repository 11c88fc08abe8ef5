"""Clustering with Bregman divergences: hard and soft."""

from askew.clustering.expectation import SoftClustering, soft_clusters
from askew.clustering.kmeans import BregmanKMeans
from askew.clustering.lloyd import Clustering, kmeans
from askew.clustering.mixture import BregmanMixture
from askew.clustering.seeding import start_centres

__all__ = [
    "BregmanKMeans",
    "BregmanMixture",
    "Clustering",
    "SoftClustering",
    "kmeans",
    "soft_clusters",
    "start_centres",
]
