"""A billion models and ten thousand validation samples."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from torchtheory.generalization.concentration import finite_class_radius
from torchtheory.generalization.learning.validation_bound import (
    log_models_allowed,
    validation_bounds,
    validation_sample_size,
    validation_slack,
)
from torchtheory.labs.engine import Interval, Run, lab, quantile_interval


@lab(
    "validation-set-bound",
    room="generalization",
    covers=["B-11"],
    title="A validation set of 10 000 judges a billion models within 7 %, or 0.5 % if they agree",
    full={"trials": 20_000},
    least={"samples": 50, "models": 2, "trials": 200},
)
def validation_set_bound(run: Run, samples: int = 200, models: int = 100, trials: int = 2000) -> None:
    """The bound of Bernstein and the union bound, its printed numbers, and what else there is.

    A hundred models with known risks are judged by simulated validation sets: the bound fails
    less often than it may. The best of a hundred models without skill, counted as if it had been
    the only one, breaks it: what counts is what the search could have returned. Losses in [0, 1]
    have variance at most 1/4, so the printed worst case of 1 never occurs; then Hoeffding's
    inequality is as good as Bernstein's, and the exact binomial quantile is better than both.
    A variance estimated on the same set is not covered by the proposition, and the control shows
    it. Look at the table for your own numbers.

    Args:
        samples: in a validation set.
        models: that are judged by it.
        trials: validation sets in which the bounds may fail.
    """
    printed(run)
    coverage(run, samples, models, trials)
    estimated_variance(run, trials)
    comparison(run)


def printed(run: Run) -> None:
    """The numbers of the source and the forms of the bound."""
    m, count, delta = 10_000, 1e9, 0.1
    says = run.states(
        "B-11",
        r"\tfrac{2C\ln(|\mathcal F|/\delta)}{3m}+\sqrt{\tfrac{2\gamma^2\ln(|\mathcal F|/\delta)}m}="
        r"6.94\,\%\ (\gamma^2=1),\ 0.49\,\%\ (\gamma^2=0.05^2)",
    )
    says.equal(
        [validation_slack(m, count, delta, variance=v) for v in (1.0, 0.05**2)],
        [0.0694, 0.0049],
        5e-5,
        where="m = 10000, 10⁹ models, δ = 0.1, C = 1",
    )
    says.fails(
        "a search that could have returned a thousand times as many models",
        [validation_slack(m, 1e3 * count, delta, variance=v) for v in (1.0, 0.05**2)],
    )
    grid = [(m, n, d, v) for m in (10, 1000, 10**6) for n in (1, 1e3, 1e9) for d in (1e-3, 0.1)
            for v in (1e-4, 0.25, 1.0)]  # fmt: skip
    roots = [validation_slack(m, n, d, variance=v, relaxed=False) for m, n, d, v in grid]
    run.states(
        "B-11", r"\tfrac{Ct}3+\tfrac12\sqrt{(\tfrac{2Ct}3)^2+8\gamma^2t}\le\tfrac{2Ct}3+\sqrt{2\gamma^2t}"
    ).at_most(roots, [validation_slack(m, n, d, variance=v) for m, n, d, v in grid])
    quarter = validation_slack(m, count, delta)
    run.states(
        "B-11",
        r"\text{losses in } [0,1]:\ \sqrt{\tfrac{\ln(|\mathcal F|/\delta)}{2m}}=3.39\,\%\le"
        r"3.55\,\%\ (\gamma^2=\tfrac14)\le6.94\,\%",
    ).equal(
        [finite_class_radius(count, m, delta, one_sided=True), quarter],
        [0.0339, 0.0355],
        5e-5,
        where="a variance of 1 cannot occur; the worst case is 1/4",
    )
    sizes = [validation_sample_size(s, 1000, delta) for s in (0.01, 0.05)]
    allowed = [log_models_allowed(s, m, delta) for s in (0.02, 0.05)]
    says = run.states("B-11", r"\text{the sample size and the number of models solve the bound}")
    says.equal(
        [
            *(validation_slack(size, 1000, delta) for size in sizes),
            *(validation_slack(m, math.exp(a), delta) for a in allowed),
        ],
        [0.01, 0.05, 0.02, 0.05],
        1e-5,
    )
    says.fails("half the samples", validation_slack(sizes[0] // 2, 1000, delta), promised=0.01)


def coverage(run: Run, samples: int, models: int, trials: int) -> None:
    """Models with known risks on simulated validation sets."""
    delta, risk = 0.05, 0.5
    counts = torch.binomial(
        torch.full((trials, models), float(samples), dtype=torch.float64),
        torch.full((trials, models), risk, dtype=torch.float64),
        generator=run.generator,
    )
    gaps = risk - counts / samples
    says = run.states(
        "B-11",
        r"\Pr\bigl(\forall f\in\mathcal F_{\mathrm{val}}:R\le R_{\mathrm{val}}+\tfrac{2Ct}3+"
        r"\sqrt{2\gamma^2t}\bigr)\ge1-\delta",
    )
    says.at_most(
        quantile_interval(gaps.amax(1), 1 - delta, 0.999),
        validation_slack(samples, models, delta),
        where=f"largest R - R_val of {models} models without skill, quantile at 1 - δ, {samples} samples",
    )
    best = gaps.gather(1, counts.argmin(1, keepdim=True))
    says.fails(
        "the best of the models on the validation set, counted as the only one",
        quantile_interval(best, 1 - delta, 0.999),
        promised=validation_slack(samples, 1, delta),
    )


def estimated_variance(run: Run, trials: int) -> None:
    """The variance of the validation losses in place of a bound of the true one."""
    delta = 0.05

    def used(risk: float, m: int, slack: Callable[[int], float]) -> Interval:
        """How much of the slack is used with probability 1 - δ."""
        counts = (run.rand(trials, m) < risk).sum(1)
        share = torch.tensor([(risk - k / m) / slack(k) if k < risk * m else 0.0 for k in range(m + 1)]).double()
        return quantile_interval(share[counts], 1 - delta, 0.999)

    def seen(m: int, k: int) -> float:
        return validation_slack(m, 1, delta, variance=k / m * (1 - k / m))

    few, risk, many = 45, 0.05, 1000
    known = validation_slack(few, 1, delta, variance=risk * (1 - risk))
    says = run.states("B-11", r"\Pr(R\le R_{\mathrm{val}}+\text{slack with the true variance})\ge1-\delta")
    says.at_most(used(risk, few, lambda k: known), 1.0, where=f"share of the slack in use; risk {risk}, {few} samples")
    says.fails("the variance seen on the same validation set", used(risk, few, lambda k: seen(few, k)))
    says = run.states("B-11", r"\Pr(R\le\text{the empirical Bernstein bound})\ge1-\delta")
    paid = [validation_bounds(k, many, 1, delta).empirical_bernstein - k / many for k in range(many + 1)]
    says.at_most(used(0.5, many, lambda k: paid[k]), 1.0, where=f"share of the slack in use; risk 0.5, {many} samples")
    says = run.states("B-11", r"\Pr(R\le\text{the exact binomial bound})\ge1-\delta")
    says.at_most(
        used(risk, few, lambda k: validation_bounds(k, few, 1, delta).exact - k / few),
        1.0,
        where=f"share of the slack in use; risk {risk}, {few} samples",
    )


def comparison(run: Run) -> None:
    """Four sound bounds side by side."""
    m, delta = 10_000, 0.1
    rows: list[list[str | float]] = []
    found = []
    for errors in (0, 100, 500, 2000, 5000):
        for count in (1, 1000, 1e9):
            b = validation_bounds(errors, m, count, delta)
            found.append(b)
            rows.append([errors / m, f"{count:.0e}", b.hoeffding, b.bernstein,
                         b.empirical_bernstein, b.exact])  # fmt: skip
    run.table(
        "bounds",
        ["error on validation", "models", "Hoeffding", "Bernstein, 1/4", "empirical Bernstein",
         "exact"],
        rows,
        caption="Upper bounds of the error, m = 10000, δ = 0.1; all hold for all models at once.",
    )  # fmt: skip
    run.states("B-11", r"\text{the exact binomial bound is the smallest of the four}").at_most(
        [b.exact for b in found], [min(b.hoeffding, b.bernstein, b.empirical_bernstein) for b in found]
    )
    counts = [10.0**k for k in range(13)]
    bounds = [validation_bounds(500, 10_000, c, 0.1) for c in counts]
    run.curves(
        "slack",
        counts,
        {
            "exact binomial": [100 * (b.exact - 0.05) for b in bounds],
            "empirical Bernstein": [100 * (b.empirical_bernstein - 0.05) for b in bounds],
            "Hoeffding": [100 * (b.hoeffding - 0.05) for b in bounds],
        },
        {"Bernstein, variance 1": [100 * validation_slack(10_000, c, 0.1, variance=1.0) for c in counts]},
        axes=("number of models", "slack in percent"),
        log="x",
        ylim=(0, None),
        caption="How far above its validation error the error of a model with 5 % errors on "
        "10 000 samples can be, against the number of models it was chosen from (δ = 0.1).",
    )
