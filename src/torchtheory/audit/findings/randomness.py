"""Finding: models that draw random numbers, averaged over what they draw."""

from __future__ import annotations

import math

import torch
from scipy import special

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, has_loss, random_numbers
from torchtheory.models.problem import Problem
from torchtheory.training.losses.risks import sample_losses

#: Draws of the noise: at least and at most.
LEAST, MOST = 4, 32


@finding(
    "noise",
    area="fit",
    title="The loss, averaged over the random numbers that the model draws",
    cost="forward",
    needs=[random_numbers, has_loss, deterministic],
)
def noise(problem: Problem, record: FindingRecord) -> None:
    r"""The expectation of the loss over the noise, and where the draw that is audited lies.

    The audit is about the function at one draw $\omega_0$. Here the loss $\ell(\omega, i)$ of
    $n$ samples is averaged over draws $\omega_1,\dots,\omega_K$, each the same for all samples.
    The variance of the mean is at most that of the draws' means over $K$ plus that of the samples'
    means over $n$.
    """
    samples = problem.train
    draws = max(LEAST, min(MOST, problem.affordable(len(samples))))
    seeds = torch.randint(2**31, (draws,), generator=record.generator).tolist()
    losses = torch.stack([sample_losses(problem.at_draw(s), samples).double().cpu() for s in seeds])
    n, part = len(samples), 1 - len(samples) / samples.population
    by_draw, by_sample = losses.mean(1), losses.mean(0)
    variance = float(by_draw.var()) / draws
    variance += part * (float(by_sample.var()) / n if n > 1 else math.inf)
    half = float(special.stdtrit(draws - 1, (1 + record.confidence) / 2)) * math.sqrt(variance)
    mean, here = float(losses.mean()), float(sample_losses(problem, samples).double().mean())
    record.quantity(
        "expected-train-loss", "loss on the training data, averaged over the model's noise", mean,
        error=half, basis=f"{record.confidence:.4g} Student t over {draws} draws of the noise",
        samples=samples,
    )  # fmt: skip
    record.table(
        "draws",
        ("loss over draws of the noise", "value"),
        [
            ("mean", mean),
            ("least", float(by_draw.min())),
            ("largest", float(by_draw.max())),
            ("standard deviation", float(by_draw.std())),
            ("at the draw that the other findings are about", here),
        ],
        caption="Each draw is the same for every sample, so that the network is one function of "
        "its input.",
    )
    record.headline(
        f"The model draws random numbers: over {draws} draws its loss on the training data is "
        f"{mean:.3g} on average, from {float(by_draw.min()):.3g} to {float(by_draw.max()):.3g}; "
        f"the other findings are about one draw, at which it is {here:.3g}."
    )
    if problem.task in ("multiclass", "binary", "labeling"):
        record.look(
            "The model draws random numbers also in evaluation mode, so that it answers "
            f"differently each time; its loss is {mean:.3g} on average.",
            action="If that is not meant, look for F.dropout without training=self.training.",
        )
