"""The layer where equivariance ends is named, with its reason, and its circular twin is not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.tracing.architectures import architecture, archived
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.equivariance.actions import Actions, translations
from torchtheory.equivariance.layers import equivariance_by_layer
from torchtheory.equivariance.measure import measure_equivariance

RIGHT = "shift by (0, 1)"
DROPS = "drops the border: it has no padding"


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def seeded() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def conv(i: int, o: int, padding: str = "circular", **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(i, o, 3, padding=1, padding_mode=padding, **settings)


def twin(**changed: nn.Module) -> nn.Sequential:
    """A circular network with global pooling; a layer of it can be exchanged."""
    layers: dict[str, nn.Module] = {
        "first": conv(1, 4),
        "act": nn.ReLU(),
        "second": conv(4, 4),
        "norm": nn.BatchNorm2d(4),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flat": nn.Flatten(),
        "head": nn.Linear(4, 3),
    }
    net = nn.Sequential()
    for name, layer in {**layers, **changed}.items():
        net.add_module(name, layer)
    return net.train()


def reasons(net: nn.Module, group: Any = "translations", x: Tensor | None = None) -> dict[str, str]:
    found = equivariance_by_layer(net, group, draw(3, 1, 8, 8) if x is None else x)
    assert found.unfollowed is None
    return {layer.place: layer.reason for layer in found.breaking}


# ------------------------------------------------------------------------------ images and shifts


def test_the_circular_twin_is_not_accused() -> None:
    found = equivariance_by_layer(twin(), "translations", draw(3, 1, 8, 8))
    assert found.first is None
    assert [layer.name for layer in found.layers] == [
        "first", "act", "second", "norm", "pool", "head",
    ]  # fmt: skip
    assert all(layer.total <= found.rounding for layer in found.layers)
    assert "no layer breaks it" in repr(found)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"first": conv(1, 4, "zeros")}, {"first (Conv2d)": "pads the border with zeros"}),
        ({"second": conv(4, 4, "zeros")}, {"second (Conv2d)": "pads the border with zeros"}),
        ({"second": conv(4, 4, "reflect")}, {"second (Conv2d)": "pads the border (reflect)"}),
        (
            {"second": conv(4, 4, stride=2)},
            {"second (Conv2d)": "has stride 2, which does not divide a shift by (0, 1)"},
        ),
        ({"second": nn.Conv2d(4, 4, 3)}, {"second (Conv2d)": DROPS}),
        (
            {"act": nn.MaxPool2d(2)},
            {"act (MaxPool2d)": "has stride 2, which does not divide a shift by (0, 1)"},
        ),
        (
            {"second": conv(4, 4, "zeros", stride=2)},
            {"second (Conv2d)": "has stride 2, which does not divide a shift by (0, 1), and pads "
             "the border with zeros"},
        ),
        ({"act": nn.MaxPool2d(3, 1, 1)}, {"act (MaxPool2d)": "pads the border"}),
        ({"act": nn.AvgPool2d(2, 1)}, {"act (AvgPool2d)": DROPS}),
        (
            {"pool": nn.Identity(), "head": nn.Linear(256, 3)},
            {"head (Linear)": "has weights of its own for every position"},
        ),
        (
            {"norm": nn.LayerNorm([4, 8, 8])},
            {},  # weights of 1 treat all positions alike
        ),
        ({"act": nn.ZeroPad2d(1), "second": nn.Conv2d(4, 4, 3)}, None),
    ],
)  # fmt: skip
def test_a_layer_that_breaks_it_is_named_with_its_reason(
    changed: dict[str, nn.Module], named: dict[str, str] | None
) -> None:
    found = reasons(twin(**changed))
    if named is None:
        assert next(iter(found.items())) == ("act (ZeroPad2d)", "pads the border with zeros")
        return
    assert found == named
    measured = measure_equivariance(twin(**changed), "translations", draw(3, 1, 8, 8))
    assert measured.exact == (not named)


def test_all_that_breaks_it_is_named_in_order() -> None:
    net = nn.Sequential(
        conv(1, 4, "zeros"), nn.ReLU(), conv(4, 4, stride=2), nn.BatchNorm2d(4), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip
    found = equivariance_by_layer(net, "translations", draw(3, 1, 8, 8))
    assert [layer.place for layer in found.breaking] == [
        "0 (Conv2d)", "2 (Conv2d)", "5 (MaxPool2d)", "7 (Linear)",
    ]  # fmt: skip
    assert "it ends at 0 (Conv2d), which pads the border with zeros" in repr(found)
    by_place = {layer.name: layer for layer in found.layers}
    assert by_place["2"].lost
    assert by_place["5"].reason == "has stride 2, which does not divide a shift by (0, 2)"
    # what comes after a break carries it on, and is not accused
    assert by_place["1"].introduced <= found.rounding < by_place["1"].total


def test_even_shifts_pass_one_stride_and_not_two() -> None:
    net = twin(second=conv(4, 4, stride=2))
    assert reasons(net, translations(2)) == {}
    again = twin(second=conv(4, 4, stride=2), norm=conv(4, 4, stride=2))
    assert list(reasons(again, translations(2))) == ["norm (Conv2d)"]
    assert reasons(again, translations(4)) == {}


def relative(found: Tensor, wanted: Tensor) -> float:
    constant = wanted.mean(0)
    sizes = [float((t - constant).square().sum()) for t in (found, wanted)]
    return float((found - wanted).norm()) / (sum(sizes) / 2) ** 0.5


def test_introduced_defects_are_those_of_the_layer_alone() -> None:
    """By hand: the second layer of a network, fed the shifted output of the first."""
    one, two = conv(1, 2, "zeros").double(), conv(2, 2, "zeros").double()
    x = draw(3, 1, 6, 6).double()
    found = equivariance_by_layer(nn.Sequential(one, two), "translations", x)
    with torch.no_grad():
        z = one(x)
        before = max(relative(one(x.roll(1, a)), z.roll(1, a)) for a in (2, 3))
        alone = max(relative(two(z.roll(1, a)), two(z).roll(1, a)) for a in (2, 3))
        total = max(relative(two(one(x.roll(1, a))), two(z).roll(1, a)) for a in (2, 3))
    assert found.first is not None
    assert found.first.introduced == pytest.approx(before, rel=1e-9)
    assert found.layers[1].introduced == pytest.approx(alone, rel=1e-9)
    assert found.layers[1].total == pytest.approx(total, rel=1e-9)


def test_a_grid_that_the_stride_does_not_divide() -> None:
    net = nn.Sequential(nn.AvgPool2d(2))
    assert reasons(net, translations(2), draw(2, 1, 6, 6)) == {}
    # on a ring of 7, seven shifts by 2 come back to the start, and three windows do not
    (said,) = reasons(net, translations(2), draw(2, 1, 7, 7)).values()
    assert said == "has stride 2, which does not divide the grid of 7 × 7"


def test_rotations_ask_for_symmetric_kernels() -> None:
    net = twin()
    assert set(reasons(net, "rotations").values()) == {"has kernels without this symmetry"}
    with torch.no_grad():
        for layer in (net.first, net.second):
            w = layer.weight
            layer.weight.copy_(sum(w.rot90(k, (2, 3)) for k in range(4)) / 4)
    assert reasons(net, "rotations") == {}
    assert reasons(net, "p4") == {}


class Block(nn.Module):
    """A residual block whose activations are functions, and work in place."""

    def __init__(self, padding: str) -> None:
        super().__init__()
        self.inner = conv(4, 4, padding)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(F.relu(x, inplace=True))
        out += x
        return F.relu_(out)


class Residual(nn.Module):
    def __init__(self, padding: str) -> None:
        super().__init__()
        self.stem, self.a, self.b = conv(1, 4), Block("circular"), Block(padding)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(self.stem(x))).mean((-2, -1)))


def test_functions_in_forward_are_followed() -> None:
    assert reasons(Residual("circular")) == {}
    assert list(reasons(Residual("zeros"))) == ["b.inner (Conv2d)"]


class Functions(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw(4, 1, 3, 3))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "circular":
            return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), self.weight)
        if self.how == "zeros":
            return F.conv2d(x, self.weight, padding=1)
        if self.how == "stride":
            return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), self.weight)[..., ::2, ::2]
        if self.how == "pool":
            return F.max_pool2d(x, 2)
        if self.how == "crop":
            return x[..., 1:-1, 1:-1]
        if self.how == "write":
            x[..., 0] = 0
        return x.flatten(1).roll(3, 1).view_as(x)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("circular", {}),
        ("zeros", {"conv2d in forward": "pads the border with zeros"}),
        ("stride", {"indexing in forward": f"keeps one position in 2, which no {RIGHT} fits"}),
        ("pool", {"max_pool2d in forward": f"has stride 2, which does not divide a {RIGHT}"}),
        ("crop", {"indexing in forward": "takes fixed positions"}),
        ("write", {"writing in forward": "writes to fixed positions"}),
        ("roll", {}),
    ],
)  # fmt: skip
def test_functions_have_reasons_too(how: str, named: dict[str, str]) -> None:
    assert reasons(Functions(how)) == named


# ---------------------------------------------------------------------------- tokens and patches


class Attention(nn.Module):
    """Attention by hand, with or without positions and a class token, and a layer of torch's."""

    def __init__(self, positions: bool, token: bool, width: int = 4) -> None:
        super().__init__()
        self.positions = nn.Parameter(draw(1, 5, width)) if positions else None
        self.token = nn.Parameter(draw(1, 1, width)) if token else None
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.layer = nn.TransformerEncoderLayer(width, 2, 8, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.positions is not None:
            x = x + self.positions
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        n, length, width = x.shape
        heads = (
            f(x).view(n, length, 2, width // 2).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        q, k, v = heads
        weights = torch.softmax(q @ k.transpose(-2, -1) / 2, -1)
        x = self.layer(x + (weights @ v).transpose(1, 2).reshape(n, length, width))
        return self.head(x[:, 0] if self.token is not None else x.mean(1))


@pytest.mark.parametrize("token", [False, True])
def test_positions_end_the_equivariance_of_attention(token: bool) -> None:
    x = draw(3, 5, 4)
    assert reasons(Attention(False, token), "permutations", x) == {}
    assert reasons(Attention(True, token), "permutations", x) == {
        "add in forward": "adds numbers that belong to fixed positions (a position encoding, say)"
    }


class Set(nn.Module):
    """Functions of sets in ways that move positions about."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(draw(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "attention by sums over indices":
            weights = torch.einsum("nid,njd->nij", x, x).softmax(-1)
            return torch.einsum("nij,njd->nid", weights, x)
        if self.how == "all pairs":
            return (x[:, :, None] - x[:, None]).square().sum(-1).exp().mean(2)
        if self.how == "sorted":
            return x.sort(1).values.flatten(1) @ self.weight.flatten()[:, None]
        if self.how == "largest":
            return x[..., 0].topk(2, 1).values
        if self.how == "centered":
            return x - x.mean(1, keepdim=True)
        return torch.einsum("ntd,td->nd", x, self.weight)


@pytest.mark.parametrize(
    ("how", "breaks"),
    [
        ("attention by sums over indices", False),
        ("all pairs", False),
        ("sorted", False),
        ("largest", False),
        ("centered", False),
        ("weighted by position", True),
    ],
)
def test_functions_of_sets(how: str, breaks: bool) -> None:
    x = draw(3, 5, 4)
    assert bool(reasons(Set(how), "permutations", x)) == breaks
    assert measure_equivariance(Set(how), "permutations", x).exact != breaks


class Patches(nn.Module):
    def __init__(self, positions: bool) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 4, 2, stride=2)
        self.positions = nn.Parameter(draw(1, 16, 4)) if positions else None
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.layer(x if self.positions is None else x + self.positions).mean(1)


def test_patches_follow_shifts_by_whole_patches() -> None:
    assert reasons(Patches(False), translations(2)) == {}
    assert list(reasons(Patches(False))) == ["patch (Conv2d)"]
    assert list(reasons(Patches(True), translations(2))) == ["add in forward"]


class First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def test_other_ways_to_depend_on_the_order() -> None:
    x = draw(3, 5, 4)
    assert reasons(First(), "permutations", x) == {"indexing in forward": "takes fixed positions"}
    assert reasons(nn.Sequential(nn.GRU(4, 4, batch_first=True)), "permutations", x) == {
        "0 (GRU)": "reads the positions one after the other"
    }
    words = torch.randint(0, 9, (3, 5), generator=torch.Generator().manual_seed(0))
    flat = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2))
    assert list(reasons(flat, "permutations", words)) == ["2 (Linear)"]


# ------------------------------------------------------------------------------------- the rest


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x).abs()


def test_parametrized_and_exported_layers_are_followed() -> None:
    normed = nn.utils.parametrizations.weight_norm(conv(1, 2, "zeros"))
    assert reasons(nn.Sequential(normed)) == {"0 (Conv2d)": "pads the border with zeros"}
    x = draw(3, 1, 8, 8)
    program = torch.export.export(twin(second=conv(4, 4, "zeros")).eval(), (x,)).module()
    assert reasons(program, x=x) == {"conv2d in forward": "pads the border with zeros"}
    assert reasons(torch.export.export(twin().eval(), (x,)).module(), x=x) == {}


class Written(nn.Module):
    """A function of signals, behind a circular convolution."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular")
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.how(self.first(x))
        return made


ENCODES = "adds numbers that belong to fixed positions (a position encoding, say)"
HALVES = "keeps one position in 2, which no shift by 1 fits"
JOINS = "joins numbers that belong to fixed positions (coordinates, say)"


def steps_beside(y: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.float64).expand(len(y), 1, 8)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        # whether dimensions stay comes in different places
        (lambda y: y.std(1, True), {}),
        (lambda y: y / y.var(1, False, True), {}),
        (lambda y: y.norm(2, 1), {}),
        # a part of a signal
        (lambda y: y[..., ::2], {"indexing in forward": HALVES}),
        (lambda y: y[..., 1:-1], {"indexing in forward": "takes fixed positions"}),
        # constants that take on the type or shape of the data
        (lambda y: y + torch.arange(8).to(y), {"add in forward": ENCODES}),
        (lambda y: y + torch.arange(8).type_as(y), {"add in forward": ENCODES}),
        (lambda y: y + torch.arange(8).double().expand_as(y), {"add in forward": ENCODES}),
        (lambda y: y + torch.ones(8).to(y), {}),
        # what stands beside the data as a channel
        (lambda y: torch.cat([y, steps_beside(y)], 1), {"cat in forward": JOINS}),
        (lambda y: torch.cat([y, y.new_ones(len(y), 1, 8)], 1), {}),
        (lambda y: torch.cat([torch.ones(len(y), 1, 8).double(), y], 1).mean(2), {}),
        (lambda y: torch.cat([y.mean(2, keepdim=True).expand(-1, -1, 8), y], 1), {}),
    ],
)  # fmt: skip
def test_functions_of_signals(how: Any, named: dict[str, str]) -> None:
    found = equivariance_by_layer(Written(how), "translations", draw(3, 2, 8))
    assert {layer.place: layer.reason for layer in found.breaking} == named
    assert found.unfollowed is None


