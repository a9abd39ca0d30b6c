"""Codes of functions and of networks."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.approximation.network_calculus import chain
from torchtheory.approximation.rates.code_length import (
    LipschitzCodec,
    cartoon_packing,
    code_length_bounds,
    decode_network,
    encode_network,
    minimum_weights_from_bits,
    network_bits,
    smooth_packing,
)
from torchtheory.core.errors import InvalidInput, NonFinite
from torchtheory.nets.feedforward import affine_layers


def test_a_code_by_hand() -> None:
    # start cells of width 1/2 around -3/4, -1/4, 1/4, 3/4: f(0) = 0 starts at 1/4, cell 2
    codec = LipschitzCodec(0.25)
    assert codec.encode(lambda x: x) == "10" + "1111"
    line = codec.decode("100011")
    assert line(torch.tensor([0.0, 0.25, 0.5, 1.0]).double()).tolist() == [0.25, 0.0, -0.25, 0.25]


@settings(max_examples=40, deadline=None)
@given(
    error=st.floats(0.01, 0.6), rho=st.floats(0.2, 4.0), start=st.floats(-1, 1),
    frequency=st.floats(0.1, 30), phase=st.floats(0, 6),
)  # fmt: skip
def test_the_codec_keeps_its_promise(
    error: float, rho: float, start: float, frequency: float, phase: float
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        wave = torch.sin(frequency * x + phase) - math.sin(phase)
        return start + rho / frequency * wave

    codec = LipschitzCodec(error, lipschitz=rho)
    code = codec.encode(f)
    assert len(code) == codec.bits
    x = torch.linspace(0, 1, 1501, dtype=torch.float64)
    assert float((codec.decode(code)(x) - f(x)).abs().max()) <= error * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(q=st.integers(1, 20), error=st.floats(0.05, 3.0), seed=st.integers(0, 10**6))
def test_packing_is_below_covering(q: int, error: float, seed: int) -> None:
    values = torch.randn(q, 6, generator=torch.Generator().manual_seed(seed)).double()
    low, high = code_length_bounds(values, error)
    assert 0 <= low <= high <= math.ceil(math.log2(q)) if q > 1 else (low, high) == (0, 0)


def test_packings_have_the_exponents_of_their_classes() -> None:
    a, b = smooth_packing(10, 2, 3), smooth_packing(20, 2, 3)
    assert math.log(b.bits / a.bits) / math.log(a.error / b.error) == pytest.approx(3 / 2)
    a, b = cartoon_packing(10, 2, 3), cartoon_packing(20, 2, 3)
    assert math.log(b.bits / a.bits) / math.log(a.error / b.error) == pytest.approx(2.0)


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 5), min_size=2, max_size=4), bits=st.integers(2, 9),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_networks_come_back(widths: list[int], bits: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    half = 2 ** (bits - 1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(-half, half, shape, generator=generator).double() / 8

    maps = [(draw(b, a), draw(b)) for a, b in pairwise(widths)]
    net = chain(maps, [nn.ReLU() for _ in maps[1:]])
    code = encode_network(net, bits, 1 / 8)
    assert len(code) == network_bits(net, bits).total
    again, _ = affine_layers(decode_network(code, bits, 1 / 8, nn.ReLU()))
    for (w, b), (v, c) in zip(maps, again, strict=True):
        assert torch.equal(w, v)
        assert torch.equal(b, c)


@given(length=st.integers(1, 10**9), bits=st.integers(1, 32), inputs=st.integers(1, 1000))
def test_the_least_weights_are_the_first_that_hold_the_bits(
    length: int, bits: int, inputs: int
) -> None:
    def held(m: int) -> int:
        return m * (2 * math.ceil(math.log2(m + inputs + 2)) + bits)

    m = minimum_weights_from_bits(length, bits, inputs)
    assert held(m) >= length
    assert m == 1 or held(m - 1) < length


def test_bad_input() -> None:
    net = chain([(torch.ones(1, 1).double() * 0.3, torch.zeros(1).double())], [])
    with pytest.raises(InvalidInput, match="no multiples"):
        encode_network(net, 8, 0.25)
    with pytest.raises(InvalidInput, match="do not hold"):
        encode_network(chain([(torch.ones(1, 1).double() * 9, torch.zeros(1).double())], []), 3, 1)
    with pytest.raises(InvalidInput, match="string of 0 and 1"):
        decode_network("01x", 8, 0.25, nn.ReLU())
    with pytest.raises(InvalidInput, match="should have"):
        decode_network("0" * 63 + "1", 8, 0.25, nn.ReLU())
    with pytest.raises(NonFinite):
        network_bits(chain([(torch.ones(1, 1) * torch.inf, torch.zeros(1))], []), 8)
    with pytest.raises(InvalidInput, match=r"f\(0\)"):
        LipschitzCodec(0.1).encode(lambda x: x + 2)
    with pytest.raises(InvalidInput, match="characters 0 or 1"):
        LipschitzCodec(0.25).decode("0101")
    with pytest.raises(InvalidInput, match="ten million"):
        LipschitzCodec(1e-9)
