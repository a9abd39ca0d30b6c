"""Coupled layers, and what normalizing over a batch costs."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.feedforward import dense, drawn_linear
from torchtheory.nets.normalization import chain_step_coefficients, standardize

EXACT = 1e-12


@lab(
    "layer-coupling",
    room="nets",
    covers=["M-92", "M-95"],
    title="Layers move together; batch normalization loosens that, at the price of the batch",
    full={"depth": 20, "repeats": 2000, "steps": 1500},
    least={"depth": 3, "repeats": 30},
)
def layer_coupling(run: Run, depth: int = 6, repeats: int = 200, steps: int = 80) -> None:
    """A gradient step on a chain of scalars is a polynomial of degree L in the step size.

    All its coefficients are computed and compared with the step itself. With normalization after
    every layer the output no longer depends on the sizes of the weights at all. The price is that
    a sample's output depends on its batch: its noise falls like 1/B, while layer normalization has
    none. Look at the noise, and at the test error of the same network trained with either at
    several batch sizes on the 8 × 8 digits (the lectures' table speaks of larger data).

    Args:
        depth: of the chain of scalar layers.
        repeats: batches that a sample is put into.
        steps: of training on digits.
    """
    scalar_chain(run, depth)
    normalized_chain(run, depth)
    noise = batch_noise(run, repeats)
    errors = trained(run, steps)

    def plot(axes: Any) -> None:
        left, right = axes[0]
        sizes = torch.tensor(noise["sizes"], dtype=torch.float64).log2()
        left.plot(sizes, torch.tensor(noise["batch"]).log2(), "o-", color=COLORS[0], label="batch norm")
        left.plot(
            sizes,
            math.log2(noise["batch"][0]) - (sizes - sizes[0]),
            ":",
            color=COLORS[6],
            label="slope -1",
        )
        left.set_xlabel("log₂ of the batch size")
        left.set_ylabel("log₂ of the variance")
        left.set_title("an output's variance over batches (layer norm: 0)")
        left.legend()
        for k, (name, values) in enumerate(errors.items()):
            right.plot(
                torch.tensor(list(values), dtype=torch.float64).log2(),
                list(values.values()),
                "o-",
                color=COLORS[k],
                label=name,
            )
        right.set_xlabel("log₂ of the batch size")
        right.set_ylabel("test error")
        right.set_title("digits, the same number of steps")
        right.legend()

    run.figure(
        "batch-size",
        plot,
        caption="Batch statistics are noisy in small batches. With two samples a batch every normalized value is ±1.",
        grid=(1, 2),
        size=(10.0, 3.4),
    )


def scalar_chain(run: Run, depth: int) -> None:
    """y = w_L ... w_1 x after one step, as a polynomial in the step size."""
    x, target = 1.3, 0.4
    weights = (1 + 0.3 * run.randn(depth)).requires_grad_()
    output = weights.prod() * x
    (gradient,) = torch.autograd.grad((output - target) ** 2 / 2, weights)
    w = weights.detach()
    coefficients = chain_step_coefficients(w, gradient) * x
    rates = torch.linspace(-1, 1, depth + 3, dtype=torch.float64)
    stepped = torch.stack([(w - eta * gradient).prod() * x for eta in rates])
    powers = rates[:, None] ** torch.arange(depth + 1)
    says = run.states("M-92", r"y^{\rm new}=\prod_l(w_l-\eta g_l)\,x=\sum_{k=0}^Lc_k\eta^k")
    says.equal(stepped, powers @ coefficients, EXACT, where=f"L = {depth}, {len(rates)} step sizes")
    says.fails("cut after the linear term", stepped, promised=powers[:, :2] @ coefficients[:2])
    first = -sum(float(gradient[i] * x * w[torch.arange(depth) != i].prod()) for i in range(depth))
    last = float((-gradient).prod() * x)
    says = run.states("M-92", r"c_0=y,\quad c_1=-\sum_lg_l\prod_{k\ne l}w_kx,\quad c_L=\prod_l(-g_l)x")
    says.equal(coefficients[[0, 1, -1]], [float(output.detach()), first, last], EXACT)
    says.fails("the coefficients in reverse order", coefficients.flip(0)[[0, 1, -1]])
    # in exact fractions: the coefficient of order L is far below rounding error in a deep chain
    pairs = [(Fraction(float(a)), Fraction(float(g))) for a, g in zip(w, gradient, strict=True)]
    values = [math.prod((a - k * g for a, g in pairs), start=Fraction(x)) for k in range(depth + 2)]
    differences = [values]
    for _ in range(depth + 1):
        last_row = differences[-1]
        differences.append([b - a for a, b in pairwise(last_row)])
    says = run.states(
        "M-92",
        r"y^{\rm new} \text{ is a polynomial of degree exactly } L \text{ in } \eta\text{: its }"
        r"(L+1)\text{-st difference}",
    )
    says.equal([float(d) for d in differences[-1]], where="step sizes 0, 1, ..., L+1, in exact fractions")
    says.fails("the L-th difference", [float(d) for d in differences[-2]])
    run.table(
        "chain",
        ["order in η", "coefficient", "share of |change| at η = 0.5"],
        [
            (
                k,
                float(c),
                float((c * 0.5**k).abs() / (coefficients[1:] * 0.5 ** torch.arange(1, depth + 1)).abs().sum()),
            )
            for k, c in enumerate(coefficients)
        ][1:],
        caption="What a gradient step changes, by order: the linear term is what gradient descent reckons with.",
    )


def normalized_chain(run: Run, depth: int) -> None:
    """The chain with batch normalization after every layer."""
    x = run.randn(16)

    def outputs(weights: Tensor, normalized: bool) -> Tensor:
        value = x
        for w in weights:
            value = w * value
            if normalized:
                value = standardize(value, 0)
        return value

    weights = run.rand(depth) + 0.5
    factors = 10 ** (2 * run.rand(20, depth) - 1)
    says = run.states("M-92", r"\text{normalized after every layer, } y \text{ does not depend on any } |w_l|")
    says.equal(
        torch.stack([outputs(weights * c, True) for c in factors]),
        torch.stack([outputs(weights, True)] * 20),
        1e-11,
        where="20 random rescalings of every layer by 0.1 to 10",
    )
    says.fails(
        "without normalization",
        torch.stack([outputs(weights * c, False) for c in factors]),
        promised=torch.stack([outputs(weights, False)] * 20),
    )


def batch_noise(run: Run, repeats: int) -> dict[str, list[float]]:
    """How much a sample's normalized value, and the statistics, vary with its batch."""
    features = 16
    sample = run.randn(features)
    sizes = [2**k for k in range(3, 10)]
    largest = 0.0
    layer = nn.LayerNorm(features, eps=0.0, dtype=torch.float64).requires_grad_(False)
    alone = layer(sample)

    def variances(others: Tensor) -> list[float]:
        """Over batches: of the mean, of the variance, and of the sample's normalized value."""
        batch = torch.cat([sample.expand(repeats, 1, -1), others[:, 1:]], 1)
        measured = (others.mean(1), others.var(1, correction=0), standardize(batch, 1)[:, 0])
        return [float(value.var(0).mean()) for value in measured]

    found, copies = [], []
    for size in sizes:
        others = run.randn(repeats, size, features)
        found.append(variances(others))
        copies.append(variances(others[:, torch.arange(size) % 4]))
        batch = torch.cat([sample.expand(20, 1, -1), others[:20, 1:]], 1)
        largest = max(largest, float((layer(batch)[:, 0] - alone).abs().max()))
    outputs = [row[2] for row in found]
    for k, name in enumerate(("the batch mean", "the batch variance", "a sample's normalized value")):
        says = run.states("M-95", rf"\text{{variance over batches of {name}}}\propto1/B\text{{, exponent}}")
        says.slope(
            sizes,
            [row[k] for row in found],
            -1.0,
            0.05,
            against=(-2.0, -0.5, 0.0),
            where=f"B from {sizes[0]} to {sizes[-1]}, {repeats} batches each; at small B there is a "
            "correction of relative order 1/B",
        )
        says.fails("batches of four samples, repeated", sizes, [row[k] for row in copies])
    says = run.states("M-95, M-94", r"\text{layer normalization: a sample's output is the same in every batch}")
    says.equal(largest, within=EXACT, where=f"batches of {sizes[0]} to {sizes[-1]}")
    says.fails("batch normalization, largest deviation", math.sqrt(max(outputs)))
    pair = standardize(run.randn(500, 2, features), 1)
    three = standardize(run.randn(500, 3, features), 1)
    says = run.states("M-95", r"B=2:\ \text{every normalized value is } \pm1")
    says.equal(pair.abs(), 1.0, 1e-9, where="all that is left of a pair is which of the two is larger")
    says.fails("B = 3", three.abs())
    return {"sizes": [float(s) for s in sizes], "batch": outputs}


def trained(run: Run, steps: int) -> dict[str, dict[int, float]]:
    """The same network with batch and with layer normalization, at several batch sizes."""
    (x, y), (test_x, test_y) = split(*digits(), test_fraction=0.25, generator=run.generator)
    start = [
        drawn_linear(64, 32, generator=run.generator),
        drawn_linear(32, 10, generator=run.generator),
    ]
    errors: dict[str, dict[int, float]] = {"batch norm": {}, "layer norm": {}}
    for size in (2, 8, 64):
        picks = torch.randint(0, len(x), (steps, size), generator=run.generator)
        for name, layer in (("batch norm", nn.BatchNorm1d(32)), ("layer norm", nn.LayerNorm(32))):
            net = nn.Sequential(
                dense(start[0].weight.detach().float(), start[0].bias.detach().float()),
                layer,
                nn.ReLU(),
                dense(start[1].weight.detach().float(), start[1].bias.detach().float()),
            )
            parameters = list(net.parameters())
            for pick in picks:
                loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        parameter.sub_(0.1 * gradient)
            net.eval()
            with torch.no_grad():
                errors[name][size] = float((net(test_x).argmax(1) != test_y).double().mean())
    run.table(
        "batch-or-layer",
        ["batch size", "test error, batch norm", "test error, layer norm"],
        [(s, errors["batch norm"][s], errors["layer norm"][s]) for s in (2, 8, 64)],
        caption=f"8 × 8 digits, 64-32-10 network, {steps} steps of SGD from the same weights, in single precision.",
    )
    return errors
