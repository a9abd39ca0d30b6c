"""The infinite-width limit of a module: against the recursions, and against wide random copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import UnknownName, UnsupportedModel
from torchtheory.kernels.infinite.convolution import convolutional_kernels
from torchtheory.kernels.infinite.dense import limit_kernels
from torchtheory.kernels.infinite.module_kernels import limit_kernel, module_limit
from torchtheory.kernels.tangent.kernel import empirical_ntk


def _exact(net: nn.Module, weight: float, bias: float = 0.0) -> nn.Module:
    """Weights whose mean squares are exactly those of the law, whatever they are."""
    for p in net.double().parameters():
        with torch.no_grad():
            wanted = weight / p[0].numel() if p.ndim > 1 else bias
            p.mul_((wanted / p.square().mean()).sqrt())
    return net


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.3), nn.GELU()])
def test_dense_networks_are_those_of_the_recursion(activation: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(5, 4), activation, nn.Linear(4, 3), activation, nn.Linear(3, 1))
    x, y = torch.randn(2, 4, 5, dtype=torch.float64)
    found = module_limit(_exact(net, 1.7, 0.2), x, y)
    wanted = limit_kernels(
        x, y, depth=3, activation=activation, weight_variance=1.7, bias_variance=0.2
    )
    torch.testing.assert_close(found.nngp, wanted.nngp)
    torch.testing.assert_close(found.ntk, wanted.ntk)


@pytest.mark.parametrize("readout", ["mean", "flatten"])
def test_convolutional_networks_are_those_of_the_recursion(readout: str) -> None:
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if readout == "mean" else [nn.Flatten()]
    width = 3 if readout == "mean" else 3 * 20
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding="same"), nn.ReLU(),
        *last, nn.Linear(width, 1),
    )  # fmt: skip
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    found = module_limit(_exact(net, 2.0, 0.1), x)
    wanted = convolutional_kernels(
        x,
        depth=3,
        readout=readout,
        weight_variance=2.0,
        bias_variance=0.1,  # type: ignore[arg-type]
    )
    torch.testing.assert_close(found.nngp, wanted.nngp)
    torch.testing.assert_close(found.ntk, wanted.ntk)


def test_blocks_are_the_same_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 1))
    x, y = torch.randn(7, 2, 6), torch.randn(3, 2, 6)
    whole, alone = module_limit(net, x, y), module_limit(net, x)
    monkeypatch.setattr("torchtheory.kernels.infinite.module_kernels._AT_ONCE", 300)
    torch.testing.assert_close(module_limit(net, x, y).ntk, whole.ntk)
    torch.testing.assert_close(module_limit(net, x).ntk, alone.ntk)
    assert whole.ntk.dtype == torch.float32


class Residual(nn.Module):
    """Activations first, so that sums are Gaussian."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = torch.add(h, self.outer(torch.relu(self.inner(torch.relu(h)))), alpha=0.7)
        return self.last(torch.tanh(h))


class Dense(nn.Module):
    """Units of two kinds side by side, and a sum of two activations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, width), nn.Linear(width, width)
        self.c, self.last = nn.Linear(2 * width, width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = torch.relu(self.a(x))
        two = torch.sigmoid(self.b(one))
        three = self.c(torch.cat([one, two], -1))
        return self.last(F.softplus(three) + two)


class Normalized(nn.Module):
    """Layer normalization of a Gaussian, and of an activation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.last = (
            nn.Linear(4, width),
            nn.Linear(width, width),
            nn.Linear(width, 1),
        )
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.two(torch.relu(self.b(torch.relu(self.one(self.a(x)))))))


class Images(nn.Module):
    """Strides, padding, pooling, batch normalization, a shortcut with a convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.b, self.short = nn.Conv2d(width, width, 3, stride=2), nn.Conv2d(width, width, 1, 2)
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.a(x)))
        h = self.b(F.avg_pool2d(h, 2)) + self.short(F.avg_pool2d(h, 2)[..., :2, :2])
        return self.last(F.relu(h).mean((2, 3)))


class Places(nn.Module):
    """A sequence, in which dense layers see places by themselves."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.conv = nn.Linear(3, width), nn.Conv1d(width, width, 2)
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x)).transpose(1, 2)
        return self.last(torch.erf(self.conv(h)).transpose(1, 2).flip(1)[:, :2].sum(1))


