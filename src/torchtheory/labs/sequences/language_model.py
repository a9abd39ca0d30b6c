"""A language model learns a source whose entropy is known: its loss meets the entropy rate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.intervals import mean_interval
from torchtheory.labs.engine import Run, lab
from torchtheory.sequences.attention.transformers import LanguageModel
from torchtheory.sequences.language.decoding import sequence_log_probability
from torchtheory.sequences.language.sources import MarkovText

VOCABULARY, ORDER, LENGTH = 4, 2, 8


@lab(
    "language-model",
    room="sequences",
    covers=["M-107", "N-89"],
    title="A language model's loss falls toward the entropy of its source, and not below",
    full={"iterations": 1500, "sequences": 4000},
    least={"iterations": 10, "sequences": 100},
)
def language_model(run: Run, iterations: int = 150, sequences: int = 2000) -> None:
    """A small transformer on text drawn from a Markov chain of order two.

    The chain's entropy rate is the lowest loss per token that any model can have; the transformer
    comes down toward it. The same transformer that sees one token only stays above the entropy given
    one token, which the other one falls below; who sees the next token as well gets below the rate.

    Args:
        iterations: of training.
        sequences: held out, to measure losses on.
    """
    chain = MarkovText.random(VOCABULARY, ORDER, sharpness=2.0, generator=run.generator)
    held_out = chain.sample(sequences, LENGTH, generator=run.generator)
    rate, blind = chain.entropy_rate, chain.conditional_entropy(1)
    full, curve = trained(run, chain, held_out, iterations, window=None)
    short, low = trained(run, chain, held_out, iterations, window=1)
    losses = {"all": per_sequence(full, held_out, None), "one": per_sequence(short, held_out, 1)}
    says = run.states(["M-107", "N-89"], r"-\tfrac1N\mathbb E\log q(y_{1:N})\ge h\text{, the entropy rate}")
    says.at_least(mean_interval(losses["all"], 0.999), rate, where=f"after {iterations} iterations, nats per token")
    says.fails("the next token is seen as well", mean_interval(both_sides(chain, held_out), 0.999))
    # what all tokens are worth shows in the control: no model of one token gets below this entropy
    says = run.states(["M-107", "N-89"], r"\text{one token seen: loss}\ge H(X_t\mid X_{t-1})")
    says.at_least(mean_interval(losses["one"], 0.999), blind)
    says.fails("all tokens are seen", mean_interval(losses["all"], 0.999))
    run.curves(
        "loss",
        [k for k, _ in curve],
        {"all tokens seen": [v for _, v in curve], "one token seen": [v for _, v in low]},
        {
            "all tokens seen": torch.full((len(curve),), rate),
            "one token seen": torch.full((len(curve),), blind),
        },
        axes=("iterations", "loss on new text (nats per token)"),
        caption="The loss on new text comes down toward the source's entropy rate (dashed, blue) if two tokens or "
        "more are seen, and stays at the entropy given one token (dashed, orange) if not.",
    )


def trained(
    run: Run, chain: MarkovText, held_out: Tensor, iterations: int, window: int | None
) -> tuple[LanguageModel, list[tuple[int, float]]]:
    """The model, and its loss on new text now and then."""
    model = LanguageModel(VOCABULARY, 32, 4, 2, length=LENGTH, generator=run.generator, dtype=torch.float32)
    rate = 0.01
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    curve = []
    for k in run.track(range(iterations), "all tokens" if window is None else "one token"):
        if k % (iterations // 8) == 0:
            curve.append((k, float(per_sequence(model, held_out, window).mean())))
        optimizer.param_groups[0]["lr"] = rate * min(1, (k + 1) / 10) * (1 - k / iterations)
        x = chain.sample(96, LENGTH, generator=run.generator)
        loss = F.cross_entropy(next_token_logits(model, x[:, :-1], window).flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    curve.append((iterations, float(per_sequence(model, held_out, window).mean())))
    return model, curve


def next_token_logits(model: LanguageModel, tokens: Tensor, window: int | None) -> Tensor:
    """Logits `[B, T, V]`, from all earlier tokens or from the last one only."""
    if window is None:
        made: Tensor = model(tokens)
        return made
    # there are only so many contexts of one token
    alone: Tensor = model(torch.arange(VOCABULARY).unsqueeze(1))
    return alone.squeeze(1)[tokens]


def per_sequence(model: LanguageModel, tokens: Tensor, window: int | None) -> Tensor:
    """Loss per token of each sequence, after the chain's first tokens."""
    with torch.no_grad():
        if window is None:
            return -sequence_log_probability(model, tokens, prompt=ORDER).double() / (tokens.shape[1] - ORDER)
        logs = next_token_logits(model, tokens[:, :-1], window).log_softmax(-1)
        return -logs.gather(-1, tokens[:, 1:, None])[:, ORDER - 1 :, 0].double().mean(1)


def both_sides(chain: MarkovText, tokens: Tensor) -> Tensor:
    """The loss of the true law of a token given the two before it and the one after it."""
    table = chain.transitions
    # p(c | a, b, d) is proportional to p(c | a, b) p(d | b, c)
    joint = table.unsqueeze(3) * table.unsqueeze(0)
    law = (joint / joint.sum(2, keepdim=True)).log()
    return -law[tuple(tokens.unfold(1, 4, 1).unbind(-1))].mean(1)
