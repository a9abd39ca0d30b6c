r"""What a transformer costs, beside recurrence and convolution: operations, memory, steps in a row.

For N layers of width d over T tokens (a hidden layer of h units in each transformer block, a kernel
of size k), with 2 operations for each product of two entries in a matrix product, as
`torchtheory.tracing.count_operations` counts them:

| | operations | steps in a row | path between tokens | operations of one more token | kept |
|---|---|---|---|---|---|
| transformer | $N(8Td^2+4Tdh+4T^2d)$ | $6N$ | 1 layer | $N(8d^2+4dh+4Td)$ | $2NTd$ |
| recurrent | $4NTd^2$ | $T+N-1$ | $T$ steps | $4Nd^2$ | $Nd$ |
| convolution | $2NkTd^2$ | $N$ | $\lceil(T-1)/(k-1)\rceil$ layers | $2Nkd^2$ | $N(k-1)d$ |

Softmax, normalization, activations and sums are of lower order and are not counted. A backward pass
takes twice the operations of the forward pass. Source: Deep Learning (notes), sections 5.2 and 6.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from torchtheory.core.checks import described, one_of, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType

Kind = Literal["transformer", "recurrent", "convolution"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations, memory and steps of one sequence.

    Attributes:
        kind: of network.
        forward: operations of a pass over all tokens.
        depth: matrix products that wait for each other, which no number of processors shortens.
        path: layers, or steps, through which the first token reaches the last.
        scores: attention weights, if all are kept; fused attention keeps none.
        step: operations of one more token, with what is kept of the earlier ones.
        step_anew: operations of one more token, if nothing is kept.
        state: numbers that are kept between two tokens.
    """

    kind: Kind
    forward: int
    depth: int
    path: int
    scores: int
    step: int
    step_anew: int
    state: int


def cost_model(
    kind: Kind,
    tokens: int,
    width: int,
    *,
    depth: int = 1,
    heads: int = 1,
    hidden: int | None = None,
    kernel: int = 3,
) -> Cost:
    """The cost of a network over a sequence; see the table above.

    Args:
        kind: `transformer` (encoder blocks, or a decoder-only model without its embedding and
            head), `recurrent` (Elman cells) or `convolution` (causal, or on a ring).
        tokens: T.
        width: d.
        depth: number N of layers.
        heads: of the attention; only the memory of the weights depends on them.
        hidden: units of a transformer block's hidden layer, 4 d unless given.
        kernel: size k of a convolution's kernel.

    One more token is the one after T tokens; it looks at T + 1.

    >>> long, longer = (cost_model("transformer", t, 64, hidden=1) for t in (10**5, 2 * 10**5))
    >>> round(longer.forward / long.forward, 2), round(longer.step / long.step, 2)
    (4.0, 2.0)
    >>> cost_model("recurrent", 100, 64).depth, cost_model("transformer", 100, 64).depth
    (100, 6)
    """
    T, d = whole_number(tokens, "tokens", least=1), whole_number(width, "width", least=1)
    N, heads = whole_number(depth, "depth", least=1), whole_number(heads, "heads", least=1)
    h = 4 * d if hidden is None else whole_number(hidden, "hidden", least=1)
    k = whole_number(kernel, "kernel", least=2)
    if one_of(kind, "kind", ("transformer", "recurrent", "convolution")) == "transformer":

        def blocks(rows: int, seen: int) -> int:
            """Operations where so many tokens look at so many."""
            return N * (8 * rows * d * d + 4 * rows * d * h + 4 * rows * seen * d)

        return Cost(
            kind,
            forward=blocks(T, T),
            depth=6 * N,
            path=1,
            scores=N * heads * T * T,
            step=blocks(1, T + 1),
            step_anew=blocks(T + 1, T + 1),
            state=2 * N * T * d,
        )
    each = N * (4 * d * d if kind == "recurrent" else 2 * k * d * d)
    recurrent = kind == "recurrent"
    return Cost(
        kind,
        forward=T * each,
        depth=T + N - 1 if recurrent else N,
        path=T if recurrent else -(-(T - 1) // (k - 1)),
        scores=0,
        step=each,
        step_anew=(T + 1) * each,
        state=N * d if recurrent else N * (k - 1) * d,
    )


def longest_chain(output: Tensor) -> int:
    """Matrix products and convolutions one after another on the way to an output.

    Of the graph that torch keeps for the gradients: what was computed from parameters and inputs
    that require them. Attention counts as its two products.

    Time: linear in the operations that were recorded.

    >>> import torch
    >>> a = torch.ones(2, 2, requires_grad=True)
    >>> longest_chain((a @ a) @ a + a @ a)
    2
    """
    if not isinstance(output, Tensor) or output.grad_fn is None:
        raise InvalidType(
            f"output must be a tensor with a gradient behind it, not {described(output)}"
        )
    lengths: dict[Any, int] = {}
    stack: list[Any] = [output.grad_fn]
    while stack:
        node = stack[-1]
        before = [n for n, _ in node.next_functions if n is not None]
        missing = [n for n in before if n not in lengths]
        if missing:
            stack += missing
            continue
        lengths[stack.pop()] = _products(node) + max((lengths[n] for n in before), default=0)
    return lengths[output.grad_fn]


_PRODUCTS = ("MmBackward", "AddmmBackward", "BmmBackward", "BaddbmmBackward", "MvBackward",
             "DotBackward", "ConvolutionBackward", "LinearBackward")  # fmt: skip


def _products(node: Any) -> int:
    name: str = node.name()
    if name.startswith("ScaledDotProduct"):
        return 2
    if "Rnn" in name:
        raise InvalidInput("torch's fused recurrent layers hide their steps: use Recurrent")
    return int(name.startswith(_PRODUCTS))
