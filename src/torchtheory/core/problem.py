r"""A problem: a model, the data it was trained and tested on, and its loss.

Everything an audit finding asks is answered here: outputs in chunks, the loss as a pure function
of the parameters, predictions and margins. The model is never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    TorchTheoryError,
    UnsupportedModel,
)
from torchtheory.core.model import (
    Initial,
    Parameters,
    PureFunction,
    global_randomness_kept,
    parameters_from,
)
from torchtheory.core.samples import Data, Samples, collect

Task = Literal["regression", "binary", "multiclass"]
TASKS: tuple[Task, ...] = ("regression", "binary", "multiclass")
Loss = Callable[[Tensor, Tensor], Tensor]


class Problem:
    r"""A model with its data.

    Args:
        model: any ``nn.Module`` that maps a batch of inputs to one tensor.
        train: ``(x, y)`` of tensors or arrays, a ``Dataset`` or a ``DataLoader`` of such pairs.
        test: the same, kept apart from training; None if there is none.
        loss: ``loss(outputs, targets)`` -> the *mean* over the batch; the task's usual one unless
            given (mean squared error, logistic loss, cross-entropy).
        task: ``regression``, ``binary`` (one output, the logit of class 1) or ``multiclass`` (one
            logit a class); inferred from targets and outputs unless given.
        initial: where training began, if known: a state dict, parameters by name, or a module of
            the same shape.
        limit: most samples kept of either set; beyond it a random subset is used and noted.
        chunk: samples evaluated at once.
        seed: of the sub-sampling.

    Targets are stored as the loss wants them: class indices for ``multiclass``, 0.0/1.0 for
    ``binary`` (labels -1/+1 are converted), floats of the outputs' shape for ``regression``.

    >>> net = nn.Linear(2, 3)
    >>> p = Problem(net, (torch.randn(10, 2), torch.arange(10) % 3))
    >>> p.task, tuple(p.outputs(p.train).shape)
    ('multiclass', (10, 3))
    """

    def __init__(
        self,
        model: nn.Module,
        train: Data,
        test: Data | None = None,
        loss: Loss | None = None,
        task: Task | None = None,
        *,
        initial: Initial | None = None,
        limit: int = 20_000,
        chunk: int = 512,
        seed: int = 0,
    ) -> None:
        if task is not None and task not in TASKS:
            raise InvalidInput(f"task must be one of {', '.join(TASKS)}, not {task!r}")
        if limit < 1 or chunk < 1:
            raise InvalidInput("limit and chunk must be at least 1")
        self.function = PureFunction(model)
        self.function.refuse_non_finite_parameters()
        self.model = model
        self.initial = None if initial is None else parameters_from(model, initial)
        self.chunk = chunk
        raw = self._on_model(collect(train, "train", limit=limit, seed=seed))
        self._input_shape = raw.x.shape[1:]
        other = None if test is None else collect(test, "test", limit=limit, seed=seed)
        if other is not None:  # before the model complains of a shape in its own words
            self._refuse_other_shape(other, "test")
        self._probe = self._first_outputs(raw)
        self.task: Task = task or infer_task(self._probe, raw.y)
        self.classes = {"multiclass": self._probe.shape[-1], "binary": 2}.get(self.task)
        self.train = self.prepare(raw, "train")
        self.test = None if other is None else self.prepare(other, "test")
        self.loss: Loss = loss or _USUAL_LOSS[self.task]
        if loss is not None:
            self._refuse_unusable_loss(self._probe)

    @property
    def parameters(self) -> Parameters:
        """The parameters by name, detached, sharing memory with the model."""
        return self.function.parameters

    @property
    def is_classification(self) -> bool:
        return self.task != "regression"

    @cached_property
    def deterministic(self) -> bool:
        """Whether the same input gives the same output twice, bit for bit."""
        x = self.train.x[: min(8, len(self.train))]
        with torch.no_grad(), global_randomness_kept():
            first = self.function(self.parameters, x)
            return torch.equal(first, self.function(self.parameters, x))

    def in_precision(self, dtype: torch.dtype) -> Problem:
        """The same problem computed in another precision; the model itself keeps its own.

        Raises:
            UnsupportedModel: if the model's code fixes a precision of its own.
        """
        other = copy.copy(self)
        other.function = self.function.in_precision(dtype)
        other.train = self.train.in_precision(dtype)
        other.test = None if self.test is None else self.test.in_precision(dtype)
        other._probe = other._first_outputs(other.train)
        try:
            other.loss(other._probe, other.train.y[: len(other._probe)])
        except Exception as error:
            raise UnsupportedModel(f"the loss cannot be computed in {dtype}") from error
        return other

    def in_double_if_possible(self) -> Problem:
        """The same problem in float64, or as it is where the model's code fixes a precision."""
        try:
            return self.in_precision(torch.float64)
        except UnsupportedModel:
            return self

    def outputs(self, samples: Samples) -> Tensor:
        """Outputs ``[n, ...]`` of the model, evaluated in chunks without gradients."""
        with torch.no_grad(), global_randomness_kept():
            parts = [self._evaluate(x) for x, _ in samples.chunks(self.chunk)]
        return torch.cat(parts)

    def risk(self, samples: Samples) -> float:
        """Mean loss over the samples."""
        total = 0.0
        with torch.no_grad(), global_randomness_kept():
            for x, y in samples.chunks(self.chunk):
                total += float(self.loss(self._evaluate(x), y)) * len(x)
        return total / len(samples)

    def objective(self, samples: Samples) -> Callable[[Parameters], Tensor]:
        r"""The mean loss as a function of the parameters, :math:`\theta \mapsto L(\theta)`.

        It builds one graph over all ``samples``: chunk them for large data.
        """

        def mean_loss(parameters: Parameters) -> Tensor:
            return self.loss(self.function(parameters, samples.x), samples.y).reshape(())

        return mean_loss

    def errors(self, samples: Samples) -> Tensor:
        """Which samples are misclassified, ``[n]`` of bool."""
        return self.margins(samples) <= 0

    def margins(self, samples: Samples) -> Tensor:
        r"""Classification margins ``[n]``.

        :math:`f_y(x) - \max_{j \ne y} f_j(x)` for several classes and
        :math:`(2y - 1) f(x)` for one logit; the sample is correct when it is positive.
        """
        if not self.is_classification:
            raise InvalidInput("margins are defined for classification, and this is a regression")
        outputs = self.outputs(samples)
        if self.task == "binary":
            return (2 * samples.y - 1).reshape(len(samples)) * outputs.reshape(len(samples))
        own = outputs.gather(1, samples.y[:, None]).squeeze(1)
        others = outputs.scatter(1, samples.y[:, None], float("-inf")).amax(1)
        return own - others

    def prepare(self, samples: Samples, name: str) -> Samples:
        """More samples of this problem: on the model's device, targets as the loss wants them.

        ``name`` is what to call them in messages.
        """
        self._refuse_other_shape(samples, name)
        ready = self._on_model(samples)
        return Samples(ready.x, self._targets(ready.y, name), ready.note)

    def _refuse_other_shape(self, samples: Samples, name: str) -> None:
        if samples.x.shape[1:] != self._input_shape:
            raise ShapeMismatch(
                f"train inputs have shape {list(self._input_shape)} a sample but {name} inputs "
                f"{list(samples.x.shape[1:])}"
            )

    def _on_model(self, samples: Samples) -> Samples:
        """Inputs on the model's device, floating ones in its precision."""
        like = self.function.reference()
        x = samples.x.to(like.device)
        if x.is_floating_point():
            x = x.to(like.dtype)
        return Samples(x, samples.y.to(like.device), samples.note)

    def _evaluate(self, x: Tensor) -> Tensor:
        try:
            outputs = self.function(self.parameters, x)
        except TorchTheoryError:
            raise
        except Exception as error:
            sentence = " ".join(str(error).split())
            raise UnsupportedModel(
                f"the model raised {type(error).__name__} on inputs of shape {list(x.shape)} "
                f"and type {x.dtype}: {sentence[:300]}"
            ) from error
        if len(outputs.shape) == 0 or len(outputs) != len(x):
            raise ShapeMismatch(
                f"the model maps {len(x)} samples to an output of shape {list(outputs.shape)}; "
                "its first dimension must be the samples"
            )
        if not outputs.is_floating_point():
            raise UnsupportedModel(
                f"the model returns {outputs.dtype}; it must return real numbers, such as the "
                "logits of the classes rather than the class"
            )
        if not bool(torch.isfinite(outputs).all()):
            raise NonFinite("the model's outputs contain NaN or infinity on finite inputs")
        return outputs

    def _first_outputs(self, samples: Samples) -> Tensor:
        with torch.no_grad(), global_randomness_kept():
            return self._evaluate(samples.x[: min(8, len(samples))])

    def _targets(self, y: Tensor, name: str) -> Tensor:
        if self.task == "multiclass":
            return _class_indices(y, self._probe, name)
        if self.task == "binary":
            return _zero_one(y, self._probe, name)
        wanted = self._probe.shape[1:]
        # only dimensions of size 1 may differ: [2, 3] is not [3, 2]
        if y.shape[1:] != wanted and _longer_than_one(y) != _longer_than_one(self._probe):
            raise ShapeMismatch(
                f"{name} targets have shape {list(y.shape[1:])} a sample but the model's outputs "
                f"{list(wanted)}"
            )
        return y.to(self._probe.dtype).reshape(len(y), *wanted)

    def _refuse_unusable_loss(self, probe: Tensor) -> None:
        y = self.train.y[: len(probe)]
        try:
            once = self.loss(probe, y)
            twice = self.loss(torch.cat([probe, probe]), torch.cat([y, y]))
        except Exception as error:
            raise InvalidInput(
                f"the loss raised {type(error).__name__} on outputs of shape {list(probe.shape)} "
                f"and targets of shape {list(y.shape)}: {error}"
            ) from error
        if not isinstance(once, Tensor) or once.numel() != 1:
            raise InvalidType("the loss must return one number, the mean over the batch")
        if not bool(torch.isfinite(once)):
            raise NonFinite("the loss is NaN or infinite on the first training samples")
        if not torch.allclose(once, twice, rtol=1e-3, atol=1e-6):
            raise InvalidInput(
                "the loss must be a mean over the batch, but doubling the batch changed it; "
                "use reduction='mean'"
            )
        if len(probe) > 1:
            alone = torch.stack(
                [self.loss(probe[k : k + 1], y[k : k + 1]).reshape(()) for k in range(len(probe))]
            )
            if not torch.allclose(once.reshape(()), alone.mean(), rtol=1e-3, atol=1e-6):
                raise InvalidInput(
                    "the loss must be the plain mean of the samples' own losses, and this one is "
                    "not (class weights, say, divide by the sum of weights); write it as "
                    "lambda outputs, y: loss_of_each(outputs, y).mean()"
                )


