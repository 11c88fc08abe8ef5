"""Fuzzing of the publishers' own files: road networks, words, tables, archives."""

from __future__ import annotations

import functools
import gzip
import io
import shutil
import tarfile
import zipfile
from pathlib import Path
from random import Random

import numpy as np
from askew_paper.data import files, load_table, read_tntp, road_graph
from askew_paper.data.files import Source
from askew_paper.data.taxonomy import load_taxonomy
from askew_paper.data.words import read_pairs, read_vectors

from fuzzing.changes import changed_bytes, changed_text, hostile_string
from fuzzing.tables import changed_array
from fuzzing.targets import Target, check, place, put

__all__ = ["TARGETS"]

Files = dict[str, bytes]


# ---------------------------------------------------------------------- road networks

NETWORK = b"""<NUMBER OF ZONES> 1
<NUMBER OF NODES> 4
<FIRST THRU NODE> 2
<NUMBER OF LINKS> 5
<END OF METADATA>

~ init term capacity length time b power speed toll type ;
1 2 900 1.5 2.5 0.15 4 0 0 1 ;
2 3 900 1.5 3.5 0.15 4 0 0 1 ;
3 2 900 1.5 0 0.15 4 0 0 1 ;
3 4 900 1.5 1 0.15 4 0 0 1 ;
4 2 900 1.5 1e3 0.15 4 0 0 1 ;
"""


def run_tntp(content: bytes) -> int:
    network = read_tntp(put("x_net.tntp", content))
    count = len(network.tails)
    check(len(network.heads) == count == len(network.times), "other numbers of ends and times")
    check((network.tails >= 1).all() and (network.heads <= network.nodes).all(), "a node out of range")
    check((network.times >= 0).all() and np.isfinite(network.times).all(), "a time that is none")
    graph = road_graph(network)
    check(graph.shape[0] <= 2 * count and (graph.data > 0).all(), "a graph that does not fit")
    return 1


# ---------------------------------------------------------------------- words

PAIRS = (
    b"word1\tword2\tlabel\tscore\tfold\ndog\tanimal\tTrue\t9.5\ttrain\n"
    b"animal\tdog\tFalse\t0.5\ttest\ncat\tdog\tno\t1\tval\n"
)
VECTORS = b"3 4\ndog 1 2 3 4\nanimal 0.5 0 -1 1e-3\nnew york 1 1 1 1\n"
SYNSETS = b"name\tlemmas\ndog.n.01\tdog,hound\npet.n.01\tpet\nanimal.n.01\tanimal\n"
EDGES = b"hyponym\thypernym\ndog.n.01\tpet.n.01\npet.n.01\tanimal.n.01\n"
MAMMALS = b"descendant\tancestor\ndog.n.01\tanimal.n.01\npet.n.01\tpet.n.01\n"


def make_pairs(random: Random) -> Files:
    content = changed_text(PAIRS, random)
    if random.random() < 0.2:
        packed = gzip.compress(content, 1, mtime=0)
        return {"pairs.tsv.gz": changed_bytes(packed, random) if random.random() < 0.5 else packed}
    return {"pairs.tsv": content}


def run_pairs(case: Files) -> int:
    (name, content), *_ = case.items()
    pairs = read_pairs(put(name, content))
    check(len(pairs.first) == len(pairs.second) and "" not in pairs.first, "pairs that are none")
    check(pairs.scores is None or np.isfinite(pairs.scores).all(), "a score that is none")
    check(pairs.labels is None or len(pairs.labels) == len(pairs), "another number of labels")
    return 1


@functools.cache
def vector_arrays() -> tuple[bytes, bytes]:
    found = []
    for array in (np.array(["dog", "animal"]), np.eye(2, dtype=np.float32)):
        file = io.BytesIO()
        np.save(file, array)
        found.append(file.getvalue())
    return found[0], found[1]


def make_vectors(random: Random) -> Files:
    kind = random.random()
    if kind < 0.6:
        return {"vectors.txt": changed_text(VECTORS, random, b" ")}
    if kind < 0.7:
        return {"vectors.txt.gz": changed_bytes(gzip.compress(VECTORS, 1, mtime=0), random)}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", random.choice((0, 8))) as archive:
        for name, content in zip(("words", "vectors"), vector_arrays(), strict=True):
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy"), changed_array(content, random) if random.random() < 0.5 else content
            )
    content = file.getvalue()
    return {"vectors.npz": changed_bytes(content, random) if random.random() < 0.4 else content}


