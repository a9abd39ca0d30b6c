"""What the trainer minimizes: with weight decay, with early stopping, and for a network."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab, mean_interval
from torchtheory.labs.training.empirical_risk import Law, linear
from torchtheory.training.loop.early_stopping import EarlyStopping
from torchtheory.training.loop.history import History
from torchtheory.training.loop.trainer import fit
from torchtheory.training.losses.risks import empirical_risk


@lab(
    "trainer",
    room="training",
    covers=["N-122", "N-123", "N-125", "A-01", "A-16"],
    title="Weight decay minimizes a penalized risk; early stopping keeps the best epoch",
    errata=["weight-decay-pushes-away", "penalty-weight-as-radius"],
    full={"dimension": 20, "samples": 2000, "repeats": 30},
    least={"samples": 30, "repeats": 4},
)
def trainer(run: Run, dimension: int = 6, samples: int = 120, repeats: int = 6) -> None:
    """What `fit` minimizes is checked against problems whose answer is known.

    A step with weight decay is a step on the penalized objective, for SGD and for Adam and not
    for AdamW; its limit for a linear model is the ridge solution, the MAP estimate, and the
    solution of a constrained problem whose radius is not the penalty's weight. Rescaling two
    layers against each other changes the penalty and not the function. Early stopping keeps
    the best validation epoch. Look at the curves: validation turns up where the training
    loss still falls.

    Args:
        dimension: of the inputs.
        samples: of the data.
        repeats: trainings with early stopping.
    """
    law = Law(run.randn(dimension), 0.5, 0.7)
    weight_decay(run, law, samples)
    penalized(run, law, samples)
    network(run)
    early_stopping(run, repeats)


def weight_decay(run: Run, law: Law, samples: int) -> None:
    """The decay step, the penalized objective, and which of them an optimizer takes."""
    data = law.sample(samples, run.generator)
    start = nn.Sequential(nn.Linear(len(law.weight), 5), nn.Tanh(), nn.Linear(5, 1)).double()
    for p in start.parameters():
        nn.init.normal_(p, std=0.5, generator=run.generator)
    rate, decay, epochs = 0.05, 0.3, 5

    def distance(name: str) -> float:
        """Between the trainer's decay and the same optimizer on the penalized objective."""
        ours, theirs = copy.deepcopy(start), copy.deepcopy(start)
        fit(ours, data, epochs=epochs, batch_size=samples, optimizer=name, learning_rate=rate,
            weight_decay=decay)  # fmt: skip
        bare = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.Adam}[name]
        optimizer = bare(theirs.parameters(), lr=rate)
        x, y = data
        for _ in range(epochs):
            optimizer.zero_grad()
            penalty = sum((p.square().sum() for p in theirs.parameters()), start=torch.tensor(0.0))
            loss = F.mse_loss(theirs(x).squeeze(1), y) + decay / 2 * penalty
            torch.autograd.backward(loss)
            optimizer.step()
        return max(
            float((a - b).detach().abs().max()) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
        )

    says = run.states(
        ["N-122", "N-123"],
        r"\theta - \eta(\nabla\ell + \mu\theta) \text{ is a gradient step on } "
        r"\ell + \tfrac\mu2\|\theta\|^2: \ \text{largest difference of the weights (SGD, Adam)}",
    )
    says.equal([distance("sgd"), distance("adam")], within=1e-11)
    says.fails("AdamW, which shrinks the weights beside the step", distance("adamw"))

    still = copy.deepcopy(start)
    fit(still, data, epochs=7, batch_size=samples, optimizer="sgd", learning_rate=rate,
        weight_decay=decay, loss=lambda outputs, y: 0 * outputs.sum())  # fmt: skip
    first, last = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (start, still))
    says = run.states("N-122", r"\nabla\ell = 0: \quad \theta_t = (1-\eta\mu)^t\,\theta_0")
    says.equal(last, (1 - rate * decay) ** 7 * first, 1e-12)
    says.fails("the decay is left out", first)
    says = run.refutes(
        "weight-decay-pushes-away",
        r"\nabla\ell = 0: \quad \|\theta_t - \eta(\nabla\ell - \mu\theta_t)\| < \|\theta_t\|",
    )
    says.below(
        float((first - rate * (0 - decay * first)).norm()),
        float(first.norm()),
        where="as printed the step moves away from the origin",
    )

    x, y = data
    m = samples

    def ridge(mu: float) -> Tensor:
        """Minimizer of the mean squared error plus (mu/2)|θ|²."""
        gram = 2 / m * x.T @ x + mu * torch.eye(x.shape[1], dtype=x.dtype)
        solution: Tensor = torch.linalg.solve(gram, 2 / m * x.T @ y)
        return solution

    strengths = [0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0]
    radii = torch.stack([ridge(mu).norm() for mu in strengths])
    says = run.states("N-123", r"\mu \mapsto \|\theta^\star_\mu\| \text{ is decreasing}")
    says.below(radii[1:], radii[:-1])
    says.fails("the same in reverse", radii[:-1], promised=radii[1:])
    # the constrained problem of radius c(mu), by projected gradients
    mu = 1.0
    radius = float(ridge(mu).norm())
    theta = torch.zeros_like(law.weight)
    for _ in range(500):
        theta = theta - 0.2 * (2 / m * x.T @ (x @ theta - y))
        theta = theta * min(1.0, radius / float(theta.norm()))
    says = run.states(
        "N-123",
        r"\arg\min \ell + \tfrac\mu2\|\theta\|^2 = "
        r"\arg\min\{\ell : \|\theta\| \le c\} \text{ with } c = \|\theta^\star_\mu\|",
    )
    says.equal(theta, ridge(mu), 1e-8)
    says.fails("another penalty", theta, promised=ridge(2 * mu))
    run.refutes(
        "penalty-weight-as-radius",
        r"\text{the minimizer of } \ell + \tfrac\mu2\|\theta\|^2 \text{ satisfies } \|\theta\| \le \mu",
    ).at_most(radii[1:4], strengths[1:4], where="a small μ is a weak penalty, so the norm is large")
    # Bayes: minus log posterior of the Gaussian model, minimized by Newton's one step
    precision, variance = 0.8, law.noise**2
    theta = torch.zeros_like(law.weight).requires_grad_()

    def posterior(t: Tensor) -> Tensor:
        return (x @ t - y).square().sum() / (2 * variance) + precision / 2 * t.square().sum()

    (slope,) = torch.autograd.grad(posterior(theta), theta)
    curvature = torch.func.hessian(posterior)(theta.detach())
    says = run.states(
        "N-123", r"\text{ridge is the MAP estimate: } \mu = 2\sigma^2\lambda/m \text{ for prior precision } \lambda"
    )
    says.equal(ridge(2 * variance * precision / m), -torch.linalg.solve(curvature, slope), 1e-10)
    says.fails("a prior with another precision", ridge(4 * variance * precision / m))


