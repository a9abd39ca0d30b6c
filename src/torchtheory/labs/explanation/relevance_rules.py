"""The rules of relevance propagation: what they are at one layer, and what they tend to."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from torchtheory.explanation.composites import DoubtfulRules
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.rules import AlphaBeta, Epsilon, Flat, Gamma, RootPoint, WSquare, ZBox, Zero
from torchtheory.labs.engine import Run, lab


@lab(
    "relevance-rules",
    room="explanation",
    covers=["C-22", "C-23", "C-24", "C-25", "C-26", "C-27", "C-28"],
    title="Seven rules of relevance propagation: identities, limits and signs",
    errata=["alpha-zero-beta-one", "box-of-one-pixel-in-the-sum"],
    full={"samples": 200, "width": 100},
    # of fewer units all may be of one sign, and then nothing is negative
    least={"width": 8},
)
def relevance_rules(run: Run, samples: int = 20, width: int = 20) -> None:
    """Each rule is held to what is known of it, on single layers and on networks of ReLUs.

    LRP-0 is the gradient times the input, and biases get the rest. The epsilon rule differs from it
    by O(ε), gamma from alpha 1, beta 0 by O(1/γ). Flat and squared weights do not look at the
    activations, and the box rule has no negative shares.

    Args:
        samples: inputs that are explained.
        width: of the hidden layers.
    """
    x = run.rand(samples, 8)
    net = network(width, nn.ReLU())
    zero(run, net, network(width, nn.GELU()), run.randn(samples, 8))
    epsilon(run, x)
    gamma(run, x)
    gamma_table(run, x)
    alpha_beta(run, x, net)
    without_activations(run, x, width)
    box(run, x)


def network(width: int, activation: nn.Module) -> nn.Sequential:
    """Two hidden layers, with biases."""
    made = nn.Sequential(nn.Linear(8, width), activation, nn.Linear(width, width), activation, nn.Linear(width, 2))
    return made.double()


def layer(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer with weights `[out, in]`."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None).double()
    with torch.no_grad():
        made.weight.copy_(weight)
        if bias is not None:
            made.bias.copy_(bias)
    return made


def zero(run: Run, net: nn.Module, smooth: nn.Module, x: Tensor) -> None:
    """Gradient times input, and biases times slopes."""

    def identity(model: nn.Module) -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(leaf)[:, 0].sum(), leaf)
        return lrp(model, x, 0, Zero()).flat, x * slope

    says = run.states("C-22", r"\text{ReLU, any biases: }R_i=x_i\,\partial_if(x)")
    measured, promised = identity(net)
    says.equal(measured, promised, 1e-9)
    says.fails("GELU in place of ReLU", identity(smooth)[0], promised=identity(smooth)[1])

    def of_biases(model: nn.Module) -> tuple[Tensor, Tensor]:
        found = lrp(model, x, 0, Zero())
        assert found.ledger is not None
        biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
        rows = []
        for one in x:
            slopes = torch.autograd.grad(model(one[None])[0, 0], biases)
            rows.append(sum(float((b.detach() * s).sum()) for b, s in zip(biases, slopes, strict=True)))
        return found.ledger.to_biases, torch.tensor(rows, dtype=torch.float64)

    says = run.states("C-22", r"f(x)-\sum_iR_i=\sum_bb\,\partial_bf(x)")
    measured, promised = of_biases(net)
    says.equal(measured, promised, 1e-9)
    says.fails("GELU in place of ReLU", of_biases(smooth)[0], promised=of_biases(smooth)[1])


def epsilon(run: Run, x: Tensor) -> None:
    """What the stabilizer keeps, and the limit."""
    w = run.randn(1, 8)
    plain, shifted = layer(w), layer(w, run.randn(1).abs() + 0.5)
    strength = 0.3
    says = run.states("C-23", r"\sum_jR_j=\frac{z}{z+\varepsilon\,\mathrm{sign}(z)}R_k\ \text{without a bias}")

    def kept(model: nn.Linear) -> tuple[Tensor, Tensor]:
        found = lrp(model, x, rules=Epsilon(strength))
        return found.total / found.score, found.score.abs() / (found.score.abs() + strength)

    says.equal(kept(plain)[0], kept(plain)[1], 1e-9)
    says.fails("a bias", kept(shifted)[0], promised=kept(shifted)[1])

    # outputs in (-ε, 0): with +ε below, as a bias would be, relevance turns around
    inside = layer(torch.tensor([[-0.05, -0.05]]).double())
    points = x[:, :1] * torch.tensor([1.0, -0.5]).double()
    exact = lrp(inside, points, rules=Zero()).flat
    stable = lrp(inside, points, rules=Epsilon(strength)).flat
    says = run.states("C-23", r"R_j^{\varepsilon}/R_j^{0}=\frac{|z|}{|z|+\varepsilon}>0,\ -\varepsilon<z<0")
    size = lrp(inside, points).score.abs()[:, None].expand(-1, 2)
    says.equal(stable / exact, size / (size + strength), 1e-9)
    one_sign = layer(inside.weight.detach(), torch.tensor([strength]).double())
    with torch.no_grad():
        start = inside(points) / one_sign(points)  # of z + ε, which makes it z
    turned = lrp(one_sign, points, lambda out: (start * out).sum(1), Zero())
    says.fails("+ε below, whatever the sign of z", turned.flat / exact)

    values = torch.logspace(-6, -3, 7, dtype=torch.float64)
    hidden = run.randn(6, 8)
    deep = nn.Sequential(layer(hidden), nn.ReLU(), layer(0.5 + run.rand(1, 6)))
    many = run.rand(50 * len(x), 8)
    apart = many @ hidden.T
    x = many[(apart.abs().amin(1) > 0.1) & (apart.amax(1) > 0.1)][: len(x)]  # no output near 0
    exact = lrp(deep, x, rules=Zero()).flat
    away = [float((lrp(deep, x, rules=Epsilon(float(e))).flat - exact).abs().max()) for e in values]
    balanced = layer(torch.tensor([[1.0, -1.0, 1e-9]]).double())
    at_zero = torch.ones(1, 3, dtype=torch.float64)
    exact = lrp(balanced, at_zero, rules=Zero()).flat
    still = [float((lrp(balanced, at_zero, rules=Epsilon(float(e))).flat - exact).abs().max()) for e in values]
    says = run.states(
        "C-23", r"z_k\ge\delta>0\ \text{at all active neurons}:\ \max_j|R_j^{\varepsilon}-R_j^0|=O(\varepsilon)"
    )
    says.slope(values, away, 1.0, 0.1, against=(0.5, 2.0))
    says.fails("contributions that cancel, z = 1e-9", values, still)
    run.curves(
        "epsilon",
        values,
        {"a network of ReLUs": [a / away[-1] for a in away], "an output of 1e-9": [s / still[-1] for s in still]},
        {"ε": [float(e / values[-1]) for e in values]},
        axes=("ε", "largest difference from LRP-0, relative"),
        log="xy",
        caption="The epsilon rule tends to LRP-0 unless the contributions of an output cancel.",
    )


def gamma(run: Run, x: Tensor) -> None:
    """Between LRP-0 and alpha 1, beta 0."""
    w = run.randn(5, 8)
    w = torch.cat([w, -w])  # every input has outputs above 0 and below
    model = layer(w)
    z = x @ w.T
    active, silent = (z > 0.05).double(), (z < -0.05).double()
    says = run.states("C-24", r"\gamma=0:\ R^{\gamma}=R^0")
    says.equal(lrp(model, x, active, Gamma(0.0)).flat, lrp(model, x, active, Zero()).flat, 1e-12)
    says.fails("γ = 0.1", lrp(model, x, active, Gamma(0.1)).flat)
    values = torch.logspace(2, 5, 7, dtype=torch.float64)

    def away(start: Tensor) -> list[float]:
        limit = lrp(model, x, start, AlphaBeta(1, 0)).flat
        return [float((lrp(model, x, start, Gamma(float(g))).flat - limit).abs().max()) for g in values]

    says = run.states("C-24", r"x\ge0,\ z_k>0:\ \max_j|R_j^{\gamma}-R_j^{\alpha_1\beta_0}|=O(1/\gamma)")
    says.slope(values, away(active), -1.0, 0.1, against=(-0.5, -2.0))
    says.fails("outputs z < 0", values, away(silent))
    run.curves(
        "gamma",
        values,
        {"outputs above 0": away(active), "outputs below 0": away(silent)},
        {"1/γ": [away(active)[0] * float(values[0] / g) for g in values]},
        axes=("γ", "largest difference from alpha 1, beta 0"),
        log="xy",
        caption="Gamma prefers what speaks for an output, and tends to alpha 1, beta 0 where that is positive.",
    )


def gamma_table(run: Run, x: Tensor) -> None:
    """The rule at finite gamma and with biases: the table's formula, written out."""
    w = run.randn(6, 8)
    dense = layer(torch.cat([w, -w]), run.randn(12))
    convolution = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2), nn.Flatten()).double()
    values = (0.1, 0.25, 1.0, 10.0)

    def against_table(model: nn.Module, at: Tensor, sign: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Relevance and its sum by the rule, and both by the formula, for outputs of one sign."""
        origin = torch.zeros_like(at[:1])
        bias = model(origin)[0].detach()
        weight = torch.func.jacrev(lambda v: model(v[None])[0])(origin[0]).detach()
        z = at @ weight.T + bias
        start = (sign * z > 0.05).double()
        found, table, totals, sums = [], [], [], []
        for g in values:
            rule = lrp(model, at, start, Gamma(g))
            more, most = (v + g * v.clamp(min=0) for v in (weight, bias))
            shares = start * z / (at @ more.T + most)
            found.append(rule.flat)
            totals.append(rule.total)
            table.append(at * (shares @ more))
            sums.append((start * z - shares * most).sum(1))
        return torch.cat(found), torch.cat(table), torch.cat(totals), torch.cat(sums)

    cases = [against_table(model, x, 1.0) for model in (dense, convolution)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulRules)  # doubtful it is: that is shown
        centered = against_table(dense, x - 0.5, 1.0)
    below = against_table(dense, x, -1.0)
    says = run.states(
        "C-24",
        r"x\ge0,\ z_k>0:\ R_j=\sum_k\frac{x_j(w_{jk}+\gamma w_{jk}^+)}"
        r"{\sum_{l\ge0}x_l(w_{lk}+\gamma w_{lk}^+)}R_k,\ x_0=1,\ w_{0k}=b_k",
    )
    says.equal(
        torch.cat([c[0] for c in cases]),
        torch.cat([c[1] for c in cases]),
        1e-9,
        where="a dense layer and a convolution with biases of both signs, γ = 0.1, 0.25, 1, 10",
    )
    says.fails("inputs of both signs", centered[0], promised=centered[1])
    says = run.states("C-24", r"x\ge0,\ z_k>0:\ \sum_jR_j=\sum_k\Bigl(1-\frac{b_k+\gamma b_k^+}{z_k^\gamma}\Bigr)R_k")
    says.equal(torch.cat([c[2] for c in cases]), torch.cat([c[3] for c in cases]), 1e-9, where="what biases leave")
    says.fails("outputs z < 0, where the denominators of the table may vanish", below[2], promised=below[3])


def alpha_beta(run: Run, x: Tensor, net: nn.Module) -> None:
    """Signs, sums, and the choice that the source prints."""
    score = lrp(net, x, 0).score
    start = torch.stack([score.sign(), torch.zeros_like(score)], 1)  # a score that is positive
    says = run.states("C-25", r"\alpha=1,\ \beta=0,\ R_k\ge0:\ R_j\ge0")
    says.equal(lrp(net, x, start, AlphaBeta(1, 0)).flat.clamp_max(0).amin(1), 0.0)
    says.fails("α = 2, β = 1", lrp(net, x, start, AlphaBeta(2, 1)).flat.clamp_max(0).amin(1))

    mixed = run.randn(4, 8)
    mixed[:, 0], mixed[:, 1] = 1.0, -1.0  # both signs at every neuron
    chosen = run.rand(len(x), 4)

    def summed(weight: Tensor) -> tuple[Tensor, Tensor]:
        found = lrp(layer(weight), x, chosen, AlphaBeta(2, 1, "leak"))
        return found.total, found.score

    says = run.states("C-25", r"\sum_jR_j=R_k\ \text{if neurons have contributions of both signs},\ b=0")
    says.equal(summed(mixed)[0], summed(mixed)[1], 1e-9)
    says.fails("no negative contributions", summed(mixed.abs())[0], promised=summed(mixed.abs())[1])
    says = run.states("C-25", r"\text{no negative contributions: }\sum_jR_j=\alpha R_k")
    says.equal(summed(mixed.abs())[0], 2 * summed(mixed.abs())[1], 1e-9)
    says.fails("both signs", summed(mixed)[0], promised=2 * summed(mixed)[1])
    # -β times the negative share alone, which is what α = 0 leaves
    below = RootPoint([(lambda t: t, lambda w: (w < 0).to(w))])
    found = lrp(layer(mixed), x, chosen, below)
    run.refutes("alpha-zero-beta-one", r"\alpha=0,\ \beta=1:\ \sum_jR_j=R_k").equal(-found.total, found.score, 1e-9)


def without_activations(run: Run, x: Tensor, width: int) -> None:
    """Flat and squared weights: inputs do not matter but through the score."""
    other = run.rand(*x.shape)
    plain = network(width, nn.ReLU())
    pooled = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 1), nn.MaxPool1d(4), nn.Flatten(), nn.Linear(3, 2))
    says = run.states("C-26", r"\text{flat everywhere: }R_i/f(x)=1/n\ \text{for all }x")

    def shares(model: nn.Module) -> Tensor:
        found = [lrp(model.double(), t, 0, Flat()) for t in (x, other)]
        return torch.cat([f.flat / f.score[:, None] for f in found])

    says.equal((shares(plain) - 1 / 8).abs().amax(1), 0.0, 1e-9)
    says.fails("a layer of maxima, whose winners depend on x", (shares(pooled) - 1 / 8).abs().amax(1))
    biased = layer(run.randn(3, 8), run.randn(3))
    says = run.states("C-27", r"R_i=\sum_j\frac{w_{ij}^2}{\sum_lw_{lj}^2}R_j,\ \text{whatever }x\ \text{and }b")

    squares = biased.weight.detach().square()

    def squared(model: nn.Module) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            received = model(x)  # all outputs start with their own values
        found = lrp(model, x, torch.ones(3).double(), WSquare())
        return found.flat, received @ (squares / squares.sum(1, keepdim=True))

    says.equal(*squared(biased), 1e-9)
    deeper = nn.Sequential(biased, layer(torch.ones(3, 3).double().tril()))
    says.fails("another layer above, which shares relevance out first", squared(deeper)[0], promised=squared(deeper)[1])


def box(run: Run, x: Tensor) -> None:
    """Pixels between bounds that differ from channel to channel."""
    low, high = -run.rand(8), 1 + run.rand(8)
    model = layer(run.randn(5, 8), run.randn(5))
    with torch.no_grad():
        start = model(x).sign()
    says = run.states("C-28", r"L\le x\le H,\ R_j\ge0:\ R_i\ge0")
    says.equal(lrp(model, x, start, ZBox(low, high)).flat.clamp_max(0), 0.0)
    says.fails("outputs with negative relevance", lrp(model, x, -start, ZBox(low, high)).flat.clamp_max(0))
    says = run.states("C-28", r"\sum_iR_i=\sum_jR_j,\ \text{biases or not}")
    found = lrp(model, x, start, ZBox(low, high))
    says.equal(found.total, found.score, 1e-9)
    hidden = nn.Sequential(model, nn.ReLU(), layer(run.randn(1, 5), run.randn(1)))
    deep = lrp(hidden, x, rules={"0": ZBox(low, high), "2": Zero()})
    says.fails("a second layer with a bias, by LRP-0", deep.total, promised=deep.score)
    w = model.weight.detach()[0]
    above = x * w - low * w.clamp_min(0) - high * w.clamp_max(0)
    below = torch.stack([(x * w - low[i] * w.clamp_min(0) - high[i] * w.clamp_max(0)).sum(1) for i in range(8)], 1)
    run.refutes(
        "box-of-one-pixel-in-the-sum", r"\sum_i\frac{x_iw_i-L_iw_i^+-H_iw_i^-}{\sum_lx_lw_l-L_iw_l^+-H_iw_l^-}=1"
    ).equal((above / below).sum(1), 1.0, 1e-9)
