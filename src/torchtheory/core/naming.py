"""Names of labs, findings, tables and figures."""

from __future__ import annotations

import re
from collections.abc import Callable

from torchtheory.core.errors import InvalidInput


def check_name(name: str, kind: str) -> None:
    """Names become file names: refuse anything else."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise InvalidInput(f"a {kind} is named by lower-case words and hyphens, not {name!r}")


def same_function(old: Callable[..., object], new: Callable[..., object]) -> bool:
    """Whether one is the other defined again, as when a notebook's cell is run twice."""
    return (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)
