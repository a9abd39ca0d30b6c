"""Tiles cover a block of the kernel once, and with their mirror images once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtheory.kernels.tangent.kernel import _tiles


@given(
    n=st.integers(1, 60),
    m=st.integers(1, 60),
    tile=st.integers(1, 70),
    share=st.integers(1, 70),
    mirrored=st.booleans(),
)
def test_every_entry_once(n: int, m: int, tile: int, share: int, mirrored: bool) -> None:
    plan: Any = SimpleNamespace(tile=tile, on_diagonal=min(tile, share))
    m = n if mirrored else m
    met = torch.zeros(n, m, dtype=torch.int)
    for r, s in _tiles(n, m, plan, mirrored=mirrored):
        assert 0 < r.stop - r.start <= tile
        assert 0 < s.stop - s.start <= tile
        met[r, s] += 1
        if mirrored and r != s:
            assert r.stop <= s.start
            met[s, r] += 1
    assert (met == 1).all()
