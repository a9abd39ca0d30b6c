"""Samples made to order keep what they promise."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtheory.core.errors import InvalidInput
from torchtheory.data.synthetic import (
    linear_sample,
    logistic_sample,
    separable_gaussians,
    unit_vectors,
    xor,
)


@given(st.integers(0, 1000), st.floats(0, 2), st.floats(-1, 1))
@settings(max_examples=50, deadline=None)
def test_the_margin_is_kept(seed: int, margin: float, bias: float) -> None:
    x, y, w, b = separable_gaussians(30, 3, margin=margin, bias=bias, generator=seed)
    assert float(w.norm()) == pytest.approx(1)
    assert float((y * (x @ w + b)).min()) >= margin - 1e-12
    assert set(y.tolist()) <= {-1.0, 1.0}


def test_seeds_and_generators() -> None:
    a, b = (separable_gaussians(5, 2, margin=0.1, generator=3) for _ in range(2))
    assert torch.equal(a.x, b.x)
    state = torch.random.get_rng_state()
    g = torch.Generator().manual_seed(3)
    assert torch.equal(separable_gaussians(5, 2, margin=0.1, generator=g).x, a.x)
    assert not torch.equal(separable_gaussians(5, 2, margin=0.1, generator=g).x, a.x)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype(dtype: torch.dtype) -> None:
    for sample in (
        xor(dtype),
        unit_vectors(3, dtype),
        separable_gaussians(4, 2, margin=0.1, dtype=dtype),
        logistic_sample(4, 2, dtype=dtype),
        linear_sample(4, 2, dtype=dtype),
        linear_sample(4, 3, rank=2, dtype=dtype),
    ):
        assert all(part.dtype == dtype for part in sample)


def test_logistic_frequencies() -> None:
    # with no signal labels are fair coins: 5 standard deviations of 20 000 of them
    y = logistic_sample(20_000, 2, signal=0.0, generator=0).y
    assert abs(float(y.mean()) - 0.5) < 5 * 0.5 / math.sqrt(20_000)


def test_linear_model() -> None:
    x, y, w, _ = linear_sample(7, 3, noise=0.0, generator=2)
    assert torch.allclose(x @ w, y)
    assert int(torch.linalg.matrix_rank(linear_sample(9, 5, rank=2).x)) == 2


def test_bad_input_is_refused() -> None:
    for call in (
        lambda: separable_gaussians(0, 2, margin=0.1),
        lambda: separable_gaussians(3, 0, margin=0.1),
        lambda: separable_gaussians(3, 2, margin=-0.1),
        lambda: separable_gaussians(3, 2, margin=math.nan),
        lambda: separable_gaussians(3, 2, margin=0.1, bias=math.inf),
        lambda: unit_vectors(0),
        lambda: logistic_sample(3, 2, signal=-1.0),
        lambda: linear_sample(3, 2, noise=-1.0),
        lambda: linear_sample(3, 2, rank=3),
        lambda: linear_sample(2.5, 2),
    ):
        with pytest.raises(InvalidInput):
            call()
