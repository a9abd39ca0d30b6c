r"""What an operation makes of points of a piecewise linear network: where it bends.

Operations are affine, have kinks, take the largest of some entries, or jump; comparisons are steps,
which make a kink of what they choose between (see `torchtheory.expressivity.bends`). An operation
is said not to be piecewise linear only if that is known of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.naming import operation_words
from torchtheory.tracing.activations import ACTIVATION_FACTS, activation_facts
from torchtheory.tracing.interpret import Call, Rule, Rules
from torchtheory.tracing.kinds import MAXIMA
from torchtheory.tracing.network import leaves, mapped


class Visitor(Protocol):
    """Who is told about every operation that can bend."""

    def kink(self, forms: Tensor, gap: Tensor | None = None) -> None:
        """`forms[points, units]`: the operation bends where one of them is 0.

        It is continuous where `gap`, of the same shape, is 0 there; everywhere if there is none.
        Who finds another gap raises `Jump`.
        """

    def choice(self, values: Tensor) -> None:
        """`values[points, groups, k]`: the operation takes the largest of each group."""


class Jump(Exception):
    """The network is not continuous: where a condition changes, it jumps by so much."""

    def __init__(self, height: float) -> None:
        super().__init__(height)
        self.height = height


@dataclass(eq=False, slots=True)
class Signal:
    """A value that is affine in the input where nothing before it has bent."""

    tensor: Tensor
    told: Told | Noted

    def like(self, tensor: Tensor) -> Signal:
        return Signal(tensor, self.told)


@dataclass(eq=False, slots=True)
class Steps:
    """A value that is constant between the zeros of forms of its shape, as `z > 0` is."""

    forms: Tensor
    tensor: Tensor
    told: Told | Noted


@dataclass(eq=False, slots=True)
class Places:
    """Which entry is the largest: it jumps, whatever it is asked of."""

    name: str


class Told:
    """Points side by side: the visitor hears of a bend when it happens."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor

    def kink(self, call: Call, forms: Tensor, gap: Tensor | None = None) -> None:
        flat = None if gap is None else gap.expand_as(forms).reshape(len(forms), -1)
        self.tell(call, forms.reshape(len(forms), -1), flat)

    def tell(self, call: Call, forms: Tensor, gap: Tensor | None) -> None:
        if gap is None:
            self.visitor.kink(forms)
            return
        try:
            self.visitor.kink(forms, gap)
        except Jump as jump:
            raise _refused(
                call,
                f"{operation_words(call.name)} jumps by {jump.height:.3g} where its condition "
                "changes, so the network is not continuous",
            ) from None

    def choice(self, values: Tensor) -> None:
        self.visitor.choice(values.reshape(len(values), -1, values.shape[-1]))

    def refuse_rows(self, call: Call) -> None:
        raise _refused(call, f"{operation_words(call.name)} mixes the points of a batch")


class Noted:
    """One point: its bends are noted, and told when all points have theirs."""

    def __init__(self) -> None:
        self.all: list[tuple[Call, bool, Tensor, Tensor | None]] = []

    def kink(self, call: Call, forms: Tensor, gap: Tensor | None = None) -> None:
        flat = None if gap is None else gap.expand_as(forms).reshape(-1)
        self.all.append((call, True, forms.reshape(-1), flat))

    def choice(self, values: Tensor) -> None:
        self.all.append((None, False, values.reshape(-1, values.shape[-1]), None))  # type: ignore[arg-type]

    def refuse_rows(self, call: Call) -> None:
        """There is one point, and all rows are its own."""


def _refused(call: Call, why: str) -> UnsupportedModel:
    return call.refusal(f"{RULES.subject}: {why}")


def without_jumps(leaf: Any) -> Any:
    if isinstance(leaf, Steps | Places):
        raise UnsupportedModel(f"{RULES.subject}: the network returns a value that jumps")
    return leaf.tensor if isinstance(leaf, Signal) else leaf


def _plain(leaf: Any) -> Any:
    return leaf.tensor if isinstance(leaf, Signal | Steps) else leaf


def _called(call: Call) -> Any:
    return call.function(*mapped(call.args, _plain), **mapped(call.kwargs, _plain))


