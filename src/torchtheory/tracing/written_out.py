r"""Operations in terms of simpler ones, for analyses that have no rule for them.

Three ways, in this order: recurrent layers step by step; the body of a function that torch itself
writes in Python (attention, normalizations); a formula of this module. They compute what torch
computes, up to rounding.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from torchtheory.tracing.arguments import bind
from torchtheory.tracing.bodies import body, has_body
from torchtheory.tracing.names import plain_name
from torchtheory.tracing.recurrent_steps import IN_STEPS

_STEPS = {plain_name(func)[0]: steps for func, steps in IN_STEPS.items()}


def has_steps(name: str) -> bool:
    """Whether an operation is a recurrent layer or a cell of one, by its plain name.

    >>> has_steps("lstm"), has_steps("linear")
    (True, False)
    """
    return name in _STEPS


def written_out(function: Any, name: str) -> Callable[..., Any] | None:
    """The same function out of simpler ones, or None where there are none.

    Args:
        function: any spelling of a function of torch.
        name: its plain name.

    >>> softmax = written_out(torch.softmax, "softmax")
    >>> softmax(torch.zeros(2), 0)
    tensor([0.5000, 0.5000])
    """
    if name in _STEPS:
        return partial(_in_steps, function, name)
    if has_body(function):
        return body(function)
    return partial(_by_formula, function, name) if name in FORMULAS else None


def _in_steps(function: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    # an archive gives everything by name
    return _STEPS[name](*(bind(function, args, kwargs).values() if kwargs else args))


def _by_formula(function: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    return FORMULAS[name](**bind(function, args, kwargs))


def _softmax(input: Tensor, dim: int, dtype: Any = None, **_: Any) -> Tensor:
    x = input if dtype is None else input.to(dtype)
    e = torch.exp(x - x.amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def _log_softmax(input: Tensor, dim: int, dtype: Any = None, **_: Any) -> Tensor:
    x = input if dtype is None else input.to(dtype)
    x = x - x.amax(dim, keepdim=True)
    return x - torch.log(torch.exp(x).sum(dim, keepdim=True))


def _logsumexp(input: Tensor, dim: Any, keepdim: bool = False, **_: Any) -> Tensor:
    top = input.amax(dim, keepdim=True)
    found = torch.log(torch.exp(input - top).sum(dim, keepdim=True)) + top
    return found if keepdim else found.squeeze(dim)


def _standardized(x: Tensor, dims: list[int], eps: float) -> Tensor:
    centered = x - x.mean(dims, keepdim=True)
    return centered * torch.rsqrt(torch.square(centered).mean(dims, keepdim=True) + eps)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    **_: Any,
) -> Tensor:
    dims = list(range(-len(normalized_shape), 0))
    return _scaled(_standardized(input, dims, eps), weight, bias)


def _rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    **_: Any,
) -> Tensor:
    dims = list(range(-len(normalized_shape), 0))
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return _scaled(
        input * torch.rsqrt(torch.square(input).mean(dims, keepdim=True) + eps), weight, None
    )


def _along_channels(x: Tensor, vector: Any) -> Any:
    return None if vector is None else vector.reshape(-1, *(1,) * (x.ndim - 2))


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    **_: Any,
) -> Tensor:
    grouped = torch.unflatten(input, 1, (num_groups, -1))
    made = _standardized(grouped, list(range(2, grouped.ndim)), eps).flatten(1, 2)
    return _scaled(made, _along_channels(input, weight), _along_channels(input, bias))


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    eps: float = 1e-5,
    **_: Any,
) -> Tensor:
    if training or running_mean is None or running_var is None:
        made = _standardized(input, [0, *range(2, input.ndim)], eps)
    else:
        mean, scale = (
            _along_channels(input, v) for v in (running_mean, torch.rsqrt(running_var + eps))
        )
        made = (input - mean) * scale
    return _scaled(made, _along_channels(input, weight), _along_channels(input, bias))


def _instance_norm(
    input: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    use_input_stats: bool = True,
    eps: float = 1e-5,
    **_: Any,
) -> Tensor:
    if not use_input_stats:
        return _batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    made = _standardized(input, list(range(2, input.ndim)), eps)
    return _scaled(made, _along_channels(input, weight), _along_channels(input, bias))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **_: Any,
) -> Tensor:
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(times, -3) for t in (key, value))
    scores = (
        query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    )
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if boolean else scores + attn_mask
    return (
        torch.dropout(torch.softmax(scores, -1), dropout_p, True) @ value
        if dropout_p
        else torch.softmax(scores, -1) @ value
    )


def _variance(
    input: Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False, **given: Any
) -> Tensor:
    dims = list(range(input.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    left_out = given.get("unbiased", 1 if correction is None else correction)
    count = math.prod(input.shape[d] for d in dims)
    centered = input - input.mean(dims, keepdim=True)
    return torch.square(centered).sum(dims, keepdim=keepdim) / max(count - int(left_out), 0)


def _norm(
    input: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, **given: Any
) -> Tensor:
    p = given.get("ord", p)
    dims = list(range(input.ndim)) if dim is None else dim
    if p in (None, 2, 2.0, "fro"):
        return torch.sqrt(torch.square(input).sum(dims, keepdim=keepdim))
    if p == 1:
        return torch.abs(input).sum(dims, keepdim=keepdim)
    if p == math.inf:
        return torch.abs(input).amax(dims, keepdim=keepdim)
    return torch.pow(torch.pow(torch.abs(input), p).sum(dims, keepdim=keepdim), 1 / p)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0, **_: Any) -> Tensor:
    # -1 is torch's word for the norm of all entries, not for the last dimension
    dims = [d for d in range(v.ndim) if d != dim]
    return v * (g / _norm(v, 2, dims, keepdim=True))


def _added(input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    product = product if alpha == 1 else product * alpha
    if beta == 0:  # whatever the input is, also if it is not finite
        return product
    return (input if beta == 1 else input * beta) + product


def _glu(input: Tensor, dim: int = -1, **_: Any) -> Tensor:
    left, right = input.chunk(2, dim)
    return left * torch.sigmoid(right)


def _bilinear(
    input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None, **_: Any
) -> Tensor:
    left = torch.matmul(input1.unsqueeze(-2).unsqueeze(-2), weight).squeeze(-2)
    return _scaled((left * input2.unsqueeze(-2)).sum(-1), None, bias)


def _cosine(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8, **_: Any) -> Tensor:
    a, b = (t / torch.clamp(_norm(t, 2, dim, keepdim=True), min=eps) for t in (x1, x2))
    return (a * b).sum(dim)


def _tensordot(**given: Any) -> Tensor:
    a, b = (t for t in given.values() if isinstance(t, Tensor) and t is not given.get("dims"))
    dims = given["dims"] if "dims" in given else (given["dims_self"], given["dims_other"])
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
    return torch.einsum(f"{''.join(of_a)},{''.join(of_b)}->{''.join(kept)}", a, b)


def _chained(**given: Any) -> Tensor:
    """`chain_matmul` of matrices, or `multi_dot` of a list of them."""
    first = next(iter(given.values()))
    several = isinstance(first, list | tuple)
    matrices = first if several else [t for t in given.values() if isinstance(t, Tensor)]
    return reduce(torch.matmul, matrices)


def _side_by_side(
    at_least: Callable[[Tensor], Tensor], dim: int, tensors: Sequence[Tensor], **_: Any
) -> Tensor:
    """`hstack`, `vstack` and `dstack`; vectors have one dimension to be joined along."""
    parts = [at_least(t) for t in tensors]
    return torch.cat(parts, min(dim, parts[0].ndim - 1))


def _columns(tensors: Sequence[Tensor], **_: Any) -> Tensor:
    return torch.cat([t.reshape(-1, 1) if t.ndim < 2 else t for t in tensors], 1)


#: Plain name -> the same in simpler operations, with arguments by name.
FORMULAS: dict[str, Callable[..., Any]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softmin": lambda input, dim, **_: _softmax(-input, dim),
    "logsumexp": _logsumexp,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "scaled_dot_product_attention": _attention,
    "var": _variance,
    "std": lambda **given: torch.sqrt(_variance(**given)),
    "norm": _norm,
    "vector_norm": _norm,
    "_weight_norm": _weight_norm,
    "glu": _glu,
    "bilinear": _bilinear,
    "addmm": lambda input, mat1, mat2, beta=1, alpha=1, **_: _added(
        input, mat1 @ mat2, beta, alpha
    ),
    "baddbmm": lambda input, batch1, batch2, beta=1, alpha=1, **_: _added(
        input, batch1 @ batch2, beta, alpha
    ),
    "addmv": lambda input, mat, vec, beta=1, alpha=1, **_: _added(input, mat @ vec, beta, alpha),
    "addcmul": lambda input, tensor1, tensor2, value=1, **_: input + tensor1 * tensor2 * value,
    "addcdiv": lambda input, tensor1, tensor2, value=1, **_: input + tensor1 / tensor2 * value,
    "lerp": lambda input, end, weight, **_: input * (1 - weight) + end * weight,
    "rsub": lambda input, other, **_: -input + other,
    "rdiv": lambda input, other, **_: torch.reciprocal(input) * other,
    "silu": lambda input, **_: input * torch.sigmoid(input),
    "square": lambda input, **_: torch.pow(input, 2),
    "outer": lambda input, vec2, **_: input.unsqueeze(-1) * vec2,
    "inner": lambda input, other, **_: torch.matmul(
        input, other.transpose(-2, -1) if other.ndim > 1 else other
    ),
    "vdot": lambda input, other, **_: (
        (input.conj() if input.is_complex() else input) * other
    ).sum(),
    "vecdot": lambda x, y, dim=-1, **_: (x * y).sum(dim),
    "linalg_vecdot": lambda x, y, dim=-1, **_: (x * y).sum(dim),
    "cosine_similarity": _cosine,
    "tensordot": _tensordot,
    "chain_matmul": _chained,
    "multi_dot": _chained,
    "hstack": partial(_side_by_side, torch.atleast_1d, 1),
    "vstack": partial(_side_by_side, torch.atleast_2d, 0),
    "dstack": partial(_side_by_side, torch.atleast_3d, 2),
    "column_stack": _columns,
    "hardswish": lambda input, **_: input * torch.clamp(input + 3, 0, 6) / 6,
}
