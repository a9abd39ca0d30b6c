r"""From a dictionary to a network: $M$ terms become a network with $O(M)$ weights.

An affine system has elements $\varphi_i(x)=|\det A_i|^{1/2}\,\psi(A_ix-b_i)$, all of the same
$L_2$ norm. If a network with a fixed number of weights is close to $\psi$, then
$A_i,b_i$ go into its first layer, the coefficient into its last, and the copies stand side by
side. Source: The Modern Mathematics of Deep Learning, Theorem 3.20.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import chain, combine
from torchtheory.approximation.piecewise.boxes import box_indicator
from torchtheory.approximation.targets import Function
from torchtheory.core.checks import all_finite, positive_number
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.nets.feedforward import affine_layers


def dictionary_element(generator: Function, matrix: Tensor, shift: Tensor) -> Function:
    r"""$\varphi(x)=|\det A|^{1/2}\psi(Ax-b)$ as a function of `x[n, d]`.

    >>> box = lambda x: ((x >= 0) & (x < 1)).all(1).double()
    >>> half = dictionary_element(box, 4 * torch.eye(1).double(), torch.ones(1).double())
    >>> half(torch.tensor([[0.1], [0.3]]).double()).tolist()      # on [1/4, 1/2), of norm 1
    [0.0, 2.0]
    """
    matrix, shift = _affine(matrix.unsqueeze(0), shift.unsqueeze(0))
    factor = matrix[0].det().abs().sqrt()
    return lambda x: factor * generator(x @ matrix[0].T - shift[0])


def dictionary_network(
    generator: nn.Sequential, matrices: Tensor, shifts: Tensor, coefficients: Tensor
) -> nn.Sequential:
    r"""The network of $\sum_{i\le M}c_i\,|\det A_i|^{1/2}\,\psi(A_ix-b_i)$.

    Every layer is as sparse as the generator's: at most $M$ times the generator's parameters,
    and $d$ weights for every unit of the first layer.

    Args:
        generator: the network of $\psi$, from `[n, d]` to `[n, 1]`.
        matrices: `[M, d, d]`, none singular.
        shifts: `[M, d]`.
        coefficients: `[M]`.

    >>> two = torch.tensor([[[2.0]], [[2.0]]]).double()
    >>> net = dictionary_network(haar_generator([0], 0.1), two,
    ...                          torch.tensor([[0.0], [1.0]]).double(),
    ...                          torch.tensor([1.0, 3.0]).double())
    >>> bool((net(torch.tensor([[0.75]]).double()) - 3 * 2**0.5).abs() < 1e-12)
    True
    """
    matrices, shifts = _affine(matrices, shifts)
    if coefficients.shape != shifts.shape[:1]:
        raise ShapeMismatch(f"{len(shifts)} terms need as many coefficients")
    maps, between = affine_layers(generator)
    (weight, bias), d = maps[0], shifts.shape[1]
    if weight.shape[1] != d:
        raise ShapeMismatch(f"the generator takes {weight.shape[1]} inputs, and the shifts {d}")
    if maps[-1][0].shape[0] != 1:
        raise ShapeMismatch(f"a generator has one output, not {maps[-1][0].shape[0]}")
    factors = coefficients.double() * torch.linalg.det(matrices).abs().sqrt()
    parts = [
        chain([(weight @ a, bias - weight @ b), *maps[1:]], between)
        for a, b in zip(matrices, shifts, strict=True)
    ]
    return combine(factors, parts)


def transfer_bound(term_error: float, coefficients: Tensor, generator_error: float) -> float:
    r"""$\epsilon+\sum_i|c_i|\,\delta$: the dictionary's error and the generator's.

    $\|\varphi_i-R(\Phi_i)\|_{L_2(K)}\le\|\psi-R(\Phi_\psi)\|_{L_2(\mathbb R^d)}=\delta$,
    since the factor $|\det A_i|^{1/2}$ undoes the change of variables.

    >>> transfer_bound(0.1, torch.tensor([1.0, -1.0]), 0.05)
    0.2
    """
    return term_error + float(coefficients.abs().sum()) * generator_error


def haar_generator(kind: Sequence[int], ramp: float) -> nn.Sequential:
    r"""A Haar generator $\prod_jh_{k_j}(x_j)$ with ramps, of a size that no ramp changes.

    $h_0=\mathbf 1_{[0,1)}$ and $h_1=\mathbf 1_{[0,1/2)}-\mathbf 1_{[1/2,1)}$. Each of
    the boxes on which the product is constant is a `box_indicator` whose ramps lie inside
    it, so the network is 0 outside $[0,1]^d$ and closer to the generator than
    `haar_generator_error`.

    Args:
        kind: one 0 or 1 a dimension; all 0 is the scaling function.
        ramp: width of the ramps, less than 1/4.

    >>> net = haar_generator([1], 0.01)
    >>> net(torch.tensor([[0.25], [0.75], [1.5]]).double()).flatten().tolist()
    [1.0, -1.0, 0.0]
    """
    _check_haar(kind, ramp)
    halves = [[(0.0, 1.0, 1.0)] if k == 0 else [(0.0, 0.5, 1.0), (0.5, 1.0, -1.0)] for k in kind]
    boxes: list[tuple[list[tuple[float, float]], float]] = [([], 1.0)]
    for options in halves:
        boxes = [
            ([*sides, (low + ramp, high - ramp)], sign * s)
            for sides, sign in boxes
            for low, high, s in options
        ]
    return combine([s for _, s in boxes], [box_indicator(sides, ramp) for sides, _ in boxes])


def haar_generator_error(kind: Sequence[int], ramp: float) -> float:
    r"""A bound of $\|\psi-R(\Phi_\psi)\|_{L_2}$: the root of the area of all ramps.

    >>> round(haar_generator_error([0], 0.02) ** 2, 12)       # two ramps of width 0.02
    0.04
    """
    _check_haar(kind, ramp)
    kept = math.prod(1 - 2 * ramp if k == 0 else 1 - 4 * ramp for k in kind)
    return math.sqrt(1 - kept)


def _check_haar(kind: Sequence[int], ramp: float) -> None:
    if not kind or any(k not in (0, 1) for k in kind):
        raise InvalidInput(f"a kind is one 0 or 1 a dimension, not {list(kind)}")
    if positive_number(ramp, "ramp") >= 0.25:
        raise InvalidInput(f"ramps of width {ramp} do not fit into a half; take less than 1/4")


def _affine(matrices: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2]:
        raise ShapeMismatch(f"matrices are [M, d, d], not {list(matrices.shape)}")
    if shifts.shape != matrices.shape[:2]:
        raise ShapeMismatch(f"shifts are [M, d], not {list(shifts.shape)}")
    if not len(matrices):
        raise EmptyData(f"there is no term (the shape is {list(matrices.shape)})")
    all_finite(matrices, "matrices")
    all_finite(shifts, "shifts")
    matrices, shifts = matrices.detach().double(), shifts.detach().double()
    if bool((torch.linalg.det(matrices) == 0).any()):
        raise InvalidInput("a matrix of the system is singular")
    return matrices, shifts
