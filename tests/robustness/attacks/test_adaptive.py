"""APGD against its definition, followed step by step for one sample."""

import math

import pytest
import torch
from torch import Tensor, nn

from torchtheory.nets.feedforward import mlp
from torchtheory.robustness.attacks.adaptive import APGD
from torchtheory.robustness.attacks.attack import Region
from torchtheory.robustness.attacks.goals import cross_entropy


def followed(
    net: nn.Module, x: Tensor, y: Tensor, start: Tensor, radius: float, steps: int
) -> float:
    """The largest loss of one ascent in L inf: Croce and Hein 2020, algorithm 1, rho = 3/4."""

    def loss_and_slope(point: Tensor) -> tuple[float, Tensor]:
        own = point.detach().requires_grad_(True)
        value = cross_entropy(net(own), y)[0]
        return float(value), torch.autograd.grad(value, own)[0]

    def inside(point: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(point, x - radius), x + radius)

    periods = [0.0, 0.22]
    while periods[-1] + max(periods[-1] - periods[-2] - 0.03, 0.06) <= 1:
        periods.append(periods[-1] + max(periods[-1] - periods[-2] - 0.03, 0.06))
    judged = [math.ceil(p * steps - 1e-9) for p in periods]
    eta, point, previous = 2 * radius, start, start
    value, slope = loss_and_slope(point)
    top = (value, point, slope)
    path, before = [value], (True, -math.inf)  # halved, top at the last judgment
    for k in range(steps):
        if k in judged[1:]:
            here = judged.index(k)
            period = k - judged[here - 1]
            rises = sum(b > a for a, b in zip(path[-period - 1 :], path[-period:], strict=False))
            halve = rises < 0.75 * period or (not before[0] and before[1] >= top[0])
            before = (halve, top[0])
            if halve:
                eta /= 2
                value, point, slope = top
                previous = point
                path[-1] = value
        step = inside(point + eta * slope.sign())
        if k:
            step = inside(point + 0.75 * (step - point) + 0.25 * (point - previous))
        previous, point = point, step
        value, slope = loss_and_slope(point)
        path.append(value)
        if value > top[0]:
            top = (value, point, slope)
    return top[0]


# in the last one alone, a step is halved since the largest loss has not grown
@pytest.mark.parametrize(
    ("seed", "scale", "radius", "steps"),
    [*((seed, 6.0, 0.6, steps) for seed in range(5) for steps in (25, 60)), (119, 3.0, 1.5, 100)],
)
def test_an_ascent_is_what_its_definition_says(
    seed: int, scale: float, radius: float, steps: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    net = mlp([6, 16, 16, 3], "tanh", generator=draws).double()
    with torch.no_grad():
        net[0].weight.mul_(scale)  # rough enough that steps are halved
    x = torch.randn(1, 6, generator=draws, dtype=torch.float64)
    y = net(x).argmax(1)
    source = torch.Generator().manual_seed(seed)
    torch.randint(2**62, (1,), generator=source)  # what seeds the model's own draws
    start = Region(x, radius, "inf", None).random_points(source)
    found = APGD(radius, steps, stop_when_fooled=False, generator=seed)(net, x, y)
    wanted = followed(net, x, y, start, radius, steps)
    assert float(found.losses) == pytest.approx(wanted, rel=1e-9)