def infer_task(outputs: Tensor, y: Tensor) -> Task:
    """What kind of problem outputs ``[n, ...]`` and targets ``[m, ...]`` belong to.

    One output a sample and targets in {0, 1} or {-1, 1}: binary. Several outputs a sample and one
    whole-number target: multi-class. Otherwise regression.

    >>> infer_task(torch.zeros(4, 1), torch.tensor([0.0, 1.0, 1.0, 0.0]))
    'binary'
    >>> infer_task(torch.zeros(4, 3), torch.zeros(4, 3))
    'regression'
    """
    one_target = y[0].numel() == 1
    one_output = outputs[0].numel() == 1
    if one_target and one_output and _values_within(y, (0, 1), (-1, 1)):
        return "binary"
    whole = not y.is_floating_point() or bool((y == y.round()).all())
    if one_target and outputs.ndim == 2 and outputs.shape[1] > 1 and whole:
        return "multiclass"
    return "regression"


def _longer_than_one(values: Tensor) -> list[int]:
    return [size for size in values.shape[1:] if size != 1]


def _values_within(y: Tensor, *choices: tuple[int, int]) -> bool:
    values = torch.unique(y.double())
    return any(bool(torch.isin(values, torch.as_tensor(c, device=y.device)).all()) for c in choices)


