r"""The calculus of networks that proofs use: compose, stack, add, scale, deepen.

Every operation takes networks as `nn.Sequential` chains affine, activation, affine, ..., affine
and returns another one that computes *exactly* the combined function, of a size that follows from
the sizes of its parts:

| operation | depth | width | parameters |
|---|---|---|---|
| `compose(g, f)`: $g\circ f$ | $L_f+L_g-1$ | the larger | two layers merge |
| `stack(f, g)`: $(f,g)$ | the larger | the sum | the sum (after padding) |
| `combine(c, [f, g])`: $c_1f+c_2g$ | the larger | the sum | at most the sum |
| `deepen(f, L)`: $f$ | $L$ | at least twice the outputs | |

Deepening needs the identity $z=\max(z,0)-\max(-z,0)$ and so ReLU networks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import affine_layers, dense


def chain(maps: Sequence[tuple[Tensor, Tensor]], between: Sequence[nn.Module]) -> nn.Sequential:
    """The network with these affine layers and activations; inverse of `affine_layers`.

    >>> one = torch.ones(1, 1)
    >>> chain([(one, one[0]), (one, one[0])], [nn.ReLU()])(torch.tensor([[-2.0]])).item()
    1.0
    """
    if len(maps) != len(between) + 1:
        raise ShapeMismatch(f"{len(maps)} affine layers have {len(maps) - 1} activations between")
    layers: list[nn.Module] = [dense(*maps[0])]
    for activation, following in zip(between, maps[1:], strict=True):
        layers += [activation, dense(*following)]
    return nn.Sequential(*layers).requires_grad_(False)


def block_diagonal(*blocks: Tensor) -> Tensor:
    """The matrix with these blocks on its diagonal and 0 elsewhere.

    >>> block_diagonal(torch.ones(1, 2), torch.ones(1, 1)).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    made: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return made


def compose(outer: nn.Sequential, inner: nn.Sequential) -> nn.Sequential:
    r"""$g\circ f$: the last layer of the inner and the first of the outer become one.

    >>> double, add = nn.Sequential(nn.Linear(1, 1)), nn.Sequential(nn.Linear(1, 1))
    >>> for net, w, b in ((double, 2.0, 0.0), (add, 1.0, 3.0)):
    ...     net[0].weight.data.fill_(w), net[0].bias.data.fill_(b)
    (tensor([[2.]]), tensor([0.]))
    (tensor([[1.]]), tensor([3.]))
    >>> compose(double, add)(torch.tensor([[1.0]])).item()
    8.0
    """
    first, between_first = affine_layers(inner)
    then, between_then = affine_layers(outer)
    (a, b), (c, d) = first[-1], then[0]
    if c.shape[1] != a.shape[0]:
        raise ShapeMismatch(f"the inner has {a.shape[0]} outputs and the outer {c.shape[1]} inputs")
    merged = (c @ a, c @ b + d)
    return chain([*first[:-1], merged, *then[1:]], [*between_first, *between_then])


def deepen(network: nn.Sequential, depth: int) -> nn.Sequential:
    r"""The same function with `depth` affine layers, by $z=\sigma(z)-\sigma(-z)$, ReLU.

    >>> deep = deepen(nn.Sequential(nn.Linear(2, 1)), 4)
    >>> [list(m.weight.shape) for m in deep if isinstance(m, nn.Linear)]
    [[2, 2], [2, 2], [2, 2], [1, 2]]
    """
    maps, between = affine_layers(network)
    whole_number(depth, "depth", least=len(maps))
    if depth == len(maps):
        return chain(maps, between)
    if not all(isinstance(m, nn.ReLU) for m in between):
        raise UnsupportedModel(
            "the identity of two units is that of ReLU networks only, not "
            f"{', '.join(sorted({type(m).__name__ for m in between}))}"
        )
    weight, bias = maps[-1]
    n = len(weight)
    eye = torch.eye(n, dtype=weight.dtype, device=weight.device)
    zero = weight.new_zeros(2 * n)
    split = torch.cat([eye, -eye])
    keep = (torch.eye(2 * n).to(weight), zero)
    padding = [(split @ weight, split @ bias), *[keep] * (depth - len(maps) - 1)]
    added = [nn.ReLU() for _ in range(depth - len(maps))]
    return chain([*maps[:-1], *padding, (split.T, zero[:n])], [*between, *added])


def stack(*networks: nn.Sequential) -> nn.Sequential:
    r"""$x\mapsto(f_1(x),f_2(x),\dots)$: side by side on the same input.

    Shallower ReLU networks are deepened first. Hidden layers become block diagonal, so
    non-zero parameters add up.

    >>> pair = stack(nn.Sequential(nn.Linear(2, 1)), nn.Sequential(nn.Linear(2, 3)))
    >>> pair(torch.zeros(5, 2)).shape
    torch.Size([5, 4])
    """
    if not networks:
        raise EmptyData("there is no network to stack")
    depth = max(len(affine_layers(n)[0]) for n in networks)
    parts = [affine_layers(deepen(n, depth)) for n in networks]
    inputs = {maps[0][0].shape[1] for maps, _ in parts}
    if len(inputs) > 1:
        raise ShapeMismatch(f"stacked networks share their input, and these take {sorted(inputs)}")
    for level in zip(*(between for _, between in parts), strict=True):
        if len({repr(m) for m in level}) > 1:
            raise UnsupportedModel(f"one layer cannot have the activations {list(level)} at once")
    maps = []
    for i in range(depth):
        weights = [m[i][0] for m, _ in parts]
        joined = torch.cat(weights) if i == 0 else block_diagonal(*weights)
        maps.append((joined, torch.cat([m[i][1] for m, _ in parts])))
    return chain(maps, parts[0][1])


def combine(
    coefficients: Sequence[float] | Tensor, networks: Sequence[nn.Sequential]
) -> nn.Sequential:
    r"""$\sum_ic_if_i$ as one network, as deep as the deepest.

    `combine([c], [f])` scales a network, `combine([1, 1], [f, g])` adds two.

    >>> f = nn.Sequential(nn.Linear(2, 1))
    >>> bool(combine([1.0, -1.0], [f, f])(torch.ones(1, 2)) == 0)
    True
    """
    if len(coefficients) != len(networks):
        raise ShapeMismatch(
            f"{len(networks)} networks need as many coefficients, not {len(coefficients)}"
        )
    joined = stack(*networks)
    maps, between = affine_layers(joined)
    outputs = {affine_layers(n)[0][-1][0].shape[0] for n in networks}
    if len(outputs) > 1:
        raise InvalidInput(f"only networks with equally many outputs add, not {sorted(outputs)}")
    n = outputs.pop()
    weight = maps[-1][0]
    eye = torch.eye(n, dtype=weight.dtype, device=weight.device)
    total = torch.cat([float(c) * eye for c in coefficients], dim=1)
    return chain([*maps[:-1], (total @ weight, total @ maps[-1][1])], between)
