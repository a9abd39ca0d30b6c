r"""From any weights of a wide network to a global minimum without ever going up.

With more subnetworks than the outputs have entries, $r>|\phi|=mc$, the outputs
$\phi_i$ of the subnetworks are linearly dependent: $\sum_i\beta_i\phi_i=0$. Then
$W_i(t)=(1+t\beta_i)^{1/p}W_i$ changes neither the output nor, at a stationary point, the
penalty, and with $\min\beta_i=-1$ it ends with a zero subnetwork, in whose place one that is
worth its penalty can grow. That shows a path, not that gradient descent takes it. Source:
Mathematical Aspects of Deep Learning, Theorem 4.10.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchtheory.core.checks import closed_fraction
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource
from torchtheory.optimization.parallel_networks.network_certificates import (
    NetworkCertificate,
    best_scales,
    certify_network,
    value_and_descent,
    worth_of_subnetwork,
)
from torchtheory.optimization.parallel_networks.subnetworks import OutputLoss, ParallelNetwork

#: Part of the largest singular value below which outputs count as linearly dependent.
DEPENDENT = 1e-10

#: Rounds of a path at most, and points of it recorded on each rescaling, slide and growth.
ROUNDS, POINTS = 50, 4

#: Points of a gradient step at which the objective is looked at, its end among them.
LOOKS = 8


def required_width(outputs: int, samples: int) -> int:
    r"""The width $mc+1$ that the theorem asks for.

    A sufficient number, far beyond practice; for a factorization of an `[n, m]` matrix
    $\min(n,m)+1$ columns do.

    >>> required_width(10, 60000)                                   # ten classes of digits
    600001
    """
    if outputs < 1 or samples < 1:
        raise InvalidInput(
            f"outputs and samples are whole numbers from 1 on (outputs = {outputs!r}, samples = "
            f"{samples!r})"
        )
    return outputs * samples + 1


@dataclass(frozen=True, slots=True)
class Slide:
    r"""The path $W_i(t)=(1+t\beta_i)^{1/p}W_i$, $0\le t\le1$.

    Attributes:
        network: at $t=0$.
        beta: `[r]`, with $\sum_i\beta_i\phi_i=0$, $\sum_i\beta_i\theta_i\le0$ and
            least entry -1.
    """

    network: ParallelNetwork
    beta: Tensor

    def at(self, t: float) -> ParallelNetwork:
        """The network at time `t` from 0 to 1, where a subnetwork is zero."""
        closed_fraction(t, "t")
        return self.network.scaled((1 + t * self.beta).clamp(min=0))


def slide_to_zero(network: ParallelNetwork, x: Tensor) -> Slide:
    r"""A way to empty one subnetwork without changing the outputs or raising the penalty.

    Args:
        network: with linearly dependent parts, as all with $r>mc$.
        x: `[m, ...]`.

    Costs a singular value decomposition of `[mc, r]`.

    >>> from torchtheory.optimization.parallel_networks.subnetworks import linear_unit
    >>> two = ParallelNetwork(linear_unit(1, 1), torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    >>> end = slide_to_zero(two, torch.ones(1, 1)).at(1.0)
    >>> sorted(end.parts(torch.ones(1, 1)).flatten().tolist()), bool(end.is_zero().any())
    ([0.0, 5.0], True)
    """
    if not len(network):
        raise InvalidInput("a network without subnetworks has none to empty")
    parts = network.parts(x).detach().flatten(1).T
    charges = network.penalties().detach()
    sizes = parts.norm(dim=0)
    if bool((sizes == 0).any()):  # it says nothing and may go by itself
        beta = torch.where(sizes == 0, -1.0, 0.0).to(parts)
        return Slide(network, beta)
    # columns of one length: the dependence is then looked for among directions
    _, sigma, right = torch.linalg.svd(parts / sizes, full_matrices=True)
    if parts.shape[0] >= parts.shape[1] and float(sigma[-1]) > DEPENDENT * float(sigma[0]):
        raise InvalidInput(
            f"the outputs of the {len(network)} subnetworks are linearly independent; from "
            f"{parts.shape[0] + 1} subnetworks on they cannot be"
        )
    beta = right[-1] / sizes
    if float(beta @ charges) > 0 or float(beta.min()) >= 0:
        beta = -beta
    return Slide(network, beta / -beta.min())


@dataclass(frozen=True, slots=True)
class DescentPath:
    r"""A path on which the objective does not increase, with what is known between its points.

    On a rescaling, a slide and a growth every subnetwork moves along its own ray, so that its
    outputs and penalty are affine in the time $t\in[0,1]$ between two points. With a convex loss
    the objective is then convex in $t$, and rises above what it was before by at most its slope at
    the end, if that is positive: this is proven. A gradient step is a straight line in the weights,
    where nothing is known of a network in general: there the objective was seen not to rise at
    `LOOKS` points and not to have a positive slope at the end.

    Attributes:
        networks: along it, all of one width.
        objectives: there.
        stages: how each was reached: start, descend, rescale, slide or grow.
        rises: how far the objective can rise on the way to each; proven unless the stage is
            descend, where it is 0 as nothing was seen. Rounding alone makes it positive.
        certificate: of the last.
    """

    networks: list[ParallelNetwork]
    objectives: list[float]
    stages: list[str]
    rises: list[float]
    certificate: NetworkCertificate

    def between(self, point: int, t: float) -> ParallelNetwork:
        """The network at time `t` from 0 to 1 on the way from the point before to `point`."""
        if not 1 <= point < len(self.networks):
            raise InvalidInput(f"point must be from 1 to {len(self.networks) - 1}, not {point!r}")
        closed_fraction(t, "t")
        before, here = self.networks[point - 1], self.networks[point]
        if self.stages[point] == "descend":
            return _on_line(before, here, t)
        return _on_rays(before, here, t)


def _on_line(before: ParallelNetwork, here: ParallelNetwork, t: float) -> ParallelNetwork:
    return replace(before, weights=torch.lerp(before.weights, here.weights, t))


def _on_rays(before: ParallelNetwork, here: ParallelNetwork, t: float) -> ParallelNetwork:
    """Between weights that are multiples of each other, subnetwork by subnetwork: affine outputs.

    A size to the power of the degree is what the outputs are proportional to.
    """
    degree = before.subnetwork.degree
    first, last = (n.weights.abs().amax(1) for n in (before, here))
    longer = torch.where((first >= last)[:, None], before.weights, here.weights)
    most = torch.maximum(first, last)
    safe = torch.where(most > 0, most, 1.0)
    mixed = (1 - t) * (first / safe) ** degree + t * (last / safe) ** degree
    return replace(before, weights=mixed[:, None] ** (1 / degree) * longer)


def nonincreasing_path(
    network: ParallelNetwork,
    x: Tensor,
    loss: OutputLoss,
    strength: float,
    *,
    steps: int = 100,
    tolerance: float = 1e-6,
    generator: RandomSource = None,
) -> DescentPath:
    r"""Walk from given weights to a global minimum of the same width, never going up.

    Each round descends by gradient steps with backtracking, rescales the parts (a convex problem,
    so the way there does not rise), slides one subnetwork to zero where none is, and grows the
    solution of the polar problem in its place; until the certificate holds, at most `ROUNDS` times.
    `POINTS` are recorded on each rescaling, slide and growth. See `DescentPath` for what is proven
    of the way between two points, and what was looked at.

    Args:
        network: with $r>mc$ subnetworks, or fewer if their outputs stay dependent.
        x: `[m, ...]`.
        loss: of all outputs, convex, differentiable, at least 0.
        strength: $\lambda>0$.
        steps: gradient steps a round.
        tolerance: of the certificate.
        generator: of the starts of a search.
    """
    first = float(network.objective(x, loss, strength))
    path = DescentPath([network], [first], ["start"], [0.0], None)  # type: ignore[arg-type]

    def record(there: ParallelNetwork, stage: str) -> None:
        known = stage != "descend"
        rise = _rise_on_rays(path.networks[-1], there, x, loss, strength) if known else 0.0
        path.rises.append(rise)
        path.networks.append(there)
        path.objectives.append(float(there.objective(x, loss, strength).detach()))
        path.stages.append(stage)

    def rescale(factors: Tensor, stage: str) -> ParallelNetwork:
        here = path.networks[-1]
        for k in range(1, POINTS + 1):
            record(here.scaled(1 + k / POINTS * (factors - 1)), stage)
        return path.networks[-1]

    def certify() -> NetworkCertificate:
        return certify_network(
            path.networks[-1], x, loss, strength, tolerance=tolerance, generator=generator
        )

    for _ in range(ROUNDS):
        for there in _descended(path.networks[-1], x, loss, strength, steps):
            record(there, "descend")
        rescale(best_scales(path.networks[-1], x, loss, strength), "rescale")
        found = certify()
        if found.optimal:
            break
        network = path.networks[-1]
        if not bool(network.is_zero().any()):
            network = rescale(1 + slide_to_zero(network, x).beta.clamp(min=-1), "slide")
            found = certify()
        size = worth_of_subnetwork(network, found.polar.weights, x, loss, strength)
        if size == 0:
            break
        place = int(network.is_zero().int().argmax())
        for k in range(1, POINTS + 1):
            weights = network.weights.clone()
            root = (size * k / POINTS) ** (1 / network.subnetwork.degree)
            weights[place] = root * found.polar.weights.to(weights)
            record(replace(network, weights=weights), "grow")
    return replace(path, certificate=certify())


def _rise_on_rays(
    before: ParallelNetwork, here: ParallelNetwork, x: Tensor, loss: OutputLoss, strength: float
) -> float:
    """The slope of a convex objective at the end of a way of length 1, if it is positive."""
    Z = here(x).detach()
    _, descent = value_and_descent(loss, Z)
    outputs = float((descent * (Z - before(x).detach())).sum())
    penalties = float((here.penalties() - before.penalties()).sum().detach())
    return max(0.0, strength * penalties - outputs)


def _descended(
    network: ParallelNetwork, x: Tensor, loss: OutputLoss, strength: float, steps: int
) -> list[ParallelNetwork]:
    """Gradient steps that each lower the objective by half of what their slope promises.

    On the way the objective falls from each of `LOOKS` points to the next, and at the end the
    slope along the step is not positive.
    """
    found: list[ParallelNetwork] = []
    eta = 1.0
    value, slope = _value_and_slope(network, x, loss, strength)
    for _ in range(steps):
        square = float(slope.square().sum())
        while eta * square > 1e-14 * value:
            there = replace(network, weights=network.weights - eta * slope)
            reached, after = _value_and_slope(there, x, loss, strength)
            if (
                reached <= value - eta * square / 2
                and float((after * slope).sum()) >= 0
                and _falls(network, there, value, reached, x, loss, strength)
            ):
                break
            eta /= 2
        else:
            break
        found.append(there)
        network, value, slope, eta = there, reached, after, 1.5 * eta
    return found


def _value_and_slope(
    network: ParallelNetwork, x: Tensor, loss: OutputLoss, strength: float
) -> tuple[float, Tensor]:
    weights = network.weights.detach().requires_grad_()
    f = replace(network, weights=weights).objective(x, loss, strength)
    (slope,) = torch.autograd.grad(f, weights)
    return float(f.detach()), slope


def _falls(
    network: ParallelNetwork,
    there: ParallelNetwork,
    value: float,
    reached: float,
    x: Tensor,
    loss: OutputLoss,
    strength: float,
) -> bool:
    """Whether the objective does not rise from any point that is looked at to the next."""
    with torch.no_grad():
        for k in range(1, LOOKS):
            here = float(_on_line(network, there, k / LOOKS).objective(x, loss, strength))
            if here > value:
                return False
            value = here
    return reached <= value
