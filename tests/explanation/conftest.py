from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchtheory.core.figure import Figure
from torchtheory.explanation import ledger_flow
from torchtheory.explanation.pages import pictures


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """The axes of what was drawn last."""
    from matplotlib.figure import Figure as Canvas

    last: list[Any] = []

    def draw(name: str, plot: Any, *, caption: str, grid: Any = (1, 1), size: Any) -> Figure:
        axes = Canvas(figsize=size).subplots(*grid, squeeze=False)
        plot(axes[0, 0] if grid == (1, 1) else axes)
        last[:] = [axes]
        return Figure(name, caption, None, b"")

    for module in (ledger_flow, pictures):
        monkeypatch.setattr(module, "draw", draw)
    return lambda: last[0]
