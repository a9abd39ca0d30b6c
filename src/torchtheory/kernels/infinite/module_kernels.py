r"""The infinite-width limit of a user's own network: both kernels, read off its operations.

As the hidden widths of a network with random weights grow, the units of a layer become independent
Gaussians with one covariance $K_{ip,jq}$ of the samples $i,j$ and the places $p,q$ of an image or a
sequence, and the tangent kernel becomes a number $\Theta_{ip,jq}$ for each of them. Every operation
has a rule for both:

* a dense layer, with $w=n_{\rm in}\operatorname{Var}W$ and $b=\operatorname{Var}b$:
  $K\mapsto wK+b$, $\Theta\mapsto w\Theta+\gamma_wK+\gamma_b$, where $\gamma_w=w$, $\gamma_b=b$ if
  the parameters are those of the neural tangent parametrization, and $\gamma_w=n_{\rm in}$,
  $\gamma_b=1$ if they are the weights themselves;
* a convolution: the same for the mean over its filter, $K_{ip,jq}\mapsto\frac w{|F|}
  \sum_{\delta\in F}K_{i,p+\delta,j,q+\delta}+b$;
* an activation: $K\mapsto\mathbb E\varphi\varphi'$, $\Theta\mapsto\Theta\,\mathbb E\dot\varphi
  \dot\varphi'$, of Gaussians only;
* what acts on places alone (pooling, padding, up-sampling, means): on both sides of $K$ and
  $\Theta$;
* sums of values that were made with other weights: sums;
* layer normalization over the units: $K_{ij}\mapsto K_{ij}/\sqrt{K_{ii}K_{jj}}$, after the mean was
  taken off.

Sources: Foundations of Deep Learning, Theorem 57 and section 7.3; Mathematical Aspects of Deep
Learning, section 1.2.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite
from torchtheory.core.errors import InvalidType, ShapeMismatch, UnknownName, UnsupportedModel
from torchtheory.kernels.infinite.dense import LimitKernels
from torchtheory.kernels.infinite.dual_activations import dual_activation
from torchtheory.kernels.infinite.duals.closed_forms import PiecewiseLinear
from torchtheory.kernels.infinite.duals.moments import DualActivation
from torchtheory.kernels.learning.functions import Kernel
from torchtheory.models.model import PureFunction
from torchtheory.primer.gaussian_means import gaussian_mean
from torchtheory.tracing.interpret import Call, Rule, Rules, interpret
from torchtheory.tracing.network import Network, Value
from torchtheory.tracing.recorder import record

Parametrization = Literal["ntk", "standard"]

#: Entries of one block of the covariance between all samples and places.
_AT_ONCE = 4_000_000


def module_limit(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    parametrization: Parametrization = "ntk",
) -> LimitKernels:
    r"""Both kernels of a network as its hidden widths grow, on the samples of `x1` and `x2`.

    The variances of its random weights are those of the weights that it has: pass a network as it
    was initialized.

    Args:
        model: dense, convolutional or residual, with sums, concatenations, pooling and layer
            normalization; it is read as it is, and left alone.
        x1, x2: inputs `[n, ...]` and `[m, ...]`; without `x2`, those of `x1` with themselves.
        parametrization: `ntk`: of the parameters $\omega$ in $W=\sigma\omega/\sqrt{n_{\rm in}}$,
            whose kernel has a limit; `standard`: of the weights themselves, at the widths that the
            model has, which is what `empirical_ntk` measures.

    Returns:
        `[n, m]` each; `[n, *places, m, *places]` for a network whose output has places.

    Raises:
        UnsupportedModel: where no limit is known: attention, gates, a weight that is used twice, an
            activation of what is no Gaussian (a ReLU behind the sum of a residual block whose
            shortcut comes out of a ReLU); with the operation and its place.

    Time and memory: those of all pairs of samples and places at once, in blocks of pairs of
    samples. No gradient flows to the inputs.

    >>> from torchtheory.kernels.infinite.dense import limit_kernels
    >>> x = torch.randn(3, 5, dtype=torch.float64)
    >>> net = nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False))
    >>> for p in net.parameters():                         # variance 2 / n, exactly
    ...     _ = nn.init.constant_(p, (2 / p.shape[1]) ** 0.5)
    >>> torch.allclose(module_limit(net, x).ntk, limit_kernels(x, depth=2).ntk)
    True
    """
    if parametrization not in ("ntk", "standard"):
        raise UnknownName("parametrization", str(parametrization), ("ntk", "standard"))
    a = _samples(x1, "x1")
    b = None if x2 is None else _samples(x2, "x2")
    if b is not None and b.shape[1:] != a.shape[1:]:
        raise ShapeMismatch(
            f"the samples of x1 are {list(a.shape[1:])} and those of x2 {list(b.shape[1:])}"
        )
    function = PureFunction(model).in_precision(torch.float64)
    network = record(function, a[:4])
    _refuse_shared_weights(network)
    rules = _rules(parametrization)
    with torch.no_grad():
        if b is None:
            return _blocks(network, rules, a, a, x1.dtype, symmetric=True)
        return _blocks(network, rules, a, b, x1.dtype, symmetric=False)


def limit_kernel(
    model: nn.Module,
    which: Literal["nngp", "ntk"] = "ntk",
    *,
    parametrization: Parametrization = "ntk",
) -> Kernel:
    """Either kernel of a network of infinite width as an object, for regression and processes.

    See `module_limit`.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> k = limit_kernel(net, "nngp")
    >>> k(torch.ones(3, 2)).shape, k
    (torch.Size([3, 3]), nngp(Sequential))
    """
    if which not in ("nngp", "ntk"):
        raise UnknownName("kernel", str(which), ("nngp", "ntk"))

    def matrix(a: Tensor, b: Tensor) -> Tensor:
        both = module_limit(model, a, b, parametrization=parametrization)
        return both.nngp if which == "nngp" else both.ntk

    def on_diagonal(x: Tensor) -> Tensor:
        return torch.cat([matrix(row, row).reshape(1) for row in torch.split(x, 1)])

    return Kernel(matrix, on_diagonal, f"{which}({type(model).__name__})")


def _samples(x: Tensor, name: str) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2 or not len(x):
        raise InvalidType(f"{name} must be a tensor of real numbers, [n, ...] with n >= 1")
    all_finite(x, name)
    return x.detach().double()


def _refuse_shared_weights(network: Network) -> None:
    for name, value in network.parameters.items():
        users = [op for op in network.users.get(value, ()) if op.outputs]
        if len(users) > 1:
            raise UnsupportedModel(
                f"no limit is known: {name} is used {len(users)} times (in {users[1].place}), and "
                "layers with the same weights are not independent"
            )


def _blocks(
    network: Network, rules: Rules, a: Tensor, b: Tensor, dtype: torch.dtype, *, symmetric: bool
) -> LimitKernels:
    """All pairs, in blocks of so many samples that their places fit into memory."""
    places = max(
        (math.prod(s for s in v.shape[2:] if isinstance(s, int)) for op in network
         for v in op.outputs if len(v.shape) > 2),
        default=1,
    )  # fmt: skip
    step = max(1, math.isqrt(_AT_ONCE) // (2 * places))
    rows_nngp, rows_ntk, error = [], [], 0.0
    for start in range(0, len(a), step):
        rows = a[start : start + step]
        parts = []
        for other in range(0, len(b), step):
            columns = b[other : other + step]
            same = symmetric and other == start
            together = rows if same else torch.cat([rows, columns])
            field = _result(interpret(network, rules, [Raw(together)], len(together)))
            count = len(field.sizes)
            own = (slice(0, len(rows)), *(slice(None),) * count)
            theirs = (slice(0 if same else len(rows), None), *(slice(None),) * count)
            ((_, part),) = field.parts
            parts.append((part.covariance[own + theirs], part.tangent[own + theirs]))
            error = max(error, field.error)
        along = 1 + count
        rows_nngp.append(torch.cat([k for k, _ in parts], along))
        rows_ntk.append(torch.cat([t for _, t in parts], along))
    return LimitKernels(torch.cat(rows_nngp).to(dtype), torch.cat(rows_ntk).to(dtype), error)


# ---------------------------------------------------------------------------------- what is carried


@dataclass(frozen=True, eq=False)
class Raw:
    """Inputs, as long as nothing random was applied to them."""

    x: Tensor


@dataclass(frozen=True, eq=False)
class Part:
    r"""Units of one kind.

    Attributes:
        covariance: second moments $K$, `[N, *places, N, *places]`.
        tangent: $\Theta$, of the same shape.
        mean: of the units, `[N, *places]`; None for 0.
        gaussian: whether they are Gaussian.
        made_with: the weights of the affine layers whose outputs they are sums of.
    """

    covariance: Tensor
    tangent: Tensor
    mean: Tensor | None
    gaussian: bool
    made_with: frozenset[Value]


@dataclass(frozen=True, eq=False)
class Field:
    """A value of a network of infinite width.

    Attributes:
        parts: units of several kinds, with how many there are of each.
        channel: the dimension that counts units.
        sizes: of the other dimensions behind the samples, the places.
        flattened: whether places were made units.
        error: how far an expansion may be off.
    """

    parts: tuple[tuple[int, Part], ...]
    channel: int
    sizes: tuple[int, ...]
    flattened: bool = False
    error: float = 0.0

    @property
    def width(self) -> int:
        return sum(count for count, _ in self.parts)

    def each(self, change: Callable[[Part], Part], **other: Any) -> Field:
        """Every part changed."""
        return replace(self, parts=tuple((n, change(p)) for n, p in self.parts), **other)

    def mean_over_units(self) -> tuple[Tensor, Tensor]:
        r"""$K$ and $\Theta$ as the next layer sees them: averages over its inputs."""
        k = sum(n * p.covariance for n, p in self.parts) / self.width
        t = sum(n * p.tangent for n, p in self.parts) / self.width
        assert isinstance(k, Tensor)
        assert isinstance(t, Tensor)
        return (_same_place(k), _same_place(t)) if self.flattened else (k, t)


def _same_place(k: Tensor) -> Tensor:
    """The mean over places that are the same in both samples, `[N, N]`."""
    count = k.shape[0]
    places = math.prod(k.shape[1 : k.ndim // 2])
    return k.reshape(count, places, count, places).diagonal(dim1=1, dim2=3).mean(-1)


def _variance(k: Tensor) -> Tensor:
    """Of every sample and place with itself, `[N, *places]`."""
    half = k.shape[: k.ndim // 2]
    size = math.prod(half)
    return k.reshape(size, size).diagonal().reshape(half)


def _result(made: Any) -> Field:
    several = isinstance(made, tuple | list | dict)
    field = next(iter(made.values() if isinstance(made, dict) else made)) if several else made
    if not isinstance(field, Field):
        raise UnsupportedModel("no limit is known: the network has no layer with random weights")
    k, t = field.mean_over_units()
    sizes = () if field.flattened else field.sizes
    part = Part(k, t, None, False, frozenset())
    return Field(((field.width, part),), field.channel, sizes, error=field.error)


# -------------------------------------------------------------------------------------------- rules


def _rules(parametrization: Parametrization) -> Rules:
    affine: dict[str, Rule] = {
        "linear": partial(_linear, parametrization),
        **{f"conv{n}d": partial(_convolution, parametrization) for n in (1, 2, 3)},
    }
    named: dict[str, Rule] = {
        **affine,
        "add": _sum,
        "sub": _sum,
        "mul": _scale,
        "div": _scale,
        "neg": lambda call: _times(call["input"], -1.0, call),
        "cat": _concatenation,
        "flatten": _rearranged,
        "view": _rearranged,
        "reshape": _rearranged,
        "transpose": _transposed,
        "permute": _transposed,
        "movedim": _transposed,
        "mT": _transposed,
        "layer_norm": _layer_norm,
        "batch_norm": _batch_norm,
        **dict.fromkeys(
            """
            mean sum avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
            adaptive_avg_pool3d interpolate upsample pad flip roll getitem select narrow squeeze
            unsqueeze contiguous clone detach to double float
            """.split(),
            _on_places,
        ),
    }
    return Rules("no limit is known", named, {"entrywise": _activation})


def _field(value: Any, call: Call) -> Field:
    if not isinstance(value, Field):
        raise call.refusal(f"no limit is known for {call.name} before the first random layer")
    return value


def _variances(call: Call) -> tuple[float, float, int]:
    """Of the weights, times the number of inputs; of the biases; and that number."""
    weight, bias = call["weight"], call.get("bias")
    if not isinstance(weight, Tensor):
        raise call.refusal("no limit is known for a weight that follows the input")
    inputs = math.prod(weight.shape[1:])
    return (
        float(weight.square().mean()) * inputs,
        0.0 if bias is None else float(bias.square().mean()),
        inputs,
    )


def _weights(call: Call) -> frozenset[Value]:
    return frozenset(v for v in call.operation.inputs if not v.follows)


def _random_layer(
    parametrization: Parametrization, call: Call, k: Tensor, t: Tensor
) -> tuple[Tensor, Tensor]:
    w, b, inputs = _variances(call)
    own_w, own_b = (w, b) if parametrization == "ntk" else (float(inputs), 1.0)
    if call.get("bias") is None:
        own_b = 0.0
    return w * k + b, w * t + own_w * k + own_b


def _linear(parametrization: Parametrization, call: Call) -> Field:
    given = call["input"]
    if isinstance(given, Raw):
        sizes, error = tuple(given.x.shape[1:-1]), 0.0
        flat = given.x.reshape(-1, given.x.shape[-1])
        k = (flat @ flat.mT / flat.shape[1]).reshape(given.x.shape[:-1] * 2)
        t = torch.zeros_like(k)
    else:
        field = _field(given, call)
        if not field.flattened and field.channel != 1 + len(field.sizes):
            raise call.refusal("no limit is known for a dense layer along places")
        sizes, error = (() if field.flattened else field.sizes), field.error
        k, t = field.mean_over_units()
    k, t = _random_layer(parametrization, call, k, t)
    part = Part(k, t, None, True, _weights(call))
    return Field(((call["weight"].shape[0], part),), 1 + len(sizes), sizes, error=error)


def _convolution(parametrization: Parametrization, call: Call) -> Field:
    given, weight = call["input"], call["weight"]
    if isinstance(given, Raw):
        x = given.x.movedim(1, -1)
        sizes, error = tuple(x.shape[1:-1]), 0.0
        flat = x.reshape(-1, x.shape[-1])
        k = (flat @ flat.mT / flat.shape[1]).reshape(x.shape[:-1] * 2)
        t = torch.zeros_like(k)
        if call["groups"] != 1:
            raise call.refusal("no limit is known for a convolution of the input in groups")
    else:
        field = _field(given, call)
        if field.channel != 1 or field.flattened:
            raise call.refusal("no limit is known for a convolution along units")
        if weight.shape[1] == 1 and call["groups"] > 1:
            raise call.refusal("no limit is known for a convolution of every channel by itself")
        sizes, error = field.sizes, field.error
        k, t = field.mean_over_units()
    k, t = (_filtered(m, call, sizes) for m in (k, t))
    k, t = _random_layer(parametrization, call, k, t)
    part = Part(k, t, None, True, _weights(call))
    made = tuple(k.shape[1 : k.ndim // 2])
    return Field(((weight.shape[0], part),), 1, made, error=error)


def _filtered(k: Tensor, call: Call, sizes: tuple[int, ...]) -> Tensor:
    """The mean over a filter that lies at the same entries of both samples; zeros around."""
    filters = tuple(call["weight"].shape[2:])
    count = len(filters)
    stride, dilation = (_each(call[n], count) for n in ("stride", "dilation"))
    around = _padding(call["padding"], filters, dilation)
    half = k.ndim // 2
    wide = [len(k), *(size + sum(pair) for size, pair in zip(sizes, around, strict=True))]
    inside = [slice(None), *(slice(b, b + n) for n, (b, _) in zip(sizes, around, strict=True))]
    padded = k.new_zeros(wide * 2)
    padded[tuple(inside * 2)] = k
    made = [
        (size + b + a - d * (f - 1) - 1) // s + 1
        for size, (b, a), d, f, s in zip(sizes, around, dilation, filters, stride, strict=True)
    ]
    total: Tensor = padded.new_zeros(())
    for place in itertools.product(*map(range, filters)):
        shifted = padded
        for axis, (p, d, s, m) in enumerate(zip(place, dilation, stride, made, strict=True)):
            taken = torch.arange(m) * s + p * d
            shifted = shifted.index_select(1 + axis, taken).index_select(half + 1 + axis, taken)
        total = total + shifted
    mean: Tensor = total / math.prod(filters)
    return mean


def _each(value: Any, count: int) -> tuple[int, ...]:
    given = tuple(value) if isinstance(value, list | tuple) else (value,)
    return given * count if len(given) == 1 else given


def _padding(given: Any, filters: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    if given == "valid":
        return [(0, 0)] * len(filters)
    if given == "same":
        whole = [d * (f - 1) for d, f in zip(dilation, filters, strict=True)]
        return [(w // 2, w - w // 2) for w in whole]
    return [(p, p) for p in _each(given, len(filters))]


def _activation(call: Call) -> Field:
    field = _field(call.args[0] if call.args else call["input"], call)
    dual = _dual(call)
    error = field.error

    def applied(part: Part) -> Part:
        nonlocal error
        if not part.gaussian:
            raise call.refusal(
                f"no limit is known for {call.name} of a value that is no Gaussian: a sum in which "
                "an activation's output takes part, or an activation of an activation"
            )
        half = part.covariance.shape[: part.covariance.ndim // 2]
        size = math.prod(half)
        k = part.covariance.reshape(size, size)
        variance = k.diagonal().clamp_min(0)
        point = dual.prepare(variance)
        found = dual.pair(
            k, tuple(t.unsqueeze(-1) for t in point), tuple(t.unsqueeze(-2) for t in point),
            slopes=True,
        )  # fmt: skip
        assert found.slopes is not None
        own = dual.on_diagonal(variance)
        assert own.slopes is not None
        values, slopes = found.values.clone(), found.slopes.clone()
        values.diagonal().copy_(own.values)
        slopes.diagonal().copy_(own.slopes)
        error = max(error, found.error)
        tangent = part.tangent.reshape(size, size) * slopes
        mean = gaussian_mean(dual.layer(), variance).reshape(half)
        return Part(
            values.reshape(half * 2), tangent.reshape(half * 2), mean, False, part.made_with
        )

    made = field.each(applied)
    return replace(made, error=error)


def _dual(call: Call) -> DualActivation:
    """The activation of an operation, with its arguments."""
    if any(isinstance(a, Field) for a in [*call.args[1:], *list(call.arguments.values())[1:]]):
        raise call.refusal(f"no limit is known for {call.name} of two values")
    match call.name:
        case "relu" | "abs" | "sin" | "cos" | "erf":
            return dual_activation(call.name)
        case "leaky_relu":
            return PiecewiseLinear(float(call["negative_slope"]), 1.0, "leaky relu")
        case "gelu" if call.get("approximate", "none") == "none":
            return dual_activation("gelu")
        case "prelu" if call["weight"].numel() == 1:
            return PiecewiseLinear(float(call["weight"]), 1.0, "parametric relu")

    def function(z: Tensor) -> Tensor:
        made: Tensor = call.function(z, *call.args[1:], **call.kwargs)
        return made

    return dual_activation(function)


def _sum(call: Call) -> Any:
    one, other = call["input"], call["other"]
    if isinstance(one, Raw) or isinstance(other, Raw):
        raise call.refusal("no limit is known for a sum with the input itself")
    if not (isinstance(one, Field) and isinstance(other, Field)):
        raise call.refusal("no limit is known for the sum with a constant")
    if call.get("alpha", 1) != 1:
        return NotImplemented
    if (one.channel, one.sizes, one.flattened) != (other.channel, other.sizes, other.flattened):
        raise call.refusal("no limit is known for a sum of values of different shapes")
    if [n for n, _ in one.parts] != [n for n, _ in other.parts]:
        raise call.refusal("no limit is known for a sum of values put together of different parts")
    parts = tuple(
        (n, _added(p, q, call)) for (n, p), (_, q) in zip(one.parts, other.parts, strict=True)
    )
    return replace(one, parts=parts, error=max(one.error, other.error))


def _added(p: Part, q: Part, call: Call) -> Part:
    if not p.made_with.isdisjoint(q.made_with):
        raise call.refusal("no limit is known for a sum of two values that the same weights made")
    k = p.covariance + q.covariance
    mean = None
    if p.mean is not None or q.mean is not None:
        sign = -1.0 if call.name == "sub" else 1.0
        one, other = (torch.zeros_like(_variance(k)) if m is None else m for m in (p.mean, q.mean))
        mean = one + sign * other
        # what two independent units have in common are their means
        cross = sign * torch.tensordot(one, other, 0)
        half = tuple(range(k.ndim // 2))
        k = k + cross + cross.permute(*(h + len(half) for h in half), *half)
    gaussian = p.gaussian and q.gaussian
    return Part(k, p.tangent + q.tangent, mean, gaussian, p.made_with | q.made_with)


def _scale(call: Call) -> Any:
    one, other = call["input"], call["other"]
    if isinstance(other, Field | Raw) and call.name == "mul":
        one, other = other, one
    if isinstance(other, Tensor) and other.numel() == 1:
        other = float(other)
    if not isinstance(other, int | float):
        raise call.refusal("no limit is known for a product of two values")
    return _times(one, float(other) if call.name == "mul" else 1 / float(other), call)


def _times(value: Any, factor: float, call: Call) -> Any:
    if isinstance(value, Raw):
        return Raw(value.x * factor)

    def scaled(p: Part) -> Part:
        mean = None if p.mean is None else p.mean * factor
        return replace(
            p, covariance=p.covariance * factor**2, tangent=p.tangent * factor**2, mean=mean
        )

    return _field(value, call).each(scaled)


def _concatenation(call: Call) -> Any:
    given = call["tensors"]
    if not all(isinstance(v, Field) for v in given):
        raise call.refusal("no limit is known for the input side by side with something random")
    first = given[0]
    ndim = 2 + len(first.sizes)
    if any((v.channel, v.sizes, v.flattened) != (first.channel, first.sizes, False) for v in given):
        raise call.refusal("no limit is known for values of different shapes side by side")
    if call["dim"] % ndim != first.channel:
        raise call.refusal("no limit is known for values side by side along places")
    parts = tuple(part for v in given for part in v.parts)
    return replace(first, parts=parts, error=max(v.error for v in given))


def _rearranged(call: Call) -> Any:
    """`flatten`, `view` and `reshape`: places become units, or places of another form."""
    value = call["input"]
    if isinstance(value, Raw):
        return Raw(call.function(value.x, *call.args[1:], **call.kwargs))
    field = _field(value, call)
    (made,) = call.operation.outputs
    shape = [s for s in made.shape[1:] if isinstance(s, int)]
    if len(shape) == 1 and shape[0] == field.width * math.prod(field.sizes):
        return replace(field, flattened=True) if field.sizes else field
    if field.flattened or field.channel != 1 or shape[:1] != [field.width]:
        raise call.refusal(f"no limit is known for {call.name} that takes units apart")
    sizes = tuple(shape[1:])

    def formed(p: Part) -> Part:
        half = (len(p.covariance), *sizes)
        mean = None if p.mean is None else p.mean.reshape(half)
        return replace(
            p, covariance=p.covariance.reshape(half * 2), tangent=p.tangent.reshape(half * 2),
            mean=mean,
        )  # fmt: skip

    return field.each(formed, sizes=sizes)


def _transposed(call: Call) -> Any:
    value = call["input"] if "input" in call.arguments else call.args[0]
    if isinstance(value, Raw):
        return Raw(call.function(value.x, *call.args[1:], **call.kwargs))
    field = _field(value, call)
    if field.flattened:
        raise call.refusal(f"no limit is known for {call.name} of flattened units")
    ndim = 2 + len(field.sizes)
    # which dimension stands where, read off a tensor whose sizes are all different
    marked = call.function(torch.empty(*range(1, ndim + 1)), *call.args[1:], **call.kwargs)
    order = [size - 1 for size in marked.shape]
    if order[0] != 0:
        raise call.refusal("no limit is known for samples that are exchanged with something else")
    channel = order.index(field.channel)
    old = [d for d in range(1, ndim) if d != field.channel]
    places = [old.index(d) for d in order[1:] if d != field.channel]

    def moved(p: Part) -> Part:
        half = [0, *(1 + k for k in places)]
        both = (*half, *(h + len(half) for h in half))
        mean = None if p.mean is None else p.mean.permute(half)
        return replace(
            p, covariance=p.covariance.permute(both), tangent=p.tangent.permute(both), mean=mean
        )

    return field.each(moved, channel=channel, sizes=tuple(field.sizes[k] for k in places))


def _on_places(call: Call) -> Any:
    """What does the same to the places of every unit, linearly."""
    value = call["input"]
    if isinstance(value, Raw):
        return Raw(call.function(value.x, *call.args[1:], **call.kwargs))
    field = _field(value, call)
    if field.flattened:
        raise call.refusal(f"no limit is known for {call.name} of flattened units")
    channel = _channel_behind(call, field)

    def one_side(m: Tensor) -> Tensor:
        """Acts on the last places of `[..., *places]`."""
        front = m.shape[: m.ndim - len(field.sizes)]
        flat = m.reshape(-1, *field.sizes).unsqueeze(field.channel)
        made: Tensor = call.function(flat, *call.args[1:], **call.kwargs)
        return made.squeeze(channel).reshape(
            *front, *(made.shape[1:channel]), *made.shape[channel + 1 :]
        )

    def both(k: Tensor) -> Tensor:
        half = k.ndim // 2
        right = one_side(k)  # [N, *places, N, *new]
        behind = tuple(range(half, right.ndim))
        left = one_side(right.movedim(behind, tuple(range(len(behind)))))  # [N, *new, N, *new]
        count = left.ndim // 2
        return left.movedim(tuple(range(count)), tuple(range(count, 2 * count)))

    def applied(p: Part) -> Part:
        mean = None if p.mean is None else one_side(p.mean)
        return replace(p, covariance=both(p.covariance), tangent=both(p.tangent), mean=mean)

    made = field.each(applied, channel=channel)
    k = made.parts[0][1].covariance
    return replace(made, sizes=tuple(k.shape[1 : k.ndim // 2]))


#: A number of units that no number of places is.
_UNITS = 10_007


def _channel_behind(call: Call, field: Field) -> int:
    """The dimension that counts units in what an operation makes; it may touch neither."""
    shape = [_UNITS + 1, *field.sizes]
    shape.insert(field.channel, _UNITS)
    made = call.function(torch.empty(shape, device="meta"), *call.args[1:], **call.kwargs)
    sizes = list(made.shape)
    if sizes[:1] != [_UNITS + 1] or sizes.count(_UNITS) != 1:
        raise call.refusal(f"no limit is known for {call.name} of units or samples")
    return sizes.index(_UNITS)


def _layer_norm(call: Call) -> Field:
    field = _field(call["input"], call)
    shape = list(call["normalized_shape"])
    if field.flattened or len(shape) != 1 or field.channel != 1 + len(field.sizes):
        raise call.refusal("a limit of layer normalization is known over the units alone")
    eps = float(call["eps"])
    if len(field.parts) > 1:
        raise call.refusal("no limit is known for layer normalization of values put together")
    gain, shift = call.get("weight"), call.get("bias")
    scale = _equal_entries(gain, 1.0, call)
    if _equal_entries(shift, 0.0, call) != 0:
        raise call.refusal("no limit is known for a normalization that adds a constant")

    def normalized(p: Part) -> Part:
        k = p.covariance
        if p.mean is not None:
            k = k - torch.tensordot(p.mean, p.mean, 0)
        size = torch.rsqrt(_variance(k).clamp_min(0) + eps)
        factor = torch.tensordot(size, size, 0)
        k, t = k * factor, p.tangent * factor
        # gain and shift are parameters too, one of each for every unit
        own = (k if gain is not None else 0.0) + (1.0 if shift is not None else 0.0)
        return Part(k * scale**2, t * scale**2 + own, None, p.gaussian, p.made_with)

    return field.each(normalized)


def _batch_norm(call: Call) -> Field:
    field = _field(call["input"], call)
    mean, variance = call["running_mean"], call["running_var"]
    if call.get("training") or not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        raise call.refusal("no limit is known for batch normalization with the batch's statistics")
    if field.channel != 1 or field.flattened or len(field.parts) > 1:
        raise call.refusal("no limit is known for batch normalization of this value")
    gain, shift = call.get("weight"), call.get("bias")
    rescale = torch.rsqrt(variance + float(call["eps"]))
    factor = _equal_entries(rescale if gain is None else rescale * gain, 1.0, call)
    unscaled = _equal_entries(rescale, 1.0, call)
    if _equal_entries(mean, 0.0, call) != 0 or _equal_entries(shift, 0.0, call) != 0:
        raise call.refusal("no limit is known for a normalization that adds a constant")

    def normalized(p: Part) -> Part:
        own = (p.covariance * unscaled**2 if gain is not None else 0.0) + (
            1.0 if shift is not None else 0.0
        )
        moved = None if p.mean is None else p.mean * factor
        k, t = p.covariance * factor**2, p.tangent * factor**2 + own
        return Part(k, t, moved, p.gaussian, p.made_with)

    return field.each(normalized)


def _equal_entries(vector: Tensor | None, default: float, call: Call) -> float:
    """The one number in a vector, as before training."""
    if vector is None:
        return default
    first = float(vector.reshape(-1)[0])
    if not bool(((vector - first).abs() <= 1e-12 * max(1.0, abs(first))).all()):
        raise call.refusal(
            f"no limit is known for {call.name} whose numbers differ from unit to unit, as after "
            "training"
        )
    return first
