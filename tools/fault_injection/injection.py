"""Faults injected into real processes and file systems: what a child of the fork server can be told to do."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import errno
import functools
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fault_injection.scenes import CommandError, command, look, make, train
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset

import askew

__all__ = [
    "command",
    "deny_writing",
    "forget_fallocate",
    "interleaved_everywhere",
    "jump",
    "killed_at_every_byte",
    "killed_everywhere",
    "killed_within_a_write",
    "look",
    "make",
    "mount_small_disk",
    "read_meanwhile",
    "too_little_room",
    "train",
    "train_together",
    "try_to_make",
]

# Enough points for any subject; a run that is not stopped any more ends the series before.
MOST = 200
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18


def forked(action: Callable[[], object]) -> int:
    """Run something in a child, and return the number of the process; its exit code is 0, or 1 after an error."""
    child = os.fork()
    if child:
        return child
    try:
        action()
    except BaseException as error:
        print(f"a child failed: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def ended(child: int) -> int:
    """Wait for a process and return its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# ---------------------------------------------------------------------- at a chosen point


def halt_at(number: int, folder: str, stop: int = signal.SIGKILL) -> None:
    """Let this process send itself a signal right before its n-th call that changes something in a folder."""
    count = 0

    def reached() -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), stop)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
        if event == "open" and isinstance(arguments[2], int):
            changes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if changes and (event == "os.truncate" or folder in str(arguments)):
            reached()

    sys.addaudithook(hook)
    # Python tells no hook of these.
    for name in ("fsync", "write"):
        setattr(os, name, _after(reached, getattr(os, name)))


def _after(first: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any) -> Any:
        first()
        return then(*arguments)

    return both


def killed_everywhere(subject: str, folder: str, old: str) -> list[list[Any]]:
    """Kill the writing of version 2 over version 1 before every call that changes the disk.

    Returns, for each point, what is there then, what is there when it was written again, and the files then. The last
    one was not killed.
    """
    return _series(subject, folder, old, lambda number: halt_at(number, folder), range(1, MOST))


def killed_at_every_byte(subject: str, folder: str, old: str, sizes: list[int]) -> list[list[Any]]:
    """Let the system kill the writing of version 2 when a file gets larger than so many bytes, also in foreign code."""
    return _series(subject, folder, old, _die_of_size, sizes)


def killed_within_a_write(subject: str, folder: str, old: str, shares: list[float]) -> list[list[Any]]:
    """Kill the writing of version 2 when such a share of what it writes first is written."""
    return _series(subject, folder, old, _die_within, shares)


def _die_within(share: float) -> None:
    original = os.write

    def write(descriptor: int, data: bytes) -> None:
        original(descriptor, data[: round(share * len(data))])
        os.kill(os.getpid(), signal.SIGKILL)

    os.write = write  # type: ignore[assignment]


