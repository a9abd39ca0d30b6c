"""Findings about sensitivity: layer norms, the Lipschitz constant, and what margins certify."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import part_of, quotient
from torchtheory.audit.findings.hypotheses import (
    classification,
    deterministic,
    differentiable,
    floating_inputs,
    has_parameters,
)
from torchtheory.core.budget import check_time, time_left, within
from torchtheory.core.errors import OutOfTime, TorchTheoryError, UnsupportedModel
from torchtheory.core.figure import label_text
from torchtheory.core.intervals import median_interval
from torchtheory.core.mapping import jacobian
from torchtheory.core.usual import above, below
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.primer.norms import pairwise_distances
from torchtheory.report.numbers import size_words
from torchtheory.robustness.lipschitz.bound import bounds_about
from torchtheory.robustness.lipschitz.layers import (
    LayerNorm,
    jacobian_norms,
    layer_norms,
    weight_norms,
)
from torchtheory.robustness.lipschitz.semidefinite import semidefinite_lipschitz
from torchtheory.robustness.margin_certificates import boundary_distances, certified_radii

#: Samples attacked, at most and at least, and the forward passes that costs each.
ATTACKED, FEWEST, PASSES = 64, 8, 360

#: Points at which Jacobians are taken, at most and at least; half of them samples.
POINTS, FEWEST_POINTS = 512, 32

#: What rounding may add to a radius: that of a linear classifier is the distance itself.
ROUNDING = 1e-3

#: Perturbations that change a class, over the distance between classes: below the first they are
#: worth a look, below the second a class hangs on what cannot be seen.
SMALL, TINY = 0.03, 0.001

#: Pairs of samples whose distances tell how inputs and outputs differ, at most.
PAIRED = 512

#: Slopes of a regression, over those between samples, that are worth a look.
STEEP = 100.0

#: Layers in the picture of what each contributes, at most.
BUDGET = 24

#: Units of a layer up to which semidefinite programming takes seconds.
PROGRAMMED = 300

#: Samples that the attacked ones are compared with.
COMPARED = 512


@finding(
    "lipschitz",
    area="robustness",
    title="How much the network can amplify a change of its input",
    cost="gradient",
    covers=["L-016"],
    needs=[has_parameters, deterministic, floating_inputs, differentiable],
)
def lipschitz(problem: Problem, record: FindingRecord) -> None:
    """What the layers allow, by the bounds of all operations, against Jacobians at points tried."""
    problem = _precise(problem)
    points, used = _points(problem, record)
    # the ball is that of all the data, whichever points there is time for
    center, reach = _ball(problem)
    bounds = bounds_about(problem.model, center, output=_output(problem))
    whole = float(bounds.lipschitz()[0])
    bound, where = whole, "on the whole space"
    # attention and products are Lipschitz on balls only, normalizations less so on the whole space
    nearby = float(bounds.lipschitz(reach * (1 + 1e-9))[0])
    if nearby < 0.99 * whole:
        bound, where = nearby, f"on the ball of radius {reach:.3g} about the mean of the data"
    norms = jacobian_norms(problem, points)
    largest = float(norms.max())
    how = "the bound of all operations"
    smaller = _semidefinite(problem)
    if smaller < 0.99 * bound:
        bound, where, how = smaller, "on the whole space", "a semidefinite program over all units"
    says = record.states("L-016", r"\sup_x \|J_f(x)\|_2 \le \mathrm{Lip}(f)")
    says.at_most(
        largest,
        bound,
        max(1e-4, 100 * torch.finfo(problem.function.reference().dtype).eps),
        where=f"{how} {where}, neighboring affine maps multiplied out, against "
        f"the largest spectral norm of the Jacobian at {len(points)} points: training samples and "
        "random points between pairs of them",
    )
    if 0 < largest < math.inf and 0 < bound < math.inf:  # no layer makes a constant steep
        scale = 2 * bound / largest
        if scale < 1e30:
            says.fails(
                f"behind a layer that multiplies its inputs by {scale:.3g}, left out of the bound",
                _norm_behind(problem, points[norms.argmax()][None], scale),
            )
    record.quantity(
        "lipschitz-constant",
        f"Lipschitz constant {where}",
        largest,
        low=largest,
        high=max(bound, largest),
        basis=f"at least the largest amplification at {len(points)} points, at most {how}",
        samples=used,
    )
    _tabulate_norms(problem, record)
    values = norms.cpu().numpy()
    record.figure(
        "jacobian",
        lambda ax: _plot(ax, values, bound),
        caption="How much an input change is amplified: at the points tried, and what the "
        "layers allow.",
        size=(5, 2.6),
    )
    if largest == 0:
        record.headline(
            f"At the {len(points)} points tried the output does not depend on the input (bound "
            f"{bound:.3g})."
        )
        return
    record.headline(
        f"The network amplifies a change of its input by at least {largest:.3g} somewhere, and "
        + (f"by at most {bound:.3g} {where}" if math.isfinite(bound) else "no bound is known")
        + (", which says next to nothing." if bound > 1000 * largest else ".")
    )
    if not problem.is_classification:
        _assess_steepness(problem, record, norms[: len(used)], used)


def _assess_steepness(
    problem: Problem, record: FindingRecord, norms: Tensor, used: Samples
) -> None:
    """For a regression: slopes relative to how inputs and outputs differ from sample to sample.

    Three medians, whose ranges hold at once.
    """
    half = min(PAIRED, len(problem.train) // 2)
    if half < FEWEST:
        return
    x, y = problem.train.x, problem.outputs(problem.train)
    order = torch.randperm(len(x), generator=record.generator).to(x.device)
    i, j = order[:half], order[half : 2 * half]
    each = 1 - (1 - record.confidence) / 3
    steepest, inputs, outputs = (
        median_interval(values.cpu(), each)
        for values in (
            norms,
            *((z[i].double() - z[j].double()).flatten(1).norm(dim=1) for z in (x, y)),
        )
    )
    if not outputs.estimate > 0:
        return
    ratio = quotient(steepest, quotient(outputs, inputs))
    number = record.quantity(
        "relative-steepness",
        "steepest slope at the median sample, over the slope from sample to sample",
        ratio.estimate,
        low=ratio.low,
        high=ratio.high,
        basis=f"{record.confidence:.4g} order statistics of {len(norms)} slopes and {half} pairs",
        samples=used,
    )
    said = (
        f"At the median sample the steepest direction is {size_words(number)} times as steep as "
        f"the way from one sample to another{part_of(used)}."
    )
    usual = below(STEEP)
    if ratio.low > STEEP:
        record.look(
            said,
            number=number,
            usual=usual,
            action="Small changes of an input change its prediction much: smooth it (weight decay, "
            "noise on the inputs), or check that inputs are on one scale.",
            figure="jacobian",
        )
    else:
        record.fine(said, number=number, usual=usual, figure="jacobian")


def _precise(problem: Problem) -> Problem:
    """In double precision where the model's own is so low that bounds would be met by rounding."""
    low = torch.finfo(problem.function.reference().dtype).eps > 1e-6
    return problem.in_double_if_possible() if low else problem


