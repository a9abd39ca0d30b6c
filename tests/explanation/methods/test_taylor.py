"""Taylor decompositions and roots, against closed forms and exact distances."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, UnknownName
from torchtheory.explanation.methods.gradients import gradient_times_input
from torchtheory.explanation.methods.taylor import ROOT_METHODS, find_root, taylor
from torchtheory.nets.activations.table import as_layer
from torchtheory.robustness.exact.distance import minimal_perturbation

PRODUCT = as_layer(lambda t: t[:, 0] * t[:, 1])


def points(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(*sizes: int, bias: bool = True, seed: int = 0) -> nn.Sequential:
    source = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layer = nn.Linear(a, b, bias=bias).double()
        for p in layer.parameters():
            p.data = torch.randn(p.shape, generator=source, dtype=torch.float64) / a**0.5
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def test_the_product_has_no_first_order_at_zero() -> None:
    x = torch.tensor([[2.0, 3.0]])
    found = taylor(PRODUCT, x)
    assert torch.equal(found.relevance, torch.zeros(1, 2))
    assert torch.equal(found.gap, torch.tensor([6.0]))
    # at the root (a, 0): R = (0, a y), and the residual is (x - a) y
    found = taylor(PRODUCT, x, reference=torch.tensor([0.5, 0.0]))
    assert torch.allclose(found.relevance, torch.tensor([[0.0, 1.5]]))
    assert torch.allclose(found.gap, torch.tensor([4.5]))


def test_scaled_references_of_a_network_without_biases() -> None:
    net, x = network(5, 8, 8, 3, bias=False), points(20, 5)
    for delta in (1e-6, 0.1, 0.9):
        found = taylor(net, x, 1, ("scale", delta))
        assert torch.allclose(found.reference, delta * found.score, rtol=1e-9)
        assert torch.allclose(found.total, (1 - delta) * found.score, rtol=1e-9, atol=1e-12)
        times_input = gradient_times_input(net, x, 1).relevance
        assert torch.allclose(found.relevance, (1 - delta) * times_input, atol=1e-12)
    with_biases = taylor(network(5, 8, 8, 3), x, 1, ("scale", 0.1))
    assert float(with_biases.gap.abs().median()) > 1e-3  # type: ignore[union-attr]


def test_references_of_each_sample_and_at_a_root() -> None:
    net, x = network(4, 6, 2), points(9, 4)
    own = taylor(net, x, 0, x)
    assert torch.equal(own.relevance, torch.zeros_like(x))
    assert torch.equal(own.reference, own.score)
    root = taylor(net, x, 0, "root")
    found = find_root(net, x, 0)
    assert torch.equal(root.reference, find_root(net, x, 0).scores)
    assert float(root.reference[found.found].abs().max()) < 1e-7
    linear = nn.Linear(4, 1).double()
    assert float(taylor(linear, x, reference="root").gap.abs().max()) < 1e-12  # type: ignore[union-attr]


def test_roots_of_a_linear_score() -> None:
    net, x = nn.Linear(3, 1).double(), points(50, 3)
    truth = (net(x)[:, 0] / net.weight.norm()).abs().detach()
    for method in ("gradient", "nearest"):
        found = find_root(net, x, method=method)  # type: ignore[arg-type]
        assert found.found.all()
        assert torch.allclose(found.distances, truth)
        assert torch.allclose(found.points, found.entries)
    segment = find_root(net, x, method="segment")
    bias = net.bias.item()
    assert torch.equal(segment.found, net(x)[:, 0].sign() != torch.tensor(bias).sign())
    t = net(x)[:, 0].detach() / (net(x)[:, 0].detach() - bias)
    assert torch.allclose(segment.points[segment.found], ((1 - t[:, None]) * x)[segment.found])  # type: ignore[index]


def test_the_nearest_root_on_an_ellipse() -> None:
    net = as_layer(lambda t: (t.square() * torch.tensor([1.0, 4.0]).double()).sum(1) - 1)
    angle = torch.linspace(0, 6.2832, 200_001, dtype=torch.float64)
    curve = torch.stack([angle.cos(), angle.sin() / 2], 1)
    x = points(40, 2, 1) + torch.tensor([1.0, 1.0])
    outside = x[net(x) > 0]
    found = find_root(net, outside, method="nearest")
    exact = torch.cdist(outside, curve).min(1).values
    assert found.found.all()
    assert torch.allclose(found.distances, exact, atol=1e-4)
    assert float(found.scores.abs().max()) < 1e-6
    along = find_root(net, outside, method="gradient")
    assert (found.distances <= along.distances + 1e-9)[along.found].all()
    assert not along.found.all()  # the ray misses the ellipse from some points


def test_nearest_roots_are_no_nearer_than_the_exact_distance() -> None:
    """With outputs (f, 0) the least perturbation that changes the class ends at a root."""
    net = network(2, 6, 1, seed=3)
    x = points(12, 2, 2)
    found = find_root(net, x, method="nearest")
    tight = 0
    for k in range(12):
        if not found.found[k]:
            continue
        beside = nn.Sequential(net, nn.Linear(1, 2)).double()
        with torch.no_grad():
            beside[1].weight.copy_(torch.tensor([[1.0], [0.0]]))
            beside[1].bias.zero_()
        label = int(beside(x[k : k + 1]).argmax())
        exact = minimal_perturbation(beside, x[k], label, "2", method="cells").distance
        assert float(found.distances[k]) >= exact * (1 - 1e-6)
        tight += float(found.distances[k]) <= exact * 1.01
    assert tight >= 0.5 * int(found.found.sum()) > 2


def test_where_there_is_no_root() -> None:
    net = as_layer(lambda t: t.square().sum(1) + 1)
    x = points(4, 2)
    for method in ROOT_METHODS:
        found = find_root(net, x, method=method)
        assert not found.found.any()
        assert (found.scores <= net(x)).all()  # the smallest that was tried
    assert "found for 0 of 4" in repr(found)
    explained = taylor(net, x, reference="root")
    assert (explained.reference >= 1).all()  # it says that it stands at no root


def test_a_ray_ends_where_the_score_does() -> None:
    x = points(6, 3).abs() + 0.1
    for shift in (0.2, -0.2):  # with a root where the score is a number, and without
        net = as_layer(lambda t, shift=shift: t.sqrt().sum(1) - shift)
        for method in ROOT_METHODS:
            found = find_root(net, x, method=method, baseline=-1.0)
            assert torch.isfinite(found.scores).all()
            assert (found.scores <= net(x)).all()
            assert shift > 0 or not found.found.any()
    one = torch.ones(1, 1).double()
    valley = as_layer(lambda t: ((t - 0.5).square() + 0.1 + 0 * t.sqrt())[:, 0])
    found = find_root(valley, one, method="segment", baseline=-1.0)
    assert float(found.scores) == pytest.approx(0.1, abs=1e-3)  # the nearest to 0, not the last
    hole = as_layer(lambda t: torch.where(t.abs() < 1e-6, torch.nan, t.tanh())[:, 0])
    assert torch.isfinite(find_root(hole, one).scores).all()


def test_roots_are_met_up_to_256_steps_of_newton() -> None:
    # Newton's step is 1, but soon the slope is only 1/200
    net = as_layer(lambda t: torch.where(t > 0.99, t, 0.99 + (t - 0.99) / 200)[:, 0])
    found = find_root(net, torch.ones(1, 1).double())
    assert found.found.all()
    assert float(found.distances) == pytest.approx(198.01)
    short = as_layer(lambda t: torch.where(t > 0.99, t, 0.99 + (t - 0.99) / 300)[:, 0])
    assert not find_root(short, torch.ones(1, 1).double()).found.any()


def test_a_jump_is_no_root() -> None:
    net = as_layer(lambda t: torch.where(t.sum(1) > 0, 1.0, -1.0) + 0 * t.sum(1))
    found = find_root(net, torch.ones(3, 2).double(), method="segment", baseline=-1.0)
    assert not found.found.any()


def test_an_input_at_a_root_stays_there() -> None:
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for method in ROOT_METHODS:
        found = find_root(PRODUCT, x, method=method)
        assert found.found.all()
        assert torch.equal(found.points, x)


def test_roots_in_single_precision() -> None:
    net = network(5, 16, 16, 1).float()
    x = points(30, 5).float()
    found = find_root(net, x)
    assert found.found.any()
    good = found.found
    assert (found.scores[good].abs() <= 4e-4 * net(x)[good, 0].abs()).all()


def test_words_have_roots_among_embeddings() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)

        def forward(self, words: Tensor) -> Tensor:
            return self.embedding(words).sum((1, 2))

    found = find_root(Words().double(), torch.tensor([[0, 1], [2, 3]]))
    assert found.points is None
    assert found.entries.shape == (2, 6)
    assert found.found.all()


def test_refused_references() -> None:
    x = torch.ones(1, 2)
    with pytest.raises(UnknownName, match="no reference is named 'nought'"):
        taylor(PRODUCT, x, reference="nought")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="scale of the reference must be a positive number"):
        taylor(PRODUCT, x, reference=("scale", -1.0))
    with pytest.raises(InvalidInput, match=r"reference is 'zero', 'root', \('scale', 0.1\)"):
        taylor(PRODUCT, x, reference=0.5)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="no method is named 'newton'"):
        find_root(PRODUCT, x, method="newton")  # type: ignore[arg-type]


class _Ellipsoid(nn.Module):
    """Below 0 inside the ellipsoid with these half axes."""

    def __init__(self, axes: list[float]) -> None:
        super().__init__()
        self.register_buffer("axes", torch.tensor(axes, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x / self.axes).square().sum(1, keepdim=True) - 1


def _nearest_on_ellipse(x: Tensor) -> Tensor:
    """From points inside the ellipse with half axes 3 and 1, by looking everywhere on it."""
    angle = torch.linspace(0, 2 * torch.pi, 20_001, dtype=torch.float64)
    ellipse = torch.stack([3 * angle.cos(), angle.sin()], 1)
    return torch.cdist(x, ellipse).min(1).values


@pytest.mark.parametrize("rays", [16, 0])
def test_the_nearest_root_is_no_maximum(rays: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(find_root.__globals__, "_RANDOM_RAYS", rays)
    # on the long axis the gradient leads to its end, where the distance is a local maximum
    x = torch.tensor([[1.0, 0.0], [0.3, 0.0], [2.0, 0.0], [1.0, 0.2], [0.0, 0.5], [2.9, 0.0]])
    found = find_root(_Ellipsoid([3.0, 1.0]), x.double(), method="nearest")
    torch.testing.assert_close(found.distances, _nearest_on_ellipse(x.double()), atol=1e-6, rtol=0)
    assert found.locally_nearest is not None
    assert bool(found.locally_nearest.all())


def test_a_maximum_does_not_pass_for_a_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(find_root.__globals__, "_RANDOM_RAYS", 0)
    monkeypatch.setitem(find_root.__globals__, "_ESCAPES", 0)
    net = _Ellipsoid([3.0, 1.0])
    x = torch.tensor([[1.0, 0.0], [2.9, 0.0]]).double()
    found = find_root(net, x, method="nearest")
    torch.testing.assert_close(found.distances, torch.tensor([2.0, 0.1]).double())
    assert found.locally_nearest is not None
    assert found.locally_nearest.tolist() == [False, True]  # the end of the axis bends less there
    assert find_root(net, x).locally_nearest is None


def test_saddles_in_more_dimensions_are_left() -> None:
    axes = [3.0, 1.0, 2.0, 2.5, 1.5]
    x = torch.zeros(5, 5).double()
    x[:, 0] = torch.tensor([0.0, 0.5, 1.0, 2.0, 2.8])
    found = find_root(_Ellipsoid(axes), x, method="nearest")
    # with the shortest half axis b alone: (1 - x^2 / (a^2 - b^2))^(1/2) b, or the end of the axis
    a, b = axes[:2]
    inside = 1 - x[:, 0].square() / (a**2 - b**2)
    exact = torch.where(x[:, 0] < (a**2 - b**2) / a, b * inside.clamp(min=0).sqrt(), a - x[:, 0])
    torch.testing.assert_close(found.distances, exact, atol=1e-6, rtol=0)
    assert found.locally_nearest is not None
    assert bool(found.locally_nearest.all())
