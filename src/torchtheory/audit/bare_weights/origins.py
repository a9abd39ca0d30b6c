"""Whether weights are still as they were drawn, by their shape and name alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist

import torch
from torch import Tensor

from torchtheory.nets.initialization_laws import Law, usual_laws

#: Fewest entries that a law is tested on: with fewer, too many laws fit.
FEWEST_UNIFORM, FEWEST_NORMAL = 200, 1000

#: Fewest entries of a normal law whose size is not known: kurtosis must tell it from others.
FEWEST_ANY_SIZE = 20_000

#: What such a law is called.
ANY_SIZE = "a normal law of its own size"

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

    All entries are held against a law, and sorted where their size fits it. A normal law of any
    other size comes last: training leaves entries of larger and of smaller kurtosis.

    >>> W = torch.rand(64, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    >>> fresh_law("layer.weight", W / 32**0.5).rule
    "PyTorch's usual initialization"
    >>> fresh_law("layer.weight", W / 3) is None
    True
    """
    rounding = torch.finfo(tensor.dtype).eps
    entries = tensor.flatten()
    entries = entries.float() if tensor.dtype.itemsize < 4 else entries
    columns, kernel = math.prod(tensor.shape[1:]), math.prod(tensor.shape[2:])
    if len(entries) < FEWEST_UNIFORM or bool((entries == entries[0]).all()):
        return None
    for law in fresh_laws(name, tensor.shape[0], columns, kernel):
        if law.kind == "normal" and len(entries) < FEWEST_NORMAL:
            continue
        if law.p_value(entries, rounding=rounding) > LEVEL:
            return law
    if len(entries) < FEWEST_ANY_SIZE or not _normal_moments(entries):
        return None
    size = float(torch.linalg.vector_norm(entries, dtype=torch.float64)) / math.sqrt(len(entries))
    own = Law(ANY_SIZE, "normal", size)
    return own if own.p_value(entries, rounding=rounding) > LEVEL else None


def _normal_moments(entries: Tensor) -> bool:
    """Whether skewness and kurtosis are those of a normal law, at the level of the other tests.

    Kolmogorov's distance alone is lenient where the size was fitted to the same entries.
    """
    x = entries.double()
    x = x / x.square().mean().sqrt()
    n = len(x)
    skewness, kurtosis = float(x.pow(3).mean()), float(x.pow(4).mean()) - 3
    deviations = NormalDist().inv_cdf(1 - LEVEL / 4)
    # the third moment has the variance 15 about a known mean of 0; the size was fitted
    return abs(skewness) <= deviations * math.sqrt(15 / n) and abs(
        kurtosis
    ) <= deviations * math.sqrt(24 / n)
