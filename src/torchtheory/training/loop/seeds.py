"""Where the randomness of a training comes from: one seed, one stream for each purpose.

Every draw is a function of the seed, the purpose and the epoch, so that a run can be taken up in
the middle, one network of many can be trained again alone, and a loop written by hand can walk
through the same batches.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.core.random import seed_torch


def derived_seed(seed: int, purpose: str, epoch: int = 0) -> int:
    """A seed for one purpose in one epoch, independent of the other purposes and epochs.

    >>> derived_seed(0, "order", 1) == derived_seed(0, "order", 2)
    False
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InvalidType(f"a seed is a whole number, not {type(seed).__name__}")
    if not 0 <= seed < 2**63:
        raise InvalidInput(f"a seed is a whole number from 0 to 2^63 - 1, not {seed}")
    digest = hashlib.sha256(f"{seed}/{purpose}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def derived_generator(seed: int, purpose: str, epoch: int = 0) -> torch.Generator:
    """A CPU generator started from `derived_seed`."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, epoch))


def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """The order `[samples]` in which `fit` walks through the data in an epoch (from 1).

    Batch `b` holds the samples `order[b * batch_size : (b + 1) * batch_size]`.

    >>> epoch_order(5, seed=0, epoch=1).sort().values.tolist()
    [0, 1, 2, 3, 4]
    """
    return torch.randperm(samples, generator=derived_generator(seed, "order", epoch))


RandomState = dict[str, Any]
"""The global generators of torch, numpy and Python as plain data."""


def seed_global_generators(seed: int) -> None:
    """Seed torch, numpy and Python; only ever called where the caller's states are kept."""
    seed_torch(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


def global_random_state() -> RandomState:
    """The state of the global generators, as `torch.save` can store it."""
    legacy: Any = np.random.get_state()  # noqa: NPY002
    name, keys, position, has_gauss, cached = legacy
    version, internal, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), torch.tensor(keys.astype(np.int64)), position, has_gauss, cached],
        "python": [version, torch.tensor(internal), gauss],
    }


def set_global_random_state(state: RandomState) -> None:
    """Inverse of `global_random_state`."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, position, has_gauss, cached = state["numpy"]
    keys = keys.numpy().astype(np.uint32)
    np.random.set_state((name, keys, position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
