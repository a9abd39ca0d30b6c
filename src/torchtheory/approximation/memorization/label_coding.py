r"""Functions that carry labels: smooth ones in their peaks, sines in their frequency.

$f_y=\sum_my_m\,c_\phi N^{-n}\phi(N(x-x_m))$ has a bump in each cell with label 1 and stays
in the unit ball of $W^{n,\infty}$: whoever approximates every $f_y$ closely enough
holds $N^d$ labels, chosen at will. The sines $\mathbf 1[\sin\theta x>0]$ carry any
number of labels in one parameter; of ReLU networks, a sawtooth with $m$ folds carries $m$.
Source: Mathematical Aspects of Deep Learning, section 3.4 and Figure 3.4.
"""

from __future__ import annotations

import itertools
import math

from torch import Tensor

from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.approximation.piecewise.bumps import BumpSum, SplineBump
from torchtheory.approximation.targets import Function, evaluate
from torchtheory.core.checks import first_entry, whole_number
from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch


def label_function(labels: Tensor, smoothness: int, dimension: int = 1) -> BumpSum:
    r"""$f_y$, with $f_y(x_m)=y_mc_\phi N^{-n}$ at the middles of the cells.

    Args:
        labels: $y\in\{0,1\}^{N^d}$, last coordinate fastest.
        smoothness: $n$.
        dimension: $d$.

    >>> import torch
    >>> f = label_function(torch.tensor([1, 0]), smoothness=1)
    >>> f(torch.tensor([0.25, 0.75]).double()).tolist()          # height 1/2 of 1/N
    [0.25, 0.0]
    """
    if labels.ndim != 1 or len(labels) == 0:
        raise ShapeMismatch(f"labels are [N ** d], not {list(labels.shape)}")
    if not bool(((labels == 0) | (labels == 1)).all()):
        raise LabelOutOfRange(
            f"labels are 0 or 1: {first_entry(labels, 'labels', ~((labels == 0) | (labels == 1)))}"
        )
    bump = SplineBump(smoothness, dimension)
    cells = round(len(labels) ** (1 / dimension))
    if cells**dimension != len(labels):
        raise ShapeMismatch(f"{len(labels)} labels do not fill a grid in {dimension} dimensions")
    return BumpSum(labels.double(), cells, bump.height * float(cells) ** -smoothness, bump)


def sobolev_grid_norm(f: BumpSum, points: int = 41) -> float:
    r"""$\max_{|\alpha|\le n}|D^\alpha f|$ over `points ** d` points of every cell.

    A lower bound of $\|f\|_{W^{n,\infty}}$. It looks at places in one cell that its bumps
    share, so the work is that of one cell a different coefficient.

    >>> import torch
    >>> round(sobolev_grid_norm(label_function(torch.tensor([0, 1, 1]), 2)), 9)
    1.0
    """
    whole_number(points, "points", least=2)
    d = f.bump.dimension
    place = cell_centers(((-0.5, 0.5),) * d, points)
    largest = float(f.coefficients.abs().max()) * f.height
    orders = itertools.product(range(f.bump.order + 1), repeat=d)
    found = 0.0
    for alpha in orders:
        if sum(alpha) <= f.bump.order:
            inner = float(f.bump.derivative(place, alpha).abs().max())
            found = max(found, largest * inner * float(f.cells) ** sum(alpha))
    return found


def read_labels(g: Function, f: BumpSum) -> Tensor:
    r"""The labels $\mathbf 1[g(x_m)>c_\phi N^{-n}/2]$ an approximation of $f_y$ holds.

    Right for every $g$ with $\|g-f_y\|_\infty<c_\phi N^{-n}/2$.

    >>> import torch
    >>> y = torch.tensor([0, 1, 1, 0])
    >>> f = label_function(y, 1)
    >>> read_labels(lambda x: f(x) + 0.06, f).tolist()          # the level is 1/8
    [0, 1, 1, 0]
    """
    d = f.bump.dimension
    x = cell_centers(((0.0, 1.0),) * d, f.cells)
    return (evaluate(g, x) > f.height / 2).long()


def sine_frequency(labels: Tensor) -> float:
    r"""The frequency $\theta=\pi\bigl(1+\sum_i(1-y_i)2^i\bigr)$ of a sine with the labels.

    $\mathbf 1[\sin(\theta2^{-i})>0]=y_i$ for $i=1,\dots,m$.

    So the sines have infinite VC dimension with one parameter; at most 40 labels, beyond which
    double precision no longer holds the angle.

    >>> import torch
    >>> theta = sine_frequency(torch.tensor([1, 0, 1]))
    >>> [math.sin(theta * 2.0**-i) > 0 for i in (1, 2, 3)]
    [True, False, True]
    """
    whole = 1 + sum((1 - y) << i for i, y in enumerate(_labels(labels, most=40), start=1))
    return math.pi * whole


def sawtooth_position(labels: Tensor) -> float:
    r"""The place $\theta\in(0,1)$ where a sawtooth of $m$ folds has the labels.

    $\mathbf 1[\Delta^m(2^{j-m}\theta)>\tfrac12]=y_j$ for $j=1,\dots,m$, where $\Delta^m$ is the
    tent map composed $m$ times: it sees $2^j\theta$ modulo 2, which lies between 1/2 and 3/2 just
    when the $j$-th binary digit of $\theta$ differs from the next.

    One parameter and $m$ layers so carry $m$ labels, and $n$ parameters in front of the same
    layers $nm$ labels: ReLU networks of $M$ weights shatter of the order of $M^2$ points. At most
    50 labels, which double precision holds exactly.

    >>> import torch
    >>> theta = sawtooth_position(torch.tensor([1, 0, 1]))
    >>> [1 - abs(1 - 2**j * theta % 2) > 0.5 for j in (1, 2, 3)]
    [True, False, True]
    """
    digits = _labels(labels, most=50)
    for j in range(len(digits) - 2, -1, -1):
        digits[j] ^= digits[j + 1]
    # two digits more, 0 and 1, keep every value off the threshold
    return sum(b * 2.0**-j for j, b in enumerate(digits, start=1)) + 2.0 ** -(len(digits) + 2)


def _labels(labels: Tensor, *, most: int) -> list[int]:
    if labels.ndim != 1 or not 1 <= len(labels) <= most:
        raise ShapeMismatch(f"labels are [m] with m from 1 to {most}, not {list(labels.shape)}")
    if not bool(((labels == 0) | (labels == 1)).all()):
        raise InvalidInput(
            f"labels are 0 or 1: {first_entry(labels, 'labels', ~((labels == 0) | (labels == 1)))}"
        )
    return [int(y) for y in labels.tolist()]
