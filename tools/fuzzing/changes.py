"""Changes that turn a good file into a hostile one: of bytes, of text, and of JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

__all__ = ["STRINGS", "changed_bytes", "changed_json", "changed_text", "hostile_json", "hostile_string"]

# Integers at which counters, signs and sizes turn over.
EXTREMES = (0, 1, 127, 128, 255, 256, 32767, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, -1)
# What readers of text stumble over.
TOKENS = (
    *(b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\r\n", b"\n", b"\t", b",", b";", b"|", b'"', b"'", b" ", b"~"),
    *(b"nan", b"NaN", b"inf", b"-inf", b"1e999", b"1e-999", b"-1", b"0", b"-0.0", b"99999999999999999999", b"1_0"),
    *(b"0x10", b"\xc3", b"\xed\xa0\x80", b"<", b">", b"{", b"}", b"[", b"]", b"null", b"true", b"2020-01-01", b"\x1a"),
    *("\u0661\u0662".encode(), "\u2028".encode(), "\u202e".encode(), b"9" * 400, b"a" * 300),
)
# Strings that data may hold and that must come out as text.
STRINGS = (
    *(
        "<script>alert(1)</script>",
        '"onload="alert(1)',
        "' onload='x",
        "</style>",
        "</script>",
        "-->",
        "<!--",
        "&lt;b>",
    ),
    *("<img src=x onerror=y>", "%%data%%", "]]>", "\\u003cscript\\u003e", "\x00", "a\x00b", "\ud800", "a\udfffb"),
    *("\u202e\u2066", "\u200f", "\u2028", "\x1b[31m", "a\r\nb", "", " ", "a" * 3000, "javascript:alert(1)", "${x}`"),
    *(
        "../../etc/passwd",
        "C:\\x",
        "\U0001f600",
        "{{7*7}}",
        "|`*_[x](y)~$",
        "</title><b>",
        "=1+1",
        "\ufeff",
        "\x7f\x85",
    ),
)
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 63, 1 << 64, 10**30, -(10**30), 1.5, -0.0, 1e308, 5e-324, 1e-300),
    *([], {}, [[]], [0], [None], {"a": 1}, {"dict": {}}, {"tuple": []}, {"tensor": "0"}, {"float": "nan"}, [1e9, 1e9]),
    *(
        {"special": {}},
        {"objects": [], "shape": [1 << 40, 0]},
        {"pairs": [[[], 0]]},
        "nan",
        "inf",
        "weights",
        "float16",
    ),
)
PACKED = ("<H", ">H", "<I", ">I", "<Q", ">Q")


def changed_bytes(content: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """Return content with some changes: mostly one or two, sometimes many."""
    data = bytearray(content)
    count = random.choice((1, 1, 1, 2, 2, 3, 4, 8, 20))
    for _ in range(count):
        if not data:
            data += random.randbytes(random.choice((1, 4, 16)))
        kind = random.randrange(9)
        place = random.randrange(len(data))
        if kind == 0:
            data[place] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[place] = random.randrange(256)
        elif kind == 2:
            data[place:place] = (
                random.choice(TOKENS) if random.random() < 0.6 else random.randbytes(random.randrange(9))
            )
        elif kind == 3:
            del data[place : place + _span(random, len(data))]
        elif kind == 4:  # duplicate
            piece = data[place : place + _span(random, len(data))]
            data[place:place] = piece * random.choice((1, 1, 2, 5))
        elif kind == 5:  # a declared size
            form = random.choice(PACKED)
            size = struct.calcsize(form)
            value = random.choice(EXTREMES) & ((1 << 8 * size) - 1)
            data[place : place + size] = struct.pack(form, value)
        elif kind == 6 and others:  # splice
            other = random.choice(others)
            cut = random.randrange(len(other) + 1)
            data[place:] = other[cut:]
        elif kind == 7 and random.random() < 0.3:
            del data[place:]
        else:
            piece = random.choice(TOKENS)
            data[place : place + len(piece)] = piece
    return bytes(data[: 1 << 16])


def _span(random: Random, length: int) -> int:
    return random.randrange(1, 17) if random.random() < 0.8 else random.randrange(1, length + 1)


def changed_text(content: bytes, random: Random, separators: bytes = b"\t", others: Sequence[bytes] = ()) -> bytes:
    """Return text with some of its cells or lines replaced, dropped or doubled, or changed as bytes."""
    if random.random() < 0.5:
        return changed_bytes(content, random, others)
    lines = content.split(b"\n")
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        place = random.randrange(len(lines))
        kind = random.randrange(6)
        if kind == 0:
            del lines[place]
            lines = lines or [b""]
        elif kind == 1:
            lines.insert(place, random.choice(lines))
        elif kind == 2:
            lines[place] = changed_bytes(lines[place], random)
        else:
            separator = random.choice(separators).to_bytes(1, "big")
            cells = lines[place].split(separator)
            spot = random.randrange(len(cells))
            if kind == 3:
                cells[spot] = random.choice(TOKENS)
            elif kind == 4:
                del cells[spot]
            else:
                cells.insert(spot, random.choice(cells))
            lines[place] = separator.join(cells)
    return b"\n".join(lines)[: 1 << 16]


# ---------------------------------------------------------------------- JSON


def hostile_string(random: Random) -> str:
    """Return a string that must be treated as text."""
    if random.random() < 0.7:
        return random.choice(STRINGS)
    return "".join(random.choice(STRINGS)[:20] for _ in range(random.randrange(1, 4)))


def hostile_json(random: Random) -> Any:
    """Return a value of any type."""
    if random.random() < 0.2:
        return hostile_string(random)
    value = random.choice(HOSTILE)
    return json.loads(json.dumps(value)) if isinstance(value, (list, dict)) else value


def changed_json(value: Any, random: Random) -> Any:
    """Return a JSON value with some of its parts replaced, removed, doubled, renamed or moved."""
    value = json.loads(json.dumps(value))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = _changed_once(value, random)
    return value


def _changed_once(value: Any, random: Random) -> Any:
    holder, key = _somewhere(value, random)
    if holder is None:
        return hostile_json(random) if random.random() < 0.1 else value
    kind = random.randrange(7)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == 1:
        holder[random.choice((*holder, hostile_string(random)))] = holder[key]
    elif kind == 2:  # moved from elsewhere
        other, place = _somewhere(value, random)
        holder[key] = json.loads(json.dumps(hostile_json(random) if other is None else other[place]))
    elif kind == 3:
        for _ in range(random.choice((1, 2, 40))):
            holder[key] = [holder[key]] if random.random() < 0.5 else {"dict": {"a": holder[key]}}
    elif kind == 4 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        change: Callable[[Any], Any] = random.choice((lambda v: -v, lambda v: v + 1, lambda v: v * 10**9, float, str))
        try:
            holder[key] = change(holder[key])
        except OverflowError:
            holder[key] = 0
    else:
        holder[key] = hostile_json(random)
    return value


def _somewhere(value: Any, random: Random) -> tuple[Any, Any]:
    """Return a container inside of a value and the key of one of its entries, anywhere; None if there is none."""
    holder, key = None, None
    while isinstance(value, (dict, list)) and value:
        if holder is not None and random.random() < 0.25:
            break
        holder = value
        key = random.choice(list(value)) if isinstance(value, dict) else random.randrange(len(value))
        value = holder[key]
    return holder, key
