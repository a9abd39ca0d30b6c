r"""Strong tickets: a sub-network of an untrained network that classifies, no weight ever moved.

Every weight has a score, and the mask keeps the largest of each layer. The scores are trained
through the mask as if it were the identity ("edge-popup"): with $m(s)$ the mask of scores $s$,
the forward pass uses $m(s)\odot\theta$ and the gradient is that of $s\odot\theta$. Source:
Mathematical Aspects of Deep Learning, section 1.6.5, on Ramanujan et al. (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchtheory.core.checks import number_between
from torchtheory.core.errors import EmptyData, ShapeMismatch
from torchtheory.models.samples import Data
from torchtheory.models.untouched import copied
from torchtheory.training.loop.history import History
from torchtheory.training.loop.seeds import derived_generator
from torchtheory.training.many.networks import fit_many
from torchtheory.training.pruning.masks import masked, prunable_weights


class ScoredNetwork(nn.Module):
    """A network whose weights are fixed and masked by scores, which are what is trained.

    Args:
        model: the network; a copy is used.
        keep: share of each layer's weights that stay, one at least.
        seed: of the initial scores, uniform like torch's initial weights of a layer.

    >>> net = ScoredNetwork(nn.Linear(4, 2), keep=0.5)
    >>> [name for name, p in net.named_parameters() if p.requires_grad]
    ['scores.0']
    """

    def __init__(self, model: nn.Module, keep: float, seed: int = 0) -> None:
        super().__init__()
        self.keep = number_between(keep, "the share that is kept", 0, 1, closed="right")
        weights = prunable_weights(model)
        self.fixed = copied(model).requires_grad_(False)
        # a weight that layers share is replaced under all of its names
        first = {id(p): name for name, p in self.fixed.named_parameters()}
        shared: dict[str, list[str]] = {name: [] for name in weights}
        for name, p in self.fixed.named_parameters(remove_duplicate=False):
            if first[id(p)] in shared:
                shared[first[id(p)]].append(name)
        self.names = {name: tuple(names) for name, names in shared.items()}
        source = derived_generator(seed, "scores")
        scores = []
        for w in weights.values():
            reach = (w.numel() / len(w)) ** -0.5
            drawn = torch.rand(w.shape, generator=source, dtype=torch.float64) * reach
            scores.append(nn.Parameter(drawn.to(w)))
        self.scores = nn.ParameterList(scores)

    def forward(self, x: Tensor) -> Tensor:
        frozen = dict(self.fixed.named_parameters())
        used = {}
        for (name, names), s in zip(self.names.items(), self.scores, strict=True):
            weight = frozen[name] * _straight_through(s, self.keep)
            used.update(dict.fromkeys(names, weight))
        out: Tensor = functional_call(self.fixed, used, (x,))
        return out

    def masks(self) -> dict[str, Tensor]:
        """True where a weight stays."""
        with torch.no_grad():
            return {
                name: _straight_through(s, self.keep) > 0.5
                for name, s in zip(self.names, self.scores, strict=True)
            }


@dataclass(frozen=True, slots=True)
class UntrainedSubnetwork:
    """A sub-network with the weights that the network had.

    Attributes:
        network: the copy of the given network with its weights masked, otherwise untouched.
        masks: True where a weight stays.
        history: of the training of the scores; errors are those of the sub-network.
    """

    network: nn.Module
    masks: dict[str, Tensor]
    history: History


def find_untrained_subnetwork(
    model: nn.Module,
    train: Data,
    *,
    keep: float = 0.5,
    validation: Data | None = None,
    epochs: int = 20,
    batch_size: int = 64,
    learning_rate: float = 0.02,
    seed: int = 0,
) -> UntrainedSubnetwork:
    """A sub-network that fits the data with the weights the network has; see `ScoredNetwork`.

    Args:
        model: a network, usually an untrained and wide one; it is left alone.
        train, validation: data as for `fit`.
        keep: share of each layer's weights that stay.
        epochs, batch_size, learning_rate: of Adam on the scores.
        seed: of the scores and the order of the batches.

    Time: that of training the network, and a selection among the weights at every step.

    >>> net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> x = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
    >>> found = find_untrained_subnetwork(net, (x, (x[:, 0] > 0).long()), keep=0.5)
    >>> found.history.train_errors[-1] < 0.1
    True
    """
    return find_untrained_subnetworks(
        [model], train, keep=keep, validation=validation, epochs=epochs, batch_size=batch_size,
        learning_rate=learning_rate, seeds=[seed],
    )[0]  # fmt: skip


def find_untrained_subnetworks(
    models: Sequence[nn.Module],
    train: Data,
    *,
    keep: float = 0.5,
    validation: Data | None = None,
    epochs: int = 20,
    batch_size: int = 64,
    learning_rate: float = 0.02,
    seeds: Sequence[int] | None = None,
) -> list[UntrainedSubnetwork]:
    """`find_untrained_subnetwork` for several networks of one architecture, as one batch."""
    if not models:
        raise EmptyData("there is no network to search")
    numbers = list(range(len(models))) if seeds is None else list(seeds)
    if len(numbers) != len(models):
        raise ShapeMismatch(f"there are {len(models)} networks but {len(numbers)} seeds")
    scored = [ScoredNetwork(m, keep, s) for m, s in zip(models, numbers, strict=True)]
    result = fit_many(
        scored,
        train,
        validation=validation,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=numbers,
    )
    found = []
    for k, (model, trained) in enumerate(zip(models, result.networks(), strict=True)):
        assert isinstance(trained, ScoredNetwork)
        masks = trained.masks()
        found.append(UntrainedSubnetwork(masked(model, masks), masks, result.history(k)))
    return found


def _straight_through(scores: Tensor, keep: float) -> Tensor:
    """1 where a score is among the largest of its layer, with the gradient of the scores."""
    flat = scores.detach().reshape(-1)
    gone = min(round((1 - keep) * len(flat)), len(flat) - 1)
    # the position of a score in the sorted order; not in place, so that vmap can map over it
    rank = flat.argsort(stable=True).argsort()
    mask = (rank >= gone).to(scores.dtype).view(scores.shape)
    return mask + (scores - scores.detach())
