"""Plain data in pickles, read without running anything."""

from __future__ import annotations

import math
import pickletools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from askew import checks

__all__ = ["read_pickled"]

MARK = object()
# Instructions of a pickle that put a value on the stack: as it is, as bytes (strings of Python 2), or a new one.
VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "BINBYTES", "SHORT_BINBYTES"}
STRINGS = {"BINSTRING", "SHORT_BINSTRING"}
NEW: dict[str, Callable[[], object]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: MARK,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name(str):
    """Something that a pickle names; it is never imported or called."""

    __slots__ = ()


class _Begun(str):
    """An array or a dtype, by the name of its kind, that a pickle has begun but not yet filled."""

    __slots__ = ()


ENCODE, NDARRAY, DTYPE = _Name("_codecs encode"), _Name("numpy ndarray"), _Name("numpy dtype")
ARRAY = (_Name("numpy.core.multiarray _reconstruct"), _Name("numpy._core.multiarray _reconstruct"))
NAMES = (ENCODE, NDARRAY, DTYPE, *ARRAY)


def read_pickled(content: bytes) -> Any:
    r"""Return the plain data in a pickle of protocol 2: numbers, strings, lists, tuples, dicts and arrays of bytes.

    The instructions of the pickle are only looked at: nothing that it names is imported or called, and any
    instruction or name beyond those that such data need is an error. Strings of Python 2 become bytes.

    Examples
    --------
    >>> read_pickled(b"\x80\x02]q\x00(K\x01U\x03twoe.")
    [1, b'two']
    >>> read_pickled(b"\x80\x02cos\nsystem\nU\x02ls\x85R.")
    Traceback (most recent call last):
    ValueError: a name in a pickle of plain data must be one of ... Got 'os system' instead.
    """
    try:
        return _run(content)
    except _RefusedError as error:
        raise ValueError(str(error)) from None
    except (ValueError, TypeError, LookupError, OverflowError, struct.error) as error:
        what = f"one that ends too early or is damaged ({error})"
        raise ValueError(checks.message("a pickle of plain data", "a whole one", what)) from error


def _run(content: bytes) -> Any:
    """Follow the instructions of a pickle; whatever is wrong in it is an error of some kind."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in VALUES:
            stack.append(argument)
        elif name in STRINGS:
            stack.append(argument.encode("latin-1"))
        elif name in NEW:
            stack.append(NEW[name]())
        elif name in TUPLES:
            stack.append(tuple(_popped(stack, TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(_marked(stack)))
        elif name in ("APPEND", "APPENDS"):
            items = _marked(stack) if name == "APPENDS" else _popped(stack, 1)
            _checked(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = _marked(stack) if name == "SETITEMS" else _popped(stack, 2)
            # Only bytes: the hash of nested tuples could take for ever.
            keys = [_checked(key, bytes) for key in items[::2]]
            _checked(stack[-1], dict).update(zip(keys, items[1::2], strict=True))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            if argument not in NAMES:
                must = f"one of {', '.join(map(repr, map(str, NAMES)))}"
                raise _refused("a name in a pickle of plain data", must, repr(argument))
            stack.append(_Name(argument))
        elif name == "REDUCE":
            stack.append(_begun(*_popped(stack, 2)))
        elif name == "BUILD":
            stack.append(_filled(*_popped(stack, 2)))
        elif name not in ("PROTO", "STOP"):
            raise _refused("a pickle of plain data", "of the instructions that it needs", name)
    (result,) = stack
    return result


class _RefusedError(Exception):
    """A reason that says it all, not to be wrapped by another."""


def _refused(what: str, must: str, got: str) -> _RefusedError:
    return _RefusedError(checks.message(what, must, got))


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise _refused("a value in a pickle", f"of type {kind.__name__}", type(value).__name__)
    return value


def _popped(stack: list[Any], count: int) -> list[Any]:
    """Take the last ``count`` values off the stack."""
    if len(stack) < count or any(value is MARK for value in stack[-count:]):
        raise _refused("a pickle", "of values for its instructions", "fewer values")
    items = stack[-count:]
    del stack[-count:]
    return items


def _marked(stack: list[Any]) -> list[Any]:
    """Take all values after the last mark, and the mark, off the stack."""
    items = []
    while (value := stack.pop()) is not MARK:
        items.append(value)
    return items[::-1]


def _begun(function: Any, arguments: Any) -> Any:
    """Return what a call in a pickle stands for; nothing is called."""
    arguments = _checked(arguments, tuple)
    if isinstance(function, _Name) and function == ENCODE and len(arguments) == 2 and arguments[1] == "latin1":
        return _checked(arguments[0], str).encode("latin-1")  # how Python 3 writes bytes
    if isinstance(function, _Name) and function == DTYPE and arguments[:1] in (("u1",), (b"u1",)):
        return _Begun("dtype")
    if isinstance(function, _Name) and function in ARRAY and arguments[:1] == (NDARRAY,):
        return _Begun("array")
    raise _refused("a call in a pickle of plain data", "one that makes bytes or arrays of bytes", "another")


def _filled(begun: Any, state: Any) -> Any:
    """Return a begun dtype, or a begun array with its bytes."""
    if _checked(begun, _Begun) == "dtype":
        return begun
    _, shape, dtype, fortran, content = _checked(state, tuple)
    if _checked(dtype, _Begun) != "dtype":
        raise _refused("an array in a pickle", "of dtype uint8", "no dtype")
    sizes = [_checked(size, int) for size in _checked(shape, tuple)]
    if min(sizes, default=0) < 0 or math.prod(sizes) != len(_checked(content, bytes)):
        raise _refused("an array in a pickle", f"of {sizes} bytes", f"{len(content)} bytes")
    return np.frombuffer(content, np.uint8).reshape(sizes, order="F" if fortran else "C")
