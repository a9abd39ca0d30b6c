r"""Sizes of convolution layers: outputs, parameters, and what sharing weights saves.

A window of $k$ taps, dilation $\delta$, stride $s$ and padding $p$ on both sides has
$\lfloor(n+2p-\delta(k-1)-1)/s\rfloor+1$ places on $n$. A layer has
$c_{out}(c_{in}k^d/g+1)$ parameters, whatever the size of the image; the dense layer between the
same images has one for every pair of entries. Sources: the notes, section 4.2; the lectures,
section 10.1.3, Figures 10.1, 10.6, 10.7 and the exercises of chapter 13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import nn

from torchtheory.convolution.layer_matrices import (
    ConvolutionLayer,
    convolution_map,
    matrix_of_map,
)
from torchtheory.convolution.receptive_fields import receptive_fields
from torchtheory.core.checks import as_module, whole_number, whole_numbers
from torchtheory.core.errors import ModelRaised, ShapeMismatch, UnsupportedModel
from torchtheory.models.model import PureFunction
from torchtheory.tracing.layer_results import layer_outputs


def output_size(size: int, taps: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> int:
    r"""How many windows there are: $\lfloor(n+2p-\delta(k-1)-1)/s\rfloor+1$.

    >>> output_size(9, 3), output_size(9, 3, stride=3), output_size(9, 3, padding=1)
    (7, 3, 9)
    """
    n, k = whole_number(size, "size", least=1), whole_number(taps, "taps", least=1)
    s, p = whole_number(stride, "stride", least=1), whole_number(padding, "padding", least=0)
    reach = whole_number(dilation, "dilation", least=1) * (k - 1) + 1
    if reach > n + 2 * p:
        raise ShapeMismatch(
            f"a filter that reaches over {reach} places does not fit {n} places with {p} more on "
            "either side"
        )
    return (n + 2 * p - reach) // s + 1


def transposed_output_size(
    size: int,
    taps: int,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    output_padding: int = 0,
) -> int:
    r"""Places of a transposed convolution: $(n-1)s-2p+\delta(k-1)+1$ and the output's padding.

    It is a size from which `output_size` leads back to `size`.

    >>> transposed_output_size(7, 3), transposed_output_size(3, 3, stride=3)
    (9, 9)
    """
    n, k = whole_number(size, "size", least=1), whole_number(taps, "taps", least=1)
    s, p = whole_number(stride, "stride", least=1), whole_number(padding, "padding", least=0)
    reach = whole_number(dilation, "dilation", least=1) * (k - 1) + 1
    extra = whole_number(output_padding, "output_padding", least=0)
    made = (n - 1) * s - 2 * p + reach + extra
    if made < 1:
        raise ShapeMismatch(f"{n} places with padding {p} leave nothing of the output")
    return made


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a convolution layer saves over the dense layer between the same images.

    Attributes:
        parameters: of the convolution layer, its biases among them.
        dense: of the dense layer, one bias per output.
        weights: free numbers in the layer's matrix.
        entries: numbers in the matrix.
        nonzero: how many of them are not fixed to 0.
    """

    parameters: int
    dense: int
    weights: int
    entries: int
    nonzero: int

    @property
    def factor(self) -> float:
        """How many times as many parameters the dense layer has."""
        return self.dense / self.parameters


def weight_sharing(layer: ConvolutionLayer, input_shape: Sequence[int]) -> Sharing:
    """Parameters of a convolution layer against those of the dense layer between its images.

    Args:
        layer: any convolution layer of torch.
        input_shape: `[channels, ...]` of one input.

    Cost: that of the pattern of the layer's matrix.

    >>> found = weight_sharing(nn.Conv1d(1, 1, 3, bias=False), (1, 10))
    >>> found.parameters, found.dense, found.nonzero            # 3 numbers, 8 times each
    (3, 80, 24)
    >>> weight_sharing(nn.Conv2d(3, 16, 3, padding=1), (3, 32, 32)).factor > 1e5
    True
    """
    found = convolution_map(layer, input_shape)
    rows, columns = found.shape
    line = [w.places() for w in found.windows]
    # pairs of a window and a place that meet, without the matrix; windows repeat no place
    distinct = [sum(len(set(row.tolist()) - {-1}) for row in places) for places in line]
    a, per_group = found.weight.shape[:2]
    own = sum(p.numel() for p in layer.parameters())
    return Sharing(
        own,
        rows * columns + (rows if layer.bias is not None else 0),
        found.weight.numel(),
        rows * columns,
        a * per_group * math.prod(distinct),
    )


def distinct_entries(layer: ConvolutionLayer, input_shape: Sequence[int]) -> int:
    """How many different numbers other than 0 stand in the layer's matrix.

    >>> layer = nn.Conv1d(1, 1, 3, bias=False)
    >>> distinct_entries(layer, (1, 10))
    3
    """
    values = matrix_of_map(convolution_map(layer, input_shape)).values()
    return len(torch.unique(values[values != 0]))


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One line of a table of a network.

    Attributes:
        name, kind: of the layer.
        shape: of its output for one input.
        parameters: of the layer.
        field: receptive field of a unit per dimension; None where units have no common one.
        jump: places of the input from one unit to the next, likewise.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    field: tuple[int, ...] | None
    jump: tuple[int | Fraction, ...] | None


def layer_table(model: nn.Module, input_shape: Sequence[int]) -> list[LayerRow]:
    """Shapes, parameters and receptive fields of a network, layer by layer, in order of use.

    Args:
        model: any module with one input.
        input_shape: `[channels, ...]` of one input.

    Cost: one forward pass.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    ...                     nn.Linear(8 * 13 * 13, 10))
    >>> for row in layer_table(net, (1, 28, 28)):
    ...     print(row.kind, row.shape, row.parameters, row.field)
    Conv2d (8, 26, 26) 80 (3, 3)
    ReLU (8, 26, 26) 0 (3, 3)
    MaxPool2d (8, 13, 13) 0 (4, 4)
    Flatten (1352,) 0 None
    Linear (10,) 13530 None
    """
    as_module(model)
    shape = whole_numbers(input_shape, "input_shape")
    like = PureFunction(model).reference()
    x = torch.zeros(1, *shape, dtype=like.dtype, device=like.device)
    with torch.no_grad():
        try:
            outputs = layer_outputs(model, x)
        except ModelRaised as error:
            sentence = " ".join(str(error).split())[:200]
            raise ShapeMismatch(f"the network does not take {list(shape)}: {sentence}") from error
    modules = dict(model.named_modules())
    try:
        fields = {f.name: f for f in receptive_fields(model, shape)}
    except (UnsupportedModel, ValueError):
        fields = {}
    rows = []
    for label, out in outputs.items():
        name = label.partition(" (")[0] if label not in modules else label
        module = modules.get("" if name == "(model)" else name, model)
        found = fields.get(name if name != "(model)" else "")
        rows.append(
            LayerRow(
                label,
                type(module).__name__,
                tuple(out.shape[1:]),
                sum(p.numel() for p in module.parameters(recurse=False)),
                None if found is None else found.size,
                None if found is None else found.jump,
            )
        )
    return rows
