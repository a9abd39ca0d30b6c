"""Numbers for people."""

from __future__ import annotations

import math

import pytest

from torchtheory.report.numbers import (
    duration,
    enough_digits,
    number_html,
    number_text,
    percent,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (-0.0, "0"),
        (9.0, "9"),
        (9999, "9999"),
        (12345, "12,345"),
        (1234567.0, "1,234,567"),
        (1234.567, "1235"),
        (12345.6, "12,346"),
        (123456.7, "1.235e5"),
        (0.5, "0.5"),
        (0.0312492, "0.03125"),
        (0.001, "0.001"),
        (0.00012345, "1.234e-4"),
        (-3.2e-7, "-3.2e-7"),
        (1e20, "1e20"),
        (10**400, "1e400"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (math.nan, "NaN"),
        (5e-324, "4.941e-324"),
    ],
)
def test_number_text(value: float | None, text: str) -> None:
    assert number_text(value) == text


def test_numbers_no_float_and_no_text_can_hold() -> None:
    assert number_text(-3 * 10**6000) == "-3e6000"


def test_number_html() -> None:
    assert number_html(-math.inf) == "−∞"
    assert number_html(-1e-8) == "−10<sup>−8</sup>"
    assert number_html(3.25e12 + 0.5).endswith("10<sup>12</sup>")


def test_enough_digits() -> None:
    assert enough_digits(1.0, 2.0) == 4
    assert enough_digits(1.0, math.nextafter(1.0, 2.0)) == 17
    assert enough_digits(math.inf, 1.0) == 4
    assert enough_digits(math.nan, 1.0) == 4


def test_durations_and_percentages() -> None:
    assert duration(59.97) == "1 min 0 s"
    assert duration(0.999) == "1.0 s"
    assert duration(math.nan) == "unknown"
    assert percent(0.9973) == "99.73 %"
