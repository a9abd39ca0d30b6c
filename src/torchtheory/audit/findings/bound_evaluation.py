r"""Generalization bounds evaluated on a network: each a number that its error does not exceed.

Every function takes a `Setting` and returns a `Value`, or raises the reason why the
theorem does not speak about this network. Whatever was chosen after the data were seen (margins,
norms, grids, spreads) is paid for, so that each bound fails with probability at most `delta`.
The architecture is taken to have been fixed before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from torchtheory.audit.findings.network_growth import NetworkSize, loss_dimension, measure_size
from torchtheory.core.errors import EmptyData, InvalidInput, UnsupportedModel
from torchtheory.generalization.algorithmic_robustness import Grid, robustness_bound
from torchtheory.generalization.complexity.covering import vc_rademacher_bound
from torchtheory.generalization.complexity.margin_bounds import ramp_loss
from torchtheory.generalization.complexity.norm_bounds import frobenius_bound
from torchtheory.generalization.complexity.norm_products import compare_norms
from torchtheory.generalization.complexity.rademacher import (
    linear_bounds,
    sequence_deviations,
    uniform_deviation,
)
from torchtheory.generalization.learning.validation_bound import ValidationBounds, validation_bounds
from torchtheory.generalization.pac_bayes.bounds import KL, deviation_bound
from torchtheory.generalization.pac_bayes.gaussian_prior import GaussianPrior
from torchtheory.generalization.pac_bayes.gibbs_risk import gibbs_risk
from torchtheory.generalization.pac_bayes.stochastic_network import StochasticNetwork, spread_like
from torchtheory.generalization.vc.bounds import growth_radius
from torchtheory.generalization.vc.parameter_counting import count_parameters_bounds
from torchtheory.kernels.paths.layers import (
    ADAPTIVE_POOLS,
    AVERAGE_POOLS,
    CONVOLUTIONS,
    NORMALIZATIONS,
    PASSING,
    REARRANGING,
    has_bias,
    path_links,
)
from torchtheory.kernels.paths.path_kernel import path_norms
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.report.wording import counted
from torchtheory.robustness.lipschitz.bound import bounds_about

#: Margins, in units of the network's norm, that share delta equally.
MARGINS = tuple(2.0**k for k in range(-64, 65))

#: Boxes that inputs may lie in, fixed beforehand; they share delta equally.
BOXES = ((0.0, 1.0), *((-(2.0**k), 2.0**k) for k in range(-10, 21)))

#: Spreads of the Gaussian posterior that are tried, as fractions of each tensor's size.
SPREADS = (0.5, 0.25, 0.125, 0.0625)

SEVERAL = "the model takes several inputs, and this is about one tensor"


@dataclass(frozen=True, slots=True)
class Value:
    """What a theorem says about a network.

    Attributes:
        measure: the number of the network that the theorem is about.
        bound: on the error; 1 or more says nothing.
        because: the term that makes it large, in words.
        network: the stochastic network the bound is about; None for the network itself.
    """

    measure: float
    bound: float
    because: str
    network: StochasticNetwork | None = None


@dataclass
class Setting:
    """A classifier with what the bounds ask of it.

    Attributes:
        problem: the network and its data.
        delta: failure probability of each bound.
        samples: those of the training data that a stochastic bound may evaluate.
        center: of a Gaussian prior, fixed before the data; None where there is none.
        seed: of the noise.
    """

    problem: Problem
    delta: float
    samples: Samples
    center: dict[str, Tensor] | None = None
    seed: int = 0

    @cached_property
    def margins(self) -> Tensor:
        """Margins of the training data."""
        return self.problem.margins(self.problem.train).double().cpu()

    @property
    def n(self) -> int:
        return len(self.problem.train)

    @property
    def training_error(self) -> float:
        return float((self.margins <= 0).double().mean())

    @property
    def comparisons(self) -> int:
        """Functions whose complexity a margin costs: one logit, or every pair of classes."""
        classes = self.problem.classes or 2
        return 1 if self.problem.task == "binary" else classes**2

    @cached_property
    def size(self) -> NetworkSize:
        return measure_size(self.problem)

    @cached_property
    def dimension(self) -> int:
        """Bound of the VC dimension of the network's 0-1 losses."""
        return loss_dimension(self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        _refuse_other_inputs(self.problem)
        return tuple(self.problem.train.x.shape[1:])

    def row_norms(self, constant: bool) -> Tensor:
        """Norms `[n]` of the training inputs, with a coordinate 1 for the biases if asked."""
        parts = [x.flatten(1).double().square().sum(1) for x, _ in self.problem.train.chunks(512)]
        return (torch.cat(parts).cpu() + constant).sqrt()

    def longest_column(self, constant: bool) -> float:
        """The largest norm of a coordinate over the training inputs, the constant one included."""
        total = torch.zeros(self.axes, dtype=torch.float64)
        for x, _ in self.problem.train.chunks(512):
            total += x.flatten(1).double().square().sum(0).cpu()
        return math.sqrt(max(float(total.max()), self.n if constant else 0.0))

    @property
    def axes(self) -> int:
        """Coordinates of an input."""
        return math.prod(self.shape)


# --------------------------------------------------------------------------------- the test set


def _validated(setting: Setting) -> tuple[float, ValidationBounds, int]:
    problem = setting.problem
    if problem.test is None:
        raise EmptyData("no test data was given")
    wrong, n = int(problem.errors(problem.test).sum()), len(problem.test)
    return wrong / n, validation_bounds(wrong, n, 1, setting.delta), n


def _only(n: int) -> str:
    return f"there {'is' if n == 1 else 'are'} only {counted(n, 'test sample')}"


def exact_test_set(setting: Setting) -> Value:
    """Clopper and Pearson's bound from the test set."""
    rate, found, n = _validated(setting)
    return Value(rate, found.exact, _only(n))


def hoeffding_test_set(setting: Setting) -> Value:
    """Hoeffding's bound from the test set."""
    rate, found, n = _validated(setting)
    return Value(rate, found.hoeffding, _only(n))


# ------------------------------------------------------------------------- counting and dimension


def finite_precision(setting: Setting) -> Value:
    """A union over everything that parameters and buffers of this many bits can be."""
    function = setting.problem.function
    buffers = [b for b in setting.problem.model.buffers() if b.is_floating_point()]
    count = function.count + sum(b.numel() for b in buffers)
    if count < 2:
        raise UnsupportedModel("the network has fewer than two parameters to count")
    bits = 8 * max(t.element_size() for t in [*function.parameters.values(), *buffers])
    found = count_parameters_bounds(count, setting.n, delta=setting.delta, bits=bits)
    return Value(
        count,
        setting.training_error + found.bits,
        f"{count:,} parameters of {bits} bits can be {_power(bits * count)} different networks, "
        f"{bits * count * math.log(2) / setting.n:.3g} nats for each of {setting.n} samples",
    )


def growth_function(setting: Setting) -> Value:
    """Vapnik and Chervonenkis, with the sign patterns of polynomials in the parameters counted."""
    bits = min(setting.size.log2_growth(2 * setting.n), 2.0 * setting.n)
    radius = growth_radius(bits * math.log(2), setting.n, setting.delta)
    what = "all" if bits >= 2 * setting.n else f"{_power(bits)} of the {_power(2 * setting.n)}"
    return Value(
        bits,
        setting.training_error + radius,
        f"such networks may label 2n = {2 * setting.n} points in {what} possible ways",
    )


def vc_dimension(setting: Setting) -> Value:
    """The same through the VC dimension: the growth function is at most (2en/h)^h."""
    h, n = setting.dimension, setting.n
    log_growth = 2 * n * math.log(2)
    if h <= 2 * n:
        log_growth = min(log_growth, h * (1 + math.log(2 * n / h)))
    return Value(
        h,
        setting.training_error + growth_radius(log_growth, n, setting.delta),
        f"the VC dimension may be {h:,}, and n is only {n}",
    )


def covering_numbers(setting: Setting) -> Value:
    """Haussler's covering numbers in Dudley's integral bound the Rademacher complexity."""
    complexity = vc_rademacher_bound(setting.dimension, setting.n)
    return Value(
        complexity,
        setting.training_error + uniform_deviation(complexity, setting.n, setting.delta),
        f"the integral of the covering numbers is {complexity:.3g}: the VC dimension may be "
        f"{setting.dimension:,}, and √n is only {math.sqrt(setting.n):.0f}",
    )


# ----------------------------------------------------------------------------- norms and margins


def _margin_bound(setting: Setting, norm: float, complexity: float, name: str) -> Value:
    """The least bound over margins of the network divided by its norm."""
    if not 0 < norm < math.inf:
        raise InvalidInput(f"the {name} is {norm:g}, and margins are measured in units of it")
    unit = setting.margins / norm
    share = [1 / len(MARGINS)] * len(MARGINS)
    complexities = [setting.comparisons * complexity / gamma for gamma in MARGINS]
    deviations = sequence_deviations(complexities, setting.n, setting.delta, weights=share)
    bound = _least(
        [
            (float(ramp_loss(unit, gamma).mean()), deviation)
            for gamma, deviation in zip(MARGINS, deviations, strict=True)
        ]
    )
    classes = f" times {setting.comparisons} for the classes" if setting.comparisons > 1 else ""
    return Value(
        norm,
        bound,
        f"the {name} is {norm:.3g}, the median margin {float(setting.margins.median()):.3g} and "
        f"√n only {math.sqrt(setting.n):.0f}: divided by the norm the margins are of order "
        f"{float(unit.abs().median()):.1e}, and the complexity of networks of norm 1 is "
        f"{complexity:.2g}{classes}",
    )


def _least(terms: list[tuple[float, float]]) -> float:
    """The least sum of loss and complexity over the margins that may be asked for.

    Where it says nothing, that of a margin which half the samples reach: the least one is then
    trivial, with a margin so large that every sample misses it.
    """
    best = min(loss + rest for loss, rest in terms)
    reached = [loss + rest for loss, rest in terms if loss <= 0.5]
    return best if best < 1 or not reached else min(reached)


def _homogeneous(problem: Problem, also: tuple[type[nn.Module], ...] = ()) -> bool:
    """Whether the network has biases; refuses layers that peeling cannot take off."""
    links = path_links(problem.model)
    plain = (nn.Linear, *CONVOLUTIONS, *NORMALIZATIONS, *REARRANGING, *PASSING, *also)
    for link in links:
        module = link.module
        sloped = isinstance(module, nn.ReLU) or (
            isinstance(module, nn.LeakyReLU) and abs(module.negative_slope) <= 1
        )
        if not (sloped or isinstance(module, plain)):
            raise UnsupportedModel(
                f"layer {link.name!r} ({type(module).__name__}) is neither linear nor a "
                "1-Lipschitz positively homogeneous function of each unit"
            )
    return any(has_bias(link.module) for link in links)


def _frobenius(setting: Setting, root: bool) -> Value:
    biases = _homogeneous(setting.problem)
    found = compare_norms(setting.problem.model, setting.shape)
    linear, _ = linear_bounds(setting.row_norms(biases)[:, None])
    unit = frobenius_bound([1.0] * found.depth, linear, depth_factor="root" if root else "peeling")
    return _margin_bound(setting, found.frobenius, unit, "product of Frobenius norms")


def frobenius_peeling(setting: Setting) -> Value:
    """Margins over the product of Frobenius norms, a factor 2 for each layer."""
    return _frobenius(setting, root=False)


def frobenius_root(setting: Setting) -> Value:
    """The same with a factor of order √L for L layers."""
    return _frobenius(setting, root=True)


def path_norm(setting: Setting) -> Value:
    r"""Margins over the sum $\Phi$ of absolute path weights.

    Scaling units so that the absolute weights into each sum to 1 leaves $\Phi$ at the output.
    A unit then lies in the absolutely convex hull of those before it, which has their complexity,
    twice for an activation: $\hat R\le\Phi\,2^a\sqrt{2\ln(2d)}\max_j\|x_{\cdot j}\|_2/n$ by
    Massart's lemma for the $2d$ inputs and their negatives.
    """
    problem = setting.problem
    biases = _homogeneous(problem, AVERAGE_POOLS + ADAPTIVE_POOLS)
    norm = float(path_norms(problem.model, setting.shape, order=1).max())
    bends = sum(
        isinstance(link.module, nn.ReLU | nn.LeakyReLU) for link in path_links(problem.model)
    )
    axes, longest = setting.axes + biases, setting.longest_column(biases)
    unit = 2.0**bends * longest * math.sqrt(2 * math.log(2 * axes)) / setting.n
    return _margin_bound(setting, norm, unit, "path norm")


# ------------------------------------------------------------------------------------ robustness


def lipschitz_cells(setting: Setting) -> Value:
    """Xu and Mannor: within a cube of the input space the Lipschitz constant limits the loss.

    One event covers all losses in [0, 1], so that the margin may be chosen freely. The constant is
    that of the differences of two outputs on the ball around the box.
    """
    problem = setting.problem
    low, high = _box(problem)
    axes, classes = setting.axes, problem.classes or 2
    bounds = bounds_about(problem.model, torch.full((1, *setting.shape), (low + high) / 2))
    radius = Grid(low, high, 1, axes, classes).diameter / 2
    constant = float(bounds.lipschitz(radius)[0])
    if not math.isfinite(constant):
        raise UnsupportedModel(f"no Lipschitz constant is known for inputs in [{low:g}, {high:g}]")
    reach = constant
    if problem.task != "binary":
        reach = float(bounds.class_differences(radius).max())
    delta = setting.delta - bounds.failure
    ramps = [(gamma, float(ramp_loss(setting.margins, gamma).mean())) for gamma in MARGINS]
    best, level = math.inf, 0
    while True:
        grid = Grid(low, high, 2**level, axes, classes)
        level += 1
        share = delta / len(BOXES) / (level * (level + 1))
        rest = robustness_bound(0.0, grid.count, setting.n, share)
        if rest >= best:
            break
        change = reach * grid.diameter
        found = [(loss, rest + change / gamma) for gamma, loss in ramps]
        best = min(best, _least(found))
    whole = Grid(low, high, 1, axes, classes)
    return Value(
        constant,
        best,
        f"over a box [{low:g}, {high:g}] in {axes} dimensions, {whole.diameter:.3g} across, a "
        f"Lipschitz constant of {constant:.3g} lets margins change by {reach * whole.diameter:.2g} "
        f"(their median is {float(setting.margins.median()):.3g}), and halving every axis makes "
        f"{Grid(low, high, 2, axes, classes).count:.2g} cells for {setting.n} samples",
    )


def _box(problem: Problem) -> tuple[float, float]:
    x = problem.train.x
    least, most = float(x.min()), float(x.max())
    for low, high in BOXES:
        if low <= least and most <= high:
            break
    else:
        raise InvalidInput(f"the inputs run from {least:g} to {most:g}, beyond every box tried")
    other = problem.test
    if other is not None and not bool(((other.x >= low) & (other.x <= high)).all()):
        raise InvalidInput(
            f"training inputs lie in the box [{low:g}, {high:g}], but not all test inputs do: "
            "the box that holds every input is not known"
        )
    return low, high


# ------------------------------------------------------------------------------------- flatness


def flat_gaussian(setting: Setting) -> Value:
    """PAC-Bayes for Gaussian noise around the weights: how flat the network is decides."""
    problem = setting.problem
    if problem.several_inputs:
        raise UnsupportedModel(SEVERAL)
    center = setting.center or {k: torch.zeros_like(p) for k, p in problem.parameters.items()}
    prior, n = GaussianPrior(center), len(setting.samples)
    found: list[tuple[float, float, float, float, StochasticNetwork]] = []
    for fraction in SPREADS:
        spread = spread_like(problem.model, fraction)
        network = StochasticNetwork(problem.model, spread=spread, generator=setting.seed)
        choice = prior.settle(network)
        cost = choice.kl + choice.cost
        risk = gibbs_risk(
            network, setting.samples, passes=1, delta=0.2 * setting.delta / len(SPREADS)
        )
        bound = deviation_bound(KL, risk.upper, cost, n, 0.8 * setting.delta)
        found.append((bound, cost, fraction, risk.estimate, network))
    bound, cost, fraction, error, network = min(found, key=lambda row: row[:2])
    return Value(
        cost,
        bound,
        f"noise of {fraction:.0%} of each tensor's size, which leaves {error:.1%} errors, is "
        f"{cost:,.0f} nats from the prior, and there are only {n} samples",
        network,
    )


def _refuse_other_inputs(problem: Problem) -> None:
    if problem.several_inputs:
        raise UnsupportedModel(SEVERAL)
    if not problem.train.x.is_floating_point():
        raise UnsupportedModel(f"the inputs are {problem.train.x.dtype}, and not real numbers")


def _power(bits: float) -> str:
    return f"2^{bits:,.0f}"
