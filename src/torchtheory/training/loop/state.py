"""The loop of a training: its state between two steps, and what moves it on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from torchtheory.core.errors import InvalidInput, ModelRaised, NotConverged, UnsupportedModel
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.core.progress import track
from torchtheory.models.model import evaluating, evaluation_mode, one_output
from torchtheory.models.problem import Loss
from torchtheory.training.loop.batches import BatchSource, InMemory, OpenData
from torchtheory.training.loop.checkpoint import (
    callable_name,
    copy_state,
    data_signature,
    load_checkpoint,
    model_signature,
    model_state,
    restore_state,
    save_checkpoint,
    weights_signature,
)
from torchtheory.training.loop.early_stopping import EarlyStopping
from torchtheory.training.loop.history import Epoch, History
from torchtheory.training.loop.seeds import (
    derived_generator,
    derived_seed,
    global_random_state,
    seed_global_generators,
    set_global_random_state,
)
from torchtheory.training.losses.distillation import Distillation, teacher_outputs
from torchtheory.training.losses.objective import Criterion, check_teacher, count_errors

Augment = Callable[[Tensor, torch.Generator], Tensor]
Callback = Callable[[nn.Module, History], object]
BatchLoss = Callable[[nn.Module, Tensor, Tensor, Loss, torch.Generator], tuple[Tensor, Tensor]]
"""Model, inputs, targets, the mean loss of `(outputs, targets)` and a generator, to the loss that a
step goes down and the outputs by which errors are counted."""

# Losses are read, and found finite or not, once in so many steps: reading each would make a GPU
# wait, and costs a tenth of a small network's step on the CPU as well.
STEPS_BETWEEN_CHECKS = 256


class Diverged(NotConverged):
    """The loss or the weights stopped being finite.

    The model has been put back to the last weights known to be finite, those of the last check:
    the start of the epoch, or at most 256 steps before.

    Attributes:
        epoch, step: where it happened, both counted from 1 (the step within its epoch).
    """

    def __init__(self, what: str, epoch: int, step: int, back_to: tuple[int, int]) -> None:
        at = f"step {back_to[1]} of epoch {back_to[0]}" if back_to[1] else "the start of the epoch"
        super().__init__(
            f"{what} at step {step} of epoch {epoch}; lower the learning rate, clip gradients "
            f"(max_gradient_norm) or scale the inputs; the model has its weights of {at}"
        )
        self.epoch, self.step = epoch, step


class Training:
    """The state of a training between two steps, and what moves it on."""

    def __init__(
        self,
        model: nn.Module,
        data: OpenData,
        criterion: Criterion,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        *,
        seed: int,
        epochs: int,
        each_step: bool,
        augment: Augment | None,
        distillation: Distillation | None,
        stopping: EarlyStopping | None,
        restore_best: bool,
        max_gradient_norm: float | None,
        callbacks: Sequence[Callback],
        batch_loss: BatchLoss | None = None,
    ) -> None:
        self.model, self.data, self.criterion = model, data, criterion
        self.optimizer, self.scheduler, self.each_step = optimizer, scheduler, each_step
        self.seed, self.epochs = seed, epochs
        self.augment, self.distillation = augment, distillation
        self.stopping, self.restore_best = stopping, restore_best
        self.max_gradient_norm, self.callbacks = max_gradient_norm, callbacks
        self.batch_loss = batch_loss
        self.trained = [p for group in optimizer.param_groups for p in group["params"]]
        self.teacher_logits = self._teacher_table()
        self.path: Path | None = None

        # where it stands: the epoch (from 1), steps done in it, and what they gave so far
        self.epoch, self.step = 1, 0
        self.losses: list[float] = []
        self.sizes: list[int] = []
        self.errors = 0
        self.elapsed = 0.0
        self.unread: list[tuple[Tensor, Tensor, Tensor]] = []
        self.generator = torch.Generator()
        self.history = History()
        self.parameters, self.has_buffers = model_state(model), any(True for _ in model.buffers())
        self.safe, self.safe_at = copy_state(model), (1, 0)
        self.best: dict[str, Tensor] = {}

    # ------------------------------------------------------------------------------- running

    def run(self) -> History:
        self._resume()
        first = self.epoch
        if not self._ended():
            for _ in track(range(first, self.epochs + 1), "training"):
                self._run_epoch()
                if self._ended():
                    break
                self._save_if_due()
        if not self.history.stopped:
            self.history.stopped = "all epochs done"
        self._save()
        self.history.kept_epoch = len(self.history)
        if self.stopping is not None and self.restore_best and self.stopping.best_check:
            restore_state(self.model, self.best)
            self.history.kept_epoch = self.stopping.best_check
        self.optimizer.zero_grad()
        return self.history

    def _ended(self) -> bool:
        return bool(self.history.stopped) or self.epoch > self.epochs

    def _run_epoch(self) -> None:
        model, optimizer, criterion = self.model, self.optimizer, self.criterion
        augment, table, limit = self.augment, self.teacher_logits, self.max_gradient_norm
        batch_loss = self.batch_loss
        started = time.perf_counter() - self.elapsed
        model.train()
        if self.step == 0:
            seed_global_generators(derived_seed(self.seed, "noise", self.epoch))
            self.generator = derived_generator(self.seed, "augmentation", self.epoch)
        for x, y, index in self._batches():
            if augment is not None:
                x = augment(x, self.generator)
            logits = None
            if table is not None and index is not None:
                logits = table.index_select(0, index)
            elif self.distillation is not None:
                logits = teacher_outputs(self.distillation.teacher, x).to(self.trained[0])
            optimizer.zero_grad()
            if batch_loss is None:
                with ForeignCode("the model", ModelRaised):
                    outputs = one_output(model(x))
                loss = criterion(outputs, y, logits)
            else:
                on_batch = partial(_on_batch, criterion, logits)
                loss, outputs = batch_loss(model, x, y, on_batch, self.generator)
            if not loss.requires_grad:
                raise UnsupportedModel(
                    "no gradient leads from the loss to the model's parameters: the model detaches "
                    "its outputs, or runs under no_grad"
                )
            torch.autograd.backward(loss)
            if limit is not None:
                nn.utils.clip_grad_norm_(self.trained, limit)
            optimizer.step()
            if self.each_step and self.scheduler is not None:
                self.scheduler.step()
            self.step += 1
            self.unread.append((loss.detach(), outputs.detach(), y))
            if len(self.unread) >= STEPS_BETWEEN_CHECKS:
                self._check()
            if self.path is not None and time.monotonic() >= self.next_save:
                self.elapsed = time.perf_counter() - started
                self._save()
        self._check()
        self._end_epoch(started)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        source, size = self.data.train, self.data.batch_size
        batches = source.batches(size, self.epoch, self.step)
        steps = None if source.samples is None else math.ceil(source.samples / size)
        if steps is None or steps > STEPS_BETWEEN_CHECKS:  # an epoch worth a bar of its own
            left = None if steps is None else steps - self.step
            return track(batches, f"epoch {self.epoch}", total=left)
        return batches

    def _end_epoch(self, started: float) -> None:
        samples = sum(self.sizes)
        classified = self.data.problem.is_classification
        rate = float(self.optimizer.param_groups[0]["lr"])
        train_loss = math.fsum(a * b for a, b in zip(self.losses, self.sizes, strict=True))
        validation_loss, validation_error = self._validate()
        self.history.epochs.append(
            Epoch(
                self.epoch,
                train_loss / samples,
                self.errors / samples if classified else None,
                validation_loss,
                validation_error,
                rate,
                time.perf_counter() - started,
            )
        )
        if self.scheduler is not None and not self.each_step:
            if isinstance(self.scheduler, ReduceLROnPlateau):
                watched = self.history.epochs[-1]
                self.scheduler.step(
                    watched.train_loss if validation_loss is None else validation_loss
                )
            else:
                self.scheduler.step()
        if self.stopping is not None and validation_loss is not None:
            if self.stopping.update(validation_loss):
                self.history.stopped = (
                    f"no better validation loss in {self.stopping.patience} epochs"
                )
            if self.stopping.improved and self.restore_best:
                self.best = copy_state(self.model)
        self.epoch += 1
        self.step, self.errors, self.elapsed = 0, 0, 0.0
        self.losses, self.sizes = [], []
        self.safe_at = (self.epoch, 0)
        if self.callbacks:
            with evaluating(self.model):
                asked = [callback(self.model, self.history) is True for callback in self.callbacks]
            if any(asked) and not self.history.stopped:
                self.history.stopped = "a callback asked to stop"

    def _validate(self) -> tuple[float | None, float | None]:
        if self.data.validation is None:
            return None, None
        problem = self.data.problem
        losses, errors, samples = [], [], 0
        with torch.no_grad(), evaluation_mode(self.model):
            for x, y, _ in self.data.validation.pass_through():
                outputs = self.model(x)
                losses.append(problem.loss_as_returned(outputs, y).double() * len(x))
                wrong = count_errors(problem.task, outputs, y)
                if wrong is not None:
                    errors.append(wrong)
                samples += len(x)
        mean = float(torch.stack(losses).sum()) / samples
        return mean, int(torch.stack(errors).sum()) / samples if errors else None

    @torch.no_grad()
    def _check(self) -> None:
        """Read the losses of the last steps; keep the weights if all is finite, else go back."""
        if not self.unread:
            return
        losses = torch.stack([loss for loss, _, _ in self.unread]).double()
        wrong = count_errors(
            self.data.problem.task,
            torch.cat([outputs for _, outputs, _ in self.unread]),
            torch.cat([y for _, _, y in self.unread]),
        )
        largest = nn.utils.get_total_norm(self.trained, math.inf)
        values = losses.tolist()
        for i, value in enumerate(values):
            if not math.isfinite(value):
                self._diverge(f"the loss is {value}", self.step - len(values) + i + 1)
        if not math.isfinite(float(largest)):
            self._diverge("the weights are no longer finite", self.step)
        self.losses += values
        self.sizes += [len(y) for _, _, y in self.unread]
        self.errors += 0 if wrong is None else int(wrong)
        self.unread = []
        # the parameters are the same tensors all along; buffers may be replaced by new ones
        state = self.parameters if not self.has_buffers else model_state(self.model)
        for name, tensor in state.items():
            self.safe[name].copy_(tensor)
        self.safe_at = (self.epoch, self.step)

    def _diverge(self, what: str, step: int) -> None:
        restore_state(self.model, self.safe)
        self.optimizer.zero_grad()
        raise Diverged(what, self.epoch, step, self.safe_at)

    def _teacher_table(self) -> Tensor | None:
        """The teacher's logits on all training samples, where they do not change."""
        if self.distillation is None:
            return None
        teacher, source = self.distillation.teacher, self.data.train
        if teacher is self.model:
            raise InvalidInput("the teacher and the student are the same module; copy it first")
        if isinstance(source, InMemory) and self.augment is None:
            logits = teacher_outputs(teacher, source.data.x).to(self.trained[0])
            check_teacher(self.data.problem, logits)
            return logits
        check_teacher(self.data.problem, teacher_outputs(teacher, self.data.problem.train.x[:2]))
        return None

    # --------------------------------------------------------------------------- checkpoints

    def keep(self, path: Path, every: float, configuration: dict[str, str]) -> None:
        """Keep the state in a file, and recognize it by the configuration and by all there is."""
        if path.is_dir():
            raise InvalidInput(f"the checkpoint must be a file, and {path} is a directory")
        self.path, self.every = path, every
        self.next_save = time.monotonic() + every
        self.configuration = {
            **configuration,
            "the model": model_signature(self.model),
            "the training data": _signature(self.data.train),
            "the validation data": _signature(self.data.validation),
            "the task": self.data.problem.task,
            "batch_size": str(self.data.batch_size),
            "seed": str(self.seed),
            "the optimizer": type(self.optimizer).__name__,
            **_settings(self.optimizer),
            "augment": "none" if self.augment is None else callable_name(self.augment),
            "max_gradient_norm": str(self.max_gradient_norm),
            "patience": "none"
            if self.stopping is None
            else f"{self.stopping.patience}, {self.stopping.min_improvement}, {self.restore_best}",
            "distillation": "none"
            if self.distillation is None
            else f"{self.distillation.temperature}, {self.distillation.weight}, "
            f"teacher {weights_signature(self.distillation.teacher)}",
        }
        if self.batch_loss is not None:
            self.configuration["batch_loss"] = callable_name(self.batch_loss)
        if self.scheduler is not None:
            self.configuration["epochs"] = str(self.epochs)

    def _save_if_due(self) -> None:
        if self.path is not None and time.monotonic() >= self.next_save:
            self._save()

    def _save(self) -> None:
        if self.path is None:
            return
        self._check()
        stopping = self.stopping
        save_checkpoint(
            self.path,
            self.configuration,
            {
                "model": model_state(self.model),
                "optimizer": self.optimizer.state_dict(),
                "schedule": None if self.scheduler is None else self.scheduler.state_dict(),
                "random": global_random_state(),
                "augmentation": self.generator.get_state(),
                "epoch": self.epoch,
                "step": self.step,
                "losses": self.losses,
                "sizes": self.sizes,
                "errors": self.errors,
                "elapsed": self.elapsed,
                "history": self.history.to_json(),
                "best": self.best,
                "stopping": None
                if stopping is None
                else [stopping.best, stopping.best_check, stopping.checks],
            },
        )
        self.next_save = time.monotonic() + self.every

    def _resume(self) -> None:
        state = None if self.path is None else load_checkpoint(self.path, self.configuration)
        if state is None:
            return
        history = History.from_json(state["history"])
        if len(history) > self.epochs or (len(history) == self.epochs and state["step"]):
            raise InvalidInput(
                f"the checkpoint {self.path} has done {len(history)} epochs already, and epochs "
                f"is {self.epochs}"
            )
        if history.stopped == "all epochs done" and len(history) < self.epochs:
            history.stopped = ""
        restore_state(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["schedule"])
        set_global_random_state(state["random"])
        self.generator.set_state(state["augmentation"])
        self.epoch, self.step = state["epoch"], state["step"]
        self.losses, self.sizes, self.errors = state["losses"], state["sizes"], state["errors"]
        self.elapsed, self.history, self.best = state["elapsed"], history, state["best"]
        if self.stopping is not None:
            self.stopping.best, self.stopping.best_check, self.stopping.checks = state["stopping"]
        self.safe, self.safe_at = copy_state(self.model), (self.epoch, self.step)


def _on_batch(criterion: Criterion, logits: Tensor | None, outputs: Tensor, y: Tensor) -> Tensor:
    return criterion(outputs, y, logits)


def _signature(source: BatchSource | None) -> str:
    if source is None:
        return "none"
    if isinstance(source, InMemory):
        return data_signature(source.data)
    return "a stream" if source.samples is None else f"{source.samples} samples of a data set"


def _settings(optimizer: Optimizer) -> dict[str, str]:
    """The settings of an optimizer by name, group by group."""
    return {
        f"{name} of the optimizer" + (f" (group {i})" if i else ""): str(value)
        for i, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if name != "params"
    }
