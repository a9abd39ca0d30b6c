"""Finding: models that draw random numbers, averaged over what they draw."""

from __future__ import annotations

from scipy import stats

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import deterministic, has_loss, random_numbers
from torchtheory.audit.findings.over_draws import mean_over_draws, over_draws
from torchtheory.core.usual import at_most
from torchtheory.models.problem import Problem
from torchtheory.training.losses.risks import sample_losses


@finding(
    "noise",
    area="fit",
    title="The loss, averaged over the random numbers that the model draws",
    cost="forward",
    needs=[random_numbers, has_loss, deterministic],
)
def noise(problem: Problem, record: FindingRecord) -> None:
    r"""The expectation of the loss over the noise, and where the draw that is audited lies.

    Gradients and what is made of them are those of the function at one draw $\omega_0$. Here the
    loss $\ell(\omega, i)$ of $n$ samples is averaged over draws $\omega_1,\dots,\omega_K$, as error
    rates and calibration are; see `torchtheory.audit.findings.over_draws`.
    """
    samples = problem.train
    losses = over_draws(problem, lambda there: sample_losses(there, samples))
    by_draw, found = losses.mean(1), mean_over_draws(losses, record.confidence, samples)
    mean, here = found.estimate, float(sample_losses(problem, samples).double().mean())
    record.quantity(
        "expected-train-loss", "loss on the training data, averaged over the model's noise", found,
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
        f"The model draws random numbers: over {len(losses)} draws its loss on the training data "
        f"is {mean:.3g} on average, from {float(by_draw.min()):.3g} to {float(by_draw.max()):.3g}; "
        "error rates and calibration are over these draws, the other findings about one, at which "
        f"it is {here:.3g}."
    )
    if problem.task in ("multiclass", "binary", "labeling"):
        spread, freedom = float(by_draw.std()), len(by_draw) - 1
        ends = stats.chi2.ppf([(1 + s * record.confidence) / 2 for s in (1, -1)], freedom)
        number = record.quantity(
            "noise-spread", "standard deviation of the training loss over draws of the noise",
            spread, low=spread * (freedom / ends[0]) ** 0.5,
            high=spread * (freedom / ends[1]) ** 0.5, samples=samples,
            basis=f"{record.confidence:.4g} chi-square over {len(by_draw)} draws",
        )  # fmt: skip
        record.look(
            "The model draws random numbers also in evaluation mode, so that it answers "
            f"differently each time; its loss is {mean:.3g} on average.",
            number=number,
            usual=at_most(0, "0 when a classifier is used"),
            action="If that is not meant, look for F.dropout without training=self.training.",
        )
