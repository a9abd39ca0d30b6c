"""Amounts of memory: as people write them, and what this machine has to spare."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

from torchtheory.core.errors import InvalidInput, TorchTheoryError

# Where Linux says how much a container may have.
_CONTAINER = Path("/sys/fs/cgroup/memory.max")

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
        count = int(Decimal(found[1]) * _UNITS[found[2]])
    if count < 1:
        raise InvalidInput(f"memory must be positive, not {amount!r}")
    return min(count, sys.maxsize)  # more than any machine has, and no integer of C overflows


def spare_memory() -> int:
    """Bytes that one thing from outside may take: half of what this process can ever have.

    That is the memory of the machine, of the container or of the limit that a shell set, whichever
    is least.
    """
    limits = []
    with suppress(AttributeError, ValueError, OSError):  # Windows does not tell
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(ValueError, OSError):  # no container, or one without a limit
        limits.append(int(_CONTAINER.read_text()))
    with suppress(ImportError):
        import resource  # not on Windows

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft)
    return min((n for n in limits if n > 0), default=bytes_of("8GiB")) // 2


def refuse_too_large(count: int, what: str, error: type[TorchTheoryError] = InvalidInput) -> None:
    """Refuse what would take more bytes than there are to spare, before any of it is made.

    Args:
        count: of bytes.
        what: in words, to stand before "would take".
        error: the class of the sentence; `FileProblem` for what a file holds.

    >>> refuse_too_large(10**15, "a grid of 50^9 points")
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: a grid of 50^9 points would take 931,322 ...
    """
    if count > spare_memory():
        size = f"{count // 2**30:,} GiB" if count < 2**80 else "over 2**80 bytes"
        raise error(f"{what} would take {size}, more than this machine has to spare")


def resident_memory(*, peak: bool = False) -> int:
    """Bytes of this process that are in memory now, or the most there were.

    >>> 0 < resident_memory() <= resident_memory(peak=True)
    True
    """
    wanted = "VmHWM:" if peak else "VmRSS:"
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(wanted):
                return int(line.split()[1]) * 1024
    import resource  # where there is no /proc, the peak is what there is

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
