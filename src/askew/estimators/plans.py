"""Training settings by divergence, supervision and size of the table.

Those for labels were chosen once for all tables, by ranking rows that were held out of training data;
`benchmarks/tables.py` measures what they give on rows that had no part in the choice. Those for values are the ones of
`benchmarks/activation.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from askew.losses import AllTriplets, ContrastivePairs, GradedSoftmax, Listwise, Loss, Regression, TripletMargin

# Rows below which a table is small: it is learned with smaller steps and with a smoother encoder.
SMALL = 300
# Where steps, batch and learning rate are left to the learner, and only the encoder of "nbd" is chosen: the share of
# the steps of a trial; the mean average precision of one from which on a table is easy; and the share of the steps
# that then suffices, for fewer than 1000 rows and for more. Others are still improving at the end of all steps.
TRIAL_SHARE, EASY, EASY_SHARES = 1 / 16, 0.9, (1 / 4, 1 / 2)


@dataclass(frozen=True)
class Plan:
    """How a model is trained: the loss, the number of steps, the batch, the peak learning rate."""

    loss: Loss
    steps: int
    batch_size: int
    learning_rate: float


def mlp_activation(n: int) -> str:
    """Return the activation of the encoder "mlp": a smooth one for few rows, which it overfits less."""
    return "silu" if n < SMALL else "relu"


def label_plan(divergence: str, encoder: bool, n: int, n_classes: int, quick: bool = False) -> Plan:
    """Return the plan for labels; a ``quick`` one scores a sample of the pairs of each step.

    A batch has at least 8 rows of each class on average, so that most points have others of their class in it.
    """
    steps = min(500, max(300, n // 2))
    batch = min(1024, max(128, 8 * n_classes))
    ranking = Listwise(positives=16) if quick else Listwise(max_pairs=3000)
    if divergence in ("deep-div", "deep-div-affine"):
        # Behind an encoder, D of most pairs becomes 0 under the listwise loss and stays so.
        return Plan(AllTriplets(margin=1.0), steps, batch, 1e-3) if encoder else Plan(ranking, steps, batch, 1e-2)
    # Few rows are overfitted by large steps; encoders diverge at large learning rates.
    return Plan(ranking, steps, batch, 1e-2 if encoder else 0.1 * min(1.0, n / SMALL))


def pair_plan(encoder: bool, n: int) -> Plan:
    """Return the plan for target values: at least 2000 steps and 30 epochs, batches of up to 1000."""
    batch = min(1000, max(32, n // 8))
    steps = max(2000, 30 * -(-n // batch))
    # Behind an encoder 1e-2 is as good on average, but one training in some fails: units of the encoder die.
    return Plan(Regression(), steps, batch, 3e-3 if encoder else 3e-2)


def triplet_plan(encoder: bool, n: int) -> Plan:
    """Return the plan for triplets."""
    batch = min(1000, max(32, n))
    return Plan(TripletMargin(margin=1.0), max(500, 10 * -(-n // batch)), batch, 1e-2 if encoder else 3e-2)


def similarity_plan(encoder: bool, n: int) -> Plan:
    """Return the plan for similar and dissimilar pairs, which is that of triplets with another loss."""
    batch = min(1000, max(32, n))
    return Plan(ContrastivePairs(), max(500, 10 * -(-n // batch)), batch, 1e-2 if encoder else 3e-2)


def relevance_plan(encoder: bool, n: int) -> Plan:
    """Return the plan for clicks of n queries: at least 500 steps and 20 epochs, batches of up to 128 queries."""
    batch = min(128, n)
    return Plan(GradedSoftmax(), max(500, 20 * -(-n // batch)), batch, 3e-3 if encoder else 1e-2)
