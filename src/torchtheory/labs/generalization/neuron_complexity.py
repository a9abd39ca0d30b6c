"""The complexity of a single layer σ(Wx), and what depth costs when spectral norms are known."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.generalization.complexity.norm_bounds import depth_free_order, frobenius_bound
from torchtheory.generalization.complexity.rademacher import Supremum, exact_rademacher, linear_bounds, linear_class
from torchtheory.labs.engine import Run, lab


@lab(
    "neuron-complexity",
    room="generalization",
    covers=["M-46", "M-47", "A-64"],
    title="One layer with a Lipschitz activation: Rademacher complexity at most Lip · W₂ D / √m, nearly attained",
    full={"samples": 16},
    least={"samples": 10},
)
def neuron_complexity(run: Run, samples: int = 12) -> None:
    """Units φ(w·x) with weights of bounded length, on orthonormal points, where the supremum over the
    weights is a formula and all signs can be listed.

    The lemma on linear classes and the contraction lemma give Lip(φ) W D/√m. A tanh of small weights
    is nearly linear and comes within a hundredth of it; a ReLU sees half of the signs. Then depth: the
    bound that knows the spectral norms does not grow with it, and falls more slowly with the sample.

    Args:
        samples: for which all signs are listed.
    """
    one_layer(run, samples)
    depth(run)


def supremum_of(kind: str, radius: float, m: int) -> Supremum:
    """sup over ‖w‖ ≤ W of (1/m) Σ σ_i φ(w_i), for orthonormal points: by the shape of φ."""

    steepness = 3 if kind == "steep" else 1

    def tanh(signs: Tensor) -> Tensor:
        # tanh(s√u) is concave in u = w²: equal shares are best, and every sign can be met
        share = math.tanh(steepness * radius / math.sqrt(m))
        return torch.full((len(signs),), share, dtype=torch.float64)

    def relu(signs: Tensor) -> Tensor:
        # what has a negative sign is switched off
        return radius * (signs > 0).sum(1).double().sqrt() / m

    return relu if kind == "relu" else tanh


def one_layer(run: Run, m: int) -> None:
    x = torch.linalg.qr(run.randn(m, m)).Q
    radius = 0.5
    _, worst = linear_bounds(x, radius)
    says = run.states("M-46", r"\hat R(\{w\cdot x\})=W_2D/\sqrt m \text{ for orthonormal points}")
    says.equal(exact_rademacher(linear_class(x, radius), m), worst, 1e-9)
    repeated = x[:1].expand(m, -1)
    says.fails("one point, repeated", exact_rademacher(linear_class(repeated, radius), m))
    found = [exact_rademacher(supremum_of(kind, radius, m), m) for kind in ("tanh", "relu")]
    says = run.states("M-46, M-47", r"\hat R(\{\varphi(w\cdot x):\|w\|\le W_2\})\le\mathrm{Lip}(\varphi)\,W_2D/\sqrt m")
    says.at_most(found, worst, 1e-12, where=f"tanh and ReLU, all signs of {m} orthonormal points")
    steep = exact_rademacher(supremum_of("steep", radius, m), m)
    says.fails("tanh(3t), which is three times as steep as the constant says", steep)
    # the formula of the supremum against a search over the weights
    signs = torch.where(run.rand(20, m) < 0.5, -1.0, 1.0).double()
    tries = run.randn(4000, m)
    tries = radius * tries / tries.norm(dim=1, keepdim=True)
    for kind, activation in (("tanh", torch.tanh), ("relu", torch.relu)):
        exact = supremum_of(kind, radius, m)(signs)
        best = signs * radius / math.sqrt(m) if kind == "tanh" else (signs > 0).double()
        best = radius * best / best.norm(dim=1, keepdim=True)
        reached = (signs * activation(best)).mean(1)
        says = run.states("M-47", rf"\text{{{kind}: no weights do better than the formula, and some reach it}}")
        says.equal(reached, exact, 1e-12)
        random = (signs[:, None] * activation(tries)[None]).mean(2).amax(1)
        says.fails("the best of 4000 random weights", random)


def depth(run: Run) -> None:
    few, product = 20, 2.0
    layers = [4, 16, 64, 256, 1024]
    norms = [[product] + [1.0] * (k - 1) for k in layers]
    first = math.log(few) ** 0.75 * math.sqrt(math.log(product / 1.9)) / few**0.25 * product
    says = run.states(
        "A-64", r"\text{spectral version: no growth with } L \text{ at a fixed } \textstyle\prod C_\ell/\Gamma"
    )
    says.equal([depth_free_order(c, 1.9, 1.0, few) for c in norms], first, 1e-9)
    says.fails(
        "without knowing the spectral norms",
        [frobenius_bound(c, 1 / math.sqrt(few), depth_factor="root") for c in norms],
    )
    sizes = [10**k for k in range(3, 9)]
    deep = [product] + [1.0] * 10**6
    stripped = [depth_free_order(deep, 1.9, 1.0, m) / math.log(m) ** 0.75 for m in sizes]
    says = run.states("A-64", r"\text{the price: } m^{-1/4} \text{ up to logarithms, while } L\gg\sqrt m")
    says.slope(sizes, stripped, -0.25, 1e-6, against=(-0.5, 0.0))
    says.fails(
        "few layers, where √(L/m) is less", sizes, [depth_free_order([product, 1.0], 1.9, 1.0, m) for m in sizes]
    )
    run.curves(
        "depth",
        layers,
        {
            "spectral": [depth_free_order(c, 1.9, 1.0, few) for c in norms],
            "root of the depth": [frobenius_bound(c, 1 / math.sqrt(few), depth_factor="root") for c in norms],
        },
        axes=("layers", "order of the complexity"),
        log="xy",
        caption="Networks whose product of Frobenius norms is 2 and whose spectral norms multiply to 1.9 at least.",
    )
