"""Sequences to sequences: probabilities factor by factor, a bottleneck, and attention past it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.sequences.recurrent.sequence_to_sequence import Seq2Seq, greedy, sample, sequence_logprob


@lab(
    "sequence-to-sequence",
    room="sequences",
    covers=["N-79", "N-80", "N-81"],
    title="Attention reads a sequence backwards that one state cannot hold",
    full={"length": 12, "iterations": 1500, "draws": 100_000},
    least={"length": 5, "iterations": 100, "draws": 200},
)
def sequence_to_sequence(run: Run, length: int = 7, iterations: int = 100, draws: int = 4000) -> None:
    """An encoder and a decoder, with attention and without, that learn to reverse sequences.

    Probabilities of all sequences sum to one because each factor sees the past only; a decoder that
    sees the symbol it is to predict gives something else. Without attention everything passes
    through the encoder's last state, which holds too little of long sequences after the same
    training; with attention the decoder looks back, and the picture shows where: from the end of the
    input to its beginning.

    Args:
        length: of the sequences that are reversed.
        iterations: of training.
        draws: sequences that are sampled.
    """
    factors(run, draws)
    attention(run)
    reversal(run, length, iterations)


def factors(run: Run, draws: int) -> None:
    model = Seq2Seq(4, 3, 6, generator=run.generator)
    sharpened(model)
    x = torch.randint(4, (1, 5), generator=run.generator)
    every = torch.cartesian_prod(*[torch.arange(3)] * 4)
    many = x.expand(len(every), -1)
    says = run.states("N-79", r"\sum_{y}\prod_ip(y_i\mid x,y_{1:i-1})=1")
    says.equal(
        float(sequence_logprob(model, many, every).detach().logsumexp(0).exp()), 1.0, within=1e-12, where="all 81"
    )
    peeking = model(many, every).log_softmax(-1).gather(-1, every.unsqueeze(-1)).sum((1, 2))
    says.fails("factors that see the symbol they predict", float(peeking.detach().logsumexp(0).exp()))
    pairs = torch.cartesian_prod(*[torch.arange(3)] * 2)
    chances = sequence_logprob(model, x.expand(9, -1), pairs).detach().exp()
    best = pairs[chances.argmax()]
    found = sample(model, x.expand(draws, -1), 2, generator=run.generator)
    p = float(chances.max())
    says = run.states("N-79", r"\text{sampled symbol by symbol: frequency of }y=p(y\mid x)")
    says.mean((found == best).all(1).double(), p, 1e-9, against=(0.8 * p, 1.2 * p), where="the likeliest pair")
    flat = torch.randint(3, found.shape, generator=run.generator)
    says.fails("symbols drawn evenly", (flat == best).all(1).double())


def sharpened(model: Seq2Seq) -> None:
    """Larger logits, so that probabilities are not all alike."""
    with torch.no_grad():
        model.head.weight.mul_(6)
        assert model.head.bias is not None
        model.head.bias.copy_(torch.tensor([1.5, 0.0, -1.0]))


def attention(run: Run) -> None:
    model = Seq2Seq(5, 5, 8, generator=run.generator)
    assert model.attention is not None
    memory, state = run.randn(4, 9, 8), run.randn(4, 8)
    order = torch.randperm(9, generator=run.generator)
    context, weights = model.attention(state, memory)
    again, moved = model.attention(state, memory[:, order])
    says = run.states(
        "N-81", r"\sum_ja_{ij}=1,\ a_{ij}\text{ move with the }\zeta_j,\ c_i=\sum_ja_{ij}\zeta_j\text{ stays}"
    )
    ones = torch.ones(4).double()
    says.equal([gap(weights.sum(1), ones), gap(moved, weights[:, order]), gap(again, context)], within=1e-12)
    places = torch.linspace(0, 2, 9).double()[:, None]
    one, two = model.attention(state, memory + places)[0], model.attention(state, memory[:, order] + places)[0]
    says.fails("places added to the states", [gap(two, one)])
    plain = Seq2Seq(5, 5, 8, attention=False, generator=run.generator)
    x = torch.randint(5, (3, 6), generator=run.generator)
    start = torch.full((3,), 5)

    def change(net: Seq2Seq) -> float:
        """How much the next symbol's logits change with all of the encoder's states but its last."""
        given = net.encode(x)
        return gap(net.step(start, given)[0], net.step(start, given._replace(memory=given.memory + 1))[0])

    says = run.states("N-80", r"p(y\mid x)\text{ depends on }x\text{ through the encoder's last state only}")
    says.equal(change(plain), where="the other states moved by 1")
    says.fails("with attention", change(model))


def reversal(run: Run, length: int, iterations: int) -> None:
    nets = {(n, a): trained(run, n, iterations, a) for n in (2, length) for a in (True, False)}
    x = {n: torch.randint(6, (400, n), generator=run.generator) for n in (2, length)}
    right = {(n, a): float((greedy(net, x[n], n) == x[n].flip(1)).double().mean()) for (n, a), net in nets.items()}
    says = run.states("N-80, N-81", r"\text{right symbols: attention}-\text{one state only}>0.05\text{ for long }x")
    says.above(
        right[length, True] - right[length, False],
        0.05,
        loose="how much better it is depends on the training; no theorem says it",
        where=f"{length} symbols reversed, {iterations} iterations",
    )
    says.fails("two symbols, which a state holds", right[2, True] - right[2, False])
    y = x[length].flip(1)
    net = nets[length, True]
    fresh = Seq2Seq(6, 6, 32, generator=run.generator, dtype=torch.float32)
    picture = net.alignment(x[length], net.after_start(y)).detach()
    says = run.states("N-81", r"\text{reversal learned: the place looked at goes from the end to the beginning}")
    says.above(
        fall(picture),
        0.2 * (length - 1),
        loose="how sharply it looks depends on the training; no theorem says it",
        where="fall of the mean place over all steps, against a fifth of the way",
    )
    says.fails("before training", fall(fresh.alignment(x[length], fresh.after_start(y)).detach()))
    run.table(
        "accuracy",
        ("symbols", "attention", "right"),
        [(n, "yes" if a else "no", value) for (n, a), value in right.items()],
        caption="Share of symbols that are right in 400 new sequences.",
    )
    run.figure(
        "alignment",
        lambda axes: plot_alignment(axes, picture),
        caption="Where the decoder looks while it writes the input backwards: one sequence, and the mean of 400.",
        grid=(1, 2),
        size=(7.5, 3.2),
    )


def trained(run: Run, length: int, iterations: int, looking: bool) -> Seq2Seq:
    net = Seq2Seq(6, 6, 32, attention=looking, generator=run.generator, dtype=torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    for k in run.track(range(iterations), f"{length} symbols, {'attention' if looking else 'one state'}"):
        optimizer.param_groups[0]["lr"] = 0.03 * (1 - k / iterations)
        x = torch.randint(6, (48, length), generator=run.generator)
        y = x.flip(1)
        loss = F.cross_entropy(net(x, net.after_start(y)).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return net


def fall(weights: Tensor) -> float:
    """Places by which the mean place that is looked at falls from the first step to the last."""
    places = torch.arange(weights.shape[2], dtype=weights.dtype)
    mean = (weights.mean(0) * places).sum(1)
    return float(mean[0] - mean[-1])


def plot_alignment(axes: Any, weights: Tensor) -> None:
    for ax, values, title in zip(axes[0], (weights[0], weights.mean(0)), ("one sequence", "mean"), strict=True):
        shown = ax.imshow(values.numpy(), cmap="viridis", vmin=0)
        ax.set(xlabel="place in the input", ylabel="step of the output", title=title)
        ax.grid(False)
        ax.figure.colorbar(shown, ax=ax, shrink=0.8)
