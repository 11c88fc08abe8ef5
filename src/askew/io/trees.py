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
    try:
        rest = splitter.split(tree, "")
    except RecursionError:
        raise ValueError(checks.message("a tree of values to save", "finite", "one that holds itself")) from None
    return splitter.tensors, rest


def unflatten(tensors: Mapping[str, Tensor], rest: object, special: Callable[[Any], object] | None = None) -> Any:
    """Put together what :func:`flatten` has split; a rest that it cannot have made is a ValueError.

    ``special`` turns a tree that the ``special`` of :func:`flatten` returned back into its value.

    Examples
    --------
    >>> unflatten(*flatten([1, 1.0, True, None, (2, "a")]))
    [1, 1.0, True, None, (2, 'a')]
    """
    try:
        return _Joiner(tensors, special).join(rest)
    except RecursionError:
        raise ValueError(checks.message("the description of saved values", "less deep", "too many levels")) from None


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

    def join(self, node: object) -> Any:
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        if isinstance(node, list):
            return [self.join(item) for item in node]
        if isinstance(node, dict):
            keys, first = set(node), next(iter(node.values()), None)
            if keys == {"dict"} and isinstance(first, dict):
                return {key: self.join(value) for key, value in first.items()}
            if keys == {"pairs"} and isinstance(first, list):
                return self.mapping(first)
            if keys == {"tuple"} and isinstance(first, list):
                return tuple(self.join(item) for item in first)
            if keys == {"float"} and first in ("inf", "-inf", "nan"):
                return float(str(first))
            if keys == {"tensor"}:
                return self.named(first)
            if keys == {"scalar"} and isinstance(first, dict):
                array = self.array(first)
                if array.shape == () and array.dtype.kind != "O":
                    return array[()]
            if keys == {"special"} and self.special is not None:
                return self.special(self.join(first))
            if keys in ({"array", "dtype"}, {"strings"}, {"objects", "shape"}):
                return self.array(node)
        raise ValueError(_unknown(node))

    def mapping(self, pairs: list[Any]) -> dict[Any, Any]:
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise ValueError(_unknown(pairs))
        result = {}
        for key, value in pairs:
            if isinstance(key, list) or (isinstance(key, dict) and set(key) != {"float"}):
                raise ValueError(_unknown(key))
            result[self.join(key)] = self.join(value)
        if len(result) != len(pairs):
            raise ValueError(_unknown(pairs))
        return result

    def array(self, node: dict[str, Any]) -> np.ndarray[Any, Any]:
        if set(node) == {"array", "dtype"}:
            tensor, dtype = self.named(node["array"]), node["dtype"]
            if isinstance(dtype, str) and _DTYPE.fullmatch(dtype) and tensor.dtype in _NUMERIC:
                values: np.ndarray[Any, Any] = tensor.numpy()
                if np.dtype(dtype).newbyteorder("=") == values.dtype:
                    return values.astype(dtype)
        elif set(node) == {"strings"}:
            tensor = self.named(node["strings"])
            if tensor.dtype == torch.int32 and tensor.ndim:
                points = np.ascontiguousarray(tensor.numpy())
                shape, width = points.shape[:-1], points.shape[-1]
                if not points.size:
                    # Even an array of no strings takes the room of one.
                    return np.zeros(shape, f"<U{min(max(width, 1), 1000)}")
                if points.min() >= 0 and points.max() <= sys.maxunicode:
                    return points.reshape(-1).view(f"<U{width}").reshape(shape).copy()
        elif set(node) == {"objects", "shape"}:
            items, shape = node["objects"], node["shape"]
            sizes = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and n >= 0 for n in shape)
            if isinstance(items, list) and sizes and math.prod(shape) == len(items) and sum(shape) < 1 << 62:
                objects = np.empty(len(items), object)
                for i, item in enumerate(items):
                    objects[i] = self.join(item)
                return objects.reshape(shape)
        raise ValueError(_unknown(node))

    def named(self, name: object) -> Tensor:
        if not isinstance(name, str) or name not in self.tensors:
            must = "one of those in the file"
            raise ValueError(checks.message("a tensor of the description", must, _short(name)))
        return self.tensors[name]


_DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248])")
# dtypes of tensors that numpy has as well.
_NUMERIC = {
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64),
}


def _place(what: str, path: str) -> str:
    return f"the {what} at {path.lstrip('.')!r}" if path else f"the {what}"


def _unknown(node: object) -> str:
    return checks.message("the description of saved values", "one that askew can have written", _short(node))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
