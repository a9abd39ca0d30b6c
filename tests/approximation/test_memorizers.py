"""Networks through given points: exact, counted, refused where impossible."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.approximation.memorization.convolutional import (
    convolutional_interpolant,
    pooled_network,
)
from torchtheory.approximation.memorization.networks import (
    inverse_certificate,
    line_memorizer,
    memorizer_parameters,
    shallow_memorizer,
)
from torchtheory.approximation.memorization.sontag import sontag_interpolant
from torchtheory.core.errors import (
    InvalidInput,
    NonFinite,
    NotConverged,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.core.random import as_generator


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=as_generator(seed))


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(1, 15),
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from(["relu", "tanh", "logistic", "gaussian", "softplus"]),
)
def test_memorizers_fit_and_are_counted(seed: int, m: int, d: int, k: int, name: str) -> None:
    x, y = normal(seed, m, d), normal(seed + 1, m, k)
    for line, make in ((False, shallow_memorizer), (True, line_memorizer)):
        made = make(x, y, name, generator=seed)
        apart = float((made.network(x) - y).abs().max())
        assert apart == pytest.approx(made.residual, rel=0.1, abs=1e-12)
        assert made.residual <= 1e-8 * made.condition
        assert made.parameters == memorizer_parameters(m, d, k, line=line, relu=name == "relu")
        assert made.condition == pytest.approx(np.linalg.cond(made.matrix.numpy()), rel=1e-3)


@pytest.mark.parametrize("name", ["relu", "tanh", "gaussian"])
def test_memorizers_of_forty_points(name: str) -> None:
    x, y = normal(8, 40, 5), normal(9, 40, 2)
    for make in (shallow_memorizer, line_memorizer):
        torch.testing.assert_close(make(x, y, name, generator=3).network(x), y, atol=1e-8, rtol=0)
        single = make(x[:1], y[:1], name)
        torch.testing.assert_close(single.network(x[:1]), y[:1])


def test_relu_matrix_is_triangular_by_hand() -> None:
    x = torch.tensor([[2.0], [0.0], [1.0]]).double()
    made = shallow_memorizer(x, torch.tensor([5.0, 3.0, 4.0]), "relu")
    t = x @ made.network[0].weight[0]
    order = t.argsort()
    a = made.matrix[order][:, order]
    assert bool((a.tril(-1) == 0).all())
    assert bool((a.diagonal() > 0).all())


def test_equal_inputs_with_equal_labels_are_one_point() -> None:
    x, y = normal(3, 6, 2), normal(4, 6, 3)
    order = torch.tensor([4, 0, 1, 4, 2, 3, 0, 5])
    for make in (shallow_memorizer, line_memorizer):
        made = make(x[order], y[order], generator=0)
        assert made.matrix.shape == (6, 6)
        torch.testing.assert_close(made.network(x), y, atol=1e-6, rtol=1e-6)


def test_memorizers_refuse() -> None:
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0]]).double()
    for make in (shallow_memorizer, line_memorizer):
        with pytest.raises(InvalidInput, match="are equal and have different labels"):
            make(x, torch.tensor([0.0, 1.0]))
        with pytest.raises(ShapeMismatch):
            make(x, torch.tensor([0.0, 1.0, 2.0]))
    with pytest.raises(NotConverged, match="polynomial"):
        shallow_memorizer(normal(0, 20, 1), normal(1, 20), "linear")
    with pytest.raises(InvalidInput):
        inverse_certificate(torch.ones(2, 3), torch.ones(3, 3))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), st.floats(0.01, 0.99))
def test_certificate_is_a_lower_bound(seed: int, m: int, size: float) -> None:
    noise = 2 * torch.rand(m, m, dtype=torch.float64, generator=as_generator(seed)) - 1
    product = torch.eye(m).double() + size / m * noise
    certified = inverse_certificate(product, torch.eye(m).double())
    assert 0 < certified <= float(torch.linalg.svdvals(product)[-1]) + 1e-12


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(1, 12),
    st.sampled_from([1e-1, 1e-4]),
    st.sampled_from(["logistic", "tanh"]),
    st.floats(-50, 50),
)
def test_sontag_keeps_its_promise(seed: int, n: int, error: float, name: str, far: float) -> None:
    steps = 0.2 + torch.rand(2 * n + 1, dtype=torch.float64, generator=as_generator(seed))
    x, y = far + steps.cumsum(0), normal(seed, 2 * n + 1)
    made = sontag_interpolant(x.flip(0), y, error, activation=name)  # type: ignore[arg-type]
    assert made.units == n + 1
    assert made.residual <= error * (1 + 1e-3)
    direct = (made.network(x.flip(0)[:, None])[:, 0] - y).abs().max()
    assert float(direct) == pytest.approx(made.residual, rel=1e-6, abs=1e-9)


def test_sontag_refuses() -> None:
    x = torch.tensor([0.0, 1.0, 1.0])
    with pytest.raises(InvalidInput, match="same x"):
        sontag_interpolant(x, x, 0.1)
    with pytest.raises(ShapeMismatch):
        sontag_interpolant(x[:2], x[:2], 0.1)
    with pytest.raises(NonFinite):
        sontag_interpolant(torch.tensor([0.0, 1.0, float("nan")]), x, 0.1)
    with pytest.raises(UnknownName):
        sontag_interpolant(torch.arange(3.0), x, 0.1, activation="relu")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        sontag_interpolant(torch.arange(3.0), x, 0.0)


def test_sontag_of_constant_values() -> None:
    made = sontag_interpolant(torch.arange(5.0), torch.ones(5), 1e-3)
    assert made.residual <= 1e-3


def test_convolutional_fit_needs_the_width() -> None:
    x, y = normal(3, 24, 2, 7, 7), normal(4, 24, 2)
    wide = convolutional_interpolant(x, y, (3, 24), generator=0)
    assert wide.rank == 24
    assert wide.residual < 1e-8
    # two sides of (7 - 3 + 1) // 2 - 1 = 1 leave one neuron a channel
    narrow = convolutional_interpolant(x, y, (3, 23), generator=0)
    assert narrow.rank == 23
    assert narrow.residual > 1e-3
    state = torch.random.get_rng_state()
    pooled_network((1, 8, 8), (2, 2), generator=1)
    assert torch.equal(state, torch.random.get_rng_state())
    with pytest.raises(ShapeMismatch):
        convolutional_interpolant(x[0], y, (3, 8))
    with pytest.raises(InvalidInput, match="too small"):
        pooled_network((1, 4, 4), (2, 2))
    assert isinstance(wide.model, nn.Sequential)
