r"""Quantities of theory worth following while a network is trained.

Each is a function from a `Snapshot` to readings, in
the table of `torchtheory.audit.tracking.quantities`.
"""

from __future__ import annotations

import math

import torch

from torchtheory.audit.findings.hypotheses import classification, deterministic, has_parameters
from torchtheory.audit.tracking.quantities import Reading, Readings, Snapshot, tracked
from torchtheory.core.errors import InvalidInput, NonFinite, TorchTheoryError, UnsupportedModel
from torchtheory.core.intervals import Interval, clopper_pearson, mean_interval
from torchtheory.generalization.complexity.norm_bounds import homogeneous_layers
from torchtheory.kernels.tangent.laziness import kernel_drift, kernel_target_alignment
from torchtheory.linalg.eigenvalues import top_eigenpairs
from torchtheory.models.model import flatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.curvature.edge_of_stability import stability_limit
from torchtheory.optimization.curvature.noise_scale import gradient_noise_scale
from torchtheory.optimization.curvature.operators import gradient, hessian_operator
from torchtheory.tracing.watching import watch_units
from torchtheory.training.losses.risks import sample_losses

#: The probe is cut into at most so many groups to see how much a gradient varies,
GRADIENT_GROUPS = 16
#: fewer where their gradients would hold more numbers than this.
GRADIENT_NUMBERS = 2**24


# ------------------------------------------------------------------------- loss, error, margins


@tracked("loss", title="Loss", scale="log")
def loss(at: Snapshot) -> Readings:
    """Mean loss on the probe and on the test samples.

    With Student's interval where the samples stand for more than themselves.
    """
    return {name: _mean_loss(at, part) for name, part, _ in _parts(at)}


@tracked("error", title="Share of misclassified samples", scale="linear", needs=[classification])
def error(at: Snapshot) -> Readings:
    """With Clopper and Pearson's interval where the samples stand for more than themselves."""
    found: dict[str, Reading | Interval] = {}
    for name, part, sampled in _parts(at):
        wrong, n = int(at.problem.errors(part).sum()), len(part)
        interval = clopper_pearson(wrong, n, at.confidence)
        found[name] = interval if sampled else Reading(wrong / n)
    return found


@tracked("margins", title="Margins", scale="linear", needs=[classification])
def margins(at: Snapshot) -> Readings:
    """Quantiles of the margin over the probe; a sample is correct when its margin is positive."""
    values = at.problem.margins(at.probe).double()
    levels = {"smallest": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9}
    return {name: float(values.quantile(level)) for name, level in levels.items()}


def homogeneous(problem: Problem) -> str | None:
    """Why a network is not known to be homogeneous in its weights, or None."""
    try:
        homogeneous_layers(problem.model)
    except TorchTheoryError as problem_found:
        return str(problem_found)
    return None


@tracked(
    "normalized-margin",
    title="Smallest margin / ‖θ‖ᴸ",
    scale="linear",
    needs=[classification, homogeneous],
)
def normalized_margin(at: Snapshot) -> Readings:
    r"""The smallest margin over $\|\theta\|^L$, for L layers homogeneous in their weights.

    Along gradient flow of an exponential-type loss a smoothed form of it does not decrease once
    all samples are correct.
    """
    depth = len(homogeneous_layers(at.problem.model))
    size = float(flatten(at.problem.parameters).norm())
    return float(at.problem.margins(at.probe).min()) / size**depth


def _parts(at: Snapshot) -> list[tuple[str, Samples, bool]]:
    """Name, samples, and whether they are a sample of something larger."""
    parts = [("train", at.probe, bool(at.probe.note))]
    if at.problem.test is not None:
        parts.append(("test", at.problem.test, True))
    return parts


def _mean_loss(at: Snapshot, part: Samples) -> Reading | Interval:
    sampled = part is not at.probe or bool(part.note)
    if not sampled or len(part) < 2:
        return Reading(at.problem.risk(part))
    try:
        return mean_interval(sample_losses(at.problem, part), at.confidence)
    except TorchTheoryError:
        raise
    except Exception:  # a loss of the user's that cannot be taken sample by sample
        return Reading(at.problem.risk(part))


# ------------------------------------------------------------------------------------ curvature


@tracked(
    "sharpness",
    title="Sharpness",
    limits=["stability limit"],
    needs=[has_parameters, deterministic],
    passes=60,
)
def sharpness(at: Snapshot) -> Readings:
    r"""The top eigenvalue of the Hessian of the loss, and the limit $2/\eta$ of its descent.

    Lanczos starts from the eigenvector of the last measurement, so that few products are needed.
    The error bar is the residual: an eigenvalue lies within it.
    """
    hessian = hessian_operator(at.problem, at.probe, parameters=at.parameters)
    try:
        top = top_eigenpairs(
            hessian,
            tolerance=0.01,
            steps=100,
            start=at.memory.get("vector"),
            generator=at.generator,
        )
    except NonFinite:
        raise
    except InvalidInput as found:
        raise UnsupportedModel(
            "second derivatives taken in two orders differ: a layer's double backward is wrong "
            "in torch, or the loss is flat up to rounding"
        ) from found
    value, residual = float(top.values[0]), float(top.residuals[0])
    at.memory["vector"] = top.vectors[:, 0]
    readings = {"largest eigenvalue": Reading(value, value - residual, value + residual)}
    limit, remark = stability_limit(at.optimizer, at.learning_rate)
    if remark:
        at.remark(remark)
    if limit is not None:
        readings["stability limit"] = Reading(limit)
    return readings


