r"""Manipulated explanations: inputs with the same output and a foreign heatmap.

Where a network is curved, its gradient can be turned while its output stays. With
$h(x)=x\odot\nabla f_c(x)$, summed over the channels of a pixel, and a foreign map $t$,

$$
\min_{x'}\ \bigl(\text{goal}-\mathrm{corr}(h(x'),t)\bigr)^++\gamma\,\|f(x')-f(x)\|^2 .
$$

A network of ReLUs has no second derivative to descend along, so they are replaced by softplus
functions that sharpen on the way; what is reported is measured on the network itself. Outputs are
brought back at the end by Newton's method. Source: Dombrowski et al. (2019), which Mathematical
Aspects of Deep Learning, section 5.6, names a serious challenge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.checks import (
    all_finite,
    as_module,
    described,
    open_fraction,
    positive_number,
    whole_number,
)
from torchtheory.core.errors import InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.explanation.by_feature import correlation, feature_totals
from torchtheory.explanation.score import Recorded, Score, Target, open_score, refuse_constant
from torchtheory.tracing.arguments import bind
from torchtheory.tracing.network import Operation

#: Sharpness of the softplus functions, at the first step and at the last one.
SHARPNESS = (10.0, 300.0)

#: Weight of the outputs, at the first step and at the last one.
WEIGHT = (0.5, 5000.0)

#: Newton steps that bring the outputs back.
NEWTON = 12


@dataclass(frozen=True, slots=True)
class Manipulated:
    """Inputs whose explanation was moved to a foreign map.

    Attributes:
        inputs: `[n, ...]`, the manipulated ones.
        relevance: what gradient times input says of them, in their shape.
        before, correlation: `[n]`, of the heatmap with the foreign map, at the inputs as they were
            and at the manipulated ones.
        output_change: `[n]`, the largest change of an output.
        distance: `[n]`, of the manipulated inputs from the given ones, relative to their length.
    """

    inputs: Tensor
    relevance: Tensor
    before: Tensor
    correlation: Tensor
    output_change: Tensor
    distance: Tensor


class Smoothed(nn.Module):
    r"""A network with softplus functions $\frac1\beta\log(1+e^{\beta x})$ in the place of ReLUs.

    Args:
        model: the network; its weights are those that it has when it is first asked.
        sharpness: $\beta$, which may be set anew.

    >>> smooth = Smoothed(nn.ReLU(), 1.0)
    >>> round(float(smooth(torch.zeros(1))), 4)            # log 2
    0.6931
    """

    def __init__(self, model: nn.Module, sharpness: float) -> None:
        super().__init__()
        self.model = as_module(model)
        self.sharpness = positive_number(sharpness, "sharpness")
        self._recorded = Recorded(self.model)

    def forward(self, *x: Tensor) -> Any:
        """What the network returns then."""

        def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if op.name != "relu":
                return op.function(*args, **kwargs)
            return F.softplus(bind(op.function, args, kwargs)["input"], beta=self.sharpness)

        return self._recorded.of(x).evaluate(x, len(x[0]), step)


def manipulate_explanation(
    model: nn.Module,
    x: Tensor,
    foreign: Tensor,
    target: Target = None,
    *,
    goal: float = 0.9,
    steps: int = 400,
    step_size: float = 0.005,
    output: int | str | None = None,
) -> Manipulated:
    """Move inputs so that gradient times input shows a foreign map and outputs stay.

    Args:
        model: the network, with one real input.
        x: inputs `[n, ...]`.
        foreign: the map to show, `[n, features]`, or relevance in the shape of `x`, such as that of
            other samples.
        target: whose score is explained; the classes predicted at `x` unless given.
        goal: correlation with the foreign map at which the search is content.
        steps: of Adam.
        step_size: of a step, relative to the range of the inputs; it falls to 0.
        output: position or key of the output that is meant, where there are several.

    Time: about `4 * steps` passes, and 12 backward passes for each output at the end.

    Raises:
        UnsupportedModel: if the gradient has no derivative, as that of a linear model.
    """
    open_fraction(goal, "goal")
    whole_number(steps, "steps", least=1)
    positive_number(step_size, "step_size")
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidType("an input that is moved is one tensor of real numbers")
    with open_score(model, x, target, output=output) as score:
        given = score.points
        shown = _as_map(foreign, x).to(given)
        before = _heatmap(score, given)[1]
        outputs = score.outputs.detach().reshape(len(given), -1)
        moved = _search(score, shown, outputs, goal, steps, step_size)
        moved = _same_outputs(score, moved, outputs)
        relevance, after = _heatmap(score, moved)
        with torch.no_grad():
            change = (score.run(moved).flatten(1) - outputs).abs().amax(1)
        return Manipulated(
            moved.reshape(x.shape),
            relevance.reshape(x.shape),
            correlation(before, shown),
            correlation(after, shown),
            change,
            (moved - given).norm(dim=1) / given.norm(dim=1),
        )


def _as_map(foreign: Tensor, x: Tensor) -> Tensor:
    if not isinstance(foreign, Tensor):
        raise InvalidType(f"the foreign map is a tensor, not {described(foreign)}")
    all_finite(foreign, "the foreign map")
    if foreign.shape == x.shape:
        return feature_totals(foreign)
    count = feature_totals(x[:1]).shape[1]
    if foreign.shape != (len(x), count):
        raise ShapeMismatch(
            f"a foreign map has the shape {list(x.shape)} of x, or {[len(x), count]}, not "
            f"{list(foreign.shape)}"
        )
    return foreign


def _heatmap(score: Score, points: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient times input by entry `[n, d]` and by feature."""
    relevance = points * score.gradients_in_chunks(points)[1]
    return relevance, _by_feature(score, relevance)


