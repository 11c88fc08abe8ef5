"""The course of a training run, as rows of a table, and the error of one that diverged."""

from __future__ import annotations

from dataclasses import dataclass, field

from askew import checks


@dataclass
class History:
    """The course of a training run: one row for each epoch, and how it ended.

    Attributes
    ----------
    rows : list of dict
        ``step``, ``epoch``, ``loss`` (mean over the steps since the last row), ``learning_rate``, ``seconds`` since the
        start and, where there was one, ``validation`` (a score, larger is better) and
        the numbers that a callback added. A table of any library is made from
        it, such as ``pandas.DataFrame(history.rows)``.
    stopped : str
        ``"finished"``, ``"early"`` (no better validation score for some time), ``"callback"`` (which returned True),
        ``"interrupted"`` (Ctrl-C) or, in the history of an error, ``"diverged"``. A callback sees ``"running"`` before
        the last epoch.
    best_step : int or None
        The step whose weights the model has now, where they are those of the best validation score.

    Examples
    --------
    >>> history = History([{"step": 10, "loss": 0.5}, {"step": 20, "loss": 0.25}])
    >>> history["loss"]
    [0.5, 0.25]
    >>> print(history)
     step  loss
       10   0.5
       20  0.25
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    stopped: str = "finished"
    best_step: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> list[float]:
        """Return a column, without the rows that do not have it."""
        checks.check_name(column, dict.fromkeys(name for row in self.rows for name in row), "column of a History")
        return [row[column] for row in self.rows if column in row]

    def __str__(self) -> str:
        """Return the table as text: all rows, or the first and the last ten."""
        import pandas

        return str(pandas.DataFrame(self.rows).to_string(index=False, max_rows=20, na_rep="", float_format="%.5g"))


class TrainingDivergedError(RuntimeError):
    """The loss or the weights became NaN or infinite, or the loss a thousand times what it was at the start.

    The model has the last good weights.

    Attributes
    ----------
    history : History
        The course of the run until then.

    Examples
    --------
    >>> issubclass(TrainingDivergedError, RuntimeError)
    True
    """

    def __init__(self, message: str, history: History) -> None:
        super().__init__(message)
        self.history = history

    def __reduce__(self) -> tuple[type[TrainingDivergedError], tuple[str, History]]:
        """Return the class and its arguments, with which worker processes pass it on."""
        return type(self), (self.args[0], self.history)
