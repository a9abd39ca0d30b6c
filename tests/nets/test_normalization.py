"""Normalization identities, and batch normalization folded away."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.nets.feedforward import drawn_linear
from torchtheory.nets.normalization import (
    chain_step_coefficients,
    fold_batch_norm,
    reparametrize,
    standardize,
    weight_norm_gradient,
)

seeds = st.integers(0, 10_000)


def _gaussian(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_golden_batch() -> None:
    batch = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    assert standardize(batch, 0).tolist() == pytest.approx(
        [-1.3416, -0.4472, 0.4472, 1.3416], abs=1e-4
    )
    assert standardize(batch, 0, unbiased=True).tolist() == pytest.approx(
        [-1.1619, -0.3873, 0.3873, 1.1619], abs=1e-4
    )


@given(seeds, st.integers(2, 9), st.integers(2, 6), st.floats(1e-6, 1.0))
@settings(max_examples=30, deadline=None)
def test_torch_layers_are_the_definition(seed: int, s: int, n: int, eps: float) -> None:
    x = _gaussian(seed, s, n)
    batch = nn.BatchNorm1d(n, eps=eps, dtype=torch.float64)
    layer = nn.LayerNorm(n, eps=eps, dtype=torch.float64)
    assert torch.allclose(batch(x), standardize(x, 0, eps=eps), atol=1e-12)
    assert torch.allclose(layer(x), standardize(x, 1, eps=eps), atol=1e-12)


@pytest.mark.parametrize("dim", [0, 1])
def test_either_variance_along_either_dimension(dim: int) -> None:
    x = _gaussian(1, 5, 4) + 3
    for unbiased in (False, True):
        z = standardize(x, dim, unbiased=unbiased)
        assert torch.allclose(z.mean(dim), torch.zeros(z.shape[1 - dim]).double(), atol=1e-12)
        spread = z.std(dim, correction=int(unbiased))
        assert torch.allclose(spread, torch.ones_like(spread), atol=1e-12)


@given(seeds, st.floats(0.01, 100.0))
@settings(max_examples=30, deadline=None)
def test_reparametrization(seed: int, factor: float) -> None:
    x, weight = _gaussian(seed, 12, 4) + 1, _gaussian(seed + 1, 3, 4)
    gamma, shift = _gaussian(seed + 2, 3), _gaussian(seed + 3, 3)
    unit = reparametrize(weight, x, gamma, shift)
    normalized = gamma * standardize(x @ weight.T, 0) + shift
    assert torch.allclose(x @ unit.weight.T + unit.bias, normalized, atol=1e-9)
    batch = nn.BatchNorm1d(3, dtype=torch.float64)
    plain = reparametrize(weight, x, eps=batch.eps)
    assert torch.allclose(x @ plain.weight.T + plain.bias, batch(x @ weight.T), atol=1e-9)
    scaled = reparametrize(factor * weight, x, gamma, shift)
    assert torch.allclose(scaled.weight, unit.weight, atol=1e-9)
    assert torch.allclose(scaled.norm_ratio, unit.norm_ratio, rtol=1e-9)
    covariance = torch.cov(x.T, correction=0)
    lengths = torch.einsum("mi,ij,mj->m", weight, covariance, weight).sqrt()
    assert torch.allclose(unit.norm_ratio, weight.norm(dim=1) / lengths)


@given(seeds, st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_weight_norm_gradient_is_torchs(seed: int, n: int) -> None:
    layer = weight_norm(drawn_linear(n, 3, generator=seed))
    x = _gaussian(seed, 6, n)
    loss = torch.sin(layer(x)).sum()
    g = layer.parametrizations.weight.original0
    v = layer.parametrizations.weight.original1
    expected = torch.autograd.grad(loss, [g, v])
    weight = layer.weight.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(torch.sin(x @ weight.T + layer.bias.detach()).sum(), weight)
    along, across = weight_norm_gradient(gradient, v.detach(), g.detach()[:, 0])
    assert torch.allclose(along, expected[0][:, 0], atol=1e-10)
    assert torch.allclose(across, expected[1], atol=1e-10)
    assert torch.allclose((across * v).sum(1), torch.zeros(3).double(), atol=1e-10)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=7), seeds, st.floats(-1, 1))
@settings(max_examples=40, deadline=None)
def test_a_step_on_the_chain_is_its_polynomial(w: list[float], seed: int, eta: float) -> None:
    weights = torch.tensor(w, dtype=torch.float64)
    gradients = _gaussian(seed, len(w))
    coefficients = chain_step_coefficients(weights, gradients)
    powers = eta ** torch.arange(len(w) + 1, dtype=torch.float64)
    value = float((weights - eta * gradients).prod())
    assert float(coefficients @ powers) == pytest.approx(value, abs=1e-9)
    assert float(coefficients[0]) == pytest.approx(float(weights.prod()), abs=1e-12)


class Residual(nn.Module):
    """A branch, a module used twice, and a batch norm that must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(3)
        self.shared = nn.Conv2d(3, 3, 1)
        self.after = nn.BatchNorm2d(3)
        self.first = nn.BatchNorm2d(3, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = torch.relu(self.bn(self.conv(x)) + x)
        return self.after(self.shared(y)) + self.shared(x)


def _trained(net: nn.Module, x: Tensor) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.affine:
                module.weight.copy_(torch.randn(module.num_features, generator=generator))
                module.bias.copy_(torch.randn(module.num_features, generator=generator))
        for _ in range(3):
            net(x + torch.randn(x.shape, generator=generator, dtype=x.dtype))
    return net


def test_folding_with_branches() -> None:
    x = _gaussian(0, 6, 3, 5, 5)
    net = _trained(Residual().double(), x)
    before = copy.deepcopy(net.state_dict())
    folded = fold_batch_norm(net).model
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert isinstance(folded.bn, nn.Identity)
    assert isinstance(folded.after, nn.BatchNorm2d)  # its convolution is used elsewhere as well
    assert isinstance(folded.first, nn.BatchNorm2d)
    assert not folded.training
    assert torch.allclose(folded(x), net.eval()(x), atol=1e-12)


def test_folding_nested_and_tied_layers() -> None:
    first = nn.Linear(4, 4)
    net = nn.Sequential(
        nn.Sequential(first, nn.BatchNorm1d(4)), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4)
    )
    net[2].weight = first.weight  # tied: each must be scaled by its own batch norm
    net = _trained(net.double(), _gaussian(1, 9, 4))
    folded = fold_batch_norm(net).model
    x = _gaussian(2, 5, 4)
    assert torch.allclose(folded(x), net.eval()(x), atol=1e-12)
    assert sum(isinstance(m, nn.BatchNorm1d) for m in folded.modules()) == 0


