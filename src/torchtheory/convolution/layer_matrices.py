r"""A convolution layer as what it is: a linear map, sparse, with few numbers many times over.

Along each dimension a layer looks through *windows*: window $o$ has its tap $t$ at the place
$so+\delta t-p$ of the image, with the stride $s$, the dilation $\delta$ and the padding $p$. With
windows $o$ and taps $t$ in several dimensions

$$y_a[o]=\sum_b\sum_t w_{ab}[t]\,x_b[so+\delta t-p],$$

and what a place outside of the image means is the padding's: 0, the other side (circular), the
mirror image (reflect), the nearest place (replicate). A transposed convolution is the adjoint of
such a map. Torch's layers do not flip their filters; the convolution of mathematics
$(x*h)[o]=\sum_t h[t]\,x[o-t]$ does, and `flip=True` stands for that.

Sources: the notes, section 4.1 and 4.2; the lectures, section 10.1.3 and the exercises of chapter
13; the monograph, section 1.8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, described, one_of, whole_number, whole_numbers
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.memory import refuse_too_large
from torchtheory.linalg.operators import LinearOperator
from torchtheory.tracing.chain import has_own_forward

ConvolutionLayer = (
    nn.Conv1d | nn.Conv2d | nn.Conv3d
    | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
)  # fmt: skip
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

PADDINGS = ("zeros", "circular", "reflect", "replicate")

_FORWARD: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d)
_BACKWARD: tuple[Any, ...] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a filter along one dimension.

    Attributes:
        size: places of the image, $n$.
        count: windows, $m$.
        taps: of the filter along this dimension, $k$.
        stride, dilation: places from one window to the next, and from one tap to the next.
        before: places by which the first window begins before the image, $p$.
        padding: what is outside of the image, one of `PADDINGS`.
    """

    size: int
    count: int
    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    padding: str = "zeros"

    @property
    def end(self) -> int:
        """The place behind the last tap of the last window."""
        return (self.count - 1) * self.stride + (self.taps - 1) * self.dilation - self.before + 1

    @property
    def zero_outside(self) -> bool:
        """Whether taps outside of the image meet zeros, or there are none."""
        return self.padding == "zeros" or (self.before <= 0 and self.end <= self.size)

    def raw_places(self) -> Tensor:
        r"""$so+\delta t-p$, `[count, taps]`, also outside of the image."""
        starts = torch.arange(self.count) * self.stride - self.before
        return starts[:, None] + torch.arange(self.taps) * self.dilation

    def places(self) -> Tensor:
        """Which place of the image each tap meets, `[count, taps]`; -1 where it meets a 0."""
        raw, n = self.raw_places(), self.size
        if self.padding == "circular":
            return raw % n
        if self.padding == "replicate":
            return raw.clamp(0, n - 1)
        if self.padding == "reflect":
            period = max(1, 2 * (n - 1))
            folded = raw % period
            return torch.minimum(folded, period - folded) % max(1, n)
        return torch.where((raw >= 0) & (raw < n), raw, -1)

    @property
    def cyclic(self) -> bool:
        """Whether shifting the image by a stride, around its end, shifts the windows by one."""
        if self.count * self.stride != self.size:
            return False
        # a single window that reflects its taps is no window of a torus, though it shifts like one
        return bool((self.places() == self.raw_places() % self.size).all())


