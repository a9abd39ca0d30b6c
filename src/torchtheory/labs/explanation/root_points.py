"""Rules of relevance propagation out of Taylor expansions of single neurons."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.deep_taylor import (
    neuron_expansion,
    product_expansion,
    relevance_variation,
    root_along,
)
from torchtheory.explanation.rules import AlphaBeta, Epsilon, Gamma, RootPoint, Rule, WSquare, ZBox, Zero
from torchtheory.labs.engine import Run, lab

GAMMA = 0.5
LOW, HIGH = -1.0, 2.0


def same(x: Tensor) -> Tensor:
    return x


#: A rule of the table, and the direction in which a root is searched for it.
DIRECTIONS: list[tuple[Rule, RootPoint]] = [
    (Zero(), RootPoint([(same, torch.ones_like)])),
    (Gamma(GAMMA), RootPoint([(same, lambda w: 1 + GAMMA * (w >= 0))])),
    (AlphaBeta(1, 0), RootPoint([(same, lambda w: (w >= 0).to(w))])),
    (WSquare(), RootPoint([(torch.ones_like, same)])),
    (
        ZBox(LOW, HIGH),
        RootPoint([(same, torch.ones_like), (torch.ones_like, lambda w: torch.where(w >= 0, -LOW, -HIGH).to(w))]),
    ),
]


@lab(
    "root-points",
    room="explanation",
    covers=["C-31", "C-32", "C-38"],
    title="Rules of relevance are first-order Taylor expansions of neurons, each at its own reference point",
    errata=["reference-of-epsilon-is-inactive", "gamma-root-is-not-positive", "gated-product-keeps-all-relevance"],
    full={"samples": 400, "width": 60},
    least={"width": 6},
)
def root_points(run: Run, samples: int = 60, width: int = 12) -> None:
    """Deep Taylor decomposition, step by step: the model of relevance, the root, the rule.

    The factor c = R/x of a neuron is taken for a constant, which it is for LRP-0 within a linear
    region and nearly is for gamma. The expansion of an active neuron at a root hands on all of its
    relevance, and the direction of the root makes the rule. A product of gate and signal has its
    nearest root where the signal is 0, so that the gate gets nothing.

    Args:
        samples: inputs.
        width: of the network whose factors are measured.
    """
    factors(run, width)
    neurons(run, samples)
    products(run, samples)


def factors(run: Run, width: int) -> None:
    """How constant R/x is."""
    parts = [nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)]
    net = nn.Sequential(*parts).double()
    x = run.randn(8, 6)

    def variation(rule: Rule, radius: float, layer: str) -> float:
        return relevance_variation(net, x, 0, rule, [layer], radius=radius, generator=run.seed)[layer]

    says = run.states(
        "C-31", r"\text{LRP-0 in a linear region: }c_k=R_k/x_k=\partial f/\partial x_k\ \text{is constant}"
    )
    # so long that gamma would show it, as it does below, and so short that it hardly ever leaves a region
    says.equal(variation(Zero(), 1e-6, "1"), 0.0, 1e-10)
    says.fails("steps that leave the region", variation(Zero(), 1.0, "1"))
    says = run.states("C-31", r"c^{[L]}=1\ \text{at the output, whatever the rules}")
    says.equal([variation(rule, 0.01, "4") for rule in (Zero(), Gamma(GAMMA), AlphaBeta(1, 0))], 0.0, 1e-12)
    says.fails("one layer further down, by gamma", [variation(Gamma(GAMMA), 0.01, "3")])
    radii = torch.logspace(-7, -4, 7, dtype=torch.float64)
    moved = [variation(Gamma(GAMMA), float(r), "1") for r in radii]
    still = [max(variation(Zero(), float(r), "1"), 1e-17) for r in radii]
    says = run.states("C-31", r"\text{gamma: }c\ \text{moves in proportion to the step}")
    says.slope(radii, moved, 1.0, 0.1, against=(0.5, 2.0))
    says.fails("γ = 0", radii, still)
    run.curves(
        "factors",
        radii,
        {"gamma 0.5": moved, "LRP-0": still},
        {"the step": radii},
        axes=("standard deviation of the step", "relative change of c"),
        log="xy",
        caption="The factor c = R/x of hidden units near some samples: not constant with gamma, but nearly.",
    )


def neurons(run: Run, samples: int) -> None:
    """Roots and references of one neuron."""
    w = run.randn(6)
    w[0] = 2 + w[0].abs()
    x = run.rand(4 * samples, 6)
    x = x[x @ w > 0.5][:samples]
    direction = x * (1 + GAMMA * (w >= 0))
    says = run.states("C-32", r"\tilde x=x-tv\ \text{a root}:\ \sum_j(x_j-\tilde x_j)w_jc=R_k")
    at_root = neuron_expansion(x, w, root_along(x, w, direction), factor=2.0)
    says.equal(at_root.messages.sum(1), 2 * (x @ w), 1e-9)
    says.fails(
        "half of the way to the root",
        neuron_expansion(x, w, (x + root_along(x, w, direction)) / 2, factor=2.0).messages.sum(1),
    )

    def apart(bias: float) -> Tensor:
        model = neuron(w, bias)
        tables, roots = zip(*((lrp(model, x, rules=a), lrp(model, x, rules=b)) for a, b in DIRECTIONS), strict=True)
        return torch.cat([(a.flat - b.flat).abs().amax(1) for a, b in zip(roots, tables, strict=True)])

    says = run.states(
        "C-32",
        r"v=x,\ x(1+\gamma1_{w\ge0}),\ x1_{w\ge0},\ w,\ x-L1_{w\ge0}-H1_{w<0}:\ \text{LRP-}0,\ \gamma,\ "
        r"\alpha_1\beta_0,\ w^2,\ z^{\mathcal B}\ \text{if }b=0",
    )
    says.equal(apart(0.0), 0.0, 1e-9, where="largest difference of a feature, for each rule and input")
    says.fails("b = 0.7", apart(0.7))

    strength = 0.2

    def reference(bias: float) -> tuple[Tensor, Tensor]:
        model = neuron(w, bias)
        with torch.no_grad():
            z = model(x)
        delta = strength / (z + strength)
        return neuron_expansion(x, w, delta * x, bias=bias).messages, lrp(model, x, rules=Epsilon(strength)).flat

    says = run.states(
        "C-32",
        r"\tilde x=\delta x,\ \delta=\varepsilon/(x_k+\varepsilon),\ b\ge0:\ (1-\delta)x_jw_jc=R^\varepsilon_{k\to j}",
    )
    says.equal(*reference(0.3), 1e-9)
    says.fails("b = -0.4, where the reference is inactive", reference(-0.4)[0], promised=reference(-0.4)[1])
    run.refutes(
        "reference-of-epsilon-is-inactive",
        r"b<0,\ \tilde x=\delta x:\ \sum_jR_{k\to j}=\frac{w^\top x}{x_k+\varepsilon}R_k",
    ).equal(reference(-0.4)[0].sum(1), reference(-0.4)[1].sum(1), 1e-9)
    lowest = root_along(x, w, direction, bias=1.5)
    run.refutes("gamma-root-is-not-positive", r"\text{root of LRP-}\gamma:\ \tilde x_j\ge0").at_least(lowest, 0.0)


def neuron(w: Tensor, bias: float) -> nn.Linear:
    """One linear output."""
    made = nn.Linear(len(w), 1).double()
    with torch.no_grad():
        made.weight.copy_(w[None])
        made.bias.fill_(bias)
    return made


def products(run: Run, samples: int) -> None:
    """A gate times a signal."""
    gate, signal = run.randn(samples), 0.5 * run.randn(samples)
    nearest = product_expansion(gate, signal)
    shifted = torch.stack([gate + 1.0, torch.zeros_like(gate)], 1)
    says = run.states("C-38", r"\tilde z=(z_g,0):\ |\hat R_k-R_g-R_j|\le c\,\mathrm{sigm}(z_g)|z_j|^3/3")
    says.at_most(nearest.residual.abs(), nearest.bound)
    says.fails(
        "a root further away, the gate moved by 1",
        product_expansion(gate, signal, root=shifted).residual.abs(),
        promised=nearest.bound,
    )
    says = run.states("C-38", r"\text{ReLU signal: }R_j=\hat R_k,\ R_g=0,\ \text{no residual}")

    def missing(signal: Tensor, activation: str) -> Tensor:
        return product_expansion(gate, signal, activation=activation).residual  # type: ignore[arg-type]

    says.equal(missing(signal.abs(), "relu"), 0.0, 1e-12)
    says.fails("tanh", missing(signal.abs(), "tanh"))
    sizes = torch.logspace(-2, -0.5, 7, dtype=torch.float64)
    left = [float(product_expansion(gate[:1], z[None]).residual.abs()) for z in sizes]
    beside = [off_root(gate[:1], z[None]) for z in sizes]
    says = run.states("C-38", r"\hat R_k-R_j=O(z_j^3)")
    says.slope(sizes, left, 3.0, 0.1, against=(2.0, 4.0))
    says.fails("a root further away, the gate moved by 1", sizes, beside)
    strong = torch.full_like(gate, 2.0)
    found = product_expansion(gate, strong)
    run.refutes("gated-product-keeps-all-relevance", r"z_j=2:\ R_j=\hat R_k").equal(
        found.signal, torch.sigmoid(gate) * torch.tanh(strong), 1e-9
    )


def off_root(gate: Tensor, signal: Tensor) -> float:
    root = torch.stack([gate + 1.0, torch.zeros_like(gate)], 1)
    return float(product_expansion(gate, signal, root=root).residual.abs())
