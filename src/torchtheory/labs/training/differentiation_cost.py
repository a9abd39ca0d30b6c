"""Reverse, forward and numerical differentiation: what they agree on, and what they cost."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run
from torchtheory.labs.training.autograd_reference import autograd_gradients, half_square, torch_operations
from torchtheory.models.model import Parameters, flatten, unflatten
from torchtheory.nets.feedforward import mlp
from torchtheory.primer.differences import numerical_jacobian
from torchtheory.tracing.operation_counts import count_operations
from torchtheory.tracing.recorder import record
from torchtheory.training.backpropagation.chain import backpropagate, pull_back


def modes(run: Run) -> None:
    """Reverse, forward and numerical differentiation, and where they part."""
    net = mlp([3, 5, 4, 1], "relu", generator=run.generator)
    theta = {name: p.detach() for name, p in net.named_parameters()}
    x, y = run.randn(6, 3), run.randn(6, 1)

    def value(vector: Tensor, at: Tensor = x) -> Tensor:
        return half_square(torch.func.functional_call(net, unflatten(vector, theta), (at,)), y)

    point = flatten(theta)
    reverse = flatten(backpropagate(net, x, y, half_square).gradients)
    forward = torch.stack([torch.func.jvp(value, (point,), (e,))[1] for e in torch.eye(len(point)).double()])
    says = run.states(
        "A-22",
        r"\nabla E \text{ by reverse accumulation}=\bigl(\partial E/\partial\theta_i\bigr)_i"
        r"\text{ by forward accumulation, one direction at a time}",
    )
    says.equal(reverse, forward, 1e-12)
    kinked = mlp([3, 5, 4, 1], "relu", generator=run.generator)
    for layer in (kinked[0], kinked[2]):
        assert isinstance(layer, nn.Linear)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)

    def kinked_value(vector: Tensor) -> Tensor:
        moved = unflatten(vector, theta)
        return half_square(torch.func.functional_call(kinked, moved, (x,)), y)

    at_kink = flatten({name: p.detach() for name, p in kinked.named_parameters()})
    scale = float(reverse.abs().max())
    says = run.states(
        ["A-22", "N-41"],
        r"\text{away from kinks the difference to central quotients, relative to } \|\nabla E\|_\infty",
    )
    says.equal((reverse - numerical_jacobian(value, point)).abs().max() / scale, within=1e-6)
    says.fails(
        "every hidden unit exactly at the kink of its ReLU",
        (flatten(backpropagate(kinked, x, y, half_square).gradients) - numerical_jacobian(kinked_value, at_kink))
        .abs()
        .max()
        / scale,
    )


def cost(run: Run, width: int) -> None:
    """Operations of one gradient in forward passes, for networks of growing size."""
    ratios, back, forward_ratios, depths, rows = [], [], [], [], []
    n = 8
    for layers in range(2, 9):
        net = mlp([width] * layers + [1], "tanh", generator=run.generator)
        x, y = run.randn(n, width), run.randn(n, 1)
        theta = {name: p.detach() for name, p in net.named_parameters()}
        point = flatten(theta)

        def value(
            vector: Tensor, model: nn.Module = net, like: Parameters = theta, at: Tensor = x,
            aim: Tensor = y,
        ) -> Tensor:  # fmt: skip
            outputs = torch.func.functional_call(model, unflatten(vector, like), (at,))
            return half_square(outputs, aim)

        there = count_operations(value, point)
        whole = count_operations(partial(pull_back, record(net, x)), x, net(x).detach() - y)
        autograd = torch_operations(partial(autograd_gradients, net, x, y, half_square))
        one = torch_operations(partial(torch.func.jvp, value, (point,), (torch.ones_like(point),)))
        ratios += [whole / there, autograd / there]
        back.append((whole - there) / there)
        forward_ratios.append(len(point) * one / there)
        depths.append(float(whole))
        rows.append((len(point), whole / there, len(point) * one / there, 2.0 * len(point)))
    says = run.states(["A-22", "N-41"], r"\text{operations of loss and gradient}\le3\times\text{those of the loss}")
    says.at_most(ratios, 3, where="matrix products, counted; ours and autograd's, 2 to 8 layers")
    says.fails("forward accumulation, one direction a parameter", forward_ratios, promised=3)
    says = run.states("S-26", r"\text{the way back costs exactly two ways there, errors down to the input included}")
    says.equal(back, 2)
    says.fails("forward accumulation", [r - 1 for r in forward_ratios])
    totals = torch.tensor(depths)
    paths = torch.tensor([float(width) ** (layers - 1) for layers in range(2, 9)])
    says = run.states(["N-41", "S-51"], r"\text{cost is linear in depth: its second differences are } 0")
    says.equal(totals.diff().diff())
    says.fails("the number of paths to the output instead", paths.diff().diff())
    run.table(
        "cost",
        ["parameters", "reverse", "forward, all directions", "central differences"],
        rows,
        caption="Operations of one gradient in units of one forward pass",
    )
    counts, reverse, forward, quotients = zip(*rows, strict=True)
    run.curves(
        "cost",
        counts,
        {"reverse (backpropagation)": reverse, "forward, all directions": forward, "central differences": quotients},
        {"one forward pass": 1},
        axes=("parameters", "cost of a gradient (forward passes)"),
        log="xy",
        caption="Operations for a gradient in units of one forward pass. Reverse differentiation "
        "costs three forward passes at any size, the other two as many as there are parameters.",
    )
