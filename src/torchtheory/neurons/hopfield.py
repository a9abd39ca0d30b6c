r"""Hopfield networks: binary neurons that walk downhill in an energy and stop at a memory.

A state is $x \in \{-1,+1\}^n$; couplings $W = W^\top$ and thresholds $b$ give

$$
H(x) = -\tfrac12 x^\top W x + b^\top x, \qquad h(x) = W x - b, \qquad
x_i \leftarrow \operatorname{sgn}(h_i), \quad \operatorname{sgn}(0) = +1.
$$

One neuron at a time, with $w_{ii} = 0$, this is coordinate descent on $H$: a flip of
neuron $i$ changes the energy by $-(x_i' - x_i) h_i = -2|h_i|$. The pair (energy, minus
the number of $+1$) falls at every flip, so the walk ends. All neurons at once it may
alternate between two states for ever, but do nothing longer than that.

Source: notes "Deep Learning", section 1.4 (Hopfield 1982; Goles 1985 for the synchronous case).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, whole_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
)
from torchtheory.core.random import as_generator

Mode = Literal["asynchronous", "synchronous"]
Order = Literal["random", "cyclic"]


@dataclass(frozen=True, slots=True)
class Recall:
    """Where a memory's dynamics ended, and how it got there.

    Attributes:
        state: the last state, `[..., n]`.
        energies: energy at the start and after every sweep (after every single update where it
            was asked for), `[1 + steps, ...]`.
        flips: how many neurons changed sign on the way, `[...]`.
        sweeps: how many passes over all neurons were made.
        fixed_point: no neuron of the last state wants to change, `[...]`.
        two_cycle: the synchronous dynamics alternates between this state and another, `[...]`.
    """

    state: Tensor
    energies: Tensor
    flips: Tensor
    sweeps: int
    fixed_point: Tensor
    two_cycle: Tensor


class Hopfield(nn.Module):
    r"""A Hopfield network with couplings $W$ and thresholds $b$.

    Args:
        weights: $W$, `[n, n]`. It must be symmetric up to rounding
            ($n\,\varepsilon \max|w|$) and have no negative diagonal entry: these are what
            the descent of the energy rests on. A positive diagonal is allowed; it makes neurons
            reluctant to flip, and the rule by field is then no longer the rule by energy.
        bias: $b$, `[n]`; zero unless told.
        strict: with `False` any finite square matrix is taken, and nothing is promised.

    Whole numbers are kept as float64, exact up to $2^{53}$. Hebb's weights times $n$
    are whole numbers (`hebbian` with `normalize=False`), and then no tie is ever decided
    by rounding.

    >>> net = Hopfield(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    >>> net.energy(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    tensor([-1.,  1.])
    >>> net.recall(torch.tensor([1.0, -1.0]), order="cyclic").state
    tensor([-1., -1.])
    >>> bool(net.recall(torch.tensor([1.0, -1.0]), mode="synchronous").two_cycle)
    True
    """

    weights: Tensor
    bias: Tensor

    def __init__(self, weights: Tensor, bias: Tensor | None = None, *, strict: bool = True) -> None:
        super().__init__()
        weights = _real(weights, "weights")
        if weights.ndim != 2 or weights.shape[0] != weights.shape[1]:
            raise ShapeMismatch(f"weights must be [n, n], not {list(weights.shape)}")
        if weights.numel() == 0:
            raise EmptyData(
                "weights are empty: a network needs at least one neuron (weights is "
                f"{list(weights.shape)})"
            )
        n = weights.shape[0]
        bias = torch.zeros_like(weights[0]) if bias is None else _real(bias, "bias").to(weights)
        if bias.shape != (n,):
            raise ShapeMismatch(f"bias must be [{n}] to fit the weights, not {list(bias.shape)}")
        if strict:
            _refuse_ascent(weights)
        self.register_buffer("weights", weights)
        self.register_buffer("bias", bias)

    def energy(self, state: Tensor) -> Tensor:
        r"""$H(x) = -\frac12 x^\top W x + b^\top x$ of every state, `[..., n] -> [...]`.

        Cost: $O(n^2)$ time a state.
        """
        x = self._states(state)
        return (x * (self.bias - 0.5 * (x @ self.weights.T))).sum(-1)

    def field(self, state: Tensor) -> Tensor:
        r"""Effective field $h = W x - b$, `[..., n] -> [..., n]`.

        >>> Hopfield(torch.tensor([[0.0, 2.0], [2.0, 0.0]])).field(torch.tensor([1.0, -1.0]))
        tensor([-2.,  2.])
        """
        return self._states(state) @ self.weights.T - self.bias

    def is_fixed_point(self, state: Tensor) -> Tensor:
        """Whether no neuron wants to change, `[..., n] -> [...]`."""
        return (sign(self.field(state)) == state).all(-1)

    def recall(
        self,
        state: Tensor,
        *,
        mode: Mode = "asynchronous",
        order: Order = "random",
        max_sweeps: int = 100,
        trace: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Recall:
        r"""Run the dynamics from every state of a batch until all have settled.

        Args:
            state: `[..., n]`, entries ±1.
            mode: one neuron at a time, or all at once.
            order: of the neurons in an asynchronous sweep: a fresh permutation for every state
                and every sweep, or 1, 2, ..., n.
            max_sweeps: stop after this many passes even if something still moves;
                `fixed_point` says which states are at rest.
            trace: keep the energy after every single update, not only after every sweep.
            generator: where the permutations come from.

        Cost: a sweep of a batch of B takes $O(Bn^2)$ time, in n steps when asynchronous
        (only flips cost $O(n)$), and $O(Bn)$ memory; `trace` multiplies an
        asynchronous sweep's time by $n$.

        >>> x = torch.tensor([[1, 1, -1, -1], [1, -1, 1, -1]])
        >>> net = Hopfield(hebbian(x))
        >>> net.recall(torch.tensor([1.0, 1.0, -1.0, -1.0]), generator=0).fixed_point
        tensor(True)
        """
        x = self._states(state)
        if mode == "synchronous":
            return settle_together(x, lambda y: sign(self.field(y)), self.energy, max_sweeps)
        if mode != "asynchronous":
            raise InvalidInput(f"mode must be asynchronous or synchronous, not {mode!r}")

        def sweep(y: Tensor, orders: Tensor, note: Callable[[Tensor], None] | None) -> Tensor:
            field, rows = self.field(y), torch.arange(len(y), device=y.device)
            flips = torch.zeros(len(y), dtype=torch.long, device=y.device)
            for i in orders.unbind(1):
                wanted = sign(field[rows, i])
                hit = (wanted != y[rows, i]).nonzero()[:, 0]
                if len(hit):
                    y[hit, i[hit]] = wanted[hit]
                    field[hit] += 2 * wanted[hit, None] * self.weights.T[i[hit]]
                    flips[hit] += 1
                if note is not None:
                    note(y)
            return flips

        return settle_in_turn(
            x, sweep, self.energy, self.is_fixed_point, order, max_sweeps, trace, generator
        )

    def extra_repr(self) -> str:
        return f"n={len(self.bias)}"

    def _states(self, state: Tensor) -> Tensor:
        return check_signs(state, "state", len(self.bias)).to(self.weights)


def hebbian(patterns: Tensor, *, zero_diagonal: bool = True, normalize: bool = True) -> Tensor:
    r"""Hebb's couplings $W = \frac1n\sum_t x_t x_t^\top - \frac sn I$.

    Args:
        patterns: `[s, n]`, entries ±1.
        zero_diagonal: subtract $\frac sn I$, as the model's $w_{ii} = 0$ demands. The
            sum of outer products alone, which the source prints, has $s/n$ there.
        normalize: divide by $n$. Without it the weights are whole numbers, the dynamics
            from zero thresholds is the same, and ties are exact.

    Returns:
        `[n, n]` in the patterns' dtype (whole numbers become float64). Cost $O(sn^2)$.

    Source: notes "Deep Learning", section 1.4.

    >>> hebbian(torch.tensor([[1.0, -1.0]]))
    tensor([[ 0.0000, -0.5000],
            [-0.5000,  0.0000]])
    >>> hebbian(torch.tensor([[1.0, -1.0]]), zero_diagonal=False, normalize=False)
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    x = check_patterns(patterns)
    weights = x.T @ x
    if zero_diagonal:
        weights.fill_diagonal_(0.0)
    return weights / x.shape[1] if normalize else weights


@dataclass(frozen=True, slots=True)
class CrossTalk:
    r"""What the other patterns do to each bit of each pattern, in whole numbers.

    Attributes:
        n: number of neurons.
        scaled: $n\,C_{t,i}$, int64 `[s, n]`.
        scaled_field: $n\,h_i(x_t)$, int64 `[s, n]`.
        unstable: bits the next update flips, bool `[s, n]`.
    """

    n: int
    scaled: Tensor
    scaled_field: Tensor
    unstable: Tensor

    @property
    def values(self) -> Tensor:
        """$C$, float64 `[s, n]`."""
        return self.scaled.double() / self.n

    @property
    def stable_patterns(self) -> Tensor:
        """Patterns no update changes, bool `[s]`."""
        return ~self.unstable.any(-1)


def crosstalk(patterns: Tensor, *, zero_diagonal: bool = True) -> CrossTalk:
    r"""The cross-talk of Hebb's rule, exactly.

    With the diagonal kept, $h_i(x_t) = x_{t,i} + C_{t,i}$,

    $$
    n\,C_{t,i} = \sum_{r \ne t} x_{r,i} \sum_j x_{r,j} x_{t,j};
    $$

    with zero diagonal the inner sum leaves out $j = i$, and
    $h_i(x_t) = \frac{n-1}{n} x_{t,i} + C_{t,i}$. Bit $i$ is stable iff
    $-x_{t,i} C_{t,i} < 1$ (or $< \frac{n-1}n$), with equality allowed where
    $x_{t,i} = +1$, to which ties go. So $|C_{t,i}| < 1$ is sufficient, not necessary.

    Args:
        patterns: `[s, n]`, entries ±1.
        zero_diagonal: which weights the patterns are stored with; see `hebbian`.

    Cost: $O(s^2 n)$ time, $O(s(s+n))$ memory; products in float64, exact while
    $sn < 2^{53}$.

    Source: notes "Deep Learning", section 1.4.

    >>> report = crosstalk(torch.tensor([[1, 1, 1], [1, 1, -1]]), zero_diagonal=False)
    >>> report.scaled
    tensor([[ 1,  1, -1],
            [ 1,  1,  1]])
    >>> report.stable_patterns
    tensor([True, True])
    """
    x = check_patterns(patterns).double()
    s, n = x.shape
    gram = x @ x.T
    scaled = gram.fill_diagonal_(0.0) @ x
    if zero_diagonal:
        scaled -= (s - 1) * x
    field = scaled + (n - 1 if zero_diagonal else n) * x
    return CrossTalk(n, scaled.long(), field.long(), sign(field) != x)


def overlap(state: Tensor, pattern: Tensor) -> Tensor:
    r"""Overlap $\frac1n x^\top y$ of states and patterns, `[..., n], [..., n] -> [...]`.

    >>> overlap(torch.tensor([1.0, 1.0, 1.0, -1.0]), torch.ones(4))
    tensor(0.5000)
    """
    if state.shape[-1:] != pattern.shape[-1:]:
        raise ShapeMismatch(
            f"state {list(state.shape)} and pattern {list(pattern.shape)} must have the same "
            "number of neurons, their last dimension"
        )
    return (state * pattern).sum(-1) / state.shape[-1]


def flip_bits(
    state: Tensor, count: int, *, generator: torch.Generator | int | None = None
) -> Tensor:
    """States with exactly `count` random signs changed in each, `[..., n] -> [..., n]`.

    >>> (flip_bits(torch.ones(3, 8), 2, generator=0) < 0).sum(-1)
    tensor([2, 2, 2])
    """
    x = check_signs(state, "state")
    if not 0 <= count <= x.shape[-1]:
        raise InvalidInput(f"count must lie in 0..{x.shape[-1]}, not {count}")
    generator = as_generator(generator, x.device)
    chosen = torch.rand(x.shape, generator=generator, device=x.device).argsort(-1)[..., :count]
    return x.scatter(-1, chosen, -x.gather(-1, chosen))


def all_states(n: int) -> Tensor:
    """Every state of n neurons, float64 `[2^n, n]`; refused beyond 20, where it is 160 MB.

    >>> all_states(2)
    tensor([[-1., -1.],
            [ 1., -1.],
            [-1.,  1.],
            [ 1.,  1.]], dtype=torch.float64)
    """
    if not 1 <= n <= 20:
        raise InvalidInput(f"n must lie in 1..20 to list all states, not {n}")
    bits = torch.arange(2**n)[:, None] >> torch.arange(n) & 1
    return bits.double() * 2 - 1


def sign(z: Tensor) -> Tensor:
    """The sign with `sign(0) = +1`, in the dtype of `z`."""
    return (z >= 0).to(z.dtype).mul_(2).sub_(1)


def settle_in_turn(
    state: Tensor,
    sweep: Callable[[Tensor, Tensor, Callable[[Tensor], None] | None], Tensor],
    energy: Callable[[Tensor], Tensor],
    is_fixed_point: Callable[[Tensor], Tensor],
    order: Order,
    max_sweeps: int,
    trace: bool,
    generator: torch.Generator | int | None,
) -> Recall:
    """Asynchronous dynamics of any binary memory: sweep a batch until nothing moves.

    `sweep(y, orders, note)` updates `y [B, n]` in place, neuron by neuron in the order
    `orders [B, n]`, calls `note(y)` after every update, and returns the flips `[B]`.
    """
    if order not in ("random", "cyclic"):
        raise InvalidInput(f"order must be random or cyclic, not {order!r}")
    whole_number(max_sweeps, "max_sweeps", least=1)
    generator = as_generator(generator, state.device)
    batch, n = state.shape[:-1], state.shape[-1]
    x = state.reshape(-1, n).clone()
    energies, flips = [energy(x)], torch.zeros(len(x), dtype=torch.long, device=x.device)
    note = (lambda y: energies.append(energy(y))) if trace else None
    fixed, sweeps = is_fixed_point(x), 0
    while sweeps < max_sweeps and not fixed.all():
        if order == "random":
            # the uniform numbers need enough digits that equal ones do not bias the permutation
            keys = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float64)
            orders = keys.argsort(-1)
        else:
            orders = torch.arange(n, device=x.device).expand(x.shape)
        flips += sweep(x, orders, note)
        sweeps += 1
        fixed = is_fixed_point(x)
        if not trace:
            energies.append(energy(x))
    return Recall(
        x.reshape(state.shape),
        torch.stack(energies).reshape(-1, *batch),
        flips.reshape(batch),
        sweeps,
        fixed.reshape(batch),
        torch.zeros(batch, dtype=torch.bool, device=x.device),
    )


def settle_together(
    state: Tensor,
    step: Callable[[Tensor], Tensor],
    energy: Callable[[Tensor], Tensor],
    max_sweeps: int,
) -> Recall:
    """Synchronous dynamics `x <- step(x)` until every state rests or alternates."""
    whole_number(max_sweeps, "max_sweeps", least=1)
    x, before = state, torch.zeros_like(state)
    energies = [energy(x)]
    flips = torch.zeros(state.shape[:-1], dtype=torch.long, device=x.device)
    sweeps = 0
    while True:
        after = step(x)
        fixed = (after == x).all(-1)
        alternating = (after == before).all(-1) & ~fixed
        settled = fixed | alternating
        if settled.all() or sweeps == max_sweeps:
            return Recall(x, torch.stack(energies), flips, sweeps, fixed, alternating)
        flips += (after != x).sum(-1).masked_fill(settled, 0)
        rest = settled[..., None]
        before, x = torch.where(rest, before, x), torch.where(rest, x, after)
        energies.append(energy(x))
        sweeps += 1


def check_patterns(patterns: Tensor) -> Tensor:
    """Patterns `[s, n]` of ±1 as floating-point numbers, or an error that says what is wrong."""
    x = check_signs(patterns, "patterns")
    if x.ndim != 2:
        raise ShapeMismatch(f"patterns must be [s, n], one per row, not {list(x.shape)}")
    return x


def check_signs(values: Tensor, name: str, n: int | None = None) -> Tensor:
    """A floating-point tensor `[..., n]` of ±1, or an error that says what is wrong."""
    x = _real(values, name)
    if x.ndim == 0 or (n is not None and x.shape[-1] != n):
        wanted = "[..., n]" if n is None else f"[..., {n}]"
        raise ShapeMismatch(f"{name} must be {wanted}, not {list(x.shape)}")
    if x.numel() == 0:
        raise EmptyData(f"{name} is empty: its shape is {list(x.shape)}")
    if not (x.abs() == 1).all():
        bad = x[x.abs() != 1][0].item()
        raise InvalidInput(
            f"{name} must hold only -1 and +1, and holds {bad:g}; "
            "binarize first, as in torch.where(image > 0.5, 1.0, -1.0)"
        )
    return x


def _real(values: Tensor, name: str) -> Tensor:
    if not isinstance(values, Tensor):
        raise InvalidType(f"{name} must be a torch.Tensor, not {type(values).__name__}")
    if values.is_complex():
        raise InvalidType(f"{name} must be real, not {values.dtype}")
    x = values.detach()
    if not x.is_floating_point():
        return x.double()
    all_finite(x, name)
    return x


def _refuse_ascent(weights: Tensor) -> None:
    """Refuse weights under which an update can raise the energy."""
    scale = float(weights.abs().max())
    gap = float((weights - weights.T).abs().max())
    if gap > len(weights) * torch.finfo(weights.dtype).eps * scale:
        raise InvalidInput(
            f"weights are not symmetric (w_ij and w_ji differ by up to {gap:g}), so updates may "
            "raise the energy and never end; use (W + W.T) / 2, or strict=False to see it happen"
        )
    low = float(weights.diagonal().min())
    if low < 0:
        raise InvalidInput(
            f"the diagonal of weights goes down to {low:g}, and a flip of such a neuron may raise "
            "the energy; set it to zero, or use strict=False to see it happen"
        )
