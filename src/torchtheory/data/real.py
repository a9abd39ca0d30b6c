"""The small real data sets that ship with scikit-learn, as tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.checks import open_fraction
from torchtheory.core.errors import ShapeMismatch
from torchtheory.core.random import as_generator


def digits(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """1797 handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak, UCI).

    Returns:
        pixels `[1797, 64]` in [0, 1] and labels `[1797]` in 0..9.

    >>> x, y = digits()
    >>> tuple(x.shape), float(x.max()), int(y[0])
    ((1797, 64), 1.0, 0)
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return torch.as_tensor(pixels / 16.0, dtype=dtype), torch.as_tensor(labels).long()


def split(
    x: Tensor, y: Tensor, test_fraction: float, generator: torch.Generator | int = 0
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Random split into train and test; the test part has `round(n * test_fraction)` samples.

    >>> train, test = split(*digits(), test_fraction=0.25)
    >>> len(train[0]), len(test[0])
    (1348, 449)
    """
    if len(x) != len(y):
        raise ShapeMismatch(f"there are {len(x)} inputs but {len(y)} targets")
    open_fraction(test_fraction, "test_fraction")
    order = torch.randperm(len(x), generator=as_generator(generator))
    cut = len(x) - round(len(x) * test_fraction)
    return (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])
