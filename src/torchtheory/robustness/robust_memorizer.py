r"""A network that is written down, fits its samples, and keeps their signs in large balls.

For samples on the sphere of radius $\sqrt d$ with $\langle x_i,x_j\rangle\le cd$ for $i\ne j$,

$$
f(x)=\sum_jy_j\,\mathrm{relu}(w_j^\top x+b),\qquad
w_j=\frac{2x_j}{d(1-c)},\quad b=-\frac{1+c}{1-c} .
$$

At $x_i$ the unit $i$ has the input 1 and every other one at most -1, so $f(x_i)=y_i$. A
perturbation $\delta$ moves each input by at most $\|w_j\|\|\delta\|$ with
$\|w_j\|=2/((1-c)\sqrt d)$: for $\|\delta\|<(1-c)\sqrt d/2$ the unit $i$ stays active and the others
stay silent, and $f$ keeps its sign. The printed proof stops at half of that radius, where inputs
are at least $\frac12$ and at most $-\frac12$.

Source: Foundations of Deep Learning, Theorem 75 (Vardi, Yehudai and Shamir 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from torchtheory.core.checks import labeled_samples, number_between
from torchtheory.core.errors import InvalidInput
from torchtheory.nets.feedforward import dense

#: Samples nearer to each other than this, in cosine, are the same one.
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class RobustMemorizer:
    r"""The network of Theorem 75 and what is certain about it.

    Attributes:
        network: one output, with as many hidden ReLUs as there are samples.
        samples: the samples on the sphere of radius $\sqrt d$, `[m, d]`: the network is about
            these, not about the ones given if they had other lengths.
        correlation: $c$.
        radius: $(1-c)\sqrt d/2$; perturbations that are shorter change no sign.
    """

    network: nn.Sequential
    samples: Tensor
    correlation: float
    radius: float


def robust_memorizer(x: Tensor, y: Tensor, *, correlation: float | None = None) -> RobustMemorizer:
    r"""The explicit network that is robust up to $(1-c)\sqrt d/2$ at each of its samples.

    Args:
        x: at least two samples `[m, d]`, none of them 0 and no two along the same ray; they are
            scaled to the length $\sqrt d$.
        y: -1 or 1 each, `[m]`.
        correlation: $c$, at least the largest $\langle x_i,x_j\rangle/d$ and below 1; that number
            itself unless given.

    Cost: $O(m^2d)$ time and $O(m^2+md)$ memory.

    Example: two orthogonal samples. The sign survives up to half of $\sqrt 2$.

    >>> import torch
    >>> found = robust_memorizer(torch.eye(2), torch.tensor([1.0, -1.0]))
    >>> found.correlation, round(found.radius, 4)
    (0.0, 0.7071)
    >>> found.network(found.samples).detach().round(decimals=5)
    tensor([[ 1.],
            [-1.]])
    """
    points, labels = labeled_samples(x, y)
    if len(points) < 2:
        raise InvalidInput("how far samples are apart needs at least two of them")
    lengths = points.norm(dim=1, keepdim=True)
    if not bool((lengths > 0).all()):
        at = int((~(lengths[:, 0] > 0)).nonzero()[0])
        raise InvalidInput(f"sample {at} is 0, and cannot be put on a sphere")
    d = points.shape[1]
    points = points / lengths * math.sqrt(d)
    least = largest_correlation(points)
    if least > 1 - _SAME:
        raise InvalidInput("two samples lie on the same ray: no network can tell them apart there")
    c = least
    if correlation is not None:
        c = number_between(correlation, "correlation", -1.0, 1.0, closed="left")
        if c < least:
            raise InvalidInput(
                f"two of the samples have the correlation {least:.6g}, above {c:.6g}: the theorem "
                "is about samples that have at most that"
            )
    return RobustMemorizer(
        memorizing_network(points, labels, c), points, c, (1 - c) * math.sqrt(d) / 2
    )


def memorizing_network(x: Tensor, y: Tensor, correlation: float) -> nn.Sequential:
    r"""$\sum_jy_j\,\mathrm{relu}(w_j^\top x+b)$ for any $c<1$, whether the samples allow it or not.

    Args:
        x: samples `[m, d]` of length $\sqrt d$.
        y: `[m]`.
        correlation: $c$.

    >>> import torch
    >>> net = memorizing_network(torch.eye(2) * 2**0.5, torch.tensor([1.0, -1.0]), 0.0)
    >>> net[0].bias.tolist()
    [-1.0, -1.0]
    """
    d = x.shape[1]
    bias = x.new_full((len(x),), -(1 + correlation) / (1 - correlation))
    inner = dense(2 / (d * (1 - correlation)) * x, bias)
    return nn.Sequential(inner, nn.ReLU(), dense(y[None].to(x.dtype)))


def largest_correlation(x: Tensor) -> float:
    r"""$\max_{i\ne j}\langle x_i,x_j\rangle/(\|x_i\|\|x_j\|)$ of the rows of `x[m, d]`.

    >>> import torch
    >>> round(largest_correlation(torch.tensor([[1.0, 0.0], [1.0, 1.0]])), 4)
    0.7071
    """
    unit = x / x.norm(dim=1, keepdim=True)
    products = unit @ unit.T
    products.fill_diagonal_(-math.inf)
    return float(products.max().clamp(-1.0, 1.0))


def pair_flip_distance(dimension: int, correlation: float) -> float:
    r"""$\sqrt{d(1-c)/2}$: how far the sign really survives if there are two samples of two classes.

    The output is negative where the other unit is active and more so than the own one, and so
    beyond the plane half way between the samples; on that plane, at their midpoint, both are at
    the kink. This is $\sqrt{2/(1-c)}$ times the radius of the theorem.

    >>> pair_flip_distance(2, 0.0)
    1.0
    """
    number_between(correlation, "correlation", -1.0, 1.0, closed="left")
    return math.sqrt(dimension * (1 - correlation) / 2)
