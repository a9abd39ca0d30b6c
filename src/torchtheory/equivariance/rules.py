"""What a layer does to the positions that a group moves: which action its outputs are to have."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from torchtheory.equivariance.actions import Grid
from torchtheory.equivariance.layouts import Layout, Moved

#: Functions and modules that only move, cut or join entries.
REARRANGEMENTS = set(
    """
    flatten view reshape permute transpose movedim moveaxis swapaxes swapdims squeeze unsqueeze
    contiguous unflatten chunk split tensor_split unbind select narrow __getitem__ cat concat
    concatenate stack t __get__ view_as reshape_as roll index_select rearrange
    """.split()
)

#: Those that join tensors along an axis which they have.
JOINS = {"cat", "concat", "concatenate"}

_REDUCTIONS = set("mean sum amax amin logsumexp prod std var norm max min median".split())

#: Sorted values do not depend on where they were; where the axis is given, by position.
_SORTS = {"sort": 1, "msort": 9, "topk": 2}

_PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "mm"}

#: Functions of which it is known that outputs belong to the positions of the inputs: if one of them
#: does not follow a group, that is its own doing. Others may have moved positions elsewhere.
_POSITIONWISE = set(
    """
    add add_ sub sub_ mul mul_ div div_ pow __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__
    __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__ __pow__ subtract multiply divide
    true_divide rsub maximum minimum lerp addcmul where masked_fill masked_fill_ softmax log_softmax
    layer_norm batch_norm instance_norm group_norm rms_norm scaled_dot_product_attention
    multi_head_attention_forward cumsum cumprod dropout embedding one_hot linear bilinear
    __setitem__ copy_ einsum
    """.split()
)

#: What maps a grid to another one; the stride is the step of the window.
_WINDOWS = {
    **{f"conv{d}d": "conv" for d in (1, 2, 3)},
    **{f"{kind}_pool{d}d": "pool" for kind in ("max", "avg", "lp") for d in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{d}d": "adaptive" for kind in ("max", "avg") for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": "transposed" for d in (1, 2, 3)},
    "interpolate": "resize",
    "pad": "pad",
    "pixel_shuffle": "resize",
    "pixel_unshuffle": "resize",
}

#: Where a function takes its stride, by position; the size of a pool's window is its own.
_STRIDE_AT = {"conv": 3, "pool": 2, "transposed": 3}


def window_kind(name: str) -> str:
    """`conv`, `pool`, `adaptive`, `transposed`, `resize`, `pad`, or empty for other functions."""
    return _WINDOWS.get(name.removesuffix("_with_indices"), "")


def stride_of(module: nn.Module | None, name: str, args: Sequence[Any], named: Any) -> Any:
    """The stride that a convolution or pooling was given."""
    if module is not None:
        return getattr(module, "stride", None) or getattr(module, "kernel_size", None)
    kind = window_kind(name)
    at = _STRIDE_AT.get(kind)
    given = named.get("stride")
    if given is None and at is not None and len(args) > at:
        given = args[at]
    if given is None and kind == "pool":
        given = named.get("kernel_size", args[1] if len(args) > 1 else None)
    return given or 1


def layout_after(
    name: str, stride: Any, z: Tensor, layout: Layout, out: Tensor, dims: Any
) -> Layout | None:
    """The action that the outputs of a layer are to have, or None where that is not known.

    Args:
        name: of the function.
        stride: of a convolution or pooling.
        z, layout: what the layer reads, and the action on it.
        out: what it returns.
        dims: of a reduction.
    """
    found: list[Moved] = []
    for moved in layout:
        after = _moved_after(name, stride, z, moved, out, dims)
        if after is None:
            return None
        found += after
    return tuple(found)


def _moved_after(
    name: str, stride: Any, z: Tensor, moved: Moved, out: Tensor, dims: Any
) -> list[Moved] | None:
    if name in _REDUCTIONS and (dims is not None or out.ndim < z.ndim):
        # whether dimensions stay is read off: functions take that in different places
        return _reduced(z, moved, dims, out.ndim == z.ndim)
    kind = window_kind(name)
    if kind and out.ndim == z.ndim:
        return _windowed(kind, stride, moved, z, out)
    same = out.ndim >= z.ndim and all(out.shape[a] == z.shape[a] for a in moved.axes)
    if same and (out.ndim == z.ndim or name in ("embedding", "one_hot")):
        return [moved]
    if name in ("linear", "bilinear"):
        return []  # every position was read: what comes out has none
    return None


def _reduced(z: Tensor, moved: Moved, dims: Any, keepdim: bool) -> list[Moved] | None:
    if dims is None:
        return []
    gone = {d % z.ndim for d in (dims if isinstance(dims, list | tuple) else [dims])}
    if gone >= set(moved.axes):
        return []
    if gone & set(moved.axes):
        return None
    axes = moved.axes
    if not keepdim:
        axes = tuple(a - sum(d < a for d in gone) for a in axes)
    return [Moved(axes, moved.grid, moved.place, moved.rest)]


def _windowed(kind: str, stride: Any, moved: Moved, z: Tensor, out: Tensor) -> list[Moved] | None:
    sizes = tuple(out.shape[a] for a in moved.axes)
    if moved.axes != tuple(range(out.ndim - len(moved.axes), out.ndim)) or not moved.grid.strides:
        return None
    if all(s == 1 for s in sizes):
        return []
    if moved.place is not None:
        if sizes == moved.grid.sizes:  # a border that was joined on is read and gone again
            return [Moved(moved.axes, moved.grid)]
        part = moved.subgrid([z.shape[a] for a in moved.axes])
        if part is None:
            return None
        moved = Moved(moved.axes, part)
    steps: tuple[Fraction, ...] | None
    if kind == "pad":
        steps = (Fraction(1),) * len(sizes)
    elif kind in ("adaptive", "resize"):
        steps = tuple(Fraction(a, b) for a, b in zip(moved.grid.sizes, sizes, strict=True))
    else:
        given = tuple(stride) if isinstance(stride, list | tuple) else (stride,)
        given = given * len(sizes) if len(given) == 1 else given
        steps = tuple(Fraction(int(s)) for s in given)
        steps = tuple(1 / s for s in steps) if kind == "transposed" else steps
    strides = tuple(a * b for a, b in zip(moved.grid.strides, steps, strict=True))
    return [Moved(moved.axes, Grid(sizes, strides))]


def layout_of_product(
    a: Tensor, first: Layout | None, b: Tensor, second: Layout | None
) -> Layout | None:
    """The action on a matrix product: the rows' of the first, the columns' of the second.

    What is contracted is summed over, so the action on it goes.
    """
    if a.ndim < 2 or b.ndim < 2:
        return None
    out = max(a.ndim, b.ndim)
    found: list[Moved] = []
    for z, layout, contracted in ((a, first, a.ndim - 1), (b, second, b.ndim - 2)):
        for moved in layout or ():
            if contracted in moved.axes:
                if len(moved.axes) > 1:
                    return None
                continue
            axes = tuple(x + out - z.ndim for x in moved.axes)
            if axes not in [m.axes for m in found]:
                found.append(Moved(axes, moved.grid, moved.place, moved.rest))
    return tuple(found)


def joined_layouts(operands: Sequence[tuple[Tensor, Layout | None]], dimensions: int) -> Layout:
    """The action on what operands are broadcast to: all that moves in one of them moves.

    Args:
        operands: the tensors and the actions on them.
        dimensions: of the output.
    """
    found: list[Moved] = []
    for z, layout in operands:
        for moved in layout or ():
            axes = tuple(a + dimensions - z.ndim for a in moved.axes)
            if not {a for m in found for a in m.axes} & set(axes):
                found.append(Moved(axes, moved.grid, moved.place, moved.rest))
    return tuple(found)


def layout_of_einsum(
    equation: str, operands: Sequence[tuple[Tensor, Layout | None]]
) -> Layout | None:
    """The action on a sum over indices: that of every index which stays.

    Args:
        equation: such as `"nid,njd->nij"`; others than with an arrow are not read.
        operands: the tensors and the actions on them, None for constants.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) != len(operands):
        return None
    found: list[Moved] = []
    for letters, (_, layout) in zip(terms, operands, strict=True):
        for moved in layout or ():
            names = [letters[a] for a in moved.axes]
            if not any(name in right for name in names):
                continue
            if not all(name in right for name in names):
                return None
            axes = tuple(right.index(name) for name in names)
            if axes not in [m.axes for m in found]:
                found.append(Moved(axes, moved.grid, moved.place, moved.rest))
    return tuple(found)


