"""Base class of the learners: how a model is chosen, trained and checked."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor, nn

from askew import checks
from askew.checks import REAL
from askew.divergences import CATALOGUE, Divergence, Embedded, make
from askew.encoders import MLP, Standardize, encode
from askew.estimators.choice import Candidate, Choice, Comparison, short
from askew.estimators.fitted import FittedLearner
from askew.estimators.plans import Plan, mlp_activation
from askew.training import History, TrainingDivergedError, fit
from askew.training.runtime import seeded, step_work, threads_for

logger = logging.getLogger("askew")

ENCODERS = ("auto", "mlp", "two-sided")
# Features of the embeddings of the encoder "mlp".
EMBEDDING_FEATURES = 16
# Of this many rows on, a share is held out to check the finished training on; of fewer, these training rows are.
ROWS_TO_CHECK, CHECKED_SHARE, CHECKED_ROWS = 1000, 0.05, 500
# A training that failed is repeated with this share of its learning rate and with clipped gradients.
GENTLER, CLIP = 0.1, 1.0

# Points, pairs or triplets, and what is known about them; or queries, items and grades.
Data = tuple[Any, ...]


class FitWarning(UserWarning):
    """A learner learned nothing useful: its divergence is no better than a trivial one.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", FitWarning)  # in here, a training that fails is an error
    """


class BaseLearner(FittedLearner):
    """A divergence that is learned from a table, with scaling and, where it helps, an encoder in front of it.

    Attributes
    ----------
    divergence_ : Divergence
        The learned divergence between embeddings of points, as :meth:`transform` returns them.
    encoder_ : torch.nn.Module
        Maps points to their embeddings: the scaling, and the encoder if there is one.
    second_encoder_ : torch.nn.Module
        Maps second points of pairs; only where they have their own encoder.
    choice_ : str
        What was learned and why: a sentence and, with ``divergence="auto"``, a table of all candidates.
    validation_ : dict
        The score of each candidate on held-out data, where that decided.
    history_ : History
        The course of the training.
    points_ : array of shape (n, dim)
        The points that were learned from, among which :meth:`kneighbors` searches. For pairs and triplets, the distinct
        points in the order of their first appearance.
    items_ : array
        Their embeddings.
    """

    # What askew.save keeps of a fitted learner.
    saved_attributes: ClassVar[tuple[str, ...]] = (
        "divergence_",
        "encoder_",
        "second_encoder_",
        "choice_",
        "validation_",
        "history_",
        "points_",
        "items_",
        "n_features_in_",
        "feature_names_in_",
    )
    # What one row of the data is called, how many are needed to compare models on held-out ones, and their share.
    _rows: ClassVar[str]
    _rows_to_hold_out: ClassVar[int] = 200
    _held_out_share: ClassVar[float] = 0.2
    # What "auto" chooses from, from the simplest on.
    _candidates: ClassVar[tuple[str, ...]] = ("mahalanobis", "nbd", "drift")
    # The score on held-out rows that decides, and whether a smaller one is better.
    _score_name: ClassVar[str]
    _smaller_is_better: ClassVar[bool] = False

    def __init__(
        self,
        divergence: str | Divergence = "nbd",
        encoder: str | nn.Module | None = "auto",
        *,
        scale: bool = True,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        random_state: Any = None,
        device: str | None = None,
        progress: bool | None = None,
    ) -> None:
        self.divergence = divergence
        self.encoder = encoder
        self.scale = scale
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def _check_choices(self) -> None:
        """Raise if ``divergence`` or ``encoder`` is of another kind or unknown."""
        owner = type(self).__name__
        if not isinstance(self.divergence, Divergence):
            checks.check_name(self.divergence, ["auto", *CATALOGUE], f"divergence of {owner}")
        if self.encoder is not None and not isinstance(self.encoder, nn.Module):
            checks.check_name(self.encoder, ENCODERS, f"encoder of {owner}")
        two_sided = self.encoder == "two-sided" or getattr(self.divergence, "second", None) is not None
        if two_sided and not self._takes_tuples and self._items_side == "first":
            hint = "PairRegressor, TripletLearner and RelevanceLearner learn with two encoders."
            must = "one encoder, as both points of a pair are of one kind"
            raise ValueError(checks.message(f"encoder of {owner}", must, "a second encoder", hint))

    # ------------------------------------------------------------------ learning

    def _fit(self, data: Data) -> None:
        """Choose a model, train it on all data and set the attributes of a fitted learner: all or, on an error, none.

        ``data`` are points ``(n, dim)`` or tuples of points ``(n, size, dim)``, and what is known about them.
        """
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        choice = self._choose(data, seed)
        scalings = self._scalings(data, choice.candidate)
        model, history = self._learn_checked(self._scaled(data, scalings), choice, seed)
        encoder, model, second = _split(scalings, model)
        points = self._points_to_keep(data)
        items = encode((second if self._items_side == "second" and second is not None else encoder).eval(), points)
        if model.eval().domain != REAL:  # nothing has checked the points yet where nothing was trained
            with torch.inference_mode():
                model(items, items)
        self.encoder_, self.divergence_ = encoder, model
        self.__dict__.pop("second_encoder_", None)
        if second is not None:
            self.second_encoder_ = second.eval()
        self.points_, self.items_ = points.numpy(), items.numpy()
        self.history_, self.choice_, self.validation_ = history, choice.reason, choice.scores
        self.__dict__.pop("_index", None)
        logger.info("%s: %s", type(self).__name__, choice.reason)

    def _choose(self, data: Data, seed: int) -> Choice:
        """Return the divergence and the encoder to use: as asked for, or the better ones on held-out rows."""
        choice = self._choice_without_comparison(self._count(data), self._dims(data))
        if choice is not None:
            return choice
        rows, rest = self._hold_out(data, seed, self._held_out_share)

        def scores(candidate: Candidate, share: float) -> Tensor | None:
            known, held_out = (self._part(data, part) for part in (rows, rest))
            scalings = self._scalings(known, candidate)
            known, held_out = self._scaled(known, scalings), self._scaled(held_out, scalings)
            try:
                model, _ = self._learn(known, candidate, seed, share)
            except TrainingDivergedError:
                return None
            with torch.inference_mode():
                return self._few_scores(model.eval(), known, held_out)

        divergences = self._candidates if self.divergence == "auto" else (self.divergence,)
        encoders = self._encoders(self._dims(data)) if self.encoder == "auto" else (self.encoder,)
        candidates = [Candidate(divergence, encoder) for encoder in encoders for divergence in divergences]
        comparison = Comparison(candidates, scores, self._smaller_is_better, self._share_of_two())
        winner, means = comparison.winner, {trial.candidate: comparison.mean(trial) for trial in comparison.trials}
        score_name = self._score_name.format(len(rest))
        if len(divergences) == 1 and len(encoders) == 2:
            without, with_ = means.values()
            reason = f"{winner.candidate.encoder_name}: {score_name} {without:.4g} without, {with_:.4g} with"
            share = self._share_after(comparison.mean(winner), self._count(data))
            return Choice(winner.candidate, reason, {"without encoder": without, "with encoder": with_}, share)
        reason = f"{winner.candidate}: the simplest within the spread of the best by {score_name}\n{comparison.table()}"
        return Choice(winner.candidate, reason, {str(candidate): mean for candidate, mean in means.items()})

    def _share_of_two(self) -> float:
        """Return the share of the steps of each trial where only the encoder is chosen."""
        return 1 / 2

    def _share_after(self, score: float, n: int) -> float:
        """Return the share of the steps that n rows need whose trial had this score."""
        return 1.0

    def _encoders(self, dims: tuple[int, int]) -> tuple[str | None, ...]:
        """Return the encoders that "auto" compares, from the simplest on."""
        return None, "mlp"

    def _choice_without_comparison(self, n: int, dims: tuple[int, int]) -> Choice | None:
        """Return the divergence and the encoder for n rows of points where nothing has to be compared."""
        given, asked = self.divergence, Candidate(self.divergence, self.encoder)
        few = f"{n} {self._rows} are too few to hold out some ({self._rows_to_hold_out} are needed)"
        if given == "auto":
            if n >= self._rows_to_hold_out:
                return None
            candidate = Candidate("nbd", None if self.encoder == "auto" else self.encoder)
            return Choice(candidate, f"{candidate}: {few}", {})
        if self.encoder != "auto":
            return Choice(asked, f"{asked.encoder_name}, as asked for", {})
        alone = Candidate(given, None)
        if isinstance(given, str):
            learned, domain = CATALOGUE[given].learned and given != "pbdl", CATALOGUE[given].domain
        elif hasattr(given, "encoder"):
            return Choice(alone, "no further encoder: the divergence has one", {})
        elif given.dim != dims[0]:
            reason = f"encoder 'mlp': the divergence is of dim {given.dim}, the data of {dims[0]}"
            return Choice(Candidate(given, "mlp"), reason, {})
        else:
            learned, domain = any(True for _ in given.parameters()), given.domain
        if not learned or domain != REAL:
            return Choice(alone, f"no encoder: {short(given)} works on the features", {})
        return Choice(alone, f"no encoder: {few}", {}) if n < self._rows_to_hold_out else None

    def _hold_out(self, data: Data, seed: int, share: float) -> tuple[Any, Any]:
        """Return the rows to learn from and the others, a share of all, to judge models on."""
        n = self._count(data)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        rest, rows = order.tensor_split([int(share * n)])
        return rows, rest

    # ------------------------------------------------------------------ how the data are laid out

    def _count(self, data: Data) -> int:
        """Return the number of rows, of which some can be held out."""
        return len(data[0])

    def _dims(self, data: Data) -> tuple[int, int]:
        """Return the features of first and of second points."""
        return data[0].shape[-1], data[0].shape[-1]

    def _part(self, data: Data, rows: Any) -> Data:
        """Return some rows of the data."""
        return tuple(values[rows] for values in data)

    def _scalings(self, data: Data, candidate: Candidate) -> tuple[nn.Module, nn.Module]:
        """Return the standardisations of first and second points, which are one."""
        scaling = self._scaling(data[0], candidate)
        return scaling, scaling

    def _scaling(self, points: Tensor, candidate: Candidate) -> nn.Module:
        """Return the standardisation of the features; where it would leave a domain, points stay as they are."""
        given, dim = candidate.divergence, points.shape[-1]
        domain = CATALOGUE[given].domain if isinstance(given, str) else given.domain
        standardised = self.scale and (candidate.encoder is not None or domain == REAL)
        return Standardize(dim).fit(points.reshape(-1, dim)) if standardised else Standardize(dim)

    def _scaled(self, data: Data, scalings: tuple[nn.Module, nn.Module]) -> Data:
        """Return data with scaled points."""
        return (scalings[0](data[0]), *data[1:])

    def _points_to_keep(self, data: Data) -> Tensor:
        """Return the points among which the fitted learner searches."""
        points = data[0]
        return points if points.ndim == 2 else _distinct_rows(points.flatten(0, 1))

    def _batches(self, data: Data, batch_size: int, seed: int) -> object:
        """Return scaled data as :func:`askew.fit` takes them."""
        points = data[0]
        parts = (points,) if points.ndim == 2 else (part.contiguous() for part in points.unbind(1))
        return (*parts, *data[1:])

    # ------------------------------------------------------------------ one training

    def _learn_checked(self, data: Data, choice: Choice, seed: int) -> tuple[Divergence, History]:
        """Return a trained model that is better than a trivial one; a training that failed is repeated more gently.

        It is judged on held-out rows, or on training rows where there are few: a model that is no better there than at
        its start or than a constant is no better anywhere.
        """
        held_out, candidate = None, choice.candidate
        if self._count(data) >= ROWS_TO_CHECK:
            rows, rest = self._hold_out(data, seed, CHECKED_SHARE)
            data, held_out = (self._part(data, part) for part in (rows, rest))
        best, history = self._learn(data, candidate, seed, choice.share)
        if not history.rows:  # nothing was trained
            return best, history
        sample = self._part(data, slice(None, None, max(1, self._count(data) // CHECKED_ROWS)))
        start = self._start(data, candidate, seed)
        problem = self._problem(best, start, sample, held_out)
        if problem:
            logger.warning("%s: %s; training again with smaller steps", type(self).__name__, problem)
            best, history = self._learn(data, candidate, seed, gentle=True)
            problem = self._problem(best, start, sample, held_out)
        if problem:
            hint = "Try another divergence, encoder or learning_rate, and check that the supervision fits the points."
            what = f"the divergence learned by {type(self).__name__}"
            message = checks.message(what, "better than a trivial one", problem, hint)
            warnings.warn(message, FitWarning, stacklevel=4)
        return best, history

    def _few_scores(self, model: Divergence, known: Data, asked: Data) -> Tensor:
        """Return the scores of rows, on one thread if they are few."""
        size = sum(parameter.numel() for parameter in model.parameters())
        with threads_for(step_work(self._count(known), size, all_pairs=True)):
            return self._scores(model, known, asked)

    def _start(self, data: Data, candidate: Candidate, seed: int) -> Divergence:
        """Return the model as it is before the first step."""
        with seeded(seed, torch.device("cpu")):
            model = self._untrained(self._dims(data), candidate, self._count(data))
        return model.eval()

    @torch.inference_mode()
    def _problem(self, model: Divergence, start: Divergence, known: Data, held_out: Data | None) -> str:
        """Return what is wrong with a trained model, or nothing."""
        asked = known if held_out is None else held_out
        scores, trivial = self._few_scores(model, known, asked), self._trivial_score(asked)
        score = float(scores.mean())
        # A guess is ahead of a constant on half of all samples; two standard errors ahead it is on one of forty.
        chance = 0.0 if held_out is None else 2 * float(scores.std()) / len(scores) ** 0.5
        sign = -1 if self._smaller_is_better else 1
        name = self._score_name.split(" on ")[0].split(" of ")[0]
        perfect = 0.0 if self._smaller_is_better else 1.0
        where = f"on {'training' if held_out is None else 'held-out'} {self._rows}"
        if not sign * score > sign * trivial + chance and score != perfect:
            return f"{name} {score:.4g} {where}, where a trivial one has {trivial:.4g}"
        before = float(self._few_scores(start, known, asked).mean())
        # A few steps may cost a little; half of the lead at the start is a training that went wrong.
        if sign * (score - trivial) < sign * (before - trivial) / 2:
            return f"{name} {score:.4g} {where}, which was {before:.4g} before the training"
        return ""

    def _learn(
        self, data: Data, candidate: Candidate, seed: int, share: float = 1.0, gentle: bool = False
    ) -> tuple[Divergence, History]:
        """Return a trained model of scaled data; a trial takes a share of the steps."""
        encoder = candidate.encoder
        if candidate.divergence == "pbdl" and encoder is None:
            return self._solve(data, seed).to(torch.get_default_dtype()), History()
        with seeded(seed, torch.device("cpu")):
            model = self._untrained(self._dims(data), candidate, self._count(data))
        if not any(p.requires_grad for p in model.parameters()):
            return model, History()
        plan = self._plan(candidate, data)
        steps = self.steps if self.steps is not None else plan.steps
        rate = self.learning_rate if self.learning_rate is not None else plan.learning_rate
        batch_size = self.batch_size if self.batch_size is not None else plan.batch_size
        history = fit(
            model,
            self._batches(data, batch_size, seed),
            plan.loss,
            steps=math.ceil(steps * share),
            batch_size=batch_size,
            learning_rate=GENTLER * rate if gentle else rate,
            clip=CLIP if gentle else None,
            checkpoint=self._checkpoint(candidate, share, gentle),
            seed=seed,
            device=self.device,
            progress=self.progress,
        )
        if history.stopped == "interrupted":  # a search over settings must not take half a model for a whole one
            raise KeyboardInterrupt
        return model.cpu(), history

    def _checkpoint(self, candidate: Candidate, share: float, gentle: bool) -> Path | None:
        """Return the file from which a training is resumed, if there is one."""
        return None

    def _untrained(self, dims: tuple[int, int], candidate: Candidate, n: int) -> Divergence:
        """Return a new model of scaled points for n rows of data."""
        given, encoder, out, second = candidate.divergence, candidate.encoder, dims[0], None
        if isinstance(encoder, nn.Module):
            encoder = copy.deepcopy(encoder).to("cpu", torch.get_default_dtype()).eval()
            with torch.no_grad():
                out = encoder(torch.zeros(2, dims[0])).shape[-1]
        elif encoder is not None:
            out = (None if isinstance(given, str) else given.dim) or self._embedding_features(dims)
            two_sided = encoder == "two-sided"
            encoder = MLP(dims[0], out, widths=(128, 128), activation=mlp_activation(n))
            second = MLP(dims[1], out, widths=(128, 128), activation=mlp_activation(n)) if two_sided else None
        what = f"divergence of {type(self).__name__}"
        if isinstance(given, str):
            if encoder is None:
                return make(given, out).to(torch.get_default_dtype())
            domain, model = CATALOGUE[given].domain, make(given, out, encoder, second)
        else:
            divergence = copy.deepcopy(given)
            if divergence.dim not in (None, out):
                must = f"of dim {out}, as {'the data' if encoder is None else 'what the encoder gives'}"
                raise ValueError(checks.message(what, must, divergence.dim))
            if encoder is None:
                return divergence.to(torch.get_default_dtype())
            domain, model = divergence.domain, Embedded(encoder, divergence, second)
        if domain != REAL:
            got = f"one whose domain is {domain!r}"
            raise ValueError(
                checks.message(f"{what} behind an encoder", "one on all points", got, "Give encoder=None.")
            )
        return model.to(torch.get_default_dtype())

    def _embedding_features(self, dims: tuple[int, int]) -> int:
        """Return the features of the embeddings of the encoders "mlp" and "two-sided"."""
        return EMBEDDING_FEATURES

    @abstractmethod
    def _plan(self, candidate: Candidate, data: Data) -> Plan:
        """Return the settings of a training."""

    @abstractmethod
    def _solve(self, data: Data, seed: int) -> Divergence:
        """Return the solution of PBDL's convex program."""

    @abstractmethod
    def _scores(self, model: Divergence, known: Data, asked: Data) -> Tensor:
        """Return the score of a model on each row of data; ``known`` is what it was trained on."""

    @abstractmethod
    def _trivial_score(self, asked: Data) -> float:
        """Return the mean score of the best model that does not look at the points."""


def _split(scalings: tuple[nn.Module, nn.Module], model: Divergence) -> tuple[nn.Module, Divergence, nn.Module | None]:
    """Return the scaling with the encoder of a model, if it has one, the divergence behind it, and a second encoder."""
    if not isinstance(model, Embedded):
        return scalings[0], model, None
    second = None if model.second is None else nn.Sequential(scalings[1], model.second)
    return nn.Sequential(scalings[0], model.encoder), model.divergence, second


def _distinct_rows(points: Tensor) -> Tensor:
    """Return the distinct rows of a matrix in the order of their first appearance."""
    _, first = np.unique(points.numpy(), axis=0, return_index=True)
    return points[torch.from_numpy(np.sort(first))]
