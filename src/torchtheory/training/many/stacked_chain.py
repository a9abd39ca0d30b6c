r"""Chains of linear layers and elementwise activations, many of them as one.

They are computed feature-first, $A_{l+1} = \phi(W_l A_l + b_l)$ with $W_l$ `[K, out, in]` and
$A_l$ `[K, in, batch]`, by one batched product per layer. Networks of different widths are padded
with zeros to the widest of them: a padded unit feeds zeros forward, and the mask keeps its own
weights at zero, so that it is exactly inert whatever the activation. Pruned weights are kept at
zero the same way.

Batch-first products with 10 columns are four times slower than feature-first ones with 64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.models.untouched import copied
from torchtheory.tracing.chain import as_chain
from torchtheory.training.pruning.masks import Masks

ByParameter = Mapping[int, Tensor]
"""Masks by the identity of the parameter that they are for."""


@dataclass(frozen=True, slots=True)
class Affine:
    """The same linear layer of K networks.

    Attributes:
        weight: `[K, out, in]`.
        bias: `[K, out, 1]`, or None.
    """

    weight: Tensor
    bias: Tensor | None

    def __call__(self, a: Tensor, *, out: Tensor | None = None) -> Tensor:
        """`W a + b` `[K, out, n]`; a shared input `[in, n]` meets all networks in one product.

        >>> layer = Affine(torch.ones(5, 3, 2), torch.zeros(5, 3, 1))
        >>> layer(torch.ones(2, 4)).shape, layer(torch.ones(5, 2, 4)).shape
        (torch.Size([5, 3, 4]), torch.Size([5, 3, 4]))
        """
        weight, bias = self.weight, self.bias
        if a.ndim == 3:
            if bias is None:
                return torch.bmm(weight, a, out=out)
            return torch.baddbmm(bias, weight, a, out=out)
        rows = weight.reshape(-1, weight.shape[2])
        flat = None if out is None else out.view(-1, a.shape[1])
        if bias is None:
            product = torch.mm(rows, a, out=flat)
        else:
            product = torch.addmm(bias.reshape(-1, 1), rows, a, out=flat)
        return product.view(*weight.shape[:2], -1)


class StackedChain:
    """Chains of one kind, padded to the widest of them.

    Args:
        models: the networks.
        pruned: for each of them which weights stay.
        lean: whether to leave out units that no weight reads any more. The gradient of whatever
            leads to such a unit is 0, so that it stays as it is, unless weights decay.

    Attributes:
        links: linear layers and activations, in order.
        lowest: the place of the first link that has something to train.
        trained, masks: as for every `Stack`.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        pruned: Sequence[Masks] | None = None,
        *,
        lean: bool = False,
    ) -> None:
        self.models = models
        self.pruned = pruned or [{} for _ in models]
        stays = [by_parameter(m, masks) for m, masks in zip(models, self.pruned, strict=True)]
        rows = [linear_layers(m) for m in models]
        self._units = [
            units_read(layers, found if lean else {})
            for layers, found in zip(rows, stays, strict=True)
        ]
        self.trained: list[Tensor] = []
        masks: list[Tensor] = []

        def stacked(tensors: Sequence[Tensor], depth: int) -> Tensor:
            places = [
                _places(p, units, depth) for p, units in zip(tensors, self._units, strict=True)
            ]
            padded, mask = _pad(tensors, places, stays)
            if tensors[0].requires_grad:
                self.trained.append(padded.requires_grad_())
                masks.append(mask)
            return padded

        self.links: list[Affine | nn.Module] = []
        depth, lowest = 0, None
        for link in as_chain(models[0]):
            if isinstance(link.module, nn.Linear):
                layers = [own[depth] for own in rows]
                weight = stacked([m.weight for m in layers], depth)
                has_bias = layers[0].bias is not None
                bias = stacked([m.bias for m in layers], depth) if has_bias else None
                self.links.append(Affine(weight, bias))
                depth += 1
            elif not isinstance(link.module, nn.Flatten | nn.Identity):
                self.links.append(link.module)
            if lowest is None and self.trained:
                lowest = len(self.links) - 1
        assert lowest is not None  # something is trained
        self.lowest = lowest
        # a mask that leaves out nothing costs a pass over the gradients
        self.masks = None if all(bool(mask.all()) for mask in masks) else masks

    def columns(self, x: Tensor, *, shared: bool) -> Tensor:
        """Inputs as the first link takes them: `[K, in, n]`, or `[in, n]` where all share them."""
        return x.flatten(1 if shared else 2).mT

    def __call__(self, x: Tensor) -> Tensor:
        return self._forward(self.columns(x, shared=False))

    def on_shared(self, x: Tensor) -> Tensor:
        return self._forward(self.columns(x, shared=True))

    def _forward(self, a: Tensor) -> Tensor:
        for link in self.links:
            a = link(a)
        return a

    @torch.no_grad()
    def network(self, k: int) -> nn.Module:
        made = copied(self.models[k])
        for name, mask in self.pruned[k].items():
            made.get_parameter(name).masked_fill_(~mask, 0)
        stacks = (link for link in self.links if isinstance(link, Affine))
        for depth, (layer, stack) in enumerate(zip(linear_layers(made), stacks, strict=True)):
            for own, padded in ((layer.weight, stack.weight), (layer.bias, stack.bias)):
                if padded is not None:
                    rows, columns = _places(own, self._units[k], depth)
                    trained = padded[k, : len(rows), : len(columns)]
                    own.view(len(own), -1)[rows[:, None], columns] = trained
        return made


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The linear layers of a chain, in order."""
    return [link.module for link in as_chain(model) if isinstance(link.module, nn.Linear)]


def by_parameter(model: nn.Module, masks: Masks) -> dict[int, Tensor]:
    """Masks by the identity of the parameters they are for, and not by their names."""
    return {id(p): masks[name] for name, p in model.named_parameters() if name in masks}


def units_read(layers: Sequence[nn.Linear], stays: ByParameter) -> list[Tensor]:
    """The inputs of a chain, and for each layer those of its units that the rest of it reads.

    All inputs and all outputs of the chain count as read, and one unit of every layer.

    Args:
        layers: the linear layers, in order.
        stays: which weights stay.

    >>> a, b = nn.Linear(2, 3), nn.Linear(3, 1)
    >>> units_read([a, b], {id(b.weight): torch.tensor([[True, False, True]])})
    [tensor([0, 1]), tensor([0, 2]), tensor([0])]
    """
    read = [torch.arange(layers[-1].out_features)]
    for layer in reversed(layers[1:]):
        mask = stays.get(id(layer.weight))
        if mask is None:
            read.append(torch.arange(layer.in_features))
        else:
            found = mask[read[-1].to(mask.device)].any(0).nonzero().flatten().cpu()
            read.append(found if len(found) else torch.zeros(1, dtype=torch.long))
    read.append(torch.arange(layers[0].in_features))
    return read[::-1]


def _places(parameter: Tensor, units: Sequence[Tensor], depth: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of a layer's weight that are in use; a bias is a column."""
    columns = units[depth] if parameter.ndim == 2 else torch.zeros(1, dtype=torch.long)
    return units[depth + 1], columns


def _pad(
    tensors: Sequence[Tensor],
    places: Sequence[tuple[Tensor, Tensor]],
    stays: Sequence[ByParameter],
) -> tuple[Tensor, Tensor]:
    """What stands at these places `[K, rows, columns]`, and 1 where something does and stays."""
    shape = (max(len(rows) for rows, _ in places), max(len(columns) for _, columns in places))
    padded = tensors[0].detach().new_zeros(len(tensors), *shape)
    mask = torch.zeros_like(padded)
    for k, (t, (rows, columns)) in enumerate(zip(tensors, places, strict=True)):
        kept = stays[k].get(id(t), torch.ones_like(t, dtype=torch.bool))
        here = (k, slice(len(rows)), slice(len(columns)))
        at = (rows[:, None], columns)
        mask[here] = kept.view(len(t), -1)[at].to(mask)
        padded[here] = t.detach().where(kept, 0).view(len(t), -1)[at]
    return padded, mask