def penalized(run: Run, law: Law, samples: int) -> None:
    """The ridge solution, and what the penalty sees that the function does not."""
    x, y = law.sample(samples, run.generator)
    zero = torch.zeros_like(law.weight)

    def trained(epochs: int, penalty: float) -> Tensor:
        model = linear(zero)
        fit(model, (x, y), epochs=epochs, batch_size=samples, optimizer="sgd", learning_rate=0.2,
            weight_decay=2 * penalty)  # fmt: skip
        return model.weight.detach().squeeze(0)

    def normal(penalty: float) -> Tensor:
        gram = x.T @ x + penalty * torch.eye(x.shape[1], dtype=x.dtype)
        solution: Tensor = torch.linalg.solve(gram, x.T @ y)
        return solution

    alpha = 0.3
    says = run.states("A-16", r"\arg\min_\theta \hat R_s + \alpha\|\theta\|^2 = (X^\top X + m\alpha I)^{-1}X^\top Y")
    says.equal(trained(200, alpha), normal(samples * alpha), 1e-8)
    says.fails("the factor m is forgotten", trained(200, alpha), promised=normal(alpha))
    net = nn.Sequential(nn.Linear(x.shape[1], 6), nn.ReLU(), nn.Linear(6, 1)).double()
    for p in net.parameters():
        nn.init.normal_(p, generator=run.generator)

    def rescaled(factor: float) -> nn.Sequential:
        other = copy.deepcopy(net)
        inner, inner_bias, outer, _ = other.parameters()
        with torch.no_grad():
            inner.mul_(factor)
            inner_bias.mul_(factor)
            outer.div_(factor)
        return other

    def penalty(model: nn.Module) -> float:
        return sum(float(p.detach().square().sum()) for p in model.parameters())

    factors = (0.25, 0.5, 2.0, 4.0)
    with torch.no_grad():
        moved = [float((rescaled(c)(x) - net(x)).abs().max()) for c in factors]
    says = run.states("A-16", r"c > 0: \quad \Phi(x; cW_1, cb_1, W_2/c) = \Phi(x; W_1, b_1, W_2)")
    says.equal(moved, within=1e-12)
    says.fails("only the first layer is rescaled", _scaled_first(net, x))
    says = run.states(
        "A-16",
        r"\text{... yet the penalty } \alpha\|\theta\|^2 \text{ changes: } \big|\,\|\theta_c\|^2 - \|\theta\|^2\big|",
    )
    rounding = 1e-9
    says.above([abs(penalty(rescaled(c)) - penalty(net)) - rounding for c in factors], 0)
    says.fails("c = 1", abs(penalty(rescaled(1.0)) - penalty(net)) - rounding)


