"""A loss and a regularizer: derivatives of their sum, and two cases with a closed form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.models.model import PureFunction, flatten, unflatten
from torchtheory.neurons.autoencoder import low_rank
from torchtheory.primer.differences import gradient_check, hessian_vector_product
from torchtheory.training.regularizers.shrinkage import shrink


@lab(
    "regularized-training-problem",
    room="optimization",
    covers=["B-27"],
    title="Loss plus regularizer: derivatives for any network, closed forms for ridge and PCA",
    full={"rows": 20, "columns": 12},
    least={"rows": 2, "columns": 2},
)
def regularized_training_problem(run: Run, rows: int = 8, columns: int = 6) -> None:
    """Training minimizes a loss of the outputs plus λ times a regularizer of the weights.

    For a network with a sigmoid, max-pooling and ReLU the gradient and a product with the Hessian
    of that sum are compared with difference quotients. Two cases are solved in closed form: ridge
    regression, where the solution is least squares shrunk along the eigenvectors of the inputs,
    and the best factorization with orthonormal columns, principal component analysis. Look at how
    far random subspaces stay behind the leading one.

    Args:
        rows: of the matrix.
        columns: of the matrix.
    """
    network_derivatives(run)
    ridge_regression(run)
    Y = run.randn(rows, columns) * 2.0 ** -torch.arange(columns).double()
    tails, others = principal_components(run, Y)
    run.curves(
        "subspaces",
        range(1, len(tails) + 1),
        {"leading singular vectors": tails, "best of 100 random subspaces": others},
        axes=("dimensions r", "what is left of the squared norm"),
        log="y",
        caption="What a subspace of r dimensions leaves of ‖Y‖²: the leading singular vectors and "
        "the best of 100 random subspaces.",
    )


def network_derivatives(run: Run) -> None:
    net = nn.Sequential(
        nn.Linear(4, 8), nn.Sigmoid(), nn.Unflatten(1, (2, 4)), nn.MaxPool1d(2), nn.Flatten(),
        nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3),
    ).double()  # fmt: skip
    function = PureFunction(net)
    x, y, weight = run.randn(9, 4), run.randn(9, 3), 0.3
    theta = 0.7 * run.randn(function.count)

    def fit(point: Tensor) -> Tensor:
        return (function(unflatten(point, function.parameters), x) - y).square().sum()

    def objective(point: Tensor) -> Tensor:
        return fit(point) + weight * point.square().sum()

    checked = gradient_check(objective, theta)
    says = run.states(
        "B-27",
        r"\nabla_W[L(\Phi(X,W),Y)+\lambda\Theta(W)] \text{ against difference quotients: largest relative error}",
    )
    says.equal(
        checked.error, within=1e-7, where=f"sigmoid, max-pooling and ReLU; {len(flatten(function.parameters))} weights"
    )
    says.fails(
        "the regularizer is left out of the gradient", gradient_check(objective, theta, torch.func.grad(fit)).error
    )
    direction = run.randn(len(theta))
    step = 1e-5
    slope = torch.func.grad(objective)
    quotient = (slope(theta + step * direction) - slope(theta - step * direction)) / (2 * step)
    product = hessian_vector_product(objective, theta, direction)
    says = run.states("B-27", r"\nabla^2[L+\lambda\Theta]\,v \text{ against difference quotients of the gradient}")
    says.equal((product - quotient).abs().max() / product.abs().max(), within=1e-6)
    says.fails(
        "the regularizer is left out",
        (hessian_vector_product(fit, theta, direction) - quotient).abs().max() / product.abs().max(),
    )


def ridge_regression(run: Run) -> None:
    weight = 0.3
    X, T = run.randn(5, 12), run.randn(3, 12)  # samples are columns
    gram = X @ X.T

    def ridge_objective(W: Tensor) -> Tensor:
        return (T - W.T @ X).square().sum() + weight * W.square().sum()

    ridge_gradient = torch.func.grad(ridge_objective)
    ridge = torch.linalg.solve(gram + weight * torch.eye(5).double(), X @ T.T)
    half = torch.linalg.solve(gram + weight / 2 * torch.eye(5).double(), X @ T.T)
    says = run.states(
        "B-27", r"W=(XX^\top+\lambda I)^{-1}XY^\top \text{ is stationary for } \|Y-W^\top X\|_F^2+\lambda\|W\|_F^2"
    )
    says.equal(ridge_gradient(ridge).abs().max(), within=1e-11)
    says.fails("half of λ, as if the loss had a factor ½", ridge_gradient(half))
    fitted = torch.linalg.lstsq(X.T, T.T).solution
    shrunk = torch.stack([shrink(2 * gram, w, 2 * weight).minimizer for w in fitted.T], 1)
    says = run.states(
        "B-27",
        r"\text{it is the least squares solution shrunk by } \lambda_i/(\lambda_i+\lambda) "
        r"\text{ along the eigenvectors of } XX^\top",
    )
    says.equal((shrunk - ridge).abs().max(), within=1e-10)
    says.fails("least squares itself", (fitted - ridge).abs().max())


def principal_components(run: Run, Y: Tensor) -> tuple[list[float], list[float]]:
    """‖Y - W₁W₂ᵀ‖² with W₁ᵀW₁ = I: for given W₁ the best W₂ is YᵀW₁."""

    def remaining(basis: Tensor) -> Tensor:
        return (Y - basis @ (basis.T @ Y)).square().sum()

    ranks = range(1, min(Y.shape))
    sigma = torch.linalg.svdvals(Y)
    tails = [float(sigma[r:].square().sum()) for r in ranks]
    vectors = torch.linalg.svd(Y, full_matrices=False)[0]
    reached = [remaining(vectors[:, :r]) for r in ranks]
    others = [
        torch.stack([remaining(torch.linalg.qr(run.randn(len(Y), r))[0]) for _ in range(100)]).min() for r in ranks
    ]
    says = run.states(
        "B-27",
        r"\min_{W_1^\top W_1=I}\|Y-W_1W_2^\top\|_F^2=\sum_{i>r}\sigma_i^2 \text{ at the leading singular vectors}",
    )
    says.equal(torch.stack(reached), tails, 1e-11)
    says.fails("the best of 100 random orthonormal bases", torch.stack(others))
    says = run.states("B-27", r"\|Y-W_1W_2^\top\|_F^2\ge\sum_{i>r}\sigma_i^2 \text{ for every orthonormal } W_1")
    says.at_least(torch.stack(others), [low_rank(Y, r).error ** 2 for r in ranks], 1e-12)
    says.fails("one component more than it counts", torch.stack([remaining(vectors[:, : r + 1]) for r in ranks]))
    return tails, [float(v) for v in others]
