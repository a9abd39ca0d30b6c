import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge

from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    NotConverged,
    ShapeMismatch,
)
from torchtheory.kernels.learning.functions import (
    from_features,
    gaussian,
    laplace,
    linear,
    polynomial,
)
from torchtheory.kernels.learning.regression import (
    SOLVERS,
    SingularKernelMatrix,
    kernel_least_squares,
    regularized_cholesky,
)


def draw(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("outputs", [None, 3])
def test_ridge_against_scikit_learn(solver, outputs):
    x, new = draw(0, 40, 3), draw(1, 11, 3)
    y = draw(2, 40) if outputs is None else draw(2, 40, outputs)
    fit = kernel_least_squares(gaussian(1.5), x, y, ridge=0.3, solver=solver, tolerance=1e-13)
    peer = KernelRidge(kernel="rbf", alpha=0.3, gamma=0.5 / 1.5**2).fit(x.numpy(), y.numpy())
    torch.testing.assert_close(
        fit.coefficients, torch.from_numpy(peer.dual_coef_), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(
        fit.predict(new), torch.from_numpy(peer.predict(new.numpy())), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(fit.fitted, fit.predict(x))


@pytest.mark.parametrize("solver", SOLVERS)
def test_two_points_by_hand(solver):
    x = torch.tensor([[0.0], [1.0]]).double()
    y = torch.tensor([1.0, 0.0]).double()
    fit = kernel_least_squares(laplace(), x, y, solver=solver)
    rho = torch.exp(torch.tensor(-1.0).double())
    expected = torch.stack([torch.ones_like(rho), -rho]) / (1 - rho**2)
    torch.testing.assert_close(fit.coefficients, expected)
    torch.testing.assert_close(fit.norm, (1 / (1 - rho**2)).sqrt())
    # without one point the other's kernel is left
    torch.testing.assert_close(fit.leave_one_out_residuals(), torch.stack([1 - 0 * rho, -rho]))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 10),
    p=st.integers(1, 15),
    outputs=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_explicit_features(n, p, outputs, seed):
    """The pseudo-inverse solution is the least-squares solution of least norm, for any n and p."""
    weight, x, y = draw(seed, 2, p), draw(seed + 1, n, 2), draw(seed + 2, n, outputs)

    def phi(v):
        return torch.tanh(3 * v @ weight)

    fit = kernel_least_squares(from_features(phi), x, y, solver="pseudo-inverse")
    kept = torch.linalg.svdvals(phi(x))
    if float(kept.min() / kept.max()) < 1e-5:
        return  # the rank itself is a matter of rounding
    theta = torch.linalg.pinv(phi(x)) @ y
    new = draw(seed + 3, 4, 2)
    torch.testing.assert_close(fit.predict(new), phi(new) @ theta, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fit.norm, theta.norm(dim=0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(phi(x).T @ (fit.fitted - y), 0 * theta, rtol=0, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 9),
    ridge=st.sampled_from([0.0, 0.1, 2.0]),
    solver=st.sampled_from(["cholesky", "pseudo-inverse"]),
    seed=st.integers(0, 10**6),
)
def test_leave_one_out(n, ridge, solver, seed):
    x, y = draw(seed, n, 3), draw(seed + 1, n, 2)
    fit = kernel_least_squares(laplace(), x, y, ridge=ridge, solver=solver)
    torch.testing.assert_close(
        fit.leave_one_out_residuals(), refitted(laplace(), x, y, ridge, solver)
    )


@pytest.mark.parametrize(("n", "copies"), [(8, 0), (3, 0), (5, 2)])
def test_leave_one_out_of_singular_matrices(n, copies):
    """Fewer features than points, more of them, and repeated points among independent ones."""
    x = draw(0, n, 4)
    x = torch.cat([x[:, :3], x[:copies, :3]]) if n != 5 else torch.cat([x, x[:copies]])
    y = draw(1, len(x))
    kernel = linear() if n != 5 else polynomial(3, 1.0)
    fit = kernel_least_squares(kernel, x, y, solver="pseudo-inverse")
    expected = refitted(kernel, x, y, 0.0, "pseudo-inverse")
    torch.testing.assert_close(fit.leave_one_out_residuals(), expected, rtol=1e-8, atol=1e-8)


def refitted(kernel, x, y, ridge, solver):
    residuals = []
    for i in range(len(x)):
        rest = torch.arange(len(x)) != i
        fit = kernel_least_squares(kernel, x[rest], y[rest], ridge=ridge, solver=solver)
        residuals.append(y[i] - fit.predict(x[i : i + 1])[0])
    return torch.stack(residuals)


def test_singular_matrices_are_named():
    x, y = torch.tensor([[1.0], [1.0], [2.0]]).double(), draw(0, 3)
    with pytest.raises(SingularKernelMatrix, match=r"ridge.*pseudo-inverse"):
        kernel_least_squares(gaussian(), x, y)
    with pytest.raises((SingularKernelMatrix, NotConverged), match="ridge"):
        kernel_least_squares(gaussian(), x, y, solver="cg")
    with pytest.raises(SingularKernelMatrix, match="rounding"):
        regularized_cholesky(gaussian(), torch.linspace(0, 1, 60, dtype=torch.float64))
    fit = kernel_least_squares(gaussian(), x, y, solver="pseudo-inverse")
    torch.testing.assert_close(fit.fitted[:2], y[:2].mean().expand(2))
    torch.testing.assert_close(fit.fitted[2], y[2])


def test_conjugate_gradients_on_many_points():
    x, y = draw(0, 600, 2), draw(1, 600)
    dense = kernel_least_squares(gaussian(0.5), x, y, ridge=1.0)
    free = kernel_least_squares(gaussian(0.5), x, y, ridge=1.0, solver="cg")
    torch.testing.assert_close(free.coefficients, dense.coefficients, rtol=1e-7, atol=1e-8)


def test_float32_stays_float32():
    x, y = draw(0, 10, 2).float(), draw(1, 10).float()
    fit = kernel_least_squares(laplace(), x, y)
    assert fit.predict(x).dtype == fit.norm.dtype == torch.float32


def test_refused():
    x, y = draw(0, 5, 2), draw(1, 5)
    with pytest.raises(InvalidInput, match="solver"):
        kernel_least_squares(gaussian(), x, y, solver="qr")
    with pytest.raises(InvalidInput, match="ridge"):
        kernel_least_squares(gaussian(), x, y, ridge=-1.0)
    with pytest.raises(ShapeMismatch, match="targets"):
        kernel_least_squares(gaussian(), x, y[:4])
    with pytest.raises(InvalidType, match="convert"):
        kernel_least_squares(gaussian(), x, y.float())
    with pytest.raises(NonFinite, match="y must be finite"):
        kernel_least_squares(gaussian(), x, y / 0)
    with pytest.raises(InvalidType, match="tensors"):
        kernel_least_squares(gaussian(), x, [1.0] * 5)
    with pytest.raises(ShapeMismatch, match="one shape"):
        kernel_least_squares(gaussian(), x, y, ridge=1.0).predict(draw(0, 3, 3))