def axis_of_sort(name: str, args: Sequence[Any], named: Any) -> int | None:
    """The axis along which a function sorts; None for other functions."""
    if name not in _SORTS:
        return None
    at = _SORTS[name]
    given = named.get("dim", args[at] if len(args) > at else 0 if name == "msort" else -1)
    return int(given)


def is_understood(name: str, module: nn.Module | None) -> bool:
    """Whether a function that does not follow a group can be blamed for that."""
    return (
        module is not None
        or bool(window_kind(name))
        or name in _POSITIONWISE | _PRODUCTS | _REDUCTIONS | REARRANGEMENTS
    )


def is_product(name: str) -> bool:
    """Whether a function multiplies matrices."""
    return name in _PRODUCTS


def is_unit(module: nn.Module) -> bool:
    """Whether a module is looked at as one layer: one of torch's own without modules inside."""
    inside = {name for name, _ in module.named_children()} - {"parametrizations"}
    return _own_class(module).__module__.startswith("torch.nn.modules") and not inside


def kind_of(module: nn.Module) -> str:
    """The name of its class; of a layer with a parametrized weight, that of the layer."""
    return _own_class(module).__name__


def _own_class(module: nn.Module) -> type:
    kind = type(module)
    # torch makes a class of its own for a layer with a parametrized weight
    return kind.__mro__[1] if is_parametrized(module) else kind


