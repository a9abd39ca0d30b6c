"""Findings about the point training reached: its index, the noise of its gradient, its balance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.engine.ranges import (
    GROUPS,
    grouped,
    loss_range,
    mean_vector_range,
    part_of,
    quotient,
    student,
)
from torchtheory.audit.findings.descent import losses_beside_constant
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    has_loss,
    has_parameters,
)
from torchtheory.audit.findings.optimization import (
    FEWEST,
    affordable_samples,
    curvature_along,
    eigenvalue_range,
    precise,
    products_in,
    spoken,
    too_few,
)
from torchtheory.audit.findings.training_end import STILL_FALLING
from torchtheory.core.errors import InvalidInput, NonFinite
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval
from torchtheory.linalg.density import SpectralDensity, spectral_density
from torchtheory.linalg.eigenvalues import EigenResult, top_eigenpairs
from torchtheory.linalg.operators import LinearOperator
from torchtheory.models.model import unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.symmetries import rescalable_layers, unit_products
from torchtheory.optimization.curvature.operators import gradient, hessian_operator

#: Random vectors and Lanczos steps of the spectrum, at most.
PROBES, STEPS = 4, 40

#: Parameters up to which all eigenvalues are taken from the matrix itself.
DENSE = 300

#: Gradients that are taken one by one for their noise, and the fewest it is told from.
GRADIENTS, FEWEST_GRADIENTS = 64, 8

#: Eigenvalues of less than this share of the largest count as 0.
FLAT = 1e-3

#: One step that gains less of the loss than this has nothing to gain: a stationary point.
STATIONARY = 1e-3

#: Steps tried along a direction of negative curvature, each twice the one before.
DOUBLINGS = 12

NEGATIVE = r"\lambda_{\min} < 0 \;\Rightarrow\; \tfrac12[L(\theta+tv)+L(\theta-tv)] < L(\theta)"


# ------------------------------------------------------------------------- the point reached


@finding(
    "point-reached",
    area="training",
    title="What kind of point the weights are, and the spectrum of the Hessian there",
    cost="curvature",
    covers=["L-118", "A-116"],
    needs=[has_loss, has_parameters, deterministic, differentiable],
)
def point_reached(problem: Problem, record: FindingRecord) -> None:
    """Both ends of the spectrum by Lanczos, all of it by quadrature, the gradient beside them."""
    problem = precise(problem)
    drawn = affordable_samples(problem, record)
    if drawn is None:
        too_few(record, ["L-118", "A-116"], NEGATIVE)
        return
    samples, others = drawn
    hessian = hessian_operator(problem, samples)
    try:
        ends = top_eigenpairs(
            hessian,
            min(2, hessian.shape[0]),
            which="both",
            tolerance=FLAT / 10,  # of the largest: what counts as flat is to be resolved
            steps=products_in(hessian, 0.4),
            generator=record.generator,
        )
    except NonFinite:
        raise
    except InvalidInput:
        record.not_applicable("L-118", NEGATIVE, "the loss is flat up to rounding", samples=samples)
        return
    below, least = _spectrum(record, hessian, float(ends.values.abs().max()), samples)
    smallest = _smallest(problem, record, ends, least, samples, others)
    largest = eigenvalue_range(
        problem, record, float(ends.values[0]), ends.vectors[:, 0], float(ends.residuals[0]),
        samples, others,
    )  # fmt: skip
    scale = max(abs(largest.estimate), abs(smallest.estimate))
    gain = _one_step_gain(problem, record, largest, smallest, samples)
    falls = smallest.high < -FLAT * scale
    resolved = float(ends.values[-1] + ends.residuals[-1]) < -FLAT * scale
    _negative_curvature(problem, record, samples, ends, falls=falls, resolved=resolved)
    stationary = gain is None or gain.high <= STATIONARY
    if falls and resolved and stationary:
        _saddle(problem, record, ends, largest, smallest, samples, others)
    record.headline(_point_in_words(gain, smallest, falls, below, samples))


def _point_in_words(
    gain: Interval | None, smallest: Interval, falls: bool, below: bool, samples: Samples
) -> str:
    sign = (
        f"the loss falls on both sides in some direction (curvature {smallest.estimate:.2g}"
        + (" or less)" if below else ")")
        if falls
        else "no direction of negative curvature was found"
        if smallest.estimate >= 0
        else "whether it falls on both sides in some direction cannot be told"
    )
    if gain is not None and gain.low <= STATIONARY and not gain.high <= 1:  # more than all of it
        return (
            f"Whether the weights are a stationary point cannot be told{part_of(samples)}; {sign}."
        )
    if gain is None:
        kind = "a stationary point: the gradient is 0"
    elif gain.high <= STATIONARY:
        kind = f"a stationary point: one step can gain {gain.estimate:.1g} of the loss"
    elif gain.low > STATIONARY:
        kind = f"no stationary point yet: one step can gain {spoken(gain)} of the loss"
    else:
        kind = "perhaps a stationary point: one step can gain " + f"{spoken(gain)} of the loss"
    return f"The weights are {kind}{part_of(samples)}; {sign}."


def _smallest(
    problem: Problem,
    record: FindingRecord,
    ends: EigenResult,
    least: float,
    samples: Samples,
    others: Samples,
) -> Interval:
    """The smallest eigenvalue, from Lanczos and the least value that the quadrature met."""
    value, residual = float(ends.values[-1]), float(ends.residuals[-1])
    found = eigenvalue_range(
        problem, record, value, ends.vectors[:, -1], residual, samples, others, smallest=True
    )
    if least < value - residual:  # a Ritz value is a mean of eigenvalues: one is as low
        # and how much lower, or on all samples, nothing tells
        high = least if len(samples) >= samples.population else found.high
        found = Interval(
            least, -math.inf, max(least, high), record.confidence, len(samples),
            "it is at most this; no time to find it",
        )  # fmt: skip
    record.quantity(
        "smallest-eigenvalue", "smallest eigenvalue of the Hessian", found.estimate,
        low=found.low, high=found.high, basis=found.test, samples=samples,
    )  # fmt: skip
    return found


def _one_step_gain(
    problem: Problem,
    record: FindingRecord,
    largest: Interval,
    smallest: Interval,
    samples: Samples,
) -> Interval | None:
    """What one step of gradient descent can gain, over the loss; None where there is nothing."""
    slope = squared_gradient(problem, record, samples)
    risk = loss_range(problem, samples, record.generator, record.confidence)
    if slope is None or not risk.estimate > 0:
        return None
    sizes = [(abs(e.low), abs(e.estimate), abs(e.high)) for e in (largest, smallest)]
    low = max(0.0, largest.low, -smallest.high)
    scale = Interval(
        2 * max(s[1] for s in sizes),
        2 * low,
        2 * max(max(s) for s in sizes),
        record.confidence,
        len(samples),
        "",
    )
    gain = quotient(quotient(slope[0], scale), risk)
    record.quantity(
        "one-step-gain",
        "what one step of gradient descent can gain, |∇L|² / (2 λ), over the loss",
        gain.estimate,
        low=gain.low,
        high=gain.high,
        basis="the ranges of the gradient, the curvature and the loss",
        samples=samples,
    )
    return gain


def squared_gradient(
    problem: Problem, record: FindingRecord, samples: Samples
) -> tuple[Interval, Interval] | None:
    """The gradient's squared length, and that over the variance of a sample's gradient.

    None where there is no room or not enough samples for groups of gradients.
    """
    size = problem.function.count * problem.function.reference().element_size()
    complete = len(samples) >= samples.population
    if complete and len(samples) < 3:
        g = gradient(problem, samples)
        exact = float(g @ g)
        one = Interval(exact, exact, exact, record.confidence, len(samples), "all samples")
        return one, Interval(math.inf, math.inf, math.inf, record.confidence, 0, "")
    groups = min(2 * GROUPS, problem.memory // (8 * size))
    if min(groups, len(samples)) < 3:
        return None
    parts, shares = grouped(samples, record.generator, groups)
    rows = torch.stack([gradient(problem, part).cpu() for part in parts])
    # groups of slightly different size: their means count alike but for the value itself
    rows = rows * (shares * len(parts))[:, None].to(rows)
    each = len(samples) / len(parts)
    gram = (rows @ rows.T).double()
    found = mean_vector_range(gram, each, samples.population, record.confidence)
    rounding = 100 * torch.finfo(rows.dtype).eps * float(gram.diagonal().mean())
    return (
        Interval(
            max(0.0, found[0].estimate),
            max(0.0, found[0].low - rounding),
            found[0].high + rounding,
            record.confidence,
            len(samples),
            found[0].test,
        ),
        found[1],
    )


# ------------------------------------------------------------------------------- the spectrum


def _spectrum(
    record: FindingRecord, hessian: LinearOperator, scale: float, samples: Samples
) -> tuple[bool, float]:
    """The shares of negative, flat and positive directions, by as many products as there are.

    Returns:
        Whether the least value met is one of several below the smallest, and that value; infinite
        if there was no time.
    """
    size = hessian.shape[0]
    flat = FLAT * scale
    if size <= DENSE and products_in(hessian, 0.6) >= min(size, 300):
        values = torch.linalg.eigvalsh(hessian.to_dense()).cpu().double()[None]
        found = SpectralDensity(values, torch.full_like(values, 1 / size))
        exact = True
    else:
        probes = min(PROBES, products_in(hessian, 0.6) // STEPS)
        if probes < 1:
            record.note("Not measured for want of time: the whole spectrum of the Hessian.")
            return False, math.inf
        found = spectral_density(hessian, probes=probes, steps=STEPS, generator=record.generator)
        exact = False
    if len(samples) >= samples.population:
        _shares(record, found, flat, exact=exact)
    else:
        record.note(
            "Not measured: the shares of negative and flat directions. On a part of the samples "
            "the Hessian has other small eigenvalues than on all of them."
        )
    record.figure(
        "spectrum",
        lambda ax: _plot_spectrum(ax, found, flat, size),
        caption="Eigenvalues of the Hessian: the share of directions whose eigenvalue is at least "
        f"so large, for positive and for negative ones{part_of(samples)}.",
        size=(5.6, 3.0),
    )
    return not exact, float(found.nodes[found.weights > 0].min())


def _shares(record: FindingRecord, found: SpectralDensity, flat: float, *, exact: bool) -> None:
    """Shares of directions by the sign of their eigenvalue, with the error of the quadrature."""
    probes = len(found.nodes)
    lower, upper = (_mass_below(found, cut, exact=exact) for cut in (-flat, flat))
    basis = "all eigenvalues, up to rounding" if exact else f"quadrature by {probes} random vectors"
    rows = []
    for name, label, ends in (
        ("negative-directions", "negative", lower),
        ("flat-directions", "flat", (upper[0] - lower[1], upper[1] - lower[0])),
        ("positive-directions", "positive", (1 - upper[1], 1 - upper[0])),
    ):
        inside = {
            "negative": lambda t: t < -flat,
            "flat": lambda t: t.abs() <= flat,
            "positive": lambda t: t > flat,
        }[label]
        share = found.moment(lambda t, inside=inside: inside(t).double()).value  # type: ignore[misc]
        low, high = (_over_probes(end, exact, record.confidence) for end in ends)
        quantity = record.quantity(
            name,
            f"share of {label} directions of the Hessian",
            share,
            low=min(share, max(0.0, low[0])),
            high=max(share, min(1.0, high[1])),
            basis=basis,
        )
        rows.append((label, share, quantity.low, quantity.high))
    record.table(
        "index",
        ("directions", "share", "at least", "at most"),
        rows,
        caption=f"Flat: an eigenvalue below {FLAT:g} of the largest. The index of a critical point "
        "is its share of negative directions.",
    )


def _mass_below(found: SpectralDensity, cut: float, *, exact: bool) -> tuple[Tensor, Tensor]:
    """Bounds `[p]` on the measure below `cut`, for every random vector.

    Chebyshev, Markov and Stieltjes: a measure and its Gauss rule agree, below any point, up to the
    masses of the nodes on its two sides. Of a matrix's own eigenvalues only those within rounding
    of the point are in doubt.
    """
    nodes, weights = found.nodes, found.weights
    below = nodes < cut
    mass = (weights * below).sum(1)
    if exact:
        doubt = 100 * torch.finfo(torch.float64).eps * float(nodes.abs().max())
        near = (weights * ((nodes - cut).abs() <= doubt)).sum(1)
        return mass - near, mass + near
    real = weights > 0
    left = torch.where(real & below, nodes, -math.inf).argmax(1, keepdim=True)
    right = torch.where(real & ~below, nodes, math.inf).argmin(1, keepdim=True)
    before = torch.where((real & below).any(1), weights.gather(1, left)[:, 0], 0.0)
    after = torch.where((real & ~below).any(1), weights.gather(1, right)[:, 0], 0.0)
    return mass - before, mass + after


def _over_probes(values: Tensor, exact: bool, confidence: float) -> tuple[float, float]:
    """The range of a mean over random vectors."""
    mean = float(values.mean())
    if exact:
        return mean, mean
    if len(values) < 2:
        return 0.0, 1.0
    reach = student(confidence, len(values) - 1) * float(values.std()) / math.sqrt(len(values))
    return mean - reach, mean + reach


def _plot_spectrum(ax: Any, found: SpectralDensity, flat: float, count: int) -> None:
    """Shares of eigenvalues beyond a size, on both sides, in logarithmic scales."""
    nodes, order = found.nodes.flatten().sort()
    weights = found.weights.flatten()[order] / len(found.nodes)
    for sign, label, color in ((1.0, "positive", COLORS[0]), (-1.0, "negative", COLORS[1])):
        size = sign * nodes
        beyond = size > flat
        if not bool(beyond.any()):
            continue
        largest, place = size[beyond].sort(descending=True)
        share = weights[beyond][place].cumsum(0)
        ax.step(largest, share, where="post", color=color, label=label)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="size of an eigenvalue, at least",
        ylabel="share of the directions",
        ylim=(0.3 / count, 1.5),  # one eigenvalue is a share of 1 over their number
    )
    ax.legend()


# --------------------------------------------------------------------------- negative curvature


def _negative_curvature(
    problem: Problem,
    record: FindingRecord,
    samples: Samples,
    ends: EigenResult,
    *,
    falls: bool,
    resolved: bool,
) -> None:
    """The slopes of the loss on both sides, along the two extreme eigenvectors."""
    if not falls:
        record.not_applicable(
            "L-118",
            NEGATIVE,
            "no eigenvalue is negative beyond doubt and a thousandth of the largest",
            samples=samples,
        )
        return
    if not resolved:
        record.not_done(
            "L-118",
            NEGATIVE,
            "an eigenvalue is negative, but there was no time to find its direction",
        )
        return
    below = curvature_along(problem, samples, ends.vectors[:, -1])
    if below is None:
        record.not_applicable(
            "L-118",
            NEGATIVE,
            "no two short steps along the eigenvector agree on the curvature there: the loss has a "
            "kink at these weights, is flat up to rounding, or is computed too coarsely",
            samples=samples,
        )
        return
    says = record.checks("L-118", NEGATIVE)
    says.below(
        below / abs(float(ends.values[-1])),
        0.0,
        where="curvature along the eigenvector from the slopes on both sides, so near that no "
        "kink lies between, over the size of the eigenvalue",
    )
    if float(ends.values[0]) > 0:
        above = curvature_along(problem, samples, ends.vectors[:, 0])
        if above is not None:
            says.fails(
                "along the eigenvector of the largest eigenvalue", above / float(ends.values[0])
            )


def _saddle(
    problem: Problem,
    record: FindingRecord,
    ends: EigenResult,
    largest: Interval,
    smallest: Interval,
    samples: Samples,
    others: Samples,
) -> None:
    """The gradient has nothing left to gain: does the direction of negative curvature?"""
    judges = others if len(others) else samples  # those that chose no direction, where there are
    own, plain, _ = losses_beside_constant(problem, judges, record)
    base, most = own.estimate, max(own.high, 0.0 if plain is None else plain.high)
    length = math.sqrt(2 * STATIONARY * max(base, 1e-12) / abs(float(ends.values[-1])))
    lowest = base
    for sign in (1.0, -1.0):
        direction = unflatten(sign * length * ends.vectors[:, -1], problem.trainable)
        for k in range(DOUBLINGS):
            moved = {n: p + 2.0**k * direction[n] for n, p in problem.trainable.items()}
            try:
                lowest = min(lowest, problem.at(moved).risk(judges))
            except NonFinite:
                break
    share = (base - lowest) / most if most > 0 else 0.0
    if share <= STILL_FALLING:
        return
    flipped = Interval(
        -smallest.estimate, -smallest.high, -smallest.low, record.confidence, len(samples), ""
    )
    ratio = quotient(flipped, largest) if largest.low > 0 else flipped
    number = record.quantity(
        "negative-curvature",
        "size of the most negative eigenvalue over the largest"
        if largest.low > 0
        else "size of the most negative eigenvalue",
        ratio.estimate, low=ratio.low, high=ratio.high, basis=smallest.test, samples=samples,
    )  # fmt: skip
    record.look(
        "The weights are near a saddle: the gradient is almost 0, but the loss falls by "
        f"{100 * share:.2g}% of that of a constant prediction in a direction of negative curvature"
        f"{part_of(samples)}.",
        number=number,
        usual="below 0.1 at a minimum",
        action="Train on from slightly disturbed weights, or start again from random ones.",
        figure="spectrum",
    )


# ------------------------------------------------------------------------ noise of the gradient


@finding(
    "gradient-noise",
    area="training",
    title="How large a batch the gradient's noise asks for",
    cost="gradient",
    covers=["L-136", "L-137"],
    needs=[has_loss, has_parameters, deterministic, differentiable],
)
def gradient_noise(problem: Problem, record: FindingRecord) -> None:
    """Gradients of groups of samples: their spread against their mean; and of single samples."""
    problem = precise(problem)
    train = problem.train
    size = problem.function.count * problem.function.reference().element_size()
    room = problem.memory // (8 * size)
    count = min(len(train), problem.affordable(6, 0.3))
    samples = train.some(count, record.generator)
    complete = count >= train.population
    found = None
    if complete or count >= FEWEST:
        found = squared_gradient(problem, record, samples)
    if found is None:
        record.not_done(
            "L-136",
            UNBIASED,
            "not measured, the gradient and its noise: there was time or memory for too few "
            "gradients",
        )
    else:
        _record_gradient(record, found, samples)
    most = min(GRADIENTS, problem.affordable(12, 0.3), room)
    if min(most, len(train)) < FEWEST_GRADIENTS:
        record.not_done("L-137", BATCHES, "there is time or memory for too few gradients")
        return
    single = samples.some(most, record.generator)
    rows = [gradient(problem, single.at(torch.tensor([i]))) for i in range(len(single))]
    g = torch.stack(rows).double().cpu()
    _unbiased(record, g, gradient(problem, single).cpu(), single)
    _batches(record, g @ g.T, single)


def _record_gradient(
    record: FindingRecord, found: tuple[Interval, Interval], samples: Samples
) -> None:
    square, ratio = found
    basis = (
        "all samples, rounding"
        if len(samples) >= samples.population
        else f"jackknife over groups, {len(samples):,} of {samples.population:,} samples; the part "
        "that is noise is taken off"
    )
    record.quantity(
        "gradient-norm", "norm of the gradient of the training loss", math.sqrt(square.estimate),
        low=math.sqrt(square.low), high=math.sqrt(square.high), basis=basis, samples=samples,
    )  # fmt: skip
    if ratio.estimate == math.inf:
        return  # no noise, so no batch to ask for
    value, low, high = (
        1 / v if v > 0 else math.inf for v in (ratio.estimate, ratio.high, ratio.low)
    )
    record.quantity(
        "gradient-noise-scale", "batch at which the gradient's noise equals the gradient",
        value, low=low, high=high, unit="samples", samples=samples,
        basis=f"jackknife over groups, {len(samples):,} of {samples.population:,} samples",
    )  # fmt: skip
    if math.isfinite(high):
        record.advise(
            f"Batches far beyond {max(1.0, value):,.0f} samples hardly reduce the number of steps "
            f"at these weights{part_of(samples)}: there the gradient stands out of its noise."
        )
    known = f"about {max(1.0, value):,.0f}" if math.isfinite(high) else f"more than {low:,.0f}"
    record.headline(
        f"The gradient of the training loss has norm "
        f"{math.sqrt(square.estimate):.2g}{part_of(samples)}: it stands out of the noise of "
        f"batches of {known} samples.",
    )


UNBIASED = r"\frac1n\sum_i\nabla L_i=\nabla L"

BATCHES = r"\mathbb E\|\nabla L_B-\nabla L\|^2=\frac{\operatorname{var}}{r}\cdot\frac{n-r}{n-1}"


def _batches(record: FindingRecord, gram: Tensor, samples: Samples) -> None:
    """The mean over all batches of two samples, one by one, beside the formula."""
    n, r = len(gram), 2
    centered = gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
    variance = float(centered.diagonal().mean())
    if variance <= 1e-12 * float(gram.diagonal().mean()):
        record.not_applicable(
            "L-137", BATCHES, "all gradients are equal: there is no noise", samples=samples
        )
        return
    one, two = torch.triu_indices(n, n, 1)
    own = centered.diagonal()
    noise = (own[one] + own[two] + 2 * centered[one, two]) / r**2
    says = record.checks("L-137", BATCHES)
    says.equal(
        float(noise.mean()) / variance,
        (n - r) / (n - 1) / r,
        1e-9,
        where=f"over var, for all {len(one):,} batches of {r} of {n} samples without replacement",
    )
    again = (own[:, None] + own + 2 * centered).mean() / r**2
    says.fails("batches drawn with replacement", float(again) / variance)


def _unbiased(record: FindingRecord, single: Tensor, whole: Tensor, samples: Samples) -> None:
    """The gradients of single samples have the gradient of the loss for their mean."""
    size = float(single.norm(dim=1).mean())
    # sums over samples in another order
    rounding = 300 * torch.finfo(whole.dtype).eps
    if rounding > 0.01:
        coarse = str(whole.dtype).removeprefix("torch.")
        record.not_applicable("L-136", UNBIASED, f"{coarse} is too coarse to tell")
        return
    if size == 0:
        record.not_applicable("L-136", UNBIASED, "all gradients are 0", samples=samples)
        return
    error, without = (float((g.mean(0) - whole).norm()) / size for g in (single, single[1:]))
    says = record.checks("L-136", UNBIASED)
    says.equal(
        error,
        within=rounding,
        where="norm of the difference over the mean norm of a single gradient",
    )
    if without > rounding:
        says.fails("one sample is left out", without)


# ------------------------------------------------------------------------------------ balance


@finding(
    "layer-balance",
    area="capacity",
    title="What gradient flow conserves between neighboring layers",
    cost="gradient",
    covers=["L-162"],
    needs=[has_loss, has_parameters, deterministic, differentiable],
)
def layer_balance(problem: Problem, record: FindingRecord) -> None:
    """For each unit, how fast the weights that enter it and those that leave it would grow."""
    statement = (
        r"\langle w_j, \nabla_{w_j}L\rangle + b_j\,\partial_{b_j}L = \langle v_j, \nabla_{v_j}L"
        r"\rangle"
    )
    layers = rescalable_layers(problem.model)
    if not layers:
        record.not_applicable(
            "L-162", statement, "no hidden layer stands between positively homogeneous activations"
        )
        return
    problem = problem.in_double_if_possible()
    samples = problem.train.some(min(512, problem.affordable(12)), record.generator)

    def rates(chosen: Samples) -> tuple[Tensor, Tensor]:
        """How fast the squared weights that enter and leave each unit grow, `[units]`."""
        # a symmetry of the function, of frozen weights as well
        slopes = unflatten(
            gradient(problem, chosen, parameters=problem.parameters), problem.parameters
        )
        pairs = [unit_products(problem.parameters, slopes, layer) for layer in layers]
        inward, outward = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return inward, outward

    inward, outward = rates(samples)
    # gradients of samples that cancel leave their rounding behind
    seen = [rates(samples.at(torch.tensor([i]))) for i in range(min(4, len(samples)))]
    size = max(float(r.abs().max()) for r in (inward, outward, *(r for pair in seen for r in pair)))
    if size == 0:
        record.not_applicable(
            "L-162", statement, "the gradient vanishes: nothing moves", samples=samples
        )
        return
    balance = []
    for layer in layers:
        entering, leaving = unit_products(problem.parameters, problem.parameters, layer)
        balance.append((leaving - entering) / (leaving + entering).clamp_min(1e-300))
    uneven = torch.cat(balance)
    widest = max(layer.units for layer in layers)
    rounding = 1e3 * widest * torch.finfo(inward.dtype).eps
    shifted = float((inward - outward.roll(1)).abs().max()) / size
    says = record.checks("L-162", statement)
    says.equal(
        float((inward - outward).abs().max()) / size,
        within=rounding,
        where="largest difference over all units, relative to the largest side, of single samples "
        "as well: what enters and what leaves a unit grow alike under gradient flow",
    )
    if shifted > rounding:
        says.fails("what leaves the unit before it", shifted)
    record.quantity(
        "imbalance",
        "median over units of |leaving − entering| / (leaving + entering), squared weights",
        float(uneven.abs().median()),
    )
    rows = [
        (layer.incoming, layer.outgoing, layer.units, float(part.median()))
        for layer, part in zip(layers, balance, strict=True)
    ]
    record.table(
        "balance",
        ("from layer", "to layer", "units", "median of (leaving − entering) / sum"),
        rows,
        caption="Squared weights that leave and enter a unit. Gradient flow keeps their "
        "difference, and weight decay drives it to 0.",
    )
