r"""What every operation of torch does with relevance: the table `HANDLERS`, by plain names.

A handler gets the pass, the operation's name and its own arguments, at least one of which is a
signal, and returns the signal that the operation makes; `NotImplemented` if it does not apply.

* *Moves* (reshaping, slicing, joining, repeating) and *choices* (maxima) need no rule: the
  derivative takes the relevance of every entry where the entry came from.
* *Linear* operations follow the rule that the composite chooses.
* *Functions of entries* hand on relevance unchanged. Where $f(0)\ne0$, as for softplus, this part
  of the output is nobody's: $f(0)/f(x)$ of the relevance goes to the biases. Gates (sigmoid,
  softmax) hand on everything, as in the source.
* *Products* of two signals follow the product rule; a denominator is a gate that gets nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.explanation.propagation.linear_maps import LinearMap, per_unit
from torchtheory.explanation.propagation.marks import (
    Mark,
    SamplesMixed,
    constant_along,
    mark_of,
    moved,
    narrowed,
    noted,
    together,
)
from torchtheory.explanation.propagation.tracing import Handler, Propagation
from torchtheory.models.model import tensors_in


def _signal(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _function(name: str) -> Callable[..., Any]:
    """The function of torch with this plain name, which does not write to its input."""
    for home in (Tensor, torch, F, torch.special, torch._C._nn):
        if hasattr(home, name):
            found: Callable[..., Any] = getattr(home, name)
            return found
    raise AttributeError(name)


# -- moves and choices -----------------------------------------------------------------------------


def _move(home: Any = None) -> Handler:
    """An operation that puts entries of one signal elsewhere, or repeats or leaves out some."""

    def handle(trace: Propagation, name: str, x: Any, *args: Any, **named: Any) -> Any:
        if not _signal(x):
            return NotImplemented
        func = getattr(home, name) if home is not None else _function(name)
        made = func(x, *args, **named)
        mark = mark_of(x)
        # numbers of samples are laid out in another way, so that they have no such view
        alike = {"view": "reshape", "view_as": "reshape_as"}.get(name)
        of_samples = func if alike is None else _function(alike)
        samples = moved(mark.samples, x.shape, lambda s: of_samples(s, *args, **named))
        return _noted_like(made, samples, mark)

    return handle


def _noted_like(made: Any, samples: Any, mark: Mark) -> Any:
    if isinstance(made, Tensor):
        return noted(made, Mark(samples, mark.gate, mark.depth, mark.ends))
    each = [None] * len(made) if samples is None else samples
    for t, s in zip(made, each, strict=True):
        noted(t, Mark(s, mark.gate, mark.depth, mark.ends))
    return made


def _property(trace: Propagation, name: str, x: Tensor) -> Any:
    """`x.T` and the like."""
    get = getattr(Tensor, name.removeprefix("get ")).__get__
    mark = mark_of(x)
    return _noted_like(get(x), moved(mark.samples, x.shape, get), mark)


def _same(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    """A cast, or a copy."""
    made = _function(name)(x, *args, **named)
    return noted(made, mark_of(x)) if made is not x and _signal(made) else made


def _itself(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    return x


def _dropout(
    trace: Propagation, name: str, x: Tensor, p: float = 0.5, training: Any = True, **named: Any
) -> Any:
    if (training or named.get("train", False)) and p > 0:
        raise trace.refusal("the network drops units at random")
    return x


def _iterated(trace: Propagation, name: str, x: Tensor) -> Any:
    with trace:
        return iter(x.unbind(0))


def _pooled_maximum(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    """The largest entry of each window gets everything; of several, the first."""
    made = getattr(F, name)(x, *args, **named)
    constant_along(mark_of(x).samples, range(1, x.ndim))
    return _first_noted(made, mark_of(x))


def _first_noted(made: Any, mark: Mark) -> Any:
    noted(made if isinstance(made, Tensor) else made[0], mark)
    return made


def _chosen(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    """Some entries along a dimension, by their sizes."""
    if not _signal(x):
        return NotImplemented
    if args and isinstance(args[0], Tensor):
        return _larger(trace, {"max": "maximum", "min": "minimum"}[name], x, args[0])
    func = _function(name)
    made = func(x, *args, **named)
    mark = mark_of(x)
    first = made if isinstance(made, Tensor) else made[0]
    if mark.samples is None:
        return _first_noted(made, mark)
    if name in ("sort", "topk", "msort"):
        dim = {"topk": 1, "sort": 0}.get(name, 0)
        along = named.get("dim", args[dim] if len(args) > dim else -1 if name != "msort" else 0)
        constant_along(mark.samples, [along])
        return _first_noted(made, mark)
    at = 1 if name == "kthvalue" else 0
    dims = named.get("dim", args[at] if len(args) > at else None)
    keep = bool(named.get("keepdim", args[at + 1] if len(args) > at + 1 else False))
    samples = _reduced(mark.samples, dims, keep)
    assert samples is None or samples.ndim == first.ndim
    return _first_noted(made, Mark(samples, mark.gate, mark.depth))


def _reduced(samples: Tensor | None, dims: Any, keep: bool) -> Tensor | None:
    """Samples of sums along dimensions; all of them for None."""
    if samples is None:
        return None
    over = range(samples.ndim) if dims is None or dims == () else dims
    over = [over] if isinstance(over, int) else list(over)
    constant_along(samples, over)
    return samples.amax(over, keepdim=keep) if samples.ndim else samples


def _larger(trace: Propagation, name: str, a: Any, b: Any) -> Any:
    """The larger or smaller of two; equal ones share."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return NotImplemented
    if _signal(a) and _signal(b):
        made = _function(name)(a, b)
        return noted(made, trace.entrywise([a, b], made.ndim))
    signal, constant = (a, b) if _signal(a) else (b, a)
    wins = signal.detach() >= constant if name == "maximum" else signal.detach() <= constant
    with trace:
        return torch.where(wins, signal, constant)


