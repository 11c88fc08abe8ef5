"""Fuzzing of tables in files, and of how their columns become features."""

from __future__ import annotations

import functools
import io
import json
import struct
import zipfile
from random import Random
from typing import Any

import numpy as np
import pandas

from askew import io as askew_io
from askew.cli.tables import read_frame
from askew.estimators import Columns
from fuzzing.changes import changed_bytes, changed_json, changed_text, hostile_string
from fuzzing.targets import Target, check, put

__all__ = ["TARGETS"]

Files = dict[str, bytes]

TEXTS = tuple(
    text.encode()
    for text in (
        'id,age,name\n1,2.5,ann\n2,?,bob\n3,inf,"c,d"\n',
        "weight;fruit\n150,5;apple\n?;plum\n12,25;apple\n",
        "a\tb\tc\n1\t2020-01-01\tx\n2\t2021-02-03\ty\n3\tNA\tx\n",
        "x|y\n1|2\n3|4\n",
        "when;sum;city\n31.12.2021;1.234,5;Bern \n01.02.2021;-999;bern\n03.04.2021;12,5;Zu\u0308rich\n",
        "a\n1\n2\n",
        "a,b,c,d\n" + "".join(f"{i},{i * i % 7},{'xyz'[i % 3]},2020-01-{i + 1:02d}\n" for i in range(12)),
    )
)


def run_frame(path: Any, header: bool) -> int:
    """Read a table and make points of it."""
    frame = read_frame(path, header=header)
    check(len(frame) > 0 and frame.shape[1] > 0, "an empty table")
    check(frame.columns.is_unique, "two columns of one name")
    points = Columns().fit_transform(frame)
    check(points.shape[0] == len(frame) and np.isfinite(points).all(), "points that are not finite")
    return 1


def make_text(random: Random) -> Files:
    content = changed_text(random.choice(TEXTS), random, b",;\t|", TEXTS)
    ending = random.choice(("csv", "csv", "tsv", "txt"))
    return {f"{'head' if random.random() < 0.8 else 'bare'}.{ending}": content}


def run_files(case: Files) -> int:
    (name, content), *_ = case.items()
    return run_frame(put(name, content), not name.startswith("bare"))


def run_sniffing(content: bytes) -> int:
    return run_frame(put("head.csv", content), True)


# ---------------------------------------------------------------------- arrays


@functools.cache
def arrays() -> tuple[bytes, ...]:
    """Return .npy files of several kinds."""
    random = np.random.default_rng(0)
    kinds: list[Any] = [random.normal(size=(5, 3)), np.arange(6), np.array(["a", "bc", "a"]), np.zeros((2, 0))]
    kinds += [np.array([b"x", b"yz"]), np.array(["2020-01-01", "2021-01-01"], "M8[D]"), np.ones((3, 2), np.float16)]
    kinds += [np.asfortranarray(random.normal(size=(3, 4)).astype(np.float32)), np.array([True, False])]
    found = []
    for array in kinds:
        file = io.BytesIO()
        np.save(file, array)
        found.append(file.getvalue())
    return tuple(found)


SHAPES = (
    "(3,)",
    "()",
    "(0, 1000000000000)",
    "(1000000000000, 0)",
    "(1099511627776,)",
    "(-1, 2)",
    "(2, 3, 1)",
    "(True,)",
)
SHAPES += ("(4294967296, 4294967296)", "(1e3,)", "(9223372036854775807, 2)", "(1,) * 9", "[2]", "(200000000,)", "(0,)")
KINDS = ("'<f8'", "'|O'", "'<U1000000000'", "'<U0'", "'|S0'", "'|V8'", "'<c16'", "'<m8[D]'", "[('a', '<f8')]", "'<f2'")
KINDS += ("'>f8'", "'|b1'", "'<M8[s]'", "'<f16'", "'|S2000000000'", "3", "'<M8[1000Y]'", "'<u8'")


def changed_array(content: bytes, random: Random) -> bytes:
    """Return a .npy file with another header or other bytes."""
    if random.random() < 0.5:
        return changed_bytes(content, random, arrays())
    length = struct.unpack("<H", content[8:10])[0]
    body = content[10 + length :]
    order = random.choice(("False", "True", "None", "0"))
    header = f"{{'descr': {random.choice(KINDS)}, 'fortran_order': {order}, 'shape': {random.choice(SHAPES)}, }}"
    if random.random() < 0.1:
        header = header.replace("}", "'x': " + "[" * random.choice((1, 90, 2000)))
    version = random.choice((1, 1, 1, 2, 3, 9))
    size = struct.pack("<H" if version == 1 else "<I", len(header) + random.choice((1, 1, 1, 0, 50000)))
    return b"\x93NUMPY" + bytes((version, 0)) + size + header.encode() + b"\n" + body


