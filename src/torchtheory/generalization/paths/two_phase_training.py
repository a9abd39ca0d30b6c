r"""Two-phase training: which units are active is learned first and then frozen.

The outputs of a ReLU or max-pooling network are $f_k(x)=[\bar x\circ\bar\sigma(x,w)]^\top \bar w_k$
over its paths (`torchtheory.kernels.paths.path_kernel`): the weights enter twice, in the
pattern $\bar\sigma$ and in the path weights $\bar w$. Two-phase training unties them:

1. train as usual on the first $\alpha m$ samples, and set $w_\sigma:=w$;
2. train $w$ alone, on all $m$ samples, in

$$
\tilde f_k(x) = [\bar x\circ\bar\sigma(x,w_\sigma)]^\top\bar w_k .
$$

The path features $\tilde z(x)=\bar x\circ\bar\sigma(x,w_\sigma)$ of the remaining
$(1-\alpha)m$ samples are then independent of each other, which is what concentration
inequalities want (`torchtheory.generalization.paths.two_phase_bounds`). No path is ever listed: a
*gate* network with the weights $w_\sigma$ says which unit is active and which entry a max
pool takes, and a *value* network with the weights $w$ follows it,

$$
h_\sigma^\ell=\sigma(W_\sigma^\ell h_\sigma^{\ell-1}), \qquad
h^\ell = 1[W_\sigma^\ell h_\sigma^{\ell-1}>0]\circ(W^\ell h^{\ell-1}) ,
$$

without a mask on the last layer. It costs about twice an ordinary network.

Source: Mathematical Aspects of Deep Learning, section 2.5.3, Eq. (2.3), Appendices A3 and A4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, module_with_values
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.kernels.paths.layers import (
    MAX_POOLS,
    NORMALIZATIONS,
    SLOPED,
    path_links,
    selected_places,
    slopes,
)
from torchtheory.models.model import evaluation_mode
from torchtheory.models.samples import Data, Samples, collect
from torchtheory.models.untouched import copied
from torchtheory.tracing.chain import Link
from torchtheory.training.loop.history import History
from torchtheory.training.loop.trainer import fit


def gated_outputs(values: nn.Module, gates: nn.Module, x: Tensor) -> Tensor:
    r"""Outputs of the value network on the paths that the gate network opens.

    Both are networks of one architecture: dense and convolutional layers, ReLU and leaky ReLU, max
    and average pooling, a dense layer last. The gates carry no gradient. With `gates` equal to
    `values` this is the ordinary network, and so is its gradient: a pattern of zeros and ones
    has derivative 0 wherever it has one, so that the loss reaches the weights through
    $\bar w$ alone.

    Cost: a forward pass of each network.

    >>> import copy
    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    >>> _ = net[2].weight.data.copy_(torch.tensor([[2.0, 3.0]]))
    >>> other = copy.deepcopy(net)
    >>> _ = other[0].weight.data.copy_(torch.tensor([[5.0], [7.0]]))
    >>> gated_outputs(other, net, torch.tensor([[1.0], [-1.0]])).flatten()   # 2·5·1 and 3·7·(-1)
    tensor([ 10., -21.], grad_fn=<ViewBackward0>)
    """
    value_links, gate_links = _links(values), _links(gates)
    _refuse_other_layers(value_links, gate_links)
    return _follow(value_links, gate_links, x)


class FrozenGates(nn.Module):
    r"""The network of phase two, $[\bar x\circ\bar\sigma(x,w_\sigma)]^\top\bar w$.

    Made from a copy of a trained network, of which it computes the same function to begin with.
    `values` is trained, `gates` never: its parameters need no gradient, and it stays in
    evaluation mode, so that dropout acts on the values alone.

    Args:
        model: the network that phase one ended with; not changed.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> frozen = FrozenGates(net)
    >>> x = torch.ones(5, 3)
    >>> bool(torch.allclose(frozen(x), net(x))), len(list(frozen.parameters())), len(frozen.trained)
    (True, 8, 4)
    """

    def __init__(self, model: nn.Module) -> None:
        module_with_values(model)
        super().__init__()
        _links(model)  # refuses what has no gates
        self.values = copied(model)
        self.gates = copied(model).requires_grad_(False)
        for parameter in self.gates.parameters():
            parameter.grad = None
        self.gates.eval()
        self._value_links = _links(self.values)
        self._gate_links = _links(self.gates)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters of phase two."""
        return list(self.values.parameters())

    def train(self, mode: bool = True) -> FrozenGates:
        """Set the mode of the values; the gates stay in evaluation mode."""
        super().train(mode)
        self.gates.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return _follow(self._value_links, self._gate_links, x)


def gate_pattern(model: nn.Module, x: Tensor) -> list[Tensor]:
    r"""What a network decides about its paths: the slopes of every activation layer, `[n, ...]`
    of 0 and 1 (ReLU), and the places every max pool takes, in the order of the layers.

    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    >>> gate_pattern(net, torch.tensor([[2.0], [-3.0]]))
    [tensor([[1., 0.],
            [0., 1.]])]
    """
    found: list[Tensor] = []
    links = _links(model)
    with torch.no_grad(), evaluation_mode(model):
        gate = x
        for link in links:
            pattern = _pattern(link.module, gate)
            gate = _passed(link.module, gate, pattern)
            if pattern is not None:
                found.append(pattern)
    return found


