"""Bounds hold for what torch computes, in any order of its sums, and in exact arithmetic."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.robustness.bounds.output_bounds import METHODS, output_bounds
from torchtheory.robustness.bounds.rounding import chain, gamma, products, sums


class Of(nn.Module):
    """A function as a network, with a parameter for the precision."""

    def __init__(self, function, **constants: Tensor) -> None:
        super().__init__()
        self.function, self.names = function, tuple(constants)
        self.one = nn.Parameter(torch.ones(()))
        for name, value in constants.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.function(x, *(getattr(self, name) for name in self.names))
        return made


def filled(layer: nn.Module, weight: Tensor | float, bias: float = 0.0) -> nn.Module:
    layer.weight.data[:] = weight
    if layer.bias is not None:
        layer.bias.data.fill_(bias)
    return layer


def shifted_norm(channels: int) -> nn.BatchNorm1d:
    """Mean times scale is a thousand times what is left when the bias is added."""
    layer = nn.BatchNorm1d(channels).eval()
    layer.running_mean.fill_(1000.1)
    layer.bias.data.fill_(1000.1)
    return layer


def absolute(net: nn.Module) -> nn.Module:
    """The network whose sums are those of absolute terms."""
    made = copy.deepcopy(net)
    for name, tensor in (*made.named_parameters(), *made.named_buffers()):
        tensor.data = -tensor.abs() if name.endswith("running_mean") else tensor.abs()
    return made


def signs(n: int) -> Tensor:
    return torch.tensor([1.0, -1.0]).repeat(n // 2)


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


#: Networks of long sums, with an input each.
CASES: dict[str, tuple[nn.Module, Tensor]] = {
    "equal terms": (filled(nn.Linear(10_000, 1), 0.1), torch.full((1, 10_000), 0.7)),
    "equal terms, three layers": (
        nn.Sequential(
            filled(nn.Linear(3000, 300), 0.1),
            nn.ReLU(),
            filled(nn.Linear(300, 30), 0.3),
            nn.ReLU(),
            filled(nn.Linear(30, 2), -0.7, 3.3),
        ),
        torch.full((1, 3000), 0.7),
    ),
    "alternating terms": (
        filled(nn.Linear(10_000, 1), 0.1 * signs(10_000)),
        0.7 + 1e-4 * draws(1, 10_000),
    ),
    "a large term that is taken away again": (
        filled(
            nn.Linear(4000, 1, bias=False),
            torch.cat([torch.tensor([1e6, -1e6]), torch.full((3998,), 0.1)]),
        ),
        torch.full((1, 4000), 0.3),
    ),
    "average of an image": (
        nn.Sequential(Of(lambda x: x), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        torch.full((1, 1, 224, 224), 0.7),
    ),
    "mean": (Of(lambda x: x.mean((2, 3))), torch.full((1, 1, 224, 224), 0.7)),
    "sum": (Of(lambda x: x.sum(1)), torch.full((2, 30_000), 0.1)),
    "cumsum": (Of(lambda x: x.cumsum(1)[:, -3:]), torch.full((1, 1000), 0.1)),
    "pooling with overlaps": (
        Of(lambda x: F.avg_pool2d(x, 31, 3, 2).flatten(1)),
        torch.full((1, 1, 64, 64), 0.7),
    ),
    "adaptive pooling to odd sizes": (
        Of(lambda x: F.adaptive_avg_pool2d(x, (3, 5)).flatten(1)),
        torch.full((1, 1, 64, 64), 0.7),
    ),
    "matmul": (Of(lambda x, w: x @ w, w=torch.full((5000, 2), 0.1)), torch.full((1, 3, 5000), 0.7)),
    "einsum": (
        Of(lambda x, w: torch.einsum("bij,ijk->bk", x, w), w=torch.full((70, 70, 2), 0.1)),
        torch.full((1, 70, 70), 0.7),
    ),
    "convolution": (
        nn.Sequential(filled(nn.Conv2d(64, 2, 7, padding=3), 0.1), nn.Flatten()),
        torch.full((1, 64, 9, 9), 0.7),
    ),
    "convolution, words for padding": (
        nn.Sequential(filled(nn.Conv1d(64, 2, 33, padding="same"), 0.1), nn.Flatten()),
        torch.full((1, 64, 40), 0.7),
    ),
    "transposed convolution": (
        nn.Sequential(filled(nn.ConvTranspose2d(64, 2, 7), 0.1), nn.Flatten()),
        torch.full((1, 64, 9, 9), 0.7),
    ),
    "normalization whose parts cancel": (
        nn.Sequential(nn.Linear(3, 4), shifted_norm(4)),
        torch.full((1, 3), 0.3),
    ),
    "a value that is used often": (
        Of(lambda x: sum((x for _ in range(30)), x * 0.1).sum(1, keepdim=True)),
        torch.full((1, 5000), 0.7),
    ),
    "copies": (Of(lambda x: x.expand(-1, 9000).sum(1)), torch.full((1, 1), 0.7)),
    "a constant beside it": (
        Of(
            lambda x, c: torch.cat([x, c.expand(len(x), -1)], 1).sum(1),
            c=torch.full((1, 9000), 0.1),
        ),
        torch.full((1, 5), 0.7),
    ),
    "one number per sample that bends": (
        Of(lambda x: torch.stack([x.sum(1).relu(), x.sum(1).tanh()], 1)),
        torch.full((1, 5000), 0.7),
    ),
    "division by 3": (Of(lambda x: (x / 3).sum(1)), torch.full((1, 5000), 0.7)),
    "maxima of overlapping windows": (
        Of(lambda x: F.max_pool1d(x[:, None], 9, 1).sum(2)),
        torch.full((1, 2000), 0.7),
    ),
    "leaky units": (
        nn.Sequential(
            filled(nn.Linear(2000, 300), -0.1), nn.LeakyReLU(0.3), filled(nn.Linear(300, 2), 0.1)
        ),
        torch.full((1, 2000), 0.7),
    ),
    "smooth units": (
        nn.Sequential(
            filled(nn.Linear(500, 300), 1e-3),
            nn.GELU(),
            filled(nn.Linear(300, 100), 1e-2),
            nn.Tanh(),
            filled(nn.Linear(100, 2), 0.1),
        ),
        torch.full((1, 500), 0.7),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_long_sums_in_single_precision(name: str, method) -> None:
    net, x = CASES[name]
    with torch.no_grad():
        own, exact = net(x).double(), copy.deepcopy(net).double()(x.double())
        size = 1 + absolute(net)(x.abs()).abs().double()
    for norm, radius in (("inf", 0.0), ("inf", 1e-3), ("2", 0.0), ("1", 1e-3)):
        found = output_bounds(net, x, radius, norm, method, iterations=2)
        low, high = found.lower.double(), found.upper.double()
        assert bool((low <= high).all())
        for out in (own, exact):
            assert bool((low <= out).all())
            assert bool((out <= high).all())
        if not radius:  # nothing but rounding makes a width
            assert bool(
                (high - low <= 4 * gamma(x[0].numel() + 10_000, torch.float32) * size).all()
            )


def in_turn(x: np.ndarray, net: nn.Sequential, order: np.ndarray) -> np.ndarray:
    """A network whose sums are made one term after the other, in single precision."""
    for layer in net:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach().numpy()
            terms = (weight * x[None]).astype(np.float32)
            perm = order[order < len(x)]
            x = np.add.accumulate(terms[:, perm], axis=1, dtype=np.float32)[:, -1]
            x = (x + layer.bias.detach().numpy()).astype(np.float32)
        else:
            x = np.maximum(x, 0)
    return x


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["equal", "alternating", "random"]))
def test_any_order_of_summation_is_enclosed(seed: int, kind: str) -> None:
    layers: list[nn.Module] = []
    for n, (a, b) in enumerate(((3000, 40), (40, 30), (30, 2))):
        layer = nn.Linear(a, b)
        value = {"equal": torch.full((b, a), 0.1), "alternating": 0.1 * signs(a).expand(b, a),
                 "random": draws(b, a, seed=seed + n) / a**0.5}[kind]  # fmt: skip
        layers += [filled(layer, value, 0.3), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    x = torch.full((1, 3000), 0.7) if kind == "equal" else draws(1, 3000, seed=seed)
    source = np.random.default_rng(seed)
    exact = copy.deepcopy(net).double()(x.double()).detach()[0].numpy()
    outs = [exact] + [in_turn(x[0].numpy(), net, source.permutation(3000)) for _ in range(2)]
    outs.append(in_turn(x[0].numpy(), net, np.arange(3000)))
    for method in METHODS:
        found = output_bounds(net, x, 0.0, method=method, iterations=2)
        for out in outs:
            assert (found.lower[0].double().numpy() <= out).all()
            assert (out <= found.upper[0].double().numpy()).all()


@pytest.mark.parametrize(
    "activation",
    [
        nn.ReLU(),
        nn.LeakyReLU(0.3),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.GELU(),
        nn.GELU("tanh"),
        nn.SiLU(),
        nn.Softplus(),
        nn.Softplus(7.0),
        nn.ELU(),
        nn.Mish(),
        nn.Softsign(),
        nn.LogSigmoid(),
        nn.Hardsigmoid(),
        nn.Hardtanh(-0.1, 0.3),
        nn.Tanhshrink(),
        Of(torch.sin),
        Of(torch.cos),
        Of(torch.square),
        Of(torch.atan),
        Of(torch.erf),
    ],
    ids=str,
)
def test_points_of_single_precision(activation: nn.Module) -> None:
    """At a point nothing but rounding makes a width."""
    x = torch.cat(
        [torch.linspace(-30, 30, 601), torch.logspace(-30, 2, 300), -torch.logspace(-30, 2, 300)]
    )
    x = x[:, None]
    net = nn.Sequential(Of(lambda v: v * 1.0), activation)
    with torch.no_grad():
        own, exact = net(x).double(), copy.deepcopy(net).double()(x.double())
    for method in METHODS:
        found = output_bounds(net, x, 0.0, method=method, iterations=1, chunk=2000)
        for out in (own, exact):
            assert bool((found.lower.double() <= out).all())
            assert bool((out <= found.upper.double()).all())
        assert bool((found.width <= 3e-5 * (1 + x.abs() * (1 + x.abs()))).all())


def test_longer_sums_are_made_of_shorter_ones() -> None:
    values = torch.full((2, 50_176), 0.1)
    exact = values.double().sum(1)
    share = gamma(chain(50_176), torch.float32)
    assert share < 3e-4
    for found in (sums(values), products(torch.ones(1, 1, 50_176), values)[:, 0]):
        assert bool(((found.double() - exact).abs() <= share * exact).all())


class Inside(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 3), function

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.function(self, x)
        return made


def autocast(net: Inside, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net.layer(x).float()


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (Inside(autocast), "autocast"),
        (Inside(lambda net, x: net.layer(x).half().float()), "float16"),
        (Inside(lambda net, x: net.layer(x).to(torch.bfloat16).float()), "bfloat16"),
        (Inside(lambda net, x: net.layer(x).type(torch.int64).float()), "int64"),
        (Inside(lambda net, x: net.layer(x).sum(1, dtype=torch.bfloat16)), "bfloat16"),
        (nn.Linear(4, 3).bfloat16(), "float32 or float64"),
        (nn.Linear(4, 3).half(), "float32 or float64"),
    ],
)
def test_fewer_digits_than_are_counted_are_refused(net: nn.Module, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        output_bounds(net, torch.zeros(2, 4), 0.1)


def test_what_runs_without_autocast_may_switch_it_off() -> None:
    def off(net: Inside, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return net.layer(x.float())

    net, x = Inside(off), draws(2, 4)
    found = output_bounds(net, x, 0.0)
    assert bool(((found.lower <= net(x)) & (net(x) <= found.upper)).all())
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(UnsupportedModel, match="autocast"),
    ):
        output_bounds(net.layer, x, 0.1)


def test_coarse_products_are_counted() -> None:
    """torch may be told to multiply with fewer digits; on some processors it then does."""
    net, x = nn.Linear(500, 3), draws(2, 500)
    fine = output_bounds(net, x, 0.0)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        coarse, own = output_bounds(net, x, 0.0), net(x).detach()
    finally:
        torch.set_float32_matmul_precision(before)
    assert bool((coarse.width > 10 * fine.width).all())
    assert bool(((coarse.lower <= own) & (own <= coarse.upper)).all())
    assert bool(((coarse.lower <= net(x)) & (net(x) <= coarse.upper)).all())


def test_larger_of_two_values() -> None:
    larger = nn.Sequential(Of(lambda x: x * 1.0), Of(lambda x: torch.maximum(x[:, :1], x[:, 1:])))
    smaller = nn.Sequential(Of(lambda x: x * 1.0), Of(lambda x: torch.minimum(x[:, :1], x[:, 1:])))
    fixed = nn.Sequential(
        Of(lambda x: x * 1.0), Of(lambda x: torch.maximum(x, torch.tensor([-0.5, 0.5])))
    )
    for method in METHODS:
        for net in (larger, smaller):
            found = output_bounds(net, torch.zeros(1, 2), 1.0, method=method)
            torch.testing.assert_close(found.upper, torch.ones(1, 1), rtol=0, atol=1e-5)
            torch.testing.assert_close(found.lower, -torch.ones(1, 1), rtol=0, atol=1e-5)
        found = output_bounds(fixed, torch.zeros(1, 2), 1.0, method=method)
        torch.testing.assert_close(found.lower, torch.tensor([[-0.5, 0.5]]), rtol=0, atol=1e-5)
        torch.testing.assert_close(found.upper, torch.ones(1, 2), rtol=0, atol=1e-5)


def test_maxima_and_minima_hold_inside_a_network() -> None:
    a, b, last = nn.Linear(5, 8).double(), nn.Linear(5, 8).double(), nn.Linear(8, 3).double()
    source = torch.Generator().manual_seed(0)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.last = a, b, last

        def forward(self, x: Tensor) -> Tensor:
            p, q = self.a(x), self.b(x)
            return self.last(torch.maximum(p, q) - torch.minimum(q, p[:, :1]))

    net = Both()
    x = draws(2, 5).double()
    inside = x + 0.3 * (2 * torch.rand(2000, 2, 5, generator=source).double() - 1)
    out = net(inside.flatten(0, 1)).unflatten(0, (2000, 2)).detach()
    for method in METHODS:
        found = output_bounds(net, x, 0.3, method=method)
        assert bool(((found.lower <= out) & (out <= found.upper)).all())


@pytest.mark.parametrize(
    "activation", [nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.ELU, nn.ReLU6]
)
def test_lines_are_optimized_around_every_activation(activation: type[nn.Module]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(6, 16), activation(), nn.Linear(16, 16), activation(), nn.Linear(16, 3)
        ).double()
    for layer in (net[0], net[2], net[4]):
        layer.weight.data *= 2
    x = draws(2, 6, seed=3).double()
    plain = output_bounds(net, x, 0.4, method="crown")
    alpha = output_bounds(net, x, 0.4, method="alpha-crown", iterations=20)
    assert bool((alpha.lower >= plain.lower).all() and (alpha.upper <= plain.upper).all())
    assert float(alpha.width.mean()) < 0.99 * float(plain.width.mean())
    source = torch.Generator().manual_seed(1)
    inside = x + 0.4 * (2 * torch.rand(3000, 2, 6, generator=source).double() - 1).sign()
    out = net(inside.flatten(0, 1)).unflatten(0, (3000, 2)).detach()
    assert bool(((alpha.lower <= out) & (out <= alpha.upper)).all())