def _output(problem: Problem) -> int | str | None:
    """Which of several outputs is meant; several side by side have no bound here."""
    which = problem.function.output
    if isinstance(which, tuple):
        raise UnsupportedModel("the model has several outputs side by side, and this is about one")
    return which


def _semidefinite(problem: Problem) -> float:
    """The bound of a small network by semidefinite programming; infinite for any other."""
    if problem.function.output is not None:
        return math.inf
    try:
        shape = problem.train.x.shape[1:]
        with within(min(10.0, 0.3 * time_left())):
            return float(semidefinite_lipschitz(problem.model, shape, largest=PROGRAMMED))
    except (OutOfTime, TorchTheoryError):
        check_time()  # its own time may be over, and that of the finding not
        return math.inf


def _tabulate_norms(problem: Problem, record: FindingRecord) -> None:
    """The norms of the layers: of all of a chain, else of those with weights."""
    chain, left_out = True, ""
    try:
        found = layer_norms(problem.model, problem.train.x.shape[1:])
    except TorchTheoryError:
        chain, (found, complete) = False, _weight_norms(problem)
        left_out = "" if complete else " There was no time for the layers behind these."
    if not found:
        return
    record.table(
        "layers",
        ("layer", "kind", "spectral norm at most", "at least", "Frobenius norm", "stable rank"),
        [
            (n.name or "(function)", n.kind, n.lipschitz, n.lower, n.frobenius, n.stable_rank)
            for n in found
            if n.frobenius is not None
        ],
        caption="Stable rank: squared Frobenius over squared spectral norm. A convolution's norms "
        "are those of the linear map it applies to its whole input, as a batch sees it; where it "
        f"pads with zeros and is large, its spectral norm is known from both sides only.{left_out}",
    )
    if chain:
        _show_budget(record, found)


