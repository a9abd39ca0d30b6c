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

import torch
from torch import Tensor, nn

from torchtheory.models.model import evaluation_mode
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.chain import Rearrangement, as_chain
from torchtheory.primer.norms import pairwise_distances
from torchtheory.robustness.lipschitz import layer_norms

_PASSING = (nn.Identity, nn.Flatten, Rearrangement, nn.Dropout)

#: Linearized steps of a search, and the classes next in score that each of them looks at.
_STEPS = 25
_COMPETITORS = 4


def certified_radii(problem: Problem, samples: Samples) -> Tensor:
    r"""Radius `[n]` within which the class of each sample provably stays; 0 for a mistake.

    $L$ is the product of the layers' Lipschitz constants
    (`layer_norms`), those of convolutions being upper
    bounds with probability 0.999. A binary problem with one logit $f$ has
    $r=|f|/L$. Costs one forward pass and the layers' norms.

    Raises:
        UnsupportedModel: if the model is not a chain of layers with known constants.

    >>> net = nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> problem = Problem(net, (torch.tensor([[3.0, 1.0]]), torch.tensor([0])))
    >>> certified_radii(problem, problem.train)     # (9 - 4) / ‖(3, -4)‖, the true distance
    tensor([1.], dtype=torch.float64)
    """
    constants = [layer.lipschitz for layer in layer_norms(problem.model, samples.x.shape[1:])]
    outputs = problem.outputs(samples).double()
    if problem.task == "binary":
        return _radii(problem.margins(samples).double(), math.prod(constants))
    own = outputs.gather(1, samples.y[:, None])
    head = _head(problem.model)
    if head is None:
        differences = problem.margins(samples).double()
        return _radii(differences, math.sqrt(2) * math.prod(constants))
    place, theta = head
    apart = pairwise_distances(theta, theta)[samples.y]
    radii = _radii(own - outputs, math.prod(constants[:place]) * apart)
    return radii.scatter(1, samples.y[:, None], math.inf).amin(1)


def boundary_distances(problem: Problem, samples: Samples) -> Tensor:
    """Length `[n]` of the shortest perturbation found that changes each sample's class.

    Steps to where the nearest linearized boundary to one of the four classes next in score would
    be (Moosavi-Dezfooli et al., DeepFool), and the samples that the model puts in another class,
    give points beyond the boundary; each is pulled back along its segment by bisection and then
    moved along the boundary towards the sample. Every distance belongs to a point at which the
    model was run and found to err. It is 0 for a sample that is misclassified already, and
    infinite where nothing was found.

    Costs about 125 passes over the samples, forward and backward.

    >>> net = nn.Linear(2, 2, bias=False)
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
        beyond = _wrong(problem, candidates, samples.y)
        low = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        high = torch.ones_like(low)
        for _ in range(24):
            middle = (low + high) / 2
            wrong = _wrong(problem, _between(x, candidates, middle), samples.y)
            high, low = torch.where(wrong, middle, high), torch.where(wrong, low, middle)
        points = _between(x, candidates, high)
        found = (points - x).double().flatten(1).norm(dim=1)
        closer = beyond & _wrong(problem, points, samples.y) & (found < distances)
        distances[closer] = found[closer]
        best[closer] = points[closer]

    keep(x)  # what is wrong already is at distance 0
    keep(_nearest_of_another_class(problem, samples))
    keep(_linearized_steps(problem, samples))
    for _ in range(4):
        _, _, slopes = _nearest_boundary(problem, best, samples.y)
        normal = _unit(slopes)
        reach = ((best - x).flatten(1) * normal.flatten(1)).sum(1)
        for factor in (1.0, 1.1, 1.3):
            keep(x + normal * (factor * reach).reshape(-1, *[1] * (x.ndim - 1)))
    return distances


def _radii(differences: Tensor, constants: Tensor | float) -> Tensor:
    """Differences of outputs over their Lipschitz constants; a constant of 0 never lets go."""
    constants = torch.as_tensor(constants, dtype=torch.float64, device=differences.device)
    radii = torch.where(constants > 0, differences / constants, math.inf)
    return torch.where(differences > 0, radii, 0.0)


def _head(model: nn.Module) -> tuple[int, Tensor] | None:
    """Place and weight matrix of a last dense layer."""
    links = as_chain(model)
    place = len(links) - 1
    while place > 0 and isinstance(links[place].module, _PASSING):
        place -= 1
    module = links[place].module
    if not isinstance(module, nn.Linear):
        return None
    with torch.no_grad(), evaluation_mode(model):
        # by its action: a hook may compute the weight
        basis = torch.eye(
            module.in_features, dtype=module.weight.dtype, device=module.weight.device
        )
        theta = module(basis) - module(torch.zeros_like(basis))
    return place, theta.mT.double()


def _wrong(problem: Problem, x: Tensor, y: Tensor) -> Tensor:
    return problem.margins(Samples(x, y)) <= 0


def _between(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    share = share.reshape(-1, *[1] * (a.ndim - 1))
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
    with torch.enable_grad():
        moved = x.detach().requires_grad_(True)
        outputs = problem.function(problem.parameters, moved)
        if problem.task == "binary":
            signs = (2 * y - 1).reshape(len(x), 1)
            differences = signs * outputs.reshape(len(x), 1)
        else:
            own = outputs.gather(1, y[:, None])
            others = outputs.detach().scatter(1, y[:, None], -math.inf)
            chosen = others.topk(min(_COMPETITORS, outputs.shape[1] - 1), dim=1).indices
            differences = own - outputs.gather(1, chosen)
        slopes = torch.stack(
            [
                torch.autograd.grad(differences[:, k].sum(), moved, retain_graph=True)[0]
                for k in range(differences.shape[1])
            ],
            1,
        )
    differences = differences.detach()
    sizes = slopes.flatten(2).norm(dim=2)
    reach = torch.where(sizes > 0, differences.abs() / sizes.clamp_min(1e-30), math.inf)
    rows = torch.arange(len(x), device=x.device)
    nearest = reach.argmin(1)
    return differences[rows, nearest], sizes[rows, nearest], slopes[rows, nearest]
