"""Attention by itself: means of values, symmetric scores, lookups, masks, and a product without softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.activations.table import Pointwise
from torchtheory.neurons.dense_memory import modern_hopfield_update
from torchtheory.sequences.attention.dot_product import (
    attention,
    causal_mask,
    linear_attention,
    one_matrix_attention,
    self_attention,
)
from torchtheory.sequences.attention.heads import MultiHeadAttention
from torchtheory.sequences.attention.maps import token_jacobian
from torchtheory.tracing.operation_counts import count_operations

EXACT = 1e-12


@lab(
    "attention",
    room="sequences",
    covers=["M-96", "M-97", "M-98", "M-100", "M-113", "N-82"],
    errata=["attention-adds-its-own-value"],
    title="Attention is a soft lookup: means of values, weighted by how well keys fit",
    full={"tokens": 40, "width": 32},
    least={"tokens": 4, "width": 4},
)
def attention_lab(run: Run, tokens: int = 9, width: int = 6) -> None:
    """From attention without parameters to queries, keys and values, with a mask and without the softmax.

    Outputs are means of the values: with queries of size 0 the plain mean, with large ones the value of
    the best key. One matrix for queries and keys makes scores symmetric, which shows in the weights; two
    matrices do not. A causal mask makes the derivatives with respect to later tokens 0. Without the
    softmax the products may be bracketed at will, which is cheap for long sequences, and outputs are
    cubic in the tokens. The pictures show weights from even to a lookup, and with the mask.

    Args:
        tokens: length of the sequences.
        width: size of the tokens.
    """
    parameter_free(run, tokens, width)
    one_matrix(run, tokens, width)
    queries_and_keys(run, tokens, width)
    lookup(run, tokens, width)
    single_head(run, width)
    masked(run, tokens, width)
    without_softmax(run, tokens, width)
    pictures(run, tokens, width)


def parameter_free(run: Run, n: int, d: int) -> None:
    x = run.randn(n, d)
    y, weights = self_attention(x)
    says = run.states("M-96", r"y_n=\sum_ma_{nm}x_m,\ a_{nm}=e^{x_n^\top x_m}/\sum_ke^{x_n^\top x_k}")
    scores = torch.tensor([[math.exp(float(a @ b)) for b in x] for a in x], dtype=torch.float64)
    wanted = (scores / scores.sum(1, keepdim=True)) @ x
    says.equal(gap(y, wanted), within=EXACT)
    says.fails("scores divided by the root of d, which this one does not do", gap(attention(x, x, x)[0], wanted))
    says = run.states("M-96", r"\sum_ma_{nm}=1")
    says.equal(weights.sum(1), 1.0, EXACT)
    nothing = torch.zeros(n, n).bool()
    says.fails("queries that may look at nothing", attention(x, x, x, nothing, scale=1.0)[1].sum(1))
    directions = run.randn(200, d)
    q, k, v = run.randn(n, d), run.randn(2 * n, d), run.randn(2 * n, d)

    def reach(*points: Tensor) -> Tensor:
        """How far they go in each direction."""
        return torch.cat([(p @ directions.T).amax(0) for p in points])

    says = run.states(
        ["M-96", "N-82"], r"u^\top y_n\le\max_mu^\top v_m\text{ for every }u:\ y_n\in\operatorname{conv}\{v_m\}"
    )
    says.at_most(
        reach(y, attention(q, k, v)[0]), reach(x, v), EXACT, where="200 directions; tokens, and queries with their keys"
    )
    says.fails("weights that do not sum to one", reach(linear_attention(x, x, x), linear_attention(q, k, v)))
    many = run.randn(4, n, d)

    def defect(mask: Tensor | None) -> float:
        layer = Pointwise(lambda z: attention(z, z, z, mask, scale=1.0)[0], "attention")
        return measure_equivariance(layer, "permutations", many, generator=run.seed).largest

    says = run.states("M-96", r"\operatorname{Att}(PX)=P\operatorname{Att}(X)")
    says.equal(defect(None), within=1e-10, where="random permutations of the tokens")
    says.fails("a causal mask", defect(causal_mask(n)))


def one_matrix(run: Run, n: int, d: int) -> None:
    x, u = run.randn(n, d), run.randn(d, d) / d**0.5
    says = run.states("M-97", r"U=I:\ \operatorname{softmax}(XUU^\top X^\top)XU=\operatorname{softmax}(XX^\top)X")
    says.equal(gap(one_matrix_attention(x, torch.eye(d).double())[0], self_attention(x)[0]), within=EXACT)
    says.fails("another matrix U", gap(one_matrix_attention(x, u)[0], self_attention(x)[0]))

    def ratios(weights: Tensor) -> Tensor:
        """ln of a_nn a_mm / (a_nm a_mn): the sums of the softmax cancel."""
        logs = weights.log()
        own = logs.diagonal()
        return own[:, None] + own[None] - logs - logs.T

    distances = torch.cdist(x @ u, x @ u).square()
    says = run.states(
        "M-97",
        r"\ln\frac{a_{nn}a_{mm}}{a_{nm}a_{mn}}=\|U^\top(x_n-x_m)\|^2:\ "
        r"\text{scores are symmetric and positive semi-definite}",
    )
    says.equal(ratios(one_matrix_attention(x, u)[1]), distances, 1e-9)
    keys = x @ (run.randn(d, d) / d**0.5)
    says.fails("keys of another matrix than the queries'", ratios(attention(x @ u, keys, x, scale=1.0)[1]))


def queries_and_keys(run: Run, n: int, d: int) -> None:
    q, k, v = run.randn(3, n, d), run.randn(3, n + 2, d), run.randn(3, n + 2, 2 * d)
    expected = F.scaled_dot_product_attention(q, k, v)
    says = run.states("M-98", r"Y=\operatorname{softmax}(QK^\top/\sqrt{d_k})V")
    says.equal(gap(attention(q, k, v)[0], expected), within=EXACT, where="against torch's own")
    says.fails(
        "divided by the root of the values' size in place of the keys'",
        gap(attention(q, k, v, scale=(2 * d) ** -0.5)[0], expected),
    )
    says = run.states(["M-98", "N-82"], r"Q=0:\ \xi_i=\frac1T\sum_tv_t")
    means = v.mean(1, keepdim=True).expand(3, n, 2 * d)
    says.equal(gap(attention(0 * q, k, v)[0], means), within=EXACT)
    says.fails("queries that are not 0", gap(attention(q, k, v)[0], means))
    stored, state = run.randn(2 * n, d), run.randn(n, d)
    says = run.states("N-82", r"\operatorname{Att}(\xi,X,X)=X^\top\operatorname{softmax}(X\xi/\sqrt d)")
    out = attention(state, stored, stored)[0]
    says.equal(gap(modern_hopfield_update(stored, state, d**-0.5), out), within=EXACT, where="one step of a memory")
    says.fails("a memory of another temperature", gap(modern_hopfield_update(stored, state, 1.0), out))
    q, k, v = run.randn(n, d), run.randn(n, d), run.randn(n, d)
    printed = run.refutes("attention-adds-its-own-value", r"\xi_i=\sum_t\operatorname{softmax}_t(\omega_i)\,v_i")
    own = attention(q, k, v)[1].sum(1, keepdim=True) * v
    printed.equal(attention(q, k, v)[0], own, 1e-6, where="random queries, keys and values")


def lookup(run: Run, n: int, d: int) -> None:
    """N-82: with sharp queries, the value of the best key."""
    q, k, v = run.randn(n, d), run.randn(n, d), run.randn(n, d)
    # the tight case: all keys but one fit equally badly
    flat = torch.zeros(n, d).double()
    flat[0, 0] = 1.0
    one = torch.zeros(1, d).double()
    one[0, 0] = math.sqrt(d)
    betas = [1.0, 4.0, 8.0]

    def left(queries: Tensor, keys: Tensor) -> list[float]:
        """The largest weight that is not on the best key, for growing queries."""
        return [float((1 - attention(b * queries, keys, keys)[1].amax(-1)).max()) for b in betas]

    def bounds(queries: Tensor, keys: Tensor) -> list[float]:
        best = (queries @ keys.T / math.sqrt(d)).topk(2).values
        margin = float((best[:, 0] - best[:, 1]).min())
        return [(n - 1) * math.exp(-b * margin) for b in betas]

    says = run.states("N-82", r"1-\max_tA_{it}\le(T-1)e^{-\beta\Delta}\text{ for queries }\beta q_i")
    says.at_most(
        left(one, flat) + left(q, k), bounds(one, flat) + bounds(q, k), EXACT, where="equal others, random keys"
    )
    tied = flat.clone()
    tied[1] = tied[0]
    says.fails("a second key as good as the best", left(one, tied) + left(one, tied), promised=bounds(one, flat) * 2)
    sharp = 1e6
    best = v[(q @ k.T).argmax(1)]
    says = run.states("N-82", r"\beta\to\infty:\ \xi_i=v_{t^*},\ t^*=\arg\max_tq_i^\top k_t")
    says.equal(gap(attention(sharp * q, k, v)[0], best), within=1e-9, where=f"queries times {sharp:g}")
    says.fails("queries as they are", gap(attention(q, k, v)[0], best))


def single_head(run: Run, d: int) -> None:
    widths = [1, d, 2 * d]

    def counts(bias: bool) -> list[int]:
        return [sum(p.numel() for p in MultiHeadAttention(w, 1, bias=bias).parameters()) for w in widths]

    says = run.states("M-100", r"\text{one head: }4(d^2+d)\text{ parameters}")
    says.equal(counts(True), [4 * (w * w + w) for w in widths])
    says.fails("without biases", counts(False))
    layer, x = MultiHeadAttention(d, 1, generator=run.generator), run.randn(2, 5, d)
    out, weights = layer(x, weights=True)
    mixed, expected = attention(layer.query(x), layer.key(x), layer.value(x))
    says = run.states("M-100", r"\text{out}=\operatorname{softmax}(QK^\top/\sqrt d)V\,W_O,\ Q=XW_Q,\,K=XW_K,\,V=XW_V")
    says.equal([gap(out, layer.output(mixed)), gap(weights[:, 0], expected)], within=EXACT)
    two = MultiHeadAttention(d, 1, generator=run.generator)
    two.load_state_dict(layer.state_dict())
    two.heads = 2 if d % 2 == 0 else d
    split, seen = two(x, weights=True)
    says.fails("the same matrices as several heads", [gap(split, layer.output(mixed)), gap(seen[:, 0], expected)])


class Masked(nn.Module):
    """Self-attention with a mask of one's own."""

    def __init__(self, layer: MultiHeadAttention, mask: Tensor) -> None:
        super().__init__()
        self.layer, self.mask = layer, mask

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x, mask=self.mask)
        return made