def _weight_norms(problem: Problem) -> tuple[list[LayerNorm], bool]:
    """The norms of as many layers with weights as half of the time allows, and whether of all."""
    found: list[LayerNorm] = []
    if problem.several_inputs:
        return found, True
    enough = time_left() / 2
    try:
        for norm in weight_norms(problem.model, problem.train.x):
            if time_left() < enough:
                return found, False
            found.append(norm)
    except TorchTheoryError:
        pass  # what the model says of its inputs is said elsewhere
    return found, True


def _show_budget(record: FindingRecord, found: list[LayerNorm]) -> None:
    """Which layer contributes the largest factor to the product of their norms."""
    norms = [n for n in found if n.frobenius is not None and 0 < n.lipschitz < math.inf]
    product = math.prod(n.lipschitz for n in found)
    if len(norms) < 2 or not 0 < product < math.inf:
        return
    most = max(norms, key=lambda n: n.lipschitz)
    record.note(
        f"The norms of the layers multiply to {product:.3g}; the largest factor is the "
        f"{most.lipschitz:.3g} of layer {most.name or '(function)'} ({most.kind})."
    )
    record.figure(
        "budget",
        lambda ax: _plot_budget(ax, norms),
        caption="What each layer can amplify a change by; the bound of a chain is at most the "
        "product. "
        + (f"The {BUDGET} largest of {len(norms)}. " if len(norms) > BUDGET else "")
        + "Layers above 1 can make a change larger.",
        size=(5, 0.8 + 0.22 * min(BUDGET, len(norms))),
    )


def _plot_budget(ax: Any, norms: list[LayerNorm]) -> None:
    largest = sorted(norms, key=lambda n: -n.lipschitz)[:BUDGET]
    shown = [n for n in norms if n in largest][:BUDGET][::-1]  # the first layer on top
    places = range(len(shown))
    ax.barh(places, [n.lipschitz for n in shown], color="#0072B2")
    ax.set_yticks(places, [label_text(n.name or "(function)") for n in shown])
    ax.axvline(1.0, color="#D55E00")
    ax.set_axisbelow(True)
    ax.set(xlabel="spectral norm, at most", ylabel="layer", xlim=(0, None))


def _norm_behind(problem: Problem, point: Tensor, scale: float) -> float:
    """Amplification by the network behind a layer that multiplies its inputs by `scale`."""

    def behind(x: Tensor) -> Tensor:
        return problem.function(problem.parameters, scale * x)[0].reshape(-1)

    rows = jacobian(behind)(point / scale).flatten(1).double()
    return float(torch.linalg.matrix_norm(rows, 2))


def _points(problem: Problem, record: FindingRecord) -> tuple[Tensor, Samples]:
    """Samples and random points between pairs of them, as many as time allows; those samples."""
    outputs = problem.outputs(problem.train.first(1)).numel()
    count = min(POINTS, max(FEWEST_POINTS, problem.affordable(3 * outputs + 3))) // 2
    used = problem.train.some(count, record.generator)
    x = used.x[torch.randperm(len(used), generator=record.generator).to(used.x.device)]
    weight = torch.rand(len(x), generator=record.generator).to(x)
    weight = weight.reshape(-1, *[1] * (x.ndim - 1))
    return torch.cat([x, weight * x + (1 - weight) * x.flip(0)]), used


