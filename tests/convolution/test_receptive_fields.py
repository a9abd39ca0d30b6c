"""Receptive fields: the recursion, what units really depend on, where gradients come from."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.architectures import NAMES, architecture, archived
from torch import Tensor, nn

from torchtheory.convolution.receptive_fields import (
    dependence,
    effective_receptive_field,
    forgets_places,
    receptive_fields,
)
from torchtheory.core.errors import InvalidInput, TorchTheoryError, UnsupportedModel
from torchtheory.nets.image_networks import PreActivationBlock, preactivation_resnet18


def gradient_support(net: nn.Module, n: int) -> tuple[int, int]:
    """First and last place with a gradient in the middle output, all weights positive."""
    x = torch.ones(1, 1, n, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.rand_like(p) + 0.5)
    out = net.double()(x)
    (slope,) = torch.autograd.grad(out[0, :, out.shape[2] // 2].sum(), x)
    places = slope[0, 0].nonzero().flatten()
    return int(places[0]), int(places[-1])


@settings(max_examples=40, deadline=None)
@given(
    layers=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(1, 2), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_the_recursion_is_the_support_of_the_gradient(
    layers: list[tuple[int, int, int, bool]],
) -> None:
    """Of random chains of convolutions and average pools, without padding."""
    modules: list[nn.Module] = []
    for taps, stride, dilation, pool in layers:
        if pool:
            modules.append(nn.AvgPool1d(taps, stride))
        else:
            modules.append(nn.Conv1d(1, 1, taps, stride, dilation=dilation))
    net = nn.Sequential(*modules)
    found = receptive_fields(net, (1, 150))[-1]
    assert found.size is not None
    first, last = gradient_support(net, 150)
    assert last - first + 1 == found.size[0]
    assert dependence(net, (1, 150))[-1].box == found.box == ((first, last),)


def test_by_hand() -> None:
    """Two 3 x 3 layers see 5 x 5; a stride of 2 doubles what the next layer adds."""
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, stride=2, padding=1),
        nn.BatchNorm2d(2), nn.Conv2d(2, 2, (3, 5), dilation=(2, 1)), nn.Flatten(),
    )  # fmt: skip
    found = receptive_fields(net, (1, 20, 20))
    assert [f.size for f in found] == [(3, 3), (3, 3), (5, 5), (5, 5), (13, 13), None]
    assert [f.jump for f in found][-2:] == [(2, 2), None]
    assert [f.start for f in found][:3] == [(-1, -1), (-1, -1), (-2, -2)]
    rows = (4 * 8 / 12 * 4 + 2 * 8 / 12, 24 / 12 * 4 + 2 * 8 / 12)
    assert found[4].deviation == pytest.approx([math.sqrt(v) for v in rows])


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.ZeroPad2d((2, 0, 1, 3)), (3, 3)),
        (nn.ReflectionPad2d(1), (3, 3)),
        (nn.GLU(dim=1), (3, 3)),
        (nn.GLU(dim=-3), (3, 3)),
        (nn.Softmax(dim=1), (3, 3)),
        (nn.GLU(), None),
        (nn.GLU(dim=2), None),
        (nn.Softmax(dim=3), None),
    ],
)
def test_layers_between_places(layer: nn.Module, size: tuple[int, int] | None) -> None:
    """Padding moves places, gates and softmax join channels, or places, as their dimension says."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), layer)
    found = receptive_fields(net, (1, 12, 12))[-1]
    assert found.size == size
    seen = dependence(net, (1, 12, 12))[-1]
    assert found.box == seen.box
    assert (seen.size == (3, 3)) == (size is not None)
    if size is not None:
        assert found.start is not None
        assert found.jump is not None
        middle = [n // 2 for n in seen.shape[1:]]
        first = [a + m * j for a, m, j in zip(found.start, middle, found.jump, strict=True)]
        assert seen.box == tuple((a, a + 2) for a in first)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("taps", [2, 3, 4])
def test_padding_that_keeps_the_size_begins_where_torch_does(taps: int) -> None:
    """An even kernel is padded by one place more behind the image than before it."""
    net = nn.Sequential(nn.Conv1d(1, 1, taps, padding="same"))
    (found,), (seen,) = receptive_fields(net, (1, 9)), dependence(net, (1, 9))
    assert found.start is not None
    assert seen.box is not None
    assert seen.box[0][0] == found.start[0] + 4


class Rows(nn.Module):
    """An average over the places along some dimensions."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.layer, self.dims = nn.Conv2d(1, 2, 3), dims

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        return made.mean(self.dims).flatten(1)


def test_places_are_forgotten_along_all_dimensions() -> None:
    x = torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    forgotten = [forgets_places(Rows(*dims), x, "layer") for dims in ((2, 3), (2,), (3,))]
    assert forgotten == [True, False, False]


class Replacing(nn.Module):
    """A ReLU by comparison: NaN is not above 0, so it becomes a 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 2, 3, padding=1)
        self.second = nn.Conv1d(2, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        made: Tensor = self.second(torch.where(h > 0, h, 0.0))
        return made


def test_marks_that_get_lost_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"layer 'second' depends on the input, but NaN"):
        dependence(Replacing(), (1, 9))


