"""Multiplications by formulas are those that torch's own counter finds."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.tracing.architectures import ALL_NAMES, architecture
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from torchtheory.tracing.multiplications import multiplications
from torchtheory.tracing.operation_counts import count_operations
from torchtheory.tracing.recorder import record
from torchtheory.training.backpropagation.chain import pull_back

#: torch's counter does not see into these.
_FUSED = ("lstm", "gru")


@pytest.mark.parametrize("name", [n for n in ALL_NAMES if n not in _FUSED])
def test_equal_to_torchs_counter(name: str) -> None:
    a = architecture(name)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            torch.no_grad(),
            sdpa_kernel(SDPBackend.MATH),
            FlopCounterMode(display=False) as counter,
        ):
            a.model(a.x)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    network = record(a.model, a.x)
    assert sum(multiplications(op, len(a.x)) for op in network) == counter.get_total_flops() // 2
    assert count_operations(a.model, a.x) == counter.get_total_flops()


def test_the_way_back_is_counted_as_torch_counts_it() -> None:
    a = architecture("u-net")
    back = partial(pull_back, record(a.model, a.x))
    delta = torch.ones_like(a.model(a.x)).detach()
    with FlopCounterMode(display=False) as counter:
        back(a.x, delta)
    assert count_operations(back, a.x, delta) == counter.get_total_flops()


def test_products_that_have_no_count_are_written_out() -> None:
    a, b = torch.ones(4, 2, 3), torch.ones(3, 5)
    assert count_operations(partial(torch.tensordot, dims=1), a, b) == 2 * 4 * 2 * 3 * 5
    assert count_operations(torch.inner, a, b.T) == 2 * 4 * 2 * 3 * 5


def test_a_chain_of_matrices_in_the_cheapest_order() -> None:
    matrices = [torch.ones(s) for s in ((7, 2), (2, 6), (6, 3), (3, 9))]
    with FlopCounterMode(display=False) as counter:
        torch.linalg.multi_dot(matrices)
    assert count_operations(torch.linalg.multi_dot, matrices) == counter.get_total_flops()


def test_recurrent_layers_multiply_by_every_weight_at_every_step() -> None:
    layer = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
    network = record(layer, torch.zeros(2, 7, 6))
    once = 2 * (20 * 6 + 20 * 5) + 2 * (20 * 10 + 20 * 5)
    assert sum(multiplications(op, 3) for op in network) == 3 * 7 * once


def test_einsum_multiplies_over_all_its_indices() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.einsum("bij,bjk->bik", x, x.mT) + torch.einsum(
                "...j,jk", x, torch.ones(4, 3)
            )

    network = record(Net(), torch.zeros(2, 3, 4))
    assert sum(multiplications(op, 5) for op in network) == 5 * 3 * 4 * 3 + 5 * 3 * 4 * 3
