"""Curvature of a network with thousands of parameters, against curvlinops and scipy."""

from __future__ import annotations

import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.linalg.trace import trace
from torchtheory.models.problem import Problem
from torchtheory.optimization.curvature.operators import (
    empirical_fisher_operator,
    fisher_operator,
    gauss_newton_operator,
    hessian_operator,
)

curvlinops = pytest.importorskip("curvlinops")

OPERATORS = {
    "Hessian": (hessian_operator, "HessianLinearOperator"),
    "Gauss-Newton": (gauss_newton_operator, "GGNLinearOperator"),
    "empirical Fisher": (empirical_fisher_operator, "EFLinearOperator"),
}


def problem_of(*, classes: bool, chunk: int = 512) -> tuple[nn.Module, nn.Module, Problem]:
    """A convolutional network with batch normalization, its loss, and the problem of both."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(60, 1, 12, 12, dtype=torch.float64, generator=source)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(200, 12), nn.GELU(), nn.Linear(12, 4),
        ).double()  # fmt: skip
        net(x)  # running statistics of its own
    net.eval()
    y = torch.arange(60) % 4 if classes else torch.randn(60, 4, dtype=x.dtype, generator=source)
    loss = nn.CrossEntropyLoss() if classes else nn.MSELoss()
    task = "multiclass" if classes else "regression"
    return net, loss, Problem(net, (x, y), task=task, chunk=chunk, loss=loss)


def peer(name: str, net: nn.Module, loss: nn.Module, problem: Problem) -> object:
    data = [(problem.train.x, problem.train.y)]
    kind = getattr(curvlinops, name)
    return kind(net, loss, list(net.parameters()), data, check_deterministic=False)


def directions(size: int) -> Tensor:
    source = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, dtype=torch.float64, generator=source)


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("name", OPERATORS)
def test_products_are_those_of_curvlinops(name: str, classes: bool) -> None:
    net, loss, problem = problem_of(classes=classes)
    ours, theirs = OPERATORS[name]
    operator = ours(problem)
    assert operator.shape[0] > 2000
    v = directions(operator.shape[0])
    expected = peer(theirs, net, loss, problem) @ v  # type: ignore[operator]
    if name == "empirical Fisher" and not classes:
        expected /= 4  # curvlinops counts each of the four outputs as a sample
    assert torch.allclose(
        operator @ v, expected, rtol=1e-9, atol=1e-10 * float(expected.abs().max())
    )


def test_in_chunks_and_with_little_memory() -> None:
    net, loss, problem = problem_of(classes=True, chunk=16)
    problem.capacity = 10  # fewer samples than there are: nothing is kept
    v = directions(sum(p.numel() for p in net.parameters()))
    for ours, theirs in OPERATORS.values():
        expected = peer(theirs, net, loss, problem) @ v  # type: ignore[operator]
        assert torch.allclose(ours(problem) @ v, expected, atol=1e-9 * float(expected.abs().max()))


def test_fisher_is_gauss_newton_for_cross_entropy_and_half_of_it_a_class_for_squares() -> None:
    for classes, factor in ((True, 1.0), (False, 2 / 4)):
        net, loss, problem = problem_of(classes=classes)
        v = directions(sum(p.numel() for p in net.parameters()))
        expected = peer("GGNLinearOperator", net, loss, problem) @ v  # type: ignore[operator]
        assert torch.allclose(factor * (fisher_operator(problem) @ v), expected, rtol=1e-9)


def test_both_ends_of_the_spectrum_and_the_trace() -> None:
    net, loss, problem = problem_of(classes=True)
    theirs = peer("HessianLinearOperator", net, loss, problem)
    scipy_operator = theirs.to_scipy()  # type: ignore[attr-defined]
    ends = [eigsh(scipy_operator, k=2, which=w, tol=1e-7)[0] for w in ("LA", "SA")]
    expected = sorted([*ends[0], *ends[1]], reverse=True)
    found = top_eigenpairs(hessian_operator(problem), 4, which="both", tolerance=1e-6)
    assert found.values.tolist() == pytest.approx(expected, abs=1e-5)
    assert found.values[-1] < 0  # an untrained network has ways down
    # of the Gauss-Newton matrix, whose trace is a sum of squares of the Jacobian
    gauss_newton = gauss_newton_operator(problem)
    estimate = trace(gauss_newton, generator=0)
    inputs = problem.train.x[:, None]
    jacobians = torch.vmap(torch.func.jacrev(problem.function), (None, 0))(
        problem.parameters, inputs
    )
    J = torch.cat([j.reshape(len(inputs), 4, -1) for j in jacobians.values()], 2)
    p = net(problem.train.x).detach().softmax(1)
    spread = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    total = float(torch.einsum("nij,njp,nip->", spread, J, J)) / len(inputs)
    assert abs(estimate.value - total) <= 4 * estimate.standard_error + 1e-9
