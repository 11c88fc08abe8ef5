"""Fuzzing of the publishers' own files: road networks, images, archives."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
import tarfile
from pathlib import Path
from random import Random

import numpy as np
from askew_paper.data import files, images, read_tntp, road_graph
from askew_paper.data.files import Source

from fuzzing.changes import EXTREMES, changed_bytes, changed_text, hostile_string
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


# ---------------------------------------------------------------------- images


def idx(shape: tuple[int, ...], random: Random) -> bytes:
    sizes = [random.choice(EXTREMES) & 0xFFFFFFFF if random.random() < 0.05 else size for size in shape]
    return (
        bytes((0, 0, 8, len(shape)))
        + struct.pack(f">{len(shape)}I", *sizes)
        + bytes(i % 10 for i in range(int(np.prod(shape))))
    )


def make_idx(random: Random) -> bytes:
    content = idx((random.randrange(3), 28, 28) if random.random() < 0.5 else (random.randrange(9),), random)
    if random.random() < 0.3:
        content = gzip.compress(content, 1, mtime=0)
    return changed_bytes(content, random) if random.random() < 0.9 else content


def run_idx(content: bytes) -> int:
    path = put("idx", content)
    shape = (28, 28) if content[3:4] == b"\x03" else ()
    array = images._idx(path, shape)
    check(array.dtype == np.uint8 and array.shape[1:] == shape, "another array than asked for")
    check(array.size <= 1032 * len(content), "more bytes than the file can hold")
    return 1


def make_mnist(random: Random) -> Files:
    count = random.randrange(4)
    pair = [idx((count, 28, 28), random), idx((count,), random)]
    number = random.randrange(2)
    pair[number] = changed_bytes(pair[number], random)
    return dict(zip(("images", "labels"), pair, strict=True))


def run_mnist(case: Files) -> int:
    pixels, labels = images._read_mnist([put(name, content) for name, content in case.items()])
    check(len(pixels) == len(labels) and pixels.shape[1:] == (1, 28, 28), "other numbers of images and labels")
    check(not len(labels) or (labels.min() >= 0 and labels.max() <= 9), "a label out of range")
    return 1


def make_stl(random: Random) -> Files:
    count = random.choice((0, 1, 1, 2))
    labels = bytes(random.choice((1, 10, 5, 0, 255)) if random.random() < 0.3 else 1 for _ in range(count))
    pixels = bytes(27648 * count)
    if random.random() < 0.4:
        pixels = pixels[: random.randrange(len(pixels) + 1)] + random.choice((b"", b"x", bytes(27648)))
    return {
        "train_X.bin": pixels,
        "train_y.bin": changed_bytes(labels, random)[:100] if random.random() < 0.4 else labels,
    }


def run_stl(case: Files) -> int:
    pixels, labels = images._read_stl10([put(name, content) for name, content in case.items()])
    check(pixels.shape == (len(labels), 3, 96, 96) and labels.min() >= 0 and labels.max() <= 9, "other shapes")
    return 1


# ---------------------------------------------------------------------- archives

MEMBERS = ("batches/one", "./batches/one", "../batches/one", "/tmp/askew-escaped", "batches/../../one", "batches")
SOURCES = tuple(Source(f"in/{n}", "https://example.org/a.tar.gz", member=f"batches/{n}") for n in ("one", "two"))


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
    return gzip.compress(file.getvalue(), 1, mtime=0)  # whole, as its checksum has been verified


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
    Target("idx", make_idx, run_idx, guided=True),
    Target("mnist", make_mnist, run_mnist),
    Target("stl", make_stl, run_stl),
    Target("archive", make_archive, run_archive),
)
