r"""A convolution is a matrix with few different entries, and commutes with shifts.

The layer $z=w*x+b$ is $z=Wx+b$ with a sparse $W$: each row holds the filter,
moved to its place (locality), and all rows hold the same numbers (weight sharing). With periodic
padding and stride 1 the layer commutes with every shift $T$; zeros at the border, strides
and pooling break this. Source: Mathematical Aspects of Deep Learning, section 3.8.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import EmptyData, NonFinite, ShapeMismatch, UnsupportedModel
from torchtheory.kernels.tangent.parameter_uses.jacobians import unfold
from torchtheory.models.model import global_randomness_kept
from torchtheory.tracing.layer_results import layer_outputs

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def convolution_matrix(layer: nn.Module, input_shape: Sequence[int]) -> Tensor:
    r"""The matrix $W$ of a convolution on flattened inputs, as a sparse tensor.

    Row $(c,i)$ belongs to channel $c$ and place $i$ of the output. Any stride,
    dilation, padding and number of groups; a bias is not part of it.

    Args:
        layer: `nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d`.
        input_shape: `(channels, *sizes)` of one input.

    Returns:
        `[outputs, inputs]`, coalesced, explicit zeros of the filter included. Time and memory
        are those of the non-zero entries, `O(outputs * taps)`.

    Source: Mathematical Aspects of Deep Learning, section 3.8.1.

    >>> layer = nn.Conv1d(1, 1, 2, bias=False)
    >>> _ = layer.weight.data.copy_(torch.tensor([[[1.0, 2.0]]]))
    >>> convolution_matrix(layer, (1, 3)).to_dense().tolist()
    [[1.0, 2.0, 0.0], [0.0, 1.0, 2.0]]
    """
    if not isinstance(layer, Convolution):
        raise UnsupportedModel(
            f"the matrix is that of an nn.Conv1d, nn.Conv2d or nn.Conv3d, not of a "
            f"{type(layer).__name__}"
        )
    shape, space = tuple(input_shape), len(layer.kernel_size)
    if len(shape) != space + 1 or shape[0] != layer.in_channels or min(shape) < 1:
        raise ShapeMismatch(
            f"one input of this layer has {layer.in_channels} channels and {space} further "
            f"dimensions, not the shape {list(shape)}"
        )
    inputs, groups = math.prod(shape), layer.groups
    # places are numbered from 1, so that 0 is what zero padding brings in
    number = torch.arange(1, inputs + 1, dtype=torch.float64).reshape(1, *shape)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(number, layer._reversed_padding_repeated_twice, mode=mode)
    reach = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    if any(have < need for have, need in zip(padded.shape[2:], reach, strict=True)):
        raise ShapeMismatch(
            f"the filter reaches over {reach} places, more than the {list(padded.shape[2:])} "
            "of the padded input"
        )
    none = ((0, 0),) * space
    seen = unfold(padded, layer.kernel_size, layer.stride, none, layer.dilation)[0]
    places = len(seen)
    seen = seen.reshape(places, groups, -1).permute(1, 0, 2).round().long() - 1
    filters = layer.weight.detach().reshape(groups, layer.out_channels // groups, 1, -1)
    entries = filters.expand(-1, -1, places, -1)
    columns = seen[:, None].expand_as(entries).to(entries.device)
    rows = torch.arange(layer.out_channels * places, device=entries.device)
    rows = rows.reshape(*entries.shape[:3], 1).expand_as(entries)
    inside = columns >= 0
    made = torch.sparse_coo_tensor(
        torch.stack([rows[inside], columns[inside]]),
        entries[inside],
        (layer.out_channels * places, inputs),
        check_invariants=True,
    )
    return made.coalesce()


def equivariance_gaps(model: nn.Module, x: Tensor, shift: Sequence[int]) -> dict[str, float]:
    r"""How far each layer is from commuting with a shift, relative to its output.

    $$
    \frac{\|f_\ell(Tx)-T_\ell f_\ell(x)\|}{\|f_\ell(x)\|}
    $$

    over the batch, where $f_\ell$ is the network up to the layer and $T$ moves the
    input cyclically. On an output with $m$ places for $n$ of the input,
    $T_\ell$ moves by $m/n$ times as much; where that is no whole number, no shift of
    the grid is the right one, and the better of the two nearest counts.

    Args:
        model: its leaf layers are looked at, in evaluation mode; those whose output has no
            spatial axes (`[n, c]`) should not change at all.
        x: `[n, channels, *sizes]`.
        shift: by how many places, one whole number a spatial axis.

    Returns:
        The gap by the layer's name. Two passes through the network.

    Source: Mathematical Aspects of Deep Learning, section 3.8.1.

    >>> ring = nn.Conv1d(1, 1, 3, padding="same", padding_mode="circular").double()
    >>> gaps = equivariance_gaps(ring, torch.eye(8).double()[:, None], [3])
    >>> max(gaps.values()) < 1e-15
    True
    """
    moves = tuple(int(s) for s in shift)
    if x.ndim < 3 or len(moves) != x.ndim - 2:
        raise ShapeMismatch(
            f"an input [n, channels, *sizes] is moved by one number a size; {list(x.shape)} and "
            f"{len(moves)} numbers were given"
        )
    if len(x) == 0:
        raise EmptyData(f"equivariance is measured on at least one input, not {list(x.shape)}")
    if not bool(torch.isfinite(x).all()):
        raise NonFinite(
            "the input is NaN or infinite somewhere: "
            f"{first_entry(x, 'the value', ~torch.isfinite(x))}"
        )
    axes = tuple(range(2, x.ndim))
    with torch.no_grad(), global_randomness_kept():
        still = layer_outputs(model, x)
        moved = layer_outputs(model, torch.roll(x, moves, axes))
    return {name: _gap(still[name], moved[name], moves, x.shape[2:]) for name in still}


def _gap(still: Tensor, moved: Tensor, moves: tuple[int, ...], sizes: Sequence[int]) -> float:
    scale = still.norm()
    if still.ndim != 2 + len(moves):
        return float((moved - still).norm() / scale)
    choices: list[tuple[int, ...]] = [()]
    for by, size, places in zip(moves, sizes, still.shape[2:], strict=True):
        near = {by * places // size, -(-by * places // size)}
        choices = [(*c, step) for c in choices for step in near]
    axes = tuple(range(2, still.ndim))
    return min(float((moved - torch.roll(still, c, axes)).norm() / scale) for c in choices)
