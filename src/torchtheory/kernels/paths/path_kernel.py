r"""The path kernel: inner products of path features, without a list of paths.

Where every nonlinearity multiplies its input by a slope (ReLU: 0 or 1) and max pooling selects one
of its inputs, an output is a sum over the paths $j$ from the inputs to it,

$$
f_k(x) = \sum_j \bar w_{k,j}\,z_j(x) = z(x)^\top\bar w_k, \qquad
z_j(x) = \bar x_j\,\bar\sigma_j(x),
$$

where $\bar w_{k,j}$ is the product of the weights on the path, $\bar\sigma_j(x)$ the
product of the slopes on it, and $\bar x_j$ the input it starts from. A bias is a connection
from a unit of value 1, so that paths start there as well. There are exponentially many paths, but
$K(x,x')=z(x)^\top z(x')$ needs none of them: the sum over the paths into a unit follows from
the sums of its sources,

$$
n_u(x,x') = s_u(x)\,s_u(x')\sum_{v\to u} n_v(x,x'), \qquad n_j(x,x') = x_jx'_j ,
$$

and for dense layers without biases $K(x,x') = x^\top x'\prod_\ell (s^\ell(x)^\top s^\ell(x'))$:
the number of units active for both, multiplied over the layers. Source: Mathematical
Aspects of Deep Learning, section 2.5.1, Eq. (2.1).

Explicit features, for small networks, are in `torchtheory.kernels.paths.deep_paths`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import as_batch, as_module
from torchtheory.core.errors import (
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.models.model import PureFunction, evaluation_mode
from torchtheory.tracing.chain import Link, Rearrangement, as_chain, has_own_forward

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
SLOPED = (nn.ReLU, nn.LeakyReLU, nn.PReLU)
REARRANGING = (nn.Flatten, nn.Unflatten, Rearrangement)
PASSING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)

#: Numbers held at once for the pairs of one tile, about 128 MiB.
_ENTRIES = 2**24


def deep_path_kernel(model: nn.Module, x1: Tensor, x2: Tensor | None = None) -> Tensor:
    r"""$K_{ij}=z(x_i)^\top z(x'_j)$, exactly, for inputs `x1[n, ...]` and `x2[m, ...]`.

    Works for chains of dense and convolutional layers (any stride, dilation, groups and zero
    padding), batch normalization in evaluation mode, average and max pooling (overlapping windows
    too), ReLU, leaky and parametric ReLU, that end with a dense layer. Biases are paths of their
    own. Every connection a layer has counts, also where its weight is 0. `x2` is `x1` unless
    given.

    The kernel depends on the weights through the slopes alone, hence not at all on the last
    layer, and the outputs cannot be read off it. It is `float64` whatever the model's precision:
    its entries are of the size of the number of paths.

    Costs $O(nm\sum_\ell N_\ell)$ for dense layers (one product of slope matrices each), and
    for convolutions as much as a one-channel convolution for each pair; memory is that of the
    result and a tile of at most 2²⁴ numbers.

    Raises:
        UnsupportedModel: if a layer is not piecewise linear through the origin, or has no rule.

    >>> net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
    >>> x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    >>> deep_path_kernel(net, x)       # 2 units fire for the first, 1 for the second and for both
    tensor([[10.,  1.],
            [ 1., 10.]], dtype=torch.float64)
    """
    links = path_links(model)
    symmetric = x2 is None
    x1 = checked_inputs(model, x1, "x1")
    x2 = x1 if x2 is None else checked_inputs(model, x2, "x2")
    if x1.shape[1:] != x2.shape[1:]:
        raise ShapeMismatch(f"x1 has shape {list(x1.shape[1:])} a sample, x2 {list(x2.shape[1:])}")
    with torch.no_grad(), evaluation_mode(model):
        largest = max(math.prod(shape) for shape in unit_shapes(links, x1))
        side = max(1, math.isqrt(_ENTRIES // largest))
        kernel = x1.new_empty(len(x1), len(x2), dtype=torch.float64)
        for i in range(0, len(x1), side):
            rows = _trace(links, x1[i : i + side])
            for j in range(i if symmetric else 0, len(x2), side):
                columns = rows if symmetric and i == j else _trace(links, x2[j : j + side])
                tile = _pair_counts(links, rows, columns)
                kernel[i : i + side, j : j + side] = tile
                if symmetric and i != j:
                    kernel[j : j + side, i : i + side] = tile.mT
    if not bool(torch.isfinite(kernel).all()):
        raise NonFinite(
            f"the path kernel is beyond the largest number: there are "
            f"{number_of_paths(model, x1.shape[1:]):.3g} paths"
        )
    return kernel


def path_norms(model: nn.Module, input_shape: Sequence[int], *, order: float = 2) -> Tensor:
    r"""Norms $\|\bar w_k\|_p$ of the path weights into every output, `[outputs]`.

    One forward pass: weights to the power $p$ on the input of ones, no nonlinearity, windows
    of a max pool summed.

    Args:
        model: a network that `deep_path_kernel` takes.
        input_shape: shape of one input, without the batch dimension.
        order: $p\ge1$; 2 for the Euclidean norm, 1 for the sum of absolute values.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    >>> _ = net[2].weight.data.copy_(torch.tensor([[3.0, 2.0]]))
    >>> path_norms(net, (2,)).square()     # 3² (1² + 2²) + 2² (0² + 1²)
    tensor([49.], dtype=torch.float64)
    """
    if not (order >= 1 and math.isfinite(order)):
        raise InvalidInput(f"the order of a norm is a finite number >= 1, not {order!r}")
    return _forward_on_ones(model, input_shape, power=order) ** (1 / order)


def number_of_paths(model: nn.Module, input_shape: Sequence[int]) -> float:
    """How many paths lead from the inputs and biases to one output.

    >>> number_of_paths(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,))
    17.0
    """
    return float(_forward_on_ones(model, input_shape, power=0)[0])


def path_links(model: nn.Module) -> list[Link]:
    """The layers of a network with path features, or an error that names the one without a rule."""
    as_module(model)
    links = as_chain(model)
    last = -1
    for place, link in enumerate(links):
        _refuse(link)
        if not isinstance(link.module, PASSING + REARRANGING):
            last = place
    if last < 0 or not isinstance(links[last].module, nn.Linear):
        raise UnsupportedModel(
            "path features are those of a network whose last layer is dense, without an activation "
            "after it; give the part of the model up to there"
        )
    return links


def checked_inputs(model: nn.Module, x: Tensor, name: str) -> Tensor:
    """The inputs in the model's precision and on its device."""
    like = PureFunction(model).reference()
    return as_batch(x, name).to(dtype=like.dtype, device=like.device)


