"""Defects of equivariance against loops by hand, and averages over groups."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.equivariance.actions import (
    Actions,
    flips,
    permutations,
    rotations,
    roto_translations,
    translations,
)
from torchtheory.equivariance.average import group_average
from torchtheory.equivariance.functions import relative_defects
from torchtheory.equivariance.layers import equivariance_by_layer
from torchtheory.equivariance.measure import equivariance_defect, measure_equivariance
from torchtheory.models.model import PureFunction


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def convolution(padding: str = "circular", stride: int = 1, channels: int = 3) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, padding_mode=padding),
            nn.ReLU(),
            nn.Conv2d(channels, 2, 3, padding=1, padding_mode=padding, stride=stride),
        )


def classifier(padding: str = "circular") -> nn.Sequential:
    return convolution(padding).append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten())


# -------------------------------------------------------------------------------- the numbers


def test_mean_and_largest_are_those_of_a_loop_over_shifts() -> None:
    net, x = convolution("zeros").double(), draw(3, 1, 4, 5, dtype=torch.float64)
    found = measure_equivariance(net, "translations", x, elements=100)
    with torch.no_grad():
        y = net(x)
        # of all shifts, the identity among them, the mean is the same at every place
        constant = y.mean((0, 2, 3), keepdim=True)
        defects: dict[tuple[int, int, int], float] = {}
        for i in range(3):
            for down in range(4):
                for right in range(5):
                    got = net(x[i : i + 1].roll((down, right), (2, 3)))
                    wanted = y[i : i + 1].roll((down, right), (2, 3))
                    sizes = [float((v - constant).square().sum()) for v in (got, wanted)]
                    scale = math.sqrt(sum(sizes) / 2)
                    defects[i, down, right] = float((got - wanted).norm()) / scale
    others = {k: v for k, v in defects.items() if k[1:] != (0, 0)}
    assert found.mean.estimate == pytest.approx(sum(others.values()) / len(others), rel=1e-10)
    assert found.largest == pytest.approx(max(others.values()), rel=1e-10)
    means = [sum(v for k, v in others.items() if k[0] == i) / 19 for i in range(3)]
    low, high = stats.t.interval(0.95, 2, sum(means) / 3, stats.sem(means))  # inputs are the trials
    assert (found.mean.low, found.mean.high) == pytest.approx((max(0, low), min(2, high)))
    i, down, right = max(others, key=lambda k: others[k])
    assert (found.worst_input, found.worst) == (i, f"shift by ({down}, {right})")
    assert len(found.elements) == 19
    assert all(e.tried == 3 for e in found.elements)
    assert found.acting == 1
    assert not found.exact


def test_the_defect_itself_is_the_difference_of_the_two_ways() -> None:
    net, x = convolution("zeros"), draw(2, 1, 4, 4)
    found = equivariance_defect(net, "translations", (0, 0, 1, 2), x)
    with torch.no_grad():
        wanted = net(x.roll((1, 2), (2, 3))) - net(x).roll((1, 2), (2, 3))
    torch.testing.assert_close(found.float(), wanted, rtol=1e-4, atol=1e-5)
    assert found.dtype == torch.float64  # computed more precisely than the model does
    with pytest.raises(InvalidInput, match="has no counterpart"):
        equivariance_defect(convolution(stride=2), "translations", (0, 0, 1, 0), x)


@pytest.mark.parametrize("size", [(4, 4), (3, 5)])
def test_circular_convolutions_are_exact_and_their_padded_twins_are_not(
    size: tuple[int, int],
) -> None:
    x = draw(3, 1, *size)
    assert measure_equivariance(convolution(), "translations", x).exact
    assert measure_equivariance(classifier(), "translations", x).exact
    for padding in ("zeros", "reflect", "replicate"):
        assert not measure_equivariance(convolution(padding), "translations", x).exact
        found = measure_equivariance(classifier(padding), "translations", x)
        assert not found.exact
        assert "invariance" in found.assumed


def test_a_stride_follows_the_even_shifts_alone() -> None:
    net, x = convolution(stride=2), draw(2, 1, 8, 8)
    found = measure_equivariance(net, "translations", x)
    assert found.largest <= found.rounding
    assert found.acting == pytest.approx(1 / 4)
    assert not found.exact
    assert all(a % 2 == b % 2 == 0 for _, _, a, b in (e.element for e in found.elements))
    assert "0.75 of the elements have no counterpart" in repr(found)
    assert measure_equivariance(net, translations(2), x).exact
    pooled = net.append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten())
    assert not measure_equivariance(pooled, "translations", x).exact
    assert measure_equivariance(pooled, translations(2), x).exact


def test_full_convolutions_commute_with_shifts_that_lose_nothing() -> None:
    x = F.pad(draw(2, 1, 3, 3), (3, 3, 3, 3))
    net = nn.Conv2d(1, 2, 3, padding=2)
    shifts = translations(border=0.0, most=3)
    net.bias = None
    assert measure_equivariance(net, shifts, x, stride=1, elements=100).exact
    assert not measure_equivariance(net, shifts, x[..., 1:, :], stride=1, elements=100).exact


class Lifted(nn.Module):
    """Correlation with a filter in all its orientations."""

    def __init__(self, mirrored: bool, reverse: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw(2, 1, 3, 3))
        self.mirrored, self.reverse = mirrored, reverse

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (1, 1, 1, 1), mode="circular")
        maps = [
            F.conv2d(padded, (self.weight.flip(-1) if m else self.weight).rot90(r, (2, 3)))
            for m in range(2 if self.mirrored else 1)
            for r in range(4)
        ]
        return torch.stack(maps[::-1] if self.reverse else maps, 2)


@pytest.mark.parametrize("mirrored", [False, True])
def test_filters_in_all_orientations_turn_with_the_image(mirrored: bool) -> None:
    x, group = draw(2, 1, 5, 5), roto_translations(mirrored=mirrored)
    kept = {"on_output": "orientations", "elements": 300}
    assert measure_equivariance(Lifted(mirrored), group, x, **kept).exact  # type: ignore[arg-type]
    wrong = Lifted(mirrored, reverse=True)
    assert not measure_equivariance(wrong, group, x, **kept).exact  # type: ignore[arg-type]
    assert not measure_equivariance(convolution(), group, x).exact
    with pytest.raises(ShapeMismatch, match="no axis of orientations"):
        measure_equivariance(convolution(), group, x, on_output="orientations")


def test_attention_without_positions_is_equivariant_and_with_them_is_not() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    tokens = draw(5, 6, 4)
    assert measure_equivariance(layer, "permutations", tokens).exact
    placed = nn.Sequential(Added(draw(1, 6, 4)), layer)
    assert not measure_equivariance(placed, "permutations", tokens).exact
    words = torch.randint(0, 9, (5, 6), generator=torch.Generator().manual_seed(0))
    bag = nn.EmbeddingBag(9, 3)
    found = measure_equivariance(bag, "permutations", words)
    assert found.largest < 1e-5
    assert "invariance" in found.assumed
    assert measure_equivariance(nn.Embedding(9, 3), "permutations", words).exact


class Added(nn.Module):
    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.values


class Message(nn.Module):
    """One step on a graph, from its adjacency matrix alone."""

    def forward(self, a: Tensor) -> Tensor:
        return (a @ a.sum(2, keepdim=True)).tanh()


def test_graphs_are_permuted_along_both_axes() -> None:
    a = draw(4, 5, 5)
    assert measure_equivariance(Message(), permutations((1, 2)), a).exact
    assert not measure_equivariance(Message(), permutations((1,)), a).exact


@pytest.mark.parametrize("bias", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("kind", ["equivariant", "invariant"])
def test_a_large_constant_hides_nothing(bias: float, kind: str) -> None:
    x = draw(6, 1, 6, 6).double()
    for padding, exact in (("circular", True), ("zeros", False)):
        net = (convolution(padding) if kind == "equivariant" else classifier(padding)).double()
        plain = measure_equivariance(net, "translations", x, generator=0)
        with torch.no_grad():
            net[2].bias.add_(bias)
        shifted = measure_equivariance(net, "translations", x, generator=0)
        assert shifted.exact is exact
        assert shifted.largest == pytest.approx(plain.largest, rel=1e-5)
        if not exact:
            assert shifted.mean.estimate > 0.01
            layers = equivariance_by_layer(net, "translations", x).layers
            assert next(v for v in layers if v.name == "2").introduced > 0.01


def test_a_constant_that_moves_is_a_defect() -> None:
    class Placed(nn.Module):
        """Adds a number to every place, each another one."""

        def forward(self, x: Tensor) -> Tensor:
            return x + 1e6 * torch.arange(36).reshape(6, 6)

    found = measure_equivariance(Placed(), "translations", draw(4, 1, 6, 6))
    assert 0.5 < found.largest <= 2.0


def test_nothing_that_varies_is_exact() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full((len(x), 3), 1e6 / 7, dtype=x.dtype) + 0 * x.sum()

    for x in (draw(4, 1, 6, 6), draw(1, 1, 6, 6)):
        found = measure_equivariance(Constant(), "translations", x)
        assert found.largest == 0


def test_a_pair_of_actions_of_ones_own() -> None:
    odd, even = nn.Tanh(), Square()
    x = draw(4, 3)
    signs = Actions([-1.0], lambda s, z: s * z, lambda s, z: s * z, name="changes of sign")
    assert measure_equivariance(odd, signs, x).exact
    assert measure_equivariance(even, signs, x).largest == pytest.approx(2.0)  # as far as can be
    invariant = Actions([-1.0], lambda s, z: s * z)
    assert measure_equivariance(even, invariant, x).exact
    scales = Actions([2.0, 3.0], lambda s, z: s * z, lambda s, z: s * z)
    assert measure_equivariance(nn.ReLU(), scales, x).exact
    assert not measure_equivariance(odd, scales, x).exact
    with pytest.raises(ShapeMismatch, match="on_input must return a tensor like"):
        measure_equivariance(odd, Actions([1], lambda s, z: z[:, :1]), x)
    with pytest.raises(NonFinite, match="what on_input returns must be finite"):
        measure_equivariance(odd, Actions([math.inf], lambda s, z: s * z), x)


def test_actions_may_write_to_what_they_are_given() -> None:
    """Each element acts on the inputs themselves, which stay as they are."""
    odd = nn.Conv1d(1, 1, 3, bias=False, dtype=torch.float64)
    x = draw(3, 1, 6, dtype=torch.float64)
    before = x.clone()
    scales = Actions([-1.0, 2.0], lambda s, z: z.mul_(s), lambda s, z: z.mul_(s))
    assert measure_equivariance(odd, scales, x).exact
    assert float(equivariance_defect(odd, scales, 2.0, x).abs().max()) < 1e-12
    averaged = group_average(odd, Actions([-1.0], lambda s, z: z.mul_(s)))(x)
    assert float(averaged.detach().abs().max()) < 1e-12
    assert torch.equal(x, before)


def test_long_elements_are_shown_in_one_line() -> None:
    turns = [torch.linalg.qr(draw(3, 3, seed=k))[0] for k in range(2)]
    found = measure_equivariance(
        nn.Linear(3, 3), Actions(turns, lambda q, z: z @ q.to(z)), draw(2, 4, 3)
    )
    assert all("\n" not in e.label and len(e.label) < 80 for e in found.elements)


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square()


def test_outputs_are_moved_where_their_positions_are() -> None:
    x = draw(2, 3, 4, 4)
    assert measure_equivariance(Channels(), "translations", x).exact  # [n, h, w]
    last = Moved()
    assert measure_equivariance(last, "translations", x).exact  # [n, h, w, c]
    found = measure_equivariance(nn.Upsample(scale_factor=2), "translations", x)
    assert found.exact
    assert "2 × 2 times finer" in found.assumed
    assert not measure_equivariance(Channels(), "translations", x, on_output="invariant").exact
    with pytest.raises(ShapeMismatch, match="no positions that go with"):
        measure_equivariance(classifier(), "rotations", draw(1, 1, 4, 4), on_output="equivariant")


class Channels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Moved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


def test_ranges_cover_the_mean_over_all_inputs_and_shifts() -> None:
    net, many = convolution("zeros"), draw(400, 1, 4, 4)
    truth = measure_equivariance(net, "translations", many, elements=100).mean.estimate
    missed = 0
    for seed in range(60):
        some = many[torch.randperm(400, generator=torch.Generator().manual_seed(seed))[:20]]
        found = measure_equivariance(
            net, "translations", some, elements=3, confidence=0.9, generator=seed
        )
        assert 0 <= found.mean.low <= found.mean.estimate <= found.mean.high <= 2
        missed += not found.mean.low <= truth <= found.mean.high
    assert missed <= 14  # Bin(60, 0.1) is larger with probability 0.0006


def test_the_same_seed_gives_the_same_numbers_in_any_chunks() -> None:
    net, x = convolution("zeros"), draw(6, 1, 6, 6)
    one = measure_equivariance(net, "p4m", x, elements=4, generator=3, chunk=1)
    two = measure_equivariance(net, "p4m", x, elements=4, generator=3, chunk=50)
    assert one.mean.estimate == pytest.approx(two.mean.estimate, rel=1e-9)
    assert one.worst == two.worst
    other = measure_equivariance(net, "p4m", x, elements=4, generator=4)
    assert {e.element for e in other.elements} != {e.element for e in one.elements}


def test_one_input_says_nothing_about_others() -> None:
    found = measure_equivariance(convolution("zeros"), "flips", draw(1, 1, 4, 4))
    assert (found.mean.low, found.mean.high) == (0.0, 2.0)


def test_the_model_and_the_generators_stay_as_they_were() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Dropout()).train()
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    measure_equivariance(net, "translations", draw(3, 1, 4, 4))
    assert net.training
    assert all(m.training for m in net.modules())
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.dtype == torch.float32 and p.grad is None for p in net.parameters())


def test_a_model_whose_code_fixes_a_precision_is_measured_in_it() -> None:
    found = measure_equivariance(Single(), "translations", draw(2, 1, 4, 4))
    assert found.rounding > 1e-5
    assert found.exact


def test_low_precision_is_followed_in_double() -> None:
    net, x = convolution().bfloat16(), draw(2, 1, 4, 4)
    assert measure_equivariance(net, "translations", x).exact
    assert measure_equivariance(net, "translations", x.bfloat16()).exact
    broken = convolution("zeros").bfloat16()
    assert not measure_equivariance(broken, "translations", x).exact


class Single(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return x.sin()


@pytest.mark.draws
def test_it_reads_well_and_draws() -> None:
    found = measure_equivariance(convolution("zeros"), "translations", draw(3, 1, 6, 6))
    words = repr(found)
    assert words.startswith(
        "Equivariance under circular shifts: broken\n  relative defect: mean 0."
    )
    assert "95% range" in words
    for group in ("translations", "rotations"):
        assert measure_equivariance(convolution(), group, draw(2, 1, 6, 6)).figure().png
    line = measure_equivariance(nn.Conv1d(1, 1, 3, padding=1), "translations", draw(2, 1, 6))
    assert line.figure().caption == "Defects under circular shifts."


# ------------------------------------------------------------------------------- what is refused


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((nn.Bilinear(2, 2, 1), "translations", draw(2, 1, 4, 4)), UnsupportedModel, "missing 1"),
        ((Random(), "translations", draw(2, 1, 4, 4)), UnsupportedModel, "no function of its"),
        (
            (nn.BatchNorm2d(1, track_running_stats=False), "translations", draw(4, 1, 4, 4)),
            UnsupportedModel,
            "no function of one input",
        ),
        ((convolution(), "rotations", draw(2, 1, 4, 6)), ShapeMismatch, "turn a square"),
        ((convolution(), "turns", draw(2, 1, 4, 4)), UnknownName, "no group is named 'turns'"),
        ((convolution(), "translations", draw(0, 1, 4, 4)), EmptyData, "at least one input"),
        ((convolution(), "translations", draw(2, 1, 1, 1)), ShapeMismatch, "identity alone"),
        ((convolution(), "translations", [1.0]), InvalidType, "x must be a torch tensor"),
        ((convolution(), "flips", draw(2, 1, 4, 4).to_sparse()), InvalidType, "dense tensor"),
        ((convolution(), "translations", draw(2, 1, 4, 4) / 0), NonFinite, "x must be finite"),
        ((nn.Conv2d(1, 1, 3), "translations", draw(2, 1, 8, 8)), ShapeMismatch, "no whole part"),
        ((convolution(stride=2), translations(most=1), draw(2, 1, 8, 8)), InvalidInput, r"\(2\)"),
        (("net", "translations", draw(2, 1, 4, 4)), InvalidType, "torch.nn.Module"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(
    arguments: tuple[Any, Any, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as refusal:
        measure_equivariance(*arguments)
    assert "\n" not in str(refusal.value)


def test_unknown_options_are_refused() -> None:
    x = draw(2, 1, 4, 4)
    with pytest.raises(UnknownName, match="no on_output is named"):
        measure_equivariance(convolution(), "flips", x, on_output="same")
    with pytest.raises(InvalidInput, match="give Actions"):
        measure_equivariance(convolution(), "flips", x, on_output=abs)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="elements must be"):
        measure_equivariance(convolution(), "flips", x, elements=0)
    with pytest.raises(InvalidInput, match="confidence"):
        measure_equivariance(convolution(), "flips", x, confidence=1.0)


def test_several_outputs_are_chosen_from() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.good, self.bad = convolution(), convolution("zeros")

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.good(x), "other": self.bad(x)}

    x = draw(2, 1, 4, 4)
    assert measure_equivariance(Two(), "translations", x).exact
    assert not measure_equivariance(Two(), "translations", x, output="other").exact
    assert measure_equivariance(PureFunction(convolution()), "translations", x).exact


# ------------------------------------------------------------------------------------- averages


@pytest.mark.parametrize("group", [rotations(), flips(), translations(), roto_translations()])
@pytest.mark.parametrize("head", [False, True])
def test_averages_are_exactly_equivariant(group: Any, head: bool) -> None:
    x = draw(3, 1, 4, 4)
    net = convolution("zeros")
    if head:
        net = net.append(nn.Flatten()).append(nn.Linear(32, 3))
    assert not measure_equivariance(net, group, x).exact
    average = group_average(net, group)
    found = measure_equivariance(average, group, x)
    assert found.exact
    assert average(x).shape == net(x).shape


def test_an_average_is_the_mean_by_hand_and_leaves_equivariant_networks_alone() -> None:
    net, x = convolution("zeros").double(), draw(2, 1, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        by_hand = sum(net(x.rot90(k, (2, 3))).rot90(-k, (2, 3)) for k in range(4)) / 4
        torch.testing.assert_close(group_average(net, "rotations")(x), by_hand)
        shifts = group_average(convolution().double(), "translations")
        torch.testing.assert_close(shifts(x), shifts.model(x))
        signs = Actions([-1.0], lambda s, z: s * z, lambda s, z: s * z, inverse=lambda s: s)
        odd = group_average(nn.Softplus(), signs)(x)
        torch.testing.assert_close(odd, x / 2)  # softplus(x) - softplus(-x) = x
        order = permutations()
        sets = group_average(nn.Sequential(nn.Flatten(), nn.Linear(6, 1).double()), order)
        z = draw(2, 3, 2, dtype=torch.float64)
        torch.testing.assert_close(sets(z), sets(z[:, [2, 0, 1]]))
    assert "over quarter turns" in repr(group_average(net, "rotations"))


def test_an_average_can_be_trained() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 1))
    group_average(net, "rotations")(draw(2, 1, 4, 4)).sum().backward()
    assert net[1].weight.grad is not None


def test_averages_over_what_is_no_group_are_refused() -> None:
    net, x = convolution(), draw(1, 1, 4, 4)
    with pytest.raises(InvalidInput, match="are no group"):
        group_average(net, translations(border=0.0))
    with pytest.raises(InvalidInput, match="two of them make a larger one"):
        group_average(net, translations(most=1))
    with pytest.raises(InvalidInput, match="needs the inverse"):
        group_average(net, Actions([1], lambda g, z: z, lambda g, z: z))
    with pytest.raises(InvalidInput, match="an average is over 10 at most"):
        group_average(net, "translations", most=10)(x)
    with pytest.raises(ShapeMismatch, match="has no inverse on the outputs"):
        group_average(convolution(stride=2), "translations")(draw(1, 1, 8, 8))
    with pytest.raises(UnsupportedModel, match="returns one tensor"):
        group_average(nn.LSTM(4, 4, batch_first=True), permutations())(draw(1, 3, 4))


@pytest.mark.parametrize("element", [[1, 0], "x", (0.5, 1, 2, 3, 4)])
def test_an_element_of_another_group_is_refused(element: object) -> None:
    with pytest.raises(InvalidInput, match="is 5 whole numbers") as refused:
        equivariance_defect(nn.Linear(4, 4), "permutations", element, torch.zeros(2, 5, 4))
    assert str(refused.value).count(". ") == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_outputs_that_are_not_finite_are_not_called_equal(value: float) -> None:
    ones = torch.ones(2, 3, dtype=torch.float64)
    assert relative_defects(value * ones, ones).isnan().all()
    assert not relative_defects(ones, ones).any()
