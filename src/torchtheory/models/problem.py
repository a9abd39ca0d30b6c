r"""A problem: a model, the data it was trained and tested on, and its loss.

Everything an audit finding asks is answered here: outputs in chunks, the loss as a pure function
of the parameters, predictions and margins. The model is never changed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.budget import time_left
from torchtheory.core.checks import described, first_entry
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    TorchTheoryError,
    UnsupportedModel,
)
from torchtheory.core.memory import bytes_of
from torchtheory.models.cost import saved_bytes, seconds_taken
from torchtheory.models.inputs import Rows
from torchtheory.models.model import (
    Initial,
    Parameters,
    PureFunction,
    as_leaves,
    flatten,
    global_randomness_kept,
    main_output,
    parameters_from,
)
from torchtheory.models.samples import Data, Samples, collect

T = TypeVar("T")
Task = Literal["regression", "binary", "multiclass"]
TASKS: tuple[Task, ...] = ("regression", "binary", "multiclass")
Loss = Callable[[Tensor, Tensor], Tensor]


class Problem:
    r"""A model with its data.

    Args:
        model: any `nn.Module` that maps a batch of inputs to one tensor, or to several of which
            one is meant.
        train: `(x, y)` of tensors or arrays, a `Dataset` or a `DataLoader` of such pairs;
            inputs may be a dictionary or a tuple (see `collect`).
        test: the same, kept apart from training; None if there is none.
        loss: `loss(outputs, targets)` -> the *mean* over the batch; the task's usual one unless
            given (mean squared error, logistic loss, cross-entropy).
        task: `regression`, `binary` (one output, the logit of class 1) or `multiclass` (one
            logit a class); inferred from targets and outputs unless given.
        initial: where training began, if known: a state dict, parameters by name, or a module of
            the same shape.
        learning_rate: of the gradient descent that trains it, if known.
        prior: a network of the same shape that has not seen the training data, if there is one.
        output: position or key of the output that is meant, where the model returns several; the
            first of a tuple, `logits` or the only tensor of a mapping unless given.
        limit: most samples kept of either set; beyond it a random subset is used and noted.
        chunk: samples evaluated at once.
        memory: what a pass over a chunk may take; chunks are made smaller where needed.
        seed: of the sub-sampling.
        plain_mean: whether to insist that the loss of a batch is the mean of its samples' own
            losses, and that the output for a sample does not depend on the others in its batch,
            as everything an audit asks assumes; a step of training does not need that.

    Targets are stored as the loss wants them: class indices for `multiclass`, 0.0/1.0 for
    `binary` (labels -1/+1 are converted), floats of the outputs' shape for `regression`.

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
        learning_rate: float | None = None,
        prior: Initial | None = None,
        output: int | str | None = None,
        limit: int = 20_000,
        chunk: int = 512,
        memory: str | int = "2GiB",
        seed: int = 0,
        plain_mean: bool = True,
    ) -> None:
        if task is not None and task not in TASKS:
            raise InvalidInput(f"task must be one of {', '.join(TASKS)}, not {task!r}")
        if limit < 1 or chunk < 1:
            raise InvalidInput(
                f"limit and chunk must be at least 1 (limit = {limit!r}, chunk = {chunk!r})"
            )
        self.function = PureFunction(model, output=output)
        self.function.refuse_non_finite_parameters()
        self.initial = None if initial is None else parameters_from(model, initial)
        self.prior = None if prior is None else parameters_from(model, prior)
        if learning_rate is not None and not 0 < learning_rate < math.inf:
            raise InvalidInput(f"learning_rate must be a positive number, not {learning_rate}")
        self.learning_rate = learning_rate
        self.memory = bytes_of(memory)
        self._kept: dict[int, Tensor] = {}
        raw = self._on_model(collect(train, "train", limit=limit, seed=seed))
        self._input_shape = raw.x.shape[1:]
        other = None if test is None else collect(test, "test", limit=limit, seed=seed)
        if other is not None:  # before the model complains of a shape in its own words
            self._refuse_other_shape(other, "test")
        if output is None:
            self.function.output = self._main_output(raw)
        self._probe = self._first_outputs(raw)
        self.task: Task = task or infer_task(self._probe, raw.y)
        self.classes = {"multiclass": self._probe.shape[-1], "binary": 2}.get(self.task)
        self.train = self.prepare(raw, "train")
        self.test = None if other is None else self.prepare(other, "test")
        self.loss: Loss = loss or _USUAL_LOSS[self.task]
        if loss is not None:
            self._refuse_unusable_loss(self._probe, plain_mean)
        if plain_mean:
            self._refuse_coupled_samples()
        #: Samples whose graphs of second derivatives fit into a quarter of the memory.
        self.capacity = self._affordable_graphs()
        self.chunk = max(1, min(chunk, self.capacity))

    @property
    def model(self) -> nn.Module:
        """The private copy of the model that is run; see `PureFunction`."""
        return self.function.model

    @property
    def several_inputs(self) -> bool:
        """Whether the model takes several inputs; `x` then holds numbers of samples."""
        return self.function.rows is not None

    @property
    def input_shapes(self) -> str:
        """The shape of one sample's inputs, in words."""
        if self.function.rows is not None:
            return self.function.rows.shapes()
        return " × ".join(str(s) for s in self._input_shape) or "scalar"

    @property
    def parameters(self) -> Parameters:
        """The parameters by name, detached: those that the model had when it was given."""
        return self.function.parameters

    @property
    def trainable(self) -> Parameters:
        """Those of `parameters` that training moves; see `PureFunction.trainable`."""
        return self.function.trainable

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

    @cached_property
    def gradient_is_derivative(self) -> bool:
        """Whether torch's gradient in the parameters is the slope of the outputs, along one line.

        A straight-through estimator, a gradient reversal and `scale_grad_by_freq` of an embedding
        replace it, and autograd does not see what a model writes to its parameters (`max_norm`).
        True where it cannot be told: at a kink, where the slopes to the two sides differ, and for
        models that are random or fix a precision below float64.
        """
        if self.function.writes:
            return False
        exact = self.in_double_if_possible()
        if exact is self or not self.deterministic:
            return True
        draw = torch.Generator().manual_seed(0)

        def normal(shape: torch.Size, like: Tensor) -> Tensor:
            return torch.randn(shape, generator=draw, dtype=torch.float64).to(like)

        start, x = as_leaves(exact.trainable), exact.train.x[: max(1, min(8, exact.capacity))]
        line = {k: normal(p.shape, p) for k, p in start.items()}
        length = math.sqrt(sum(float(v.square().sum()) for v in line.values()))
        step = 1e-6 * max(1.0, float(flatten(exact.trainable).norm())) / length
        with global_randomness_kept(), torch.enable_grad():
            middle = exact.function(start, x)
            weight = normal(middle.shape, middle)
            found = torch.autograd.grad(
                (weight * middle).sum(), [*start.values()], allow_unused=True
            )
        slope = sum(
            float((g * v).sum()) for g, v in zip(found, line.values(), strict=True) if g is not None
        )
        with global_randomness_kept(), torch.no_grad():
            after, before = (
                exact.function({k: p + sign * step * line[k] for k, p in start.items()}, x)
                for sign in (1, -1)
            )
        middle = middle.detach()
        right = float((weight * (after - middle)).sum()) / step
        left = float((weight * (middle - before)).sum()) / step
        rounding = 1e-13 * float((weight * middle).abs().sum()) / step
        allowed = 1e-3 * max(abs(right), abs(left), abs(slope)) + rounding
        return abs(right - left) > allowed or abs((right + left) / 2 - slope) <= 2 * allowed

    @cached_property
    def seconds_per_sample(self) -> float:
        """Time of a forward pass, a sample, in chunks as large as they are in use."""
        taken = math.inf
        with torch.no_grad(), global_randomness_kept():
            for size in (8, self.chunk):
                x = self.train.x[:size]
                try:
                    seconds = seconds_taken(lambda x=x: self._evaluate(x))  # type: ignore[misc]
                except (UnsupportedModel, NonFinite):
                    if taken == math.inf:
                        raise
                    break  # findings that meet the same will say so, and the others are made
                taken = min(taken, seconds / len(x))
                if seconds > 0.05:  # large enough for the cost of a call not to matter
                    break
        return taken

    def affordable(self, passes: float, share: float = 0.5) -> int:
        """For how many samples so many forward passes fit into a share of the time left.

        A gradient costs about three passes, a product with the Hessian about ten. At least one;
        without a deadline, as many as anyone could have.
        """
        left = time_left()
        if left == math.inf:
            return 10**12
        return max(1, int(share * left / (passes * self.seconds_per_sample)))

    def limit_chunk(self, most: int) -> None:
        """Evaluate and differentiate at most so many samples at once."""
        self.chunk = max(1, min(self.chunk, most))
        self.capacity = max(1, min(self.capacity, most))

    def at(self, parameters: Parameters) -> Problem:
        """The same problem with the model at other parameters; those not named stay.

        >>> net = nn.Linear(1, 1, bias=False)
        >>> p = Problem(net, (torch.ones(2, 1), torch.full((2, 1), 0.5)))
        >>> p.at({"weight": torch.tensor([[2.5]])}).risk(p.train)
        4.0
        """
        other = copy.copy(self)
        other._kept = {}
        other.function = copy.copy(self.function)
        other.function.parameters = {**self.parameters, **parameters}
        return other

    def restricted(self, train: int, test: int, generator: torch.Generator) -> Problem:
        """The same problem on at most so many samples, drawn at random; their notes say so."""
        other = copy.copy(self)
        other._kept = {}
        other.train = _fewer(self.train, train, "train", generator)
        if self.test is not None:
            other.test = _fewer(self.test, test, "test", generator)
        return other

    def in_precision(self, dtype: torch.dtype) -> Problem:
        """The same problem computed in another precision; the model itself keeps its own.

        Raises:
            UnsupportedModel: if the model's code fixes a precision of its own.
        """
        other = copy.copy(self)
        other.__dict__.pop("seconds_per_sample", None)
        other._kept = {}
        other.function = self.function.in_precision(dtype)
        other.train = self.train.in_precision(dtype)
        other.test = None if self.test is None else self.test.in_precision(dtype)
        other._probe = other._first_outputs(other.train)
        bytes_before = self.function.reference().element_size()
        wider = max(1, other.function.reference().element_size() // bytes_before)
        other.chunk = max(1, self.chunk // wider)
        other.capacity = self.capacity // wider
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
        """Outputs `[n, ...]` of the model, evaluated in chunks without gradients.

        Those of the training and test data are kept.
        """
        if id(samples) in self._kept:
            return self._kept[id(samples)]
        with torch.no_grad(), global_randomness_kept():
            parts = [self._evaluate(x) for x, _ in samples.chunks(self.chunk)]
        outputs = torch.cat(parts)
        if samples is self.train or samples is self.test:
            self._kept[id(samples)] = outputs
        return outputs

    def risk(self, samples: Samples) -> float:
        """Mean loss over the samples."""
        total = 0.0
        with torch.no_grad():
            for outputs, y in zip(
                torch.split(self.outputs(samples), self.chunk),
                torch.split(samples.y, self.chunk),
                strict=True,
            ):
                total += float(self.loss(outputs, y)) * len(y)
        return total / len(samples)

    def objective(self, samples: Samples) -> Callable[[Parameters], Tensor]:
        r"""The mean loss as a function of the parameters, $\theta \mapsto L(\theta)$.

        Parameters that are not named keep their values. It builds one graph over all `samples`:
        chunk them for large data.
        """

        def mean_loss(parameters: Parameters) -> Tensor:
            return self.loss(self.function(parameters, samples.x), samples.y).reshape(())

        return mean_loss

    def errors(self, samples: Samples) -> Tensor:
        """Which samples are misclassified, `[n]` of bool."""
        return self.margins(samples) <= 0

    def margins(self, samples: Samples) -> Tensor:
        r"""Classification margins `[n]`.

        $f_y(x) - \max_{j \ne y} f_j(x)$ for several classes and
        $(2y - 1) f(x)$ for one logit; the sample is correct when it is positive.
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

        `name` is what to call them in messages.
        """
        self._refuse_other_shape(samples, name)
        ready = self._on_model(samples)
        return replace(ready, y=self._targets(ready.y, name))

    def _refuse_other_shape(self, samples: Samples, name: str) -> None:
        if samples.x.shape[1:] != self._input_shape:
            raise ShapeMismatch(
                f"train inputs have shape {list(self._input_shape)} a sample but {name} inputs "
                f"{list(samples.x.shape[1:])}"
            )

    def _main_output(self, samples: Samples) -> int | str | None:
        with torch.no_grad(), global_randomness_kept():
            return main_output(self._call(self.function.call, samples.x[: min(8, len(samples))]))

    def _affordable_graphs(self) -> int:
        """For how many samples a quarter of the memory holds all a backward pass needs."""
        x = self.train.x[:1]
        with global_randomness_kept():
            try:
                kept = saved_bytes(self.function, x)
            except Exception:  # no derivative, or no pass of one sample: then none is asked for
                return 10**12
        # a second derivative keeps about three times what a first one does
        return int(self.memory // (4 * 3 * max(1, kept)))

    def _on_model(self, samples: Samples) -> Samples:
        """Inputs on the model's device, floating ones in its precision."""
        like = self.function.reference()
        if samples.rows is not None:
            return self._with_rows(samples, samples.rows)
        x = samples.x.to(like.device)
        if x.is_floating_point():
            x = x.to(like.dtype)
        return replace(samples, x=x, y=samples.y.to(like.device))

    def _with_rows(self, samples: Samples, rows: Rows) -> Samples:
        """Several inputs: their rows join the function's table, and `x` says where they are."""
        table = self.function.rows
        start = 0 if table is None else len(table)
        self.function.rows = rows if table is None else table.followed_by(rows)
        device = self.function.reference().device
        return replace(samples, x=samples.x.to(device) + start, y=samples.y.to(device), rows=None)

    def _call(self, function: Callable[[Parameters, Tensor], T], x: Tensor) -> T:
        """Run the model; what it raises becomes a sentence."""
        try:
            return function(self.parameters, x)
        except TorchTheoryError:
            raise
        except Exception as error:
            if not self.several_inputs and not x.is_floating_point():
                self._refuse_whole_numbers(function, x, error)
            sentence = " ".join(str(error).split())
            inputs = (
                f"{self.input_shapes} a sample"
                if self.several_inputs
                else f"shape {list(x.shape)} and type {x.dtype}"
            )
            raise UnsupportedModel(
                f"the model raised {type(error).__name__} on inputs of {inputs}: {sentence[:300]}"
            ) from error

    def _refuse_whole_numbers(
        self, function: Callable[[Parameters, Tensor], T], x: Tensor, error: Exception
    ) -> None:
        """Say so if the model raised only because its inputs are of a whole-number type."""
        like = self.function.reference()
        try:
            function(self.parameters, x.to(like.dtype))
        except Exception:  # then the type is not what is wrong
            return
        kind, real = (str(dtype).removeprefix("torch.") for dtype in (x.dtype, like.dtype))
        scaled = " / 255" if x.dtype == torch.uint8 else ""
        raise InvalidType(
            f"the inputs are {kind} and the model takes {real}: "
            + ("scale and convert them" if scaled else "convert them")
            + f" as in training, such as x.to(torch.{real}){scaled}"
        ) from error

    def _refuse_coupled_samples(self) -> None:
        """Refuse a model whose output for a sample depends on the others of its batch."""
        x = self.train.x[: len(self._probe)]
        if len(x) < 2 or not self.deterministic:
            return
        half = len(x) // 2
        try:
            with torch.no_grad(), global_randomness_kept():
                apart = torch.cat([self._evaluate(x[:half]), self._evaluate(x[half:])])
        except TorchTheoryError:  # not so few: what asks for one sample will say so
            return
        # batches of other sizes are added up in another order, and a network may magnify that
        rounding = torch.finfo(self._probe.dtype).eps ** (1 / 3)
        if apart.shape != self._probe.shape or not torch.allclose(
            apart, self._probe, rtol=0.0, atol=rounding * float(self._probe.abs().max())
        ):
            raise UnsupportedModel(
                "the model's output for a sample depends on the other samples of its batch, also "
                "in evaluation mode (a normalization without running statistics, say, or a "
                "recurrent layer without batch_first=True), so it is not a function of the sample"
            )

    def _evaluate(self, x: Tensor) -> Tensor:
        outputs = self._call(self.function, x)
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
            raise NonFinite(
                "the model's outputs contain NaN or infinity on finite inputs: "
                f"{first_entry(outputs, 'the value', ~torch.isfinite(outputs))}"
            )
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

    def _refuse_unusable_loss(self, probe: Tensor, plain_mean: bool) -> None:
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
            raise InvalidType(
                f"the loss must return one number, the mean over the batch, not {described(once)}"
            )
        if not bool(torch.isfinite(once)):
            raise NonFinite(
                f"the loss is NaN or infinite on the first training samples: {float(once)}"
            )
        if not torch.allclose(once, twice, rtol=1e-3, atol=1e-6):
            raise InvalidInput(
                "the loss must be a mean over the batch, but doubling the batch changed it from "
                f"{float(once):g} to {float(twice):g}; use reduction='mean'"
            )
        if plain_mean and len(probe) > 1:
            alone = torch.stack(
                [self.loss(probe[k : k + 1], y[k : k + 1]).reshape(()) for k in range(len(probe))]
            )
            if not torch.allclose(once.reshape(()), alone.mean(), rtol=1e-3, atol=1e-6):
                raise InvalidInput(
                    "the loss must be the plain mean of the samples' own losses, and this one is "
                    "not (class weights, say, divide by the sum of weights); write it as "
                    "lambda outputs, y: loss_of_each(outputs, y).mean()"
                )


def _fewer(samples: Samples, count: int, name: str, generator: torch.Generator) -> Samples:
    if count >= len(samples):
        return samples
    note = f"{count} of {len(samples)} {name} samples, drawn at random for the time there is"
    note = "; ".join(n for n in (samples.note, note) if n)
    return replace(samples.some(count, generator), note=note, total=samples.population)


def infer_task(outputs: Tensor, y: Tensor) -> Task:
    """What kind of problem outputs `[n, ...]` and targets `[m, ...]` belong to.

    One output a sample and targets in {0, 1} or {-1, 1}: binary. Several outputs a sample and one
    whole-number target: multi-class. Otherwise regression.

    >>> infer_task(torch.zeros(4, 1), torch.tensor([0.0, 1.0, 1.0, 0.0]))
    'binary'
    >>> infer_task(torch.zeros(4, 3), torch.zeros(4, 3))
    'regression'
    """
    one_target = y[0].numel() == 1
    one_output = outputs[0].numel() == 1
    if outputs.shape[1:] == y.shape[1:] and _one_hot(y):
        raise InvalidInput(
            "the targets look like one-hot rows: give class indices, y.argmax(1), or say "
            "task='regression' if the squared distance to these rows is meant"
        )
    if one_target and one_output and _values_within(y, (0, 1), (-1, 1)):
        return "binary"
    whole = not y.is_floating_point() or bool((y == y.round()).all())
    if one_target and outputs.ndim == 2 and outputs.shape[1] > 1 and whole:
        return "multiclass"
    return "regression"


def _one_hot(y: Tensor) -> bool:
    if y.ndim != 2 or y.shape[1] < 2:
        return False
    return bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all())


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
        raise ShapeMismatch(
            f"{name} labels must be one class index a sample, not {list(y.shape)}; of one-hot "
            "rows take y.argmax(1)"
        )
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
