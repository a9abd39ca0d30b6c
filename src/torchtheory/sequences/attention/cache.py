r"""Keys and values that are kept, so that a new token costs one row of attention.

A causal network's keys and values of earlier positions do not change when tokens are appended.
Generating T tokens then takes T rows of attention, $O(T^2)$ in all, and not T full passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType


class KeysAndValues:
    """The keys and values of one attention layer, `[B, heads, positions, size]` each.

    >>> kept = KeysAndValues()
    >>> keys, values = kept.extend(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5))
    >>> kept.extend(keys[:, :, :1], values[:, :, :1])[0].shape, kept.length
    (torch.Size([1, 2, 4, 4]), 4)
    """

    def __init__(self, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        self.keys, self.values = keys, values

    @property
    def length(self) -> int:
        """How many positions are kept."""
        return 0 if self.keys is None else self.keys.shape[-2]

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append those of new positions; returns all of them."""
        if self.keys is None or self.values is None:
            self.keys, self.values = keys, values
        else:
            if len(keys) != len(self.keys):
                raise InvalidInput(
                    f"the cache holds {len(self.keys)} sequences, and {len(keys)} came: "
                    "cache.select repeats or reorders them"
                )
            self.keys = torch.cat([self.keys, keys], -2)
            self.values = torch.cat([self.values, values], -2)
        return self.keys, self.values

    def select(self, indices: Tensor) -> KeysAndValues:
        """Those of the sequences with these numbers."""
        if self.keys is None or self.values is None:
            return KeysAndValues()
        return KeysAndValues(self.keys[indices], self.values[indices])


class KeyValueCache:
    """Keys and values of all layers of a decoder, and of what its cross-attention looks at.

    A model fills it as it runs; `model(tokens, cache)` then takes only the tokens that are new.

    Attributes:
        layers: one `KeysAndValues` per block, of the positions so far.
        memory: one per block, of the encoder's output; used by decoders with cross-attention.

    >>> cache = KeyValueCache(2)
    >>> _ = [kept.extend(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2)) for kept in cache.layers]
    >>> cache.length, cache.select(torch.tensor([0, 0])).layers[0].keys.shape
    (3, torch.Size([2, 1, 3, 2]))
    """

    def __init__(self, depth: int) -> None:
        depth = whole_number(depth, "depth", least=1)
        self.layers = [KeysAndValues() for _ in range(depth)]
        self.memory = [KeysAndValues() for _ in range(depth)]

    @property
    def length(self) -> int:
        """How many positions are kept."""
        return self.layers[0].length

    def select(self, indices: Tensor) -> KeyValueCache:
        """A cache of the sequences with these numbers `[b]`, reordered or repeated.

        Beam search keeps `cache.select(parents)` after each step. This one stays as it is.
        """
        if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.ndim != 1:
            raise InvalidType(
                f"indices must be a tensor [b] of whole numbers (torch.long), "
                f"not {described(indices)}"
            )
        kept = KeyValueCache(len(self.layers))
        kept.layers = [layer.select(indices) for layer in self.layers]
        kept.memory = [layer.select(indices) for layer in self.memory]
        return kept
