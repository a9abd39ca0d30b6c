"""A check that was given too few observations to show anything says so.

Whoever sets the number of samples of a lab to its least may get intervals so wide that they contain
an alternative as well, or what the control promises, or what a source prints wrongly. That is no
fault of the theorem, and nothing was found out about it: the claim does not apply, because its
observations are too few. At the presets, where the lab itself chose the numbers, the same is a
fault of the lab.
"""

from __future__ import annotations

from torchtheory.core.claim import Claim, Verdict, not_applicable
from torchtheory.core.statement import CounterExample
from torchtheory.report.numbers import number_text
from torchtheory.report.wording import listed_numbers


def too_few(made: Claim) -> str:
    """Why the observations of a claim that was not refuted show nothing; empty where they do.

    >>> from torchtheory.core.record import Record
    >>> says = Record().states("N-08", "x = 2")
    >>> too_few(says.mean([1.0, 2.0, 3.0], 2.0, against=5.0))
    '3 observations do not tell 2 from 5: their interval reaches from -3.73 to 7.73'
    >>> too_few(says.mean([1.9, 2.0, 2.1], 2.0, against=5.0))
    ''
    """
    if made.verdict is Verdict.VIOLATED or made.interval is None or made.promised is None:
        return ""
    i = made.interval
    if made.accepted:
        return (
            f"{i.trials} observations do not tell {number_text(made.promised, 3)} from "
            f"{listed_numbers(made.accepted)}: their interval reaches from {number_text(i.low, 3)} to "
            f"{number_text(i.high, 3)}"
        )
    control = made.control
    if control is not None and control.interval is not None and control.verdict is not Verdict.VIOLATED:
        return (
            f"{control.interval.trials} observations do not tell the control from it ({control.reason}): their "
            f"interval reaches from {number_text(control.interval.low, 3)} to {number_text(control.interval.high, 3)}"
        )
    return ""


def unrefuted(example: CounterExample) -> str:
    """Why the observations do not refute what a source prints; empty where they do, or are exact."""
    i = example.claim.interval
    if i is None or example.claim.verdict is Verdict.VIOLATED:
        return ""
    return (
        f"{i.trials} observations do not refute what is printed: their interval reaches from "
        f"{number_text(i.low, 3)} to {number_text(i.high, 3)}"
    )


def if_shown(made: Claim) -> Claim:
    """The claim, or that it does not apply because its observations show nothing."""
    reason = too_few(made)
    return not_applicable(made.ids, made.statement, reason) if reason else made
