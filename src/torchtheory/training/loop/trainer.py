r"""Training: empirical risk minimization by mini-batch gradient methods.

$$
\theta_{t+1} = \theta_t - \eta_t\, g_t, \qquad
g_t \approx \nabla_\theta \frac1m \sum_{i=1}^m \ell(\Phi(x_i, \theta_t), y_i)
$$

Sources: notes "Deep Learning", sections 2.2 and 8; The Modern Mathematics of Deep Learning,
preface and section 1.1.2; slides, "Objective".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchtheory.core.checks import described, module_with_values, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.core.locks import sole_writer
from torchtheory.models.model import global_randomness_kept, switches_kept
from torchtheory.models.problem import Loss, Task
from torchtheory.models.samples import Data
from torchtheory.training.loop.batches import BatchSource, OpenData
from torchtheory.training.loop.checkpoint import callable_name
from torchtheory.training.loop.early_stopping import EarlyStopping
from torchtheory.training.loop.history import History
from torchtheory.training.loop.seeds import derived_seed
from torchtheory.training.loop.state import Augment, BatchLoss, Callback, Training
from torchtheory.training.losses.distillation import Distillation
from torchtheory.training.losses.objective import training_criterion
from torchtheory.training.optimizers.named import MakeOptimizer, make_optimizer

MakeSchedule = Callable[[Optimizer], LRScheduler]


def fit(
    model: nn.Module,
    train: Data,
    *,
    validation: Data | float | None = None,
    epochs: int = 10,
    batch_size: int | None = None,
    optimizer: str | MakeOptimizer = "adam",
    learning_rate: float | None = None,
    weight_decay: float = 0.0,
    schedule: MakeSchedule | None = None,
    schedule_each: Literal["epoch", "step"] = "epoch",
    loss: Loss | None = None,
    task: Task | None = None,
    label_smoothing: float | Tensor = 0.0,
    augment: Augment | None = None,
    batch_loss: BatchLoss | None = None,
    distillation: Distillation | None = None,
    patience: int | None = None,
    min_improvement: float = 0.0,
    restore_best: bool = True,
    max_gradient_norm: float | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 30.0,
    callbacks: Sequence[Callback] = (),
    memory: int = 2**31,
) -> History:
    r"""Train a model in place by mini-batch gradient steps on the mean loss.

    Args:
        model: any `nn.Module` that maps a batch to one tensor. Its parameters with
            `requires_grad` are trained; every sub-module is in training mode during the steps
            and in evaluation mode for validation, and has its own mode again afterwards.
        train: `(x, y)` of tensors or arrays, a `Dataset` or a `DataLoader` of such pairs.
            Every epoch visits every sample once, in a new random order (whatever the loader's).
            What fits in `memory` is read once (then a data set's random transforms are drawn
            once: use `augment`), the rest batch by batch; an `IterableDataset` is always
            read as it comes.
        validation: data, or the fraction of `train` to hold out at random.
        epochs: passes over the data.
        batch_size: 64, or the loader's, unless given. The last batch of an epoch may be smaller.
        optimizer: a name (`sgd`, `momentum`, `nesterov`, `adagrad`, `rmsprop`, `adam`,
            `adamw`), or `parameters -> torch.optim.Optimizer`.
        learning_rate: for a named optimizer; its usual one unless given.
        weight_decay: $\mu$ for a named optimizer. All but `adamw` step on
            $\ell + \frac\mu2\|\theta\|^2$ over all trained parameters, biases included;
            `adamw` shrinks by $1 - \eta\mu$ instead.
        schedule: `optimizer -> LRScheduler`, stepped each epoch or each step.
        loss: mean over the batch of `loss(outputs, targets)`; the task's usual one unless given.
            It may have terms of the batch as a whole, such as class weights or DARC1; the
            history's losses are then means over batches.
        task: `regression`, `binary` or `multiclass`; inferred unless given.
        label_smoothing: $\epsilon$, or a confusion matrix with distributions as columns.
        augment: `(x, generator) -> x`, applied to each training batch.
        batch_loss: `(model, x, y, loss, generator) -> (loss, outputs)` in place of the loss at the
            batch itself, such as the loss at adversarial inputs
            (`robustness.adversarial_training`); `loss` is the one asked for, of outputs and
            targets, and errors are counted on the outputs.
        distillation: a teacher to learn from.
        patience: stop after so many epochs without a better validation loss, and (unless
            `restore_best` is false) go back to the weights of the best epoch.
        min_improvement: what a validation loss must gain to count as better.
        max_gradient_norm: gradients longer than this are scaled down to it.
        seed: everything random follows from it (order, augmentation, dropout, the held-out
            part); the caller's generators do not notice.
        checkpoint: a file to keep the state in. If it exists, training goes on from there, and
            ends with the same bits as if it had never been interrupted (on the same machine with
            the same number of threads); a checkpoint of another training is refused, and so is one
            that another process is at work on. It may be continued with more `epochs` unless
            there is a `schedule`.
        checkpoint_every: seconds between two saves; 0 saves after every step.
        callbacks: called as `callback(model, history)` after each epoch, the model in
            evaluation mode; one that returns True ends the training.
        memory: bytes up to which a data set is held in memory.

    Returns:
        The `History` of the epochs.

    Raises:
        Diverged: when the loss or the weights stop being finite, with epoch and step.

    Besides the steps it costs one copy of the weights (to go back to when training diverges), and
    a second one with `patience`.

    >>> x = torch.linspace(-1, 1, 64).reshape(-1, 1)
    >>> net = nn.Linear(1, 1)
    >>> history = fit(net, (x, 3 * x + 1), epochs=200, optimizer="sgd", learning_rate=0.5)
    >>> [round(p.item(), 3) for p in (net.weight, net.bias)]
    [3.0, 1.0]
    >>> history.train_losses[-1] < 1e-9
    True
    """
    _check_settings(epochs, patience, validation, max_gradient_norm, checkpoint_every, seed)
    if schedule_each not in ("epoch", "step"):
        raise InvalidInput(f"schedule_each must be epoch or step, not {schedule_each!r}")
    parameters = _trained_parameters(model)
    data = OpenData(
        model,
        train,
        validation,
        loss=loss,
        task=task,
        batch_size=batch_size,
        seed=seed,
        memory=memory,
    )
    _refuse_single_sample_batches(model, data.train, data.batch_size)
    criterion = training_criterion(
        data.problem,
        usual_loss=loss is None,
        label_smoothing=label_smoothing,
        distillation=distillation,
    )
    stepper = make_optimizer(parameters, optimizer, learning_rate, weight_decay)
    scheduler = None if schedule is None else schedule(stepper)
    if schedule is not None and not isinstance(scheduler, LRScheduler):
        raise InvalidType(
            f"schedule must make a torch.optim.lr_scheduler.LRScheduler, not {described(scheduler)}"
        )
    training = Training(
        model,
        data,
        criterion,
        stepper,
        scheduler,
        seed=seed,
        epochs=epochs,
        each_step=schedule_each == "step",
        augment=augment,
        batch_loss=batch_loss,
        distillation=distillation,
        stopping=None if patience is None else EarlyStopping(patience, min_improvement),
        restore_best=restore_best,
        max_gradient_norm=max_gradient_norm,
        callbacks=callbacks,
    )
    if checkpoint is not None:
        configuration = {
            "loss": "usual" if loss is None else callable_name(loss),
            "label smoothing": str(
                label_smoothing.tolist() if isinstance(label_smoothing, Tensor) else label_smoothing
            ),
            "schedule": f"{type(scheduler).__name__} each {schedule_each}" if scheduler else "none",
        }
        training.keep(Path(checkpoint), checkpoint_every, configuration)
    alone = nullcontext() if checkpoint is None else sole_writer(Path(checkpoint))
    with (
        alone,
        torch.enable_grad(),
        global_randomness_kept(),
        switches_kept(),
        _modes_kept(model),
    ):
        return training.run()


# --------------------------------------------------------------------------------- refused input


def _check_settings(
    epochs: int,
    patience: int | None,
    validation: object,
    max_gradient_norm: float | None,
    checkpoint_every: float,
    seed: int,
) -> None:
    whole_number(epochs, "epochs", least=1)
    if patience is not None and validation is None:
        raise InvalidInput("patience needs validation data: what else should stop improving?")
    if max_gradient_norm is not None and not max_gradient_norm > 0:
        raise InvalidInput(f"max_gradient_norm must be positive, not {max_gradient_norm!r}")
    if not checkpoint_every >= 0:
        raise InvalidInput(f"checkpoint_every is a number of seconds >= 0, not {checkpoint_every}")
    derived_seed(seed, "check")


def _trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    module_with_values(model)
    everything = list(model.parameters())
    if not everything:
        raise InvalidInput("the model has no parameters: there is nothing to train")
    trained = [p for p in everything if p.requires_grad]
    if not trained:
        raise InvalidInput("every parameter of the model is frozen: set requires_grad on some")
    return trained


def _refuse_single_sample_batches(model: nn.Module, source: BatchSource, size: int) -> None:
    if source.samples is None or not any(isinstance(m, nn.BatchNorm1d) for m in model.modules()):
        return
    if 1 in (size, source.samples) or source.samples % size == 1:
        raise InvalidInput(
            f"with {source.samples} samples and batch_size {size} a batch of one sample is left, "
            "and batch normalization needs at least two: choose another batch_size"
        )


@contextmanager
def _modes_kept(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