def _by_feature(score: Score, relevance: Tensor) -> Tensor:
    count = int(score.features.max()) + 1
    empty = relevance.new_zeros(len(relevance), count)
    return empty.index_add(1, score.features, relevance)


def _search(
    score: Score, shown: Tensor, outputs: Tensor, goal: float, steps: int, step_size: float
) -> Tensor:
    given = score.points
    reach = step_size * float(given.max() - given.min())
    moved = given.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([moved], reach)
    size = outputs.square().mean(1).clamp(min=1e-12)
    smooth = Smoothed(score.network, SHARPNESS[0])
    for k in range(steps):
        check_time()
        done = k / steps
        smooth.sharpness = _between(SHARPNESS, done)
        with torch.enable_grad():
            returned = score.main(smooth(moved.reshape(score.x[0].shape)))
            values = score.selected(returned, None)
            refuse_constant(values)
            (slope,) = torch.autograd.grad(values.sum(), moved, create_graph=True)
            if not slope.requires_grad:
                raise UnsupportedModel("the gradient does not change with the input")
            similar = correlation(_by_feature(score, moved * slope), shown)
            apart = (returned.flatten(1) - outputs).square().mean(1) / size
            loss = (goal + 0.02 - similar).clamp(min=0) + _between(WEIGHT, done) * apart
        (moved.grad,) = torch.autograd.grad(loss.sum(), moved)
        for group in optimizer.param_groups:
            group["lr"] = reach * (1 - done)
        optimizer.step()
    return moved.detach()


def _same_outputs(score: Score, points: Tensor, outputs: Tensor) -> Tensor:
    """The nearest points, in first order, at which the outputs are what they were."""
    for _ in range(NEWTON):
        with torch.enable_grad():
            moved = points.detach().requires_grad_(True)
            now = score.run(moved).flatten(1)
            rows = [
                torch.autograd.grad(now[:, k].sum(), moved, retain_graph=True)[0]
                for k in range(now.shape[1])
            ]
        left = (now.detach() - outputs)[:, :, None]
        step = (torch.linalg.pinv(torch.stack(rows, 1)) @ left)[:, :, 0]
        # a step beyond the piece it was computed on would lead away
        longest = 0.01 * points.norm(dim=1, keepdim=True)
        length = step.norm(dim=1, keepdim=True).clamp(min=1e-30)
        points = points - step * (longest / length).clamp(max=1.0)
    return points


def _between(ends: tuple[float, float], done: float) -> float:
    """Geometrically from the first number to the second."""
    return ends[0] * math.pow(ends[1] / ends[0], done)
