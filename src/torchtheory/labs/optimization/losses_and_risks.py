"""What is minimized: losses of one example, and their mean over a sample or a law."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.training.losses.risks import empirical_risk, risk


@lab(
    "losses-and-risks",
    room="optimization",
    covers=["L-114", "L-115"],
    title="Cross-entropy exceeds entropy, and the empirical risk is right on average",
    errata=["cross-entropy-without-simplex"],
    full={"classes": 30, "trials": 4000, "samples": 5},
    least={"classes": 2},
)
def losses_and_risks(run: Run, classes: int = 5, trials: int = 900, samples: int = 3) -> None:
    """The four losses of the chapter, and the two risks they are averaged to.

    The cross-entropy of soft targets is at least their entropy, and what is above it is the
    relative entropy: that needs targets and predictions that are probabilities. The empirical
    risk of a fixed model is the risk on average over samples, exactly, which is seen by going
    through all samples of a law with few outcomes; once the model is chosen on the sample it is
    too small. Look at the two columns of the table.

    Args:
        classes: of the distributions.
        trials: random draws.
        samples: in a sample where all samples are listed.
    """
    values(run)
    gibbs(run, classes, trials)
    exact = all_samples(run, samples)
    monte_carlo(run, trials)
    run.table(
        "risks",
        ["model", "mean of the empirical risk over all samples", "risk"],
        exact,
        caption=f"All samples of size {samples} of a law with four outcomes, each by its probability",
    )
    run.figure(
        "entropy",
        plot,
        caption="Left: cross-entropy of the targets (0.2, 0.8) as the prediction changes, and "
        "their entropy. Right: without the simplex, one class with target y and prediction 1.",
        grid=(1, 2),
        size=(9, 3.2),
    )


def cross_entropy(y: Tensor, nu: Tensor) -> Tensor:
    """-Σ yⱼ log νⱼ with 0 log 0 = 0."""
    return -torch.xlogy(y, nu).sum(-1)


def entropy(y: Tensor) -> Tensor:
    return cross_entropy(y, y)


def values(run: Run) -> None:
    nu = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    hot = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    says = run.states("L-114", r"\text{log-loss } -\log\nu_y=\text{cross-entropy of the one-hot target}")
    says.equal(
        [
            float(cross_entropy(hot, nu)),
            float(F.nll_loss(nu.log()[None], torch.tensor([1]))),
            float(F.cross_entropy(nu.log()[None], hot[None])),
        ],
        -math.log(0.3),
        1e-12,
    )
    says.fails("the logarithm of another class", float(-nu[0].log()))
    y, v = run.randn(200, 4), run.randn(200, 4)
    slopes = torch.func.vmap(torch.func.grad(lambda a, b: (b - a).square().sum() / 2))(v, y)
    whole = torch.func.vmap(torch.func.grad(lambda a, b: (b - a).square().sum()))(v, y)
    says = run.states("L-114", r"\nabla_\nu\tfrac12\|y-\nu\|^2=\nu-y")
    says.equal(slopes, v - y, 1e-12)
    says.fails("without the half", whole)
    labels = torch.randint(0, 3, (200,), generator=run.generator)
    guesses = torch.randint(0, 3, (200,), generator=run.generator)
    logits = F.one_hot(guesses, 3).double()
    wrong = (guesses != labels).double()
    # the log-loss in base 2 of probabilities bounds the zero-one loss of their largest
    drawn = torch.softmax(3 * run.randn(200, 3), 1)
    missed = (drawn.argmax(1) != labels).double()
    natural = -drawn.gather(1, labels[:, None])[:, 0].log()
    log2 = natural / math.log(2)
    says = run.states("L-114", r"\mathbf 1[\arg\max\nu\ne y]\le-\log_2\nu_y: \text{ a surrogate from above}")
    says.at_most(missed, log2)
    # misses by a little between two classes: there the base of the logarithm decides
    close = 0.5 - 0.05 * run.rand(200, 1)
    tied = torch.cat([close, 1 - close], 1)
    says.fails(
        "the natural logarithm, for misses by a little", (tied.argmax(1) != 0).double(), promised=-tied[:, 0].log()
    )
    says = run.states("L-114", r"\text{zero-one loss: } \tfrac12\|e_y-e_\nu\|^2 \text{ for one-hot predictions}")
    says.equal((logits - F.one_hot(labels, 3)).square().sum(1) / 2, wrong)
    says.fails("soft predictions", (drawn - F.one_hot(labels, 3)).square().sum(1) / 2)


def gibbs(run: Run, classes: int, trials: int) -> None:
    y = torch.softmax(2 * run.randn(trials, classes), 1)
    nu = torch.softmax(2 * run.randn(trials, classes), 1)
    sparse = torch.where(y < y.median(1, keepdim=True).values, 0.0, y)
    y = torch.cat([y, sparse / sparse.sum(1, keepdim=True)])
    nu = torch.cat([nu, nu.flip(0)])
    less = nu * run.rand(2 * trials, 1)
    loose = run.rand(2 * trials, classes)
    says = run.states("L-114", r"\sum_jy_j=1,\ \sum_j\nu_j\le1:\ -\sum_jy_j\log\nu_j\ge-\sum_jy_j\log y_j")
    says.at_least(
        cross_entropy(torch.cat([y, y]), torch.cat([nu, less])),
        entropy(torch.cat([y, y])),
        1e-12,
        where="random probability vectors, half of them with zeros; predictions that sum up to 1 and to less",
    )
    says.fails(
        "targets and predictions in [0, 1] that do not add up to 1",
        cross_entropy(loose, loose.sqrt()),
        promised=entropy(loose),
    )
    says = run.states("L-114", r"\text{the difference is } \mathrm{KL}(y\,\|\,\nu)")
    says.equal(
        cross_entropy(y, nu) - entropy(y),
        F.kl_div(nu.log(), y, reduction="none").sum(1),
        1e-12,
        where="torch's own relative entropy",
    )
    says.fails(
        "KL(ν‖y)",
        F.kl_div(y[:trials].log(), nu[:trials], reduction="none").sum(1),
        promised=(cross_entropy(y, nu) - entropy(y))[:trials],
    )
    targets = y[:trials]

    def slope(at: Tensor) -> Tensor:
        """Of the cross-entropy in the logits of a prediction."""
        gradient = torch.func.grad(lambda z: cross_entropy(targets, torch.softmax(z, 1)).sum())
        found: Tensor = gradient(at.log())
        return found

    says = run.states("L-114", r"\text{equality at } \nu=y, \text{ where the gradient in the logits vanishes}")
    says.equal(slope(targets), within=1e-12)
    says.fails("at another ν", slope(nu[:trials]))
    one = torch.tensor([0.5], dtype=torch.float64)
    run.refutes("cross-entropy-without-simplex", r"y\in[0,1]^m:\ -\sum_jy_j\log\nu_j\ge-\sum_jy_j\log y_j").at_least(
        cross_entropy(one, torch.ones(1, dtype=torch.float64)),
        entropy(one),
        where="m = 1, y = ½, ν = 1: 0 against 0.3466",
    )


def all_samples(run: Run, samples: int) -> list[tuple[str, float, float]]:
    """Every sample of a law with four outcomes, weighted by its probability."""
    points = torch.tensor([[-1.0, 0.3], [0.5, 0.1], [1.0, 1.4], [2.0, 1.2]], dtype=torch.float64)
    law = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
    slope = 0.7

    def losses(w: float | Tensor) -> Tensor:
        return (w * points[:, 0] - points[:, 1]).square() / 2

    true = float(law @ losses(slope))
    mean_fixed, mean_chosen, true_chosen = 0.0, 0.0, 0.0
    for outcome in itertools.product(range(4), repeat=samples):
        chosen = torch.tensor(outcome)
        weight = float(law[chosen].prod())
        mean_fixed += weight * float(losses(slope)[chosen].mean())
        x, y = points[chosen].T
        best = (x @ y) / (x @ x)
        mean_chosen += weight * float(losses(best)[chosen].mean())
        true_chosen += weight * float(law @ losses(best))
    says = run.states(
        "L-115", r"\mathbb E_S\,\mathcal R_S(x)=\mathcal R(x) \text{ for a fixed } x: \text{ all samples}"
    )
    says.equal(mean_fixed, true, 1e-12, where=f"{4**samples} samples of size {samples}, exactly")
    says.fails("x is chosen on the sample (least squares)", mean_chosen, promised=true_chosen)
    least = float(law @ losses(best_slope(points, law)))
    says = run.states("L-115", r"x_S \text{ minimizes } \mathcal R_S:\ \mathbb E_S\,\mathcal R_S(x_S)\le\min\mathcal R")
    says.at_most(mean_chosen, least, where="the empirical risk of the model chosen on the sample is too small")
    says.fails("x is fixed beforehand, and not the best", mean_fixed)
    says = run.states("L-115", r"\mathbb E_S\,\mathcal R(x_S)\ge\min\mathcal R")
    says.at_least(true_chosen, least)
    says.fails("the empirical risk in place of the risk", mean_chosen)
    return [
        (f"fixed, x = {slope:g}", mean_fixed, true),
        ("least squares on the sample", mean_chosen, true_chosen),
    ]


def best_slope(points: Tensor, law: Tensor) -> Tensor:
    return (law * points[:, 0]) @ points[:, 1] / ((law * points[:, 0]) @ points[:, 0])


def monte_carlo(run: Run, trials: int) -> None:
    """The library's estimates for a module: unbiased, with a standard error that is right."""
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -0.5, 0.2]]))
    truth = torch.tensor([0.8, 0.0, 0.2], dtype=torch.float64)

    def sampler(n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 3, dtype=torch.float64, generator=generator)
        noise = torch.randn(n, 1, dtype=torch.float64, generator=generator)
        return x, x @ truth[:, None] + 0.5 * noise

    exact = float((model.weight.detach()[0] - truth).square().sum()) + 0.25
    found = [
        empirical_risk(model, sampler(20, run.generator), task="regression").value for _ in range(max(40, trials // 5))
    ]
    interval: Interval = mean_interval(found, 0.9999)
    says = run.states("L-115", r"\mathbb E_S\,\mathcal R_S=\mathcal R=\|w-w_0\|^2+\sigma^2: \text{ a linear network}")
    # without the noise, and with half of the square or twice
    says.mean(interval, exact, against=(exact - 0.25, exact / 2, 2 * exact))
    says.fails("the noise is forgotten in the risk", interval, promised=exact - 0.25)
    estimates = [
        risk(model, sampler, 1000, task="regression", generator=run.generator) for _ in range(max(100, trials // 2))
    ]

    def squared_errors(truth: float) -> list[float]:
        return [((e.value - truth) / e.standard_error) ** 2 for e in estimates]

    says = run.states(
        "L-115",
        r"\text{Monte Carlo risk: } \mathbb E\,(\hat{\mathcal R}-\mathcal R)^2/\text{(standard error)}^2=1",
    )
    says.mean(
        squared_errors(exact),
        1.0,
        against=(0.25, 4.0),  # a standard error twice too large or too small
        confidence=0.9999,
        where=f"{len(estimates)} estimates from 1000 samples each",
    )
    says.fails("the noise is forgotten in the risk", squared_errors(exact - 0.25))


def plot(axes: Any) -> None:
    left, right = axes[0]
    y = torch.tensor([0.2, 0.8], dtype=torch.float64)
    grid = torch.linspace(0.02, 0.98, 200, dtype=torch.float64)
    nu = torch.stack([grid, 1 - grid], 1)
    left.plot(grid, cross_entropy(y, nu), color=COLORS[0], label="cross-entropy")
    left.axhline(float(entropy(y)), color=COLORS[1], linestyle="--", label="entropy H(y)")
    left.plot(0.2, float(entropy(y)), "o", color=COLORS[1])
    left.set(xlabel=r"prediction $\nu_1$", ylabel="nats", ylim=(0.4, 2), title="on the simplex")
    left.legend(loc="upper center")
    single = torch.linspace(0.001, 1, 200, dtype=torch.float64)[:, None]
    right.plot(single, entropy(single), color=COLORS[1], label=r"$-y\log y$, said to be smaller")
    ones = cross_entropy(single, torch.ones_like(single))
    right.plot(single, ones, color=COLORS[0], label=r"$-y\log 1$")
    right.set(xlabel="y, one class", ylabel="nats", ylim=(-0.05, 0.6), title="off the simplex")
    right.legend(loc="upper right")
