"""Work in blocks: results and errors do not depend on which thread is first."""

from __future__ import annotations

import threading

import pytest
import torch

from askew._parallel import over_blocks


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_are_in_the_order_of_blocks(threads: int) -> None:
    assert over_blocks(10, 3, lambda part: (part.start, part.stop)) == [(0, 3), (3, 6), (6, 9), (9, 10)]


def test_the_error_of_the_first_block_is_raised_even_if_it_is_the_last_in_time(threads: int) -> None:
    later_block_failed = threading.Event()

    def work(part: slice) -> None:
        if part.start == 0:
            # With one thread no other block has begun.
            assert later_block_failed.wait(60 if threads > 1 else 0) == (threads > 1)
            raise ValueError("block 0")
        later_block_failed.set()
        raise ValueError(f"block {part.start}")

    for _ in range(5):
        later_block_failed.clear()
        with pytest.raises(ValueError, match="block 0"):
            over_blocks(3, 1, work)
    assert torch.get_num_threads() == threads