def _die_of_size(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Python ignores this signal, by which the system ends what writes too much.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _series(subject: str, folder: str, old: str, arm: Callable[[Any], None], points: Iterable[Any]) -> list[list[Any]]:
    outcomes = []
    for point in points:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(old, folder)

        def act(point: Any = point) -> None:
            arm(point)
            make(subject, folder, 2)

        code = ended(forked(act))
        found = look(subject, folder)
        make(subject, folder, 2)
        outcomes.append([code, found, look(subject, folder), files_in(Path(folder))])
        if code == 0:
            break
    return outcomes


def interleaved_everywhere(subject: str, folder: str, old: str, other: int = 1) -> list[list[Any]]:
    """Stop the writing of version 2 before every call that changes the disk, let another process write, and go on.

    By default that writes the version that was there: its files have the names of those that the first is to remove.

    Returns, for each point, both exit codes, whether the other one had to wait, what is there at the end and the files.
    """
    outcomes = []
    for point in range(1, MOST):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(old, folder)

        def act(point: int = point) -> None:
            halt_at(point, folder, signal.SIGSTOP)
            make(subject, folder, 2)

        first = forked(act)
        status = os.waitpid(first, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(status):
            break
        second = forked(lambda: make(subject, folder, other))
        code = _ended_or_waiting(second)
        os.kill(first, signal.SIGCONT)
        codes = [ended(first), ended(second) if code is None else code]
        outcomes.append([codes, code is None, look(subject, folder), files_in(Path(folder))])
    return outcomes


def read_meanwhile(subject: str, folder: str, rounds: int) -> list[Any]:
    """Let two processes write both versions in turn, and return all that was seen meanwhile, and the exit codes."""
    make(subject, folder, 1)

    def write(first: int) -> None:
        for number in range(rounds):
            make(subject, folder, 1 + (first + number) % 2)

    children = [forked(lambda: write(0)), forked(lambda: write(1))]
    seen, codes = [], []
    while len(codes) < len(children):
        found = look(subject, folder)
        if found not in seen:
            seen.append(found)
        done, status = os.waitpid(-1, os.WNOHANG)
        if done:
            codes.append(os.waitstatus_to_exitcode(status))
    return [seen, codes, look(subject, folder)]


def _ended_or_waiting(child: int) -> int | None:
    """Return the exit code of a process, or None once it waits for a lock."""
    end = time.monotonic() + 1.0
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            if any("->" in line and f" {child} " in line for line in Path("/proc/locks").read_text().splitlines()):
                return None
        if time.monotonic() > end:
            return None
        time.sleep(0.002)


# ---------------------------------------------------------------------- disks


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), None if options is None else options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _own_mounts() -> None:
    """Give this process mounts of its own, which are gone when it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) and libc.unshare(CLONE_NEWNS | CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _mount("none", "/", None, MS_REC | MS_PRIVATE, None)


def mount_small_disk(folder: str, size: int) -> bool:
    """Mount a disk in memory of so many bytes, for this process only; False if that is not allowed."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    try:
        _own_mounts()
        _mount("none", folder, "tmpfs", 0, f"size={size}")
    except (OSError, AttributeError):
        return False
    return True


def deny_writing(folder: str) -> bool:
    """Make a folder read-only for this process; False if that cannot be done."""
    try:
        _own_mounts()
        _mount(folder, folder, None, MS_BIND | MS_REC, None)
        _mount("none", folder, None, MS_BIND | MS_REMOUNT | MS_RDONLY, None)
    except (OSError, AttributeError):
        if os.geteuid() == 0:  # who may write everywhere
            return False
        for path in [Path(folder), *Path(folder).rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
    return True


def try_to_make(subject: str, folder: str, version: int) -> dict[str, str] | None:
    """Write a version and return the error, if there is one."""
    try:
        make(subject, folder, version)
    except (OSError, CommandError) as error:
        return {"raised": type(error).__name__, "text": str(error)}
    return None


def too_little_room(subject: str, folder: str, mounted: bool, sizes: list[int]) -> list[list[Any]]:
    """Write version 2 over version 1 where there is too little room for it, then where there is enough.

    ``mounted`` says whether the folder is a small disk, which is filled but for so many bytes; otherwise no file may be
    larger. Returns, for each size, the error, what was there, what is there then, files too many, and what is there in
    the end.
    """
    if mounted and not os.path.ismount(folder):
        raise ValueError("only a small disk may be filled")
    outcomes = []
    for size in sizes:
        place = Path(folder) / str(size)
        make(subject, str(place), 1)
        before, found = files_in(place), look(subject, str(place))
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        with contextlib.ExitStack() as stack:
            if mounted:
                ballast = Path(folder) / "ballast"
                _fill(ballast, size)
                stack.callback(ballast.unlink)
            else:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
                stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, limit)
            error = try_to_make(subject, str(place), 2)
        then, after = look(subject, str(place)), files_in(place)
        make(subject, str(place), 2)
        outcomes.append([error, found, then, sorted(set(after) - set(before)), look(subject, str(place))])
        shutil.rmtree(place)
    return outcomes


def forget_fallocate() -> None:
    """Let this process be one of a system that cannot take room for a file in one call."""
    vars(os).pop("posix_fallocate", None)


def _fill(path: Path, free: int) -> None:
    """Fill the disk but for so many bytes."""
    block = bytes(4096)
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(block) == len(block):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        file.truncate(max(0, file.tell() - free))


# ---------------------------------------------------------------------- clocks


def jump(seconds: float) -> None:
    """Let the clock jump by so much at every second look at it: for programs that ask Python for the time."""
    looks = 0

    def jumping(original: Callable[[], float], sign_changes: bool) -> Callable[[], float]:
        def clock() -> float:
            nonlocal looks
            looks += 1
            steps = looks % 2 if sign_changes else looks
            return original() + steps * seconds

        return clock

    time.time = jumping(time.time, True)
    # These never go back, but jump forward when a machine wakes up.
    time.monotonic = jumping(time.monotonic, seconds < 0)
    time.perf_counter = jumping(time.perf_counter, seconds < 0)


# ---------------------------------------------------------------------- several processes that train together


def train_together(
    file: str, size: int, victim: int = -1, stop: int = 0, patience: int = 60, loaders: bool = False
) -> list[Any]:
    """Train in so many processes with one checkpoint, whose messages may take some seconds.

    With loaders, each has rows of its own, in an order of its own. One of them, the victim, sends itself a signal in
    its eighth step. Returns the exit code of each process, what it
    has learned or said, and the seconds from the signal on until the others have ended.
    """
    folder = Path(tempfile.mkdtemp())
    children = []
    for rank in range(size):
        fatal = stop if rank == victim else 0
        one = functools.partial(_train_as, folder, rank, size, file, fatal, patience, loaders)
        children.append(forked(one))
    codes = [0 if rank == victim else ended(child) for rank, child in enumerate(children)]
    begun = folder / "signal"
    seconds = time.time() - begun.stat().st_mtime if begun.exists() else 0.0
    if victim >= 0:
        os.kill(children[victim], signal.SIGKILL)  # it may only be stopped
        codes[victim] = ended(children[victim])
    found = [folder / str(rank) for rank in range(size)]
    said = [json.loads(path.read_text("utf-8")) if path.exists() else None for path in found]
    shutil.rmtree(folder)
    return [codes, said, seconds]


def _train_as(folder: Path, rank: int, size: int, file: str, stop: int, patience: int, loaders: bool) -> None:
    """Be one of the processes."""
    random = np.random.default_rng(0)
    points, labels = random.normal(size=(60, 4)), random.integers(3, size=60)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = askew.Embedded(torch.nn.Linear(4, 3), askew.NeuralBregman(3, widths=(8,)))
    data: object = (points, labels)
    if loaders:
        own = TensorDataset(*(torch.from_numpy(part[rank::size]) for part in (points, labels)))
        data = DataLoader(own, batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(rank))
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        if stop and calls == 8:
            (folder / "signal").touch()
            os.kill(os.getpid(), stop)

    if size > 1:
        meeting, bound = f"file://{folder}/meeting", datetime.timedelta(seconds=patience)
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=bound)
    try:
        # In the middle of a step: the others wait for its images then.
        model.encoder.register_forward_hook(count)
        askew.fit(
            model,
            data,
            askew.losses.AllTriplets(1.0),
            steps=12,
            batch_size=20,
            seed=5,
            checkpoint=file,
            checkpoint_every=3,
            calibrate=False,
        )
        said: object = [value for tensor in model.state_dict().values() for value in tensor.flatten().tolist()]
    except Exception as error:
        said = {"raised": type(error).__name__, "text": str(error)}
    (folder / str(rank)).write_text(json.dumps(said), "utf-8")
