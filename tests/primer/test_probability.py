import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch
from torchtheory.primer.finite_probability import (
    SigmaAlgebra,
    expectation,
    image_measure,
    measure_failures,
    sigma_algebra_failures,
    tail_expectation,
    unmeasurable_event,
)
from torchtheory.primer.function_spaces import (
    fourier_transform,
    lebesgue_norm,
    slobodeckij_seminorm,
    sobolev_norm,
)
from torchtheory.primer.gaussians import Gaussian, moments_by_quadrature

DICE = list(itertools.product(range(1, 7), repeat=2))
families = st.lists(st.sets(st.integers(0, 4)), max_size=3)
laws = st.dictionaries(st.integers(-9, 9), st.integers(1, 20).map(Fraction), min_size=1, max_size=6)


def normalized(weights):
    total = sum(weights.values())
    return {x: w / total for x, w in weights.items()}


class TestSigmaAlgebra:
    @given(families)
    def test_generated(self, events):
        algebra = SigmaAlgebra.generated_by(range(5), events)
        listed = list(algebra.events())
        assert not sigma_algebra_failures(range(5), listed)
        assert len(set(listed)) == len(algebra) == 2 ** len(algebra.atoms)
        assert all(event in algebra for event in events)

    @given(families)
    def test_smallest(self, events):
        space = frozenset(range(5))
        closure = {frozenset(), space, *map(frozenset, events)}
        while True:
            bigger = closure | {space - a for a in closure}
            bigger |= {a | b for a in bigger for b in bigger}
            if bigger == closure:
                break
            closure = bigger
        assert closure == set(SigmaAlgebra.generated_by(range(5), events).events())

    def test_failures(self):
        found = sigma_algebra_failures({1, 2, 3}, [{1}, {2}, {4}])
        assert len(found) == 5

    def test_bad_input(self):
        with pytest.raises(EmptyData):
            SigmaAlgebra.power_set([])
        with pytest.raises(InvalidInput, match="outside"):
            SigmaAlgebra.generated_by([1], [{2}])
        with pytest.raises(InvalidInput, match="2\\^36"):
            list(SigmaAlgebra.power_set(DICE).events())


class TestMeasures:
    @given(st.lists(st.integers(1, 9), min_size=3, max_size=3))
    def test_weights_make_a_measure(self, weights):
        algebra = SigmaAlgebra.power_set(range(3))

        def probability(event):
            return Fraction(sum(weights[w] for w in event), sum(weights))

        assert measure_failures(algebra, probability) == []

    def test_failures(self):
        algebra = SigmaAlgebra.power_set(range(3))
        assert len(measure_failures(algebra, lambda e: Fraction(-len(e), 3))) == 2
        assert measure_failures(algebra, lambda e: math.nan)

    def test_two_dice(self):
        assert unmeasurable_event(sum, SigmaAlgebra.power_set(DICE)) is None
        assert unmeasurable_event(sum, SigmaAlgebra.generated_by(DICE)) == {(1, 1)}
        law = image_measure(sum, {w: Fraction(1, 36) for w in DICE})
        assert law == {s: Fraction(6 - abs(s - 7), 36) for s in range(2, 13)}

    @given(laws)
    def test_tails(self, weights):
        law = normalized(weights)
        upper, lower = tail_expectation(law)
        assert upper - lower == expectation(law)

    def test_sample(self):
        sample = stats.expon.rvs(size=50, random_state=0)
        law = dict.fromkeys(sample.tolist(), 1 / 50)
        assert tail_expectation(law)[0] == pytest.approx(sample.mean(), rel=1e-12)

    def test_bad_input(self):
        with pytest.raises(InvalidInput, match="sum to"):
            expectation({1: 0.5})
        with pytest.raises(InvalidInput, match="negative"):
            expectation({1: 1.5, 2: -0.5})
        with pytest.raises(EmptyData):
            tail_expectation({})


