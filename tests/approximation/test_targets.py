"""One convention for the functions to approximate: `[n, d]` in every dimension."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchtheory.approximation.certificates import measured_error, sup_distance
from torchtheory.approximation.depth.comparison import compare_depth
from torchtheory.approximation.depth.narrow import tangent_network
from torchtheory.approximation.memorization.label_coding import label_function, read_labels
from torchtheory.approximation.piecewise.boxes import box_network
from torchtheory.approximation.piecewise.function_norms import (
    holder_norm,
    partial_derivatives,
    smooth_norm,
)
from torchtheory.approximation.piecewise.interpolants import relu_interpolant
from torchtheory.approximation.piecewise.yarotsky import smooth_network
from torchtheory.approximation.polynomials.bernstein import bernstein_approximant
from torchtheory.approximation.rates.quantization import holder_network
from torchtheory.approximation.targets import evaluate, values_of
from torchtheory.core.errors import NonFinite, ShapeMismatch


def by_number(x: Tensor) -> Tensor:
    return (x - 0.3) ** 2


def by_point(x: Tensor) -> Tensor:
    return (x[:, 0] - 0.3) ** 2


class Both(nn.Module):
    """A module from `[n, 1]` to `[n, 1]`, as networks are."""

    def forward(self, x: Tensor) -> Tensor:
        return by_number(x)


FORMS = (by_number, by_point, Both().forward)


@pytest.mark.parametrize("f", FORMS)
def test_all_ways_to_write_a_function_of_one_variable_are_the_same(f) -> None:
    x = torch.linspace(0, 1, 7).double()[:, None]
    assert torch.equal(values_of(f, x), by_point(x))
    line = relu_interpolant(f, 8, (0.0, 1.0), curvature=2.0)
    assert measured_error(f, line).lower == measured_error(by_number, line).lower
    made = (
        smooth_network(f, 2, 1, 0.1, norm=2.0),
        box_network(f, 1, 2.0, 0.3),
        bernstein_approximant(f, 4, (0.0, 1.0), lipschitz=2.0),
        tangent_network(f, 2.0, 4, (0.0, 1.0)),
    )
    same = (
        smooth_network(by_number, 2, 1, 0.1, norm=2.0),
        box_network(by_number, 1, 2.0, 0.3),
        bernstein_approximant(by_number, 4, (0.0, 1.0), lipschitz=2.0),
        tangent_network(by_number, 2.0, 4, (0.0, 1.0)),
    )
    for one, other in zip(made, same, strict=True):
        assert torch.equal(values_of(one, x), values_of(other, x))
    assert (
        holder_network(f, 0, 1.0, 1, 0.5).cells == holder_network(by_number, 0, 1.0, 1, 0.5).cells
    )
    slopes = partial_derivatives(f, x, 2)
    assert torch.allclose(slopes[(1,)], 2 * (x[:, 0] - 0.3))
    assert smooth_norm(f, 1, (0.0, 1.0)).value == smooth_norm(by_number, 1, (0.0, 1.0)).value
    assert holder_norm(f, 1, 1.0, (0.0, 1.0)).value == pytest.approx(2.0)
    assert sup_distance(f, by_number, (0.0, 1.0)).lower == 0
    fit = compare_depth(f, x, x, parameters=60, steps=2, seeds=1, generator=0)
    assert torch.equal(
        fit.deep, compare_depth(by_number, x, x, parameters=60, steps=2, seeds=1, generator=0).deep
    )


def test_several_variables_and_labels() -> None:
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(values_of(lambda x: x.sum(1, keepdim=True), x), x.sum(1).double())
    y = torch.tensor([0, 1, 1, 0])
    f = label_function(y, 1)
    assert torch.equal(read_labels(lambda x: f(x)[:, None], f), y)


def test_the_graph_is_kept_where_it_is_asked_for() -> None:
    x = torch.ones(2, 1, requires_grad=True)
    assert evaluate(by_number, x).requires_grad
    assert not values_of(by_number, x).requires_grad


def test_refused_with_the_shape_that_was_given() -> None:
    x = torch.zeros(4, 1)
    with pytest.raises(
        ShapeMismatch, match=r"given points \[4, 1\].*\[4\] or \[4, 1\], not \[4, 4\]"
    ):
        values_of(lambda x: x - torch.zeros(4), x)
    with pytest.raises(ShapeMismatch, match="not float"):
        values_of(lambda x: 1.0, x)
    with pytest.raises(ShapeMismatch, match=r"given points \[2, 3\]"):
        values_of(torch.sin, torch.zeros(2, 3))
    with pytest.raises(NonFinite, match="not finite"):
        values_of(torch.log, x)
