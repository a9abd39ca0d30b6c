"""Risk: what held-out data say about it, and what minimizing the empirical one reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.training.loop.trainer import fit
from torchtheory.training.losses.classification import classification_loss
from torchtheory.training.losses.risks import (
    Sampler,
    empirical_risk,
    hold_out,
    least_empirical_risk,
    risk,
)

#: Confidence of each statistical comparison.
SURE = 0.9999


@dataclass(frozen=True)
class Law:
    """x standard normal, y = w·x + a(x₁² - 1) + σ ε: the best linear function is w, exactly."""

    weight: Tensor
    bend: float
    noise: float

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, len(self.weight), dtype=torch.float64, generator=generator)
        y = x @ self.weight + self.bend * (x[:, 0] ** 2 - 1)
        return x, y + self.noise * torch.randn(n, dtype=torch.float64, generator=generator)

    def risk(self, weight: Tensor) -> Tensor:
        """Mean squared error of x ↦ weight·x under the law; rows of weights give a vector."""
        return (weight - self.weight).square().sum(-1) + 2 * self.bend**2 + self.noise**2


@lab(
    "empirical-risk",
    room="training",
    covers=["N-25", "S-05", "A-14", "A-01"],
    title="The empirical risk: unbiased where nothing was chosen by it, least after training",
    full={"trials": 2000, "dimension": 20, "samples": 2000},
    least={"trials": 250, "dimension": 6, "samples": 60},
)
def empirical_risk_lab(run: Run, trials: int = 250, dimension: int = 6, samples: int = 120) -> None:
    """A linear model under a law for which every risk is known exactly.

    The risk on held-out data is unbiased, with an error of order $s^{-1/2}$; the risk on the
    training data, and the risk of a model that was selected on the validation data, are too low.
    Training a linear model with the trainer reaches the normal equations. What is left of
    the risk falls apart into noise, approximation, estimation and optimization error: stop the
    training after two epochs and look at the table.

    Args:
        trials: validation sets of each size.
        dimension: of the inputs.
        samples: of the least squares.
    """
    law = Law(run.randn(dimension), 0.5, 0.7)
    sizes, spread = validation_risk(run, law, trials)
    least_squares(run, law, samples)
    errors = error_parts(run, law, samples)
    run.table(
        "error-parts",
        ["part", "size", "goes away with"],
        errors,
        caption="Where the risk of a linear model trained for two epochs comes from, exactly",
    )
    run.figure(
        "risk",
        lambda axes: plot_risk(axes, sizes, spread, errors),
        caption="Left: how far the empirical risk of a fixed model is off. Right: the parts of the "
        "risk of a model trained for two epochs.",
        grid=(1, 2),
        size=(9, 3.2),
    )


def linear(weight: Tensor) -> nn.Linear:
    model = nn.Linear(len(weight), 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(weight.unsqueeze(0))
    return model


def validation_risk(run: Run, law: Law, trials: int) -> tuple[list[int], list[float]]:
    """Held-out, training and selected risks against the exact one."""
    x, y = run.randn(50, 4), torch.randint(0, 7, (50,), generator=run.generator)
    classifier = nn.Linear(4, 7, dtype=torch.float64)
    logits = (x @ classifier.weight.T + classifier.bias).detach()
    chances = logits.softmax(1)[torch.arange(50), y]
    says = run.states("N-25", r"\hat R(f)=-\tfrac1s\textstyle\sum_i\log\mathrm{softmax}(f(x_i))_{y_i}")
    says.equal(empirical_risk(classifier, (x, y)).value, float(-chances.log().mean()), 1e-12)
    says.fails("labels of other samples", empirical_risk(classifier, (x, y.roll(1))).value)
    says = run.states("N-25", r"\partial_z\,\mathrm{CE}(z, y) = \mathrm{softmax}(z) - e_y")
    gradient = classification_loss("log").gradient(logits, y)
    says.equal(gradient, logits.softmax(1) - F.one_hot(y, 7), 1e-12)
    says.fails("no softmax: z - $e_y$", gradient, promised=logits - F.one_hot(y, 7))

    held, trained = [], []
    for k in range(trials):
        train, held_out = hold_out(law.sample(8 * len(law.weight), run.generator), 0.5, seed=k)
        weight = torch.linalg.lstsq(train.x, train.y.unsqueeze(1)).solution.squeeze(1)
        exact = float(law.risk(weight))
        model = linear(weight)
        held.append(empirical_risk(model, held_out).value - exact)
        trained.append(empirical_risk(model, train).value - exact)
    says = run.states("N-25", r"\mathbb E\big[\hat R_{\text{val}}(f_{\text{train}}) - R(f_{\text{train}})\big] = 0")
    optimism = sum(trained) / len(trained)
    says.mean(held, 0, against=(optimism, optimism / 2), confidence=0.999)
    says.fails("the risk is estimated on the training samples", trained)

    plain = Law(law.weight, 0.0, law.noise)
    candidates = run.randn(30, len(law.weight)) * 0.3 + law.weight
    gaps: dict[str, list[float]] = {"selected": [], "fresh": []}
    for _ in range(6 * trials):
        validation, fresh = (_risks(plain, candidates, 25, run.generator) for _ in range(2))
        chosen = int(validation.argmin())
        gaps["selected"].append(float(validation[chosen] - plain.risk(candidates[chosen])))
        gaps["fresh"].append(float(fresh[chosen] - plain.risk(candidates[chosen])))
    found = {key: mean_interval(values, 0.999) for key, values in gaps.items()}
    says = run.states(
        "N-25", r"\text{of 30 models, the best on the validation set has } \mathbb E[\hat R_{\text{val}} - R] < 0"
    )
    says.below(
        _upper(found["selected"]),
        0,
        where="selecting on the validation set spoils it as an estimate; the upper end of the interval is shown",
    )
    says.fails("the chosen model on fresh samples", _upper(found["fresh"]))

    weight = law.weight + 0.5
    sizes = [25 * 2**j for j in range(7)]

    def root_mean_square(n: int, copies: int = 1) -> float:
        """How far the empirical risk of n samples is off; `copies` of each are the same draw."""
        x, targets = law.sample(2 * trials * (n // copies), run.generator)
        risks = (x @ weight - targets).square().view(2 * trials, -1).repeat(1, copies).mean(1)
        return float((risks - law.risk(weight)).square().mean().sqrt())

    spread = [root_mean_square(n) for n in sizes]
    says = run.states(
        ["N-25", "S-05"], r"\theta \text{ fixed}: \quad \sqrt{\mathbb E(\hat J_n - J)^2} \propto n^{-1/2}"
    )
    says.slope(sizes, spread, -0.5, against=(-1.0, 0.0), confidence=0.999)
    says.fails("not independent: 25 samples, again and again", sizes, [root_mean_square(n, n // 25) for n in sizes])
    model, exact = linear(weight), float(law.risk(weight))

    def squared_errors(sampler: Sampler, count: int) -> list[float]:
        """How far estimates of J are off, in standard errors, squared."""
        found = [risk(model, sampler, 1000, generator=run.generator) for _ in range(count)]
        return [((e.value - exact) / e.standard_error) ** 2 for e in found]

    says = run.states("S-05", r"J=\|w-\theta\|^2+2a^2+\sigma^2:\ \mathbb E\,(\hat J_n-J)^2/\text{(standard error)}^2=1")
    says.mean(
        squared_errors(law.sample, 3 * trials // 2),
        1.0,
        against=(0.25, 4.0),  # a standard error twice too large or too small
        confidence=0.999,
        where=f"{3 * trials // 2} estimates from 1000 samples each",
    )
    says.fails("the noise is forgotten in J", squared_errors(Law(law.weight, law.bend, 0.0).sample, trials // 4))
    return sizes, spread


def least_squares(run: Run, law: Law, samples: int) -> None:
    """Training a linear model reaches the normal equations; of a finite class the best is taken."""
    x, y = law.sample(samples, run.generator)
    zero = torch.zeros_like(law.weight)

    def trained(epochs: int) -> Tensor:
        model = linear(zero)
        fit(model, (x, y), epochs=epochs, batch_size=samples, optimizer="sgd", learning_rate=0.2)
        return model.weight.detach().squeeze(0)

    says = run.states(
        ["A-14", "A-01"], r"\arg\min_\theta \hat R_s(\langle\theta,\cdot\rangle) = (X^\top X)^{-1}X^\top Y"
    )
    says.equal(trained(200), torch.linalg.solve(x.T @ x, x.T @ y), 1e-8)
    says.fails("training is stopped after 3 epochs", trained(3))
    slopes = torch.linspace(-2, 2, 41, dtype=torch.float64)
    hypotheses = [linear(law.weight * s) for s in slopes]
    best, risks = least_empirical_risk(hypotheses, (x, y))
    by_hand = torch.stack([((x @ law.weight) * s - y).square().mean() for s in slopes])
    says = run.states(
        "A-14", r"|\mathcal F| < \infty: \quad \hat R_s(f^{\mathrm{erm}}) = \min_{f\in\mathcal F}\hat R_s(f)"
    )
    says.equal(risks[best], float(by_hand.min()), 1e-12)
    says.fails("another member of the class", risks[0])


def error_parts(run: Run, law: Law, samples: int) -> list[tuple[Any, ...]]:
    """Approximation, estimation and optimization error of a linear model, and their sum."""
    # few samples, so that each part is large enough to be missed
    x, y = law.sample(samples // 6, run.generator)
    model = linear(torch.zeros_like(law.weight))
    fit(model, (x, y), epochs=2, batch_size=len(x), optimizer="sgd", learning_rate=0.2)
    erm = torch.linalg.lstsq(x, y.unsqueeze(1)).solution.squeeze(1)
    trained = model.weight.detach().squeeze(0)
    noise, approximation = law.noise**2, 2 * law.bend**2
    estimation = float(law.risk(erm) - law.risk(law.weight))
    optimization = float(law.risk(trained) - law.risk(erm))
    total = noise + approximation + estimation + optimization
    measured = risk(model, law.sample, 200_000, generator=run.generator)
    width = 4 * measured.standard_error
    interval = Interval(
        measured.value, measured.value - width, measured.value + width, SURE, measured.samples, "normal"
    )
    says = run.states(
        ["A-01", "S-05"], r"R(\theta) = \text{noise} + \text{approximation} + \text{estimation} + \text{optimization}"
    )
    parts = (noise, approximation, estimation, optimization)
    says.mean(interval, total, against=[total - part for part in parts], where="each part left out is excluded")
    says.fails("the optimization error is left out", interval, promised=total - optimization)
    return [
        ("noise", noise, "nothing"),
        ("approximation", approximation, "a richer class"),
        ("estimation", estimation, "more samples"),
        ("optimization", optimization, "more steps"),
        ("risk", total, ""),
    ]


def _risks(law: Law, weights: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Empirical risks of rows of weights on a new sample."""
    x, y = law.sample(n, generator)
    return (x @ weights.T - y[:, None]).square().mean(0)


def _upper(interval: Interval) -> float:
    return interval.high


def plot_risk(axes: Any, sizes: list[int], spread: list[float], errors: list[tuple[Any, ...]]) -> None:
    left, right = axes[0]
    left.loglog(sizes, spread, "o", label="measured")
    line = [spread[0] * (sizes[0] / n) ** 0.5 for n in sizes]
    left.loglog(sizes, line, "--", color=COLORS[6], linewidth=1, label="slope -1/2")
    left.set(xlabel="samples n", ylabel="root mean square error")
    left.legend()
    *parts, _ = errors
    start = 0.0
    for k, (name, size, _) in enumerate(parts):
        right.barh([0], [size], left=start, color=COLORS[k], label=name)
        start += size
    right.set(xlabel="risk", yticks=[], ylim=(-1, 1.2))
    right.legend(ncols=2, loc="upper center")