def _class_indices(y: Tensor, probe: Tensor, name: str) -> Tensor:
    if probe.ndim != 2 or probe.shape[1] < 2:
        raise ShapeMismatch(
            f"a multi-class model returns [n, classes], and this one returns {list(probe.shape)}"
        )
    if y[0].numel() != 1:
        raise ShapeMismatch(f"{name} labels must be one class index a sample, not {list(y.shape)}")
    labels = y.reshape(len(y)).long()
    if y.is_floating_point() and not bool((labels == y.reshape(len(y))).all()):
        raise LabelOutOfRange(f"{name} labels must be whole numbers for multi-class problems")
    low, high, classes = int(labels.min()), int(labels.max()), probe.shape[1]
    if low < 0 or high >= classes:
        raise LabelOutOfRange(
            f"{name} labels run from {low} to {high}, but the model has {classes} outputs: "
            f"labels must lie in 0..{classes - 1}"
        )
    return labels


def _zero_one(y: Tensor, probe: Tensor, name: str) -> Tensor:
    if probe[0].numel() != 1:
        raise ShapeMismatch(
            f"a binary model returns one logit a sample, and this one {probe[0].numel()}"
        )
    if y[0].numel() != 1:
        raise ShapeMismatch(f"{name} labels must be one number a sample, not {list(y.shape[1:])}")
    if not _values_within(y, (0, 1), (-1, 1)):
        raise LabelOutOfRange(f"{name} labels of a binary problem must be 0 and 1, or -1 and +1")
    return (y > 0).to(probe.dtype).reshape(len(y), *probe.shape[1:])


_USUAL_LOSS: dict[Task, Loss] = {
    "regression": F.mse_loss,
    "binary": F.binary_cross_entropy_with_logits,
    "multiclass": F.cross_entropy,
}
