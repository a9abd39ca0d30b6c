"""Parameters at which a hypothesis breaks or a control has no power: refused, or not applicable."""

from __future__ import annotations

import pytest

from torchtheory.core.claim import Verdict
from torchtheory.core.errors import InvalidInput
from torchtheory.labs.engine.run import run_lab


@pytest.mark.parametrize(
    ("lab", "parameter", "value"),
    [
        ("dense-blocks", "layers", 1),
        ("receptive-fields", "draws", 10),
        ("receptive-fields", "channels", 8),
        ("moment-rules", "depth", 1),
        ("moment-rules", "depth", 9),
        ("primer-derivatives", "size", 3),
        ("primer-norms", "trials", 2),
        ("primer-smoothness", "dim", 1),
        ("empirical-risk", "samples", 1),
        ("label-smoothing", "smoothing", 0.0),
        ("trainer", "samples", 1),
        ("mlp-from-scratch", "rate", 4.5),
    ],
)
def test_sizes_without_power_are_refused(lab: str, parameter: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"^{parameter}|{parameter} x|x {parameter}"):
        run_lab(lab, settings={parameter: value})


def test_a_stride_that_does_not_divide_the_ring_has_nothing_to_say() -> None:
    found = run_lab("shift-equivariance", settings={"size": 9, "inputs": 2})
    assert not found.problems
    (idle,) = [c for c in found.claims if c.verdict is Verdict.NOT_APPLICABLE]
    assert "does not divide a ring of 9" in idle.reason