class TestGaussians:
    @settings(max_examples=15, deadline=None)
    @given(st.integers(0, 2**31), st.integers(1, 4))
    def test_density_against_scipy(self, seed, k):
        g = torch.Generator().manual_seed(seed)
        G = torch.randn(k, k + 2, dtype=torch.float64, generator=g)
        law = Gaussian(torch.randn(k, dtype=torch.float64, generator=g), G @ G.T)
        x = law.sample(5, generator=g)
        reference = stats.multivariate_normal(law.mean.numpy(), law.covariance.numpy())
        assert np.allclose(law.log_density(x), reference.logpdf(x.numpy()).reshape(-1))
        torch_law = torch.distributions.MultivariateNormal(law.mean, law.covariance)
        assert torch.allclose(law.log_density(x), torch_law.log_prob(x))

    def test_affine_by_hand(self):
        law = Gaussian(torch.tensor([1.0]).double(), torch.tensor([[4.0]]).double())
        image = law.affine(torch.tensor([[3.0]]).double(), torch.tensor([5.0]).double())
        assert (image.mean.item(), image.covariance.item()) == (8.0, 36.0)
        t = torch.tensor([[0.1]]).double()
        value = image.characteristic_function(t)
        assert complex(value.item()) == pytest.approx(np.exp(0.8j - 0.18))

    def test_samples(self):
        law = Gaussian(torch.tensor([1.0, 2.0]).double(), torch.tensor([[2.0, 1], [1, 1]]).double())
        x = law.sample(100_000, generator=3)
        assert torch.allclose(x.mean(0), law.mean, atol=0.03)
        assert torch.allclose(torch.cov(x.T), law.covariance, atol=0.05)
        assert torch.equal(x, law.sample(100_000, generator=3))
        mass, mean, covariance = moments_by_quadrature(law)
        assert mass == pytest.approx(1.0, abs=1e-10)
        assert torch.allclose(mean, law.mean)
        assert torch.allclose(covariance, law.covariance)

    def test_ellipse_encloses_its_mass(self):
        law = Gaussian(torch.zeros(2).double(), torch.diag(torch.tensor([4.0, 1.0])).double())
        x = law.sample(20_000, generator=0)
        radius = stats.chi2.ppf(0.9, 2)
        curve = law.ellipse(0.9)
        quadratic = curve[:, 0] ** 2 / 4 + curve[:, 1] ** 2
        assert torch.allclose(quadratic, torch.full_like(quadratic, radius))
        inside = (x[:, 0] ** 2 / 4 + x[:, 1] ** 2 <= radius).double().mean()
        assert abs(float(inside) - 0.9) < 0.01

    def test_bad_input(self):
        zero, one = torch.zeros(2), torch.eye(2)
        with pytest.raises(InvalidInput, match="negative eigenvalue"):
            Gaussian(zero, -one)
        with pytest.raises(ShapeMismatch):
            Gaussian(torch.zeros(3), one)
        with pytest.raises(InvalidInput, match="no density"):
            Gaussian(zero, torch.ones(2, 2)).log_density(torch.zeros(1, 2))
        with pytest.raises(ShapeMismatch):
            Gaussian(zero, one).affine(torch.ones(2, 3), zero)
        with pytest.raises(InvalidInput):
            Gaussian(torch.zeros(3), torch.eye(3)).ellipse()
        with pytest.raises(InvalidInput):
            moments_by_quadrature(Gaussian(torch.zeros(3), torch.eye(3)))


