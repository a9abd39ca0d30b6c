"""Finding: tokens numbered otherwise than in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.hypotheses import deterministic, has_loss
from torchtheory.audit.findings.padding import sequences_of_tokens
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.intervals import mean_interval
from torchtheory.core.usual import at_most
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.training.losses.risks import constant_loss, sample_losses

NUMBERS = r"L(x) \le L(x + k)"

#: Numbers that tokens may be shifted by: special tokens are few.
SHIFTS = (-3, -2, -1, 1, 2, 3)

#: Samples that are tried, at least and at most.
FEWEST, MOST = 20, 256


@finding(
    "token-ids",
    area="data",
    title="Are tokens numbered as in training?",
    cost="forward",
    needs=[sequences_of_tokens, has_loss, deterministic],
    whole=True,
)
def token_ids(problem: Problem, record: FindingRecord) -> None:
    """The network on the same sequences with other numbers of the tokens: does it fit better?"""
    rows = [m.num_embeddings for m in problem.model.modules() if isinstance(m, nn.Embedding)]
    largest = max(rows, default=0)
    if largest == 0:
        record.not_applicable((), NUMBERS, "the model has no table of tokens")
        return
    constant = constant_loss(problem, problem.train)
    for name, every in (("training", problem.train), ("test", problem.test)):
        if every is None or len(every) < FEWEST:
            continue
        count = min(MOST, problem.affordable(2 * len(SHIFTS) + 1, share=0.3))
        if count < FEWEST:
            record.not_done((), NUMBERS, "no time to try other numbers of the tokens")
            return
        samples = every.some(count, record.generator)
        if _accused(problem, record, samples, name, largest, constant):
            return
    if not record.tables:
        record.not_applicable(
            (), NUMBERS, "the model takes no other numbers, or samples are too few"
        )


def _accused(
    problem: Problem,
    record: FindingRecord,
    samples: Samples,
    name: str,
    largest: int,
    constant: float | None,
) -> bool:
    half = len(samples) // 2
    choosing, judging = samples.first(half), Samples(samples.x[half:], samples.y[half:])
    tried = {}
    for shift in SHIFTS:
        for padded in (False, True):
            losses = _losses(problem, choosing, shift, largest, padded)
            if losses is not None:
                tried[shift, padded] = float(losses.mean())
    if not tried:
        return False
    record.table(
        f"{name}-numbers",
        ("added to the numbers", "padding left alone", "mean loss"),
        [
            (0, "", float(sample_losses(problem, choosing).double().mean())),
            *((k, "yes" if alone else "no", loss) for (k, alone), loss in tried.items()),
        ],
        caption=f"The network on {len(choosing)} {name} samples with tokens numbered otherwise.",
    )
    shift, padded = min(tried, key=tried.__getitem__)
    before = sample_losses(problem, judging).double().cpu()
    after = _losses(problem, judging, shift, largest, padded)
    if after is None or (constant is not None and float(after.mean()) >= constant):
        return False
    gain = mean_interval(before / 2 - after, 1 - alarm_level(record))
    if not gain.low > 0:
        return False
    saved = mean_interval(before - after, record.confidence)
    number = record.quantity(
        "loss-by-numbering", f"loss on {name} data that other numbers of the tokens save", saved,
        low=saved.low, high=saved.high, basis="Student t, paired", samples=samples,
    )  # fmt: skip
    record.defect(
        f"The tokens of the {name} data are shifted: as they are the loss is "
        f"{float(before.mean()):.3g}, and {float(after.mean()):.3g} with {shift:+d} added to their "
        f"numbers{', padding left alone' if padded else ''}.",
        number=number, usual=at_most(0, "0 or less"),
        action="Use the tokenizer, and the numbers of special tokens, of training.",
    )  # fmt: skip
    return True


def _losses(
    problem: Problem, samples: Samples, shift: int, largest: int, padded: bool
) -> Tensor | None:
    """With shifted numbers, as far as the table goes; None where the model does not take them."""
    x = (samples.x + shift).clamp(0, largest - 1)
    if padded:
        x = torch.where(samples.x == 0, samples.x, x)
    try:
        return sample_losses(problem, Samples(x, samples.y)).double().cpu()
    except TorchTheoryError:
        return None
