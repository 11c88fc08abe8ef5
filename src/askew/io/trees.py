"""Nested Python values as tensors and JSON, and back exactly."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from askew import checks


def flatten(tree: object, special: Callable[[object], object] | None = None) -> tuple[dict[str, Tensor], Any]:
    """Split nested Python values into tensors by name and a rest for JSON; :func:`unflatten` takes both.

    The tree may hold dicts (keys are strings, numbers or None), lists, tuples, numbers, strings, None, tensors, and
    numpy arrays and scalars (also of strings, and object arrays of such values). ``special`` is asked first about every
    value: it returns a tree in place of values that only the caller knows, and None for others.

    Examples
    --------
    >>> tensors, rest = flatten({0: torch.zeros(2), "lr": (0.1, float("inf"))})
    >>> list(tensors)
    ['0']
    >>> unflatten(tensors, rest)
    {0: tensor([0., 0.]), 'lr': (0.1, inf)}
    """
    splitter = _Splitter(special)
    rest = splitter.split(tree, "")
    return splitter.tensors, rest


def unflatten(tensors: Mapping[str, Tensor], rest: object, special: Callable[[Any], object] | None = None) -> Any:
    """Put together what :func:`flatten` has split; a rest that it cannot have made is a ValueError.

    ``special`` turns a tree that the ``special`` of :func:`flatten` returned back into its value.

    Examples
    --------
    >>> unflatten(*flatten([1, 1.0, True, None, (2, "a")]))
    [1, 1.0, True, None, (2, 'a')]
    """
    return _Joiner(tensors, special).join(rest)


@dataclass
class _Splitter:
    special: Callable[[object], object] | None
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def split(self, node: object, path: str) -> Any:
        described = None if self.special is None else self.special(node)
        if described is not None:
            return {"special": self.split(described, path)}
        # Subclasses (enums, named tuples) would come back as something else, so types are compared exactly.
        kind = type(node)
        if node is None or kind in (bool, int, str):
            return node
        if kind is float:
            return node if math.isfinite(node) else {"float": repr(node)}  # type: ignore[arg-type]
        if isinstance(node, Tensor):
            return {"tensor": self.add(path, node.detach())}
        if isinstance(node, np.generic):
            return {"scalar": self.array(np.asarray(node), path)}
        if isinstance(node, np.ndarray) and kind is np.ndarray:
            return self.array(node, path)
        if isinstance(node, list) and kind is list:
            return [self.split(item, f"{path}.{i}") for i, item in enumerate(node)]
        if isinstance(node, tuple) and kind is tuple:
            return {"tuple": [self.split(item, f"{path}.{i}") for i, item in enumerate(node)]}
        if isinstance(node, dict):
            if all(type(key) is str for key in node):
                return {"dict": {key: self.split(value, f"{path}.{key}") for key, value in node.items()}}
            return {"pairs": [[self.key(key, path), self.split(value, f"{path}.{key}")] for key, value in node.items()]}
        hint = "Convert it to numbers, strings, lists, dicts, tensors or arrays first."
        raise TypeError(checks.message(_place("value", path), "one that can be saved", kind.__name__, hint))

    def key(self, key: object, path: str) -> Any:
        if key is None or type(key) in (bool, int, float, str):
            return self.split(key, path)
        must = "a string, a number or None"
        raise TypeError(checks.message(_place("key of the dict", path), must, type(key).__name__))

    def array(self, array: np.ndarray[Any, Any], path: str) -> Any:
        kind, native = array.dtype.kind, array.dtype.newbyteorder("=")
        if kind == "O":
            items = [self.split(item, f"{path}.{i}") for i, item in enumerate(array.reshape(-1).tolist())]
            return {"objects": items, "shape": list(array.shape)}
        if kind == "U":
            # As code points: so a string takes as much room in the file as it will in memory.
            width = native.itemsize // 4
            points = np.zeros(0, np.int32)
            if width and array.size:
                points = np.ascontiguousarray(array, native).reshape(-1).view(np.int32)
            return {"strings": self.add(path, torch.from_numpy(points.reshape(*array.shape, width).copy()))}
        if kind in "biuf" and native.itemsize <= 8:
            # ascontiguousarray would turn a number into a row of one.
            copy = np.array(array, native, order="C", copy=True)
            return {"array": self.add(path, torch.from_numpy(copy)), "dtype": array.dtype.str}
        must = "of bool, integers, floats, strings or objects"
        raise TypeError(checks.message(_place("array", path), must, array.dtype))

    def add(self, path: str, tensor: Tensor) -> str:
        name = stem = re.sub(r"[^A-Za-z0-9_.-]", "_", path.lstrip("."))[:200] or "value"
        count = 1
        while name in self.tensors:
            count += 1
            name = f"{stem}~{count}"
        self.tensors[name] = tensor
        return name


@dataclass
class _Joiner:
    tensors: Mapping[str, Tensor]
    special: Callable[[Any], object] | None

    def join(self, node: Any) -> Any:
        match node:
            case None | bool() | int() | float() | str():
                return node
            case list():
                return [self.join(item) for item in node]
            case {"dict": dict(items)}:
                return {key: self.join(value) for key, value in items.items()}
            case {"pairs": list(pairs)} if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                return self.mapping(pairs)
            case {"tuple": list(items)}:
                return tuple(self.join(item) for item in items)
            case {"float": "inf" | "-inf" | "nan" as text}:
                return float(text)
            case {"tensor": name}:
                return self.named(name)
            case {"scalar": dict(inner)}:
                array = self.array(inner)
                if array.shape == () and array.dtype.kind != "O":
                    return array[()]
            case {"special": inner} if self.special is not None:
                return self.special(self.join(inner))
            case dict():
                return self.array(node)
        raise ValueError(_unknown(node))

    def mapping(self, pairs: list[list[Any]]) -> dict[Any, Any]:
        try:
            result = {self.join(key): self.join(value) for key, value in pairs}
        except TypeError:  # a key that cannot be hashed
            result = {}
        if len(result) != len(pairs):
            raise ValueError(_unknown(pairs))
        return result

    def array(self, node: dict[str, Any]) -> np.ndarray[Any, Any]:
        try:
            match node:
                case {"array": name, "dtype": str(text)}:
                    values, dtype = self.named(name).numpy(), np.dtype(text)
                    if dtype.newbyteorder("=") == values.dtype:
                        return values.astype(dtype)
                case {"strings": name}:
                    points = np.ascontiguousarray(self.named(name).numpy())
                    shape, width = points.shape[:-1], points.shape[-1]
                    if points.dtype == np.int32 and not points.size:
                        # Even an array of no strings takes the room of one.
                        return np.zeros(shape, f"<U{min(max(width, 1), 1000)}")
                    if points.dtype == np.int32 and points.min() >= 0 and points.max() <= sys.maxunicode:
                        return points.reshape(-1).view(f"<U{width}").reshape(shape).copy()
                case {"objects": list(items), "shape": list(sizes)} if min(sizes, default=0) >= 0:
                    objects = np.empty(len(items), object)
                    for i, item in enumerate(items):
                        objects[i] = self.join(item)
                    return objects.reshape(sizes)
        except (TypeError, ValueError, IndexError, OverflowError) as error:  # of numpy, about dtypes and shapes
            raise ValueError(_unknown(node)) from error
        raise ValueError(_unknown(node))

    def named(self, name: object) -> Tensor:
        if not isinstance(name, str) or name not in self.tensors:
            must = "one of those in the file"
            raise ValueError(checks.message("a tensor of the description", must, _short(name)))
        return self.tensors[name]


def _place(what: str, path: str) -> str:
    return f"the {what} at {path.lstrip('.')!r}" if path else f"the {what}"


def _unknown(node: object) -> str:
    return checks.message("the description of saved values", "one that askew can have written", _short(node))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
