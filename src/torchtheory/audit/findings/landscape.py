"""Findings about the point training reached: its index, the noise of its gradient, its balance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    chain,
    deterministic,
    differentiable,
    has_parameters,
)
from torchtheory.audit.findings.optimization import affordable_samples, precise, products_in
from torchtheory.core.errors import InvalidInput, NonFinite
from torchtheory.core.figure import COLORS
from torchtheory.linalg.density import SpectralDensity, spectral_density
from torchtheory.linalg.eigenvalues import EigenResult, top_eigenpairs
from torchtheory.models.model import unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.symmetries import HiddenLayer, rescalable_layers
from torchtheory.optimization.curvature.noise_scale import gradient_noise_scale
from torchtheory.optimization.curvature.operators import gradient, hessian_operator

#: Random vectors and Lanczos steps of the spectrum, at most.
PROBES, STEPS = 4, 40

#: Gradients that are taken one by one for their noise, and batches drawn from them.
GRADIENTS, BATCHES = 128, 400

#: Eigenvalues of less than this share of the largest count as 0.
FLAT = 1e-3

NEGATIVE = r"\lambda_{\min} < 0 \;\Rightarrow\; \tfrac12[L(\theta+tv)+L(\theta-tv)] < L(\theta)"


# ------------------------------------------------------------------------- the point reached


@finding(
    "point-reached",
    area="training",
    title="What kind of point the weights are, and the spectrum of the Hessian there",
    cost="curvature",
    covers=["L-118", "A-116"],
    needs=[has_parameters, deterministic, differentiable],
)
def point_reached(problem: Problem, record: FindingRecord) -> None:
    """Both ends of the spectrum by Lanczos, all of it by quadrature, the gradient beside them."""
    problem = precise(problem)
    samples, _ = affordable_samples(problem, record)
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
        record.not_applicable("L-118", NEGATIVE, "the loss is flat up to rounding")
        return
    largest, smallest = float(ends.values[0]), float(ends.values[-1])
    error = float(ends.residuals.max())
    slope, risk = float(gradient(problem, samples).norm()), problem.risk(samples)
    scale = max(abs(largest), abs(smallest))
    gain = slope**2 / (2 * scale) if scale > 0 else math.inf
    record.quantity(
        "one-step-gain",
        "what one step of gradient descent can gain, |∇L|² / (2 λ), over the loss",
        gain / risk if risk > 0 else math.nan,
    )
    below = _spectrum(record, hessian, scale)
    if below < smallest - error:  # a Ritz value is a mean of eigenvalues: one is as low
        smallest = below
        record.quantity(
            "smallest-eigenvalue", "smallest eigenvalue of the Hessian", smallest,
            low=-math.inf, high=smallest, basis="it is at most this; no time to find it",
        )  # fmt: skip
    else:
        record.quantity(
            "smallest-eigenvalue", "smallest eigenvalue of the Hessian", smallest,
            error=error, basis="residual of Lanczos, for these samples",
        )  # fmt: skip
    stationary = gain <= FLAT * risk  # also where both are 0: everything is fitted
    falls = smallest + (0.0 if smallest == below else error) < -FLAT * scale
    resolved = float(ends.values[-1]) + error < -FLAT * scale
    _negative_curvature(problem, record, samples, ends, falls=falls, resolved=resolved)
    kind = "a stationary point" if stationary else "no stationary point yet"
    sign = (
        f"the loss falls on both sides in some direction (curvature {smallest:.2g})"
        if falls
        else "no direction of negative curvature was found"
    )
    record.headline(
        f"The weights are {kind}: one step can gain {gain / max(risk, 1e-300):.1%} of the loss; "
        f"{sign}.",
        1,
    )


def _spectrum(record: FindingRecord, hessian: Any, scale: float) -> float:
    """The shares of negative, flat and positive directions, by as many products as there are.

    Returns:
        The least value met; infinite if there was no time.
    """
    probes = min(PROBES, products_in(hessian, 0.6) // STEPS)
    if probes < 1:
        record.note("There was no time for the whole spectrum of the Hessian.")
        return math.inf
    found = spectral_density(hessian, probes=probes, steps=STEPS, generator=record.generator)
    flat = FLAT * scale
    rows = []
    for name, label, inside in (
        ("negative-directions", "negative", lambda t: t < -flat),
        ("flat-directions", "flat", lambda t: t.abs() <= flat),
        ("positive-directions", "positive", lambda t: t > flat),
    ):
        share = found.moment(lambda t, inside=inside: inside(t).double())  # type: ignore[misc]
        spread = 2 * share.standard_error if probes > 1 else math.nan
        rows.append((label, share.value, spread))
        record.quantity(
            name,
            f"share of {label} directions of the Hessian",
            share.value,
            low=max(0.0, share.value - spread) if probes > 1 else 0.0,
            high=min(1.0, share.value + spread) if probes > 1 else 1.0,
            basis=f"two standard errors, {probes} random vectors"
            if probes > 1
            else "one random vector: no error is known",
        )
    record.table(
        "index",
        ("directions", "share", "two standard errors"),
        rows,
        caption=f"Flat: an eigenvalue below {FLAT:g} of the largest. The index of a critical point "
        "is its share of negative directions.",
    )
    record.figure(
        "spectrum",
        lambda ax: _plot_spectrum(ax, found, flat, hessian.shape[0]),
        caption="Eigenvalues of the Hessian: the share of directions whose eigenvalue is at least "
        "so large, for positive and for negative ones.",
        size=(5.6, 3.0),
    )
    return float(found.nodes[found.weights > 0].min())


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


def _negative_curvature(
    problem: Problem,
    record: FindingRecord,
    samples: Samples,
    ends: EigenResult,
    *,
    falls: bool,
    resolved: bool,
) -> None:
    """The loss itself, on both sides along the two extreme eigenvectors."""
    if not (falls and resolved):
        record.not_applicable(
            "L-118",
            NEGATIVE,
            "an eigenvalue is negative, but there was no time to find its direction"
            if falls
            else "no eigenvalue is negative beyond rounding and a thousandth of the largest",
        )
        return
    risk = problem.risk(samples)

    def bend(vector: Tensor, value: float, rise: float) -> float:
        """The mean of both sides less the middle, over the change that the eigenvalue predicts."""
        step = math.sqrt(2 * rise * max(risk, 1e-12) / abs(value))
        direction = unflatten(step * vector, problem.trainable)
        sides = [
            problem.at({k: p + sign * direction[k] for k, p in problem.trainable.items()})
            for sign in (1.0, -1.0)
        ]
        change = math.fsum(side.risk(samples) for side in sides) / 2 - risk
        return change / (rise * max(risk, 1e-12))

    # a long step leaves the parabola, a short one drowns in rounding: the clearest of several
    rises = (1e-2, 1e-3, 1e-4, 1e-5)
    # and a network with kinks may rest on one, where second derivatives do not tell how the loss
    # bends: then the eigenvector of the largest eigenvalue is no control
    below = min(bend(ends.vectors[:, -1], float(ends.values[-1]), r) for r in rises)
    above = min(bend(ends.vectors[:, 0], float(ends.values[0]), r) for r in rises)
    says = record.states("L-118", NEGATIVE)
    says.below(
        below,
        0.0,
        where="from loss values on both sides along the eigenvector, over the change that the "
        "eigenvalue predicts",
    )
    if float(ends.values[0]) > 0 and above > 0:
        says.fails("along the eigenvector of the largest eigenvalue", above)


# ------------------------------------------------------------------------ noise of the gradient


@finding(
    "gradient-noise",
    area="training",
    title="How large a batch the gradient's noise asks for",
    cost="gradient",
    covers=["L-136", "L-137"],
    needs=[has_parameters, deterministic, differentiable],
)
def gradient_noise(problem: Problem, record: FindingRecord) -> None:
    """Gradients of single samples: their spread against their mean, and that of batches."""
    statement = (
        r"\mathbb E\|\nabla L_B-\nabla L\|^2=\frac{\operatorname{var}}{r}\cdot\frac{n-r}{n-1}"
    )
    size = problem.function.count * problem.function.reference().element_size()
    most = min(GRADIENTS, problem.affordable(12), problem.memory // (8 * size))
    if min(most, len(problem.train)) < 8:
        record.not_applicable("L-137", statement, "there is time or memory for too few gradients")
        return
    samples = problem.train.some(most, record.generator)
    rows = [gradient(problem, samples.at(torch.tensor([i]))) for i in range(len(samples))]
    g = torch.stack(rows).double().cpu()
    _unbiased(record, g, gradient(problem, samples).cpu())
    gram = g @ g.T
    scale = gradient_noise_scale(gram, 1, complete=len(samples) == problem.train.population)
    record.quantity(
        "gradient-noise-scale",
        "batch at which the gradient's noise equals the gradient",
        scale.value,
        low=scale.low if scale.low is not None else 0.0,
        high=scale.high,
        basis=f"two standard errors of the jackknife, {len(samples)} samples",
        unit="samples",
    )
    n, r = len(g), len(g) // 2
    centered = gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
    variance = float(centered.diagonal().mean())
    if variance == 0:
        record.not_applicable("L-137", statement, "all gradients are equal: there is no noise")
        return
    seen = []
    for _ in range(BATCHES):
        part = torch.randperm(n, generator=record.generator)[:r]
        seen.append(float(centered[part][:, part].mean()) / variance)
    says = record.states("L-137", statement)
    says.mean(
        seen,
        (n - r) / (n - 1) / r,
        confidence=0.999,
        where=f"over var, for {BATCHES} batches of {r} of {n} samples without replacement",
    )
    says.fails("as if drawn with replacement: var / r", seen, promised=1 / r)
    if math.isfinite(scale.value):
        record.advise(
            f"Batches far beyond {max(1.0, scale.value):,.0f} samples hardly reduce the number of "
            "steps at these weights: there the gradient stands out of its noise."
        )


def _unbiased(record: FindingRecord, single: Tensor, whole: Tensor) -> None:
    """The gradients of single samples have the gradient of the loss for their mean."""
    statement = r"\frac1n\sum_i\nabla L_i=\nabla L"
    size = float(single.norm(dim=1).mean())
    # sums over samples in another order
    rounding = 300 * torch.finfo(whole.dtype).eps
    if size == 0 or rounding > 0.01:
        why = "all gradients are 0" if size == 0 else f"{whole.dtype} is too coarse to tell"
        record.not_applicable("L-136", statement, why)
        return
    error, without = (float((g.mean(0) - whole).norm()) / size for g in (single, single[1:]))
    says = record.states("L-136", statement)
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
    needs=[has_parameters, deterministic, differentiable, chain],
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
    # a symmetry of the function, of frozen weights as well
    slopes = unflatten(
        gradient(problem, samples, parameters=problem.parameters), problem.parameters
    )
    entering, leaving, balance = [], [], []
    for layer in layers:
        rates = [_pairs(problem.parameters, other, layer) for other in (slopes, problem.parameters)]
        entering.append(rates[0][0])
        leaving.append(rates[0][1])
        balance.append((rates[1][1] - rates[1][0]) / (rates[1][1] + rates[1][0]).clamp_min(1e-300))
    inward, outward, uneven = (torch.cat(parts) for parts in (entering, leaving, balance))
    size = float(torch.maximum(inward.abs(), outward.abs()).max())
    if size == 0:
        record.not_applicable("L-162", statement, "the gradient vanishes: nothing moves")
        return
    widest = max(layer.units for layer in layers)
    rounding = 1e3 * widest * torch.finfo(inward.dtype).eps
    shifted = float((inward - outward.roll(1)).abs().max()) / size
    says = record.states("L-162", statement)
    says.equal(
        float((inward - outward).abs().max()) / size,
        within=rounding,
        where="largest difference over all units, relative to the largest side: what enters and "
        "what leaves a unit grow alike under gradient flow",
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


def _pairs(
    parameters: dict[str, Tensor], other: dict[str, Tensor], layer: HiddenLayer
) -> tuple[Tensor, Tensor]:
    """Inner products of two sets of weights, unit by unit: entering with the bias, and leaving."""
    name = f"{layer.incoming}.weight"
    entering = (parameters[name] * other[name]).sum(1)
    bias = f"{layer.incoming}.bias"
    if bias in parameters:
        entering = entering + parameters[bias] * other[bias]
    name = f"{layer.outgoing}.weight"
    return entering, (parameters[name] * other[name]).sum(0)
