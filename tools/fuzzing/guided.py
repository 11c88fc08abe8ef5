"""Fuzzing in which the coverage of the code guides what is tried next, by atheris."""

from __future__ import annotations

import collections
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

__all__ = ["fuzz_guided", "instrumented", "work_guided"]

WATCHED = ("askew_paper.data", "askew.cli.tables", "askew.io", "askew_paper.experiments", "askew.checks")


def instrumented() -> Any:
    """Import what is fuzzed so that its coverage is seen, and return the targets."""
    import atheris

    with atheris.instrument_imports(include=list(WATCHED), enable_loader_override=False):
        from fuzzing.registry import TARGETS
    return TARGETS


def fuzz_guided(name: str, cases: int, seconds: float, folder: Path) -> Any:
    """Run a target under atheris in another process, which ends with libFuzzer."""
    from fuzzing.running import SHM, Counts

    try:
        import atheris  # noqa: F401
    except ImportError:
        raise SystemExit(
            "--engine atheris needs the package 'atheris', which is not installed. Run: pip install atheris"
        ) from None
    with tempfile.TemporaryDirectory(dir=SHM, prefix="askew-guided-") as temporary:
        path = Path(temporary) / "counts"
        script = Path(__file__).parents[1] / "fuzz.py"
        command = [
            sys.executable,
            str(script),
            "--guided-worker",
            name,
            str(cases),
            str(seconds),
            str(folder),
            str(path),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
        found = Counts(name)
        if not path.exists():
            found.failures, found.kinds = 1, {f"exit code {done.returncode}: {done.stderr[-400:]}": 1}
            return found
        numbers, *kinds = path.read_text("utf-8").splitlines()
        found.calls, found.refused, found.accepted, found.failures = map(int, numbers.split()[:4])
        found.rows, found.seconds = found.calls, float(numbers.split()[4])
        found.kinds = {kind: int(number) for number, _, kind in (line.partition("\t") for line in kinds)}
        return found


def work_guided(name: str, cases: int, seconds: float, folder: Path, path: Path) -> None:
    """Let libFuzzer call the target; failures are written and counted, and it goes on."""
    import atheris

    target = instrumented()[name]
    from fuzzing.running import KEPT
    from fuzzing.targets import describe, generator

    warnings.simplefilter("ignore")
    kinds: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    began = time.process_time()

    def note() -> None:
        numbers = [str(counts[key]) for key in ("calls", "refused", "accepted", "failures")]
        lines = [" ".join((*numbers, str(time.process_time() - began)))]
        lines += [f"{number}\t{kind}" for kind, number in kinds.items()]
        path.write_text("\n".join(line.replace("\n", " ") for line in lines), "utf-8", "backslashreplace")

    def one(data: bytes) -> None:
        counts["calls"] += 1
        try:
            target.run(data)
            counts["accepted"] += 1
        except Exception as error:
            problem = describe(error)
            counts["failures" if problem else "refused"] += 1
            if problem:
                kinds[problem] += 1
                if kinds[problem] <= KEPT:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / f"{name}-guided-{counts['failures']}").write_bytes(data)
        if counts["calls"] % 500 == 0 or counts["calls"] >= cases:
            note()

    corpus = path.with_suffix(".corpus")
    corpus.mkdir()
    for number in range(50):
        (corpus / str(number)).write_bytes(target.make(generator(name, 0, number)))
    note()
    limits = [f"-atheris_runs={min(cases, 1 << 31)}", f"-max_total_time={max(1, int(min(seconds, 1e6)))}"]
    atheris.Setup([sys.argv[0], *limits, "-max_len=4096", "-timeout=60", str(corpus)], one)
    atheris.Fuzz()
