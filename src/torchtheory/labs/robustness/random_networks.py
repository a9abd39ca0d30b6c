"""Random networks: their outputs are Gaussian, and one short gradient step flips their sign."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, clopper_pearson, lab
from torchtheory.nets.activations.moments import second_moment
from torchtheory.nets.feedforward import dense
from torchtheory.robustness.random_networks import (
    OneStep,
    flip_curve,
    flip_length_median,
    mean_squared_gradient,
    one_step_attack,
    random_steps,
    random_two_layer,
    sphere_points,
)
from torchtheory.robustness.robust_memorizer import robust_memorizer

ACTIVATIONS = ("relu", "tanh", "softplus")


@lab(
    "random-network-flips",
    room="robustness",
    covers=["M-151", "M-156", "M-157"],
    title="One gradient step of constant length flips the sign of a random network",
    errata=["flip-along-plus-gradient"],
    full={"networks": 10_000, "trials": 300, "size": 2000},
    least={"networks": 2_000, "trials": 12, "size": 12},
)
def random_network_flips(run: Run, networks: int = 8000, trials: int = 40, size: int = 300) -> None:
    """At initialization the output and its gradient are of order 1, however many the dimensions.

    So a step of constant length undoes the output, while inputs have the length √d: the relative
    perturbation falls like $d^{-1/2}$, and its size is predicted by two Gaussian integrals of the
    activation. The step has to go against the sign of the output; along the gradient, as printed,
    a positive output only grows.

    Args:
        networks: draws for the law of the output.
        trials: networks whose sign is flipped, for each activation.
        size: their width and dimension.
    """
    one = torch.ones((), dtype=torch.float64)

    # -- the law of the output; it does not depend on the dimension
    wide = {a: outputs(run, networks, 100, a) for a in ACTIVATIONS}
    says = run.states("M-151", r"\mathbb Ef(x)^2=\mathbb E\sigma(X)^2,\ X\sim\mathcal N(0,1)")
    for a in ACTIVATIONS:
        exact = float(second_moment(a, one))
        says.mean(wide[a].square(), exact, against=(0.7 * exact, 1.4 * exact), confidence=0.9999, where=a)
        says.fails("inputs of length 1.3 √d", outputs(run, networks, 100, a, stretch=1.3).square())
    scale = 1 / math.sqrt(float(second_moment("relu", one)))
    says = run.states("M-151", r"f(x)\to\mathcal N(0,\mathbb E\sigma(X)^2):\ \mathbb Ef^4/(\mathbb Ef^2)^2\to3")
    says.mean((scale * wide["relu"]) ** 4, 3.0, against=(1.8, 6.0), confidence=0.9999, where="ReLU, k = 100")
    narrow = outputs(run, networks, 1, "relu")
    says.fails("k = 1, not large", (scale * narrow) ** 4)
    says = run.states("M-151", r"\Pr(|f|\le0.6745\sqrt{\mathbb E\sigma^2})\to\tfrac12")
    inside = 0.6744897501960817 / scale
    says.mean((wide["relu"].abs() <= inside).double(), 0.5, against=(0.4, 0.6), confidence=0.9999)
    says.fails("k = 1, not large", (narrow.abs() <= inside).double())

    # -- the gradient
    spread = [3, 30, 300]
    squares = {d: gradients(run, 10 * trials, 50, d, "relu").square() for d in spread}
    says = run.states("M-156", r"\mathbb E\|\nabla f\|^2=\tfrac{d-1}d\mathbb E\sigma'^2+\tfrac1d\mathbb EX^2\sigma'^2")
    for d in spread:
        exact = mean_squared_gradient("relu", d)
        says.mean(squares[d], exact, against=(0.25, 1.0), confidence=0.9999, where=f"ReLU, d = {d}: 1/2 for every d")
    says.fails("all $w_j$ are the same vector, not independent, and $a_j$ = 1/√k", copies(run, 10 * trials, 50, 300))
    exact = mean_squared_gradient("tanh", 3)
    wrong = mean_squared_gradient("tanh", 10_000)
    says.mean(gradients(run, networks, 20, 3, "tanh").square(), exact, against=(wrong, 1.0), where="tanh, d = 3")

    # -- one step
    steps = {a: [one_network(run, size, size, a) for _ in range(trials)] for a in ACTIVATIONS}
    says = run.states("M-157", r"\Delta=-2f\nabla f/\|\nabla f\|^2:\ \Pr(f(x+\Delta)f(x)<0)\ge0.95")
    for a in ACTIVATIONS:
        flipped = torch.cat([s.success for s in steps[a]])
        says.at_least(
            share(flipped),
            0.95,
            loose="the theorem's constants are not given, and failures vanish as k and d grow",
            where=f"{a}, k = d = {size}",
        )
        if a == "relu":
            single = [one_network(run, 1, size, a) for _ in range(trials)]
            says.fails("k = 1, not large", share(torch.cat([s.success for s in single])))
    says = run.states("M-157", r"\text{median of }\|\Delta\|\to1.349\sqrt{\mathbb E\sigma^2/\mathbb E\sigma'^2}")
    for a in reversed(ACTIVATIONS):
        drawn = random_steps(30 * trials, 60, 60, a, generator=run.generator)
        says.mean(
            (drawn.lengths <= flip_length_median(a)).double(),
            0.5,
            against=(0.3, 0.7),
            confidence=0.9999,
            where=f"{a}, k = d = 60",
        )
    longer = random_steps(30 * trials, 60, 60, "relu", length=2.5 * math.sqrt(60), generator=run.generator)
    says.fails("inputs of length 2.5 √d", (longer.lengths <= flip_length_median("relu")).double())

    grid = [20, 28, 40, 57, 80, 113, 160, 226, 320]
    curves = {
        a: flip_curve(grid, 60, a, trials=n * trials, generator=run.generator)
        for a, n in (("relu", 1), ("tanh", 12), ("softplus", 1))
    }
    says = run.states("M-157", r"\|\Delta\|/\|x\|\sim d^{-1/2}")
    medians = [i.estimate for i in curves["tanh"].relative]
    says.slope(grid, medians, -0.5, 0.05, against=(-1.0, 0.0), where="tanh, k = 60")
    made = [explicit_step(run, d) for d in grid]
    says.fails(
        "weights are not drawn, but made of the inputs: the explicit robust network",
        grid,
        [float(s.relative.median()) for s in made],
    )

    printed = run.refutes(
        "flip-along-plus-gradient",
        r"\exists\eta>0:\ \Pr(f(x+\eta\nabla f)\,f(x)<0)\ge1-\gamma",
    )
    printed.share(
        along_gradient(run, 2 * trials, 60),
        0.9,
        where="tanh, k = d = 60, γ = 0.1: any of 30 steps η from a hundredth to a hundred times 2|f|/‖∇f‖²",
    )
    says = run.states("M-157", r"f(x)>0:\ \Pr(f(x+\eta\nabla f)<0\text{ for some }\eta>0)")
    says.at_most(float(along_gradient(run, 2 * trials, 60, positive=True).double().mean()), 0.0)

    run.curves(
        "relative",
        grid,
        {a: curves[a].relative for a in ACTIVATIONS},
        {a: curves[a].predicted for a in ACTIVATIONS},
        axes=("dimensions", "‖Δ‖/‖x‖ (median)"),
        log="xy",
        caption="The step that flips a random network, relative to its input: measured at width 60 (marks), and "
        "predicted from two integrals of the activation (dashed).",
    )
    small = [2, 4, 8, 16, 32, 64]
    rates = {f"{a}, k = {k}": flip_curve(small, k, a, trials=trials, generator=run.generator).success
             for a, k in (("relu", 10), ("relu", 100), ("tanh", 100))}  # fmt: skip
    run.curves(
        "success",
        small,
        rates,
        {"0.95": [0.95] * len(small)},
        axes=("dimensions", "signs flipped by one step"),
        log="x",
        ylim=(0, 1.05),
        caption="How often the step that would do for a linear function flips a random network.",
    )


def outputs(run: Run, count: int, width: int, function: str, stretch: float = 1.0) -> Tensor:
    """f(x) of independent networks, each at its own input of length √d, or longer."""
    return random_steps(count, width, 4, function, length=2 * stretch, generator=run.generator).before


def gradients(run: Run, count: int, width: int, dimension: int, function: str) -> Tensor:
    return random_steps(count, width, dimension, function, generator=run.generator).gradient_norms


def copies(run: Run, count: int, width: int, dimension: int) -> Tensor:
    """Squared gradient norms of networks all of whose units are one."""
    found = []
    for _ in range(count):
        one = random_two_layer(1, dimension, "relu", generator=run.generator)[0]
        assert isinstance(one, nn.Linear)
        alike = nn.Sequential(
            dense(one.weight.detach().expand(width, -1)),
            nn.ReLU(),
            dense(torch.full((1, width), width**-0.5, dtype=torch.float64)),
        )
        found.append(one_step_attack(alike, sphere_points(1, dimension, run.generator)).gradient_norms)
    return torch.cat(found).square()


def one_network(run: Run, width: int, dimension: int, function: str) -> OneStep:
    """One step on a network of its own."""
    net = random_two_layer(width, dimension, function, generator=run.generator)
    return one_step_attack(net, sphere_points(1, dimension, run.generator))


def share(flags: Tensor) -> object:
    return clopper_pearson(int(flags.sum()), len(flags), 0.999)


def explicit_step(run: Run, dimension: int) -> OneStep:
    """The same step at the samples of the explicit robust network."""
    made = robust_memorizer(sphere_points(20, dimension, run.generator), run.signs(20))
    return one_step_attack(made.network, made.samples)


def along_gradient(run: Run, count: int, size: int, positive: bool = False) -> Tensor:
    """Whether any step along +∇f flips the sign, for all networks or those of positive output."""
    multiples: Sequence[float] = torch.logspace(-2, 2, 30).tolist()
    found = []
    for _ in range(count):
        net = random_two_layer(size, size, "tanh", generator=run.generator)
        x = sphere_points(1, size, run.generator)
        first = one_step_attack(net, x)
        if positive and first.before < 0:
            continue
        # the step against the sign goes along -∇f where the output is positive, else along +∇f
        up = (first.moved - x) * -first.before.sign()
        far = x + torch.tensor(multiples, dtype=torch.float64)[:, None] * up
        with torch.no_grad():
            signs = net(far)[:, 0].sign()
        found.append((signs * first.before.sign() < 0).any())
    return torch.stack(found)
