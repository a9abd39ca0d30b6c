"""The tangent kernel of a network: what it is made of, and when it stays what it was."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.kernels.infinite.parametrization import ntk_mlp
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.kernels.tangent.laziness import kernel_drift
from torchtheory.kernels.tangent.linearization import linearize
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab
from torchtheory.models.model import Parameters
from torchtheory.nets.feedforward import mlp
from torchtheory.training.loop.trainer import fit
from torchtheory.training.many.networks import fit_many


@lab(
    "tangent-kernel-of-a-network",
    room="kernels",
    covers=["M-15", "A-56"],
    title="The tangent kernel is a Gram matrix of gradients, and only the linearized network's never moves",
    errata=["linearized-kernel-argument"],
    full={"widths": (16, 32, 64, 128, 256, 512, 1024), "seeds": 8, "samples": 40},
    least={"samples": 4, "seeds": 2},
    items={"widths": 3},
)
def tangent_kernel_of_a_network(
    run: Run,
    samples: int = 12,
    widths: tuple[int, ...] = (16, 64, 256),
    seeds: int = 6,
    steps: int = 40,
) -> None:
    r"""The kernel $\nabla_\theta f(x)^\top\nabla_\theta f(x')$ of a network with several
    outputs, taken apart.

    It equals $JJ^\top$ with the Jacobian row by row, has no negative eigenvalue and at most
    as large a rank as there are parameters, and is the sum of the kernels of its layers. Then
    training: the kernel of the linearized network does not move at all, that of the network does,
    the less the wider it is (unless a layer stays narrow). Look at the spectrum, split by layers,
    and at the drift against the width.

    Args:
        samples: inputs between which the kernel is taken.
        widths: of the networks whose kernel is watched, three or more.
        seeds: networks of each width; four times as many where a layer stays narrow.
        steps: of training.
    """
    x = run.randn(samples, 3)
    net = mlp([3, 10, 10, 2], "tanh", generator=run.generator)
    kernel = flat(empirical_ntk(net, x))
    structure(run, net, kernel, x)
    names = [name for name, _ in net.named_parameters()]
    layers = {n: [k for k in names if k.startswith(n + ".")] for n in ("0", "2", "4")}
    parts = {n: flat(empirical_ntk(net, x, only=keys)) for n, keys in layers.items()}
    weights_only = flat(empirical_ntk(net, x, only=[k for k in names if k.endswith("weight")]))
    says = run.states("A-56", r"K_\theta=\sum_\ell K_\theta^{(\ell)} \text{ over the layers}")
    says.equal(sum(parts.values(), torch.zeros_like(kernel)), kernel, 1e-10)
    says.fails("the biases left out", weights_only)
    linear_kernel_stays(run, net, x)
    family = drift_against_width(run, widths, seeds, steps)
    total = float(kernel.trace())
    run.table(
        "layers",
        ["layer", "share of the trace", "rank"],
        [[f"layer {k + 1}", float(part.trace()) / total, rank(part)] for k, part in enumerate(parts.values())]
        + [["all", 1.0, rank(kernel)]],
        caption=f"The kernel on {samples} samples and 2 outputs, layer by layer",
    )
    run.figure(
        "kernel",
        lambda axes: plot_kernel(axes, kernel, parts, family),
        caption="Left: eigenvalues of the kernel and of its layers' shares. Right: relative drift "
        "of the kernel during training, one dot a network.",
        grid=(1, 2),
    )


def flat(kernel: Tensor) -> Tensor:
    """A kernel `[N, M, C, C]` as a matrix `[NC, MC]`."""
    n, m, c, _ = kernel.shape
    return kernel.transpose(1, 2).reshape(n * c, m * c)


def jacobian(net: nn.Module, x: Tensor) -> Tensor:
    """Gradients of every output at every sample `[nC, P]`, one backward pass each."""
    parameters = list(net.parameters())
    rows = [
        torch.cat([g.reshape(-1) for g in torch.autograd.grad(out, parameters, retain_graph=True)])
        for out in net(x).reshape(-1)
    ]
    return torch.stack(rows)


def rank(kernel: Tensor) -> int:
    return int(torch.linalg.matrix_rank(kernel, hermitian=True))


def structure(run: Run, net: nn.Sequential, kernel: Tensor, x: Tensor) -> None:
    """Gram matrix of gradients: symmetric, no negative eigenvalue, bounded rank."""
    other = mlp([3, 10, 10, 2], "tanh", generator=run.generator)
    rows, elsewhere = jacobian(net, x), jacobian(other, x)
    mixed = rows @ elsewhere.T
    says = run.states(["A-56", "M-15"], r"K_\theta(X,X)=J(X)J(X)^\top")
    says.equal(kernel, rows @ rows.T, 1e-10)
    says.fails("one of the Jacobians at other parameters", mixed)
    says = run.states(["A-56", "M-15"], r"\lambda_{\min}(K_\theta(X,X))\ge0")
    says.at_least(torch.linalg.eigvalsh(kernel).min(), 0, 1e-10)
    says.fails("one of the Jacobians at other parameters", torch.linalg.eigvalsh((mixed + mixed.T) / 2).min())
    points = run.randn(40, 3)
    small, second = (mlp([3, 2, 1], "tanh", generator=run.generator) for _ in range(2))
    count = sum(p.numel() for p in small.parameters())
    found, more = (flat(empirical_ntk(one, points)) for one in (small, second))
    says = run.states("A-56", r"\operatorname{rank}K_\theta(X,X)\le\min(m,P): \ m=40")
    says.at_most(rank(found), count)
    says.fails("the sum of the kernels of two networks", rank(found + more))


def linear_kernel_stays(run: Run, net: nn.Sequential, x: Tensor) -> None:
    """After training, the linearized network has the kernel of the start; the network has not."""
    start = empirical_ntk(net, x)
    lin, trained = linearize(net), copy.deepcopy(net)
    y = run.randn(len(x), 2)
    for model in (lin, trained):
        fit(model, (x, y), epochs=20, batch_size=len(x), optimizer="sgd", learning_rate=0.3)
    moved = max(float(step.abs().max()) for step in lin.displacement().values())
    says = run.states("M-15", r"\|\hat\Theta_t^{\rm lin}-\hat\Theta_0\|_F/\|\hat\Theta_0\|_F=0 \text{ at any width}")
    says.equal(
        kernel_drift(start, empirical_ntk(lin, x)),
        within=1e-12,
        where=f"after 20 steps that moved some parameter by {moved:.2g}",
    )
    says.fails("the network itself", kernel_drift(start, empirical_ntk(trained, x)))
    same_point = start[:, :1, 0, 0]
    pair = empirical_ntk(lin, x[:1], x)[0, :, 0, 0]
    run.refutes(
        "linearized-kernel-argument", r"\hat\Theta_t^{\rm lin}(x,x')=\nabla f(x,\theta_0)^\top\nabla f(x,\theta_0)"
    ).equal(pair, same_point[0].expand(len(x)), 1e-10, where="x the first sample, x' each of them")


def drift_against_width(
    run: Run, widths: tuple[int, ...], seeds: int, steps: int
) -> dict[str, tuple[list[int], list[float]]]:
    """The drift of the kernel falls with the width if every hidden layer gets wide."""
    x = nn.functional.normalize(run.randn(8, 3))
    y = run.signs(8, 1)
    narrow = 4
    family: dict[str, tuple[list[int], list[float]]] = {}
    # that all of an interval lies above -1/2 takes more networks than that some of it lies below
    for name, second, count in (("both layers wide", None, seeds), (f"second layer of {narrow}", narrow, 4 * seeds)):
        sizes = [n for n in widths for _ in range(count)]
        nets = [
            ntk_mlp(
                [3, n, second or n, 1],
                "tanh",
                weight_variance=1.5,
                generator=run.generator,
                dtype=torch.float64,
            )
            for n in sizes
        ]
        ends = fit_many(
            nets,
            (x, y),
            epochs=steps,
            batch_size=len(x),
            optimizer="sgd",
            learning_rate=0.2,
            task="regression",
        ).networks()
        drifts = [kernel_drift(empirical_ntk(a, x), empirical_ntk(b, x)) for a, b in zip(nets, ends, strict=True)]
        family[name] = (sizes, drifts)
    fitted, broken = (fit_slope(*pair) for pair in family.values())
    says = run.states(
        "M-15",
        r"\|\hat\Theta_t-\hat\Theta_0\|_F/\|\hat\Theta_0\|_F \text{ falls with the width: exponent at most } -1/2",
    )
    says.at_most(fitted, -0.5)
    says.fails("the second layer keeps 4 units", broken)
    return family


def plot_kernel(
    axes: Any,
    kernel: Tensor,
    parts: Parameters,
    family: dict[str, tuple[list[int], list[float]]],
) -> None:
    left, right = axes[0]
    for k, (name, matrix) in enumerate([("all", kernel), *parts.items()]):
        values = torch.linalg.eigvalsh(matrix).flip(0).clamp_min(1e-16)
        values = values[values > 1e-12 * values[0]]
        label = "all layers" if name == "all" else f"layer {int(name) // 2 + 1}"
        left.semilogy(range(1, len(values) + 1), values, "o-", ms=3, color=COLORS[k], label=label)
    left.set_xlabel("number of the eigenvalue")
    left.set_ylabel("eigenvalue")
    left.legend()
    for color, (name, (sizes, drifts)) in zip(COLORS, family.items(), strict=False):
        power = fit_slope(sizes, drifts).estimate
        right.loglog(sizes, drifts, "o", ms=4, alpha=0.6, color=color, label=f"{name}: exponent {power:.2f}")
    ticks = sorted({n for sizes, _ in family.values() for n in sizes})
    right.set_xticks(ticks, [str(n) for n in ticks])
    right.minorticks_off()
    right.set_xlabel("width n")
    right.set_ylabel("relative drift of the kernel")
    right.legend(loc="lower left")