def run_vectors(case: Files) -> int:
    (name, content), *_ = case.items()
    found = read_vectors(put(name, content))
    check(found.vectors.shape[0] == len(found.words) == len(found.places), "other numbers of words and vectors")
    check(np.isfinite(found.vectors).all(), "a vector that is not finite")
    return 1


def make_wordnet(random: Random) -> Files:
    part = random.choice(("nouns", "mammals"))
    contents = [SYNSETS, EDGES if part == "nouns" else MAMMALS]
    number = random.randrange(2)
    contents[number] = changed_text(contents[number], random)
    packed = [gzip.compress(content, 0, mtime=0) for content in contents]
    if random.random() < 0.1:
        packed[number] = changed_bytes(packed[number], random)
    edges = "noun_hypernym_edges" if part == "nouns" else "mammal_closure"
    return {"noun_synsets.tsv.gz": packed[0], f"{edges}.tsv.gz": packed[1]}


def run_wordnet(case: Files) -> int:
    for name, content in case.items():
        put(name, content)
    taxonomy = load_taxonomy("mammals" if "mammal_closure.tsv.gz" in case else "nouns", place())
    check(set(taxonomy.above) <= set(taxonomy.words), "a meaning without words")
    for meaning in taxonomy.words:
        check(meaning not in taxonomy.ancestors(meaning), "a meaning above itself")
    return 1


@functools.cache
def iris() -> bytes:
    from sklearn.datasets import load_iris

    bunch = load_iris()
    rows = [",".join([*map(str, row), f"Iris-{name}"]) for row, name in zip(bunch.data, bunch.target, strict=True)]
    return "\n".join(rows).encode() + b"\n\n"


def run_uci(content: bytes) -> int:
    put("iris.data", content)
    table = load_table("iris", place())
    check(table.points.shape == (150, 4) and len(table.labels) == 150, "another shape")
    check(np.isfinite(table.points).all(), "points that are not finite")
    return 1


# ---------------------------------------------------------------------- archives

MEMBERS = ("batches/one", "./batches/one", "../batches/one", "/tmp/askew-escaped", "batches/../../one", "batches")
SOURCES = tuple(
    Source(f"in/{n}", "https://example.org/a.tar.gz", md5="0", member=f"batches/{n}", limit=4096)
    for n in ("one", "two")
)


def make_archive(random: Random) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=random.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))) as tar:
        for name in ("batches/one", "batches/two", *random.choices(MEMBERS, k=random.randrange(4))):
            if random.random() < 0.15:
                name = hostile_string(random).encode("ascii", "replace").decode().replace("\x00", "0")[:90]
            member = tarfile.TarInfo(name)
            member.type = random.choice(
                (tarfile.REGTYPE,) * 6 + (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE)
            )
            member.linkname = random.choice(("/etc/passwd", "../../x", "batches/two"))
            content = random.randbytes(random.choice((0, 3, 600, 5000)))
            member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    content = file.getvalue()
    if random.random() < 0.4:
        content = changed_bytes(content[:4096], random) + content[4096:]
    packed = gzip.compress(content, 1, mtime=0)
    return changed_bytes(packed, random) if random.random() < 0.2 else packed


def run_archive(content: bytes) -> int:
    archive = put("a.tar.gz", content)
    around = place() / "around"
    shutil.rmtree(around, ignore_errors=True)
    root = around / "root"
    root.mkdir(parents=True)
    try:
        files._unpack(archive, SOURCES, root)
    finally:
        found = {str(path.relative_to(around)) for path in around.rglob("*") if not path.is_dir()}
        check(found <= {"root/in/one", "root/in/two"}, f"files outside of their places: {found}")
        check(not any(path.is_symlink() for path in around.rglob("*")), "a link")
        check(not Path("/tmp/askew-escaped").exists(), "a file outside")
    return 1


TARGETS = (
    Target("tntp", lambda random: changed_text(NETWORK, random, b" "), run_tntp, guided=True),
    Target("pairs", make_pairs, run_pairs),
    Target("vectors", make_vectors, run_vectors),
    Target("wordnet", make_wordnet, run_wordnet),
    Target("uci", lambda random: changed_text(iris(), random, b","), run_uci),
    Target("archive", make_archive, run_archive),
)
