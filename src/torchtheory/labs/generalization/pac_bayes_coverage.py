"""How often a PAC-Bayes bound fails, on problems whose true risk is a sum."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.progress import hidden
from torchtheory.generalization.pac_bayes.bernoulli_kl import upper_kl_inverse
from torchtheory.generalization.pac_bayes.bounds import KL, log_moment
from torchtheory.generalization.pac_bayes.certification import risk_certificate
from torchtheory.labs.engine import COLORS, InvalidInput, Run, clopper_pearson, lab

POINTS, DIMENSION = 400, 10


@lab(
    "pac-bayes-coverage",
    room="generalization",
    covers=["M-57", "M-60", "M-64"],
    title="The bound fails in at most a fraction δ of the samples, unless the prior cheats",
    full={"problems": 2000, "certified": 200, "epochs": 20},
)
def pac_bayes_coverage(run: Run, problems: int = 200, samples: int = 60, certified: int = 25, epochs: int = 4) -> None:
    """A law on 400 points with noisy labels is fixed; samples are drawn from it again and again, a
    Gaussian linear classifier is fitted to each by minimizing the bound, and its true risk, which
    is a sum of normal probabilities, is compared with the bound.

    All problems are fitted at once; some of them also through `risk_certificate`, draws of weights,
    scales and all. The same check with a prior centered at what the very sample taught it fails
    almost always. Look at the distance of the dots from the diagonal: below it, the bound is
    broken.
    """
    if problems < 50 or samples < 20 or certified < 1 or epochs < 1:
        raise InvalidInput("take 50 problems, 20 samples, 1 certified and 1 epoch or more")
    law = population(run)
    delta = 0.05
    honest = fit_all(run, law, problems, samples, delta)
    cheating = cheat_all(run, law, problems, samples, delta)
    broken, broken_cheat = (
        clopper_pearson(int((risk > bound).sum()), problems, 0.99) for risk, bound in (honest, cheating)
    )
    says = run.states("M-57, M-60", r"\Pr_S(\mathbb E_QR>\text{bound})\le\delta")
    says.at_most(broken, delta, where=f"{problems} samples of {samples}, Clopper-Pearson at 99 %")
    says.fails("the prior is centered at weights trained on the sample", broken_cheat)
    chosen = certify_some(run, law, certified, samples, epochs)
    failed = clopper_pearson(int((chosen[0] > chosen[1]).sum()), certified, 0.99)
    without = clopper_pearson(int((chosen[0] > chosen[2]).sum()), certified, 0.99)
    says = run.states("M-64", r"\text{the same for certify, with its scales and draws of weights}")
    says.at_most(failed, 0.035, where=f"{certified} samples of {samples}")
    says.fails("the empirical risk alone taken as a bound", without)
    run.figure(
        "coverage",
        lambda axes: plot(axes, honest, cheating, chosen),
        caption="True risk of the stochastic classifier against what bounds it, one dot a sample; "
        "a dot above the diagonal breaks the bound.",
    )


def population(run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """Points, labels ±1 (15 % of them wrong), and equal masses."""
    x = run.randn(POINTS, DIMENSION) / math.sqrt(DIMENSION)
    y = torch.sign(x @ run.randn(DIMENSION))
    y = torch.where(run.rand(POINTS) < 0.15, -y, y)
    return x, y, torch.full((POINTS,), 1 / POINTS, dtype=torch.float64)


def gibbs(mean: Tensor, variance: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Error probabilities of sign(w·x) with w ~ N(mean, diag variance), for [problems, samples]."""
    margin = y * torch.einsum("pd,psd->ps", mean, x)
    spread = torch.einsum("pd,psd->ps", variance, x.square()).sqrt()
    wrong: Tensor = torch.special.ndtr(-margin / spread)
    return wrong


