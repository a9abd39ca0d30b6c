"""Numbers as people read them: four digits, whole numbers whole, powers of ten as powers of ten."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from markupsafe import Markup

MINUS = "\N{MINUS SIGN}"


def number_text(value: float | int | None, digits: int = 4) -> str:
    """A number for a terminal.

    >>> [number_text(v) for v in (9.0, 0.031249, 1234567, 3.2e-7, 6.02214e23, float("-inf"))]
    ['9', '0.03125', '1,234,567', '3.2e-7', '6.022e23', '-∞']
    """
    mantissa, exponent = _parts(value, digits)
    return mantissa if exponent is None else f"{mantissa}e{exponent}"


def number_html(value: float | int | None, digits: int = 4) -> Markup:
    """A number for a page, with a real minus sign and a raised exponent.

    >>> number_html(-3.2e-7)
    Markup('−3.2\\xa0×\\xa010<sup>−7</sup>')
    >>> number_html(1e-8)
    Markup('10<sup>−8</sup>')
    """
    mantissa, exponent = _parts(value, digits)
    mantissa = mantissa.replace("-", MINUS)
    if exponent is None:
        return Markup(mantissa)  # made of digits and signs only
    power = f"10<sup>{str(exponent).replace('-', MINUS)}</sup>"
    if mantissa in ("1", MINUS + "1"):
        return Markup(mantissa[:-1] + power)
    return Markup(f"{mantissa}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{power}")


#: Names of large numbers, the largest first.
_LARGE = ((1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def number_words(value: float) -> str:
    """A number for a reader in a hurry: three digits, large ones by their names.

    >>> [number_words(v) for v in (0.017817, 1348, 291_490, 11_173_962, 3.2e-7, 2e40)]
    ['0.0178', '1,350', '291,000', '11.2 million', '3.2 × 10⁻⁷', '2 × 10⁴⁰']
    """
    value = float(value)
    if not math.isfinite(value) or value == 0:
        return number_text(value)
    rounded = float(f"{value:.2e}")
    size = abs(rounded)
    if 1e-4 <= size < 1e6:
        return _trim(f"{rounded:,.{max(2 - math.floor(math.log10(size)), 0)}f}")
    if size < 1e18:
        for one, name in _LARGE:
            if size >= one:
                return f"{_trim(f'{rounded / one:.3g}')} {name}"
    mantissa, _, power = f"{rounded:.2e}".partition("e")
    return f"{_trim(mantissa)} × 10{str(int(power)).translate(_RAISED)}"


#: Shares below this are as good as none.
_TINY = 1e-4


class Range(Protocol):
    """What is known of a number: where the true value may lie."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def size_words(found: Range) -> str:
    """A number with a range, inside a sentence: true wherever in its range the number lies.

    >>> from torchtheory.core.intervals import Interval
    >>> ends = ((0.5, 0.5), (0.21, 0.34), (1.4401, 1.4422), (-math.inf, 0.3), (2.0, math.inf))
    >>> [size_words(Interval(low, low, high, 0.95, 9, "")) for low, high in ends]
    ['0.5', 'between 0.21 and 0.34', 'about 1.44', 'less than 0.3', 'more than 2']
    """
    return _range_words(found, number_words(found.low), number_words(found.high), -math.inf)


def share_words(found: Range) -> str:
    """A share with a range as percentages, inside a sentence; see `size_words`.

    >>> from torchtheory.core.intervals import Interval
    >>> ends = ((0.125, 0.125), (0.03, 0.091), (0.0, 0.22), (0.6, 1.0), (0.0, 1.0), (0.0, 0.0))
    >>> [share_words(Interval(low, low, high, 0.95, 9, "")) for low, high in ends]
    ['12.5%', 'between 3% and 9.1%', 'less than 22%', 'more than 60%', 'an unknown share', 'none']
    """
    low, high = max(0.0, found.low), min(1.0, found.high)
    if low < high and low < _TINY:
        low = 0.0
    if low == high:
        return "none" if low == 0 else "all" if low == 1 else _percents(low)
    if low == 0 and high == 1:
        return "an unknown share"
    if high == 1:
        return f"more than {_percents(low)}"
    return _range_words(_Ends(low, high), _percents(low), _percents(high), 0.0)


@dataclass(frozen=True)
class _Ends:
    low: float
    high: float


def _range_words(found: Range, low: str, high: str, least: float) -> str:
    if found.low == found.high:
        return low
    if found.low <= least:
        return "unknown" if found.high == math.inf else f"less than {high}"
    if found.high == math.inf:
        return f"more than {low}"
    return f"about {low}" if low == high else f"between {low} and {high}"


def _percents(share: float) -> str:
    """A share in two digits, and three from a tenth on.

    >>> [_percents(s) for s in (0.00213, 0.0456, 0.1234, 0.999, 1e-7)]
    ['0.21%', '4.6%', '12.3%', '99.9%', '0.01% or less']
    """
    if 0 < share < _TINY:
        return f"{100 * _TINY:g}% or less"
    return f"{100 * share:.{3 if share >= 0.1 else 2}g}%"


def enough_digits(one: float, other: float, digits: int = 4) -> int:
    """The fewest digits, from `digits` up, that tell two different numbers apart.

    >>> enough_digits(1.0, 1.00002), enough_digits(1.0, 1.0)
    (6, 4)
    """
    if one == other or not (math.isfinite(one) and math.isfinite(other)):
        return digits
    for more in range(digits, 18):
        if number_text(one, more) != number_text(other, more):
            return more
    return 17


def duration(seconds: float) -> str:
    """How long something took.

    >>> duration(0.0123), duration(4.21), duration(75), duration(7380)
    ('0.01 s', '4.2 s', '1 min 15 s', '2 h 3 min')
    """
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def percent(share: float) -> str:
    """A confidence as a percentage.

    >>> percent(0.95), percent(0.999)
    ('95 %', '99.9 %')
    """
    return f"{share * 100:.6g} %"


def _parts(value: float | int | None, digits: int) -> tuple[str, int | None]:
    """Mantissa and power of ten; the power is None where the number is written out."""
    if value is None:
        return "–", None
    if isinstance(value, float) and not math.isfinite(value):
        return ("NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"), None
    if value == int(value) and abs(value) < 10**15:
        whole = int(value)
        return (f"{whole:,}" if abs(whole) >= 10_000 else str(whole)), None
    if isinstance(value, int) and abs(value) >= 10**300:
        power_of_ten = math.log10(abs(value))  # no float holds the number itself
        mantissa = _trim(f"{10 ** (power_of_ten % 1):.{min(digits, 8) - 1}f}")
        return ("-" if value < 0 else "") + mantissa, int(power_of_ten)
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    exponent = int(power)
    if -4 < exponent < max(5, digits):
        comma = "," if exponent >= 4 else ""
        return _trim(f"{value:{comma}.{max(digits - 1 - exponent, 0)}f}"), None
    return _trim(mantissa), exponent


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