class Branches(nn.Module):
    """A wide branch and a narrow one, and a concatenation with the input."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(1, 1, 7, padding=3)
        self.narrow = nn.Conv2d(1, 1, 3, padding=1)
        self.last = nn.Conv2d(2, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        both = F.relu(self.wide(x)) + self.narrow(x)
        out: Tensor = self.last(torch.cat([both, x], 1))
        return out


def test_branches_and_shortcuts() -> None:
    found = {d.name: d for d in dependence(Branches(), (1, 15, 21))}
    assert found["narrow"].box == ((6, 8), (9, 11))
    assert found["wide"].box == found["last"].box == ((4, 10), (7, 13))
    assert found["last"].size == (7, 7)
    assert not found["last"].whole
    assert found["last"].share == pytest.approx(49 / (15 * 21))
    block = dependence(PreActivationBlock(2, 2, 1), (2, 11, 11))[-1]
    assert block.name == "(output)"
    assert block.size == (5, 5)  # two 3 x 3 layers, with or without the shortcut
    theory = {f.name: f for f in receptive_fields(Branches(), (1, 15, 21))}
    assert {k: f.box for k, f in theory.items()} == {k: d.box for k, d in found.items()}
    assert theory["last"].size == (7, 7)
    assert theory["last"].start == (-3, -3)
    assert theory["last"].deviation is None  # of branches it is not known


def test_what_mixes_all_places() -> None:
    for mixing in (
        nn.GroupNorm(1, 2),
        nn.Sequential(nn.AdaptiveAvgPool2d(1)),
        nn.Upsample(size=(9, 9), mode="nearest"),
    ):
        net = nn.Sequential(nn.Conv2d(2, 2, 1), mixing)
        whole = dependence(net, (2, 9, 9))[-1].whole
        assert whole is not isinstance(mixing, nn.Upsample)
    normalized = nn.Sequential(nn.Conv2d(2, 2, 1), nn.GroupNorm(1, 2))
    assert receptive_fields(normalized, (2, 9, 9))[1].size is None
    dense = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(49, 3))
    assert [d.whole for d in dependence(dense, (1, 9, 9))] == [False, True, True]


def test_circular_padding_looks_around_the_end() -> None:
    net = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"))
    assert dependence(net, (1, 2))[0].whole
    assert dependence(net, (1, 9))[0].box == ((3, 5),)


def test_zero_weights_count_as_dependence() -> None:
    net = nn.Sequential(nn.Conv1d(1, 1, 5, padding=2))
    with torch.no_grad():
        net[0].weight.zero_()  # type: ignore[operator]
    assert dependence(net, (1, 11))[0].box == ((3, 7),)


def test_an_unused_input() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(torch.ones(len(x), 3, dtype=x.dtype))
            return out

    (found,) = dependence(Constant(), (1, 5))
    assert found.box is None
    assert found.size == (0,)
    assert found.share == 0


def test_the_model_is_left_alone() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    dependence(net, torch.randn(1, 9, 9))
    effective_receptive_field(net, torch.randn(3, 1, 9, 9), "0")
    assert net.training
    assert net[0].weight.dtype == torch.float32
    assert all(bool((v == before[k]).all()) for k, v in net.state_dict().items())
    assert not any(m._forward_hooks for m in net.modules())


@pytest.mark.slow
def test_a_residual_network() -> None:
    """ResNet-18 on 32 x 32: behind the last block a unit sees the whole image."""
    found = dependence(preactivation_resnet18(), (3, 32, 32))
    first = next(d for d in found if d.shape[0] == 64)
    assert first.size == (3, 3)
    assert found[-1].whole


def test_the_variance_of_the_effective_field() -> None:
    """Linear layers with equal weights: the gradient is the convolution of boxes, its square not.

    With independent weights the mean of the square is the convolution of boxes.
    """
    seed = torch.Generator().manual_seed(0)
    net = nn.Sequential(*[nn.Conv1d(30, 30, 3, padding=1, bias=False).double() for _ in range(6)])
    energies = []
    for _ in range(30):
        with torch.no_grad():
            for layer in net:
                layer.weight.normal_(generator=seed)  # type: ignore[operator]
        x = torch.zeros(1, 30, 21, dtype=torch.float64)
        energies.append(effective_receptive_field(net, x, probes=4, generator=seed).energy)
    mean = torch.stack(energies).mean(0)
    places = torch.arange(21, dtype=torch.float64) - 10
    promised = receptive_fields(net, (30, 21))[-1].deviation
    assert promised is not None
    assert promised[0] == pytest.approx(2.0)  # 6 layers of variance 2/3
    assert float((mean * places.square()).sum().sqrt()) == pytest.approx(2.0, rel=0.05)


def test_an_effective_field_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, bias=False).double())
    kernel = torch.tensor([[0.0, 1, 0], [1, 2, 1], [0, 1, 0]], dtype=torch.float64)
    with torch.no_grad():
        net[0].weight.copy_(kernel[None, None])  # type: ignore[operator]
    found = effective_receptive_field(net, torch.randn(4, 1, 7, 7, dtype=torch.float64))
    torch.testing.assert_close(found.energy[2:5, 2:5], kernel.square() / 8)
    assert found.center == pytest.approx((3.0, 3.0))
    assert found.deviation == pytest.approx((0.5, 0.5))
    assert found.size == pytest.approx((2.0, 2.0))
    assert found.within(0) == pytest.approx(0.5)
    assert found.within(1) == pytest.approx(1.0)
    assert found.support == ((2, 4), (2, 4))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: receptive_fields(nn.ReLU(), 4), "or its shape, not 4"),  # type: ignore[arg-type]
        (lambda: dependence(nn.ReLU(), (3,)), "at least 2 whole numbers"),
        (lambda: dependence(nn.ReLU(), torch.ones(3, 4).long()), "one input"),
        (lambda: dependence(nn.ReLU(), None), "or its shape, not None"),  # type: ignore[arg-type]
        (lambda: dependence(lambda x: x, (1, 3)), "must be a torch.nn.Module"),  # type: ignore[arg-type]
        (
            lambda: effective_receptive_field(nn.Sequential(nn.ReLU()), -torch.ones(2, 1, 5)),
            "has no gradient at these inputs",
        ),
        (
            lambda: effective_receptive_field(nn.Sequential(nn.ReLU()), torch.ones(2, 1, 5), "1"),
            "no layer is named '1'",
        ),
        (
            lambda: effective_receptive_field(nn.Sequential(nn.Flatten()), torch.ones(2, 1, 5)),
            "no layer has an output",
        ),
    ],
)
def test_refusals(call: Any, words: str) -> None:
    with pytest.raises(TorchTheoryError, match=words):
        call()


def test_a_network_of_nan_is_refused() -> None:
    net = nn.Sequential(nn.Conv1d(1, 1, 3))
    with torch.no_grad():
        net[0].weight.fill_(math.nan)  # type: ignore[operator]
    with pytest.raises(UnsupportedModel, match="gives NaN for a finite input"):
        dependence(net, (1, 5))
    with pytest.raises(InvalidInput, match="must be finite"):
        dependence(nn.Sequential(nn.ReLU()), torch.full((1, 5), math.nan))


def test_padding_behind_a_stride_counts_its_jump() -> None:
    """The first unit behind a stride of 2 and another padding begins 1 + 2 places outside."""
    net = nn.Sequential(nn.Conv1d(1, 1, 3, stride=2, padding=1), nn.Conv1d(1, 1, 3, padding=1))
    first, second = receptive_fields(net, (1, 9))
    assert (first.start, first.size, first.jump) == ((-1,), (3,), (2,))
    assert (second.start, second.size, second.jump) == ((-3,), (7,), (2,))


def test_the_squared_length_of_a_gradient_does_not_grow_with_probes() -> None:
    """Three taps of 1 have a gradient of squared length 3, whatever signs are drawn."""
    net = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, bias=False))
    net[0].weight.data.fill_(1.0)
    for probes in (1, 4):
        found = effective_receptive_field(net, torch.zeros(2, 1, 7), probes=probes, generator=0)
        assert found.total == pytest.approx(3.0)


def test_inputs_that_do_not_fit_are_said_in_a_sentence() -> None:
    with pytest.raises(UnsupportedModel, match="the model raised RuntimeError on inputs of shape"):
        effective_receptive_field(nn.Conv2d(2, 3, 3), torch.zeros(2, 5, 8, 8))


SEEING = [n for n in NAMES if architecture(n).x.ndim > 2]


@pytest.mark.parametrize("name", SEEING)
def test_fields_of_architectures_are_what_they_depend_on(name: str) -> None:
    """As a module and out of an archive, at the rim as in the middle."""
    a = architecture(name)
    for model in (a.model, archived(name)):
        theory = {f.name: f.box for f in receptive_fields(model, a.x[0])}
        assert theory == {d.name: d.box for d in dependence(model, a.x[0])}
        assert theory


@pytest.mark.parametrize(
    "layer",
    [
        nn.ConvTranspose1d(2, 2, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose1d(2, 2, 4, stride=3, dilation=2),
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Upsample(size=13, mode="linear"),
        nn.Upsample(size=13, mode="linear", align_corners=True),
        nn.AvgPool1d(3, 2, padding=1, ceil_mode=True),
        nn.AdaptiveMaxPool1d(4),
        nn.CircularPad1d(2),
        nn.ReplicationPad1d(3),
        nn.LPPool1d(2, 3),
        nn.LocalResponseNorm(2),
        nn.InstanceNorm1d(2),
        nn.Conv1d(2, 4, 3, groups=2, padding="same"),
        nn.Softmax(1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_every_unit_of_a_layer(layer: nn.Module) -> None:
    """Behind a window of three with a stride, unit by unit, as NaN shows it."""
    net = nn.Sequential(nn.Conv1d(1, 2, 3, stride=2), layer).double().eval()
    x = torch.randn(19, dtype=torch.float64)
    marked = x.repeat(19, 1)[:, None]
    marked[torch.arange(19), 0, torch.arange(19)] = math.nan
    with torch.no_grad():
        seen = net(marked).isnan()
    for unit in range(seen.shape[2]):

        class Taken(nn.Module):
            def __init__(self, unit: int) -> None:
                super().__init__()
                self.net, self.last, self.unit = net, nn.Identity(), unit

            def forward(self, x: Tensor) -> Tensor:
                return F.softplus(self.net(x)[:, :, self.unit : self.unit + 1])

        box = receptive_fields(nn.Sequential(Taken(unit), nn.ReLU()), (1, 19))[-1].box
        places = seen[:, :, unit].any(1).nonzero().flatten()
        assert box == (((int(places[0]), int(places[-1])),) if len(places) else None)


def test_windows_between_the_old_places() -> None:
    net = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1), nn.ConvTranspose1d(1, 1, 4, 2, padding=1))
    found = receptive_fields(net, (1, 16))[-1]
    assert found.jump == (Fraction(1, 2),)
    assert found.size == (4,)


def test_what_replaces_nan_has_a_field_all_the_same() -> None:
    found = receptive_fields(Replacing(), (1, 9))
    assert [f.box for f in found] == [((3, 5),), ((2, 6),)]
