"""Grids grow as a power of the dimension; what does not fit is refused before it is made."""

from __future__ import annotations

import pytest
import torch

from torchtheory.approximation.certificates import box_grid
from torchtheory.approximation.dictionaries.wavelets import wavelet_grid
from torchtheory.approximation.piecewise.boxes import cell_centers, piecewise_constant
from torchtheory.approximation.piecewise.finite_elements import cube_mesh
from torchtheory.approximation.piecewise.partition_of_unity import patch_centers
from torchtheory.core.errors import InvalidInput
from torchtheory.optimization.landscape.spin_glass import SphericalSpinGlass

CUBE = ((0.0, 1.0),) * 20


@pytest.mark.parametrize(
    "made",
    [
        lambda: box_grid(CUBE, 10),
        lambda: cell_centers(CUBE, 10),
        lambda: piecewise_constant(lambda x: x.sum(1), 10, 5.0, CUBE),
        lambda: patch_centers(10, 20),
        lambda: cube_mesh(4, 12),
        lambda: wavelet_grid(3, 30),
    ],
)
def test_refused_before_it_is_made(made):
    with pytest.raises(InvalidInput, match="would take"):
        made()


def test_orders_of_too_many_axes_are_not_summed():
    with pytest.raises(InvalidInput, match=r"at most 8 axes, .* not 12"):
        SphericalSpinGlass(torch.zeros((2,) * 12))