def test_the_largest_of_a_volume_is_followed() -> None:
    net = nn.Sequential(nn.AdaptiveMaxPool3d(1), nn.Flatten())
    found = equivariance_by_layer(net, "translations", draw(2, 1, 3, 4, 3))
    assert found.unfollowed is None
    assert found.first is None


def test_where_the_trail_is_lost_that_is_said() -> None:
    found = equivariance_by_layer(
        nn.Sequential(conv(1, 2), Strange()), "translations", draw(2, 1, 4, 4)
    )
    assert found.unfollowed is not None
    assert found.unfollowed.place == "fft_fft in 1"
    assert found.first is None
    assert "no layer before fft_fft in 1 breaks it" in repr(found)
    assert "is not known" in repr(found)


def test_the_model_stays_as_it_was() -> None:
    net = twin(first=conv(1, 4, "zeros"))
    before = copy.deepcopy(net.state_dict())
    equivariance_by_layer(net, "translations", draw(3, 1, 8, 8))
    assert net.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())

    class Locked(nn.Module):  # cannot be copied
        def __init__(self) -> None:
            super().__init__()
            self.inner = conv(1, 2, "zeros")

        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("no copies")

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    locked = Locked()
    assert list(reasons(locked)) == ["inner (Conv2d)"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in locked.modules())