def _signals(call: Call) -> list[Signal]:
    return [leaf for leaf in leaves((call.args, call.kwargs)) if isinstance(leaf, Signal)]


def _made(call: Call, result: Any | None = None) -> Any:
    """What the operation makes: numbers are signals, whole numbers are places."""
    first = _signals(call)[0]

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.is_floating_point() or leaf.is_complex():
            return first.like(leaf)
        return Places(operation_words(call.name))

    return mapped(_called(call) if result is None else result, one)


def _with_signals(rule: Rule) -> Rule:
    """A rule for calls with a signal in them, and with nothing that jumps."""

    def checked(call: Call) -> Any:
        given = list(leaves((call.args, call.kwargs)))
        for leaf in given:
            if isinstance(leaf, Places):
                raise _refused(
                    call,
                    f"{operation_words(call.name)} uses which entry {leaf.name} takes, which jumps",
                )
            if isinstance(leaf, Steps):
                raise _refused(
                    call,
                    f"{operation_words(call.name)} of a comparison jumps, so it is not continuous",
                )
        return rule(call) if any(isinstance(leaf, Signal) for leaf in given) else _called(call)

    return checked


def _not_linear(call: Call) -> Any:
    raise _refused(call, f"{operation_words(call.name)} is not piecewise linear")


def _jumps(call: Call) -> Any:
    raise _refused(call, f"{operation_words(call.name)} jumps, so it is not continuous")


# ---------------------------------------------------------------------------------- affine maps


def _affine(call: Call) -> Any:
    """Affine in all signals together."""
    return _made(call)


def _moved(call: Call) -> Any:
    """A constant in the shape of a signal is a constant."""
    return _called(call) if isinstance(call.get("input"), Tensor) else _made(call)


def _single(call: Call) -> Any:
    """Affine in one signal."""
    if len(_signals(call)) > 1:
        raise _refused(
            call,
            f"{operation_words(call.name)} of two values that both depend on the input is not "
            "piecewise linear",
        )
    return _made(call)


def _constant_in(*names: str, rule: Rule = _affine) -> Rule:
    """Affine as long as some arguments do not depend on the input."""

    def checked(call: Call) -> Any:
        for name in names:
            if isinstance(call.get(name), Signal):
                raise _refused(
                    call,
                    f"{operation_words(call.name)} with a {name.replace('_', ' ')} that depends on "
                    "the input is not piecewise linear",
                )
        return rule(call)

    return checked


def _divided(call: Call) -> Any:
    if call.get("rounding_mode") is not None:
        return _jumps(call)
    if isinstance(call["other"], Signal):
        raise _refused(call, "division by a value that depends on the input is not affine")
    return _made(call)


def _product_and_sum(*factors: str) -> Rule:
    """A value plus a product of two others."""

    def rule(call: Call) -> Any:
        if all(isinstance(call[name], Signal) for name in factors):
            return _single(call)
        return _made(call)

    return rule


def _reduced(call: Call) -> Any:
    """Scattered sums."""
    kind = call.get("reduce")
    if kind not in ("sum", "mean", "add"):
        raise _refused(call, f"there is no rule for {operation_words(call.name)} by {kind}")
    return _made(call)


def _batch_norm(call: Call) -> Any:
    if call.get("training") or call.get("running_mean") is None:
        raise _refused(call, "batch_norm without running statistics mixes the points of a batch")
    return _single(call)


def _instance_norm(call: Call) -> Any:
    return _not_linear(call) if call.get("use_input_stats", True) else _single(call)


# ----------------------------------------------------------------------------------------- kinks


def _real(call: Call) -> Signal:
    z: Signal = call["input"]
    if not isinstance(z, Signal):
        raise _refused(call, f"there is no rule for this form of {operation_words(call.name)}")
    if z.tensor.is_complex():
        raise _refused(call, f"{operation_words(call.name)} of complex numbers bends on curves")
    return z


def _kinks_at(*places: str | float) -> Rule:
    """Kinks at fixed numbers, or at those that an argument holds."""

    def rule(call: Call) -> Any:
        z = _real(call)
        for place in places:
            at = call.get(place) if isinstance(place, str) else place
            if isinstance(at, Signal):
                _choose_between(z, z.tensor, at.tensor)
            elif at is not None:
                z.told.kink(call, z.tensor - at)
        return _made(call)

    return rule


