r"""Masks: which weights of a network stay.

A mask $m\in\{0,1\}^P$ makes the sub-network $f(x;m\odot\theta)$ of $f(x;\theta)$. Here it is a
dictionary of boolean tensors, by the names of the parameters, True where a weight stays; a
parameter without a mask stays as it is. Source: Mathematical Aspects of Deep Learning, section
1.6.5 and Figure 1.21.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from torchtheory.core.checks import as_module, described
from torchtheory.core.errors import InvalidType, ShapeMismatch, UnknownName, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.untouched import copied

Masks = Mapping[str, Tensor]
"""Boolean tensors by the names of parameters, True where a weight stays."""

#: Their weights scale what they are given, whatever their number of dimensions.
_NORMALIZATIONS = (nn.LayerNorm, nn.RMSNorm)


def prunable_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights that pruning is about, by name: parameters with two dimensions or more.

    Biases and the scales of normalizations stay, as usual: they are few, and their size says
    nothing about their use. What a parametrization, or an older hook for weight or spectral
    normalization, computes a weight from is left out; a parameter that layers share stands under
    its first name. Weights that `torch.nn.utils.prune` has masked are 0 already.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    >>> list(prunable_weights(net))
    ['0.weight', '3.weight']
    """
    scales = {
        id(p)
        for m in as_module(model).modules()
        if isinstance(m, _NORMALIZATIONS)
        for p in m.parameters(recurse=False)
    }
    scales |= {
        id(p)
        for m in model.modules()
        for hook in m._forward_pre_hooks.values()
        if isinstance(hook, WeightNorm | SpectralNorm)
        for name, p in m.named_parameters(recurse=False)
        if name.rpartition("_")[0] == hook.name
    }
    for name, p in model.named_parameters():
        if isinstance(p, UninitializedParameter):
            raise UnsupportedModel(
                f"{name} is a lazy tensor without values; run the model once on a batch first"
            )
    buffers = dict(model.named_buffers())
    found = {
        name: _without_pruned(name, p.detach(), buffers)
        for name, p in model.named_parameters()
        if p.ndim > 1 and id(p) not in scales and "parametrizations" not in name.split(".")
    }
    if not found:
        raise UnsupportedModel(f"{type(model).__name__} has no weight that could be pruned")
    return found


def _without_pruned(name: str, weight: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
    """A weight as torch's own pruning leaves it: kept as `weight_orig` beside a `weight_mask`."""
    mask = buffers.get(f"{name.removesuffix('_orig')}_mask") if name.endswith("_orig") else None
    return weight if mask is None else weight * mask


def checked_masks(model: nn.Module, masks: Masks) -> dict[str, Tensor]:
    """The masks, on the devices of the parameters they are for.

    Raises:
        UnknownName, ShapeMismatch, InvalidType: if they do not fit the model.
    """
    parameters = dict(as_module(model).named_parameters())
    for name, mask in _as_masks(masks).items():
        if name not in parameters:
            raise UnknownName("parameter", str(name), parameters)
        if mask.shape != parameters[name].shape:
            raise ShapeMismatch(
                f"the mask of {name} must have its shape {list(parameters[name].shape)}, not "
                f"{list(mask.shape)}"
            )
    return {name: mask.to(parameters[name].device) for name, mask in masks.items()}


def _as_masks(masks: Masks) -> Masks:
    if not isinstance(masks, Mapping):
        raise InvalidType(f"masks are tensors by names of parameters, not {described(masks)}")
    for name, mask in masks.items():
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            raise InvalidType(
                f"the mask of {name} must be a tensor of True and False, not {described(mask)}"
            )
    return masks


def masked(model: nn.Module, masks: Masks) -> nn.Module:
    r"""A copy with parameters $m\odot\theta$; the model itself is left alone.

    >>> net = masked(nn.Linear(2, 1), {"weight": torch.tensor([[True, False]])})
    >>> net.weight[0, 1].item()
    0.0
    """
    kept = checked_masks(model, masks)
    made = copied(model)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if name in kept:
                p.masked_fill_(~kept[name], 0)
    return made


def sparsity(masks: Masks) -> float:
    """The share of the masked weights that go.

    >>> sparsity({"weight": torch.tensor([True, False, False, False])})
    0.75
    """
    total = sum(m.numel() for m in _as_masks(masks).values())
    return sum(int((~m).sum()) for m in masks.values()) / max(1, total)


def random_masks(masks: Masks, generator: RandomSource = None) -> dict[str, Tensor]:
    """As many weights of each parameter go as in the given masks, but drawn at random.

    The control of any rule that chooses weights: layers keep their sizes, and nothing else.

    >>> chosen = {"weight": torch.tensor([[True, False, False], [True, True, False]])}
    >>> int(random_masks(chosen, 0)["weight"].sum())
    3
    """
    source = as_generator(generator)
    return {
        name: mask.reshape(-1)[
            torch.randperm(mask.numel(), generator=source, device=source.device).to(mask.device)
        ].reshape(mask.shape)
        for name, mask in _as_masks(masks).items()
    }