@pytest.mark.draws
def test_it_draws() -> None:
    found = equivariance_by_layer(twin(first=conv(1, 4, "zeros")), "p4", draw(2, 1, 8, 8))
    assert found.figure().png


def test_actions_of_ones_own_have_no_layers() -> None:
    with pytest.raises(InvalidInput, match="groups that move positions"):
        equivariance_by_layer(twin(), Actions([1], lambda g, x: x), draw(2, 1, 4, 4))


@pytest.mark.parametrize("axes", [(7,), (0, 1), ("a",)])
def test_axes_that_are_none_are_refused(axes: Any) -> None:
    with pytest.raises(ShapeMismatch, match="give axes that it has"):
        equivariance_by_layer(nn.ReLU(), translations(axes=axes), draw(2, 1, 4, 4))


def test_a_transposed_convolution_that_tiles_is_not_accused() -> None:
    net = nn.Sequential(nn.ConvTranspose2d(1, 2, 2, stride=2), conv(2, 1))
    found = equivariance_by_layer(net, "translations", draw(2, 1, 4, 4))
    assert found.first is None
    assert found.unfollowed is None


class AroundByHand(nn.Module):
    """A border that goes around, put together from pieces; or only one side of it."""

    def __init__(self, around: bool = True) -> None:
        super().__init__()
        self.filters = nn.Conv1d(1, 3, 3).double()
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        left = x[..., -1:] if self.around else x[..., :1]
        return self.filters(torch.cat([left, x, x[..., :1]], -1)).relu().mean(2)


