"""Published data, read from the publishers' own files, and data made as the paper makes it."""

from askew_paper.data.files import Source, cache_folder, data_folder, download, download_names, find, is_present
from askew_paper.data.graphs import graph_names, make_graph
from askew_paper.data.images import Images, image_names, load_holidays, load_images
from askew_paper.data.roads import load_road, read_tntp, road_graph, road_names
from askew_paper.data.synthetic import (
    ExponentialMixture,
    GaussianMixture,
    Mixture,
    MultinomialMixture,
    make_mixture,
    mixture_names,
)
from askew_paper.data.tables import Table, load_table, table_names
from askew_paper.data.targets import Pairs, target_pairs

__all__ = [
    "ExponentialMixture",
    "GaussianMixture",
    "Images",
    "Mixture",
    "MultinomialMixture",
    "Pairs",
    "Source",
    "Table",
    "cache_folder",
    "data_folder",
    "download",
    "download_names",
    "find",
    "graph_names",
    "image_names",
    "is_present",
    "load_holidays",
    "load_images",
    "load_road",
    "load_table",
    "make_graph",
    "make_mixture",
    "mixture_names",
    "read_tntp",
    "road_graph",
    "road_names",
    "table_names",
    "target_pairs",
]
