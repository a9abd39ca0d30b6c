"""Initializers: variances, orthogonality, whole models, refusals."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from torchtheory.core.errors import InvalidInput, InvalidType, UnknownName, UnsupportedModel
from torchtheory.core.intervals import mean_interval
from torchtheory.training.initialization import draw_weight, fans, initialize, weight_variance

sizes = st.integers(1, 9)


def test_the_table_by_hand() -> None:
    assert weight_variance("lecun", 4, 8) == 1 / 4
    assert weight_variance("xavier", 4, 8) == 2 / 12
    assert weight_variance("he", 4, 8) == pytest.approx(2 / 4, abs=1e-14)
    assert weight_variance("he", 4, 8, activation="linear") == pytest.approx(1 / 4, abs=1e-14)
    assert weight_variance("he", 4, 8, activation=nn.LeakyReLU(0.5)) == pytest.approx(
        2 / (1 + 0.25) / 4
    )
    assert weight_variance("orthogonal", 4, 8) == 1 / 8
    assert weight_variance(0.3, 4, 8) == 0.3


@pytest.mark.parametrize(
    ("scheme", "distribution", "reference"),
    [
        ("xavier", "normal", nn.init.xavier_normal_),
        ("xavier", "uniform", nn.init.xavier_uniform_),
        ("he", "normal", nn.init.kaiming_normal_),
        ("he", "uniform", nn.init.kaiming_uniform_),
        ("orthogonal", "normal", nn.init.orthogonal_),
    ],
)
def test_torch_draws_the_same(scheme, distribution, reference) -> None:
    ours = draw_weight((6, 11), scheme, distribution=distribution, generator=3)
    theirs = reference(
        torch.empty(6, 11, dtype=torch.float64), generator=torch.Generator().manual_seed(3)
    )
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-14)


@given(sizes, sizes, st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_orthogonal_matrices_are_isometries(m: int, n: int, seed: int) -> None:
    w = draw_weight((2, m, n), "orthogonal", generator=seed)
    gram = w @ w.mT if m <= n else w.mT @ w
    assert torch.allclose(gram, torch.eye(min(m, n)).double().expand_as(gram), atol=1e-12)
    assert w.square().mean() == pytest.approx(weight_variance("orthogonal", n, m))


def test_uniform_range_and_variance() -> None:
    w = draw_weight((200, 50), 0.09, distribution="uniform", generator=1)
    assert w.abs().max() <= math.sqrt(0.27)
    interval = mean_interval(w.square().ravel(), confidence=0.9999)
    assert interval.low <= 0.09 <= interval.high


def test_fans_of_convolutions() -> None:
    assert fans(nn.Conv1d(3, 5, 7)) == (21, 35)
    assert fans(nn.Conv2d(4, 8, (3, 5), groups=4)) == (15, 30)
    assert fans(nn.ConvTranspose2d(4, 8, 3)) == (36, 72)
    with pytest.raises(UnsupportedModel):
        fans(nn.BatchNorm1d(3))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_convolution_keeps_the_second_moment(groups: int) -> None:
    layer = nn.Conv2d(8, 16, 3, groups=groups, dtype=torch.float64)
    x = torch.randn(40, 8, 3, 3, generator=torch.Generator().manual_seed(0)).double()
    generator = torch.Generator().manual_seed(1)
    moments = []
    for _ in range(80):
        initialize(layer, "lecun", generator=generator)
        moments.append(float(layer(x).detach().square().mean() / x.square().mean()))
    interval = mean_interval(moments, confidence=0.9999)
    assert interval.low <= 1 <= interval.high


def test_orthogonal_convolution_is_orthogonal_in_each_group() -> None:
    layer = nn.Conv2d(8, 8, 1, groups=2, bias=False, dtype=torch.float64)
    initialize(layer, "orthogonal")
    x = torch.randn(5, 8, 4, 4, dtype=torch.float64)
    assert torch.allclose(layer(x).norm(dim=1), x.norm(dim=1))


def test_initialize_reports_and_resets_biases() -> None:
    net = nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3), nn.Linear(3, 3))
    net.append(net[2])  # used twice, drawn once
    before = net[1].weight.clone()
    done = initialize(net, "lecun", generator=7)
    assert [layer.name for layer in done.layers] == ["0", "2"]
    assert [layer.forward_gain for layer in done.layers] == [pytest.approx(1)] * 2
    assert done.layers[0].backward_gain == pytest.approx(0.5)
    assert done.untouched == ("1.weight", "1.bias")
    assert torch.equal(net[1].weight, before)
    assert not net[0].bias.any()
    first = net[0].weight.clone()
    initialize(net, "lecun", generator=7)
    assert torch.equal(net[0].weight, first)
    assert net[0].weight.requires_grad


def test_dtype_follows_the_model() -> None:
    net = nn.Linear(4, 4, dtype=torch.bfloat16)
    initialize(net, "orthogonal")
    assert net.weight.dtype == torch.bfloat16
    assert torch.allclose(net.weight.float() @ net.weight.float().T, torch.eye(4), atol=0.05)


def test_tied_weights_are_drawn_once() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    assert [layer.name for layer in initialize(net, "he").layers] == ["0"]
    assert net[1].weight is net[0].weight


def test_global_randomness_is_not_touched() -> None:
    state = torch.get_rng_state()
    initialize(nn.Linear(3, 3, device="meta").to_empty(device="cpu"), "orthogonal")
    assert torch.equal(torch.get_rng_state(), state)


def _weights(net: nn.Module) -> list[Tensor]:
    return [p.clone() for p in net.parameters()]


def test_bad_input_is_refused_and_changes_nothing() -> None:
    net = nn.Sequential(nn.Linear(3, 3), weight_norm(nn.Linear(3, 3)))
    before = _weights(net)
    with pytest.raises(UnsupportedModel, match="parametrized"):
        initialize(net, "he")
    assert all(torch.equal(a, b) for a, b in zip(before, _weights(net), strict=True))
    with pytest.raises(UnsupportedModel, match="no dense"):
        initialize(nn.ReLU(), "he")
    with pytest.raises(UnsupportedModel, match="lazy"):
        initialize(nn.LazyLinear(3), "he")
    with pytest.raises(UnknownName, match="xavier"):
        initialize(nn.Linear(2, 2), "xavie")
    with pytest.raises(UnknownName):
        initialize(nn.Linear(2, 2), "he", distribution="cauchy")
    with pytest.raises(InvalidInput, match="variance"):
        weight_variance(-1.0, 2, 2)
    with pytest.raises(InvalidType):
        weight_variance(None, 2, 2)
    with pytest.raises(InvalidInput, match="fan_in"):
        weight_variance("he", 0, 2)
    with pytest.raises(InvalidInput, match="shape"):
        draw_weight((3,), "he")
    with pytest.raises(InvalidType):
        initialize([nn.Linear(2, 2)], "he")
    with pytest.raises(InvalidInput, match="scale"):
        weight_variance("he", 2, 2, activation=torch.zeros_like)
    with pytest.raises(InvalidType, match="real"):
        draw_weight((2, 2), "he", dtype=torch.int64)
