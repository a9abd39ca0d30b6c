import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.gaussian_process import kernels as reference
from sklearn.metrics import pairwise

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, NonFinite, ShapeMismatch
from torchtheory.kernels.learning import functions
from torchtheory.kernels.learning.functions import (
    arc_cosine,
    cosine_normalized,
    distances,
    from_features,
    gaussian,
    kernel_operator,
    laplace,
    linear,
    matern,
    polynomial,
    quadratic_features,
    squared_distances,
)
from torchtheory.linalg.eigenvalues import top_eigenpairs

NAMED = {
    "linear": linear(),
    "polynomial": polynomial(3, 0.5),
    "gaussian": gaussian(0.7),
    "laplace": laplace(2.0),
    "matern32": matern(1.5, 0.8),
    "matern52": matern(2.5, 1.3),
    "arc0": arc_cosine(0),
    "arc1": arc_cosine(1),
    "arc2": arc_cosine(2),
    "cosine": cosine_normalized(polynomial(2, 1.0)),
    "sum": linear() + 2.0 * gaussian(),
    "product": polynomial(2, 1.0) * matern(0.5),
    "warped": gaussian().after(torch.sin),
    "features": from_features(lambda x: torch.cat([x, x**2], 1)),
}


def draw(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NAMED)
@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 12), d=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_kernel_matrices_are_symmetric_and_positive_semidefinite(name, n, d, seed):
    k, x = NAMED[name], draw(seed, n, d)
    gram = k(x)
    torch.testing.assert_close(gram, gram.T, rtol=1e-12, atol=1e-12)
    trace = float(gram.trace())
    assert float(torch.linalg.eigvalsh(gram)[0]) >= -1e-10 * trace
    torch.testing.assert_close(k.diagonal(x), gram.diagonal(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(k(x, x.clone()), gram, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d", [3, 50])
def test_against_scikit_learn(d):
    x, y = draw(0, 9, d), draw(1, 6, d)
    a, b = x.numpy(), y.numpy()
    cases = [
        (gaussian(1.7), reference.RBF(1.7)(a, b)),
        (laplace(0.9), reference.Matern(0.9, nu=0.5)(a, b)),
        (matern(1.5, 2.0), reference.Matern(2.0, nu=1.5)(a, b)),
        (matern(2.5, 0.6), reference.Matern(0.6, nu=2.5)(a, b)),
        (polynomial(3, 0.5), pairwise.polynomial_kernel(a, b, degree=3, gamma=1, coef0=0.5)),
        (linear(), a @ b.T),
        (cosine_normalized(linear()), pairwise.cosine_similarity(a, b)),
    ]
    for k, expected in cases:
        torch.testing.assert_close(k(x, y), torch.from_numpy(expected), rtol=1e-11, atol=1e-11)


def test_values_by_hand():
    zero, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    assert float(gaussian()(zero, one)) == pytest.approx(0.60653, abs=5e-6)
    assert float(gaussian(2.0)(zero, one)) == pytest.approx(math.exp(-1 / 8))
    assert float(polynomial(2, 1.0)(one, 2 * one)) == 9.0
    x = torch.tensor([[3.0, 0.0], [0.0, 2.0]]).double()
    # ReLU features: half the squared norm at equal points, |x||x'|/(2 pi) at a right angle
    expected = torch.tensor([[4.5, 3 / math.pi], [3 / math.pi, 2.0]]).double()
    torch.testing.assert_close(arc_cosine()(x), expected)


@settings(max_examples=40, deadline=None)
@given(d=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_quadratic_features(d, seed):
    x, y = draw(seed, 5, d), draw(seed + 1, 4, d)
    assert quadratic_features(x).shape == (5, d * (d + 1) // 2)
    torch.testing.assert_close(
        quadratic_features(x) @ quadratic_features(y).T, (x @ y.T) ** 2, rtol=1e-12, atol=1e-11
    )


def test_algebra():
    x, y = draw(0, 4, 3), draw(1, 5, 3)
    a, b = gaussian(), polynomial(2)
    torch.testing.assert_close((a + b)(x, y), a(x, y) + b(x, y))
    torch.testing.assert_close((a * b)(x, y), a(x, y) * b(x, y))
    torch.testing.assert_close((3 * a)(x, y), (a * 3.0)(x, y))
    torch.testing.assert_close(b.after(lambda v: v[:, :2])(x, y), b(x[:, :2], y[:, :2]))
    assert repr(2 * (a + b) * linear()) == "(2 * (gaussian(1) + polynomial(2))) * linear()"


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_is_a_mean_over_a_gaussian(order):
    # polar integration over the plane, spectrally accurate for the angular part between its kinks
    angle = torch.linspace(0, 2 * math.pi, 400_001, dtype=torch.float64)[:-1]
    u = torch.stack([angle.cos(), angle.sin()])
    x = torch.tensor([[1.0, 0.2], [-0.3, 2.0], [0.5, 0.5]]).double()
    s = torch.relu(x @ u) ** order if order else (x @ u > 0).double()
    radial = stats.chi(2).moment(2 * order)
    expected = radial * s @ s.T / len(angle)
    torch.testing.assert_close(arc_cosine(order)(x), expected, rtol=1e-5, atol=1e-5)


def test_arc_cosine_of_almost_parallel_points():
    e = 1e-9
    x = torch.tensor([[1.0, 0.0], [1.0, e]]).double()
    # J_0(t)/2pi = 1/2 - t/2pi: the arc cosine of a rounded cosine would lose t altogether
    assert float(0.5 - arc_cosine(0)(x)[0, 1]) == pytest.approx(e / (2 * math.pi), rel=1e-6)
    assert float(arc_cosine(1)(x[:1], -x[:1])) == 0.0
    assert not arc_cosine(1)(torch.zeros(1, 2), torch.ones(1, 2)).any()


@pytest.mark.parametrize("d", [2, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_far_from_the_origin(d, dtype):
    x = (draw(0, 30, d) * 0.1).to(dtype)
    x[3] = x[7]
    x[5] = x[9]
    x[5, 0] += 1e-3
    shifted = x + torch.arange(d, dtype=dtype).mul(64.0)
    exact = (shifted.double()[:, None] - shifted.double()).square().sum(-1)
    got = squared_distances(shifted, shifted)
    assert got.dtype == dtype
    assert float(got[3, 7]) == 0.0
    tolerance = 1e3 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=0.0)
    torch.testing.assert_close(
        distances(shifted, shifted).double(), exact.sqrt(), rtol=tolerance, atol=0.0
    )


def test_many_near_pairs_fall_back_to_differences():
    x = 1e-4 * draw(0, 60, 40) + torch.where(torch.arange(60) % 2 == 0, 5.0, -5.0)[:, None]
    exact = (x[:, None] - x).square().sum(-1)
    torch.testing.assert_close(squared_distances(x, x), exact, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("d", [2, 40])
@pytest.mark.parametrize("k", [gaussian(3.0), matern(1.5, 3.0)])
def test_gradients(k, d):
    x, y = draw(0, 3, d).requires_grad_(), draw(1, 4, d).requires_grad_()
    assert torch.autograd.gradcheck(k, (x, y))
    same = draw(0, 3, d).requires_grad_()
    k(same).sum().backward()
    assert torch.isfinite(same.grad).all()


def test_blocks_change_nothing(monkeypatch):
    x, y = draw(0, 50, 3), draw(1, 20, 3)
    whole = {name: k(x, y) for name, k in NAMED.items()}
    blocks = functions.column_blocks
    monkeypatch.setattr(functions, "column_blocks", lambda m, n, b=0: blocks(m, n, 7 * m))
    for name, k in NAMED.items():
        torch.testing.assert_close(k(x, y), whole[name], rtol=1e-13, atol=1e-13)
        v = draw(2, 20, 4)
        torch.testing.assert_close(kernel_operator(k, x, y) @ v, whole[name] @ v)


def test_operator():
    x, y = draw(0, 30, 2), draw(1, 7, 2)
    k = gaussian()
    A = kernel_operator(k, x)
    assert A.symmetric
    torch.testing.assert_close(A.to_dense(), k(x))
    B = kernel_operator(k, x, y)
    torch.testing.assert_close(B.T.to_dense(), k(y, x))
    largest = top_eigenpairs(A, 2, tolerance=1e-9).values
    torch.testing.assert_close(
        largest.sort().values, torch.linalg.eigvalsh(k(x))[-2:], rtol=1e-7, atol=1e-9
    )


def test_images_and_numbers_are_points():
    image = draw(0, 3, 2, 4, 4)
    torch.testing.assert_close(gaussian(5.0)(image), gaussian(5.0)(image.flatten(1)))
    t = draw(1, 6)
    torch.testing.assert_close(gaussian()(t), gaussian()(t[:, None]))


def test_refused():
    x = torch.zeros(2, 3)
    with pytest.raises(ShapeMismatch, match="one shape"):
        gaussian()(x, torch.zeros(2, 4))
    with pytest.raises(InvalidType, match="convert one"):
        gaussian()(x, x.double())
    with pytest.raises(InvalidType, match="float32 or float64"):
        gaussian()(x.long())
    with pytest.raises(EmptyData):
        gaussian()(torch.zeros(0, 3))
    with pytest.raises(NonFinite):
        gaussian()(x / 0)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidInput, match="lengthscale"):
            gaussian(bad)
    with pytest.raises(InvalidInput, match="smoothness"):
        matern(1.0)
    with pytest.raises(InvalidInput, match="offset"):
        polynomial(2, -1.0)
    with pytest.raises(InvalidInput, match="degree"):
        polynomial(0)
    with pytest.raises(InvalidInput, match="above 0"):
        _ = -1.0 * gaussian()
    with pytest.raises(TypeError):
        _ = gaussian() + 1.0
    with pytest.raises(InvalidInput, match="no direction"):
        cosine_normalized(linear())(x)
    with pytest.raises(InvalidInput, match="origin"):
        arc_cosine(0)(x)
    with pytest.raises(InvalidInput, match="order"):
        arc_cosine(3)
    with pytest.raises(ShapeMismatch, match="feature map"):
        from_features(lambda v: v.sum(1))(x)
    with pytest.raises(InvalidType, match="feature map"):
        from_features(3)
