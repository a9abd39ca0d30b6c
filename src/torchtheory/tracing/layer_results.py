"""What every call of a module gives back, in the order in which the calls end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import module_with_values
from torchtheory.models.model import global_randomness_kept
from torchtheory.tracing.network import Network, Value, called
from torchtheory.tracing.recorder import record, record_call


def layer_results(network: Network) -> list[tuple[str, Value]]:
    """Paths of modules, and the one value that each call of them gives back.

    Calls that give back several tensors are left out.

    >>> network = record(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.ones(1, 2))
    >>> [(path, value.shape) for path, value in layer_results(network)]
    [('0', (n, 3)), ('1', (n, 3))]
    """
    made = {*network.inputs, *network.makers}
    found = [(path, own[0]) for path, own in network.returned if path and len(own) == 1]
    return [(path, value) for path, value in found if value in made]


def layer_outputs(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    r"""What every layer gives out, in the order of the computation.

    Layers are the modules without children. The model is run in evaluation mode and left as it
    was. A layer used twice appears as `name` and `name (2)`. The outputs stay attached to the graph
    of the model's parameters and of `x`.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> [(k, tuple(v.shape)) for k, v in layer_outputs(net, torch.ones(5, 2)).items()]
    [('0', (5, 3)), ('1', (5, 3)), ('2', (5, 1))]
    """
    module_with_values(model)
    network = record(model, x)
    if network.decisions:  # what it does is asked for these inputs alone
        network = record(model, x, whole=True)
    with_children = {path.rpartition(".")[0] for path, _ in model.named_modules() if path}
    found = [(path, v) for path, v in layer_results(network) if path not in with_children]
    if not with_children and isinstance(network.output, Value):
        found = [("(model)", network.output)]
    # embeddings with a largest norm write to their weights when they run
    written = any(vars(m).get("max_norm") is not None for m in model.modules())
    weights = {
        network.parameters[k]: p.clone() if written else p
        for k, p in model.named_parameters()
        if k in network.parameters
    }
    values = _evaluated(network, found, [x], weights)
    named: dict[str, Tensor] = {}
    for (path, _), tensor in zip(found, values, strict=True):
        key, count = path, 1
        while key in named:
            count += 1
            key = f"{path} ({count})"
        named[key] = tensor
    return named


def call_results(
    model: nn.Module, x: Tensor, call: Callable[[nn.Module, Tensor], Any]
) -> list[tuple[str, Tensor, bool]]:
    """What the modules inside a model give back in one call of it, whatever else it takes.

    Args:
        model: run in evaluation mode, without derivatives, and left as it was.
        x: its input.
        call: how to run it.

    Returns:
        Paths with what was given back, and whether the call before gave back the same: a container
        passes on what its last module made.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU()))
    >>> found = call_results(net, torch.ones(5, 2), lambda net, x: net(x))
    >>> [(path, passed_on) for path, _, passed_on in found]
    [('0', False), ('1.0', False), ('1', True)]
    """
    network, given = record_call(_Called(module_with_values(model), call), (x,), {})
    inside = [(path.removeprefix("model."), v) for path, v in layer_results(network)]
    found = [(path, v) for path, v in inside if path != "model"]
    with torch.no_grad():
        values = _evaluated(network, found, given, {})
    before = [None, *(v for _, v in found)]
    return [
        (path, tensor, value is last)
        for (path, value), tensor, last in zip(found, values, before, strict=False)
    ]


class _Called(nn.Module):
    """A model that is run in a way of one's own."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, x: Tensor) -> Any:
        return self.call(self.model, x)


def _evaluated(
    network: Network,
    found: list[tuple[str, Value]],
    given: list[Tensor],
    weights: Mapping[Value, Tensor],
) -> tuple[Tensor, ...]:
    with global_randomness_kept():
        values: tuple[Tensor, ...] = network.until(*(v for _, v in found)).evaluate(
            given, len(given[0]), called, weights
        )
    return values
