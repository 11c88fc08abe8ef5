"""Search among items by a divergence, in either direction: exact, or in engines that people already run."""

from askew.search.base import Index
from askew.search.blocks import score_blocks, search_blocks
from askew.search.exact import ExactIndex
from askew.search.faiss import FaissIndex
from askew.search.forms import Reduction, keys_and_queries
from askew.search.milvus import MilvusIndex
from askew.search.opening import load_index

__all__ = [
    "ExactIndex",
    "FaissIndex",
    "Index",
    "MilvusIndex",
    "Reduction",
    "keys_and_queries",
    "load_index",
    "score_blocks",
    "search_blocks",
]
