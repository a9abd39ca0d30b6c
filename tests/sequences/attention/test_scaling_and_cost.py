"""The division by the root of the size, positions, and costs as they are counted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.sequences.attention.cost import cost_model, longest_chain
from torchtheory.sequences.attention.maps import token_jacobian
from torchtheory.sequences.attention.positions import (
    LearnedPositions,
    SinusoidalPositions,
    frequencies,
    shift_matrix,
    sinusoidal_encoding,
)
from torchtheory.sequences.attention.scaling import attention_scaling_study
from torchtheory.sequences.attention.transformers import LanguageModel, TransformerEncoder
from torchtheory.sequences.recurrent.cells import ElmanCell
from torchtheory.sequences.recurrent.networks import Recurrent
from torchtheory.tracing.operation_counts import count_operations


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- scaling ---------------------------------------------------------------------------------------


def test_statistics_by_hand() -> None:
    """With one key that is its query and the rest of them too, scores are all the same."""
    study = attention_scaling_study([3, 5], keys=4, queries=6, correlation=1.0)
    for found in (study.plain, study.scaled):
        assert torch.allclose(found.entropy, torch.full((2, 6), math.log(4)).double())
        # diag(1/4) - 1/16 has the eigenvalue 1/4 three times
        assert torch.allclose(found.gradient, torch.full((2, 6), math.sqrt(3) / 4).double())
    ratio = study.plain.square / study.scaled.square
    assert torch.allclose(ratio, torch.tensor([[3.0], [5.0]]).double().expand(2, 6))


def test_jacobian_is_the_softmax_own() -> None:
    study = attention_scaling_study([6], keys=5, queries=1, generator=3)
    draws = torch.randn(6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    scores = draws[1:] @ draws[0]
    for found, s in ((study.plain, scores), (study.scaled, scores / math.sqrt(6))):
        jacobian = torch.func.jacrev(lambda z: z.softmax(0))(s)
        assert torch.allclose(found.gradient[0, 0], torch.linalg.matrix_norm(jacobian))
        assert torch.allclose(found.square[0, 0], s.square().mean())
        a = s.softmax(0)
        assert torch.allclose(found.entropy[0, 0], -(a * a.log()).sum())


def test_study_is_drawn_and_refuses() -> None:
    study = attention_scaling_study([4, 8], keys=3, queries=5)
    assert study.figure().name == "attention-scaling"
    with pytest.raises(InvalidInput, match="correlation"):
        attention_scaling_study([4], correlation=2)
    with pytest.raises(InvalidInput, match=r"sizes\[1\]"):
        attention_scaling_study([4, 0])


# -- positions -------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(0, 3000), st.integers(-50, 50))
def test_three_identities(half: int, t: int, s: int) -> None:
    d = 2 * half
    p = sinusoidal_encoding(1, d, start=t)[0]
    moved = t + s if t + s >= 0 else t
    shift = moved - t
    q = sinusoidal_encoding(1, d, start=moved)[0]
    assert torch.isclose(p.square().sum(), torch.tensor(d / 2).double())
    assert torch.allclose(shift_matrix(shift, d) @ p, q, atol=1e-9)
    assert torch.isclose(p @ q, (frequencies(d) * shift).cos().sum(), atol=1e-9)


def test_first_rows() -> None:
    p = sinusoidal_encoding(2, 4)
    assert p[0].tolist() == [0, 1, 0, 1]
    expected = torch.tensor([0.841471, 0.540302, 0.0099998, 0.99995]).double()
    assert torch.allclose(p[1], expected, atol=1e-6)
    assert torch.allclose(sinusoidal_encoding(5, 6)[3:], sinusoidal_encoding(2, 6, start=3))
    # other bases, other frequencies: base 16 and width 4 are 1 and 1/4
    assert torch.allclose(frequencies(4, 16.0), torch.tensor([1.0, 0.25]).double())


def test_single_precision_far_out() -> None:
    """Angles are computed in double precision, whatever is wanted."""
    far = SinusoidalPositions(8)(torch.zeros(1, 1, 8), start=100_000)[0]
    assert far.dtype == torch.float32
    assert torch.allclose(far.double(), sinusoidal_encoding(1, 8, start=100_000), atol=1e-7)


def test_positions_refuse() -> None:
    with pytest.raises(InvalidInput, match="width must be even"):
        sinusoidal_encoding(3, 5)
    with pytest.raises(InvalidInput, match="width must be even"):
        SinusoidalPositions(7)
    with pytest.raises(ShapeMismatch, match=r"tokens, 4\]"):
        SinusoidalPositions(4)(draw(1, 3, 6))
    with pytest.raises(InvalidInput, match="9 tokens is longer than the 8 positions"):
        LearnedPositions(8, 4)(draw(1, 9, 4))
    with pytest.raises(InvalidInput, match="steps must be a whole number"):
        shift_matrix(0.5, 4)  # type: ignore[arg-type]


# -- cost ------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 9), st.sampled_from([4, 6, 8]), st.integers(1, 3), st.integers(1, 13))
def test_transformer_as_counted(tokens: int, width: int, depth: int, hidden: int) -> None:
    cost = cost_model("transformer", tokens, width, depth=depth, heads=2, hidden=hidden)
    encoder = TransformerEncoder(width, hidden, 2, depth)
    x = draw(1, tokens, width)
    assert count_operations(encoder, x) == cost.forward
    assert longest_chain(encoder(x)) == cost.depth
    model = LanguageModel(5, width, 2, depth, length=12, hidden=hidden)
    symbols, cache = torch.zeros(1, tokens + 1).long(), model.cache()
    model(symbols[:, :-1], cache)
    assert sum(k.keys.numel() + k.values.numel() for k in cache.layers) == cost.state
    assert count_operations(model.features, symbols[:, -1:], cache) == cost.step
    assert count_operations(model.features, symbols) == cost.step_anew


@pytest.mark.parametrize(("tokens", "depth"), [(1, 1), (5, 1), (7, 3)])
def test_recurrence_as_counted(tokens: int, depth: int) -> None:
    cost = cost_model("recurrent", tokens, 6, depth=depth)
    cells = [ElmanCell(6, 6, generator=i) for i in range(depth)]
    x = draw(1, tokens, 6)
    assert count_operations(nn.Sequential(*map(Recurrent, cells)), x) == cost.forward
    # layer l works on step t while layer l - 1 works on step t + 1
    states = [cell.start(x[:, 0]) for cell in cells]
    for moment in x.unbind(1):
        for i, cell in enumerate(cells):
            moment = states[i] = cell(moment, states[i])
    assert longest_chain(moment) == cost.depth
    assert sum(s.numel() for s in states) == cost.state


@pytest.mark.parametrize(("tokens", "kernel"), [(7, 3), (8, 3), (9, 5), (4, 2)])
def test_convolution_as_counted(tokens: int, kernel: int) -> None:
    cost = cost_model("convolution", tokens, 3, depth=2, kernel=kernel)
    layers = [
        nn.Conv1d(3, 3, kernel, padding="same", padding_mode="circular", dtype=torch.float64)
        for _ in range(cost.path)
    ]
    x = draw(1, tokens, 3)

    class Ring(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers[:count])

        def forward(self, z: Tensor) -> Tensor:
            made: Tensor = self.layers(z.mT).mT
            return made

    assert count_operations(Ring(2), x) == cost.forward
    assert longest_chain(Ring(2)(x)) == cost.depth
    assert (token_jacobian(Ring(cost.path), x) > 0).all()
    assert not (token_jacobian(Ring(cost.path - 1), x) > 0).all()


def test_cost_refuses() -> None:
    with pytest.raises(InvalidInput, match="no kind is named"):
        cost_model("lstm", 3, 4)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="kernel must be"):
        cost_model("convolution", 3, 4, kernel=1)
    with pytest.raises(InvalidType, match="gradient behind it"):
        longest_chain(torch.ones(2))


def test_keys_that_depend_on_their_queries() -> None:
    r"""$\operatorname E(q^\top k)^2=\rho^2(d^2+2d)+(1-\rho^2)d$."""
    d, rho = 2, 0.6
    squares = attention_scaling_study([d], keys=2, queries=4000, correlation=rho).plain.square[0]
    expected = rho**2 * (d**2 + 2 * d) + (1 - rho**2) * d
    assert abs(float(squares.mean()) - expected) < 5 * float(squares.std()) / 4000**0.5


def test_a_convolution_keeps_one_input_less_than_its_kernel() -> None:
    d, k, tokens = 3, 4, 9
    layers = [nn.Conv1d(d, d, k, dtype=torch.float64) for _ in range(2)]
    x = draw(1, d, tokens)
    whole = x
    for layer in layers:
        whole = layer(nn.functional.pad(whole, (k - 1, 0)))
    kept = [torch.zeros(1, d, k - 1).double() for _ in layers]
    steps = []
    for moment in x.split(1, dim=2):
        for i, layer in enumerate(layers):
            window = torch.cat([kept[i], moment], 2)
            kept[i], moment = window[..., 1:], layer(window)
        steps.append(moment)
    assert torch.allclose(torch.cat(steps, 2), whole)
    cost = cost_model("convolution", tokens, d, depth=2, kernel=k)
    assert sum(t.numel() for t in kept) == cost.state


def test_learned_positions_begin_small() -> None:
    drawn = LearnedPositions(500, 40, generator=0).weight.detach()
    # of 20,000 normal numbers the standard deviation is known to half a percent
    assert abs(float(drawn.std()) / 0.02 - 1) < 0.03
