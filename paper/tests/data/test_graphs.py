"""Graphs: the paper's grids, road networks from TNTP files, and shortest paths against other solvers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from askew_paper.data import graphs
from askew_paper.data.graphs import (
    graph_names,
    is_directed,
    landmark_distances,
    largest_part,
    make_graph,
    node_features,
    pair_distances,
    random_pairs,
)
from askew_paper.data.roads import ROADS, Network, load_road, read_tntp, road_graph
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import bellman_ford, connected_components

SMALL = {"3d": 4, "3dd": 4, "taxi": 3, "traffic": 6, "octagon": 6}
published = pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="ASKEW_DATA does not name a folder of data")


def floyd_warshall(graph: csr_array) -> NDArray[np.float64]:
    """All distances, by the textbook's three loops."""
    n = graph.shape[0]
    found = np.full((n, n), np.inf)
    coordinates = graph.tocoo()
    found[coordinates.row, coordinates.col] = coordinates.data
    np.fill_diagonal(found, 0)
    for k in range(n):
        found = np.minimum(found, found[:, k, None] + found[None, k])
    return found


def rounds(graph: csr_array, source: int) -> NDArray[np.float64]:
    """Distances from one node, by going over all edges until nothing changes."""
    edges = graph.tocoo()
    found = np.full(graph.shape[0], np.inf)
    found[source] = 0
    while True:
        before = found.copy()
        np.minimum.at(found, edges.col, found[edges.row] + edges.data)
        if np.array_equal(found, before):
            return found


# ---------------------------------------------------------------------- the paper's grids


@pytest.mark.parametrize("name", graph_names())
def test_same_seed_gives_the_same_graph(name: str) -> None:
    first, again, other = (make_graph(name, SMALL[name], seed) for seed in (3, 3, 4))
    assert (first != again).nnz == 0
    assert (first != other).nnz > 0
    assert first.data.min() >= 0.01
    assert connected_components(first, connection="strong")[0] == 1
    symmetric = (first != first.T).nnz == 0
    assert symmetric is not is_directed(name)


def test_size_of_the_paper() -> None:
    assert make_graph("traffic").shape == (10_000, 10_000)


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("3d", 6 * 4**3),
        ("3dd", 3 * 4**3),
        ("taxi", 2 * 4 * 2 * 3**3),
        ("traffic", 2 * 2 * 5 * 6),
        ("octagon", 2 * (2 * 5 * 6 + 2 * 5 * 5)),
    ],
)
def test_number_of_edges(name: str, edges: int) -> None:
    assert make_graph(name, SMALL[name]).nnz == edges


def test_edges_join_neighbours() -> None:
    for name, diagonal in (("traffic", False), ("octagon", True)):
        ends = np.array(make_graph(name, 6).nonzero())
        steps = np.abs(np.diff(np.array(np.unravel_index(ends, (6, 6))), axis=1))[:, 0]
        assert steps.max() == 1
        assert steps.sum(0).max() == 1 + diagonal
    # Forward only, and around the border.
    ends = np.array(make_graph("3dd", 4).nonzero())
    first, second = np.array(np.unravel_index(ends, (4, 4, 4))).transpose(1, 0, 2)
    assert (np.sort((second - first) % 4, axis=0) == [[0], [0], [1]]).all()


def test_lengths_are_drawn_as_in_the_paper() -> None:
    hundredths = make_graph("3d", 12).data * 100
    np.testing.assert_allclose(hundredths, hundredths.round(), atol=1e-9)
    assert (hundredths.round().min(), hundredths.round().max()) == (1, 100)
    assert abs(hundredths.mean() - 50.5) < 2
    graph = make_graph("traffic", 40)
    there = graph.tocoo()
    back = graph.toarray().T[there.row, there.col]
    # Two draws around one mean, each with a deviation of a tenth of it.
    ratio = np.log(there.data / back)[there.data > 0.1]
    assert 0.12 < ratio.std() < 0.17


def test_bad_graphs() -> None:
    with pytest.raises(ValueError, match=r"name of a graph must be one of '3d'.*Did you mean 'traffic'"):
        make_graph("trafic")
    with pytest.raises(ValueError, match=r"side of make_graph must be at least 3\. Got 2"):
        make_graph("3d", 2)
    with pytest.raises(ValueError, match=r"seed of make_graph must be an integer of at least 0\. Got -1"):
        make_graph("3d", 3, seed=-1)


