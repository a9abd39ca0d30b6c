"""Explanations from gradients, against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnknownName, UnsupportedModel
from torchtheory.explanation.methods.gradients import (
    gradient_times_input,
    integrated_gradients,
    sensitivity,
    smooth_gradient,
)
from torchtheory.explanation.methods.linear import explain_linear
from torchtheory.nets.activations.table import as_layer

from ...peak_memory import peak_of_child


def points(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_sensitivity_is_the_derivative_or_its_square() -> None:
    x = points(5, 3)
    net = as_layer(lambda t: (t.sin() * torch.tensor([1.0, 2.0, 3.0])).sum(1))
    slope = x.cos() * torch.tensor([1.0, 2.0, 3.0])
    assert torch.allclose(sensitivity(net, x).relevance, slope)
    found = sensitivity(net, x, power=2)
    assert torch.allclose(found.relevance, slope**2)
    assert found.gap is None
    with pytest.raises(InvalidInput, match="power must be one of 1, 2, not 3"):
        sensitivity(net, x, power=3)  # type: ignore[arg-type]


def test_gradient_times_input_misses_what_biases_carry() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    x = points(7, 4)
    found = gradient_times_input(net, x, 1)
    bias_gradients = []
    for row in x:
        net.zero_grad()
        net(row[None])[0, 1].backward()
        layers = (net[0], net[2])
        bias_gradients.append(sum(float(m.bias.detach() @ m.bias.grad) for m in layers))
    assert found.gap is not None
    assert torch.allclose(found.gap, torch.tensor(bias_gradients, dtype=torch.float64))


def test_smooth_gradient_of_a_sine_is_a_damped_cosine() -> None:
    r"""$\partial E\sin(x+\nu)=e^{-\sigma^2/2}\cos x$, and the standard errors cover it."""
    x, sigma = points(400, 3), 0.8
    net = as_layer(lambda t: t.sin().sum(1))
    found = smooth_gradient(net, x, sigma=sigma, samples=60, generator=3)
    truth = math.exp(-(sigma**2) / 2) * x.cos()
    ratio = (found.relevance - truth) / found.error
    # 1200 values of Student's t with 59 degrees of freedom, whose mean square is 59/57
    assert float(ratio.square().mean()) == pytest.approx(59 / 57, abs=0.2)
    assert abs(float(ratio.mean())) < 0.15
    scaled = smooth_gradient(net, x, sigma=sigma, samples=60, times_input=True, generator=3)
    assert torch.allclose(scaled.relevance, x * found.relevance)
    assert torch.allclose(scaled.error, x.abs() * found.error)


def test_smooth_gradient_has_errors_by_word() -> None:
    """The error of a word's total is not the sum of the errors of its embedding's entries."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(4, 2)

        def forward(self, words: Tensor) -> Tensor:
            e = self.embedding(words)
            return (e[..., 0] * e[..., 1]).sum(1) - (e[..., 0] ** 2).sum(1) / 2

    net = Last().double()
    x = torch.randint(0, 4, (300, 2), generator=torch.Generator().manual_seed(0))
    found = smooth_gradient(net, x, sigma=1.0, samples=50, generator=1)
    # the gradient's total is e1 - e0 + e0 with noise: e1 + ν1, of variance 1
    assert float(found.error.mean()) == pytest.approx(1 / math.sqrt(50), rel=0.03)


def test_two_draws_have_an_honest_error() -> None:
    net = as_layer(lambda t: t.square().sum(1) / 2)  # whose gradient is x + ν
    found = smooth_gradient(net, points(4000, 2), sigma=1.0, samples=2, generator=0)
    # E error² = σ²/2, from 8000 values with the mean square's standard error 0.016
    assert float(found.error.square().mean()) == pytest.approx(0.5, rel=0.08)  # type: ignore[union-attr]


def test_noise_is_a_tenth_of_the_width_of_the_inputs() -> None:
    net, x = as_layer(lambda t: t.sin().sum(1)), points(3, 4)
    found = smooth_gradient(net, x, samples=3, generator=0)
    tenth = float(x.max() - x.min()) / 10
    same = smooth_gradient(net, x, sigma=tenth, samples=3, generator=0)
    assert torch.equal(found.relevance, same.relevance)


def test_noise_needs_a_size() -> None:
    net = nn.Linear(2, 1)
    with pytest.raises(InvalidInput, match="give sigma"):
        smooth_gradient(net, torch.ones(1, 2))
    with pytest.raises(InvalidInput, match="sigma must be a positive number"):
        smooth_gradient(net, torch.ones(1, 2), sigma=0)
    with pytest.raises(InvalidInput, match="samples must be a whole number >= 2"):
        smooth_gradient(net, torch.ones(1, 2), samples=1)


