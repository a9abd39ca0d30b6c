r"""Linear operations inside a network, and how a rule hands relevance back through one.

A `LinearMap` is $z=\sum_iA_i(x_i,w_i)+b$, where each $A_i$ is linear in its input and in its
weight. A rule asks for the same map of other numbers, $\sum_mA(a_m(x),g_m(w))$, and for its
transpose, which is a derivative; so a convolution with any stride, padding and groups, a pooling
layer and a sum of branches are all the same to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchtheory.explanation.rules import AlphaBeta, OfWeight, Part, Rule


class Kept:
    """Weights that rules made of a network's weights, kept from chunk to chunk.

    Args:
        own: the network's weights.
    """

    def __init__(self, own: Iterable[Tensor] = ()) -> None:
        # functions too are kept, so that their ids stay their own
        self._own = {id(w): w for w in own}
        self._made: dict[tuple[int, int], tuple[OfWeight, Tensor]] = {}

    def of(self, g: OfWeight, w: Tensor) -> Tensor:
        """$g(w)$."""
        if id(w) not in self._own:
            return g(w)
        key = (id(w), id(g))
        if key not in self._made:
            self._made[key] = (g, g(w))
        return self._made[key][1]


@dataclass(eq=False)
class LinearMap:
    """One linear operation, as it was met.

    Attributes:
        inputs: what it is linear in, one tensor or several that are added up.
        weights: of each input; None for fixed coefficients that are not negative.
        call: the operation without bias, of one input and its weight.
        output: what it returned, with bias.
        own: derivative of the operation as it stands, applied to a tensor like `output`.
        bias: what is added, broadcastable to `output`.
        as_it_stands: whether its coefficients are no weights of which a rule could take parts, as
            those of a normalization.
        kept: weights that rules made before.
    """

    inputs: tuple[Tensor, ...]
    weights: tuple[Tensor | None, ...]
    call: Callable[[Tensor, Any], Tensor]
    output: Tensor
    own: Callable[[Tensor], Sequence[Tensor]]
    bias: Tensor | None = None
    as_it_stands: bool = False
    kept: Kept = field(default_factory=Kept)
    _signs: dict[int, bool] = field(default_factory=dict)

    def has_negative(self, i: int) -> bool:
        """Whether input i has a negative entry."""
        if i not in self._signs:
            x = self.inputs[i]
            self._signs[i] = x.numel() > 0 and bool(x.amin() < 0)
        return self._signs[i]

    def of(self, part: Part) -> tuple[Tensor | None, Callable[[Tensor], list[Tensor]]]:
        """The sum of a part's contributions, and what each input gets per unit of relevance.

        None if there are no contributions at all.
        """
        leaves: list[Tensor] = []
        owners: list[int] = []
        made: Tensor | None = None
        with torch.enable_grad():
            for i, (x, w) in enumerate(zip(self.inputs, self.weights, strict=True)):
                for term in part.terms:
                    a = self._of_input(i, term.of_input)
                    weight, factor = self._of_weight(x, w, term.of_weight)
                    if a is None or factor == 0:
                        continue
                    leaf = a.detach().requires_grad_()
                    y = self.call(leaf, weight)
                    y = y if factor == 1 else y * factor
                    made = y if made is None else made + y
                    leaves.append(leaf)
                    owners.append(i)
        if made is None:
            return None, lambda s: [torch.zeros_like(x) for x in self.inputs]
        total: Tensor = made

        def back(s: Tensor) -> list[Tensor]:
            slopes = torch.autograd.grad(total, leaves, s)
            shares: list[Tensor | None] = [None] * len(self.inputs)
            for i, leaf, slope in zip(owners, leaves, slopes, strict=True):
                share = _times(slope, leaf.detach(), s)
                before = shares[i]
                shares[i] = share if before is None else before + share
            return [
                torch.zeros_like(x) if s is None else s
                for x, s in zip(self.inputs, shares, strict=True)
            ]

        value = total.detach()
        shared = any(value.data_ptr() == leaf.data_ptr() for leaf in leaves)
        return value.clone() if shared or _overlaps(value) else value, back

    def _of_input(self, i: int, what: object) -> Tensor | None:
        x = self.inputs[i]
        if what == "itself":
            return x
        if what == "one":
            return torch.ones_like(x)
        if what == "positive":
            return x.clamp_min(0) if self.has_negative(i) else x
        if what == "negative":
            return x.clamp_max(0) if self.has_negative(i) else None
        assert callable(what)
        made: Tensor = what(x)
        return made

    def _of_weight(self, x: Tensor, w: Tensor | None, g: OfWeight) -> tuple[Tensor | None, float]:
        if w is None:
            return None, float(g(torch.ones((), dtype=x.dtype, device=x.device)))
        if w.ndim == 0:
            made = g(w)
            return made, float(made != 0)
        return self.kept.of(g, w), 1.0


def _overlaps(tensor: Tensor) -> bool:
    """Whether some of its entries are one and the same number."""
    return any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Shares:
    """What became of the relevance of an output; all but `inputs` is entry by entry of the output.

    Attributes:
        inputs: relevance of each input.
        to_biases: pairs of relevance per unit and a bias that is broadcast to it, whose products
            are what the biases get.
        to_epsilon, leaked: None for nothing.
    """

    inputs: list[Tensor]
    to_biases: tuple[tuple[Tensor, Tensor], ...] = ()
    to_epsilon: Tensor | None = None
    leaked: Tensor | None = None


def redistributed(
    rule: Rule, linear: LinearMap, relevance: Tensor, samples: Tensor | None = None
) -> Shares:
    """What a rule makes of the relevance of a linear operation's output, whose samples are given.

    Time is one transposed operation for `Zero` and `Epsilon`, one more forward for the others. The
    numbers of `linear.output` are overwritten: everything that was made of them has been through.
    """
    parts = rule.parts
    if parts is None or linear.as_it_stands:
        s, to_epsilon = per_unit(relevance, linear.output, rule.epsilon, samples)
        inputs = [
            _times(slope, x, s) for slope, x in zip(linear.own(s), linear.inputs, strict=True)
        ]
        return Shares(inputs, _to_bias(s, linear.bias), to_epsilon)
    if isinstance(rule, AlphaBeta):
        return _by_sign(rule, parts, linear, relevance)
    if parts[0].where is None:
        return _of_part(parts[0], linear, relevance)
    return _by_output(parts, linear, relevance)


#: Entries at once, of which some copies stay in the cache.
_AT_ONCE = 2**17


def per_unit(
    relevance: Tensor, z: Tensor, epsilon: float, samples: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Relevance per unit of z, in the place of z; and what the stabilizer takes, None for nothing.

    An output of 0 hands on nothing: all of its relevance is taken. Where samples are given, what is
    taken is added up along dimensions in which they do not change.
    """
    if epsilon > 0:
        over = [] if samples is None else [d for d in range(1, z.ndim) if samples.shape[d] == 1]
        rows = max(1, _AT_ONCE * len(z) // max(1, z.numel())) if over else 0
        taken = []
        for part, own in zip(_rows(relevance, rows), _rows(z, rows), strict=True):
            size = own.abs().add_(epsilon)
            torch.div(part, size, out=size)
            own.sign_().mul_(size)
            taken.append((size.sum(over, keepdim=True) if over else size).mul_(epsilon))
        return z, torch.cat(taken) if len(taken) > 1 else taken[0]
    none = z == 0
    if not bool(none.any()):
        return torch.div(relevance, z, out=z), None
    torch.div(relevance, z.masked_fill_(none, 1), out=z)
    return z.masked_fill_(none, 0), relevance * none


def _rows(t: Tensor, count: int) -> Sequence[Tensor]:
    """So many rows at a time; all of them for 0."""
    return torch.split(t, count) if count else (t,)


def _times(slope: Tensor, x: Tensor, s: Tensor) -> Tensor:
    """The product, in the place of a slope that nobody else has."""
    own = slope.untyped_storage().nbytes() == slope.numel() * slope.element_size()
    return slope.mul_(x) if own and slope.data_ptr() != s.data_ptr() else slope * x


def _to_bias(s: Tensor, bias: Tensor | None) -> tuple[tuple[Tensor, Tensor], ...]:
    return () if bias is None else ((s, bias),)


def _of_part(part: Part, linear: LinearMap, relevance: Tensor) -> Shares:
    total, bias, back = _with_bias(part, linear)
    s, held_back = per_unit(relevance, total, 0.0)
    return Shares(back(s), _to_bias(s, bias), leaked=held_back)


def _by_output(parts: tuple[Part, ...], linear: LinearMap, relevance: Tensor) -> Shares:
    """One part for outputs above 0, and one for the others, which seldom have relevance."""
    off = linear.output <= 0
    total, bias, back = _with_bias(parts[0], linear)
    s = torch.div(relevance, total.masked_fill_(off, math.inf), out=total)  # 0 where it is off
    shares = Shares(back(s), _to_bias(s, bias))
    if not bool(torch.logical_and(off, relevance).any()):
        return shares
    return _added(shares, _of_part(parts[1], linear, relevance.masked_fill(~off, 0)))


def _by_sign(
    rule: AlphaBeta, parts: tuple[Part, ...], linear: LinearMap, relevance: Tensor
) -> Shares:
    """Positive and negative contributions apart; see `AlphaBeta` for those that are missing."""
    plus, bias, back = _with_bias(parts[0], linear)
    no_plus = plus <= 0
    some_missing = bool(no_plus.any())
    if rule.beta == 0 and not (some_missing and bool((relevance * no_plus).any())):
        s = torch.div(relevance, plus.masked_fill_(no_plus, 1) if some_missing else plus, out=plus)
        return Shares(back(s), _to_bias(s, bias))
    minus, bias_below, back_below = _with_bias(parts[1], linear)
    no_minus = minus >= 0
    alpha = torch.full_like(plus, rule.alpha)
    beta = torch.full_like(plus, rule.beta)
    if rule.empty == "rescale":
        alpha.masked_fill_(no_minus, 1)
        beta.masked_fill_(no_plus, -1)
    alpha.masked_fill_(no_plus, 0)
    beta.masked_fill_(no_minus, 0)
    leaked = relevance * (1 - alpha + beta)
    s = alpha.mul_(relevance).div_(plus.masked_fill_(no_plus, 1))
    below = beta.mul_(relevance).div_(minus.masked_fill_(no_minus, 1)).neg_()
    shares = Shares(back(s), _to_bias(s, bias), leaked=leaked)
    return _added(shares, Shares(back_below(below), _to_bias(below, bias_below)))


def _with_bias(
    part: Part, linear: LinearMap
) -> tuple[Tensor, Tensor | None, Callable[[Tensor], list[Tensor]]]:
    """The sum of contributions, which may be overwritten, that of the bias, and the way back."""
    total, back = linear.of(part)
    bias = None if linear.bias is None or part.of_bias is None else part.of_bias(linear.bias)
    if total is None:
        total = torch.zeros_like(linear.output)
    return total if bias is None else total.add_(bias), bias, back


def _added(a: Shares, b: Shares) -> Shares:
    def plus(x: Tensor | None, y: Tensor | None) -> Tensor | None:
        return y if x is None else x if y is None else x + y

    return Shares(
        [x + y for x, y in zip(a.inputs, b.inputs, strict=True)],
        a.to_biases + b.to_biases,
        plus(a.to_epsilon, b.to_epsilon),
        plus(a.leaked, b.leaked),
    )
