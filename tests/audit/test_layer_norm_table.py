"""The table of layer norms of networks that are no chain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtheory.audit.findings import robustness
from torchtheory.models.problem import Problem


class Shortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(x + self.first(x))
        return result


class Tables:
    """Takes down what a finding tabulates."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.caption = ""

    def table(self, name: str, columns: Any, rows: list[Any], caption: str) -> None:
        self.rows, self.caption = rows, caption


@pytest.mark.parametrize(("left", "layers"), [([8.0, 8.0, 8.0], 2), ([8.0, 8.0, 3.0], 1)])
def test_layers_that_there_was_no_time_for_are_said_to_be_missing(
    left: list[float], layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    problem = Problem(Shortcut(), (torch.randn(8, 3), torch.randint(0, 2, (8,))))
    times = iter(left)
    monkeypatch.setattr(robustness, "time_left", lambda: next(times))
    made: Any = Tables()
    robustness._tabulate_norms(problem, made)
    assert [row[0] for row in made.rows] == ["first", "second"][:layers]
    assert ("no time for the layers behind these" in made.caption) == (layers == 1)
