"""Several heads side by side, and one sequence that looks at another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.sequences.attention.dot_product import attention
from torchtheory.sequences.attention.heads import MultiHeadAttention
from torchtheory.sequences.attention.positions import SinusoidalPositions

EXACT = 1e-12


@lab(
    "multi-head-attention",
    room="sequences",
    covers=["M-101", "N-84", "N-85"],
    title="Heads side by side are separate attentions, and cross-attention sees a set",
    full={"tokens": 30, "width": 64, "heads": 8},
    least={"tokens": 3, "heads": 2, "width": 4},
)
def multi_head_attention(run: Run, tokens: int = 7, width: int = 8, heads: int = 4) -> None:
    """Three products for all heads at once, against a head at a time; self- and cross-attention.

    The product for all heads is split in consecutive parts, one for each head; split otherwise, it is another
    function of the same weights. torch's layer has the same weights and values. A sequence A that looks at a
    sequence B has outputs that move with the rows of A and do not change with the order of those of B. The
    pictures show the weights of each head.

    Args:
        tokens: length of the sequences.
        width: size of the tokens; the number of heads divides it.
        heads: of the attention.
    """
    run.assumes(width % heads == 0, f"{heads} heads cannot share a width of {width} equally")
    separate_heads(run, tokens, width, heads)
    torchs_layer(run, tokens, width, heads)
    sizes(run, width, heads)
    cross_attention(run, tokens, width, heads)
    pictures(run, tokens, width, heads)


def one_by_one(layer: MultiHeadAttention, a: Tensor, b: Tensor, *, interleaved: bool = False) -> Tensor:
    """Each head by itself, with its rows of the three matrices, then the output's matrix."""
    h, found = layer.heads, []
    for j in range(h):

        def rows(linear: nn.Linear, x: Tensor, j: int = j) -> Tensor:
            size = linear.out_features // h
            chosen = slice(j, None, h) if interleaved else slice(j * size, (j + 1) * size)
            assert linear.bias is not None
            return x @ linear.weight[chosen].T + linear.bias[chosen]

        found.append(attention(rows(layer.query, a), rows(layer.key, b), rows(layer.value, b))[0])
    out: Tensor = layer.output(torch.cat(found, -1))
    return out


def separate_heads(run: Run, n: int, d: int, h: int) -> None:
    layer = MultiHeadAttention(d, h, memory_width=d + 1, key_size=3, value_size=5, generator=run.generator)
    a, b = run.randn(2, n, d), run.randn(2, n + 2, d + 1)
    says = run.states(["N-84", "M-101"], r"[\Xi_1,\dots,\Xi_h]W_O,\ \Xi_j=\operatorname{Att}(AW_Q^j,BW_K^j,BW_V^j)")
    says.equal(gap(layer(a, b), one_by_one(layer, a, b)), within=EXACT, where=f"{h} heads of sizes 3 and 5")
    says.fails("rows dealt out to the heads in turn", gap(layer(a, b), one_by_one(layer, a, b, interleaved=True)))
    single = MultiHeadAttention(d, 1, bias=False, generator=run.generator)
    with torch.no_grad():
        single.output.weight.copy_(torch.eye(d))
    x = run.randn(2, n, d)
    plain = attention(single.query(x), single.key(x), single.value(x))[0]
    says = run.states(["N-84", "M-101"], r"h=1,\ W_O=I:\ \operatorname{Att}(XW_Q,XW_K,XW_V)")
    says.equal(gap(single(x), plain), within=EXACT)
    single.heads = h
    says.fails(f"the same matrices split for {h} heads", gap(single(x), plain))


