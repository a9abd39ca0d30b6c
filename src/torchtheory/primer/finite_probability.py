r"""Probability on finite sets: σ-algebras, measures, random variables, expectations.

A finite σ-algebra is its atoms: the events are the unions of the blocks of a partition, so
$k$ atoms give $2^k$ events, and nothing needs the list of them. Probabilities may be
`fractions.Fraction`, and then everything is exact. Source: Foundations of Deep Learning,
section 1.5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torchtheory.core.errors import EmptyData, InvalidInput

Outcome = Hashable
Event = frozenset[Any]
Probability = float | Fraction
MOST_ATOMS = 16
_TOLERANCE = 1e-12  # rounding of floating-point probabilities


@dataclass(frozen=True, slots=True)
class SigmaAlgebra:
    r"""A σ-algebra on a finite set, held as the partition into its atoms.

    Attributes:
        atoms: disjoint non-empty sets whose union is the sample space.

    >>> algebra = SigmaAlgebra.generated_by({1, 2, 3, 4}, [{1, 2}])
    >>> sorted(sorted(event) for event in algebra.events())
    [[], [1, 2], [1, 2, 3, 4], [3, 4]]
    >>> {3, 4} in algebra, {1, 3} in algebra, len(algebra)
    (True, False, 4)
    """

    atoms: frozenset[Event]

    @classmethod
    def generated_by(
        cls, omega: Iterable[Outcome], events: Iterable[Collection[Outcome]] = ()
    ) -> SigmaAlgebra:
        """The smallest σ-algebra on `omega` that contains the events; without any, {∅, Ω}."""
        space = _space(omega)
        blocks: list[Event] = [space]
        for event in events:
            chosen = frozenset(event)
            if not chosen <= space:
                raise InvalidInput(f"the event has outcomes outside Ω: {set(chosen - space)}")
            blocks = [part for block in blocks for part in (block & chosen, block - chosen) if part]
        return cls(frozenset(blocks))

    @classmethod
    def power_set(cls, omega: Iterable[Outcome]) -> SigmaAlgebra:
        """Every subset is an event: each outcome is an atom."""
        return cls(frozenset(frozenset([w]) for w in _space(omega)))

    @property
    def omega(self) -> Event:
        """The sample space."""
        return frozenset().union(*self.atoms)

    def __contains__(self, event: Collection[Outcome]) -> bool:
        """Whether it is an event: a union of atoms."""
        chosen = frozenset(event)
        return chosen <= self.omega and all(a <= chosen or not (a & chosen) for a in self.atoms)

    def __len__(self) -> int:
        """The number of events, a power of 2."""
        return 1 << len(self.atoms)

    def events(self) -> Iterator[Event]:
        """All events, the small unions first; refused beyond 2^16."""
        if len(self.atoms) > MOST_ATOMS:
            raise InvalidInput(f"{len(self.atoms)} atoms make 2^{len(self.atoms)} events: too many")
        ordered = sorted(self.atoms, key=lambda atom: sorted(map(str, atom)))
        for count in range(len(ordered) + 1):
            for chosen in itertools.combinations(ordered, count):
                yield frozenset().union(*chosen)


def sigma_algebra_failures(
    omega: Iterable[Outcome], family: Iterable[Collection[Outcome]]
) -> list[str]:
    """Which properties of a σ-algebra a family of subsets lacks, each with an example.

    On a finite set closure under countable unions is closure under unions of two.

    >>> sigma_algebra_failures({1, 2}, [set(), {1}, {2}, {1, 2}])
    []
    >>> sigma_algebra_failures({1, 2, 3}, [set(), {1}, {1, 2, 3}])
    ['the complement of {1} is missing']
    """
    space = _space(omega)
    events = {frozenset(event) for event in family}
    failures = []
    for needed, name in ((space, "Ω"), (frozenset(), "∅")):
        if needed not in events:
            failures.append(f"{name} is missing")
    ordered = sorted(events, key=lambda event: (len(event), sorted(map(str, event))))
    outside = next((e for e in ordered if not e <= space), None)
    if outside is not None:
        failures.append(f"{_show(outside)} is not a subset of Ω")
    alone = next((e for e in ordered if space - e not in events), None)
    if alone is not None:
        failures.append(f"the complement of {_show(alone)} is missing")
    pairs = itertools.combinations(ordered, 2)
    open_pair = next(((a, b) for a, b in pairs if a | b not in events), None)
    if open_pair is not None:
        failures.append(f"the union of {_show(open_pair[0])} and {_show(open_pair[1])} is missing")
    return failures


def measure_failures(
    algebra: SigmaAlgebra, probability: Callable[[Event], Probability]
) -> list[str]:
    """Which properties of a probability measure a set function lacks, each with an example.

    All events and all pairs of disjoint events are tried, $3^k$ pairs for $k$ atoms.
    Differences up to $10^{-12}$ count as rounding.

    >>> coin = SigmaAlgebra.power_set("HT")
    >>> measure_failures(coin, lambda event: len(event) / 2)
    []
    >>> measure_failures(coin, lambda event: (len(event) / 2) ** 2)
    ['additivity fails for {H} and {T}: 1.0 is not 0.25 + 0.25']
    """
    values = {event: probability(event) for event in algebra.events()}
    failures = []
    negative = next((e for e, p in values.items() if not float(p) >= -_TOLERANCE), None)
    if negative is not None:
        failures.append(f"the probability of {_show(negative)} is {values[negative]}")
    total = values[algebra.omega]
    if not abs(float(total) - 1) <= _TOLERANCE:
        failures.append(f"the probability of Ω is {total}")
    for a, b in itertools.combinations(values, 2):
        if a & b:
            continue
        if not abs(float(values[a | b] - values[a] - values[b])) <= _TOLERANCE:
            failures.append(
                f"additivity fails for {_show(a)} and {_show(b)}: "
                f"{values[a | b]} is not {values[a]} + {values[b]}"
            )
            break
    return failures


def preimage(variable: Callable[[Any], Any], omega: Iterable[Outcome], value: object) -> Event:
    r"""The event $X^{-1}(\{x\})=\{\omega:X(\omega)=x\}$.

    >>> sorted(preimage(lambda w: w % 2, range(6), 1))
    [1, 3, 5]
    """
    return frozenset(w for w in omega if variable(w) == value)


def unmeasurable_event(variable: Callable[[Any], Any], algebra: SigmaAlgebra) -> Event | None:
    r"""A preimage $X^{-1}(\{x\})$ that is no event, or None if $X$ is measurable.

    On a finite space the preimages of single values decide: $X$ is a random variable
    exactly if it is constant on every atom, so the trivial σ-algebra admits constants only.

    >>> dice = [(i, j) for i in range(1, 7) for j in range(1, 7)]
    >>> unmeasurable_event(sum, SigmaAlgebra.power_set(dice)) is None
    True
    >>> sorted(unmeasurable_event(sum, SigmaAlgebra.generated_by(dice)))
    [(1, 1)]
    """
    omega = algebra.omega
    values = sorted({variable(w) for w in omega})
    events = (preimage(variable, omega, value) for value in values)
    return next((event for event in events if event not in algebra), None)


def image_measure(
    variable: Callable[[Any], Any], probabilities: Mapping[Any, Probability]
) -> dict[Any, Probability]:
    r"""The law of $X$: the mass $p_X(x)=\Pr(X=x)$ of each value, ascending.

    Args:
        variable: $X$, a function of the outcome.
        probabilities: of each outcome; they must be non-negative and sum to 1.

    >>> die = {w: Fraction(1, 6) for w in range(1, 7)}
    >>> image_measure(lambda w: w % 2, die)
    {0: Fraction(1, 2), 1: Fraction(1, 2)}
    """
    _check_probabilities(probabilities)
    law: dict[Any, Probability] = {}
    for outcome, p in probabilities.items():
        x = variable(outcome)
        law[x] = law[x] + p if x in law else p
    return dict(sorted(law.items()))


def expectation(law: Mapping[Any, Probability]) -> Any:
    r"""$\mathbb E[X]=\sum_ix_ip_i$ of a law on numbers.

    >>> expectation({w: Fraction(1, 6) for w in range(1, 7)})
    Fraction(7, 2)
    """
    _check_probabilities(law)
    return sum(x * p for x, p in law.items())


def tail_expectation(law: Mapping[Any, Probability]) -> tuple[Any, Any]:
    r"""The integrals $\int_0^\infty\Pr(X\ge t)dt$ and $\int_0^\infty\Pr(X\le-t)dt$.

    The tails are step functions, so both are finite sums. Their difference is
    $\mathbb E[X]$; the first alone is, if $X\ge0$. For a sample give each value the
    mass $1/n$.

    >>> tail_expectation({w: Fraction(1, 6) for w in range(1, 7)})
    (Fraction(7, 2), 0)
    >>> tail_expectation({-1: Fraction(1, 2), 1: Fraction(1, 2)})
    (Fraction(1, 2), Fraction(1, 2))
    """
    _check_probabilities(law)
    return _upper_tail(law), _upper_tail({-x: p for x, p in law.items()})


def _upper_tail(law: Mapping[Any, Probability]) -> Any:
    total: Any = 0
    last: Any = 0
    values = sorted(x for x in law if x > 0)
    tail: Any = sum(law[x] for x in values)
    for x in values:
        total = total + (x - last) * tail
        tail, last = tail - law[x], x
    return total


def _check_probabilities(probabilities: Mapping[Any, Probability]) -> None:
    if not probabilities:
        raise EmptyData("a law needs at least one value")
    if any(not p >= 0 for p in probabilities.values()):
        raise InvalidInput(
            "a probability is negative or not a number: "
            f"{next(p for p in probabilities.values() if not p >= 0)!r}"
        )
    total = math.fsum(float(p) for p in probabilities.values())
    if abs(total - 1) > 1e-9:
        raise InvalidInput(f"the probabilities sum to {total:.12g}, not to 1")


def _space(omega: Iterable[Outcome]) -> Event:
    space = frozenset(omega)
    if not space:
        raise EmptyData("the sample space has no outcome")
    return space


def _show(event: Event) -> str:
    return "{" + ", ".join(sorted(map(str, event))) + "}" if event else "∅"