def network(run: Run) -> None:
    """A network is the formula, and training one draws a boundary."""
    x, y = moons(240, run)
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)).double()
    for p in net.parameters():
        nn.init.normal_(p, std=0.5, generator=run.generator)
    misled, hasty = copy.deepcopy(net), copy.deepcopy(net)
    *_, last_bias = (p.detach() for p in net.parameters())

    def formula(x: Tensor) -> Tensor:
        w1, b1, w2, b2, w3, b3 = (p.detach() for p in net.parameters())
        h = (w1 @ x.T + b1[:, None]).clamp(min=0)
        h = (w2 @ h + b2[:, None]).clamp(min=0)
        return (w3 @ h + b3[:, None]).T

    train = x[:160], y[:160]
    history = fit(net, train, epochs=60, batch_size=32, learning_rate=0.02)
    fit(misled, (train[0], 1 - train[1]), epochs=60, batch_size=32, learning_rate=0.02)
    fit(hasty, train, epochs=3, batch_size=32, learning_rate=0.02)
    with torch.no_grad():
        outputs = net(x)
    says = run.states("A-01", r"\Phi(x,\theta) = W^{(3)}\varrho(W^{(2)}\varrho(W^{(1)}x+b^{(1)})+b^{(2)})+b^{(3)}")
    says.equal(outputs, formula(x), 1e-12)
    says.fails("the last bias is left out", formula(x) - last_bias)
    fresh = (x[160:], y[160:])
    says = run.states(
        "A-01",
        r"\text{trained by SGD on } \hat R_s, \text{ the network does better on fresh samples than "
        r"the best constant: } R(\Phi) < \log 2",
    )
    says.below(
        [empirical_risk(model, fresh).value for model in (net, hasty)], math.log(2), where="after 60 epochs and after 3"
    )
    says.fails("the two classes are exchanged in training", empirical_risk(misled, fresh).value)
    run.figure(
        "boundary",
        lambda axes: plot_boundary(axes, net, x, y, history),
        caption="A network trained on two moons: its loss, and the probability it gives to the "
        "second class. Rings are training samples, dots are fresh ones.",
        grid=(1, 2),
    )


def early_stopping(run: Run, repeats: int) -> None:
    """Patience on a sequence, and on regressions with as many weights as samples."""
    stopping = EarlyStopping(patience=2)
    stops = [stopping.update(e) for e in (5, 4, 3, 3, 3)]
    impatient = EarlyStopping(patience=1)
    early = [impatient.update(e) for e in (5, 4, 3, 3, 3)]
    says = run.states("N-125", r"\text{errors } 5,4,3,3,3 \text{ with patience } 2: \text{ stop after check } 5")
    says.equal(stops.index(True) + 1, 5)
    says.fails("patience 1", early.index(True) + 1)
    run.states("N-125", r"\text{... and the best is check } 3").equal([stopping.best_check, impatient.best_check], 3)

    weight = run.randn(60) / 60**0.5
    noisy, noiseless = Law(weight, 0.0, 1.5), Law(weight, 0.0, 0.0)
    trainings = [stopped_and_not(noisy, seed, run.generator) for seed in range(repeats)]
    still = [stopped_and_not(noiseless, seed, run.generator) for seed in range(repeats)]
    says = run.states(
        "N-125", r"\text{the weights kept are those of the best validation epoch: difference of the loss}"
    )
    says.equal([t.kept for t in trainings], within=1e-12)
    says.fails("training went on to the last epoch", [t.not_kept for t in trainings])
    gain, no_gain = (mean_interval([t.gain for t in ts], 0.99) for ts in (trainings, still))
    says = run.states("N-125", r"\text{noisy regression: } \log R(\text{last epoch}) - \log R(\text{early stop}) > 0")
    says.above(gain.low, 0, where=f"the lower end of a 99% interval over {repeats} samples")
    says.fails("targets without noise", no_gain.low)
    first = trainings[0]
    run.curves(
        "early-stopping",
        range(1, len(first.long) + 1),
        {
            "training loss": first.long.train_losses,
            "validation loss": [float(v) for v in first.long.validation_losses if v is not None],
            "true risk": first.risks,
        },
        axes=("epoch", "squared error"),
        log="x",
        at={"kept": first.short.kept_epoch, "stopped": len(first.short)},
        caption="Noisy linear regression with as many weights as samples. The training loss falls "
        "for ever; validation and true risk have a minimum, and patience finds it.",
    )


