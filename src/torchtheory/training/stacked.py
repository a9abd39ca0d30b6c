r"""Many networks as one: their parameters stacked along a leading axis of length K.

A chain of linear layers and elementwise activations is computed feature-first,
$A_{l+1} = \phi(W_l A_l + b_l)$ with $W_l$ `[K, out, in]` and $A_l$
`[K, in, batch]`, by one batched product per layer. Networks of different widths are padded with
zeros to the widest of them: a padded unit feeds zeros forward, and the mask keeps its own weights
at zero, so that it is exactly inert whatever the activation. Pruned weights are kept at zero the
same way. Any other networks of one architecture are mapped over with `torch.vmap`.

On two cores, 64 networks 64-32-10 with batches of 64: a step takes 1.1 ms as a chain and about
twice that under `vmap`; batch-first products with 10 columns are four times slower than
feature-first ones with 64.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import Parameters
from torchtheory.nets.activations import POINTWISE_LAYERS
from torchtheory.nets.chain import as_chain
from torchtheory.training.pruning.masks import Masks


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a network, as far as stacking is concerned.

    Networks with equal `kind` can be stacked; `sizes` says how large each of their linear
    layers is (None for what only `vmap` can stack, where all shapes must be equal).
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


def layout(model: nn.Module) -> Layout:
    """How a network can be stacked.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    >>> layout(net).kind, layout(net).sizes
    (('linear', 'Tanh()', 'linear'), ((5, 3), (2, 5)))
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
            raise UnsupportedModel(
                f"networks with {type(module).__name__} cannot be trained as one batch, for it "
                "does not treat samples and networks alone; train them with fit"
            )
    parameters = sum(p.numel() for p in model.parameters())
    try:
        links = as_chain(model)
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
    sizes = tuple((m.out_features, m.in_features) for m in linears)
    return Layout(tuple(words), sizes, parameters, sum(out for out, _ in sizes))


def stack(models: Sequence[nn.Module], pruned: Sequence[Masks | None] | None = None) -> Stack:
    """Stack networks of one kind; the networks themselves are only read.

    Args:
        models: the networks.
        pruned: for each of them which weights stay, by the names of its parameters; the others
            are 0 from the beginning.
    """
    masks = [m or {} for m in pruned] if pruned is not None else [{} for _ in models]
    if layout(models[0]).sizes is None:
        return StackedModules(models, masks)
    return StackedChain(models, masks)


class StackedChain:
    """Chains of linear layers and elementwise activations, padded to the widest."""

    def __init__(self, models: Sequence[nn.Module], pruned: Sequence[Masks] = ()) -> None:
        self.models = models
        self.links = [link.module for link in as_chain(models[0])]
        rows = [linear_layers(m) for m in models]
        self.weights: list[Tensor] = []
        self.biases: list[Tensor | None] = []
        self.trained: list[Tensor] = []
        masks: list[Tensor] = []
        partial = False
        stays = _by_identity(models, pruned)
        for layers in zip(*rows, strict=True):
            out = max(m.out_features for m in layers)
            inputs = max(m.in_features for m in layers)
            weight, mask = _pad([m.weight for m in layers], (out, inputs), stays)
            partial = partial or not bool(mask.all())
            self.weights.append(weight)
            if layers[0].weight.requires_grad:
                self.trained.append(weight.requires_grad_())
                masks.append(mask)
            if layers[0].bias is None:
                self.biases.append(None)
            else:
                bias, mask_b = _pad([m.bias for m in layers], (out, 1), stays)
                partial = partial or not bool(mask_b.all())
                self.biases.append(bias)
                if layers[0].bias.requires_grad:
                    self.trained.append(bias.requires_grad_())
                    masks.append(mask_b)
        self.masks = masks if partial else None

    def __call__(self, x: Tensor) -> Tensor:
        return self._forward(x.flatten(2).mT)

    def on_shared(self, x: Tensor) -> Tensor:
        return self._forward(x.flatten(1).mT)

    def _forward(self, a: Tensor) -> Tensor:
        layers = iter(zip(self.weights, self.biases, strict=True))
        for link in self.links:
            if isinstance(link, nn.Linear):
                a = _affine(*next(layers), a)
            elif not isinstance(link, nn.Flatten):
                a = link(a)
        return a

    def network(self, k: int) -> nn.Module:
        made = copy.deepcopy(self.models[k])
        with torch.no_grad():
            for layer, weight, bias in zip(
                linear_layers(made), self.weights, self.biases, strict=True
            ):
                out, inputs = layer.weight.shape
                layer.weight.copy_(weight[k, :out, :inputs])
                if bias is not None:
                    layer.bias.copy_(bias[k, :out, 0])
        return made


class StackedModules:
    """Networks of one architecture, whatever it is, mapped over with `torch.vmap`."""

    def __init__(self, models: Sequence[nn.Module], pruned: Sequence[Masks] = ()) -> None:
        self.models = models
        self.base = copy.deepcopy(models[0]).to("meta")
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

    def __call__(self, x: Tensor) -> Tensor:
        return self._forward(x, 0)

    def on_shared(self, x: Tensor) -> Tensor:
        return self._forward(x, None)

    def _forward(self, x: Tensor, axis: int | None) -> Tensor:
        def one(parameters: Parameters, buffers: Parameters, x: Tensor) -> Tensor:
            out: Tensor = functional_call(self.base, {**parameters, **buffers}, (x,))
            return out

        mapped = torch.vmap(one, in_dims=(0, 0, axis))
        return mapped(self.parameters, self.buffers, x).mT

    def network(self, k: int) -> nn.Module:
        made = copy.deepcopy(self.models[k])
        with torch.no_grad():
            for name, p in made.named_parameters():
                p.copy_(self.parameters[name][k])
        return made


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The linear layers of a chain, in order."""
    return [link.module for link in as_chain(model) if isinstance(link.module, nn.Linear)]


def _affine(weight: Tensor, bias: Tensor | None, a: Tensor) -> Tensor:
    """`W a + b`; a shared input `[in, n]` meets all networks in one product."""
    if a.ndim == 3:
        return torch.bmm(weight, a) if bias is None else torch.baddbmm(bias, weight, a)
    networks, out, inputs = weight.shape
    rows = weight.reshape(-1, inputs)
    product = rows @ a if bias is None else torch.addmm(bias.reshape(-1, 1), rows, a)
    return product.view(networks, out, -1)


def _pad(
    tensors: Sequence[Tensor], shape: tuple[int, int], stays: Sequence[dict[int, Tensor]]
) -> tuple[Tensor, Tensor]:
    """The parameters as `[K, *shape]`, and 1 where one of them is and stays; biases as columns."""
    padded = tensors[0].new_zeros(len(tensors), *shape)
    mask = torch.zeros_like(padded)
    with torch.no_grad():
        for k, t in enumerate(tensors):
            here = (k, slice(len(t)), slice(t.shape[1] if t.ndim == 2 else 1))
            kept = stays[k].get(id(t), torch.ones_like(t)).to(t)
            mask[here] = kept.view(len(t), -1)
            padded[here] = t.where(kept > 0, 0).view(len(t), -1)
    return padded, mask


def _by_identity(models: Sequence[nn.Module], pruned: Sequence[Masks]) -> list[dict[int, Tensor]]:
    """The masks of each network by the parameters they are for."""
    return [
        {id(p): stays[name] for name, p in model.named_parameters() if name in stays}
        for model, stays in zip(models, pruned or [{}] * len(models), strict=True)
    ]


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