def unit_shapes(links: Sequence[Link], x: Tensor) -> list[tuple[int, ...]]:
    """Shapes of the inputs and of every layer's outputs, for one sample."""
    return [tuple(x.shape[1:]), *(tuple(v.shape[1:]) for _, v in _forward(links, x[:1]))]


def slopes(module: nn.Module, z: Tensor) -> Tensor:
    r"""What an activation multiplies its inputs by, $\varrho(z)/z$; the left slope at 0."""
    if isinstance(module, nn.PReLU):
        left = module.weight.reshape(1, -1, *[1] * (z.ndim - 2))
    else:
        left = z.new_tensor(module.negative_slope if isinstance(module, nn.LeakyReLU) else 0.0)
    return torch.where(z > 0, 1.0, left).double()


def window_sums(module: nn.Module, x: Tensor) -> Tensor:
    """Sums over the windows of a pooling layer, `x[n, channels, ...]`."""
    dimensions = x.ndim - 2
    padding, dilation = [0] * dimensions, [1] * dimensions
    if isinstance(module, ADAPTIVE_POOLS):
        kernel = stride = _even_windows(module.output_size, x)
    else:
        assert isinstance(module, AVERAGE_POOLS + MAX_POOLS)
        kernel, stride = _each(module.kernel_size, dimensions), _each(module.stride, dimensions)
        padding = _each(module.padding, dimensions)
        if isinstance(module, MAX_POOLS):
            dilation = _each(module.dilation, dimensions)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dimensions - 1]
    sums: Tensor = convolve(
        x.reshape(-1, 1, *x.shape[2:]),
        x.new_ones(1, 1, *kernel),
        stride=stride,
        padding=padding,
        dilation=dilation,
    )
    return sums.reshape(*x.shape[:2], *sums.shape[2:])


