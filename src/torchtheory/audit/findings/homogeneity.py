"""Findings about homogeneity: in which weights the network is, and what weight decay proves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    differentiable,
    floating_inputs,
    has_loss,
    has_parameters,
)
from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import PureFunction, flatten
from torchtheory.models.problem import Problem
from torchtheory.nets.homogeneity import Homogeneity
from torchtheory.optimization.parallel_networks.network_certificates import (
    NetworkCertificate,
    certify_network,
    in_double,
    value_and_descent,
    worth_of_subnetwork,
)
from torchtheory.optimization.parallel_networks.nondegenerate_pairs import (
    degree_of,
    degrees_by_group,
    layers_that_break,
)
from torchtheory.optimization.parallel_networks.subnetworks import (
    OutputLoss,
    ParallelNetwork,
    split_hidden_units,
)
from torchtheory.tracing.chain import as_chain

#: Samples on which the degree is measured, and groups of parameters, at most.
SAMPLES, GROUPS = 32, 40

#: Of the departure from a power of the scale, in double and in another precision.
EXACT, COARSE = 1e-6, 1e-3

#: Entries of the inputs and outputs up to which further units are looked for, and from where.
ENTRIES, STARTS = 1_000_000, 20

POWER = r"f(a\theta)=a^Lf(\theta) \text{ for all } a>0"
MATCH = r"\deg\Theta=\deg f: \text{ weight decay has the degree of the network}"
BOUND = r"\min_{r,W}\ L(\Phi_r)+\lambda\Theta_r\ge\text{ the lower bound of the certificate}"
FURTHER = (
    r"\Omega^\circ(-\nabla L)>\lambda \;\Rightarrow\; \text{a further unit lowers } L+\lambda\Theta"
)


# ------------------------------------------------------------------------------- the degree


@finding(
    "homogeneity",
    area="capacity",
    title="In which weights the network is homogeneous, and whether weight decay matches",
    cost="forward",
    covers=["B-45", "B-47"],
    needs=[has_parameters, deterministic],
)
def homogeneity(problem: Problem, record: FindingRecord) -> None:
    """All trained parameters, and those of every layer alone, are scaled; what do outputs do?"""
    problem = problem.in_double_if_possible()
    function = problem.function
    tolerance = EXACT if function.reference().dtype == torch.float64 else COARSE
    theta = list(function.trainable)
    layers = _layers(theta)
    x = problem.train.x[: min(SAMPLES, problem.affordable(10 * (len(layers) + 4)))]
    whole = degrees_by_group(function, x, {"all": theta}, tolerance=tolerance)["all"]
    parts = degrees_by_group(function, x, layers, tolerance=tolerance)
    frozen = len(function.parameters) - len(theta)
    _table(record, function, theta, layers, whole, parts)
    if whole.degree is not None:
        record.quantity(
            "homogeneity-degree",
            "degree of the network in all trained weights together",
            whole.degree,
            low=whole.degree,
            high=whole.degree,
            basis=f"the same at each of {len(x)} samples",
        )
    if frozen:
        record.note(
            f"{frozen} tensors of parameters are not trained: they keep their values here, and the "
            "degree is that of the others."
        )
    if whole.degree is None:
        reason = _what_breaks(problem, function, x, theta, tolerance)
        record.not_applicable("B-45", POWER, reason)
        record.not_applicable("B-47", MATCH, "the network has no degree")
        return
    _power_law(record, function, x, theta, layers, whole, tolerance)
    decay, lasso = (_degree_of_penalty(function, theta, exponent) for exponent in (2, 1))
    if whole.degree == decay:
        says = record.states("B-47", MATCH)
        says.equal(
            decay,
            whole.degree,
            where="the theorems on global minima of regularized homogeneous networks are about "
            "such pairs, where the network is a sum of subnetworks of this degree",
        )
        says.fails("the sum of the weights' sizes as the regularizer", lasso)
        return
    record.not_applicable(
        "B-47",
        MATCH,
        f"the network has degree {whole.degree:g} and weight decay {decay:g}: the theorems on "
        "global minima of regularized homogeneous networks do not cover it with weight decay",
    )
    if whole.degree > 0:
        record.advise(
            f"A regularizer of the network's own degree {whole.degree:g} is the product of the "
            f"norms of its layers, or the sum of their powers {whole.degree:g}; weight decay is of "
            "degree 2 and has that of a network with two layers only."
        )


def _degree_of_penalty(function: PureFunction, names: list[str], exponent: int) -> float:
    """Of the sum of the absolute values of these parameters, raised to the exponent."""
    weights = flatten({k: function.parameters[k] for k in names}).double()
    found = degree_of(lambda w: w.abs().pow(exponent).sum(), weights[None]).degree
    return math.nan if found is None else found


def _layers(names: Sequence[str]) -> dict[str, list[str]]:
    """Parameters by the module they belong to; by larger modules where there are too many."""
    depth = max(name.count(".") for name in names)
    while True:
        groups: dict[str, list[str]] = {}
        for name in names:
            path = name.split(".")[:-1][:depth]
            groups.setdefault(".".join(path) or "its own", []).append(name)
        if len(groups) <= GROUPS or depth <= 1:
            return dict(list(groups.items())[:GROUPS])
        depth -= 1


def _table(
    record: FindingRecord,
    function: PureFunction,
    theta: list[str],
    layers: dict[str, list[str]],
    whole: Homogeneity,
    parts: dict[str, Homogeneity],
) -> None:
    def row(name: str, names: list[str], found: Homogeneity) -> tuple[object, ...]:
        count = sum(function.parameters[k].numel() for k in names)
        degree = "none" if found.degree is None else f"{found.degree:g}"
        return name, count, degree, found.deviation

    record.table(
        "degrees",
        ("weights of", "parameters", "degree", "largest departure from a power"),
        [row("all trained", theta, whole), *(row(k, v, parts[k]) for k, v in layers.items())],
        caption="The outputs where these weights are scaled by ½, 2 and 3 and the others kept, in "
        "evaluation mode. None: the outputs are not a power of the scale. 0: the scale does not "
        "matter.",
    )


def _power_law(
    record: FindingRecord,
    function: PureFunction,
    x: Tensor,
    theta: list[str],
    layers: dict[str, list[str]],
    whole: Homogeneity,
    tolerance: float,
) -> None:
    assert whole.degree is not None
    says = record.checks("B-45", POWER)
    says.equal(
        whole.deviation,
        within=tolerance,
        where=f"L = {whole.degree:g}; largest relative departure for a = ½, 2, 3 on {len(x)} "
        "samples, at the weights and at others near them",
    )
    first, *rest = layers.values()
    if rest:
        fewer = [k for k in theta if k not in first]
        left = degrees_by_group(function, x, {"": fewer}, tolerance=math.inf)[""].degree
        # by how much the outputs miss the power law at the scale 2
        missed = math.inf if left is None else abs(2 ** (left - whole.degree) - 1)
        if missed > tolerance:
            says.fails("the weights of one layer are not scaled with the others", missed)


def _what_breaks(
    problem: Problem, function: PureFunction, x: Tensor, theta: list[str], tolerance: float
) -> str:
    reason = "the outputs are not a power of the scale of the weights"
    biases = [k for k in theta if k.rsplit(".", 1)[-1] == "bias"]

    def without(zero: list[str]) -> float | None:
        """The degree in the other weights with these at 0."""
        others = [k for k in theta if k not in zero]
        there = problem.at({k: torch.zeros_like(function.parameters[k]) for k in zero}).function
        with torch.no_grad():
            silent = not bool(there(there.parameters, x).any())
        if not others or silent:
            return None
        return degrees_by_group(there, x, {"": others}, tolerance=tolerance)[""].degree

    degree = without(biases) if biases else None
    if degree is not None:
        for name in biases if len(biases) <= 8 else []:
            fewer = [k for k in biases if k != name]
            if fewer and without(fewer) is not None:
                biases = fewer
        shown = ", ".join(biases[:3]) + (", …" if len(biases) > 3 else "")
        return f"{reason}; with {shown} at 0 they are, of degree {degree:g}"
    if not problem.several_inputs and x.is_floating_point():
        try:
            broken = layers_that_break(problem.model, x)
        except UnsupportedModel:
            return reason
        if broken:
            shown = ", ".join(broken[:3]) + (", …" if len(broken) > 3 else "")
            return f"{reason}; not homogeneous in their own input: {shown}"
    return reason


# ----------------------------------------------------------------------- global optimality


def two_layers(problem: Problem) -> str | None:
    """Why the network is not a sum of hidden units under weight decay, or None."""
    try:
        units = split_hidden_units(problem.model, keep_output_bias=False)
    except UnsupportedModel as error:
        return f"the certificate is for one hidden ReLU layer: {error}"
    bias = _output_bias(problem)
    free = sum(p.numel() for p in problem.trainable.values())
    if free not in (
        units.weights.numel(),
        units.weights.numel() + (0 if bias is None else len(bias)),
    ):
        return "some weights are frozen or shared, and the certificate is about free ones"
    return None


def _output_bias(problem: Problem) -> Tensor | None:
    links = as_chain(problem.function, problem.train.x)
    linear = [k.module for k in links if isinstance(k.module, nn.Linear)]
    return None if linear[-1].bias is None else linear[-1].bias.detach()


@finding(
    "global-optimality",
    area="training",
    title="Is the network a global minimum of its loss with weight decay, among all widths?",
    cost="curvature",
    covers=["B-49", "B-50"],
    needs=[has_loss, has_parameters, deterministic, differentiable, floating_inputs, two_layers],
)
def global_optimality(problem: Problem, record: FindingRecord) -> None:
    """The weight decay at which scaling gains nothing, the unit worth most there, and the gap."""
    problem = problem.in_precision(torch.float64)
    train = problem.train
    if len(train) < train.population:
        record.not_done(
            ["B-49", "B-50"],
            BOUND,
            f"the loss of all {train.population:,} samples is meant, and there was time for "
            f"{len(train):,} of them; give a larger budget",
        )
        return
    x = train.x.flatten(1)
    if x.numel() + train.y.numel() > ENTRIES:
        record.not_applicable(
            ["B-49", "B-50"],
            BOUND,
            f"the loss of all {len(x)} samples is meant, and they have too many inputs "
            f"({x.shape[1]}) to look for further units",
        )
        return
    network, x = in_double(split_hidden_units(problem.model, keep_output_bias=False), x)
    bias = _output_bias(problem)
    outputs = problem.outputs(train)
    with torch.no_grad():
        Z = network(x)
    shift = torch.zeros_like(Z) if bias is None else bias.to(Z).expand_as(Z)
    if outputs.numel() != Z.numel() or not torch.allclose(Z + shift, outputs.reshape(Z.shape)):
        raise UnsupportedModel("the network does more than its layers say, in a hook perhaps")

    def loss(z: Tensor) -> Tensor:
        # an output bias is not a weight of a unit: it is kept, as a part of the loss
        return problem.loss((z + shift).reshape(outputs.shape), train.y).reshape(())

    value, G = value_and_descent(loss, Z)
    charge, pull = float(network.penalties().sum()), float((G * Z).sum())
    if not (charge > 0 and pull > 1e-12 * max(value, 1e-300)):
        record.not_applicable(
            ["B-49", "B-50"],
            BOUND,
            "larger weights do not lower the loss: these weights are stationary for no weight "
            "decay above 0",
        )
        return
    strength = pull / charge
    record.quantity(
        "implied-weight-decay",
        "the only weight decay at which scaling all weights gains nothing, ⟨−∇L, f⟩ / Θ",
        strength,
    )
    certificate = certify_network(
        network, x, loss, strength, tolerance=1e-3, starts=STARTS, generator=0
    )
    larger = _with_further_unit(record, network, x, loss, certificate)
    if certificate.lower_bound is None:
        record.not_applicable(
            "B-49",
            BOUND,
            "which further unit is worth most is solved for inputs of two dimensions (a bias "
            "counts as one), or for one output and few samples; here it was only searched, and no "
            "bound follows",
        )
        if certificate.verdict != "not optimal":
            record.note(f"A unit worth its weight decay: {certificate.verdict}; no proof.")
        return
    gap = certificate.relative_gap
    rivals = "one-hidden-layer ReLU network of any width"
    if bias is not None:
        rivals += " with this output bias"
    record.checks("B-49", BOUND).at_most(
        certificate.lower_bound,
        float(larger.objective(x, loss, strength)),
        1e-9,
        where=f"with λ = {strength:.3g}, against the network and the best further unit; this "
        f"network alone is at {certificate.objective:.6g}",
    )
    record.quantity(
        "optimality-gap",
        "how far the loss with weight decay is above the best of any width, relative",
        gap,
        low=0.0,
        high=gap,
        basis="a certificate: it is at most this",
    )
    if certificate.optimal:
        record.headline(
            f"With weight decay {strength:.2g} the network is proved to be at a global minimum up "
            f"to {max(gap, 1e-12):.1g} of its objective: no {rivals} is better by more.",
        )
    elif gap < 1:
        record.headline(
            f"With weight decay {strength:.2g} no {rivals} is better by more than {gap:.0%} of "
            "this objective.",
        )


def _with_further_unit(
    record: FindingRecord,
    network: ParallelNetwork,
    x: Tensor,
    loss: OutputLoss,
    certificate: NetworkCertificate,
) -> ParallelNetwork:
    """The network with the best further unit in its best size, if one is worth its decay."""
    polar, strength = certificate.polar, certificate.strength
    record.quantity(
        "worth-of-a-unit",
        "what the best further unit gains over its cost in weight decay, to first order",
        polar.value / strength,
        low=polar.value / strength,
        high=polar.bound / strength,
        basis="solved" if polar.exact else f"the best of {polar.starts} starts, a lower bound",
    )
    size = worth_of_subnetwork(network, polar.weights, x, loss, strength)
    if polar.value <= strength * (1 + 1e-6) or size == 0:
        how = "there is none" if polar.exact else f"none was found in {polar.starts} starts"
        record.not_applicable(
            "B-50", FURTHER, f"it asks for a unit that is worth more than its weight decay: {how}"
        )
        return network
    before = float(network.objective(x, loss, strength))
    unit = math.sqrt(size) * polar.weights
    larger = network.append(unit)
    outputs = x.shape[1] + network.subnetwork.bias  # where the outgoing weights begin
    turned = torch.cat([unit[:outputs], -unit[outputs:]])
    says = record.checks("B-50", FURTHER)
    says.below(
        float(larger.objective(x, loss, strength)) / before - 1,
        0.0,
        where=f"relative change of the objective with one unit more, λ = {strength:.3g}: the "
        "network is not a global minimum, nor a local one once it has a unit to spare",
    )
    says.fails(
        "the same unit with its outgoing weights turned round, which is worth nothing",
        float(network.append(turned).objective(x, loss, strength)) / before - 1,
    )
    return larger