# ---------------------------------------------------------------------- shortest paths


@pytest.mark.parametrize("name", graph_names())
def test_distances_against_other_solvers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph(name, SMALL[name], seed=1)
    everything = floyd_warshall(graph)
    np.testing.assert_allclose(everything, bellman_ford(graph), rtol=1e-12)
    pairs = random_pairs(graph.shape[0], 300, seed=2)
    expected = everything[pairs[:, 0], pairs[:, 1]]
    np.testing.assert_allclose(pair_distances(graph, pairs), expected, rtol=1e-12)
    # A few sources at a time, the last time fewer.
    monkeypatch.setattr(graphs, "BLOCK_DISTANCES", 7 * graph.shape[0])
    np.testing.assert_allclose(pair_distances(graph, pairs), expected, rtol=1e-12)
    landmarks, distances = landmark_distances(graph, 5, is_directed(name), seed=1)
    np.testing.assert_allclose(distances[:, :5], everything[:, landmarks], rtol=1e-12)
    if is_directed(name):
        np.testing.assert_allclose(distances[:, 5:], everything[landmarks].T, rtol=1e-12)
    else:
        assert distances.shape == (graph.shape[0], 5)


def test_landmarks_are_the_farthest_points() -> None:
    graph = make_graph("octagon", 6, seed=5)
    everything = floyd_warshall(graph)
    around = everything + everything.T
    landmarks, _ = landmark_distances(graph, 6, seed=5)
    assert len(set(landmarks.tolist())) == 6
    for k in range(1, 6):
        nearest = around[landmarks[:k]].min(0)
        assert nearest[landmarks[k]] == pytest.approx(nearest.max())
    assert landmark_distances(graph, 50)[1].shape == (36, 72)


def test_pairs_without_a_path_are_an_error() -> None:
    graph = csr_array(([1.0], ([0], [1])), shape=(2, 2))
    assert pair_distances(graph, np.array([[0, 1]])).tolist() == [1.0]
    for use in (lambda: pair_distances(graph, np.array([[1, 0]])), lambda: landmark_distances(graph, 2)):
        with pytest.raises(ValueError, match=r"graph must be one in which all these nodes reach.*largest_part"):
            use()


def test_largest_part() -> None:
    # A ring of three, a ring of two that it leads to, and a node alone.
    ends = np.array([[0, 2, 4, 4, 1, 3], [2, 4, 0, 1, 3, 1]])
    graph = csr_array((np.arange(1.0, 7), ends), shape=(6, 6))
    part = largest_part(graph)
    assert part.toarray().tolist() == [[0, 1, 0], [0, 0, 2], [3, 0, 0]]


def test_features_are_drawn_once_for_each_node() -> None:
    distances = np.random.default_rng(0).random((400, 6)) * 7
    features = node_features(distances, noise=0.2, distractors=10, seed=1)
    assert features.shape == (400, 16)
    assert features.dtype == np.float32
    scaled = (distances - distances.mean()) / distances.std()
    assert (features[:, :6] - scaled).std() == pytest.approx(0.2, rel=0.05)
    assert features[:, 6:].std() == pytest.approx(1, rel=0.05)
    np.testing.assert_array_equal(features, node_features(distances, 0.2, 10, seed=1))
    assert not np.array_equal(features, node_features(distances, 0.2, 10, seed=2))
    np.testing.assert_allclose(node_features(distances, 0, 0), scaled, rtol=1e-5, atol=1e-6)
    # One scale for all: columns keep their means.
    shifted = node_features(distances + np.arange(6), 0, 0)
    assert (np.diff(shifted.mean(0)) > 0.1).all()


@pytest.mark.parametrize(("n", "count"), [(5, 20), (5, 7), (5, 100), (2000, 500)])
def test_pairs_are_different(n: int, count: int) -> None:
    pairs = random_pairs(n, count, seed=3)
    assert pairs.shape == (min(count, n * (n - 1)), 2)
    assert len({tuple(pair) for pair in pairs.tolist()}) == len(pairs)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert pairs.min() >= 0
    assert pairs.max() < n
    np.testing.assert_array_equal(pairs, random_pairs(n, count, seed=3))