def torchs_layer(run: Run, n: int, d: int, h: int) -> None:
    layer, x = MultiHeadAttention(d, h, generator=run.generator), run.randn(2, n, d)
    theirs = layer.to_torch()
    says = run.states(["M-101", "N-84"], r"\text{torch's layer of the same weights has the same outputs and weights}")
    out, weights = theirs(x, x, x, average_attn_weights=False)
    mine, seen = layer(x, weights=True)
    back = MultiHeadAttention.from_torch(theirs)
    says.equal([gap(mine, out), gap(seen, weights), gap(back(x), out)], within=EXACT)
    # the matrices of queries, keys and values in another order
    with torch.no_grad():
        theirs.in_proj_weight.copy_(theirs.in_proj_weight.roll(d, 0))
    out, weights = theirs(x, x, x, average_attn_weights=False)
    says.fails("values first, then queries and keys", [gap(mine, out), gap(seen, weights), gap(back(x), out)])


def sizes(run: Run, d: int, h: int) -> None:
    widths = [d, 2 * h * d]

    def counts(size: int | None) -> list[int]:
        layers = [MultiHeadAttention(w, h, key_size=size, bias=False) for w in widths]
        return [sum(p.numel() for p in layer.parameters()) for layer in layers]

    says = run.states("M-101", r"W^O\in\mathbb R^{hd\times d_{\text{model}}}:\ 4h\,d\,d_{\text{model}}\text{ weights}")
    says.equal(counts(d), [4 * h * d * w for w in widths], where="heads of size d each")
    says.fails("heads that share the width", counts(None))


def cross_attention(run: Run, n: int, d: int, h: int) -> None:
    layer = MultiHeadAttention(d, h, generator=run.generator)
    a, b = run.randn(3, n, d), run.randn(3, n + 2, d)
    says = run.states("N-85", r"B=A:\ \text{cross-attention is self-attention}")
    says.equal(gap(layer(a, a), layer(a)), within=EXACT)
    says.fails("another sequence B", gap(layer(a, b), layer(a)))

    class Rows(nn.Module):
        """The layer as a function of A, or of B, the other one fixed."""

        def __init__(self, other: Tensor, *, memory: bool, places: nn.Module | None = None) -> None:
            super().__init__()
            self.layer, self.other, self.memory = layer, other, memory
            self.places = nn.Identity() if places is None else places

        def forward(self, x: Tensor) -> Tensor:
            x, other = self.places(x), self.other.expand(len(x), -1, -1)
            made: Tensor = self.layer(other, x) if self.memory else self.layer(x, other)
            return made

    def defect(memory: bool, places: nn.Module | None = None) -> float:
        model = Rows((a if memory else b)[:1], memory=memory, places=places)
        kind = "invariant" if memory else "equivariant"
        x = b if memory else a
        return measure_equivariance(model, "permutations", x, on_output=kind, generator=run.seed).largest

    places = SinusoidalPositions(d)
    says = run.states("N-85", r"\operatorname{MHA}(PA,B)=P\operatorname{MHA}(A,B)")
    says.equal(defect(False), within=1e-10)
    says.fails("positions added to A", defect(False, places))
    says = run.states("N-85", r"\operatorname{MHA}(A,PB)=\operatorname{MHA}(A,B)")
    says.equal(defect(True), within=1e-10)
    says.fails("positions added to B", defect(True, places))


def pictures(run: Run, n: int, d: int, h: int) -> None:
    layer = MultiHeadAttention(d, h, generator=run.generator)
    # larger matrices than a fresh layer's, whose weights are nearly even
    with torch.no_grad():
        layer.query.weight.mul_(3)
        layer.key.weight.mul_(3)
    _, weights = layer(run.randn(1, n, d), run.randn(1, n + 4, d), weights=True)
    shown = min(h, 4)

    def plot(axes: Any) -> None:
        for j, ax in enumerate(axes[0]):
            image = ax.imshow(weights[0, j].detach().numpy(), vmin=0, vmax=1, cmap="viridis")
            ax.set(title=f"head {j + 1}", xlabel="token of B")
            ax.grid(False)
        axes[0, 0].set_ylabel("token of A")
        axes[0, 0].figure.colorbar(image, ax=list(axes[0]), label="weight", shrink=0.7)

    run.figure(
        "heads",
        plot,
        grid=(1, shown),
        size=(3.2 * shown, 2.6),
        caption="The weights of each head of one random layer: what tokens of A look at in B.",
    )
