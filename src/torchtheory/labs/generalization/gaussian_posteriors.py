"""Gaussian weights: their divergence, their noise, and how much of it a network bears."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits
from torchtheory.generalization.pac_bayes.bounds import KL, deviation_bound
from torchtheory.generalization.pac_bayes.divergences import gaussian_kl
from torchtheory.generalization.pac_bayes.flat_minima import Flatness, flatness
from torchtheory.generalization.pac_bayes.gaussian_prior import GaussianPrior, ScaleGrid
from torchtheory.generalization.pac_bayes.gibbs_risk import gibbs_risk
from torchtheory.generalization.pac_bayes.stochastic_network import (
    StochasticNetwork,
    fresh_initialization,
    spread_like,
)
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.feedforward import mlp
from torchtheory.training.loop.trainer import fit

FRACTIONS = tuple(2.0 ** (k / 4) for k in range(-16, 6))


@lab(
    "gaussian-posteriors",
    room="generalization",
    covers=["M-63", "M-65"],
    title="Weights as Gaussians: what their noise costs, and how much of it a network bears",
    full={"draws": 400_000, "samples": 1500, "epochs": 60},
    # a variance of n draws errs by √(2/n), and one of convolutions differs by 4 %; labels must be fitted
    least={"draws": 15_000, "samples": 100, "epochs": 30},
)
def gaussian_posteriors(run: Run, draws: int = 20_000, samples: int = 400, epochs: int = 40) -> None:
    """The divergence of diagonal Gaussians is checked against Monte Carlo, torch and autograd, and
    the price of choosing the prior's scale after the fact against the union bound that allows it.

    A dense layer's noise can be drawn where it arrives instead of on the weights: the same law, one
    draw a row. A convolution's cannot, since one filter serves all positions. Then the flatness
    probe: noise is turned up until a network of digits errs, once for true labels and once for
    random ones, and the noise it bears is turned into a bound. Look at where the two curves leave
    the ground.

    Args:
        draws: of Gaussian weights for the averages.
        samples: digits that the network is trained on.
        epochs: of its training.
    """
    divergence(run, draws)
    scales(run)
    local_noise(run, draws)
    curves = probes(run, samples, epochs)
    run.figure(
        "flatness",
        lambda axes: plot(axes, curves),
        caption="Error on the training data against the size of Gaussian noise on the weights, "
        "relative to each tensor's own root mean square; dots, the largest within the tolerance.",
    )


def divergence(run: Run, draws: int) -> None:
    """KL(Q‖P) in closed form."""
    d, scale = 20, 0.3
    mean, center = run.randn(d), run.randn(d)
    variance = (0.5 + 0.5 * run.randn(d)).exp()  # mostly above 1, so that a root does not pass for them
    exact = gaussian_kl(mean, variance, center, scale)

    def log_density_ratio(w: Tensor) -> Tensor:
        return _log_density(w, mean, variance) - _log_density(w, center, torch.full_like(mean, scale))

    log_ratio = log_density_ratio(mean + variance.sqrt() * run.randn(draws, d))
    says = run.states(
        "M-63",
        r"\mathrm{KL}(Q\|P)=\tfrac12\Bigl[\tfrac{\sum s_i}\lambda-D+\tfrac{\|\theta-\theta_0\|^2}"
        r"\lambda+D\ln\lambda-\sum\ln s_i\Bigr]=\mathbb E_Q\ln\tfrac{dQ}{dP}",
    )
    says.mean(
        log_ratio,
        float(exact),
        # standard deviations for variances; without the divergence of the means
        against=(
            float(gaussian_kl(mean, variance.sqrt(), center, scale)),
            float(gaussian_kl(center, variance, center, scale)),
        ),
        confidence=0.999,
    )
    from_prior = center + math.sqrt(scale) * run.randn(draws, d)
    says.fails("weights drawn from the prior, not from Q", log_density_ratio(from_prior))
    says = run.states("M-63", r"\mathrm{KL}(P\|P)=0")
    says.equal(float(gaussian_kl(center, torch.full_like(mean, scale), center, scale)), within=1e-12)
    says.fails("another mean", float(exact))
    logarithm = variance.log().requires_grad_()
    gaussian_kl(mean, logarithm.exp(), center, scale).backward()  # type: ignore[no-untyped-call]
    assert logarithm.grad is not None
    says = run.states("M-63", r"\partial\,\mathrm{KL}/\partial\ln s_i=\tfrac12(s_i/\lambda-1)")
    says.equal(logarithm.grad, (variance / scale - 1) / 2, 1e-12)
    says.fails("without the one half", logarithm.grad, promised=variance / scale - 1)


def _log_density(w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    squares = (w - mean).square() / variance
    return -0.5 * (squares + (2 * math.pi * variance).log()).sum(1)


def scales(run: Run) -> None:
    """The prior's scale, chosen afterwards and paid for."""
    grid = ScaleGrid(largest=0.1, precision=100)
    total = sum(math.exp(-grid.cost(j)) for j in range(1, 20_001))
    says = run.states("M-63", r"\textstyle\sum_j\delta_j\le\delta\text{ with }\delta_j=6\delta/(\pi^2j^2)")
    says.at_most(total, 1.0)
    says.fails("1/j for 1/j²", sum(1 / j for j in range(1, 20_001)))
    net = mlp([30, 40, 1], generator=run.generator)
    network = StochasticNetwork(net, spread=0.05)
    prior = GaussianPrior(fresh_initialization(net, 1).state_dict())
    settled = prior.settle(network)
    best = float(prior.divergence(network).detach())
    coarse = {k: ScaleGrid(precision=1.0) for k in prior.grids}
    prior.grids = coarse
    says = run.states("M-63", r"\text{the nearest scale of the grid }b=\sqrt D/4\text{ costs at most one nat a tensor}")
    says.at_most(settled.kl, best + len(network.names))
    says.fails("one point for every factor e", prior.settle(network).kl)


