r"""Linear operations inside a network, and how a rule hands relevance back through one.

A `LinearMap` is $z=\sum_iA_i(x_i,w_i)+b$, where each $A_i$ is linear in its input and in its
weight. A rule asks for the same map of other numbers, $\sum_mA(a_m(x),g_m(w))$, and for its
transpose, which is a derivative; so a convolution with any stride, padding and groups, a pooling
layer and a sum of branches are all the same to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.explanation.rules import AlphaBeta, OfWeight, Part, Rule

#: Weights that rules made of a network's weights, kept from chunk to chunk.
Kept = dict[tuple[int, int], tuple[Tensor, OfWeight, Tensor]]


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
    kept: Kept = field(default_factory=dict)
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
            slopes = torch.autograd.grad(total, leaves, s.expand_as(total))
            shares: list[Tensor | None] = [None] * len(self.inputs)
            for i, leaf, slope in zip(owners, leaves, slopes, strict=True):
                share = slope * leaf.detach()
                before = shares[i]
                shares[i] = share if before is None else before + share
            return [
                torch.zeros_like(x) if s is None else s
                for x, s in zip(self.inputs, shares, strict=True)
            ]

        return total.detach(), back

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
        if not isinstance(w, nn.Parameter):
            return g(w), 1.0
        key = (id(w), id(g))
        if key not in self.kept:  # both are kept, so that their ids stay their own
            self.kept[key] = (w, g, g(w.detach()))
        return self.kept[key][2], 1.0


@dataclass(frozen=True, slots=True)
class Shares:
    """What became of the relevance of an output, entry by entry of the output but for `inputs`.

    Attributes:
        inputs: relevance of each input.
        to_biases, to_epsilon, leaked: None for nothing.
    """

    inputs: list[Tensor]
    to_biases: Tensor | None = None
    to_epsilon: Tensor | None = None
    leaked: Tensor | None = None


def redistributed(rule: Rule, linear: LinearMap, relevance: Tensor) -> Shares:
    """What a rule makes of the relevance of a linear operation's output.

    Time is one transposed operation for `Zero` and `Epsilon`, one more forward for the others.
    """
    parts = rule.parts
    if parts is None or linear.as_it_stands:
        return _in_proportion(rule.epsilon, linear, relevance)
    if isinstance(rule, AlphaBeta):
        return _by_sign(rule, parts, linear, relevance)
    shares = Shares([torch.zeros_like(x) for x in linear.inputs])
    for part in parts:
        own = relevance
        if part.where is not None:
            chosen = linear.output > 0 if part.where == "positive" else linear.output <= 0
            own = relevance * chosen
            if part.where == "negative" and not bool(own.any()):
                continue
        shares = _added(shares, _of_part(part, linear, own))
    return shares


def _in_proportion(epsilon: float, linear: LinearMap, relevance: Tensor) -> Shares:
    s, to_epsilon = per_unit(relevance, linear.output, epsilon)
    slopes = linear.own(s)
    inputs = [slope * x for slope, x in zip(slopes, linear.inputs, strict=True)]
    return Shares(inputs, None if linear.bias is None else s * linear.bias, to_epsilon)


def per_unit(relevance: Tensor, z: Tensor, epsilon: float) -> tuple[Tensor, Tensor | None]:
    """Relevance per unit of z, with the stabilizer, and what it takes or what z = 0 holds back."""
    if epsilon > 0:
        small = torch.copysign(z.new_tensor(epsilon), z)
        s = relevance / (z + small)
        return s, small.mul_(s)
    none = z == 0
    s = relevance / z
    if not bool(none.any()):
        return s, None
    return s.masked_fill_(none, 0), relevance * none


def _of_part(part: Part, linear: LinearMap, relevance: Tensor) -> Shares:
    total, back = linear.of(part)
    bias = None
    if part.of_bias is not None and linear.bias is not None:
        bias = part.of_bias(linear.bias)
        total = bias.expand_as(relevance) if total is None else total + bias
    if total is None:
        return Shares(back(relevance), leaked=relevance)
    s, held_back = per_unit(relevance, total, 0.0)
    return Shares(back(s), None if bias is None else s * bias, leaked=held_back)


def _by_sign(
    rule: AlphaBeta, parts: tuple[Part, ...], linear: LinearMap, relevance: Tensor
) -> Shares:
    """Positive and negative contributions apart; see `AlphaBeta` for those that are missing."""
    plus, back_plus = _with_bias(parts[0], linear)
    needs_minus = rule.beta > 0 or bool((relevance * (plus <= 0)).any())
    if not needs_minus:
        s = (
            torch.where(plus > 0, relevance / plus, 0)
            if bool((plus <= 0).any())
            else relevance / plus
        )
        return Shares(back_plus(s), _of_bias(parts[0], linear, s))
    minus, back_minus = _with_bias(parts[1], linear)
    has_plus, has_minus = plus > 0, minus < 0
    alpha, beta = torch.as_tensor(rule.alpha).to(plus), torch.as_tensor(rule.beta).to(plus)
    if rule.empty == "rescale":
        to_plus = torch.where(has_minus, alpha, 1.0)
        to_minus = torch.where(has_plus, -beta, 1.0)
        leaked = relevance * ~(has_plus | has_minus)
    else:
        to_plus, to_minus = alpha.expand_as(plus), -beta.expand_as(minus)
        leaked = relevance * (1 - alpha * has_plus + beta * has_minus)
    s_plus = torch.where(has_plus, to_plus * relevance / plus, 0)
    s_minus = torch.where(has_minus, to_minus * relevance / minus, 0)
    shares = Shares(back_plus(s_plus), _of_bias(parts[0], linear, s_plus), leaked=leaked)
    return _added(shares, Shares(back_minus(s_minus), _of_bias(parts[1], linear, s_minus)))


def _with_bias(part: Part, linear: LinearMap) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
    total, back = linear.of(part)
    total = torch.zeros_like(linear.output) if total is None else total
    if linear.bias is not None and part.of_bias is not None:
        total = total + part.of_bias(linear.bias)
    return total, back


def _of_bias(part: Part, linear: LinearMap, s: Tensor) -> Tensor | None:
    if linear.bias is None or part.of_bias is None:
        return None
    return s * part.of_bias(linear.bias)


def _added(a: Shares, b: Shares) -> Shares:
    def plus(x: Tensor | None, y: Tensor | None) -> Tensor | None:
        return y if x is None else x if y is None else x + y

    return Shares(
        [x + y for x, y in zip(a.inputs, b.inputs, strict=True)],
        plus(a.to_biases, b.to_biases),
        plus(a.to_epsilon, b.to_epsilon),
        plus(a.leaked, b.leaked),
    )
