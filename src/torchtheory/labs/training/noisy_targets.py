"""Noise on the targets: what it adds to the loss, what it leaves alone, and when it is learned."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.optimization.descent.iterates import gradient_descent
from torchtheory.training.regularizers.shrinkage import early_stopping_factors


@lab(
    "noisy-targets",
    room="training",
    covers=["N-135"],
    title="Noise on real targets adds its variance to the loss and nothing to the gradient; it is learned last",
    full={"trials": 100_000},
    least={"trials": 2_500},
)
def noisy_targets(run: Run, trials: int = 10_000) -> None:
    """Smoothing for targets of any kind: noise of mean 0 is added to them.

    Under the squared loss the mean loss grows by the variance of the noise and its gradient does not
    change, so that the best prediction stays where it was. Then why training stopped early does not
    learn the noise: gradient descent fits a direction of the data in a time that is inversely
    proportional to its eigenvalue, and the signal lies in the directions of the large ones. Look at
    the times at which half of a direction is learned.

    Args:
        trials: draws of the noise.
    """
    moments(run, trials)
    times(run)


def moments(run: Run, trials: int) -> None:
    y, f, size = 1.3, 0.4, 0.8
    noise, shifted = size * run.randn(trials), size * run.randn(trials) + 0.5
    says = run.states("N-135", r"\mathbb E(y+\varepsilon-f)^2=(y-f)^2+s^2")
    bare = (y - f) ** 2
    says.mean((y + noise - f).square(), bare + size**2, against=(bare, bare + 2 * size**2), confidence=0.9999)
    says.fails("noise of mean 1/2", (y + shifted - f).square())
    point = torch.tensor(f, dtype=torch.float64, requires_grad=True)

    def slopes(added: Tensor) -> Tensor:
        """The derivative in the prediction for every draw, by autograd."""
        each = point.expand(trials).detach().requires_grad_()
        (found,) = torch.autograd.grad((y + added - each).square().sum(), each)
        return found

    says = run.states("N-135", r"\mathbb E\,\partial_f(y+\varepsilon-f)^2=\partial_f(y-f)^2")
    says.mean(slopes(noise), 2 * (f - y), against=(0.0, f - y), confidence=0.9999)
    says.fails("noise of mean 1/2", slopes(shifted))


def times(run: Run) -> None:
    n, eta = 40, 1.0
    basis = torch.linalg.qr(run.randn(n, n)).Q
    eigenvalues = torch.logspace(0, -2, n, dtype=torch.float64)
    hessian = basis @ torch.diag(eigenvalues) @ basis.T

    def objective(theta: Tensor) -> Tensor:
        gap = theta - target
        value: Tensor = ((gap @ hessian) * gap).sum(-1) / 2
        return value

    half = [round(math.log(0.5) / math.log1p(-eta * float(v))) if v < 1 else 1 for v in eigenvalues]
    target = basis @ torch.ones(n, dtype=torch.float64)
    path = gradient_descent(objective, torch.zeros(n, dtype=torch.float64), eta, max(half) + 1).points
    learned = path @ basis
    reached = [int((learned[:, k] >= 0.5).nonzero()[0]) for k in range(n)]
    says = run.states(
        "N-135",
        r"\text{half of the direction of } \lambda \text{ is learned after } \ln2/(-\ln(1-\eta\lambda)) \text{ steps}",
    )
    says.equal([r - h for r, h in zip(reached, half, strict=True)], 0.0, 1.0, where="all 40 directions, up to one step")
    other = path @ torch.linalg.qr(run.randn(n, n)).Q
    says.fails(
        "directions that are no eigenvectors",
        [
            abs(int((other[:, k].abs() >= 0.5).nonzero()[0]) - half[k])
            if bool((other[:, k].abs() >= 0.5).any())
            else n * half[-1]
            for k in range(n)
        ],
    )
    says = run.states("N-135", r"\text{learned of each direction after } t \text{ steps: } 1-(1-\eta\lambda)^t")
    t = 20
    says.equal(learned[t], early_stopping_factors(eigenvalues, eta, t), 1e-9)
    says.fails("twice the steps", learned[2 * t])
    signal = (torch.arange(n) < 5).double()
    shares = [early_stopping_factors(eigenvalues, eta, k) for k in range(0, 201, 10)]
    run.curves(
        "shares",
        list(range(0, 201, 10)),
        {
            "signal, in the 5 largest directions": [float((s.square() * signal).sum() / signal.sum()) for s in shares],
            "noise, in all directions alike": [float(s.square().mean()) for s in shares],
        },
        axes=("steps", "share that is learned"),
        caption="What gradient descent from 0 has learned of a signal in the largest directions and of noise.",
    )
