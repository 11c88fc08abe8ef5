"""Feed damaged, hostile and extreme input to all readers and to the numeric core; count what happens.

    python tools/fuzz.py [TARGET ... | all | files | numbers] [--cases N] [--minutes M] [--seed S] [--engine E]

A case is a function of target, seed and number, so that each can be repeated: ``--seed S --first N --cases 1``. Rules:
the library gives a right answer, or refuses: an error whose message says what must be and what was got.
Everything else is a failure: another error, a crash, more than 2 s of processor time, memory beyond 1 GiB, and a wrong
answer. Targets run in processes of their own. Failing inputs and the lines that repeat them go to the folder
``build/fuzz``. Of the numeric targets one call checks many rows, each with its own values; both are counted.

``--minutes`` is shared by the targets; without it each runs ``--cases`` calls. ``--engine atheris`` lets the coverage
of the code guide what is tried, for readers in Python; it needs ``pip install atheris``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build" / "fuzz"


def main() -> int:
    if sys.argv[1:2] == ["--guided-worker"]:  # before the library is imported: its coverage is to be seen
        from fuzzing.guided import work_guided

        name, cases, seconds, folder, path = sys.argv[2:]
        work_guided(name, int(cases), float(seconds), Path(folder), Path(path))
        return 0
    from fuzzing.registry import FILES, NUMBERS, PLANTED, TARGETS
    from fuzzing.running import fuzz, table, work

    if sys.argv[1:2] == ["--worker"]:
        name, seed, first, cases, seconds, folder, path = sys.argv[2:]
        work(
            {**TARGETS, PLANTED.name: PLANTED}[name],
            int(seed),
            int(first),
            int(cases),
            float(seconds),
            Path(folder),
            Path(path),
        )
        return 0
    groups = {"all": tuple(TARGETS), "files": FILES, "numbers": NUMBERS}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", nargs="*", default="all", choices=[*groups, *TARGETS], metavar="TARGET")
    parser.add_argument("--cases", type=int, help="calls of each target: 1000, or with --minutes as many as fit")
    parser.add_argument("--minutes", type=float, help="of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--engine", choices=("random", "atheris"), default="random")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where failing inputs go")
    options = parser.parse_args()
    given = [options.target] if isinstance(options.target, str) else options.target
    chosen = list(dict.fromkeys(name for some in given for name in groups.get(some, (some,))))
    if options.engine == "atheris":
        from fuzzing.guided import fuzz_guided

        chosen = [name for name in chosen if TARGETS[name].guided]
    cases = options.cases or (1 << 31 if options.minutes else 1000)
    shares = sum(TARGETS[name].share for name in chosen)
    part = 60 * options.minutes / max(1, shares) if options.minutes else float("inf")
    results = []
    for name in chosen:
        seconds = part * TARGETS[name].share
        if options.engine == "atheris":
            found = fuzz_guided(name, cases, seconds, options.folder)
        else:
            found = fuzz(TARGETS[name], options.seed, options.first, cases, seconds, options.folder)
        results.append(found)
        print(f"{name}: {found.calls:,} calls, {found.rows:,} rows checked, {found.failures:,} failures", flush=True)
    print(f"\n{table(results)}")
    return 1 if any(found.failures for found in results) else 0


if __name__ == "__main__":
    sys.exit(main())
