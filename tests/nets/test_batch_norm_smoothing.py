"""Derivatives under batch normalization, against autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import (
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.nets.batch_norm_smoothing import (
    batch_norm_gradient,
    batch_norm_gradient_norm,
    batch_norm_jacobian,
    batch_norm_second_derivative,
    batch_norm_smoothing,
)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(12, 4),
        nn.BatchNorm1d(4, affine=False),
        nn.ReLU(inplace=True),
        nn.Linear(4, 2),
    ).double()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.sampled_from([0.0, 1e-5, 0.7]))
def test_formulas_against_autograd(seed: int, m: int, eps: float) -> None:
    b, target, v = randn(m, seed=seed), randn(m, seed=seed + 1), randn(m, seed=seed + 2)
    gamma, beta = -1.3, 0.4

    def normalized(t: Tensor) -> Tensor:
        deviation = (t.var(correction=0) + eps).sqrt()
        return gamma * (t - t.mean()) / deviation + beta

    def loss(z: Tensor) -> Tensor:
        return torch.logsumexp(z * target, 0) + (z**3).sum()

    place = normalized(b)
    G = torch.func.grad(loss)(place)
    H = torch.func.hessian(loss)(place)
    wanted = torch.func.grad(lambda t: loss(normalized(t)))(b)
    # in the smallest batches the deviation may be tiny and everything large
    size = 1 + float(wanted.abs().max())
    jacobian = torch.func.jacrev(normalized)(b)
    torch.testing.assert_close(batch_norm_jacobian(b, gamma, eps=eps), jacobian)
    found = batch_norm_gradient(G, b, gamma, eps=eps)
    torch.testing.assert_close(found / size, wanted / size, atol=1e-7, rtol=1e-6)
    norm = batch_norm_gradient_norm(G, b, gamma, eps=eps)
    torch.testing.assert_close(
        norm / size**2, wanted.square().sum() / size**2, atol=1e-7, rtol=1e-6
    )
    twice = torch.func.hessian(lambda t: loss(normalized(t)))(b) @ v
    second = batch_norm_second_derivative(lambda t: H @ t, G, b, v, gamma, eps=eps)
    size = 1 + float(twice.abs().max())
    torch.testing.assert_close(second / size, twice / size, atol=1e-7, rtol=1e-6)


def test_units_are_normalized_for_themselves() -> None:
    b, G = randn(3, 8), randn(3, 8, seed=1)
    gamma = torch.tensor([1.0, -2.0, 0.5]).double()
    together = batch_norm_gradient(G, b, gamma, eps=0.1)
    alone = [batch_norm_gradient(G[i], b[i], gamma[i], eps=0.1) for i in range(3)]
    torch.testing.assert_close(together, torch.stack(alone))


def test_a_network_layer_by_layer() -> None:
    net = network()
    net.eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x, y = randn(10, 1, 4, 4), torch.arange(10) % 2
    found = batch_norm_smoothing(net, (x, y))
    assert [s.layer for s in found] == ["1", "5"]
    assert [(s.units, s.values) for s in found] == [(3, 40), (4, 10)]
    for s in found:
        assert s.before == pytest.approx(s.predicted, rel=1e-9)
        assert s.curvature == pytest.approx(s.predicted_curvature, rel=1e-7, abs=1e-12)
        assert s.before <= s.bound * (1 + 1e-12)
        assert s.before**2 == pytest.approx((1 - s.mean_share - s.own_share) * s.bound**2)
        assert s.reduction == pytest.approx(s.before / s.after)
    assert not net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_gradient_before_the_first_layer_by_hand() -> None:
    net = network().train()
    x, y = randn(10, 1, 4, 4), randn(10, 2, seed=3)
    (first, _) = batch_norm_smoothing(net, (x, y))
    entered = net[0](x).detach().requires_grad_()
    (wanted,) = torch.autograd.grad(nn.functional.mse_loss(net[1:](entered), y), entered)
    assert first.before == pytest.approx(float(wanted.norm()))
    (only,) = batch_norm_smoothing(net, (x, y), names=["5"])
    assert only.layer == "5"


def test_refused() -> None:
    x, y = randn(6, 2), randn(6, 1)
    with pytest.raises(UnsupportedModel):
        batch_norm_smoothing(nn.Linear(2, 1).double(), (x, y))
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).double()
    with pytest.raises(InvalidInput):
        batch_norm_smoothing(net, (x[:1], y[:1]))
    with pytest.raises(InvalidInput):
        batch_norm_smoothing(net, (x, y), loss=lambda a, b: a - b)
    shared = nn.BatchNorm1d(2)
    twice = nn.Sequential(shared, shared, nn.Linear(2, 1)).double()
    with pytest.raises(UnsupportedModel, match="twice"):
        batch_norm_smoothing(twice, (x, y))
    with pytest.raises(InvalidInput):
        batch_norm_jacobian(torch.ones(4))
    with pytest.raises(ShapeMismatch):
        batch_norm_jacobian(torch.ones(1))
    with pytest.raises(ShapeMismatch):
        batch_norm_gradient(torch.ones(3), torch.ones(4))


def test_equal_values_are_refused_also_where_their_mean_is_rounded() -> None:
    for b in (torch.full((7,), 0.1), torch.full((3,), 1e8)):
        with pytest.raises(InvalidInput, match="constant"):
            batch_norm_jacobian(b)
        assert batch_norm_jacobian(b, eps=1e-5).isfinite().all()
    with pytest.raises(InvalidInput, match="floating-point"):
        batch_norm_jacobian(torch.arange(3))
    with pytest.raises(NonFinite):
        batch_norm_jacobian(torch.tensor([1.0, float("nan")]))


def test_batches_and_names_that_do_not_fit_are_refused() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).double()
    x = randn(8, 2)
    with pytest.raises(ShapeMismatch, match="outputs are"):
        batch_norm_smoothing(net, (x, x[:, 0]))  # [8] and [8, 1] would be compared all with all
    with pytest.raises(ShapeMismatch, match="a target per sample"):
        batch_norm_smoothing(net, (x, x[:5, :1]))
    with pytest.raises(UnsupportedModel, match=r"the model raised .* \[8, 3\]"):
        batch_norm_smoothing(net, (randn(8, 3), x[:, :1]))
    with pytest.raises(InvalidInput, match="pair"):
        batch_norm_smoothing(net, x)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="tensor"):
        batch_norm_smoothing(net, (x, [1.0] * 8))  # type: ignore[arg-type]
    with pytest.raises(UnknownName):
        batch_norm_smoothing(net, (x, x[:, :1]), names=["0", "1"])
    assert len(batch_norm_smoothing(net, (x, x[:, :1]), names="0")) == 1


def test_scale_and_outer_curvature_are_what_they_are_called() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, -2.0, 9.0]))  # the mean is not the median
    x = randn(8, 3)
    (found,) = batch_norm_smoothing(
        net, (x, 5 * randn(8, 3, seed=1)), lambda a, b: (a - b).pow(2).sum()
    )
    scales = torch.tensor([1.0, 2.0, 9.0]) / (x.var(0, correction=0) + 1e-5).sqrt()
    assert found.scale == pytest.approx(float(scales.median()))
    assert found.curvature_after == pytest.approx(2.0)  # of a sum of squares, in every direction
