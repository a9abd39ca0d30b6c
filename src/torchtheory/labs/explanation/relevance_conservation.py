"""Relevance is neither made nor lost: the books of layer-wise relevance propagation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.ledger import Ledger
from torchtheory.explanation.lrp import layer_relevances, lrp
from torchtheory.explanation.rules import AlphaBeta, Epsilon, Flat, Gamma, Rule, WSquare, ZBox, Zero
from torchtheory.labs.engine import Run, lab
from torchtheory.tracing.folding import fold_batch_norm

IN_THE_TABLE: tuple[Rule, ...] = (Zero(), Epsilon(0.05), Gamma(0.5), AlphaBeta(1, 0), AlphaBeta(2, 1))
WITHOUT_BIAS: tuple[Rule, ...] = (Flat(), WSquare())


@lab(
    "relevance-conservation",
    room="explanation",
    covers=["C-20", "C-21", "C-29", "C-30"],
    title="Relevance of an output is handed to the inputs, and the ledger knows where the rest went",
    full={"samples": 100, "channels": 16},
    least={"channels": 2},
)
def relevance_conservation(run: Run, samples: int = 10, channels: int = 6) -> None:
    r"""A convolutional network with a skip connection, a concatenation and pooling, by every rule.

    Without biases and without a stabilizer the relevance of the inputs adds up to the score. With
    them the ledger has what is missing, operation by operation. Pooling by maxima hands everything
    to the winner, and batch normalization may be folded away before.

    Theorem:
        Let every neuron hand its relevance back to its inputs in shares,
        $R_j=\sum_k\frac{x_jw_{jk}}{\sum_lx_lw_{lk}}R_k$, from the score $f(x)$ down to the inputs.
        *No biases*: $b=0$ in every layer.
        *No stabilizer*: $\varepsilon=0$, so that nothing is added to a denominator.
        Then the relevance of the inputs adds up to the score: $\sum_iR_i=f(x)$. With biases and a stabilizer, what is
        missing is exactly what they received.

    Symbols:
        $x$, $x_j$: an input, and the value that neuron $j$ hands on.
        $f$, $f_a$, $f_b$: the score that is explained, and the scores of two classes.
        $R_i$, $R_i^{[0]}$: relevance of a neuron, and of an input.
        $R(f)$: the relevance of all inputs for a score.
        $w$, $w_{jk}$: weights, from neuron $j$ to neuron $k$; the rule $w^2$ shares by their squares.
        $b$: biases.
        $\varepsilon$: the stabilizer, added to denominators near 0.
        $z^{\mathcal B}$: the rule for inputs in a box $\mathcal B$, such as pixels between 0 and 1.
        $s$, $\mu$, $\beta$: scale, mean and shift of a batch normalization.

    Idea:
        At one neuron the shares add up to 1, because their denominator is the sum of their numerators.
        So the sum of relevance is the same before and after each layer, from the score down. A bias is a
        further term of the denominator that no input answers for, and $\varepsilon$ another: both keep a share for
        themselves, and the ledger writes it down, layer by layer.

    Try:
        channels=16: more neurons share the same score; the sums stay.
        samples=50: the largest gap of fifty images is still one of rounding.

    Exercise:
        A neuron computes $3x_1-x_2+1$ from $x=(1,1)$. Find the relevance `r` of its two inputs for the
        score 3, and how much the bias keeps.
        check: torch.allclose(r, torch.tensor([3.0, -1.0])) and float(3 - r.sum()) == 1
        answer: w, x, score = torch.tensor([3.0, -1.0]), torch.ones(2), 3.0
            r = w * x / (w @ x + 1) * score

    Args:
        samples: images that are explained.
        channels: of the convolutions.
    """
    x = run.rand(samples, 2, 8, 8)
    net, bare = branching(channels, bias=True), branching(channels, bias=False)

    says = run.states("C-20", r"b=0,\ \varepsilon=0:\ f(x)=\sum_iR_i^{[0]}")
    rules: tuple[Rule, ...] = (Zero(), Gamma(0.5), AlphaBeta(1, 0), AlphaBeta(2, 1))
    score = lrp(bare, x, 0).score
    says.equal(torch.stack([lrp(bare, x, 0, r).total for r in rules]), score.expand(len(rules), -1), 1e-9)
    held = lrp(net, x, 0).score
    says.fails("biases", torch.stack([lrp(net, x, 0, r).total for r in rules]), promised=held.expand(len(rules), -1))
    says = run.states(
        "C-20", r"\sum_kR_k=\sum_jR_j+\text{to biases}+\text{to }\varepsilon\ \text{at every operation, for every rule}"
    )
    books = [ledger(lrp(net, x, 0, r)) for r in IN_THE_TABLE]
    says.equal(torch.stack([missing(b) for b in books]), 0.0, 1e-10)
    says.fails(
        "alpha 2 and beta 1 taken literally at neurons without contributions of both signs",
        missing(ledger(lrp(net, x, 0, AlphaBeta(2, 1, "leak")))),
    )
    says = run.states("C-20", r"\text{flat},\ w^2,\ z^{\mathcal B}:\ f(x)=\sum_iR_i\ \text{with biases}")
    layer = nn.Sequential(nn.Flatten(), nn.Linear(128, 3)).double()
    plain: list[Rule] = [*WITHOUT_BIAS, ZBox(0, 1)]
    found = torch.stack([lrp(layer, x, 1, r).total for r in plain])
    says.equal(found, lrp(layer, x, 1).score.expand_as(found), 1e-9)
    widened = nn.Sequential(Widened(layer), nn.Linear(5, 1)).double()
    found = torch.stack([lrp(widened, x, None, r).total for r in WITHOUT_BIAS])
    says.fails(
        "constants joined to what a layer returns, which are no inputs",
        found, promised=lrp(widened, x).score.expand_as(found),
    )  # fmt: skip
    show(run, books[1])

    # -- the engine
    linear = nn.Sequential(nn.Flatten(), nn.Linear(128, 1)).double()
    hidden = nn.Sequential(nn.Flatten(), nn.Linear(128, 20), nn.ReLU(), nn.Linear(20, 1)).double()
    says = run.states("C-21", r"\text{one layer:}\ R_i=w_ix_i")
    weight = next(m.weight for m in linear.modules() if isinstance(m, nn.Linear)).detach()
    says.equal(lrp(linear, x, rules=Zero()).flat, weight * x.flatten(1), 1e-12)
    first, last = (m.weight.detach() for m in hidden.modules() if isinstance(m, nn.Linear))
    says.fails("a hidden layer of ReLUs", lrp(hidden, x, rules=Zero()).flat, promised=(last @ first) * x.flatten(1))
    says = run.states("C-21", r"R(f_a-f_b)=R(f_a)-R(f_b)\ \text{for starts at the scores}")
    for rule in IN_THE_TABLE[:2]:
        apart = lrp(net, x, torch.tensor([1.0, -1.0, 0.0]), rule).flat
        says.equal(apart, lrp(net, x, 0, rule).flat - lrp(net, x, 1, rule).flat, 1e-9, where=rule.name)
        bent = lrp(net, x, lambda out: (out[:, 0] - out[:, 1]).square(), rule).flat
        says.fails("the score is the square of the difference", bent)
    says = run.states("C-21", r"\text{one pass forward and one back, whatever the rules}")
    found = torch.tensor([sum(passes(lrp(net, x, 0, r))) for r in IN_THE_TABLE])
    says.equal(found, 2.0)
    words = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2)).double()
    asked = lrp(words, torch.randint(0, 9, (samples, 5), generator=run.generator))
    says.fails("words, which are embedded before", sum(passes(asked)))

    pooling(run, x, channels)
    folding(run, x, channels)


def ledger(found: Explanation) -> Ledger:
    assert found.ledger is not None
    return found.ledger


def passes(found: Explanation) -> tuple[float, float]:
    return found.forwards, found.backwards


def missing(book: Ledger) -> Tensor:
    """What some operation received and did not account for, the largest of each sample."""
    return torch.stack([(e.received - e.passed - e.to_biases - e.to_epsilon).abs() for e in book]).amax(0)


def apart(a: Tensor, b: Tensor) -> Tensor:
    """Largest difference of each sample."""
    return (a - b).flatten(1).abs().amax(1)


class Branching(nn.Module):
    """Convolutions with a skip connection, a concatenation of branches, and both kinds of pooling."""

    def __init__(self, channels: int, bias: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, channels, 3, padding=1, bias=bias)
        self.skipped = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.narrow, self.wide = (nn.Conv2d(channels, channels, k, bias=bias) for k in (1, 3))
        self.out = nn.Linear(2 * channels, 3, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.max_pool2d(x + F.relu(self.skipped(x)), 2)
        sides = [F.relu(conv(x)).mean((2, 3)) for conv in (self.narrow, self.wide)]
        made: Tensor = self.out(torch.cat(sides, 1))
        return made


def branching(channels: int, bias: bool) -> nn.Module:
    return Branching(channels, bias).double()


class Widened(nn.Module):
    """Outputs of a layer, and two constants beside them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layer(x), torch.ones(len(x), 2, dtype=x.dtype)], 1)


