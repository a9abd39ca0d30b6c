"""Shapley values: four axioms, closed forms, and estimates from random orders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.figure import COLORS
from torchtheory.explanation.explanation import flat
from torchtheory.explanation.methods.gradients import gradient_times_input, integrated_gradients
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.explanation.methods.shapley import shapley
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.activations.table import as_layer
from torchtheory.nets.feedforward import mlp

PLAYERS = 6


@lab(
    "shapley-values",
    room="explanation",
    covers=["C-16"],
    title="Shapley values: what each axiom says, what breaks it, and how well orders sample them",
    full={"trials": 2000, "samples": 100, "orders": (20, 40, 80, 160, 320)},
    # the slope over five numbers of orders, each of so many trials, is told from its half and double
    least={"trials": 200, "orders": 6},
    items={"orders": 5},
)
def shapley_values(
    run: Run, trials: int = 300, samples: int = 20, orders: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
) -> None:
    """Efficiency, symmetry, the dummy and linearity, each with its hypothesis broken.

    Then games whose values are known: a product of k features gives each of them the k-th part, a
    maximum gives them the shares of an airport. Last, values from random orders: without bias, with
    an error that falls as the root of their number, and exact where features only act in pairs,
    since each order is also taken backwards.

    Args:
        trials: independent estimates from random orders.
        samples: inputs that are explained exactly.
        orders: numbers of random orders.
    """
    odd = [m for m in orders if m % 2]
    run.assumes(not odd, f"orders are drawn in pairs of opposite ones, and {odd} are odd numbers")
    x = run.randn(samples, PLAYERS)
    one = mlp([PLAYERS, 12, 1], "tanh", generator=run.generator)
    other = mlp([PLAYERS, 12, 1], "tanh", generator=run.generator)
    with torch.no_grad():
        at_zero = float(one(torch.zeros(1, PLAYERS, dtype=torch.float64)))
    found = shapley(one, x)
    says = run.states("C-16", r"\text{efficiency}:\ \sum_i\phi_i=f(x)-f(0)")
    says.equal(found.total, found.score - at_zero, 1e-10)
    says.fails("missing features are not 0 but those of other samples", shapley(one, x, background=x.flip(0)).total)

    weights = run.randn(12, PLAYERS)
    weights[:, 1] = weights[:, 0]  # features 0 and 1 play the same part
    weights[:, 2] = 0.0  # feature 2 plays none
    out = run.randn(12)
    symmetric = as_layer(lambda t: (t @ weights.T).tanh() @ out)
    even = x.clone()
    even[:, 1] = even[:, 0]
    says = run.states(
        "C-16", r"\text{symmetry}:\ f(\ldots x_0,x_1\ldots)=f(\ldots x_1,x_0\ldots),\ x_0=x_1:\ \phi_0=\phi_1"
    )
    says.equal(difference(symmetric, even), 0.0, 1e-10)
    says.fails("x₀ ≠ x₁", difference(symmetric, x))
    says = run.states("C-16", r"\text{dummy}:\ f\text{ does not depend on }x_2:\ \phi_2=0")
    says.equal(shapley(symmetric, x).flat[:, 2], 0.0, 1e-10)
    touched = weights.clone()
    touched[:, 2] = 0.3 * run.randn(12)
    says.fails("f depends on x₂ a little", shapley(as_layer(lambda t: (t @ touched.T).tanh() @ out), x).flat[:, 2])
    says = run.states("C-16", r"\text{linearity}:\ \phi(2f-3g)=2\phi(f)-3\phi(g)")
    apart = 2 * found.flat - 3 * shapley(other, x).flat
    says.equal(shapley(as_layer(lambda t: 2 * one(t) - 3 * other(t)), x).flat, apart, 1e-10)
    says.fails("a maximum of f and g", shapley(as_layer(lambda t: torch.maximum(2 * one(t), -3 * other(t))), x).flat)

    # -- games whose values are known
    positive = 0.5 + run.rand(samples, PLAYERS)
    product = as_layer(lambda t: t[:, 1:5].prod(1))
    share = torch.zeros(samples, PLAYERS, dtype=torch.float64)
    share[:, 1:5] = positive[:, 1:5].prod(1, keepdim=True) / 4
    says = run.states("C-16", r"f=x_1x_2x_3x_4\text{ from }0:\ \phi_i=f(x)/4")
    says.equal(shapley(product, positive).flat, share, 1e-10)
    says.fails("from 0.3, where fewer than all are worth something", shapley(product, positive, baseline=0.3).flat)
    says = run.states("C-16", r"f=\max_ix_i\text{ from }0:\ \phi_{(k)}=\sum_{j\le k}\frac{x_{(j)}-x_{(j-1)}}{p+1-j}")
    says.equal(shapley(as_layer(lambda t: t.amax(1)), positive).flat, airport(positive), 1e-10)
    says.fails(
        "from 0.6, which some features lie below", shapley(as_layer(lambda t: t.amax(1)), positive, baseline=0.6).flat
    )

    # -- random orders
    point = torch.tensor([[2.0, 1.0, -0.5, 1.5, 0.5, -1.0]], dtype=torch.float64)
    cubic = as_layer(lambda t: (t.sum(1) / 2) ** 3)
    copies = point.expand(trials, -1)
    exact = shapley(cubic, point).flat
    made = {m: shapley(cubic, copies, permutations=m, generator=run.generator) for m in orders}
    errors = [float((m.flat - exact).square().mean().sqrt()) for m in made.values()]
    says = run.states("C-16", r"\text{root mean square of }\hat\phi-\phi\sim m^{-1/2}\text{ over }m\text{ orders}")
    says.slope(orders, errors, -0.5, 0.05, against=(-1.0, 0.0))
    says = run.states("C-16", r"E\,\hat\phi_0/\phi_0=1")
    first = made[orders[1]].flat[:, 0] / exact[0, 0]
    says.mean(first, 1.0, against=(0.9, 1.1), confidence=0.9999)
    says = run.states("C-16", r"f\text{ quadratic}:\ \hat\phi=\phi\text{ from any two pairs of opposite orders}")
    squared = as_layer(lambda t: (t.sum(1) / 2) ** 2)
    says.equal(sampled(run, squared, copies), shapley(squared, point).flat.expand(trials, -1), 1e-9)
    says.fails("f is cubic", sampled(run, cubic, copies), promised=exact.expand(trials, -1))
    says = run.states("C-16", r"\sum_i\hat\phi_i=f(x)-f(0)\text{ for any sample of orders}")
    says.equal(made[orders[0]].total, made[orders[0]].score, 1e-9)
    estimated = [float(flat(m.error).square().mean().sqrt()) for m in made.values() if m.error is not None]
    run.curves(
        "orders",
        list(orders),
        {"random orders": errors},
        {"standard errors": estimated},
        axes=("random orders", "error of a Shapley value"),
        log="xy",
        caption="Shapley values of a cubic score from pairs of opposite orders: root mean square error over "
        "independent estimates, and what the standard errors say.",
    )
    run.figure("interaction", bars, caption="Four methods on f = x₁x₂ + x₃ at (2, 1, 1), where f = 3: occlusion and "
               "gradient times input count the product twice.")  # fmt: skip


def difference(net: nn.Module, x: Tensor) -> Tensor:
    """Between the values of features 0 and 1."""
    found = shapley(net, x).flat
    return found[:, 0] - found[:, 1]


def airport(x: Tensor) -> Tensor:
    """Values of the maximum of positive numbers: each step is shared by those that need it."""
    ordered, place = x.sort(1)
    steps = ordered.diff(dim=1, prepend=torch.zeros_like(ordered[:, :1]))
    sharing = torch.arange(x.shape[1], 0, -1, dtype=x.dtype)
    return torch.zeros_like(x).scatter(1, place, (steps / sharing).cumsum(1))


def sampled(run: Run, net: nn.Module, x: Tensor) -> Tensor:
    return shapley(net, x, permutations=4, generator=run.generator).flat


def bars(ax: Any) -> None:
    """What four methods say of a product and a term."""
    net = as_layer(lambda t: t[:, 0] * t[:, 1] + t[:, 2])
    x = torch.tensor([[2.0, 1.0, 1.0]], dtype=torch.float64)
    methods: dict[str, Any] = {
        "occlusion": occlusion,
        "gradient × input": gradient_times_input,
        "integrated gradients": integrated_gradients,
        "Shapley values": shapley,
    }
    for k, (name, method) in enumerate(methods.items()):
        found = method(net, x)
        ax.bar([i + 0.2 * (k - 1.5) for i in range(3)], found.flat[0].tolist(), 0.18,
               label=f"{name}, sum {float(found.total):.3g}", color=COLORS[k])  # fmt: skip
    ax.set_xticks(range(3), ["x₁ = 2", "x₂ = 1", "x₃ = 1"])
    ax.set_ylabel("relevance")
    ax.set_ylim(0, 2.9)
    ax.legend()
