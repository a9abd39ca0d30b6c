r"""The square by saw-teeth: a network of width 3 whose error falls with $4^{-\text{depth}}$.

With the hat $g(x)=\min\{2x,2-2x\}$ on $[0,1]$ and $g_m=g\circ\dots\circ g$
($m$ times), the broken line through $x^2$ at the points $k2^{-n}$ is

$$
f_n(x)=x-\sum_{m=1}^n4^{-m}g_m(x),\qquad 0\le f_n(x)-x^2\le4^{-(n+1)},
$$

because between two points of distance $h$ a chord of $x^2$ leaves it by
$h^2/4$ in the middle. A layer more halves the distance. Sources: Mathematical Aspects of
Deep Learning, Figure 1.9, section 1.6 and Theorem 3.10 with Figure 3.3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import Approximant
from torchtheory.approximation.network_calculus import chain
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.nets.feedforward import dense


def square_network(levels: int) -> Approximant:
    r"""$x^2$ on $[0,1]$ within $4^{-(n+1)}$, `levels` $n$ hidden layers.

    The three units of hidden layer $m$ are $a_m=g_{m-1}$, its ramp
    $b_m=\sigma(a_m-\tfrac12)$ and $s_m=f_{m-1}$, which is not negative and therefore
    passes a ReLU unchanged:

    $$
    a_{m+1}=\sigma(2a_m-4b_m),\quad b_{m+1}=\sigma(2a_m-4b_m-\tfrac12),\quad
    s_{m+1}=\sigma(s_m-4^{-m}(2a_m-4b_m)),
    $$

    and the output is $s_n-4^{-n}(2a_n-4b_n)=f_n$. Depth $n+1$, width 3,
    $8n-1$ parameters that are not zero. The bound is attained half-way between any two
    neighboring points $k2^{-n}$, and $\sup|f_n'-2x|=2^{-n}$.

    >>> square = square_network(2)
    >>> square(torch.tensor([0.0, 0.125, 0.25, 0.5, 1.0], dtype=torch.float64)).tolist()
    [0.0, 0.03125, 0.0625, 0.25, 1.0]
    >>> square.bound, square.size.depth, square.size.width, square.size.parameters
    (0.015625, 3, 3, 15)
    """
    whole_number(levels, "levels", least=1)
    ramp = torch.tensor([0.0, -0.5, 0.0], dtype=torch.float64)
    network = chain(
        [
            (torch.ones(3, 1, dtype=torch.float64), ramp),
            *((_rows(_HAT, _HAT, _subtract(m)), ramp) for m in range(1, levels)),
            (_rows(_subtract(levels)), ramp[:1]),
        ],
        [nn.ReLU() for _ in range(levels)],
    )
    return Approximant(network, 4.0 ** -(levels + 1), ((0.0, 1.0),), "X-26")


#: the hat of the first two units, $2a-4b$
_HAT = [2.0, -4.0, 0.0]


def _subtract(level: int) -> list[float]:
    tooth = 4.0**-level
    return [-2.0 * tooth, 4.0 * tooth, 1.0]


def _rows(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


class RecurrentSquare(nn.Module):
    r"""A recurrent ReLU network with constant weights that comes closer to $x^2$ each step.

    The state $z=(a,\sigma(a-c/2),c,r)$ starts as $(x,\sigma(x-\tfrac12),1,x)$. A step
    replaces $a$ by $a'=\tfrac12a-\sigma(a-c/2)$, $c$ by $c/4$ and
    $r$ by $r-a'$; all of them are at least 0, so that the step is
    $z\leftarrow\sigma(Az)$ with one matrix $A$ for all times. After $k$ steps
    $a=4^{-k}g_k(x)$ and $r=f_k(x)$. The last step needs no state, only the new
    $r$: it is the output.

    Attributes:
        steps: how often the state is replaced, the output counted.

    Shapes: `[n, 1]` to `[n, 1]`. Time `O(n steps)`.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = whole_number(steps, "steps", least=1)
        output = [-0.5, 1.0, 0.0, 1.0]
        again = _rows(
            [0.5, -1.0, 0.0, 0.0], [0.5, -1.0, -0.125, 0.0], [0.0, 0.0, 0.25, 0.0], output
        )
        start = _rows([1.0], [1.0], [0.0], [1.0])
        self.start = dense(start, torch.tensor([0.0, -0.5, 1.0, 0.0], dtype=torch.float64))
        self.step = dense(again)
        self.read = dense(_rows(output))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.relu(self.start(x))
        for _ in range(self.steps - 1):
            state = torch.relu(self.step(state))
        read: Tensor = self.read(state)
        return read


def recurrent_square(steps: int) -> Approximant:
    r"""$x^2$ on $[0,1]$ within $4^{-(k+1)}$ after $k$ steps of one network.

    The network, `RecurrentSquare`, has the same 4 units and 17 numbers in its weights
    whatever the accuracy; `square_network` gives the same values and grows.

    >>> [recurrent_square(k)(torch.tensor([0.5]).double()).item() for k in (1, 2, 9)]
    [0.25, 0.25, 0.25]
    >>> recurrent_square(3).size == recurrent_square(30).size
    True
    """
    network = RecurrentSquare(steps)
    return Approximant(network, 4.0 ** -(steps + 1), ((0.0, 1.0),), "A-145")


def squaring_levels(error: float, scale: float = 1.0) -> int:
    r"""The fewest levels, at least 1, with $\text{scale}\cdot4^{-(n+1)}\le\text{error}$.

    That is $n=\lceil\tfrac12\log_2(\text{scale}/\text{error})\rceil-1$. The scale is 1 for
    `square_network` and $B^2$ for a product of numbers up to $B$.

    >>> squaring_levels(1e-3), square_network(4).bound, square_network(3).bound
    (4, 0.0009765625, 0.00390625)
    """
    positive_number(error, "error")
    positive_number(scale, "scale")
    levels = max(1, math.ceil(math.log2(scale / error) / 2) - 1)
    # the logarithm may round across a whole number
    return levels if scale * 4.0 ** -(levels + 1) <= error else levels + 1