@dataclass(frozen=True, slots=True)
class ConvolutionMap:
    """The linear map of a convolution layer: its weights and its windows.

    Attributes:
        weight: `[a, b / groups, taps...]`: from `b` channels of the image to `a` of the windows.
        groups: blocks of channels that do not meet.
        windows: those of every dimension.
        transposed: whether the layer is the adjoint, from the windows to the image.
    """

    weight: Tensor
    groups: int
    windows: tuple[Windows, ...]
    transposed: bool = False

    @property
    def image_shape(self) -> tuple[int, ...]:
        return (self.weight.shape[1] * self.groups, *(w.size for w in self.windows))

    @property
    def windows_shape(self) -> tuple[int, ...]:
        return (self.weight.shape[0], *(w.count for w in self.windows))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.windows_shape if self.transposed else self.image_shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.image_shape if self.transposed else self.windows_shape

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of its matrix."""
        return math.prod(self.output_shape), math.prod(self.input_shape)

    @property
    def cyclic(self) -> bool:
        """Whether it commutes with the shifts of a torus, so that Fourier makes it diagonal."""
        return all(w.cyclic for w in self.windows)

    def apply(self, x: Tensor) -> Tensor:
        """The image of `[n, *input_shape]`, by torch's own functions."""
        stride = tuple(w.stride for w in self.windows)
        dilation = tuple(w.dilation for w in self.windows)
        place = len(self.windows) - 1
        if self.transposed:
            full = _BACKWARD[place](x, self.weight, None, stride, 0, 0, self.groups, dilation)
            for d, w in enumerate(self.windows):
                full = resized(full, d + 2, w.before, w.size)
            return cast(Tensor, full)
        around = [
            side for w in reversed(self.windows) for side in (w.before, max(0, w.end - w.size))
        ]
        mode = self.windows[0].padding
        if any(around):
            x = F.pad(x, around, mode="constant" if mode == "zeros" else mode)
        return cast(Tensor, _FORWARD[place](x, self.weight, None, stride, 0, dilation, self.groups))

    def frobenius_norm(self) -> float:
        """The root of the sum of the squared entries of the matrix.

        Taps that meet the same place of the image add up in one entry; along each dimension it is
        counted how often two taps do, so the matrix is never made.
        """
        taps = self.weight.detach().double().flatten(2)
        meetings = torch.ones(1, 1, dtype=torch.float64, device=taps.device)
        for w in self.windows:
            seen = w.places()
            same = (seen[:, :, None] == seen[:, None, :]) & (seen[:, :, None] >= 0)
            meetings = torch.kron(meetings, same.sum(0).double().to(taps.device))
        products = torch.einsum("oit,oiu->tu", taps, taps)
        return math.sqrt(max(0.0, float((products * meetings).sum())))

    def scaled(self, factors: Tensor) -> ConvolutionMap:
        """Followed by a factor for every output channel."""
        shape = (-1, 1) if not self.transposed else (1, -1)
        if self.transposed and self.groups > 1:
            per_group = factors.reshape(self.groups, 1, -1)
            split = self.weight.reshape(self.groups, -1, *self.weight.shape[1:])
            weight = (split * per_group.reshape(*per_group.shape, *[1] * (split.ndim - 3))).reshape(
                self.weight.shape
            )
        else:
            weight = self.weight * factors.reshape(*shape, *[1] * len(self.windows))
        return replace(self, weight=weight)


def resized(full: Tensor, dim: int, before: int, size: int) -> Tensor:
    """`size` entries along a dimension from `before` on, zeros where there are none."""
    have = full.shape[dim]
    part = full.narrow(dim, before, max(0, min(size, have - before)))
    lacking = size - part.shape[dim]
    if lacking:
        around = [0, 0] * (full.ndim - 1 - dim) + [0, lacking]
        part = F.pad(part, around)
    return part


def convolution_map(layer: ConvolutionLayer, input_shape: Sequence[int]) -> ConvolutionMap:
    """The linear map of a convolution layer, without its bias.

    Args:
        layer: any of `nn.Conv1d` to `nn.Conv3d` and `nn.ConvTranspose1d` to `nn.ConvTranspose3d`.
        input_shape: `[channels, ...]` of one input, without the batch dimension.

    >>> found = convolution_map(nn.Conv2d(3, 8, 3, stride=2, padding=1), (3, 32, 32))
    >>> found.output_shape, found.shape
    ((8, 16, 16), (2048, 3072))
    """
    if not isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED)):
        raise InvalidType(
            f"a convolution layer of torch.nn is needed (Conv1d to Conv3d, or a transposed one), "
            f"not {described(layer)}"
        )
    if not has_own_forward(layer):
        raise UnsupportedModel(
            f"{type(layer).__name__} has a forward pass of its own, so its linear map is not known"
        )
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or isinstance(
        weight, torch.nn.parameter.UninitializedParameter
    ):
        raise UnsupportedModel(
            "the layer has no weights yet; pass it an input once, and then ask again"
        )
    around = layer._reversed_padding_repeated_twice[::-1]  # after, before, per dimension
    return map_of_arguments(
        weight.detach(),
        input_shape,
        stride=layer.stride,
        padding=tuple(around[1::2]),
        after=tuple(around[0::2]),
        dilation=layer.dilation,
        groups=layer.groups,
        transposed=isinstance(layer, TRANSPOSED),
        output_padding=layer.output_padding,
        mode=layer.padding_mode,
    )


