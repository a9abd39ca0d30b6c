r"""Finding: probabilities of a loss with class weights, or of data with other class shares.

A network that is fitted by cross-entropy says every class as often as it occurs, on average over
its training data: that is the gradient in the last bias. With class weights $w_c$ it says
$p_c\propto w_c\,q_c$ for shares $q_c$, and adding $-\log w_c$ to the logits undoes them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.calibration import class_logits, probabilities
from torchtheory.audit.findings.hypotheses import classification, deterministic, test_data
from torchtheory.audit.findings.over_draws import mixed_outputs
from torchtheory.core.intervals import Interval, largest_mean_interval, mean_interval
from torchtheory.core.usual import below
from torchtheory.generalization.learning.calibration import fit_temperature
from torchtheory.models.problem import Problem

#: A class that is said so much more often than it occurs, in parts of all samples, is too often.
TOO_OFTEN = 0.05

#: Fewest test samples, and share of their loss that moved logits must save beyond a temperature.
FEWEST, SAVED = 60, 0.05


@finding(
    "class-weights",
    area="calibration",
    title="Are classes said as often as they occur?",
    cost="forward",
    needs=[classification, test_data, deterministic, probabilities],
    whole=True,
)
def class_weights(problem: Problem, record: FindingRecord) -> None:
    """Mean probabilities against the shares of the classes, and what moved logits would save."""
    assert problem.test is not None
    train, test = problem.train, problem.test
    logits, labels = class_logits(problem, mixed_outputs(problem, train), train.y)
    chances = logits.softmax(1)
    classes = chances.shape[1]
    gaps = (chances - F.one_hot(labels, classes)).double().cpu()
    found = largest_mean_interval(gaps, record.confidence)
    worst = int(gaps.mean(0).argmax())
    number = record.quantity(
        "class-said-too-often", "how much more often than it occurs a class is said, on average",
        Interval(
            found.estimate, max(0.0, found.low), found.high, found.confidence, found.trials,
            found.test,
        ), samples=train,
    )  # fmt: skip
    usual = below(TOO_OFTEN)
    if number.high <= TOO_OFTEN or len(test) < FEWEST:
        return
    saved = _saved(problem)
    if number.low < TOO_OFTEN or saved is None:
        return
    loss, gain, weights = saved
    if not gain.low > SAVED * loss:
        return
    share = float((labels == worst).double().mean())
    said = float(chances[:, worst].mean())
    record.look(
        f"Class {worst} is said with a mean probability of {100 * said:.3g}%, and "
        f"{100 * share:.3g}% of the training samples are of it: the probabilities are those of a "
        f"loss with class weights, as if it weighed {weights[worst]:.3g} times as much as the "
        f"others on average. Undone, the loss on held-out test samples is "
        f"{loss - gain.estimate:.3g} "
        f"instead of {loss:.3g}.",
        number=number, usual=usual,
        action="Class weights, or sampling by class, move decisions on purpose, and probabilities "
        "with them: subtract the logarithms of the weights from the logits where probabilities "
        "are used.",
    )  # fmt: skip


def _saved(problem: Problem) -> tuple[float, Interval, list[float]] | None:
    """What moved logits save of the loss beyond a temperature, fitted on half of the test data."""
    assert problem.test is not None
    logits, labels = class_logits(problem, mixed_outputs(problem, problem.test), problem.test.y)
    logits, labels = logits.cpu(), labels.cpu()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    one, two = order[: len(order) // 2], order[len(order) // 2 :]
    bias = _best_bias(logits[one], labels[one])
    temperature = float(fit_temperature(logits[one], labels[one]).estimate)
    if not 0 < temperature < float("inf"):
        return None
    plain = F.cross_entropy(logits[two] / temperature, labels[two], reduction="none")
    moved = F.cross_entropy(logits[two] + bias, labels[two], reduction="none")
    weights = (-bias).exp()
    relative = [
        float(w / torch.cat([weights[:k], weights[k + 1 :]]).log().mean().exp())
        for k, w in enumerate(weights)
    ]
    return float(plain.mean()), mean_interval(plain - moved, 0.99), relative


def _best_bias(logits: Tensor, labels: Tensor) -> Tensor:
    """The vector added to all logits that serves best, as if each class was seen once more."""
    classes = logits.shape[1]
    bias = torch.zeros(classes, dtype=logits.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([bias], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        once = F.log_softmax(bias, 0).mean() / len(labels)
        loss = F.cross_entropy(logits + bias, labels) - classes * once
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return bias.detach() - bias.detach().mean()