def masked(run: Run, n: int, d: int) -> None:
    x = run.randn(n, d)
    ones = torch.ones(n).double()
    first = torch.eye(n).double()[0]
    late = torch.full((n, n), -math.inf).double().triu(2)

    expected = F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0]

    def found(mask: Tensor) -> list[float]:
        out, weights = attention(x, x, x, mask)
        ahead = float(weights.triu(1).max())
        return [ahead, gap(weights.sum(1), ones), gap(weights[0], first), gap(out, expected)]

    says = run.states("M-113", r"W=\operatorname{softmax}(QK^\top/\sqrt{d_k}+M):\ W_{ij}=0,\ j>i;\ W_1=(1,0,\dots)")
    says.equal(found(causal_mask(n)), within=EXACT, where="against torch's own causal attention")
    says.fails("a mask that is off by one", found(late))
    layer, many = MultiHeadAttention(d, 1, generator=run.generator), run.randn(2, n, d)

    def ahead(mask: Tensor) -> float:
        return float(token_jacobian(Masked(layer, mask), many).triu(1).max())

    says = run.states("M-113", r"\partial y_i/\partial x_j=0\text{ for }j>i")
    says.equal(ahead(causal_mask(n)), within=0.0)
    says.fails("a mask that is off by one", ahead(late))