def _prelu(call: Call) -> Any:
    return _constant_in("weight", rule=_kinks_at(0.0))(call)


def _clamp(call: Call) -> Any:
    """The input itself may be a constant, between bounds that follow the input."""
    if isinstance(call["input"], Signal):
        return _kinks_at("min", "max")(call)
    given = torch.as_tensor(call["input"])
    for name in ("min", "max"):
        bound = call.get(name)
        if isinstance(bound, Signal):
            _choose_between(bound, given, bound.tensor)
    return _made(call)


def _activation(call: Call) -> Any:
    """An activation whose kinks stand in the table."""
    facts = activation_facts(call.name, **call.arguments)
    if facts.jumps:
        place, left, right = facts.jumps[0]
        raise _refused(
            call,
            f"{operation_words(call.name)} jumps from {left:g} to {right:g} at {place:g}, so it is "
            "not continuous",
        )
    if facts.degree != 1:
        return _not_linear(call)
    return _kinks_at(*facts.kinks)(call)


def _norm(call: Call) -> Any:
    """Sums of absolute values and their maximum; all other norms are curved."""
    p, z = call.get("ord", call.get("p", 2)), _real(call)
    if p not in (1, math.inf):
        return _not_linear(call)
    z.told.kink(call, z.tensor)
    if p == math.inf:
        z.told.choice(_last(call, z.tensor.abs(), call.get("dim")))
    return _made(call)


# --------------------------------------------------------------------------------------- choices


def _choose_between(told: Signal, one: Tensor, other: Tensor) -> None:
    shape = (one + other).shape
    told.told.choice(torch.stack([one.expand(shape), other.expand(shape)], -1))


def _last(call: Call, z: Tensor, dim: Any) -> Tensor:
    """The entries among which is chosen, along the last dimension."""
    dims = (
        range(z.ndim) if dim is None or dim in ((), []) else [dim] if isinstance(dim, int) else dim
    )
    dims = [d % max(z.ndim, 1) for d in dims]
    if 0 in dims:
        _signals(call)[0].told.refuse_rows(call)
    if not dims or not z.ndim:
        return z.unsqueeze(-1)
    return z.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))


def _extreme(*signs: int) -> Rule:
    """The largest (1) or the smallest (-1), in all forms."""

    def rule(call: Call) -> Any:
        other = call.get("other")
        for sign in signs:
            if other is not None:
                _choose_between(
                    _signals(call)[0],
                    sign * torch.as_tensor(_plain(call["input"])),
                    sign * torch.as_tensor(_plain(other)),
                )
            else:
                z = _real(call)
                z.told.choice(sign * _last(call, z.tensor, call.get("dim")))
        return _made(call)

    return rule


def _ordered(call: Call) -> Any:
    """Sorted entries, or some of them: they bend where two of them are equal."""
    z = _real(call)
    default = 0 if call.name == "msort" else None if "median" in call.name else -1
    row = _last(call, z.tensor, call.get("dim", default))
    i, j = torch.triu_indices(row.shape[-1], row.shape[-1], 1, device=row.device)
    z.told.kink(call, row[..., i] - row[..., j])
    return _made(call)


def _pool(call: Call) -> Any:
    signal, spatial = _real(call), int(call.name[-2])
    z, result = signal.tensor, _called(call)
    if z.ndim <= spatial:
        signal.told.refuse_rows(call)
    out = (result[0] if isinstance(result, tuple) else result).shape[-spatial:]
    places = pool_places(call, z.shape[-spatial:], out).to(z.device)
    windows = z.flatten(-spatial)[..., places.clamp(min=0)]
    if bool((places < 0).any()):
        windows = torch.where(places >= 0, windows, z.min() - 1)  # padding never wins
    signal.told.choice(windows)
    return _made(call, result)


