"""How often a PAC-Bayes bound fails, on problems whose true risk is a sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.progress import hidden
from torchtheory.generalization.pac_bayes.bernoulli_kl import upper_kl_inverse
from torchtheory.generalization.pac_bayes.bounds import KL, log_moment
from torchtheory.generalization.pac_bayes.certification import risk_certificate
from torchtheory.labs.engine import COLORS, Run, lab, quantile_interval

POINTS, DIMENSION = 400, 40
Law = tuple[Tensor, Tensor, Tensor]


@lab(
    "pac-bayes-coverage",
    room="generalization",
    covers=["M-57", "M-60", "M-64"],
    title="The bound fails in at most a fraction δ of the samples, unless the prior cheats",
    full={"problems": 2000, "certified": 200, "epochs": 20},
    least={"problems": 50, "samples": 20, "certified": 25, "epochs": 10},
)
def pac_bayes_coverage(run: Run, problems: int = 400, samples: int = 60, certified: int = 50, epochs: int = 20) -> None:
    """A law on 400 points with noisy labels is fixed; samples are drawn from it again and again, a
    Gaussian linear classifier is fitted to each by minimizing the bound, and its true risk, which
    is a sum of normal probabilities, is compared with the bound. The prior itself is a posterior
    too, the one for which the bound is nearest.

    All problems are fitted at once; some of them also through `risk_certificate`, draws of weights,
    scales and all. The same check with a prior centered at what the very sample taught it fails
    almost always. Look at the distance of the dots from the diagonal: above it, the bound is
    broken.

    Args:
        problems: samples in which the bound may fail.
        samples: in each of them.
        certified: problems for which a whole certificate is made.
        epochs: of training each certified posterior.
    """
    law = population(run)
    delta = 0.05
    fitted = fit_all(run, law, problems, samples, delta)
    unchanged = keep_prior(run, law, problems, samples, delta)
    cheating = cheat_all(run, law, problems, samples, delta)
    says = run.states(
        "M-57, M-60",
        r"\Pr_S\Bigl(\forall Q:\ \tfrac{\max(0,\mathbb E_QR-\mathbb E_QR_S)}"
        r"{\mathrm{bound}-\mathbb E_QR_S}\le1\Bigr)\ge1-\delta",
    )
    says.at_most(
        [quantile_interval(made.used, 1 - delta, 0.99).low for made in (fitted, unchanged)],
        1.0,
        where=f"lower ends of 99 % intervals for the quantile at 1 - δ over {problems} samples of {samples}: "
        "posteriors that minimize the bound, and a prior that is kept",
    )
    says.fails(
        "the prior is centered at weights trained on the sample", quantile_interval(cheating.used, 1 - delta, 0.99).low
    )
    certain = cheat_all(run, law, problems, samples, 0.035)
    chosen, drawn, other = certify_some(run, law, certified, samples, epochs)
    says = run.states("M-64", r"\Pr_S(\mathbb E_QR\le\mathrm{certificate})\ge0.965")
    says.at_most(
        quantile_interval(chosen.risk / chosen.bound, 0.965, 0.99),
        1.0,
        where=f"risk over certificate, quantile at 0.965 over {certified} samples of {samples}",
    )
    says.fails(
        "the prior is centered at weights trained on the sample",
        quantile_interval(certain.risk / certain.bound, 0.965, 0.99),
    )
    says = run.states("M-64", r"\mathbb E_QR_S\le\text{its estimate from draws, with }0.99\text{ each}")
    says.at_most(
        quantile_interval(chosen.empirical / drawn, 0.99, 0.99),
        1.0,
        where="the exact risk on the sample, a sum of normal probabilities, over the certificate's upper estimate",
    )
    says.fails(
        "drawn on one sample, asked about another with random labels", quantile_interval(other / drawn, 0.99, 0.99)
    )
    run.figure(
        "coverage",
        lambda axes: plot(axes, fitted, cheating, chosen),
        caption="True risk of the stochastic classifier against what bounds it, one dot a sample; "
        "a dot above the diagonal breaks the bound.",
    )


@dataclass(frozen=True)
class Judged:
    """Stochastic classifiers, one per sample: what bounds them, their risk, and that on the sample."""

    empirical: Tensor
    risk: Tensor
    bound: Tensor

    @property
    def used(self) -> Tensor:
        """How much of the gap that the bound allows there is."""
        return (self.risk - self.empirical).clamp(min=0) / (self.bound - self.empirical)


def population(run: Run) -> Law:
    """Points, labels ±1 (15 % of them wrong), and equal masses."""
    x = run.randn(POINTS, DIMENSION) / math.sqrt(DIMENSION)
    y = torch.sign(x[:, 0] + 0.5 * x[:, 1])
    y = torch.where(run.rand(POINTS) < 0.15, -y, y)
    return x, y, torch.full((POINTS,), 1 / POINTS, dtype=torch.float64)


def gibbs(mean: Tensor, variance: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Error probabilities of sign(w·x) with w ~ N(mean, diag variance), for [problems, samples]."""
    margin = y * torch.einsum("pd,psd->ps", mean, x)
    spread = torch.einsum("pd,psd->ps", variance, x.square()).sqrt()
    wrong: Tensor = torch.special.ndtr(-margin / spread)
    return wrong


