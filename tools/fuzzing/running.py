"""Runs targets in processes of their own, so that a crash, a hang or a grasp for memory is seen and counted."""

from __future__ import annotations

import collections
import contextlib
import mmap
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing.targets import Target, describe, generator, place, write_case

__all__ = ["Counts", "fuzz", "run_cases", "table", "work"]

# Seconds of processor time of one case; without a step forward, such seconds after which a process is taken for hung,
# and seconds of the clock, many more, as the machine may be busy.
SLOW, HUNG, ASLEEP = 2.0, 30.0, 900.0
# Bytes that a process may take beyond what it has when the first case comes.
MEMORY = 1 << 30
# Inputs that are kept of failures of the same kind at the same place.
KEPT = 3
# Number of the case at work, then what was counted: calls, rows, refused, accepted, failures, then microseconds of
# processor time and whether it is done.
STATE = struct.Struct("<8q")
SHM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class Counts:
    """What came out of a target."""

    target: str
    calls: int = 0
    rows: int = 0
    refused: int = 0
    accepted: int = 0
    failures: int = 0
    seconds: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)


def run_cases(
    target: Target, seed: int, first: int, cases: int, folder: Path, state: Any = None, until: float = float("inf")
) -> Counts:
    """Run cases in this process; write those that fail, and after each case what was counted to ``state``."""
    found = Counts(target.name)
    kinds: collections.Counter[str] = collections.Counter()
    clock, make, run, name = time.process_time, target.make, target.run, target.name
    began = clock()
    for number in range(first, first + cases):
        if state is not None:
            _note(state, number, found, clock() - began, done=False)
            if number & 15 == 0 and time.monotonic() > until:
                break
        case = make(generator(name, seed, number))
        start = clock()
        problem, rows = "", 1
        try:
            rows = run(case)
            found.accepted += 1
        except Exception as error:
            problem = describe(error)
            found.refused += not problem
        if not problem and clock() - start > SLOW * target.work:
            problem = f"slow: more than {SLOW * target.work:g} s"
        found.calls += 1
        found.rows += rows
        if problem:
            found.failures += 1
            kind = re.sub(r"0x[0-9a-f]+|\d{3,}", "N", problem)
            kinds[kind] += 1
            if kinds[kind] <= KEPT:
                keep(name, seed, number, problem, case, folder)
    found.kinds, found.seconds = dict(kinds), clock() - began
    return found


def _note(state: Any, number: int, found: Counts, seconds: float, done: bool) -> None:
    counts = (found.calls, found.rows, found.refused, found.accepted, found.failures)
    state[: STATE.size] = STATE.pack(number, *counts, int(1e6 * seconds), done)


def keep(name: str, seed: int, number: int, problem: str, case: Any, folder: Path) -> None:
    """Write a failing case and the line that repeats it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_case(case, folder / f"{name}-{seed}-{number}")
    line = f"python tools/fuzz.py {name} --seed {seed} --first {number} --cases 1"
    with (folder / "failures.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{line}    # {problem}\n")


# ---------------------------------------------------------------------- processes


def work(target: Target, seed: int, first: int, cases: int, seconds: float, folder: Path, path: Path) -> None:
    """Run in a process of its own: limit its memory, then run cases and note each in a file."""
    warnings.simplefilter("ignore")
    place()
    for number in range(3):  # imports and caches take their memory before it is limited
        with contextlib.suppress(Exception):
            target.run(target.make(generator(target.name, 1 << 30, number)))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), STATE.size) as state:
        counts = run_cases(target, seed, first, cases, folder, state, time.monotonic() + seconds)
        _note(state, first + cases, counts, counts.seconds, done=True)
    with path.with_suffix(".kinds").open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(f"{number}\t{kind}\n" for kind, number in counts.kinds.items())


def fuzz(target: Target, seed: int, first: int, cases: int, seconds: float, folder: Path) -> Counts:
    """Run a target in other processes until its cases or seconds are used up; after a crash it goes on behind it."""
    found = Counts(target.name)
    kinds: collections.Counter[str] = collections.Counter()
    until = time.monotonic() + seconds
    script = Path(__file__).parents[1] / "fuzz.py"
    while cases > 0 and time.monotonic() < until:
        with tempfile.TemporaryDirectory(dir=SHM, prefix="askew-fuzz-state-") as temporary:
            path = Path(temporary) / "state"
            path.write_bytes(STATE.pack(first, 0, 0, 0, 0, 0, 0, 0))
            numbers = [str(seed), str(first), str(cases), str(until - time.monotonic())]
            command = [sys.executable, str(script), "--worker", target.name, *numbers, str(folder), str(path)]
            process = subprocess.Popen(command)
            ended = _watch(process, path)
            state = STATE.unpack(path.read_bytes())
            lines = path.with_suffix(".kinds")
            for line in lines.read_text("utf-8").splitlines() if lines.exists() else ():
                number, _, kind = line.partition("\t")
                kinds[kind] += int(number)
        at, calls, rows, refused, accepted, failures, microseconds, done = state
        found.calls, found.rows = found.calls + calls, found.rows + rows
        found.refused, found.accepted = found.refused + refused, found.accepted + accepted
        found.failures, found.seconds = found.failures + failures, found.seconds + microseconds / 1e6
        if done:
            break
        problem = ended or f"crash: exit code {process.returncode}"
        keep(target.name, seed, at, problem, target.make(generator(target.name, seed, at)), folder)
        kinds[problem] += 1
        found.calls, found.rows, found.failures = found.calls + 1, found.rows + 1, found.failures + 1
        cases -= at + 1 - first
        first = at + 1
    found.kinds = dict(kinds)
    return found


def _watch(process: subprocess.Popen[bytes], path: Path) -> str:
    """Wait for a process; end one that hangs, and say so."""
    before, since, used = b"", time.monotonic(), 0.0
    while process.poll() is None:
        now = path.read_bytes()
        if now != before:
            before, since, used = now, time.monotonic(), _processor_time(process.pid)
        elif _processor_time(process.pid) - used > HUNG or time.monotonic() - since > ASLEEP:
            process.kill()
            process.wait()
            return f"hang: more than {HUNG:g} s"
        time.sleep(0.05)
    return ""


def _processor_time(number: int) -> float:
    """Return the seconds that a process has computed for."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(results: list[Counts]) -> str:
    """Return what was counted, as text."""
    names = ("target", "calls", "rows checked", "rows/s", "refused", "accepted", "failures", "CPU s")
    lines = [names]
    total = Counts("all")
    for found in results:
        for name in ("calls", "rows", "refused", "accepted", "failures", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(found, name))
    for found in (*results, total):
        rate = found.rows / found.seconds if found.seconds else 0.0
        counts = (found.calls, found.rows, rate, found.refused, found.accepted, found.failures, found.seconds)
        lines.append((found.target, *(f"{count:,.0f}" for count in counts)))
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    shown = [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    problems = [f"  {number:>6} x {found.target}: {kind}" for found in results for kind, number in found.kinds.items()]
    return "\n".join(shown + (["", "Failures:", *problems] if problems else []))
