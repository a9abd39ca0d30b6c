"""Findings about signals: which units take part, how gradients travel, whether anything bends."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    floating_inputs,
    has_parameters,
)
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.figure import COLORS, label_text
from torchtheory.models.model import Parameters, flatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.chain import as_chain
from torchtheory.nets.linear_networks import collapse_linear
from torchtheory.nets.watching import LayerSignal, WatchedUnits, watch_signals, watch_units
from torchtheory.optimization.curvature.operators import gradient

#: Samples looked at.
UNIT_SAMPLES, SIGNAL_SAMPLES, PAIRS = 4096, 512, 256

#: A signal of depth L survives while L is at most six times the depth over which it falls by e
#: (Schoenholz, Gilmer, Ganguli and Sohl-Dickstein, 2017): e to the sixth, some 400-fold.
DEPTH_SCALES = 6.0

#: More than this share of a layer's units silent, or of its slopes flat, is a defect.
MUCH_SILENT, MUCH_FLAT = 0.5, 0.9

#: Activations that saturate without ever being flat.
SMOOTH = ("sigmoid", "tanh")


@finding(
    "units",
    area="signals",
    title="Units that are silent, saturated or linear",
    cost="forward",
    needs=[has_parameters, deterministic, differentiable],
)
def units(problem: Problem, record: FindingRecord) -> None:
    """The slopes of every activation over the training data: where they are 0, no gradient passes.

    A unit whose slope is 0 at every sample gets no gradient and cannot learn; one whose slope is
    the same everywhere is a linear unit on these data.
    """
    samples = problem.train.some(min(UNIT_SAMPLES, problem.affordable(8)), record.generator)
    found = [u for u in watch_units(problem, samples) if u.units > 0]
    if not found:
        record.not_applicable(
            (),
            r"\varrho'(z_i(x)) \ne 0 \text{ for some } x",
            "no pointwise activation was seen: fused recurrent layers and attention apply theirs "
            "inside",
        )
        return
    record.table(
        "units",
        ("after layer", "activation", "units", "silent", "linear", "flat slopes"),
        [
            (u.layer or "(input)", u.function, u.units, u.silent_share, u.linear_share, u.flat)
            for u in found
        ],
        caption=f"Shares over {len(samples)} training samples. Silent: the slope is 0 at every "
        "sample. Linear: it is the same everywhere. Flat: below a hundredth of the largest slope.",
    )
    total = sum(u.units for u in found)
    silent = sum(int(u.silent.sum()) for u in found)
    record.quantity(
        "silent-units",
        f"share of units that pass no gradient at any of {len(samples)} samples",
        silent / total,
    )
    record.quantity(
        "flat-slopes",
        "share of slopes below a hundredth of the largest",
        sum(u.flat * u.units for u in found) / total,
    )
    _silent_units_get_no_gradient(problem, record, samples, found)
    # one that fires at every second input is silent at n of them with probability 2^-n
    if 0.5 ** len(samples) <= 1 - record.confidence:
        _warn_of_units(record, found)
    if silent:
        record.headline(
            f"{silent} of {total} hidden units never pass a gradient on the training data.", 1
        )
    if len(found) > 1:
        record.figure(
            "units",
            lambda ax: _plot_units(ax, found),
            caption="Shares of units or slopes behind every activation, in order.",
            size=(6, 2.8),
        )


def _silent_units_get_no_gradient(
    problem: Problem, record: FindingRecord, samples: Samples, found: list[WatchedUnits]
) -> None:
    """The rows of a weight matrix that feed silent units, against those that feed the others."""
    slopes = gradient(problem, samples)
    shapes = {k: p.shape for k, p in problem.trainable.items()}
    pieces = torch.split(slopes, [math.prod(s) for s in shapes.values()])
    rows = {
        k: g.reshape(s[0], -1).abs().amax(1)
        for (k, s), g in zip(shapes.items(), pieces, strict=True)
        if len(s) > 1
    }
    largest = max((float(r.max()) for r in rows.values()), default=0.0)
    behind: list[Tensor] = []
    others: list[Tensor] = []
    once = [u.layer for u in found]
    for u in found:
        own = rows.get(f"{u.layer}.weight")
        if own is not None and len(own) == u.units and once.count(u.layer) == 1:
            behind.append(own[u.silent])
            others.append(own[~u.silent])
    if not any(len(b) for b in behind) or largest == 0:
        return
    says = record.states(
        (), r"\varrho'(z_i(x)) = 0 \ \forall x \in S \Rightarrow \nabla_{W_i} L_S = 0"
    )
    says.equal(
        torch.cat(behind) / largest,
        where="largest gradient of a weight into a silent unit, relative to the largest of all",
    )
    # past a layer that is silent as a whole no signal comes, and no unit gets a gradient
    if any(len(o) for o in others) and not any(bool(u.silent.all()) for u in found):
        says.fails("units that do fire", float(torch.cat(others).max()) / largest)


def _warn_of_units(record: FindingRecord, found: list[WatchedUnits]) -> None:
    # a sigmoid's slope is 0 by rounding alone: such a unit is saturated, not dead
    dead = [u for u in found if u.silent_share > MUCH_SILENT and u.function not in SMOOTH]
    flat = [u for u in found if u.flat > MUCH_FLAT and u not in dead]
    if dead:
        worst = max(dead, key=lambda u: u.silent_share)
        record.defect(
            f"{worst.silent_share:.0%} of the {worst.units} units after {_place(worst)} are dead: "
            f"their {worst.function} is flat at every training sample, so no gradient reaches "
            "their weights and they cannot recover.",
            action="Dead units stay dead under gradient descent: initialize anew with a smaller "
            "learning rate or biases of 0, or use an activation without a flat side "
            "(nn.LeakyReLU).",
        )
    saturating = [u for u in flat if u.function in (*SMOOTH, "hardtanh", "hardsigmoid")]
    if saturating:
        worst = max(saturating, key=lambda u: u.flat)
        record.defect(
            f"{worst.flat:.0%} of the {worst.function} outputs after {_place(worst)} are "
            "saturated: their slope is below a hundredth of its largest value, and gradients are "
            "multiplied by it.",
            action="Scale the inputs to mean 0 and variance 1 and the weights to variance 1/fan-in "
            "(nn.init.xavier_normal_), so that pre-activations are of order 1.",
        )


def _place(found: WatchedUnits) -> str:
    return f"layer {found.layer}" if found.layer else "the input"


def _plot_units(ax: Any, found: list[WatchedUnits]) -> None:
    where = range(len(found))
    parts = (
        ("silent", [u.silent_share for u in found], COLORS[1]),
        ("linear", [u.linear_share for u in found], COLORS[0]),
        ("flat slopes", [u.flat for u in found], COLORS[2]),
    )
    for label, shares, color in parts:
        ax.plot(where, shares, "o-", color=color, label=label, markersize=4)
    labels = [label_text(u.layer or "input") for u in found]
    every = max(1, len(found) // 12)
    ax.set_xticks(list(where)[::every], labels[::every], rotation=45, ha="right")
    ax.set(ylim=(-0.04, 1.04), ylabel="share", xlabel="activation after layer")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))


@finding(
    "gradients-by-depth",
    area="signals",
    title="How activations and gradients grow or shrink with depth",
    cost="gradient",
    covers=["A-130"],
    needs=[has_parameters, deterministic, differentiable],
)
def gradients_by_depth(problem: Problem, record: FindingRecord) -> None:
    """Root mean square of every layer's output, and the length of the loss's gradient in it.

    A product of factors grows or shrinks exponentially with depth unless they are near 1.
    """
    samples = problem.train.some(min(SIGNAL_SAMPLES, problem.affordable(8)), record.generator)
    now = watch_signals(problem, samples)
    statement = r"\|\partial L/\partial z_1\| \approx \lambda^{L-1} \|\partial L/\partial z_L\|"
    if len(now) < 2:
        record.not_applicable("A-130", statement, "fewer than two layers have a weight matrix")
        return
    started = None if problem.initial is None else _at(problem, problem.initial, samples)
    _tabulate_signals(problem, record, now, started)
    backward = _ratio(now[0].backward, now[-1].backward)
    forward = _ratio(now[-1].forward, now[0].forward)
    if math.isnan(backward):
        record.not_applicable("A-130", statement, "the gradient at the last layer is 0")
        return
    depth = len(now)
    record.quantity("gradient-ratio", "gradient at the first layer over that at the last", backward)
    record.quantity(
        "gradient-factor", "factor per layer, λ", _root(backward, depth), unit="per layer"
    )
    record.quantity("activation-ratio", "activations of the last layer over the first", forward)
    record.headline(_in_words(backward, depth), 2)
    _warn_of_depth(record, backward, forward, depth, "")
    if started is not None:
        before = _ratio(started[0].backward, started[-1].backward)
        ahead = _ratio(started[-1].forward, started[0].forward)
        asleep = _layers_of_zeros(problem.initial or {})
        if before == 0 and asleep:  # on purpose: it has a gradient, and others after its first step
            record.note(f"Layer {asleep[0]} began with weights of 0, which let no gradient pass.")
        else:
            _warn_of_depth(record, before, ahead, depth, " at the weights training began with")
    record.figure(
        "depth",
        lambda axes: _plot_depth(axes, now, started),
        caption="Layers in order of use. Left: root mean square of the outputs. Right: length of "
        "the gradient of a sample's loss in them.",
        grid=(1, 2),
        size=(8, 2.8),
    )


def _at(problem: Problem, point: Parameters, samples: Samples) -> list[LayerSignal] | None:
    whole = {**problem.parameters, **point}
    try:
        return watch_signals(problem, samples, whole)
    except TorchTheoryError:
        return None


def _layers_of_zeros(point: Parameters) -> list[str]:
    return [k.rpartition(".")[0] for k, p in point.items() if p.ndim > 1 and not bool(p.any())]


def _tabulate_signals(
    problem: Problem,
    record: FindingRecord,
    now: list[LayerSignal],
    started: list[LayerSignal] | None,
) -> None:
    rows = []
    for k, s in enumerate(now):
        weight = problem.parameters.get(f"{s.layer}.weight")
        gain = None
        if weight is not None and weight.ndim > 1:
            gain = float(weight.double().square().mean()) * math.prod(weight.shape[1:])
        before = None if started is None or len(started) != len(now) else started[k].backward
        rows.append((s.layer, s.forward, s.backward, before, gain))
    record.table(
        "signals",
        ("layer", "outputs", "gradient", "gradient at the start", "fan-in × mean square weight"),
        rows,
        caption="Outputs: root mean square over units; gradient: its length, a sample. For "
        "independent weights, ReLU layers keep the size of a signal where the last column is 2, "
        "and tanh layers where it is 1.",
    )


def _warn_of_depth(
    record: FindingRecord, backward: float, forward: float, depth: int, when: str
) -> None:
    problems = []
    if backward > 0 and abs(math.log(backward)) > DEPTH_SCALES:
        word = "explode" if backward > 1 else "vanish"
        size = backward if backward > 1 else 1 / backward
        problems.append(f"gradients {word} ({size:.2g}-fold on the way back to the first layer)")
    if backward == 0:
        problems.append("no gradient reaches the first layer")
    if forward > 0 and abs(math.log(forward)) > DEPTH_SCALES:
        word = "grow" if forward > 1 else "shrink"
        size = forward if forward > 1 else 1 / forward
        problems.append(f"activations {word} {size:.2g}-fold from the first layer to the last")
    if not problems:
        return
    factor = _root(backward, depth)
    record.defect(
        f"Signals do not survive the {depth} layers{when}: {' and '.join(problems)}.",
        action=f"Over {depth} layers the factor per layer must be near 1, and it is {factor:.2g}"
        f"{when}: draw the weights with variance 2/fan-in before ReLU (nn.init.kaiming_normal_) "
        "or 1/fan-in before tanh (nn.init.xavier_normal_), or add normalization or skip "
        "connections.",
    )


def _in_words(ratio: float, depth: int) -> str:
    if 0.5 <= ratio <= 2:
        return f"Gradients keep their size over the {depth} layers (factor {ratio:.2g})."
    word = "grow" if ratio > 1 else "shrink"
    size = ratio if ratio > 1 else (math.inf if ratio == 0 else 1 / ratio)
    return f"Gradients {word} {size:.3g}-fold from the last to the first of {depth} layers."


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else math.nan


def _root(ratio: float, depth: int) -> float:
    return float(ratio ** (1 / (depth - 1)))


def _plot_depth(axes: Any, now: list[LayerSignal], started: list[LayerSignal] | None) -> None:
    for ax, name in zip(axes.flat, ("forward", "backward"), strict=True):
        for label, signals, color in (
            ("at the start", started, COLORS[1]),
            ("now", now, COLORS[0]),
        ):
            if signals is not None:
                values = [max(getattr(s, name), 1e-300) for s in signals]
                ax.semilogy(range(1, len(values) + 1), values, "o-", color=color, label=label)
        ax.set(xlabel="layer", ylabel="output" if name == "forward" else "gradient")
        if len(now) <= 12:
            ax.set_xticks(range(1, len(now) + 1))
    if started is not None:
        axes.flat[0].legend()


@finding(
    "linearity",
    area="capacity",
    title="Does the network bend?",
    cost="forward",
    covers=["L-046"],
    needs=[has_parameters, deterministic, floating_inputs],
)
def linearity(problem: Problem, record: FindingRecord) -> None:
    """Outputs at midpoints of pairs of samples against the mean of the outputs at the pair."""
    problem = problem.in_double_if_possible()
    bend, rounding, constant = _bend(problem, record)
    record.quantity(
        "bend", "median deviation from a straight line between two samples, relative", bend[0]
    )
    matrices = [p for p in problem.parameters.values() if p.ndim > 1]
    pairs = _redundant_pairs(problem.model)
    if bend[1] > rounding:
        for one, two in pairs:
            record.defect(
                f"Layers {one} and {two} follow each other without an activation: together they "
                "are one linear layer, and the first adds nothing the second cannot do alone.",
                action=f"Put an activation between {one} and {two}, or merge them.",
            )
        return
    if len(matrices) < 2:
        record.note("This is a linear model, and meant to be one: it has one weight matrix.")
        return
    if constant:
        record.defect(
            "The output does not depend on the input: it is the same at every point tried.",
            action="Look for a layer whose units are all dead or whose weights are all 0.",
        )
        return
    if applied := {u.function for u in watch_units(problem, problem.train.first(problem.chunk))}:
        record.defect(
            f"The network is affine although it applies {' and '.join(sorted(applied))}: every "
            "unit that matters stays on one straight piece, at the data and beyond.",
            action="A linear model computes the same; biases nearer to 0 let the units bend.",
        )
        return
    record.defect(
        f"The network is affine: its {len(matrices)} weight matrices compute one linear map, as if "
        "there were a single layer. An activation is missing.",
        action="Apply an activation such as nn.ReLU after each hidden layer.",
    )
    try:
        flat = collapse_linear(problem.model)
    except TorchTheoryError:
        return
    exact = problem.in_double_if_possible()  # half precision would round more than is allowed
    x = exact.train.x[: exact.chunk].flatten(1)
    outputs = exact.outputs(exact.train.first(exact.chunk)).double().reshape(len(x), -1)
    scale = float(outputs.abs().max().clamp_min(1e-300))
    product = x.double() @ flat.weight.double().T + flat.bias.double()
    says = record.states("L-046", r"f(x) = W_L \cdots W_1 x + b")
    says.equal(
        float((product - outputs).abs().max()) / scale,
        within=1e-4,
        where=f"the product has rank {flat.rank}; largest relative difference of outputs",
    )
    if float(outputs.min()) < -1e-3 * scale:
        says.fails(
            "a ReLU behind the product", float((product.relu() - outputs).abs().max()) / scale
        )


def _bend(problem: Problem, record: FindingRecord) -> tuple[tuple[float, float], float, bool]:
    """Median and largest relative deviation from affinity, what rounding makes, and whether the
    output is constant.
    """
    x = problem.train.some(2 * min(PAIRS, problem.affordable(6)), record.generator).x
    half = max(1, len(x) // 2)
    # beyond the data as well: a ReLU may be on for every sample
    one = x[:half] * torch.linspace(1, 10, half).to(x).reshape(-1, *[1] * (x.ndim - 1))
    two = -x[-half:]
    points = torch.cat([one, two, (one + two) / 2])
    outputs = problem.outputs(Samples(points, torch.zeros(len(points)))).double()
    outputs = outputs.reshape(len(points), -1)
    *ends, middle = torch.split(outputs, half)
    gap = (middle - (ends[0] + ends[1]) / 2).norm(dim=1)
    size = ends[0].norm(dim=1) + ends[1].norm(dim=1) + middle.norm(dim=1)
    relative = gap / size.clamp_min(1e-300)
    finest = torch.finfo(problem.function.reference().dtype).eps
    rounding = 100 * finest * math.sqrt(flatten(problem.parameters).numel())
    spread = float((outputs - outputs[0]).abs().max())
    constant = spread <= rounding * float(outputs.abs().max())
    return (float(relative.median()), float(relative.max())), rounding, constant


def _redundant_pairs(model: nn.Module) -> list[tuple[str, str]]:
    """Dense layers that follow each other at once, with no bottleneck between them."""
    try:
        links = as_chain(model)
    except TorchTheoryError:
        return []
    found = []
    last: tuple[str, nn.Linear] | None = None
    for link in links:
        if isinstance(link.module, nn.Linear):
            if last is not None:
                between = last[1].out_features
                if between >= min(last[1].in_features, link.module.out_features):
                    found.append((last[0], link.name))
            last = (link.name, link.module)
        elif not isinstance(link.module, nn.Identity | nn.Dropout):
            last = None
    return found
