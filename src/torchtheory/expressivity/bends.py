r"""Where a piecewise linear network bends: its operations watched one by one.

A network of affine maps, ReLUs, maxima and the like is affine wherever every ReLU keeps its sign
and every maximum its winner. `BendWatch` runs any `nn.Module` (its own `forward`, skip
connections and functional calls included) and hands every operation that can bend to a visitor, in
the order in which they happen:

* a kink, as the affine forms $z-\theta$ whose zeros are the bends (ReLU: $\theta=0$),
* a choice, as the affine functions whose maximum is taken.

Operations that are affine in the input pass; everything else is refused with its name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    ModelRaised,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.foreign_code import said
from torchtheory.core.naming import operation_words
from torchtheory.models.model import PureFunction, global_randomness_kept, tensors_in

_LIVE = "_depends_on_the_input"

#: Affine in whatever depends on the input, however many such arguments there are.
_JOINT = set(
    """
    add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __rsub__ __isub__ subtract rsub cat concat
    concatenate stack hstack vstack dstack
    """.split()
)
#: Affine in one argument, while the others do not depend on the input.
_SINGLE = set(
    """
    linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul
    __matmul__ __rmatmul__ mm bmm mv addmm baddbmm einsum tensordot mul mul_ __mul__ __rmul__
    __imul__ multiply div div_ __truediv__ __itruediv__ divide true_divide neg neg_ __neg__ positive
    negative mean sum cumsum diff nanmean avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d interpolate upsample pad constant_pad_nd unfold fold
    flatten unflatten view view_as reshape reshape_as permute transpose transpose_ movedim moveaxis
    swapaxes swapdims t adjoint squeeze squeeze_ unsqueeze unsqueeze_ expand expand_as repeat
    repeat_interleave tile broadcast_to contiguous clone detach to type double float requires_grad_
    chunk split tensor_split unbind narrow select __getitem__ index_select take_along_dim gather
    roll flip fliplr flipud rot90 ravel pixel_shuffle pixel_unshuffle channel_shuffle diagonal
    tril triu trace real identity alias type_as
    """.split()
)
_SHAPE_OF_ANOTHER = {"view_as", "reshape_as", "expand_as", "type_as", "to"}
_EVALUATION_ONLY = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
}  # fmt: skip
#: Says something about a tensor that its values do not change.
_DESCRIPTIONS = set(
    """
    __get__ __set__ size dim ndimension numel nelement __len__ stride is_contiguous
    is_floating_point is_complex get_device element_size storage_offset new_zeros new_ones new_full
    new_empty new_tensor zeros_like ones_like full_like empty_like rand_like randn_like data_ptr
    __hash__ __repr__ is_same_size untyped_storage
    """.split()
)


class Visitor(Protocol):
    """Who is told about every operation that can bend."""

    def kink(self, forms: Tensor) -> None:
        """`forms[points, units]`: the operation bends where one of them is 0."""

    def choice(self, values: Tensor) -> None:
        """`values[points, groups, k]`: the operation takes the largest of each group."""


class BendWatch(TorchFunctionMode):
    """Tells a visitor about every bending operation that is applied to what it marked."""

    def __init__(self, model: nn.Module, visitor: Visitor) -> None:
        super().__init__()
        self.model = model
        self.visitor = visitor
        self.refusal: UnsupportedModel | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", str(func))
        live = [t for t in tensors_in([*args, *named.values()]) if getattr(t, _LIVE, False)]
        if not live or name in _DESCRIPTIONS:
            result = func(*args, **named)
            if name == "__get__" and live:  # x.T, x.mT, x.data
                _mark(result)
            return result
        bend = _BENDS.get(name.strip("_"))  # relu_, __abs__, _threshold
        if bend is not None:
            try:
                result = bend(self.visitor, func, args, named)
            except _Refusal as refusal:
                self.refuse(str(refusal))
            return _mark(result)
        if name == "__setitem__":
            func(*args, **named)
            return _mark(args[0])
        if name == "batch_norm":
            training = named.get("training", args[5] if len(args) > 5 else False)
            if training or (args[1] if len(args) > 1 else named.get("running_mean")) is None:
                self.refuse("batch_norm without running statistics mixes the points of a batch")
        elif name in _EVALUATION_ONLY:
            if named.get("training", args[2] if len(args) > 2 else True):
                self.refuse(f"{name} is random")
        elif name in _SINGLE:
            if len(live) > 1 and name not in _SHAPE_OF_ANOTHER:
                self.refuse(f"{name} of two tensors that both depend on the input is not affine")
            divisor = named.get("other", args[1] if len(args) > 1 else None)
            if name.strip("_").endswith(("div", "divide")) and divisor is live[0]:
                self.refuse(f"{name} by something that depends on the input is not affine")
        elif name not in _JOINT:
            self.refuse(f"{operation_words(name)} is not piecewise linear")
        return _mark(func(*args, **named))

    def refuse(self, why: str) -> None:
        """Raise, naming the layer that is running."""
        # kept, because an operator such as * turns a TypeError into a sentence of Python's own
        self.refusal = UnsupportedModel(
            f"{why}{self._running()}; pieces and regions are those of networks of affine maps, "
            "ReLU-like units, absolute values, clamps and maxima"
        )
        raise self.refusal

    def _running(self) -> str:
        names = {id(m): n for n, m in self.model.named_modules()}
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and id(module) in names:
                return f" (layer {names[id(module)] or 'of the model'!r}, {type(module).__name__})"
            frame = frame.f_back
        return ""


def watch_bends(function: PureFunction, x: Tensor, visitor: Visitor) -> Tensor:
    """Run the network on `x[points, ...]`, telling the visitor of every operation that bends.

    >>> class Print:
    ...     def kink(self, forms):
    ...         print("kink", forms.tolist())
    ...     def choice(self, values):
    ...         print("choice", values.tolist())
    >>> net = nn.Sequential(nn.ReLU(), nn.MaxPool1d(2))
    >>> watch_bends(PureFunction(net), torch.tensor([[-1.0, 2.0]]), Print())
    kink [[-1.0, 2.0]]
    choice [[[0.0, 2.0]]]
    tensor([[2.]])
    """
    marked = _mark(x.detach().clone())
    watch = BendWatch(function.model, visitor)
    try:
        with torch.no_grad(), global_randomness_kept(), watch:
            result = function(function.parameters, marked)
    except ModelRaised as error:
        if watch.refusal is not None:
            raise watch.refusal from None
        if not isinstance(error.raised, RuntimeError):
            raise
        raise ShapeMismatch(
            f"the model does not run on points of shape {list(x.shape[1:])}: {said(error.raised)}"
        ) from error.raised
    if result.ndim == 0 or result.shape[0] != x.shape[0]:
        raise UnsupportedModel(
            f"the model makes {list(result.shape)} of {x.shape[0]} points; its output must have "
            "one row for each"
        )
    return result.detach()


class _Refusal(Exception):
    """An operation that cannot be followed, and why."""


def _mark(result: Any) -> Any:
    for tensor in tensors_in([result]):
        setattr(tensor, _LIVE, True)
    return result


# ------------------------------------------------------------------------------------- kinks

_Bend = Callable[[Visitor, Any, tuple[Any, ...], dict[str, Any]], Any]


def _argument(
    args: tuple[Any, ...], named: dict[str, Any], place: int, name: str, default: Any
) -> Any:
    return args[place] if len(args) > place else named.get(name, default)


def _kinks_at(*places: tuple[int, str, float | None] | float) -> _Bend:
    """Kinks at fixed numbers, or at those that an argument (place, name, default) holds."""

    def bend(visitor: Visitor, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        z = _argument(args, named, 0, "input", None)
        for place in places:
            at = _argument(args, named, *place) if isinstance(place, tuple) else place
            if at is None:
                continue
            if isinstance(at, Tensor) and getattr(at, _LIVE, False):
                visitor.choice(
                    torch.stack([z.expand_as(z + at), at.expand_as(z + at)], -1).reshape(
                        len(z), -1, 2
                    )
                )
            else:
                visitor.kink((z - at).reshape(len(z), -1))
        return func(*args, **named)

    return bend


def _shrink(visitor: Visitor, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    z, width = args[0], _argument(args, named, 1, "lambd", 0.5)
    visitor.kink(torch.stack([z - width, z + width], 1).reshape(len(z), -1))
    return func(*args, **named)


def _threshold(visitor: Visitor, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    at, value = _argument(args, named, 1, "threshold", 0), _argument(args, named, 2, "value", 0)
    if at != value:
        raise _Refusal(f"threshold jumps from {value} to {at}, so it is not continuous")
    return _kinks_at(float(at))(visitor, func, args, named)


# ----------------------------------------------------------------------------------- choices


def _larger(sign: int) -> _Bend:
    """`torch.max` and its relatives in all their forms; `sign` is -1 for the smallest."""

    def bend(visitor: Visitor, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        z = _argument(args, named, 0, "input", None)
        other = _argument(args, named, 1, "other", named.get("dim"))
        if isinstance(other, Tensor):
            both = z + other  # for its shape
            pair = (z.expand_as(both), other.expand_as(both))
            if len(pair[0]) != max(t.shape[0] for t in (z, other) if t.ndim):
                raise _Refusal("a maximum that mixes the points of a batch")
            stacked = torch.stack(pair, -1)
            visitor.choice(sign * stacked.reshape(len(stacked), -1, 2))
            return func(*args, **named)
        dims = range(z.ndim) if other is None or other == () else other
        dims = [d % z.ndim for d in ([dims] if isinstance(dims, int) else dims)]
        if 0 in dims:
            raise _Refusal("a maximum over the points of a batch")
        last = z.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))
        visitor.choice(sign * last.reshape(len(z), -1, last.shape[-1]))
        return func(*args, **named)

    return bend


def _pool(spatial: int, adaptive: bool) -> _Bend:
    def bend(visitor: Visitor, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        result = func(*args, **named)
        z: Tensor = _argument(args, named, 0, "input", None)
        first = result[0] if isinstance(result, tuple) else result
        out = first.shape[-spatial:]
        if z.ndim <= spatial:
            raise _Refusal("pooling over the points of a batch")
        if adaptive:
            sizes = z.shape[-spatial:]
            if any(n % m for n, m in zip(sizes, out, strict=True)):
                raise _Refusal(f"adaptive pooling from {list(sizes)} to {list(out)} is uneven")
            kernel = stride = tuple(n // m for n, m in zip(sizes, out, strict=True))
            padding, dilation = (0,) * spatial, (1,) * spatial
        else:
            kernel = _tuple(_argument(args, named, 1, "kernel_size", None), spatial)
            step = _argument(args, named, 2, "stride", None)
            stride = kernel if step is None or step == [] else _tuple(step, spatial)
            padding = _tuple(_argument(args, named, 3, "padding", 0), spatial)
            dilation = _tuple(_argument(args, named, 4, "dilation", 1), spatial)
        visitor.choice(_windows(z, out, kernel, stride, padding, dilation))
        return result

    return bend


def _windows(
    z: Tensor,
    out: torch.Size,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """The windows of a pooling layer, `[points, windows, entries]`; padding never wins."""
    spatial = len(kernel)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    pads: list[int] = []
    for i in reversed(range(spatial)):
        needed = (out[i] - 1) * stride[i] + reach[i]
        pads += [padding[i], max(0, needed - z.shape[i - spatial] - padding[i])]
    low = float(z.min()) - 1.0
    padded = nn.functional.pad(z, pads, value=low)
    for i in range(spatial):
        dim = z.ndim - spatial + i
        padded = padded.unfold(dim, reach[i], stride[i])[..., :: dilation[i]]
        padded = padded.narrow(dim, 0, out[i])
    return padded.reshape(len(z), -1, math.prod(kernel))


def _tuple(value: Any, length: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * length
    given = tuple(int(v) for v in value)
    return given if len(given) == length else given * length


_ZERO = _kinks_at(0.0)
_CLAMP = _kinks_at((1, "min", None), (2, "max", None))
_BENDS: dict[str, _Bend] = {
    "relu": _ZERO,
    "leaky_relu": _ZERO,
    "prelu": _ZERO,
    "prelu_kernel": _ZERO,
    "rrelu": _ZERO,
    "abs": _ZERO,
    "absolute": _ZERO,
    "relu6": _kinks_at(0.0, 6.0),
    "hardtanh": _kinks_at((1, "min_val", -1.0), (2, "max_val", 1.0)),
    "hardsigmoid": _kinks_at(-3.0, 3.0),
    "clamp": _CLAMP,
    "clip": _CLAMP,
    "clamp_min": _kinks_at((1, "min", None)),
    "clamp_max": _kinks_at((1, "max", None)),
    "softshrink": _shrink,
    "threshold": _threshold,
    **dict.fromkeys(("max", "maximum", "fmax", "amax"), _larger(1)),
    **dict.fromkeys(("min", "minimum", "fmin", "amin"), _larger(-1)),
    **{f"max_pool{n}d": _pool(n, False) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": _pool(n, False) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": _pool(n, True) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d_with_indices": _pool(n, True) for n in (1, 2, 3)},
}


# ------------------------------------------------------------------------------- the network


#: A module, or one as a function with the output that is meant.
Network = nn.Module | PureFunction


def exact_function(model: Network) -> PureFunction:
    """The network in double precision, its numbers finite; the module itself stays as it is."""
    function = model if isinstance(model, PureFunction) else PureFunction(model)
    function = function.in_precision(torch.float64)
    function.refuse_non_finite_parameters()
    return function


def sample_shape(function: PureFunction, *samples: Tensor | float) -> list[Tensor]:
    """Samples in double precision on the model's device; a number is a sample of one feature."""
    device = function.reference().device
    # a number keeps all its digits: as a tensor of its own it would be rounded to single precision
    try:
        made = [
            torch.as_tensor(s, dtype=None if isinstance(s, Tensor) else torch.float64).detach()
            for s in samples
        ]
    except (TypeError, ValueError, RuntimeError):
        raise InvalidType("a point is a tensor, or a number for a model of one feature") from None
    made = [s.to(device=device, dtype=torch.float64) for s in made]
    made = [s.reshape(1) if s.ndim == 0 else s for s in made]
    for s in made:
        if s.shape != made[0].shape:
            raise InvalidInput(
                f"the points must have one shape, not {list(made[0].shape)} and {list(s.shape)}"
            )
        if not bool(torch.isfinite(s).all()):
            raise InvalidInput(
                "the points must be finite, and one holds NaN or infinity: "
                f"{first_entry(s, 'the value', ~torch.isfinite(s))}"
            )
    return made
