"""What an installation is made of."""

from __future__ import annotations

import torch

from torchtheory.labs.engine.registry import labs

from .calls import Call


def test_doctor(call: Call) -> None:
    data = call("doctor", "--json").json
    assert set(data) == {"versions", "machine", "data", "labs"}
    assert data["versions"]["torch"] == torch.__version__
    assert data["labs"]["registered"] == len(labs())
    assert "torch threads" in call("doctor").out
