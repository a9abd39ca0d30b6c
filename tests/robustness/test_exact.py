"""Exact distances: two methods, a closed form, and a search over all cells."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, NotConverged, UnsupportedModel
from torchtheory.expressivity.enumeration import enumerate_regions
from torchtheory.robustness.bounds.certified import certified_radius
from torchtheory.robustness.exact import cells, program
from torchtheory.robustness.exact.cells import nearest_point
from torchtheory.robustness.exact.distance import minimal_perturbation


def perceptron(sizes: list[int], seed: int, activation: nn.Module | None = None) -> nn.Sequential:
    source = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layer = nn.Linear(a, b).double()
        layer.weight.data = torch.randn(b, a, generator=source, dtype=torch.float64)
        layer.bias.data = 0.5 * torch.randn(b, generator=source, dtype=torch.float64)
        layers += [layer, activation or nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def sample(net: nn.Module, d: int, seed: int) -> tuple[Tensor, int]:
    x = torch.randn(d, generator=torch.Generator().manual_seed(seed)).double()
    return x, int(net(x[None]).argmax())


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
@pytest.mark.parametrize("method", ["milp", "cells"])
def test_an_affine_network_has_the_distance_of_its_planes(norm: str, method) -> None:
    if (norm, method) == ("2", "milp"):
        with pytest.raises(InvalidInput, match="cannot hold the norm"):
            minimal_perturbation(perceptron([2, 2], 0), torch.zeros(2), 0, "2", method="milp")
        return
    dual = {"inf": 1.0, "2": 2.0, "1": float("inf")}[norm]
    for seed in range(4):
        net = perceptron([4, 3], seed)
        x, y = sample(net, 4, seed)
        w, f = net[0].weight.detach(), net(x[None]).detach()[0]
        others = [j for j in range(3) if j != y]
        planes = {
            j: float((f[y] - f[j]) / torch.linalg.vector_norm(w[y] - w[j], dual)) for j in others
        }
        found = minimal_perturbation(net, x, y, norm, method=method)
        assert found.distance == pytest.approx(min(planes.values()), rel=1e-6)
        assert found.target == min(planes, key=planes.__getitem__)


@pytest.mark.parametrize("norm", ["inf", "1"])
def test_both_methods_agree(norm: str) -> None:
    finite = 0
    for seed in range(5):
        net = perceptron([3, 5, 4, 3], seed)
        x, y = sample(net, 3, seed)
        one = minimal_perturbation(net, x, y, norm, method="milp", largest=3.0)
        two = minimal_perturbation(net, x, y, norm, method="cells", largest=3.0)
        assert one.distance == pytest.approx(two.distance, rel=1e-5, abs=1e-7)
        if one.distance == float("inf"):
            continue
        finite += 1
        for found in (one, two):
            assert found.adversarial is not None
            out = net(found.adversarial[None]).detach()[0]
            assert float(out[y] - out[found.target]) == pytest.approx(0.0, abs=1e-5)
    assert finite >= 3


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_no_cell_holds_a_nearer_point(norm: str) -> None:
    """All cells of a box from `expressivity`, a program in each."""
    for seed in range(3):
        net = perceptron([2, 5, 4, 2], seed)
        x, y = sample(net, 2, seed)
        found = minimal_perturbation(net, x, y, norm)
        assert 0 < found.distance < 50
        reach = 1.2 * found.distance
        best = np.inf
        for point in enumerate_regions(net, x - reach, x + reach).points:
            rows = cell_rows(net, point, y)
            shifted = np.hstack([rows[:, :-1], (rows[:, -1] - rows[:, :-1] @ x.numpy())[:, None]])
            z = least_norm(shifted, norm)
            if z is not None:
                best = min(best, float(np.linalg.norm(z, np.inf if norm == "inf" else 2)))
        assert found.distance == pytest.approx(best, rel=1e-4)


def cell_rows(net: nn.Sequential, point: Tensor, y: int) -> np.ndarray:
    """Inequalities g·x >= h of the cell of a point, and of the wrong side in it."""
    matrix, shift = torch.eye(2).double(), torch.zeros(2).double()
    rows = []
    for layer in net:
        if isinstance(layer, nn.Linear):
            matrix, shift = layer.weight.detach() @ matrix, layer.weight @ shift + layer.bias
        else:
            sign = torch.sign(matrix @ point + shift)
            rows.append(torch.cat([sign[:, None] * matrix, -(sign * shift)[:, None]], 1).detach())
            matrix, shift = (sign > 0)[:, None] * matrix, (sign > 0) * shift
    slope, value = matrix[1 - y] - matrix[y], shift[1 - y] - shift[y]
    rows.append(torch.cat([slope, -value[None]])[None].detach())
    return torch.cat(rows).numpy()


def least_norm(rows: np.ndarray, norm: str) -> np.ndarray | None:
    """By a linear program, or for the Euclidean norm over all sets of at most two active rows."""
    g, h = rows[:, :-1], rows[:, -1]
    if norm == "inf":
        a = np.vstack([
            np.hstack([-g, np.zeros((len(g), 1))]),
            np.hstack([np.eye(2), -np.ones((2, 1))]),
            np.hstack([-np.eye(2), -np.ones((2, 1))]),
        ])  # fmt: skip
        found = linprog([0, 0, 1], a, np.append(-h, np.zeros(4)), bounds=(None, None))
        return found.x[:2] if found.success else None
    best = None
    sets = [(), *[(k,) for k in range(len(g))], *itertools.combinations(range(len(g)), 2)]
    for active in sets:
        z = np.linalg.pinv(g[list(active)]) @ h[list(active)] if active else np.zeros(2)
        if (g @ z >= h - 1e-9).all() and (best is None or np.linalg.norm(z) < np.linalg.norm(best)):
            best = z
    return best


def test_the_nearest_point_of_a_polytope() -> None:
    source = np.random.default_rng(0)
    empty = 0
    for _ in range(200):
        rows = source.normal(size=(source.integers(1, 6), 3))
        expected = least_norm(rows, "2")
        found = nearest_point(rows, "2")
        if expected is None:
            empty += 1
            assert found is None
        else:
            assert found is not None
            np.testing.assert_allclose(found, expected, atol=1e-6 * (1 + np.abs(expected).max()))
    assert empty > 5


def test_certificates_lie_below() -> None:
    net = perceptron([4, 8, 8, 3], 2)
    for norm in ("inf", "2", "1"):
        for seed in range(3):
            x, y = sample(net, 4, seed)
            exact = minimal_perturbation(net, x, y, norm).distance
            lower = float(certified_radius(net, x[None], torch.tensor([y]), norm))
            assert 0 < lower <= exact * (1 + 1e-6)


def test_mistakes_boxes_leaks_and_what_is_refused() -> None:
    net = perceptron([3, 5, 2], 1)
    x, y = sample(net, 3, 0)
    assert minimal_perturbation(net, x, 1 - y).distance == 0.0
    free = minimal_perturbation(net, x, y, "2").distance
    tight = (x - 0.5 * free, x + 3 * free)
    inside = minimal_perturbation(net, x, y, "2", box=tight, largest=20.0)
    assert inside.distance >= free - 1e-9
    leaky = perceptron([3, 5, 2], 1, nn.LeakyReLU(0.1))
    x, y = sample(leaky, 3, 0)
    assert minimal_perturbation(leaky, x, y, "inf", method="cells").distance > 0
    with pytest.raises(UnsupportedModel, match="cells"):
        minimal_perturbation(leaky, x, y, "inf", method="milp")
    with pytest.raises(UnsupportedModel, match="another activation"):
        minimal_perturbation(perceptron([3, 5, 2], 1, nn.Tanh()), x, y)


def test_no_other_class_anywhere() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        net[2].weight.zero_()
        net[2].bias.copy_(torch.tensor([1.0, 0.0]))
    found = minimal_perturbation(net, torch.zeros(2), 0, largest=10.0)
    assert found.distance == float("inf")
    assert found.adversarial is None


def test_the_program_lets_a_unit_rise_to_its_bound() -> None:
    """The margin is 1 - max(x, 0), and in the ball of radius 2 the unit reaches 1.5 at most."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    for layer, weight, bias in ((net[0], [[1.0]], [0.0]), (net[2], [[-1.0], [0.0]], [1.0, 0.0])):
        layer.weight.data, layer.bias.data = (
            torch.tensor(weight).double(),
            torch.tensor(bias).double(),
        )
    for method in ("milp", "cells"):
        x = torch.tensor([-0.5], dtype=torch.float64)
        found = minimal_perturbation(net, x, 0, "inf", method=method, largest=2.0)
        assert abs(found.distance - 1.5) < 1e-6


