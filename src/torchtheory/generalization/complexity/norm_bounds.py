r"""Complexity of networks whose weight matrices are bounded in the Frobenius norm.

Networks $x\mapsto W_L\varrho(W_{L-1}\cdots\varrho(W_1x))$ without biases, with a positively
homogeneous 1-Lipschitz activation and any widths. Layer by layer the supremum over a matrix is one
over a single row (peeling) and the activation costs a factor 2 (contraction). In the plane the
supremum over two-layer networks is found exactly, elsewhere from below by ascent. Sources:
Mathematical Aspects of Deep Learning, Theorem 1.23; Foundations of Deep Learning, Theorem 65.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.generalization.complexity.rademacher import Supremum
from torchtheory.models.untouched import copied
from torchtheory.nets.activations.table import POINTWISE_LAYERS
from torchtheory.tracing.activations import layer_facts
from torchtheory.tracing.chain import as_chain


def homogeneous_layers(model: nn.Module) -> list[nn.Linear]:
    r"""The linear layers of a network that the theorem covers, in order.

    Raises:
        UnsupportedModel: where a layer has a bias, or is neither `nn.Linear` nor a positively
            homogeneous 1-Lipschitz activation (ReLU, leaky ReLU, identity); the message names it.

    >>> net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False))
    >>> [layer.out_features for layer in homogeneous_layers(net)]
    [3, 1]
    """
    found = []
    for link in as_chain(model):
        module = link.module
        if isinstance(module, nn.Linear):
            if module._parameters["bias"] is not None:
                raise UnsupportedModel(
                    f"layer {link.name!r} has a bias; the norm bound is for networks without"
                )
            found.append(module)
        elif type(module) in POINTWISE_LAYERS and layer_facts(module).homogeneous:
            if not layer_facts(module).lipschitz <= 1:
                raise UnsupportedModel(f"activation {link.name!r} is not 1-Lipschitz")
        elif not isinstance(module, nn.Identity | nn.Flatten):
            raise UnsupportedModel(
                f"layer {link.name!r} ({type(module).__name__}) is not known to be positively "
                "homogeneous and 1-Lipschitz"
            )
    if not found:
        raise UnsupportedModel("the network has no linear layer to bound")
    return found


def frobenius_norms(model: nn.Module) -> list[float]:
    r"""$\|W^{(\ell)}\|_F$ of every layer of such a network.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[3.0, 4.0]]))
    >>> frobenius_norms(net)
    [5.0]
    """
    return [float(layer.weight.detach().norm()) for layer in homogeneous_layers(model)]


def normalize_layers(model: nn.Module) -> tuple[nn.Module, float]:
    r"""A copy whose layers have Frobenius norm 1, and the factor that was taken out.

    Scaling $W^{(\ell)}$ by $\lambda_\ell>0$ scales the network by
    $\prod_\ell\lambda_\ell$, so the network is the factor times the copy (Mathematical
    Aspects of Deep Learning, section 1.2.2).

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> _ = [layer.weight.data.fill_(w) for layer, w in zip(net[::2], (3.0, -2.0))]
    >>> unit, factor = normalize_layers(net)
    >>> factor, unit(torch.ones(1, 1)).item(), net(torch.ones(1, 1)).item()
    (6.0, -1.0, -6.0)
    """
    unit = copied(model)
    factor = 1.0
    with torch.no_grad():
        for layer in homogeneous_layers(unit):
            norm = float(layer.weight.norm())
            if norm == 0:
                raise InvalidInput("a layer of zeros has no direction: it cannot be normalized")
            layer.weight.div_(norm)
            factor *= norm
    return unit, factor


def frobenius_bound(
    norms: Sequence[float],
    linear: float,
    *,
    depth_factor: Literal["peeling", "root"] = "peeling",
) -> float:
    r"""Bound on the complexity of all networks with $\|W^{(\ell)}\|_F\le C_\ell$.

    $2^{L-1}\prod_\ell C_\ell\cdot r$ where $r$ is the complexity of the linear class of
    unit weights or a bound of it: $\frac1m\mathbb E\|\sum\tau_ix_i\|$, or
    $\max\|x_i\|/\sqrt m$. With `"root"`, $(\sqrt{2\ln2\cdot L}+1)\prod_\ell C_\ell\cdot r$
    (Golowich, Rakhlin and Shamir, 2018), for which $r$ must be one of the two
    bounds of `linear_bounds`. Foundations of Deep
    Learning prints the weaker $(2B)^L/\sqrt n$.

    >>> frobenius_bound([1.0, 1.0, 1.0], 1 / 100)                  # m = 10 000 unit vectors
    0.04
    """
    if not norms:
        raise InvalidInput("a network needs at least one layer")
    if not all(math.isfinite(c) and c >= 0 for c in [*norms, linear]):
        raise NonFinite(
            "norms and the linear complexity must be finite numbers >= 0, not "
            f"{described([*norms, linear])}"
        )
    depth = len(norms)
    if depth_factor == "peeling":
        factor = 2.0 ** (depth - 1)
    elif depth_factor == "root":
        factor = math.sqrt(2 * math.log(2) * depth) + 1
    else:
        raise InvalidInput(f"depth_factor is 'peeling' or 'root', not {depth_factor!r}")
    return factor * math.prod(norms) * linear


def depth_free_order(
    norms: Sequence[float], least_gain: float, radius: float, samples: int
) -> float:
    r"""Order of the complexity where the spectral norms of the layers are bounded below as well.

    With $\|W^{(\ell)}\|_F\le C_\ell$, inputs of norm at most $B$ and
    $\prod_\ell\|W^{(\ell)}\|_2\ge\Gamma$ the complexity is at most a universal constant times

    $$
    B\prod_\ell C_\ell\cdot\min\Bigl\{\frac{(\ln m)^{3/4}\sqrt{\ln(\prod C_\ell/\Gamma)}}{m^{1/4}},
    \sqrt{\tfrac Lm}\Bigr\}
    $$

    (Golowich, Rakhlin and Shamir, 2018). The first term does not grow with the depth $L$, at the
    price of the slower rate $m^{-1/4}$. An order, not a bound: the constant is not known.

    Args:
        norms: $C_\ell$.
        least_gain: $\Gamma$, positive and below the product of the norms.
        radius: $B$.
        samples: $m\ge2$.

    >>> short, long = ([2.0, 1.0], [2.0] + [1.0] * 63)
    >>> [round(depth_free_order(c, 0.5, 1.0, 10), 4) for c in (short, long)]
    [0.8944, 2.4753]
    """
    whole_number(samples, "samples", least=2)
    product = math.prod(norms)
    if not 0 < least_gain < product:
        raise InvalidInput(
            f"the least gain must lie between 0 and the product of the norms, {product:.6g}, not "
            f"{least_gain!r}"
        )
    slow = math.log(samples) ** 0.75 * math.sqrt(math.log(product / least_gain))
    rate: float = min(slow / samples**0.25, math.sqrt(len(norms) / samples))
    return radius * product * rate


def largest_unit(x: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
    r"""$\sup_{\|w\|_2\le1}|\sum_i\tau_i\max(0,\langle w,x_i\rangle)|$ in the plane, exactly.

    Between neighboring directions orthogonal to a point the sum is linear in $w$, so its
    largest absolute value is at the end of an arc or at the direction of that linear function.

    Args:
        x: points `[m, 2]`.
        signs: `[s, m]`.

    Returns:
        The suprema `[s]` and unit vectors `[s, 2]` that attain them.

    Cost: $O(s\,m^2)$ time, $O(s\,m)$ memory.

    >>> largest_unit(torch.eye(2), torch.tensor([[1.0, -1.0]]))[0]
    tensor([1.])
    """
    if x.ndim != 2 or x.shape[1] != 2 or len(x) == 0:
        raise ShapeMismatch(f"the exact supremum needs points [m, 2], not {list(x.shape)}")
    if signs.ndim != 2 or signs.shape[1] != len(x):
        raise ShapeMismatch(f"signs must be [s, {len(x)}], not {list(signs.shape)}")
    angle = torch.atan2(x[:, 1], x[:, 0])
    turns = torch.cat([angle - math.pi / 2, angle + math.pi / 2])
    start = turns.remainder(2 * math.pi).sort().values
    length = torch.cat([start[1:], start[:1] + 2 * math.pi]) - start
    middle = start + length / 2
    active = (_directions(middle) @ x.T > 0).to(x)  # [arcs, m]
    reach = (active[:, :, None] * x).transpose(0, 1).reshape(len(x), -1)
    linear = (signs.to(x) @ reach).reshape(len(signs), len(start), 2)
    ends = _directions(start)
    at_end = (linear * ends).sum(-1)
    best, place = at_end.abs().max(1)
    where = ends[place]
    for sign in (1.0, -1.0):
        phase = torch.atan2(sign * linear[..., 1], sign * linear[..., 0])
        inside = (phase - start).remainder(2 * math.pi) <= length
        height = torch.where(inside, linear.norm(dim=-1), torch.zeros_like(phase))
        top, arc = height.max(1)
        found = phase.gather(1, arc[:, None])[:, 0]
        better = top > best
        where = torch.where(better[:, None], _directions(found), where)
        best = torch.maximum(best, top)
    return best, where


def planar_relu_class(x: Tensor, first: float = 1.0, second: float = 1.0) -> Supremum:
    r"""Two-layer ReLU networks of any width on points `x[m, 2]`, their supremum exactly.

    Over $\|W_1\|_F\le C_1$, $\|W_2\|_2\le C_2$ it is
    $\frac{C_1C_2}m\sup_{\|w\|\le1}|\sum_i\tau_i\max(0,\langle w,x_i\rangle)|$ by peeling: one
    hidden unit is enough.

    >>> planar_relu_class(torch.eye(2), 2.0, 3.0)(torch.tensor([[1.0, -1.0]]))
    tensor([3.])
    """
    if not (first > 0 and second > 0):
        raise InvalidInput(f"norm bounds must be positive, not {first} and {second}")
    return lambda signs: first * second * largest_unit(x, signs)[0] / len(x)


def ascended_relu_class(
    x: Tensor,
    widths: Sequence[int],
    norms: Sequence[float],
    *,
    steps: int = 100,
    generator: RandomSource = None,
) -> Supremum:
    r"""ReLU networks with these hidden widths and Frobenius norms, the supremum *from below*.

    For every sign vector a network of its own is trained by Adam on
    $\frac1m\sum_i\sigma_if(x_i)$, each matrix divided by its norm; the best value met on the
    way is attained by a network of the class, so what follows from it is a lower bound.

    Args:
        x: points `[m, d]`.
        widths: hidden widths, empty for linear functions.
        norms: $C_1,\dots,C_L$, one more than widths.
        steps: of Adam, with a learning rate of 0.1.
        generator: for the initial weights.

    Cost: `steps` passes of $s$ networks in one batch.

    >>> net = ascended_relu_class(torch.eye(2), [2], [1.0, 1.0], steps=50)
    >>> bool(net(torch.tensor([[1.0, 1.0]])) <= 2**0.5 / 2)
    True
    """
    if len(norms) != len(widths) + 1 or not all(w >= 1 for w in widths):
        raise ShapeMismatch(f"{len(widths)} hidden layers need {len(widths) + 1} norms")
    if x.ndim != 2 or len(x) == 0:
        raise ShapeMismatch(f"points must be [m, d], not {list(x.shape)}")
    sizes = [x.shape[1], *widths, 1]
    scale = math.prod(norms)
    generator = as_generator(generator)

    def supremum(signs: Tensor) -> Tensor:
        weights = [
            gaussian(
                len(signs), b, a, generator=generator, dtype=x.dtype, device=x.device
            ).requires_grad_()
            for a, b in pairwise(sizes)
        ]
        optimizer = torch.optim.Adam(weights, lr=0.1)
        best = torch.full((len(signs),), -math.inf, dtype=x.dtype, device=x.device)
        targets = signs.to(x)
        for _ in range(steps):
            h = x.T.expand(len(signs), -1, -1)
            for k, w in enumerate(weights):
                h = (w / w.norm(dim=(1, 2), keepdim=True)) @ (torch.relu(h) if k else h)
            value = scale * (h[:, 0] * targets).mean(1)
            best = torch.maximum(best, value.detach())
            optimizer.zero_grad()
            (-value.sum()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return best

    return supremum


def _directions(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], -1)
