"""Published data, read from the publishers' own files, and data made as the paper makes it."""

from askew_paper.data.files import cache_folder, data_folder, download, download_names, find, is_present
from askew_paper.data.graphs import graph_names
from askew_paper.data.images import Images, load_holidays, load_images
from askew_paper.data.roads import read_tntp, road_graph
from askew_paper.data.synthetic import (
    ExponentialMixture,
    GaussianMixture,
    Mixture,
    MultinomialMixture,
    make_mixture,
    mixture_names,
)
from askew_paper.data.tables import Table, load_table, table_names
from askew_paper.data.targets import target_pairs

__all__ = [
    "ExponentialMixture",
    "GaussianMixture",
    "Images",
    "Mixture",
    "MultinomialMixture",
    "Table",
    "cache_folder",
    "data_folder",
    "download",
    "download_names",
    "find",
    "graph_names",
    "is_present",
    "load_holidays",
    "load_images",
    "load_table",
    "make_mixture",
    "mixture_names",
    "read_tntp",
    "road_graph",
    "table_names",
    "target_pairs",
]
