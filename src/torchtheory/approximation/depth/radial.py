r"""Functions of a length as networks with two hidden layers, weights written down.

The squared length is a sum over the coordinates, so one hidden layer draws $t\mapsto t^2$
as a broken line for each of them and the next one the profile:

$$
\tilde g(\|x\|^2)\approx\hat g\Big(\sum_{i=1}^d\hat q(x_i)\Big),\qquad
|\hat q(t)-t^2|\le\frac{h^2}4 .
$$

The length $\|x\|_1=\sum_i\max(x_i,0)+\max(-x_i,0)$ is exact, and so is a broken line of it.
The size is polynomial in $d$; with one hidden layer it would have to be exponential.
Sources: Mathematical Aspects of Deep Learning, sections 1.3.1 and 3.7; Foundations of Deep
Learning, section 4.2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.network_calculus import block_diagonal, chain, compose
from torchtheory.approximation.piecewise.broken_lines import broken_line_network
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.targets import Function
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, rademacher
from torchtheory.nets.feedforward import affine_layers


def sum_over_coordinates(network: nn.Sequential, dimension: int) -> nn.Sequential:
    r"""$x\mapsto\sum_{i=1}^df(x_i)$ for a network $f$ of one variable.

    Every coordinate gets its own copy of the hidden units.

    >>> f = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    >>> x = torch.tensor([[0.5, -2.0]], dtype=torch.float64)
    >>> bool((sum_over_coordinates(f, 2)(x) - f(x[:, :1]) - f(x[:, 1:])).abs() < 1e-12)
    True
    """
    whole_number(dimension, "dimension", least=1)
    maps, between = affine_layers(network)
    if maps[0][0].shape[1] != 1:
        raise ShapeMismatch(f"a network of one variable is needed, not of {maps[0][0].shape[1]}")
    copies = [(block_diagonal(*[w] * dimension), b.repeat(dimension)) for w, b in maps[:-1]]
    weight, bias = maps[-1]
    return chain([*copies, (weight.repeat(1, dimension), dimension * bias)], between)


def squared_length_network(
    profile: Function, dimension: int, squares: int, pieces: int, *, lipschitz: float
) -> Approximant:
    r"""$g(x)=\tilde g(\|x\|_2^2)$ on $[0,1]^d$ with two hidden layers.

    The first has $k$ units a coordinate, the broken line of $t^2$ with $k$
    pieces; the second $m$, the broken line of $\tilde g$ on $[0,d]$. The
    architecture is $(d,dk,m,1)$, and

    $$
    \|g-\Phi\|_\infty\le\mathrm{Lip}(\tilde g)\Big(\frac d{4k^2}+\frac d{2m}\Big) .
    $$

    Args:
        profile: $\tilde g$, a function of one variable, on $[0,d]$.
        dimension: $d$.
        squares: $k$.
        pieces: $m$.
        lipschitz: of the profile; the bound is wrong if it is too small.

    >>> made = squared_length_network(torch.sin, 3, squares=10, pieces=40, lipschitz=1.0)
    >>> [m.out_features for m in made.network if isinstance(m, nn.Linear)], round(made.bound, 6)
    ([30, 40, 1], 0.045)
    """
    whole_number(dimension, "dimension", least=1)
    positive_number(lipschitz, "lipschitz")
    parabola = relu_interpolant(torch.square, squares, curvature=2.0)
    outer = relu_interpolant(profile, pieces, (0.0, float(dimension)), lipschitz=lipschitz)
    assert isinstance(parabola.network, nn.Sequential)
    assert isinstance(outer.network, nn.Sequential)
    network = compose(outer.network, sum_over_coordinates(parabola.network, dimension))
    bound = lipschitz * dimension * parabola.bound + outer.bound
    return Approximant(network, bound, ((0.0, 1.0),) * dimension, "A-84")


def squared_length_size(lipschitz: float, dimension: int, error: float) -> tuple[int, int]:
    r"""The $(k,m)$ whose two errors are $\epsilon/2$ each, rounded up.

    $k=\lceil\sqrt{\mathrm{Lip}\,d/2\epsilon}\rceil$ and
    $m=\lceil\mathrm{Lip}\,d/\epsilon\rceil$: the width is
    $O(d\sqrt{d/\epsilon}+d/\epsilon)$.

    >>> squared_length_size(1.0, 8, 0.01)
    (20, 800)
    """
    positive_number(lipschitz, "lipschitz")
    positive_number(error, "error")
    ratio = lipschitz * whole_number(dimension, "dimension", least=1) / error
    # a quotient that is whole may come out a little above
    return math.ceil(math.sqrt(ratio / 2) - 1e-9), math.ceil(ratio - 1e-9)


def absolute_sum_network(
    knots: Tensor, values: Tensor, dimension: int, *, right_slope: float = 0.0
) -> nn.Sequential:
    r"""$x\mapsto g(\|x\|_1)$ for a broken line $g$, exactly.

    Hidden layers $\max(\pm x_i,0)$, $2d$ units, and one unit a knot.

    Args:
        knots, values: of $g$, `[k]`; constant before the first knot.
        dimension: $d$.
        right_slope: after the last knot.

    >>> tent = absolute_sum_network(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0]), 3)
    >>> tent(torch.tensor([[0.25, -0.25, 0.0], [1.0, -0.5, 0.25]])).flatten().tolist()
    [0.5, 0.25]
    """
    length = sum_over_coordinates(
        chain(
            [
                (knots.new_tensor([[1.0], [-1.0]]), knots.new_zeros(2)),
                (knots.new_ones(1, 2), knots.new_zeros(1)),
            ],
            [nn.ReLU()],
        ),
        dimension,
    )
    return compose(broken_line_network(knots, values, 0.0, right_slope), length)


@dataclass(frozen=True, slots=True)
class RadialShells:
    r"""Signs on shells, $g(x)=\sum_i\varepsilon_i1[r_{i-1}\le\|x\|<r_i]$; 0 outside.

    Attributes:
        dimension: $n$.
        radii: $0=r_0<\dots<r_N=R$, `[N + 1]`.
        signs: $\varepsilon$, `[N]`.
    """

    dimension: int
    radii: Tensor
    signs: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """The values at points `x[m, n]`, `[m]`."""
        if x.ndim != 2 or x.shape[1] != self.dimension:
            raise ShapeMismatch(f"the points must be [m, {self.dimension}], not {list(x.shape)}")
        shell = torch.searchsorted(self.radii, x.norm(dim=1), right=True) - 1
        padded = torch.cat([self.signs, self.signs.new_zeros(1)])
        return padded[shell.clamp(max=len(self.signs))]

    def network(self, squares: int, ramp: float) -> nn.Sequential:
        r"""The ReLU network $(n,nK,2N',1)$ that draws the shells, $N'$ jumps.

        The first hidden layer is the broken line of $t^2$ on $[-R,R]$ with $K$
        pieces a coordinate, the second a ramp of width $\delta$ at each squared radius where
        the value jumps. It equals the shells wherever $\|x\|\le R$ and
        $\|x\|^2$ is not within `blur` below a squared radius.
        """
        positive_number(ramp, "ramp")
        reach = float(self.radii[-1])
        parabola = relu_interpolant(torch.square, squares, (-reach, reach), curvature=2.0)
        assert isinstance(parabola.network, nn.Sequential)
        length = sum_over_coordinates(parabola.network, self.dimension)
        values = torch.cat([self.signs, self.signs.new_zeros(1)])
        jumps = values.diff()
        kept = jumps != 0
        # the ramp ends where the jump is: the squared length is only ever overestimated
        ends = self.radii[1:][kept].square()
        starts = ends - ramp
        if bool((starts[1:] < ends[:-1]).any()) or float(starts[0]) < 0:
            gaps = torch.cat([ends[:1], ends.diff()])
            raise InvalidInput(
                f"ramps of {ramp:g} overlap: take ramp below {float(gaps.min()):g}, the least gap "
                "of the squared radii"
            )
        knots = torch.stack([starts, ends], 1).flatten()
        heights = torch.cat([self.signs[:1], self.signs[:1] + jumps[kept].cumsum(0)])
        levels = torch.stack([heights[:-1], heights[1:]], 1).flatten()
        return compose(broken_line_network(knots, levels, 0.0, 0.0), length)

    def blur(self, squares: int, ramp: float) -> float:
        r"""$n(R/K)^2+\delta$: the only squared lengths met wrongly are this close to a jump.

        >>> shells = RadialShells(4, torch.tensor([0.0, 2.0]), torch.ones(1))
        >>> shells.blur(16, 0.0625)
        0.125
        """
        return self.dimension * (float(self.radii[-1]) / squares) ** 2 + ramp


def radial_shells(
    dimension: int, shells: int, radius: float, generator: RandomSource = None
) -> RadialShells:
    """Shells of equal thickness with independent fair signs.

    >>> g = radial_shells(3, 5, 2.0, generator=0)
    >>> g(torch.zeros(1, 3).double()).abs().item(), g(torch.full((1, 3), 2.0).double()).item()
    (1.0, 0.0)
    """
    whole_number(dimension, "dimension", least=1)
    whole_number(shells, "shells", least=1)
    signs = rademacher(shells, generator=as_generator(generator), dtype=torch.float64)
    radii = torch.linspace(0.0, positive_number(radius, "radius"), shells + 1, dtype=torch.float64)
    return RadialShells(dimension, radii, signs)
