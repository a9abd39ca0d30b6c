"""How large a network is: layers, weights, and multiplications for one input.

A dense layer from $n$ to $m$ units multiplies $nm$ times, a convolution as often as its kernel has
numbers for each entry of its output. VGG-16 has 16 layers, 138 million weights and 15.5 billion
multiplications for an image of 224 x 224. Source: Mathematical Aspects of Deep Learning, section
5.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from torchtheory.core.checks import as_module, whole_numbers
from torchtheory.core.record import Table
from torchtheory.models.untouched import copied
from torchtheory.tracing.multiplications import multiplications
from torchtheory.tracing.operation_counts import recorded_call


@dataclass(frozen=True, slots=True)
class LayerSize:
    """One layer with weights of its own.

    Attributes:
        name, kind: in the model, and of which class it is.
        parameters: of its own.
        multiplications: multiply-adds of matrix products and convolutions, for one input.
    """

    name: str
    kind: str
    parameters: int
    multiplications: int


@dataclass(frozen=True, slots=True)
class NetworkSize:
    """The size of a network.

    Attributes:
        parameters: all of them, shared ones once.
        multiplications: multiply-adds of matrix products and convolutions, for one input.
        by_layer: the layers with weights of their own, in the model's order.
    """

    parameters: int
    multiplications: int
    by_layer: tuple[LayerSize, ...]

    @property
    def layers(self) -> int:
        """Layers that multiply by weights: dense ones and convolutions, not normalizations."""
        return sum(layer.multiplications > 0 for layer in self.by_layer)

    @property
    def table(self) -> Table:
        rows = tuple((s.name, s.kind, s.parameters, s.multiplications) for s in self.by_layer)
        return Table("layers", ("layer", "kind", "weights", "multiplications"), rows)


def network_size(
    model: nn.Module, shape: Sequence[int], dtype: torch.dtype | None = None
) -> NetworkSize:
    """Layers, weights and multiplications of a network for one input.

    Nothing is computed: the model runs on tensors without values, so also one that would not fit
    into memory can be counted, if it was made under `torch.device("meta")`.

    Args:
        model: any module that runs on such tensors; it is left alone.
        shape: of one input, without the number of samples.
        dtype: of the input; that of the model's weights unless given, int64 for words.

    Raises:
        UnsupportedModel: if the model asks for values.

    >>> size = network_size(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
    ...                                   nn.Linear(8 * 16, 10)), (3, 4, 4))
    >>> size.layers, size.parameters, size.multiplications    # 8·3·9·16 + 128·10
    (2, 1514, 4736)
    """
    sizes = whole_numbers(list(shape), "the shape", least=1)
    own = copied(as_module(model)).to("meta")
    first = next((p.dtype for p in own.parameters() if p.is_floating_point()), torch.float32)
    with torch.device("meta"):
        network = recorded_call(own, torch.zeros(1, *sizes, dtype=dtype or first))
    counts: Counter[str] = Counter()
    for op in network:
        counts[op.layer] += multiplications(op)
    layers = []
    for name, module in own.named_modules():
        parameters = sum(p.numel() for p in module.parameters(recurse=False))
        if parameters:
            layers.append(LayerSize(name, type(module).__name__, parameters, counts[name]))
    return NetworkSize(sum(p.numel() for p in own.parameters()), counts.total(), tuple(layers))
