r"""What every operation makes of the covariances and tangents of a network of infinite width.

* A dense layer, with $w=n_{\rm in}\operatorname{Var}W$ and $b=\operatorname{Var}b$:
  $K\mapsto wK+b$, $\Theta\mapsto w\Theta+{}$ what its own parameters add;
* a convolution: the same for the mean over its filter, $K_{ip,jq}\mapsto\frac w{|F|}
  \sum_{\delta\in F}K_{i,p+\delta,j,q+\delta}+b$;
* an activation: $K\mapsto\mathbb E\varphi\varphi'$, $\Theta\mapsto\Theta\,\mathbb E\dot\varphi
  \dot\varphi'$, of Gaussians only;
* what acts on places alone (pooling, padding, up-sampling, means): on both sides of $K$ and
  $\Theta$;
* sums of values that were made with other weights: sums;
* layer normalization over the units: $K_{ij}\mapsto K_{ij}/\sqrt{K_{ii}K_{jj}}$, after the mean was
  taken off.

$\Theta$ is linear in what layers add to it, so one set of rules serves two questions: the tangent
kernel, where a layer adds the kernel of its own parameters, and the way of gradients, where it adds
a number times the identity, whose part of the last $\Theta$ is the squared length of the gradient
in its outputs. Sources: Foundations of Deep Learning, Theorem 57 and section 7.3; Mathematical
Aspects of Deep Learning, section 1.2.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.nets.infinite_width.dual_activations import CLOSED_FORMS, dual_activation
from torchtheory.nets.infinite_width.duals.closed_forms import PiecewiseLinear
from torchtheory.nets.infinite_width.duals.moments import DualActivation
from torchtheory.nets.infinite_width.fields import Field, Part, Raw, variance
from torchtheory.primer.gaussian_means import gaussian_mean
from torchtheory.tracing.activations import ACTIVATION_FACTS, activation_facts
from torchtheory.tracing.interpret import Call, Rule, Rules
from torchtheory.tracing.network import Network, leaves, mapped

#: What a layer's own parameters add to the tangent, given the covariance that it sees, averaged
#: over its filter or normalized, and the one that it makes.
Own = Callable[[Call, Tensor, Tensor], Tensor | float]


def refuse_shared_weights(network: Network) -> None:
    """Layers with the same weights are not independent, and no rule here is about them."""
    for name, value in network.parameters.items():
        users = [op for op in network.users.get(value, ()) if op.outputs]
        if len(users) > 1:
            raise UnsupportedModel(
                f"no limit is known: {name} is used {len(users)} times (in {users[1].place}), and "
                "layers with the same weights are not independent"
            )


def largest_places(network: Network) -> int:
    """The most places that a layer sees or makes: pixels of an image, steps of a sequence."""
    found = [1]
    for op in network:
        if op.follows and op.name in ("linear", "conv1d", "conv2d", "conv3d"):
            for value in (op.arguments["input"], *op.outputs):
                places = value.shape[1:-1] if op.name == "linear" else value.shape[2:]
                found.append(math.prod(s for s in places if isinstance(s, int)))
    return max(found)


def limit_rules(own: Own) -> Rules:
    """The rules, given what the parameters of a layer add to the tangent."""
    affine: dict[str, Rule] = {
        "linear": partial(_linear, own),
        **{f"conv{n}d": partial(_convolution, own) for n in (1, 2, 3)},
    }
    named: dict[str, Rule] = {
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
        **dict.fromkeys(
            """
            mean sum avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
            adaptive_avg_pool3d interpolate upsample pad flip roll getitem select narrow squeeze
            unsqueeze contiguous clone detach to double float
            """.split(),
            _on_places,
        ),
    }
    normalizations: dict[str, Rule] = {
        "layer_norm": partial(_layer_norm, own),
        "batch_norm": partial(_batch_norm, own),
    }
    of_inputs = {name: _on_inputs_too(rule) for name, rule in named.items()}
    return Rules(
        "no limit is known",
        {**affine, **normalizations, **of_inputs},
        {"entrywise": _on_inputs_too(_activation)},
    )


def _on_inputs_too(rule: Rule) -> Rule:
    """As long as nothing random has happened, an operation does what it does."""

    def either(call: Call) -> Any:
        given = list(leaves((call.args, call.kwargs)))
        if any(isinstance(v, Field) for v in given):
            return rule(call)
        args, kwargs = mapped((call.args, call.kwargs), lambda v: v.x if isinstance(v, Raw) else v)
        made = call.function(*args, **kwargs)
        if any(isinstance(v, Raw) and made.shape[:1] != v.x.shape[:1] for v in given):
            raise call.refusal(f"no limit is known for {call.name} over samples")
        return Raw(made)

    return either


def _field(value: Any, call: Call) -> Field:
    if not isinstance(value, Field):
        raise call.refusal(f"no limit is known for {call.name} before the first random layer")
    return value


def layer_variances(call: Call) -> tuple[float, float]:
    """Of the weights, times the number of inputs, and of the biases."""
    weight, bias = call["weight"], call.get("bias")
    if not isinstance(weight, Tensor):
        raise call.refusal("no limit is known for a weight that follows the input")
    w = float(weight.detach().square().mean()) * math.prod(weight.shape[1:])
    return w, 0.0 if bias is None else float(bias.detach().square().mean())


def _random_layer(own: Own, call: Call, k: Tensor, t: Tensor) -> Part:
    """Gaussian units, made of what the layer sees."""
    w, b = layer_variances(call)
    made = w * k + b
    weights = frozenset(v for v in call.operation.inputs if not v.follows)
    return Part(made, w * t + own(call, k, made), None, True, weights)


def _linear(own: Own, call: Call) -> Field:
    given = call["input"]
    if isinstance(given, Raw):
        sizes, error = tuple(given.x.shape[1:-1]), 0.0
        k = given.covariance(-1)
        t = torch.zeros_like(k)
    else:
        field = _field(given, call)
        if not field.flattened and field.channel != 1 + len(field.sizes):
            raise call.refusal("no limit is known for a dense layer along places")
        sizes, error = (() if field.flattened else field.sizes), field.error
        k, t = field.mean_over_units()
    part = _random_layer(own, call, k, t)
    return Field(((call["weight"].shape[0], part),), 1 + len(sizes), sizes, error=error)


def _convolution(own: Own, call: Call) -> Field:
    given, weight = call["input"], call["weight"]
    if isinstance(given, Raw):
        sizes, error = tuple(given.x.shape[2:]), 0.0
        k = given.covariance(1)
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
    part = _random_layer(own, call, *(_filtered(m, call, sizes) for m in (k, t)))
    made = tuple(part.covariance.shape[1 : part.covariance.ndim // 2])
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
    given = {v for v in leaves((call.args, call.kwargs)) if isinstance(v, Field | Raw)}
    if len(given) > 1:
        raise call.refusal(f"no limit is known for {call.name} of two values")
    field = _field(given.pop(), call)
    error = field.error

    def applied(part: Part) -> Part:
        nonlocal error
        if part.gaussian:
            source, function, dual = part, partial(_entrywise, call, field), _dual(call, field)
        elif part.source is not None:
            source, before = part.source
            function = partial(_after, partial(_entrywise, call, field), before)
            dual = dual_activation(function)
        else:
            raise call.refusal(
                f"no limit is known for {call.name} of a value that is no Gaussian: a sum in which "
                "an activation's output takes part"
            )
        half = source.covariance.shape[: source.covariance.ndim // 2]
        size = math.prod(half)
        k = source.covariance.reshape(size, size)
        own = k.diagonal().clamp_min(0)
        point = dual.prepare(own)
        found = dual.pair(
            k, tuple(t.unsqueeze(-1) for t in point), tuple(t.unsqueeze(-2) for t in point),
            slopes=True,
        )  # fmt: skip
        assert found.slopes is not None
        same = dual.on_diagonal(own)
        assert same.slopes is not None
        values, slopes = found.values.clone(), found.slopes.clone()
        values.diagonal().copy_(same.values)
        slopes.diagonal().copy_(same.slopes)
        error = max(error, found.error)
        tangent = source.tangent.reshape(size, size) * slopes
        mean = gaussian_mean(dual.layer(), own).reshape(half)
        return Part(
            values.reshape(half * 2), tangent.reshape(half * 2), mean, False, part.made_with,
            (source, function),
        )  # fmt: skip

    made = field.each(applied)
    return replace(made, error=error)


def _entrywise(call: Call, field: Field, z: Tensor) -> Tensor:
    """What an operation with one value does to numbers in its place."""
    args, kwargs = mapped((call.args, call.kwargs), lambda v: z if v is field else v)
    made: Tensor = call.function(*args, **kwargs)
    return made


def _after(
    outer: Callable[[Tensor], Tensor], inner: Callable[[Tensor], Tensor], z: Tensor
) -> Tensor:
    return outer(inner(z))


def _dual(call: Call, field: Field) -> DualActivation:
    """The activation of an operation, with its arguments."""
    function = partial(_entrywise, call, field)
    if call.name == "prelu" and call["weight"].numel() > 1:
        raise call.refusal("no limit is known for slopes that differ from unit to unit")
    if call.name in ACTIVATION_FACTS and activation_facts(call.name, **call.arguments).homogeneous:
        left, right = (float(function(torch.full((1, 1), s).double())) for s in (-1.0, 1.0))
        return PiecewiseLinear(-left, right, call.name)
    if call.name in CLOSED_FORMS and call.get("approximate", "none") == "none":
        return CLOSED_FORMS[call.name]
    return dual_activation(function)


def _sum(call: Call) -> Any:
    one, other = call["input"], call["other"]
    if isinstance(one, Field | Raw) and isinstance(other, Field | Raw):
        other = _times(other, float(call.get("alpha", 1)), call)
    if isinstance(one, Raw) and isinstance(other, Field):
        one = _beside(one, other, call)
    elif isinstance(other, Raw) and isinstance(one, Field):
        other = _beside(other, one, call)
    if not (isinstance(one, Field) and isinstance(other, Field)):
        number = other if isinstance(one, Field) else one
        if isinstance(number, Tensor) and number.numel() > 1:
            raise call.refusal("no limit is known for the sum with numbers that differ")
        return _activation(call)
    if (one.channel, one.sizes, one.flattened) != (other.channel, other.sizes, other.flattened):
        raise call.refusal("no limit is known for a sum of values of different shapes")
    if [n for n, _ in one.parts] != [n for n, _ in other.parts]:
        raise call.refusal("no limit is known for a sum of values put together of different parts")
    parts = tuple(
        (n, _added(p, q, call)) for (n, p), (_, q) in zip(one.parts, other.parts, strict=True)
    )
    return replace(one, parts=parts, error=max(one.error, other.error))


def _beside(inputs: Raw, field: Field, call: Call) -> Field:
    """Inputs in a sum with a random value."""
    if inputs.x.ndim != 2 + len(field.sizes):
        raise call.refusal("no limit is known for a sum of values of different shapes")
    return inputs.field(field.channel)


def _added(p: Part, q: Part, call: Call) -> Part:
    if not p.made_with.isdisjoint(q.made_with):
        raise call.refusal("no limit is known for a sum of two values that the same weights made")
    k = p.covariance + q.covariance
    mean = None
    if p.mean is not None or q.mean is not None:
        sign = -1.0 if call.name == "sub" else 1.0
        one, other = (torch.zeros_like(variance(k)) if m is None else m for m in (p.mean, q.mean))
        mean = one + sign * other
        # what two independent units have in common are their means
        cross = sign * torch.tensordot(one, other, 0)
        half = tuple(range(k.ndim // 2))
        k = k + cross + cross.permute(*(h + len(half) for h in half), *half)
    gaussian = p.gaussian and q.gaussian
    return Part(k, p.tangent + q.tangent, mean, gaussian, p.made_with | q.made_with)


def _scale(call: Call) -> Any:
    one, other = call["input"], call["other"]
    if isinstance(other, Field) and call.name == "mul":
        one, other = other, one
    if isinstance(other, Tensor) and other.numel() == 1:
        other = float(other)
    if not isinstance(other, int | float):
        raise call.refusal("no limit is known for a product of two values")
    return _times(one, float(other) if call.name == "mul" else 1 / float(other), call)


def _times(value: Any, factor: float, call: Call) -> Any:
    if isinstance(value, Raw):
        return Raw(value.x * factor)
    if factor == 1:
        return value
    return _field(value, call).each(
        lambda p: p.mapped(lambda k: k * factor**2, lambda m: m * factor)
    )


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
        return p.mapped(lambda k: k.reshape(half * 2), lambda m: m.reshape(half))

    return field.each(formed, sizes=sizes)


def _transposed(call: Call) -> Any:
    value = call["input"] if "input" in call.arguments else call.args[0]
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
        return p.mapped(lambda k: k.permute(both), lambda m: m.permute(half))

    return field.each(moved, channel=channel, sizes=tuple(field.sizes[k] for k in places))


def _on_places(call: Call) -> Any:
    """What does the same to the places of every unit, linearly."""
    value = call["input"]
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

    made = field.each(lambda p: p.mapped(both, one_side), channel=channel)
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


def _layer_norm(own: Own, call: Call) -> Field:
    field = _field(call["input"], call)
    shape = list(call["normalized_shape"])
    if field.flattened or len(shape) != 1 or field.channel != 1 + len(field.sizes):
        raise call.refusal("a limit of layer normalization is known over the units alone")
    eps = float(call["eps"])
    if len(field.parts) > 1:
        raise call.refusal("no limit is known for layer normalization of values put together")
    scale = _equal_entries(call.get("weight"), 1.0, call)
    if _equal_entries(call.get("bias"), 0.0, call) != 0:
        raise call.refusal("no limit is known for a normalization that adds a constant")

    def normalized(p: Part) -> Part:
        k = p.covariance
        if p.mean is not None:
            k = k - torch.tensordot(p.mean, p.mean, 0)
        size = torch.rsqrt(variance(k).clamp_min(0) + eps)
        factor = torch.tensordot(size, size, 0)
        k, t = k * factor, p.tangent * factor
        made = k * scale**2
        # gain and shift are parameters too, one of each for every unit
        return Part(made, t * scale**2 + own(call, k, made), None, p.gaussian, p.made_with)

    return field.each(normalized)


def _batch_norm(own: Own, call: Call) -> Field:
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
        made = p.mapped(lambda k: k * factor**2, lambda m: m * factor)
        added = own(call, p.covariance * unscaled**2, made.covariance)
        return replace(made, tangent=made.tangent + added)

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
