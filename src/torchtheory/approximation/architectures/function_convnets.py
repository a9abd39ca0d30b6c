r"""Convolutional networks whose input is a function: discretize, convolve, downsample.

An image $\xi\in L_2(\mathbb R^2)$ is projected to functions that are constant on cells of
side $\lambda$ in a square and 0 outside. With the coefficients
$c_k=\lambda^{-1}\int_{Q_k}\xi$ the projection is an isometry, $\|P\xi\|_{L_2}=\|c\|_2$,
and where $\xi$ is smooth

$$
\|\xi-P\xi\|^2\le(\lambda/\pi)^2\|\nabla\xi\|^2+\int_{\text{outside}}|\xi|^2.
$$

On the coefficients acts an ordinary convolutional network: with downsampling it gives a number,
without it another image, and then it commutes with the shifts of the grid. Source: Mathematical
Aspects of Deep Learning, Theorems 3.25 and 3.26 (Yarotsky 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.core.checks import first_entry, nonnegative_number, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.nets.feedforward import affine_layers

Image = Callable[[Tensor], Tensor]
"""From points `[p, 2]` to the values `[n, p]` of `n` images there (or `[p]` of one)."""


@dataclass(frozen=True, slots=True)
class CellGrid:
    r"""The square $[-\Lambda,\Lambda]^2$ cut into `cells` x `cells` cells.

    >>> CellGrid(cutoff=2.0, cells=8).scale
    0.5
    """

    cutoff: float
    cells: int

    def __post_init__(self) -> None:
        positive_number(self.cutoff, "cutoff")
        whole_number(self.cells, "cells", least=1)

    @property
    def scale(self) -> float:
        r"""The side $\lambda$ of a cell."""
        return 2 * self.cutoff / self.cells

    def quadrature(self, nodes: int) -> tuple[Tensor, Tensor]:
        """Gauss-Legendre points `[cells, cells, nodes², 2]` and weights `[nodes²]` of a cell.

        The weights add up to 1: they give the mean over a cell.
        """
        whole_number(nodes, "nodes", least=1)
        t, w = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(nodes))
        starts = -self.cutoff + self.scale * torch.arange(self.cells, dtype=torch.float64)
        axis = starts[:, None] + self.scale * (t + 1) / 2
        first = axis[:, None, :, None].expand(self.cells, self.cells, nodes, nodes)
        second = axis[None, :, None, :].expand(self.cells, self.cells, nodes, nodes)
        points = torch.stack([first, second], -1).reshape(self.cells, self.cells, -1, 2)
        return points, torch.outer(w / 2, w / 2).flatten()


def discretize(image: Image, grid: CellGrid, *, nodes: int = 4) -> Tensor:
    r"""The coefficients $c_k=\lambda^{-1}\int_{Q_k}\xi$: `[n, 1, cells, cells]`.

    Args:
        image: from points `[p, 2]` to `[n, p]`.
        nodes: Gauss-Legendre points a direction in each cell; exact for polynomials of degree
            `2 nodes - 1`. The image is evaluated at `(cells * nodes)²` points.

    >>> c = discretize(lambda x: torch.ones(1, len(x)).double(), CellGrid(1.0, 4))
    >>> round(float(c.square().sum()), 12)          # the squared norm of 1 on [-1, 1]²
    4.0
    """
    points, weights = grid.quadrature(nodes)
    return grid.scale * (_values(image, points) @ weights)[:, None]


def step_image(coefficients: Tensor, grid: CellGrid) -> Image:
    r"""The image $\sum_kc_k\lambda^{-1}\mathbf 1_{Q_k}$: constant on cells, 0 outside.

    >>> one = step_image(torch.ones(1, 1, 2, 2).double(), CellGrid(1.0, 2))
    >>> one(torch.tensor([[0.5, 0.5], [3.0, 0.0]]).double()).tolist()
    [[1.0, 0.0]]
    """
    _coefficients(coefficients, grid)

    def image(x: Tensor) -> Tensor:
        place = torch.floor((x + grid.cutoff) / grid.scale).long()
        inside = ((place >= 0) & (place < grid.cells)).all(1)
        i, j = place.clamp(0, grid.cells - 1).unbind(1)
        return coefficients[:, 0, i, j] / grid.scale * inside

    return image


def distance_to_steps(
    image: Image, coefficients: Tensor, grid: CellGrid, *, nodes: int = 4
) -> Tensor:
    r"""$\|\xi-\sum_kc_k\lambda^{-1}\mathbf 1_{Q_k}\|_{L_2}$ over the grid's square: `[n]`.

    >>> grid = CellGrid(1.0, 2)
    >>> zero = torch.zeros(1, 1, 2, 2).double()
    >>> round(distance_to_steps(lambda x: x[None, :, 0], zero, grid).square().item(), 9)   # 4/3
    1.333333333
    """
    _coefficients(coefficients, grid)
    points, weights = grid.quadrature(nodes)
    gap = _values(image, points) - (coefficients / grid.scale).permute(0, 2, 3, 1)
    return (grid.scale**2 * (gap.square() @ weights).sum((1, 2))).sqrt()


@dataclass(frozen=True, slots=True)
class ImageFunctional:
    r"""A convolutional network with downsampling that maps images to numbers.

    Attributes:
        grid: where images are discretized.
        network: from `[n, 1, cells, cells]` to `[n, 1, 1, 1]`.
        error: how far it is at most from the functional of the *discretized* image.
    """

    grid: CellGrid
    network: nn.Sequential
    error: float

    def __call__(self, image: Image, *, nodes: int = 4) -> Tensor:
        """The values `[n]` at images."""
        with torch.no_grad():
            made: Tensor = self.network(discretize(image, self.grid, nodes=nodes))
        return made.flatten()


def energy_convnet(grid: CellGrid, largest: float, pieces: int) -> ImageFunctional:
    r"""A network for $\|\xi\|^2$: squares by broken lines, then sums by downsampling.

    Two $1\times1$ convolutions with a ReLU between square each coefficient by a broken line
    of `pieces` pieces; convolutions with $2\times2$ filters of ones and stride 2 add up.
    With $|\xi|\le B$ it is within $(2\Lambda B/k)^2$ of $\|P\xi\|^2$.

    Args:
        grid: with a power of 2 for `cells`.
        largest: $B$.
        pieces: $k$.

    >>> net = energy_convnet(CellGrid(1.0, 4), largest=1.0, pieces=64)
    >>> found = net(lambda x: torch.ones(1, len(x)).double())        # on [-1, 1]²
    >>> abs(float(found) - 4) <= net.error
    True
    """
    positive_number(largest, "largest")
    if grid.cells & (grid.cells - 1):
        raise InvalidInput(f"halving needs a power of 2 for the cells, not {grid.cells}")
    reach = grid.scale * largest
    line = relu_interpolant(torch.square, pieces, (-reach, reach), curvature=2.0)
    assert isinstance(line.network, nn.Sequential)
    ((first, shift), (last, constant)), _ = affine_layers(line.network)
    layers: list[nn.Module] = [
        _convolution(first[:, :, None, None], shift),
        nn.ReLU(),
        _convolution(last[:, :, None, None], constant),
    ]
    ones = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    halvings = grid.cells.bit_length() - 1
    layers += [_convolution(ones, torch.zeros(1), stride=2) for _ in range(halvings)]
    return ImageFunctional(grid, nn.Sequential(*layers), grid.cells**2 * line.bound)


def inner_product_convnet(template: Image, grid: CellGrid, *, nodes: int = 4) -> ImageFunctional:
    r"""A network for $\langle\xi,\phi\rangle$: one filter as large as the image.

    It is $\langle P\xi,P\phi\rangle$ exactly, and so within
    $\|\xi-P\xi\|\,\|\phi-P\phi\|$ of the inner product.

    >>> one = lambda x: torch.ones(1, len(x)).double()
    >>> net = inner_product_convnet(one, CellGrid(1.0, 4))
    >>> round(float(net(one)), 12)
    4.0
    """
    filters = discretize(template, grid, nodes=nodes)
    if len(filters) != 1:
        raise ShapeMismatch(f"one template makes one filter, and {len(filters)} images were given")
    layer = _convolution(filters, torch.zeros(1), stride=grid.cells)
    return ImageFunctional(grid, nn.Sequential(layer), 0.0)


def blur_filter(scale: float, width: float) -> Tensor:
    r"""The Gaussian blur of variance $\sigma^2$ between cells, `[2 R + 1]`, one direction.

    $$
    w_k=\lambda^{-1}\int_0^\lambda\int_{k\lambda}^{(k+1)\lambda}g_\sigma(x-y)\,dy\,dx
    =\lambda^{-1}\big(H((k+1)\lambda)-2H(k\lambda)+H((k-1)\lambda)\big),
    $$

    with $H''=g_\sigma$: exactly the matrix of the blur on step functions. What is left out
    beyond $R$ is below rounding.

    >>> w = blur_filter(0.1, 0.5)
    >>> round(float(w.sum()), 12), torch.allclose(w, w.flip(0))
    (1.0, True)
    """
    positive_number(scale, "scale")
    positive_number(width, "width")
    reach = math.ceil(9 * width / scale) + 1
    t = scale * torch.arange(0, reach + 2, dtype=torch.float64) / width
    # H less its two straight asymptotes, which second differences do not see away from 0
    tail = (
        torch.exp(-t.square() / 2) / math.sqrt(2 * math.pi)
        - t * torch.special.erfc(t / math.sqrt(2)) / 2
    )
    both = width * torch.cat([tail[1:].flip(0), tail])
    made = (both[2:] - 2 * both[1:-1] + both[:-2]) / scale
    made[reach] += 1.0  # the kink of the positive part at 0
    return made


def blur_threshold_convnet(grid: CellGrid, width: float, threshold: float) -> nn.Sequential:
    r"""A network for the equivariant map $\xi\mapsto\max(G_\sigma*\xi-t,0)$.

    A convolution for each direction and ReLUs on coefficients `[n, 1, cells, cells]`, zeros
    outside. Since $v\mapsto\max(v-t,0)$ is 1-Lipschitz and $G_\sigma$ a
    contraction, the image it gives is within
    $\|\xi-P\xi\|+\|G_\sigma\xi-PG_\sigma\xi\|$ of the map's.

    Args:
        width: $\sigma$.
        threshold: $t\ge0$, so that the image 0 stays 0.

    >>> net = blur_threshold_convnet(CellGrid(2.0, 16), 0.3, 0.0)
    >>> bool(net(torch.zeros(1, 1, 16, 16).double()).any())
    False
    """
    nonnegative_number(threshold, "threshold")
    w = blur_filter(grid.scale, width)
    bias = torch.tensor([-threshold * grid.scale], dtype=torch.float64)
    half = len(w) // 2
    return nn.Sequential(
        _convolution(w[None, None, :, None], torch.zeros(1), padding=(half, 0)),
        _convolution(w[None, None, None, :], bias, padding=(0, half)),
        nn.ReLU(),
    )


def _convolution(
    weight: Tensor, bias: Tensor, *, stride: int = 1, padding: tuple[int, int] = (0, 0)
) -> nn.Conv2d:
    outputs, inputs, *size = weight.shape
    layer = nn.Conv2d(
        inputs,
        outputs,
        (size[0], size[1]),
        stride,
        padding,
        dtype=torch.float64,
        device="meta",
    ).to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.copy_(weight)
        assert layer.bias is not None
        layer.bias.copy_(bias)
    return layer.requires_grad_(False)


def _values(image: Image, points: Tensor) -> Tensor:
    """`[n, cells, cells, nodes²]` at points `[cells, cells, nodes², 2]`."""
    flat = points.reshape(-1, 2)
    made = image(flat)
    if not isinstance(made, Tensor) or made.shape[-1:] != flat.shape[:1] or made.ndim > 2:
        found = list(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ShapeMismatch(f"an image gives [n, {len(flat)}] values at its points, not {found}")
    if not bool(torch.isfinite(made).all()):
        raise NonFinite(
            "the image is not finite everywhere: "
            f"{first_entry(made, 'the value', ~torch.isfinite(made))}"
        )
    return made.double().reshape(-1, *points.shape[:-1])


def _coefficients(coefficients: Tensor, grid: CellGrid) -> None:
    if coefficients.ndim != 4 or coefficients.shape[1:] != (1, grid.cells, grid.cells):
        raise ShapeMismatch(
            f"coefficients on this grid are [n, 1, {grid.cells}, {grid.cells}], not "
            f"{list(coefficients.shape)}"
        )
