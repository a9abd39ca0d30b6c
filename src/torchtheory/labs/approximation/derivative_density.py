"""Density in spaces with derivatives, with discrete weights, and sets of networks that are not closed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.approximation.piecewise.broken_lines import broken_line_network
from torchtheory.approximation.universality.uniform_fit import best_uniform_fit
from torchtheory.labs.engine import Run, lab


@lab(
    "density-with-derivatives",
    room="approximation",
    covers=["X-07", "X-32", "A-27"],
    title="Smooth units approximate derivatives too, discrete weights are enough, and limits need not be networks",
    full={"widths": (8, 16, 32, 64, 128)},
    items={"widths": 3},
)
def density_with_derivatives(run: Run, widths: tuple[int, ...] = (8, 16, 32, 64)) -> None:
    """Networks of one hidden layer on [-1, 1], fitted to a function together with its derivatives.

    With tanh units the errors of the function, its slope and its curvature fall together; ReLU
    networks have no curvature, so the last error stays what it is. Inner weights may be whole numbers
    and biases fractions with one denominator. Last, a sequence of networks of two units that converges
    to a jump: the limit is no network, and the weights on the way to it must grow.

    Args:
        widths: units of the networks.
    """
    errors = derivatives(run, widths)
    discrete(run)
    not_closed(run)
    run.curves(
        "errors",
        list(widths),
        {label: [e[k] for e in errors] for k, label in enumerate(("function", "slope", "curvature"))},
        axes=("tanh units", "largest error at the points"),
        log="xy",
        caption="Fits of sin 3x and its first two derivatives at once by the same random tanh units.",
    )


def target(x: Tensor) -> list[Tensor]:
    return [torch.sin(3 * x), 3 * torch.cos(3 * x), -9 * torch.sin(3 * x)]


def jets(activation: nn.Module, x: Tensor, weights: Tensor, biases: Tensor) -> list[Tensor]:
    """The units and their first two derivatives in x, by autograd, `[points, units]` each."""
    point = x[:, None].expand(-1, len(weights)).detach().requires_grad_()
    value = activation(weights * point + biases)
    (slope,) = torch.autograd.grad(value.sum(), point, create_graph=True)
    bend = torch.zeros_like(slope)
    if slope.requires_grad:
        (bend,) = torch.autograd.grad(slope.sum(), point)
    return [value.detach(), slope.detach(), bend.detach()]


def fitted(activation: nn.Module, weights: Tensor, biases: Tensor) -> tuple[float, ...]:
    """Largest errors of the fit that treats all three alike, at points between those of the fit."""
    fit_at, look_at = torch.linspace(-1, 1, 160).double(), torch.linspace(-0.995, 0.995, 399).double()
    rows = torch.cat(jets(activation, fit_at, weights, biases))
    goal = torch.cat(target(fit_at))
    outer = torch.linalg.lstsq(rows, goal[:, None], driver="gelsd").solution[:, 0]
    found = jets(activation, look_at, weights, biases)
    return tuple(float((f @ outer - y).abs().max()) for f, y in zip(found, target(look_at), strict=True))


def derivatives(run: Run, widths: tuple[int, ...]) -> list[tuple[float, ...]]:
    draws = 2 * run.rand(max(widths), 2) - 1
    weights, biases = 6 * draws[:, 0], 4 * draws[:, 1]
    smooth = [fitted(nn.Tanh(), weights[:w], biases[:w]) for w in widths]
    kinked = fitted(nn.ReLU(), weights, biases)
    says = run.states(
        "X-07, X-32", r"\text{tanh, density in } C^2: \text{ errors of } f,f',f'' \text{ over the sizes of } f,f',f''"
    )
    sizes = (1.0, 3.0, 9.0)
    says.equal([e / s for e, s in zip(smooth[-1], sizes, strict=True)], 0.0, 1e-3, where=f"{widths[-1]} random units")
    says.fails("ReLU units, whose second derivative is 0", [kinked[2] / 9.0] * 3)
    says = run.states("X-32", r"\text{ReLU: } \sup|f''-\Phi''|=\sup|f''|")
    says.equal(kinked[2], 9.0, 1e-3, where="the second derivative of a piecewise linear function is 0")
    says.fails("tanh units", smooth[-1][2])
    return smooth


def discrete(run: Run) -> None:
    x = torch.linspace(-1, 1, 101).double()
    y = torch.exp(-x) * torch.sin(4 * x)

    def error(denominator: int) -> float:
        """Whole inner weights up to 4, biases k/denominator up to 5."""
        weights = torch.arange(1, 5).double()
        biases = torch.arange(-5 * denominator, 5 * denominator + 1).double() / denominator
        pairs = torch.cartesian_prod(weights, biases)
        units = torch.tanh(x[:, None] * pairs[:, 0] + pairs[:, 1])
        return best_uniform_fit(torch.cat([units, torch.ones_like(units[:, :1])], 1), y).error

    says = run.states(
        "X-07", r"\text{whole inner weights, biases in } \tfrac1k\mathbb Z: \text{ the best fit tends to } f"
    )
    says.equal(error(2), 0.0, 1e-3, where="k = 2; least possible largest error at 101 points")
    units = torch.sin(x[:, None] * 0 + torch.arange(20))
    says.fails("the weight 0 alone, which is whole as well", best_uniform_fit(units, y).error)


def not_closed(run: Run) -> None:
    def distance(network: nn.Module) -> float:
        """∫(Φ - 1_{x>0})² over [-1, 1]: exact, the integrand being a parabola between its kinks."""
        layer = next(m for m in network.modules() if isinstance(m, nn.Linear))
        kinks = (-layer.bias / layer.weight[:, 0]).detach().double()
        # a piece that is listed twice has length 0
        ends = torch.cat([kinks, torch.tensor([-1.0, 0.0, 1.0]).double()]).clamp(-1, 1).sort().values
        left, right = ends[:-1], ends[1:]
        inside = torch.stack([left + (right - left) * t for t in (0.5 - 3**0.5 / 6, 0.5 + 3**0.5 / 6)])
        gap = network(inside.reshape(-1, 1)).detach().reshape(2, -1) - (inside > 0).double()
        return float((gap.square().mean(0) * (right - left)).sum())

    def ramp(start: float, steepness: float) -> nn.Module:
        """From 0 to 1 between `start` and `start + 1/steepness`: two units."""
        knots = torch.tensor([start, start + 1 / steepness]).double()
        return broken_line_network(knots, torch.tensor([0.0, 1.0]).double(), 0.0, 0.0)

    slopes = [1, 4, 16, 64, 256]
    ramps = [ramp(0.0, n) for n in slopes]
    says = run.states("A-27", r"\|n[\varrho(x)-\varrho(x-\tfrac1n)]-1_{x>0}\|_{L^2}^2=\tfrac1{3n}")
    says.equal([distance(net) for net in ramps], [1 / (3 * n) for n in slopes], 1e-9)
    centered = [ramp(-0.5 / n, n) for n in slopes]
    says.fails("ramps around 0, which are nearer", [distance(net) for net in centered])
    says = run.states(
        "A-27",
        r"\mathrm{Lip}(\Phi)\le B\Rightarrow\|\Phi-1_{x>0}\|_{L^2}^2\ge\tfrac1{12B}: \text{ no network is the limit}",
    )
    says.at_least([distance(net) for net in centered], [1 / (12 * n) for n in slopes], 1e-9)
    says.fails(
        "half of the slope that the network has",
        [distance(net) for net in centered],
        promised=[1 / (6 * n) for n in slopes],
    )
