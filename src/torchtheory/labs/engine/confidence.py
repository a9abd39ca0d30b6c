r"""The confidence of a lab: shared among its claims.

A lab that makes $K$ statistical claims, each at confidence 99%, is red by chance at up to $K$ of 100
seeds although all of them are true. So the chance belongs to the lab: each of its claims is judged at
confidence $1-\delta/K$ with $\delta=1/200$ (or at its own, where that is higher), and by the union
bound a true lab is contradicted by chance at one of 200 seeds at most. What must be excluded, the
controls and the alternatives, is judged by the same wider intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtheory.core.claim import Claim

#: How likely it may be that chance alone contradicts a lab whose claims are all true.
CHANCE = 1 / 200


def judged_together(claims: Sequence[Claim], chance: float = CHANCE) -> list[Claim]:
    """The claims with intervals that hold all at once but for the chance.

    >>> from torchtheory.core.record import Record
    >>> run = Record()
    >>> for _ in range(10):
    ...     made = run.states("N-08", "x = 2").mean([1.0, 2.0, 3.0], 2.0)
    >>> {round(c.interval.confidence, 6) for c in judged_together(run.claims)}
    {0.9995}
    """
    own = [1.0 if c.interval is None else c.interval.confidence for c in claims]
    each = 1 - chance / max(sum(o < 1 for o in own), 1)
    return [c.at(max(each, o)) if o < 1 else c for c, o in zip(claims, own, strict=True)]
