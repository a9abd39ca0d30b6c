"""Amounts of memory as people write them."""

from __future__ import annotations

import re

from torchtheory.core.errors import InvalidInput

_UNITS = {
    unit: base**power
    for base, names in (
        (1000, ("B", "KB", "MB", "GB", "TB")),
        (1024, ("B", "KIB", "MIB", "GIB", "TIB")),
    )
    for power, unit in enumerate(names)
}


def bytes_of(amount: str | int) -> int:
    """A number of bytes from `"2GiB"`, `"500 MB"` or a plain number of bytes.

    >>> bytes_of("2GiB"), bytes_of("1.5 kB"), bytes_of(64)
    (2147483648, 1500, 64)
    """
    if isinstance(amount, int) and not isinstance(amount, bool):
        count = amount
    else:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", str(amount).upper())
        if found is None:
            raise InvalidInput(
                f"memory must be a number of bytes or an amount such as '2GiB' or '500MB', "
                f"not {amount!r}"
            )
        count = int(float(found[1]) * _UNITS[found[2]])
    if count < 1:
        raise InvalidInput(f"memory must be positive, not {amount!r}")
    return count