@dataclass(frozen=True, slots=True)
class TwoPhases:
    r"""What two-phase training ended with.

    Attributes:
        first: the network after phase one, trained on the first $\alpha m$ samples.
        network: the network after phase two.
        fresh: the samples that phase one did not see, $S\setminus S_{\alpha m}$.
        first_size: $\alpha m$.
        first_history, second_history: of the two phases.
    """

    first: nn.Module
    network: FrozenGates
    fresh: Samples
    first_size: int
    first_history: History
    second_history: History


def fit_two_phases(
    model: nn.Module,
    train: Data,
    share: float,
    *,
    epochs: int = 10,
    seed: int = 0,
    limit: int = 1_000_000,
    **settings: Any,
) -> TwoPhases:
    r"""Train a copy of a model on a part of the data, freeze its gates, and train it on all.

    Args:
        model: the network to begin with; not changed.
        train: `(x, y)`, a `Dataset` or a `DataLoader`. Phase one takes the *first*
            `round(share * m)` samples: shuffle them before if their order means something.
        share: $\alpha$ in (0, 1]. With 1 there is no fresh sample, and no bound.
        epochs: passes over all data in phase two; phase one makes as many *steps*.
        seed: of both phases.
        limit: most samples to read.
        settings: whatever else `torchtheory.training.loop.trainer.fit` takes.

    >>> x = torch.linspace(-1, 1, 40).reshape(-1, 1)
    >>> net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> made = fit_two_phases(net, (x, x), 0.25, epochs=2)
    >>> made.first_size, len(made.fresh)
    (10, 30)
    """
    _links(model)
    samples = collect(train, "train", limit=limit, seed=seed)
    size = first_phase_size(len(samples), share)
    first = copied(model)
    part = samples.first(size)
    first_epochs = matching_epochs(epochs, len(samples), size, settings.get("batch_size") or 64)
    first_history = fit(first, (part.x, part.y), epochs=first_epochs, seed=seed, **settings)
    network = FrozenGates(first)
    second_history = fit(network, (samples.x, samples.y), epochs=epochs, seed=seed, **settings)
    fresh = Samples(samples.x[size:], samples.y[size:], samples.note)
    return TwoPhases(first, network, fresh, size, first_history, second_history)


def matching_epochs(epochs: int, samples: int, part: int, batch_size: int) -> int:
    """How many epochs on a part of the data make as many steps as `epochs` on all of it.

    >>> matching_epochs(10, 60000, 3000, 64)
    200
    """
    if min(epochs, samples, part, batch_size) < 1:
        raise InvalidInput(
            f"epochs, samples and batch size are whole numbers from 1 on (epochs = {epochs!r}, "
            f"samples = {samples!r}, part = {part!r}, batch_size = {batch_size!r})"
        )
    return max(1, round(epochs * math.ceil(samples / batch_size) / math.ceil(part / batch_size)))


def first_phase_size(samples: int, share: float) -> int:
    r"""$\alpha m$, rounded; at least one sample.

    >>> first_phase_size(60000, 0.05)
    3000
    """
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise InvalidType(f"the share of phase one is a number, not {type(share).__name__}")
    if not 0 < share <= 1:
        raise InvalidInput(f"the share of phase one lies in (0, 1], and {share} does not")
    return max(1, round(share * samples))


def _follow(value_links: Sequence[Link], gate_links: Sequence[Link], x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidType(
            f"the inputs must be a tensor of floating-point numbers, not {described(x)}"
        )
    value, gate = x, x.detach()
    for ours, theirs in zip(value_links, gate_links, strict=True):
        try:
            with torch.no_grad():
                pattern = _pattern(theirs.module, gate)
                gate = _passed(theirs.module, gate, pattern)
            value = _passed(ours.module, value, pattern)
        except RuntimeError as error:
            sentence = " ".join(str(error).split())[:200]
            raise ShapeMismatch(
                f"layer {ours.name or ours.module} does not take inputs of shape "
                f"{list(value.shape[1:])} a sample: {sentence}"
            ) from error
    return value


def _pattern(module: nn.Module, gate: Tensor) -> Tensor | None:
    """Slopes of an activation, places of a max pool, nothing for the other layers."""
    if isinstance(module, SLOPED):
        return slopes(module, gate).to(gate.dtype)
    return selected_places(module, gate) if isinstance(module, MAX_POOLS) else None


def _passed(module: nn.Module, value: Tensor, pattern: Tensor | None) -> Tensor:
    """One layer on, with the decisions that were made for it."""
    if pattern is None:
        after: Tensor = module(value)
        return after
    if isinstance(module, SLOPED):
        return pattern * value
    return value.flatten(2).gather(2, pattern.flatten(2)).reshape(pattern.shape)


def _links(model: nn.Module) -> list[Link]:
    links = path_links(model)
    for link in links:
        name = link.name or type(link.module).__name__
        if isinstance(link.module, NORMALIZATIONS):
            raise UnsupportedModel(
                f"layer {name} normalizes over the batch, so that its paths depend on other "
                "samples while it is trained; fold it into the layer before"
            )
        if isinstance(link.module, nn.PReLU):
            raise UnsupportedModel(
                f"layer {name} trains its slope, which is neither a gate nor a weight of a path"
            )
    return links


def _refuse_other_layers(ours: Sequence[Link], theirs: Sequence[Link]) -> None:
    kinds = [[type(link.module).__name__ for link in links] for links in (ours, theirs)]
    if kinds[0] != kinds[1]:
        raise UnsupportedModel(
            f"values and gates must have the same layers, not {', '.join(kinds[0])} and "
            f"{', '.join(kinds[1])}"
        )
