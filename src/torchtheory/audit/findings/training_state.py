"""Was the network trained at all, and in which mode was it handed over?"""

from __future__ import annotations

import math
from collections import Counter

import torch
from scipy import special
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import jackknife_range
from torchtheory.audit.findings.hypotheses import deterministic, has_parameters
from torchtheory.core.diagnosis import Area
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.intervals import Interval
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import above, at_most
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.fresh_weights import drawn_anew
from torchtheory.nets.initialization_laws import FreshDraw, compare_with_fresh_draws
from torchtheory.report.wording import counted
from torchtheory.training.losses.risks import best_constant, least_constant

#: Weights are told from a fresh draw at this confidence, all layers together.
CONFIDENCE = 0.999

#: Share of the parameters whose rule must be known before the network is called untrained.
KNOWN = 0.5

#: A network that is trained explains more of its loss than this, and more than networks that are
#: drawn anew do by chance: so many of them, on so many samples.
EXPLAINED, DRAWS, SAMPLES = 0.1, 20, 256

#: As how many samples a class counts that does not occur among those that a constant is for.
UNSEEN = 1e-6

#: Groups of samples whose spread gives the range of a number.
GROUPS = 32


@finding(
    "untrained",
    area="fit",
    title="Is the network trained?",
    cost="forward",
    needs=[has_parameters, deterministic],
    whole=True,
)
def untrained(problem: Problem, record: FindingRecord) -> None:
    """Weights that cannot be told from a fresh draw, and outputs that explain nothing.

    Both are needed: the weights of a wide network hardly move while it learns, and labels may have
    nothing to do with the inputs.
    """
    draws = compare_with_fresh_draws(problem.model)
    known = [d for d in draws if d.rule]
    record.table(
        "fresh-draws",
        ("parameter", "entries", "most like a draw by", "p-value"),
        [(d.parameter, d.entries, d.rule or "(no rule is known)", d.p_value) for d in draws],
        caption="Kolmogorov's test of every parameter against the rules it may have been drawn "
        "by. A small p-value: it is no such draw any more.",
    )
    explained = record.quantity(
        "explained-loss",
        "share of the training loss explained",
        _explained(problem, problem.train, record.confidence),
        samples=problem.train,
    )
    fresh = _all_fresh(known, sum(d.entries for d in draws))
    same = problem.initial is not None and all(
        torch.equal(p, problem.parameters[k]) for k, p in problem.initial.items()
    )
    limit = _explained_by_chance(problem, record) if fresh else EXPLAINED
    little = explained.high < limit
    if same and not little:
        record.look(
            "The weights given as those that training began with are the network's own weights.",
            action="Keep a copy before training: copy.deepcopy(model.state_dict()). The state "
            "dict itself changes as the model is trained.",
            area=Area.TRAINING,
        )
    if (fresh or same) and little:
        record.defect(
            _accusation(problem, explained, same=same),
            number=explained,
            usual=above(limit, f"above {limit:.2g}"),
            action="Load the trained weights, and look at what load_state_dict returns: keys that "
            "are missing were left as they were drawn.",
        )


def _accusation(problem: Problem, explained: Quantity, *, same: bool) -> str:
    weights = (
        "its weights are those that training began with"
        if same
        else "its weights cannot be told from a fresh draw"
    )
    outputs = "its outputs say nothing about the training data"
    if problem.is_classification:
        share = float(problem.errors(problem.train).double().mean())
        outputs = f"it errs on {share:.0%} of {len(problem.train):,} training samples"
    return f"The network looks untrained: {weights}, and {outputs}."


def _all_fresh(known: list[FreshDraw], entries: int) -> bool:
    """Whether no parameter of a known rule differs from its law, and most have a known rule."""
    if sum(d.entries for d in known) < KNOWN * entries:
        return False
    # scales and biases that began as constants tell nothing apart where nothing else is known
    if all(d.rule == "a constant" for d in known):
        return False
    return min(d.p_value for d in known) >= (1 - CONFIDENCE) / len(known)


def _explained_by_chance(problem: Problem, record: FindingRecord) -> float:
    """What networks whose weights are drawn anew explain at most: the end of a prediction range."""
    count = min(SAMPLES, problem.affordable(2 * DRAWS))
    samples = problem.train.some(count, record.generator)
    found = []
    for seed in range(DRAWS):
        try:
            new = drawn_anew(problem.model, seed)
        except UnsupportedModel:
            return EXPLAINED
        there = problem.at({k: p.detach() for k, p in new.named_parameters()})
        # worse than a constant is no better: outputs of another size would widen the range
        found.append(max(0.0, _explained(there, samples, record.confidence).estimate))
    values = torch.tensor(found).double()
    reach = -float(special.stdtrit(DRAWS - 1, 1 - CONFIDENCE)) * math.sqrt(1 + 1 / DRAWS)
    return max(EXPLAINED, float(values.mean() + reach * values.std()))


def _explained(problem: Problem, samples: Samples, confidence: float) -> Interval:
    """One minus the mean loss over that of the constant output that serves these samples best."""
    outputs = problem.outputs(samples)
    constant = _constant(problem, samples, outputs).to(outputs).expand_as(outputs)
    numbers = torch.arange(len(samples), device=outputs.device)
    parts = torch.tensor_split(numbers, min(GROUPS, len(samples)))
    shares = torch.tensor([len(p) for p in parts]).double() / len(samples)
    with torch.no_grad():
        own, other = (
            shares * torch.tensor([float(problem.loss(o[p], samples.y[p])) for p in parts]).double()
            for o in (outputs, constant)
        )
    value = float(1 - own.sum() / other.sum())
    without = 1 - (own.sum() - own) / (other.sum() - other)
    return jackknife_range(value, without, len(samples), samples.population, confidence)


def _constant(problem: Problem, samples: Samples, outputs: Tensor) -> Tensor:
    """The best constant that is known; of a task without one, by descent from the mean output."""
    known = best_constant(problem, samples, unseen=UNSEEN)
    if known is not None:
        return known
    return least_constant(problem, samples, [outputs.double().mean(0).to(outputs)])


@finding(
    "training-mode",
    area="training",
    title="Is the model in evaluation mode?",
    cost="parameters",
)
def training_mode(problem: Problem, record: FindingRecord) -> None:
    """Dropout and batch normalization compute something else in training mode.

    An audit runs the model in evaluation mode, whatever it was left in.
    """
    left = [m for m in problem.model.modules() if m.training and _differs(m)]
    number = record.quantity(
        "layers-in-training-mode", "layers left in training mode that behave differently there",
        len(left),
    )  # fmt: skip
    if not left:
        return
    kinds = Counter(type(m).__name__ for m in left)
    listed = " and ".join(
        f"{kind} layer" if count == 1 else counted(count, f"{kind} layer")
        for kind, count in kinds.items()
    )
    record.look(
        f"The model was handed over in training mode, in which its {listed} "
        f"{'behaves' if len(left) == 1 else 'behave'} differently from how the model is meant to "
        "be used. This audit ran it in evaluation mode.",
        number=number,
        usual=at_most(0, "none when the model is used"),
        action="Call model.eval() before you use or evaluate the model.",
    )


def _differs(module: nn.Module) -> bool:
    """Whether a layer computes something else in training mode."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, _NormBase) and module.running_mean is not None