def _ball(problem: Problem) -> tuple[Tensor, float]:
    """The mean `[1, ...]` of all inputs that are kept, and the largest distance of one from it."""
    every = problem.every_sample
    total = sum(x.double().sum(0, keepdim=True) for x, _ in every.chunks(problem.chunk))
    center = torch.as_tensor(total) / len(every)
    reach = max(
        float((x.double() - center).flatten(1).norm(dim=1).max())
        for x, _ in every.chunks(problem.chunk)
    )
    return center, reach


def _bins(values: Any, most: int) -> int:
    """One where all values agree up to rounding, which no histogram can divide."""
    return most if values.max() - values.min() > 1e-6 * abs(values).max() else 1


def _plot(ax: Any, values: Any, bound: float) -> None:
    ax.hist(values, bins=_bins(values, 40), color="#0072B2", label="at the points tried")
    if math.isfinite(bound):
        ax.axvline(bound, color="#D55E00", label="what the layers allow")
        if bound > 20 * values.max() > 0:
            ax.set_xscale("log")
    ax.set(xlabel="spectral norm of the Jacobian", ylabel="points")
    ax.legend(loc="upper center")


@finding(
    "certified-radius",
    area="robustness",
    title="How far an input must move to change its class",
    cost="gradient",
    covers=["D-08", "L-016"],
    needs=[classification, has_parameters, deterministic, floating_inputs, differentiable],
)
def certified_radius(problem: Problem, record: FindingRecord) -> None:
    """The perturbation that the margin excludes against the smallest one that a search finds."""
    problem = _precise(problem)
    name, samples = _correct_samples(problem, record)
    statement = (
        r"\|\delta\|_2 < r(x) = \min_{c \ne y} \frac{f_y(x) - f_c(x)}{\mathrm{Lip}(f_y - f_c)} "
        r"\Rightarrow \text{the class stays:}\ \|\delta\|_2 / r(x) \text{ of every } \delta "
        r"\text{ found}"
    )
    if len(samples) == 0:
        record.not_applicable(
            ["D-08", "L-016"],
            statement,
            f"every {name} sample is misclassified",
            samples=problem.train if problem.test is None else problem.test,
        )
        return
    distances = boundary_distances(problem, samples)
    found = torch.isfinite(distances)
    if not bool(found.any()):
        record.not_applicable(
            ["D-08", "L-016"],
            statement,
            "no perturbation was found that changes a class, so there is nothing to compare the "
            "certificate with",
            samples=samples,
        )
        return
    _assess_distances(problem, record, name, samples, distances)
    try:
        radii = certified_radii(problem, samples)
    except TorchTheoryError as error:
        record.not_applicable(["D-08", "L-016"], statement, str(error))
        return
    share = float((radii / distances)[found].median())
    record.states(["D-08", "L-016"], statement).at_least(
        (distances / radii)[found],
        1.0,
        ROUNDING,
        where=f"{int(found.sum())} {name} samples; at the median one the radius is {share:.2g} "
        "times the smallest perturbation found",
    )
    record.quantity(
        "certified-radius",
        "median certified radius",
        median_interval(radii.cpu(), record.confidence),
        samples=samples,
    )
    _tabulate_radii(record, name, radii, distances)
    record.headline(
        f"A perturbation of Euclidean length {float(distances.median()):.3g} is enough to change "
        f"the class of half of {len(samples)} correctly classified {name} samples; the margins "
        f"rule out those below {float(radii.median()):.3g} at the median sample"
        + (", which says next to nothing." if share < 0.01 else ".")
    )


