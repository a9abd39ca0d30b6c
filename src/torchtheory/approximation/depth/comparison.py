r"""One hidden layer against two at an equal number of parameters, both trained the same way.

What training finds is no lower bound: theorems on depth are about the best network of its size.
The comparison illustrates them. Sources: Mathematical Aspects of Deep Learning, Theorem 1.24;
Foundations of Deep Learning, section 4.2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.approximation.targets import Function, evaluate
from torchtheory.core.checks import all_finite, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.activations.table import activation
from torchtheory.nets.feedforward import Architecture, mlp


@dataclass(frozen=True, slots=True)
class DepthComparison:
    """Trained ReLU networks of equally many parameters.

    Attributes:
        shallow_width, deep_width: units of the one hidden layer, and of each of the two.
        shallow, deep: mean squared errors on the test points over the variance of the target
            there, one a seed.
    """

    shallow_width: int
    deep_width: int
    shallow: Tensor
    deep: Tensor


def equal_widths(dimension: int, parameters: int) -> tuple[int, int]:
    r"""The widest $(d,m,1)$ and $(d,w,w,1)$ with at most that many parameters.

    $m(d+2)+1$ and $w^2+w(d+3)+1$.

    >>> equal_widths(2, 100)
    (24, 7)
    """
    d = whole_number(dimension, "dimension", least=1)
    spare = parameters - 1
    shallow = spare // (d + 2)
    deep = int((math.sqrt((d + 3) ** 2 + 4 * max(0, spare)) - (d + 3)) / 2 + 1e-9)
    if min(shallow, deep) < 1:
        raise InvalidInput(f"{parameters} parameters are too few for networks of {d} inputs")
    return shallow, deep


def compare_depth(
    target: Function,
    train: Tensor,
    test: Tensor,
    *,
    parameters: int,
    steps: int = 300,
    rate: float = 0.01,
    seeds: int = 3,
    generator: RandomSource = None,
) -> DepthComparison:
    r"""Fit ReLU networks with one and with two hidden layers to a function, by Adam.

    All seeds of a depth are trained together, on the mean squared error over all training points.

    Args:
        target: from `[n, d]` to `[n]` or `[n, 1]`.
        train, test: points, `[n, d]` each.
        parameters: budget of either network.

    Cost: `steps` gradients of `seeds` networks.

    >>> x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    >>> found = compare_depth(lambda x: x[:, 0], x, x, parameters=60, steps=100, seeds=2)
    >>> bool(found.shallow.max() < 0.05)
    True
    """
    if train.ndim != 2 or test.ndim != 2 or train.shape[1] != test.shape[1]:
        raise ShapeMismatch(
            f"training and test points are [n, d] with the same d (train is {list(train.shape)}, "
            f"test is {list(test.shape)})"
        )
    whole_number(steps, "steps", least=1)
    whole_number(seeds, "seeds", least=1)
    positive_number(rate, "rate")
    wanted, checked = evaluate(target, train), evaluate(target, test)
    all_finite(wanted, "the target on the training points")
    all_finite(checked, "the target on the test points")
    if float(checked.var()) == 0:
        raise InvalidInput("the target is constant on the test points")
    source = as_generator(generator)
    d = train.shape[1]
    shallow, deep = equal_widths(d, parameters)
    errors = []
    for widths in ((d, shallow, 1), (d, deep, deep, 1)):
        plan = Architecture(widths, activation("relu"))
        starts = [mlp(widths, generator=source, dtype=train.dtype) for _ in range(seeds)]
        flat = [nn.utils.parameters_to_vector(net.parameters()).detach() for net in starts]
        theta = torch.stack(flat).to(train.device).requires_grad_()
        optimizer = torch.optim.Adam([theta], lr=rate)
        for step in range(steps):
            # a rate that falls to 0 leaves no noise of the last step
            optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
            optimizer.zero_grad()
            loss = (plan.realize(theta, train)[..., 0] - wanted).square().mean(1).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            away = (plan.realize(theta, test)[..., 0] - checked).square().mean(1)
        errors.append(away / checked.var())
    return DepthComparison(shallow, deep, errors[0], errors[1])
