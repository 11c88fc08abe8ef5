"""Private names of torch still mean what askew takes them for."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from askew._torch_compat import constant_when_compiled, in_transform


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*deprecated:DeprecationWarning")
def test_transforms_are_noticed() -> None:
    noticed: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        noticed.append(in_transform())
        return x.sum()

    x = torch.ones(3)
    look(x)
    torch.func.vmap(look)(x[None])
    torch.func.grad(look)(x)
    with forward_ad.dual_level():
        look(forward_ad.make_dual(x, x))
    look(x)
    assert noticed == [False, True, True, True, False]


def test_mark_is_the_one_that_torch_sets() -> None:
    theirs = torch.compiler.assume_constant_result(lambda: 1)
    assert vars(constant_when_compiled(lambda: 1)) == vars(theirs)
