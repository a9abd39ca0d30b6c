"""Weight normalization: its gradient is projected, and its vector only grows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.normalization import central_differences
from torchtheory.nets.feedforward import dense
from torchtheory.nets.normalization import reparametrize, standardize, weight_norm_gradient

EXACT = 1e-12


@lab(
    "weight-normalization",
    room="nets",
    covers=["N-132", "N-133"],
    title="Weight normalization projects the gradient",
    full={"samples": 100_000, "steps": 400},
    least={"samples": 1000},  # the smallest of its batches is a 32nd, and has to be large against 6 inputs
)
def weight_normalization(run: Run, samples: int = 4000, steps: int = 60) -> None:
    """w = γv/‖v‖ as torch's parametrization has it, and the picture of its gradient.

    The gradient in v is the gradient in w with its part along w taken out, so gradient descent
    can only lengthen v, by exactly η²‖∇‖² a step. On centered, white inputs weight normalization
    is batch normalization, up to the sampling error of the batch. Look at the arrows: the
    projected one is tangent to the circle.

    Args:
        samples: random inputs in the comparison with batch normalization.
        steps: of gradient descent.
    """
    n, units = 5, 3
    x, y = run.randn(20, n), run.randn(20, units)
    v, gamma = 2 * run.randn(units, n), run.randn(units)
    layer = weight_norm(dense(v))
    with torch.no_grad():
        layer.parametrizations.weight.original0.copy_(gamma[:, None])
        layer.parametrizations.weight.original1.copy_(v)
    weight = gamma[:, None] * v / v.norm(dim=1, keepdim=True)
    says = run.states(
        "N-132", r"w=\tfrac\gamma{\|v\|}v \text{ is torch's } \texttt{weight\_norm}\text{; } \|w\|=|\gamma|"
    )
    says.equal(
        torch.cat([layer.weight.detach(), layer.weight.detach().norm(dim=1)[:, None].expand(-1, n)]),
        torch.cat([weight, gamma.abs()[:, None].expand(-1, n)]),
        EXACT,
    )
    says.fails("v itself", torch.cat([v, v.norm(dim=1)[:, None].expand(-1, n)]))
    outputs = layer(x).detach()
    stretched = {}
    for c in (0.01, 7.0, -7.0):
        with torch.no_grad():
            layer.parametrizations.weight.original1.copy_(c * v)
        stretched[c] = layer(x).detach()
    with torch.no_grad():
        layer.parametrizations.weight.original1.copy_(v)
    says = run.states("N-132", r"f[cv,\gamma]=f[v,\gamma] \text{ for } c>0")
    says.equal(torch.stack([stretched[0.01], stretched[7.0]]), outputs.expand(2, -1, -1), EXACT)
    says.fails("c = -7", stretched[-7.0], promised=outputs)

    loss = (torch.tanh(layer(x)) - y).square().mean()
    originals = layer.parametrizations.weight
    g_gamma, g_v = torch.autograd.grad(loss, [originals.original0, originals.original1])
    free = weight.clone().requires_grad_()
    (g_w,) = torch.autograd.grad((torch.tanh(x @ free.T) - y).square().mean(), free)
    ours_gamma, ours_v = weight_norm_gradient(g_w, v, gamma)
    unprojected = (gamma / v.norm(dim=1))[:, None] * g_w
    says = run.states("N-133", r"\tfrac{\partial\ell}{\partial\gamma}=\tfrac{\partial\ell}{\partial w}\tfrac v{\|v\|}")
    says.equal(g_gamma[:, 0], ours_gamma, EXACT, where="against torch's automatic differentiation")
    says.fails("‖∂ℓ/∂w‖", g_gamma[:, 0], promised=g_w.norm(dim=1))
    says = run.states(
        "N-133",
        r"\tfrac{\partial\ell}{\partial v}=\tfrac\gamma{\|v\|}\tfrac{\partial\ell}{\partial w}"
        r"\bigl(I-\tfrac{ww^\top}{\|w\|^2}\bigr)",
    )
    says.equal(g_v, ours_v, EXACT)
    says.fails("without the projection", g_v, promised=unprojected)

    def objective(directions: Tensor) -> Tensor:
        w = gamma[:, None] * directions / directions.norm(dim=1, keepdim=True)
        return (torch.tanh(x @ w.T) - y).square().mean()

    says = run.states("N-133", r"\text{the same by central differences}")
    says.equal(ours_v, central_differences(objective, v), 1e-8)
    says.fails("without the projection", unprojected)
    says = run.states("N-133", r"\langle\partial\ell/\partial v,v\rangle=0")
    says.equal((ours_v * v).sum(1), within=EXACT)
    says.fails("∂ℓ/∂w in place of it", (g_w * v).sum(1))
    projector = torch.eye(n, dtype=torch.float64) - torch.outer(weight[0], weight[0]) / gamma[0] ** 2
    half = torch.eye(n, dtype=torch.float64) - torch.outer(weight[0], weight[0])
    says = run.states("N-133", r"P=I-\tfrac{ww^\top}{\|w\|^2}:\ P^2=P,\ Pw=0")
    says.equal(
        torch.cat([projector @ projector, (projector @ weight[0])[None]]),
        torch.cat([projector, torch.zeros(1, n, dtype=torch.float64)]),
        EXACT,
    )
    says.fails(
        "I - wwᵀ without the norm",
        torch.cat([half @ half, (half @ weight[0])[None]]),
        promised=torch.cat([half, torch.zeros(1, n, dtype=torch.float64)]),
    )
    lengths(run, layer, x, y, steps)
    before, direction = layer(x).detach(), layer.parametrizations.weight.original1.detach().clone()
    restored = remove_parametrizations(layer, "weight")
    assert isinstance(restored, nn.Linear)
    says = run.states("N-132", r"\text{back to a plain weight: the same outputs}")
    says.equal(restored(x).detach(), before, EXACT, where="against those of w = γ v/‖v‖, after the steps")
    says.fails("the parametrization taken off and v left as the weight", x @ direction.T)
    like_batch_norm(run, samples)
    projection_picture(run)


def lengths(run: Run, layer: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """‖v‖² grows by η²‖∇‖² a step of gradient descent."""
    first = layer.get_parameter("parametrizations.weight.original0")
    second = layer.get_parameter("parametrizations.weight.original1")
    free = (first * second / second.norm(dim=1, keepdim=True)).detach().requires_grad_()
    grown, promised, shrunk, wrong = [], [], [], []
    rate = 0.5
    for _ in range(steps):
        loss = (torch.tanh(layer(x)) - y).square().mean()
        gradients = torch.autograd.grad(loss, [first, second])
        (slope,) = torch.autograd.grad((torch.tanh(x @ free.T) - y).square().mean(), free)
        with torch.no_grad():
            promised.append(second.square().sum() + rate**2 * gradients[1].square().sum())
            wrong.append(free.square().sum() + rate**2 * slope.square().sum())
            first.sub_(rate * gradients[0])
            second.sub_(rate * gradients[1])
            free -= rate * slope
            grown.append(second.square().sum())
            shrunk.append(free.square().sum())
    says = run.states("N-133", r"\|v_{t+1}\|^2=\|v_t\|^2+\eta^2\|\nabla_v\|^2")
    says.equal(
        torch.stack(grown),
        torch.stack(promised),
        EXACT,
        where=f"{steps} steps of gradient descent: the norm never decreases",
    )
    says.fails("gradient descent on w itself", torch.stack(shrunk), promised=torch.stack(wrong))


def like_batch_norm(run: Run, samples: int) -> None:
    """On white, centered inputs batch and weight normalization agree up to sampling."""
    n = 6
    weight = run.randn(4, n)
    direction = weight / weight.norm(dim=1, keepdim=True)
    mixing = torch.diag(torch.logspace(-1, 1, n, dtype=torch.float64))
    sizes = [round(samples / 2 ** (k / 2)) for k in range(11)][::-1]
    repeats, errors, colored = 30, [], []
    for size in sizes:
        gaps, others = [], []
        for _ in range(repeats):
            x = run.randn(size, n)
            ratio = reparametrize(weight, x).norm_ratio
            gaps.append(float((ratio - 1).square().mean()))
            other = reparametrize(weight, x @ mixing).norm_ratio
            others.append(float((other - 1).square().mean()))
        errors.append(math.sqrt(sum(gaps) / repeats))
        colored.append(math.sqrt(sum(others) / repeats))
    says = run.states(
        "N-132", r"\text{white inputs: } \|w\|_I/\|w\|_\Sigma-1 \text{ goes like } s^{-1/2}\text{, so BN}\to\text{WN}"
    )
    says.slope(
        sizes,
        errors,
        -0.5,
        against=(-1.0, -0.25, 0.0),
        where=f"root mean square over {repeats} batches of {sizes[0]} to {sizes[-1]} samples",
    )
    says.fails("inputs that are not white", sizes, colored)
    x = 2 + run.randn(400, n) @ mixing
    centered = x - x.mean(0)
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(torch.cov(x.T, correction=0)), centered.T, upper=False
    ).T
    says = run.states("N-132", r"\text{inputs whitened by their own covariance: BN}=\text{WN exactly}")
    says.equal(standardize(white @ weight.T, 0), white @ direction.T, 1e-10)
    says.fails("the same inputs before whitening", standardize(x @ weight.T, 0), promised=x @ direction.T)
    says = run.states("N-132", r"\text{centered inputs: BN}=\tfrac{\|w\|_I}{\|w\|_\Sigma}\text{WN}")
    ratio = reparametrize(weight, x).norm_ratio
    says.equal(standardize(x @ weight.T, 0), ratio * (centered @ direction.T), 1e-10)
    says.fails("inputs that are not centered", standardize(x @ weight.T, 0), promised=ratio * (x @ direction.T))


def projection_picture(run: Run) -> None:
    """The gradient in w, and what is left of it in v, in the plane."""
    v = torch.tensor([1.6, 1.2], dtype=torch.float64)
    gradient = torch.tensor([0.9, -0.3], dtype=torch.float64)
    along, across = weight_norm_gradient(gradient, v, torch.tensor(1.0, dtype=torch.float64))

    def plot(axes: Any) -> None:
        left, right = axes[0]
        turn = torch.linspace(0, 2 * math.pi, 200)
        w = v / v.norm()
        left.plot(turn.cos(), turn.sin(), color="0.8", lw=1)
        arrows = [
            ((0.0, 0.0), w, "w = γ v/‖v‖", 6),
            (w, -gradient, "step against ∂ℓ/∂w", 0),
            (w, -(across * v.norm()), "its part across w", 1),
            (w, -along * w, "its part along w, removed", 4),
        ]
        for start, move, name, color in arrows:
            left.quiver(
                *start, *move, angles="xy", scale_units="xy", scale=1, width=0.009,
                color=COLORS[color], label=name,
            )  # fmt: skip
        left.set_xlim(-1.5, 1.5)
        left.set_ylim(-2.1, 1.4)
        left.set_aspect("equal")
        left.legend(loc="lower right", fontsize=7)
        left.set_title("one step")
        trail, free = [v.clone()], [v.clone()]
        goal = torch.tensor([-0.5, 0.9], dtype=torch.float64)
        for _ in range(25):
            point = trail[-1]
            unit = point / point.norm()
            one = torch.tensor(1.0, dtype=torch.float64)
            trail.append(point - 0.9 * weight_norm_gradient(unit - goal, point, one)[1])
            free.append(free[-1] - 0.15 * (free[-1] - goal))
        right.plot(turn.cos(), turn.sin(), color="0.8", lw=1)
        right.plot(*torch.stack(trail).T, ".-", color=COLORS[1], label="v under weight norm")
        right.plot(*torch.stack(free).T, ".-", color=COLORS[0], label="w by plain descent")
        right.plot(*goal, "*", color=COLORS[6], ms=9, label="best w")
        right.set_aspect("equal")
        right.set_ylim(-2.2, 2.4)
        right.legend(loc="lower right", fontsize=7)
        right.set_title("many steps: ‖v‖ never shrinks")

    run.figure(
        "projection",
        plot,
        caption="The direction of w is projected out of every update (left), so v moves at right "
        "angles to itself and spirals outwards (right).",
        grid=(1, 2),
        size=(9.0, 4.4),
    )