def show(run: Run, book: Ledger) -> None:
    run.table(
        "ledger",
        ["layer", "operation", "rule", "received", "passed", "to biases", "to epsilon"],
        [
            [e.layer, e.operation, e.rule, *(float(v[0]) for v in (e.received, e.passed, e.to_biases, e.to_epsilon))]
            for e in book
        ],
        caption="The ledger of one image, from the output to the pixels, with epsilon 0.05 in all layers.",
    )


def pooling(run: Run, x: Tensor, channels: int) -> None:
    """What pooling layers do with relevance."""

    def network(pool: nn.Module) -> nn.Sequential:
        torch.manual_seed(run.seed)
        parts = [nn.Conv2d(2, channels, 3, padding=1), nn.ReLU(), pool, nn.Flatten(), nn.Linear(16 * channels, 2)]
        return nn.Sequential(*parts).double()

    def around(net: nn.Sequential) -> tuple[Tensor, Tensor, Tensor]:
        found = layer_relevances(net, x, 0, Zero(), ["1", "2"])
        with torch.no_grad():
            return found["1"], found["2"], net[1](net[0](x))

    largest, average = network(nn.MaxPool2d(2)), network(nn.AvgPool2d(2))
    says = run.states("C-29", r"\text{max pooling: the winner of a window gets all of its relevance}")

    def to_winners(net: nn.Sequential) -> tuple[Tensor, Tensor]:
        before, after, values = around(net)
        winners = F.max_pool2d(values, 2, return_indices=True)[1]
        return before, F.max_unpool2d(after, winners, (2, 2))

    says.equal(apart(*to_winners(largest)), 0.0, 1e-12)
    says.fails("average pooling", apart(*to_winners(average)))
    says = run.states("C-29", r"\text{average pooling: }R_j=\frac{x_j}{\sum_{l}x_l}R_k")

    def to_shares(net: nn.Sequential) -> tuple[Tensor, Tensor]:
        before, after, values = around(net)
        sums = 4 * F.avg_pool2d(values, 2)
        per_unit = torch.where(sums > 0, after / torch.where(sums > 0, sums, 1), 0)
        return before, values * F.interpolate(per_unit, scale_factor=2)

    says.equal(apart(*to_shares(average)), 0.0, 1e-10)
    says.fails("max pooling", apart(*to_shares(largest)))


