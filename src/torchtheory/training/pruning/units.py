r"""Structured pruning: whole units and channels go, and the network becomes a smaller one.

A unit $j$ between two affine layers can be removed with its row of the incoming layer, its column
(for a channel behind a flattening: its block of columns) of the outgoing one, and its entries of
the batch normalizations between them. What is left computes exactly what the network computes
whose *outgoing* weights of the unit are 0, whatever the activation; incoming weights of 0 alone
would not do, for $\varrho(0)$ may be another number. Source: Mathematical Aspects of Deep Learning,
section 1.6.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from torchtheory.core.checks import all_finite, as_module, described, number_between
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    TorchTheoryError,
    UnsupportedModel,
)
from torchtheory.core.foreign_text import one_line
from torchtheory.models.evaluation import answered
from torchtheory.models.model import PureFunction, evaluation_mode, global_randomness_kept
from torchtheory.models.untouched import copied
from torchtheory.nets.symmetries import HiddenLayer, hidden_layers
from torchtheory.tracing.interpret import Call
from torchtheory.tracing.network import Operation
from torchtheory.tracing.passes import evaluated
from torchtheory.tracing.recorder import record
from torchtheory.training.pruning.masks import masked

#: Inputs on which the smaller network is compared with the masked one.
_COMPARED = 64

KeptUnits = Mapping[HiddenLayer, Tensor]
"""Which units stay, by hidden layer: their numbers in increasing order."""


@dataclass(frozen=True, slots=True)
class PrunedUnits:
    """A network without some of its units.

    Attributes:
        network: the smaller module.
        masked: the module of the old shape whose removed units have weights 0; equal to it.
        masks: of every weight of a removed unit, by the names of the parameters.
        kept: numbers of the units that stayed, by hidden layer.
    """

    network: nn.Module
    masked: nn.Module
    masks: dict[str, Tensor]
    kept: dict[HiddenLayer, Tensor]


def prune_units(model: nn.Module, share: float, x: Tensor | None = None) -> PrunedUnits:
    """Remove a share of the units, or channels, of every hidden layer; the model is left alone.

    Those go that contribute least (`unit_scores`); of every layer one stays at least.

    Args:
        model: a module whose hidden layers `hidden_layers` finds: chains, and the straight parts
            of other networks.
        share: of each layer's units, from 0 to below 1; the number that go is rounded.
        x: inputs `[n, ...]` to measure contributions on; weights alone decide without. On them it
            is also seen whether the network uses a layer in other ways than by calling it (its
            size, or its weights in a function), which no one can see from outside.

    Raises:
        UnsupportedModel: if there is no such layer, or if it is used in other ways.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.Sigmoid(), nn.Linear(8, 1))
    >>> pruned = prune_units(net, 0.5)
    >>> pruned.network[0].out_features, pruned.network[2].in_features
    (4, 4)
    >>> x = torch.ones(3, 2)
    >>> bool(torch.allclose(pruned.network(x), pruned.masked(x), atol=1e-6))
    True
    """
    scores = unit_scores(model, x)
    for layer, score in scores.items():
        all_finite(score, f"what the units behind {layer.incoming} contribute")
    kept = largest_units(scores, share)
    masks = unit_masks(model, kept)
    pruned = PrunedUnits(remove_units(model, kept), masked(model, masks), masks, dict(kept))
    if x is not None:
        _refuse_other_uses(pruned, x[:_COMPARED])
    return pruned


def unit_scores(model: nn.Module, x: Tensor | None = None) -> dict[HiddenLayer, Tensor]:
    r"""How much each unit contributes to the layer behind it, `[units]` for each hidden layer.

    With inputs, $\big(\frac1n\sum_i a_j(x_i)^2\big)^{1/2}\|v_j\|$, where $a_j$ is what the outgoing
    layer is given of unit $j$ (averaged over positions of a channel) and $v_j$ its outgoing
    weights: the size of what would be missing. Without, $\|(w_j,b_j)\|\,\|v_j\|$ with the
    incoming weights and bias, those of the batch normalization where one follows. Both are
    unchanged when a ReLU unit is rescaled.

    Time: a forward pass with inputs.

    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[3.0], [-1.0]])), net[2].weight.data.fill_(2.0)
    >>> [s.tolist() for s in unit_scores(net).values()]
    [[6.0, 2.0]]
    >>> [s.tolist() for s in unit_scores(net, torch.ones(5, 1)).values()]
    [[6.0, 0.0]]
    """
    layers = hidden_layers(_with_values(model))
    if not layers:
        raise UnsupportedModel(
            "the network has no hidden layer between two dense layers or convolutions whose units "
            "could go"
        )
    sizes = _incoming_sizes(model, layers) if x is None else _activations(model, layers, x)
    parameters = dict(model.named_parameters())
    return {
        layer: size * by_unit(parameters[f"{layer.outgoing}.weight"].detach(), layer).norm(dim=1)
        for layer, size in zip(layers, sizes, strict=True)
    }


def by_unit(weight: Tensor, layer: HiddenLayer) -> Tensor:
    """The weight of an outgoing layer as `[units, weights of a unit]`."""
    return weight.reshape(len(weight), layer.units, -1).transpose(0, 1).reshape(layer.units, -1)


def largest_units(scores: Mapping[HiddenLayer, Tensor], share: float) -> dict[HiddenLayer, Tensor]:
    """The units that stay when a share of each layer's goes, those with the smallest scores.

    >>> layer = HiddenLayer("0", "2", 3)
    >>> largest_units({layer: torch.tensor([3.0, 1.0, 2.0])}, 0.4)[layer].tolist()
    [0, 2]
    """
    number_between(share, "the share of units", 0, 1, closed="left")
    kept = {}
    for layer, score in scores.items():
        stay = max(1, layer.units - round(share * layer.units))
        kept[layer] = torch.topk(score, stay).indices.sort().values
    return kept


def unit_masks(model: nn.Module, kept: KeptUnits) -> dict[str, Tensor]:
    """Masks of every weight into and out of the units that go, of their biases and scales."""
    parameters = dict(as_module(model).named_parameters())
    masks: dict[str, Tensor] = {}

    def mask(name: str) -> Tensor:
        return masks.setdefault(name, torch.ones_like(parameters[name], dtype=torch.bool))

    for layer, stay in _checked(model, kept).items():
        gone = torch.ones(layer.units, dtype=torch.bool)
        gone[stay] = False
        for owner in (layer.incoming, *layer.normalizations):
            for part in ("weight", "bias"):
                if f"{owner}.{part}" in parameters:
                    mask(f"{owner}.{part}")[gone] = False
        leaving = mask(f"{layer.outgoing}.weight")
        leaving.view(len(leaving), layer.units, -1)[:, gone] = False
    return masks


def remove_units(model: nn.Module, kept: KeptUnits) -> nn.Module:
    """A smaller copy in which only the given units are left; the model itself is left alone.

    Args:
        model: a module.
        kept: numbers of the units that stay, for some of its `hidden_layers`.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
    ...                     nn.Linear(16, 2))
    >>> smaller = remove_units(net, {hidden_layers(net)[0]: torch.tensor([0, 3])})
    >>> smaller[0].out_channels, smaller[1].num_features, smaller[4].in_features
    (2, 2, 8)
    """
    stays = _checked(model, kept)
    made = copied(model)
    for layer, stay in stays.items():
        for owner in (layer.incoming, *layer.normalizations):
            _keep_rows(made.get_submodule(owner), stay)
        _keep_columns(made.get_submodule(layer.outgoing), layer, stay)
    return made


def _keep_rows(module: nn.Module, stay: Tensor) -> None:
    for name in ("weight", "bias"):
        tensor = getattr(module, name)
        if tensor is not None:
            setattr(module, name, _selected(tensor, stay, 0))
    for name in ("running_mean", "running_var"):
        tensor = module._buffers.get(name)
        if tensor is not None:
            module._buffers[name] = tensor[stay.to(tensor.device)].clone()
    _set_size(module, ("out_features", "out_channels", "num_features"), len(stay))


def _keep_columns(module: nn.Module, layer: HiddenLayer, stay: Tensor) -> None:
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    blocks = weight.detach().reshape(len(weight), layer.units, -1)[:, stay.to(weight.device)]
    shape = (len(weight), -1, *weight.shape[2:])
    module.weight = nn.Parameter(blocks.reshape(shape).clone(), requires_grad=weight.requires_grad)
    _set_size(module, ("in_features", "in_channels"), module.weight.shape[1])


def _selected(tensor: Tensor, stay: Tensor, dim: int) -> nn.Parameter:
    chosen = tensor.detach().index_select(dim, stay.to(tensor.device))
    return nn.Parameter(chosen.clone(), requires_grad=tensor.requires_grad)


def _set_size(module: nn.Module, names: tuple[str, ...], size: int) -> None:
    for name in names:
        if hasattr(module, name):
            setattr(module, name, size)


def _checked(model: nn.Module, kept: KeptUnits) -> dict[HiddenLayer, Tensor]:
    if not isinstance(kept, Mapping):
        raise InvalidType(f"the units that stay are given by hidden layer, not {described(kept)}")
    known = hidden_layers(_with_values(model))
    for layer, stay in kept.items():
        if layer not in known:
            raise InvalidInput(f"{layer} is none of the {len(known)} hidden layers of the model")
        numbers = isinstance(stay, Tensor) and stay.dtype in (torch.int32, torch.int64)
        rising = numbers and stay.ndim == 1
        if not rising or not len(stay) or bool((stay.diff() <= 0).any()):
            raise InvalidInput(
                f"the units that stay behind layer {layer.incoming!r} must be numbers in "
                f"increasing order (int64), at least one, not {described(stay)}"
            )
        if int(stay[0]) < 0 or int(stay[-1]) >= layer.units:
            raise InvalidInput(
                f"layer {layer.incoming!r} has units 0 to {layer.units - 1}, and not "
                f"{int(stay[-1])}"
            )
    return {layer: stay.cpu() for layer, stay in kept.items()}


def _with_values(model: nn.Module) -> nn.Module:
    for name, p in as_module(model).named_parameters():
        if isinstance(p, UninitializedParameter):
            raise UnsupportedModel(
                f"{name} is a lazy tensor without values; run the model once on a batch first"
            )
    return model


def _run(model: nn.Module, x: Tensor) -> object:
    try:
        return model(x)
    except TorchTheoryError:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"the network raised {type(error).__name__} on inputs {described(x)}: "
            f"{one_line(str(error))[:300]}"
        ) from error


def _refuse_other_uses(pruned: PrunedUnits, x: Tensor) -> None:
    """Refuse networks that compute something else once the units are away."""
    smaller, same = pruned.network, pruned.masked
    with torch.no_grad(), global_randomness_kept(), evaluation_mode(same):
        wanted, again = _run(same, x), _run(same, x)
    if not isinstance(wanted, Tensor) or not isinstance(again, Tensor):
        return
    if not wanted.is_floating_point():
        return
    if not torch.equal(wanted, again):  # drawn at random, or not finite: nothing to compare
        return
    why = (
        "its forward pass uses the size or the weights of a layer in other ways than by calling it"
    )
    try:
        with torch.no_grad(), global_randomness_kept(), evaluation_mode(smaller):
            found = smaller(x)
    except Exception as error:
        raise UnsupportedModel(
            f"without some units the network raises {type(error).__name__}: {why}"
        ) from error
    level = torch.finfo(wanted.dtype).eps ** 0.5 * float(wanted.abs().max())
    if found.shape != wanted.shape or float((found - wanted).abs().max()) > level:
        raise UnsupportedModel(
            f"without some units the network is not the one in which their weights are 0: {why}"
        )


def _incoming_sizes(model: nn.Module, layers: list[HiddenLayer]) -> list[Tensor]:
    sizes = []
    for layer in layers:
        owner = model.get_submodule((layer.incoming, *layer.normalizations)[-1])
        own = [p.detach() for p in owner.parameters(recurse=False)]
        if not own:  # a batch normalization without numbers of its own: every unit has size 1
            sizes.append(torch.ones(layer.units))
            continue
        sizes.append(torch.cat([p.reshape(layer.units, -1) for p in own], 1).norm(dim=1))
    return sizes


def _activations(model: nn.Module, layers: list[HiddenLayer], x: Tensor) -> list[Tensor]:
    """Root mean squares of what the outgoing layers are given, unit by unit."""
    if not isinstance(x, Tensor) or not x.ndim or not len(x):
        raise InvalidType(f"x must be a tensor of inputs [n, ...], not {described(x)}")
    function = PureFunction(model)
    network = answered(lambda t: record(function, t), x, function.reference())
    seen: dict[str, Tensor] = {}
    outgoing = {layer.outgoing: layer for layer in layers}

    def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layer = outgoing.get(op.layer)
        if layer is not None and "weight" in op.arguments:
            call = Call(op, args, kwargs, len(x))
            a, weight = call["input"], call["weight"]
            if weight.ndim == 2:
                parts = a.reshape(-1, layer.units, a.shape[-1] // layer.units)
            else:
                places = a.ndim - (weight.ndim - 2)
                parts = a.reshape(-1, layer.units, *a.shape[places:]).flatten(2)
            seen[op.layer] = parts.square().mean((0, 2)).sqrt()
        return op.function(*args, **kwargs)

    with torch.no_grad():
        evaluated(function, network, x, step)
    missing = [layer.outgoing for layer in layers if layer.outgoing not in seen]
    if missing:
        raise UnsupportedModel(f"layer {missing[0]} was not used on the inputs")
    return [seen[layer.outgoing] for layer in layers]
