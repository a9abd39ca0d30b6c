"""The functional view of a model: same outputs, and the module left as it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidType, NonFinite, UnsupportedModel
from torchtheory.models.model import (
    PureFunction,
    evaluation_mode,
    flatten,
    global_randomness_kept,
    unflatten,
)


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    net[1].eval()
    net[2].train()
    return net


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything a user could notice."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        found[f"{name}.training"] = module.training
        found[f"{name}.hooks"] = (list(module._forward_hooks), list(module._forward_pre_hooks))
        found[f"{name}.attributes"] = set(vars(module))
    for name, p in model.named_parameters():
        grad = None if p.grad is None else p.grad.tolist()
        found[name] = (id(p), p.data_ptr(), p.detach().tolist(), p.requires_grad, grad)
    for name, b in model.named_buffers():
        found[name] = (id(b), b.data_ptr(), b.tolist())
    return found


def test_outputs_are_the_modules_own() -> None:
    net, x = normed(), torch.randn(5, 3)
    f = PureFunction(net)
    with torch.no_grad():
        assert torch.equal(f(f.parameters, x), net.eval()(x))
    assert f.count == sum(p.numel() for p in net.parameters())


def test_nothing_about_the_module_changes() -> None:
    net, x = normed(), torch.randn(5, 3)
    net[0].register_forward_hook(lambda *a: None)
    net[3].bias.requires_grad_(False)
    net(x).sum().backward()
    before, rows = snapshot(net), x.clone()
    f = PureFunction(net)
    f(f.parameters, x)
    torch.func.grad(lambda p: f(p, x).sum())(f.parameters)
    torch.func.vmap(torch.func.jacrev(lambda v: f(f.parameters, v[None])[0]))(x)
    f.in_precision(torch.float64)(f.in_precision(torch.float64).parameters, x.double())
    assert snapshot(net) == before
    assert torch.equal(x, rows)


class Stateful(nn.Module):
    """Does in its forward what a forward should not."""

    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.fail = fail

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        self.calls += 1
        self.cache = x * self.weight
        x -= 1
        if self.fail:
            raise RuntimeError("in the middle")
        return self.cache + x


@pytest.mark.parametrize("fail", [False, True])
def test_a_forward_that_writes_writes_to_copies(fail: bool) -> None:
    net, x = Stateful(fail), torch.ones(2, 3)
    before = snapshot(net)
    f = PureFunction(net)
    for _ in range(2):
        if fail:
            with pytest.raises(RuntimeError, match="in the middle"):
                f(f.parameters, x)
        else:
            assert torch.equal(f(f.parameters, x), torch.ones(2, 3))
    assert snapshot(net) == before
    assert net.calls == 0
    assert torch.equal(x, torch.ones(2, 3))


def test_weights_a_hook_recomputes_are_put_back() -> None:
    net = nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 2)))
    own = net[0].weight
    f = PureFunction(net)
    torch.func.grad(lambda p: f(p, torch.ones(1, 3)).sum())(f.parameters)
    assert net[0].weight is own
    float(net[0].weight.sum())  # no tensor of a transform that has ended


def test_evaluation_mode_restores_each_sub_module_also_after_an_error() -> None:
    net = normed()
    modes = [m.training for m in net.modules()]

    def inside() -> None:
        with evaluation_mode(net):
            assert not any(m.training for m in net.modules())
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        inside()
    assert [m.training for m in net.modules()] == modes
    assert torch.backends.mha.get_fastpath_enabled()


def test_attention_has_second_derivatives() -> None:
    net = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    f, x = PureFunction(net), torch.randn(2, 3, 4)
    slope = torch.func.grad(lambda p: f(p, x).square().sum())
    product = torch.func.vjp(slope, f.parameters)[1](f.parameters)[0]
    assert all(bool(torch.isfinite(v).all()) for v in product.values())


def test_global_randomness_is_kept() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    expected = torch.rand(2), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    with global_randomness_kept():
        torch.rand(5), random.random(), np.random.rand()  # noqa: NPY002
    assert torch.equal(torch.rand(2), expected[0])
    assert (random.random(), np.random.rand()) == expected[1:]  # noqa: NPY002


def test_shared_parameters_count_once_and_stay_tied() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    f = PureFunction(net)
    assert f.count == 9
    twice = {k: 2 * p for k, p in f.parameters.items()}
    x = torch.randn(4, 3)
    assert torch.allclose(f(twice, x), 4 * f(f.parameters, x))


def test_a_module_under_two_names_keeps_its_parameters() -> None:
    layer = nn.Linear(3, 3)
    net = nn.Sequential(layer, nn.BatchNorm1d(3), layer)
    before = snapshot(net)
    f, x = PureFunction(net), torch.randn(4, 3)
    assert torch.equal(f(f.parameters, x), net.eval()(x))
    net.train()
    assert snapshot(net) == before
    assert isinstance(layer.weight, nn.Parameter)
    net(x).sum().backward()
    assert layer.weight.grad is not None


def test_in_precision_casts_only_real_numbers() -> None:
    net = normed()
    double = PureFunction(net).in_precision(torch.float64)
    assert {p.dtype for p in double.parameters.values()} == {torch.float64}
    assert double.buffers["1.num_batches_tracked"].dtype == torch.int64
    x = torch.randn(5, 3)
    near = double(double.parameters, x.double())
    assert torch.allclose(near.float(), PureFunction(net)(dict(net.named_parameters()), x))
    assert net[0].weight.dtype == torch.float32


def test_flatten_and_unflatten() -> None:
    f = PureFunction(normed())
    vector = flatten(f.parameters)
    back = unflatten(vector, f.parameters)
    assert vector.numel() == f.count
    assert all(torch.equal(back[k], p) for k, p in f.parameters.items())


def test_reference_and_models_without_parameters() -> None:
    assert PureFunction(nn.Linear(2, 2).double()).reference().dtype == torch.float64
    assert PureFunction(nn.ReLU()).reference().dtype == torch.float32
    assert PureFunction(nn.ReLU()).count == 0


def test_refusals() -> None:
    with pytest.raises(InvalidType, match=r"torch\.nn\.Module, not a function"):
        PureFunction(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match="run the model once"):
        PureFunction(nn.LazyLinear(3))
    with pytest.raises(UnsupportedModel, match="meta device"):
        PureFunction(nn.Linear(2, 2, device="meta"))
    net = nn.Linear(2, 2)
    net.weight.data[0, 0] = float("nan")
    with pytest.raises(NonFinite, match="weight of the model"):
        PureFunction(net).refuse_non_finite_parameters()

    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(UnsupportedModel, match="returns tuple; wrap it"):
        PureFunction(Pair())({}, torch.ones(1, 1))
