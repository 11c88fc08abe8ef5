"""The loss of values that are known."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from askew import checks
from askew.losses.base import PairLoss, check_values

KINDS = ("squared", "absolute", "huber")


class Regression(PairLoss):
    r"""The mean error of D(x, y) against known values.

    .. math:: \operatorname{mean} e(D(x, y) - t), \qquad e(u) = u^2, \; |u|, \text{ or }
        \begin{cases} u^2 / 2 & |u| \le \delta \\ \delta (|u| - \delta / 2) & \text{else} \end{cases}

    Use "squared" to learn a known divergence from its values; "huber" with a delta of about a tenth of the mean target
    if the mean absolute error is what counts, or if there are outliers; "absolute" if only the median matters. Call
    :meth:`~askew.Divergence.calibrate` with the targets first. Where only an order is known, take a triplet loss.

    Parameters
    ----------
    kind
        "squared", "absolute" or "huber".
    delta
        Where "huber" turns from squares to absolute values, in units of the targets; the others do without.

    References
    ----------
    Huber (1964), Robust estimation of a location parameter.

    Examples
    --------
    >>> import torch
    >>> Regression("absolute")(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 3.0]))
    tensor(0.5000)
    """

    def __init__(self, kind: str = "squared", delta: float = 1.0) -> None:
        super().__init__()
        self.kind = checks.check_name(kind, KINDS, "kind of Regression")
        self.delta = checks.check_positive(delta, "delta of Regression")

    def forward(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of values D(x, y) and targets: ``(n,), (n,) -> ()``."""
        check_values(values, targets, ("values", "targets"), "Regression")
        if values.numel() == 0:
            return values.sum()
        targets = targets.to(values)
        if self.kind == "squared":
            return functional.mse_loss(values, targets)
        if self.kind == "absolute":
            return functional.l1_loss(values, targets)
        return functional.huber_loss(values, targets, delta=self.delta)

    def extra_repr(self) -> str:
        """Show the kind."""
        return f"{self.kind!r}, delta={self.delta:g}" if self.kind == "huber" else f"{self.kind!r}"
