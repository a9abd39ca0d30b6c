"""The McCulloch-Pitts neuron against its definition and its count."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtheory.core.errors import InvalidInput, InvalidType, TorchTheoryError
from torchtheory.neurons.threshold_neuron import (
    ThresholdNeuron,
    boolean_inputs,
    count_neuron_functions,
    logic_gate,
    neuron_functions,
    truth_table,
)


@given(
    st.lists(st.sampled_from([-1, 1]), min_size=1, max_size=6),
    st.floats(-7, 7, allow_nan=False),
)
def test_the_neuron_is_its_definition(signs: list[int], threshold: float) -> None:
    bits = list(itertools.product([0, 1], repeat=len(signs)))
    expected = [
        int(sum(s * b for s, b in zip(signs, row, strict=True)) >= threshold) for row in bits
    ]
    table = truth_table(ThresholdNeuron(torch.tensor(signs), threshold))
    assert table.tolist() == expected


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_gates(n: int) -> None:
    bits = boolean_inputs(n).bool()
    assert torch.equal(truth_table(logic_gate("and", n)).bool(), bits.all(1))
    assert torch.equal(truth_table(logic_gate("or", n)).bool(), bits.any(1))
    assert torch.equal(truth_table(logic_gate("nand", n)).bool(), ~bits.all(1))
    assert torch.equal(truth_table(logic_gate("nor", n)).bool(), ~bits.any(1))
    assert truth_table(logic_gate("not", 1)).tolist() == [1, 0]


@pytest.mark.parametrize(("n", "count"), [(1, 4), (2, 10), (3, 26), (4, 66), (6, 386)])
def test_number_of_functions(n: int, count: int) -> None:
    assert len(neuron_functions(n)) == count == count_neuron_functions(n)


def test_xor_and_the_projection_are_not_among_them() -> None:
    found = {tuple(row) for row in neuron_functions(2).int().tolist()}
    assert (0, 1, 1, 0) not in found
    assert (1, 0, 0, 1) not in found
    assert (0, 0, 1, 1) not in found
    assert (0, 0, 0, 1) in found


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_output_follows_the_input(dtype: torch.dtype) -> None:
    neuron = logic_gate("or", 3)
    x = boolean_inputs(3).to(dtype).reshape(2, 4, 3)
    assert neuron(x).dtype == dtype
    assert neuron(x).shape == (2, 4)


def test_bad_input_is_refused() -> None:
    for make in (
        lambda: ThresholdNeuron(torch.tensor([1, 0]), 1),
        lambda: ThresholdNeuron(torch.tensor([[1, 1]]), 1),
        lambda: ThresholdNeuron(torch.tensor([]), 1),
        lambda: ThresholdNeuron(torch.tensor([1]), float("nan")),
        lambda: ThresholdNeuron([1, 1], 1),
        lambda: logic_gate("and", 2)(torch.tensor([0.5, 1.0])),
        lambda: logic_gate("and", 2)(torch.tensor([1, 1, 1])),
        lambda: logic_gate("xor", 2),
        lambda: logic_gate("not", 2),
        lambda: neuron_functions(11),
        lambda: neuron_functions(0),
        lambda: boolean_inputs(25),
    ):
        with pytest.raises(TorchTheoryError):
            make()
    with pytest.raises(InvalidInput, match="other weights"):
        ThresholdNeuron(torch.tensor([1, 2]), 0)
    with pytest.raises(InvalidType):
        logic_gate("or", 2)([0, 1])