def _assess_distances(
    problem: Problem, record: FindingRecord, name: str, samples: Samples, distances: Tensor
) -> None:
    """The smallest perturbations found, against how far apart samples of two classes are."""
    middle = median_interval(distances.cpu(), record.confidence)
    record.quantity(
        "boundary-distance",
        "median smallest perturbation found that changes the class, at most",
        middle,
        samples=samples,
    )
    # of every sample to those of other classes at the median, so that one sample more or less
    # changes nothing
    others = problem.train.some(COMPARED, record.generator)
    apart = pairwise_distances(samples.x.flatten(1).double(), others.x.flatten(1).double())
    different = samples.y.reshape(-1, 1) != others.y.reshape(1, -1)
    typical = torch.where(different, apart, math.nan).nanmedian(1).values
    known = typical > 0
    if not bool(known.any()) or len(samples) < FEWEST:
        return
    ratio = median_interval((distances / typical)[known].cpu(), record.confidence)
    share = record.quantity(
        "relative-boundary-distance",
        "median perturbation found that changes the class, over the distance of classes",
        ratio,
        samples=samples,
    )
    said = (
        f"Moving an input by {size_words(share)} of the distance between samples of two "
        f"classes is enough to change the class of half of the {name} samples ({len(samples)} were "
        "tried)"
    )
    usual = above(SMALL)
    shown = (distances / typical)[known & torch.isfinite(distances)].cpu().numpy()
    record.figure(
        "distances",
        lambda ax: _plot_distances(ax, shown),
        caption=f"The smallest perturbation found that changes the class of each of {len(shown)} "
        "samples, over the distance between samples of two classes.",
        size=(5, 2.6),
    )
    if ratio.high < TINY:
        record.defect(
            f"{said}: classes depend on changes that cannot be seen.",
            number=share,
            usual=usual,
            action="Check that inputs are on the scale of training; then train with perturbed "
            "inputs (adversarial training, or noise and weight decay).",
            figure="distances",
        )
    elif ratio.high < SMALL:
        record.look(
            f"{said}.",
            number=share,
            usual=usual,
            action="Where inputs may be tampered with or noisy, train with perturbed inputs "
            "(adversarial training, or noise).",
            figure="distances",
        )
    else:
        record.fine(f"{said}.", number=share, usual=usual, figure="distances")


def _plot_distances(ax: Any, shares: Any) -> None:
    ax.hist(shares, bins=_bins(shares, 30), color="#0072B2")
    ax.axvline(SMALL, color="#D55E00", label="usually above")
    ax.set(xlabel="perturbation, over the distance between classes", ylabel="samples")
    ax.set_xlim(left=0)
    ax.legend()


def _correct_samples(problem: Problem, record: FindingRecord) -> tuple[str, Samples]:
    """Some samples that the model classifies correctly, of the test data if there is any."""
    name, samples = ("train", problem.train) if problem.test is None else ("test", problem.test)
    correct = (~problem.errors(samples)).nonzero().flatten().cpu()
    most = max(FEWEST, min(ATTACKED, problem.affordable(PASSES)))
    order = torch.randperm(len(correct), generator=record.generator)[:most]
    return name, samples.at(correct[order])


def _tabulate_radii(record: FindingRecord, name: str, radii: Tensor, distances: Tensor) -> None:
    levels = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0], dtype=torch.float64, device=radii.device)
    rows = [
        (what, *[float(q) for q in torch.quantile(values, levels, interpolation="lower")])
        for what, values in (("certified", radii), ("found", distances))
    ]
    record.table(
        "radii",
        ("perturbation", "smallest", "10 %", "median", "90 %", "largest"),
        rows,
        caption=f"Euclidean lengths, {len(radii)} correctly classified {name} samples.",
    )
    pairs = [
        (float(r), float(d))
        for r, d in zip(radii, distances, strict=True)
        if 0 < r < math.inf and 0 < d < math.inf
    ]
    if not pairs:
        return
    record.figure(
        "radii",
        lambda ax: _plot_radii(ax, pairs),
        caption="Every sample: the radius its margin certifies, and the smallest perturbation "
        "found that changes its class. Below the line the certificate would be false.",
        size=(5, 3.6),
    )


def _plot_radii(ax: Any, pairs: list[tuple[float, float]]) -> None:
    certified, found = zip(*pairs, strict=True)
    ends = [min(certified) / 1.5, max(found) * 1.5]
    ax.loglog(certified, found, "o", markersize=4, alpha=0.6, label="samples")
    ax.loglog(ends, ends, color="0.4", linewidth=1, label="certified = found")
    ax.set(xlabel="certified radius", ylabel="smallest perturbation found")
    ax.minorticks_off()
    ax.legend(loc="lower right")
