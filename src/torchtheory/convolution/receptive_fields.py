r"""Receptive fields: which part of the input a unit can see, and which part it looks at.

*In theory.* A unit behind layers of $k_\ell$ taps, dilations $\delta_\ell$ and strides $s_\ell$
depends on places of the input that lie within $r_\ell$ of them, from the first to the last, with

$$r_\ell=r_{\ell-1}+\delta_\ell(k_\ell-1)\,j_{\ell-1},\qquad j_\ell=s_\ell\,j_{\ell-1},\qquad
r_0=j_0=1$$

(`receptive_fields`, of a chain of layers). *In fact*, of any module, branches and attention
included: what a unit depends on turns into NaN with it, and nothing else does (`dependence`).

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
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.convolution.layer_matrices import CONVOLUTIONS
from torchtheory.core.checks import (
    all_finite,
    as_batch,
    as_module,
    described,
    whole_number,
    whole_numbers,
)
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.evaluation import called
from torchtheory.models.model import (
    PureFunction,
    evaluation_mode,
    global_randomness_kept,
    one_output,
)
from torchtheory.models.untouched import copied
from torchtheory.nets.feedforward import layer_outputs
from torchtheory.tracing.chain import Link, as_chain, has_own_forward

_POOLS = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.LPPool1d, nn.LPPool2d, nn.LPPool3d,
)  # fmt: skip

_PADDINGS = (
    nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d,
    nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d, nn.ReplicationPad1d,
    nn.ReplicationPad2d, nn.ReplicationPad3d, nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d,
)  # fmt: skip

#: Layers whose every entry depends on entries at its own place only.
_PLACE_BY_PLACE = (
    nn.Identity, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Dropout, nn.Dropout1d,
    nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.PReLU, nn.Softmax2d,
    nn.LocalResponseNorm,
)  # fmt: skip

#: Layers of torch's activations that join entries along one of their dimensions.
_ALONG_A_DIMENSION = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU)

#: Entries of one batch of inputs, at most.
_AT_ONCE = 2**19


@dataclass(frozen=True, slots=True)
class LayerField:
    """The receptive field of a unit behind a layer of a chain.

    Attributes:
        name, kind: of the layer.
        size: extent of the field per dimension: places of the input from the first that a unit
            depends on to the last, padding included. With dilations, or strides longer than the
            windows before them, it does not depend on all of these. None from a layer on that is
            no window of places: one that mixes all of them, or resizes.
        jump: places of the input from one unit to the next, per dimension.
        start: the first place of the field of the first unit, negative on the padding.
        deviation: of the place that a squared gradient comes from, in the mean over independent
            weights, per dimension.
    """

    name: str
    kind: str
    size: tuple[int, ...] | None
    jump: tuple[int, ...] | None
    start: tuple[int, ...] | None
    deviation: tuple[float, ...] | None


def receptive_fields(model: nn.Module, dimensions: int = 2) -> list[LayerField]:
    """The receptive field of a unit behind every layer of a chain, by the recursion.

    Args:
        model: an `nn.Sequential`, or a module that `torch.fx` traces as a chain; `dependence` asks
            any other.
        dimensions: of its images; 2 unless told.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3))
    >>> [(f.size, f.jump) for f in receptive_fields(net)]
    [((3, 3), (1, 1)), ((3, 3), (1, 1)), ((4, 4), (2, 2)), ((8, 8), (2, 2))]
    >>> receptive_fields(nn.Conv1d(1, 1, 3, dilation=2), 1)[0].size  # of 5 places 3 are read
    (5,)
    """
    dims = whole_number(dimensions, "dimensions", least=1, most=3)
    found: list[LayerField] = []
    size, jump, start = [1] * dims, [1] * dims, [0] * dims
    variance = [0.0] * dims
    mixed = False
    for link in as_chain(as_module(model)):
        kind = type(link.module).__name__
        windows = None if mixed else _windows(link, dims)
        if windows is None:
            mixed = True
            found.append(LayerField(link.name, kind, None, None, None, None))
            continue
        for d, (taps, stride, dilation, before) in enumerate(windows):
            size[d] += dilation * (taps - 1) * jump[d]
            start[d] -= before * jump[d]
            variance[d] += dilation**2 * (taps**2 - 1) * jump[d] ** 2 / 12
            jump[d] *= stride
        spread = tuple(math.sqrt(v) for v in variance)
        found.append(LayerField(link.name, kind, tuple(size), tuple(jump), tuple(start), spread))
    return found


def _windows(link: Link, dims: int) -> list[tuple[int, int, int, int]] | None:
    """Taps, stride, dilation and padding per dimension; None for a layer that mixes all places."""
    module = link.module

    def each(value: Any) -> list[int]:
        numbers = [value] * dims if isinstance(value, int) else [int(v) for v in value]
        return numbers * dims if len(numbers) == 1 else numbers

    if isinstance(module, CONVOLUTIONS) and has_own_forward(module):
        _refuse_other_dimension(module, len(module.kernel_size), dims)
        before = module._reversed_padding_repeated_twice[::-1][1::2]
        return list(zip(module.kernel_size, module.stride, module.dilation, before, strict=True))
    if isinstance(module, _POOLS):
        _refuse_other_dimension(module, int(type(module).__name__[-2]), dims)
        options = vars(module)
        stride = options["stride"] if options["stride"] is not None else options["kernel_size"]
        settings = (
            options["kernel_size"], stride, options.get("dilation", 1), options.get("padding", 0),
        )  # fmt: skip
        return list(zip(*(each(v) for v in settings), strict=True))
    if isinstance(module, _PADDINGS):
        _refuse_other_dimension(module, int(type(module).__name__[-2]), dims)
        before = [int(v) for v in module.padding[::2]][::-1]  # torch begins with the last dimension
        return [(1, 1, 1, p) for p in before]
    if isinstance(module, _ALONG_A_DIMENSION):
        across_channels = module.dim in (1, -1 - dims)
        return [(1, 1, 1, 0)] * dims if across_channels else None
    pointwise = module.__class__.__module__ == "torch.nn.modules.activation"
    attention = isinstance(module, nn.MultiheadAttention)
    if isinstance(module, _PLACE_BY_PLACE) or (pointwise and not attention):
        return [(1, 1, 1, 0)] * dims
    return None


def _refuse_other_dimension(module: nn.Module, own: int, dims: int) -> None:
    if own != dims:
        raise InvalidInput(
            f"{type(module).__name__} takes images of {own} dimension{'s' * (own > 1)}, not {dims}"
        )


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
    ends of the field along each dimension. Layers are the modules without children.

    Args:
        model: any module with one image or sequence as its input; it runs in evaluation mode and,
            where its code allows that, in double precision, as a copy.
        example: an input `[channels, ...]` without the batch dimension, or its shape.

    Cost: at most `layers * log2(n) + 2` passes of one input for each end and dimension of n places,
    and never more than n.

    >>> net = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv1d(2, 1, 3, padding=1))
    >>> [(d.name, d.box) for d in dependence(net, (1, 9))]
    [('0', ((3, 5),)), ('1', ((3, 5),)), ('2', ((2, 6),))]
    """
    own, x = _precise(model, _example(example))
    places = tuple(x.shape[1:])
    names, shapes, calm = _disturbed(own, x[None])
    if bool(calm.any()):
        raise UnsupportedModel(
            "the network gives NaN for a finite input, so what depends on what cannot be seen"
        )
    if not names:
        raise UnsupportedModel("the network has no layer whose output is a tensor")
    _refuse_lost_marks(own, x)
    count = len(names)
    ends: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    reached = torch.ones(count, dtype=torch.bool)
    for d, n in enumerate(places):
        first, found = _bisect(own, x, d, n, count, from_start=True)
        last, _ = _bisect(own, x, d, n, count, from_start=False)
        reached &= found
        for layer in range(count):
            ends[layer].append((int(first[layer]), int(last[layer])))
    return [
        Dependence(name, shape, tuple(box) if bool(known) else None, places)
        for name, shape, box, known in zip(names, shapes, ends, reached, strict=True)
    ]


