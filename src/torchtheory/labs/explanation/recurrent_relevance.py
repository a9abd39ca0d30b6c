"""Relevance through time: an LSTM and a GRU, with three rules for products."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.explanation.composites import Composite, DoubtfulRules
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.rules import Epsilon, Product, Rule, Zero
from torchtheory.explanation.score import Inputs
from torchtheory.labs.engine import Run, lab

Share = Literal["all", "prop", "half"]
SHARES: tuple[Share, ...] = ("all", "prop", "half")


@lab(
    "recurrent-relevance",
    room="explanation",
    covers=["C-36", "C-37"],
    title="Relevance of an LSTM adds up over all words, whichever share its gates get",
    full={"samples": 100, "length": 20, "width": 20},
)
def recurrent_relevance(run: Run, samples: int = 8, length: int = 6, width: int = 5) -> None:
    """torch's own LSTM and GRU are explained step by step of the sequence.

    Without biases, stabilizer and initial states the relevance of all words adds up to the score, for
    all three rules of products. LRP-all is compared with the backward recursion of the source,
    written out by hand. Then a single product shows what each rule gives the gate, and the poles of
    LRP-prop where gate and signal cancel.

    Args:
        samples: sequences.
        length: words of a sequence.
        width: of the state.
    """
    x = run.randn(samples, length, 3)
    says = run.states("C-36", r"b=0,\ \varepsilon=0,\ c_0=y_0=0:\ \sum_t\sum_iR(x_{t,i})=f(x)")
    kinds: tuple[type[nn.RNNBase], ...] = (nn.LSTM, nn.GRU)

    def sums(bias: bool) -> tuple[list[Tensor], list[Tensor]]:
        found = [explain(reader(run, kind, width, bias), x, share) for kind in kinds for share in ("all", "half")]
        # relevance of both signs grows with the steps, and its sum is no more exact than its parts
        scales = [f.flat.abs().sum(1).clamp_min(1) for f in found]
        return (
            [f.total / scale for f, scale in zip(found, scales, strict=True)],
            [f.score / scale for f, scale in zip(found, scales, strict=True)],
        )

    for (measured, promised), (broken, score), where in zip(
        *([list(zip(*sums(bias), strict=True)) for bias in (False, True)]),
        ("LSTM, LRP-all", "LSTM, LRP-half", "GRU, LRP-all", "GRU, LRP-half"),
        strict=True,
    ):
        says.equal(measured, promised, 1e-8, where=f"{where}, relative to all relevance")
        says.fails("biases", broken, promised=score)
    poles = explain(reader(run, nn.LSTM, width, False), x, "prop")
    scale = poles.flat.abs().sum(1).clamp_min(1)  # shares in proportion may be huge, of both signs
    says.equal(poles.total / scale, poles.score / scale, 1e-8, where="LSTM, LRP-prop, relative to all relevance")

    says = run.states(
        "C-36", r"\text{with biases the ledger is exact}: f=\sum R+\text{to biases}+\text{to }\varepsilon"
    )
    biased = reader(run, nn.LSTM, width, True)
    found = lrp(biased, x, rules=Composite((), Epsilon(1e-3), Product("all")))
    assert found.ledger is not None
    says.equal(found.total + found.ledger.to_biases + found.ledger.to_epsilon, found.score, 1e-9)

    net = reader(run, nn.LSTM, width, True)
    says = run.states(
        "C-36",
        r"R(c_t)\mathrel{+}=R(y_t),\ c_t=i\odot z+f\odot c_{t-1}\ \text{split by }\varepsilon,\ "
        r"R(z_t)\to x_t,y_{t-1},\ \text{gates get }0",
    )
    by_hand = recursion(net, x, 1e-3)
    says.equal(explain(net, x, "all", Epsilon(1e-3)).flat, by_hand.flatten(1), 1e-8)
    says.fails("gates get half", explain(net, x, "half", Epsilon(1e-3)).flat)

    one_product(run, samples)


class Reader(nn.Module):
    """A recurrent layer whose last output is weighed up to a score."""

    def __init__(self, kind: Any, width: int, bias: bool) -> None:
        super().__init__()
        self.recurrent: Any = kind(3, width, bias=bias, batch_first=True)
        self.out = nn.Linear(width, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.recurrent(x)[0][:, -1])
        return made


def reader(run: Run, kind: type[nn.RNNBase], width: int, bias: bool) -> Reader:
    net = Reader(kind, width, bias).double()
    for p in net.parameters():
        nn.init.normal_(p, std=0.6, generator=run.generator)
    return net


def explain(net: nn.Module, x: Inputs, share: Share, rule: Rule | None = None) -> Explanation:
    with warnings.catch_warnings():  # that LRP-prop is doubtful is what is shown here
        warnings.simplefilter("ignore", DoubtfulRules)
        return lrp(net, x, rules=Composite((), rule or Zero(), Product(share)))


def cells(layer: Any, x: Tensor) -> dict[str, Tensor]:
    """All gates and states of Eqs. (5.14) to (5.19), each `[n, T, width]`."""
    w, u = layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach()
    b, v = layer.bias_ih_l0.detach(), layer.bias_hh_l0.detach()
    y = c = x.new_zeros(len(x), u.shape[1])
    kept: dict[str, list[Tensor]] = {name: [] for name in "zifoycab"}
    for t in range(x.shape[1]):
        into, across = x[:, t] @ w.T + b, y @ u.T + v
        i, f, z, o = (into + across).chunk(4, 1)
        i, f, o, pre = i.sigmoid(), f.sigmoid(), o.sigmoid(), z
        z = pre.tanh()
        c = i * z + f * c
        y = o * c.tanh()
        values = {"z": z, "i": i, "f": f, "o": o, "y": y, "c": c, "a": into.chunk(4, 1)[2], "b": across.chunk(4, 1)[2]}
        for name, value in values.items():
            kept[name].append(value)
    return {name: torch.stack(v, 1) for name, v in kept.items()}


def recursion(net: Reader, x: Tensor, epsilon: float) -> Tensor:
    """LRP-all through time as the source has it, with the epsilon rule at every sum."""

    def stable(z: Tensor) -> Tensor:
        return z + epsilon * z.sign()

    layer = net.recurrent
    known = cells(layer, x)
    width = known["y"].shape[2]
    w_z = layer.weight_ih_l0.detach()[2 * width : 3 * width]
    u_z = layer.weight_hh_l0.detach()[2 * width : 3 * width]
    found = torch.zeros_like(x)
    last, head = known["y"][:, -1], net.out.weight.detach()
    with torch.no_grad():
        score = net(x)
    of_y = last * head * (score / stable(score))
    of_c = torch.zeros_like(of_y)
    for t in range(x.shape[1] - 1, -1, -1):
        of_c = of_c + of_y
        per_unit = of_c / stable(known["c"][:, t])
        of_z = known["i"][:, t] * known["z"][:, t] * per_unit
        before = known["c"][:, t - 1] if t else torch.zeros_like(of_c)
        of_c = known["f"][:, t] * before * per_unit
        # the pre-activation is a sum of two layers, each with its bias
        a, b = known["a"][:, t], known["b"][:, t]
        per_unit = of_z / stable(a + b)
        found[:, t] = x[:, t] * ((a * per_unit / stable(a)) @ w_z)
        y = known["y"][:, t - 1] if t else torch.zeros_like(of_c)
        of_y = y * ((b * per_unit / stable(b)) @ u_z)
    return found


class OneProduct(nn.Module):
    """Gate sigm(g) times signal h(s) of two inputs."""

    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.gated = gated

    def forward(self, g: Tensor, s: Tensor) -> Tensor:
        first = torch.sigmoid(g) if self.gated else 0.5 * torch.tanh(g) + 0.5 * g.abs()
        return (first * torch.tanh(s)).sum(1)


def one_product(run: Run, samples: int) -> None:
    """What gate and signal get of one product."""
    g, s = run.randn(samples, 1), run.rand(samples, 1) + 0.2

    def share_of_gate(gated: bool) -> Tensor:
        found = [explain(OneProduct(gated).double(), (g, s), share) for share in SHARES]
        return torch.stack([f.relevance[0][:, 0] / f.score for f in found])

    gate, signal = g.sigmoid()[:, 0], s.tanh()[:, 0]
    promised = torch.stack([torch.zeros_like(gate), gate / (gate + signal), torch.full_like(gate, 0.5)])
    says = run.states("C-37", r"R_g/R_k=0\ (\text{all}),\ \frac{x_g}{x_g+x_j}\ (\text{prop}),\ \tfrac12\ (\text{half})")
    says.equal(share_of_gate(True), promised, 1e-9)
    says.fails("no gate: both factors are signals", share_of_gate(False))
    says = run.states("C-37", r"R_g+R_j=R_k\ \text{for each of the rules}")
    found = [explain(OneProduct(True).double(), (g, s), share) for share in SHARES]
    says.equal(torch.stack([f.total for f in found]), torch.stack([f.score for f in found]), 1e-9)
    lost = [explain(OneProduct(True).double(), (g, s), share, Epsilon(0.1)).total for share in SHARES]
    says.fails("a stabilizer of 0.1, which LRP-prop needs at its poles", torch.stack(lost))

    away = torch.logspace(-4, -1, 7, dtype=torch.float64)[:, None]
    level = torch.full_like(away, 0.3)
    gates = torch.logit(level)

    def largest(sign: float) -> Tensor:
        signals = torch.atanh(sign * level + away)
        return explain(OneProduct(True).double(), (gates, signals), "prop").flat.abs().amax(1)

    says = run.states("C-37", r"x_j=-x_g+d:\ |R_j|\sim1/d\ \text{for LRP-prop}")
    says.slope(away[:, 0], largest(-1.0), -1.0, 0.1, against=(-0.5, -2.0))
    says.fails("gate and signal of one sign", away[:, 0], largest(1.0))
    run.curves(
        "poles",
        away[:, 0],
        {"LRP-prop, opposite signs": largest(-1.0), "LRP-prop, equal signs": largest(1.0)},
        {"1/d": 0.09 * 0.3 / away[:, 0]},
        axes=("distance d of gate plus signal from 0, or from twice the gate", "largest relevance"),
        log="xy",
        caption="Shares in proportion to gate and signal have poles where these cancel; tanh signals can be negative.",
    )