def test_what_cannot_be_folded_is_kept() -> None:
    for net in (
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.BatchNorm1d(3)),
        nn.Sequential(weight_norm(nn.Linear(3, 3)), nn.BatchNorm1d(3)),
        nn.BatchNorm1d(3),
    ):
        folded = fold_batch_norm(net).model
        assert any(isinstance(m, nn.BatchNorm1d) for m in folded.modules())
        assert folded is not net
        x = torch.randn(4, 3)
        assert torch.allclose(folded(x), net.eval()(x))


def test_folding_agrees_with_torch() -> None:
    net = _trained(nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4)), _image())
    reference = nn.utils.fusion.fuse_conv_bn_eval(net.eval()[0], net[1])
    assert torch.allclose(fold_batch_norm(net).model[0].weight, reference.weight, atol=1e-6)


def _image() -> Tensor:
    return torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0))


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) if float(x.sum()) < 1e9 else self.layer(x)


def test_nothing_is_folded_where_another_input_may_go_another_way() -> None:
    found = fold_batch_norm(Deciding())
    assert found.into == {}
    assert "another input" in found.kept["norm"]


def test_bad_input_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="x="):
        fold_batch_norm(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(3, 3), nn.Linear(5, 5)))
    with pytest.raises(InvalidType):
        fold_batch_norm("net")
    with pytest.raises(InvalidInput, match="eps"):
        standardize(torch.ones(3), 0, eps=-1.0)
    with pytest.raises(ShapeMismatch, match="too few"):
        standardize(torch.ones(1), 0, unbiased=True)
    with pytest.raises(ShapeMismatch):
        reparametrize(torch.ones(2, 3), torch.ones(4, 2))
    with pytest.raises(InvalidInput, match="constant"):
        reparametrize(torch.ones(1, 2), torch.ones(4, 2))
    with pytest.raises(ShapeMismatch):
        weight_norm_gradient(torch.ones(3), torch.ones(2), torch.tensor(1.0))
    with pytest.raises(InvalidInput, match="direction"):
        weight_norm_gradient(torch.ones(2), torch.zeros(2), torch.tensor(1.0))
    with pytest.raises(ShapeMismatch):
        chain_step_coefficients(torch.ones(2), torch.ones(3))


def test_gradient_is_orthogonal_under_batch_norm() -> None:
    layer = drawn_linear(4, 3, bias=False, generator=0)
    net = nn.Sequential(layer, nn.BatchNorm1d(3, eps=1e-30, dtype=torch.float64))
    x = _gaussian(3, 10, 4)
    (gradient,) = torch.autograd.grad(torch.sin(net(x) * x[:, :3]).sum(), layer.weight)
    assert torch.allclose((gradient * layer.weight).sum(1), torch.zeros(3).double(), atol=1e-12)
    assert math.isfinite(float(gradient.norm()))
