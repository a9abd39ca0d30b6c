r"""Paths of low loss between two networks with one hidden layer.

In $\Phi(x)=\sum_j\theta_j^{(2)}\varrho(\langle\theta_j^{(1)},(x,1)\rangle)$ the loss is
convex in the output weights $\theta^{(2)}$. So a path may do as it likes within the networks
of one set of hidden units, and only has to reach units that both ends can use: half of those of
each. The other half is first moved onto its nearest neighbors in the half that stays, which
changes the function by at most
$\mathrm{Lip}(\varrho)\sum_j|\theta_j^{(2)}|\,\epsilon_j\|(x,1)\|$, then merged into them, and
is free. Source: Mathematical Aspects of Deep Learning, section 1.5.1, Eqs. (1.43)-(1.45) and
Figure 1.15; the last function after Safran and Shamir (2016).
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_matrix, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NotConverged, UnsupportedModel
from torchtheory.core.progress import track
from torchtheory.models.model import Parameters, flatten, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.symmetries import HiddenLayer, hidden_layers
from torchtheory.optimization.landscape.parameter_space import (
    Point,
    Statistics,
    losses_at,
    point_vector,
    refuse_frozen,
    segment_losses,
)
from torchtheory.primer.norms import pairwise_distances
from torchtheory.tracing.chain import as_chain
from torchtheory.tracing.layer_features import last_hidden_features, last_layer

#: What the seven legs of a constructed path do, in order.
LEGS = (
    "move half of the units onto neighbors",
    "merge them",
    "exchange idle units",
    "across: output weights alone",
    "exchange idle units back",
    "split",
    "move half of the units back",
)


def last_layer_problem(problem: Problem) -> Problem:
    r"""The loss as a function of the last layer alone: a linear model of the features.

    For fixed $\theta^{(1)}$ the networks form a linear space, and for a loss that is convex
    in the outputs (squared, logistic, cross-entropy) this problem is convex. It starts at the
    given network's own last layer.

    Args:
        problem: its model is a chain that ends in an `nn.Linear`.

    >>> net = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
    >>> p = Problem(net, (torch.ones(3, 1), torch.ones(3, 1)), task="regression")
    >>> last_layer_problem(p).model
    Linear(in_features=4, out_features=1, bias=True)
    """
    if problem.several_inputs:
        raise UnsupportedModel("the model takes several inputs; features are read off a chain")
    features = last_hidden_features(problem.model, problem.train.x)
    head = copy.deepcopy(last_layer(problem.model))
    data = (features, problem.train.y)
    return Problem(head, data, loss=problem.loss, task=problem.task, limit=len(features))


@dataclass(frozen=True, slots=True)
class LastLayerFit:
    """The best last layer.

    Attributes:
        parameters: of the last layer, by name.
        risk: the least loss that these features allow.
        gradient_norm: what is left of the gradient there.
    """

    parameters: Parameters
    risk: float
    gradient_norm: float


def minimize_last_layer(
    problem: Problem, *, tolerance: float = 1e-8, steps: int = 500
) -> LastLayerFit:
    r"""Solve `last_layer_problem`: the least loss over $\theta^{(2)}$.

    L-BFGS with a line search; a convex function has no other stationary points than its minima.
    Where there is no minimizer (logistic loss on separable features) the gradient still falls
    below the tolerance, at weights that are large. Computed in double precision. For squared error
    and every solution exactly, see `fit_last_layer` of the kernels.

    Args:
        problem: with a loss convex in the outputs.
        tolerance: largest gradient norm at the end.
        steps: most steps of L-BFGS.

    >>> net = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1)).double()
    >>> x = torch.tensor([[-1.0], [0.0], [1.0]]).double()
    >>> p = Problem(net, (x, x.abs()), task="regression")
    >>> round(minimize_last_layer(p, tolerance=1e-6).risk, 6)   # the best line is 2/3
    0.222222
    """
    whole_number(steps, "steps", least=1)
    positive_number(tolerance, "the tolerance")
    convex = last_layer_problem(problem).in_precision(torch.float64)
    objective = convex.objective(convex.train)
    point = {k: p.clone().requires_grad_() for k, p in convex.parameters.items()}
    variables = list(point.values())
    optimizer = torch.optim.LBFGS(
        variables,
        max_iter=steps,
        max_eval=10 * steps,
        tolerance_grad=tolerance / 10,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = objective(point)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    risk = float(closure().detach())
    slope = float(torch.cat([v.grad.flatten() for v in variables if v.grad is not None]).norm())
    if not slope <= tolerance:
        raise NotConverged(
            f"the gradient of the last layer is still {slope:.2g} after {steps} iterations; "
            "allow more of them or a larger tolerance"
        )
    like = last_layer(problem.model).weight
    return LastLayerFit({k: p.detach().to(like) for k, p in point.items()}, risk, slope)


@dataclass(frozen=True, slots=True)
class LowLossPath:
    r"""A path with straight legs between two parameter vectors.

    Attributes:
        corners: `[8, p]`, the ends included; `LEGS` names the legs between them.
        start_distances, end_distances: how far the units that are given up lie from their nearest
            neighbors, `[h]` and `[n - h]`, at either end. The construction is good where they
            are small, which random rows grant and trained ones need not.
        start_shift, end_shift: $\sum_j|\theta_j^{(2)}|\epsilon_j$: times
            $\mathrm{Lip}(\varrho)\|(x,1)\|$ what the first and the last leg may change the
            function by.
    """

    corners: Tensor
    start_distances: Tensor
    end_distances: Tensor
    start_shift: float
    end_shift: float


def low_loss_path(problem: Problem, start: Point, end: Point) -> LowLossPath:
    r"""Construct a path of seven straight legs from `start` to `end`.

    From the start: the second half of the units moves onto the nearest units of the first half;
    output weights of units that coincide are added up; the idle units become the end's. From the
    end the same with the halves exchanged. In between, the hidden units are half those of the
    start and half those of the end, and only output weights change. The second and third legs (and
    the fifth and sixth) do not change the function, and on the fourth a convex loss is at most
    what it is at its ends.

    For other networks, see `bend_path`.

    Args:
        problem: its model is dense, unit-wise activation, dense.
        start, end: two networks of that shape, their state dicts, or parameter vectors `[p]`.

    Costs the distances between the halves, $O(n^2d)$.

    >>> one, other = (nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1)) for _ in "ab")
    >>> p = Problem(one, (torch.ones(3, 2), torch.ones(3, 1)), task="regression")
    >>> path = low_loss_path(p, one, other)
    >>> path.corners.shape, len(LEGS)
    (torch.Size([8, 25]), 7)
    """
    layer = _only_hidden_layer(problem.model)
    refuse_frozen(problem, problem.parameters, "the path")
    ends = point_vector(problem, start, "the start"), point_vector(problem, end, "the end")
    first, second = (unflatten(v, problem.trainable) for v in ends)
    half = layer.units // 2
    keep = torch.arange(layer.units, device=ends[0].device) < half
    there, start_distances, start_shift = _make_room(first, second, layer, keep)
    back, end_distances, end_shift = _make_room(second, first, layer, ~keep)
    corners = torch.stack([flatten(p) for p in [*there, *reversed(back)]])
    return LowLossPath(corners, start_distances, end_distances, start_shift, end_shift)


def path_losses(
    problem: Problem,
    corners: Tensor,
    *,
    count: int = 21,
    samples: Samples | None = None,
    statistics: Statistics = "renewed",
) -> Tensor:
    """The loss on a path of straight legs, `[legs, count]`: each leg with both its ends.

    Args:
        problem: model, loss and data.
        corners: `[legs + 1, p]`.
        count: points on a leg.
        samples: the training data unless given.
        statistics: of batch normalization; see `probe_segment`.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> p = Problem(net, (torch.ones(1, 1), torch.zeros(1, 1)), task="regression")
    >>> path_losses(p, torch.tensor([[0.0], [2.0], [1.0]]), count=3).tolist()
    [[0.0, 1.0, 4.0], [4.0, 2.25, 1.0]]
    """
    ends = as_matrix(corners, "the corners")
    if len(ends) < 2:
        raise InvalidInput(f"a path has at least two corners, not {len(ends)}")
    legs = list(itertools.pairwise(ends))
    return torch.stack(
        [
            segment_losses(problem, a, b, count, samples=samples, statistics=statistics)
            for a, b in track(legs, "path")
        ]
    )


@dataclass(frozen=True, slots=True)
class MonotonePath:
    """A path along which the loss falls all the way.

    Attributes:
        points: `[m, p]`.
        losses: `[m]`, strictly decreasing.
        scales: what the last layer of the given path was multiplied by, `[m]`.
    """

    points: Tensor
    losses: Tensor
    scales: Tensor


def make_monotone(problem: Problem, points: Tensor, *, tail: int = 20) -> MonotonePath:
    r"""Rescale the last layer along a path so that the loss falls all the way to its end.

    Let the start be worse than the zero function, $r(\theta)>r_0$. Along the ray
    $\lambda\mapsto(\theta^{(1)},\lambda\theta^{(2)})$ the loss is convex and $r_0$ at
    0, so above $r_0$ every value is met exactly once. Along the path $\lambda$ is
    chosen such that the loss falls at a constant rate to the mean of $r(\theta)$ and
    $r_0$; at the end of the path $\lambda$ returns to 1. That last piece falls
    whenever the end is the best point of its ray, as a minimum of the loss is.

    Args:
        problem: a chain whose last layer is dense; the loss convex in the outputs and unbounded
            along every ray: squared error where a network is not zero on all samples, logistic
            loss and cross-entropy where it gets one wrong.
        points: the path, `[m, p]`, from its start on.
        tail: points of the last piece.

    Costs `m` forward passes and about 60 evaluations of the loss on their outputs.

    Raises:
        InvalidInput: where the start is no worse than the zero function, where no multiple of
            some network on the way is as bad as it has to be, or where the end is not the best
            point of its ray, so that the loss would rise on the last piece.

    >>> one = torch.ones(1, 1)
    >>> p = Problem(nn.Linear(1, 1, bias=False), (one, one), task="regression")
    >>> path = make_monotone(p, torch.tensor([[3.0], [9.0], [1.0]]), tail=2)
    >>> [round(v, 3) for v in path.losses.tolist()]
    [4.0, 3.25, 2.5, 0.625, 0.0]
    """
    path = as_matrix(points, "the path")
    whole_number(tail, "tail", least=1)
    own = {id(p) for p in last_layer(problem.model).parameters()}
    scaled = [k for k, p in problem.model.named_parameters() if id(p) in own]
    refuse_frozen(problem, scaled, "rescaling the last layer")
    samples = problem.train
    outputs = torch.stack(
        [problem.at(_named(problem, p)).outputs(samples) for p in track(path, "outputs")]
    )
    zero = float(problem.loss(torch.zeros_like(outputs[0]), samples.y))
    first = float(problem.loss(outputs[0], samples.y))
    if not first > zero:
        raise InvalidInput(
            f"the loss at the start, {first:.4g}, must exceed that of the zero function, {zero:.4g}"
        )
    # along a ray the loss is convex: what falls just beyond the end has a lower point there
    last, beyond = (float(problem.loss(by * outputs[-1], samples.y)) for by in (1.0, 1.001))
    if beyond < last - 1e3 * torch.finfo(outputs.dtype).eps * max(last, zero):
        raise InvalidInput(
            "the end of the path is not the best point of its ray: a larger last layer has a lower "
            "loss, and the last piece would rise; end at minimize_last_layer's"
        )
    goals = torch.linspace(first, (first + zero) / 2, len(path), dtype=torch.float64).tolist()
    scales = [1.0]
    for made, goal in track(list(zip(outputs[1:], goals[1:], strict=True)), "scales"):
        scales.append(_scale_for(problem, made, goal, scales[-1]))
    back = torch.linspace(scales[-1], 1.0, tail + 1, dtype=torch.float64)[1:]
    factors = torch.cat([torch.tensor(scales, dtype=torch.float64), back]).to(path)
    longer = torch.cat([path, path[-1:].expand(tail, -1)])
    rescaled = []
    for point, factor in zip(longer, factors, strict=True):
        named = _named(problem, point)
        for name in scaled:
            named[name] = factor * named[name]
        rescaled.append(flatten(named))
    result = torch.stack(rescaled)
    return MonotonePath(result, losses_at(problem, result), factors)


def _scale_for(problem: Problem, outputs: Tensor, goal: float, near: float) -> float:
    """The factor at which the loss of the scaled outputs is `goal`: doubling, then halving."""
    y = problem.train.y

    def loss(factor: float) -> float:
        return float(problem.loss(factor * outputs, y))

    low, high = 0.0, max(near, 1e-6)
    for _ in range(60):
        if loss(high) >= goal:
            break
        low, high = high, 2 * high
    else:
        raise InvalidInput(
            f"a network on the path is zero on all samples, or right on all: no factor raises its "
            f"loss to {goal:.4g}"
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) < goal else (low, middle)
    return high


def _make_room(
    here: Parameters, there: Parameters, layer: HiddenLayer, keep: Tensor
) -> tuple[list[Parameters], Tensor, float]:
    """Four corners: from here to a network that uses the kept units and carries the others'."""
    own, other = _rows(here, layer), _rows(there, layer)
    output = here[f"{layer.outgoing}.weight"]
    kept, given = keep.nonzero()[:, 0], (~keep).nonzero()[:, 0]
    # in blocks: all distances at once would be a matrix of n/2 by n/2
    found = [
        pairwise_distances(rows, own[kept]).min(1)
        for rows in own[given].split(1024)  # type: ignore[no-untyped-call]
    ]
    distances, nearest = (torch.cat(parts) for parts in zip(*found, strict=True))
    moved = own.clone()
    moved[given] = own[kept[nearest]]
    merged = output.clone()
    merged[:, given] = 0
    merged.index_add_(1, kept[nearest], output[:, given])
    exchanged = moved.clone()
    exchanged[given] = other[given]
    corners = [
        here,
        _with(here, layer, moved, output),
        _with(here, layer, moved, merged),
        _with(here, layer, exchanged, merged),
    ]
    shift = float((output[:, given].norm(dim=0) * distances).sum())
    return corners, distances, shift


