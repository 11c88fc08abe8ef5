"""The folder of an index: the names of its files, and the checks of what is read from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from askew import checks, io
from askew.divergences import Divergence
from askew.search.columns import packed, unpacked
from askew.search.store import Store, check_ids

INDEX = io.FolderFormat(
    kind="index",
    part=r"((items|keys)-[0-9a-f]{16}\.safetensors|model-[0-9a-f]{16}|faiss-[0-9a-f]{16}\.index)",
    parts=lambda description: description["parts"].values(),
)


def read_index(folder: Path, class_name: str) -> tuple[dict[str, Any], str]:
    """Return the checked content of ``index.json`` and how to call the file in errors."""
    shown_file = repr(str(folder / INDEX.description))
    description = io.read_description(INDEX, folder, f"{class_name}.save")
    if description.get("class") != class_name:
        other = str(description.get("class"))[:40]
        must, hint = f"an index of {class_name}", f"Load it with askew.search.{other}.load."
        raise ValueError(checks.message(shown_file, must, f"one of {other}", hint))
    parts = description.get("parts")
    if not (
        isinstance(parts, dict)
        and isinstance(description.get("own"), dict)
        and isinstance(description.get("settings"), dict)
        and isinstance(description.setdefault("notes", {}), dict)
        and isinstance(description.setdefault("fields", []), list)
        and all(isinstance(name, str) for name in description["fields"])
        and isinstance(description.get("divergence"), str)
        and isinstance(description.get("direction"), str)
        and all(map(INDEX.is_part, parts.values()))
    ):
        raise ValueError(io.damaged(shown_file, "parts of it are missing"))
    missing = [name for name in parts.values() if not (folder / name).exists()]
    if missing:
        raise ValueError(io.damaged(shown_file, f"{missing[0]!r} is missing"))
    return description, shown_file


def load_model(path: Path, encoder: nn.Module | None, classes: Sequence[type], shown_file: str) -> Divergence:
    """Return the divergence of an index."""
    model = io.load(path, encoder, classes)
    if not isinstance(model, Divergence):
        raise ValueError(io.damaged(shown_file, "its model is no divergence"))
    return model


def store_tensors(store: Store) -> dict[str, Tensor]:
    """Return the tensors of a file with items, ids and fields."""
    tensors = {"items": torch.from_numpy(store.values), **packed("ids", store.ids)}
    for name, column in store.fields.items():
        tensors.update(packed(f"field {name}", column))
    return tensors


def restored_store(
    tensors: dict[str, Tensor], divergence: Divergence, next_id: object, names: Sequence[str], shown_file: str
) -> Store:
    """Return the items of a file, checked, with the fields of these names."""
    items = tensors.pop("items", torch.empty(0))
    ids = unpacked("ids", tensors, shown_file)
    fields = {name: unpacked(f"field {name}", tensors, shown_file) for name in names}
    if (
        tensors
        or items.ndim != 2
        or items.dtype not in (torch.float32, torch.float64)
        or (ids.dtype != np.int64 and ids.dtype.kind != "U")
        or any(column.shape != items.shape[:1] for column in (ids, *fields.values()))
        or not isinstance(next_id, int)
    ):
        raise ValueError(io.damaged(shown_file, "its items are not as they were written"))
    if divergence.dim is not None and items.shape[1] != divergence.dim:
        must, got = f"of dim {divergence.dim}, as the divergence", f"of dim {items.shape[1]}"
        raise ValueError(checks.message(f"items of {shown_file}", must, got))
    return Store(items.numpy(), check_ids(ids, shown_file, strings=True), next_id=next_id, fields=fields)
