"""Operations that are written out in others, which have rules."""

from __future__ import annotations

import math
import string
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.explanation.propagation.tracing import Handler, Propagation


def _in_other_words(written: Callable[..., Any]) -> Handler:
    def handle(trace: Propagation, name: str, *args: Any, **named: Any) -> Any:
        with trace:
            return written(*args, **named)

    return handle


def _added_product(
    input: Any, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    product = torch.matmul(first, second)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return (input if beta == 1 else input * beta) + product


def _of_pairs(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    outputs, left, right = weight.shape
    projected = F.linear(first, weight.transpose(1, 2).reshape(outputs * right, left))
    made: Tensor = (
        projected.reshape(*first.shape[:-1], outputs, right) * second.unsqueeze(-2)
    ).sum(-1)
    return made if bias is None else made + bias


def _gated_halves(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * torch.sigmoid(b)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = torch.matmul(query, key.mT)
    scores = scores * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.matmul(torch.softmax(scores, -1), value)


def _cosine(first: Tensor, second: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    lengths = [t.norm(dim=dim, keepdim=True).clamp_min(eps) for t in (first, second)]
    made: Tensor = (first / lengths[0] * (second / lengths[1])).sum(dim)
    return made


def _tensordot(a: Tensor, b: Tensor, dims: Any = 2, out: None = None) -> Tensor:
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        dims = (list(range(a.ndim - dims, a.ndim)), list(range(dims)))
    left, right = ([d % t.ndim for d in own] for own, t in zip(dims, (a, b), strict=True))
    letters = iter(string.ascii_letters)
    of_a = [next(letters) for _ in range(a.ndim)]
    of_b = [of_a[left[right.index(d)]] if d in right else next(letters) for d in range(b.ndim)]
    kept = [c for d, c in enumerate(of_a) if d not in left]
    kept += [c for d, c in enumerate(of_b) if d not in right]
    made: Tensor = torch.einsum(f"{''.join(of_a)},{''.join(of_b)}->{''.join(kept)}", a, b)
    return made


def _chained(*matrices: Any, **_: Any) -> Tensor:
    """`chain_matmul` of matrices, or `multi_dot` of a list of them."""
    given = matrices[0] if len(matrices) == 1 and not isinstance(matrices[0], Tensor) else matrices
    made: Tensor = reduce(torch.matmul, given)
    return made


def _columns(tensors: Any) -> Tensor:
    return torch.hstack([t.reshape(-1, 1) if t.ndim < 2 else t for t in tensors])


def _lerp(a: Any, b: Any, weight: Any) -> Any:
    return a * (1 - weight) + b * weight


WRITTEN_OUT: dict[str, Handler] = {
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _in_other_words(_added_product)),
    "addcmul": _in_other_words(lambda a, b, c, *, value=1: a + value * (b * c)),
    "addcdiv": _in_other_words(lambda a, b, c, *, value=1: a + value * (b / c)),
    "bilinear": _in_other_words(_of_pairs),
    "cosine_similarity": _in_other_words(_cosine),
    "tensordot": _in_other_words(_tensordot),
    "inner": _in_other_words(lambda a, b: _tensordot(a, b, ([-1], [-1]))),
    **dict.fromkeys(("chain_matmul", "multi_dot"), _in_other_words(_chained)),
    "column_stack": _in_other_words(_columns),
    "lerp": _in_other_words(_lerp),
    "glu": _in_other_words(_gated_halves),
    "scaled_dot_product_attention": _in_other_words(_attention),
}
