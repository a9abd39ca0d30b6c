"""Networks drawn anew: by the layers' own rules, without a trace on the old one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchtheory.core.errors import InvalidType, UnsupportedModel
from torchtheory.nets.fresh_weights import drawn_anew


def test_draws_what_torch_draws_at_that_seed() -> None:
    old = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    torch.manual_seed(7)
    made = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    for p, q in zip(drawn_anew(old, 7).parameters(), made.parameters(), strict=True):
        assert torch.equal(p, q)


def test_the_old_network_and_the_generators_stay() -> None:
    old = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    before = {k: v.clone() for k, v in old.state_dict().items()}
    state = torch.get_rng_state()
    drawn_anew(old, 0)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in old.state_dict().items())


def test_averages_of_batches_are_forgotten() -> None:
    old = nn.BatchNorm1d(2)
    old(torch.randn(8, 2) + 5)
    assert old.running_mean is not None
    assert float(old.running_mean.max()) > 0
    assert float(drawn_anew(old, 0).get_buffer("running_mean").abs().max()) == 0


def test_shared_weights_stay_shared() -> None:
    layer = nn.Linear(2, 2)
    new = drawn_anew(nn.Sequential(layer, nn.ReLU(), layer), 0)
    assert new.get_submodule("0") is new.get_submodule("2")


def test_refuses_what_has_no_rule() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

    with pytest.raises(UnsupportedModel, match="weight belongs to no layer with reset_parameters"):
        drawn_anew(Own(), 0)
    with pytest.raises(InvalidType, match="not 3"):
        drawn_anew(3, 0)  # type: ignore[arg-type]
