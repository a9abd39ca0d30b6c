r"""Maxout: the largest of several affine functions of the input.

Source: slides "Mathematical Foundations of Deep Learning", "Activation Functions". Unlike the
pointwise activations it is not a function of one pre-activation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource
from torchtheory.nets.feedforward import drawn_linear


class Maxout(nn.Module):
    r"""Units $\max_{1\le j\le k}\,(w_j^\top x+b_j)$, each convex and piecewise linear.

    Args:
        inputs: features of $x$.
        outputs: units.
        pieces: affine functions a unit is the maximum of, $k$.

    >>> unit = Maxout(1, 1, pieces=2)
    >>> unit.set_pieces(torch.tensor([[[1.0], [-1.0]]]), torch.zeros(1, 2))
    >>> unit(torch.tensor([[-3.0], [2.0]], dtype=torch.float64)).tolist()      # |x|
    [[3.0], [2.0]]
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        pieces: int = 2,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.pieces = whole_number(pieces, "pieces", least=1)
        self.affine = drawn_linear(
            inputs, outputs * pieces, generator=generator, dtype=dtype, device=device
        )

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = self.affine(x)
        return values.reshape(*values.shape[:-1], -1, self.pieces).amax(-1)

    def set_pieces(self, weights: Tensor, biases: Tensor) -> None:
        """Set `weights[outputs, pieces, inputs]` and `biases[outputs, pieces]`."""
        flat = weights.flatten(0, 1)
        if flat.shape != self.affine.weight.shape or biases.numel() != len(flat):
            raise ShapeMismatch(
                f"the unit has weights {list(self.affine.weight.shape)} in all, not "
                f"{list(flat.shape)}"
            )
        with torch.no_grad():
            self.affine.weight.copy_(flat)
            self.affine.bias.copy_(biases.flatten())


def piecewise_linear_as_maxouts(
    knots: Tensor, values: Tensor, left_slope: float, right_slope: float
) -> tuple[Maxout, Maxout]:
    r"""Two maxout units whose difference is a given continuous piecewise linear function.

    Where the slope of $f:\mathbb R\to\mathbb R$ grows at a knot, the growth goes to the
    first unit, where it falls to the second: both are then convex, and a convex piecewise linear
    function is the maximum of its pieces.

    Args:
        knots: increasing, `[k]`.
        values: $f$ at the knots, `[k]`; linear between them.
        left_slope, right_slope: slopes before the first and after the last knot.

    >>> up, down = piecewise_linear_as_maxouts(
    ...     torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0]), 0.0, 0.0)   # a hat
    >>> x = torch.tensor([[-1.0], [0.5], [1.0], [1.75], [9.0]])
    >>> (up(x) - down(x)).squeeze(1)
    tensor([0.0000, 0.5000, 1.0000, 0.2500, 0.0000], grad_fn=...)
    """
    if knots.ndim != 1 or knots.shape != values.shape or len(knots) == 0:
        raise ShapeMismatch(
            "knots and values must be two lists of the same length, not empty (knots is "
            f"{list(knots.shape)}, values is {list(values.shape)})"
        )
    if not bool((knots.diff() > 0).all()):
        raise InvalidInput(f"the knots must increase strictly, not {described(knots.tolist())}")
    between = values.diff() / knots.diff()
    slopes = torch.cat([values.new_tensor([left_slope]), between, values.new_tensor([right_slope])])
    change = slopes.diff()
    # f(x) = f(t_1) + s_0 (x - t_1) + sum of change_i (x - t_i)_+
    first = _convex(knots, change.clamp(min=0), slopes[0], values[0] - slopes[0] * knots[0])
    second = _convex(knots, (-change).clamp(min=0), slopes.new_zeros(()), slopes.new_zeros(()))
    return first, second


def _convex(knots: Tensor, growth: Tensor, slope: Tensor, offset: Tensor) -> Maxout:
    r"""The unit $s x+c+\sum_i g_i(x-t_i)_+$ with $g_i\ge0$, as a maximum."""
    weights = torch.cat([slope.reshape(1), slope + growth.cumsum(0)])
    biases = torch.cat([offset.reshape(1), offset - (growth * knots).cumsum(0)])
    unit = Maxout(1, 1, len(weights), dtype=knots.dtype)
    unit.set_pieces(weights.reshape(1, -1, 1), biases.reshape(1, -1))
    return unit