def test_pairs_are_uniform() -> None:
    counts = np.zeros((4, 4))
    for seed in range(600):
        pairs = random_pairs(4, 3, seed)
        counts[pairs[:, 0], pairs[:, 1]] += 1
    assert counts.diagonal().max() == 0
    others = counts[~np.eye(4, dtype=bool)]
    assert np.abs(others - 150).max() < 5 * np.sqrt(150)
    with pytest.raises(ValueError, match=r"n of random_pairs must be at least 2"):
        random_pairs(1, 3)


# ---------------------------------------------------------------------- road networks

LINKS = """
~ \tinit_node\tterm_node\tcapacity\tlength\tfree_flow_time\tb\tpower\tspeed\ttoll\tlink_type\t;
\t1\t3\t9000\t5280\t0\t0.15\t4\t4842\t0\t1\t;
\t3\t4\t9000\t5280\t1.5\t0.15\t4\t4842\t0\t1\t;
  4  3  9000  5280  2.5e+000  0.15  4  4842  0  1;
~ a comment
\t4\t5\t9000\t5280\t0\t0.15\t4\t4842\t0\t1\t; ~ another one

\t5\t3\t9000\t5280\t4\t0.15\t4\t4842\t0\t1\t;
\t3\t4\t9000\t5280\t1.25\t0.15\t4\t4842\t0\t1\t;
\t5\t5\t9000\t5280\t4\t0.15\t4\t4842\t0\t1\t;
\t5\t6\t9000\t5280\t4\t0.15\t4\t4842\t0\t1\t;
"""
TAGS = """<NUMBER OF ZONES> 2\t\t
<NUMBER OF NODES>\t\t6\t\t
<FIRST THRU NODE>  3
<NUMBER OF LINKS> 8
<ORIGINAL HEADER>~ \tInit node \tTerm node \t;
<END OF METADATA>\t\t
"""


def written(folder: Path, text: str, name: str = "Small_net.tntp") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def test_file_of_any_form(tmp_path: Path) -> None:
    network = read_tntp(written(tmp_path, TAGS + LINKS))
    assert (network.nodes, network.first_thru_node) == (6, 3)
    assert network.tails.tolist() == [1, 3, 4, 4, 5, 3, 5, 5]
    assert network.heads.tolist() == [3, 4, 3, 5, 3, 4, 5, 6]
    assert network.times.tolist() == [0, 1.5, 2.5, 0, 4, 1.25, 4, 4]
    shuffled = "\n".join(sorted(TAGS.splitlines()[:5], reverse=True)) + "\n < end of  metadata >\n"
    for text in (shuffled.lower() + LINKS, "\ufeff" + (TAGS + LINKS).replace("\n", "\r\n"), TAGS + LINKS.rstrip()):
        again = read_tntp(written(tmp_path, text))
        for one, two in zip(network, again, strict=True):
            np.testing.assert_array_equal(one, two)
    without = read_tntp(written(tmp_path, TAGS.replace("<FIRST THRU NODE>  3\n", "") + LINKS))
    assert without.first_thru_node == 1