#: The function that a module of torch's stands for, where the name tells it.
_MODULES = {
    "Conv1d": "conv1d", "Conv2d": "conv2d", "Conv3d": "conv3d",
    "ConvTranspose1d": "conv_transpose1d", "ConvTranspose2d": "conv_transpose2d",
    "ConvTranspose3d": "conv_transpose3d",
    "MaxPool1d": "max_pool1d", "MaxPool2d": "max_pool2d", "MaxPool3d": "max_pool3d",
    "AvgPool1d": "avg_pool1d", "AvgPool2d": "avg_pool2d", "AvgPool3d": "avg_pool3d",
    "LPPool1d": "lp_pool1d", "LPPool2d": "lp_pool2d",
    "AdaptiveAvgPool1d": "adaptive_avg_pool1d", "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
    "AdaptiveAvgPool3d": "adaptive_avg_pool3d", "AdaptiveMaxPool1d": "adaptive_max_pool1d",
    "AdaptiveMaxPool2d": "adaptive_max_pool2d", "AdaptiveMaxPool3d": "adaptive_max_pool3d",
    "LPPool3d": "lp_pool3d", "Linear": "linear", "Bilinear": "bilinear",
    "Embedding": "embedding", "Upsample": "interpolate", "PixelShuffle": "pixel_shuffle",
    "PixelUnshuffle": "pixel_unshuffle", "Flatten": "flatten", "Unflatten": "unflatten",
    "CircularPad1d": "circular", "CircularPad2d": "circular", "CircularPad3d": "circular",
    "RNN": "recurrent", "LSTM": "recurrent", "GRU": "recurrent",
}  # fmt: skip


def function_of(module: nn.Module) -> str:
    """The name of the function that a module of torch's stands for."""
    name = kind_of(module).removeprefix("Lazy")
    if name.endswith(("Pad1d", "Pad2d", "Pad3d")) and name not in _MODULES:
        return "pad"
    return _MODULES.get(name, name)