def fit_all(run: Run, law: Law, problems: int, samples: int, delta: float) -> Judged:
    """Posteriors that minimize the bound, with the prior N(0, I)."""
    sx, sy = _samples(run, law, problems, samples)
    mean = torch.zeros(problems, DIMENSION, dtype=torch.float64, requires_grad=True)
    log_variance = torch.zeros(problems, DIMENSION, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([mean, log_variance], lr=0.1)

    def judged() -> tuple[Tensor, Tensor]:
        risk = gibbs(mean, log_variance.exp(), sx, sy).mean(1)
        kl = 0.5 * (log_variance.exp() - 1 - log_variance + mean.square()).sum(1)
        return risk, _bound(risk, kl, samples, delta)

    for _ in range(80):
        optimizer.zero_grad()
        judged()[1].sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    risk, bound = judged()
    return Judged(risk.detach(), _true_risk(mean, log_variance.exp(), law), bound.detach())


def keep_prior(run: Run, law: Law, problems: int, samples: int, delta: float) -> Judged:
    """The prior as a posterior, around a guess made before any sample.

    It is nearly one classifier, so that little averages out, and the divergence is 0.
    """
    sx, sy = _samples(run, law, problems, samples)
    mean = torch.zeros(problems, DIMENSION, dtype=torch.float64)
    mean[:, 0] = 30.0
    return _kept(sx, sy, mean, law, delta)


def _kept(sx: Tensor, sy: Tensor, mean: Tensor, law: Law, delta: float) -> Judged:
    """The prior N(mean, I) as a posterior, whose divergence is 0."""
    variance = torch.ones_like(mean)
    risk = gibbs(mean, variance, sx, sy).mean(1)
    return Judged(risk, _true_risk(mean, variance, law), _bound(risk, torch.zeros(len(mean)), sx.shape[1], delta))


def _samples(run: Run, law: Law, problems: int, samples: int) -> tuple[Tensor, Tensor]:
    index = torch.randint(0, POINTS, (problems, samples), generator=run.generator)
    return law[0][index], law[1][index]


def _bound(risk: Tensor, kl: Tensor, samples: int, delta: float) -> Tensor:
    constant = log_moment(KL, samples) - math.log(delta)
    return upper_kl_inverse(risk.clamp(1e-9, 1 - 1e-9), (kl + constant) / samples)


def cheat_all(run: Run, law: Law, problems: int, samples: int, delta: float) -> Judged:
    """A prior that is kept as in `keep_prior`, but around what the sample itself has taught it."""
    sx, sy = _samples(run, law, problems, samples)
    mean = torch.zeros(problems, DIMENSION, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([mean], lr=0.3)
    for _ in range(150):
        optimizer.zero_grad()
        margins = sy * torch.einsum("pd,psd->ps", mean, sx)
        nn.functional.softplus(-5 * margins).mean(1).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return _kept(sx, sy, 30 * nn.functional.normalize(mean.detach()), law, delta)


def certify_some(run: Run, law: Law, certified: int, samples: int, epochs: int) -> tuple[Judged, Tensor, Tensor]:
    """Certificates, what they take for the risk on the sample, and that risk on random labels."""
    x, y, _ = law
    net = nn.Linear(DIMENSION, 1, bias=False, dtype=torch.float64)
    risks, bounds, empirical, drawn, other = [], [], [], [], []
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
            drawn.append(certificate.empirical.upper)
            sx, coins = x[index][None], run.signs(1, samples)
            empirical.append(gibbs(mean, variance, sx, y[index][None]).mean())
            other.append(gibbs(mean, variance, sx, coins).mean())
    judged = Judged(torch.stack(empirical), torch.cat(risks), torch.tensor(bounds, dtype=torch.float64))
    return judged, torch.tensor(drawn, dtype=torch.float64), torch.stack(other)


def _true_risk(mean: Tensor, variance: Tensor, law: Law) -> Tensor:
    x, y, mass = law
    count = len(mean)
    errors = gibbs(mean.detach(), variance.detach(), x.expand(count, -1, -1), y.expand(count, -1))
    return errors @ mass


def plot(axes: Any, fitted: Judged, cheating: Judged, certified: Judged) -> None:
    for color, name, made in (
        (COLORS[0], "prior fixed beforehand", fitted),
        (COLORS[1], "prior trained on the sample", cheating),
        (COLORS[2], "certificate", certified),
    ):
        axes.plot(made.bound, made.risk, "o", ms=3, alpha=0.6, color=color, label=name)
    axes.plot([0, 1], [0, 1], color="0.5", lw=0.8)
    axes.set(xlabel="bound", ylabel="true risk", xlim=(0, 1), ylim=(0, 0.6))
    axes.legend(loc="lower right")
