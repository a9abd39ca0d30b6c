"""The law of a trained model over its random initialization."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from torchtheory.kernels.infinite.dense import limit_kernels
from torchtheory.kernels.tangent.dynamics import KernelTraining
from torchtheory.kernels.tangent.laws import law_of_training
from torchtheory.labs.engine import COLORS, Interval, Run, fit_slope, lab, mean_interval
from torchtheory.primer.gaussians import Gaussian
from torchtheory.training.many.networks import fit_many

CONFIDENCE = 0.999

#: Steepness of the hidden units: the larger, the rougher the functions, and the more of them
#: they need to be close to their limit.
STEEPNESS = 4.0


class WideNetwork(nn.Module):
    r"""$f(x)=N^{-1/2}\sum_kv_k\,\mathrm{erf}(w_k\cdot\tilde x)$, $\tilde x=s(x,1)$,
    all parameters standard Gaussian (the tangent parametrization) and all of them trained."""

    def __init__(self, width: int, generator: torch.Generator, steepness: float = STEEPNESS) -> None:
        super().__init__()
        self.steepness = steepness
        draw = torch.randn(width, 3, dtype=torch.float64, generator=generator)
        self.hidden = nn.Parameter(draw[:, :2].clone())
        self.output = nn.Parameter(draw[:, 2].clone())

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.erf(lifted(x, self.steepness) @ self.hidden.mT)
        return hidden @ self.output.unsqueeze(-1) / math.sqrt(self.output.shape[-1])


def lifted(x: Tensor, steepness: float) -> Tensor:
    """Inputs `[n, 1]` as `[n, 2]`, with a 1 behind, scaled."""
    return steepness * torch.cat([x, torch.ones_like(x)], -1)


def wide_kernels(x: Tensor, steepness: float = STEEPNESS) -> tuple[Tensor, Tensor]:
    r"""Covariance $\Sigma$ and tangent kernel $\Theta$ of infinitely wide networks."""
    limit = limit_kernels(
        lifted(x, steepness),
        depth=2,
        activation="erf",
        weight_variance=1.0,
        scaling="unscaled_input",
    )
    return limit.nngp, limit.ntk


@dataclass(frozen=True)
class Line:
    """Training points, their targets and a grid, as columns; all points are train, then grid."""

    x: Tensor
    y: Tensor
    grid: Tensor

    @property
    def points(self) -> Tensor:
        return torch.cat([self.x, self.grid])


@lab(
    "law-of-a-trained-model",
    room="kernels",
    covers=["M-10", "M-11", "M-12"],
    title="Over its random start a trained model is a Gaussian process",
    errata=[
        "feature-law-without-scale",
        "trained-law-without-transposition",
        "trained-law-shift-of-training-points",
    ],
    full={"features": 1000, "members": 20_000, "networks": 100, "width": 2048, "epochs": 120},
    least={"features": 8, "members": 500, "networks": 30, "width": 500, "epochs": 40},
)
def law_of_a_trained_model(
    run: Run,
    features: int = 100,
    members: int = 4000,
    networks: int = 80,
    width: int = 1024,
    epochs: int = 80,
) -> None:
    """Ensembles of models that differ in their random start only, fitted to five points.

    For a feature model the laws before, during and after training are those of the kernel, and
    after training that is Gaussian process regression. A wide network trained in all layers
    starts with one kernel and learns with another, and its final variance is neither kernel's
    posterior. Look at the last figure: thin lines are trained networks, the thick line and the
    band are the mean and two standard deviations in closed form.

    Args:
        features: random features of the linear model.
        members: draws of its start.
        networks: wide networks in the ensemble.
        width: of these networks.
        epochs: of their training.
    """
    x = torch.tensor([-1.8, -1.0, 0.1, 0.9, 1.7], dtype=torch.float64)[:, None]
    y = torch.tensor([0.6, -0.5, 0.2, 0.7, -0.3], dtype=torch.float64)
    line = Line(x, y, torch.linspace(-2.5, 2.5, 40, dtype=torch.float64)[:, None])
    phi = torch.tanh(line.points * 2 * run.randn(features) + run.randn(features))
    phi = phi / math.sqrt(features)
    initial_law(run, phi, members)
    sampled = trained_features(run, line, phi, members)
    averages(run, line, phi)
    ensemble = wide_ensemble(run, line, networks, width, epochs)
    run.figure(
        "ensemble",
        lambda axes: plot_ensembles(axes, line, sampled, ensemble),
        caption="Thin: members of an ensemble. Thick and shaded: mean and two standard "
        "deviations in closed form. Left and middle: networks before and after training in all "
        "layers; right: a feature model after training.",
        grid=(1, 3),
        size=(13, 3.6),
    )


def worst_score(values: Tensor, promised: Tensor, error: Tensor) -> Tensor:
    """The largest deviation in units of its standard error."""
    return ((values - promised).abs() / error).max()


def score_limit(count: int) -> float:
    """What the largest of so many normal scores exceeds with probability 1 - CONFIDENCE at most."""
    return float(stats.norm.isf((1 - CONFIDENCE) / (2 * count)))


def initial_law(run: Run, phi: Tensor, members: int) -> None:
    """The law at initialization, given the features."""
    kernel = phi @ phi.T
    theta = run.randn(phi.shape[1], members)
    start = phi @ theta
    points = range(0, len(phi), 5)
    pairs = [(i, j) for i in points for j in points if i <= j]
    rows, columns = torch.tensor(pairs).T
    products = start[rows] * start[columns]
    own = kernel.diagonal()
    error = ((own[rows] * own[columns] + kernel[rows, columns].square()) / members).sqrt()
    limit = score_limit(len(pairs) + len(phi))
    halved = 0.5 * products
    says = run.states(
        "M-10",
        r"\theta_0\sim N(0,I):\ \mathbb E f(x,\theta_0)=0,\ "
        r"\mathrm{Cov}[f(x,\theta_0),f(x',\theta_0)]=K(x,x'): \text{ largest standard score}",
    )
    says.at_most(
        torch.stack(
            [
                worst_score(products.mean(1), kernel[rows, columns], error),
                worst_score(start.mean(1), torch.zeros_like(own), (own / members).sqrt()),
            ]
        ),
        limit,
        where=f"{members} draws, {len(pairs)} covariances and {len(phi)} means; exceeded with "
        f"probability {1 - CONFIDENCE:g} at most",
    )
    says.fails("θ has variance ½", worst_score(halved.mean(1), kernel[rows, columns], error))
    directions = run.randn(5, len(phi))
    spread = (directions @ kernel * directions).sum(1).sqrt()
    # one scale for all parameters of a draw: uncorrelated, but not independent Gaussians
    scaled = start * run.randn(members).abs() * math.sqrt(math.pi / 2)

    def distances(values: Tensor) -> list[float]:
        """The largest distance of each distribution function from the normal one."""
        projections = (directions @ values / spread[:, None]).numpy()
        return [float(stats.kstest(each, "norm").statistic) for each in projections]

    says = run.states("M-10", r"\sum_ia_if(x_i,\theta_0)\sim N(0,a^\top Ka): \text{ Kolmogorov's distance}")
    says.at_most(
        distances(start),
        math.sqrt(math.log(2 * len(directions) / (1 - CONFIDENCE)) / (2 * members)),
        where=f"{members} draws, {len(directions)} random projections; probability above it {1 - CONFIDENCE:g} at most",
    )
    says.fails("all parameters of a draw share a random scale", distances(scaled))
    law = law_of_training(kernel, torch.ones(1, dtype=torch.float64), 0.0)
    says = run.states("M-10", r"\text{the law at time 0 is } N(0,K): \text{ largest difference}")
    says.equal((law.covariance - kernel).abs().max(), within=1e-9)
    says.fails(
        "at time 0.1",
        (law_of_training(kernel, torch.ones(1, dtype=torch.float64), 0.1).covariance - kernel).abs().max(),
    )
    run.refutes("feature-law-without-scale", r"\mathrm{var}\,\theta_0^\top\phi(x)=K(x,x)").mean(
        (math.sqrt(phi.shape[1]) * start[0]).square(),
        float(kernel[0, 0]),
        confidence=CONFIDENCE,
        where=f"p = {phi.shape[1]} features: the variance is p K(x,x)",
    )


def trained_features(run: Run, line: Line, phi: Tensor, members: int) -> tuple[Tensor, Gaussian]:
    """The law of the feature model during and after training, and members that have it."""
    kernel, n = phi @ phi.T, len(line.y)
    start = phi @ run.randn(phi.shape[1], members)
    targets = line.y[:, None].expand(n, members)
    training = KernelTraining(kernel[:n, :n], targets, start[:n])

    def members_at(time: float) -> Tensor:
        return training.test(kernel[n:, :n], time, start[n:])

    def scores(values: Tensor, law: Gaussian) -> Tensor:
        """The largest standard score of means and of variances."""
        variance = law.covariance.diagonal()[n:]
        return torch.stack(
            [
                worst_score(values.mean(1), law.mean[n:], (variance / members).sqrt()),
                worst_score(values.var(1), variance, variance * math.sqrt(2 / members)),
            ]
        ).max()

    final, limit = members_at(math.inf), score_limit(2 * len(line.grid))
    law = law_of_training(kernel, line.y)
    weights = torch.linalg.solve(kernel[:n, :n], kernel[:n, n:]).T
    posterior = kernel[n:, n:] - weights @ kernel[:n, n:]
    says = run.states(
        "M-11",
        r"\mathbb E f(x,\theta_\infty)=K(x,X)K(X,X)^{-1}y,\ \mathrm{var}=K(x,x)-"
        r"K(x,X)K(X,X)^{-1}K(X,x): \text{ largest standard score}",
    )
    says.at_most(
        scores(final, law),
        limit,
        where=f"{members} members on {len(line.grid)} points, mean and variance; exceeded with "
        f"probability {1 - CONFIDENCE:g} at most",
    )
    says.fails("trained until t = 1 only", scores(members_at(1.0), law))
    early = law_of_training(kernel, line.y, 1.0)
    says = run.states(
        "M-11", r"\text{at } t=1 \text{ the law is the affine image by } e^{-Kt}: \text{ largest standard score}"
    )
    says.at_most(scores(members_at(1.0), early), limit)
    says.fails("members trained to the end", scores(final, early))
    says = run.states(
        "M-11", r"\text{the law at } t=\infty \text{ is noise-free Gaussian process regression: largest difference}"
    )
    says.equal(
        torch.stack([(law.mean[n:] - weights @ line.y).abs().max(), (law.covariance[n:, n:] - posterior).abs().max()]),
        within=1e-7,
    )
    says.fails("the law at t = 1", (early.covariance[n:, n:] - posterior).abs().max())
    says = run.states("M-11", r"\mathrm{var}\,f(x_i,\theta_\infty)=0 \text{ at the training points}")
    says.equal(torch.stack([law.covariance.diagonal()[:n].max(), training.train(math.inf).var(1).max()]), within=1e-12)
    says.fails("at t = 1", early.covariance.diagonal()[:n].max())
    # the training points in reversed order: as many test points, where everything is known
    square = kernel[:n, :n]
    across = square.flip(0)
    printed = square.flip(0, 1) - across @ torch.linalg.solve(square, across)
    run.refutes(
        "trained-law-without-transposition", r"\mathrm{var}\,f(x,\theta_\infty)=K(x,x)-K(x,X)K(X,X)^{-1}K(x,X)"
    ).equal(
        printed.diagonal(),
        training.train(math.inf).var(1).flip(0),
        1e-9,
        where="x are the training points in reversed order: every member passes through them",
    )
    run.refutes("trained-law-shift-of-training-points", r"f(X,\theta_\infty)=0\cdot f(X,\theta_0)+0").equal(
        training.train(math.inf).mean(1),
        torch.zeros(n, dtype=torch.float64),
        1e-9,
        where="the mean over the members after training is y",
    )
    return torch.cat([training.train(math.inf), final]), law


def averages(run: Run, line: Line, phi: Tensor) -> None:
    """The mean of M members approaches the kernel's mean like 1/√M."""
    kernel, n = phi @ phi.T, len(line.y)
    sizes, groups = [4, 8, 16, 32, 64, 128, 256], 40
    law = law_of_training(kernel, line.y)
    influence = KernelTraining(kernel[:n, :n], line.y).influence(kernel[n:, :n], math.inf)

    def deviation(size: int, center: float) -> float:
        """How far the mean of so many members is from that of the law, in the mean square."""
        start = phi @ (center + run.randn(phi.shape[1], groups * size))
        final = start[n:] + influence @ (line.y[:, None] - start[:n])
        means = final.reshape(len(line.grid), groups, size).mean(2)
        return float((means - law.mean[n:, None]).square().mean().sqrt())

    slope = fit_slope(sizes, [deviation(size, 0.0) for size in sizes])
    shifted = fit_slope(sizes, [deviation(size, 1.0) for size in sizes])
    says = run.states("M-12", r"\|\tfrac1M\sum_jf_j-\mathbb E f\|\propto M^{-1/2}: \text{ exponent}")
    says.slope(slope, -0.5, against=(-1.0, -0.25, 0.0), where=f"ensembles of {sizes} members, {groups} of each")
    says.fails("the parameters start around 1 instead of 0", shifted)


