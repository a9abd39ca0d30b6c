"""Linear units, what composing them comes to, and ridge functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.activations.table import ACTIVATIONS, activation
from torchtheory.nets.biases import homogeneous
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.linear_networks import collapse_linear, probe_linearity
from torchtheory.neurons.ridge import Ridge, find_ridge


@lab(
    "linear-networks",
    room="neurons",
    covers=["L-043", "L-044", "L-045", "L-046", "N-26"],
    title="Depth adds nothing to linear layers: they are one matrix, of the bottleneck's rank",
    errata=["affine-with-one-constant", "matrix-of-a-linear-map-transposed"],
    full={"samples": 5000, "trials": 5000},
)
def linear_networks(run: Run, samples: int = 200, trials: int = 200) -> None:
    """Units, layers and whole networks are put to the test of superposition.

    A black box is linear iff f(αx+βy) = αf(x)+βf(y) for random x, y, α, β, affine iff this holds
    for α+β = 1; its matrix is read off the unit vectors. Linear layers pass, a ReLU fails with a
    counterexample. A chain of linear layers collapses to a product of matrices whose rank is at
    most the smallest width. The picture shows the rank against the width of the bottleneck.

    Args:
        samples: random inputs.
        trials: random combinations for the superposition.
    """
    n, m = 6, 4
    x, theta, b = run.randn(samples, n), run.randn(n), run.randn(1)
    joined = torch.cat([theta, b])
    says = run.states("L-043", r"x^\top\theta+b=\binom{x}{1}\cdot\binom{\theta}{b}")
    says.equal(gap(homogeneous(x) @ joined, x @ theta + b), within=1e-13)
    says.fails("0 instead of 1 appended", gap(torch.cat([x, 0 * x[:, :1]], 1) @ joined, x @ theta + b))
    directions = run.randn(samples, n)
    directions = directions / directions.norm(dim=1, keepdim=True)
    rates = (unit(x + 1e-3 * directions, theta, b) - unit(x, theta, b)) / 1e-3
    run.states("L-043", r"\partial_u(x^\top\theta)=u^\top\theta\ (\|u\|=1)").equal(
        gap(rates, directions @ theta), within=1e-10
    )
    steepest = theta / theta.norm()
    says = run.states("L-043", r"u^\top\theta\le\|\theta\|,\text{ with equality for }u=\theta/\|\theta\|")
    says.at_most(torch.cat([rates, (steepest @ theta).reshape(1)]), float(theta.norm()), 1e-10)
    says.fails("u = 2θ/‖θ‖, no unit vector", float(2 * steepest @ theta))
    layer = nn.Linear(n, m, bias=False, device="meta").to_empty(device="cpu").double()
    with torch.no_grad():
        layer.weight.copy_(run.randn(m, n))
    out = layer(x).detach()
    says = run.states("L-044", r"L(x;\Theta)_j=x\cdot\theta_j,\ \theta_j^\top\text{ the rows of }\Theta\ (m\times n)")
    says.equal([gap(out[:, j], x @ layer.weight[j]) for j in range(m)], within=1e-14)
    says.fails("rows taken in reverse order", [gap(out[:, j], x @ layer.weight[m - 1 - j]) for j in range(m)])
    superposition(run, layer, n, m, trials)
    collapse(run, samples)


def superposition(run: Run, layer: nn.Linear, n: int, m: int, trials: int) -> None:
    """L-045: the test on boxes that are linear, affine and neither, and the printed definitions."""
    affine = dense(run.randn(m, n), run.randn(m))

    def probe(box: Any) -> Any:
        return probe_linearity(box, n, trials=trials, generator=run.generator)

    linear_test, affine_test, relu_test = probe(layer), probe(affine), probe(torch.relu)
    says = run.states("L-045", r"f(\alpha x+\beta y)=\alpha f(x)+\beta f(y):\ \text{violation, linear layer}")
    says.equal(linear_test.linear_violation, within=linear_test.tolerance)
    says.fails("an affine layer", affine_test.linear_violation)
    says = run.states("L-045", r"f(\alpha x+(1-\alpha)y)=\alpha f(x)+(1-\alpha)f(y):\ \text{affine and linear layer}")
    says.equal([affine_test.affine_violation, linear_test.affine_violation], within=affine_test.tolerance)
    says.fails("ReLU", relu_test.affine_violation)
    x, y, alpha = relu_test.witness
    mixed = torch.relu(alpha * x + (1 - alpha) * y)
    says = run.states("L-045", r"\text{the test hands over a counterexample: ReLU's violation at it, less rounding}")
    says.above(gap(mixed, alpha * torch.relu(x) + (1 - alpha) * torch.relu(y)) - relu_test.tolerance, 0)
    says.fails("an affine layer, for which there is none", affine_test.affine_violation - affine_test.tolerance)
    run.states("L-045", r"A e_i=f(e_i)-f(0)\text{ recovers the matrix, }f(0)\text{ the offset}").equal(
        [
            gap(linear_test.matrix, layer.weight),
            gap(affine_test.matrix, affine.weight),
            gap(affine_test.offset, affine.bias),
        ],
        within=1e-14,
    )
    points = run.randn(2, n)
    constants = [one_constant(affine, points[:1], points[1:], a, b) for a, b in ((1, 1), (2, 3))]
    run.refutes("affine-with-one-constant", r"f(\alpha x+\beta y)-\alpha f(x)-\beta f(y)=b\text{ for one }b").equal(
        constants[1][0],
        constants[0][0],
        1e-9,
        where="f(x) = Ax + c leaves (1−α−β)c: −c for α = β = 1, −4c for α = 2, β = 3",
    )
    run.refutes(
        "matrix-of-a-linear-map-transposed",
        r"f:\mathbb R^6\to\mathbb R^4\text{ linear}\Rightarrow f(x)=Ax,\ A\in\mathbb R^{6\times4}:\ \text{rows of }A",
    ).equal(len(linear_test.matrix), n, where="the columns are f($e_i$), vectors of length 4")


def collapse(run: Run, samples: int) -> None:
    """L-046, N-26: chains of linear maps as one, and the rank they can have."""
    a, b = run.randn(5, 4), run.randn(3, 5)
    x = run.randn(samples, 4)
    says = run.states("L-046", r"g(f(x))=(BA)x\text{ for }f(x)=Ax,\ g(z)=Bz")
    says.equal(gap((x @ a.T) @ b.T, x @ (b @ a).T), within=1e-13)
    says.fails("a ReLU between them", gap(torch.relu(x @ a.T) @ b.T, x @ (b @ a).T))
    shapes = [(4, 7, 2, 6, 5), (4, 5), (4, 9, 9, 9, 1), (4, 1, 8)]
    nets = [mlp(w, "linear", generator=run.generator) for w in shapes]
    flat = [collapse_linear(net) for net in nets]
    rectified = mlp(shapes[0], "relu", generator=run.generator)
    linearized = collapse_linear(nn.Sequential(*(m for m in rectified if isinstance(m, nn.Linear))))
    says = run.states(
        ["N-26", "L-046"], r"W=W^L\cdots W^1,\ b=\sum_\ell W^L\cdots W^{\ell+1}b^\ell:\ \text{same outputs}"
    )
    says.equal([gap(one(x), net(x)) for one, net in zip(flat, nets, strict=True)], within=1e-13)
    says.fails("ReLU layers collapsed as if linear", gap(linearized(x), rectified(x)))
    bottlenecks = range(1, 9)
    ranks = [collapse_linear(mlp([8, 8, k, 8, 8], "linear", generator=run.generator)).rank for k in bottlenecks]
    says = run.states(
        ["N-26", "L-046"], r"\mathrm{rank}(W^L\cdots W^1)\le\min_\ell\mathrm{rank}(W^\ell)\le\min_\ell m_\ell"
    )
    says.at_most([*(f.rank for f in flat), *ranks], [*(f.bottleneck for f in flat), *bottlenecks])
    says.fails("a sum instead of a product of layers, rank-1 each", rank_of_sum(run), promised=1)
    run.curves(
        "bottleneck",
        bottlenecks,
        {"rank of the product": ranks},
        {"bottleneck width": bottlenecks},
        axes=("width of the narrow layer", "rank"),
        caption="Rank of a five-layer linear network of width 8 with one narrow layer: as large "
        "as the bottleneck allows, never larger.",
    )


@lab(
    "ridge-functions",
    room="neurons",
    covers=["L-052"],
    title="A unit is constant across its weight vector, and learns along its input",
    full={"samples": 10_000},
    least={"samples": 2, "features": 2},
)
def ridge_functions(run: Run, samples: int = 200, features: int = 5) -> None:
    """φ(xᵀθ) depends on one direction only: moving orthogonally to θ changes nothing.

    For every activation the invariance, the gradient's length |φ'|·‖θ‖ and the direction of
    learning are checked; the test that finds the direction of an unknown ridge function looks at
    the singular values of its gradients. Sums of two units fail all of it.

    Args:
        samples: random inputs.
        features: of an input.
    """
    theta = run.randn(features)
    x = run.randn(samples, features)
    across = run.randn(samples, features)
    across = across - (across @ theta / theta.square().sum()).unsqueeze(1) * theta
    rows = list(ACTIVATIONS.values())
    kinked = [r for r in rows if r.known.continuous]
    moved = [gap(Ridge(theta, r)(x + 10 * across), Ridge(theta, r)(x)) for r in kinked]
    second = run.randn(features)

    def two(v: Tensor) -> Tensor:
        return torch.tanh(v @ theta) + torch.tanh(v @ second)

    says = run.states("L-052", r"\phi((x+\Delta)^\top\theta)=\phi(x^\top\theta)\text{ for }\Delta\perp\theta")
    says.equal(moved, within=1e-12)
    says.fails("the sum of two units with different θ", gap(two(x + 10 * across), two(x)))
    gradients = [(Ridge(theta, r), autograd(Ridge(theta, r), x)) for r in rows]
    says = run.states("L-052", r"\|\nabla_xf\|=|\phi'(x^\top\theta)|\,\|\theta\|")
    says.equal([gap(g.norm(dim=1), unit.rate(x)) for unit, g in gradients], within=1e-13)
    says.fails("the length of θ forgotten", gap(gradients[0][1].norm(dim=1), torch.ones(samples)))
    run.states("L-052", r"\nabla_xf=\phi'(x^\top\theta)\,\theta").equal(
        [gap(g, unit.gradient(x)) for unit, g in gradients], within=1e-13
    )
    y = run.randn(samples)
    cosines, factors = learning_directions(x, y, theta)
    says = run.states("L-052", r"\nabla_\theta(\ell\circ\phi)(x^\top\theta)=(\ell\circ\phi)'(x^\top\theta)\,x:\ |\cos|")
    says.equal(cosines, 1, 1e-13, where="squared loss and tanh, one sample at a time")
    says.fails("the mean gradient of all samples", batch_cosines(x, y, theta))
    run.states("L-052", r"\text{length of that gradient over }\|x\|:\ |(\ell\circ\phi)'(x^\top\theta)|").equal(
        gap(factors, (torch.tanh(x @ theta) - y).abs() * (1 - torch.tanh(x @ theta) ** 2)), within=1e-13
    )
    found = find_ridge(Ridge(theta, activation("softplus")), features, generator=run.generator)
    says = run.states("L-052", r"f\text{ ridge}\iff\mathrm{rank}\{\nabla f(x)\}=1:\ \sigma_2/\sigma_1")
    says.equal(float(found.singular_values[1] / found.singular_values[0]), within=1e-12)
    says.fails("two units", spread(two, features))
    run.states("L-052", r"\text{the direction found is }\pm\theta/\|\theta\|:\ |\cos|").equal(
        float((found.direction @ theta).abs() / theta.norm()), 1, 1e-12
    )
    layer = dense(run.randn(4, features))
    run.states("L-052", r"F(x;\Theta)=\phi(\Theta x)\text{ is a ridge function in every entry}").equal(
        [gap(torch.tanh(layer(x))[:, j], Ridge(layer.weight[j].detach(), activation("tanh"))(x)) for j in range(4)],
        within=1e-13,
    )
    run.figure(
        "ridges",
        lambda axes: plot_ridges(axes, two),
        caption="Level lines on a plane: straight and parallel for one unit (left), bent for the sum of two (right).",
        grid=(1, 2),
        size=(7, 3.2),
    )


def unit(x: Tensor, theta: Tensor, b: Tensor) -> Tensor:
    return x @ theta + b


def one_constant(f: nn.Linear, x: Tensor, y: Tensor, alpha: float, beta: float) -> list[float]:
    with torch.no_grad():
        rest: Tensor = f(alpha * x + beta * y) - alpha * f(x) - beta * f(y)
    return [float(v) for v in rest[0]]


def rank_of_sum(run: Run) -> int:
    parts = [run.randn(8, 1) @ run.randn(1, 8) for _ in range(3)]
    return int(torch.linalg.matrix_rank(torch.stack(parts).sum(0)))


def autograd(f: Ridge, x: Tensor) -> Tensor:
    point = x.clone().requires_grad_()
    value = f(point)
    if not value.requires_grad:
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(value.sum(), point, materialize_grads=True)
    return gradient


def learning_directions(x: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine of each sample's parameter gradient with the sample, and the ratio of lengths."""

    def loss(t: Tensor, point: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (torch.tanh(point @ t) - target).square()

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(theta, x, y)
    lengths = gradients.norm(dim=1) * x.norm(dim=1)
    return (gradients * x).sum(1).abs() / lengths, gradients.norm(dim=1) / x.norm(dim=1)


def batch_cosines(x: Tensor, y: Tensor, theta: Tensor) -> Tensor:
    t = theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(0.5 * (torch.tanh(x @ t) - y).square().mean(), t)
    cosines: Tensor = (x @ gradient).abs() / (x.norm(dim=1) * gradient.norm())
    return cosines


def spread(f: Any, features: int) -> float:
    values = find_ridge(f, features).singular_values
    return float(values[1] / values[0])


def plot_ridges(axes: Any, two: Any) -> None:
    t = torch.linspace(-3, 3, 81, dtype=torch.float64)
    grid = torch.cartesian_prod(t, t)
    theta, second = torch.tensor([1.0, 0.6]).double(), torch.tensor([-0.5, 1.2]).double()
    one = torch.tanh(grid @ theta)
    both = one + torch.tanh(grid @ second)
    for axis, values, title in zip(axes[0], (one, both), ("one unit", "two units"), strict=True):
        axis.contourf(t, t, values.reshape(81, 81).T, levels=12, cmap="cividis")
        axis.set_title(title)
        axis.set_xlabel("x₁")
        axis.set_ylabel("x₂")
        axis.set_aspect("equal")
        axis.grid(False)
