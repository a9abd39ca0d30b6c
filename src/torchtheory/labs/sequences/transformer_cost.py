"""What transformers cost beside recurrent and convolutional networks, as counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.sequences.attention.blocks import DecoderBlock
from torchtheory.sequences.attention.cost import Kind, cost_model, longest_chain
from torchtheory.sequences.attention.dot_product import attention
from torchtheory.sequences.attention.heads import MultiHeadAttention
from torchtheory.sequences.attention.maps import attention_maps, token_jacobian
from torchtheory.sequences.attention.transformers import LanguageModel, TransformerEncoder
from torchtheory.sequences.recurrent.cells import ElmanCell
from torchtheory.sequences.recurrent.networks import Recurrent
from torchtheory.tracing.operation_counts import count_operations

KINDS: tuple[Kind, ...] = ("transformer", "recurrent", "convolution")


@lab(
    "transformer-cost",
    room="sequences",
    covers=["N-90", "M-96"],
    errata=["decoding-step-called-quadratic"],
    title="Quadratic in all, linear per token, and no step waits for another",
    full={"longest": 1024, "width": 16},
    least={"longest": 64, "width": 4},
)
def transformer_cost(run: Run, longest: int = 256, width: int = 8) -> None:
    """Operations, memory and steps in a row, counted in runs and compared with formulas.

    torch counts the products of matrices, the graph of gradients tells how many of them wait for each other,
    and derivatives tell how many layers it takes until every token depends on every other one: one of attention,
    (n-1)/(k-1) of convolutions on a ring. A new token costs a transformer as many operations as there are tokens
    if keys and values are kept, and the square of it only if they are not; a recurrent network pays the same for
    every token. The pictures show operations and steps against the length.

    Args:
        longest: the longest sequence.
        width: of the tokens, even.
    """
    counted(run, width)
    memory(run, width)
    waiting(run, width)
    growth(run, longest)
    paths(run)
    pictures(run, longest)


def counted(run: Run, d: int) -> None:
    cases = [(5, 1, d), (11, 2, 2 * d), (24, 3, 1)]
    promised = [cost_model("transformer", t, d, depth=n, heads=2, hidden=h).forward for t, n, h in cases]

    def encoders() -> list[int]:
        return [count_operations(TransformerEncoder(d, h, 2, n), run.randn(1, t, d)) for t, n, h in cases]

    def decoders() -> list[int]:
        found = []
        for t, n, h in cases:
            x = run.randn(1, t, d)
            found.append(n * count_operations(DecoderBlock(d, h, 2), x, x))
        return found

    says = run.states("N-90", r"N(8Td^2+4Tdh+4T^2d)\text{ operations of an encoder}")
    says.equal(encoders(), promised, where="counted operation by operation")
    says.fails("blocks with cross-attention", decoders())
    recurrent = [count_operations(Recurrent(ElmanCell(d, d)), run.randn(1, t, d)) for t, _, _ in cases]
    says = run.states("N-90", r"4Td^2\text{ operations of a recurrent layer}")
    says.equal(recurrent, [cost_model("recurrent", t, d).forward for t, _, _ in cases])
    wide = [count_operations(Recurrent(ElmanCell(d, 2 * d)), run.randn(1, t, d)) for t, _, _ in cases]
    says.fails("twice as many units as inputs", wide)


def memory(run: Run, d: int) -> None:
    """N-90: what is kept between tokens, and while training."""
    lengths = (3, 10, 31)

    def kept(depth: int) -> list[int]:
        found = []
        for t in lengths:
            model = LanguageModel(5, d, 2, depth, length=40)
            cache = model.cache()
            model(torch.zeros(1, t).long(), cache)
            found.append(
                sum(
                    k.keys.numel() + k.values.numel()
                    for k in cache.layers
                    if k.keys is not None and k.values is not None
                )
            )
        return found

    says = run.states("N-90", r"2NTd\text{ numbers are kept for the next token}")
    says.equal(kept(2), [cost_model("transformer", t, d, depth=2).state for t in lengths], where="entries of the cache")
    says.fails("another block", kept(3))
    says = run.states("N-90", r"NhT^2\text{ attention weights}")
    model = TransformerEncoder(d, d, 2, 3)

    def weights(keys: int | None) -> list[int]:
        found = []
        for t in lengths:
            x = run.randn(1, t, d)
            maps = attention_maps(model, x) if keys is None else attention_maps(Cross(d), x, run.randn(1, keys, d))
            found.append(sum(a.numel() for a in maps.values()))
        return found

    says.equal(weights(None), [cost_model("transformer", t, d, depth=3, heads=2).scores for t in lengths])
    says.fails("a memory of 4 tokens that is looked at", weights(4))


class Cross(nn.Module):
    """Three layers of attention to a memory, which they leave as it is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MultiHeadAttention(width, 2) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, memory)
        return x


