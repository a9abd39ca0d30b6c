r"""How many patterns Hebb's rule can hold: formulas, mean-field theory, and one batched experiment.

Three different questions have three different answers, all for $s$ patterns of independent
fair signs on $n$ neurons:

* *Which share of the bits flips in the first step?* About $Q(\sqrt{n/s})$: a matter of the
  load $s/n$ alone (`hopfield_bit_error`).
* *How many patterns are stable to the last bit?* About $n/\ln n$
  (`hopfield_capacity`).
* *When does the dynamics drift away from the pattern altogether?* At $s/n \approx 0.138$,
  which no one-step formula knows; it is where the mean-field equation of the dynamics' end states
  loses its solution (`critical_load`, `retrieval_overlap`).

Source: notes "Deep Learning", section 1.4; the mean-field equation is Amit, Gutfreund and
Sompolinsky's (1985), in zero temperature and replica-symmetric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from scipy import optimize
from torch import Tensor

from torchtheory.core.errors import EmptyData, InvalidInput
from torchtheory.core.random import as_generator
from torchtheory.neurons.hopfield import sign

Method = Literal["exact", "gaussian", "asymptotic"]
Criterion = Literal["one_pattern", "all_patterns", "printed", "transition"]


def hopfield_bit_error(
    n: int, patterns: int, *, zero_diagonal: bool = True, method: Method = "gaussian"
) -> float:
    r"""Probability that the first update flips a given bit of a given stored pattern.

    For random signs $n\,x_{t,i}h_i(x_t) = \mu + S$, where $S$ is a sum of
    $N = (s-1)(n-1)$ independent fair signs, and $\mu = n - 1$ with zero diagonal,
    $\mu = n + s - 1$ with the diagonal kept. Hence

    $$
    P = P(S < -\mu) + \tfrac12 P(S = -\mu)
    \;\approx\; Q\Big(\frac{\mu}{\sqrt{(s-1)(n-1)}}\Big)
    \;\approx\; Q\big(\sqrt{n/s}\big) = \int_1^\infty \sqrt{\tfrac{n}{2\pi s}}\,
    e^{-nz^2/(2s)}\,dz .
    $$

    A tie goes to +1 and so is an error for half of the bits.

    Args:
        n: neurons.
        patterns: $s$.
        zero_diagonal: which weights; see `hebbian`.
        method: `exact` (the binomial law), `gaussian` (the middle term) or `asymptotic`
            (the last, which does not see the diagonal).

    Source: notes "Deep Learning", section 1.4, whose integral lacks its factor.

    >>> round(hopfield_bit_error(1000, 138, method="asymptotic"), 4)
    0.0036
    >>> round(hopfield_bit_error(1000, 138), 4)
    0.0035
    >>> round(hopfield_bit_error(1000, 138, zero_diagonal=False), 4)
    0.0011
    >>> round(hopfield_bit_error(3, 2, method="exact"), 9)   # S = -2, a tie, has probability 1/4
    0.125
    """
    _check_sizes(n, patterns)
    shift = n - 1 if zero_diagonal else n + patterns - 1
    terms = (patterns - 1) * (n - 1)
    if method == "asymptotic":
        return _tail(math.sqrt(n / patterns))
    if method not in ("gaussian", "exact"):
        raise InvalidInput(f"method must be exact, gaussian or asymptotic, not {method!r}")
    if terms == 0:
        # one pattern has no noise; one neuron with zero diagonal has no field, and always ties
        return 0.5 if shift == 0 else 0.0
    if method == "gaussian":
        return _tail(shift / math.sqrt(terms))
    from scipy import stats  # here, because it takes a second to import

    # S = 2 K - N with K binomial, so S = -shift iff K = (N - shift) / 2
    half, odd = divmod(terms - shift, 2)
    below = float(stats.binom.cdf(half if odd else half - 1, terms, 0.5))
    return below if odd else below + 0.5 * float(stats.binom.pmf(half, terms, 0.5))


def pattern_capacity(n: int, criterion: Criterion = "one_pattern") -> float:
    r"""Number of random patterns $n$ neurons hold, by four criteria.

    By the union bound a given pattern is stable in every bit with probability at least
    $1 - n\,Q(\sqrt{n/s})$. At $s = n/(c\ln n)$ this tends to one iff
    $c \ge 2$, and $1 - sn\,Q$ (every pattern at once) iff $c \ge 4$.

    - `one_pattern`, $n/(2\ln n)$: a given pattern is stable, sharp constant
    - `all_patterns`, $n/(4\ln n)$: all patterns are stable
    - `printed`, $n/(2\log_2 n)$: in the source; true for one pattern but not sharp, and too many
      for all patterns at once
    - `transition`, $0.138\,n$: the dynamics still ends near the pattern

    Source: notes "Deep Learning", section 1.4.

    >>> [round(pattern_capacity(1000, c), 1) for c in ("one_pattern", "all_patterns", "printed")]
    [72.4, 36.2, 50.2]
    """
    if n < 2:
        raise InvalidInput(f"a capacity needs at least two neurons, not {n}")
    match criterion:
        case "one_pattern":
            return n / (2 * math.log(n))
        case "all_patterns":
            return n / (4 * math.log(n))
        case "printed":
            return n / (2 * math.log2(n))
        case "transition":
            return critical_load() * n
    raise InvalidInput(
        f"criterion must be one_pattern, all_patterns, printed or transition, not {criterion!r}"
    )


def retrieval_overlap(load: float) -> float:
    r"""Overlap with the pattern where the dynamics ends, for $n \to \infty$.

    With $\alpha = s/n$, the mean-field overlap is $m = \operatorname{erf}(y)$ for the
    largest root $y$ of

    $$
    \operatorname{erf}(y) = y\,\Big(\sqrt{2\alpha} + \tfrac{2}{\sqrt\pi} e^{-y^2}\Big),
    $$

    and 0 where only $y = 0$ is left, beyond `critical_load`. A finite network started
    at the pattern keeps an overlap of some tenths there: it is stopped by the first of the many
    spurious states on its way.

    Source: Amit, Gutfreund, Sompolinsky (1985), zero temperature.

    >>> round(retrieval_overlap(0.10), 4), retrieval_overlap(0.14)
    (0.998, 0.0)
    """
    if not load > 0:
        raise InvalidInput(f"load must be positive, not {load}")
    peak, critical = _transition()
    if load > critical:
        return 0.0
    high = peak
    while _load_at(high) > load:
        high *= 2
    root = optimize.brentq(lambda y: _load_at(y) - load, peak, high, xtol=1e-14)
    return math.erf(root)


def critical_load() -> float:
    r"""Largest load with a retrieval state, $\alpha_c = 0.1379$.

    Solving the equation of `retrieval_overlap` for the load,
    $\alpha(y) = \frac12\big(\operatorname{erf}(y)/y - \frac2{\sqrt\pi}e^{-y^2}\big)^2$,
    and $\alpha_c = \max_y \alpha(y)$.

    >>> round(critical_load(), 6)
    0.137906
    """
    return _transition()[1]


@dataclass(frozen=True, slots=True)
class CapacitySweep:
    """What `capacity_sweep` measured; one row a load, one column a trial.

    Trials are independent networks. Bits and patterns of one network are not independent, so an
    interval is to be taken over the columns.

    Attributes:
        n: neurons.
        patterns: how many patterns were stored at each load.
        bit_error: share of all stored bits that the first update flips, `[loads, trials]`.
        stable: share of the patterns with no such bit.
        overlap: mean overlap with the pattern where the dynamics ended.
        settled: share of the probes that reached a fixed point.
        sweeps: passes over all neurons until the last one settled.
    """

    n: int
    patterns: tuple[int, ...]
    bit_error: Tensor
    stable: Tensor
    overlap: Tensor
    settled: Tensor
    sweeps: int

    @property
    def loads(self) -> list[float]:
        """The loads as stored: whole numbers of patterns over `n`."""
        return [s / self.n for s in self.patterns]


def capacity_sweep(
    n: int,
    loads: Sequence[float],
    trials: int = 10,
    *,
    zero_diagonal: bool = True,
    flip: float = 0.0,
    probes: int = 16,
    blocks: int = 32,
    max_sweeps: int = 100,
    generator: torch.Generator | int | None = None,
    device: torch.device | str = "cpu",
    memory: float = 2.0**30,
) -> CapacitySweep:
    r"""Measure bit errors, stable patterns and the end of the dynamics over a range of loads.

    All networks (loads times trials) and all patterns in them are one batch. The couplings are
    never formed: with the patterns as columns of $X \in \{\pm1\}^{n\times s}$,
    $nWx = X(X^\top x) - s\,x$, and the overlaps $X^\top x$ are updated with the
    state. All numbers are whole and exact, so ties are ties.

    **Which dynamics.** The transition belongs to neurons that update one after another. Here a
    sweep visits the neurons in a fresh random order, and `blocks` groups of them in turn, each
    group at once: `blocks=n` is the asynchronous dynamics itself, `blocks=1` the synchronous
    one, with its two-cycles. Every choice has exactly the same fixed points (with zero diagonal,
    the states $x = \operatorname{sgn}(Wx)$), and within a group of $n/32$ neurons the
    neglected couplings are a small part of the field, of the order $1/\sqrt{32}$ of its
    noise; the tests compare the default with `blocks=n`. A fresh order every sweep leaves no
    cycle to be caught in.

    Args:
        n: neurons.
        loads: values of $s/n$; $s$ is rounded and at least 1.
        trials: independent networks a load.
        zero_diagonal: the weights' diagonal; the printed rule keeps it.
        flip: share of the bits changed in the state the dynamics starts from.
        probes: how many of the patterns of each network the dynamics is started from.
        blocks: groups of neurons that are updated at once, in a sweep.
        max_sweeps: stop the dynamics after this many passes.
        generator: generator or seed.
        device: where to compute.
        memory: bytes to stay within, roughly; where loads do not all fit, they are taken in
            several batches (the numbers do not depend on it).

    Cost, with $T$ = loads times trials and $s$ the largest number of patterns:
    $O(T s^2 n)$ for the first step, $O(T s n)$ a probe and sweep; memory
    $12\,T s n$ bytes (0.5 GB for n = 1000, 20 loads to 0.2, 10 trials).

    >>> sweep = capacity_sweep(100, [0.03, 0.5], trials=4, generator=0)
    >>> sweep.patterns, sweep.overlap.mean(1).round(decimals=1)
    ((3, 50), tensor([1.0000, 0.4000], dtype=torch.float64))
    """
    if n < 2 or trials < 1 or probes < 1 or max_sweeps < 1:
        raise InvalidInput(
            f"n must be at least 2; trials, probes and max_sweeps at least 1 (n = {n!r}, trials = "
            f"{trials!r}, probes = {probes!r}, max_sweeps = {max_sweeps!r})"
        )
    if not loads:
        raise EmptyData("loads is empty: give at least one value of s/n")
    if not all(math.isfinite(a) and a > 0 for a in loads):
        raise InvalidInput(f"loads must be positive numbers, not {list(loads)}")
    if not 1 <= blocks <= n:
        raise InvalidInput(f"blocks must lie in 1..{n}, not {blocks}")
    if not 0 <= flip <= 0.5:
        raise InvalidInput(f"flip must lie between 0 and 0.5, not {flip}")
    counts = [max(1, round(a * n)) for a in loads]
    seeds = torch.randint(2**62, (len(counts) + 1,), generator=as_generator(generator)).tolist()
    measured: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    longest = 0
    # sorted, so that batches hold networks of like size and little of them is padding
    queue = sorted(range(len(counts)), key=lambda k: counts[k])
    place: list[int] = []
    while queue:
        room = memory / (12 * trials * n)
        batch = [k for j, k in enumerate(queue) if (j + 1) * counts[k] <= room] or queue[:1]
        del queue[: len(batch)]
        place += batch
        stored = [counts[k] for k in batch]
        drawn = _draw(n, stored, trials, [seeds[k] for k in batch], flip, probes, device)
        bit_error, stable = _first_step(drawn.patterns, stored, trials, zero_diagonal)
        order = torch.Generator(device).manual_seed(seeds[-1])
        sweeps, state, moving = _settle(
            drawn.patterns, drawn.start, drawn.counts, zero_diagonal, blocks, max_sweeps, order
        )
        overlaps = (state * drawn.target).sum(1).double() / n
        weight = drawn.weight
        measured.append(
            (
                bit_error,
                stable,
                (overlaps * weight).sum(1) / weight.sum(1),
                ((~moving).double() * weight).sum(1) / weight.sum(1),
            )
        )
        longest = max(longest, sweeps)
    back = torch.tensor(place).argsort()
    columns = [
        torch.cat(column).reshape(len(counts), trials)[back.to(column[0].device)]
        for column in zip(*measured, strict=True)
    ]
    return CapacitySweep(n, tuple(counts), columns[0], columns[1], columns[2], columns[3], longest)


@dataclass(frozen=True, slots=True)
class _Networks:
    """B networks at once: patterns `[B, n, s]` padded by zero columns, probes `[B, n, P]`."""

    patterns: Tensor
    counts: Tensor
    target: Tensor
    start: Tensor
    weight: Tensor


def _draw(
    n: int,
    counts: list[int],
    trials: int,
    seeds: list[int],
    flip: float,
    probes: int,
    device: torch.device | str,
) -> _Networks:
    s, probes = max(counts), min(probes, max(counts))
    # sums reach n * s; whole numbers are exact up to 2^24 in single precision
    dtype = torch.float32 if n * s < 2**24 else torch.float64
    x = torch.zeros(len(counts), trials, n, s, dtype=dtype, device=device)
    noise = torch.ones(len(counts), trials, n, probes, dtype=dtype, device=device)
    for patterns, signs, count, seed in zip(x, noise, counts, seeds, strict=True):
        generator = torch.Generator(device).manual_seed(seed)
        drawn = torch.empty(trials, n, count, dtype=dtype, device=device)
        patterns[..., :count] = drawn.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        if flip:
            places = torch.rand(signs.shape, generator=generator, device=device).argsort(1)
            signs.scatter_(1, places[:, : round(flip * n)], -1.0)
    stored = torch.tensor(counts, device=device).repeat_interleave(trials)
    x, noise = x.flatten(0, 1), noise.flatten(0, 1)
    # where a network has fewer patterns than there are probes, its last one is probed again,
    # with weight zero
    probe = torch.arange(probes, device=device)
    chosen = torch.minimum(probe, stored[:, None] - 1)
    target = x.gather(2, chosen[:, None, :].expand(-1, n, -1))
    return _Networks(x, stored, target, target * noise, (probe < stored[:, None]).double())


def _first_step(
    x: Tensor, counts: list[int], trials: int, zero_diagonal: bool
) -> tuple[Tensor, Tensor]:
    """Share of bits flipped by the first update, and of patterns without such a bit, `[B]`.

    Load by load: the work grows as the square of the patterns, and padding would triple it.
    """
    errors, stable = [], []
    for padded, count in zip(x.reshape(-1, trials, *x.shape[1:]), counts, strict=True):
        stored = padded[:, :, :count]
        field = stored @ (stored.mT @ stored)
        if zero_diagonal:
            field -= count * stored
        # an error has the wrong sign, or is a tie (which goes to +1) where the bit is -1: these
        # are the whole numbers with (field + 1/2) * bit < 0
        field += 0.5
        field *= stored
        wrong = (field < 0).sum(1)
        errors.append(wrong.double().mean(1) / x.shape[1])
        stable.append((wrong == 0).double().mean(1))
    return torch.cat(errors), torch.cat(stable)


def _settle(
    x: Tensor,
    state: Tensor,
    counts: Tensor,
    zero_diagonal: bool,
    blocks: int,
    max_sweeps: int,
    generator: torch.Generator,
) -> tuple[int, Tensor, Tensor]:
    """Sweep until nothing moves: how many sweeps, states `[B, n, P]`, still moving `[B, P]`."""
    n = x.shape[1]
    done = state.clone()
    moving = torch.ones(len(x), state.shape[2], dtype=torch.bool, device=x.device)
    alive = torch.arange(len(x), device=x.device)
    diagonal = (counts.to(x) if zero_diagonal else torch.zeros_like(counts).to(x))[:, None, None]
    overlaps = x.mT @ state
    for sweep in range(1, max_sweeps + 1):
        flipped = torch.zeros_like(moving[alive])
        order = torch.randperm(n, generator=generator, device=x.device)
        for block in order.tensor_split(blocks):
            columns, old = x.index_select(1, block), state.index_select(1, block)
            new = sign(columns @ overlaps - diagonal * old)
            change = new - old
            overlaps += columns.mT @ change
            state.index_copy_(1, block, new)
            flipped |= (change != 0).any(1)
        moving[alive] = flipped
        busy = flipped.any(1)
        if not busy.any():
            done[alive] = state
            return sweep, done, moving
        if 4 * int(busy.sum()) <= 3 * len(alive):
            # a good part of the networks rests: go on with the others only
            done[alive] = state
            alive, x, state, overlaps, diagonal = (
                part[busy] for part in (alive, x, state, overlaps, diagonal)
            )
    done[alive] = state
    return max_sweeps, done, moving


def _load_at(y: float) -> float:
    return 0.5 * (math.erf(y) / y - 2 / math.sqrt(math.pi) * math.exp(-y * y)) ** 2


@cache
def _transition() -> tuple[float, float]:
    found = optimize.minimize_scalar(
        lambda y: -_load_at(y), bounds=(0.5, 4.0), method="bounded", options={"xatol": 1e-10}
    )
    return float(found.x), -float(found.fun)


def _tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))


def _check_sizes(n: int, patterns: int) -> None:
    if n < 1 or patterns < 1:
        raise InvalidInput(f"need at least one neuron and one pattern, not n={n}, s={patterns}")
