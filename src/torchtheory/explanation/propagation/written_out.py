"""Operations that are written out in others, which have rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
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


def _lerp(a: Any, b: Any, weight: Any) -> Any:
    return a * (1 - weight) + b * weight


WRITTEN_OUT: dict[str, Handler] = {
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _in_other_words(_added_product)),
    "addcmul": _in_other_words(lambda a, b, c, *, value=1: a + value * (b * c)),
    "lerp": _in_other_words(_lerp),
    "glu": _in_other_words(_gated_halves),
    "scaled_dot_product_attention": _in_other_words(_attention),
}
