"""Cells computed in this process or in others, with everything random seeded."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait

import numpy as np
import torch

from askew import checks
from askew_paper.experiment import Cell, Outcome
from askew_paper.summary import cores

__all__ = ["Done", "Failed", "Pool", "compute", "seeded"]

# What numerical libraries read when they are loaded.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Seconds that a process gets to end by itself.
PATIENCE = 5.0


@dataclass(frozen=True)
class Done:
    """A cell that was computed, when and for how long."""

    cell: Cell
    outcome: Outcome
    started: str
    seconds: float
    threads: int


@dataclass(frozen=True)
class Failed:
    """A cell that could not be computed: the error in one line, and where it came from."""

    cell: Cell
    error: str
    details: str


@contextlib.contextmanager
def seeded(cell: Cell) -> Iterator[None]:
    """Seed the random numbers of torch, NumPy and Python by the seed of a cell; put them back afterwards.

    The seed alone decides, so that all methods see the same data.

    Parameters
    ----------
    cell
        Whose seed is used.

    Examples
    --------
    >>> cell = Cell("sums", "small", "exact", 3, "quick")
    >>> with seeded(cell):
    ...     first = torch.rand(2)
    >>> with seeded(cell):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(cell.seed)
        # NumPy takes 32 bits only.
        np.random.seed(cell.seed % 2**32)
        random.seed(cell.seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def compute(run: Callable[[Cell], Outcome], cell: Cell) -> Done | Failed:
    """Compute one cell here; an error becomes a result too."""
    started, clock = datetime.now(timezone.utc), time.perf_counter()
    try:
        with seeded(cell):
            outcome = run(cell)
    except Exception as error:
        return Failed(cell, _one_line(error), traceback.format_exc())
    seconds = time.perf_counter() - clock
    moment = started.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Done(cell, outcome, moment, round(seconds, 6), torch.get_num_threads())


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


class _Worker:
    """One process that computes one cell after the other, and our end of the line to it."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, threads), daemon=True)
        self.cell: Cell | None = None
        self.dead = False
        resource_tracker.ensure_running()  # where the first process starts it, Ctrl-C is let through again
        with _without_interrupts(), _environment(dict.fromkeys(THREADS, str(threads))):
            self.process.start()
        # Ours must be the only other end, or a process that dies would not be noticed.
        theirs.close()

    def give(self, run: Callable[[Cell], Outcome], cell: Cell) -> None:
        try:
            self.connection.send((run, cell))
        except OSError:
            # It died before it got the cell; that is found when its answer is asked for.
            pass
        except Exception as error:
            must, hint = "a function of a module, if jobs is above 1", "Move it there, or use jobs=1."
            raise TypeError(checks.message(f"run of {cell.experiment!r}", must, repr(run), hint)) from error
        self.cell = cell

    def answer(self) -> Done | Failed:
        """Return what came of its cell; waits for that."""
        cell, self.cell = self.cell, None
        if cell is None:
            raise RuntimeError("the process has no cell to answer for")
        try:
            found: Done | Failed = self.connection.recv()
        except (EOFError, OSError):
            self.dead = True
            self.process.join(PATIENCE)
            return Failed(cell, f"its process died with exit code {self.process.exitcode}", "")
        return found

    def end(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()


class Pool:
    """Processes that compute cells, each on its share of the cores.

    Use it in a ``with`` statement, at whose end all processes are ended, also those at work.

    Parameters
    ----------
    jobs
        Number of processes.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = checks.check_size(jobs, "jobs")
        # No more than this process was told to use.
        self.threads = min(torch.get_num_threads(), max(1, cores() // self.jobs))
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []

    @property
    def busy(self) -> int:
        """How many processes are at work."""
        return sum(worker.cell is not None for worker in self._workers)

    def give(self, run: Callable[[Cell], Outcome], cell: Cell) -> None:
        """Let a process that is free, or a new one, compute a cell; fewer than ``jobs`` must be at work."""
        for worker in self._workers:
            if worker.cell is None:
                return worker.give(run, cell)
        worker = _Worker(self.threads)
        self._workers.append(worker)
        return worker.give(run, cell)

    def finished(self, patient: bool = True) -> list[Done | Failed]:
        """Return what is finished; if ``patient``, wait until something is."""
        at_work = {worker.connection: worker for worker in self._workers if worker.cell is not None}
        found = []
        for connection in wait(list(at_work), None if patient else 0):
            worker = at_work[connection]  # type: ignore[index]
            found.append(worker.answer())
            if worker.dead:
                self._workers.remove(worker)
                worker.end()
        return found


def _serve(connection: Connection, threads: int) -> None:
    """Compute what comes down the line, until it is closed or the other process dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_die_with, args=(parent.sentinel,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            run, cell = connection.recv()
            answer = compute(run, cell)
            try:
                connection.send(answer)
            except OSError:
                raise
            except Exception as error:
                connection.send(Failed(cell, _one_line(error), traceback.format_exc()))


def _die_with(parent: int) -> None:
    """End this process, at work or not, once the one that started it is gone."""
    wait([parent])
    os._exit(1)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back meanwhile, also in processes that are started: a terminal sends it to all of them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                del os.environ[name]
            else:
                os.environ[name] = old
