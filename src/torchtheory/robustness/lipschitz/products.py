"""Products of signals, and attention."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.robustness.lipschitz.affine_operations import affine, broadcast
from torchtheory.robustness.lipschitz.watched_pass import Extent, Pass, Signal, times


def multiply(watch: Pass, input: Any, other: Any, **_: Any) -> Any:
    a, b = input, other
    if not (isinstance(a, Signal) and isinstance(b, Signal)):
        return affine(watch, torch.mul, "affine", (a, b), {})
    a, b = broadcast(watch, a, b)

    def rule(one: Extent, two: Extent) -> Extent:
        return Extent(
            times(two.largest, one.lipschitz) + times(one.largest, two.lipschitz),
            times(two.largest, one.distance) + times(one.largest, two.distance),
            times(one.largest, two.largest),
        )

    return watch.node(a.value * b.value, (a, b), rule)


def matmul(watch: Pass, **given: Any) -> Any:
    a, b = list(given.values())[:2]  # of several names: other, mat2, vec
    if not (isinstance(a, Signal) and isinstance(b, Signal)):
        return affine(watch, torch.matmul, "affine", (a, b), {})
    if a.ndim < 3 or b.ndim < 3:
        raise watch.refuse("the network multiplies the samples of a batch with each other")
    sizes = [watch.rows(torch.linalg.matrix_norm(s.value, 2)).amax(1) for s in (a, b)]

    def rule(one: Extent, two: Extent) -> Extent:
        left, right = sizes[0] + one.distance, sizes[1] + two.distance
        return Extent(
            times(right, one.lipschitz) + times(left, two.lipschitz),
            times(right, one.distance) + times(left, two.distance),
            torch.full_like(left, math.inf),
        )

    return watch.node(a.value @ b.value, (a, b), rule)


def einsum(watch: Pass, equation: str, operands: list[Any]) -> Any:
    among = [o for o in operands if isinstance(o, Signal)]
    if len(among) < 2:
        return NotImplemented
    given, _, out = equation.replace(" ", "").partition("->")
    names = given.split(",")
    if (
        len(operands) != 2
        or "." in equation
        or not out
        or any(
            letter not in out and not all(letter in n for n in names) for n in names for letter in n
        )
    ):
        raise watch.refuse(f"the network uses einsum {equation!r}, of which no bound is known here")
    a, b = among
    sizes = [watch.rows(s.value).norm(dim=1) for s in (a, b)]

    def rule(one: Extent, two: Extent) -> Extent:
        # Cauchy and Schwarz: every index is summed over in both operands, or stays
        left, right = sizes[0] + one.distance, sizes[1] + two.distance
        return Extent(
            times(right, one.lipschitz) + times(left, two.lipschitz),
            times(right, one.distance) + times(left, two.distance),
            torch.full_like(left, math.inf),
        )

    return watch.node(torch.einsum(equation, a.value, b.value), (a, b), rule)


def attention(
    watch: Pass,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **_: Any,
) -> Any:
    r"""Softmax attention $PV$, $P=\operatorname{softmax}(sQK^\top)$ by rows, on bounded inputs.

    It is not Lipschitz on the whole space. Let row $i$ be $p_i=\operatorname{softmax}(sKq_i)$,
    $\rho_V$ the radius of a ball that holds all rows of $V$, and $\rho_K$ that of a ball that holds
    those of $K$. The derivative is

    $$
    d(p_i^\top V) = s\,V^\top J_i(K\,dq_i + dK\,q_i) + dV^\top p_i ,\qquad
    J_i = \operatorname{diag}p_i - p_ip_i^\top .
    $$

    *The queries.* $V^\top J_iK$ is the covariance of a value and a key drawn with the probabilities
    $p_i$, so of norm at most $\rho_V\rho_K$; rows do not interact.
    *The keys.* With $w=dK\,q_i$, $V^\top J_iw=\sum_jp_{ij}(v_j-\bar v)w_j$ has a squared length of
    at most $\sum_jp_{ij}\|v_j-\bar v\|^2\sum_jp_{ij}w_j^2\le\rho_V^2\sum_jp_{ij}(dk_j\cdot q_i)^2$.
    Summed over rows this is at most $\rho_V^2\|dK\|^2\max_j\sum_ip_{ij}\|q_i\|^2$.
    *The values.* $\|P\|_2^2\le\|P\|_1\|P\|_\infty=\max_j\sum_ip_{ij}$, for rows sum to 1.

    No logit of row $i$ is more than $2s\|q_i\|\rho_K$ above another, so
    $p_{ij}\le\pi_i=1/(1+(m-1)e^{-2s\|q_i\|\rho_K})$ for $m$ keys, or 1 with a mask. Hence

    $$
    L \le s\rho_V\rho_K\,L_Q + s\rho_V\Big(\sum_i\pi_i\|q_i\|^2\Big)^{1/2}L_K
      + \Big(\sum_i\pi_i\Big)^{1/2}L_V ,
    $$

    the largest of all heads for each of the three numbers, since heads do not interact.
    """
    q, k, v = query, key, value
    if dropout_p:
        raise watch.refuse("the network drops units at random")
    given = [t for t in (q, k, v) if isinstance(t, Signal)]
    if len(given) != 3 or any(t.ndim < 3 for t in given) or enable_gqa:
        raise watch.refuse("attention to keys and values that are constants")
    mask = None if attn_mask is None else watch.double(attn_mask)
    made = F.scaled_dot_product_attention(
        q.value, k.value, v.value, mask, is_causal=is_causal, scale=scale
    )
    s = abs(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    keys, masked = k.shape[-2], mask is not None or is_causal
    lengths = q.value.norm(dim=-1)
    spread_k, spread_v = (_spread(t.value) for t in (k, v))

    def rule(queries: Extent, kept: Extent, values: Extent) -> Extent:
        def with_heads(number: Tensor) -> Tensor:
            return number.reshape(-1, *[1] * (spread_k.ndim - 1))

        radius_k = spread_k + with_heads(kept.distance)
        radius_v = spread_v + with_heads(values.distance)
        long = lengths + with_heads(queries.distance)[..., None]
        top = torch.ones_like(long)
        if not masked:
            top = 1 / (1 + (keys - 1) * torch.exp(-2 * s * times(long, radius_k[..., None])))
        # all rows together move by no more than the whole, or each by that much
        whole = lengths.square().sum(-1).sqrt() + with_heads(queries.distance)
        reach = torch.minimum(times(top, long.square()).sum(-1).sqrt(), top.amax(-1).sqrt() * whole)
        factors = [
            s * times(radius_v, radius_k),
            s * times(radius_v, reach),
            top.sum(-1).sqrt(),
        ]
        most = [watch.rows(f).amax(1) for f in factors]
        parts = (queries, kept, values)
        lipschitz = sum(times(f, p.lipschitz) for f, p in zip(most, parts, strict=True))
        distance = sum(times(f, p.distance) for f, p in zip(most, parts, strict=True))
        assert isinstance(lipschitz, Tensor)
        assert isinstance(distance, Tensor)
        return Extent(lipschitz, distance, values.largest)  # means of values are no larger

    return watch.node(made, (q, k, v), rule)


def _spread(rows: Tensor) -> Any:
    """How far rows `[..., m, e]` are from their mean, at most."""
    return (rows - rows.mean(-2, keepdim=True)).norm(dim=-1).amax(-1)
