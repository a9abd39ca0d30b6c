"""Accuracy when inputs are moved a little: what an attack leaves, and what is certain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    classification,
    deterministic,
    differentiable,
    floating_inputs,
)
from torchtheory.audit.findings.input_units import Scene, no_noise, scene
from torchtheory.core.errors import NotConverged, TorchTheoryError, UnsupportedModel
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import above
from torchtheory.models.problem import Problem
from torchtheory.report.numbers import share_words
from torchtheory.robustness.attacks.shortest import DeepFool
from torchtheory.robustness.bounds.graph import Bend, Largest
from torchtheory.robustness.bounds.output_bounds import BoundedNetwork, Method
from torchtheory.robustness.evaluation import Evaluation, evaluate

#: How far inputs are moved, in standard deviations. 10 % of that of pixels is about the 8/255 that
#: defenses of images are judged by; 1 % nobody sees.
RADII = (0.01, 0.03, 0.1)

#: Steps of an attack at each radius; what more of them find in an undefended network is little.
STEPS = 10

#: Samples attacked, at most and at least.
MOST, FEWEST = 256, 16

#: Share of the time for attacks; certificates get half of what is left.
ATTACK = 0.4

#: Samples whose shortest perturbations are looked for, and how many of them are shown.
SEARCHED, SHOWN = 32, 4

#: Steps of the search for short perturbations, and the classes it looks at.
SEARCH_STEPS, COMPETITORS = 15, 4

#: Features in a picture of a perturbation, at most.
FEATURES = 8

IDS = ("M-143", "M-159")

STATEMENT = (
    r"\hat R_{\mathrm{attack}}(\varepsilon) \le \hat R_{\mathrm{adv}}(\varepsilon) = "
    r"\frac1n \sum_i \max_{\|\delta\|_\infty \le \varepsilon} 1[f(x_i + \delta) \ne y_i] \le "
    r"1 - \hat A_{\mathrm{certified}}(\varepsilon)"
)


@finding(
    "robust-accuracy",
    area="robustness",
    title="Accuracy when inputs are moved a little",
    cost="gradient",
    covers=IDS,
    needs=[classification, deterministic, no_noise, floating_inputs, differentiable],
)
def robust_accuracy(problem: Problem, record: FindingRecord) -> None:
    """At three radii: an upper bound by an attack, a lower one by certificates."""
    passes = len(RADII) * 3 * (STEPS + 2)
    room = min(MOST, max(FEWEST, problem.chunk // 2))  # some of it runs in double precision
    at = scene(problem, record, min(room, problem.affordable(passes, ATTACK)))
    at = at.within(at.attack(RADII[0], STEPS, record), len(RADII) * STEPS, ATTACK, FEWEST)
    if len(at.x) < min(FEWEST, at.samples.population):
        record.not_done(IDS, STATEMENT, f"there was no time for {FEWEST} samples")
        return
    found: Evaluation | None = None
    certified: list[Interval] | None = None
    tightest = True
    says = record.states(IDS, STATEMENT)
    try:
        found, tightest = _sandwich(record, at)
    except NotConverged as error:
        # certified and misled at once: an error of the package, and no property of the network
        says.at_most(1.0, 0.0, where=str(error))
        return
    except TorchTheoryError as error:
        record.not_applicable(IDS, STATEMENT, str(error))
        attacked = _attack_alone(record, at)
    else:
        attacked, certified = found.attacked_accuracy, found.certified_accuracy
        says.at_most(
            [1 - a.estimate for a in attacked[1:]],
            [1 - c.estimate for c in certified[1:]],
            trivial=1.0,
            where=f"{len(at.x)} {at.name} samples, when {_steps(at)}: the share that an attack "
            "misleads, and the share that is not certified",
        )
    _list(record, at, attacked, certified, tightest)
    record.figure(
        "sandwich",
        lambda ax: _plot_accuracy(ax, attacked, found),
        caption="Accuracy on the data as it is (left), and when inputs are moved: what an attack "
        "leaves is an upper bound"
        + (", what is certified a lower one, and between them it is not known" if certified else "")
        + f"; bars are {100 * record.confidence:.4g}% ranges.",
        size=(5, 3),
    )
    _assess(record, at, attacked, certified)
    _show_perturbations(record, at)


def _steps(at: Scene) -> str:
    shares = [f"{r:.0%}" for r in RADII]
    return at.step.format(", ".join(shares[:-1]) + " or " + shares[-1])


def _sandwich(record: FindingRecord, at: Scene) -> tuple[Evaluation, bool]:
    """Attack and certificate of the same samples, and whether there was time for the tightest."""
    if not at.exact:
        raise UnsupportedModel(
            "the model fixes its own precision, and certificates are checked in double precision"
        )
    method = _method(at)
    if method != "crown":
        record.note("There was no time for the tightest certificates: more may be certain.")
    found = evaluate(
        at.model,
        (at.x, at.y),
        "inf",
        (0.0, *RADII),
        method=method,
        attack=lambda radius: at.attack(radius, STEPS, record),
        box=at.box,
        chunk=min(64, at.at_once),
        confidence=record.confidence,
    )
    return found, method == "crown"


def _method(at: Scene) -> Method:
    """The tightest bounds that fit into half of the time left.

    Bounds that go back to the input from every entry that is bent cost about two passes for each.
    """
    # of the model itself, whose layers a refusal names
    network = BoundedNetwork(at.model.model, at.x, output=at.model.output)
    vertices = network.graph.vertices
    bent = sum(
        vertices[v.operands[0]].entries for v in vertices if isinstance(v.operation, Bend | Largest)
    )
    classes = math.prod(network.outputs)
    each = 2 * (len(RADII) + 1)
    if at.problem.affordable(each * (bent + classes)) >= len(at.x):
        return "crown"
    if at.problem.affordable(each * (classes + 2)) >= len(at.x):
        return "crown-interval"
    return "interval"


def _attack_alone(record: FindingRecord, at: Scene) -> list[Interval]:
    """The accuracy as it is, and that an attack leaves at each radius."""
    standing = at.right()
    counts = [int(standing.sum())]
    for radius in RADII:
        rest = standing.nonzero().flatten()
        if len(rest):
            attack = at.attack(radius, STEPS, record)
            standing[rest] = ~attack(at.model, at.x[rest], at.y[rest]).success
        counts.append(int(standing.sum()))
    return [clopper_pearson(c, len(standing), record.confidence) for c in counts]


def _list(
    record: FindingRecord,
    at: Scene,
    attacked: list[Interval],
    certified: list[Interval] | None,
    tightest: bool,
) -> None:
    for k, radius in enumerate(RADII, 1):
        step = f"a step of {radius:.0%}"
        record.quantity(
            f"attacked-accuracy-{k}",
            f"accuracy that an attack with {step} leaves, at most",
            attacked[k],
            samples=at.samples,
        )
        if certified is not None:
            # tighter bounds may certify more, up to what the attack leaves
            most = certified[k].high if tightest else max(certified[k].high, attacked[k].high)
            record.quantity(
                f"certified-accuracy-{k}",
                f"accuracy that is certain under {step}, at least",
                certified[k].estimate,
                low=certified[k].low,
                high=most,
                basis="an exact binomial range"
                if tightest
                else "an exact binomial range, up to what tighter bounds could certify",
                samples=at.samples,
            )


def _assess(
    record: FindingRecord, at: Scene, attacked: list[Interval], certified: list[Interval] | None
) -> None:
    """A look only where a step that nobody sees takes all skill; the rest is common."""
    clean, tiny, largest = attacked[0], attacked[1], attacked[-1]
    sure = "how many are certain is not known"
    if certified is not None:
        none = not any(c.estimate for c in certified[1:])
        sure = "none is certain" if none else f"{_listed(certified)} provably stay right"
    record.headline(
        f"{clean.estimate:.0%} of {len(at.x):,} {at.name} samples are classified right. When "
        f"{_steps(at)}, an attack leaves {_listed(attacked)} right, and {sure}{at.part}."
    )
    chance = 1 / at.classes
    usual = above(chance, f"above {chance:.2g}, which is guessing")
    if clean.low > chance and tiny.high < chance:
        record.look(
            f"When {at.step.format(f'{RADII[0]:.0%}')}, accuracy falls from {share_words(clean)} "
            f"to {share_words(tiny)}, which is worse than guessing{at.part}.",
            number=_number(record, "attacked-accuracy-1"),
            usual=usual,
            action="Check that inputs are on the scale of training; then train with perturbed "
            "inputs (adversarial training, or noise and weight decay).",
            figure="sandwich",
        )
    elif largest.low > chance:
        record.fine(
            f"When {at.step.format(f'{RADII[-1]:.0%}')}, an attack leaves {share_words(largest)} "
            f"right{at.part}.",
            number=_number(record, f"attacked-accuracy-{len(RADII)}"),
            usual=usual,
            figure="sandwich",
        )
    elif clean.low > chance and tiny.low < chance:
        record.open(_number(record, "attacked-accuracy-1"), usual, figure="sandwich")


def _listed(shares: list[Interval]) -> str:
    words = [f"{s.estimate:.0%}" for s in shares[1:]]
    return ", ".join(words[:-1]) + " and " + words[-1]


def _number(record: FindingRecord, name: str) -> Quantity:
    return next(q for q in record.quantities if q.name == name)


def _plot_accuracy(ax: Any, attacked: list[Interval], found: Evaluation | None) -> None:
    if found is not None:
        found.plot(ax)
    else:
        middle = [a.estimate for a in attacked]
        bars = [[a.estimate - a.low for a in attacked], [a.high - a.estimate for a in attacked]]
        ax.errorbar(
            (0.0, *RADII), middle, bars, fmt="o-", color=COLORS[1], label="no attack succeeds",
            elinewidth=0.9, markersize=3.5,
        )  # fmt: skip
        ax.set(ylabel="accuracy", ylim=(-0.02, 1.02))
        ax.legend()
    ax.set(xlabel="how far inputs are moved, in standard deviations")


# ------------------------------------------------------------------- the shortest perturbations


@dataclass(frozen=True, slots=True)
class Perturbed:
    """A sample before and after it changed its class, and the two classes."""

    before: Tensor
    after: Tensor
    named: int
    renamed: int


def _show_perturbations(record: FindingRecord, at: Scene) -> None:
    """Those that change a class with the least, of samples that are right."""
    if not at.images and at.x.ndim != 2:
        return
    right = at.right().nonzero().flatten()
    passes = SEARCH_STEPS * (3 * min(COMPETITORS, at.classes - 1) + 2) + 12
    rows = right[: min(SEARCHED, at.problem.affordable(passes))]
    if len(rows) < SHOWN:
        return
    search = DeepFool(
        norm="2",
        steps=SEARCH_STEPS,
        competitors=COMPETITORS,
        box=at.box,
        task=at.task,
        chunk=at.at_once,
        generator=record.generator,
    )
    result = search(at.model, at.x[rows], at.y[rows])
    done = (result.success & (result.norms > 0)).nonzero().flatten()
    if len(done) < SHOWN:
        return
    order = done[result.norms[done].argsort()][:SHOWN]
    before, after = at.x[rows[order]], result.adversarial[order]
    shown = [
        Perturbed(a.cpu(), b.cpu(), int(named), int(renamed))
        for a, b, named, renamed in zip(
            before, after, at.named(before), at.named(after), strict=True
        )
    ]
    searched = f"The shortest of {len(rows)} perturbations found that change a class"
    if at.images:
        record.figure(
            "perturbations",
            lambda axes: _plot_images(axes, shown),
            caption=f"{searched}: the image, what is added to it (gray is nothing, on a scale of "
            "its own), and the result.",
            grid=(3, SHOWN),
            size=(1.6 * SHOWN, 5.0),
        )
    else:
        record.figure(
            "perturbations",
            lambda axes: _plot_features(axes, shown),
            caption=f"{searched}: the features that move most, by number, in standard deviations.",
            grid=(1, SHOWN),
            size=(2.1 * SHOWN, 2.6),
        )


def _plot_images(axes: Any, shown: list[Perturbed]) -> None:
    for column, one in zip(axes.T, shown, strict=True):
        change = one.after - one.before
        most = float(change.abs().max())
        low = min(float(one.before.min()), float(one.after.min()))
        high = max(float(one.before.max()), float(one.after.max()))
        pictures = (
            ((one.before - low) / (high - low), f"class {one.named}"),
            (0.5 + change / (2 * most), f"at most {most:.2g} std."),
            ((one.after - low) / (high - low), f"class {one.renamed}"),
        )
        for ax, (picture, title) in zip(column, pictures, strict=True):
            pixels = picture.clamp(0, 1).permute(1, 2, 0).float().numpy()
            gray = pixels.shape[2] == 1
            ax.imshow(pixels[..., 0] if gray else pixels, cmap="gray", vmin=0, vmax=1)
            ax.set_title(title, fontsize=8)
            ax.set_axis_off()


def _plot_features(axes: Any, shown: list[Perturbed]) -> None:
    for ax, one in zip(axes.flat, shown, strict=True):
        change = (one.after - one.before).double()
        top = change.abs().argsort(descending=True)[:FEATURES].flip(0)
        ax.barh([str(int(k)) for k in top], change[top].numpy(), color=COLORS[0])
        ax.axvline(0.0, color="0.4", linewidth=0.8)
        ax.set_title(f"class {one.named} to {one.renamed}", fontsize=8)
        ax.tick_params(labelsize=7)
        ax.locator_params(axis="x", nbins=3)
        ax.set_axisbelow(True)
        ax.set_xlabel("change, in std.", fontsize=8)
    axes.flat[0].set_ylabel("feature", fontsize=8)