def pool_places(call: Call, inside: Sequence[int], out: Sequence[int]) -> Tensor:
    """Which entries of the flattened map a window of max pooling sees: `[*out, entries]`.

    -1 on the padding.
    """
    spatial = len(inside)
    if call.name.startswith("adaptive"):
        if any(n % m for n, m in zip(inside, out, strict=True)):
            raise call.refusal(f"adaptive pooling from {list(inside)} to {list(out)} is uneven")
        kernel = stride = [n // m for n, m in zip(inside, out, strict=True)]
        padding, dilation = [0] * spatial, [1] * spatial
    else:
        kernel = per_dimension(call["kernel_size"], spatial)
        stride = per_dimension(call.get("stride") or kernel, spatial)
        padding = per_dimension(call.get("padding", 0), spatial)
        dilation = per_dimension(call.get("dilation", 1), spatial)
    places = torch.arange(math.prod(inside)).reshape(*inside)
    for d in range(spatial):
        at = torch.arange(out[d])[:, None] * stride[d] - padding[d]
        at = at + torch.arange(kernel[d]) * dilation[d]
        # the windows of a dimension stand in its place, their entries at the end
        taken = places.movedim(d, 0)[at.clamp(0, inside[d] - 1)]
        outside = ((at < 0) | (at >= inside[d])).reshape(*at.shape, *[1] * (taken.ndim - 2))
        places = taken.masked_fill(outside, -1).movedim(0, d + 1).movedim(0, -1)
    return places.flatten(spatial)


def per_dimension(value: Any, dimensions: int) -> list[int]:
    """One number per dimension."""
    given = [value] if isinstance(value, int) else [int(v) for v in value]
    return given * dimensions if len(given) == 1 else given


# ------------------------------------------------------------------------------------ conditions


def _comparison(call: Call) -> Any:
    both = [call["input"], call["other"]]
    if any(isinstance(leaf, Steps | Places) for leaf in both):
        raise _refused(call, "a comparison of what jumps has no rule")
    signals = [leaf for leaf in both if isinstance(leaf, Signal)]
    if not signals:
        return _called(call)
    one, other = map(_plain, both)
    return Steps(one - other, _called(call), signals[0].told)


def _sign(call: Call) -> Any:
    z = call["input"]
    if not isinstance(z, Signal) or isinstance(call.get("values"), Signal):
        return _with_signals(_jumps)(call)
    return Steps(z.tensor, _called(call), z.told)


def _on_steps(rule: Rule) -> Rule:
    """What is done to steps alone makes other steps; everything else is left to a rule."""
    rule = _with_signals(rule)

    def checked(call: Call) -> Any:
        given = list(leaves((call.args, call.kwargs)))
        steps = [leaf for leaf in given if isinstance(leaf, Steps)]
        if len(steps) != 1 or any(isinstance(leaf, Signal | Places) for leaf in given):
            return rule(call)
        (one,) = steps
        made = _called(call)
        if not isinstance(made, Tensor):
            return rule(call)
        if call.kind in ("moves", "selects"):
            forms = call.function(
                *mapped(call.args, lambda v: v.forms if v is one else v),
                **mapped(call.kwargs, lambda v: v.forms if v is one else v),
            ).to(one.forms)
        else:
            forms = one.forms
            if made.shape != forms.shape:
                return rule(call)
        return Steps(forms, made, one.told)

    return checked


def _times(call: Call) -> Any:
    """A signal times steps bends where the steps are, and is continuous where it is 0 there."""
    both = [call["input"], call["other"]]
    steps = [leaf for leaf in both if isinstance(leaf, Steps)]
    signals = [leaf for leaf in both if isinstance(leaf, Signal)]
    if len(steps) == len(signals) == 1:
        return _switched(call, steps[0], signals[0].tensor)
    return _on_steps(_single)(call)


def _where(call: Call) -> Any:
    condition = call["condition"]
    if not isinstance(condition, Steps):
        return _with_signals(_affine)(call)
    one, other = (_number(call, call[name]) for name in ("input", "other"))
    return _switched(call, condition, one - other)


def _filled(call: Call) -> Any:
    mask = call["mask"]
    if not isinstance(mask, Steps):
        return _with_signals(_affine)(call)
    return _switched(call, mask, _number(call, call["input"]) - _number(call, call["value"]))


def _written(call: Call) -> Any:
    """`x[mask] = number`."""
    mask = call["index"]
    if not isinstance(mask, Steps):
        return _with_signals(_affine)(call)
    value = _number(call, call["value"])
    if value.ndim:
        raise _refused(call, "there is no rule for writing several values where a condition holds")
    return _switched(call, mask, _number(call, call["input"]) - value)


def _number(call: Call, value: Any) -> Tensor:
    if isinstance(value, Steps | Places):
        raise _refused(
            call, f"{operation_words(call.name)} of a comparison jumps, so it is not continuous"
        )
    return torch.as_tensor(_plain(value))


def _switched(call: Call, steps: Steps, gap: Tensor) -> Any:
    made = _called(call)
    steps.told.kink(call, steps.forms.expand_as(made), gap.expand_as(made))
    return Signal(made, steps.told)


# ----------------------------------------------------------------------------------- the rules

_BENDS: dict[str, Rule] = {
    **dict.fromkeys(ACTIVATION_FACTS, _activation),
    "prelu": _prelu,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    **dict.fromkeys(("norm", "vector_norm"), _norm),
    **dict.fromkeys(("max", "maximum", "amax"), _extreme(1)),
    **dict.fromkeys(("min", "minimum", "amin"), _extreme(-1)),
    "aminmax": _extreme(1, -1),
    **dict.fromkeys("sort msort topk kthvalue median cummax cummin".split(), _ordered),
    **dict.fromkeys(MAXIMA, _pool),
}
_AFFINE: dict[str, Rule] = {
    **dict.fromkeys(
        """
        index_add scatter_add diff sum mean cumsum trace nansum put
        """.split(),
        _affine,
    ),
    "lerp": _constant_in("weight"),
    "grid_sample": _constant_in("grid"),
    "div": _divided,
    "addmm": _product_and_sum("mat1", "mat2"),
    "addmv": _product_and_sum("mat", "vec"),
    "addr": _product_and_sum("vec1", "vec2"),
    "addbmm": _product_and_sum("batch1", "batch2"),
    "baddbmm": _product_and_sum("batch1", "batch2"),
    "addcmul": _product_and_sum("tensor1", "tensor2"),
    "addcdiv": _constant_in("tensor2"),
    **dict.fromkeys(("scatter_reduce", "index_reduce"), _reduced),
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
}
#: Steps of these are steps.
_STEPS: dict[str, Rule] = dict.fromkeys("add sub rsub neg".split(), _affine) | dict.fromkeys(
    "logical_not bitwise_not".split(), _jumps
)
_CONDITIONS: dict[str, Rule] = {
    **dict.fromkeys(("gt", "ge", "lt", "le"), _comparison),
    **dict.fromkeys(("sign", "sgn", "heaviside"), _sign),
    "mul": _times,
    "where": _where,
    "masked_fill": _filled,
    "setitem": _written,
}
#: Known not to be piecewise linear.
_CURVED = """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square pow rpow rdiv reciprocal tan asin acos
    sinh cosh acosh atanh erfc erfinv lgamma digamma logit sinc atan2 hypot logaddexp
    logaddexp2 xlogy special_i0 prod cumprod logsumexp logcumsumexp var std var_mean std_mean
    matrix_norm dist det logdet slogdet lp_pool1d lp_pool2d lp_pool3d softmax softmin log_softmax
    layer_norm group_norm rms_norm normalize local_response_norm native_layer_norm glu
    native_group_norm multi_head_attention_forward scaled_dot_product_attention lstm gru rnn_tanh
    lstm_cell gru_cell rnn_tanh_cell cosine_similarity cdist pairwise_distance linalg_solve
    linalg_inv inverse
""".split()
_DISCONTINUOUS = """
    floor ceil round trunc frac remainder fmod floor_divide rfloor_divide eq ne isclose
    argmax argmin argsort searchsorted bucketize copysign signbit one_hot
""".split()

#: What an operation makes of points: where it bends, and what comes out.
RULES = Rules(
    "no affine pieces",
    {
        **{name: _with_signals(rule) for name, rule in (_BENDS | _AFFINE).items()},
        **{name: _on_steps(rule) for name, rule in _STEPS.items()},
        **_CONDITIONS,
        **dict.fromkeys(_CURVED, _with_signals(_not_linear)),
        **dict.fromkeys(_DISCONTINUOUS, _with_signals(_jumps)),
    },
    {
        "moves": _on_steps(_moved),
        "selects": _on_steps(_moved),
        "joins": _with_signals(_affine),
        "affine": _with_signals(_single),
        "product": _with_signals(_single),
        "constant": lambda call: _called(call),
    },
)