def fit_all(
    run: Run, law: tuple[Tensor, Tensor, Tensor], problems: int, samples: int, delta: float
) -> tuple[Tensor, Tensor]:
    """True risks and bounds of posteriors that minimize the bound, prior N(0, I)."""
    x, y, _ = law
    index = torch.randint(0, POINTS, (problems, samples), generator=run.generator)
    sx, sy = x[index], y[index]
    mean = torch.zeros(problems, DIMENSION, dtype=torch.float64, requires_grad=True)
    log_variance = torch.zeros(problems, DIMENSION, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([mean, log_variance], lr=0.1)
    constant = log_moment(KL, samples) - math.log(delta)

    def bounds() -> Tensor:
        risk = gibbs(mean, log_variance.exp(), sx, sy).mean(1)
        kl = 0.5 * (log_variance.exp() - 1 - log_variance + mean.square()).sum(1)
        return upper_kl_inverse(risk.clamp(1e-9, 1 - 1e-9), (kl + constant) / samples)

    for _ in range(80):
        optimizer.zero_grad()
        bounds().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return _true_risk(mean, log_variance.exp(), law), bounds().detach()


def cheat_all(
    run: Run, law: tuple[Tensor, Tensor, Tensor], problems: int, samples: int, delta: float
) -> tuple[Tensor, Tensor]:
    """The posterior is its own prior: trained on the sample, divergence 0."""
    x, y, _ = law
    index = torch.randint(0, POINTS, (problems, samples // 3), generator=run.generator)
    sx, sy = x[index], y[index]
    mean = torch.zeros(problems, DIMENSION, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([mean], lr=0.3)
    for _ in range(150):
        optimizer.zero_grad()
        margins = sy * torch.einsum("pd,psd->ps", mean, sx)
        nn.functional.softplus(-5 * margins).mean(1).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    variance = torch.full_like(mean, 1e-4)
    risk = gibbs(mean, variance, sx, sy).mean(1).detach()
    constant = log_moment(KL, samples // 3) - math.log(delta)
    bound = upper_kl_inverse(risk.clamp(0, 1), constant / (samples // 3))
    return _true_risk(mean, variance, law), bound


def certify_some(
    run: Run, law: tuple[Tensor, Tensor, Tensor], certified: int, samples: int, epochs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """True risks, certificates, and the empirical risks alone."""
    x, y, _ = law
    net = nn.Linear(DIMENSION, 1, bias=False, dtype=torch.float64)
    risks, bounds, empirical = [], [], []
    with hidden():
        for trial in range(certified):
            index = torch.randint(0, POINTS, (samples,), generator=run.generator)
            certificate = risk_certificate(
                net,
                (x[index], (y[index] > 0).long()),
                start_epochs=2,
                epochs=epochs,
                batch_size=samples,
                learning_rate=0.1,
                variance_rate=0.1,
                seed=run.seed + trial,
            )
            mean = certificate.network.means["weight"].detach()
            variance = certificate.network.variances()["weight"]
            risks.append(_true_risk(mean, variance, law))
            bounds.append(certificate.bound)
            empirical.append(certificate.empirical.estimate)
    return torch.cat(risks), torch.tensor(bounds), torch.tensor(empirical)


def _true_risk(mean: Tensor, variance: Tensor, law: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    x, y, mass = law
    count = len(mean)
    errors = gibbs(mean.detach(), variance.detach(), x.expand(count, -1, -1), y.expand(count, -1))
    return errors @ mass


def plot(
    axes: Any,
    honest: tuple[Tensor, Tensor],
    cheating: tuple[Tensor, Tensor],
    chosen: tuple[Tensor, Tensor, Tensor],
) -> None:
    for color, name, (risk, bound) in (
        (COLORS[0], "prior fixed beforehand", honest),
        (COLORS[1], "prior trained on the sample", cheating),
        (COLORS[2], "certify", chosen[:2]),
    ):
        axes.plot(bound, risk, "o", ms=3, alpha=0.6, color=color, label=name)
    axes.plot([0, 1], [0, 1], color="0.5", lw=0.8)
    axes.set(xlabel="bound", ylabel="true risk", xlim=(0, 1), ylim=(0, 0.6))
    axes.legend(loc="lower right")