def without_softmax(run: Run, n: int, d: int) -> None:
    maps = [run.randn(d, d) / d**0.5 for _ in range(3)]
    x = run.randn(n, d)

    def product(z: Tensor) -> Tensor:
        return linear_attention(*(z @ m for m in maps))

    def soft(z: Tensor) -> Tensor:
        return attention(*(z @ m for m in maps))[0]

    def growth(function: Callable[[Tensor], Tensor]) -> list[float]:
        return [gap(function(c * x), c**3 * function(x)) / c**3 for c in (0.5, 2.0, 3.0)]

    says = run.states("M-96", r"Y=QK^\top V:\ Y(cX)=c^3\,Y(X)")
    says.equal(growth(product), within=EXACT)
    says.fails("with the softmax", growth(soft))
    long = run.randn(40 * d, d)
    q, k, v = (long @ m for m in maps)
    says = run.states("M-96", r"(QK^\top)V=Q(K^\top V)")
    bracketed = linear_attention(q, k, v)
    says.equal(gap((q @ k.T) @ v, bracketed), within=1e-9, where=f"{len(long)} tokens of size {d}")
    says.fails("a softmax inside of the brackets", gap(attention(q, k, v, scale=1.0)[0], bracketed))
    lengths = [16 * d, 32 * d, 64 * d]

    def operations(function: Any) -> list[int]:
        return [count_operations(function, *[run.randn(t, d) for _ in range(3)]) for t in lengths]

    says = run.states("M-96", r"\text{operations of }Q(K^\top V)\sim T")
    says.slope(lengths, operations(linear_attention), 1.0, 1e-9, against=(0.0, 2.0))
    says.fails("with the softmax, which needs all pairs first", lengths, operations(attention))


def pictures(run: Run, n: int, d: int) -> None:
    q, k, v = run.randn(n, d), run.randn(n, d), run.randn(n, d)
    shown = [(f"queries times {b:g}", attention(b * q, k, v)[1]) for b in (0.2, 2.0, 20.0)]
    shown.append(("times 2, with the causal mask", attention(2 * q, k, v, causal_mask(n))[1]))

    def plot(axes: Any) -> None:
        for ax, (title, weights) in zip(axes[0], shown, strict=True):
            image = ax.imshow(weights.numpy(), vmin=0, vmax=1, cmap="viridis")
            ax.set(title=title, xlabel="key")
            ax.grid(False)
        axes[0, 0].set_ylabel("query")
        axes[0, 0].figure.colorbar(image, ax=list(axes[0]), label="weight", shrink=0.8)

    run.figure(
        "weights",
        plot,
        grid=(1, 4),
        size=(13, 3.4),
        caption="Weights of random queries and keys, from an even mean to the lookup of one key.",
    )
