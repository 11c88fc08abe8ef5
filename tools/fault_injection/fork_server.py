"""A process that has imported everything and forks children, each of which does something and may die of it.

Importing torch takes seconds, and a fork of a process that has done so milliseconds: so hundreds of processes can be
killed, each for real, in the time of a few tests. The test process itself has threads and does not fork.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any


class ForkServer:
    """The end of the line that tests have in hand.

    Parameters
    ----------
    scenes
        Further modules of this folder whose functions children may call, such as ``"paper_scenes"``.
    """

    def __init__(self, *scenes: str) -> None:
        folders = [str(Path(__file__).parents[1])]
        for package in ("askew", "askew_paper") if scenes else ("askew",):
            found = importlib.util.find_spec(package)
            assert found is not None
            assert found.origin is not None
            folders.append(str(Path(found.origin).parents[1]))
        # One thread, as those of numerical libraries do not survive a fork.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(folders), "no_proxy": "127.0.0.1"}
        environment.pop("PYTHONWARNINGS", None)
        self.process = subprocess.Popen(
            [sys.executable, __file__, *scenes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def child(self, *steps: tuple[Any, ...]) -> list[Any]:
        """Let a child take steps, each a function of ``injection`` by name and its arguments, and return the results.

        An error becomes ``{"raised": class, "text": message}``. Of a child that is killed there are those until then,
        and the signal.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(steps, default=str) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process that forks has died"
        found: list[Any] = json.loads(answer)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def sizes_of(subject: str, server: ForkServer, folder: Path) -> list[int]:
    """Return sizes that cut the files of a subject in half, or off their end.

    By more than a byte: times that are written into a file have now more and now fewer digits.
    """
    server.child(("make", subject, folder / "sizes", 1), ("make", subject, folder / "sizes", 2))
    sizes = [path.stat().st_size for path in (folder / "sizes").rglob("*") if path.is_file()]
    assert sizes
    return sorted({part for size in sizes for part in (size // 2, size - max(1, size // 16))})


def serve() -> None:
    """Fork a child for each line of steps, and answer with its results."""
    from fault_injection import injection, scenes

    modules = [importlib.import_module(f"fault_injection.{name}") for name in sys.argv[1:]]

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what children print is not an answer
    for module in modules:
        module.prepare()
    scenes.warm_up()
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                for name, *arguments in json.loads(line):
                    pipe.write(json.dumps(_result([*modules, injection], name, arguments)) + "\n")
                    pipe.flush()
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            results = [json.loads(answer) for answer in pipe]
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            results.append({"killed": os.WTERMSIG(status)})
        answers.write(json.dumps(results) + "\n")
        answers.flush()


def _result(modules: list[Any], name: str, arguments: list[Any]) -> Any:
    module = next(module for module in modules if name in module.__all__)
    try:
        return getattr(module, name)(*arguments)
    except Exception as error:
        where = traceback.format_exc(limit=-3)
        return {"raised": type(error).__name__, "text": str(error), "where": where}


if __name__ == "__main__":
    serve()
