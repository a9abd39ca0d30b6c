"""An encoder and a decoder that learn to reverse sequences, token by token with a cache."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.sequences.attention.maps import attention_maps
from torchtheory.sequences.attention.transformers import LanguageModel, Transformer
from torchtheory.sequences.language.decoding import generate

SYMBOLS, RATE = 6, 0.01


@lab(
    "transformer-reversal",
    room="sequences",
    covers=["N-89"],
    title="A transformer reverses sequences, and its cross-attention shows how",
    full={"length": 10, "iterations": 1500, "width": 64},
    least={"length": 3, "iterations": 80, "width": 16},
)
def transformer_reversal(run: Run, length: int = 5, iterations: int = 80, width: int = 32) -> None:
    """Causal decoding with a cache, and a small translation that is learned: every sequence backwards.

    Outputs at a place do not change with later tokens, so that token by token with a cache of keys and values gives
    the logits of one pass; a network that looks ahead has no such cache. With positions the transformer learns
    to reverse; without them it cannot know which symbol stood where. The picture shows the cross-attention: from
    the end of the input to its beginning.

    Args:
        length: of the sequences that are reversed.
        iterations: of training.
        width: of the tokens.
    """
    run.assumes(width % 2 == 0, f"two heads cannot share a width of {width} equally")
    causality(run)
    cached(run)
    reversal(run, length, iterations, width)


def causality(run: Run) -> None:
    model = Transformer(5, 4, 16, 32, 2, depth=2, generator=run.generator)
    x = torch.randint(5, (3, 6), generator=run.generator)
    y = torch.randint(4, (3, 7), generator=run.generator)
    later = y.clone()
    later[:, 4:] = (later[:, 4:] + 1) % 4
    before, after = (model(x, model.after_start(z)) for z in (y, later))
    shown, changed = (model(x, z) for z in (y, later))
    says = run.states("N-89", r"p(y_i\mid x,y_{1:i-1})\text{ does not change with }y_{i},y_{i+1},\dots")
    says.equal(gap(before[:, :5], after[:, :5]), within=1e-12, where="tokens from the fifth on changed")
    says.fails("a decoder that reads the symbol it is to predict", gap(shown[:, :5], changed[:, :5]))


def cached(run: Run) -> None:
    model = LanguageModel(7, 16, 2, 2, length=12, tied=False, generator=run.generator)
    tokens = torch.randint(7, (2, 9), generator=run.generator)
    cache = model.cache()
    steps = torch.cat([model(tokens[:, t : t + 1], cache) for t in range(9)], 1)
    says = run.states("N-89", r"\text{token by token with kept keys and values = one pass over all}")

    def one_pass(causal: bool) -> Tensor:
        x = model.positions(model.embedding(tokens))
        for block in model.blocks:
            x = block(x, causal=causal)
        assert model.norm is not None
        assert model.head is not None
        logits: Tensor = model.head(model.norm(x))
        return logits

    says.equal([gap(steps, one_pass(True)), gap(model(tokens), one_pass(True))], within=1e-12)
    says.fails("without the causal mask", [gap(steps, one_pass(False)), gap(model(tokens), one_pass(False))])
    pair = Transformer(5, 4, 16, 32, 2, depth=2, generator=run.generator)
    x = torch.randint(5, (3, 6), generator=run.generator)
    y = torch.randint(4, (3, 7), generator=run.generator)
    previous, memory, kept = pair.after_start(y), pair.encode(x), pair.cache()
    logs = torch.cat([pair.decode(previous[:, t : t + 1], memory, kept) for t in range(7)], 1).log_softmax(-1)

    def losses(table: Tensor) -> Tensor:
        return -table.gather(-1, y.unsqueeze(-1)).sum((1, 2))

    says = run.states(
        "N-89", r"-\ln p(y\mid x)=-\sum_i\ln p(y_i\mid x,y_{1:i-1})\text{: teacher forcing, and step by step}"
    )
    says.equal(losses(logs), losses(pair(x, previous).log_softmax(-1)), 1e-12)
    says.fails("steps that read what they are to predict", losses(pair(x, y).log_softmax(-1)))


class NoPositions(nn.Module):
    """Tokens as they are."""

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return x


def trained(run: Run, length: int, iterations: int, width: int, *, positions: bool) -> Transformer:
    model = Transformer(SYMBOLS, SYMBOLS, width, 2 * width, 2, 1, norm="pre", generator=run.seed, dtype=torch.float32)
    if not positions:
        model.positions = NoPositions()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    source = torch.Generator().manual_seed(run.seed)
    for k in run.track(range(iterations), "with positions" if positions else "without positions"):
        optimizer.param_groups[0]["lr"] = RATE * (1 - k / iterations)
        x = torch.randint(SYMBOLS, (64, length), generator=source)
        y = x.flip(1)
        loss = F.cross_entropy(model(x, model.after_start(y)).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def written(model: Transformer, x: Tensor) -> Tensor:
    """As many symbols as x has, the likeliest at every step."""
    start = torch.full_like(x[:, :1], model.outputs)
    return generate(model, start, source=x, max_new_tokens=x.shape[1]).tokens[:, 1:]


def reversal(run: Run, length: int, iterations: int, width: int) -> None:
    x = torch.randint(SYMBOLS, (300, length), generator=run.generator)
    right = {}
    models = {}
    for positions in (True, False):
        models[positions] = trained(run, length, iterations, width, positions=positions)
        right[positions] = float((written(models[positions], x) == x.flip(1)).all(1).double().mean())
    says = run.states("N-89", r"\text{share of new sequences that are reversed without an error}")
    says.at_least(
        right[True],
        0.9,
        loose="how many depends on the training; no theorem says it",
        where=f"length {length}, {iterations} steps of training",
    )
    says.fails("without positions", right[False])
    model, one = models[True], x[:1]
    weights = attention_maps(model, one, model.after_start(one.flip(1)))["blocks.0.cross"][0]

    def plot(axes: Any) -> None:
        for j, ax in enumerate(axes[0]):
            image = ax.imshow(weights[j].numpy(), vmin=0, vmax=1, cmap="viridis")
            ax.set(title=f"head {j + 1}", xlabel="symbol that is read")
            ax.set_xticks(range(length), [str(int(s)) for s in one[0]])
            ax.set_yticks(range(length), [str(int(s)) for s in one[0].flip(0)])
            ax.grid(False)
        axes[0, 0].set_ylabel("symbol that is written")
        axes[0, 0].figure.colorbar(image, ax=list(axes[0]), label="weight", shrink=0.8)

    run.figure(
        "alignment",
        plot,
        grid=(1, 2),
        size=(8, 3.4),
        caption="Where the decoder looks while it writes a sequence backwards.",
    )