def _rows(parameters: Parameters, layer: HiddenLayer) -> Tensor:
    """The weights and the bias of every hidden unit, `[n, d + 1]`."""
    weight = parameters[f"{layer.incoming}.weight"]
    bias = parameters.get(f"{layer.incoming}.bias")
    return weight if bias is None else torch.cat([weight, bias[:, None]], 1)


def _with(here: Parameters, layer: HiddenLayer, rows: Tensor, output: Tensor) -> Parameters:
    changed = dict(here)
    width = here[f"{layer.incoming}.weight"].shape[1]
    changed[f"{layer.incoming}.weight"] = rows[:, :width]
    if rows.shape[1] > width:
        changed[f"{layer.incoming}.bias"] = rows[:, width]
    changed[f"{layer.outgoing}.weight"] = output
    return changed


def _only_hidden_layer(model: nn.Module) -> HiddenLayer:
    layers = hidden_layers(model)
    dense = [link for link in as_chain(model) if isinstance(link.module, nn.Linear)]
    if len(layers) != 1 or len(dense) != 2:
        raise UnsupportedModel(
            "the construction is for one hidden layer: dense, unit-wise activation, dense ("
            f"{len(layers)} layers, {len(dense)} dense)"
        )
    if layers[0].units < 2:
        raise UnsupportedModel(
            f"at least two hidden units are needed, one for each half, not {layers[0].units}"
        )
    return layers[0]


def _named(problem: Problem, point: Tensor) -> Parameters:
    return dict(unflatten(point, problem.trainable))
