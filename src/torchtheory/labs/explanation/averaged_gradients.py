"""Gradients averaged over noise and over a path: unbiased, of known variance, and complete."""

from __future__ import annotations

import math

import torch
from scipy import special
from torch import Tensor, nn

from torchtheory.explanation.explanation import flat
from torchtheory.explanation.methods.gradients import gradient_times_input, integrated_gradients, smooth_gradient
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.activations.table import as_layer
from torchtheory.nets.feedforward import dense, mlp

SIGMA = 0.7


@lab(
    "averaged-gradients",
    room="explanation",
    covers=["C-13", "C-14", "C-15"],
    title="Averages of gradients: over noise they are unbiased, over a path they are complete",
    full={"trials": 20_000, "samples": 200, "width": 64},
    least={"trials": 800, "samples": 15},
)
def averaged_gradients(run: Run, trials: int = 3000, samples: int = 40, width: int = 16) -> None:
    """Gradient times input, SmoothGrad and integrated gradients against what they promise.

    Gradient times input adds up to the score of a network of ReLUs without biases. SmoothGrad
    estimates the gradient of the score smoothed by a Gaussian, without bias, with a variance that
    falls as 1/n. Integrated gradients add up to the difference of scores, up to the error of the
    quadrature, which falls as fast as the score is smooth along the path.

    Args:
        trials: independent estimates by SmoothGrad.
        samples: inputs of networks.
        width: of their hidden layers.
    """
    dimension = 5
    x = run.randn(samples, dimension)
    bare = mlp([dimension, width, width, 1], "relu", bias=False, generator=run.generator)
    biased = mlp([dimension, width, width, 1], "relu", generator=run.generator)
    says = run.states("C-13", r"\text{ReLU, no biases}:\ \sum_ix_i\,\partial_if(x)=f(x)")
    says.equal(gradient_times_input(bare, x).total, score(bare, x), 1e-9)
    says.fails("there are biases", gradient_times_input(biased, x).total, promised=score(biased, x))

    # -- SmoothGrad
    # three features, away from the kink by different multiples of the noise
    point = torch.tensor([-0.5, 0.3, 0.9], dtype=torch.float64)
    relu = as_layer(lambda t: t.relu().sum(1))
    jumping = as_layer(lambda t: t.relu().sum(1) + (t > 0).to(t).sum(1))
    copies = point.expand(trials, -1)
    found = smooth_gradient(relu, copies, sigma=SIGMA, samples=20, generator=run.generator)
    broken = smooth_gradient(jumping, copies, sigma=SIGMA, samples=20, generator=run.generator)
    for i, place in enumerate(point.tolist()):
        says = run.states(
            "C-14", rf"f=\sum_i\mathrm{{ReLU}}(x_i):\ E\,R_i=\partial_i\,E f(x+\nu)=\Phi(x_i/\sigma),\ x_i={place}"
        )
        smoothed = float(special.ndtr(place / SIGMA))
        density = math.exp(-((place / SIGMA) ** 2) / 2) / math.sqrt(2 * math.pi) / SIGMA
        others = (float(place > 0), float(special.ndtr(place)))
        says.mean(found.flat[:, i], smoothed, against=others, confidence=0.9999)
        says.fails("a score that jumps at 0, where its gradient sees nothing", broken.flat[:, i],
                   promised=smoothed + density)  # fmt: skip
    counts = [10, 14, 20, 28, 40, 57, 80, 113, 160, 226, 320]
    wave = as_layer(lambda t: t.sin().sum(1))
    root = as_layer(lambda t: (t.sign() * (t.abs() + 1e-300) ** (1 / 3)).sum(1))
    zero = torch.zeros(trials, 1, dtype=torch.float64)
    spreads = {
        "sine": [spread(run, wave, zero + 0.7, n) for n in counts],
        "cube root": [spread(run, root, zero, n) for n in counts],
    }
    says = run.states("C-14", r"\text{squared spread of }R_i\sim n^{-1}")
    says.slope(counts, spreads["sine"], -1.0, 0.05, against=(-0.5, -1.5))
    says.fails("the cube root at 0, whose gradient has no variance", counts, spreads["cube root"])
    parabola = as_layer(lambda t: t.square().sum(1) / 2)  # with Gaussian gradients x + ν
    many = zero.expand(-1, 24)  # features of one input, whose noise is independent
    gaussian = smooth_gradient(parabola, many, sigma=SIGMA, samples=20, generator=run.generator)
    assert gaussian.error is not None
    says = run.states(
        "C-14", r"f=x^2/2:\ E\bigl((R-x)/\text{standard error}\bigr)^2=\tfrac{n-1}{n-3}\text{, as Student's t}"
    )
    # 1 for a spread that is known, 20/17 for one divided by n in place of n - 1
    says.mean((gaussian.flat / flat(gaussian.error)).square(), 19 / 17, against=(1.0, 20 / 17), confidence=0.9999)
    w = run.randn(dimension)
    says = run.states("C-14", r"f=w\cdot x:\ R=w\text{ from any number of draws}")
    says.equal(noisy(run, dense(w[None]), x), w.expand(samples, -1), 1e-12)
    says.fails("w·x through tanh", noisy(run, nn.Sequential(dense(w[None]), nn.Tanh()), x))

    # -- integrated gradients
    start = run.randn(samples, dimension)
    says = run.states(
        "C-15", r"f\text{ of degree }2k\text{ on the path}:\ \sum_iR_i=f(x)-f(b)\text{ from }k\text{ nodes}"
    )
    says.equal(polynomial_gaps(w, x, start, 0), 0.0, 1e-10)
    says.fails("degree 2k + 1", polynomial_gaps(w, x, start, 1))
    smooth = mlp([dimension, width, width, 1], "tanh", generator=run.generator)
    steps = [4, 6, 8, 12, 16, 24, 32, 48, 64]
    gaps = {
        f"{name}, {rule}": [gap(net, 2 * x, s, rule) for s in steps]
        for name, net in (("tanh", smooth), ("ReLU", biased))
        for rule in ("midpoint", "gauss")
    }
    says = run.states("C-15", r"\text{midpoints, smooth score}:\ f(x)-f(b)-\sum_iR_i\sim\text{steps}^{-2}")
    says.slope(steps, gaps["tanh, midpoint"], -2.0, 0.15, against=(-1.0, -3.0))
    says.fails("ReLUs, so that the gradient jumps on the path", steps, gaps["ReLU, midpoint"])
    run.curves(
        "completeness",
        steps,
        {k: [max(v, 1e-17) for v in values] for k, values in gaps.items()},
        axes=("points on the path", "what is missing in the sum"),
        log="xy",
        beside=True,
        caption="Completeness of integrated gradients by number of gradients (root mean square over inputs): for a "
        "smooth network Gauss' nodes need few; for ReLUs the gradient jumps and no rule is fast.",
    )
    run.curves(
        "spread",
        counts,
        {"sine": spreads["sine"], "cube root at 0": spreads["cube root"]},
        {"1/n": [spreads["sine"][0] * counts[0] / n for n in counts]},
        axes=("draws of noise", "squared spread between estimates"),
        log="xy",
        caption="How SmoothGrad settles down: squared distance between the quartiles of independent estimates.",
    )