def _even_windows(output_size: Any, x: Tensor) -> list[int]:
    asked = [output_size] * (x.ndim - 2) if isinstance(output_size, int) else output_size
    sizes = [size or n for n, size in zip(x.shape[2:], asked, strict=True)]
    if any(n % size for n, size in zip(x.shape[2:], sizes, strict=True)):
        raise UnsupportedModel(
            f"adaptive pooling of {list(x.shape[2:])} to {sizes} has windows of several sizes, "
            "which path features do not cover"
        )
    return [n // size for n, size in zip(x.shape[2:], sizes, strict=True)]


# ------------------------------------------------------------------------------------- the pairs


@dataclass(slots=True)
class _Pairs:
    """Paths into the units of a layer, for every pair of a tile.

    The sum over the paths into unit `u` is `paths[i, j, u] * first[i, u] * second[j, u]`.
    `paths` has size 1 along the dimensions it does not depend on.
    """

    paths: Tensor
    first: Tensor
    second: Tensor

    def over_groups(self, groups: int) -> Tensor:
        """Sums over the channels of each group, `[n, m, groups, ...]`."""
        channels, space = self.first.shape[1], self.first.shape[2:]
        first = self.first.reshape(len(self.first), groups, channels // groups, *space)
        second = self.second.reshape(len(self.second), groups, channels // groups, *space)
        if self.paths.shape[2] == 1:
            both = torch.einsum("igc...,jgc...->ijg...", first, second)
            return both * self.paths
        paths = self.paths.expand(-1, -1, -1, *space)
        paths = paths.reshape(*paths.shape[:2], *first.shape[1:])
        return torch.einsum("ijgc...,igc...,jgc...->ijg...", paths, first, second)

    def each(self) -> Tensor:
        """The sums themselves, `[n, m, units...]`."""
        return self.paths * self.first[:, None] * self.second[None]


def _pair_counts(links: Sequence[Link], rows: list[Tensor], columns: list[Tensor]) -> Tensor:
    """The kernel of two traces, `[n, m]`."""
    first, second = rows[0].double(), columns[0].double()
    pairs = _Pairs(first.new_ones(1, 1, *[1] * (first.ndim - 1)), first, second)
    for link, a, b in zip(links, rows[1:], columns[1:], strict=True):
        pairs = _step(link.module, pairs, a, b)
    outputs = pairs.each()
    return outputs.reshape(*outputs.shape[:2], -1)[
        :, :, 0
    ]  # the outputs have the same paths but for their end


def _step(module: nn.Module, pairs: _Pairs, a: Tensor, b: Tensor) -> _Pairs:
    """One layer on; `a` and `b` are what the traces say about it."""
    if isinstance(module, SLOPED):
        return _Pairs(pairs.paths, pairs.first * a, pairs.second * b)
    if isinstance(module, PASSING):
        return pairs
    if isinstance(module, REARRANGING):
        return _rearranged(pairs, a.shape[1:])
    if isinstance(module, MAX_POOLS):
        return _selected(pairs, a, b)
    if isinstance(module, nn.Linear):
        sums = pairs.over_groups(1)
    elif isinstance(module, CONVOLUTIONS):
        sums = pairs.over_groups(module.groups)
        ones = sums.new_ones(module.groups, 1, *module.kernel_size)
        sums = _on_pairs(lambda v: module._conv_forward(v, ones, None), sums)
        if module.groups > 1:
            sums = sums.repeat_interleave(module.out_channels // module.groups, dim=2)
    elif isinstance(module, NORMALIZATIONS):
        sums = pairs.each()
    else:
        sums = _on_pairs(lambda v: window_sums(module, v), pairs.each())
    if has_bias(module):
        sums = sums + 1.0
    return _Pairs(sums, torch.ones_like(a), torch.ones_like(b))


def _on_pairs(layer: Callable[[Tensor], Tensor], sums: Tensor) -> Tensor:
    out = layer(sums.reshape(-1, *sums.shape[2:]))
    return out.reshape(*sums.shape[:2], *out.shape[1:])


def _rearranged(pairs: _Pairs, shape: tuple[int, ...]) -> _Pairs:
    first = pairs.first.reshape(-1, *shape)
    second = pairs.second.reshape(-1, *shape)
    if pairs.paths[0, 0].numel() == 1:
        paths = pairs.paths.reshape(*pairs.paths.shape[:2], *[1] * len(shape))
    else:
        paths = pairs.paths.expand(-1, -1, *pairs.first.shape[1:])
        paths = paths.reshape(*paths.shape[:2], *shape)
    return _Pairs(paths, first, second)


def _selected(pairs: _Pairs, a: Tensor, b: Tensor) -> _Pairs:
    """Through max pooling: a path goes on in a window where both inputs select its unit."""
    taken = (a[:, None] == b[None]).double()
    first, second = (
        s.flatten(2).gather(2, chosen.flatten(2)).reshape(chosen.shape)
        for s, chosen in ((pairs.first, a), (pairs.second, b))
    )
    if pairs.paths[0, 0, 0].numel() == 1:  # the same at all places
        return _Pairs(pairs.paths * taken, first, second)
    size = (len(a), len(b), a.shape[1])
    here = pairs.paths.expand(*size, *pairs.first.shape[2:]).flatten(3)
    places = a.flatten(2)[:, None].expand(*size, -1)
    return _Pairs(here.gather(3, places).reshape(taken.shape) * taken, first, second)


def _trace(links: Sequence[Link], x: Tensor) -> list[Tensor]:
    """What each layer does to the inputs of a tile: slopes, selected places, or just its shape."""
    found, value = [x], x
    for link, after in _forward(links, x):
        if isinstance(link.module, SLOPED):
            found.append(slopes(link.module, value))
        elif isinstance(link.module, MAX_POOLS):
            found.append(selected_places(link.module, value))
        else:
            found.append(after.new_empty(1, dtype=torch.float64).expand(after.shape))
        value = after
    return found


def selected_places(module: nn.Module, x: Tensor) -> Tensor:
    """Which place of its (flattened) input map every window of a max pool takes."""
    assert isinstance(module, MAX_POOLS)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.ndim - 3]
    _, places = pool(
        x,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        ceil_mode=module.ceil_mode,
        return_indices=True,
    )
    chosen: Tensor = places
    return chosen


def _forward(links: Sequence[Link], x: Tensor) -> Iterator[tuple[Link, Tensor]]:
    """The outputs of every layer; refuses layers that mix samples or are used on sequences."""
    value = x
    for link in links:
        if isinstance(link.module, nn.Linear) and value.ndim != 2:
            raise UnsupportedModel(
                f"layer {link.name} is dense and gets {list(value.shape[1:])} a sample; flatten "
                "it before, or it is not one layer of units"
            )
        try:
            after: Tensor = link.module(value)
        except (RuntimeError, ValueError) as error:
            sentence = " ".join(str(error).split())[:200]
            raise ShapeMismatch(
                f"layer {link.name or link.module} does not take inputs of shape "
                f"{list(value.shape[1:])} a sample: {sentence}"
            ) from error
        if len(after) != len(x) and not (after.ndim == 1 and after.numel() == value.numel()):
            raise UnsupportedModel(f"layer {link.name or link.module} mixes samples")
        value = after
        yield link, value


# ------------------------------------------------------------------------------ one forward pass


def _forward_on_ones(model: nn.Module, input_shape: Sequence[int], *, power: float) -> Tensor:
    links = path_links(model)
    like = PureFunction(model).reference()
    x = torch.ones(1, *input_shape, dtype=like.dtype, device=like.device)
    with torch.no_grad(), evaluation_mode(model):
        shapes = unit_shapes(links, x)
        value = x.double()
        for link, shape in zip(links, shapes[1:], strict=True):
            value = _count(link.module, value, shape, power)
    return value.reshape(-1)


def _count(module: nn.Module, v: Tensor, shape: tuple[int, ...], power: float) -> Tensor:
    """Powers of path weights (paths, for the power 0), summed into the units of the next layer."""

    def weigh(weight: Tensor) -> Tensor:
        return weight.double().abs() ** power

    if isinstance(module, SLOPED + PASSING):
        return v
    if isinstance(module, REARRANGING):
        return v.reshape(1, *shape) if shape else v.reshape(1)
    if isinstance(module, nn.Linear):
        return F.linear(
            v, weigh(module.weight), None if module.bias is None else weigh(module.bias)
        )
    if isinstance(module, CONVOLUTIONS):
        bias = None if module.bias is None else weigh(module.bias)
        out: Tensor = module._conv_forward(v, weigh(module.weight), bias)
        return out
    if isinstance(module, NORMALIZATIONS):
        scale, shift = normalization(module)
        around = (1, -1, *[1] * (v.ndim - 2))
        return v * weigh(scale).reshape(around) + weigh(shift).reshape(around)
    sums = window_sums(module, v)
    if isinstance(module, MAX_POOLS):
        return sums
    ones = torch.ones_like(v)
    weight: Tensor = module(ones) / window_sums(module, ones)  # 1 / (what the window is divided by)
    return sums * weight**power


def has_bias(module: nn.Module) -> bool:
    """Whether paths start at a layer."""
    if isinstance(module, NORMALIZATIONS):
        return True
    return isinstance(module, (nn.Linear, *CONVOLUTIONS)) and module.bias is not None


def normalization(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Scale and shift `[channels]` of batch normalization in evaluation mode."""
    assert isinstance(module, NORMALIZATIONS)
    assert module.running_var is not None
    assert module.running_mean is not None
    scale = (module.running_var.double() + module.eps).rsqrt()
    if module.weight is not None:
        scale = scale * module.weight.double()
    shift = -module.running_mean.double() * scale
    if module.bias is not None:
        shift = shift + module.bias.double()
    return scale, shift


def _each(value: int | Sequence[int], dimensions: int) -> list[int]:
    return [value] * dimensions if isinstance(value, int) else list(value)


def _refuse(link: Link) -> None:
    module, name = link.module, link.name or type(link.module).__name__
    known = (
        nn.Linear, *CONVOLUTIONS, *AVERAGE_POOLS, *ADAPTIVE_POOLS, *MAX_POOLS, *NORMALIZATIONS,
        *SLOPED, *REARRANGING, *PASSING,
    )  # fmt: skip
    if not isinstance(module, known) or not has_own_forward(module):
        raise UnsupportedModel(
            f"layer {name} is a {type(module).__name__}, which path features have no rule for: "
            "they need layers that are linear, select (max pooling) or multiply by a slope (ReLU)"
        )
    if isinstance(module, CONVOLUTIONS) and module.padding_mode != "zeros":
        raise UnsupportedModel(f"layer {name} pads by {module.padding_mode}; paths need zeros")
    if isinstance(module, AVERAGE_POOLS + MAX_POOLS) and module.ceil_mode:
        raise UnsupportedModel(f"layer {name} pools in ceil_mode, which path features do not cover")
    if isinstance(module, NORMALIZATIONS) and module.running_var is None:
        raise UnsupportedModel(
            f"layer {name} normalizes by the statistics of its batch even in evaluation mode"
        )
