"""Tensors and plain values out of a file, without running what else it holds."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import IO, Any

import torch


def load_plain(source: Path | IO[bytes]) -> Any:
    """What `torch.save` wrote, if it is tensors and plain values; code is never run.

    Indices of sparse tensors are looked at, which torch leaves out unless told: they say where in
    memory something is written.
    """
    checked = torch.sparse.check_sparse_tensor_invariants()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(), checked:
        warnings.simplefilter("ignore")  # what is refused need not be warned of as well
        return torch.load(source, map_location="cpu", weights_only=True)
