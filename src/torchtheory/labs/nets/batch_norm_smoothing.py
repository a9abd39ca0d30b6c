"""Batch normalization: first and second derivatives under it, and how fast training gets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.intervals import mean_interval
from torchtheory.data.real import digits
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.batch_norm_smoothing import (
    LayerSmoothing,
    NormalizedBatch,
    batch_norm_gradient,
    batch_norm_gradient_norm,
    batch_norm_jacobian,
    batch_norm_second_derivative,
    batch_norm_smoothing,
)
from torchtheory.nets.feedforward import drawn_linear
from torchtheory.nets.normalization import standardize
from torchtheory.nets.residual.image_resnets import resnet9
from torchtheory.training import fit
from torchtheory.training.loop.state import Diverged

EXACT = 1e-10


@lab(
    "batch-norm-smoothing",
    room="nets",
    covers=["A-139"],
    errata=["batch-norm-gradient-place"],
    title="Batch normalization takes two directions out of every gradient and scales the rest by γ/σ",
    full={"batch": 64, "cases": 20},
    least={"batch": 3},
)
def batch_norm_smoothing_lab(run: Run, batch: int = 12, cases: int = 6) -> None:
    """Jacobian, gradient and Hessian of a loss behind batch normalization, against autograd.

    The gradient loses its mean and its component along the normalized batch, and is multiplied by
    γ/σ; the Hessian gets terms of its own from the curvature of the normalization. Then the same
    at every normalization of networks that are trained: a dense one and a small ResNet9 on the
    8 × 8 digits. There the projections take away a few percent, and gradients get longer, not
    shorter, since γ is larger than σ: smoothing is no more than the formula says. The source takes
    the gradient at the batch; it belongs at the normalized batch.

    Args:
        batch: samples in a batch.
        cases: random cases that the formulas are checked on.
    """
    formulas(run, batch, cases)
    found = real_losses(run)
    run.table(
        "layers",
        ["network", "layer", "|γ|/s", "gradient after", "before", "mean takes", "own direction takes", "curvature"],
        [
            (name, s.layer, s.scale, s.after, s.before, s.mean_share, s.own_share, s.curvature)
            for name, layers in found.items()
            for s in layers
        ],
        caption="Gradient of the training loss on a batch of digits, in the outputs of every normalization (after) "
        "and in its inputs (before); the shares that the two projections take of its square.",
    )
    run.figure(
        "shares",
        lambda axes: plot_shares(axes, found),
        caption="Left: what the projections take of the squared gradient. Right: lengths of the gradients in the "
        "inputs of each normalization (before) and in its outputs (after).",
        grid=(1, 2),
        size=(10.5, 3.4),
    )


def formulas(run: Run, batch: int, cases: int) -> None:
    """Random batches, losses that are not quadratic, γ of both signs, with δ and without."""
    batches = [3 * run.randn(batch) + run.randn(1) for _ in range(cases)]
    target = run.randn(batch)
    matrix = run.randn(batch, batch)

    def loss(z: Tensor) -> Tensor:
        return torch.logsumexp(matrix @ z, 0) + (z - target).square().sum() + torch.sin(z[0] * z[1])

    settings = [(float(run.randn(1)), float(run.randn(1)), eps) for eps in (0.0, 0.3) for _ in range(cases)]
    made: dict[str, list[Tensor]] = {}
    for b, (gamma, beta, eps) in zip(batches * 2, settings, strict=True):
        for name, value in derivatives(loss, b, gamma, beta, eps).items():
            made.setdefault(name, []).append(value)
    kept = {name: torch.stack(values) for name, values in made.items()}

    says = run.states(
        "A-139",
        r"\frac{\partial\mathcal B}{\partial b}"
        r"=\frac\gamma{\sigma_b}\bigl(I-\tfrac1m\mathbf1\mathbf1^\top-\tfrac1m\hat B\hat B^\top\bigr)",
    )
    says.equal(kept["jacobian"], kept["autograd jacobian"], EXACT, where="against autograd, with δ = 0 and δ = 0.3")
    says.fails(
        "statistics that do not depend on the batch", kept["frozen jacobian"], promised=kept["autograd jacobian"]
    )
    hats = torch.stack([NormalizedBatch.of(b).normalized for b in batches])
    blurred = torch.stack([NormalizedBatch.of(b, 0.3).normalized for b in batches])
    says = run.states("A-139", r"\{\mathbf1/\sqrt m,\hat B/\sqrt m\}\text{ is orthonormal}")
    says.equal(frame_gap(hats), within=EXACT, where="entries of the Gram matrix minus those of I")
    says.fails("δ = 0.3", frame_gap(blurred))
    says = run.states(
        "A-139",
        r"\|\nabla(r\circ\mathcal B)(b)\|^2=\frac{\gamma^2}{\sigma_b^2}\bigl(\|G\|^2-\tfrac1m\langle\mathbf1,G\rangle^2"
        r"-\tfrac1m\langle\hat B,G\rangle^2\bigr),\ G=\nabla r(\mathcal B(b))",
    )
    says.equal(kept["norm"], kept["autograd norm"], EXACT, where="with δ the last term has the factor 2 - σ²/(σ² + δ)")
    says.fails("no projection along the normalized batch", kept["norm without one"], promised=kept["autograd norm"])
    printed = [
        gradient_at_the_batch(loss, b, gamma, beta) for b, (gamma, beta, _) in zip(batches, settings, strict=False)
    ]
    run.refutes(
        "batch-norm-gradient-place",
        r"\|\nabla(r\circ\mathcal B)(b)\|^2=\frac{\gamma^2}{\sigma_b^2}\bigl(\|\nabla r(b)\|^2-\cdots\bigr)",
    ).equal(torch.stack(printed), kept["autograd norm"][:cases], 1e-6, where="the gradient of r at b")
    along = [aligned(run, batch) for _ in range(cases)]
    says = run.states("A-139", r"\|\nabla(r\circ\mathcal B)(b)\|\le\frac{|\gamma|}{\sigma_b}\|G\|")
    says.at_most(
        torch.cat([kept["autograd norm"][:cases].sqrt(), torch.tensor([a[0] for a in along]).double()]),
        torch.cat([kept["bound"][:cases], torch.tensor([a[1] for a in along]).double()]),
        1e-12,
        where="random losses, and linear ones orthogonal to both directions, where it is attained",
    )
    says.fails("running statistics, of half the deviation", [a[2] for a in along], promised=[a[1] for a in along])
    says = run.states(
        "A-139",
        r"\nabla^2(r\circ\mathcal B)v=\frac{\gamma^2}{\sigma_b^2}PHPv-\frac\gamma{m\sigma_b^2}"
        r"\bigl[PG\,\hat B^\top v+\hat B(PG)^\top v+\langle\hat B,G\rangle Pv\bigr]",
    )
    says.equal(kept["second"], kept["autograd second"], EXACT, where="against autograd twice, with δ and without")
    says.fails(
        "the first term alone: normalization taken as linear", kept["first term"], promised=kept["autograd second"]
    )


def real_losses(run: Run) -> dict[str, list[LayerSmoothing]]:
    """The formulas at the layers of trained networks."""
    x, y = digits(torch.float64)
    chosen = torch.randperm(len(x), generator=run.generator)[:256]
    x, y = x[chosen], y[chosen]
    nets: dict[str, tuple[nn.Module, Tensor]] = {
        "dense": (dense_network(run.generator, "normalized").double(), x),
        "resnet9": (resnet9(1, 10, width=2, generator=run.generator).double(), x.reshape(-1, 1, 8, 8)),
    }
    found = {}
    for name, (net, inputs) in nets.items():
        fit(net, (inputs, y), epochs=2, batch_size=64, optimizer="adam", seed=run.seed)
        found[name] = batch_norm_smoothing(net, (inputs[:64], y[:64]))
    layers = [s for some in found.values() for s in some]
    says = run.states(
        "A-139", r"\|\nabla(r\circ\mathcal B)\|\text{ by the formula, at every layer of a trained network}"
    )
    says.equal([s.before / s.predicted for s in layers], 1.0, 1e-8, where="a dense network and ResNet9, digits")
    says.fails("no projections", [s.before / s.bound for s in layers])
    says = run.states("A-139", r"v^\top\nabla^2(r\circ\mathcal B)v\text{ along the gradient, by the formula}")
    measured = torch.tensor([s.curvature for s in layers])
    predicted = torch.tensor([s.predicted_curvature for s in layers])
    behind = torch.tensor([s.scale**2 * s.curvature_after for s in layers])
    size = measured.abs().clamp(min=1e-12)
    says.equal(predicted / size, measured / size, 1e-6, where="relative to its size")
    says.fails("the curvature behind the normalization, times γ²/s²", behind / size)
    return found


@lab(
    "batch-norm-speed",
    room="nets",
    covers=["A-138"],
    errata=["batch-norm-scalar-parameters"],
    title="Batch normalization: what it computes, and how many times faster training gets",
    full={"samples": 640, "seeds": 10, "epochs": 6, "rates": [0.1, 0.3, 1.0, 3.0]},
    least={"samples": 240, "seeds": 3, "epochs": 3},  # below that neither network has begun to fit
)
def batch_norm_speed(
    run: Run,
    samples: int = 320,
    seeds: int = 5,
    epochs: int = 5,
    rates: list[float] = [0.3, 1.0],  # noqa: B006
) -> None:
    """The block first: mean β, deviation |γ|, the identity for β = μ, γ = σ with one of each per unit.

    Then the same dense network with and without it, from the same weights, each at the best of
    several learning rates: the loss of the plain one after all epochs is reached by the normalized
    one in a fraction of them.

    Args:
        samples: digits that are trained on.
        seeds: trainings of each kind.
        epochs: of a training.
        rates: learning rates that are tried; each kind counts at its best.
    """
    the_block(run)
    x, y = digits()
    chosen = torch.randperm(len(x), generator=run.generator)[:samples]
    x, y = x[chosen], y[chosen]
    starts = torch.randint(0, 2**31, (seeds,), generator=run.generator).tolist()
    losses = {
        kind: torch.tensor([[trained(x, y, s, rate, epochs, kind) for rate in rates] for s in starts]).double()
        for kind in ("plain", "normalized", "affine")
    }
    # every kind at the rate that is best for it on average at the end
    best = {kind: int(v[:, :, -1].mean(0).argmin()) for kind, v in losses.items()}
    plain, normal, affine = (losses[kind][:, best[kind]] for kind in losses)
    lead, none = (mean_interval((plain[:, -1] / other[:, -1]).log()) for other in (normal, affine))
    says = run.states(
        "A-138", r"\ln\frac{\text{training loss without}}{\text{with batch normalization}}>\ln2:\ \text{lower end}"
    )
    says.above(
        lead.low,
        math.log(2),
        loose="the source says faster, and not by how much",
        where=f"8 × 8 digits, {epochs} epochs, {seeds} seeds, each at its best of {len(rates)} learning rates; "
        f"{math.exp(lead.estimate):.3g} times less",
    )
    says.fails("γ and β without the batch's statistics", none.low)
    says = run.states("A-138", r"\text{share of the epochs in which it reaches the other's last loss}\le\tfrac12")
    says.at_most(
        [epochs_to(p[-1], n) / epochs for p, n in zip(plain, normal, strict=True)],
        0.5,
        loose="the source says faster, and not by how much",
        where="every seed",
    )
    says.fails(
        "γ and β without the batch's statistics",
        [epochs_to(p[-1], a) / epochs for p, a in zip(plain, affine, strict=True)],
    )
    run.curves(
        "training",
        range(1, epochs + 1),
        {
            f"plain, rate {rates[best['plain']]:g}": [mean_interval(plain[:, e], 0.95) for e in range(epochs)],
            f"normalized, rate {rates[best['normalized']]:g}": [
                mean_interval(normal[:, e], 0.95) for e in range(epochs)
            ],
        },
        axes=("epoch", "training loss"),
        log="y",
        caption=f"8 × 8 digits, {samples} of them; three layers of 32 tanh units, gradient steps on batches of 64, "
        f"each kind at its best learning rate; means and 95 % intervals over {seeds} seeds.",
    )


def the_block(run: Run) -> None:
    """(1.60): mean, deviation, the identity, torch's layer, and what one γ and one β cannot do."""
    units = 5
    y = run.randn(40, units) * torch.tensor([0.2, 1.0, 3.0, 7.0, 0.5]).double() + run.randn(units)
    gamma, beta = run.randn(units), run.randn(units)
    layer = nn.BatchNorm1d(units, eps=1e-300, dtype=torch.float64).requires_grad_(False)
    layer.weight.copy_(gamma)
    layer.bias.copy_(beta)
    out = layer(y)
    by_formula = gamma * standardize(y, 0) + beta
    says = run.states(
        "A-138", r"\mathrm{BN}_b(y)=\gamma\frac{y-\mu_b}{\sigma_b}+\beta,\ \sigma_b^2=\frac1m\sum(y-\mu_b)^2"
    )
    says.equal(out, by_formula, EXACT, where="torch's layer without δ")
    says.fails("variance over m - 1", out, promised=gamma * standardize(y, 0, unbiased=True) + beta)
    says = run.states("A-138", r"\text{mean }\beta\text{ and deviation }|\gamma|\text{ over the batch}")
    wanted = torch.stack([beta, gamma.abs()])
    says.equal(torch.stack([by_formula.mean(0), by_formula.std(0, correction=0)]), wanted, EXACT)
    resting = layer.eval()(y)
    says.fails("running averages", torch.stack([resting.mean(0), resting.std(0, correction=0)]))
    mean, deviation = y.mean(0), y.std(0, correction=0)
    says = run.states("A-138", r"\beta=\mu_b,\ \gamma=\sigma_b\text{ for every unit}:\ \mathrm{BN}_b(y)=y")
    says.equal(deviation * standardize(y, 0) + mean, y, EXACT)
    # the best single pair, by least squares
    columns = torch.stack([standardize(y, 0).flatten(), torch.ones(y.numel()).double()], 1)
    pair = torch.linalg.lstsq(columns, y.reshape(-1, 1)).solution
    nearest = (columns @ pair).reshape(y.shape)
    says.fails("one γ and one β for all units, the best there are", nearest)
    run.refutes(
        "batch-norm-scalar-parameters", r"\min_{\beta,\gamma\in\mathbb R}\max|\mathrm{BN}_b(y)-y|=0,\ y\in\mathbb R^n"
    ).equal(float((nearest - y).square().mean().sqrt()), within=1e-3, where="the least root mean square over β and γ")