def local_noise(run: Run, draws: int) -> None:
    """The law of a layer's output under drawn weights and under local noise."""
    layer = nn.Linear(6, 3, dtype=torch.float64)
    network = StochasticNetwork(layer, spread=0.4, generator=run.generator)
    x = 0.5 + run.rand(1, 6)
    rows = network(x.expand(draws, -1), "local").detach()
    some = min(draws, 1500)
    drawn = torch.cat([network(x, "weights").detach() for _ in range(some)])
    exact = x.square() @ network.variances()["weight"].T + network.variances()["bias"]
    centered = (rows - layer(x).detach()).square()
    says = run.states("M-63", r"\textstyle\sum_iw_{ji}x_i\sim N(\sum_i\mu_{ji}x_i,\sum_is_{ji}x_i^2)")
    promised = float(exact[0, 0])
    # standard deviations for variances; without the bias; half of it
    against = (promised / 0.4, promised - 0.4**2, promised / 2)
    says.mean(centered[:, 0], promised, against=against, confidence=0.999)
    together = 0.4 * run.randn(draws) * float(x.sum() + 1)
    says.fails("one draw for all weights of a unit: they are not independent", together.square())
    says = run.states("M-63", r"\text{weights drawn one set at a time give the same variance}")
    says.mean(
        (drawn - layer(x).detach()).square()[:, 0], promised, against=(promised / 0.4, promised / 2), confidence=0.999
    )
    says.fails("one draw for all weights of a unit: they are not independent", together[:some].square())
    conv = nn.Conv1d(1, 1, 3, bias=False, dtype=torch.float64)
    noisy = StochasticNetwork(conv, spread=0.5, generator=run.generator)
    signal = torch.ones(some, 1, 5, dtype=torch.float64)
    clean = conv(signal).detach()
    local = noisy(signal, "local").detach() - clean
    whole = torch.cat([noisy(signal[:1], "weights").detach() for _ in range(some)]) - clean
    says = run.states("M-63", r"\text{one filter at all positions: the noise of two positions is correlated}")
    says.mean(
        whole[:, 0, 0] * whole[:, 0, 2],
        0.75,
        against=(0.0, 0.25, 1.5),  # independent; one weight in common; standard deviations
        confidence=0.999,
        where="a filter of three weights with variance 1/4, a constant input",
    )
    says.fails("noise drawn at the positions", local[:, 0, 0] * local[:, 0, 2])
    dense = StochasticNetwork(mlp([6, 5, 1], generator=run.generator), spread=0.1)
    convolution = StochasticNetwork(nn.Sequential(conv, nn.Flatten(), nn.Linear(3, 1).double()))
    says = run.states("M-63", r"\text{rows of their own are used only where they are exact: dense layers, once each}")
    says.equal(float(dense.independent_rows(run.randn(4, 6))), 1.0)
    says.fails("a convolution", float(convolution.independent_rows(signal[:4])))