# -- moves that join signals and constants ---------------------------------------------------------


def _joined(
    trace: Propagation,
    name: str,
    made: Tensor,
    signals: Sequence[Tensor],
    kept: Callable[[], Tensor],
    samples: Tensor | None,
    constants: bool,
) -> Tensor:
    """A move of several tensors; relevance of entries that come from constants is noted."""
    depth = max(mark_of(s).depth for s in signals)
    gate = all(mark_of(s).gate for s in signals) and not constants
    mark = Mark(samples, gate, depth)
    if not constants:
        return noted(made, mark)
    place = trace.place(name, depth, weighted=False)

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        from_signals = kept().to(relevance)
        stays = relevance * from_signals
        lost = relevance * (1 - from_signals)
        if bool(lost.any()):
            trace.book(place(), "moved", relevance, samples, [(stays, samples)], lost)
        return (relevance,)

    return noted(trace.node(made.detach().clone(), back, [made]), mark)


def _ones(value: Any) -> Any:
    """1 for entries of signals, 0 for those of constants."""
    if isinstance(value, Tensor):
        like = torch.ones_like if value.requires_grad else torch.zeros_like
        return like(value.detach(), dtype=torch.float32)
    return 0.0


def _cat(
    trace: Propagation, name: str, tensors: Any, dim: int = 0, *, axis: int | None = None
) -> Any:
    dim = dim if axis is None else axis
    tensors = list(tensors)
    func = getattr(torch, name)
    made = func(tensors, dim)
    signals = [t for t in tensors if _signal(t)]
    owners = [mark_of(t).samples for t in signals]
    along = dim % made.ndim
    samples: Tensor | None = None
    known = [o for o in owners if o is not None]
    if known:
        # a new dimension of a stack is one along which samples do not change, yet
        if name == "stack":
            known = [o.unsqueeze(along) for o in known]
        if all(o.shape[along] == 1 for o in known) and _agree(known):
            samples = known[0]
        elif len(known) == len(tensors):
            whole = [
                o if name == "stack"
                else o.expand(*o.shape[:along], t.shape[along], *o.shape[along + 1 :])
                for o, t in zip(known, tensors, strict=True)
            ]  # fmt: skip
            samples = narrowed(torch.cat(_alike(whole, along), along))
        else:
            raise SamplesMixed
    constants = len(signals) < len(tensors)
    return _joined(
        trace, name, made, signals, lambda: func([_ones(t) for t in tensors], dim), samples,
        constants,
    )  # fmt: skip


def _agree(owners: Sequence[Tensor]) -> bool:
    return all(o.shape == owners[0].shape and torch.equal(o, owners[0]) for o in owners[1:])


def _alike(owners: Sequence[Tensor], along: int) -> list[Tensor]:
    shape = [max(o.shape[d] for o in owners) for d in range(owners[0].ndim)]
    return [o.expand(*shape[:along], o.shape[along], *shape[along + 1 :]) for o in owners]


