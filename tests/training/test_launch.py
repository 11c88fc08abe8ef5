"""The script of the page on loops, started by torchrun or joined by accelerate, learns what one process learns."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import askew

PAGE = Path(__file__).parents[2] / "docs" / "loops.md"
JOINING = "torch.distributed.init_process_group()"
LEAVING = "torch.distributed.destroy_process_group()"
pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo"),
    pytest.mark.xdist_group("test_launch"),  # both compare with what one fixture has computed
]


def script() -> str:
    """Return the code of the page, but for that of another package, in double precision; it returns what it learned."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    shown = "\n".join(block for block in blocks if "pytorch_metric_learning" not in block)
    assert shown.count(JOINING) == shown.count(LEAVING) == 1
    first = "import torch\ntorch.set_default_dtype(torch.float64)\n"
    last = "learned = {**model.state_dict(), 'loss': torch.tensor(history['loss'])}\n"
    return first + shown + last


@pytest.fixture(scope="module")
def alone() -> dict[str, torch.Tensor]:
    """What one process learns."""
    found: dict[str, Any] = {}
    before = torch.get_default_dtype()
    try:
        with torch.random.fork_rng(devices=[]):
            exec(compile(script(), str(PAGE), "exec"), found)
    finally:
        torch.set_default_dtype(before)
    learned: dict[str, torch.Tensor] = found["learned"]
    return learned


def assert_same_in_two_processes(code: str, folder: Path, alone: dict[str, torch.Tensor]) -> None:
    saving = (
        "import numpy\n"
        "values = {name: value.numpy() for name, value in learned.items()}\n"
        "numpy.savez(os.environ['RANK'] + '.npz', processes=processes, **values)\n"
    )
    counted = code.replace(LEAVING, f"processes = torch.distributed.get_world_size(); {LEAVING}")
    (folder / "train.py").write_text(counted + saving, "utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    path = os.pathsep.join(filter(None, [str(Path(askew.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("finished") == 4  # each of two trains twice, alone and together
    for rank in range(2):
        with np.load(folder / f"{rank}.npz") as found:
            assert found["processes"] == 2
            assert set(found.files) == {*alone, "processes"}
            for name, value in alone.items():
                np.testing.assert_allclose(found[name], value.numpy(), rtol=1e-8, atol=1e-10, err_msg=name)


def test_torchrun(tmp_path: Path, alone: dict[str, torch.Tensor]) -> None:
    assert_same_in_two_processes(script(), tmp_path, alone)


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate(tmp_path: Path, alone: dict[str, torch.Tensor]) -> None:
    """What torchrun has started, accelerate joins; on processors it wants to be told so."""
    joined = script().replace(JOINING, "import accelerate; accelerator = accelerate.Accelerator(cpu=True)")
    asserting = "assert accelerator.num_processes == 2\n"
    assert_same_in_two_processes(joined + asserting, tmp_path, alone)