def waiting(run: Run, d: int) -> None:
    """N-90: matrix products that wait for each other."""
    lengths = (2, 7, 20)
    says = run.states("N-90", r"\text{transformer: }6N\text{ products in a row, whatever }T\text{ is}")
    depths = [longest_chain(TransformerEncoder(d, d, 2, 2)(run.randn(1, t, d))) for t in lengths]
    says.equal(
        depths, [cost_model("transformer", t, d, depth=2).depth for t in lengths], where="in the graph of gradients"
    )

    def rows(depth: int, joined: bool) -> list[int]:
        found = []
        for t in lengths:
            cells = [ElmanCell(d, d) for _ in range(depth)]
            x = run.randn(1, t, d)
            states = [cell.start(x[:, 0]) for cell in cells]
            for moment in x.unbind(1):
                for i, cell in enumerate(cells):
                    moment = states[i] = cell(moment, states[i] if joined else 0 * moment)
            found.append(longest_chain(moment))
        return found

    says.fails("two recurrent layers", rows(2, True))
    says = run.states("N-90", r"\text{recurrence: }T+N-1\text{ products in a row}")
    says.equal(rows(3, True), [cost_model("recurrent", t, d, depth=3).depth for t in lengths])
    says.fails("states that are not passed on", rows(3, False))


