"""A layer with as many units as samples fits any labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits
from torchtheory.kernels.infinite.wide_convergence import squared_risk
from torchtheory.kernels.infinite.wide_layer import (
    LayerRank,
    fit_last_layer,
    last_layer_path,
    layer_ranks,
)
from torchtheory.labs.engine import Run, lab
from torchtheory.models.model import PureFunction, flatten
from torchtheory.nets.activations.table import Pointwise


@lab(
    "wide-layer-fits-anything",
    room="kernels",
    covers=["A-120"],
    title="A layer with as many units as samples makes them independent, and any labels fit",
    full={"samples": 400, "draws": 50},
    least={"samples": 10, "draws": 1},
)
def wide_layer_fits_anything(run: Run, samples: int = 60, draws: int = 10) -> None:
    """Handwritten digits with coin-flip labels go through networks with random weights.

    After a layer of at least as many units as samples, with an analytic activation that is no
    polynomial, the images are linearly independent vectors. The last layer then solves for any
    labels, and on the straight line to that solution the risk falls like (1 - t)². The networks
    are an ordinary dense one, a deep one and a convolutional one. Look at the rank after every
    layer, and at what happens with one unit too few or with a polynomial activation.

    Args:
        samples: digits that are fitted.
        draws: of the weights.
    """
    pixels, _ = digits(torch.float64)
    x = pixels[torch.randperm(len(pixels), generator=run.generator)[:samples]]
    y = run.signs(samples)
    independence(run, x, draws)
    rows = any_labels(run, x, y)
    risks = straight_path(run, x, y)
    widths, ranks, errors = narrow_and_wide(run, x, y)
    run.table(
        "ranks",
        ["network", "layer", "width", "rank", "smallest singular value"],
        rows,
        caption=f"Rank of the features of {samples} digits after every layer, random weights",
    )
    run.figure(
        "independence",
        lambda axes: plot_independence(axes, samples, widths, ranks, errors, risks),
        caption="Left: with as many units as samples the features have full rank and the error of "
        "the solved last layer is rounding. Right: on the way there the risk falls like (1 - t)².",
        grid=(1, 2),
    )


def randomized(run: Run, model: nn.Module) -> nn.Module:
    """The module in double precision with normal weights of variance 1 / fan-in, from the run."""
    model = model.double()
    with torch.no_grad():
        for value in model.parameters():
            fan_in = value[0].numel() if value.ndim > 1 else 1
            value.copy_(run.randn(*value.shape) / fan_in**0.5)
    return model


def dense_network(run: Run, width: int, activation: nn.Module) -> nn.Module:
    return randomized(run, nn.Sequential(nn.Linear(64, width), activation, nn.Linear(width, 1)))


def deep_network(run: Run, width: int) -> nn.Module:
    return randomized(
        run,
        nn.Sequential(nn.Linear(64, 30), nn.Tanh(), nn.Linear(30, width), nn.Tanh(), nn.Linear(width, 1)),
    )


def convolutional_network(run: Run, channels: int) -> nn.Module:
    return randomized(
        run,
        nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, channels, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(36 * channels, 1),
        ),
    )


def independence(run: Run, x: Tensor, draws: int) -> None:
    """Full rank at every draw of the weights, for analytic activations."""
    m = len(x)
    ranks, low = [], []
    for _ in range(draws):
        analytic = (nn.Tanh(), nn.Sigmoid(), nn.Softplus())
        ranks += [layer_ranks(dense_network(run, m, a), x)[1].rank for a in analytic]
        low.append(layer_ranks(dense_network(run, m, nn.Identity()), x)[1].rank)
    says = run.states(
        "A-120",
        r"\text{a layer of } m \text{ units and an analytic activation that is no polynomial: } \operatorname{rank}=m",
    )
    says.equal(ranks, m, where=f"tanh, logistic and softplus, {draws} draws each")
    says.fails("the identity: the rank is at most that of the inputs", low)
    line = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    cubes = Pointwise(lambda z: z**3, "cube")
    cubic = randomized(run, nn.Sequential(nn.Linear(1, 200), cubes, nn.Linear(200, 1)))
    bent = randomized(run, nn.Sequential(nn.Linear(1, 200), nn.Tanh(), nn.Linear(200, 1)))
    says = run.states(
        "A-120", r"\varrho \text{ a polynomial of degree } 3,\ d=1:\ \operatorname{rank}\le4 \text{ at any width}"
    )
    says.at_most(layer_ranks(cubic, line)[1].rank, 4, where="20 points on a line, 200 units")
    says.fails("tanh, which is none", layer_ranks(bent, line)[1].rank)


def any_labels(run: Run, x: Tensor, y: Tensor) -> list[tuple[str, str, int, int, float]]:
    """The last layer solves for the labels, in three architectures."""
    m = len(x)
    channels = -(-m // 36)
    networks = {
        "dense": dense_network(run, m, nn.Tanh()),
        "deep": deep_network(run, m),
        "convolutional": convolutional_network(run, channels),
    }
    narrow = fit_last_layer(dense_network(run, m // 2, nn.Tanh()), x, y)
    fits = {name: fit_last_layer(net, x, y) for name, net in networks.items()}
    says = run.states(
        "A-120", r"\text{independent features: a last layer with } \Phi(x^{(i)})=y^{(i)} \text{: largest difference}"
    )
    says.equal(
        [fit.residual for fit in fits.values()],
        within=1e-8,
        where="coin-flip labels; a dense, a deep and a convolutional network",
    )
    says.fails("half as many units as samples", narrow.residual)
    says = run.states("A-120", r"\text{the network with that last layer has risk } 0")
    says.equal(
        [float(squared_risk(fit.model, x, y)(flatten(PureFunction(fit.model).parameters))) for fit in fits.values()],
        within=1e-15,
    )
    says.fails(
        "half as many units as samples",
        squared_risk(narrow.model, x, y)(flatten(PureFunction(narrow.model).parameters)),
    )
    found: dict[str, list[LayerRank]] = {name: layer_ranks(net, x) for name, net in networks.items()}
    return [
        (name, layer.layer, layer.width, layer.rank, layer.smallest)
        for name, layers in found.items()
        for layer in layers[:-1]
    ]


def straight_path(run: Run, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The risk on the line to the solution, and on a line in all parameters."""
    t = torch.linspace(0, 1, 41, dtype=torch.float64)
    net = deep_network(run, len(x))
    risks = last_layer_path(net, x, y, t)
    risk = squared_risk(net, x, y)
    start = flatten(PureFunction(net).parameters)
    end = flatten(PureFunction(fit_last_layer(deep_network(run, len(x)), x, y).model).parameters)
    across = torch.stack([risk((1 - float(s)) * start + float(s) * end) for s in t])
    says = run.states("A-120", r"r(t)=(1-t)^2\,r(0) \text{ on the straight line in the last layer}")
    says.equal(risks, (1 - t).square() * risks[0], 1e-9)
    says.fails("a straight line in all layers", across)
    says = run.states("A-120", r"\text{a monotone path to risk } 0: \text{ largest increase } \max_t\,r(t+h)-r(t)\le0")
    says.at_most(risks.diff().max(), 0)
    says.fails("a straight line in all layers", across.diff().max())
    return {"t": t, "last": risks, "all": across}