class TestFunctionSpaces:
    @pytest.mark.parametrize("start", [-8.0, -9.5])
    def test_transform_of_a_shifted_gaussian(self, start):
        x = start + torch.arange(320).double() / 20
        xi, transform = fourier_transform(torch.exp(-torch.pi * (x - 0.3) ** 2), start, 1 / 20)
        exact = torch.exp(-torch.pi * xi**2) * torch.exp(-2j * torch.pi * 0.3 * xi)
        assert float((transform - exact).abs().max()) < 1e-12

    def test_sobolev_of_a_power(self):
        value = sobolev_norm(lambda x: x**2, 1, 2, 0.0, 1.0)
        assert value**2 == pytest.approx(1 / 5 + 4 / 3)
        assert sobolev_norm(lambda x: x**2, 0, math.inf, 0.0, 1.0) == pytest.approx(1.0, abs=1e-2)

    @settings(max_examples=15, deadline=None)
    @given(st.floats(0.1, 0.9), st.floats(1, 4), st.floats(0.5, 3))
    def test_seminorm_scales(self, s, p, width):
        def f(x):
            return torch.sin(x)

        one = slobodeckij_seminorm(f, s, p, 0.0, 1.0, panels=16)
        other = slobodeckij_seminorm(lambda x: f(x / width), s, p, 0.0, width, panels=16)
        assert other == pytest.approx(one * width ** (1 / p - s), rel=1e-5)

    def test_against_a_brute_force_sum(self):
        # s = 1/4, p = 2 and f = x²: the integrand (x+y)² |x-y|^{1/2} is harmless
        x = (torch.arange(2000).double() + 0.5) / 2000
        grid = (x[:, None] + x) ** 2 * (x[:, None] - x).abs() ** 0.5
        found = slobodeckij_seminorm(torch.square, 0.25, 2, 0.0, 1.0)
        assert found**2 == pytest.approx(float(grid.mean()), rel=1e-4)

    @pytest.mark.parametrize("jump", [0.1234567, 0.5, 2 / 3])
    @pytest.mark.parametrize(
        ("s", "p"), [(0.5, 2), (0.7, 2), (0.25, 4), (0.9, 1.5), (0.3, math.inf)]
    )
    def test_a_jump_has_no_finite_seminorm_from_sp_1_on(self, jump, s, p):
        def step(x):
            return torch.sign(x - jump) + torch.sin(3 * x)

        assert slobodeckij_seminorm(step, s, p, 0.0, 1.0) == math.inf

    @pytest.mark.parametrize(("s", "p"), [(0.3, 2), (0.45, 2), (0.2, 4), (0.9, 1)])
    def test_a_jump_below_sp_1_and_what_is_smoother(self, s, p):
        assert math.isfinite(slobodeckij_seminorm(torch.sign, s, p, -1.0, 1.0))
        for function in (torch.sin, torch.abs, torch.zeros_like, lambda x: torch.sin(300 * x)):
            for smoothness in (s, 0.99):
                assert math.isfinite(slobodeckij_seminorm(function, smoothness, p, -1.0, 1.0))

    def test_powers_on_both_sides_of_their_smoothness(self):
        # |x|^a is in W^{s,p} if and only if (s - a) p < 1, and Hölder of order a itself
        for a, s, p in ((0.2, 0.6, 2.0), (0.3, 0.5, 4.0), (0.1, 0.5, 2.4)):
            assert math.isfinite(slobodeckij_seminorm(lambda x, a=a: x.abs() ** a, s, p, -1.0, 1.0))
        for a, s, p in ((0.1, 0.7, 2.0), (0.3, 0.6, 4.0)):
            assert slobodeckij_seminorm(lambda x, a=a: x.abs() ** a, s, p, -1.0, 1.0) == math.inf
        root = slobodeckij_seminorm(torch.sqrt, 0.5, math.inf, 0.0, 1.0)
        assert root == pytest.approx(1, abs=0.05)
        assert slobodeckij_seminorm(torch.sqrt, 0.6, math.inf, 0.0, 1.0) == math.inf
        assert sobolev_norm(torch.abs, 1.5, 2, -1.0, 1.0) == math.inf
        assert math.isfinite(sobolev_norm(torch.abs, 1.4, 2, -1.0, 1.0))

    def test_bad_input(self):
        with pytest.raises(InvalidInput):
            lebesgue_norm(torch.sin, 0.5, 0.0, 1.0)
        with pytest.raises(InvalidInput):
            slobodeckij_seminorm(torch.sin, 1.0, 2, 0.0, 1.0)
        with pytest.raises(InvalidInput):
            sobolev_norm(torch.sin, -1, 2, 0.0, 1.0)
        with pytest.raises(InvalidInput):
            lebesgue_norm(torch.sin, 2, 1.0, 0.0)
        with pytest.raises(ShapeMismatch):
            fourier_transform(torch.ones(3, 4), 0.0, 1.0)
        with pytest.raises(InvalidInput):
            fourier_transform(torch.ones(3), 0.0, 0.0)