@pytest.mark.parametrize("seed", range(3))
def test_a_border_put_together_by_hand_is_not_accused(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(4, 1, 9, dtype=torch.float64)
    found = equivariance_by_layer(AroundByHand(), "translations", x)
    assert found.breaking == []
    assert found.unfollowed is not None
    broken = equivariance_by_layer(AroundByHand(around=False), "translations", x)
    assert broken.first is not None
    assert broken.first.kind == "indexing"


@pytest.mark.parametrize(
    "layers",
    [
        (nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)),  # the mean of means
        (nn.PixelUnshuffle(2), nn.PixelShuffle(2)),
        (nn.InstanceNorm2d(1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2)),  # of zeros
    ],
)
def test_layers_of_an_equivariant_network_are_not_accused(layers: tuple[nn.Module, ...]) -> None:
    net, x = nn.Sequential(*layers), draw(3, 1, 8, 8)
    assert measure_equivariance(net, "translations", x).exact
    assert equivariance_by_layer(net, "translations", x).first is None


def test_a_network_without_an_answer_acquits_no_layer() -> None:
    dead = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Threshold(1e9, 0.0))
    found = equivariance_by_layer(dead, "translations", draw(3, 1, 8, 8))
    assert found.first is not None
    assert found.first.reason == "pads the border with zeros"


@pytest.mark.parametrize("name", ["resnet", "group-norm", "gru"])
def test_an_archive_has_the_layers_of_its_module(name: str) -> None:
    made = architecture(name)
    group = "permutations" if name == "gru" else "translations"
    own, theirs = (
        equivariance_by_layer(model, group, made.x) for model in (made.model, archived(name))
    )
    assert [layer.reason for layer in own.layers] == [layer.reason for layer in theirs.layers]
    for one, other in zip(own.layers, theirs.layers, strict=True):
        assert (one.name, one.lost, one.followed) == (other.name, other.lost, other.followed)
        assert one.introduced == pytest.approx(other.introduced, abs=own.rounding)
        assert one.total == pytest.approx(other.total, abs=own.rounding)
