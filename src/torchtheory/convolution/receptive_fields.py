r"""Receptive fields: which part of the input a unit can see, and which part it looks at.

*In theory.* A unit behind layers of $k_\ell$ taps, dilations $\delta_\ell$ and strides $s_\ell$
depends on places of the input that lie within $r_\ell$ of them, from the first to the last, with

$$r_\ell=r_{\ell-1}+\delta_\ell(k_\ell-1)\,j_{\ell-1},\qquad j_\ell=s_\ell\,j_{\ell-1},\qquad
r_0=j_0=1$$

along a chain; where branches meet, a unit sees what all of them see (`receptive_fields`, operation
by operation). *In fact*: what a unit depends on turns into NaN with it, and nothing else does
(`dependence`).

*Effectively.* The squared gradient of a unit, as a distribution over places, is far from even: in
the middle there are many ways from the input to the unit, at the rim one. Behind layers with
independent weights the mean of it over all weights has the variance $\frac1{12}\sum_\ell
\delta_\ell^2(k_\ell^2-1)\,j_{\ell-1}^2$ along each dimension, so its width grows like the root of
the depth where the field itself grows like the depth (Luo et al., 2016).

Sources: the lectures, section 10.1.3; the notes, section 4.2. Neither prints the recursion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.convolution.field_rules import RULES, Field
from torchtheory.core.checks import (
    all_finite,
    as_batch,
    as_module,
    described,
    whole_number,
    whole_numbers,
)
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    ModelRaised,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.evaluation import called
from torchtheory.models.model import PureFunction, global_randomness_kept
from torchtheory.tracing.interpret import in_terms_of, interpret
from torchtheory.tracing.network import BatchSize, Network, Operation, Value
from torchtheory.tracing.network import called as run_operation
from torchtheory.tracing.passes import evaluated
from torchtheory.tracing.recorder import record

#: Entries of one batch of inputs, at most.
_AT_ONCE = 2**19


@dataclass(frozen=True, slots=True)
class LayerField:
    """The receptive field of a unit behind a layer.

    Attributes:
        name, kind: of the layer.
        size: extent of the field per dimension: places of the input from the first that a unit
            depends on to the last, padding included. With dilations, or strides longer than the
            windows before them, it does not depend on all of these. None where units have no common
            window: behind what mixes all places, or puts them elsewhere.
        jump: places of the input from one unit to the next, per dimension; a fraction behind an
            up-sampling.
        start: the first place of the field of the first unit, negative on the padding.
        deviation: of the place that a squared gradient comes from, in the mean over independent
            weights, per dimension; None where branches with other windows meet.
        box: first and last place of the input that the unit in the middle depends on, per
            dimension, as `dependence` finds them; None where it depends on no place.
    """

    name: str
    kind: str
    size: tuple[int, ...] | None
    jump: tuple[int | Fraction, ...] | None
    start: tuple[int, ...] | None
    deviation: tuple[float, ...] | None
    box: tuple[tuple[int, int], ...] | None


def receptive_fields(model: nn.Module, example: Tensor | Sequence[int]) -> list[LayerField]:
    """The receptive field of a unit behind every layer, operation by operation.

    Sums and concatenations see what all of their parts see; dense layers, averages over all places
    and attention see everything that they join. Nothing is asked of the weights.

    Args:
        model: any module or `.pt2` archive with one image or sequence as its input.
        example: an input `[channels, ...]` without the batch dimension, or its shape.

    Cost: about one forward pass of one input.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3))
    >>> [(f.size, f.jump) for f in receptive_fields(net, (1, 16, 16))]
    [((3, 3), (1, 1)), ((3, 3), (1, 1)), ((4, 4), (2, 2)), ((8, 8), (2, 2))]
    >>> receptive_fields(nn.Conv1d(1, 1, 3, dilation=2), (1, 9))[0].size  # of 5 places 3 are read
    (5,)
    """
    _, network, x = _recorded(model, _example(example))
    network = in_terms_of(network, RULES)
    layers = layer_values(network)
    start = Field.of_inputs((1, *x.shape))
    values = [op.outputs[0] for op in layers.values()]
    fields = interpret(network.until(*values), RULES, [start], samples=1)
    return [
        _layer_field(name, op.layer_kind, field, x.ndim + 1)
        for (name, op), field in zip(layers.items(), fields, strict=True)
    ]


def _layer_field(name: str, kind: str, field: Field | Tensor, ndim: int) -> LayerField:
    if not isinstance(field, Field):  # the same for all inputs
        return LayerField(name, kind, None, None, None, None, None)
    middle = _middle(field.reach.movedim(0, -1), ndim, trailing=1).flatten(0, -2).amax(0)
    last, first = middle.chunk(2)
    box = None
    if bool(middle.isfinite().all()):
        box = tuple((-int(a), int(b)) for a, b in zip(first, last, strict=True))
    w = field.windows
    if w is None:
        return LayerField(name, kind, None, None, None, None, box)
    spreads = [v.variance for v in w if v.variance is not None]
    return LayerField(
        name,
        kind,
        tuple(v.size for v in w),
        tuple(int(v.jump) if v.jump.denominator == 1 else v.jump for v in w),
        tuple(v.start for v in w),
        tuple(math.sqrt(v) for v in spreads) if len(spreads) == len(w) else None,
        box,
    )


# -- layers ----------------------------------------------------------------------------------------


def layer_values(network: Network) -> dict[str, Operation]:
    """The operation that makes the output of every layer, in order of use.

    Layers are the innermost modules; the model itself is one if nothing in it is. A layer used
    twice appears as `name` and `name (2)`, and an output that no layer makes as `(output)`.
    """
    named = {op.layer for op in network}
    inner = {a for a in named if not any(b != a and b.startswith(f"{a}.") for b in named)}
    inner -= {""} if len(named) > 1 else set()
    found: dict[str, Operation] = {}
    use: list[Operation] = []  # the operations of one use of a layer
    label = ""
    for op in network:
        if op.layer not in inner:
            use = []
            continue
        if not use or use[0].layer != op.layer or any(_same_call(op, other) for other in use):
            use, label, count = [], op.layer or "(model)", 1
            while label in found:
                count += 1
                label = f"{op.layer or '(model)'} ({count})"
        use.append(op)
        if op.outputs and _is_layer_output(op.outputs[0]):
            found[label] = op
    last = network.makers.get(network.output) if isinstance(network.output, Value) else None
    if last is not None and last not in found.values() and _is_layer_output(network.output):
        found["(output)"] = last
    return found


def _is_layer_output(value: Value) -> bool:
    return value.dtype.is_floating_point and value.shape[:1] == (BatchSize(1),)


def _same_call(one: Operation, other: Operation) -> bool:
    """Whether two operations are the same one of a layer that is used twice."""
    weights = [{v for v in op.inputs if v.origin == "parameter"} for op in (one, other)]
    return one.name == other.name and one.layer == other.layer and weights[0] == weights[1] != set()


def _recorded(model: nn.Module, x: Tensor) -> tuple[PureFunction, Network, Tensor]:
    """The operations on inputs like `x[channels, ...]`: in double precision where that runs."""
    function = PureFunction(as_module(model))
    device = function.reference().device
    double, point = function.in_precision(torch.float64), x.double().to(device)
    try:
        return double, _any_number(record(double, point[None])), point
    except ModelRaised:  # its code fixes a precision
        point = x.to(function.reference())
        made = called(function, lambda t: record(function, t), point[None])
        return function, _any_number(made), point


def _any_number(network: Network) -> Network:
    if network.rows is not None:
        raise UnsupportedModel(
            f"{network.title} does not run on any number of inputs: {network.fixed_because}"
        )
    return network


def _layers_at(network: Network, layers: dict[str, Operation], inputs: Tensor) -> list[Tensor]:
    """The outputs of layers, differentiable."""
    part = network.until(*(op.outputs[0] for op in layers.values()))
    with ForeignCode("the model", ModelRaised):
        return list(part.evaluate((inputs,), len(inputs), run_operation))


# -- in fact ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dependence:
    """What the unit in the middle of a layer's output depends on.

    Attributes:
        name: of the layer.
        shape: of its output for one input.
        box: first and last place of the input that the unit depends on, per dimension (maybe not
            on all between); None where it depends on no place. For outputs without the input's
            dimensions, of all of them.
        places: of the input, per dimension.
    """

    name: str
    shape: tuple[int, ...]
    box: tuple[tuple[int, int], ...] | None
    places: tuple[int, ...]

    @property
    def size(self) -> tuple[int, ...]:
        """Places from the first to the last, per dimension."""
        if self.box is None:
            return (0,) * len(self.places)
        return tuple(last - first + 1 for first, last in self.box)

    @property
    def whole(self) -> bool:
        """Whether it depends on both ends of every dimension."""
        return self.size == self.places

    @property
    def share(self) -> float:
        """Part of the input that the box covers."""
        return math.prod(self.size) / math.prod(self.places)


def dependence(model: nn.Module, example: Tensor | Sequence[int]) -> list[Dependence]:
    r"""Which part of the input the layers of any module depend on, in order of use.

    Places of the input are set to NaN, and the unit in the middle of each output is watched: it
    becomes NaN exactly if it is computed from one of them, through any layers, branches and
    functions, and whatever the weights are (a product with 0 is NaN as well). A network that
    replaces NaN by numbers, as `torch.where(x > 0, x, 0)` does, is refused. Bisection finds both
    ends of the field along each dimension. Layers are the innermost modules, and the output
    where none of them makes it.

    Args:
        model: any module or `.pt2` archive with one image or sequence as its input; it runs in
            evaluation mode and, where its code allows that, in double precision, as a copy.
        example: an input `[channels, ...]` without the batch dimension, or its shape.

    Cost: at most `layers * log2(n) + 2` passes of one input for each end and dimension of n places,
    and never more than n.

    >>> net = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv1d(2, 1, 3, padding=1))
    >>> [(d.name, d.box) for d in dependence(net, (1, 9))]
    [('0', ((3, 5),)), ('1', ((3, 5),)), ('2', ((2, 6),))]
    """
    seen = _Marks(model, _example(example))
    places = tuple(seen.x.shape[1:])
    if bool(seen.disturbed(seen.x[None]).any()):
        raise UnsupportedModel(
            "the network gives NaN for a finite input, so what depends on what cannot be seen"
        )
    seen.refuse_lost_marks()
    count = len(seen.layers)
    ends: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    reached = torch.ones(count, dtype=torch.bool)
    for d, n in enumerate(places):
        first, found = seen.bisect(d, n, from_start=True)
        last, _ = seen.bisect(d, n, from_start=False)
        reached &= found
        for layer in range(count):
            ends[layer].append((int(first[layer]), int(last[layer])))
    shapes = [tuple(op.outputs[0].shape[1:]) for op in seen.layers.values()]
    return [
        Dependence(name, shape, tuple(box) if bool(known) else None, places)  # type: ignore[arg-type]
        for name, shape, box, known in zip(seen.layers, shapes, ends, reached, strict=True)
    ]


class _Marks:
    """A network on inputs with NaN in them."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.function, self.network, self.x = _recorded(model, x)
        self.layers = layer_values(self.network)
        if not self.layers:
            raise UnsupportedModel("the network has no layer whose output is a tensor")

    def disturbed(self, inputs: Tensor) -> Tensor:
        """Which layers have NaN in the middle, `[n, layers]`."""
        seen = [
            _middle(out, inputs.ndim).isnan().reshape(len(inputs), -1).any(1)
            for out in self.outputs(inputs)
        ]
        return torch.stack(seen, 1)

    def outputs(self, inputs: Tensor) -> list[Tensor]:
        with torch.no_grad(), global_randomness_kept():  # the same draws in all passes
            return _layers_at(self.network, self.layers, inputs)

    def refuse_lost_marks(self) -> None:
        """Refuse networks that replace NaN by numbers: what depends on it would not show."""
        x = self.x
        arrived = self.disturbed(torch.full_like(x, math.nan)[None])[0]
        here, there = (self.outputs(z[None]) for z in (x, x.flip(tuple(range(x.ndim))) + 1))
        for name, marked, a, b in zip(self.layers, arrived, here, there, strict=True):
            if not bool(marked) and not torch.equal(_middle(a, x.ndim + 1), _middle(b, x.ndim + 1)):
                raise UnsupportedModel(
                    f"layer {name!r} depends on the input, but NaN in it does not arrive there: "
                    "something before it compares or replaces numbers (torch.where, nan_to_num), "
                    "so what depends on what cannot be seen; receptive_fields does not ask"
                )

    def bisect(self, dim: int, n: int, *, from_start: bool) -> tuple[Tensor, Tensor]:
        """Per layer the first (or last) place that it depends on, and whether there is any."""
        layers, x = len(self.layers), self.x
        low = torch.full((layers,), 0)  # NaN in so many places from the end does nothing ...
        high = torch.full((layers,), n)  # ... and in so many it does something, if anything does
        answers: dict[int, Tensor] = {}

        def ask(counts: list[int]) -> None:
            block = max(1, _AT_ONCE // x.numel())
            for at in range(0, len(counts), block):
                part = counts[at : at + block]
                inputs = x[None].repeat(len(part), *[1] * x.ndim)
                for row, count in zip(inputs, part, strict=True):
                    row.narrow(dim + 1, 0 if from_start else n - count, count).fill_(math.nan)
                answers.update(zip(part, self.disturbed(inputs), strict=True))

        ask([n])
        found = answers[n]
        while bool((high - low > 1).any()):
            middle = (low + high) // 2
            open_ = high - low > 1
            ask(sorted({int(m) for m in middle[open_]} - answers.keys()))
            for layer in open_.nonzero().flatten().tolist():
                m = int(middle[layer])
                if bool(answers[m][layer]):
                    high[layer] = m
                else:
                    low[layer] = m
        return (high - 1 if from_start else n - high), found


def _example(example: Tensor | Sequence[int]) -> Tensor:
    if isinstance(example, Tensor):
        if not example.is_floating_point() or example.ndim < 2 or not example.numel():
            raise InvalidType(
                f"an example is one input [channels, ...] of real numbers, not {described(example)}"
            )
        return all_finite(example.detach().double(), "example")
    if not isinstance(example, Sequence):
        raise InvalidType(
            f"an example is one input [channels, ...] or its shape, not {described(example)}"
        )
    shape = whole_numbers(tuple(example), "the shape of the example", fewest=2)
    return torch.randn(shape, dtype=torch.float64, generator=as_generator(0))


def _middle(out: Tensor, ndim: int, *, trailing: int = 0) -> Tensor:
    """The unit in the middle of an output that has the input's dimensions; all of others."""
    if out.ndim - trailing == ndim:
        for d in range(2, ndim):
            out = out.narrow(d, out.shape[d] // 2, 1)
    return out


def forgets_places(
    model: nn.Module, x: Tensor, layer: str, *, output: int | str | None = None
) -> bool:
    """Whether what follows a layer is blind to where its outputs stand, as an average over all is.

    The outputs of the layer are turned around along every dimension, and the model's output must
    not change beyond rounding, with the same random numbers where it draws some. Then nothing that
    is further apart than the receptive field of the layer is seen together: the model sees which
    parts there are, and not how they are arranged.

    Args:
        model: any module; it runs in double precision, where its code allows that, and in
            evaluation mode, as a copy.
        x: inputs `[n, channels, ...]`.
        layer: name of the layer, as `dependence` lists it.
        output: which of several outputs of the model is meant.

    >>> net = nn.Sequential(nn.Conv1d(1, 2, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    >>> x = torch.randn(2, 1, 9)
    >>> forgets_places(net, x, "0"), forgets_places(net[:1], x, "0")
    (True, False)
    """
    plain, turned = _with_other_places(
        model, x, layer, output, lambda made: made.flip(tuple(range(2, made.ndim)))
    )
    rounding = 1e-9 if plain.dtype == torch.float64 else torch.finfo(plain.dtype).eps ** 0.5
    scale = float(plain.abs().max())
    return bool(((turned - plain).abs() <= rounding * scale).all())


def reaches_output(
    model: nn.Module, x: Tensor, layer: str, *, output: int | str | None = None
) -> bool:
    """Whether the model's output is computed from what a layer gives out: NaN in it arrives.

    Args:
        model, x, layer, output: as for `forgets_places`.

    >>> net = nn.Sequential(nn.Conv1d(1, 2, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    >>> reaches_output(net, torch.randn(2, 1, 9), "0")
    True
    """
    _, changed = _with_other_places(
        model, x, layer, output, lambda made: torch.full_like(made, math.nan)
    )
    return bool(changed.isnan().any())


def _with_other_places(
    model: nn.Module,
    x: Tensor,
    layer: str,
    output: int | str | None,
    change: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The model's output, and the one with what a layer gives out changed."""
    x = as_batch(x)
    function, network, first = _recorded(model, x[0])
    function.output = output
    layers = layer_values(network)
    if layer not in layers:
        raise InvalidInput(f"no layer is named {layer!r}; there are {', '.join(layers)}")
    inputs = x.detach().to(first)

    def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = op.function(*args, **kwargs)
        if op is not layers[layer]:
            return made
        if isinstance(made, Tensor):
            return change(made)
        return type(made)([change(made[0]), *made[1:]])

    with torch.no_grad(), global_randomness_kept():
        plain = function.chosen(evaluated(function, network, inputs))
    with torch.no_grad(), global_randomness_kept():
        return plain, function.chosen(evaluated(function, network, inputs, step))


# -- effectively -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EffectiveField:
    """Where the squared gradient of the unit in the middle of a layer comes from.

    Attributes:
        layer: its name.
        energy: `[n_1, ..., n_d]`, adding up to 1.
        samples: inputs that it is the mean of.
        total: what was divided by, the squared length of the gradient, mean over samples.
    """

    layer: str
    energy: Tensor
    samples: int
    total: float = 1.0

    @property
    def center(self) -> tuple[float, ...]:
        """The mean place."""
        return tuple(_moments(self.energy, d)[0] for d in range(self.energy.ndim))

    @property
    def deviation(self) -> tuple[float, ...]:
        """The standard deviation of the place, per dimension."""
        return tuple(math.sqrt(_moments(self.energy, d)[1]) for d in range(self.energy.ndim))

    @property
    def size(self) -> tuple[float, ...]:
        r"""The even field of the same variance, $\sqrt{12\operatorname{Var}+1}$ per dimension."""
        return tuple(math.sqrt(12 * s**2 + 1) for s in self.deviation)

    @property
    def support(self) -> tuple[tuple[int, int], ...]:
        """First and last place with any energy, per dimension."""
        ends = []
        for d in range(self.energy.ndim):
            along = _along(self.energy, d).nonzero().flatten()
            ends.append((int(along[0]), int(along[-1])))
        return tuple(ends)

    def within(self, half_width: int) -> float:
        """Share of the energy in the box of `2 * half_width + 1` places about the center."""
        part = self.energy
        for d, c in enumerate(self.center):
            places = torch.arange(part.shape[d], device=part.device)
            part = part.index_select(d, places[(places - round(c)).abs() <= half_width])
        return float(part.sum())


def effective_receptive_field(
    model: nn.Module,
    x: Tensor,
    layer: str | None = None,
    *,
    probes: int = 1,
    generator: RandomSource = None,
) -> EffectiveField:
    r"""The squared gradient of the unit in the middle of a layer, over places of the input.

    $E(u)\propto\sum_x\sum_{c,c'}\bigl(\partial y_c[\mathrm{middle}]/\partial x_{c'}[u]\bigr)^2$
    over samples, channels of the unit and channels of the input. Random signs for the channels of
    the unit give the sum over them in the mean, with one backward pass per probe.

    Args:
        model: any module whose layer has the dimensions of the input; it runs in evaluation mode.
        x: inputs `[n, channels, ...]`.
        layer: name of the layer, as `dependence` lists it; the last with the dimensions of the
            input unless told.
        probes: how many draws of signs.
        generator: seed or generator of the signs.

    >>> net = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, bias=False))
    >>> _ = net[0].weight.data.fill_(1.0)
    >>> found = effective_receptive_field(net, torch.zeros(2, 1, 7))
    >>> found.support, [round(s, 4) for s in found.size]
    (((2, 4),), [3.0])
    """
    as_module(model)
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 3 or not len(x):
        raise InvalidType(f"x must be inputs [n, channels, ...], not {described(x)}")
    whole_number(probes, "probes", least=1)
    random = as_generator(generator, x.device)
    point = all_finite(x.detach(), "x").clone().requires_grad_()
    with torch.enable_grad(), global_randomness_kept():
        function = PureFunction(model)
        network = _any_number(called(function, lambda t: record(function, t), x.detach()))
        layers = layer_values(network)
        made = _layers_at(network, layers, point)
        name, out = _chosen(dict(zip(layers, made, strict=True)), layer, x.ndim)
        middle = _middle(out, x.ndim)
        energy = torch.zeros(x.shape[2:], dtype=torch.float64, device=x.device)
        for _ in range(probes):
            signs = torch.randint(0, 2, middle.shape, generator=random, device=x.device) * 2 - 1
            (slope,) = torch.autograd.grad(
                (middle * signs).sum(), point, retain_graph=True, allow_unused=True
            )
            if slope is not None:
                energy += slope.double().square().sum((0, 1))
    total = float(energy.sum())
    if not total > 0:
        raise UnsupportedModel(
            f"the unit in the middle of layer {name!r} has no gradient at these inputs, so it has "
            "no effective field"
        )
    return EffectiveField(name, energy / total, len(x), total / (probes * len(x)))


def _chosen(outputs: dict[str, Tensor], layer: str | None, ndim: int) -> tuple[str, Tensor]:
    fitting = {k: v for k, v in outputs.items() if v.ndim == ndim and v.is_floating_point()}
    if layer is None:
        if not fitting:
            raise UnsupportedModel("no layer has an output with the dimensions of the input")
        return list(fitting.items())[-1]
    if layer not in outputs:
        raise InvalidInput(f"no layer is named {layer!r}; there are {', '.join(outputs)}")
    if layer not in fitting:
        raise ShapeMismatch(
            f"layer {layer!r} gives {list(outputs[layer].shape)}, which has no place in the middle "
            "of an image"
        )
    return layer, fitting[layer]


def _along(energy: Tensor, dim: int) -> Tensor:
    others = [d for d in range(energy.ndim) if d != dim]
    return energy.sum(others) if others else energy


def _moments(energy: Tensor, dim: int) -> tuple[float, float]:
    along = _along(energy, dim)
    places = torch.arange(len(along), dtype=along.dtype, device=along.device)
    mean = float((along * places).sum())
    return mean, max(0.0, float((along * (places - mean).square()).sum()))