def folding(run: Run, x: Tensor, channels: int) -> None:
    """Batch normalization behind a convolution, and before one."""

    def network(padding: int) -> nn.Sequential:
        torch.manual_seed(run.seed)
        norms = [nn.BatchNorm2d(channels) for _ in range(2)]
        for norm in norms:
            for t in (norm.running_mean, norm.weight, norm.bias):
                assert t is not None
                nn.init.normal_(t)
            assert norm.running_var is not None
            nn.init.uniform_(norm.running_var, 0.5, 2)
        second = nn.Conv2d(channels, channels, 3, padding=padding)
        parts = [nn.Conv2d(2, channels, 3), norms[0], nn.ReLU(), norms[1], second, nn.ReLU()]
        return nn.Sequential(*parts).double().eval()

    net = network(0)
    made = fold_batch_norm(net, x)
    says = run.states(
        "C-30",
        r"w'=ws,\ b'=(b-\mu)s+\beta\ \text{behind},\ w'_{jk}=w_{jk}s_j,\ b'_k=b_k+\sum_jw_{jk}(\beta_j-s_j\mu_j)"
        r"\ \text{before}:\ f'=f",
    )
    with torch.no_grad():
        says.equal(apart(made.model(x), net(x)), 0.0, 1e-9)
        padded, original = made.model, net
        for both in (padded, original):
            both.get_submodule("4").padding = (1, 1)  # type: ignore[assignment]
        says.fails("the convolution behind it pads with zeros", apart(padded(x), original(x)))
    says = run.states("C-30", r"\text{normalizations that are folded}")
    says.equal(len(made.into), 2)
    says.fails("the convolution behind it pads with zeros", len(fold_batch_norm(network(1), x).into))
