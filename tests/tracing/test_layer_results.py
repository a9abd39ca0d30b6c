"""What layers give back, and what is measured of them, of modules and of their archives."""

from __future__ import annotations

import pytest
import torch
from tests.tracing.architectures import NAMES, architecture, archived
from torch import Tensor, nn

from torchtheory.nets.batch_norm_smoothing import batch_norm_smoothing
from torchtheory.robustness.lipschitz.layers import weight_norms
from torchtheory.sequences.recurrent.gradients import recurrent_gradients
from torchtheory.tracing.layer_results import call_results, layer_outputs
from torchtheory.training.pruning.units import unit_scores

SAMPLES = [name for name in NAMES if architecture(name).rows_are_samples]


def hooked(model: nn.Module, x: Tensor) -> list[tuple[str, Tensor]]:
    """The same by hooks."""
    found: list[tuple[str, Tensor]] = []

    def keep(name: str, out: object) -> None:
        if isinstance(out, Tensor):
            found.append((name, out.detach().clone()))

    held = [
        module.register_forward_hook(lambda _, __, out, name=name: keep(name, out))
        for name, module in model.named_modules()
        if not list(module.children())
    ]
    model(x)
    for hook in held:
        hook.remove()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_layers_give_back_what_hooks_see(name: str) -> None:
    a = architecture(name)
    found, wanted = layer_outputs(a.model, a.x), hooked(a.model, a.x)
    assert [key.partition(" (")[0] for key in found] == [key for key, _ in wanted]
    for own, (_, theirs) in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(own, theirs)
    if a.rows_are_samples:
        again = layer_outputs(archived(name), a.x)
        for key in again.keys() & found.keys():
            torch.testing.assert_close(again[key], found[key])


def test_outputs_of_layers_can_be_differentiated() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.randn(4, 2, requires_grad=True)
    inner = layer_outputs(net, x)["1"]
    by_weight, by_input = torch.autograd.grad(inner.sum(), [net[0].weight, x])
    wanted = torch.autograd.grad(net[:2](x).sum(), [net[0].weight, x])
    torch.testing.assert_close((by_weight, by_input), wanted)


def test_a_call_of_ones_own_and_what_containers_pass_on() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))

        def forward(self, x: Tensor, by: float) -> Tensor:
            made: Tensor = self.inner(x) * by
            return made

    net, x = Scaled(), torch.randn(3, 2)
    found = call_results(net, x, lambda net, x: net(x, 2.0))
    assert [(path, passed_on) for path, _, passed_on in found] == [
        ("inner.0", False), ("inner.1", False), ("inner", True),
    ]  # fmt: skip
    torch.testing.assert_close(found[0][1], net.inner[0](x).detach())


@pytest.mark.parametrize("name", SAMPLES)
def test_norms_of_an_archive_are_those_of_its_module(name: str) -> None:
    a = architecture(name)
    own, theirs = (list(weight_norms(model, a.x)) for model in (a.model, archived(name)))
    assert [(n.name, n.kind) for n in own] == [(n.name, n.kind) for n in theirs]
    assert [n.lipschitz for n in own] == pytest.approx([n.lipschitz for n in theirs])
    assert own


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_memory_of_an_archive_is_that_of_its_module(name: str) -> None:
    a = architecture(name)
    (own,), (theirs,) = (
        recurrent_gradients(model, a.x, generator=0) for model in (a.model, archived(name))
    )
    assert (own.name, own.kind, own.units) == (theirs.name, theirs.kind, theirs.units)
    torch.testing.assert_close(own.gains, theirs.gains)


@pytest.mark.parametrize("name", ["convolutional", "resnet"])
def test_smoothing_and_scores_of_an_archive_are_those_of_its_module(name: str) -> None:
    a = architecture(name)
    y = torch.zeros_like(a.model(a.x)).detach()
    own, theirs = (batch_norm_smoothing(m, (a.x, y)) for m in (a.model, archived(name)))
    assert [s.layer for s in own] == [s.layer for s in theirs]
    assert [s.before for s in own] == pytest.approx([s.before for s in theirs])
    for one, other in zip(
        unit_scores(a.model, a.x).values(), unit_scores(archived(name), a.x).values(), strict=True
    ):
        torch.testing.assert_close(one, other)
