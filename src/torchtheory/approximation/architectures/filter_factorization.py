r"""Long filters as short ones in a row, and shallow networks as deep convolutional ones.

A filter $W$ on $\{0,\dots,S\}$ is the polynomial $\sum_kW_kz^k$, and convolving
is multiplying. A real polynomial is a product of real factors of degree 1 and 2, so that

$$
W=w^{(p)}*\dots*w^{(1)},\qquad w^{(j)} \text{ on } \{0,\dots,s\},\ s\ge2,
$$

with $p\le\lceil S/(s-1)\rceil$. A purely convolutional ReLU network of $p$ layers
with such filters computes $W*x$ where large biases keep its units active, and, with the
last ones not so large, any sum of ridge functions $\sum_kc_k\max(a_k\cdot x-t_k,0)$ on a
bounded set. Since these are dense in $C(K)$, so are deep convolutional networks. Source:
Mathematical Aspects of Deep Learning, section 3.8.1 (Zhou 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, first_entry, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, NotConverged, ShapeMismatch
from torchtheory.nets.feedforward import dense


def convolve_filters(filters: Sequence[Tensor]) -> Tensor:
    """The convolution of filters `[k + 1]`, `[l + 1]`, ...: their polynomials multiplied.

    >>> convolve_filters([torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0])]).tolist()
    [1.0, 0.0, -1.0]
    """
    if not filters:
        raise InvalidInput("there is no filter to convolve")
    made = filters[0]
    for w in filters[1:]:
        made = _full(made[None], w)[0]
    return made


def factor_filter(long: Tensor, span: int = 2, *, tolerance: float = 1e-8) -> list[Tensor]:
    r"""Short filters whose convolution is a long one.

    The roots of the filter's polynomial, conjugate pairs together, are dealt out to factors of
    degree at most $s$; all factors are scaled to the same norm. The roots are taken in the
    order of Leja, each as far as can be from those before: in another order the convolutions
    of the first factors grow by many orders of magnitude.

    Args:
        long: `[S + 1]`.
        span: $s\ge2$, the degree of the short filters (`s + 1` taps).
        tolerance: largest difference allowed, relative to the largest entry of the filter; a
            filter too long for double precision is refused.

    Returns:
        At most $\lceil S/(s-1)\rceil$ filters `[s + 1]`, the last ones filled up by 0.
        Time `O(S^3)`.

    Source: Mathematical Aspects of Deep Learning, section 3.8.1.

    >>> short = factor_filter(torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]).double(), tolerance=1e-3)
    >>> [len(w) for w in short]
    [3, 3]
    """
    whole_number(span, "span", least=2)
    positive_number(tolerance, "tolerance")
    if long.ndim != 1 or len(long) == 0:
        raise ShapeMismatch(f"a filter is a vector [S + 1], not {list(long.shape)}")
    if not bool(torch.isfinite(long).all()):
        raise NonFinite(
            "the filter has entries that are NaN or infinite: "
            f"{first_entry(long, 'the value', ~torch.isfinite(long))}"
        )
    values = long.detach().cpu().double().numpy()
    used = np.flatnonzero(values)
    if len(used) == 0:
        raise InvalidInput("the filter is 0, which has no factors")
    # leading zeros are factors z, trailing ones lower the degree
    core = values[used[0] : used[-1] + 1]
    pieces = [np.array([0.0, 1.0])] * int(used[0]) + _real_factors(core)
    groups = _dealt_out(pieces, span)
    scale = float(core[-1])
    size = abs(scale) * math.prod(float(np.linalg.norm(g)) for g in groups)
    norm = size ** (1 / len(groups)) if math.isfinite(size) and size > 0 else 1.0
    made = [norm * g / np.linalg.norm(g) for g in groups]
    short = [torch.from_numpy(np.pad(g, (0, span + 1 - len(g)))) for g in made]
    product = convolve_filters(short)
    # one more scaling: what the rounding of the norms left, and the sign
    target = torch.from_numpy(values)
    whole = F.pad(target, (0, max(0, len(product) - len(target))))
    product = F.pad(product, (0, max(0, len(whole) - len(product))))
    ratio = float(product @ whole / (product @ product)) if bool(product.any()) else math.nan
    gap = float((ratio * product - whole).abs().max() / whole.abs().max())
    if not gap <= tolerance:
        raise NotConverged(
            f"the factors of this filter of {len(long)} taps give it back to {gap:.1e} only, and "
            f"{tolerance:.1e} was asked for; take a shorter filter"
        )
    share = abs(ratio) ** (1 / len(short))
    short = [share * w for w in short]
    short[0] = math.copysign(1.0, ratio) * short[0]
    return [w.to(long) for w in short]


class FullConvolution(nn.Module):
    r"""A convolution that keeps every overlap, $\mathbb R^n\to\mathbb R^{n+s}$, plus a bias.

    $z_i=\sum_kw_{i-k}x_k+b_i$. As in Zhou's networks, the biases of the middle places may
    be equal while the ends have their own.

    >>> layer = FullConvolution(torch.tensor([1.0, 2.0]), torch.zeros(3))
    >>> layer(torch.tensor([[1.0, 10.0]])).tolist()
    [[1.0, 12.0, 20.0]]
    """

    def __init__(self, filter: Tensor, bias: Tensor) -> None:
        super().__init__()
        if filter.ndim != 1 or bias.ndim != 1 or len(bias) < len(filter):
            raise ShapeMismatch(
                "a full convolution has a filter [s + 1] and a bias [n + s], not "
                f"{list(filter.shape)} and {list(bias.shape)}"
            )
        self.filter = nn.Parameter(filter.clone())
        self.bias = nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        return _full(x, self.filter) + self.bias


@dataclass(frozen=True, slots=True)
class DeepConvolutional:
    r"""A purely convolutional ReLU network that equals a sum of ridge functions.

    Attributes:
        network: `FullConvolution` and `nn.ReLU` in turn, then one `nn.Linear`.
        depth: convolutional layers.
        widths: $d+js$, from the input on.
        radius: the equality holds where $\|x\|_\infty\le R$.
        free: free parameters: the filters, the biases and the last weights.
        largest_bias: what keeps the units active.
    """

    network: nn.Sequential
    depth: int
    widths: tuple[int, ...]
    radius: float
    free: int
    largest_bias: float


def deep_convolutional_network(
    directions: Tensor,
    thresholds: Tensor,
    coefficients: Tensor,
    *,
    offset: float = 0.0,
    radius: float = 1.0,
    span: int = 2,
) -> DeepConvolutional:
    r"""The deep convolutional network $c_0+\sum_kc_k\max(a_k\cdot x-t_k,0)$.

    All directions, turned round, one after the other make one filter with $md$ taps, and
    $(W*x)_{kd+d-1}=a_k\cdot x$. Its factors are the layers. Up to the last one biases
    $B_j=R\|w^{(j)}*\dots*w^{(1)}\|_1$ keep every unit active, and each layer takes away
    what the bias before has become:

    $$
    b^{(j)}=B_j-w^{(j)}*(B_{j-1}\mathbf 1).
    $$

    So in layer $j$ the middle biases are equal. The last layer subtracts $t_k$.

    Args:
        directions: `[m, d]`, none of them 0.
        thresholds, coefficients: `[m]` each.
        offset: a constant to add, the bias of the last layer.
        radius: $R$; the equality holds where $\|x\|_\infty\le R$.
        span: $s$, at most $d$: filters have `s + 1` taps.

    Returns:
        The network, in double precision; at most $\lceil(md-1)/(s-1)\rceil$ layers.

    Source: Mathematical Aspects of Deep Learning, section 3.8.1 (Zhou 2020, Theorem A).

    >>> one = torch.ones(1).double()
    >>> made = deep_convolutional_network(torch.tensor([[1.0, -2.0]]).double(), 0 * one, one)
    >>> round(made.network(torch.tensor([[0.75, 0.25]]).double()).item(), 9)
    0.25
    """
    count = directions.shape[:1]
    if directions.ndim != 2 or thresholds.shape != count or coefficients.shape != count:
        raise ShapeMismatch(
            "m ridge functions have directions [m, d], thresholds [m] and coefficients [m], not "
            f"{list(directions.shape)}, {list(thresholds.shape)}, {list(coefficients.shape)}"
        )
    all_finite(directions, "directions")
    all_finite(thresholds, "thresholds")
    all_finite(coefficients, "coefficients")
    if count[0] == 0 or not bool(directions.any(1).all()):
        zero = int((~directions.any(1)).sum())
        raise InvalidInput(
            "there must be a ridge function, and each direction different from 0: of "
            f"{len(directions)} directions, {zero} are 0"
        )
    positive_number(radius, "radius")
    m, d = directions.shape
    if span > d:
        raise InvalidInput(f"filters of span {span} are longer than the {d} inputs")
    long = directions.detach().double().flip(1).flatten()
    filters = factor_filter(long, span)
    layers: list[nn.Module] = []
    width, before, product = d, 0.0, torch.ones(1, dtype=torch.float64)
    for j, w in enumerate(filters):
        carried = _full(torch.full((1, width), before, dtype=torch.float64), w)[0]
        width += span
        product = convolve_filters([product, w])
        before = radius * float(product.abs().sum())
        bias = before - carried
        if j == len(filters) - 1:
            bias = -carried
            places = torch.arange(m) * d + d - 1
            bias[places] -= thresholds.detach().double()
        layers += [FullConvolution(w, bias), nn.ReLU()]
    out = torch.zeros(1, width, dtype=torch.float64)
    out[0, torch.arange(m) * d + d - 1] = coefficients.detach().double()
    last = dense(out, torch.tensor([float(offset)], dtype=torch.float64))
    network = nn.Sequential(*layers, last).requires_grad_(False)
    biases = [layer.bias for layer in layers if isinstance(layer, FullConvolution)]
    depth = len(filters)
    # a filter, and 2 s + 1 different biases, a layer; in the last one all biases and weights
    free = depth * (span + 1) + (depth - 1) * (2 * span + 1) + 2 * width + 1
    largest = max(float(b.abs().max()) for b in biases)
    widths = tuple(d + j * span for j in range(depth + 1))
    return DeepConvolutional(network, depth, widths, radius, free, largest)


@dataclass(frozen=True, slots=True)
class DepthExponents:
    r"""Exponents $\gamma$ of $L\sim\epsilon^{-\gamma}$ for a Sobolev ball.

    Attributes:
        printed: $1/d$, as the source prints it.
        theorem: $2d/(d+2)$, from the error $\sqrt{\log L}\,L^{-1/2-1/d}$ (Zhou 2020).
        least: $d/(2r)$; with a smaller one such networks would not shatter enough points.
    """

    printed: float
    theorem: float
    least: float


def sobolev_depth_exponents(smoothness: float, dimension: int) -> DepthExponents:
    r"""How deep purely convolutional networks must be for the unit ball of $W^{r,2}$.

    A network of depth $L$ with short filters has $O(L)$ parameters, hence a VC
    dimension of order $L^2\log L$; $\epsilon$-approximations of the ball shatter
    $\epsilon^{-d/r}$ points. So $L\gtrsim\epsilon^{-d/2r}$ up to a logarithm.

    Args:
        smoothness: $r>d/2+2$.
        dimension: $d\ge2$.

    Source: Mathematical Aspects of Deep Learning, Theorem 3.27.

    >>> sobolev_depth_exponents(8, 10)
    DepthExponents(printed=0.1, theorem=1.6666666666666667, least=0.625)
    """
    whole_number(dimension, "dimension", least=2)
    if not (math.isfinite(smoothness) and smoothness > dimension / 2 + 2):
        raise InvalidInput(
            f"the theorem is for smoothness above d/2 + 2 = {dimension / 2 + 2}, not {smoothness}"
        )
    d = dimension
    return DepthExponents(1 / d, 2 * d / (d + 2), d / (2 * smoothness))


def _full(x: Tensor, w: Tensor) -> Tensor:
    """`[n, k]` convolved with `[s + 1]`: `[n, k + s]`."""
    return F.conv1d(x[:, None], w.flip(0)[None, None], padding=len(w) - 1)[:, 0]


def _real_factors(core: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Monic real factors of degree 1 and 2, lowest power first, in the order of Leja."""
    if len(core) == 1:
        return [np.array([1.0])]
    roots = np.roots(core[::-1])
    single = [complex(r) for r in roots if r.imag >= 0]
    order: list[complex] = []
    score = np.array([math.log(max(abs(r), 1e-300)) for r in single])
    left = list(range(len(single)))
    while left:
        pick = max(left, key=lambda i: score[i])
        left.remove(pick)
        chosen = single[pick]
        order.append(chosen)
        for i in left:
            near = abs(single[i] - chosen) * (abs(single[i] - chosen.conjugate()) or 1.0)
            score[i] += math.log(max(near, 1e-300))
        if len(order) == 1:
            for i in left:
                score[i] -= math.log(max(abs(single[i]), 1e-300))
    return [
        np.array([abs(r) ** 2, -2 * r.real, 1.0]) if r.imag > 0 else np.array([-r.real, 1.0])
        for r in order
    ]


def _dealt_out(pieces: list[NDArray[np.float64]], span: int) -> list[NDArray[np.float64]]:
    """Factors multiplied together while the degree stays at most `span`."""
    groups: list[NDArray[np.float64]] = []
    for piece in pieces:
        for k, group in enumerate(groups):
            if len(group) + len(piece) - 2 <= span:
                groups[k] = np.convolve(group, piece)
                break
        else:
            groups.append(piece)
    return groups
