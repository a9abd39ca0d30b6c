"""Regularizing the size of outputs: what the term is, and where it leads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

from torchtheory.generalization.complexity.rademacher import exact_rademacher, finite_class
from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import mlp
from torchtheory.training.regularizers.darc import (
    STRENGTH,
    darc1,
    darc_with_signs,
    free_optimum,
)


@lab(
    "darc-regularizer",
    room="generalization",
    covers=["B-23"],
    title="A penalty on the largest output, above a Rademacher complexity whatever the signs",
    errata=["darc-risk-of-right-answers"],
    full={"batches": 500, "samples": 14},
    # the absolute value takes one sign for free: two have to be fixed before anything is lost
    least={"batches": 2, "samples": 4},
    most={"samples": 16},
)
def darc_regularizer(run: Run, batches: int = 50, samples: int = 8) -> None:
    """DARC estimates the complexity of the outputs with random signs; DARC1 bounds it without.

    For every sign vector of small batches DARC1 is at least DARC; over all signs DARC has the
    empirical Rademacher complexity of the outputs as its mean once the absolute value is dropped.
    DARC1 is homogeneous in the last layer, its gradient lives on one class, and it changes when a
    number is added to all logits, which cross-entropy does not notice. Where logits may be chosen
    freely, cross-entropy with DARC1 has a minimum in closed form; look at the figure for the size
    of outputs it leads to, whatever the data.

    Args:
        batches: random batches that the bound is checked on.
        samples: in a batch, 4 to 16, so that all signs can be listed.
    """
    below_darc1(run, batches, samples)
    complexity(run, batches, samples)
    homogeneous(run, batches)
    gradient(run, batches)
    shifted(run, batches)
    best_logits(run)
    wrong_risk(run)


def below_darc1(run: Run, batches: int, samples: int) -> None:
    signs = all_labelings(samples)
    fixed = signs[(signs[:, : samples // 2] > 0).all(1)]
    bound, printed, inside, gaussian, halved = [], [], [], [], []
    for _ in range(max(2, batches // 5)):
        z = run.randn(samples, 4)
        bound.append(darc1(z))
        printed.append(torch.stack([darc_with_signs(z, s) for s in signs]).max())
        inside.append(torch.stack([darc_with_signs(z, s, absolute="inside") for s in signs]).max())
        halved.append(torch.stack([darc_with_signs(z, s, absolute="inside") for s in fixed]).max())
        wild = signs * run.randn(*signs.shape)
        gaussian.append(torch.stack([darc_with_signs(z, s, absolute="inside") for s in wild]).max())
    says = run.states(
        "B-23",
        r"\max_{\xi\in\{\pm1\}^m}\tfrac\lambda m\bigl|\max_k\sum_i\xi_iz_k(x_i)\bigr|\le"
        r"\tfrac\lambda m\max_k\sum_i|z_k(x_i)|, \text{ and with } \max_k|\cdot|",
    )
    says.at_most(
        torch.stack(printed + inside),
        torch.stack(bound + bound),
        1e-12,
        where=f"all {len(signs)} sign vectors of {len(bound)} batches",
    )
    says.fails("Gaussian numbers in place of signs", torch.stack(gaussian), promised=torch.stack(bound))
    says = run.states("B-23", r"\max_\xi\max_k\bigl|\sum_i\xi_iz_k(x_i)\bigr|=\max_k\sum_i|z_k(x_i)|")
    says.equal(
        torch.stack(inside),
        torch.stack(bound),
        1e-12,
        where="DARC1 is the largest value DARC can take, not only above it",
    )
    says.fails("signs of which the first half is 1", torch.stack(halved))


def complexity(run: Run, batches: int, samples: int) -> None:
    signs = all_labelings(samples)
    means: dict[str, list[float]] = {"none": [], "outside": [], "inside": []}
    one, both = [], []
    for _ in range(max(2, batches // 5)):
        z = run.randn(samples, 4)
        one.append(exact_rademacher(finite_class(z.mT), samples))
        both.append(exact_rademacher(finite_class(z.mT, absolute=True), samples))
        for absolute, found in means.items():
            values = [darc_with_signs(z, s, 1.0, absolute=absolute) for s in signs]
            found.append(float(torch.stack(values).mean()))
    says = run.states(
        "B-23",
        r"\mathbb E_\xi\tfrac1m\max_k\sum_i\xi_iz_k(x_i)=\hat R_S(\{z_k\}),\quad "
        r"\mathbb E_\xi\tfrac1m\max_k|\cdot|=\hat R_S(\{\pm z_k\})",
    )
    says.equal(means["none"] + means["inside"], one + both, 1e-12)
    says.fails("the absolute value outside the maximum, as printed", means["outside"] * 2)
    run.states(
        "B-23",
        r"\hat R_S(\{z_k\})\le\mathbb E_\xi\tfrac1m\bigl|\max_k\sum_i\xi_iz_k(x_i)\bigr|\le\hat R_S(\{\pm z_k\})",
    ).at_most(
        one + means["outside"],
        means["outside"] + both,
        1e-12,
        where="what the printed form estimates lies between the two complexities",
    )


def homogeneous(run: Run, batches: int) -> None:
    net = mlp([3, 5, 4], bias=False, generator=run.generator)
    x = run.randn(20, 3)
    factors = 10 ** run.randn(batches)
    last = net[2]
    assert isinstance(last, nn.Linear)
    start = last.weight.detach().clone()
    base = float(darc1(net(x)).detach())
    sizes, probabilities = [], []
    with torch.no_grad():
        for factor in factors:
            last.weight.copy_(factor * start)
            sizes.append(float(darc1(net(x))) / base)
            probabilities.append(float(darc1(net(x).softmax(1))) / base)
        last.weight.zero_()
        nothing = float(darc1(net(x)))
    says = run.states("B-23", r"\mathrm{DARC1}(aW^{[L]})=a\,\mathrm{DARC1}(W^{[L]}),\ a>0")
    says.equal(sizes, factors, 1e-12)
    says.fails("probabilities in place of logits", probabilities)
    one = torch.zeros(20, 4).double()
    one[7, 2] = -1e-300
    says = run.states("B-23", r"\mathrm{DARC1}=0 \text{ for a last layer of zeros, and only for logits that are all 0}")
    says.equal(nothing)
    says.fails("one logit that is not 0", float(darc1(one)))


def gradient(run: Run, batches: int) -> None:
    exact, autograd, averaged = [], [], []
    for _ in range(batches):
        z = run.randn(6, 4).requires_grad_()
        (found,) = torch.autograd.grad(darc1(z), z)
        (mean,) = torch.autograd.grad(STRENGTH * z.abs().mean(0).mean(), z)
        values = z.detach()
        by_hand = torch.zeros_like(values)
        k = int(values.abs().sum(0).argmax())
        by_hand[:, k] = STRENGTH / 6 * values[:, k].sign()
        exact.append(by_hand)
        autograd.append(found)
        averaged.append(mean)
    says = run.states(
        "B-23", r"\partial\,\mathrm{DARC1}/\partial z_k(x_i)=\tfrac\lambda m\,\mathrm{sign}(z_k(x_i))\,1\{k=k^*\}"
    )
    says.equal(torch.stack(autograd), torch.stack(exact), 1e-15)
    says.fails("the mean over classes in place of the maximum", torch.stack(averaged))


def shifted(run: Run, batches: int) -> None:
    size, entropy = [], []
    for _ in range(batches):
        z, c = run.randn(10, 5), run.randn(10, 1)
        y = torch.randint(0, 5, (10,), generator=run.generator)
        assert bool((z.argmax(1) == (z + c).argmax(1)).all())
        size.append(float((darc1(z + c) - darc1(z)).abs()))
        entropy.append(float((F.cross_entropy(z + c, y) - F.cross_entropy(z, y)).abs()))
    says = run.states(
        "B-23", r"\mathrm{DARC1} \text{ changes when a number is added to all logits of a sample, and no decision does}"
    )
    says.at_least([s - 1e-9 for s in size], 0.0, where="by more than rounding, which is taken as 1e-9")
    says.fails("cross-entropy, which does not notice", [e - 1e-9 for e in entropy])


def least_objective(labels: Tensor, classes: int, strength: float) -> float:
    """Cross-entropy plus DARC1 minimized over all logits, by a solver for smooth programs.

    Logits are differences of non-negative numbers, and the largest column sum is a variable.
    """
    n, size = len(labels), len(labels) * classes
    one_hot = F.one_hot(labels, classes).double().numpy()

    def value(v: Any) -> tuple[float, Any]:
        z = (v[:size] - v[size : 2 * size]).reshape(n, classes)
        top = z.max(1, keepdims=True)
        weights = np.exp(z - top)
        total = weights.sum(1, keepdims=True)
        loss = float((np.log(total[:, 0]) + top[:, 0] - (z * one_hot).sum(1)).mean())
        slope = ((weights / total - one_hot) / n).ravel()
        return loss + strength * v[-1], np.concatenate([slope, -slope, [strength]])

    columns = np.kron(np.ones((1, n)), np.eye(classes)) / n
    jacobian = np.hstack([-columns, -columns, np.ones((classes, 1))])
    constraint = {"type": "ineq", "fun": lambda v: jacobian @ v, "jac": lambda v: jacobian}
    found = minimize(
        value, np.full(2 * size + 1, 0.1), jac=True, bounds=[(0, None)] * (2 * size + 1),
        constraints=[constraint], method="SLSQP", options={"maxiter": 500, "ftol": 1e-13},
    )  # fmt: skip
    return float(found.fun)


def best_logits(run: Run) -> None:
    cases = [(k, s) for k in (2, 3, 5) for s in (0.064, 0.5, 1.5 * (k - 1))]
    balanced = [least_objective(torch.arange(k), k, s) for k, s in cases]
    small = [(k, s) for k, s in cases if k > 2 and s < 1]
    lopsided = [least_objective(torch.arange(k).clamp(max=k - 2), k, s) for k, s in small]
    says = run.states(
        "B-23",
        r"\min_z\ \mathrm{CE}+\mathrm{DARC1}=-\ln(1-q)+q\ln\tfrac{(K-1)(1-q)}q,\ q=\lambda/K, "
        r"\text{ classes of equal size; } \ln K \text{ for } \lambda\ge K-1",
    )
    says.equal(
        balanced,
        [free_optimum(k, s).objective for k, s in cases],
        1e-6,
        where="the convex program over all logits, solved numerically",
    )
    says.fails("a class without samples", lopsided, promised=[free_optimum(k, s).objective for k, s in small])
    strengths = torch.logspace(-3, 1.2, 60).double()
    run.figure(
        "free-optimum",
        lambda axes: plot_optimum(axes, strengths),
        caption="The mean absolute output that cross-entropy with DARC1 of a given strength leads "
        "to when nothing but the penalty limits the outputs. Stars: what the source measured for "
        "networks trained with λ = 0.064 on three data sets of ten classes.",
    )


def plot_optimum(axes: Any, strengths: Tensor) -> None:
    for i, classes in enumerate((2, 10, 100)):
        sizes = [free_optimum(classes, float(s)).size for s in strengths]
        axes.plot(strengths, sizes, color=COLORS[i], label=f"{classes} classes")
    axes.plot([STRENGTH] * 3, [1.30, 1.35, 0.96], "*", color=COLORS[6], ms=8, label="Table A.4")
    axes.set(xlabel="strength λ", ylabel="size of outputs", xscale="log")
    axes.legend()


def wrong_risk(run: Run) -> None:
    y = torch.randint(0, 10, (200,), generator=run.generator)
    perfect = F.one_hot(y, 10).double().argmax(1)
    run.refutes(
        "darc-risk-of-right-answers", r"R[f]=\mathbb E\,1\{f(X)=Y\}=0 \text{ for a classifier without error}"
    ).equal(float((perfect == y).double().mean()))
    run.states("B-23", r"R[f]=\mathbb E\,1\{f(X)\ne Y\}=0 \text{ for a classifier without error}").equal(
        float((perfect != y).double().mean())
    )
