"""Bounds against a textbook implementation, exact cases, and many points inside the ball."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, LabelOutOfRange, ShapeMismatch, UnsupportedModel
from torchtheory.robustness.attacks.gradient_steps import PGD
from torchtheory.robustness.bounds.certified import certified_accuracy, certified_radius
from torchtheory.robustness.bounds.output_bounds import (
    METHODS,
    BoundedNetwork,
    margin_rows,
    output_bounds,
)
from torchtheory.robustness.bounds.relaxations import Box, Smooth

RADII = {"inf": 0.08, "2": 0.4, "1": 0.9}


def perceptron(sizes: list[int], seed: int = 0, activation: type[nn.Module] = nn.ReLU):
    source = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layer = nn.Linear(a, b).double()
        layer.weight.data = torch.randn(b, a, generator=source, dtype=torch.float64) / a**0.5
        layer.bias.data = 0.3 * torch.randn(b, generator=source, dtype=torch.float64)
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def points_in_ball(x: Tensor, radius: float, norm: str, count: int, seed: int = 0) -> Tensor:
    """`[count, b, ...]`, on the sphere and inside."""
    source = torch.Generator().manual_seed(seed)
    d = torch.randn(count, *x.shape, generator=source, dtype=torch.float64)
    share = torch.rand(count, len(x), generator=source, dtype=torch.float64) ** 0.1
    if norm == "inf":
        d = d.clamp(-1, 1)
        d = torch.where(torch.rand(d.shape, generator=source) < 0.7, d.sign(), d)
    elif norm == "2":
        d = d / d.flatten(2).norm(dim=2).reshape(count, len(x), *[1] * (x.ndim - 1))
    else:
        keep = torch.rand(d.shape, generator=source) < 0.1
        d = torch.where(keep, d, 0.0)
        size = d.flatten(2).abs().sum(2).clamp_min(1e-9)
        d = d / size.reshape(count, len(x), *[1] * (x.ndim - 1))
    d = d * radius * share.reshape(count, len(x), *[1] * (x.ndim - 1))
    return (x.double() + d).to(x.dtype)


# -- the textbook, in loops ------------------------------------------------------------------------


def textbook(net: nn.Sequential, x0: np.ndarray, r: float, norm: str):
    """CROWN of one sample, met with interval bounds: dense matrices and loops over units."""
    weights = [
        (m.weight.detach().numpy(), m.bias.detach().numpy())
        for m in net
        if isinstance(m, nn.Linear)
    ]
    dual = {"inf": 1, "2": 2, "1": np.inf}[norm]

    def least(row: np.ndarray, shift: float) -> float:
        return float(row @ x0 + shift - r * np.linalg.norm(row, dual))

    boxes: list[tuple[np.ndarray, np.ndarray]] = []

    def bound(depth: int, row: np.ndarray) -> float:
        """Lower bound of row · (pre-activation of layer `depth`)."""
        shift = 0.0
        for k in range(depth, -1, -1):
            w, b = weights[k]
            shift += float(row @ b)
            row = row @ w
            if k:
                low, high = boxes[k - 1]
                new = np.zeros_like(row)
                for j, a in enumerate(row):
                    least_j, u = low[j], high[j]
                    if least_j >= 0:
                        new[j] = a
                    elif u <= 0:
                        new[j] = 0.0
                    elif a >= 0:
                        new[j] = a if u > -least_j else 0.0
                    else:
                        new[j] = a * u / (u - least_j)
                        shift += -a * u * least_j / (u - least_j)
                row = new
        return least(row, shift)

    a, c = x0 - r, x0 + r  # intervals
    for depth, (w, b) in enumerate(weights):
        plus, minus = np.maximum(w, 0), np.minimum(w, 0)
        ibp = plus @ a + minus @ c + b, plus @ c + minus @ a + b
        eye = np.eye(len(b))
        low = np.array([bound(depth, e) for e in eye])
        high = np.array([-bound(depth, -e) for e in eye])
        if depth == 0:
            ibp = (low, high) if norm != "inf" else ibp
        # what does not bend by its intervals keeps them
        ask = (ibp[0] < 0) & (ibp[1] > 0) if depth < len(weights) - 1 else np.full(len(b), True)
        low = np.where(ask, np.maximum(low, ibp[0]), ibp[0])
        high = np.where(ask, np.minimum(high, ibp[1]), ibp[1])
        boxes.append((low, high))
        a, c = np.maximum(low, 0), np.maximum(high, 0)
    return boxes


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
@pytest.mark.parametrize("seed", range(4))
def test_crown_is_that_of_the_textbook(norm: str, seed: int) -> None:
    net = perceptron([5, 9, 8, 7, 3], seed)
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed)).double()
    found = output_bounds(net, x, 2 * RADII[norm], norm, "crown")
    for k in range(len(x)):
        low, high = textbook(net, x[k].numpy(), 2 * RADII[norm], norm)[-1]
        np.testing.assert_allclose(found.lower[k], low, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.upper[k], high, rtol=0, atol=1e-10)


def test_layers_are_those_of_the_textbook_where_units_bend() -> None:
    net = perceptron([4, 8, 8, 2], 3)
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(1)).double()
    layers = [v for v in output_bounds(net, x, 0.2, layers=True).layers if "Linear" in v.name]
    boxes = textbook(net, x[0].numpy(), 0.2, "inf")
    assert len(layers) == len(boxes) == 3
    for mine, (low, high) in zip(layers[:2], boxes[:2], strict=True):
        bent = (low < 0) & (high > 0)
        assert bent.any()
        np.testing.assert_allclose(mine.lower[0][bent], low[bent], atol=1e-10)
        np.testing.assert_allclose(mine.upper[0][bent], high[bent], atol=1e-10)


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
@pytest.mark.parametrize("method", METHODS)
def test_one_affine_map_has_exact_bounds(norm: str, method) -> None:
    net = perceptron([6, 4])
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).double()
    w, b = net[0].weight.detach(), net[0].bias.detach()
    dual = {"inf": 1.0, "2": 2.0, "1": float("inf")}[norm]
    reach = RADII[norm] * torch.linalg.vector_norm(w, dual, dim=1)
    found = output_bounds(net, x, RADII[norm], norm, method)
    torch.testing.assert_close(found.lower, x @ w.T + b - reach, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.upper, x @ w.T + b + reach, rtol=0, atol=1e-12)


def test_a_deep_linear_network_is_one_map_for_crown_and_not_for_intervals() -> None:
    first, second = perceptron([4, 6])[0], perceptron([6, 2], 1)[0]
    net = nn.Sequential(first, second)
    x = torch.zeros(1, 4).double()
    w = second.weight.detach() @ first.weight.detach()
    exact = 2 * 0.5 * w.abs().sum(1)
    torch.testing.assert_close(output_bounds(net, x, 0.5).width[0], exact, rtol=0, atol=1e-12)
    assert (output_bounds(net, x, 0.5, method="interval").width[0] > exact + 1e-3).all()


# -- any network -----------------------------------------------------------------------------------


class Everything(nn.Module):
    """Convolutions of all kinds, pooling, a shortcut, a join, normalization, rearrangements."""

    def __init__(self, activation: nn.Module, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first = nn.Conv2d(2, 4, 3, padding=1, stride=2)
            self.norm = nn.BatchNorm2d(4)
            self.second = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2)
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2.0)
            self.norm.weight.data.normal_()
            self.last = nn.Linear(24, 3)
        self.activation, self.drop = activation, nn.Dropout(0.5)
        self.maxima, self.averages = nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)
        self.register_buffer("scale", torch.linspace(-1, 2, 4).reshape(1, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation(self.norm(self.first(x)))
        h = h + self.activation(self.second(h)) * self.scale - 0.1
        h = torch.cat([self.maxima(h), self.averages(h), h[:, :, ::2, 1::2]], 1)
        rows = h.flatten(2).permute(0, 2, 1).amax(1)
        means = torch.stack([h.mean((2, 3)), rows], 2).reshape(x.size(0), -1)
        return self.last(self.drop(means))


ACTIVATIONS = [
    nn.ReLU(), nn.LeakyReLU(0.2), nn.LeakyReLU(1.7), nn.Tanh(), nn.Sigmoid(), nn.GELU(),
    nn.GELU("tanh"), nn.SiLU(), nn.Softplus(), nn.Softplus(3.0, 2.0), nn.Hardtanh(-0.4, 0.7),
    nn.ReLU6(), nn.ELU(), nn.Mish(), nn.PReLU(4, 0.3), nn.Softsign(), nn.LogSigmoid(),
    nn.Hardsigmoid(), nn.Tanhshrink(),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_no_point_of_the_ball_leaves_the_bounds(activation: nn.Module) -> None:
    net = Everything(activation).double()
    x = torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    before = copy.deepcopy(net.state_dict())
    for norm, radius in RADII.items():
        inside = points_in_ball(x, radius, norm, 800)
        with torch.no_grad():
            net.eval()
            y = net(inside.flatten(0, 1)).unflatten(0, inside.shape[:2])
            center = net(x)
            net.train()
        for method in METHODS:
            found = output_bounds(net, x, radius, norm, method, iterations=3)
            assert (y >= found.lower).all()
            assert (y <= found.upper).all()
            point = output_bounds(net, x, 0.0, norm, method, iterations=3)
            torch.testing.assert_close(point.lower, center, rtol=0, atol=1e-10)
            torch.testing.assert_close(point.upper, center, rtol=0, atol=1e-10)
    assert net.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_ten_thousand_points_and_attacks_stay_inside(norm: str) -> None:
    net = perceptron([10, 24, 24, 4], 5)
    x = torch.randn(2, 10, generator=torch.Generator().manual_seed(2)).double()
    radius = 3 * RADII[norm]
    inside = points_in_ball(x, radius, norm, 10_000)
    with torch.no_grad():
        y = net(inside.flatten(0, 1)).unflatten(0, inside.shape[:2])
    # where gradient ascent on each margin ends
    ends = []
    for target in range(4):
        aim = torch.full((2,), target)
        attack = PGD(radius, 40, norm=norm, targeted=True, generator=0)
        ends.append(attack(net, x, aim).adversarial)
    with torch.no_grad():
        z = torch.stack([net(e) for e in ends])
    widths = []
    for method in METHODS:
        found = output_bounds(net, x, radius, norm, method)
        for values in (y, z):
            assert (values >= found.lower - 1e-9).all()
            assert (values <= found.upper + 1e-9).all()
        widths.append(float(found.width.mean()))
    interval, crown, mixed, alpha = widths
    assert alpha <= crown <= interval
    assert crown <= mixed + 1e-12
    spread = float((y.amax(0) - y.amin(0)).mean())
    assert crown < 8 * spread  # no bound of this size is empty talk


def test_intervals_grow_with_the_radius_and_crown_is_inside_them() -> None:
    net = perceptron([6, 12, 12, 3], 2)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)).double()
    for norm in RADII:
        last = None
        for radius in (0.01, 0.05, 0.1, 0.3, 1.0):
            box = output_bounds(net, x, radius, norm, "interval")
            crown = output_bounds(net, x, radius, norm, "crown")
            assert (crown.lower >= box.lower - 1e-12).all()
            assert (crown.upper <= box.upper + 1e-12).all()
            if last is not None:
                assert (box.lower <= last.lower).all()
                assert (box.upper >= last.upper).all()
            last = box


def test_optimized_slopes_are_never_worse_and_somewhere_better() -> None:
    net = perceptron([8, 20, 20, 3], 7)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(4)).double()
    plain = output_bounds(net, x, 0.3, method="crown")
    alpha = output_bounds(net, x, 0.3, method="alpha-crown", iterations=20)
    assert (alpha.lower >= plain.lower).all()
    assert (alpha.upper <= plain.upper).all()
    assert float(alpha.width.mean()) < 0.97 * float(plain.width.mean())
    inside = output_bounds(net, x, 0.3, method="alpha-crown", inner_iterations=8)
    assert float(inside.width.mean()) < 0.99 * float(alpha.width.mean())
    points = net(points_in_ball(x, 0.3, "inf", 3000)).detach()
    assert (points >= inside.lower).all()
    assert (points <= inside.upper).all()


def test_a_box_of_valid_inputs_tightens() -> None:
    net = perceptron([6, 12, 3], 1)
    x = torch.rand(3, 6, generator=torch.Generator().manual_seed(0)).double()
    for norm in RADII:
        free = output_bounds(net, x, 1.0, norm)
        inside = output_bounds(net, x, 1.0, norm, box=(0.0, 1.0))
        assert (inside.lower >= free.lower - 1e-12).all()
        assert float(inside.width.mean()) < float(free.width.mean())
        y = net(points_in_ball(x, 1.0, norm, 2000).clamp(0, 1)).detach()
        assert (y >= inside.lower).all()
        assert (y <= inside.upper).all()
    with pytest.raises(InvalidInput, match="lie in the box of valid inputs"):
        output_bounds(net, x + 2, 1.0, box=(0.0, 1.0))


def test_single_precision_encloses_double() -> None:
    net = perceptron([30, 64, 64, 5], 9)
    x = torch.randn(4, 30, generator=torch.Generator().manual_seed(4))
    for method in ("interval", "crown"):
        exact = output_bounds(net, x, 0.1, method=method)
        rough = output_bounds(copy.deepcopy(net).float(), x, 0.1, method=method)
        # the weights themselves were rounded
        slack = 2e-6
        assert (rough.lower.double() <= exact.lower + slack).all()
        assert (rough.upper.double() >= exact.upper - slack).all()
        torch.testing.assert_close(rough.lower.double(), exact.lower, rtol=2e-3, atol=2e-3)


def test_specifications_and_chunks() -> None:
    net = perceptron([6, 12, 3], 1)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).double()
    y = torch.tensor([0, 1, 2, 0, 1])
    rows = margin_rows(y, 3)
    whole = output_bounds(net, x, 0.1, specification=rows)
    pieces = output_bounds(net, x, 0.1, specification=rows, chunk=2)
    torch.testing.assert_close(whole.lower, pieces.lower, rtol=0, atol=1e-12)
    # margins together are better than differences of bounds
    one = output_bounds(net, x, 0.1)
    difference = one.lower[0, 0] - one.upper[0, 1]
    assert whole.lower[0, 0] > difference
    assert output_bounds(net, x, 0.1, specification=torch.ones(1, 3)).lower.shape == (5, 1)
    with pytest.raises(ShapeMismatch, match="one column per output"):
        output_bounds(net, x, 0.1, specification=torch.ones(1, 4))


def test_images_traced_once_serve_any_batch() -> None:
    net = Everything(nn.ReLU())
    bounded = BoundedNetwork(net, torch.zeros(1, 2, 8, 8))
    x = torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        bounded.bounds(x, 0.05).lower[1:3], bounded.bounds(x[1:3], 0.05).lower, rtol=0, atol=1e-5
    )


class Odd(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda h: torch.fft.rfft(h).real, "rfft"),
        (lambda h: h.sort(1)[0], "sort"),
        (lambda h: h.gather(1, h.argmax(1, keepdim=True)), "argmax"),
        (lambda h: h.max(1)[0][:, None] * h.max(1)[1][:, None], "where its maxima are"),
        (lambda h: h - h.mean(0), "samples"),
        (lambda h: h.flip(0), "samples"),
        (lambda h: h if h.sum() > 0 else -h, "asks what is in its input"),
        (lambda h: h[h > 0], "decides"),
        (lambda h: F.dropout(h, 0.5, True), "random"),
        (lambda h: torch.randn(4) + h, "random"),
        (lambda h: h.T, "samples"),
    ],
)
def test_what_has_no_rule_is_named(function, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words) as caught:
        output_bounds(Odd(function), torch.zeros(2, 4), 0.1)
    assert "\n" not in str(caught.value)


def test_writing_in_place_is_followed() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            F.leaky_relu(h, 0.1, True)
            h += 1
            return self.b(h)

    net = Writes().double()
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        output_bounds(net, x, 0.0).lower, net(x).detach(), rtol=0, atol=1e-12
    )


def test_bad_input_in_a_sentence() -> None:
    net, x = perceptron([3, 4, 2]), torch.zeros(2, 3).double()
    y = torch.tensor([0, 1])
    with pytest.raises(InvalidInput, match="at least 0, not -1"):
        output_bounds(net, x, -1.0)
    with pytest.raises(InvalidInput, match="norm"):
        output_bounds(net, x, 0.1, "3")
    with pytest.raises(InvalidInput, match="method"):
        output_bounds(net, x, 0.1, method="magic")  # type: ignore[arg-type]
    with pytest.raises(LabelOutOfRange, match="sample 1 is 2"):
        certified_accuracy(net, (x, torch.tensor([0, 2])), 0.1)
    with pytest.raises(InvalidInput):
        output_bounds(net, torch.full((2, 3), float("nan")), 0.1)
    with pytest.raises(ShapeMismatch):
        output_bounds(net, x, torch.ones(3))
    with pytest.raises(ShapeMismatch, match="traced with"):
        BoundedNetwork(net, x).bounds(torch.zeros(2, 5), 0.1)
    assert certified_accuracy(net, (x, y), 0.1).certified.shape == (2,)


def test_certified_radius_of_a_linear_classifier_is_its_distance() -> None:
    net = perceptron([5, 3], 4)
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)).double()
    out = net(x).detach()
    y = out.argmax(1)
    w = net[0].weight.detach()
    for norm, dual in (("inf", 1.0), ("2", 2.0), ("1", float("inf"))):
        gaps = out.gather(1, y[:, None]) - out
        reach = torch.linalg.vector_norm(w[y][:, None] - w[None], dual, dim=2)
        exact = torch.where(reach > 0, gaps / reach, float("inf")).amin(1)
        found = certified_radius(net, x, y, norm)
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-7)
        assert (found <= exact * (1 + 1e-12)).all()
    wrong = (y + 1) % 3
    assert (certified_radius(net, x, wrong) == 0).all()


def test_one_logit() -> None:
    net = perceptron([4, 8, 1], 2)
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).double()
    y = (net(x)[:, 0] > 0).long()
    found = certified_accuracy(net, (x, y), 0.02)
    assert 0 < found.accuracy.estimate < 1 or found.certified.all()
    flipped = certified_accuracy(net, (x, 1 - y), 0.02)
    assert not flipped.certified.any()


class Then(nn.Module):
    """A hidden layer, something with it, and an output layer."""

    def __init__(self, step, outputs: int = 8) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(0)
        self.step, self.first, self.last = step, nn.Linear(5, 8), nn.Linear(outputs, 3)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=source) / 2
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.step(F.relu(self.first(x))))


EVERY_OTHER = torch.tensor([True, False] * 4)


@pytest.mark.parametrize(
    ("step", "outputs"),
    [
        (lambda h: torch.where(EVERY_OTHER, h, -3.0), 8),
        (lambda h: torch.where(EVERY_OTHER, h, 5.0), 8),
        (lambda h: torch.where(EVERY_OTHER, torch.tensor(4), h), 8),
        (lambda h: h.where(EVERY_OTHER, 1e4), 8),
        (lambda h: h.masked_fill(mask=EVERY_OTHER, value=4.0), 8),
        (lambda h: torch.cat([h, torch.full((len(h), 1), -3)], 1), 9),
        (lambda h: torch.cat([h, torch.ones(len(h), 1, dtype=torch.bool)], 1), 9),
    ],
)
def test_numbers_beside_entries_are_numbers(step, outputs: int) -> None:
    """A number put beside entries is not taken for the number of an entry."""
    net = Then(step, outputs)
    x = torch.rand(3, 5, generator=torch.Generator().manual_seed(1)).double()
    for method in METHODS:
        found = output_bounds(net, x, 0.0, method=method)
        torch.testing.assert_close(found.lower, net(x).detach(), rtol=1e-9, atol=1e-9)
        found = output_bounds(net, x, 0.1, method=method)
        for points in points_in_ball(x, 0.1, "inf", 200):
            out = net(points).detach()
            assert bool(((found.lower <= out) & (out <= found.upper)).all())


def test_sums_along_the_batch_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="mixes"):
        output_bounds(Then(lambda h: h.cumsum(0)), torch.rand(3, 5), 0.1)


@pytest.mark.parametrize(("beta", "threshold"), [(3.0, 1.0), (1.0, 20.0)])
def test_softplus_falls_at_its_threshold(beta: float, threshold: float) -> None:
    place = threshold / beta
    net = nn.Sequential(nn.Identity(), nn.Softplus(beta, threshold)).double()
    x = torch.tensor([[place]], dtype=torch.float64)
    points = torch.linspace(-1e-3, 1e-3, 2001, dtype=torch.float64)[:, None] + x
    out = F.softplus(points, beta, threshold)
    for method in METHODS:
        found = output_bounds(nn.Sequential(Plain(), *net), x, 1e-3, method=method)
        assert bool(((found.lower <= out) & (out <= found.upper)).all())


class Plain(nn.Module):
    """The identity, with a parameter for the precision."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.one


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.LogSigmoid])
@pytest.mark.parametrize("place", [-30.0, -9.0, -5.0, -0.7518, 5.0, 30.0])
def test_bounds_in_single_precision_hold_in_double(
    activation: type[nn.Module], place: float
) -> None:
    """Also where an activation loses its digits: 1 - tanh, or one plus an error function."""
    net = nn.Sequential(nn.Linear(1, 1), activation())
    net[0].weight.data.fill_(1.0)
    net[0].bias.data.zero_()
    x = torch.tensor([[place]])
    away = torch.linspace(-1e-3, 1e-3, 501, dtype=torch.float64)[:, None]
    out = copy.deepcopy(net).double()(x.double() + away).detach()
    for method in METHODS:
        found = output_bounds(net, x, 1e-3, method=method)
        assert bool(((found.lower.double() <= out) & (out <= found.upper.double())).all())


def test_where_numbers_overflow_nothing_is_known() -> None:
    net = perceptron([3, 6, 2]).float()
    found = output_bounds(net, torch.zeros(1, 3), 1e38)
    assert not bool((found.lower.isnan() | found.upper.isnan()).any())
    assert bool((found.lower < -1e30).all() and (found.upper > 1e30).all())


def test_lines_hold_between_samples() -> None:
    lower = 6 * torch.rand(100, generator=torch.Generator().manual_seed(0)).double()
    box = Box(lower, lower + 12)
    activation = Smooth(torch.sin, 1.0)
    x = lower[:, None] + torch.linspace(0, 12, 3001, dtype=torch.float64)
    below, offset, above, over = (v[:, None] for v in activation.lines(box))
    assert bool((below * x + offset <= x.sin() + 1e-12).all())
    assert bool((above * x + over >= x.sin() - 1e-12).all())
    low, high = activation.image(box)
    assert bool((low <= -1).all() and (high >= 1).all())
