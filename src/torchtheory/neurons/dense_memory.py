r"""Memories beyond Hebb's: energies of higher order, and the one whose update is attention.

*Binary.* A dense associative memory scores a state by how sharply it agrees with a pattern,

$$
E(x) = -\sum_{t=1}^s F(x_t^\top x), \qquad F(z) = z^p,\ \max(z, 0)^p \text{ or } e^z,
$$

and a neuron takes the sign with the lower energy. $F(z) = z^2$ is Hebb's rule with zero
diagonal; larger $p$ holds of the order $n^{p-1}$ patterns, the exponential
exponentially many.

*Continuous.* For $\xi \in \mathbb R^d$ and patterns as rows of $X$,

$$
E(\xi) = -\beta^{-1}\log\sum_t e^{\beta x_t^\top\xi} + \tfrac12\|\xi\|^2 + \text{const},
\qquad \xi \leftarrow X^\top \operatorname{softmax}(\beta X\xi),
$$

where the update is one step of attention with query $\xi$ and the patterns as keys and
values, and never raises $E$.

Sources: named in the notes "Deep Learning", section 1.4: Krotov and Hopfield (2016), Demircigil et
al. (2017), Ramsauer et al. (2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, described, positive_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
)
from torchtheory.core.random import as_generator
from torchtheory.neurons.hopfield import (
    Mode,
    Order,
    Recall,
    check_patterns,
    check_signs,
    settle_in_turn,
    settle_together,
    sign,
)


@dataclass(frozen=True, slots=True)
class Power:
    r"""$F(z) = z^p$, or $\max(z, 0)^p$ when rectified.

    Even powers that are not rectified hold a pattern and its negative alike.

    >>> Power(3)(torch.tensor([-2.0, 2.0])), Power(3, rectified=True)(torch.tensor([-2.0, 2.0]))
    (tensor([-8.,  8.]), tensor([0., 8.]))
    """

    degree: int
    rectified: bool = False

    def __post_init__(self) -> None:
        if self.degree < 2:
            raise InvalidInput(f"degree must be at least 2 to store anything, not {self.degree}")

    def __call__(self, z: Tensor) -> Tensor:
        base = z.clamp(min=0) if self.rectified else z
        value = base
        for _ in range(self.degree - 1):
            # products of whole numbers are exact, which torch.pow does not promise
            value = value * base
        return value

    def relative(self, z: Tensor, largest: Tensor) -> Tensor:
        r"""$F(z)$ up to a factor common to all patterns, so that nothing overflows."""
        # dividing by a power of two keeps whole numbers exact, and with them the ties
        return self(torch.ldexp(z, -torch.frexp(largest).exponent))

    def energy(self, z: Tensor) -> Tensor:
        r"""$-\sum_t F(z_t)$."""
        return -self(z).sum(-1)


@dataclass(frozen=True, slots=True)
class Exponential:
    r"""$F(z) = e^z$; the energy is kept as $-\log\sum_t e^{z_t}$.

    The logarithm is increasing, so it orders states as $-\sum_t e^{z_t}$ does, and it does
    not overflow.

    >>> Exponential().energy(torch.tensor([1000.0, 1000.0])) + 1000
    tensor(-0.6932)
    """

    def __call__(self, z: Tensor) -> Tensor:
        return z.exp()

    def relative(self, z: Tensor, largest: Tensor) -> Tensor:
        """$F(z)$ up to a factor common to all patterns, so that nothing overflows."""
        return (z - largest).exp()

    def energy(self, z: Tensor) -> Tensor:
        r"""$-\log\sum_t F(z_t)$."""
        return -torch.logsumexp(z, -1)


Interaction = Power | Exponential


class DenseMemory(nn.Module):
    r"""A dense associative memory of binary patterns.

    Args:
        patterns: `[s, n]`, entries ±1. They are kept in double precision.
        interaction: $F$.

    >>> x = torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1.0]])
    >>> memory = DenseMemory(x, Power(3))
    >>> memory.energy(x)
    tensor([-64., -64., -64., -64.], dtype=torch.float64)
    >>> memory.is_fixed_point(x)
    tensor([True, True, True, True])
    """

    patterns: Tensor

    def __init__(self, patterns: Tensor, interaction: Interaction) -> None:
        super().__init__()
        if not isinstance(interaction, Power | Exponential):
            raise InvalidType(f"interaction must be Power(p) or Exponential(), not {interaction!r}")
        self.register_buffer("patterns", check_patterns(patterns).double())
        self.interaction = interaction

    def energy(self, state: Tensor) -> Tensor:
        r"""$E(x) = -\sum_t F(x_t^\top x)$ (its logarithm, for the exponential).

        `[..., n] -> [...]`; $O(sn)$ time a state.
        """
        return self.interaction.energy(self._states(state) @ self.patterns.T)

    def gaps(self, state: Tensor) -> Tensor:
        r"""By how much flipping each neuron would raise the energy, up to a positive factor.

        With $z_t = x_t^\top x$ a flip of neuron $i$ turns $z_t$ into
        $z_t - 2 x_{t,i}x_i$, one of two values, so that

        $$
        E(x^{(i)}) - E(x) = x_i \sum_t x_{t,i} A_t + \sum_t B_t, \quad
        A_t = \tfrac12\big(F(z_t+2) - F(z_t-2)\big), \quad
        B_t = F(z_t) - \tfrac12\big(F(z_t+2) + F(z_t-2)\big):
        $$

        all $n$ of them for two matrix products, $O(sn)$ a state. The factor is one
        for each state and common to its neurons.

        >>> x = torch.tensor([[1.0, 1.0, -1.0]])
        >>> DenseMemory(x, Power(2)).gaps(x) > 0
        tensor([[True, True, True]])
        """
        x = self._states(state)
        return _gaps(x, self.patterns, self.interaction)

    def step(self, state: Tensor) -> Tensor:
        """All neurons updated at once, `[..., n] -> [..., n]`; a tie goes to +1."""
        return _step(self._states(state), self.patterns, self.interaction)

    def is_fixed_point(self, state: Tensor) -> Tensor:
        """Whether no neuron wants to change, `[..., n] -> [...]`."""
        return (self.step(state) == state).all(-1)

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
        """Run the dynamics; arguments as for `torchtheory.neurons.hopfield.Hopfield.recall`.

        Cost: $O(sn)$ time a state and sweep, in n steps when asynchronous; `trace`
        multiplies the latter's by $n$. Memory $O(s + n)$ a state.

        >>> x = torch.tensor([[1, 1, 1, 1, -1], [1, -1, 1, -1, 1]])
        >>> memory = DenseMemory(x, Exponential())
        >>> memory.recall(torch.tensor([[1, 1, -1, 1, -1]])).state
        tensor([[ 1.,  1.,  1.,  1., -1.]], dtype=torch.float64)
        """
        x = self._states(state)
        if mode == "synchronous":
            return settle_together(x, self.step, self.energy, max_sweeps)
        if mode != "asynchronous":
            raise InvalidInput(f"mode must be asynchronous or synchronous, not {mode!r}")

        def sweep(y: Tensor, orders: Tensor, note: Callable[[Tensor], None] | None) -> Tensor:
            z, rows = y @ self.patterns.T, torch.arange(len(y), device=y.device)
            flips = torch.zeros(len(y), dtype=torch.long, device=y.device)
            for i in orders.unbind(1):
                bits = self.patterns.T[i]
                others = z - bits * y[rows, i, None]
                largest = others.abs().amax(-1, keepdim=True) + 1
                up = self.interaction.relative(others + bits, largest)
                down = self.interaction.relative(others - bits, largest)
                wanted = sign((up - down).sum(-1))
                flips += wanted != y[rows, i]
                y[rows, i] = wanted
                z = others + bits * wanted[:, None]
                if note is not None:
                    note(y)
            return flips

        return settle_in_turn(
            x, sweep, self.energy, self.is_fixed_point, order, max_sweeps, trace, generator
        )

    def extra_repr(self) -> str:
        s, n = self.patterns.shape
        return f"patterns={s}, n={n}, interaction={self.interaction}"

    def _states(self, state: Tensor) -> Tensor:
        return check_signs(state, "state", self.patterns.shape[1]).to(self.patterns)


def dense_bit_error(n: int, patterns: int, interaction: Interaction) -> float:
    r"""Probability that the first update flips a bit of a stored pattern, Gaussian noise assumed.

    The stored pattern raises the energy gap by $F(n) - F(n-2)$. Each other one adds
    $\pm(F(z+1) - F(z-1))$ with a fair independent sign and $z$ a sum of
    $n - 1$ fair signs, hence

    $$
    P \approx Q\left(\frac{F(n) - F(n-2)}{\sqrt{(s-1)\,\mathbb E[(F(z+1)-F(z-1))^2]}}\right),
    $$

    with the expectation summed exactly. For $F(z) = z^2$ it is the zero-diagonal
    $Q\big((n-1)/\sqrt{(s-1)(n-1)}\big)$; for $z^p$ and large $n$, Krotov and
    Hopfield's $Q\big(\sqrt{n^{p-1}/((2p-3)!!\,s)}\big)$. The sum of the exponential is far
    from Gaussian (its few largest terms are all that counts), and this is refused.

    >>> round(dense_bit_error(1000, 138, Power(2)), 4)
    0.0035
    """
    if n < 2 or patterns < 1:
        raise InvalidInput(f"need n >= 2 and s >= 1, not n={n}, s={patterns}")
    if not isinstance(interaction, Power):
        raise InvalidInput(
            "the noise of this interaction is not Gaussian; measure it instead (given: "
            f"{described(interaction)})"
        )
    if patterns == 1:
        return 0.0
    z = torch.arange(-(n - 1), n, 2, dtype=torch.float64)
    k = np.arange(n)
    log_binomial = special.gammaln(n) - special.gammaln(k + 1) - special.gammaln(n - k)
    weight = torch.from_numpy(np.exp(log_binomial - (n - 1) * np.log(2)))
    scale = torch.tensor(float(n), dtype=torch.float64)
    jump = interaction.relative(z + 1, scale) - interaction.relative(z - 1, scale)
    signal = float(interaction.relative(scale, scale) - interaction.relative(scale - 2, scale))
    noise = math.sqrt((patterns - 1) * float((weight * jump**2).sum()))
    return 0.5 * math.erfc(signal / noise / math.sqrt(2))


def dense_capacity(n: int, degree: int) -> float:
    r"""Patterns that $F(z) = z^p$ holds without an error in one of them.

    $s = \frac{n^{p-1}}{2\,(2p-3)!!\,\ln n}$, where $n\,Q\to0$; for $p = 2$ it
    is $n/(2\ln n)$.

    Source: Krotov and Hopfield (2016).

    >>> [round(dense_capacity(100, p), 1) for p in (2, 3, 4)]
    [10.9, 361.9, 7238.2]
    """
    if n < 2 or degree < 2:
        raise InvalidInput(f"need n >= 2 and degree >= 2, not n={n}, degree={degree}")
    odd = math.prod(range(2 * degree - 3, 0, -2))
    return float(n ** (degree - 1)) / (2 * odd * math.log(n))


@dataclass(frozen=True, slots=True)
class DenseSweep:
    """What `dense_capacity_sweep` measured; one row a count, one column a trial.

    Attributes:
        n: neurons.
        patterns: how many patterns were stored.
        bit_error: share of the probed bits that are wrong after the update, `[counts, trials]`.
        stable: share of the probed patterns without such a bit.
    """

    n: int
    patterns: tuple[int, ...]
    bit_error: Tensor
    stable: Tensor


def dense_capacity_sweep(
    n: int,
    patterns: Sequence[int],
    interaction: Interaction,
    trials: int = 10,
    *,
    probes: int = 16,
    flip: float = 0.0,
    generator: torch.Generator | int | None = None,
    device: torch.device | str = "cpu",
) -> DenseSweep:
    """Store random patterns and see how well one synchronous update restores them.

    Args:
        n: neurons.
        patterns: numbers of patterns to store.
        interaction: the energy.
        trials: independent memories for each number; all are one batch.
        probes: how many of the patterns of each memory are tried.
        flip: share of the bits changed in the state the update starts from.
        generator: generator or seed.
        device: where to compute.

    Cost, a number s: $O(s n)$ time a probe and trial, `8 * trials * s * (n + 3 * probes)`
    bytes.

    >>> sweep = dense_capacity_sweep(40, [4, 40], Power(4), trials=3, generator=0)
    >>> sweep.stable.mean(1)
    tensor([1., 1.], dtype=torch.float64)
    """
    if n < 2 or trials < 1 or probes < 1:
        raise InvalidInput(
            f"n must be at least 2, trials and probes at least 1 (n = {n!r}, trials = {trials!r}, "
            f"probes = {probes!r})"
        )
    if not patterns:
        raise EmptyData("patterns is empty: give at least one number of patterns")
    if min(patterns) < 1:
        raise InvalidInput(f"each number of patterns must be at least 1, not {min(patterns)}")
    if not 0 <= flip <= 0.5:
        raise InvalidInput(f"flip must lie between 0 and 0.5, not {flip}")
    generator = as_generator(generator, device)
    errors, stable = [], []
    for s in patterns:
        x = torch.empty(trials, s, n, dtype=torch.float64, device=device)
        x.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        target = x[:, :probes]
        places = torch.rand(target.shape, generator=generator, device=device).argsort(-1)
        noise = torch.ones_like(target).scatter_(-1, places[..., : round(flip * n)], -1.0)
        wrong = (_step(target * noise, x, interaction) != target).double()
        errors.append(wrong.mean((1, 2)))
        stable.append((wrong.sum(2) == 0).double().mean(1))
    return DenseSweep(n, tuple(patterns), torch.stack(errors), torch.stack(stable))


def modern_hopfield_update(patterns: Tensor, state: Tensor, beta: float = 1.0) -> Tensor:
    r"""One step $\xi \leftarrow X^\top\operatorname{softmax}(\beta X\xi)$.

    It equals `scaled_dot_product_attention(state, patterns, patterns, scale=beta)`; attention's
    own scale is $\beta = 1/\sqrt d$.

    Args:
        patterns: $X$, `[s, d]`.
        state: `[..., d]`.
        beta: inverse temperature, positive.

    Cost: $O(sd)$ time a state.

    Source: Ramsauer et al. (2020).

    >>> modern_hopfield_update(torch.eye(2), torch.tensor([1.0, 0.0]), beta=math.log(3))
    tensor([0.7500, 0.2500])
    """
    _check_continuous(patterns, state, beta)
    return torch.softmax(beta * (state @ patterns.T), -1) @ patterns


def modern_hopfield_energy(patterns: Tensor, state: Tensor, beta: float = 1.0) -> Tensor:
    r"""Energy that `modern_hopfield_update` never raises, `[..., d] -> [...]`.

    $$
    E(\xi) = -\beta^{-1}\log\sum_t e^{\beta x_t^\top\xi} + \tfrac12\|\xi\|^2
             + \beta^{-1}\log s + \tfrac12 M^2, \qquad M = \max_t \|x_t\|,
    $$

    and $0 \le E \le 2M^2$ for $\|\xi\| \le M$. The first term is concave and the
    second convex, and the update is the exact minimizer of the second plus the first's tangent
    (the concave-convex procedure), which is why the energy falls.

    Source: Ramsauer et al. (2020).

    >>> modern_hopfield_energy(torch.ones(1, 4), torch.ones(4))   # -4 + 4/2 + 0 + 4/2
    tensor(0.)
    """
    _check_continuous(patterns, state, beta)
    smooth = torch.logsumexp(beta * (state @ patterns.T), -1) / beta
    constant = math.log(len(patterns)) / beta + 0.5 * patterns.square().sum(-1).max()
    return constant + 0.5 * state.square().sum(-1) - smooth


def modern_retrieval_bound(
    patterns: Tensor, state: Tensor, index: Tensor, beta: float = 1.0
) -> Tensor:
    r"""Upper bound of the distance from the updated state to pattern `index`.

    With the separation $\Delta = \min_{r\ne t}\xi^\top(x_t - x_r)$ and
    $M = \max_r\|x_r\|$, the softmax puts at most $(s-1)e^{-\beta\Delta}$ on the other
    patterns, so that

    $$
    \|X^\top\operatorname{softmax}(\beta X\xi) - x_t\| \le 2M(s-1)e^{-\beta\Delta}.
    $$

    Args:
        patterns: `[s, d]`.
        state: `[..., d]`.
        index: which pattern each state is meant to retrieve, `[...]`, whole numbers.
        beta: inverse temperature, positive.

    Source: Ramsauer et al. (2020), in the form for a given state.

    >>> modern_retrieval_bound(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), beta=10.0)
    tensor([9.0800e-05, 9.0800e-05])
    """
    _check_continuous(patterns, state, beta)
    if index.shape != state.shape[:-1] or index.is_floating_point():
        raise ShapeMismatch(
            f"index must hold one whole number a state, {list(state.shape[:-1])}, "
            f"not {index.dtype} {list(index.shape)}"
        )
    s = len(patterns)
    if ((index < 0) | (index >= s)).any():
        raise InvalidInput(f"index must lie in 0..{s - 1}")
    scores = state @ patterns.T
    own = scores.gather(-1, index[..., None])
    others = scores.scatter(-1, index[..., None], -math.inf)
    separation = (own - others).amin(-1)
    largest = patterns.square().sum(-1).max().sqrt()
    return 2 * largest * (s - 1) * torch.exp(-beta * separation)


def _gaps(x: Tensor, patterns: Tensor, interaction: Interaction) -> Tensor:
    z = x @ patterns.mT
    largest = z.abs().amax(-1, keepdim=True) + 2
    above = interaction.relative(z + 2, largest)
    below = interaction.relative(z - 2, largest)
    here = interaction.relative(z, largest)
    curvature = (2 * here - above - below).sum(-1, keepdim=True)
    return 0.5 * (x * ((above - below) @ patterns) + curvature)


def _step(x: Tensor, patterns: Tensor, interaction: Interaction) -> Tensor:
    return sign(x * _gaps(x, patterns, interaction))


def _check_continuous(patterns: Tensor, state: Tensor, beta: float) -> None:
    if patterns.ndim != 2 or len(patterns) == 0:
        raise ShapeMismatch(f"patterns must be [s, d] with s >= 1, not {list(patterns.shape)}")
    if state.ndim == 0 or state.shape[-1] != patterns.shape[1]:
        raise ShapeMismatch(
            f"state must be [..., {patterns.shape[1]}] to fit the patterns, not {list(state.shape)}"
        )
    positive_number(beta, "beta")
    all_finite(patterns, "patterns")
    all_finite(state, "state")
