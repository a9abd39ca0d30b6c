"""The perceptron: unit, margin, algorithm, Novikoff."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.data.synthetic import separable_gaussians, unit_vectors, xor
from torchtheory.neurons.perceptron import (
    Perceptron,
    margin,
    novikoff_bound,
    perceptron_fit,
    trajectory_bounds,
)
from torchtheory.neurons.separability import NotSeparable, max_margin

seeds = st.integers(0, 10_000)


def literal(x: torch.Tensor, y: torch.Tensor, bias: bool, sweeps: int) -> tuple:
    """Algorithm 1, line by line."""
    w, b, updates = torch.zeros_like(x[0]), 0.0, []
    for _ in range(sweeps):
        mistake = False
        for i in range(len(x)):
            if torch.sign(w @ x[i] + b) != y[i]:
                w = w + y[i] * x[i]
                b = b + float(y[i]) * bias
                updates.append(i)
                mistake = True
        if not mistake:
            return w, b, updates, True
    return w, b, updates, False


def test_hesse_form_by_hand() -> None:
    unit = Perceptron(torch.tensor([3.0, 4.0]), torch.tensor(10.0))
    normal, offset = unit.hesse_form()
    assert torch.allclose(normal, torch.tensor([0.6, 0.8]))
    assert float(offset) == -2.0
    assert torch.allclose(unit.nearest_to_origin(), torch.tensor([-1.2, -1.6]))


def test_a_point_on_the_plane_is_neither() -> None:
    unit = Perceptron(torch.tensor([1.0, -1.0]), torch.tensor(0.0))
    assert unit(torch.tensor([[2.0, 2.0]])).item() == 0


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_margin_sign_is_correctness_and_scale_does_not_matter(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 3, dtype=torch.float64, generator=g)
    y = torch.randint(0, 2, (20,), generator=g) * 2 - 1
    w, b = torch.randn(3, dtype=torch.float64, generator=g), float(torch.randn(1, generator=g))
    found = margin(w, b, x, y)
    assert torch.equal(found.distances > 0, Perceptron(w, torch.tensor(b).double())(x) == y)
    assert found.minimum == float(found.distances.min()) == float(found.distances[found.tightest])
    scaled = margin(7.5 * w, 7.5 * b, x, y)
    assert torch.allclose(scaled.distances, found.distances)
    foot = x - torch.outer((x @ w + b) / (w @ w), w)
    assert torch.allclose((x - foot).norm(dim=1), found.distances.abs())


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_users_linear_head(outputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    head = nn.Linear(6, outputs, bias=bias)
    before = copy.deepcopy(head.state_dict())
    features = backbone(torch.randn(30, 4))  # still carries a graph
    unit = Perceptron.from_linear(head)
    logits = head(features)
    score = logits[:, 0] if outputs == 1 else logits[:, 1] - logits[:, 0]
    assert torch.equal(unit(features), torch.sign(score).detach())
    found = margin(unit.weight, unit.bias, features, torch.sign(score))
    assert found.separates
    assert not found.distances.requires_grad
    assert all(torch.equal(before[k], v) for k, v in head.state_dict().items())
    with pytest.raises(UnsupportedModel):
        Perceptron.from_linear(nn.Linear(6, 3))


@given(seeds, st.booleans(), st.integers(1, 60), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_the_algorithm_is_the_printed_one(seed: int, bias: bool, s: int, d: int) -> None:
    # whole numbers: no rounding, so that the two may not differ in a single step
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-3, 4, (s, d), generator=g).double()
    y = torch.randint(0, 2, (s,), generator=g).double() * 2 - 1
    fit = perceptron_fit(x, y, bias=bias, max_sweeps=15)
    w, b, updates, converged = literal(x, y, bias, 15)
    assert fit.mistakes.tolist() == updates
    assert torch.equal(fit.weight, w)
    assert float(fit.bias) == b
    assert fit.converged == converged
    counts = torch.bincount(fit.mistakes, minlength=s).double()
    assert torch.equal(fit.weight, (counts * y) @ x)
    assert torch.equal(fit.trajectory(x, y)[-1], fit.weight)


def test_look_ahead_finds_late_mistakes() -> None:
    # 1000 points are right from the second on, and the only mistakes are the first and the last
    x = torch.cat([torch.ones(1000, 1), torch.full((1, 1), -1.0)])
    y = torch.cat([torch.ones(1000), torch.tensor([-1.0])])
    assert perceptron_fit(x, y, bias=False, max_sweeps=9).updates == 1
    fit = perceptron_fit(x, y, max_sweeps=9)
    assert fit.mistakes.tolist() == [0, 1000]
    assert fit.converged
    assert fit.sweeps == 2


@given(seeds, st.floats(0.01, 1.0))
@settings(max_examples=25, deadline=None)
def test_lemmas_and_novikoff(seed: int, gap: float) -> None:
    x, y, planted, _ = separable_gaussians(40, 4, margin=gap, generator=seed)
    fit = perceptron_fit(x, y, bias=False, max_sweeps=100_000)
    assert fit.converged
    steps = fit.trajectory(x, y)
    for reference in (planted, max_margin(x, y, bias=False).weight):
        found = trajectory_bounds(steps, reference, x, y)
        assert found.holds
        assert found.margin >= gap - 1e-12 or reference is not planted
        assert bool((found.alignment_steps >= found.margin - 1e-9).all())
        assert bool((found.norm_steps <= found.radius**2 + 1e-9).all())
    bound = novikoff_bound(x, y, bias=False)
    assert fit.updates <= bound.updates <= math.floor((bound.radius / gap) ** 2 + 1e-6)
    biased = perceptron_fit(x, y, max_sweeps=100_000)
    assert biased.converged
    assert biased.updates <= novikoff_bound(x, y).updates


@pytest.mark.parametrize("d", [1, 2, 3, 7, 30, 49, 100])
def test_the_tight_family_attains_the_bound(d: int) -> None:
    x, y = unit_vectors(d)
    assert novikoff_bound(x, y, bias=False).updates == d
    assert perceptron_fit(x, y, bias=False, max_sweeps=3).updates == d


def test_novikoff_with_bias_in_numbers() -> None:
    x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    y = torch.tensor([-1, 1])
    bound = novikoff_bound(x, y)
    # the hull of (-1, -1) and (3, 1) is a segment at distance 1/√5 from the origin
    assert bound.radius == pytest.approx(math.sqrt(10))
    assert bound.margin == pytest.approx(1 / math.sqrt(5))
    assert bound.updates == 50
    assert perceptron_fit(x, y, max_sweeps=1000).updates <= bound.updates


def test_xor_hits_the_cap_and_has_no_bound() -> None:
    x, y = xor()
    fit = perceptron_fit(x, y, max_sweeps=50)
    assert not fit.converged
    assert fit.sweeps == 50
    with pytest.raises(NotSeparable):
        novikoff_bound(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    x, y, w, b = separable_gaussians(20, 3, margin=0.2, dtype=dtype)
    fit = perceptron_fit(x, y, max_sweeps=1000)
    assert fit.weight.dtype == fit.trajectory(x, y).dtype == dtype
    assert margin(w, b, x, y).distances.dtype == dtype


def test_bad_input_is_refused() -> None:
    x, y = torch.eye(3), torch.ones(3)
    with pytest.raises(TypeError):
        perceptron_fit(x, y)  # the cap is mandatory
    for cap in (0, -1, 2.5):
        with pytest.raises(InvalidInput):
            perceptron_fit(x, y, max_sweeps=cap)
    with pytest.raises(InvalidType):
        perceptron_fit(x, y, max_sweeps=True)
    with pytest.raises(LabelOutOfRange, match="-1 or 1"):
        perceptron_fit(x, torch.tensor([0, 1, 1]), max_sweeps=1)
    with pytest.raises(NonFinite):
        perceptron_fit(x / 0 - x / 0, y, max_sweeps=1)
    with pytest.raises(ShapeMismatch):
        perceptron_fit(x, y[:2], max_sweeps=1)
    with pytest.raises(ShapeMismatch):
        perceptron_fit(x[0], y, max_sweeps=1)
    with pytest.raises(ShapeMismatch):
        perceptron_fit(x, torch.ones(3, 1), max_sweeps=1)
    with pytest.raises(EmptyData):
        perceptron_fit(torch.zeros(0, 3), torch.zeros(0), max_sweeps=1)
    with pytest.raises(EmptyData):
        perceptron_fit(torch.zeros(3, 0), y, max_sweeps=1)
    with pytest.raises(InvalidType, match="double"):
        perceptron_fit(torch.eye(3, dtype=torch.int64), y, max_sweeps=1)
    with pytest.raises(InvalidType):
        perceptron_fit([[1.0]], y, max_sweeps=1)
    with pytest.raises(InvalidInput, match="weight is 0"):
        margin(torch.zeros(3), 1.0, x, y)
    with pytest.raises(InvalidInput):
        Perceptron(torch.zeros(2), torch.tensor(1.0))
    with pytest.raises(NonFinite):
        margin(torch.full((3,), float("nan")), 1.0, x, y)
    with pytest.raises(ShapeMismatch):
        margin(torch.ones(2), 0.0, x, y)
    with pytest.raises(ShapeMismatch):
        margin(torch.ones(3), torch.ones(2), x, y)
    with pytest.raises(InvalidInput, match="unit vector"):
        trajectory_bounds(torch.zeros(1, 3), torch.ones(3), x, y)
    with pytest.raises(ShapeMismatch):
        trajectory_bounds(torch.zeros(1, 2), torch.eye(3)[0], x, y)
    fit = perceptron_fit(x, y, bias=False, max_sweeps=9)
    with pytest.raises(ShapeMismatch):
        fit.trajectory(x[:1], y[:1])
