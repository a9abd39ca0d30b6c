r"""Does the theory of parallel networks cover a network and its regularizer? Degrees and bounds.

A function is positively homogeneous of degree $p$ if $f(aw)=a^pf(w)$ for
$a\ge0$. A pair $(\phi,\theta)$ of a subnetwork and its penalty is *nondegenerate* if

1. both are positively homogeneous of one degree $p>0$,
2. $\theta\ge0$,
3. $\{\phi(X,w):\theta(w)\le1\}$ is compact.

Then the penalty induces a convex function of the outputs, local minima with a zero subnetwork are
global, and wide networks have descending paths. The usual weight decay has degree 2: with more
than two layers it does not match. Whether a *network* is homogeneous is answered by
`measure_homogeneity`; here is what goes with it. Source: Mathematical Aspects of Deep Learning,
section 4.4.2, Definition 4.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, NonFinite, UnknownName, UnsupportedModel
from torchtheory.core.mapping import Mapped
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.models.model import PureFunction
from torchtheory.nets.homogeneity import (
    Homogeneity,
    check_inputs,
    measure_homogeneity,
)
from torchtheory.optimization.parallel_networks.subnetworks import Subnetwork
from torchtheory.tracing.chain import as_chain

#: 0 as well: at 0 a homogeneous function is 0.
FACTORS = (0.0, 0.5, 2.0, 10.0)
#: Growth of the logarithm, in the last quarter of a search, from which it has not settled.
SETTLED = 0.1


def degree_of(function: Callable[[Tensor], Tensor], points: Tensor) -> Homogeneity:
    r"""The $p$ with $f(aw)=a^pf(w)$ for $a=0,\tfrac12,2,10$, or None.

    Args:
        function: from `[p]` to a tensor.
        points: `[n, p]`, where it is tried; up to 1e-9 of $a^p\|f(w)\|$.

    >>> degree_of(lambda w: w.square().sum() / 2, torch.eye(3)).degree
    2.0
    >>> degree_of(lambda w: w.square().sum() + w.abs().sum(), torch.eye(3)).degree is None
    True
    """
    if points.ndim != 2 or len(points) == 0:
        raise InvalidInput(f"points [n, p] are needed, not {list(points.shape)}")

    def values(a: float) -> Tensor:
        with torch.no_grad():
            return torch.stack([function(a * w).reshape(-1) for w in points]).double()

    return power_of_scale(values, factors=FACTORS, tolerance=1e-9)


def power_of_scale(
    values: Callable[[float], Tensor],
    *,
    factors: Sequence[float] = (0.5, 2.0, 3.0),
    tolerance: float = 1e-6,
) -> Homogeneity:
    r"""The $p$ with $v(a)=a^pv(1)$ for all factors $a$, or None.

    Args:
        values: $v$, from a scale to a tensor of one shape.
        factors: that are tried; $p$ itself is read off $a=2$.
        tolerance: the largest $\|v(a)-a^pv(1)\|/(\max(a^p,1)\|v(1)\|)$ that counts as none.

    >>> power_of_scale(lambda a: torch.tensor([a**3])).degree
    3.0
    """
    here, double = values(1.0).double(), values(2.0).double()
    norm = float(here.norm())
    if not math.isfinite(norm):
        raise NonFinite(f"the function is NaN or infinite at these points (norm = {norm!r})")
    if norm == 0:
        raise InvalidInput("the function is 0 at all of these points: give others")
    ratio = float((double * here).sum()) / norm**2
    if not ratio > 0:
        return Homogeneity(None, math.inf, "not homogeneous: scaling turns the values")
    degree = math.log2(ratio)
    if abs(degree - round(degree)) < min(max(tolerance, 1e-6), 1e-3):
        degree = float(round(degree))
    worst = 0.0
    for a in factors:
        power = a**degree if a > 0 or degree > 0 else math.inf
        away = float((values(a).double() - power * here).norm()) if power < math.inf else math.inf
        worst = max(worst, away / (max(power, 1.0) * norm)) if away == away else math.inf
    if worst > tolerance:
        return Homogeneity(None, worst, "not homogeneous: the values are no power of the scale")
    return Homogeneity(degree, worst, f"homogeneous of degree {degree:g}")


def degrees_by_group(
    function: PureFunction,
    x: Tensor,
    groups: Mapping[str, Sequence[str]],
    *,
    tolerance: float = 1e-6,
) -> dict[str, Homogeneity]:
    r"""The degree of a network in each of some groups of its parameters, the others kept.

    Measured at the parameters and with those of all groups moved a little, so that biases that
    happen to be 0 do not pass. A degree of 0 means that the group's scale does not matter.

    Args:
        function: the network; `PureFunction(model).in_precision(torch.float64)` is best.
        x: `[n, ...]`.
        groups: names of parameters, by the name of the group.
        tolerance: see `power_of_scale`.

    Cost: ten forward passes a group.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    >>> groups = {"first": ["0.weight", "0.bias"], "last": ["2.weight", "2.bias"]}
    >>> found = degrees_by_group(PureFunction(net).in_precision(torch.float64), x.double(), groups)
    >>> found["first"].degree, found["last"].degree
    (None, 1.0)
    """
    for name in (n for names in groups.values() for n in names):
        if name not in function.parameters:
            raise UnknownName("parameter", name, function.parameters)
    here = {k: function.parameters[k] for names in groups.values() for k in names}
    count = sum(p.numel() for p in here.values())
    size = math.sqrt(sum(float(p.double().square().sum()) for p in here.values()) / max(1, count))
    source = as_generator(0)
    near = {
        k: p + 0.3 * size * gaussian(*p.shape, generator=source, dtype=p.dtype, device=p.device)
        for k, p in here.items()
    }

    def scaled(names: Sequence[str], a: float) -> Tensor:
        with torch.no_grad():
            return torch.stack(
                [
                    function(
                        {**function.parameters, **point, **{k: a * point[k] for k in names}}, x
                    )
                    for point in (here, near)
                ]
            )

    return {
        group: power_of_scale(partial(scaled, names), tolerance=tolerance)
        for group, names in groups.items()
    }


@dataclass(frozen=True, slots=True)
class PairCheck:
    r"""What the three conditions came to.

    Attributes:
        nondegenerate: whether none was found violated.
        network: homogeneity of $\phi$.
        penalty: homogeneity of $\theta$.
        least_penalty: the smallest $\theta$ met.
        largest_output: the largest $\|\phi(X,w)\|$ found with $\theta(w)\le1$;
            infinite where the search shows no bound.
        reason: one sentence.
    """

    nondegenerate: bool
    network: Homogeneity
    penalty: Homogeneity
    least_penalty: float
    largest_output: float
    reason: str


def check_pair(
    subnetwork: Subnetwork,
    x: Tensor,
    *,
    starts: int = 20,
    steps: int = 200,
    generator: RandomSource = None,
) -> PairCheck:
    r"""Check Definition 4.7 for a subnetwork on given inputs.

    The third condition is searched: $\|\phi\|/\theta$, which scaling does not change if the
    degrees agree, is driven up from random weights. A finding of unboundedness is a weight vector
    with a penalty of next to nothing; a pass is evidence, not a proof.

    Args:
        subnetwork: $\phi$ and $\theta$.
        x: `[m, ...]`.
        starts, steps: of the search.
        generator: of the starts.

    >>> from torchtheory.optimization.parallel_networks.subnetworks import deep_subnetwork
    >>> from torchtheory.optimization.parallel_networks.subnetworks import relu_unit
    >>> x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    >>> check_pair(relu_unit(2, 1), x).nondegenerate
    True
    >>> check_pair(deep_subnetwork([2, 3, 3, 1], penalty="decay"), x).reason
    'the degrees differ: 3 for the network, 2 for the penalty'
    """
    check_inputs(x)
    if starts < 2 or steps < 20:
        raise InvalidInput(
            f"a search needs at least 2 starts and 20 steps (starts = {starts!r}, steps = {steps!r}"
            ")"
        )
    source = as_generator(generator)
    w = gaussian(starts, subnetwork.size, generator=source, dtype=torch.float64, device=x.device)
    x = x.double()
    network = degree_of(lambda v: subnetwork.outputs(x, v), w[:5])
    penalty = degree_of(subnetwork.penalty, w[:5])
    with torch.no_grad():
        charges = torch.stack([subnetwork.penalty(v) for v in w])
    least = float(charges.min())

    def failed(reason: str, largest: float = math.nan) -> PairCheck:
        return PairCheck(False, network, penalty, least, largest, reason)

    if network.degree is None:
        return failed(f"the network is {network.reason}")
    if penalty.degree is None:
        return failed(f"the penalty is {penalty.reason}")
    if abs(network.degree - penalty.degree) > 1e-9:
        return failed(
            f"the degrees differ: {network.degree:g} for the network, {penalty.degree:g} for the "
            "penalty"
        )
    if network.degree <= 0:
        return failed("of degree 0: scaling the weights changes nothing")
    if least < 0:
        return failed("the penalty takes negative values")
    largest, bounded = _largest_output(subnetwork, x, w, steps)
    if not bounded:
        return failed("outputs of penalty 1 are unbounded: some weights cost nothing", math.inf)
    return PairCheck(
        True, network, penalty, least, largest, f"nondegenerate of degree {network.degree:g}"
    )


def _largest_output(
    subnetwork: Subnetwork, x: Tensor, start: Tensor, steps: int
) -> tuple[float, bool]:
    """The largest quotient |phi| / theta found, and whether it stayed bounded."""
    w = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([w], lr=0.05)
    outputs = Mapped(lambda v: subnetwork.outputs(x, v))
    penalties = Mapped(subnetwork.penalty)

    def quotients() -> Tensor:
        parts, charge = outputs(w), penalties(w)
        sizes: Tensor = parts.flatten(1).norm(dim=1)
        made: Tensor = sizes.log() - charge.log()
        return made

    reached: list[float] = []
    for step in range(steps):
        # where weights that cost nothing exist, the penalty falls as far as the step allows, so
        # the quotient keeps growing while the steps shrink a hundredfold; elsewhere it settles
        optimizer.param_groups[0]["lr"] = 0.05 * 0.01 ** (step / steps)
        optimizer.zero_grad()
        values = quotients()
        finite = torch.isfinite(values)
        if bool((values == math.inf).any()) or not bool(finite.any()):
            return math.inf, False
        reached.append(max([*reached[-1:], float(values[finite].detach().max())]))
        torch.where(finite, values, 0.0).sum().neg().backward()  # type: ignore[no-untyped-call]
        assert w.grad is not None
        w.grad = torch.nan_to_num(w.grad)
        optimizer.step()
        with torch.no_grad():
            w.div_(w.norm(dim=1, keepdim=True))
    settled = reached[-1] - reached[(3 * len(reached)) // 4] < SETTLED
    return (math.exp(reached[-1]), True) if settled else (math.inf, False)


@dataclass(frozen=True, slots=True)
class DegreeMatch:
    """Whether a network's degree is that of its regularizer.

    Attributes:
        matches: whether both are homogeneous of one degree.
        network: homogeneity of the network.
        penalty: homogeneity of the regularizer.
        reason: one sentence: what matches, or what to change.
        breaking: names of layers that are not homogeneous in their input.
    """

    matches: bool
    network: Homogeneity
    penalty: Homogeneity
    reason: str
    breaking: tuple[str, ...]


def match_degrees(
    model: nn.Module, x: Tensor, penalty: Callable[[Tensor], Tensor] | None = None
) -> DegreeMatch:
    r"""Compare the degree of a network with that of its regularizer.

    Args:
        model: run in evaluation mode, and left as it was.
        x: `[n, ...]`, inputs to measure on.
        penalty: of all parameters as one vector; weight decay $\tfrac12\|w\|^2$ unless given.

    >>> x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    >>> def net(layers):
    ...     n = [2] + [16] * (layers - 1)  # as few as 2 units may all be silent
    ...     hidden = [m for k in range(layers - 1) for m in (nn.Linear(n[k], 16, False), nn.ReLU())]
    ...     return nn.Sequential(*hidden, nn.Linear(16, 1, False))
    >>> match_degrees(net(2), x).matches
    True
    >>> match_degrees(net(3), x).reason
    'the network has degree 3 and the penalty 2: use a product of norms or 3rd powers of them'
    """
    network = measure_homogeneity(model, x)
    function = PureFunction(model)
    like = function.reference()
    points = gaussian(
        1, function.count, generator=as_generator(0), dtype=torch.float64, device=like.device
    )
    charge = degree_of(penalty or (lambda w: w.square().sum() / 2), points)
    breaking: tuple[str, ...] = ()
    if network.degree is None:
        # a network that is no chain adds parts of different degrees, and no layer is to blame
        with suppress(UnsupportedModel):
            breaking = tuple(layers_that_break(model, x))
        reason = f"the network is {network.reason}"
        if breaking:
            reason += f"; layers that are not homogeneous in their input: {', '.join(breaking)}"
    elif charge.degree is None:
        reason = f"the penalty is {charge.reason}"
    elif network.degree <= 0:
        reason = f"the network is {network.reason}"
    elif not math.isclose(network.degree, charge.degree, rel_tol=1e-6):
        ending = {1: "st", 2: "nd", 3: "rd"}.get(int(network.degree), "th")
        reason = (
            f"the network has degree {network.degree:g} and the penalty {charge.degree:g}: use a "
            f"product of norms or {network.degree:g}{ending} powers of them"
        )
    else:
        return DegreeMatch(True, network, charge, f"both have degree {network.degree:g}", ())
    return DegreeMatch(False, network, charge, reason, breaking)


def layers_that_break(model: nn.Module, x: Tensor) -> list[str]:
    r"""Layers $h$ of a chain with $h(az)\ne a^kh(z)$, named with their kind.

    The first layer with weights sees the input itself, which is not scaled, and may have a bias.
    Each of the others is tried on the activations it gets, in evaluation mode; a relative departure
    of 1e-6 counts as none.

    Args:
        model: a chain of layers; one that is not (a skip connection) is refused, see `as_chain`.
        x: `[n, ...]`.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    >>> layers_that_break(net, x)
    ['1 (Tanh)', '2 (Linear)']
    """
    check_inputs(x)
    broken = []
    z, scaled = x.double() if x.is_floating_point() else x, False
    for link in as_chain(model):
        function = PureFunction(link.module).in_precision(torch.float64)

        def value(a: float, function: PureFunction = function, z: Tensor = z) -> Tensor:
            with torch.no_grad():
                return function(function.parameters, a * z if a != 1 else z)

        here = value(1.0)
        if scaled:
            ratios = [value(a) for a in (2.0, 4.0)]
            norm = float(here.norm())
            power = float((ratios[0] * here).sum()) / norm**2 if norm > 0 else 1.0
            worst = max(
                float((ratios[0] - power * here).norm()),
                float((ratios[1] - power**2 * here).norm()),
            )
            if worst > 1e-6 * max(norm, 1e-300):
                broken.append(f"{link.name} ({type(link.module).__name__})")
        scaled = scaled or bool(function.parameters)
        z = here
    return broken
