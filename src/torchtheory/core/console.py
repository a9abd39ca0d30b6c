"""The parts of rich that the library uses, imported without a trace.

rich draws from Python's global generator when it is imported; it is put back here, so whatever is
shown to a terminal comes from this module.
"""

import random

_before = random.getstate()

from rich import box  # noqa: E402
from rich.console import Console, ConsoleOptions, Group, RenderableType  # noqa: E402
from rich.padding import Padding  # noqa: E402
from rich.progress import (  # noqa: E402
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment  # noqa: E402
from rich.table import Table as Grid  # noqa: E402
from rich.text import Text  # noqa: E402

random.setstate(_before)

__all__ = [
    "BarColumn",
    "Console",
    "ConsoleOptions",
    "Grid",
    "Group",
    "MofNCompleteColumn",
    "Padding",
    "Progress",
    "RenderableType",
    "Segment",
    "Text",
    "TextColumn",
    "TimeRemainingColumn",
    "box",
]