def _side_by_side(trace: Propagation, name: str, tensors: Any) -> Any:
    """`hstack`, `vstack`, `dstack` as what they are."""
    at_least = {"hstack": torch.atleast_1d, "vstack": torch.atleast_2d, "dstack": torch.atleast_3d}
    with trace:
        tensors = at_least[name](*tensors)  # type: ignore[no-untyped-call]
        ndim = tensors[0].ndim
        dim = {"hstack": 0 if ndim == 1 else 1, "vstack": 0, "dstack": 2}[name]
        return torch.cat(tensors, dim)


def _pad(
    trace: Propagation, name: str, x: Tensor, pad: Any, mode: str = "constant", value: Any = None
) -> Any:
    made = F.pad(x, pad, mode, value)
    samples = mark_of(x).samples
    padded = [x.ndim - 1 - k for k in range(len(pad) // 2) if pad[2 * k] or pad[2 * k + 1]]
    constant_along(samples, padded)
    return _joined(
        trace, name, made, [x], lambda: F.pad(torch.ones_like(x.detach()), pad), samples,
        mode == "constant",
    )  # fmt: skip


def _where(trace: Propagation, name: str, condition: Tensor, a: Any = None, b: Any = None) -> Any:
    if a is None or b is None:
        return NotImplemented
    if name == "masked_fill" or name == "masked_scatter":
        return NotImplemented
    made = torch.where(condition, a, b)
    signals = [t for t in (a, b) if _signal(t)]
    mark = trace.entrywise(signals, made.ndim)
    return _joined(
        trace,
        name,
        made,
        signals,
        lambda: torch.where(condition, _ones(a), _ones(b)).expand_as(made),
        mark.samples,
        len(signals) < 2,
    )


def _masked_fill(trace: Propagation, name: str, x: Tensor, mask: Tensor, value: Any) -> Any:
    if not _signal(x) or _signal(value):
        return NotImplemented
    made = x.masked_fill(mask, value)
    mark = trace.entrywise([x], made.ndim)
    joined = _joined(trace, name, made, [x], lambda: (~mask).expand_as(made), mark.samples, True)
    return noted(joined, mark)


def _triangle(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    func = getattr(torch, name)
    made = func(x, *args, **named)
    return _joined(
        trace, name, made, [x], lambda: func(torch.ones_like(x.detach()), *args, **named),
        mark_of(x).samples, True,
    )  # fmt: skip


def _assigned(trace: Propagation, name: str, x: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`: entries of x are put aside for others."""
    new = x.clone()
    new[index] = value
    signals = [t for t in (x, value) if _signal(t)]
    owners: list[Tensor | None] = []
    if _signal(x):
        owners.append(mark_of(x).samples)
    elif _signal(value) and mark_of(value).samples is not None:
        # where samples lie in a constant is known from the shape of what is put into it
        samples = mark_of(value).samples
        assert samples is not None
        numbers = torch.full(x.shape, -1.0, device=x.device)
        numbers[index] = samples.expand(value.shape)
        owners.append(_filled(numbers))

    def kept() -> Tensor:
        mask: Tensor = _ones(x)
        mask[index] = _ones(value)
        return mask

    samples = together(owners, new.ndim) if owners else None
    made = _joined(trace, "assignment", new, signals, kept, samples, len(signals) < 2)
    trace.write(x, made)
    trace.unwritten(x, value)


def _filled(numbers: Tensor) -> Tensor:
    """Samples of entries of which only some are known: those along dimensions where all agree."""
    for d in range(numbers.ndim):
        best = numbers.amax(d, keepdim=True)
        if bool(((numbers == best) | (numbers < 0)).all()):
            numbers = best
    if bool((numbers < 0).any()):
        raise SamplesMixed
    return numbers


# -- functions of entries --------------------------------------------------------------------------

_GATES = {"sigmoid", "hardsigmoid", "exp", "rsqrt", "reciprocal"}


def _activation(trace: Propagation, name: str, x: Any, *args: Any, **named: Any) -> Any:
    if not _signal(x) or any(_signal(t) for t in tensors_in([*args, *named.values()])):
        return NotImplemented
    func = _function(name)
    value = func(x.detach(), *args, **named)
    mark = mark_of(x)
    at_zero = 0.0
    if name not in ("sigmoid", "hardsigmoid", "prelu"):
        at_zero = float(func(x.new_zeros(()), *args, **named))
    gate = name in _GATES or (mark.gate and name in ("clamp", "clamp_min", "clamp_max"))
    known = Mark(mark.samples, gate, mark.depth, name if name in ("sigmoid", "hardsigmoid") else "")
    if at_zero == 0:
        return noted(trace.node(value, lambda relevance: (relevance,), [x]), known)
    if not math.isfinite(at_zero):
        where = trace.refusal(f"no rule for {name}, which is not finite at 0,")

        def refuse(relevance: Tensor) -> Sequence[Tensor | None]:
            raise where

        return noted(trace.node(value, refuse, [x]), known)
    place = trace.place(name, mark.depth, weighted=False)

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        none = value == 0
        share = torch.where(none, 0, (value - at_zero) / value) * relevance
        fixed = torch.where(none, 0, at_zero / value) * relevance
        trace.book(
            place(), "change from 0", relevance, mark.samples, [(share, mark.samples)], fixed,
            leaked=relevance * none,
        )  # fmt: skip
        return (share,)

    return noted(trace.node(value, back, [x]), known)


def _power(trace: Propagation, name: str, x: Any, exponent: Any) -> Any:
    if not _signal(x) or _signal(exponent):
        return NotImplemented
    return _activation(trace, name, x, exponent)


def _softmax(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    named.pop("_stacklevel", None)
    args = args[:1]
    func = getattr(torch, name)
    value = func(x.detach(), *args, **named)
    mark = mark_of(x)
    dim = named.get("dim", args[0] if args else None)
    if isinstance(dim, int):
        constant_along(mark.samples, [dim])
    made = trace.node(value, lambda relevance: (relevance,), [x])
    return noted(made, Mark(mark.samples, name == "softmax", mark.depth, name))


# -- linear operations -----------------------------------------------------------------------------


def _linear_map(
    trace: Propagation,
    x: Tensor,
    whole: Callable[[Tensor], Tensor],
    call: Callable[[Tensor, Any], Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    as_it_stands: bool = False,
) -> LinearMap:
    """A linear operation on one signal; `whole` is it with everything."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        y = whole(leaf)

    def own(s: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(y, leaf, s)

    return LinearMap(
        (x.detach(),), (weight,), call, y.detach(), own, bias, as_it_stands, trace.kept
    )


def _by_weight(
    trace: Propagation, name: str, input: Tensor, weight: Tensor, bias: Any = None, *args: Any,
    **named: Any,
) -> Any:  # fmt: skip
    """`linear` and convolutions."""
    func = F.linear if name == "linear" else getattr(torch, name)
    if _signal(weight) or _signal(bias):
        if name != "linear":
            return NotImplemented
        with trace:
            made = input @ weight.mT
            return made if bias is None else made + bias
    linear = _linear_map(
        trace,
        input,
        lambda x: func(x, weight, bias, *args, **named),
        lambda x, w: func(x, w, None, *args, **named),
        weight,
        bias if bias is None or name == "linear" else bias.reshape(-1, *[1] * (weight.ndim - 2)),
    )
    samples = mark_of(input).samples
    constant_along(samples, [-1] if name == "linear" else range(1, input.ndim))
    return trace.linear(name, [input], linear, samples, weighted=True)


def _averaged(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    """Fixed coefficients that are not negative, within a sample."""
    func = _function(name) if name in ("cumsum",) else getattr(F, name)
    samples = mark_of(x).samples
    constant_along(samples, range(1, x.ndim))
    linear = _linear_map(
        trace,
        x,
        lambda a: func(a, *args, **named),
        lambda a, w: func(a, *args, **named),
        None,
        None,
    )
    return trace.linear(name, [x], linear, samples)


def _summed(
    trace: Propagation, name: str, x: Tensor, dim: Any = None, keepdim: bool = False, *,
    axis: Any = None, dtype: Any = None,
) -> Any:  # fmt: skip
    """Sums and means along dimensions."""
    dim = dim if axis is None else axis
    mark = mark_of(x)
    samples = _reduced(mark.samples, dim, keepdim)

    def reduce(a: Tensor) -> Tensor:
        reduced: Tensor = getattr(torch, name)(a, dim=dim, keepdim=keepdim, dtype=dtype)
        return reduced

    linear = _linear_map(trace, x, reduce, lambda a, w: reduce(a), None, None)
    return trace.linear(name, [x], linear, samples, gate=mark.gate)


def _batch_norm(
    trace: Propagation,
    name: str,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """An affine map of each channel, in evaluation mode."""
    if training or running_mean is None or running_var is None:
        raise trace.refusal(
            "batch normalization by the statistics of the batch mixes samples: give it running "
            "statistics and call model.eval();"
        )
    scale = torch.rsqrt(running_var + eps)
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    shape = (-1, *[1] * (input.ndim - 2)) if input.ndim > 1 else (-1,)
    return _scaled_and_shifted(trace, name, input, scale.reshape(shape), shift.reshape(shape))


def _scaled_and_shifted(
    trace: Propagation, name: str, x: Tensor, scale: Tensor, shift: Tensor | None
) -> Tensor:
    a = x.detach()
    output = a * scale if shift is None else torch.addcmul(shift, a, scale)
    linear = LinearMap(
        (a,), (scale,), lambda a, w: a * w, output, lambda s: (s * scale,), shift, False, trace.kept
    )
    return trace.linear(name, [x], linear, mark_of(x).samples)


def _normalized(
    trace: Propagation, name: str, x: Tensor, scale: Tensor, centered: Callable[[Tensor], Tensor],
    weight: Tensor | None, bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """A normalization by a sample's own statistics, whose scale counts as a constant."""
    factor = scale if weight is None else scale * weight

    def whole(a: Tensor) -> Tensor:
        made = centered(a) * factor
        return made if bias is None else made + bias

    linear = _linear_map(
        trace, x, whole, lambda a, w: centered(a) * factor, None, bias, as_it_stands=True
    )
    return trace.linear(name, [x], linear, mark_of(x).samples)


def _layer_norm(
    trace: Propagation, name: str, input: Tensor, normalized_shape: Any,
    weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    dims = tuple(range(-len(tuple(normalized_shape)), 0))
    constant_along(mark_of(input).samples, dims)
    scale = torch.rsqrt(input.detach().var(dims, unbiased=False, keepdim=True) + eps)
    return _normalized(
        trace, name, input, scale, lambda a: a - a.mean(dims, keepdim=True), weight, bias
    )


def _rms_norm(
    trace: Propagation, name: str, input: Tensor, normalized_shape: Any,
    weight: Tensor | None = None, eps: float | None = None,
) -> Any:  # fmt: skip
    dims = tuple(range(-len(tuple(normalized_shape)), 0))
    constant_along(mark_of(input).samples, dims)
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    scale = torch.rsqrt(input.detach().square().mean(dims, keepdim=True) + eps)
    return _normalized(trace, name, input, scale, lambda a: a, weight, None)


def _group_norm(
    trace: Propagation, name: str, input: Tensor, num_groups: int, weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    constant_along(mark_of(input).samples, range(1, input.ndim))
    shape = (-1, *[1] * (input.ndim - 2))

    def by_group(a: Tensor) -> Tensor:
        return a.reshape(len(a), num_groups, -1)

    own = by_group(input.detach())
    scale = torch.rsqrt(own.var(-1, unbiased=False, keepdim=True) + eps)
    wide = scale.expand_as(own).reshape(input.shape)

    def centered(a: Tensor) -> Tensor:
        groups = by_group(a)
        return (groups - groups.mean(-1, keepdim=True)).reshape(input.shape)

    channels = [None if t is None else t.reshape(shape) for t in (weight, bias)]
    return _normalized(trace, name, input, wide, centered, channels[0], channels[1])


def _instance_norm(
    trace: Propagation, name: str, input: Tensor, running_mean: Tensor | None = None,
    running_var: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if not use_input_stats:
        return _batch_norm(
            trace, name, input, running_mean, running_var, weight, bias, False, momentum, eps
        )
    return _group_norm(trace, name, input, input.shape[1], weight, bias, eps)


# -- sums ------------------------------------------------------------------------------------------


def _sum_of(trace: Propagation, name: str, terms: Sequence[tuple[Any, float]]) -> Any:
    """Signals and constants, each times a number, added up."""
    value: Any = None
    for t, factor in terms:
        t = t.detach() if isinstance(t, Tensor) else t
        part = t if factor == 1 else t * factor
        value = part if value is None else value + part
    signals = [(t, f) for t, f in terms if _signal(t)]
    constants = [t if f == 1 else t * f for t, f in terms if not _signal(t)]
    mark = trace.entrywise([t for t, _ in signals], value.ndim)
    if len(signals) == 1 and not constants:
        return _scaled(trace, name, signals[0][0], signals[0][1])
    if mark.gate and len(signals) == 1 and not any(isinstance(c, Tensor) for c in constants):
        # 1 - u of a gate u is a gate that lets pass what the other does not
        return noted(trace.node(value, lambda relevance: (relevance,), [signals[0][0]]), mark)
    bias: Tensor | None = None
    for c in constants:
        c = torch.as_tensor(c, dtype=value.dtype, device=value.device)
        bias = c if bias is None else bias + c
    inputs = tuple(t.detach() for t, _ in signals)
    weights = tuple(value.new_tensor(f) for _, f in signals)
    shapes = [t.shape for t in inputs]

    def own(s: Tensor) -> Sequence[Tensor]:
        return [
            (s if f == 1 else s * f).sum_to_size(shape)
            for (_, f), shape in zip(signals, shapes, strict=True)
        ]

    def call(a: Tensor, w: Tensor) -> Tensor:
        return (a * w).expand(value.shape)

    if value.dtype != inputs[0].dtype and not all(i.dtype == value.dtype for i in inputs):
        raise trace.refusal(f"{name} of tensors of several precisions has no rule")
    linear = LinearMap(inputs, weights, call, value, own, bias, False, trace.kept)
    return trace.linear(name, [t for t, _ in signals], linear, mark.samples, gate=mark.gate)


def _add(trace: Propagation, name: str, a: Any, b: Any, *, alpha: float = 1) -> Any:
    return _sum_of(trace, name, [(a, 1.0), (b, float(alpha))])


def _sub(trace: Propagation, name: str, a: Any, b: Any, *, alpha: float = 1) -> Any:
    return _sum_of(trace, name, [(a, 1.0), (b, -float(alpha))])


def _rsub(trace: Propagation, name: str, a: Any, b: Any, *, alpha: float = 1) -> Any:
    return _sum_of(trace, "sub", [(b, 1.0), (a, -float(alpha))])


def _scaled(trace: Propagation, name: str, x: Tensor, factor: Any) -> Tensor:
    """A signal times a constant: each entry of the result has one source, which gets everything."""
    value = x.detach() * factor
    mark = mark_of(x)
    samples = together([mark.samples], value.ndim)
    known = Mark(samples, mark.gate, mark.depth)
    place = trace.place(name, mark.depth, weighted=False)
    zero = factor == 0

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        share = relevance
        if zero if isinstance(zero, bool) else bool(zero.any()):
            lost = relevance * torch.as_tensor(zero, device=relevance.device)
            if bool(lost.any()):  # entries that a mask removed have nothing to hand on
                share = relevance - lost
                trace.book(place(), "moved", relevance, samples, [(share, samples)], leaked=lost)
        return (share.sum_to_size(x.shape).to(x.dtype),)

    return noted(trace.node(value, back, [x]), known)


def _neg(trace: Propagation, name: str, x: Tensor) -> Any:
    return _scaled(trace, name, x, -1.0)


# -- products --------------------------------------------------------------------------------------


def _mul(trace: Propagation, name: str, a: Any, b: Any) -> Any:
    if _signal(a) and _signal(b):
        return _product(trace, name, a, b)
    signal, constant = (a, b) if _signal(a) else (b, a)
    if trace.in_steps and mark_of(signal).gate and isinstance(constant, Tensor):
        return _product(trace, name, signal, constant)  # a gate and the initial state
    return _scaled(trace, name, signal, constant)


def _product(trace: Propagation, name: str, a: Tensor, b: Tensor) -> Tensor:
    """Entry by entry; a constant among the two takes its share to the biases."""
    x, y = a.detach(), b.detach()
    value = x * y
    signals = [t for t in (a, b) if _signal(t)]
    mark = trace.entrywise(signals, value.ndim)
    gates = [_signal(t) and mark_of(t).gate for t in (a, b)]
    share = trace.rules.product
    place = trace.place(name, mark.depth, weighted=False)

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        here = place()
        to_epsilon: Tensor | None = None
        parts: list[Tensor | None]
        if share.share == "all" and gates[0] != gates[1]:
            parts = [None, relevance] if gates[0] else [relevance, None]
        elif share.share == "prop" and gates[0] != gates[1]:
            s, to_epsilon = per_unit(relevance, x + y, trace.rules.rule(here).epsilon)
            parts = [s * x, s * y]
        else:
            parts = [relevance / 2, relevance / 2]
        to_biases: Tensor | None = None
        passed: list[tuple[Tensor | None, Tensor | None]] = []
        given: list[Tensor | None] = []
        for t, part in zip((a, b), parts, strict=True):
            if not _signal(t):
                to_biases = part
                continue
            own = None if part is None else part.sum_to_size(t.shape)
            given.append(own)
            passed.append((own, mark_of(t).samples))
        trace.book(here, share.name, relevance, mark.samples, passed, to_biases, to_epsilon)
        return given

    known = Mark(mark.samples, all(g for g in gates), mark.depth)
    return noted(trace.node(value, back, signals), known)


def _div(trace: Propagation, name: str, a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """A denominator that is a signal is a gate which gets nothing."""
    if rounding_mode is not None:
        return NotImplemented
    below = b.detach() if isinstance(b, Tensor) else b
    if not _signal(b):
        return _scaled(trace, name, a, 1 / below)
    value = (a.detach() if isinstance(a, Tensor) else a) / below
    gate = not _signal(a) or mark_of(a).gate
    signals = [t for t in (a, b) if _signal(t)]
    mark = trace.entrywise(signals, value.ndim, gate=gate)
    where = trace.refusal(f"no rule for {name} by a signal")

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        if not _signal(a):
            raise where
        return (relevance.sum_to_size(a.shape), None)

    return noted(trace.node(value, back, signals), mark)


def _rdiv(trace: Propagation, name: str, a: Any, b: Any) -> Any:
    return _div(trace, "div", b, a)


def _matmul(trace: Propagation, name: str, a: Tensor, b: Tensor) -> Any:
    if a.ndim == 1 or b.ndim == 1:
        with trace:
            left = a.unsqueeze(0) if a.ndim == 1 else a
            right = b.unsqueeze(-1) if b.ndim == 1 else b
            made = torch.matmul(left, right)
            made = made.squeeze(-1) if b.ndim == 1 else made
            return made.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else made
    return _bilinear(trace, name, torch.matmul, a, b, _matmul_samples)


def _matmul_samples(a: Tensor | None, b: Tensor | None, ndim: int) -> Tensor | None:
    if a is not None:
        constant_along(a, [-1])
    if b is not None:
        constant_along(b, [-2])
    return together([a, b], ndim)


def _bilinear(
    trace: Propagation,
    name: str,
    func: Callable[[Tensor, Tensor], Tensor],
    a: Tensor,
    b: Tensor,
    samples_of: Callable[[Tensor | None, Tensor | None, int], Tensor | None],
) -> Any:
    """A product of matrices: linear in a signal if the other is constant or a gate."""
    x, y = a.detach(), b.detach()
    owners = [mark_of(t).samples if _signal(t) else None for t in (a, b)]
    gates = [_signal(t) and mark_of(t).gate for t in (a, b)]
    both = _signal(a) and _signal(b)
    share = trace.rules.product.share
    if both and not (share == "all" and gates[0] != gates[1]):
        if share == "prop" and gates[0] != gates[1]:
            raise trace.refusal(
                "the share 'prop' of a matrix product, such as that of attention weights and "
                "values, is not defined (use 'all' or 'half'): no rule for it"
            )
        return _halved(trace, name, func, a, b, samples_of(owners[0], owners[1], _ndim(a, b)))
    left = not gates[0] if both else _signal(a)  # the signal that gets everything
    signal, weight = (a, y) if left else (b, x)

    def call(t: Tensor, w: Tensor) -> Tensor:
        return func(t, w) if left else func(w, t)

    linear = _linear_map(trace, signal, lambda t: call(t, weight), call, weight, None)
    samples = samples_of(owners[0], owners[1], linear.output.ndim)
    made = trace.linear(name, [signal], linear, samples, weighted=not both)
    mark = mark_of(made)
    depth = max(mark.depth, *(mark_of(t).depth for t in (a, b) if _signal(t)))
    return noted(made, Mark(samples, mark.gate, depth))


def _ndim(a: Tensor, b: Tensor) -> int:
    return max(a.ndim, b.ndim)


def _halved(
    trace: Propagation, name: str, func: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor,
    samples: Tensor | None,
) -> Tensor:  # fmt: skip
    """Each product in the sum hands half of its share to either factor."""
    leaves = (a.detach().requires_grad_(), b.detach().requires_grad_())
    with torch.enable_grad():
        y = func(*leaves)
    value = y.detach()
    depth = max(mark_of(t).depth for t in (a, b))
    place = trace.place(name, depth, weighted=False)

    def back(relevance: Tensor) -> Sequence[Tensor | None]:
        here = place()
        s, held = per_unit(relevance, value, trace.rules.rule(here).epsilon)
        slopes = torch.autograd.grad(y, leaves, s)
        parts = [0.5 * g * t.detach() for g, t in zip(slopes, leaves, strict=True)]
        trace.book(
            here, trace.rules.product.name, relevance, samples,
            [(p, mark_of(t).samples) for p, t in zip(parts, (a, b), strict=True)], None, held,
        )  # fmt: skip
        return parts

    return noted(trace.node(value, back, [a, b]), Mark(samples, depth=depth))


def _einsum(trace: Propagation, name: str, equation: Any, *operands: Any) -> Any:
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or "..." in equation or len(operands) != 2:
        return NotImplemented
    terms, arrow, out = equation.replace(" ", "").partition("->")
    first, second = terms.split(",")
    if not arrow or any(len(set(t)) != len(t) for t in (first, second, out)):
        return NotImplemented

    def spread(samples: Tensor | None, letters: str) -> Tensor | None:
        if samples is None:
            return None
        constant_along(samples, [k for k, c in enumerate(letters) if c not in out])
        kept = [k for c in out for k in [letters.find(c)] if k >= 0]
        summed = [k for k, c in enumerate(letters) if c not in out]
        samples = samples.permute(*kept, *summed)
        shape = iter(samples.shape[: len(kept)])
        return samples.reshape([next(shape) if c in letters else 1 for c in out])

    return _bilinear(
        trace, name, lambda a, b: torch.einsum(equation, a, b), *operands,
        lambda a, b, ndim: together([spread(a, first), spread(b, second)], ndim),
    )  # fmt: skip


# -- operations written out in others --------------------------------------------------------------


def _in_other_words(written: Callable[..., Any]) -> Handler:
    def handle(trace: Propagation, name: str, *args: Any, **named: Any) -> Any:
        with trace:
            return written(*args, **named)

    return handle


def _added_product(
    input: Any, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    product = torch.matmul(first, second)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return (input if beta == 1 else input * beta) + product


def _gated_halves(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * torch.sigmoid(b)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = torch.matmul(query, key.mT)
    scores = scores * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.matmul(torch.softmax(scores, -1), value)


def _lerp(a: Any, b: Any, weight: Any) -> Any:
    return a * (1 - weight) + b * weight


# -- the table -------------------------------------------------------------------------------------

_MOVES = """
    view reshape flatten unflatten ravel squeeze unsqueeze permute transpose movedim t adjoint flip
    fliplr flipud roll rot90 view_as reshape_as expand expand_as broadcast_to repeat tile
    repeat_interleave index_select gather take_along_dim __getitem__ select narrow chunk split
    split_with_sizes unbind tensor_split hsplit vsplit dsplit diagonal atleast_1d atleast_2d
    atleast_3d pixel_shuffle pixel_unshuffle channel_shuffle
"""
_FUNCTIONS = """
    relu relu6 leaky_relu elu selu celu gelu silu mish hardswish hardtanh tanh softsign tanhshrink
    softshrink hardshrink sigmoid hardsigmoid softplus threshold logsigmoid prelu rrelu abs sin cos
    tan atan sinh cosh asinh erf exp expm1 log log1p square sqrt rsqrt reciprocal clamp clamp_min
    clamp_max sign
"""
_MAXIMA = """
    max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
"""
_AVERAGES = """
    avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    interpolate upsample fold
"""
_CONVOLUTIONS = """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
"""
_DROPOUTS = """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout
"""

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_MOVES.split(), _move()),
    **{f"get {name}": _property for name in ("T", "mT", "H", "mH")},
    **dict.fromkeys(
        "to float double half bfloat16 type type_as cpu cuda contiguous clone alias".split(), _same
    ),
    **dict.fromkeys(("requires_grad", "alias_copy"), _itself),
    **dict.fromkeys(_DROPOUTS.split(), _dropout),
    "__iter__": _iterated,
    **dict.fromkeys(_MAXIMA.split(), _pooled_maximum),
    **dict.fromkeys("amax amin max min sort topk msort kthvalue median".split(), _chosen),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), _larger),
    "cat": _cat,
    "stack": _cat,
    **dict.fromkeys(("hstack", "vstack", "dstack"), _side_by_side),
    "pad": _pad,
    "where": _where,
    "masked_fill": _masked_fill,
    "tril": _triangle,
    "triu": _triangle,
    "__setitem__": _assigned,
    **dict.fromkeys(_FUNCTIONS.split(), _activation),
    "pow": _power,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "linear": _by_weight,
    **dict.fromkeys(_CONVOLUTIONS.split(), _by_weight),
    **dict.fromkeys(_AVERAGES.split(), _averaged),
    "cumsum": _averaged,
    "sum": _summed,
    "mean": _summed,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "neg": _neg,
    "mul": _mul,
    "div": _div,
    "rdiv": _rdiv,
    "matmul": _matmul,
    "einsum": _einsum,
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _in_other_words(_added_product)),
    "addcmul": _in_other_words(lambda a, b, c, *, value=1: a + value * (b * c)),
    "lerp": _in_other_words(_lerp),
    "glu": _in_other_words(_gated_halves),
    "scaled_dot_product_attention": _in_other_words(_attention),
}
