"""Search among items by a divergence, in either direction: exact, or in engines that people already run."""

from importlib import import_module
from typing import TYPE_CHECKING

from askew.search.base import Index
from askew.search.exact import ExactIndex
from askew.search.faiss import FaissIndex
from askew.search.inner_product import InnerProductForm
from askew.search.loading import load_index
from askew.search.vectors import KeysAndQueries, keys_and_queries

if TYPE_CHECKING:
    from askew.search.dask import search_blocks
    from askew.search.milvus import MilvusIndex

__all__ = [
    "ExactIndex",
    "FaissIndex",
    "Index",
    "InnerProductForm",
    "KeysAndQueries",
    "MilvusIndex",
    "keys_and_queries",
    "load_index",
    "search_blocks",
]

# Imported when first used.
_LAZY = {"MilvusIndex": "milvus", "search_blocks": "dask"}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