class Composed(nn.Module):
    """Fixed maps of the input, functions one after the other, and the input in a sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(64, width), nn.Linear(width, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.5) / 2
        h = torch.tanh(F.elu(self.a(x) + 0.3))
        # as few units as the input has, but nothing bends after them
        return self.last(x + self.b(h))


_WIDTH, _DRAWS = 192, 24


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (Residual, (4,)),
        (Dense, (4,)),
        (Normalized, (4,)),
        (Images, (2, 6, 6)),
        (Places, (3, 3)),
        (Composed, (64,)),
    ],
)
def test_wide_random_copies_come_near(
    make: Callable[[int], nn.Module], shape: tuple[int, ...]
) -> None:
    x = torch.randn(3, *shape, dtype=torch.float64)
    limits, measured = [], []
    for _ in range(_DRAWS):
        net = make(_WIDTH).double().eval()
        limits.append(module_limit(net, x, parametrization="standard"))
        measured.append(empirical_ntk(net, x))
    found = torch.stack(measured)[..., 0, 0]
    wanted = torch.stack([k.ntk for k in limits]).mean(0)
    # the mean over copies, with its own spread, and what a width of 192 may leave
    spread = found.std(0) / _DRAWS**0.5
    room = 5 * spread + 6 / _WIDTH * wanted.abs().max()
    assert bool(((found.mean(0) - wanted).abs() <= room).all())
    assert bool((spread <= 0.1 * wanted.abs().max()).all())  # the room is not the whole house
    # half or twice a term of the recursion would be seen
    assert not bool(((found.mean(0) - 1.3 * wanted).abs() <= room).all())


def test_the_same_weights_twice_are_refused() -> None:
    layer = nn.Linear(3, 3)
    net = nn.Sequential(layer, nn.ReLU(), layer)
    with pytest.raises(UnsupportedModel, match="used 2 times"):
        module_limit(net, torch.randn(2, 3))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda h: torch.relu(h) + h.flip(-1), "the same weights made"),
        (lambda h: h[:, :2], "getitem of units"),
        (lambda h: torch.relu(2 * torch.relu(h)), "no Gaussian"),
        (lambda h: torch.atan2(h, h.flip(0)), "no limit is known"),
        (lambda h: h * torch.sigmoid(h), "product of two values"),
        (lambda h: h + torch.relu(h), "the same weights made"),
        (lambda h: torch.softmax(h, -1), "no limit is known"),
        (lambda h: h.amax(-1, keepdim=True), "no rule for amax"),
        (lambda h: h + torch.arange(4.0), "numbers that differ"),
    ],
)
def test_what_has_no_limit_is_named(function: Callable[[Tensor], Tensor], sentence: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return function(self.layer(x))

    with pytest.raises(UnsupportedModel, match=sentence):
        module_limit(Net(), torch.randn(2, 3))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UnknownName):
        module_limit(nn.Linear(2, 1), torch.ones(1, 2), parametrization="mean field")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match="no layer with random weights"):
        module_limit(nn.Identity(), torch.ones(1, 2))


def test_as_a_kernel_for_regression() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    x, y = torch.randn(4, 3), torch.randn(2, 3)
    both = module_limit(net, x, y)
    torch.testing.assert_close(limit_kernel(net)(x, y), both.ntk)
    torch.testing.assert_close(limit_kernel(net, "nngp")(x, y), both.nngp)
    torch.testing.assert_close(limit_kernel(net).diagonal(x), module_limit(net, x).ntk.diagonal())
    with pytest.raises(UnknownName, match="nngp, ntk"):
        limit_kernel(net, "both")  # type: ignore[arg-type]
