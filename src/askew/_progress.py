"""A progress bar for long work, shown on terminals only."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(
    show: bool | None, total: int, what: str, done: int = 0, value: str | None = None
) -> Iterator[Callable[..., None]]:
    """Give a function that moves a progress bar: ``move(done)`` or ``move(done, number)``.

    Parameters
    ----------
    show
        Whether to show it. None means on a terminal only, and not in worker processes, which would draw over
        each other.
    total
        Number of steps.
    what
        Description of the work.
    done
        Steps that are done already.
    value
        Name of a number shown next to the bar, such as the loss.

    Examples
    --------
    >>> with progress_bar(False, 10, "counting") as move:
    ...     move(5)
    """
    if show is None:
        show = sys.stderr is not None and sys.stderr.isatty() and multiprocessing.parent_process() is None
    if not show:
        yield lambda step, number=0.0: None
        return
    # Imported here: most work is done without a bar.
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Remaining(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            taken, left = task.completed - done, total - task.completed
            seconds = remaining(task.elapsed or 0.0, task.fields["since"], taken, left)
            return Text("-:--:--" if seconds is None else str(timedelta(seconds=round(seconds))))

    columns: list[progress.ProgressColumn] = [
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
    ]
    if value:
        columns.append(progress.TextColumn("{task.fields[number]}"))
    columns.append(Remaining())
    console = Console(stderr=True)
    with progress.Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(what, total=total, completed=done, number="", since=0.0)  # no number before the first step
        yield lambda step, number=0.0: bar.update(
            task, completed=step, number=f"{value} {number:.4g}", since=bar.tasks[0].elapsed
        )


def remaining(elapsed: float, since: float, taken: float, left: float) -> float | None:
    """Return an estimate of the seconds that are left: steps take as long as all steps so far did on average.

    A mean of the last few steps would jump where steps differ. ``since`` is when the last step was done: from then on
    the estimate counts down.

    Examples
    --------
    >>> remaining(elapsed=12.0, since=10.0, taken=5, left=3)
    4.0
    """
    return None if taken <= 0 else max(0.0, since / taken * left - (elapsed - since))
