r"""How far an input must move before its class changes: what is certain, and what is found.

If the features of a classifier are $L$-Lipschitz and its scores are
$f_c = \theta_c^\top\Phi + b_c$, the class $y$ predicted at $x$ stays for every
perturbation shorter than

$$
r(x) = \min_{c\ne y}\frac{f_y(x) - f_c(x)}{L\,\|\theta_y-\theta_c\|_2} .
$$

Without a last dense layer, the difference of two outputs of an $L$-Lipschitz function is
$\sqrt2\,L$-Lipschitz. Against it stands the length of the shortest perturbation that a search
finds. Source: Mathematical Aspects of Deep Learning, section 8.2.2; Foundations of Deep Learning,
Definition 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.primer.norms import pairwise_distances
from torchtheory.robustness.attacks.balls import lengths
from torchtheory.robustness.attacks.shortest import nearest_boundary
from torchtheory.robustness.attacks.victim import as_scores
from torchtheory.robustness.lipschitz.bound import bounds_about

#: Linearized steps of a search, and the classes next in score that each of them looks at.
_STEPS, _COMPETITORS = 15, 4

#: Moves along the boundary, and points tried on a segment for where it crosses the boundary.
_ROUNDS, _TRIALS = 3, 9


def certified_radii(problem: Problem, samples: Samples) -> Tensor:
    r"""Radius `[n]` within which the class of each sample provably stays; 0 for a mistake.

    The largest $r$ found with $r\,L_{yc}(x,r)\le f_y(x)-f_c(x)$ for all $c\ne y$, where
    $L_{yc}(x,r)$ bounds the Lipschitz constant of $f_y-f_c$ on the ball of radius $r$ about the
    sample (`bounds_about`). Where that does not depend on the ball, as in networks of affine maps
    and activations, this is the formula above; with attention or layer normalization the bound
    grows with $r$, and $r$ is found by bisection. Norms of large maps are upper bounds with
    probability $1-10^{-6}$ each.

    Costs a forward pass in double precision, the operator norms of the affine maps, and up to 40
    evaluations of the bounds, in which the network does not run.

    Raises:
        UnsupportedModel: if an operation has no known bound; the message names it.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> problem = Problem(net, (torch.tensor([[3.0, 1.0]]), torch.tensor([0])))
    >>> certified_radii(problem, problem.train)     # (9 - 4) / ‖(3, -4)‖, the true distance
    tensor([1.], dtype=torch.float64)
    """
    which = problem.function.output
    if isinstance(which, tuple) or problem.outputs(samples.first(1)).ndim > 2:
        raise UnsupportedModel("the model makes several predictions for a sample, not one")
    bounds = bounds_about(problem.model, samples.x, output=which, chunk=problem.chunk)
    if problem.task == "binary":
        gaps = problem.margins(samples).double()[:, None]
    else:
        outputs = problem.outputs(samples).double()
        gaps = outputs.gather(1, samples.y[:, None]) - outputs
    rows = torch.arange(len(samples), device=gaps.device)
    others = torch.ones_like(gaps, dtype=torch.bool)
    if problem.task != "binary":
        others[rows, samples.y] = False

    def constants(radius: Tensor) -> Tensor:
        if problem.task == "binary":
            return bounds.lipschitz(radius)[:, None]
        return bounds.class_differences(radius)[rows, samples.y]

    def nearest(radius: Tensor) -> Tensor:
        """Where the gap of some class would be used up, at the constants of these balls."""
        reach = _radii(gaps, constants(radius))
        return torch.where(others, reach, math.inf).amin(1)

    # no ball can be larger than the slopes at its center allow
    high = nearest(torch.zeros(len(samples), dtype=torch.float64, device=gaps.device))
    if bool((nearest(high) >= high).all()):
        return high
    low = torch.zeros_like(high)
    start = torch.where(high.isfinite(), high, 1.0)
    powers = torch.linspace(0, -60, 41, dtype=torch.float64).exp2().to(high.device)
    for power in powers:  # from large to small: constants may grow by many powers of ten
        radius = start * power
        low = torch.where((low == 0) & (nearest(radius) >= radius), radius, low)
        if bool((low > 0).all()):
            break
    # what a ball allows may be more than the ball, and is less than the next larger one tried
    high = torch.where(low > 0, low * 2**1.5, low)
    for _ in range(12):
        middle = (low + high) / 2
        fits = nearest(middle) >= middle
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return low


def boundary_distances(problem: Problem, samples: Samples) -> Tensor:
    """Length `[n]` of the shortest perturbation found that changes each sample's class.

    Steps to where the nearest linearized boundary to one of the four classes next in score would
    be (Moosavi-Dezfooli et al., DeepFool), and the samples that the model puts in another class,
    give points beyond the boundary; each is pulled back along its segment to where the class
    changes, and then moved along the boundary towards the sample. Every distance belongs to a point
    at which the model was run and found to err. It is 0 for a sample that is misclassified already,
    and infinite where nothing was found.

    Costs about 130 forward passes over the samples and up to 75 backward ones.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> problem = Problem(net, (torch.tensor([[3.0, 1.0]]), torch.tensor([0])))
    >>> boundary_distances(problem, problem.train).round(decimals=4)
    tensor([1.], dtype=torch.float64)
    """
    x = samples.x
    best = x.clone()
    distances = torch.full((len(x),), math.inf, dtype=torch.float64, device=x.device)

    def keep(candidates: Tensor) -> None:
        """Pull points beyond the boundary back towards the samples, and keep the closest."""
        values = problem.margins(Samples(candidates, samples.y)).double()
        share = _crossing(
            lambda t: problem.margins(Samples(_between(x, candidates, t), samples.y)).double(),
            start,
            values,
        )
        points = _between(x, candidates, share)
        found = (points - x).double().flatten(1).norm(dim=1)
        wrong = (values <= 0) & (found < distances)
        closer = wrong & _wrong(problem, points, samples.y)
        distances[closer] = found[closer]
        best[closer] = points[closer]

    start = problem.margins(samples).double()
    keep(x)  # what is wrong already is at distance 0
    keep(_nearest_of_another_class(problem, samples))
    keep(_linearized_steps(problem, samples))
    for _ in range(_ROUNDS):
        _, _, slopes = _nearest_boundary(problem, best, samples.y)
        normal = _unit(slopes)
        reach = ((best - x).flatten(1) * normal.flatten(1)).sum(1)
        for factor in (1.0, 1.2):
            keep(x + normal * (factor * reach).reshape(-1, *[1] * (x.ndim - 1)))
    return distances


def _crossing(margin: Callable[[Tensor], Tensor], start: Tensor, end: Tensor) -> Tensor:
    """Where a margin that is `start` at 0 and `end` at 1 ceases to be positive, for each sample.

    Regula falsi that halves the value of an end which stays, and every third time a bisection; what
    is returned is the end at which the margin was found not to be positive, or 1.
    """
    low, high = torch.zeros_like(start), torch.ones_like(start)
    high = torch.where(start <= 0, 0.0, high)
    below, above = start.clamp_min(0.0), end.clamp_max(0.0)
    for k in range(_TRIALS):
        secant = low + (high - low) * below / (below - above).clamp_min(1e-300)
        # a little beyond, so that where the margin is straight the first point is past the zero
        place = (low + high) / 2 if k % 3 == 2 else torch.minimum(secant * (1 + 1e-6), high)
        value = margin(place)
        past = value <= 0
        below = torch.where(past, below / 2, value)
        above = torch.where(past, value, above / 2)
        low, high = torch.where(past, low, place), torch.where(past, place, high)
    return high


def _radii(differences: Tensor, constants: Tensor | float) -> Tensor:
    """Differences of outputs over their Lipschitz constants; a constant of 0 never lets go."""
    constants = torch.as_tensor(constants, dtype=torch.float64, device=differences.device)
    radii = torch.where(constants > 0, differences / constants, math.inf)
    return torch.where(differences > 0, radii, 0.0)


def _wrong(problem: Problem, x: Tensor, y: Tensor) -> Tensor:
    return problem.margins(Samples(x, y)) <= 0


def _between(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    share = share.to(a).reshape(-1, *[1] * (a.ndim - 1))
    return a + share * (b - a)


def _unit(v: Tensor) -> Tensor:
    size = v.flatten(1).norm(dim=1).reshape(-1, *[1] * (v.ndim - 1))
    return torch.where(size > 0, v / size, 0.0)


def _nearest_of_another_class(problem: Problem, samples: Samples) -> Tensor:
    """For every sample the nearest one that the model does not put in its class."""
    outputs = problem.outputs(samples)
    binary = problem.task == "binary"
    predicted = (outputs.reshape(-1) > 0).long() if binary else outputs.argmax(1)
    apart = pairwise_distances(samples.x.flatten(1).double(), samples.x.flatten(1).double())
    same = predicted[None] == samples.y.reshape(len(samples)).long()[:, None]
    return samples.x[apart.masked_fill(same, math.inf).argmin(1)]


def _linearized_steps(problem: Problem, samples: Samples) -> Tensor:
    """Points across the boundary, or where the steps ended."""
    x = samples.x.clone()
    longest = 1 + 2 * float(x.flatten(1).norm(dim=1).max())  # where a slope is almost 0
    for _ in range(_STEPS):
        going = ~_wrong(problem, x, samples.y)
        if not bool(going.any()):
            break
        values, sizes, slopes = _nearest_boundary(problem, x, samples.y)
        going = going & (sizes > 0)
        length = torch.where(going, values / sizes.clamp_min(1e-30), 0.0).clamp_max(longest)
        x = x - _unit(slopes) * (1.02 * length).reshape(-1, *[1] * (x.ndim - 1))
    return x


def _nearest_boundary(problem: Problem, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, slope norm and slope of the class difference whose linearized zero is nearest."""
    values, slopes = nearest_boundary(
        lambda moved: as_scores(problem.function(problem.parameters, moved), problem.task),
        x,
        y.reshape(len(x)).long(),
        "2",
        _COMPETITORS,
    )
    return values, lengths(slopes, "2"), slopes