def make_npy(random: Random) -> Files:
    content = changed_array(random.choice(arrays()), random)
    if random.random() < 0.02:
        content = make_npz(random)["head.npz"]
    return {"head.npy": content}


@functools.cache
def archives() -> tuple[bytes, ...]:
    random = np.random.default_rng(0)
    found = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, X=random.normal(size=(5, 3)), y=np.array(list("abcde")))
        found.append(file.getvalue())
    return tuple(found)


@functools.cache
def bomb() -> bytes:
    """Return a .npy file of 256 MiB as gzip would compress it: zeros."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (268435456,), }\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def make_npz(random: Random) -> Files:
    if random.random() < 0.5:
        return {"head.npz": changed_bytes(random.choice(archives()), random, archives())}
    file = io.BytesIO()
    method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, 14))
    with zipfile.ZipFile(file, "w", method) as archive:
        for number in range(random.randrange(4)):
            name = random.choice((f"a{number}.npy", f"a{number}", "../x.npy", "/x.npy", "", "a.npy/b.npy"))
            if random.random() < 0.3:
                name = hostile_string(random).encode("utf-8", "replace").decode()[:50]
            content = random.choice(arrays())
            if random.random() < 0.003:
                content = bomb() + bytes(1 << 22)
            elif random.random() < 0.5:
                content = changed_array(content, random)
            archive.writestr(zipfile.ZipInfo(name or "x"), content, method)
    content = file.getvalue()
    if random.random() < 0.3:  # what the directory declares
        places = [i for i in range(len(content) - 46) if content[i : i + 4] == b"PK\x01\x02"]
        if places:
            spot = random.choice(places) + random.choice((20, 24, 42, 10, 8, 28, 30))
            size = random.choice((0, 1, 0xFFFFFFFE, 0xFFFFFFFF, 1 << 31, 100))
            content = content[:spot] + struct.pack("<I", size) + content[spot + 4 :]
    return {"head.npz": content}


# ---------------------------------------------------------------------- Parquet


@functools.cache
def parquets() -> tuple[bytes, ...]:
    dates = pandas.to_datetime(["2020-01-01", "2021-01-01", None])
    frames = [
        pandas.DataFrame({"a": [1.0, None, 3.0], "b": ["x", "y", "x"], "when": dates}),
        pandas.DataFrame({"n": range(40), "c": ["u", "v"] * 20}),
        pandas.DataFrame({"list": [[1], [2, 3], None], "k": pandas.Categorical(["a", "b", "a"])}),
    ]
    found = []
    for frame in frames:
        for compression in ("snappy", "zstd", None):
            file = io.BytesIO()
            frame.to_parquet(file, compression=compression)
            found.append(file.getvalue())
    return tuple(found)


def make_parquet(random: Random) -> Files:
    content = random.choice(parquets())
    if random.random() < 0.5:  # most of what is declared stands in the footer
        length = struct.unpack("<I", content[-8:-4])[0]
        footer = changed_bytes(content[-8 - length : -8], random)
        size = len(footer) if random.random() < 0.9 else random.choice((0, 1 << 31, len(content)))
        return {"head.parquet": content[: -8 - length] + footer + struct.pack("<I", size) + b"PAR1"}
    return {"head.parquet": changed_bytes(content, random, parquets())}


# ---------------------------------------------------------------------- descriptions of columns


@functools.cache
def columns() -> dict[str, Any]:
    frame = pandas.DataFrame(
        {"size": [1.0, None, 3.0], "colour": list("rrb"), "day": ["31.01.2020"] * 2 + ["05.01.2020"]}
    )
    return Columns().fit(frame).to_json()


def make_columns(random: Random) -> Files:
    text = json.dumps(changed_json(columns(), random)).encode()
    return {"columns.json": changed_bytes(text, random) if random.random() < 0.3 else text}


def run_columns(case: Files) -> int:
    found = Columns.from_json(askew_io.read_json(case["columns.json"], "columns"), "columns")
    frame = pandas.DataFrame({"size": [1.0, 2.0], "colour": ["r", "b"], "day": ["31.01.2020", None]})
    points = found.transform(frame)
    check(
        points.shape == (2, len(found.get_feature_names_out())) and np.isfinite(points).all(),
        "points that are not finite",
    )
    return 1


TARGETS = (
    Target("csv", make_text, run_files),
    Target(
        "csv-sniffing",
        lambda random: changed_text(random.choice(TEXTS), random, b",;\t|", TEXTS),
        run_sniffing,
        guided=True,
    ),
    Target("npy", make_npy, run_files),
    Target("npz", make_npz, run_files),
    Target("parquet", make_parquet, run_files),
    Target("columns", make_columns, run_columns),
)
