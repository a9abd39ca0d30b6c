"""Chains of layers with paths, for what is about their layers: norms of each, gates of each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import as_module
from torchtheory.core.errors import UnsupportedModel
from torchtheory.tracing.chain import Link, Rearrangement, as_chain, has_own_forward

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
SLOPED = (nn.ReLU, nn.LeakyReLU, nn.PReLU)
REARRANGING = (nn.Flatten, nn.Unflatten, Rearrangement)
PASSING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def path_links(model: nn.Module) -> list[Link]:
    """The layers of a network with path features, or an error that names the one without a rule."""
    as_module(model)
    links = as_chain(model)
    last = -1
    for place, link in enumerate(links):
        _refuse(link)
        if not isinstance(link.module, PASSING + REARRANGING):
            last = place
    if last < 0 or not isinstance(links[last].module, nn.Linear):
        raise UnsupportedModel(
            "path features are those of a network whose last layer is dense, without an activation "
            "after it; give the part of the model up to there"
        )
    return links


def slopes(module: nn.Module, z: Tensor) -> Tensor:
    r"""What an activation multiplies its inputs by, $\varrho(z)/z$; the left slope at 0."""
    if isinstance(module, nn.PReLU):
        left = module.weight.reshape(1, -1, *[1] * (z.ndim - 2))
    else:
        left = z.new_tensor(module.negative_slope if isinstance(module, nn.LeakyReLU) else 0.0)
    return torch.where(z > 0, 1.0, left).double()


def selected_places(module: nn.Module, x: Tensor) -> Tensor:
    """Which place of its (flattened) input map every window of a max pool takes."""
    assert isinstance(module, MAX_POOLS)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.ndim - 3]
    _, places = pool(
        x,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        ceil_mode=module.ceil_mode,
        return_indices=True,
    )
    chosen: Tensor = places
    return chosen


def has_bias(module: nn.Module) -> bool:
    """Whether paths start at a layer."""
    if isinstance(module, NORMALIZATIONS):
        return True
    return isinstance(module, (nn.Linear, *CONVOLUTIONS)) and module.bias is not None


def _refuse(link: Link) -> None:
    module, name = link.module, link.name or type(link.module).__name__
    known = (
        nn.Linear, *CONVOLUTIONS, *AVERAGE_POOLS, *ADAPTIVE_POOLS, *MAX_POOLS, *NORMALIZATIONS,
        *SLOPED, *REARRANGING, *PASSING,
    )  # fmt: skip
    if not isinstance(module, known) or not has_own_forward(module):
        raise UnsupportedModel(
            f"layer {name} is a {type(module).__name__}, which path features have no rule for: "
            "they need layers that are linear, select (max pooling) or multiply by a slope (ReLU)"
        )
    if isinstance(module, CONVOLUTIONS) and module.padding_mode != "zeros":
        raise UnsupportedModel(f"layer {name} pads by {module.padding_mode}; paths need zeros")
    if isinstance(module, AVERAGE_POOLS + MAX_POOLS) and module.ceil_mode:
        raise UnsupportedModel(f"layer {name} pools in ceil_mode, which path features do not cover")
    if isinstance(module, NORMALIZATIONS) and module.running_var is None:
        raise UnsupportedModel(
            f"layer {name} normalizes by the statistics of its batch even in evaluation mode"
        )