def _refuse_lost_marks(model: nn.Module, x: Tensor) -> None:
    """Refuse networks that replace NaN by numbers: what depends on the input would not show."""
    names, _, seen = _disturbed(model, torch.full_like(x, math.nan)[None])
    with torch.no_grad():
        others = []
        for z in (x, x.flip(tuple(range(x.ndim))) + 1):
            with global_randomness_kept():  # the same draws in both passes
                others.append(layer_outputs(model, z[None]))
    for name, arrived in zip(names, seen[0], strict=True):
        here, there = (_middle(made[name], x.ndim + 1) for made in others)
        if not bool(arrived) and not torch.equal(here, there):
            raise UnsupportedModel(
                f"layer {name!r} depends on the input, but NaN in it does not arrive there: "
                "something before it compares or replaces numbers (torch.where, nan_to_num), so "
                "what depends on what cannot be seen"
            )


def _precise(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    """A copy of the model and an input `[channels, ...]`: in double precision where that runs."""
    own = copied(as_module(model))
    like = PureFunction(own).reference()
    double, point = copied(own).double(), x.double().to(like.device)
    try:
        with torch.no_grad(), global_randomness_kept(), evaluation_mode(double):
            double(point[None].clone())
    except Exception:  # its code fixes a precision
        point = x.to(like)
        function = PureFunction(own)
        with torch.no_grad(), global_randomness_kept(), evaluation_mode(own):
            called(function, lambda t: own(t.clone()), point[None])
        return own, point
    return double, point


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


def _bisect(
    model: nn.Module, x: Tensor, dim: int, n: int, layers: int, *, from_start: bool
) -> tuple[Tensor, Tensor]:
    """Per layer the first (or last) place that it depends on, and whether there is any."""
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
            seen = _disturbed(model, inputs)[2]
            answers.update(zip(part, seen, strict=True))

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


def _disturbed(model: nn.Module, inputs: Tensor) -> tuple[list[str], list[tuple[int, ...]], Tensor]:
    """Names and shapes of the layers, and which of them have NaN in the middle, `[n, layers]`."""
    with torch.no_grad(), global_randomness_kept():
        outputs = {
            name: out
            for name, out in layer_outputs(model, inputs).items()
            if out.is_floating_point() and out.ndim >= 1 and len(out) == len(inputs)
        }
    seen = [
        _middle(out, inputs.ndim).isnan().reshape(len(inputs), -1).any(1)
        for out in outputs.values()
    ]
    shapes = [tuple(out.shape[1:]) for out in outputs.values()]
    return list(outputs), shapes, torch.stack(seen, 1) if seen else torch.zeros(len(inputs), 0)


def _middle(out: Tensor, ndim: int) -> Tensor:
    """The unit in the middle of an output that has the input's dimensions; all of others."""
    if out.ndim == ndim:
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
    own, first = _precise(model, x[0])
    name, use = _numbered(layer, dict(own.named_modules()))
    calls = 0

    def hook(module: nn.Module, inputs: Any, made: Tensor) -> Tensor | None:
        nonlocal calls
        calls += 1
        return change(made) if calls == use else None

    def run() -> Tensor:
        with torch.no_grad(), global_randomness_kept(), evaluation_mode(own):
            return one_output(own(x.detach().to(first).clone()), output)

    plain = run()
    handle = own.get_submodule(name).register_forward_hook(hook)
    try:
        return plain, run()
    finally:
        handle.remove()


def _numbered(layer: str, modules: dict[str, nn.Module]) -> tuple[str, int]:
    """The module of a name of `layer_outputs`, and at which of its uses."""
    if layer in modules:
        return layer, 1
    name, _, count = layer.rpartition(" (")
    name = "" if (name or layer) == "(model)" else name
    if name not in modules or not (count[:-1].isdigit() or layer == "(model)"):
        raise InvalidInput(f"no layer is named {layer!r}")
    return name, int(count[:-1]) if count[:-1].isdigit() else 1


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
        outputs = called(PureFunction(model), lambda t: layer_outputs(model, t), point)
        name, out = _chosen(outputs, layer, x.ndim)
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