def stumbling(times: int, real):
    """A solver that fails some times, as HiGHS does now and then, and then does its work."""
    calls = []

    def solver(*given, **options):
        calls.append(options)
        if len(calls) <= times:
            return SimpleNamespace(
                status=4, success=False, x=None, message="Solve error", mip_node_count=0
            )
        return real(*given, **options)

    return solver, calls


@pytest.mark.parametrize("norm", ["inf", "1"])
def test_where_the_solver_fails_another_way_is_taken(norm: str, monkeypatch) -> None:
    net = perceptron([3, 6, 2], 0)
    x, y = sample(net, 3, 0)
    exact = minimal_perturbation(net, x, y, norm, method="cells")
    solver, calls = stumbling(1, program.milp)
    monkeypatch.setattr(program, "milp", solver)
    found = minimal_perturbation(net, x, y, norm, method="milp")
    assert found.distance == pytest.approx(exact.distance, rel=1e-6)
    assert [c["options"]["presolve"] for c in calls[:2]] == [False, True]
    monkeypatch.setattr(program, "milp", stumbling(10**6, None)[0])
    found = minimal_perturbation(net, x, y, norm)
    assert found.distance == pytest.approx(exact.distance, rel=1e-9)
    with pytest.raises(NotConverged, match="Solve error"):
        minimal_perturbation(net, x, y, norm, method="milp")
    # and the linear programs of the cells
    monkeypatch.setattr(cells, "linprog", stumbling(1, cells.linprog)[0])
    found = minimal_perturbation(net, x, y, norm, method="cells")
    assert found.distance == pytest.approx(exact.distance, rel=1e-6)


def test_too_many_cells_are_told() -> None:
    net = perceptron([3, 6, 2], 0)
    x, y = sample(net, 3, 0)
    with pytest.raises(NotConverged, match="more than 1 cells"):
        minimal_perturbation(net, x, y, "2", most=1)


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_lower_bounds_of_the_margin_leave_few_cells(norm: str) -> None:
    """24 units in 10 dimensions have millions of cells, of which few can hold the answer."""
    net = perceptron([10, 24, 1], 2)
    x = torch.randn(10, generator=torch.Generator().manual_seed(1)).double()
    y = int(net(x[None]) > 0)
    found = minimal_perturbation(net, x, y, norm, method="cells", most=1000)
    assert found.adversarial is not None
    assert float(net(found.adversarial[None]).abs()) < 1e-6
    if norm != "2":
        other = minimal_perturbation(net, x, y, norm, method="milp")
        assert found.distance == pytest.approx(other.distance, rel=1e-5)
    else:
        assert float(certified_radius(net, x[None], torch.tensor([y]), "2")) <= found.distance