# ------------------------------------------------------------------------------------ gradients


@tracked(
    "gradient-norms",
    title="Gradient norm by layer",
    scale="log",
    needs=[has_parameters],
    passes=3,
)
def gradient_norms(at: Snapshot) -> Readings:
    """Norm of the gradient of the loss on the probe, for each layer and for all together."""
    layers = {name: float(part.norm()) for name, part in at.by_layer(at.gradient).items()}
    return {"all": float(at.gradient.norm()), **layers} if len(layers) > 1 else layers


@tracked(
    "gradient-noise",
    title="Gradient noise scale (samples)",
    scale="log",
    needs=[has_parameters, deterministic],
    passes=50,
)
def gradient_noise(at: Snapshot) -> Readings:
    r"""$\operatorname{tr}\Sigma/\|\nabla L\|^2$: the batch at which noise equals signal.

    $\Sigma$ is the covariance of the gradient of one sample, estimated from the gradients of
    equal groups of the probe; unless the probe is all training data the squared norm is freed of
    its bias $\operatorname{tr}\Sigma/n$, and the ratio infinite where nothing of the gradient
    stands out of the noise.
    """
    size = sum(p.numel() for p in at.parameters.values())
    most = min(len(at.probe), GRADIENT_GROUPS, max(4, GRADIENT_NUMBERS // size))
    # a number of groups that leaves no sample out, if there is one not much smaller
    groups = next((k for k in range(most, most // 2, -1) if len(at.probe) % k == 0), most)
    if groups < 4:
        raise InvalidInput(f"the noise of a gradient needs at least 4 samples, not {groups}")
    each = len(at.probe) // groups
    rows = torch.stack(
        [
            gradient(at.problem, Samples(x, y), parameters=at.parameters)
            for x, y in at.probe.first(groups * each).chunks(each)
        ]
    )
    gram = torch.zeros(groups, groups, dtype=torch.float64, device=rows.device)
    for part in torch.split(rows, 2**16, dim=1):  # in double precision, a piece at a time
        wide = part.double()
        gram += wide @ wide.T
    complete = not at.probe.note and groups * each == len(at.probe)
    scale = gradient_noise_scale(gram.cpu(), each, complete=complete)
    found = Reading(scale.value, scale.low, scale.high)
    if math.isinf(found.value):
        at.remark(
            "The gradient noise scale is infinite where the gradient on the probe does not stand "
            "out of its noise; triangles are lower estimates."
        )
    return found


# -------------------------------------------------------------------------------------- weights


@tracked("weight-norms", title="Weight norm by layer", needs=[has_parameters])
def weight_norms(at: Snapshot) -> Readings:
    """Euclidean norm of the trained parameters of each layer."""
    return {name: float(part.norm()) for name, part in at.by_layer(at.parameters).items()}


@tracked("distance", title="Distance from the start / norm at the start", needs=[has_parameters])
def distance(at: Snapshot) -> Readings:
    r"""$\|\theta-\theta_0\|/\|\theta_0\|$ over all trained parameters and by layer."""
    start = {k: at.start[k].to(p.device) for k, p in at.parameters.items()}
    moved = at.by_layer({k: p - start[k] for k, p in at.parameters.items()})
    layers = {
        name: _share(float(moved[name].norm()), float(part.norm()))
        for name, part in at.by_layer(start).items()
    }
    if len(layers) == 1:
        return layers
    whole = float(torch.cat(list(moved.values())).norm())
    return {"all": _share(whole, float(flatten(start).norm())), **layers}


@tracked("dead-units", title="Share of units silent on the probe", scale="linear")
def dead_units(at: Snapshot) -> Readings:
    """Units behind each activation that pass no gradient at any sample of the probe."""
    found = watch_units(at.problem, at.probe)
    if not found:
        raise UnsupportedModel("the network applies no pointwise activation")
    shares: dict[str, float] = {}
    for units in found:
        name = f"after {units.layer or 'the input'}"
        while name in shares:  # the same layer, or several activations behind it
            name += " again"
        shares[name] = units.silent_share
    return shares


def _share(part: float, whole: float) -> float:
    """A ratio; from nothing, any distance is infinitely far."""
    if whole == 0:
        return 0.0 if part == 0 else math.inf
    return part / whole


# --------------------------------------------------------------------------------------- kernel


@tracked(
    "kernel-drift",
    title="Drift of the tangent kernel",
    scale="linear",
    needs=[has_parameters, deterministic],
    passes=60,
)
def drift(at: Snapshot) -> Readings:
    r"""$\|\Theta_t-\Theta_0\|_F/\|\Theta_0\|_F$ on the first samples of the probe."""
    if "kernel" not in at.memory:
        at.memory["kernel"] = at.first_kernel
    return kernel_drift(at.memory["kernel"].to(at.kernel), at.kernel)


@tracked(
    "kernel-alignment",
    title="Alignment of the kernel with the targets",
    scale="linear",
    needs=[has_parameters, deterministic],
    passes=30,
)
def alignment(at: Snapshot) -> Readings:
    """The cosine between the tangent kernel and the kernel of the targets."""
    y = at.probe.y[: len(at.kernel)]
    if at.problem.task == "binary":
        y = 2 * y - 1
    return kernel_target_alignment(at.kernel, y)
