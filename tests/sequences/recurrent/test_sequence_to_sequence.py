"""Sequence-to-sequence networks: factors, sampling, alignment, refused symbols."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.sequences.recurrent.sequence_to_sequence import (
    AdditiveAttention,
    Seq2Seq,
    greedy,
    sample,
    sequence_logprob,
)


def symbols(count: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("attention", [True, False])
def test_probabilities_sum_to_one(attention: bool) -> None:
    model = Seq2Seq(4, 3, 6, attention=attention)
    every = torch.cartesian_prod(*[torch.arange(3)] * 3)
    x = symbols(4, 1, 5).expand(27, -1)
    assert float(sequence_logprob(model, x, every).exp().sum().detach()) == pytest.approx(
        1, abs=1e-12
    )


@pytest.mark.parametrize("attention", [True, False])
def test_outputs_do_not_see_what_comes_later(attention: bool) -> None:
    model = Seq2Seq(4, 3, 6, attention=attention)
    x, previous = symbols(4, 2, 5), symbols(3, 2, 6, seed=1)
    changed = previous.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 3
    a, b = model(x, previous), model(x, changed)
    assert torch.equal(a[:, :4], b[:, :4])
    assert not torch.allclose(a[:, 4:], b[:, 4:])


def test_samples_have_their_probabilities() -> None:
    model = Seq2Seq(4, 2, 6)
    with torch.no_grad():
        model.head.weight.mul_(5)
    x = symbols(4, 1, 5)
    pairs = torch.cartesian_prod(torch.arange(2), torch.arange(2))
    chances = sequence_logprob(model, x.expand(4, -1), pairs).detach().exp()
    draws = 20_000
    found = sample(model, x.expand(draws, -1), 2, generator=3)
    counts = torch.bincount(2 * found[:, 0] + found[:, 1], minlength=4).double()
    # five deviations of each frequency
    error = (counts / draws - chances).abs() / (chances * (1 - chances) / draws).sqrt()
    assert float(error.max()) < 5


def test_greedy_takes_the_likeliest_symbol_after_its_own() -> None:
    model = Seq2Seq(4, 3, 6)
    x = symbols(4, 7, 5)
    found = greedy(model, x, 6)
    wanted = model(x, model.after_start(found)).argmax(-1)
    assert torch.equal(found, wanted)


def test_attention_by_hand() -> None:
    layer = AdditiveAttention(2, 3, 4)
    z, memory = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)).double(), None
    memory, z = z, torch.ones(2, 2).double()
    context, weights = layer(z, memory)
    scores = torch.stack(
        [
            torch.tanh(z @ layer.of_state.weight.T + memory[:, j] @ layer.of_memory.weight.T)
            @ layer.score.weight[0]
            for j in range(5)
        ],
        1,
    )
    torch.testing.assert_close(weights, scores.softmax(1))
    torch.testing.assert_close(context, torch.einsum("bj,bjk->bk", weights, memory))


def test_alignment_rows_and_its_refusal() -> None:
    model = Seq2Seq(4, 3, 6)
    x, previous = symbols(4, 2, 5), symbols(3, 2, 6)
    weights = model.alignment(x, previous)
    assert weights.shape == (2, 6, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 6).double())
    with pytest.raises(InvalidInput, match="no attention"):
        Seq2Seq(4, 3, 6, attention=False).alignment(x, previous)


def test_weights_follow_the_seed_and_nothing_else() -> None:
    before = torch.random.get_rng_state()
    one, two, three = (Seq2Seq(4, 3, 6, generator=s) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    x, y = symbols(4, 2, 5), symbols(3, 2, 4)
    assert torch.equal(one(x, y), two(x, y))
    assert not torch.equal(one(x, y), three(x, y))
    assert torch.equal(copy.deepcopy(one)(x, y), one(x, y))


def test_it_learns_to_copy() -> None:
    model = Seq2Seq(3, 3, 12, dtype=torch.float32)
    source = torch.Generator().manual_seed(0)
    step = torch.optim.Adam(model.parameters(), lr=0.02)
    first = last = math.nan
    for k in range(80):
        x = torch.randint(3, (32, 3), generator=source)
        loss = -sequence_logprob(model, x, x).mean()
        step.zero_grad()
        loss.backward()
        step.step()
        last = float(loss.detach())
        first = last if k == 0 else first
    assert last < 0.3 * first


def test_symbols_out_of_range_are_refused() -> None:
    model = Seq2Seq(4, 3, 6)
    good = symbols(3, 2, 5)
    with pytest.raises(InvalidInput, match="symbol 4"):
        model(good + 2, good)
    with pytest.raises(InvalidInput, match="symbol -1"):
        model(good - 1 - good, good)
    with pytest.raises(InvalidType, match="long"):
        model(good.double(), good)
    with pytest.raises(ShapeMismatch, match="steps"):
        model(good[0], good)
    with pytest.raises(EmptyData):
        model(good[:, :0], good)
    with pytest.raises(InvalidInput, match="y has the symbol"):
        sequence_logprob(model, good, good + 3)
    with pytest.raises(InvalidInput, match="even"):
        Seq2Seq(4, 3, 5)
    with pytest.raises(InvalidInput, match="length"):
        greedy(model, good, 0)