def score(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        values: Tensor = net(x)[:, 0]
    return values


def spread(run: Run, net: nn.Module, x: Tensor, count: int) -> float:
    """The squared distance between the quartiles of estimates for equal inputs."""
    found = smooth_gradient(net, x, sigma=SIGMA, samples=count, generator=run.generator).flat[:, 0]
    low, high = found.quantile(0.25), found.quantile(0.75)
    return float((high - low) ** 2)


def noisy(run: Run, net: nn.Module, x: Tensor) -> Tensor:
    return smooth_gradient(net, x, sigma=SIGMA, samples=3, generator=run.generator).flat


def polynomial_gaps(w: Tensor, x: Tensor, start: Tensor, more: int) -> Tensor:
    """What is missing with k nodes, for scores of degree 2k + `more`, relative to the scores."""
    found = []
    for k in (1, 2, 4):
        net = as_layer(lambda t, k=k: (t @ w / 3) ** (2 * k + more))
        made = integrated_gradients(net, x, baseline=start, steps=k)
        assert made.gap is not None
        found.append(made.gap / (made.score.abs() + made.total.abs()))
    return torch.cat(found)


def gap(net: nn.Module, x: Tensor, steps: int, rule: str) -> float:
    """Root mean square of what is missing in the sums."""
    made = integrated_gradients(net, x, steps=steps, rule=rule)  # type: ignore[arg-type]
    assert made.gap is not None
    return float(made.gap.square().mean().sqrt())
