r"""Pay-offs of options as ReLU networks, exactly.

Calls, puts, straddles and spreads on a basket, on the largest or on the smallest of $d$
prices are made of linear maps, $\max(a,b)=b+\varrho(a-b)$ and
$b=\varrho(b)-\varrho(-b)$: a tree of $\lceil\log_2d\rceil$ layers, then one for the
strike. Source: The Modern Mathematics of Deep Learning, section 1.4.3.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import block_diagonal, chain, compose
from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch, UnknownName

Payoff = Literal[
    "basket call", "basket put", "call on max", "put on max", "call on min", "put on min",
    "straddle", "call spread",
]  # fmt: skip


def largest_network(inputs: int) -> nn.Sequential:
    r"""$\max(x_1,\dots,x_d)$ by a tree: $\lceil\log_2d\rceil$ hidden layers.

    Each pair takes three units, an odd number out two: fewer than $3d+2\log_2d$.

    >>> largest_network(3)(torch.tensor([[-1.0, -3.0, -2.0]]).double()).item()
    -1.0
    """
    d = whole_number(inputs, "inputs", least=1)
    pair = torch.tensor([[1.0, -1.0], [0.0, 1.0], [0.0, -1.0]]).double()
    alone = torch.tensor([[1.0], [-1.0]]).double()
    read_pair = torch.tensor([[1.0, 1.0, -1.0]]).double()
    read = torch.eye(d).double()
    weights = []
    while d > 1:
        rest = d % 2
        weights.append(block_diagonal(*[pair] * (d // 2), *[alone] * rest) @ read)
        read = block_diagonal(*[read_pair] * (d // 2), *[alone.T] * rest)
        d = d // 2 + rest
    weights.append(read)
    maps = [(w, w.new_zeros(len(w))) for w in weights]
    return chain(maps, [nn.ReLU() for _ in maps[1:]])


def payoff_network(
    payoff: Payoff,
    dimension: int,
    strike: float,
    *,
    weights: Tensor | None = None,
    second_strike: float | None = None,
) -> nn.Sequential:
    r"""The pay-off $[n,d]\to[n,1]$ as a ReLU network without error.

    - basket call, put: $(c\cdot x-K)_+$, $(K-c\cdot x)_+$
    - call, put on max: $(\max_ix_i-K)_+$, $(K-\max_ix_i)_+$
    - call, put on min: $(\min_ix_i-K)_+$, $(K-\min_ix_i)_+$
    - straddle: $|c\cdot x-K|$
    - call spread: $(c\cdot x-K)_+-(c\cdot x-K_2)_+$

    At most $\lceil\log_2d\rceil+2$ affine layers and $O(d)$ units. A digital option,
    $\mathbf 1[c\cdot x\ge K]$, jumps and is the realization of no ReLU network.

    Args:
        strike: $K$.
        weights: `[d]`, the basket; equal shares of $1/d$ unless told.
        second_strike: $K_2$, of the spread only.

    >>> net = payoff_network("call on max", 3, strike=1.0)
    >>> net(torch.tensor([[0.5, 3.0, 1.0]]).double()).item()
    2.0
    """
    d = whole_number(dimension, "dimension", least=1)
    if str(payoff).startswith("digital"):
        raise InvalidInput("a digital pay-off jumps, and a ReLU network is continuous")
    if payoff not in get_args(Payoff):
        raise UnknownName("pay-off", payoff, get_args(Payoff))
    strikes = [strike] if second_strike is None else [strike, second_strike]
    if not all(math.isfinite(k) for k in strikes):
        raise NonFinite(
            f"a strike is NaN or infinite: {next(k for k in strikes if not math.isfinite(k))}"
        )
    if (payoff == "call spread") != (second_strike is not None):
        raise InvalidInput(
            f"second_strike belongs to a call spread, which needs one (payoff = {payoff!r}, "
            f"second_strike = {second_strike!r})"
        )
    if payoff in ("basket call", "basket put", "straddle", "call spread"):
        share = torch.full((d,), 1 / d, dtype=torch.float64) if weights is None else weights
        if share.shape != (d,):
            raise ShapeMismatch(f"a basket of {d} prices has weights [{d}]")
        inner = chain([(share.double().reshape(1, d), torch.zeros(1).double())], [])
    else:
        if weights is not None:
            raise InvalidInput(f"{payoff} has no basket weights")
        inner = largest_network(d)
        if payoff.endswith("min"):  # the smallest is minus the largest of the negatives
            turn = chain([(-torch.eye(d).double(), torch.zeros(d).double())], [])
            flip = chain([(-torch.ones(1, 1).double(), torch.zeros(1).double())], [])
            inner = compose(flip, compose(inner, turn))
    return compose(_profile(payoff, strikes), inner)


def _profile(payoff: str, strikes: list[float]) -> nn.Sequential:
    """The pay-off as a function of the one price it depends on: one hidden layer."""
    first = strikes[0]
    if payoff == "straddle":
        slopes, kinks, heights = [1.0, -1.0], [first, first], [1.0, 1.0]
    elif payoff == "call spread":
        slopes, kinks, heights = [1.0, 1.0], strikes, [1.0, -1.0]
    else:
        slopes, kinks, heights = [-1.0 if "put" in payoff else 1.0], [first], [1.0]
    slope = torch.tensor(slopes).double()
    return chain(
        [
            (slope.unsqueeze(1), -slope * torch.tensor(kinks, dtype=torch.float64)),
            (torch.tensor([heights]).double(), torch.zeros(1).double()),
        ],
        [nn.ReLU()],
    )
