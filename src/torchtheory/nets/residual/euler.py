r"""Residual networks as Euler's method for an ordinary differential equation, and back.

$$
x_\ell=x_{\ell-1}+f_\ell(x_{\ell-1})\qquad\text{is a step of length 1 for}\qquad
\dot\phi(t)=h(t,\phi(t)),\quad h(t,\cdot)=f_\ell\ \text{ on }[\ell-1,\ell).
$$

The right-hand side is a function of the *state* $x_{\ell-1}$, not of the layer's pre-activation.
In the other direction $L$ blocks $x+\frac TLh(t_{\ell-1},x)$ follow the flow up to time $T$ with an
error of order $1/L$. Source: Mathematical Aspects of Deep Learning, section 1.6.2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_function, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel

#: The right-hand side $h(t,x)$ of a differential equation.
Field = Callable[[Tensor, Tensor], Tensor]


class EulerBlock(nn.Module):
    r"""$x\mapsto x+\Delta\,h(t,x)$, a residual block."""

    def __init__(self, field: Field, time: float, step: float) -> None:
        super().__init__()
        self.field = field  # a module's parameters become the block's own
        self.time, self.step = time, step

    def forward(self, x: Tensor) -> Tensor:
        change = self.field(torch.as_tensor(self.time, dtype=x.dtype, device=x.device), x)
        if change.shape != x.shape:
            raise ShapeMismatch(
                f"h(t, x) must have the shape of x, {list(x.shape)}, not {list(change.shape)}"
            )
        return x + self.step * change

    def extra_repr(self) -> str:
        return f"time={self.time:g}, step={self.step:g}"


def resnet_from_ode(field: Field, time: float, layers: int) -> nn.Sequential:
    r"""The residual network of `layers` Euler steps for $\dot\phi=h(t,\phi)$ up to time $T$.

    For $h$ with Lipschitz constant $\Lambda$ in $x$ and $|\ddot\phi|\le M$, its error is at most
    $\frac{M}{2\Lambda}(e^{\Lambda T}-1)\,\frac TL$.

    Args:
        field: $h(t,x)$, a function or a module of a time (a tensor with one entry) and states
            `[s, ...]`; all blocks share it.
        time: $T$.
        layers: $L$.

    >>> net = resnet_from_ode(lambda t, x: x, 1.0, 4)
    >>> round(net(torch.ones(1)).item(), 6)                    # (1 + 1/4)^4
    2.441406
    """
    as_function(field, "the field")
    positive_number(time, "time")
    whole_number(layers, "layers", least=1)
    step = time / layers
    return nn.Sequential(*(EulerBlock(field, step * i, step) for i in range(layers)))


def ode_from_resnet(net: nn.Sequential, *, interpolate: bool = False) -> Field:
    r"""The field $h(t,x)$ whose Euler steps of length 1 from $t=0$ are the network's blocks.

    Between whole times $h(t,\cdot)=g_\ell-\mathrm{Id}$ for $\ell-1\le t<\ell$; after the last
    block it stays. With `interpolate`, $h$ is continuous in $t$: the blocks' changes at
    $t=0,1,\dots$, joined by straight lines.

    Args:
        net: a chain of blocks, each of which keeps the shape of its input.

    >>> net = nn.Sequential(nn.Identity(), nn.Identity())
    >>> ode_from_resnet(net)(torch.tensor(0.5), torch.ones(2)).tolist()
    [0.0, 0.0]
    """
    if not isinstance(net, nn.Sequential) or len(net) == 0:
        raise UnsupportedModel(
            f"a chain of residual blocks is an nn.Sequential of at least one, not "
            f"{type(net).__name__}"
        )
    blocks = list(net)

    def change(index: int, x: Tensor) -> Tensor:
        moved: Tensor = blocks[min(index, len(blocks) - 1)](x)
        if moved.shape != x.shape:
            raise ShapeMismatch(
                f"block {index} turns {list(x.shape)} into {list(moved.shape)}: a step of a "
                "differential equation keeps the shape"
            )
        return moved - x

    def field(t: Tensor, x: Tensor) -> Tensor:
        moment = float(t)
        if not moment >= 0:
            raise InvalidInput(f"the network starts at time 0, and t is {moment:g}")
        before = int(moment)
        if not interpolate or moment == before:
            return change(before, x)
        share = moment - before
        return (1 - share) * change(before, x) + share * change(before + 1, x)

    return field
