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
from askew_paper.data.files import Source, data_folder, find
from askew_paper.data.graphs import as_graph, largest_part

__all__ = ["Network", "load_road", "read_tntp", "road_graph", "road_names"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# What a link that takes no time gets, as a share of the median of the others.
SMALL_TIME = 1e-3
COLLECTION = "https://github.com/bstabler/TransportationNetworks"
ROADS = ("berlin-center", "ChicagoRegional", "Anaheim")


class Network(NamedTuple):
    """The links of a TNTP file as they are written there.

    Attributes
    ----------
    tails, heads : array of shape (m,)
        Numbers of the nodes where a link begins and ends; the first node is 1.
    times : array of shape (m,)
        Free flow times.
    nodes : int
        Number of nodes.
    first_thru_node : int
        Nodes below it are centroids of zones, which nothing passes through.
    """

    tails: Integers
    heads: Integers
    times: Floats
    nodes: int
    first_thru_node: int


def road_names() -> list[str]:
    """Return the names of the road networks that the experiment has.

    Examples
    --------
    >>> road_names()
    ['berlin-center', 'ChicagoRegional', 'Anaheim']
    """
    return list(ROADS)


def read_tntp(path: str | os.PathLike[str]) -> Network:
    r"""Return the links of a network in the TNTP format, ``*_net.tntp``.

    Tags come in any order before ``<END OF METADATA>``. Then each line is a link: tail, head, capacity, length, free
    flow time and more, with blanks or tabs between them and ``;`` at the end; ``~`` begins a comment.

    Parameters
    ----------
    path
        The file. Without the tag ``<FIRST THRU NODE>`` all nodes can be passed through.

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
    path = Path(path)
    # Only numbers count: odd bytes in comments do no harm, and elsewhere are no numbers.
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    owner = repr(str(path))
    tags: dict[str, str] = {}
    start = None
    for number, line in enumerate(lines, 1):
        found = re.match(r"\s*<([^<>]*)>([^~]*)", line)
        if found is None:
            continue
        tag = " ".join(found[1].upper().split())
        if tag == "END OF METADATA":
            start = number
            break
        tags[tag] = found[2]
    if start is None:
        hint = f"Such files are in {COLLECTION}."
        raise ValueError(checks.message(owner, "a TNTP file with the line <END OF METADATA>", "none", hint))
    nodes = _declared(tags, "NUMBER OF NODES", None, owner)
    links = _declared(tags, "NUMBER OF LINKS", None, owner)
    first_thru_node = _declared(tags, "FIRST THRU NODE", 1, owner)
    places, rows = [], []
    for number, line in enumerate(lines[start:], start + 1):
        cells = line.split("~", 1)[0].replace(";", " ").split()
        if cells:
            places.append(number)
            rows.append(cells)
    return _links(places, rows, links, nodes, first_thru_node, owner)


def _declared(tags: dict[str, str], tag: str, default: int | None, owner: str) -> int:
    """Return the number that a tag declares."""
    words = tags.get(tag, "").split()
    if not words and tag not in tags and default is not None:
        return default
    if not words or not re.fullmatch(r"[0-9]{1,12}", words[0]) or int(words[0]) < 1:
        got = repr(" ".join(words)) if words else "nothing"
        raise ValueError(checks.message(f"<{tag}> of {owner}", "a positive integer", got))
    return int(words[0])


def _links(
    places: list[int], rows: list[list[str]], links: int, nodes: int, first_thru_node: int, owner: str
) -> Network:
    """Return the links that lines hold, once all of them are as they should be."""
    for place, row in zip(places, rows, strict=True):
        if len(row) < 5 or len(row) != len(rows[0]):
            must = "5 or more" if len(row) < 5 else f"{len(rows[0])}, as in line {places[0]}"
            raise ValueError(checks.message(f"the number of columns in line {place} of {owner}", must, len(row)))
    if len(rows) != links:
        hint = "The file may be cut short."
        raise ValueError(checks.message(f"the number of links in {owner}", f"{links} as declared", len(rows), hint))
    try:
        # Not as an array of text, in which one long cell would make all of them long.
        numbers = np.array([[float(row[0]), float(row[1]), float(row[4])] for row in rows])
    except ValueError:
        place, cell = next(
            (place, row[k])
            for place, row in zip(places, rows, strict=True)
            for k in (0, 1, 4)
            if not _is_number(row[k])
        )
        must = "numbers"
        raise ValueError(checks.message(f"nodes and time in line {place} of {owner}", must, repr(cell))) from None
    ends, times = numbers[:, :2], numbers[:, 2]
    # Not a number is not inside either.
    foreign = ~((ends >= 1) & (ends <= nodes) & (ends == np.floor(ends))).all(1)
    if foreign.any():
        worst = int(foreign.argmax())
        must = f"integers from 1 to {nodes}, the declared number of nodes"
        got = f"{rows[worst][0]} and {rows[worst][1]}"
        raise ValueError(checks.message(f"nodes in line {places[worst]} of {owner}", must, got))
    bad = ~(np.isfinite(times) & (times >= 0))
    if bad.any():
        worst = int(bad.argmax())
        must = "a finite number, zero or above"
        raise ValueError(checks.message(f"time in line {places[worst]} of {owner}", must, rows[worst][4]))
    tails, heads = ends.astype(np.int64).T
    return Network(tails, heads, times, nodes, first_thru_node)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def road_graph(network: Network) -> csr_array:
    """Return travel times between the nodes of a network as a graph in which each node is reached from each.

    Links at the centroids of zones are dropped, as those are no roads. A link that takes no time gets a thousandth
    of the median of the others, so that different nodes are never at distance 0. Of parallel links the fastest
    stays. The largest part in which all nodes reach each other is kept, and its nodes are numbered anew, in order.

    Parameters
    ----------
    network
        Of :func:`read_tntp`.

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
    # The nodes that have links: a declared number could be anything.
    used, ends = np.unique(np.concatenate([tails, heads]), return_inverse=True)
    tails, heads = ends.reshape(2, -1)
    return largest_part(as_graph(tails, heads, times, used.size))


def load_road(name: str, folder: str | os.PathLike[str] | None = None) -> csr_array:
    """Return the travel times of a road network by its name, as :func:`road_graph` gives them.

    Parameters
    ----------
    name
        One of :func:`road_names`, or the beginning of any other file ``<name>_net.tntp`` there.
    folder
        Where the file is, or a folder ``graphs`` with it; :func:`askew_paper.data.files.data_folder` by default.
        Nothing is downloaded.

    Examples
    --------
    >>> load_road("Atlantis", "no-such-folder")
    Traceback (most recent call last):
    FileNotFoundError: graphs/Atlantis_net.tntp must be in the folder 'no-such-folder'. Got no such file instead. ...
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w .-]*", name):
        raise ValueError(checks.message("name of a road network", "the beginning of a file's name", repr(name)))
    return road_graph(read_tntp(_road_file(f"{name}_net.tntp", folder)))


def _road_file(file: str, folder: str | os.PathLike[str] | None) -> Path:
    """Return where a file of road networks is; the collection has some names in other letters, as ``X_Net.tntp``."""
    root = data_folder(folder)
    for place in (root / "graphs", root):
        for other in sorted(place.iterdir()) if place.is_dir() else []:
            if other.name.lower() == file.lower():
                return other
    return find(Source(f"graphs/{file}", COLLECTION, terms="for academic research"), folder)