def growth(run: Run, longest: int) -> None:
    """N-90: exponents of the length."""
    d = 4
    lengths = [longest // 8, longest // 4, longest // 2, longest]

    def scores(t: int) -> int:
        return count_operations(attention, *(run.randn(t, d) for _ in range(3)))

    def recurrent(t: int) -> int:
        return count_operations(Recurrent(ElmanCell(d, d)), run.randn(1, t, d))

    says = run.states("N-90", r"\text{operations of attention}\sim T^2")
    says.slope(lengths, [scores(t) for t in lengths], 2.0, 1e-9, against=(1.0, 3.0))
    says.fails("a recurrent layer", lengths, [recurrent(t) for t in lengths])
    model = LanguageModel(3, d, 2, 1, length=longest + 1, hidden=1)

    def step(t: int, keep: bool) -> int:
        tokens, cache = torch.zeros(1, t + 1).long(), model.cache()
        if not keep:
            return count_operations(model.features, tokens)
        with torch.no_grad():
            model.features(tokens[:, :-1], cache)
        return count_operations(model.features, tokens[:, -1:], cache)

    with_cache, anew = [step(t, True) for t in lengths], [step(t, False) for t in lengths]
    costs = [cost_model("transformer", t, d, hidden=1) for t in lengths]
    says = run.states("N-90", r"\text{one more token: }N(8d^2+4dh+4(T+1)d)\text{ operations with a cache}")
    says.equal(with_cache, [c.step for c in costs])
    says.fails("everything computed anew", anew)
    says = run.states(
        "N-90", r"\text{one more token, everything computed anew: }N(T+1)(8d^2+4dh+4(T+1)d)\text{ operations}"
    )
    says.equal(anew, [c.step_anew for c in costs])
    says.fails("with a cache", with_cache)
    says = run.states("N-90", r"\text{recurrence: one more token costs the same after any number}")
    cell, x = ElmanCell(d, d), run.randn(1, d)
    each = [recurrent(t + 1) - recurrent(t) for t in lengths]
    says.equal([*each, count_operations(cell, x, cell.start(x))], cost_model("recurrent", longest, d).step)
    says.fails("a transformer with a cache", [*with_cache, with_cache[-1]])
    printed = run.refutes("decoding-step-called-quadratic", r"\text{operations of one more token}\sim T^2")
    printed.slope(lengths, with_cache, 2.0, 0.3, where=f"{lengths[0]} to {lengths[-1]} tokens, with a cache")


class Ring(nn.Module):
    """Convolutions of kernel k on a ring of tokens."""

    def __init__(self, layers: int, kernel: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Conv1d(width, width, kernel, padding="same", padding_mode="circular", dtype=torch.float64)
                for _ in range(layers)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x.mT).mT
        return made


def paths(run: Run) -> None:
    """M-96: how many layers until every output depends on every input."""
    d = 3

    def layers_needed(make: Callable[[int], nn.Module], tokens: int) -> int:
        x = run.randn(1, tokens, d)
        for layers in range(1, tokens + 1):
            if bool((token_jacobian(make(layers), x) > 0).all()):
                return layers
        return tokens + 1

    def ring(kernel: int) -> Callable[[int], nn.Module]:
        return lambda layers: Ring(layers, kernel, d)

    lengths = [5, 9, 14]
    says = run.states("M-96", r"\text{one layer of attention: every token depends on every token}")
    stacked = [
        layers_needed(lambda n: nn.Sequential(*(MultiHeadAttention(d, 1) for _ in range(n))), t) for t in lengths
    ]
    says.equal(stacked, [cost_model("transformer", t, d).path for t in lengths], where=f"{lengths} tokens")
    says.fails("convolutions of kernel 3", [layers_needed(ring(3), t) for t in lengths])
    kernels = [3, 5]
    says = run.states(
        "M-96", r"\text{convolutions on a ring: }\lceil(n-1)/(k-1)\rceil\text{ layers until all depend on all}"
    )
    says.equal(
        [layers_needed(ring(k), t) for k in kernels for t in lengths],
        [cost_model("convolution", t, d, kernel=k).path for k in kernels for t in lengths],
    )
    says.fails("attention", stacked * 2)


def pictures(run: Run, longest: int) -> None:
    lengths = [2**k for k in range(4, 4 + int(math.log2(longest)))]
    width, depth = 64, 4
    costs = {kind: [cost_model(kind, t, width, depth=depth) for t in lengths] for kind in KINDS}

    def plot(axes: Any) -> None:
        shown = (
            ("forward", "operations, all tokens"),
            ("step", "operations, one more token"),
            ("depth", "products in a row"),
        )
        for ax, (name, label) in zip(axes[0], shown, strict=True):
            for kind, style in zip(KINDS, ("o-", "s--", "^:"), strict=True):
                ax.plot(lengths, [getattr(c, name) for c in costs[kind]], style, ms=3.5, label=kind)
            ax.set(xscale="log", yscale="log", xlabel="tokens T", ylabel=label)
        anew = [c.step_anew for c in costs["transformer"]]
        axes[0, 1].plot(lengths, anew, "x-", ms=4, lw=0.8, label="transformer, no cache")
        axes[0, 0].legend(fontsize="small")
        axes[0, 1].legend(fontsize="small")

    run.figure(
        "costs",
        plot,
        grid=(1, 3),
        size=(13, 3.8),
        caption=f"{depth} layers of width {width}; kernels of 3. The transformer's operations bend upwards where the "
        "length passes its width.",
    )
