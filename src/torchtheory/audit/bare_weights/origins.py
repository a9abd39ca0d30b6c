"""Whether weights are still as they were drawn, by their shape and name alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from torchtheory.nets.initialization_laws import Law, usual_laws

#: Fewest entries that a law is tested on: with fewer, too many laws fit.
FEWEST_UNIFORM, FEWEST_NORMAL = 200, 1000

#: Probability at which a fresh matrix is taken for a trained one, for each law.
LEVEL = 1e-3


def fresh_laws(name: str, rows: int, columns: int, kernel: int = 1) -> Iterator[Law]:
    """The laws that a matrix `[rows, columns]` of this name may have been drawn from.

    Args:
        name: of the tensor.
        rows, columns: outputs, and inputs times the entries of a kernel.
        kernel: entries of a kernel; 1 for a dense layer.
    """
    inputs, outputs = columns, rows * kernel
    usual = "PyTorch's usual initialization"
    yield Law(usual, "uniform", 1 / math.sqrt(inputs))
    if "weight_ih" in name:  # of a recurrent layer, whose bound is that of its hidden units
        for gates in (1, 3, 4):
            if rows % gates == 0:
                yield Law(usual, "uniform", 1 / math.sqrt(rows // gates))
    yield from usual_laws(inputs, outputs)
    yield Law("PyTorch's initialization of embeddings", "normal", 1.0)


def fresh_law(name: str, tensor: Tensor) -> Law | None:
    """The first law that the entries of a tensor `[rows, ...]` cannot be told from, if any.

    For each law at most 20,000 entries are sorted; all are held against the ends of a uniform one.

    >>> W = torch.rand(64, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    >>> fresh_law("layer.weight", W / 32**0.5).rule
    "PyTorch's usual initialization"
    >>> fresh_law("layer.weight", W / 3) is None
    True
    """
    entries = tensor.flatten()
    rounding = 0.0  # of half precision: it moves entries beyond the ends of a uniform law
    if tensor.dtype.itemsize < 4:
        entries, rounding = entries.float(), torch.finfo(tensor.dtype).eps / 2
    columns, kernel = math.prod(tensor.shape[1:]), math.prod(tensor.shape[2:])
    if len(entries) < FEWEST_UNIFORM or bool((entries == entries[0]).all()):
        return None
    for law in fresh_laws(name, tensor.shape[0], columns, kernel):
        if law.kind == "normal" and len(entries) < FEWEST_NORMAL:
            continue
        if replace(law, scale=law.scale * (1 + rounding)).p_value(entries) > LEVEL:
            return law
    return None
