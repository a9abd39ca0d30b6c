"""Splines of high degrees on graded meshes, and the networks that follow them."""

from __future__ import annotations

import pytest
import torch

from torchtheory.approximation.piecewise.hp_elements import (
    HpSpline,
    derivative_error,
    geometric_mesh,
    hp_network,
    hp_spline,
)
from torchtheory.core.errors import InvalidInput, ShapeMismatch


def root(x: torch.Tensor) -> torch.Tensor:
    return x**0.75


def test_geometric_mesh_shrinks_by_its_ratio() -> None:
    nodes = geometric_mesh(4, 0.15)
    assert nodes[0] == 0
    assert nodes[-1] == 1
    torch.testing.assert_close(nodes[1:-1] / nodes[2:], torch.full((4,), 0.15).double())


def test_spline_meets_the_nodes_and_is_continuous() -> None:
    nodes = geometric_mesh(4)
    spline = hp_spline(root, nodes, [1, 2, 3, 4, 5])
    torch.testing.assert_close(spline(nodes), root(nodes), rtol=0, atol=1e-13)
    # from the left of each inner node
    left = torch.stack([c.sum() for c in spline.coefficients])
    torch.testing.assert_close(left, root(nodes[1:]), rtol=0, atol=1e-13)


def test_spline_is_the_projection_of_the_derivative() -> None:
    """The error of the derivative is orthogonal to polynomials of lower degree."""
    spline = hp_spline(torch.exp, torch.tensor([0.0, 2.0]).double(), [3])
    x = torch.linspace(0, 2, 20_001).double()
    gap = torch.exp(x) - spline.derivative(x)
    for k in range(3):
        assert abs(float(torch.trapezoid(gap * (x - 1) ** k, x))) < 1e-6
    assert float(torch.trapezoid(gap * (x - 1) ** 3, x)) > 0.01


def test_energy_of_the_first_element_by_hand() -> None:
    r"""$\int_0^h(u'-h^{-1/4})^2=h^{1/2}/8$ for the line through both ends."""
    h = 0.3
    nodes = torch.tensor([0.0, h]).double()
    made = hp_network(hp_spline(root, nodes, [1]), 3)
    found = derivative_error(lambda x: 0.75 * x**-0.25, made.network, nodes, 2000, generator=1)
    assert found == pytest.approx((h**0.5 / 8) ** 0.5, rel=1e-3)
    assert made.deviation == 0


@pytest.mark.parametrize("levels", [3, 8])
def test_network_stays_within_its_bound(levels: int) -> None:
    nodes = torch.tensor([-1.0, 0.2, 0.5, 2.0]).double()
    spline = hp_spline(torch.cos, nodes, [4, 1, 3])
    made = hp_network(spline, levels)
    x = (
        -1 + 3 * torch.rand(3000, generator=torch.Generator().manual_seed(0)).double()
    ).requires_grad_()
    (slope,) = torch.autograd.grad(made.network(x.unsqueeze(1)).sum(), x)
    element = torch.searchsorted(nodes[1:-1], x.detach())
    off = (slope - spline.derivative(x.detach())).abs()
    assert bool((off <= made.slope_errors[element] + 1e-10).all())
    assert made.slope_errors[1] == 0  # a line needs no product
    assert float(off.max()) > 2.0**-levels / 20  # and the bound is not empty
    assert abs(float(made(nodes[:1]) - torch.cos(nodes[0]))) < 1e-12
    assert made.size.depth == 2 + 3 * (levels + 1)


def test_network_outside_of_the_mesh_is_constant() -> None:
    made = hp_network(hp_spline(torch.cos, torch.tensor([0.0, 1.0]).double(), [3]), 5)
    ends = made(torch.tensor([0.0, 1.0]).double())
    torch.testing.assert_close(made(torch.tensor([-2.0, 3.0]).double()), ends)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="increase"):
        hp_spline(root, torch.tensor([0.0, 1.0, 0.5]), [1, 1])
    with pytest.raises(ShapeMismatch, match="as many degrees"):
        hp_spline(root, torch.tensor([0.0, 1.0]), [1, 1])
    with pytest.raises(InvalidInput, match="ratio"):
        geometric_mesh(3, 1.0)
    spline = HpSpline(torch.tensor([0.0, 1.0]).double(), (torch.ones(2).double(),))
    with pytest.raises(ShapeMismatch, match=r"\[n\]"):
        spline(torch.zeros(3, 1).double())