# ------------------------------------------------------------------------------------- pieces


def derivatives(
    loss: Callable[[Tensor], Tensor], b: Tensor, gamma: float, beta: float, eps: float
) -> dict[str, Tensor]:
    """Everything about one batch, by the formulas and by autograd."""
    free = b.clone().requires_grad_()

    def normalized(values: Tensor) -> Tensor:
        return gamma * standardize(values, 0, eps=eps) + beta

    place = normalized(b)
    (G,) = torch.autograd.grad(loss(place.requires_grad_()), place)
    H = torch.autograd.functional.hessian(loss, place.detach())  # type: ignore[no-untyped-call]
    (direct,) = torch.autograd.grad(loss(normalized(free)), free)
    v = torch.linspace(-1, 1, len(b)).double()
    twice = torch.autograd.functional.hessian(lambda t: loss(normalized(t)), b)  # type: ignore[no-untyped-call]
    batch = NormalizedBatch.of(b, eps)
    m, factor = len(b), gamma / batch.deviation
    whole = factor.square() * (G.square().sum() - G.sum().square() / m)
    assert torch.allclose(batch_norm_gradient(G, b, gamma, eps=eps), direct)
    return {
        "jacobian": batch_norm_jacobian(b, gamma, eps=eps),
        "autograd jacobian": torch.autograd.functional.jacobian(normalized, b),  # type: ignore[no-untyped-call]
        "frozen jacobian": factor * torch.eye(m).double(),
        "norm": batch_norm_gradient_norm(G, b, gamma, eps=eps),
        "autograd norm": direct.square().sum(),
        "norm without one": whole,
        "bound": factor.abs() * G.norm(),
        "second": batch_norm_second_derivative(lambda t: H @ t, G, b, v, gamma, eps=eps),
        "autograd second": twice @ v,
        "first term": factor.square() * batch.project(H @ batch.project(v)),
    }