def test_roads_of_a_file(tmp_path: Path) -> None:
    graph = road_graph(read_tntp(written(tmp_path, TAGS + LINKS)))
    # Nodes 3, 4, 5: no zone 1, no dead end 6, the faster of two links, a thousandth of the median for no time.
    assert graph.toarray() == pytest.approx(np.array([[0, 1.25, 0], [2.5, 0, 0.0025], [4, 0, 0]]))
    (tmp_path / "graphs").mkdir()
    written(tmp_path / "graphs", TAGS.replace("THRU NODE>  3", "THRU NODE>  1") + LINKS, "Other_Net.tntp")
    assert (load_road("Small", tmp_path) != graph).nnz == 0
    assert load_road("Other", tmp_path).shape == (3, 3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<END OF METADATA>", "", r"must be a TNTP file with the line <END OF METADATA>\. Got none"),
        ("<NUMBER OF NODES>\t\t6", "", r"<NUMBER OF NODES> of .* must be a positive integer\. Got nothing"),
        ("<NUMBER OF NODES>\t\t6", "<NUMBER OF NODES> six", r"<NUMBER OF NODES> .* positive integer\. Got 'six'"),
        ("<NUMBER OF LINKS> 8", "<NUMBER OF LINKS> -8", r"<NUMBER OF LINKS> .* positive integer\. Got '-8'"),
        ("<FIRST THRU NODE>  3", "<FIRST THRU NODE>", r"<FIRST THRU NODE> .* positive integer\. Got nothing"),
        ("<NUMBER OF LINKS> 8", "<NUMBER OF LINKS> 9", r"the number of links in .* must be 9 as declared\. Got 8"),
        ("<NUMBER OF NODES>\t\t6", "<NUMBER OF NODES> 5", r"line 18 of .* integers from 1 to 5, .* Got 5 and 6"),
        ("\t3\t4\t9000", "\t3\t4.5\t9000", r"nodes in line 10 of .* integers from 1 to 6, .* Got 3 and 4\.5"),
        ("\t3\t4\t9000", "\t0\t4\t9000", r"nodes in line 10 .* Got 0 and 4"),
        ("\t3\t4\t9000", "\tnan\t4\t9000", r"nodes in line 10 .* Got nan and 4"),
        ("\t3\t4\t9000", "\tx\t4\t9000", r"nodes and time in line 10 of .* must be numbers\. Got 'x'"),
        ("\t1.5\t", "\tfast\t", r"nodes and time in line 10 of .* must be numbers\. Got 'fast'"),
        ("\t1.5\t", "\tNaN\t", r"time in line 10 of .* must be a finite number, zero or above\. Got NaN"),
        ("\t1.5\t", "\t-1.5\t", r"time in line 10 .* Got -1\.5"),
        ("\t1.5\t", "\t1e999\t", r"time in line 10 .* Got 1e999"),
        ("\t3\t4\t9000\t5280\t1.5\t", "\t3\t4\t9000\t1.5\t", r"columns in line 10 .* must be 10, as in line 9\. Got 9"),
        ("\t3\t4\t9000\t5280\t1.5\t0.15\t4\t4842\t0\t1\t;", "3 4", r"columns in line 10 .* must be 5 or more\. Got 2"),
    ],
)
def test_bad_files(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = TAGS + LINKS
    assert old in text
    with pytest.raises(ValueError, match=message):
        read_tntp(written(tmp_path, text.replace(old, new, 1)))


def test_files_that_are_no_networks(tmp_path: Path) -> None:
    path = tmp_path / "Odd_net.tntp"
    path.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(ValueError, match="must be a TNTP file"):
        read_tntp(path)
    written(tmp_path, TAGS.replace("LINKS> 8", "LINKS> 1") + "1,2,3,4,5,6,7,8,9,10\n")
    with pytest.raises(ValueError, match=r"columns in line 7 .* must be 5 or more\. Got 1"):
        read_tntp(tmp_path / "Small_net.tntp")
    with pytest.raises(ValueError, match=r"the number of links .* must be 8 as declared\. Got 0"):
        read_tntp(written(tmp_path, TAGS))
    # No memory is taken for what is only declared.
    huge = read_tntp(written(tmp_path, (TAGS + LINKS).replace("NODES>\t\t6", "NODES> 900000000000")))
    assert road_graph(huge).shape == (3, 3)
    nothing = Network(*(np.array([1, 2], int) for _ in range(2)), np.array([1.0, 1.0]), 2, 3)
    with pytest.raises(ValueError, match=r"a road network must be links that take time .* Got none of 2 links"):
        road_graph(nothing)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"graphs/Anaheim_net\.tntp must be in .*/TransportationNetworks"):
        load_road("Anaheim", tmp_path)
    for name in ("../Anaheim", "", "a/b", ".."):
        with pytest.raises(ValueError, match=r"name of a road network must be the beginning of a file's name"):
            load_road(name, tmp_path)


@published
@pytest.mark.parametrize(
    ("name", "declared", "links", "nodes"),
    [
        ("berlin-center", 12981, 28376, 11907),
        ("ChicagoRegional", 12982, 39018, 11180),
        ("Anaheim", 416, 914, 344),
    ],
)
def test_published_networks(name: str, declared: int, links: int, nodes: int) -> None:
    assert name in ROADS
    network = read_tntp(Path(os.environ["ASKEW_DATA"]) / "graphs" / f"{name}_net.tntp")
    assert (network.nodes, network.times.size) == (declared, links)
    graph = load_road(name)
    assert graph.shape == (nodes, nodes)
    assert graph.data.min() > 0
    assert connected_components(graph, connection="strong")[0] == 1
    pairs = random_pairs(nodes, 30)
    there = pair_distances(graph, pairs)
    for k in range(3):
        assert there[k] == pytest.approx(rounds(graph, pairs[k, 0])[pairs[k, 1]], rel=1e-12)
    assert np.abs(there - pair_distances(graph, pairs[:, ::-1])).max() > 0.01 * there.mean()
