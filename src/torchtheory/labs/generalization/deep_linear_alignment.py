"""What gradient flow conserves between layers, and where deep linear networks go."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import NotConverged
from torchtheory.data.synthetic import separable_gaussians
from torchtheory.generalization.implicit_bias.hard_margin import hard_margin_svm
from torchtheory.generalization.implicit_bias.layer_balance import (
    alignment_bound,
    balanced_weights,
    layer_alignment,
    layer_balance_of,
)
from torchtheory.generalization.implicit_bias.smoothed_margin import (
    MarginCurve,
    follow_margin,
    growing_margin,
    smoothed_minimum,
)
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.models.model import Parameters, flatten, unflatten
from torchtheory.training.backpropagation.chain import backpropagate


def biasless(run: Run, widths: list[int], activation: nn.Module | None = None) -> nn.Sequential:
    """Linear layers without biases between activations, Gaussian weights of the run."""
    layers: list[nn.Module] = []
    for k in range(len(widths) - 1):
        linear = nn.Linear(widths[k], widths[k + 1], bias=False, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(run.randn(widths[k + 1], widths[k]) / math.sqrt(widths[k]))
        layers.append(linear)
        if activation is not None and k < len(widths) - 2:
            layers.append(activation)
    return nn.Sequential(*layers)


@lab(
    "deep-linear-alignment",
    room="generalization",
    covers=["A-75", "A-76", "A-77"],
    title="Gradient flow keeps neighboring layers in balance, and linear ones line up",
    errata=["balance-identity-over-several-samples"],
    full={"level": 1000.0},
    least={"samples": 2, "width": 4, "level": 20},
    most={"level": 2000},
)
def deep_linear_alignment(run: Run, samples: int = 8, width: int = 4, level: float = 100.0) -> None:
    """Networks without biases under gradient flow, and what does not change on the way.

    The gradient of a layer written out equals autograd's. For ReLU the difference of the squared
    norms of neighboring layers is conserved, neuron by neuron; for tanh it is not, and descent
    changes it by a sum of squares that is exact. In a deep linear network a whole matrix is
    conserved, so that balanced layers stay aligned, and with the exponential loss any layers
    become so, as fast as they grow; their product turns to the hard margin. Look at the second
    panel: a diagonal linear network, also of three factors, goes elsewhere.

    Args:
        samples: of the data that gradient flow is followed on.
        width: of the layers.
        level: minus the logarithm of the risk at which the flow ends.
    """
    chain_rule(run, width)
    conservation(run, samples, width)
    alignment(run, level)


def chain_rule(run: Run, width: int) -> None:
    net = biasless(run, [3, width, width + 1, 1], nn.ReLU())
    for _ in range(100):  # an input with units that are on and units that are off
        x = run.randn(1, 3)
        with torch.no_grad():
            on = torch.cat([net[1](net[0](x)), net[:4](x)], 1) > 0
        if bool(on.any()) and not bool(on.all()):
            break
    slopes = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    steps = [s for s in backpropagate(net, x, x, lambda h, _: h.sum()).steps if s.operation == "linear"]
    measured, ungated = [], []
    for k, step in enumerate(steps):
        if k == len(steps) - 1:
            error = gate = torch.ones(1, dtype=torch.float64)
        else:
            after = steps[k + 1]
            error = after.delta[0] @ net.get_parameter(f"{after.name}.weight").detach()
            gate = (step.output[0] > 0).double()
        measured.append(torch.outer(step.input[0], error * gate).flatten())
        ungated.append(torch.outer(step.input[0], error).flatten())
    says = run.states(
        "A-75",
        r"\nabla_{W^{(\ell)}}\Phi=\varrho(\Phi^{(\ell-1)})\tfrac{\partial\Phi}{\partial"
        r"\Phi^{(\ell+1)}}W^{(\ell+1)}\operatorname{diag}(\varrho'(\Phi^{(\ell)}))",
    )
    says.equal(
        torch.cat(measured),
        torch.cat([g.T.flatten() for g in slopes]),
        1e-12,
        where="three ReLU layers, against autograd, transposed; x in place of ϱ(Φ⁽⁰⁾)",
    )
    found, linear = torch.cat(measured), torch.cat(ungated)
    off = found != linear  # weights into units that are off
    says.fails(
        "ϱ' taken as 1, as for a linear network, at units that are off",
        linear[off],
        promised=torch.cat([g.T.flatten() for g in slopes])[off],
    )


def conservation(run: Run, samples: int, width: int) -> None:
    x, y, *_ = separable_gaussians(samples, 3, margin=0.2, generator=run.generator)

    def follow(activation: nn.Module | None) -> tuple[list[list[Tensor]], nn.Sequential]:
        """The weights at the start, and where the exponential risk has fallen by e to the 0.2."""
        bend = nn.Identity() if activation is None else activation
        for _ in range(50):
            net = biasless(run, [3, width, width, 1], activation)
            like = {k: p.detach() for k, p in net.named_parameters()}

            def margins(theta: Tensor, like: Parameters = like) -> Tensor:
                first, second, third = unflatten(theta, like).values()
                outputs: Tensor = bend(bend(x @ first.T) @ second.T) @ third.T
                return y * outputs[:, 0]

            start = flatten(like)
            first = float(smoothed_minimum(margins(start)))
            try:
                curve = follow_margin(margins, start, [first, first + 0.2], rtol=1e-7, most=600)
            except NotConverged:  # units that died: the flow comes to rest, or follows a kink
                continue
            return [list(unflatten(p, like).values()) for p in curve.points], net
        raise NotConverged("50 networks in a row came to rest before their risk had fallen")

    def drift(path: list[list[Tensor]], what: str) -> float:
        begin, end = (getattr(layer_balance_of(weights), what) for weights in path)
        pairs = zip(begin, end, strict=True) if what == "matrices" else [(begin, end)]
        return max(float((b - a).abs().max()) for a, b in pairs)

    relu, net = follow(nn.ReLU())
    leaky, _ = follow(nn.LeakyReLU(0.1))
    linear, _ = follow(None)
    bent, _ = follow(nn.Tanh())
    for what, statement in (
        ("layers", r"\|W^{(\ell+1)}\|_F^2-\|W^{(\ell)}\|_F^2"),
        ("neurons", r"\|W^{(\ell+1)}_{:,j}\|^2-\|W^{(\ell)}_{j,:}\|^2"),
    ):
        says = run.states("A-76", statement + r"\text{ is conserved by gradient flow: drift}")
        says.equal(
            [drift(p, what) for p in (relu, leaky, linear)],
            within=1e-5,
            where=f"ReLU, leaky ReLU, linear; {samples} samples, three layers, until the risk has fallen by a fifth "
            "(starts that come to rest before are drawn anew); solver's relative error 1e-7 a step",
        )
        says.fails("tanh, for which ϱ(u) ≠ uϱ'(u)", drift(bent, what))
    says = run.states(
        ["A-76", "A-77"],
        r"\text{linear: } W^{(\ell+1)\top}W^{(\ell+1)}-W^{(\ell)}W^{(\ell)\top}\text{ is conserved: drift}",
    )
    says.equal(drift(linear, "matrices"), within=1e-5)
    says.fails("ReLU", drift(relu, "matrices"))
    descent(run, net, x, y[:, None])
    run.table(
        "drift",
        ["activation", "layers", "neurons", "matrices"],
        [
            (name, drift(p, "layers"), drift(p, "neurons"), drift(p, "matrices"))
            for name, p in {
                "ReLU": relu,
                "leaky ReLU": leaky,
                "linear": linear,
                "tanh": bent,
            }.items()
        ],
        caption="Largest change under gradient flow of the exponential risk.",
    )
    matrix_identity(run, net, x, y[:, None])


def descent(run: Run, net: nn.Sequential, x: Tensor, y: Tensor) -> None:
    """Steps instead of a flow: the change is known exactly."""

    def descend(step: float, decay: float = 0.0, start: nn.Sequential = net) -> tuple[Tensor, Tensor, float]:
        """What the balance changes by, what is predicted, and how far the risk falls."""
        model = copy.deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=step, weight_decay=decay)
        squares = torch.zeros(len(list(model.parameters())), dtype=torch.float64)
        risks = []
        for _ in range(round(1 / step)):
            optimizer.zero_grad()
            risk = (model(x) - y).square().mean()
            risk.backward()
            risks.append(float(risk.detach()))
            slopes = [p.grad for p in model.parameters() if p.grad is not None]
            squares += step**2 * torch.stack([g.square().sum() for g in slopes])
            optimizer.step()
        with torch.no_grad():
            fallen = risks[0] - float((model(x) - y).square().mean())
        return layer_balance_of(model).layers - layer_balance_of(start).layers, squares.diff(), fallen

    changed, predicted, fallen = descend(0.02)
    decayed, decayed_predicted, _ = descend(0.02, 0.1)
    says = run.states(
        "A-76",
        r"\text{descent: } \|W^{(\ell+1)}\|_F^2-\|W^{(\ell)}\|_F^2 \text{ changes by } "
        r"\eta^2\textstyle\sum_t(\|\nabla_{W^{(\ell+1)}}\|_F^2-\|\nabla_{W^{(\ell)}}\|_F^2)",
    )
    says.equal(changed, predicted, 1e-10, where="50 steps of η = 0.02")
    says.fails("with weight decay 0.1", decayed, promised=decayed_predicted)
    halved, _, fallen_too = descend(0.01)
    shrunk, _, fallen_so = descend(0.01, 0.1)
    says = run.states(
        "A-76",
        r"\text{which is } O(\eta): \text{ at most } 2\eta\,(R_0-R_T) \text{ where a step "
        r"lowers the risk } R \text{ by } \tfrac\eta2\|\nabla R\|^2 \text{ at least}",
    )
    # long first layer, second layer 0: almost all of the gradient is that of the second
    first, second = (nn.Linear(k, 1, bias=False, dtype=torch.float64) for k in (3, 1))
    best = torch.linalg.lstsq(x, y).solution
    with torch.no_grad():
        first.weight.copy_(3 * best.T / best.norm())
        second.weight.zero_()
    grown, _, fallen_most = descend(0.005, start=nn.Sequential(first, second))
    says.at_most(
        [float(changed.abs().max()), float(halved.abs().max()), float(grown.abs().max())],
        [2 * 0.02 * fallen, 2 * 0.01 * fallen_too, 2 * 0.005 * fallen_most],
        where="η = 0.02 and 0.01, up to time 1; and two linear layers of which the second starts at 0, η = 0.005",
    )
    says.fails(
        "with weight decay 0.1, which shrinks the difference itself at any η",
        float(shrunk.abs().max()),
        promised=2 * 0.01 * fallen_so,
    )


def matrix_identity(run: Run, net: nn.Sequential, x: Tensor, y: Tensor) -> None:
    """Eq. (1.27) for the first two layers, for one sample and for several."""

    def sides(x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        first, second, _ = (p.detach() for p in net.parameters())
        slopes = torch.autograd.grad((net(x) - y).square().mean(), list(net.parameters()))
        gate = torch.diag((first @ at > 0).double())
        return gate @ first @ -slopes[0].T, -slopes[1].T @ second @ gate

    # a sample at which some units are on and some off
    first = next(iter(net.parameters())).detach()
    mixed = [k for k in range(len(x)) if 0 < int((first @ x[k] > 0).sum()) < len(first)]
    k = mixed[0] if mixed else 0
    left, right = sides(x[k : k + 1], y[k : k + 1], x[k])
    pairs = [sides(x, y, x[i]) for i in mixed or [0]]
    nearest = min(float((a - b).norm()) for a, b in pairs)
    says = run.states(
        "A-76",
        r"D\,W^{(\ell)}\dot W^{(\ell)\top}=\dot W^{(\ell+1)\top}W^{(\ell+1)}D,\ "
        r"D=\operatorname{diag}\varrho'(\Phi^{(\ell)}(x)) \text{ for one sample: difference}",
    )
    says.equal(float((left - right).norm()), within=1e-12)
    says.fails(f"{len(x)} samples, D at the one that fits best", nearest)
    run.refutes(
        "balance-identity-over-several-samples",
        r"D\,W^{(\ell)}\dot W^{(\ell)\top}=\dot W^{(\ell+1)\top}W^{(\ell+1)}D"
        r"\text{ under the flow of the whole risk: difference}",
    ).equal(nearest, within=1e-9, where=f"{len(x)} samples, D at the one that fits best")


def split(vector: Tensor) -> list[Tensor]:
    """Layers of 2, 3, 3 and 1 units."""
    return [vector[:6].reshape(3, 2), vector[6:15].reshape(3, 3), vector[15:].reshape(1, 3)]


def product(vector: Tensor) -> Tensor:
    first, second, third = split(vector)
    return (third @ second @ first).flatten()


def alignment(run: Run, level: float) -> None:
    """Three linear layers and a diagonal network on separable data."""
    # two support vectors; the sparsest direction that separates is another, (1, 0)
    z = torch.tensor([[2.0, 0.6], [1.5, 1.5], [3.0, 2.0], [2.0, 3.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    x = y[:, None] * z
    goal = hard_margin_svm(x, y).weight
    goal = goal / goal.norm()
    levels = torch.logspace(0, math.log10(level), 19, dtype=torch.float64)
    start = 0.5 * run.randn(18)
    while float(smoothed_minimum(z @ product(start))) > 1:  # the first level
        start = start / 2
    even = torch.cat([w.flatten() for w in balanced_weights(0.1 * run.randn(1, 2), [3, 3], generator=run.generator)])

    def follow(margins: Any, start: Tensor) -> MarginCurve:
        return follow_margin(margins, start, levels, rtol=1e-7)

    free = follow(lambda v: z @ product(v), start)
    balanced = follow(lambda v: z @ product(v), even)
    diagonal = follow(lambda v: z @ v.reshape(3, 2).prod(0), torch.full((6,), 0.5).double())

    def aligned(curve: MarginCurve) -> Tensor:
        return torch.stack([layer_alignment(split(p)) for p in curve.points])

    says = run.states(
        "A-77", r"\text{balanced layers stay aligned: } |\langle u_1(W^{(\ell)}),v_1(W^{(\ell+1)})\rangle|=1"
    )
    says.equal(aligned(balanced), 1.0, 1e-5, where=f"three layers, until the logarithm of the risk is -{level:g}")
    says.fails("a start that is not balanced", aligned(free))
    kept = layer_balance_of(split(start)).matrices
    none = [torch.zeros_like(m) for m in kept]
    says = run.states(
        "A-77",
        r"|\langle u_1(W^{(\ell)}),v_1(W^{(\ell+1)})\rangle|\ge\sqrt{\sigma_\ell^2-\|D_\ell\|-"
        r"E_{\ell+1}}/\sigma_{\ell+1} \text{ with the } D \text{ of the start}",
    )
    says.at_least(
        aligned(free),
        torch.stack([alignment_bound(split(p), kept) for p in free.points]),
        1e-6,
        where=f"at the last level {float(alignment_bound(split(free.points[-1]), kept).min()):.4f} promised, "
        f"{float(aligned(free)[-1].min()):.4f} measured",
    )
    says.fails(
        "D taken as 0, although the start is not balanced",
        aligned(free),
        promised=torch.stack([alignment_bound(split(p), none) for p in free.points]),
    )

    def cosine(vector: Tensor) -> float:
        return float(vector @ goal / vector.norm())

    # the largest margin of weights of length 1: three factors of one size
    best = float((z @ goal).min()) / 3**1.5
    tenth = int((levels - level / 10).abs().argmin())

    def left_over(curve: MarginCurve) -> float:
        lacks = 1 - growing_margin(curve.margins, curve.norms, 3.0) / best
        return float(lacks[-1] / lacks[tenth])

    def diagonal_product(vector: Tensor) -> Tensor:
        return vector.reshape(3, 2).prod(0)

    says = run.states(
        "A-77",
        r"W^{(3)}W^{(2)}W^{(1)} \text{ turns to the hard margin: what } \ell^{-1}(\mathcal L)/\|\theta\|^3 \text{ "
        r"lacks of } \gamma^*/3^{3/2} \text{ is at least halved while } s=-\log r \text{ grows tenfold}",
    )
    says.at_most(
        [left_over(free), left_over(balanced)],
        0.5,
        where=f"any start, for which it is O($s^{{-2/3}}$) as the norms differ by what is conserved, "
        f"and a balanced one, to s = {level:g}; cosines with the hard margin "
        f"{cosine(product(free.points[-1])):.6f} and {cosine(product(balanced.points[-1])):.6f}",
    )
    says.fails("a diagonal network of three factors: its layers are not free matrices", left_over(diagonal))

    def plot(axes: Any) -> None:
        left, right = axes[0]
        for k, (name, curve) in enumerate({"any start": free, "balanced": balanced}.items()):
            left.semilogx(levels, aligned(curve).amin(1), color=COLORS[k], label=name)
            off = [1 - cosine(product(p)) for p in curve.points]
            right.loglog(levels, off, color=COLORS[k], label=name)
        low = torch.stack([alignment_bound(split(p), kept).min() for p in free.points])
        left.semilogx(levels, low, ":", color=COLORS[0], label="promised, any start")
        off = [1 - cosine(diagonal_product(p)) for p in diagonal.points]
        right.loglog(levels, off, "--", color=COLORS[2], label="diagonal")
        left.set(xlabel="-log risk", ylabel="least alignment of two layers")
        right.set(xlabel="-log risk", ylabel="1 - cosine with the hard margin")
        ticks = [t for t in (1, 3, 10, 30, 100, 300, 1000) if t <= level]
        for axis in (left, right):
            axis.set_xticks(ticks, [str(t) for t in ticks])
            axis.minorticks_off()
            axis.legend()

    run.figure(
        "alignment",
        plot,
        caption="A linear network of three layers on separable data: the layers line up (left) and "
        "their product turns to the support vector machine (right); a diagonal one does not.",
        grid=(1, 2),
    )