def gradient_at_the_batch(loss: Callable[[Tensor], Tensor], b: Tensor, gamma: float, beta: float) -> Tensor:
    """What the proposition gives with the gradient taken at b, as printed."""
    free = b.clone().requires_grad_()
    (wrong,) = torch.autograd.grad(loss(free), free)
    return batch_norm_gradient_norm(wrong, b, gamma)


def frame_gap(hats: Tensor) -> Tensor:
    """How far 1/√m and B̂/√m are from being orthonormal, for each batch."""
    frame = torch.stack([torch.ones_like(hats), hats], 1) / math.sqrt(hats.shape[1])
    return (frame @ frame.mT - torch.eye(2).double()).abs().amax((1, 2))


def aligned(run: Run, batch: int) -> tuple[float, float, float]:
    """Gradient norm, bound, and the norm with running statistics of half the deviation.

    For a linear loss orthogonal to the mean and to the batch.
    """
    b = run.randn(batch)
    normal = NormalizedBatch.of(b)
    slope = normal.project(run.randn(batch))
    gamma = 1.7
    free = b.clone().requires_grad_()
    (found,) = torch.autograd.grad(slope @ (gamma * standardize(free, 0)), free)
    running = (free - b.mean()) / (0.5 * normal.deviation)
    (other,) = torch.autograd.grad(slope @ (gamma * running), free)
    return float(found.norm()), float(gamma / normal.deviation * slope.norm()), float(other.norm())