@dataclass(frozen=True)
class Stopped:
    """A training to the last epoch and one with patience, on the same data.

    Attributes:
        long, short: their histories; risks: the exact risk after each epoch of the long one.
        gain: logarithm of the risk at the end over that of the weights patience kept.
        kept, not_kept: how far the validation loss of either is from the best epoch's.
    """

    long: History
    short: History
    risks: list[float]
    gain: float
    kept: float
    not_kept: float


def stopped_and_not(law: Law, seed: int, generator: torch.Generator) -> Stopped:
    dimension = n = len(law.weight)
    train, validation = law.sample(n, generator), law.sample(150, generator)
    risks: list[float] = []

    def watch(model: nn.Module, _: History) -> None:
        risks.append(float(law.risk(next(model.parameters()).detach().squeeze(0))))

    settings: dict[str, Any] = {
        "validation": validation,
        "epochs": 150,
        "batch_size": n,
        "optimizer": "sgd",
        "learning_rate": 0.03,
        "seed": seed,
    }
    full, stopped = (linear(torch.zeros(dimension, dtype=torch.float64)) for _ in range(2))
    long = fit(full, train, callbacks=[watch], **settings)
    short = fit(stopped, train, patience=10, **settings)
    best = min(v for v in short.validation_losses if v is not None)
    final, kept = (empirical_risk(m, validation).value for m in (full, stopped))
    gain = math.log(risks[-1] / float(law.risk(stopped.weight.detach().squeeze(0))))
    return Stopped(long, short, risks, gain, abs(kept - best), abs(final - best))


# ------------------------------------------------------------------------------------- drawing


def plot_boundary(axes: Any, net: nn.Module, x: Tensor, y: Tensor, history: History) -> None:
    loss, picture = axes[0]
    loss.plot(range(1, len(history) + 1), history.train_losses, label="training loss")
    loss.plot(range(1, len(history) + 1), history.train_errors, label="training error")
    loss.set(xlabel="epoch", yscale="log")
    loss.legend()
    low, high = x.min(0).values - 0.4, x.max(0).values + 0.4
    a = torch.linspace(float(low[0]), float(high[0]), 80, dtype=x.dtype)
    b = torch.linspace(float(low[1]), float(high[1]), 60, dtype=x.dtype)
    grid = torch.stack(torch.meshgrid(a, b, indexing="xy"), 2)
    with torch.no_grad():
        p = net(grid.reshape(-1, 2)).softmax(1)[:, 1].reshape(grid.shape[:2])
    shown = picture.contourf(a, b, p, levels=20, cmap="RdBu_r", alpha=0.4, vmin=0, vmax=1)
    picture.contour(a, b, p, levels=[0.5], colors=COLORS[6], linewidths=1)
    for c, color in ((0, COLORS[0]), (1, COLORS[1])):
        fit_part, rest = x[:160][y[:160] == c], x[160:][y[160:] == c]
        picture.scatter(*fit_part.T, s=14, facecolors="none", edgecolors=color, linewidths=0.9)
        picture.scatter(*rest.T, s=7, color=color)
    picture.set(xlabel="x₁", ylabel="x₂")
    picture.grid(False)
    picture.figure.colorbar(shown, ax=picture, label="P(second class)", ticks=[0, 0.5, 1])


def moons(n: int, run: Run) -> tuple[Tensor, Tensor]:
    """Two interleaved half circles with noise."""
    angle = torch.pi * run.rand(n)
    y = torch.randint(0, 2, (n,), generator=run.generator)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    return torch.where(y[:, None] == 0, upper, lower) + 0.12 * run.randn(n, 2), y


def _scaled_first(net: nn.Sequential, x: Tensor) -> float:
    other = copy.deepcopy(net)
    with torch.no_grad():
        next(other.parameters()).mul_(2)
        return float((other(x) - net(x)).abs().max())