def probes(run: Run, samples: int, epochs: int) -> dict[str, tuple[Flatness, float]]:
    """Noise until a network errs, for true and for random labels."""
    x, y = digits(torch.float64)
    order = torch.randperm(len(x), generator=run.generator)[:samples]
    x, true = x[order], (y[order] >= 5).long()
    random = torch.randint(0, 2, (samples,), generator=run.generator)
    start = mlp([64, 100, 1], generator=run.generator)
    found: dict[str, tuple[Flatness, float]] = {}
    for name, labels in (("true labels", true), ("random labels", random)):
        net = fresh_initialization(start, 3)
        initial = {k: p.detach().clone() for k, p in net.named_parameters()}
        fit(net, (x, labels), epochs=epochs, learning_rate=1e-2, batch_size=100)
        train = Problem(net, (x, labels)).train
        probe = flatness(net, train, tolerance=0.05, fractions=FRACTIONS, passes=4)
        if name == "true labels":
            wrong = Problem(net, (x, 1 - labels)).train
            reverse = flatness(net, wrong, tolerance=0.05, fractions=FRACTIONS, passes=4)
        found[name] = (probe, _flat_bound(net, initial, probe, train))
    flat, noisy = found["true labels"][0], found["random labels"][0]
    errors, reversed_ = torch.tensor(flat.errors), torch.tensor(reverse.errors)
    says = run.states("M-65", r"\text{the mean error does not fall from one size of the noise to the next}")
    says.at_least(errors.diff(), 0.0, 0.005, where="0.005 is the error of the estimate")
    says.fails("a network that errs on everything: trained on the other labels", reversed_.diff()[-4:])
    says = run.states("M-65", r"\text{true labels bear more noise than random ones}")
    says.above(flat.fraction - noisy.fraction, 0.0, where="noise borne, the difference")
    says.fails("random labels both times", noisy.fraction - noisy.fraction)
    says = run.states(
        "M-62, M-65", r"\text{the noise borne as posterior: the bound for true labels is below that for random}"
    )
    says.below(found["true labels"][1], found["random labels"][1])
    says.fails("random labels against themselves", found["random labels"][1])
    run.table(
        "flatness",
        ["labels", "error without noise", "noise borne", "PAC-Bayes bound"],
        [(k, f.error, f.fraction, b) for k, (f, b) in found.items()],
        caption="Noise is relative to each tensor's root mean square; the bound has the noise as "
        "posterior and a Gaussian around the random initialization as prior.",
    )
    return found


def _flat_bound(net: nn.Module, initial: dict[str, Tensor], probe: Flatness, train: Samples) -> float:
    """The bound at the posterior that the probe found."""
    network = StochasticNetwork(net, spread=probe.spread or spread_like(net, 1e-3))
    choice = GaussianPrior(initial).settle(network)
    risk = gibbs_risk(network, train, passes=4)
    return deviation_bound(KL, risk.upper, choice.kl + choice.cost, len(train), 0.025)


def plot(axes: Any, curves: dict[str, tuple[Flatness, float]]) -> None:
    for color, (name, (probe, _)) in zip(COLORS, curves.items(), strict=False):
        axes.semilogx(probe.fractions, probe.errors, "-", color=color, label=name)
        if probe.fraction:
            at = probe.errors[probe.fractions.index(probe.fraction)]
            axes.plot([probe.fraction], [at], "o", color=color)
    ticks = [0.0625, 0.125, 0.25, 0.5, 1.0, 2.0]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set(xlabel="noise, relative to each tensor", ylabel="mean error on the training data")
    axes.legend()
