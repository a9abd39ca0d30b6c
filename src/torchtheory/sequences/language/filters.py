r"""Which tokens may be drawn, and how sharply: temperature, top-k, top-p.

Each function takes logits `[..., V]` and returns logits, $-\infty$ where a token is discarded, so
that a softmax of the result is the renormalized distribution. Source: Foundations of Deep Learning,
section 10.4.4. Cost: one sort of V numbers per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.checks import described, number_between, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, NonFinite


def tempered(logits: Tensor, temperature: float) -> Tensor:
    r"""Logits divided by the temperature: $p_i\propto p_i^{1/\tau}$.

    >>> tempered(torch.tensor([1.0, 2.0]), 0.5).tolist()
    [2.0, 4.0]
    """
    return _checked(logits) / positive_number(temperature, "temperature")


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest logits of each row, the others discarded; of equal ones the first are kept.

    A `k` beyond the vocabulary keeps everything.

    >>> keep_top_k(torch.tensor([1.0, 3.0, 2.0]), 2).tolist()
    [-inf, 3.0, 2.0]
    """
    whole_number(k, "top_k", least=1)
    order = _checked(logits).argsort(dim=-1, descending=True, stable=True)
    return _without(logits, order[..., k:])


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    r"""The smallest set of likeliest tokens whose probability reaches p, the others discarded.

    Reaches means $\ge p$, up to rounding; with $>p$ no set would do for p = 1.

    >>> chances = torch.tensor([0.4, 0.35, 0.25]).log()
    >>> [int(keep_top_p(chances, p).isfinite().sum()) for p in (0.4, 0.5, 0.75, 0.8, 1.0)]
    [1, 2, 2, 3, 3]
    """
    number_between(p, "top_p", 0, 1, closed="right")
    if p == 1:
        return _checked(logits)
    order = _checked(logits).argsort(dim=-1, descending=True, stable=True)
    chances = logits.gather(-1, order).softmax(-1)
    before = chances.cumsum(-1) - chances
    # a sum that misses p by its rounding has reached it
    reached = before >= p - 8 * torch.finfo(logits.dtype).eps
    reached[..., 0] = False
    return logits.masked_fill(torch.zeros_like(reached).scatter(-1, order, reached), -torch.inf)


def filtered(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Temperature, then top-k, then top-p: what is given of them, in this order.

    >>> filtered(torch.tensor([4.0, 3.0, 2.0, 1.0]), top_k=3, top_p=0.7).isfinite().tolist()
    [True, True, False, False]
    """
    if temperature != 1:
        logits = tempered(logits, temperature)
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    return logits if top_p is None else keep_top_p(logits, top_p)


def draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One token of each row `[R, V]`, with the softmax as its probabilities, `[R]`."""
    chances = logits.softmax(-1).to(generator.device)
    return torch.multinomial(chances, 1, generator=generator).squeeze(-1).to(logits.device)


def _without(logits: Tensor, places: Tensor) -> Tensor:
    return logits.scatter(-1, places, -torch.inf)


def _checked(logits: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise InvalidType(f"logits must be a tensor of floating point, not {described(logits)}")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise InvalidInput(f"logits must be [..., vocabulary], not {list(logits.shape)}")
    if logits.isnan().any() or (logits == torch.inf).any():
        raise NonFinite("logits hold NaN or +infinity, so there is no distribution to draw from")
    if not logits.isfinite().any(-1).all():
        raise NonFinite("all logits of a row are -infinity, so no token can come next")
    return logits
