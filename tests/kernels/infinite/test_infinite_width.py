"""Kernels of infinitely wide dense networks."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite, ShapeMismatch, UnknownName
from torchtheory.kernels.infinite import dense as infinite_width
from torchtheory.kernels.infinite.dense import dense_limit_kernel, limit_kernels, nngp, ntk
from torchtheory.kernels.infinite.parametrization import ntk_mlp
from torchtheory.kernels.learning.regression import kernel_least_squares
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.nets.activations.table import activation
from torchtheory.nets.infinite_width.dual_activations import dual_moments
from torchtheory.nets.infinite_width.duals.closed_forms import PiecewiseLinear
from torchtheory.nets.infinite_width.duals.hermite import HermiteExpansion


def sample(n: int, d: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64)


def literal(
    x: Tensor, y: Tensor, depth: int, name: str, weight: float, bias: float
) -> tuple[Tensor, Tensor]:
    """The recursion as it is written, on full matrices."""
    a, b = (v.square().sum(1) / v.shape[1] for v in (x, y))
    k11 = (weight * a + bias)[:, None].expand(-1, len(y))
    k22 = (weight * b + bias)[None].expand(len(x), -1)
    sigma = weight * x @ y.T / x.shape[1] + bias
    theta = sigma
    for _ in range(depth - 1):
        found = dual_moments(name, k11, sigma, k22)
        assert found.slopes is not None
        sigma = weight * found.values + bias
        theta = theta * weight * found.slopes + sigma
        k11, k22 = (
            weight * dual_moments(name, k, k, k, slopes=False).values + bias for k in (k11, k22)
        )
    return sigma, theta


def test_golden_values_of_the_recursion() -> None:
    x = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(0.75)]], dtype=torch.float64)
    one = limit_kernels(x, depth=1, scaling="unscaled_input")
    two = limit_kernels(x, depth=2, scaling="unscaled_input")
    assert torch.allclose(one.nngp, torch.tensor([[2.0, 1.0], [1.0, 2.0]]).double())
    assert torch.equal(one.nngp, one.ntk)
    assert float(two.nngp[0, 1]) == pytest.approx(1.21800, abs=5e-6)
    assert float(two.ntk[0, 1]) == pytest.approx(1.88466, abs=5e-6)
    assert two.nngp.diagonal().tolist() == pytest.approx([2.0, 2.0])


@given(st.integers(1, 6), st.floats(0.1, 3))
@settings(max_examples=20, deadline=None)
def test_relu_diagonal_is_depth_times_the_squared_length(depth: int, length: float) -> None:
    x = length * torch.nn.functional.normalize(sample(3, 4), dim=1)
    k = limit_kernels(x, depth=depth, scaling="unscaled_input")
    assert torch.allclose(k.ntk.diagonal(), torch.full((3,), 2 * depth * length**2).double())
    assert torch.allclose(k.nngp.diagonal(), torch.full((3,), 2 * length**2).double())


@pytest.mark.parametrize("bias", [0.0, 0.4])
@pytest.mark.parametrize("name", ["relu", "leaky relu", "abs", "erf", "gelu", "tanh"])
def test_blocks_and_strips_follow_the_recursion_as_written(
    name: str, bias: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infinite_width, "_BAND", 5)
    monkeypatch.setattr(infinite_width, "_STRIP", 30)
    x, y = sample(13, 40), sample(7, 40, 1)
    x[3] = 0
    for depth in (1, 2, 4):
        settings_ = {"depth": depth, "activation": name, "bias_variance": bias}
        for other in (x, y):
            sigma, theta = literal(x, other, depth, name, 2.0, bias)
            given_ = None if other is x else other
            found = limit_kernels(x, given_, **settings_)  # type: ignore[arg-type]
            assert torch.allclose(found.nngp, sigma, atol=1e-9)
            assert torch.allclose(found.ntk, theta, atol=1e-6)
        assert torch.allclose(nngp(x, y, **settings_), sigma, atol=1e-9)  # type: ignore[arg-type]
        assert torch.allclose(ntk(x, y, **settings_), theta, atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["relu", "erf"])
def test_symmetric_matrix_is_the_rectangular_one(name: str) -> None:
    x = sample(300, 50)
    half = limit_kernels(x, depth=3, activation=name, bias_variance=0.1)
    whole = limit_kernels(x, x, depth=3, activation=name, bias_variance=0.1)
    assert torch.equal(half.ntk, half.ntk.T)
    assert torch.allclose(half.nngp, whole.nngp)
    assert torch.allclose(half.ntk, whole.ntk, atol=1e-7)


def test_kernels_are_positive_definite() -> None:
    x = sample(40, 6)
    for name in ("relu", "erf", "tanh"):
        found = limit_kernels(x, depth=3, activation=name)
        assert float(torch.linalg.eigvalsh(found.nngp)[0]) > 0
        assert float(torch.linalg.eigvalsh(found.ntk)[0]) > 0


def test_linear_network_has_the_linear_kernel() -> None:
    x = sample(6, 5)
    gram = x @ x.T / 5
    found = limit_kernels(x, depth=4, activation="linear", weight_variance=1.0)
    assert torch.allclose(found.nngp, gram)
    assert torch.allclose(found.ntk, 4 * gram)


@pytest.mark.parametrize("depth", [3, 10])
@pytest.mark.parametrize("bias", [0.0, 0.2])
def test_single_precision_keeps_nearly_equal_inputs(depth: int, bias: float) -> None:
    x = sample(60, 100)
    x = torch.cat([x, x + 1e-3 * sample(60, 100, 1), x]).float()
    for other in (None, x.clone()):
        given_ = None if other is None else other.double()
        ours = limit_kernels(x, other, depth=depth, bias_variance=bias)
        exact = limit_kernels(x.double(), given_, depth=depth, bias_variance=bias)
        assert ours.ntk.dtype == torch.float32
        for one, two in ((ours.nngp, exact.nngp), (ours.ntk, exact.ntk)):
            assert float((one / two - 1).abs().max()) < 3e-6


def test_unscaled_input_is_the_rescaled_data() -> None:
    x = sample(5, 9)
    a = limit_kernels(x, depth=3, bias_variance=0.3, scaling="unscaled_input")
    b = limit_kernels(3 * x, depth=3, bias_variance=0.3)
    assert torch.allclose(a.ntk, b.ntk)


@pytest.mark.parametrize("scaling", ["fan_in", "unscaled_input"])
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_wide_networks_come_close(scaling: str, name: str) -> None:
    x = sample(4, 3)
    limit = limit_kernels(
        x,
        depth=3,
        activation=name,
        bias_variance=0.5,
        scaling=scaling,  # type: ignore[arg-type]
    )
    kernels = torch.stack(
        [
            empirical_ntk(
                ntk_mlp(
                    [3, 400, 400, 1],
                    name,
                    bias_variance=0.5,
                    scaling=scaling,  # type: ignore[arg-type]
                    generator=seed,
                    dtype=torch.float64,
                ),
                x,
                outputs="trace",
            )
            for seed in range(8)
        ]
    )
    # a single network is off by about 1/sqrt(400); the mean of eight by a third of it
    assert float((kernels.mean(0) / limit.ntk - 1).abs().max()) < 0.1


def test_error_of_an_expansion_is_reported() -> None:
    x = sample(5, 3)
    rough = HermiteExpansion(activation("relu"), terms=10)
    assert limit_kernels(x, depth=2).error == 0.0
    found = limit_kernels(x, depth=2, activation=rough)
    exact = limit_kernels(x, depth=2)
    assert found.error > 0
    assert float((found.nngp - exact.nngp).abs().max()) <= 2 * found.error
    assert torch.allclose(found.nngp.diagonal(), exact.nngp.diagonal())


def test_kernel_objects_regress() -> None:
    x, y = sample(20, 4), sample(6, 4, 1)
    both = limit_kernels(x, y, depth=3, bias_variance=0.2)
    targets = x[:, 0] * x[:, 1]
    for which, wanted in (("nngp", both.nngp), ("ntk", both.ntk)):
        k = dense_limit_kernel(which, depth=3, bias_variance=0.2)  # type: ignore[arg-type]
        assert torch.allclose(k(x, y), wanted)
        assert torch.allclose(k.diagonal(x), k(x).diagonal())
        assert torch.allclose(kernel_least_squares(k, x, targets).predict(x), targets, atol=1e-6)
    with pytest.raises(UnknownName):
        dense_limit_kernel("nnpg", depth=2)  # type: ignore[arg-type]


def test_clusters_of_nearly_equal_inputs() -> None:
    x = sample(3, 50).repeat(60, 1)
    x = (x + 1e-3 * sample(180, 50, 1)).float()
    ours = limit_kernels(x, depth=3)
    exact = limit_kernels(x.double(), depth=3)
    assert float((ours.ntk / exact.ntk - 1).abs().max()) < 3e-6


def test_inputs_stay_as_they_were() -> None:
    x = sample(5, 3).requires_grad_()
    before = x.detach().clone()
    assert not limit_kernels(x, depth=2).ntk.requires_grad
    assert torch.equal(x.detach(), before)


def test_bad_input_is_refused() -> None:
    x = sample(3, 2)
    with pytest.raises(InvalidInput, match="depth"):
        ntk(x, depth=0)
    with pytest.raises(ShapeMismatch):
        ntk(x, sample(3, 4), depth=2)
    with pytest.raises(InvalidInput):
        ntk(x, x.float(), depth=2)
    with pytest.raises(NonFinite):
        ntk(x * math.nan, depth=2)
    with pytest.raises(InvalidType):
        ntk(x.long(), depth=2)
    with pytest.raises(InvalidInput, match="weight_variance"):
        ntk(x, depth=2, weight_variance=0.0)
    with pytest.raises(InvalidInput, match="bias_variance"):
        ntk(x, depth=2, bias_variance=-1.0)
    with pytest.raises(UnknownName):
        ntk(x, depth=2, scaling="fan_out")  # type: ignore[arg-type]
    with pytest.raises(UnknownName):
        ntk(x, depth=2, activation="rellu")
    assert PiecewiseLinear(0.0, 1.0).bend == pytest.approx(1 / math.pi)


def exactly(
    x: list[float], y: list[float], depth: int, name: str, bias: float
) -> tuple[float, float]:
    """The recursion with weight variance 2 in 60 digits, divided by the standard deviations."""
    low, high = {"relu": (0, 1), "abs": (-1, 1), "linear": (1, 1)}.get(name, (0, 0))
    left = {"heaviside": 0, "sign": -1}.get(name, 0)
    with mpmath.workdps(60):
        a, b = ([mpmath.mpf(v) for v in point] for point in (x, y))
        k11, k12, k22 = (2 * mpmath.fdot(p, q) / len(x) + bias for p, q in ((a, a), (a, b), (b, b)))
        theta = k12
        for _ in range(depth - 1):
            t = mpmath.acos(max(-1, min(1, k12 / mpmath.sqrt(k11 * k22))))
            if name in ("heaviside", "sign"):
                part = (1 - left) ** 2 * (mpmath.pi - t) / (2 * mpmath.pi)
                values, slopes = left**2 + left * (1 - left) + part, mpmath.mpf(0)
                variances = [mpmath.mpf(1 + left**2) / 2] * 2
            else:
                m, r = mpmath.mpf(low**2 + high**2) / 2, (low - high) ** 2 / (2 * mpmath.pi)
                rest = mpmath.sin(t) - t * mpmath.cos(t)
                values = mpmath.sqrt(k11 * k22) * (m * mpmath.cos(t) + r * rest)
                slopes, variances = m - r * t, [m * k11, m * k22]
            k11, k12, k22 = (2 * v + bias for v in (variances[0], values, variances[1]))
            theta = theta * 2 * slopes + k12
        size = mpmath.sqrt(k11 * k22)
        return float(k12 / size), float(theta / size)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["relu", "abs", "linear", "heaviside", "sign"])
@pytest.mark.parametrize("bias", [0.0, 0.3])
@pytest.mark.parametrize("depth", [2, 5])
def test_equal_and_opposite_points_keep_their_digits(
    depth: int, bias: float, name: str, dtype: torch.dtype
) -> None:
    g = torch.Generator().manual_seed(depth)
    base, other = torch.randn(2, 3, generator=g, dtype=torch.float64).to(dtype)
    # the directions are rounded to eps, and so is the angle of points eps^(1/4) apart: a step's
    # chain of square roots makes that relative error smaller, not larger
    near = torch.finfo(dtype).eps ** 0.25 * other
    points = torch.stack([base, base, -base, 2 * base, base + near, -base + near, other])
    for twin in (None, points.clone()):
        found = limit_kernels(points, twin, depth=depth, activation=name, bias_variance=bias)
        sizes = dense_limit_kernel("nngp", depth=depth, activation=name, bias_variance=bias)
        size = sizes.diagonal(points).double().sqrt()
        for kernel, which in ((found.nngp, 0), (found.ntk, 1)):
            expected = torch.tensor(
                [
                    [exactly(p.tolist(), q.tolist(), depth, name, bias)[which] for q in points]
                    for p in points
                ],
                dtype=torch.float64,
            )
            relative = kernel.double() / (size[:, None] * size)
            worst = float((relative - expected).abs().max())
            assert worst <= 1e3 * torch.finfo(dtype).eps, (which, worst)


def test_opposite_points_lose_no_relative_digit_under_relu() -> None:
    """At the angle pi - s the kernel of ReLU is of order s^3, the slopes of order s."""
    for s in (1e-2, 1e-4, 1e-6):
        x = torch.tensor([[1.0, 0.0], [-math.cos(s), math.sin(s)]], dtype=torch.float64)
        found = limit_kernels(x, depth=2, scaling="unscaled_input")
        with mpmath.workdps(60):
            angle = mpmath.atan2(float(x[1, 1]), -float(x[1, 0]))
            value = (mpmath.sin(angle) - angle * mpmath.cos(angle)) / mpmath.pi * 2
            tangent = value - 2 * mpmath.cos(angle) * angle / mpmath.pi
        assert float(found.nngp[0, 1]) == pytest.approx(float(value), rel=1e-9)
        assert float(found.ntk[0, 1]) == pytest.approx(float(tangent), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "at_zero", "mean"),
    [("sign", 1, 0.0), ("heaviside", 0, 0.5), ("closed heaviside", 1, 0.5)],
)
def test_the_zero_vector_under_a_step(name: str, at_zero: int, mean: float) -> None:
    """It stays at 0, where the step has a value: E f(0) f(z') = f(0) E f(z')."""
    assert float(activation(name)(torch.zeros(1))) == at_zero
    x = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    expected = torch.full((3, 3), float(at_zero**2), dtype=torch.float64)
    expected[2, :2] = expected[:2, 2] = at_zero * mean
    expected[2, 2] = dual_moments(name, *torch.ones(3, 1).double()).values
    for other in (None, x.clone()):
        found = limit_kernels(x, other, depth=2, activation=name, weight_variance=1.0)
        assert torch.allclose(found.nngp, expected, atol=1e-14)
        assert torch.allclose(found.ntk, expected, atol=1e-14)
    deeper = limit_kernels(x, depth=3, activation=name, weight_variance=1.0).nngp
    again = dual_moments(name, expected[:1, 0], expected[:1, 2], expected[2:, 2])
    assert torch.allclose(deeper[0, 2], again.values[0], atol=1e-14)
