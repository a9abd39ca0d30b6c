"""Labs of approximation: their smallest sizes, and promises that are wrong turn them red."""

from __future__ import annotations

from typing import Any

import pytest

from torchtheory.core.errors import InvalidInput
from torchtheory.labs.approximation import fixed_basis, label_coding, risk_decomposition
from torchtheory.labs.engine.run import run_lab


def test_labels_of_sines_at_their_smallest_number() -> None:
    assert run_lab("label-coding", settings={"sines": 29}).problems == []
    with pytest.raises(InvalidInput, match="sines must lie in the range 29 to 40, not 20"):
        run_lab("label-coding", settings={"sines": 20})


@pytest.mark.parametrize(
    ("lab", "module", "name", "factor"),
    [
        ("label-coding", label_coding, "weights_vc_bound", 1 / 4000),
        ("risk-decomposition", risk_decomposition, "loss_lipschitz", 0.5),
        ("adaptive-against-fixed-basis", fixed_basis, "fixed_basis_floor", 2.0),
        ("adaptive-against-fixed-basis", fixed_basis, "fixed_basis_floor", 0.5),
    ],
)
def test_wrong_constants_turn_labs_red(
    lab: str, module: Any, name: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **kwargs: factor * right(*args, **kwargs))
    assert run_lab(lab).problems
