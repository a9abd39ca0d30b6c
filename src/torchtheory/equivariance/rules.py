"""What a layer does to the positions that a group moves: which action its outputs are to have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch import Tensor, nn

from torchtheory.equivariance.actions import Grid
from torchtheory.equivariance.layouts import Layout, Moved
from torchtheory.tracing.kinds import KIND_OF
from torchtheory.tracing.network import Operation

#: Operations that only move, cut or join entries.
REARRANGEMENTS = set(
    """
    flatten view reshape permute transpose movedim squeeze unsqueeze contiguous unflatten chunk
    split split_with_sizes tensor_split unbind select slice narrow getitem cat stack t T mT H mH
    adjoint view_as reshape_as roll index_select ravel
    """.split()
)

#: Those that join tensors along an axis which they have.
JOINS = {"cat"}

_REDUCTIONS = set("mean sum amax amin logsumexp prod std var norm max min median".split())

#: Sorted values do not depend on where they were.
_SORTS = {"sort", "msort", "topk"}

_PRODUCTS = {"matmul", "rmatmul"}

#: Operations of which it is known that outputs belong to the positions of the inputs: if one of
#: them does not follow a group, that is its own doing. Others may have moved positions elsewhere.
_POSITIONWISE = set(
    """
    add sub mul div pow rsub rdiv rpow maximum minimum lerp addcmul where masked_fill softmax
    log_softmax layer_norm batch_norm instance_norm group_norm rms_norm scaled_dot_product_attention
    multi_head_attention_forward cumsum cumprod dropout embedding one_hot linear bilinear setitem
    copy einsum
    """.split()
)

#: What maps a grid to another one; the stride is the step of the window.
_WINDOWS = {
    **{f"conv{d}d": "conv" for d in (1, 2, 3)},
    **{f"{kind}_pool{d}d": "pool" for kind in ("max", "avg", "lp") for d in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{d}d": "adaptive" for kind in ("max", "avg") for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": "transposed" for d in (1, 2, 3)},
    **dict.fromkeys(("interpolate", *(n for n in KIND_OF if n.startswith("upsample"))), "resize"),
    "pad": "pad",
    "pixel_shuffle": "resize",
    "pixel_unshuffle": "resize",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a layer of torch's; those of a single operation are empty.

    Attributes:
        is_layer: whether it is a layer.
        stride: of a convolution or pooling.
        padding: the same.
        padding_mode: `zeros` unless a convolution pads in another way.
        weighted: whether it has weights.
    """

    is_layer: bool = False
    stride: Any = None
    padding: Any = 0
    padding_mode: str = "zeros"
    weighted: bool = False


def window_kind(name: str) -> str:
    """`conv`, `pool`, `adaptive`, `transposed`, `resize`, `pad`, or empty for other functions."""
    return _WINDOWS.get(name, "")


def settings_of(
    name: str, own: Sequence[Operation], arguments: dict[str, Any] | None = None
) -> Settings:
    """The settings of a layer that is made of some operations, or of one with these arguments."""
    given = arguments or next((op.arguments for op in own if op.name == name), {})
    stride = given.get("stride")
    if not stride and window_kind(name) == "pool":
        stride = given.get("kernel_size")
    pads = [op.arguments.get("mode") for op in own if op.name == "pad" and name != "pad"]
    inputs = [v for op in own for v in op.inputs]
    return Settings(
        bool(own),
        stride or 1,
        given.get("padding", 0) or bool(pads),
        str(pads[0]) if pads else "zeros",
        any(v.origin == "parameter" and v.shape for v in inputs),
    )


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


def axis_of_sort(name: str, arguments: dict[str, Any]) -> int | None:
    """The axis along which an operation sorts; None for others."""
    if name not in _SORTS:
        return None
    given = arguments.get("dim")
    return int(given) if given is not None else 0 if name == "msort" else -1


def is_understood(name: str, settings: Settings) -> bool:
    """Whether an operation that does not follow a group can be blamed for that."""
    return (
        settings.is_layer
        or bool(window_kind(name))
        or name in _POSITIONWISE | _PRODUCTS | _REDUCTIONS | REARRANGEMENTS
    )


def is_product(name: str) -> bool:
    """Whether a function multiplies matrices."""
    return name in _PRODUCTS


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


#: Layers of torch's that are looked at function by function.
_OPENED = ("MultiheadAttention", "Sequential", "ModuleList", "Module")


def unit_of(kind: str) -> tuple[str, str]:
    """The operation that a layer of torch's stands for, and its class; empty for other modules.

    >>> unit_of("ParametrizedConv2d"), unit_of("ReLU"), unit_of("MyOwnBlock")
    (('conv2d', 'Conv2d'), ('ReLU', 'ReLU'), ('', ''))
    """
    # torch makes a class of its own for a layer with a parametrized weight
    kind = kind.removeprefix("Parametrized")
    if not hasattr(nn, kind) or kind in _OPENED:
        return "", ""
    name = kind.removeprefix("Lazy")
    if name.endswith(("Pad1d", "Pad2d", "Pad3d")) and name not in _MODULES:
        return "pad", kind
    return _MODULES.get(name, name), kind
