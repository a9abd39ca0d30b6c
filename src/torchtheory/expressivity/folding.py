r"""Networks that fold: the tent map and its iterates, and foldings of the cube.

The zigzag $t_q(x)=q\bigl[\rho(x)+2\sum_{k=1}^{q-1}(-1)^k\rho(x-k/q)\bigr]$ maps each of
$q$ parts of $[0,1]$ onto $[0,1]$, so whatever follows it is seen $q$ times.
Sources: Mathematical Aspects of Deep Learning, sections 1.3.2, 1.3.3 and 3.7; Foundations of Deep
Learning, section 4.2.1; slides "Telgarsky's Theorem" and "Montufar's Theorem".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtheory.core.checks import whole_number, whole_numbers
from torchtheory.core.errors import InvalidInput, NotConverged
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.feedforward import dense

#: Random hyperplanes of which the best are taken.
DRAWS = 20


def sawtooth_network(times: int, *, clipped: bool = False) -> nn.Sequential:
    r"""The tent map $2\rho(x)-4\rho(x-\tfrac12)$ composed with itself.

    $2^k$ affine pieces on [0, 1] from `times` $=k$ hidden layers of two units.

    Args:
        clipped: three units a layer, $2\rho(x)-4\rho(x-\tfrac12)+2\rho(x-1)$: the function
            is then 0 outside [0, 1].

    >>> sawtooth_network(2)(torch.tensor([[0.25], [0.5], [0.75]]).double()).flatten().tolist()
    [1.0, 0.0, 1.0]
    """
    whole_number(times, "times", least=1)
    bias = torch.tensor([0.0, -0.5, -1.0], dtype=torch.float64)
    tent = torch.tensor([[2.0, -4.0, 2.0]], dtype=torch.float64)
    if not clipped:
        bias, tent = bias[:2], tent[:, :2]
    first = torch.ones(len(bias), 1, dtype=torch.float64)
    layers: list[nn.Module] = []
    for i in range(times):
        layers += [dense(first if i == 0 else first @ tent, bias), nn.ReLU()]
    return nn.Sequential(*layers, dense(tent, torch.zeros(1, dtype=torch.float64)))


def zigzag_network(folds: Sequence[int]) -> nn.Sequential:
    r"""The composition $t_{q_L}\circ\dots\circ t_{q_1}$.

    $\prod q_\ell$ pieces on [0, 1] from hidden layers of $q_\ell$ units.

    >>> zigzag_network([4, 2])(torch.tensor([[0.125], [0.25]]).double()).flatten().tolist()
    [1.0, 0.0]
    """
    return folding_network(1, whole_numbers(folds, "folds"))


def folding_network(
    inputs: int, folds: Sequence[int], head: nn.Linear | None = None
) -> nn.Sequential:
    r"""Every layer folds every coordinate of $[0,1]^d$ `folds[l]` times.

    Args:
        inputs: $d$.
        folds: $q_\ell$; layer $\ell$ has $dq_\ell$ units.
        head: the layer after the last folding (without activation); the identity unless told.

    >>> net = folding_network(2, [2, 2])
    >>> net(torch.tensor([[0.25, 0.5]]).double()).tolist()
    [[1.0, 0.0]]
    """
    whole_number(inputs, "inputs", least=1)
    if not folds:
        raise InvalidInput("a folding network needs at least one layer")
    layers: list[nn.Module] = []
    read = torch.eye(inputs, dtype=torch.float64)  # what brings the coordinates back
    for q in whole_numbers(folds, "folds"):
        spread = torch.eye(inputs, dtype=torch.float64).repeat_interleave(q, 0)
        bias = -torch.arange(q, dtype=torch.float64).repeat(inputs) / q
        layers += [dense(spread @ read, bias), nn.ReLU()]
        weights = 2.0 * q * (-1.0) ** torch.arange(q, dtype=torch.float64)
        weights[0] = q
        read = spread.T * weights.repeat(inputs)
    if head is None:
        return nn.Sequential(*layers, dense(read, torch.zeros(inputs, dtype=torch.float64)))
    return nn.Sequential(*layers, dense(head.weight.detach() @ read, head.bias.detach()))


def montufar_network(
    inputs: int, width: int, depth: int, *, generator: RandomSource = None
) -> nn.Sequential:
    r"""`depth - 1` foldings, then `width` hyperplanes all of whose cells meet the open cube.

    The activation regions inside $(0,1)^d$ number exactly
    $\lfloor m/d\rfloor^{d(L-1)}\sum_{j\le d}\binom mj$. Random hyperplanes are moved towards
    the center until all points where $d$ of them meet are inside; every cell of the
    arrangement has such a corner.

    They are linear regions as well, for almost every draw of the output weights. Where all units
    are inactive the network would be constant on both sides of a fold, and the copies would be one
    region; so the first $d+1$ units are turned until all are active inside the simplex that their
    hyperplanes bound, and then nowhere all inactive. (Without a fold, $m<2d$, nothing is copied.)

    >>> [layer.out_features for layer in montufar_network(2, 4, 3) if hasattr(layer, "bias")]
    [4, 4, 4, 1]
    """
    whole_number(depth, "depth", least=1)
    if width < inputs:
        raise InvalidInput(f"the width {width} must be at least the number of inputs, {inputs}")
    source = as_generator(generator)
    normal, offset = _never_all_inactive(*central_hyperplanes(inputs, width, source))
    sums = torch.randn(1, width, generator=source, dtype=torch.float64)
    last = dense(sums, torch.zeros(1, dtype=torch.float64))
    if depth == 1:
        return nn.Sequential(dense(normal, offset), nn.ReLU(), last)
    folded = folding_network(inputs, [width // inputs] * (depth - 1), dense(normal, offset))
    return nn.Sequential(*folded, nn.ReLU(), last)


def _never_all_inactive(normal: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """The same hyperplanes, the first `d + 1` with their active sides towards their simplex."""
    inputs = normal.shape[1]
    if len(normal) <= inputs:
        return normal, offset
    turned = torch.ones_like(offset)
    for i in range(inputs + 1):
        others = [j for j in range(inputs + 1) if j != i]
        corner = torch.linalg.solve(normal[others], -offset[others])
        turned[i] = (normal[i] @ corner + offset[i]).sign()
    return normal * turned[:, None], offset * turned


def central_hyperplanes(inputs: int, number: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Normals `[m, d]` and offsets `[m]` of hyperplanes in general position, all of whose
    corners are inside the unit cube: of some random draws the one with the least flat corners."""
    subsets = torch.combinations(torch.arange(number), inputs)
    best, normal = 0.0, torch.empty(0)
    for _ in range(DRAWS):
        drawn = torch.randn(number, inputs, generator=source, dtype=torch.float64)
        drawn = drawn / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        steep = float(torch.linalg.det(drawn[subsets]).abs().min())
        if steep > best:
            best, normal = steep, drawn
    if best < 1e-6:
        raise NotConverged(f"no {number} hyperplanes in general position found in {DRAWS} draws")
    offset = torch.randn(number, generator=source, dtype=torch.float64)
    furthest = torch.linalg.solve(normal[subsets], -offset[subsets]).abs().max()
    # moved towards the center until every corner is well inside
    return normal, offset * (0.4 / furthest) - 0.5 * normal.sum(1)
