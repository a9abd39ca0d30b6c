"""Amounts of memory as people write them."""

from __future__ import annotations

import pytest

from torchtheory.core.errors import InvalidInput
from torchtheory.core.memory import bytes_of


@pytest.mark.parametrize(
    ("written", "count"),
    [("2GiB", 2**31), ("512 mib", 2**29), ("1.5GB", 1_500_000_000), ("7B", 7), (4096, 4096)],
)
def test_amounts(written: str | int, count: int) -> None:
    assert bytes_of(written) == count


@pytest.mark.parametrize("written", ["", "2", "GiB", "-1GB", "0B", 0, -5, True, "2 PB", None, 1.5])
def test_refused(written: object) -> None:
    with pytest.raises(InvalidInput, match="memory must be"):
        bytes_of(written)  # type: ignore[arg-type]
