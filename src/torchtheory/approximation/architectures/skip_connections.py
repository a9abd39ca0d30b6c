r"""Networks whose layers may read every earlier layer, and what they cost without that.

A sum $x-\sum_m4^{-m}g_m(x)$ of what appears in layer after layer is read off directly where
the output may look at every layer: $O(L)$ weights. A plain network that hands every number
on to the end needs $O(L^2)$. (A plain network that keeps a running sum needs $O(L)$ as
well, `square_network`.) Source: Mathematical Aspects of
Deep Learning, Theorem 3.10, footnote 7, and section 3.8.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torchtheory.approximation.network_calculus import block_diagonal, chain
from torchtheory.approximation.piecewise.function_norms import partial_derivatives
from torchtheory.approximation.piecewise.partition_of_unity import patch_centers
from torchtheory.approximation.targets import Function
from torchtheory.core.checks import whole_number
from torchtheory.core.errors import EmptyData, ShapeMismatch

#: of four ramps
_TRAPEZOID = [1.0, -1.0, -1.0, 1.0]

SkipLayer = tuple[Mapping[int, Tensor], Tensor]


class SkipNetwork(nn.Module):
    r"""A ReLU network, $h_l=\sigma(b_l+\sum_{s<l}W_{ls}h_s)$ with $h_0=x$, last affine.

    Args:
        layers: for each layer its matrices `[width, width of s]` by source $s$, and its
            bias.

    >>> one = torch.ones(1, 1).double()
    >>> net = SkipNetwork([({0: one}, -one[0]), ({0: one, 1: -one}, 0 * one[0])])
    >>> net(torch.tensor([[0.5], [3.0]]).double()).flatten().tolist()      # min(x, 1)
    [0.5, 1.0]
    """

    def __init__(self, layers: Sequence[SkipLayer]) -> None:
        super().__init__()
        if not layers:
            raise EmptyData("a network has at least one layer")
        widths = [next(iter(layers[0][0].values())).shape[1]]
        for at, (sources, bias) in enumerate(layers, 1):
            for s, weight in sources.items():
                if not 0 <= s < at or weight.shape != (len(bias), widths[s]):
                    raise ShapeMismatch(
                        f"layer {at} of {len(bias)} units reads earlier layers by matrices "
                        f"[{len(bias)}, their width], not layer {s} by {list(weight.shape)}"
                    )
                self.register_buffer(f"weight{at}_{s}", weight)
            self.register_buffer(f"bias{at}", bias)
            widths.append(len(bias))
        self.sources = [tuple(sorted(sources)) for sources, _ in layers]

    def layer(self, number: int) -> SkipLayer:
        """The matrices and the bias of a layer, counted from 1."""
        sources = {s: self.get_buffer(f"weight{number}_{s}") for s in self.sources[number - 1]}
        return sources, self.get_buffer(f"bias{number}")

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for at in range(1, len(self.sources) + 1):
            sources, bias = self.layer(at)
            z: Tensor = bias + sum(seen[s] @ weight.T for s, weight in sources.items())
            seen.append(z.relu() if at < len(self.sources) else z)
        return seen[-1]

    @property
    def nonzero_parameters(self) -> int:
        """Weights and biases that are not zero."""
        layers = [self.layer(k) for k in range(1, len(self.sources) + 1)]
        return sum(int(v.count_nonzero()) for sources, b in layers for v in (*sources.values(), b))


def skip_to_plain(network: SkipNetwork) -> nn.Sequential:
    """The same function without skips: whatever is read later is handed on, layer by layer.

    What comes out of a ReLU is not negative and needs one unit a layer, the input two.

    >>> one = torch.ones(1, 1).double()
    >>> net = SkipNetwork([({0: one}, -one[0]), ({0: one, 1: -one}, 0 * one[0])])
    >>> plain = skip_to_plain(net)
    >>> plain(torch.tensor([[0.5], [3.0]]).double()).flatten().tolist(), plain[0].out_features
    ([0.5, 1.0], 3)
    """
    count = len(network.sources)
    last = {s: k for k, sources in enumerate(network.sources, 1) for s in sources}
    inputs = next(iter(network.layer(1)[0].values())).shape[1]
    eye = torch.eye(inputs, dtype=network.get_buffer("bias1").dtype)
    # where the units of each earlier layer are found in the current one
    state: dict[int, Tensor] = {0: eye}
    maps = []
    for layer in range(1, count + 1):
        sources, bias = network.layer(layer)
        rows = [sum((w @ state[s] for s, w in sources.items()), start=bias.new_zeros(()))]
        kept = [s for s in state if layer < count and last.get(s, 0) > layer]
        for s in kept:
            rows += [state[s], -state[s]] if s == 0 else [state[s]]
        weight = torch.cat(rows)
        maps.append((weight, torch.cat([bias, bias.new_zeros(len(weight) - len(bias))])))
        places = torch.eye(len(weight), dtype=weight.dtype)
        state = {layer: places[: len(bias)]}
        at = len(bias)
        for s in kept:
            size = inputs if s == 0 else len(network.get_buffer(f"bias{s}"))
            state[s] = places[at : at + size]
            if s == 0:
                state[s] = state[s] - places[at + size : at + 2 * size]
                at += size
            at += size
    return chain(maps, [nn.ReLU() for _ in maps[1:]])


def skip_local_line(cells: int, levels: int) -> SkipNetwork:
    r"""$x\,\psi(3Nx)$ with skips: one patch of Yarotsky's network for $d=1,\ n=2$.

    The output reads the saw-teeth of every layer. The function is that of
    `local_monomial` for $\alpha=(1)$.

    >>> skip_local_line(2, 6)(torch.tensor([[0.125], [0.5]]).double()).flatten().tolist()
    [0.125, 0.0]
    """
    whole_number(cells, "cells", least=1)
    whole_number(levels, "levels", least=1)
    scale, rows = 3.0 * cells, _rows
    knots = torch.tensor([2.0, 1.0, -1.0, -2.0]).double()
    trapezoid = rows([_TRAPEZOID])
    # the positive and negative parts of (x + psi)/2 and of (x - psi)/2
    layers: list[SkipLayer] = [
        ({0: torch.full((4, 1), scale).double()}, knots),
        (
            {
                1: rows([[0.5], [-0.5], [-0.5], [0.5]]) @ trapezoid,
                0: rows([[0.5], [-0.5], [0.5], [-0.5]]),
            },
            torch.zeros(4).double(),
        ),
    ]
    join = rows([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    ramp = torch.tensor([0.0, -0.5, 0.0, -0.5]).double()
    layers.append(({2: join}, ramp))
    hat = rows([[2.0, -4, 0, 0], [2, -4, 0, 0], [0, 0, 2, -4], [0, 0, 2, -4]])
    layers += [({k: hat}, ramp) for k in range(3, levels + 2)]
    read = {2: rows([[1.0, 1, -1, -1]])}
    for m in range(1, levels + 1):
        read[m + 2] = -(4.0**-m) * rows([[2.0, -4, -2, 4]])
    layers.append((read, torch.zeros(1).double()))
    return SkipNetwork(layers)


def skip_taylor_network(function: Function, cells: int, levels: int) -> SkipNetwork:
    r"""$\sum_m\psi(3N(x-m/N))\,[f(m/N)+f'(m/N)(x-m/N)]$ with skips: all of Yarotsky's network
    for $d=1,\ n=2$.

    The copies of `skip_local_line` stand side by side, and the output reads the trapezoids
    themselves for the values. The function is that of
    `smooth_network` with as many cells and levels.

    >>> net = skip_taylor_network(lambda x: 2 * x + 1, 4, 5)
    >>> net(torch.tensor([[0.0], [0.25], [1.0]]).double()).flatten().tolist()
    [1.0, 1.5, 3.0]
    """
    template = skip_local_line(cells, levels)
    centers = patch_centers(cells, 1)
    values = partial_derivatives(function, centers, 1)
    copies, last = len(centers), len(template.sources)
    layers: list[SkipLayer] = []
    for at in range(1, last):
        sources, bias = template.layer(at)
        joined = {
            s: weight.repeat(copies, 1) if s == 0 else block_diagonal(*[weight] * copies)
            for s, weight in sources.items()
        }
        shift = bias.repeat(copies)
        if 0 in sources:
            shift = shift - (centers @ sources[0].T).flatten()
        layers.append((joined, shift))
    read, bias = template.layer(last)
    output = {s: torch.kron(values[(1,)].unsqueeze(0), weight) for s, weight in read.items()}
    output[1] = torch.kron(values[(0,)].unsqueeze(0), _rows([_TRAPEZOID]))
    return SkipNetwork([*layers, (output, bias)])


def _rows(values: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