def narrow_and_wide(run: Run, x: Tensor, y: Tensor) -> tuple[list[int], list[int], list[float]]:
    """Rank and residual over the width."""
    m = len(x)
    widths = [max(2, round(m * share)) for share in (0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0)]
    ranks, errors = [], []
    for width in widths:
        net = dense_network(run, width, nn.Tanh())
        ranks.append(layer_ranks(net, x)[1].rank)
        errors.append(fit_last_layer(net, x, y).residual)
    return widths, ranks, errors


def plot_independence(
    axes: Any,
    samples: int,
    widths: list[int],
    ranks: list[int],
    errors: list[float],
    risks: dict[str, Tensor],
) -> None:
    left, right = axes[0]
    left.plot(widths, ranks, "o-", label="rank of the features")
    left.axhline(samples, color="black", ls=":", label="number of samples")
    left.set(xlabel="units in the hidden layer", ylabel="rank", ylim=(0, 1.25 * samples))
    twin = left.twinx()
    twin.semilogy(widths, errors, "s--", color="#D55E00", label="largest error left")
    twin.set_ylabel("largest error left")
    twin.grid(False)
    lines = left.get_lines() + twin.get_lines()
    left.legend(lines, [line.get_label() for line in lines], loc="center right")
    right.semilogy(risks["t"], risks["last"], label="straight line in the last layer")
    right.semilogy(risks["t"], risks["all"], "--", label="straight line in all layers")
    right.set(xlabel="position t", ylabel="risk", ylim=(1e-4 * float(risks["last"][0]), None))
    right.legend()
