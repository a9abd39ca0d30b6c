r"""Scaled dot-product attention, its causal mask, and its two simpler relatives.

$$
\operatorname{Att}(Q,K,V)=AV,\qquad
A=\operatorname{softmax}_{\text{rows}}\Bigl(\frac{QK^\top}{\sqrt{d_k}}+M\Bigr),\qquad
\xi_i=\sum_tA_{it}v_t.
$$

Each output is a mean of the values, with weights that its query's agreement with the keys gives.
Source: Foundations of Deep Learning, section 10.4; Deep Learning (notes), section 6.1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.core.checks import described, finite_number, whole_number
from torchtheory.core.errors import EmptyData, InvalidType, ShapeMismatch


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    r"""$AV$ and $A=\operatorname{softmax}(s\,QK^\top+M)$, row by row.

    The largest score of a row is subtracted before the exponential, so large scores do no harm.
    A query that may look at nothing gets weights 0 and the output 0, as in torch.

    Args:
        queries: `[..., T, k]`.
        keys: `[..., S, k]`.
        values: `[..., S, v]`.
        mask: broadcasts to `[..., T, S]`: numbers M that are added to the scores, such as
            `causal_mask`, or booleans, true where the query may look at the key.
        scale: s, $1/\sqrt{k}$ unless given.

    Returns:
        The outputs `[..., T, v]` and the weights `[..., T, S]`.

    Time: $O(TS(k+v))$. Memory: the $TS$ weights; where only outputs are wanted, torch's
    `scaled_dot_product_attention` gives the same without keeping them.

    >>> values = torch.tensor([[1.0], [3.0]])
    >>> attention(torch.zeros(1, 4), torch.ones(2, 4), values)
    (tensor([[2.]]), tensor([[0.5000, 0.5000]]))
    """
    _check_fit(queries, keys, values)
    factor = 1 / math.sqrt(queries.shape[-1]) if scale is None else finite_number(scale, "scale")
    scores = factor * queries @ keys.mT
    if mask is None:
        weights = scores.softmax(-1)
        return weights @ values, weights
    mask = checked_mask(mask, scores.shape)
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, -math.inf)
    scores = scores + mask.to(scores.dtype)
    blind = (scores == -math.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    return weights @ values, weights


def causal_mask(
    queries: int,
    keys: int | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    r"""$M_{ij}=0$ for $j\le i$ and $-\infty$ for $j>i$: no position looks at a later one.

    Args:
        queries: number of positions n that look.
        keys: number of positions that are looked at, of which the queries are the last n; n unless
            given. More of them are there when earlier ones come from a cache.

    >>> causal_mask(3)
    tensor([[0., -inf, -inf],
            [0., 0., -inf],
            [0., 0., 0.]], dtype=torch.float64)
    >>> causal_mask(1, 3)
    tensor([[0., 0., 0.]], dtype=torch.float64)
    """
    n = whole_number(queries, "queries", least=1)
    m = n if keys is None else whole_number(keys, "keys", least=n)
    return torch.full((n, m), -math.inf, dtype=dtype, device=device).triu(m - n + 1)


def self_attention(x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Attention without parameters: $Y=\operatorname{softmax}(XX^\top)X$, and the weights.

    Scores are not scaled here. Source: Foundations of Deep Learning, equation (10.1).

    Args:
        x: tokens `[..., T, d]`.

    Returns:
        Outputs `[..., T, d]` in the convex hull of the tokens, and weights `[..., T, T]`.

    >>> y, weights = self_attention(torch.eye(2))
    >>> weights.sum(1).tolist(), bool(torch.equal(y, weights))
    ([1.0, 1.0], True)
    """
    return attention(x, x, x, scale=1.0)


def one_matrix_attention(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    r"""Attention with one matrix: $Y=\operatorname{softmax}(XUU^\top X^\top)XU$, and the weights.

    Queries, keys and values are all $XU$, so scores are symmetric and positive semi-definite: what
    $x_n$ makes of $x_m$, $x_m$ makes of $x_n$. Own matrices for queries and keys undo that.

    Args:
        x: tokens `[..., T, d]`.
        matrix: `U[d, e]`.

    >>> x = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    >>> same, plain = one_matrix_attention(x, torch.eye(2)), self_attention(x)
    >>> bool(torch.equal(same[0], plain[0]))
    True
    """
    for value, name in ((x, "x"), (matrix, "matrix")):
        _check_tokens(value, name)
    if matrix.ndim != 2 or x.shape[-1] != matrix.shape[0]:
        raise ShapeMismatch(
            f"tokens of size {x.shape[-1]} need a matrix [{x.shape[-1]}, e], "
            f"not {list(matrix.shape)}"
        )
    return self_attention(x @ matrix)


def linear_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    r"""$QK^\top V$, without the softmax, in the order of fewer operations; `[..., T, v]`.

    Products may be bracketed at will, so that no matrix of all pairs of tokens is needed:
    $Q(K^\top V)$ takes $O((T+S)kv)$ operations in place of $O(TS(k+v))$. With queries, keys and
    values linear in X it is a cubic function of X.

    Args:
        queries: `[..., T, k]`.
        keys: `[..., S, k]`.
        values: `[..., S, v]`.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    >>> bool(torch.equal(linear_attention(x, x, x), (x @ x.T) @ x))
    True
    """
    _check_fit(queries, keys, values)
    (T, k), (S, v) = queries.shape[-2:], values.shape[-2:]
    if (T + S) * k * v < T * S * (k + v):
        return queries @ (keys.mT @ values)
    return (queries @ keys.mT) @ values


def checked_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    """A mask that broadcasts to the scores, of booleans or of numbers to add."""
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise InvalidType(
            "mask must be a tensor of booleans (true where a query may look) or of numbers that "
            f"are added to the scores, not {described(mask)}"
        )
    pairs = zip(reversed(mask.shape), reversed(shape), strict=False)
    if mask.ndim > len(shape) or any(m not in (1, n) for m, n in pairs):
        raise ShapeMismatch(f"a mask {list(mask.shape)} does not fit scores {list(shape)}")
    return mask


def _check_fit(queries: Tensor, keys: Tensor, values: Tensor) -> None:
    for x, name in ((queries, "queries"), (keys, "keys"), (values, "values")):
        _check_tokens(x, name)
    if len({x.dtype for x in (queries, keys, values)}) > 1:
        kinds = ", ".join(str(x.dtype).removeprefix("torch.") for x in (queries, keys, values))
        raise InvalidType(f"queries, keys and values must have one precision, not {kinds}")
    if queries.shape[-1] != keys.shape[-1]:
        raise ShapeMismatch(
            f"queries and keys must have the same size, not {queries.shape[-1]} and "
            f"{keys.shape[-1]}"
        )
    if keys.shape[-2] != values.shape[-2]:
        raise ShapeMismatch(
            f"there must be one value per key, not {values.shape[-2]} values for "
            f"{keys.shape[-2]} keys"
        )
    if queries.shape[-1] == 0:
        raise EmptyData("queries and keys of size 0 have no scores")
    batches = [x.shape[:-2] for x in (queries, keys, values)]
    try:
        torch.broadcast_shapes(*batches)  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ShapeMismatch(
            "queries, keys and values must have the same leading axes, not "
            + ", ".join(str(list(b)) for b in batches)
        ) from None


def _check_tokens(x: Tensor, name: str) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
        raise InvalidType(
            f"{name} must be a tensor of numbers [..., tokens, size], not {described(x)}"
        )
