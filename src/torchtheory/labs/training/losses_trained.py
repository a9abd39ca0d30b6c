"""Softmax regression in two forms, and one network trained with each of twelve losses."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.data.real import digits, split
from torchtheory.labs.engine import COLORS, Run, clopper_pearson
from torchtheory.primer.differences import numerical_jacobian
from torchtheory.training.losses.classification import LOSSES, classification_loss
from torchtheory.training.losses.cross_entropy import softmax_regression_gradient, softmax_regression_loss


def softmax_regression(run: Run, samples: int) -> None:
    """Cross-entropy of a linear softmax: two forms, one gradient."""
    x, y = run.randn(samples, 5), torch.randint(0, 3, (samples,), generator=run.generator)
    theta = run.randn(3, 5)
    says = run.states("L-058", r"-\sum_iy_i\ln\sigma_i(x)=-\sum_iy_ix^\top\theta_i+\ln\sum_i\exp(x^\top\theta_i)")
    says.equal(softmax_regression_loss(theta, x, y), F.cross_entropy(x @ theta.T, y), 1e-12)
    says.fails("without the normalizer", -(x @ theta.T).gather(1, y[:, None]).mean())
    gradient = softmax_regression_gradient(theta, x, y)
    leaf = theta.clone().requires_grad_()
    (autograd,) = torch.autograd.grad(F.cross_entropy(x @ leaf.T, y), leaf)
    rows = F.one_hot(y, 3).double()
    says = run.states("L-058", r"\nabla_{\theta_i}\ell=(\sigma_i-y_i)x")
    says.equal(gradient, autograd, 1e-12)
    says.fails("y - σ", (rows - torch.softmax(x @ theta.T, 1)).T @ x / samples)
    quotients = numerical_jacobian(lambda t: softmax_regression_loss(t, x, y), theta)
    run.states("L-058", r"\nabla_\theta\ell \text{ is what difference quotients give}").equal(gradient, quotients, 1e-8)
    says = run.states("L-058", r"\sum_i\nabla_{\theta_i}\ell=0")
    says.equal(gradient.sum(0), within=1e-12)
    says.fails("sigmoids in place of the softmax", ((torch.sigmoid(x @ theta.T) - rows).T @ x / samples).sum(0))


def compare_on_digits(run: Run, steps: int, hidden: int) -> dict[str, tuple[list[int], Tensor, Tensor]]:
    """One network, twelve losses and the printed thirteenth, clean and noisy labels: one batched
    training."""
    (x, y), (test_x, test_y) = split(*digits(torch.float64), 0.25, run.generator)
    noisy = torch.where(run.rand(len(y)) < 0.4, torch.randint(0, 10, y.shape, generator=run.generator), y)
    names = [*LOSSES, "squared log, printed"]
    functions = [*(loss.function for loss in LOSSES.values())]
    printed = classification_loss("squared log").function
    functions.append(lambda o, t: -printed(o, t))
    slots = 2 * len(names)  # clean first, then noisy
    start = [
        run.randn(64, hidden) / 8,
        torch.zeros(1, hidden).double(),
        run.randn(hidden, 10) / math.sqrt(hidden),
        torch.zeros(1, 10).double(),
    ]
    weights = [torch.stack([w] * slots).requires_grad_() for w in start]
    optimizer = torch.optim.Adam(weights, lr=0.01)

    def forward(inputs: Tensor) -> Tensor:
        w1, b1, w2, b2 = weights
        return torch.relu(inputs @ w1 + b1) @ w2 + b2

    marks: list[int] = []
    seen: list[Tensor] = []
    for step in run.track(range(steps + 1), "digits"):
        if step % max(1, steps // 15) == 0:
            with torch.no_grad():
                right = (forward(test_x).argmax(-1) == test_y).double().mean(1)
            marks.append(step)
            seen.append(right)
        batch = torch.randint(0, len(x), (64,), generator=run.generator)
        targets = [F.one_hot(t[batch], 10).double() for t in (y, noisy)]
        outputs = forward(x[batch])
        total = torch.stack(
            [functions[i % len(names)](outputs[i], targets[i // len(names)]).mean() for i in range(slots)]
        ).sum()
        for w, gradient in zip(weights, torch.autograd.grad(total, weights), strict=True):
            w.grad = gradient
        optimizer.step()
    curves = torch.stack(seen)
    ends = (curves[-1] * len(test_y)).round().long().tolist()
    chance = float(torch.bincount(test_y).max()) / len(test_y)
    low = [clopper_pearson(c, len(test_y), 0.999).low for c in ends]
    says = run.states(
        "S-20",
        r"\text{trained with each but L1, the network beats the commonest class: lower end of the }"
        r"99.9\%\text{ interval of its test accuracy, minus the frequency of that class}",
    )
    says.above([end - chance for name, end in zip(LOSSES, low, strict=False) if name != "L1"], 0)
    says.fails("the squared log loss with the printed sign", low[len(LOSSES)] - chance)
    run.table(
        "digits",
        ["loss", "test accuracy, clean labels", "two fifths random"],
        [(name, curves[-1, i], curves[-1, len(names) + i]) for i, name in enumerate(names)],
        caption=f"64-{hidden}-10 ReLU network, Adam, {steps} steps of 64 digits, the same start "
        f"and batches for all; {len(test_y)} test digits",
    )
    run.note(
        "L1 is left out of the claim on digits: outputs without a majority class are pulled to 0, "
        f"and after {steps} steps its test accuracy is {float(curves[-1, 0]):.2f}."
    )
    return {name: (marks, curves[:, i], curves[:, len(names) + i]) for i, name in enumerate(names)}


def line_style(i: int) -> dict[str, Any]:
    return {"color": COLORS[i % len(COLORS)], "linestyle": ("-", "--")[i // len(COLORS)]}


def plot_training(axes: Any, curves: dict[str, tuple[list[int], Tensor, Tensor]]) -> None:
    for i, (name, (marks, clean, noisy)) in enumerate(curves.items()):
        for axis, accuracy in zip(axes[0], (clean, noisy), strict=True):
            axis.plot(marks, accuracy, label=name, **line_style(i))
    titles = ("clean labels", "two fifths of the labels random")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set(xlabel="step", ylabel="test accuracy", title=title, ylim=(-0.02, 1.02))
    axes[0, 1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
