r"""What a tracker follows: quantities by name, and the snapshot of a network they look at.

A quantity is a small function of a `Snapshot` (the network at one step, on a fixed set of
samples) that returns a number, several by name, or readings with an error bar. They stand in a
table, and a user's own joins them:

```python
@tracked("largest-weight", title="Largest weight")
def largest_weight(at: Snapshot) -> float:
    return max(float(p.abs().max()) for p in at.parameters.values())
```

Where a hypothesis of `needs` fails, or the function raises, the tracker says why and goes on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchtheory.audit.engine.finding import Hypothesis
from torchtheory.core.checks import positive_number
from torchtheory.core.errors import InvalidInput, UnknownName, UnsupportedModel
from torchtheory.core.intervals import Interval
from torchtheory.core.naming import check_name, same_function
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.models.model import Parameters
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.operators import gradient

Scale = Literal["linear", "log", "auto"]
SCALES: tuple[Scale, ...] = ("linear", "log", "auto")

#: The tangent kernel is that of the first so many samples of the probe.
KERNEL_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class Reading:
    """A number, and the ends of its error bar where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


Readings = float | Reading | Interval | Mapping[str, float | Reading | Interval]


@dataclass
class Snapshot:
    r"""What a quantity sees: the network at one step, and what is needed to compare with before.

    Attributes:
        problem: model, loss and the probe (`problem.train`, and `problem.test` if there is
            one), with the buffers as they are now. It is evaluated in evaluation mode.
        step: how many steps have been taken.
        start: all parameters when tracking began.
        learning_rate: of the step just taken; None if it is not known or not one number.
        optimizer: what takes the steps, if the tracker was told.
        confidence: of every interval.
        first: the problem as it was when tracking began; this one unless given.
        generator: source of randomness, the same for each measurement of a quantity.
        memory: what the quantity itself keeps from one measurement to the next.
        remarks: sentences for the reader, each kept once.
    """

    problem: Problem
    step: int
    start: Parameters
    learning_rate: float | None = None
    optimizer: Optimizer | None = None
    confidence: float = 0.95
    first: Problem | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)
    memory: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters that are trained, by name."""
        trained = {k for k, p in self.problem.model.named_parameters() if p.requires_grad}
        chosen = {k: p for k, p in self.problem.parameters.items() if k in trained}
        if not chosen:
            raise UnsupportedModel("every parameter of the model is frozen: nothing is trained")
        return chosen

    @property
    def probe(self) -> Samples:
        """The training samples everything is measured on, in random order."""
        return self.problem.train

    @cached_property
    def gradient(self) -> Tensor:
        """Of the mean loss on the probe by the trained parameters, `[p]`."""
        return gradient(self.problem, self.probe, parameters=self.parameters)

    @cached_property
    def kernel(self) -> Tensor:
        """The tangent kernel of the first samples of the probe, summed over outputs."""
        return self._kernel_of(self.problem)

    @property
    def first_kernel(self) -> Tensor:
        """The same when tracking began; computed each time it is asked for."""
        return self.kernel if self.first is None else self._kernel_of(self.first)

    def _kernel_of(self, problem: Problem) -> Tensor:
        return empirical_ntk(
            problem.function,
            self.probe.x[:KERNEL_SAMPLES],
            outputs="trace",
            parameters={k: p.to(self.probe.x.device) for k, p in problem.parameters.items()},
            only=list(self.parameters),
        ).detach()

    def remark(self, sentence: str) -> None:
        """Tell the reader something, once however often it is said."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)

    def by_layer(self, vector: Tensor | Parameters) -> dict[str, Tensor]:
        """A vector `[p]` of the trained parameters, or tensors by name, joined by layer."""
        if isinstance(vector, Tensor):
            pieces = torch.split(vector, [p.numel() for p in self.parameters.values()])
            vector = dict(zip(self.parameters, pieces, strict=True))
        layers: dict[str, list[Tensor]] = {}
        for name, tensor in vector.items():
            layers.setdefault(name.rpartition(".")[0] or "model", []).append(tensor.reshape(-1))
        return {layer: torch.cat(parts) for layer, parts in layers.items()}


@dataclass(frozen=True, slots=True)
class TrackedQuantity:
    """A quantity that can be tracked.

    Attributes:
        name: lower-case words and hyphens.
        title: one line for people, over its panel.
        function: from a `Snapshot` to readings.
        scale: of the panel; `auto` is logarithmic where values span a factor of 30.
        limits: names of readings that are a limit rather than a measurement (drawn dashed).
        needs: hypotheses on the problem.
        passes: about how many forward passes over the probe it costs, to plan the first time with.
    """

    name: str
    title: str
    function: Callable[[Snapshot], Readings]
    scale: Scale = "auto"
    limits: tuple[str, ...] = ()
    needs: tuple[Hypothesis, ...] = ()
    passes: float = 1.0

    def measure(self, at: Snapshot) -> dict[str, Reading]:
        """The readings by name; a single one has the quantity's."""
        found = self.function(at)
        several = found if isinstance(found, Mapping) else {self.name: found}
        return {str(label): _reading(value, self.name) for label, value in several.items()}


_QUANTITIES: dict[str, TrackedQuantity] = {}


def tracked(
    name: str,
    *,
    title: str = "",
    scale: Scale = "auto",
    limits: Sequence[str] = (),
    needs: Sequence[Hypothesis] = (),
    passes: float = 1.0,
) -> Callable[[Callable[[Snapshot], Readings]], Callable[[Snapshot], Readings]]:
    """Register a quantity; arguments as in `TrackedQuantity`.

    >>> @tracked("number-of-parameters")
    ... def number_of_parameters(at):
    ...     return sum(p.numel() for p in at.parameters.values())
    >>> _ = _QUANTITIES.pop("number-of-parameters")
    """
    check_name(name, "quantity")
    positive_number(passes, "passes")
    if scale not in SCALES:
        raise InvalidInput(f"scale must be one of {', '.join(SCALES)}, not {scale!r}")

    def register(function: Callable[[Snapshot], Readings]) -> Callable[[Snapshot], Readings]:
        if name in _QUANTITIES and not same_function(_QUANTITIES[name].function, function):
            raise InvalidInput(f"two quantities are named {name!r}")
        made = TrackedQuantity(
            name, title or name, function, scale, tuple(limits), tuple(needs), passes
        )
        _QUANTITIES[name] = made
        return function

    return register


def find_quantities(names: Sequence[str] | None = None) -> list[TrackedQuantity]:
    """The quantities of these names in this order; all there are unless told, ours first.

    >>> [q.title for q in find_quantities(["loss", "sharpness"])]
    ['Loss', 'Sharpness']
    """
    importlib.import_module("torchtheory.audit.tracking.standard")
    if names is None:
        return list(_QUANTITIES.values())
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in _QUANTITIES:
            raise UnknownName("tracked quantity", str(name), _QUANTITIES)
    if not names:
        raise InvalidInput("there is nothing to track: quantities is empty")
    return [_QUANTITIES[name] for name in dict.fromkeys(names)]


def _reading(value: Any, name: str) -> Reading:
    match value:
        case Reading():
            return value
        case Interval():
            return Reading(value.estimate, value.low, value.high)
        case Tensor() if value.numel() == 1:
            return Reading(float(value))
        case float() | int():
            return Reading(float(value))
    raise InvalidInput(
        f"the quantity {name!r} returned {type(value).__name__}; it must return a number, a "
        "Reading, an Interval, or a dictionary of these"
    )
