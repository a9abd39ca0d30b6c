r"""A problem: a model, the data it was trained and tested on, and its loss.

Everything an audit finding asks is answered here: outputs in chunks, the loss as a pure function
of the parameters, predictions and margins. The model is never changed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.budget import time_left
from torchtheory.core.errors import (
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.memory import bytes_of
from torchtheory.models.cost import saved_bytes, seconds_taken
from torchtheory.models.derivative import gradient_is_slope
from torchtheory.models.evaluation import called, depends_on_batch, evaluated, same_twice
from torchtheory.models.heads import (
    Head,
    Output,
    apart,
    check_weights,
    heads_of,
)
from torchtheory.models.inputs import Rows
from torchtheory.models.losses import (
    USUAL_LOSS,
    CoupledLoss,
    no_loss,
    no_loss_known,
    refuse_unusable,
    takes_logits,
)
from torchtheory.models.losses import Loss as Loss
from torchtheory.models.model import (
    Initial,
    Parameters,
    PureFunction,
    global_randomness_kept,
    main_output,
    parameters_from,
)
from torchtheory.models.preparation import preparation_of
from torchtheory.models.samples import Data, Samples, collect
from torchtheory.models.sklearn_estimators import as_network, class_indices
from torchtheory.models.targets import (
    IGNORED,
    TASKS,
)
from torchtheory.models.targets import Task as Task
from torchtheory.models.task import TASK_WORDS

#: What the outputs of all samples may take of the memory, which are kept.
KEPT = 0.25


class Problem:
    r"""A model with its data.

    Args:
        model: any `nn.Module` that maps a batch of inputs to one tensor, or to several of which
            one is meant; or an estimator of scikit-learn that `network_of` can convert.
        train: `(x, y)` of tensors or arrays, a `Dataset` or a `DataLoader` of such pairs;
            inputs may be a dictionary or a tuple (see `collect`). `x` alone for a model without
            targets: where the outputs have its shape, it is to be reproduced.
        test: the same, kept apart from training; None if there is none.
        loss: `loss(outputs, targets)` -> the *mean* over the batch; the task's usual one unless
            given (mean squared error, logistic loss, cross-entropy).
        task: `regression`, `count`, `ordinal`, `ranking`, `binary` (one output, the logit of class
            1), `multiclass` (one logit per class), `multilabel` (one logit for each of several
            yes-or-no labels), `labeling` (one logit per class at every token or pixel), `own`
            (targets that only the loss knows) or `unlabeled`; inferred from targets, outputs and
            loss unless given. See `torchtheory.models.task`.
        initial: where training began, if known: a state dict, parameters by name, or a module of
            the same shape.
        learning_rate: of the gradient descent that trains it, if known.
        prior: a network of the same shape that has not seen the training data, if there is one.
        output: position or key of the output that is meant, where the model returns several; the
            first of a tuple, `logits` or the only tensor of a mapping unless given. Or several
            with the weights of their losses, such as `{"logits": 1.0, "aux": 0.3}`; the targets
            are then a dictionary of the same names.
        limit: most samples kept of either set; beyond it a random subset is used and noted.
        chunk: samples evaluated at once.
        memory: what a pass over a chunk may take; chunks are made smaller where needed.
        seed: of the sub-sampling, and of the noise of a model that draws random numbers.
        plain_mean: whether to insist that the loss of a batch is the mean of its samples' own
            losses, and that the output for a sample does not depend on the others in its batch,
            as everything an audit asks assumes; a step of training does not need that.

    Targets are stored as the usual loss wants them: class indices for `multiclass`, 0.0/1.0 for
    `binary` (labels -1/+1 are converted), floats of the outputs' shape for `regression` and its
    relatives, class indices `[n, *positions]` for `labeling`, whose outputs are
    `[n, *positions, classes]` whatever the model's order of dimensions, and `[n, 0]` where there
    are none. A loss of the user's sees outputs and targets as they were given.

    A loss that is not the mean of the samples' own losses (that of pairs in a batch, or a partial
    likelihood) is refused where the targets alone make an audit; where only such a loss gives
    targets a meaning (`own`, `unlabeled`), the problem has none, and `remarks` says so.

    A model that draws random numbers in evaluation mode is audited at one draw of them, the same
    for every sample; see `torchtheory.models.noise`.

    Attributes:
        remarks: what was decided about data and model, in sentences by what they are about.

    >>> net = nn.Linear(2, 3)
    >>> p = Problem(net, (torch.randn(10, 2), torch.arange(10) % 3))
    >>> p.task, tuple(p.outputs(p.train).shape)
    ('multiclass', (10, 3))
    """

    def __init__(
        self,
        model: nn.Module | Any,
        train: Data,
        test: Data | None = None,
        loss: Loss | None = None,
        task: Task | None = None,
        *,
        initial: Initial | None = None,
        learning_rate: float | None = None,
        prior: Initial | None = None,
        output: Output | None = None,
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
        model = as_network(model)
        self.function = PureFunction(model, output=None if isinstance(output, Mapping) else output)
        self.function.refuse_non_finite_parameters()
        self.initial = None if initial is None else parameters_from(model, initial)
        self.prior = None if prior is None else parameters_from(model, prior)
        if learning_rate is not None and not 0 < learning_rate < math.inf:
            raise InvalidInput(f"learning_rate must be a positive number, not {learning_rate}")
        self.learning_rate = learning_rate
        self.memory = bytes_of(memory)
        self._kept: dict[int, Tensor] = {}
        self._every: Samples | None = None
        self._repeats = False  # whether a second call was seen to give the same
        self.remarks: dict[str, str] = {}
        gathered = collect(class_indices(model, train), "train", limit=limit, seed=seed)
        raw = self._on_model(gathered)
        self._input_shape = raw.x.shape[1:]
        other = None
        if test is not None:
            other = collect(class_indices(model, test), "test", limit=limit, seed=seed)
            self._refuse_other_shape(other, "test")  # before the model does in its own words
        heads = self._weighted_heads(raw, output)
        if output is None:
            self.function.output = self._main_output(raw)
        if plain_mean:
            self._fix_noise(raw, seed)
        self._plan = preparation_of(gathered, raw, self._first_outputs(raw), task, heads, loss)
        self.function.arranged = self._plan.arranged
        self.task: Task = self._plan.task
        self.classes = self._plan.classes
        self.train = self._plan.prepared(gathered, raw, "train")
        self.test = None if other is None else self.prepare(other, "test")
        self.remarks |= self._plan.remarks(loss, self.train.y)
        self.loss: Loss = self._plan.usual_loss
        if loss is not None:
            self.loss = self._own_loss(loss, plain_mean)
        if plain_mean:
            self._refuse_coupled_samples()
            self._keep_within_memory(seed)
        #: Bytes that the graph of a second derivative keeps per sample, about.
        self.graph_bytes = self._graph_bytes()
        #: Samples whose graphs of second derivatives fit into a quarter of the memory.
        self.capacity = self.memory // (4 * self.graph_bytes) if self.graph_bytes else 10**12
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
    def every_sample(self) -> Samples:
        """The training samples as they were before `restricted`, for what asks of inputs alone."""
        return self.train if self._every is None else self._every

    @property
    def trainable(self) -> Parameters:
        """Those of `parameters` that training moves; see `PureFunction.trainable`."""
        return self.function.trainable

    @property
    def is_classification(self) -> bool:
        """Whether every sample has one label, a class."""
        return self.task in ("binary", "multiclass")

    @property
    def tokens(self) -> bool:
        """Whether samples are sequences of tokens with a label for each, as of a language model."""
        return self._plan.tokens

    @property
    def has_loss(self) -> bool:
        """Whether there are targets, or a loss of the outputs alone was given."""
        return self.loss not in (no_loss, no_loss_known)

    @property
    def task_reason(self) -> str:
        """What says that this is the task: "you said so", or what was seen of targets and loss."""
        return self._plan.because

    @property
    def couples_samples(self) -> bool:
        """Whether the user's loss was set aside because it is no mean of the samples' own."""
        return self.loss is no_loss_known

    @property
    def draws_random_numbers(self) -> bool:
        """Whether the model does so in evaluation mode; one draw of them is then used."""
        return self.function.noise is not None

    @cached_property
    def deterministic(self) -> bool:
        """Whether the output is a function of the parameters and the sample.

        The same input gives the same output twice, bit for bit, at the fixed draw of a model that
        draws random numbers; and what it draws for a sample does not depend on its batch.
        """
        if self._repeats:
            return True
        x = self.train.x[: min(8, len(self.train))]
        return same_twice(self.function, x) and not (
            self.draws_random_numbers and depends_on_batch(self.function, x)
        )

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
        return gradient_is_slope(exact.function, exact.train.x[: max(1, min(8, exact.capacity))])

    @cached_property
    def seconds_per_sample(self) -> float:
        """Time of a forward pass per sample, in chunks as large as they are in use."""
        taken = math.inf
        with torch.no_grad(), global_randomness_kept():
            for size in (8, self.chunk):
                x = self.train.x[:size]
                try:
                    seconds = seconds_taken(lambda x=x: evaluated(self.function, x))  # type: ignore[misc]
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

    def at_draw(self, seed: int) -> Problem:
        """The same problem at another draw of the model's random numbers."""
        if self.function.noise is None:
            raise InvalidInput("the model draws no random numbers")
        other = copy.copy(self)
        other._kept = {}
        other.function = copy.copy(self.function)
        other.function.noise = replace(self.function.noise, seed=seed)
        return other

    def restricted(self, train: int, test: int, generator: torch.Generator) -> Problem:
        """The same problem on at most so many samples, drawn at random; their notes say so."""
        other = copy.copy(self)
        other._kept = {}
        other._every = self.every_sample
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
        other._plan = replace(self._plan, probe=other._first_outputs(other.train))
        bytes_before = self.function.reference().element_size()
        wider = max(1, other.function.reference().element_size() // bytes_before)
        other.chunk = max(1, self.chunk // wider)
        other.capacity = self.capacity // wider
        other.graph_bytes = self.graph_bytes * wider
        try:
            if self.has_loss:
                other.loss(other._plan.probe, other.train.y[: len(other._plan.probe)])
        except Exception as error:
            raise UnsupportedModel(f"the loss cannot be computed in {dtype}") from error
        return other

    def in_double_if_possible(self) -> Problem:
        """The same problem in float64, or as it is where the model's code fixes a precision.

        Also as it is where weights, a point next to them and a few gradients, about eight vectors,
        would not fit into the memory.
        """
        if self.function.count * 8 * 8 > self.memory:
            return self
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
            parts = [evaluated(self.function, x) for x, _ in samples.chunks(self.chunk)]
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

    def loss_as_returned(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of outputs in the model's own order of dimensions, as in a step of training."""
        arranged = self._plan.arranged
        return self.loss(outputs if arranged is None else arranged(outputs), y)

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
        $(2y - 1) (f(x) - c)$ for one output, where $c$ is `decision_level`; the sample is correct
        when it is positive.
        """
        if not self.is_classification:
            raise InvalidInput(
                f"margins are defined for classification, and this is {TASK_WORDS[self.task]}"
            )
        outputs = self.outputs(samples)
        if self.task == "binary":
            logits = outputs.reshape(len(samples)) - self.decision_level
            return (2 * samples.y - 1).reshape(len(samples)) * logits
        own = outputs.gather(1, samples.y[:, None]).squeeze(1)
        others = outputs.scatter(1, samples.y[:, None], float("-inf")).amax(1)
        return own - others

    @cached_property
    def loss_takes_logits(self) -> bool:
        """Whether the loss makes probabilities of the outputs itself."""
        if self._plan.kind in ("logistic", "cross-entropy"):
            return True
        return takes_logits(self.loss, self.task, self._plan.probe, self.train.y)

    @cached_property
    def decision_level(self) -> float:
        """Above which output a model says yes to a label: 0 for a logit, 1/2 for a probability.

        It returns probabilities if its loss is one of them and refuses, or takes otherwise, what
        lies outside [0, 1], as `nn.BCELoss` does. With a squared error outputs are near the labels,
        0 and 1, and half way is between them.
        """
        if self.task not in ("binary", "multilabel", "ordinal") or self.loss_takes_logits:
            return 0.0
        if self.task != "binary" and self._plan.kind in ("squared", "real", "bernoulli"):
            return 0.5
        outputs = self.outputs(self.train)
        return 0.5 if bool(((outputs >= 0) & (outputs <= 1)).all()) else 0.0

    @cached_property
    def outputs_are_logarithms(self) -> bool:
        """Whether a model of counts returns logarithms of rates: by its loss, else by signs."""
        if self._plan.kind in ("log-rate", "rate"):
            return self._plan.kind == "log-rate"
        usual = self.loss is USUAL_LOSS["count"]
        return usual or bool((self.outputs(self.train) < 0).any())

    def wrong_labels(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """How many of a sample's labels are predicted wrongly, and how many it has, `[n]` each.

        One label for `binary` and `multiclass`, one for every labeled position for `labeling`,
        one for each column of `multilabel`. A tie of the two largest logits counts as an error.
        """
        if self.task == "multilabel":
            said = self.outputs(samples) > self.decision_level
            missed = (said != (samples.y > 0.5)).flatten(1)
            return missed.sum(1), torch.full_like(missed[:, 0], missed.shape[1], dtype=torch.long)
        if self.task != "labeling":
            wrong = self.errors(samples).long()
            return wrong, torch.ones_like(wrong)
        counts = []
        for f, y in zip(
            torch.split(self.outputs(samples), self.chunk),
            torch.split(samples.y, self.chunk),
            strict=True,
        ):
            label = y.clamp(min=0).unsqueeze(-1)
            own, others = f.gather(-1, label), f.scatter(-1, label, float("-inf"))
            wrong = (own.squeeze(-1) <= others.amax(-1)) & (y != IGNORED)
            counts.append(torch.stack([wrong.flatten(1).sum(1), (y != IGNORED).flatten(1).sum(1)]))
        both = torch.cat(counts, 1)
        return both[0], both[1]

    def prepare(self, samples: Samples, name: str) -> Samples:
        """More samples of this problem: on the model's device, targets as the loss wants them.

        `name` is what to call them in messages.
        """
        self._refuse_other_shape(samples, name)
        return self._plan.prepared(samples, self._on_model(samples), name)

    def _own_loss(self, loss: Loss, plain_mean: bool) -> Loss:
        """The user's loss, or none where it couples samples and nothing else is known of them."""
        own = self._plan.own_loss(loss, plain_mean=plain_mean)
        probe = self._plan.probe
        try:
            refuse_unusable(own, probe, self.train.y[: len(probe)], plain_mean=plain_mean)
        except CoupledLoss:
            if self.task not in ("own", "unlabeled"):
                raise
            self.remarks["loss"] += (
                "; the loss of a batch is not the mean of its samples' own losses, so that what "
                "needs the loss of a sample, or its gradient, is left out"
            )
            return no_loss_known
        return own

    def _refuse_other_shape(self, samples: Samples, name: str) -> None:
        if samples.x.shape[1:] != self._input_shape:
            raise ShapeMismatch(
                f"train inputs have shape {list(self._input_shape)} a sample but {name} inputs "
                f"{list(samples.x.shape[1:])}"
            )

    def _weighted_heads(self, samples: Samples, output: Output | None) -> list[Head]:
        """Several outputs with weights; none where one output is meant."""
        if not isinstance(output, Mapping):
            if samples.parts:
                weights = ", ".join(f"{name!r}: 1.0" for name, _ in samples.parts)
                raise InvalidInput(
                    "the targets have names: say which outputs they belong to, and the weights "
                    f"of their losses, output={{{weights}}}"
                )
            return []
        by_output = check_weights(output, [name for name, _ in samples.parts])
        first = samples.first(min(8, len(samples)))
        with torch.no_grad(), global_randomness_kept():
            returned = self._returned(first.x)
        self.function.output = tuple(by_output)
        return heads_of(returned, by_output, apart(samples.y, samples.parts))

    def _main_output(self, samples: Samples) -> int | str | None:
        with torch.no_grad(), global_randomness_kept():
            return main_output(self._returned(samples.x[: min(8, len(samples))]))

    def _returned(self, x: Tensor) -> object:
        """What the model returns, whatever it is."""
        return called(self.function, lambda t: self.function.call(self.parameters, t), x)

    def _graph_bytes(self) -> int:
        """What a second derivative keeps per sample: about three times what a first one does.

        0 where there is no derivative, or no pass of one sample: then none is asked for.
        """
        x = self.train.x[:1]
        with global_randomness_kept():
            try:
                return 3 * max(1, saved_bytes(self.function, x))
            except Exception as error:
                # one sample is too much already
                return self.memory // 4 if "memory" in str(error) else 0

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
        table, rows = self.function.rows, rows.taken_by(self.model)
        start = 0 if table is None else len(table)
        self.function.rows = rows if table is None else table.followed_by(rows)
        device = self.function.reference().device
        return replace(samples, x=samples.x.to(device) + start, y=samples.y.to(device), rows=None)

    def _fix_noise(self, samples: Samples, seed: int) -> None:
        """One draw for all samples and calls, if the model draws random numbers."""
        x = samples.x[: min(8, len(samples))]
        self._repeats = same_twice(self.function, x)
        if self._repeats:
            return
        free = self.function
        self.function = called(free, lambda t: free.with_noise(seed, t), x)
        fixed = same_twice(self.function, x) and not depends_on_batch(self.function, x)
        self.remarks["randomness"] = (
            "the model draws random numbers in evaluation mode; its noise was fixed to one draw, "
            "the same for every sample, and what is said holds for that draw; losses, error rates "
            "and calibration are over several"
            if fixed
            else "the model draws random numbers that could not be fixed, so its outputs differ "
            "from call to call, or with the other samples of a batch"
        )

    def _keep_within_memory(self, seed: int) -> None:
        """As many samples as there is memory for the outputs of."""
        one = self._plan.probe[0].numel() * self._plan.probe.element_size()
        tested = 0 if self.test is None else len(self.test)
        share = KEPT * self.memory / (max(1, one) * (len(self.train) + tested))
        if share >= 1:
            return
        draw, why = torch.Generator().manual_seed(seed), "memory"
        self.train = _fewer(self.train, math.ceil(share * len(self.train)), "train", draw, why)
        if self.test is not None:
            self.test = _fewer(self.test, math.ceil(share * tested), "test", draw, why)

    def _refuse_coupled_samples(self) -> None:
        """Refuse a model whose output for a sample depends on the others of its batch."""
        x = self.train.x[: len(self._plan.probe)]
        if self.deterministic and depends_on_batch(self.function, x):
            raise UnsupportedModel(
                "the model's output for a sample depends on the other samples of its batch, also "
                "in evaluation mode (a normalization without running statistics, say, or a "
                "recurrent layer without batch_first=True), so it is not a function of the sample"
            )

    def _first_outputs(self, samples: Samples) -> Tensor:
        with torch.no_grad(), global_randomness_kept():
            return evaluated(self.function, samples.x[: min(8, len(samples))])


def _fewer(
    samples: Samples, count: int, name: str, generator: torch.Generator, why: str = "time"
) -> Samples:
    if count >= len(samples):
        return samples
    note = f"{count} of {len(samples)} {name} samples, drawn at random for the {why} there is"
    note = "; ".join(n for n in (samples.note, note) if n)
    return replace(samples.some(count, generator), note=note, total=samples.population)