def test_the_path_of_a_polynomial_is_integrated_exactly() -> None:
    """A Gauss rule of k nodes is exact for a score of degree 2k on the way, not for 2k + 1."""
    x, start = points(6, 3), points(6, 3, 1)
    for k in (1, 2, 3):
        net = as_layer(lambda t, k=k: (t.sum(1)) ** (2 * k))
        found = integrated_gradients(net, x, baseline=start, steps=k)
        size = found.score.abs() + found.reference.abs()  # type: ignore[union-attr]
        assert float((found.gap / size).abs().max()) < 1e-12  # type: ignore[operator]
        # a function of the sum: relevance is shared by how far each entry moved
        share = (x - start) / (x - start).sum(1, keepdim=True)
        wanted = share * (x.sum(1) ** (2 * k) - start.sum(1) ** (2 * k))[:, None]
        assert torch.allclose(found.relevance, wanted, rtol=1e-9)
        odd = as_layer(lambda t, k=k: (t.sum(1)) ** (2 * k + 1))
        rest = integrated_gradients(odd, x, baseline=start, steps=k)
        assert float((rest.gap / size).abs().max()) > 1e-3  # type: ignore[operator]


def test_integrated_gradients_by_hand() -> None:
    x = torch.tensor([[2.0, 3.0], [-1.0, 4.0]], dtype=torch.float64)
    product = as_layer(lambda t: t[:, 0] * t[:, 1])
    found = integrated_gradients(product, x)
    assert torch.allclose(found.relevance, torch.tensor([[3.0, 3.0], [-2.0, -2.0]]).double())
    assert torch.equal(found.reference, torch.zeros(2).double())
    # from (1, 0): the way is (1 + t (x-1), t y), so R = ((x-1) y / 2, y (1 + x) / 2)
    found = integrated_gradients(product, x, baseline=torch.tensor([1.0, 0.0]))
    wanted = torch.tensor([[1.5, 4.5], [-4.0, 0.0]]).double()
    assert torch.allclose(found.relevance, wanted)


def test_a_background_averages_baselines() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x, background = points(4, 3), points(5, 3, 1)
    found = integrated_gradients(net, x, background=background)
    each = [integrated_gradients(net, x, baseline=b) for b in background]
    assert torch.allclose(found.relevance, torch.stack([e.relevance for e in each]).mean(0))
    assert torch.allclose(found.reference, net(background).mean().detach().expand(4))
    assert float(found.gap.abs().max()) < 1e-9  # type: ignore[union-attr]
    own = integrated_gradients(net, x, baseline=x.flip(0))
    assert torch.allclose(own.reference, own.score.flip(0))


def _much() -> tuple[nn.Module, Tensor]:
    integrated_gradients(nn.Linear(2, 1), torch.ones(1, 2), steps=1)
    return nn.Linear(400, 1), torch.randn(500, 400)


def _from_many_baselines(given: tuple[nn.Module, Tensor], _: int) -> None:
    net, x = given
    integrated_gradients(net, x, background=x, steps=1)


def test_many_baselines_need_no_table_of_all_ways() -> None:
    table = 4 * 500 * 500 * 400  # bytes of a start for each sample and baseline
    assert peak_of_child(_from_many_baselines, _much, 0) < table / 4


def test_midpoints_are_of_second_order() -> None:
    x = points(3, 4)
    net = as_layer(lambda t: t.exp().sum(1))
    gaps = [
        integrated_gradients(net, x, steps=s, rule="midpoint").gap.abs()  # type: ignore[union-attr]
        for s in (8, 16)
    ]
    assert torch.allclose(gaps[0] / gaps[1], torch.full((3,), 4.0).double(), rtol=0.02)


def test_refused_baselines() -> None:
    net, x = nn.Linear(3, 1), torch.randn(4, 3)
    with pytest.raises(ShapeMismatch, match="of each of the 4 that are explained"):
        integrated_gradients(net, x, baseline=torch.zeros(2, 3))
    with pytest.raises(InvalidInput, match="any number of them, not a float32 tensor"):
        integrated_gradients(net, x, baseline=torch.zeros(4, 5))
    with pytest.raises(InvalidInput, match="a baseline or a background, not both"):
        integrated_gradients(net, x, baseline=1.0, background=x)
    with pytest.raises(UnknownName, match="no rule is named 'simpson'"):
        integrated_gradients(net, x, rule="simpson")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be finite"):
        integrated_gradients(net, x, background=torch.full((2, 3), math.nan))


def test_a_linear_score_explains_itself() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)).double()
    x = points(6, 4)
    weight = (net[1].weight @ net[0].weight)[1]
    found = explain_linear(net, x, 1)
    assert torch.allclose(found.relevance, weight * x)
    assert torch.allclose(found.reference, net(torch.zeros(1, 4).double())[:, 1].expand(6))
    with pytest.raises(UnsupportedModel, match="where a linear one would be"):
        explain_linear(nn.Sequential(nn.Linear(4, 2), nn.Tanh()).double(), x, 1)
    bent = as_layer(lambda t: t.sum(1) + 1e-6 * t.square().sum(1))
    with pytest.raises(UnsupportedModel, match="where a linear one would be"):
        explain_linear(bent, x)
    # float32 rounding is not a nonlinearity
    explain_linear(nn.Linear(2000, 1), torch.randn(9, 2000))
