"""Road networks from TNTP files, as graphs of travel times."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from askew import checks
from askew_paper.data.files import Folder, Source, data_folder, find
from askew_paper.data.graphs import as_graph, largest_part

# Time of a link that takes none, as a fraction of the median of the others.
SMALL_TIME = 1e-3
COLLECTION = "https://github.com/bstabler/TransportationNetworks"
ROADS = ("berlin-center", "ChicagoRegional", "Anaheim")


class Network(NamedTuple):
    """The links of a TNTP file as they are written there."""

    tails: NDArray[np.int64]  # numbers of the nodes where links begin; the first node is 1
    heads: NDArray[np.int64]
    times: NDArray[np.float64]  # free flow times
    nodes: int
    first_thru_node: int  # nodes below it are centroids of zones, which nothing passes through


def read_tntp(path: str | os.PathLike[str]) -> Network:
    r"""Return the links of a network in the TNTP format, ``*_net.tntp``.

    Tags come in any order before ``<END OF METADATA>``. Then each line is a link: tail, head, capacity, length, free
    flow time and more, with blanks or tabs between them and ``;`` at the end; ``~`` begins a comment. Without the tag
    ``<FIRST THRU NODE>`` all nodes can be passed through.

    Raises
    ------
    ValueError
        If numbers are missing, are no numbers, are negative or do not fit what the tags declare.

    Examples
    --------
    >>> import tempfile
    >>> tags = "<NUMBER OF NODES> 2\n<NUMBER OF LINKS> 2\n<FIRST THRU NODE> 1\n<END OF METADATA>\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "Small_net.tntp"
    ...     _ = path.write_text(tags + "~ init term capacity length time ;\n1 2 900 1.5 2.5 ;\n2 1 900 1.5 3.5;\n")
    ...     read_tntp(path).times.tolist()
    [2.5, 3.5]
    """
    owner = repr(os.fspath(path))
    # Only numbers count: odd bytes in comments do no harm, and elsewhere are no numbers.
    lines = Path(path).read_text(encoding="utf-8-sig", errors="replace").splitlines()
    tags: dict[str, str] = {}
    start = None
    for number, line in enumerate(lines, 1):
        if found := re.match(r"\s*<([^<>]*)>([^~]*)", line):
            tag = " ".join(found[1].upper().split())
            tags[tag] = found[2].strip()
            if tag == "END OF METADATA":
                start = number
                break
    if start is None:
        must, hint = "a TNTP file with the line <END OF METADATA>", f"Such files are in {COLLECTION}."
        raise ValueError(checks.message(owner, must, "none", hint))
    nodes, links = (_declared(tags, tag, owner) for tag in ("NUMBER OF NODES", "NUMBER OF LINKS"))
    first_thru_node = _declared({"FIRST THRU NODE": "1"} | tags, "FIRST THRU NODE", owner)
    rows = [(number, line.split("~", 1)[0].replace(";", " ").split()) for number, line in enumerate(lines, 1)]
    rows = [(number, cells) for number, cells in rows[start:] if cells]
    for number, cells in rows:
        if len(cells) < 5 or len(cells) != len(rows[0][1]):
            must = "5 or more" if len(cells) < 5 else f"{len(rows[0][1])}, as in line {rows[0][0]}"
            raise ValueError(checks.message(f"the number of columns in line {number} of {owner}", must, len(cells)))
    values = np.array([_link(f"line {number} of {owner}", cells, nodes) for number, cells in rows]).reshape(-1, 3)
    if len(values) != links:
        hint = "The file may be cut short."
        raise ValueError(checks.message(f"the number of links in {owner}", f"{links} as declared", len(values), hint))
    tails, heads = values[:, :2].astype(np.int64).T
    return Network(tails, heads, values[:, 2], nodes, first_thru_node)


def _declared(tags: dict[str, str], tag: str, owner: str) -> int:
    """Return the number that a tag declares."""
    number = tags.get(tag, "").partition(" ")[0]
    if not re.fullmatch(r"[0-9]{1,12}", number) or int(number) < 1:
        got = repr(number) if number else "nothing"
        raise ValueError(checks.message(f"<{tag}> of {owner}", "a positive integer", got))
    return int(number)


def _link(where: str, cells: list[str], nodes: int) -> tuple[float, float, float]:
    """Return both ends and the time of a link."""
    try:
        tail, head, time = float(cells[0]), float(cells[1]), float(cells[4])
    except ValueError as error:
        got = str(error).rpartition(": ")[2]
        raise ValueError(checks.message(f"nodes and time in {where}", "numbers", got)) from None
    if not all(1 <= end <= nodes and end.is_integer() for end in (tail, head)):
        must, got = f"integers from 1 to {nodes}, the declared number of nodes", f"{cells[0]} and {cells[1]}"
        raise ValueError(checks.message(f"nodes in {where}", must, got))
    if not 0 <= time < np.inf:
        raise ValueError(checks.message(f"time in {where}", "a finite number, zero or above", cells[4]))
    return tail, head, time


def road_graph(network: Network) -> csr_array:
    """Return travel times between the nodes of a network as a graph in which each node is reached from each.

    Links at the centroids of zones are dropped: they are no roads. A link that takes no time gets a thousandth of the
    median of the others, so different nodes are never at distance 0. Of parallel links the fastest is kept, and of the
    graph the largest part in which all nodes reach each other, renumbered in order.

    Examples
    --------
    >>> network = Network(np.array([1, 2, 2, 3]), np.array([2, 1, 3, 2]), np.array([9.0, 9, 0, 5]), 3, 2)
    >>> road_graph(network).toarray()
    array([[0.   , 0.005],
           [5.   , 0.   ]])
    """
    tails, heads, times = network[:3]
    kept = (np.minimum(tails, heads) >= network.first_thru_node) & (tails != heads)
    tails, heads, times = tails[kept], heads[kept], times[kept]
    if not (times > 0).any():
        got = f"none of {network.times.size} links"
        must = "links that take time between nodes that can be passed through"
        raise ValueError(checks.message("a road network", must, got))
    times = np.where(times > 0, times, SMALL_TIME * np.median(times[times > 0]))
    # Only nodes with links: the declared number could be anything.
    used, ends = np.unique(np.concatenate([tails, heads]), return_inverse=True)
    tails, heads = ends.reshape(2, -1)
    return largest_part(as_graph(tails, heads, times, used.size))


def load_road(name: str, folder: Folder = None) -> csr_array:
    """Return the travel times in the file ``<name>_net.tntp``, as :func:`road_graph` gives them.

    Examples
    --------
    >>> load_road("Atlantis", "no-such-folder")
    Traceback (most recent call last):
    FileNotFoundError: graphs/Atlantis_net.tntp must be in the folder 'no-such-folder'. Got no such file instead. ...
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w .-]*", name):
        raise ValueError(checks.message("name of a road network", "the beginning of a file's name", repr(name)))
    file, root = f"{name}_net.tntp", data_folder(folder)
    for place in (root / "graphs", root):  # the collection has some names in other letters, as X_Net.tntp
        for path in sorted(place.iterdir()) if place.is_dir() else []:
            if path.name.lower() == file.lower():
                return road_graph(read_tntp(path))
    return road_graph(read_tntp(find(Source(f"graphs/{file}", COLLECTION, terms="for academic research"), folder)))
