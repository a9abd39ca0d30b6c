r"""Which places of the input the units of a network can depend on: one rule for each operation.

Along every dimension of the input a unit depends on places from a first to a last one. Both are
carried as one tensor of the shape of the value, $(-\text{first},\text{last})$, so that a union is a
maximum: of several values, over a window, over all that is summed. What depends on nothing has
$-\infty$. Nothing is asked of the weights: a weight of 0 counts.

Beside it goes the window of a unit as the recursion for chains has it (`Window`), padding included,
as long as all units have the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.tracing.interpret import Call, Rule, Rules
from torchtheory.tracing.kinds import PADS, RESIZES
from torchtheory.tracing.network import Value, leaves, mapped


@dataclass(frozen=True, slots=True)
class Window:
    """What a unit sees along one dimension: unit $i$ sees `size` places from `start + jump * i` on.

    `variance` is that of the place that a squared gradient comes from, in the mean over independent
    weights; None where branches with different windows meet.
    """

    size: int = 1
    jump: Fraction = Fraction(1)
    start: int = 0
    variance: float | None = 0.0


#: One for each dimension of the input; None where units have no common window.
Windows = tuple[Window, ...] | None


@dataclass(eq=False)
class Field:
    """What the units of a value depend on.

    Attributes:
        reach: `[2 * dimensions, *shape]`: last places, then first ones with the other sign.
        windows: of a unit.
    """

    reach: Tensor
    windows: Windows = None

    @classmethod
    def of_inputs(cls, shape: Sequence[int]) -> Field:
        """Every place of inputs `[1, channels, ...]` sees itself."""
        places = shape[2:]
        axes = torch.meshgrid(*(torch.arange(n).double() for n in places), indexing="ij")
        both = torch.stack([*axes, *(-a for a in axes)])
        reach = both[:, None, None].expand(-1, shape[0], shape[1], *places)
        return cls(reach, tuple(Window() for _ in places))

    @property
    def shape(self) -> torch.Size:
        return self.reach.shape[1:]


def _fields(call: Call) -> list[Field]:
    return [leaf for leaf in leaves((call.args, call.kwargs)) if isinstance(leaf, Field)]


def _sizes(value: Value) -> list[int]:
    return [s if isinstance(s, int) else s.of(1) for s in value.shape]


def _result(call: Call, k: int = 0) -> list[int]:
    return _sizes(call.operation.outputs[k])


def _each(call: Call, build: Callable[[Callable[[Any], Any]], Any]) -> Any:
    """Done to what every field carries, one first or last place at a time."""
    fields = list({id(f): f for f in _fields(call)}.values())

    def lane(*given: Tensor) -> Any:
        held = {id(f): t for f, t in zip(fields, given, strict=True)}
        return build(lambda leaf: held.get(id(leaf), leaf))

    return torch.vmap(lane)(*(f.reach for f in fields))


# --------------------------------------------------------------------------------------- places


def _moved(call: Call) -> Any:
    """Entries change their places, or some are taken; constants see nothing."""
    if isinstance(call.get("input"), Tensor):  # a constant in the shape of a value
        shapes = mapped(call.args, lambda v: torch.zeros(v.shape) if isinstance(v, Field) else v)
        return call.function(*shapes, **call.kwargs)

    def build(get: Callable[[Any], Any]) -> Any:
        def one(leaf: Any) -> Any:
            made = get(leaf)
            if isinstance(made, Tensor) and made is leaf and made.is_floating_point():
                return torch.full_like(made, -math.inf, dtype=torch.float64)
            return made

        return call.function(*mapped(call.args, one), **mapped(call.kwargs, one))

    made = _each(call, build)
    first = _fields(call)[0]
    channels = call.name in _PARTS and call.get("dim", 0) in (1, 1 - len(first.shape))
    kept = call.name in _STILL or channels
    return mapped(made, lambda t: Field(t, first.windows if kept else None))


def _joined(call: Call) -> Any:
    """Along channels the windows stay, if they can be united."""
    made = _moved(call)
    along = call.get("dim", 0)
    if call.name == "cat" and isinstance(made, Field) and along in (1, 1 - len(made.shape)):
        return replace(made, windows=_united([f.windows for f in _fields(call)]))
    return made


def _union(call: Call) -> Any:
    """Every unit sees what the units at its place see, in all values."""
    fields, shape = _fields(call), _result(call)
    made = torch.stack([_spread(f.reach, shape) for f in fields]).amax(0)
    same = all(list(f.shape) == shape for f in fields)
    field = Field(made, _united([f.windows for f in fields]) if same else None)
    return mapped(call.operation.result, lambda _: field)


def _spread(reach: Tensor, shape: Sequence[int]) -> Tensor:
    missing = len(shape) + 1 - reach.ndim
    return reach.reshape(len(reach), *[1] * missing, *reach.shape[1:]).expand(-1, *shape)


def _united(windows: Sequence[Windows]) -> Windows:
    made = []
    for each in zip(*(w or () for w in windows), strict=False):
        if any(w.jump != each[0].jump for w in each):
            return None
        start, end = min(w.start for w in each), max(w.start + w.size for w in each)
        variance = each[0].variance if all(w == each[0] for w in each) else None
        made.append(Window(end - start, each[0].jump, start, variance))
    return tuple(made) if made and all(w is not None for w in windows) else None


def _shape_only(call: Call) -> Any:
    """A value that is made without looking at the input."""
    d = len(_fields(call)[0].reach)
    shape = _result(call)
    return Field(torch.full((d, *shape), -math.inf, dtype=torch.float64))


# ------------------------------------------------------------------------------- all of a dimension


def _over(dims: Callable[[Call, int], Any], *, keep: bool) -> Rule:
    """Units see all along some dimensions, which stay or go."""

    def rule(call: Call) -> Any:
        field = call["input"]
        given = dims(call, len(field.shape))
        chosen = range(len(field.shape)) if given is None or given in ((), []) else given
        chosen = [d % len(field.shape) for d in ([chosen] if isinstance(chosen, int) else chosen)]
        whole = field.reach.amax([d + 1 for d in chosen], keepdim=True) if chosen else field.reach
        windows = field.windows if keep and all(d < 2 for d in chosen) else None

        def one(value: Any) -> Any:
            if not isinstance(value, Value):
                return None
            shape = _sizes(value)
            made = whole
            if len(shape) < len(field.shape):
                kept = [n for d, n in enumerate(field.shape) if d not in chosen]
                made = whole.reshape(len(whole), *kept)
            return Field(_spread(made, shape), windows)

        return mapped(call.operation.result, one)

    return rule


def _so_far(call: Call) -> Any:
    """All before, along a dimension."""
    field = call["input"]
    made = Field(field.reach.cummax(call["dim"] % len(field.shape) + 1).values)
    return mapped(call.operation.result, lambda _: made)


def _recurrent(call: Call) -> Any:
    """Every step sees all before it, or all in both directions; last states see everything."""
    field = call["input"]
    batched = len(field.shape) == 3
    time = 2 if batched and call["batch_first"] else 1
    seen = field.reach.amax(-1, keepdim=True)
    for state in _fields(call)[1:]:  # where a state is given that depends on the input
        whole = state.reach.amax(list(range(1, state.reach.ndim)))
        seen = torch.maximum(seen, whole.reshape(-1, *[1] * (seen.ndim - 1)))
    whole = seen.amax(time, keepdim=True)
    steps = whole.expand_as(seen) if call["bidirectional"] else seen.cummax(time).values
    outputs = [Field(_spread(steps, _result(call, 0)).clone())]
    ends = whole.amax(list(range(1, whole.ndim)), keepdim=True)
    for k in range(1, len(call.operation.outputs)):
        shape = _result(call, k)
        outputs.append(Field(ends.reshape(-1, *[1] * len(shape)).expand(-1, *shape)))
    return tuple(outputs)


def _dim(call: Call, ndim: int) -> Any:
    return call.get("dim")


def _normalized_dims(call: Call, ndim: int) -> Any:
    return list(range(ndim - len(call["normalized_shape"]), ndim))


def _extreme(call: Call) -> Any:
    return _union(call) if call.get("other") is not None else _over(_dim, keep=False)(call)


def _group_norm(call: Call) -> Any:
    field, groups = call["input"], call["num_groups"]
    n, channels, *space = field.shape
    grouped = field.reach.reshape(-1, n, groups, channels // groups, *space)
    whole = grouped.amax(list(range(3, grouped.ndim)), keepdim=True)
    return Field(whole.expand_as(grouped).reshape(field.reach.shape))


def _batch_norm(call: Call) -> Any:
    if call.get("training") or call.get("running_mean") is None:
        return _over(lambda c, n: [0, *range(2, n)], keep=True)(call)
    return Field(call["input"].reach, call["input"].windows)


def _instance_norm(call: Call) -> Any:
    if not call.get("use_input_stats", True):
        return Field(call["input"].reach, call["input"].windows)
    return _over(lambda c, n: list(range(2, n)), keep=True)(call)


def _linear(call: Call) -> Any:
    field = call["input"]
    whole = field.reach.amax(-1, keepdim=True)
    return Field(whole.expand(*whole.shape[:-1], _result(call)[-1]))


def _product(call: Call) -> Any:
    """Rows times columns: each unit sees a row of the one and a column of the other."""
    tensors = [v for v in call.arguments.values() if isinstance(v, Field | Tensor)]
    left, right = tensors[0], tensors[1]
    if call.name == "rmatmul":
        left, right = right, left
    shape, parts = _result(call), []
    vectors = [len(getattr(f, "shape", ())) == 1 for f in (left, right)]
    if isinstance(left, Field):
        whole = left.reach.amax(-1, keepdim=not vectors[1])
        parts.append(
            _spread(whole.unsqueeze(-1) if vectors[0] and not vectors[1] else whole, shape)
        )
    if isinstance(right, Field):
        whole = right.reach.amax(-1 if vectors[1] else -2, keepdim=not vectors[0])
        parts.append(_spread(whole, shape))
    return Field(torch.stack(parts).amax(0))


# -------------------------------------------------------------------------------------- windows


def _per(value: Any, dimensions: int) -> list[int]:
    given = [value] if isinstance(value, int) else [int(v) for v in value]
    return given * dimensions if len(given) == 1 else given


def _largest_in_windows(
    reach: Tensor,
    out: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    before: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Of maps `[n, c, ...]`, the largest entry of every window; padding sees nothing."""
    spatial, pads = len(kernel), []
    for i in reversed(range(spatial)):
        needed = (out[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1
        pads += [before[i], needed - reach.shape[2 + i] - before[i]]
    padded = F.pad(reach, pads, value=-math.inf)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[spatial - 1]
    return pool(padded, list(kernel), list(stride), 0, list(dilation))


def _seen(
    windows: Windows,
    kernel: Sequence[int],
    stride: Sequence[int],
    before: Sequence[int],
    dilation: Sequence[int],
) -> Windows:
    """The recursion of a chain."""
    if windows is None or len(windows) != len(kernel):
        return None
    made = []
    for w, k, s, p, d in zip(windows, kernel, stride, before, dilation, strict=True):
        size, start = w.size + d * (k - 1) * w.jump, w.start - p * w.jump
        variance = None if w.variance is None else w.variance + d**2 * (k**2 - 1) * w.jump**2 / 12
        made.append(Window(math.ceil(size), w.jump * s, math.floor(start), variance))
    return tuple(made)


def _convolved(call: Call) -> Any:
    field, weight, groups = call["input"], call["weight"], call.get("groups", 1)
    spatial = weight.ndim - 2
    kernel = list(weight.shape[2:])
    stride, dilation = (_per(call[name], spatial) for name in ("stride", "dilation"))
    padding = call["padding"]
    if padding == "same":
        before = [d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True)]
    else:
        before = [0] * spatial if padding == "valid" else _per(padding, spatial)
    out, maps = _result(call), _maps(field, spatial, groups)
    made = _largest_in_windows(maps, out[-spatial:], kernel, stride, before, dilation)
    return Field(
        _channels(made, len(weight), groups, len(field.reach), out),
        _seen(field.windows, kernel, stride, before, dilation),
    )


def _maps(field: Field, spatial: int, groups: int) -> Tensor:
    """What the channels of every group see, `[n, groups, ...]`."""
    reach = field.reach
    space = reach.shape[-spatial:]
    return reach.reshape(-1, groups, reach.shape[-spatial - 1] // groups, *space).amax(2)


def _channels(made: Tensor, channels: int, groups: int, first: int, out: Sequence[int]) -> Tensor:
    return made.repeat_interleave(channels // groups, 1).reshape(first, *out)


def _transposed(call: Call) -> Any:
    """Every input spreads over a window of outputs: between inputs there is nothing."""
    field, weight, groups = call["input"], call["weight"], call.get("groups", 1)
    spatial = weight.ndim - 2
    kernel = list(weight.shape[2:])
    stride, dilation = (_per(call[name], spatial) for name in ("stride", "dilation"))
    padding = _per(call["padding"], spatial)
    out, maps = _result(call), _maps(field, spatial, groups)
    sizes = [(n - 1) * s + 1 for n, s in zip(maps.shape[2:], stride, strict=True)]
    apart = maps.new_full((*maps.shape[:2], *sizes), -math.inf)
    every: tuple[slice, ...] = tuple(slice(None, None, s) for s in stride)
    apart[(slice(None), slice(None), *every)] = maps
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    made = _largest_in_windows(apart, out[-spatial:], kernel, [1] * spatial, before, dilation)
    reach = _channels(made, weight.shape[1] * groups, groups, len(field.reach), out)
    windows = _spread_out(field.windows, kernel, stride, before, dilation)
    return Field(reach, windows)


def _spread_out(
    windows: Windows,
    kernel: Sequence[int],
    stride: Sequence[int],
    before: Sequence[int],
    dilation: Sequence[int],
) -> Windows:
    """Units between the old ones; the widest of their windows."""
    if windows is None or len(windows) != len(kernel):
        return None
    made = []
    for w, k, s, p, d in zip(windows, kernel, stride, before, dilation, strict=True):
        size = math.ceil(w.size + (d * (k - 1) // s) * w.jump)
        start = math.floor(w.start - (p // s) * w.jump)
        made.append(Window(size, w.jump / s, start, None))
    return tuple(made)


def _pooled(call: Call) -> Any:
    field, spatial = call["input"], int(call.name[-2])
    kernel = _per(call["kernel_size"], spatial)
    stride = _per(call.get("stride") or kernel, spatial)
    before, dilation = (
        _per(call.get(name, default), spatial)
        for name, default in (("padding", 0), ("dilation", 1))
    )
    out = _result(call)
    maps = field.reach.reshape(-1, 1, *field.shape[-spatial:])
    made = _largest_in_windows(maps, out[-spatial:], kernel, stride, before, dilation)
    windows = _seen(field.windows, kernel, stride, before, dilation)
    pooled = Field(made.reshape(len(field.reach), *out), windows)
    return mapped(call.operation.result, lambda _: pooled)


def _adaptively_pooled(call: Call) -> Any:
    field, spatial = call["input"], int(call.name[-2])
    out = _result(call)
    pool = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[spatial - 1]
    maps = field.reach.reshape(-1, 1, *field.shape[-spatial:])
    made = pool(maps, out[-spatial:]).reshape(len(field.reach), *out)
    inside = field.shape[-spatial:]
    windows = None
    if not any(n % m for n, m in zip(inside, out[-spatial:], strict=True)) and any(
        m > 1 for m in out[-spatial:]
    ):
        kernel = [n // m for n, m in zip(inside, out[-spatial:], strict=True)]
        windows = _seen(field.windows, kernel, kernel, [0] * spatial, [1] * spatial)
    pooled = Field(made, windows)
    return mapped(call.operation.result, lambda _: pooled)


def _padded(call: Call) -> Any:
    field = call["input"]
    pad = list(call.get("pad", call.get("padding")))
    mode = str(call.get("mode") or "constant")
    if "_pad" in call.name and not call.name.startswith("constant"):
        mode = {"reflection": "reflect", "replication": "replicate"}[call.name.split("_")[0]]
    options = {"value": -math.inf} if mode == "constant" else {}
    made = F.pad(field.reach.flatten(0, 1), pad, mode=mode, **options).reshape(
        *field.reach.shape[:2], *_result(call)[1:]
    )
    before = pad[::2][::-1]  # torch begins with the last dimension
    spatial = len(field.windows or ())
    windows = None
    if len(before) <= spatial:
        before = [0] * (spatial - len(before)) + before
        one = [1] * spatial
        windows = _seen(field.windows, one, one, before, one)
    return Field(made, windows)


def _resized(call: Call) -> Any:
    """Along each dimension a unit sees the nearest place, or two or four around its own."""
    mode = str(call.get("mode") or call.name)
    field, out = call["input"], _result(call)
    spatial = len(out) - 2
    around = (0,) if "nearest" in mode else (-1, 0, 1, 2) if "cubic" in mode else (0, 1)
    if mode == "area":
        pool = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[spatial - 1]
        maps = field.reach.reshape(-1, 1, *field.shape[-spatial:])
        return Field(pool(maps, out[-spatial:]).reshape(len(field.reach), *out))
    if around == (0,):
        made = _moved(call)
        windows = _nearest(field, out, spatial)
        return Field(made.reach, windows)
    reach = field.reach
    for d in range(spatial):
        n, m, axis = field.shape[2 + d], out[2 + d], 3 + d
        i = torch.arange(m).double()
        if call.get("align_corners"):
            at = i * (n - 1) / max(m - 1, 1)
        else:
            at = (i + 0.5) * n / m - 0.5
            at = at if "cubic" in mode else at.clamp(min=0)
        near = [(at.floor().long() + k).clamp(0, n - 1) for k in around]
        reach = torch.stack([reach.index_select(axis, k) for k in near]).amax(0)
    return Field(reach)


def _nearest(field: Field, out: Sequence[int], spatial: int) -> Windows:
    if field.windows is None or len(field.windows) != spatial:
        return None
    sizes = zip(field.windows, field.shape[-spatial:], out[-spatial:], strict=True)
    return tuple(replace(w, jump=w.jump * Fraction(n, m), variance=None) for w, n, m in sizes)


def _added_up(call: Call) -> Any:
    """Entries are added at places that an index says."""
    target, source, dim = call["input"], call.get("source", call.get("src")), call["dim"]
    shape = _result(call)
    first = _fields(call)[0]
    made = (
        target.reach.clone()
        if isinstance(target, Field)
        else torch.full((len(first.reach), *shape), -math.inf, dtype=torch.float64)
    )
    if isinstance(source, Field):
        axis, index = dim % len(shape) + 1, call["index"]
        if isinstance(index, Field):
            raise call.refusal("no receptive field: places are chosen by the input")
        if call.name == "index_add":
            around = [1] * made.ndim
            around[axis] = -1
            index = index.reshape(around).expand(source.reach.shape)
        else:
            index = index.expand(source.reach.shape)
        made = made.scatter_reduce(axis, index, source.reach, "amax")
    return Field(made)


def _known(rule: Rule) -> Rule:
    def checked(call: Call) -> Any:
        if _fields(call):
            return rule(call)
        return call.function(*call.args, **call.kwargs)

    return checked


#: Entries stay where they are.
_STILL = frozenset("contiguous clone detach to type type_as float double identity alias".split())
#: Some of the entries along a dimension, in order.
_PARTS = frozenset("chunk split split_with_sizes tensor_split narrow slice".split())
_WINDOWED: dict[str, Rule] = {
    **{f"conv{n}d": _convolved for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _transposed for n in (1, 2, 3)},
    **{f"{kind}_pool{n}d": _pooled for kind in ("avg", "max", "lp") for n in (1, 2, 3)},
    **{
        f"adaptive_{kind}_pool{n}d": _adaptively_pooled
        for kind in ("avg", "max")
        for n in (1, 2, 3)
    },
    **dict.fromkeys(PADS, _padded),
    **dict.fromkeys(RESIZES, _resized),
}
_WHOLE: dict[str, Rule] = {
    "linear": _linear,
    **dict.fromkeys(("matmul", "rmatmul"), _product),
    **dict.fromkeys(
        "softmax softmin log_softmax sort argsort topk normalize".split(),
        _over(lambda call, n: call.get("dim", -1), keep=True),
    ),
    **dict.fromkeys("cumsum cumprod cummax cummin logcumsumexp".split(), _so_far),
    **dict.fromkeys(("layer_norm", "rms_norm"), _over(_normalized_dims, keep=True)),
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    **dict.fromkeys("max min amax amin maximum minimum aminmax".split(), _extreme),
    **dict.fromkeys("median kthvalue argmax argmin".split(), _over(_dim, keep=False)),
    **dict.fromkeys("lstm gru rnn_tanh rnn_relu".split(), _recurrent),
    **dict.fromkeys(("index_add", "scatter_add"), _added_up),
}

#: What the units of every operation's result see.
RULES = Rules(
    "no receptive field",
    {
        **{name: _known(rule) for name, rule in (_WINDOWED | _WHOLE).items()},
        **dict.fromkeys("add sub rsub neg lerp mul div where masked_fill".split(), _known(_union)),
    },
    {
        "moves": _known(_moved),
        "selects": _known(_moved),
        "joins": _known(_joined),
        "entrywise": _known(_union),
        "reduction": _known(_over(_dim, keep=False)),
        "constant": _known(_shape_only),
    },
)
