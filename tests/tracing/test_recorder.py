"""What is recorded is the network: on other inputs, and for any number of them."""

from __future__ import annotations

import pytest
import torch
from tests.tracing.architectures import ALL_NAMES, architecture, outputs_of

from torchtheory.tracing.kinds import KIND_OF
from torchtheory.tracing.recorder import record


@pytest.mark.parametrize("name", ALL_NAMES)
def test_replays_on_other_inputs(name: str) -> None:
    a = architecture(name)
    network = record(a.model, a.x)
    other = architecture(name, seed=1).x
    if a.rows_are_samples:
        assert network.rows is None, network.fixed_because
        other = torch.cat([other, a.x, other])[:7]
    wanted, made = outputs_of(a.model(other)), outputs_of(network.replay(other))
    torch.testing.assert_close(made, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_operation_has_a_kind_and_a_place(name: str) -> None:
    a = architecture(name)
    for op in record(a.model, a.x):
        assert op.name in KIND_OF, op
        assert op.layer in dict(a.model.named_modules())
        assert op.arguments, op
        assert not any(k.startswith("argument_") for k in op.arguments), op


@pytest.mark.parametrize("name", ALL_NAMES)
def test_writes_out_what_is_not_known(name: str) -> None:
    a = architecture(name)
    simple = {n for n, k in KIND_OF.items() if k not in ("composite", "normalization")} - {
        "glu",
        "silu",
        "var",
        "std",
    }
    network = record(a.model, a.x, known=simple.__contains__)
    assert {op.name for op in network} <= simple
    wanted, made = outputs_of(a.model(a.x)), outputs_of(network.replay(a.x))
    torch.testing.assert_close(made, wanted, rtol=1e-10, atol=1e-10)


def test_leaves_the_model_as_it_was() -> None:
    a = architecture("resnet")
    before = {k: v.clone() for k, v in a.model.state_dict().items()}
    a.model.train()
    record(a.model, a.x)
    assert a.model.training
    assert all(torch.equal(v, before[k]) for k, v in a.model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in a.model.modules())


def test_derivatives_of_a_replay_are_those_of_the_model() -> None:
    a = architecture("encoder")
    network = record(a.model, a.x)
    x = a.x.clone().requires_grad_()
    (own,) = torch.autograd.grad(network.replay(x).square().sum(), x)
    y = a.x.clone().requires_grad_()
    (theirs,) = torch.autograd.grad(a.model(y).square().sum(), y)
    torch.testing.assert_close(own, theirs)
    assert set(network.parameters) == {n for n, _ in a.model.named_parameters()}
    zeros = {n: torch.zeros_like(p) for n, p in a.model.named_parameters()}
    assert not network.replay(a.x, parameters=zeros).any()