def map_of_arguments(
    weight: Tensor,
    input_shape: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    after: Sequence[int] | None = None,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    transposed: bool = False,
    output_padding: int | Sequence[int] = 0,
    mode: str = "zeros",
) -> ConvolutionMap:
    """The linear map of `torch.conv2d` and its relatives, from their arguments.

    Args:
        weight: as torch has it, `[out, in / groups, ...]`, or `[in, out / groups, ...]` of a
            transposed convolution.
        input_shape: `[channels, ...]` of one input.
        stride, padding, dilation, groups, output_padding: as torch has them, `padding` also
            `"same"` or `"valid"`.
        after: the padding behind the image, where it is not `padding` as well.
        transposed: whether it is a transposed convolution.
        mode: what is outside of the image, one of `PADDINGS`.
    """
    if not isinstance(input_shape, Sequence):
        raise InvalidType(
            f"input_shape must be the shape of one input, [channels, ...], not "
            f"{described(input_shape)}"
        )
    if weight.is_complex():
        raise UnsupportedModel("the weights are complex, and these maps are of real numbers")
    shape = whole_numbers(tuple(input_shape), "input_shape", least=1)
    dims = weight.ndim - 2
    if dims not in (1, 2, 3):
        raise ShapeMismatch(f"the weight of a convolution has 3 to 5 dimensions, not {weight.ndim}")
    if len(shape) != dims + 1:
        raise ShapeMismatch(
            f"an input of this layer has {dims + 1} dimensions, channels first and without the "
            f"batch, not {list(shape)}"
        )
    one_of(mode, "padding mode", PADDINGS)
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if shape[0] != channels:
        raise ShapeMismatch(f"the layer takes {channels} channels, and the input has {shape[0]}")
    taps = weight.shape[2:]
    strides = whole_numbers(_each(stride, dims), "stride")
    dilations = whole_numbers(_each(dilation, dims), "dilation")
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, taps, strict=True)]
    if padding == "same":
        before = tuple((r - 1) // 2 for r in reach)
        behind = tuple(r - 1 - b for r, b in zip(reach, before, strict=True))
    else:
        given = _each(0 if padding == "valid" else cast(Any, padding), dims)
        before = whole_numbers(given, "padding", least=0)
        behind = before if after is None else tuple(after)
    extra = _each(output_padding, dims)
    windows = []
    for d in range(dims):
        if transposed:
            count = shape[d + 1]
            size = (count - 1) * strides[d] - before[d] - behind[d] + reach[d] + extra[d]
        else:
            size = shape[d + 1]
            count = (size + before[d] + behind[d] - reach[d]) // strides[d] + 1
        _refuse_misfit(size, count, reach[d], max(before[d], behind[d]), mode, list(shape))
        windows.append(Windows(size, count, taps[d], strides[d], dilations[d], before[d], mode))
    return ConvolutionMap(weight, groups, tuple(windows), transposed)


def _refuse_misfit(
    size: int, count: int, reach: int, padding: int, mode: str, shape: list[int]
) -> None:
    if count < 1 or size < 1:
        raise ShapeMismatch(
            f"a filter that reaches over {reach} places does not fit an input of {shape}, whose "
            f"output would be empty"
        )
    most = {"circular": size, "reflect": size - 1}.get(mode)
    if most is not None and padding > most:
        raise ShapeMismatch(
            f"{mode} padding by {padding} needs a longer input than one of {size} places"
        )


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """One number per dimension."""
    if isinstance(value, int):
        return (value,) * dims
    found = tuple(value)
    return found * dims if len(found) == 1 else found


def layer_matrix(layer: ConvolutionLayer, input_shape: Sequence[int]) -> Tensor:
    r"""The matrix of a convolution layer, sparse: $\operatorname{vec}y=W\operatorname{vec}x$.

    Rows and columns are the flattened output and input, channels first. Without the bias.

    Args:
        layer, input_shape: as for `convolution_map`.

    Returns:
        A coalesced sparse tensor `[outputs, inputs]`. Where circular, reflecting or replicating
        padding makes two taps of a filter meet one place, they are added.

    Cost: time and memory of one number per window and weight that is not on the padding;
    `layer_operator` applies the map without.

    Example: a strided difference.

    >>> layer = convolution_layer(torch.tensor([[[-1.0, 1.0]]]), stride=2)
    >>> layer_matrix(layer, (1, 4)).to_dense()
    tensor([[-1.,  1.,  0.,  0.],
            [ 0.,  0., -1.,  1.]])
    """
    return matrix_of_map(convolution_map(layer, input_shape))


def matrix_of_map(found: ConvolutionMap) -> Tensor:
    """The sparse matrix of a `ConvolutionMap`; see `layer_matrix`."""
    weight, groups = found.weight, found.groups
    device = weight.device
    a, per_group = weight.shape[:2]
    entries = math.prod(w.count * w.taps for w in found.windows) * a * per_group
    refuse_too_large(entries * (16 + 2 * weight.element_size()), "the matrix of this layer")
    place = torch.zeros(1, 1, dtype=torch.int64)
    inside = torch.ones(1, 1, dtype=torch.bool)
    for w in found.windows:
        here = w.places()
        joined = place[:, None, :, None] * w.size + here[None, :, None, :]
        known = inside[:, None, :, None] & (here >= 0)[None, :, None, :]
        place, inside = (
            t.reshape(t.shape[0] * t.shape[1], t.shape[2] * t.shape[3]) for t in (joined, known)
        )
    count, size = len(place), math.prod(w.size for w in found.windows)
    window, tap = inside.nonzero(as_tuple=True)
    meets = place[window, tap].to(device)
    out = torch.arange(a, device=device)
    group = out // (a // groups)
    into = group[:, None] * per_group + torch.arange(per_group, device=device)
    wide = (a, per_group, len(window))
    rows = (out[:, None, None] * count + window.to(device)).expand(wide).reshape(-1)
    columns = (into[:, :, None] * size + meets).expand(wide).reshape(-1)
    values = weight.flatten(2)[:, :, tap.to(device)].reshape(-1)
    places = torch.stack([columns, rows] if found.transposed else [rows, columns])
    made = torch.sparse_coo_tensor(places, values, found.shape, check_invariants=False)
    return made.coalesce()


def layer_operator(layer: ConvolutionLayer, input_shape: Sequence[int]) -> LinearOperator:
    r"""The linear map of a convolution layer, applied and never written down, with its adjoint.

    `A @ v` is the layer without its bias, `A.T @ u` the gradient $W^\top u$ that
    back-propagation sends to the layer's input.

    Args:
        layer, input_shape: as for `convolution_map`.

    >>> layer = nn.Conv2d(2, 4, 3, padding=1, dtype=torch.float64)
    >>> A = layer_operator(layer, (2, 6, 6))
    >>> gap = A.to_dense() - layer_matrix(layer, (2, 6, 6)).to_dense()
    >>> A.shape, float(gap.abs().max()) < 1e-14
    ((144, 72), True)
    """
    return operator_of_map(convolution_map(layer, input_shape))


def operator_of_map(found: ConvolutionMap) -> LinearOperator:
    """The action of a `ConvolutionMap`; see `layer_operator`."""
    return LinearOperator.from_function(
        found.apply,
        found.input_shape,
        batched=True,
        dtype=found.weight.dtype,
        device=found.weight.device,
    )


Extent = Literal["full", "valid", "circular"]


def toeplitz_matrix(kernel: Tensor, size: int | Sequence[int], extent: Extent = "full") -> Tensor:
    r"""The matrix of the convolution with a kernel, $x*h=H_n^hx$: constant along its diagonals.

    In one dimension, for $h\in\mathbb R^m$ and $x\in\mathbb R^n$ and counting from 1,

    * `"full"`: $H\in\mathbb R^{(n+m-1)\times n}$ with $H_{ij}=h_{i-j+1}$;
    * `"valid"`: the rows in which all of $h$ stands, $W\in\mathbb R^{(n-m+1)\times n}$ with
      $W_{kj}=h_{m+k-j}$: the dense layer that a convolution layer is, with $m$ free numbers in
      place of $n(n-m+1)$;
    * `"circular"`: $n\times n$, indices modulo $n$.

    In several dimensions it is block Toeplitz with Toeplitz blocks.

    Args:
        kernel: `[m]`, or `[m_1, ..., m_d]`, d at most 3.
        size: $n$, or one number per dimension.

    Cost: the dense matrix.

    >>> toeplitz_matrix(torch.tensor([1.0, 2.0]), 4, "valid")
    tensor([[2., 1., 0., 0.],
            [0., 2., 1., 0.],
            [0., 0., 2., 1.]])
    >>> toeplitz_matrix(torch.tensor([1.0, 2.0]), 2)
    tensor([[1., 0.],
            [2., 1.],
            [0., 2.]])
    """
    if not isinstance(kernel, Tensor) or not kernel.is_floating_point():
        raise InvalidType(f"a kernel is a tensor of real numbers, not {described(kernel)}")
    one_of(extent, "extent", ("full", "valid", "circular"))
    if kernel.ndim not in (1, 2, 3) or kernel.numel() == 0:
        raise ShapeMismatch(
            f"a kernel has 1 to 3 dimensions and some entries, not {list(kernel.shape)}"
        )
    all_finite(kernel, "kernel")
    sizes = whole_numbers(_each(size, kernel.ndim), "size")
    if len(sizes) != kernel.ndim:
        raise ShapeMismatch(f"a kernel of {kernel.ndim} dimensions needs as many sizes, not {size}")
    windows = []
    for m, n in zip(kernel.shape, sizes, strict=True):
        if extent == "valid" and n < m:
            raise ShapeMismatch(f"a kernel of {m} entries does not fit a signal of {n}")
        count = {"full": n + m - 1, "valid": n - m + 1, "circular": n}[extent]
        before = 0 if extent == "valid" else m - 1
        mode = "circular" if extent == "circular" else "zeros"
        windows.append(Windows(n, count, m, before=before, padding=mode))
    flipped = kernel.detach().flip(tuple(range(kernel.ndim)))[None, None]
    return matrix_of_map(ConvolutionMap(flipped, 1, tuple(windows))).to_dense()


def convolution_layer(
    kernels: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    flip: bool = False,
) -> nn.Conv1d | nn.Conv2d | nn.Conv3d:
    r"""Torch's layer with these kernels.

    With `flip=True` it computes the convolution of mathematics with them,
    $y_m[i]=\sum_c\sum_u x_c[si+u-p]\,K_{mc}[k-1-u]+b_m$; without, torch's own, in which the
    kernel is not turned around.

    Args:
        kernels: `[out, in / groups, ...]`.
        bias: `[out]`.
        stride, padding, dilation, groups, padding_mode: torch's.

    >>> edge = convolution_layer(torch.tensor([[[1.0, -1.0]]]), flip=True)
    >>> edge(torch.tensor([[0.0, 0.0, 5.0, 5.0]]))
    tensor([[0., 5., 0.]], grad_fn=<SqueezeBackward1>)
    """
    if not isinstance(kernels, Tensor) or not kernels.is_floating_point():
        raise InvalidType(f"kernels must be a tensor of real numbers, not {described(kernels)}")
    if kernels.ndim not in (3, 4, 5) or kernels.numel() == 0:
        raise ShapeMismatch(
            "kernels must be [out, in / groups, ...] with 1 to 3 more dimensions, not "
            f"{list(kernels.shape)}"
        )
    whole_number(groups, "groups", least=1)
    if len(kernels) % groups:
        raise InvalidInput(f"{len(kernels)} output channels do not divide into {groups} groups")
    if bias is not None and tuple(bias.shape) != (len(kernels),):
        raise ShapeMismatch(f"bias must be [{len(kernels)}], not {list(bias.shape)}")
    kind = CONVOLUTIONS[kernels.ndim - 3]
    layer = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        kind,
        kernels.shape[1] * groups,
        len(kernels),
        tuple(kernels.shape[2:]),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=bias is not None,
        padding_mode=one_of(padding_mode, "padding mode", PADDINGS),
        dtype=kernels.dtype,
        device=kernels.device,
    )
    turned = kernels.flip(tuple(range(2, kernels.ndim))) if flip else kernels
    with torch.no_grad():
        layer.weight.copy_(turned)
        if bias is not None:
            layer.bias.copy_(bias)
    return cast(nn.Conv1d | nn.Conv2d | nn.Conv3d, layer)
