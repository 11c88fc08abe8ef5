"""The training loop."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import distributed, nn

from askew import checks, io
from askew._progress import progress_bar
from askew.divergences import Divergence
from askew.losses import LabelLoss, Loss
from askew.training.batches import Batches, make_batches
from askew.training.history import History
from askew.training.run import Callback, MakeOptimizer, Run, Settings
from askew.training.runtime import Objective, OneProcess, best_device, interruption, seeded
from askew.training.schedules import Schedule, make_schedule


def fit(
    model: Divergence,
    data: object,
    loss: Objective,
    *,
    epochs: int = 100,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    schedule: str | Schedule = "linear",
    warmup: float = 0.05,
    optimizer: MakeOptimizer | None = None,
    clip: float | None = None,
    calibrate: bool = True,
    validation: object | Callable[[Divergence], float] | None = None,
    validate_every: int = 1,
    patience: int | None = None,
    callback: Callback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 500,
    seed: int | None = None,
    device: str | torch.device | None = None,
    autocast: bool = False,
    compile: bool = False,
    progress: bool | None = None,
) -> History:
    """Train a divergence, and the encoder in front of it if it has one, in place.

    The loop is plain: Adam, a learning rate that rises over the first steps and then falls to 0, one batch at a time.
    The same seed gives the same weights, bit for bit, on the same machine. So does a run that was killed and resumed
    from its ``checkpoint`` (with a loader, if its order comes from torch's generators or the number of the epoch).

    Parameters
    ----------
    model
        A divergence; :class:`askew.Embedded` for an encoder that is learned with it.
    data
        A tuple of arrays or tensors with one row for each example, as the loss takes them: ``(points, labels)``,
        ``(first, second, targets)`` or ``(anchors, positives, negatives)``. Or a ``DataLoader`` of such batches.
    loss
        One of :mod:`askew.losses`, or any function of the model and the parts of a batch that returns a number.
    epochs
        Passes over the data.
    steps
        Number of steps, in place of ``epochs``.
    batch_size
        Rows of a batch when ``data`` is arrays: 1000 by default, 128 for losses of all pairs.
    learning_rate
        Its peak: 3e-2 for a divergence alone and 1e-3 with an encoder by default.
    schedule
        The learning rate over the run, as a share of its peak: ``"linear"`` (falls to 0 in a line), ``"cosine"`` (falls
        to 0 as a half cosine) or ``"constant"``, each after the warmup. Or a function ``schedule(step, steps)`` that
        returns the factor of a step, counted from 0; it must depend on nothing else, or a run cannot be resumed.
    warmup
        Share of the steps over which the learning rate rises in a named schedule; 0 for none.
    optimizer
        Makes an optimiser other than Adam from the list of parameters; its learning rates are the peaks.
    clip
        Largest norm of a gradient; larger ones are scaled down.
    calibrate
        Whether to set the scales of the model from the data first. Not for a model that is already trained.
    validation
        Data of the same kind, scored by minus its loss, or a function of the model that returns a score; larger is
        better. The model ends with the weights of the best score.
    validate_every
        Epochs between two validations.
    patience
        Stop after this many validations without a better score.
    callback
        A function ``callback(model, history)``, called after each epoch and its validation; the run stops if it returns
        True. The model is in evaluation mode, gradients are off, and the random state is restored afterwards. Numbers
        that it adds to the row of the epoch, ``history.rows[-1]``, become part of the history and of the checkpoint. In
        a resumed run the history has all rows, and the callback is called for the epochs that end after the checkpoint.
        Several processes all call it, and stop if it returns True in any of them.
    checkpoint
        A file. The state of the run is written there every ``checkpoint_every`` steps and at the end; if the file
        exists, the run is resumed from it. A file of other settings or data is refused. Weights that are NaN or
        infinite are not written: the previous file is kept.
    checkpoint_every
        Steps between two checkpoints.
    seed
        Makes the run repeatable; torch's global random state is restored afterwards. Do not train with seeds in several
        threads at a time: they share that state.
    device
        Where to train: by default on a GPU or another accelerator if there is one. The model is put back where it was.
    autocast
        Whether encoders compute in bfloat16.
    compile
        Whether to compile a step of the model and the loss with ``torch.compile``, in a single process. It pays for
        ``"nbd"`` from about 2,500 steps on and for ``"nbd-paper"`` from 6,000 (batches of 1000, one thread, by
        ``benchmarks/compiling.py``), and never for ``"mahalanobis"``. Values agree to rounding; points are not checked.
    progress
        Whether to show a progress bar; by default if the standard error is a terminal.

    Returns
    -------
    History
        The course of the run. Ctrl-C ends it after the current step; the model keeps what it has learned.

    Raises
    ------
    TrainingDivergedError
        If the loss or the weights become NaN or infinite, or the loss far larger than at the start. The model has the
        last good weights.
    RuntimeError
        If one of several processes that train together no longer responds.

    Examples
    --------
    >>> import askew
    >>> x, y = torch.rand(2, 500, 3) + 0.1
    >>> model = askew.NeuralBregman(3)
    >>> history = askew.fit(model, (x, y, askew.make("kl", 3)(x, y)), askew.losses.Regression(), epochs=20, seed=0)
    >>> history["loss"][-1] < history["loss"][0]
    True

    A constant learning rate, and a callback that measures an error after each epoch and stops when it is small:

    >>> def measure(model, history):
    ...     error = float((model(x, y) - askew.make("kl", 3)(x, y)).abs().mean())
    ...     history.rows[-1]["error"] = error
    ...     return error < 0.1
    >>> model = askew.NeuralBregman(3)
    >>> history = askew.fit(model, (x, y, askew.make("kl", 3)(x, y)), askew.losses.Regression(), epochs=200, seed=0,
    ...                     schedule="constant", warmup=0, callback=measure)
    >>> history.stopped, history["error"][-1] < 0.1, len(history) < 200
    ('callback', True, True)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(checks.message("model of fit", "an askew divergence", type(model).__name__))
    if not callable(loss):
        raise TypeError(checks.message("loss of fit", "one of askew.losses or a function", type(loss).__name__))
    if callback is not None and not callable(callback):
        must = "a function of the model and the history"
        raise TypeError(checks.message("callback of fit", must, type(callback).__name__))
    if not 0 <= warmup <= 1:
        raise ValueError(checks.message("warmup of fit", "a share of the steps, between 0 and 1", warmup))
    if patience is not None and validation is None:
        hint = "Give validation= data or a function."
        raise ValueError(checks.message("patience of fit", "None where there is no validation", patience, hint))
    if batch_size is None:
        batch_size = 128 if isinstance(loss, LabelLoss) else 1000
    checks.check_size(batch_size, "batch_size of fit")
    if learning_rate is None:
        rates = (getattr(part, "default_learning_rate", None) for part in model.modules())
        learning_rate = min((rate for rate in rates if isinstance(rate, float)), default=3e-2)
    every = checks.check_size(checkpoint_every, "checkpoint_every of fit")
    rate = make_schedule(schedule, warmup)
    seed = None if seed is None else operator.index(seed)
    place = best_device() if device is None else torch.device(device)
    path = None if checkpoint is None else Path(checkpoint)
    processes = _join_processes(place)
    if compile and processes.size > 1:
        raise ValueError(checks.message("compile of fit", "False where several processes train together", True))
    names = loss.parts if isinstance(loss, Loss) else None
    source = make_batches(data, names, batch_size, place)
    watched: Batches | Callable[[Divergence], float] | None = validation if callable(validation) else None
    if validation is not None and watched is None:
        watched = make_batches(validation, names, batch_size, place)
    # Only a checkpoint or another process can be of other data; nobody else needs a digest of it.
    compared = path is not None or processes.size > 1
    settings = Settings(
        steps=_number_of_steps(source.per_epoch, epochs, steps),
        batch_size=batch_size,
        learning_rate=checks.check_positive(learning_rate, "learning_rate of fit"),
        warmup=warmup,
        clip=None if clip is None else checks.check_positive(clip, "clip of fit"),
        validate_every=checks.check_size(validate_every, "validate_every of fit"),
        patience=None if patience is None else checks.check_size(patience, "patience of fit"),
        # The seed of the main process orders the data; those of the others are for their own random numbers.
        seed=processes.all_gather(seed)[0],
        autocast=autocast,
        data=source.fingerprint() if compared else "",
        loss=repr(loss) if isinstance(loss, nn.Module) else _name(loss),
        optimizer="Adam" if optimizer is None else _name(optimizer),
        validation=watched.fingerprint() if compared and isinstance(watched, Batches) else str(watched is not None),
        schedule=schedule if isinstance(schedule, str) else _name(schedule),
    )
    begun = path is not None and path.exists()
    others = {"checkpoint_every": every, "calibrate": bool(calibrate), "callback": callback is not None}
    file = path and ("a file that can be read" if begun else "no file yet")
    processes.check_same({**asdict(settings), **others, "checkpoint": file}, {"model": model, "loss": loss})

    with contextlib.ExitStack() as stack:
        stack.enter_context(seeded(seed, place))
        for module in (model, loss):
            if isinstance(module, nn.Module):
                stack.callback(module.to, checks.device_of(module))
                module.to(place)
        run = Run(model, loss, source, settings, watched, optimizer, rate, callback, processes, place, compile)
        if path is not None and begun:
            run.load(path)
            processes.check_same({"the step of the checkpoint": run.counters.step})
        elif calibrate:
            run.calibrate()
        if run.finished:
            run.close()
            return run.history
        if path is not None and processes.is_main:
            io.writable_folder(path.parent, "the folder of checkpoint")  # now, not after the first steps
        pressed = stack.enter_context(interruption())
        shown = progress if processes.is_main else False
        show = stack.enter_context(progress_bar(shown, settings.steps, "training", run.counters.step, "loss"))
        stack.callback(model.eval)
        for batch in run.batches():
            value = run.take_step(batch)
            show(run.counters.step, value)
            if processes.any(pressed()):
                break
            if path is not None and run.counters.step % every == 0 and not run.finished:
                run.save(path)
        if path is not None:  # before the best weights replace the last ones, from which the run can be resumed
            run.save(path)
        run.close()
    return run.history


def _join_processes(device: torch.device) -> OneProcess:
    """Return the processes that ``torch.distributed`` has started, if there are several."""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        from askew.training.distributed import ProcessGroup

        return ProcessGroup(device)
    return OneProcess()


def _name(function: object) -> str:
    """Return the name by which a checkpoint tells one function from another."""
    return getattr(function, "__qualname__", type(function).__name__)


def _number_of_steps(per_epoch: int | None, epochs: int, steps: int | None) -> int:
    if steps is not None:
        return checks.check_size(steps, "steps of fit")
    checks.check_size(epochs, "epochs of fit")
    if per_epoch is None:
        hint = "Its length is not known, so epochs cannot be counted in advance."
        raise ValueError(checks.message("steps of fit", "given for a loader without a length", None, hint))
    return epochs * per_epoch