class Affine(nn.Module):
    """γy + β: what is left of batch normalization without the statistics of the batch."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(units))
        self.bias = nn.Parameter(torch.zeros(units))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x + self.bias


def dense_network(generator: torch.Generator, kind: str) -> nn.Sequential:
    """64 inputs, three layers of 32 tanh units, 10 outputs; the same draws for every kind."""
    layers: list[nn.Module] = []
    before = 64
    for _ in range(3):
        layers.append(drawn_linear(before, 32, generator=generator, dtype=torch.float32))
        if kind != "plain":
            layers.append(nn.BatchNorm1d(32) if kind == "normalized" else Affine(32))
        layers.append(nn.Tanh())
        before = 32
    return nn.Sequential(*layers, drawn_linear(32, 10, generator=generator, dtype=torch.float32))


def trained(x: Tensor, y: Tensor, seed: int, rate: float, epochs: int, kind: str) -> list[float]:
    """Training losses, epoch by epoch; far out where training diverges."""
    net = dense_network(torch.Generator().manual_seed(seed), kind)
    try:
        history = fit(net, (x, y), epochs=epochs, batch_size=64, optimizer="sgd", learning_rate=rate, seed=seed)
    except Diverged:
        return [1e6] * epochs
    return history.train_losses


def epochs_to(level: Tensor, losses: Tensor) -> int:
    """The first epoch, from 1, with a loss of at most the level; one more than there are if none has."""
    reached = (losses <= level).nonzero()
    return int(reached[0]) + 1 if len(reached) else len(losses) + 1


def plot_shares(axes: Any, found: dict[str, list[LayerSmoothing]]) -> None:
    left, right = axes[0]
    layers = [(f"{name}\n{s.layer}", s) for name, some in found.items() for s in some]
    labels = [label for label, _ in layers]
    means, own = [s.mean_share for _, s in layers], [s.own_share for _, s in layers]
    places = range(len(layers))
    left.bar(places, means, color=COLORS[1], label="along 1")
    left.bar(places, own, bottom=means, color=COLORS[2], label="along the normalized batch")
    left.set(ylabel="share of γ²/s² ‖G‖²", title="what the projection takes")
    left.legend(loc="upper left")
    right.semilogy(places, [s.after for _, s in layers], "o", color=COLORS[0], label="after the normalization")
    right.semilogy(places, [s.before for _, s in layers], "s", color=COLORS[1], label="before it")
    right.set(ylabel="length of the gradient", title="gradients")
    right.legend()
    for panel in (left, right):
        panel.set_xticks(list(places), labels, fontsize=5.5, rotation=60)