@dataclass(frozen=True)
class WideEnsemble:
    """Trained wide networks on all points, before and after, with the laws of the limit."""

    start: Tensor
    final: Tensor
    first_law: Gaussian
    last_law: Gaussian


def wide_ensemble(run: Run, line: Line, count: int, width: int, epochs: int) -> WideEnsemble:
    """Wide networks trained in all layers, against the law with two kernels."""
    n, points = len(line.y), line.points
    covariance, tangent = wide_kernels(points)
    models = [WideNetwork(width, run.generator) for _ in range(count)]
    training = KernelTraining(tangent[:n, :n], line.y, rate=2 / n)
    result = fit_many(
        models,
        (line.x, line.y[:, None]),
        epochs=epochs,
        batch_size=n,
        optimizer="sgd",
        learning_rate=0.5 * training.stability_limit(),
        task="regression",
    )
    with torch.no_grad():
        start = torch.stack([model(points).flatten() for model in models])
        final = torch.stack([result.network(k)(points).flatten() for k in range(count)])
    law = law_of_training(tangent, line.y, initial=covariance)
    weights = torch.linalg.solve(tangent[:n, :n], tangent[:n, n:]).T
    cross = weights @ covariance[:n, n:]
    terms = covariance[n:, n:] + weights @ covariance[:n, :n] @ weights.T - cross - cross.T
    posterior = {
        "Σ": law_of_training(covariance, line.y),
        "Θ": law_of_training(tangent, line.y),
    }
    says = run.states(
        "M-12",
        r"\text{trained in all layers: } \mathrm{Cov}=\Sigma_{xx}+\Theta_{xX}\Theta^{-1}\Sigma_{XX}\Theta^{-1}"
        r"\Theta_{Xx}-2\,\Theta_{xX}\Theta^{-1}\Sigma_{Xx}: \text{ largest difference}",
    )
    says.equal((law.covariance[n:, n:] - terms).abs().max(), within=1e-7)
    says.fails("the posterior of Σ instead", (posterior["Σ"].covariance[n:, n:] - terms).abs().max())
    says = run.states("M-12", r"\text{all members pass through the data: largest } |f(x_i)-y_i|")
    says.equal(
        (final[:, :n] - line.y).abs().max(),
        within=1e-2,
        where=f"{count} networks of width {width}, {epochs} steps of gradient descent",
    )
    says.fails("before training", (start[:, :n] - line.y).abs().max())
    first = Gaussian(torch.zeros_like(law.mean), covariance)
    # near the data the law's variance is below what a finite width adds
    variance = law.covariance.diagonal()
    far = (variance > variance.max() / 10).nonzero().flatten()

    def mean_score(values: Tensor, of: Gaussian) -> Tensor:
        spread = (of.covariance.diagonal()[far] / count).sqrt()
        return worst_score(values[:, far].mean(0), of.mean[far], spread)

    says = run.states(
        "M-12",
        r"\text{an ensemble of wide networks starts with mean 0 and ends with mean } "
        r"\Theta_{xX}\Theta^{-1}y: \text{ largest standard score}",
    )
    says.at_most(
        torch.stack([mean_score(start, first), mean_score(final, law)]),
        score_limit(2 * len(far)),
        where=f"{count} networks of width {width} on {len(far)} points; exceeded with "
        f"probability {1 - CONFIDENCE:g} at most, up to the finite width",
    )
    says.fails(
        "the mean of trained networks is 0", mean_score(final, Gaussian(torch.zeros_like(law.mean), law.covariance))
    )

    def ratio(values: Tensor, of: Gaussian) -> Interval:
        """Mean over points and members of the squared standardized deviation."""
        part = values[:, far] - of.mean[far]
        scaled = part.square() / of.covariance.diagonal()[far]
        return mean_interval(scaled.mean(1), confidence=CONFIDENCE)

    def confused(truth: Gaussian, of: Gaussian) -> float:
        """What the ratio would be under another law."""
        second = truth.covariance.diagonal()[far] + (truth.mean - of.mean)[far].square()
        return float((second / of.covariance.diagonal()[far]).mean())

    learned = Gaussian(first.mean, tangent)
    for values, of, words, wrong, broken, rivals in (
        (start, first, r"\text{before training } \Sigma", law, "the law after training", (law, learned)),
        (
            final,
            law,
            r"\text{after training the three terms}",
            posterior["Θ"],
            "the posterior of Θ",
            (first, *posterior.values()),
        ),
    ):
        measured, control = ratio(values, of), ratio(values, wrong)
        says = run.states("M-12", words + r": \text{ mean of } (f(x)-\mathbb E f(x))^2/\mathrm{var}\,f(x)")
        others = [confused(other, of) for other in rivals]
        says.mean(
            measured, 1, 0.05, against=others, where=f"{count} networks of width {width}; 5 % are for the finite width"
        )
        says.fails(broken, control)
    rows = []
    for x in (0, 4, 16, 23, 35, 39):
        at = n + x
        rows.append(
            [
                float(line.grid[x]),
                float(final[:, at].mean()),
                float(law.mean[at]),
                float(final[:, at].std()),
                *(float(v.covariance[at, at].sqrt()) for v in (law, *posterior.values())),
            ]
        )
    run.table(
        "wide-networks",
        ["x", "mean", "mean, law", "deviation", "law", "posterior of Σ", "posterior of Θ"],
        rows,
        caption=f"{count} networks of width {width} trained in all layers, and three candidates "
        "for their standard deviation.",
    )
    return WideEnsemble(start, final, first, law)


def plot_ensembles(axes: Any, line: Line, sampled: tuple[Tensor, Gaussian], wide: WideEnsemble) -> None:
    order = line.points.flatten().argsort()
    x = line.points.flatten()[order]
    panels = (
        (wide.start, wide.first_law, "wide networks, before"),
        (wide.final, wide.last_law, "wide networks, trained"),
        (sampled[0].T, sampled[1], "feature model, trained"),
    )
    for axis, (values, law, title) in zip(axes[0], panels, strict=True):
        for member in values[:25]:
            axis.plot(x, member[order], color=COLORS[3], linewidth=0.6, alpha=0.6)
        mean, spread = law.mean[order], law.covariance.diagonal()[order].sqrt()
        axis.fill_between(x, mean - 2 * spread, mean + 2 * spread, color=COLORS[0], alpha=0.15)
        axis.plot(x, mean, color=COLORS[0], linewidth=2.4)
        axis.plot(line.x.flatten(), line.y, "ko", markersize=4, zorder=5)
        axis.set(xlabel="x", ylabel="f(x)", title=title)
