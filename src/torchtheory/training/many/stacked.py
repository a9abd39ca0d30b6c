r"""Many networks as one: their parameters stacked along a leading axis of length K.

Chains of linear layers and elementwise activations become batched products (`StackedChain`); any
other networks of one architecture are mapped over (`Mapped`), which takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchtheory.core.checks import module_with_values
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.mapping import Mapped
from torchtheory.models.model import Parameters, one_output
from torchtheory.models.untouched import copied
from torchtheory.nets.activations.table import POINTWISE_LAYERS
from torchtheory.tracing.chain import as_chain, is_watched
from torchtheory.training.many.stacked_chain import StackedChain, by_parameter, units_read
from torchtheory.training.pruning.masks import Masks


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a network, as far as stacking is concerned.

    Networks with equal `kind` can be stacked; `sizes` says how large each of their linear
    layers is (None for what can only be mapped over, where all shapes must be equal).
    """

    kind: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...] | None
    parameters: int
    units: int


class Stack(Protocol):
    """K networks that are evaluated at once.

    Attributes:
        trained: the stacked tensors `[K, ...]` that are trained.
        masks: for each of them what to multiply its gradient by; None where nothing is padded or
            pruned.
    """

    trained: list[Tensor]
    masks: list[Tensor] | None

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs `[K, outputs, n]` for inputs of each, `[K, n, ...]`."""

    def on_shared(self, x: Tensor) -> Tensor:
        """Outputs `[K, outputs, n]` for the same inputs `[n, ...]`."""

    def network(self, k: int) -> nn.Module:
        """A copy of the k-th network with its weights as they are now."""


def layout(model: nn.Module, stays: Masks | None = None) -> Layout:
    """How a network can be stacked.

    Args:
        model: the network.
        stays: which of its weights stay, where units that none of them reads are left out.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    >>> layout(net).kind, layout(net).sizes
    (('linear', 'Tanh()', 'linear'), ((5, 3), (2, 5)))
    """
    module_with_values(model)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
            raise UnsupportedModel(
                f"networks with {type(module).__name__} cannot be trained as one batch, for it "
                "does not treat samples and networks alone; train them with fit"
            )
    parameters = sum(p.numel() for p in model.parameters())
    try:
        links = [] if any(is_watched(m) for m in model.modules()) else as_chain(model)
    except UnsupportedModel:
        links = []
    linears = [link.module for link in links if isinstance(link.module, nn.Linear)]
    chain = (
        linears
        and len({id(m) for m in linears}) == len(linears)
        and all(_stackable(i, link.module) for i, link in enumerate(links))
    )
    if not chain:
        shapes = {k: tuple(p.shape) for k, p in model.named_parameters()}
        return Layout((repr(model), str(shapes)), None, parameters, 4 * parameters)
    words = [
        _linear_word(link.module) if isinstance(link.module, nn.Linear) else repr(link.module)
        for link in links
    ]
    units = [len(read) for read in units_read(linears, by_parameter(model, stays or {}))]
    sizes = tuple(zip(units[1:], units[:-1], strict=True))
    held = sum(
        out * (inputs + (m.bias is not None))
        for m, (out, inputs) in zip(linears, sizes, strict=True)
    )
    return Layout(tuple(words), sizes, held, sum(units[1:]))


def stack(
    models: Sequence[nn.Module],
    pruned: Sequence[Masks | None] | None = None,
    *,
    lean: bool = False,
) -> Stack:
    """Stack networks of one kind; the networks themselves are only read.

    Args:
        models: the networks.
        pruned: for each of them which weights stay, by the names of its parameters; the others
            are 0 from the beginning.
        lean: as for `StackedChain`.
    """
    masks = [m or {} for m in pruned or [None] * len(models)]
    if layout(models[0]).sizes is None:
        return StackedModules(models, masks)
    return StackedChain(models, masks, lean=lean)


class StackedModules:
    """Networks of one architecture, whatever it is, mapped over."""

    def __init__(self, models: Sequence[nn.Module], pruned: Sequence[Masks] = ()) -> None:
        self.models = models
        self.base = copied(models[0]).to("meta").train()
        self.parameters = _stack_named([dict(m.named_parameters()) for m in models])
        self.buffers = _stack_named([dict(m.named_buffers()) for m in models])
        for k, stays in enumerate(pruned):
            for name, mask in stays.items():
                self.parameters[name][k].masked_fill_(~mask, 0)
        named = any(pruned)
        self.trained = []
        masks: list[Tensor] = []
        for name, p in models[0].named_parameters():
            if p.requires_grad:
                self.trained.append(self.parameters[name].requires_grad_())
                if named:
                    rows = [stays.get(name, torch.ones_like(p)).to(p) for stays in pruned]
                    masks.append(torch.stack(rows))
        self.masks = masks if named else None
        self._on_own = Mapped(self._one)
        self._on_shared = Mapped(self._one, (0, 0, None))

    def __call__(self, x: Tensor) -> Tensor:
        outputs: Tensor = self._on_own(self.parameters, self.buffers, x)
        return outputs.mT

    def on_shared(self, x: Tensor) -> Tensor:
        outputs: Tensor = self._on_shared(self.parameters, self.buffers, x)
        return outputs.mT

    def _one(self, parameters: Parameters, buffers: Parameters, x: Tensor) -> Tensor:
        return one_output(functional_call(self.base, {**parameters, **buffers}, (x,)))

    def network(self, k: int) -> nn.Module:
        made = copied(self.models[k])
        with torch.no_grad():
            for name, p in made.named_parameters():
                p.copy_(self.parameters[name][k])
            for name, b in made.named_buffers():  # which training may write into
                b.copy_(self.buffers[name][k])
        return made


def _stack_named(all_of_them: Sequence[dict[str, Tensor]]) -> Parameters:
    names = all_of_them[0]
    return {name: torch.stack([d[name].detach() for d in all_of_them]) for name in names}


def _stackable(position: int, module: nn.Module) -> bool:
    if isinstance(module, nn.Flatten):
        return position == 0 and module.start_dim == 1 and module.end_dim == -1
    return type(module) is nn.Linear or isinstance(module, (*POINTWISE_LAYERS, nn.Identity))


def _linear_word(layer: nn.Linear) -> str:
    word = "linear" if layer.bias is not None else "linear without bias"
    if not layer.weight.requires_grad:
        word += ", frozen"
    if layer.bias is not None and not layer.bias.requires_grad:
        word += ", frozen bias"
    return word
