"""Randomness that comes in by hand: a `torch.Generator`, or the seed of one.

Nothing in torchtheory reads or moves the global random state, so the same seed gives the same
numbers whatever ran before.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput, InvalidType

RandomSource = torch.Generator | int | None
"""What a `generator` argument accepts; `None` stands for seed 0."""


def as_generator(generator: RandomSource, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator from a generator (returned as it is), from a seed, or from `None` (seed 0).

    Args:
        generator: A `torch.Generator`, an integer seed, or `None`.
        device: Where a new generator lives. A generator that is passed in keeps its own device;
            `gaussian` and `rademacher` draw there and move the numbers.

    >>> a, b = as_generator(7), as_generator(7)
    >>> bool(torch.rand(1, generator=a) == torch.rand(1, generator=b))
    True
    >>> as_generator(a) is a
    True
    """
    if isinstance(generator, torch.Generator):
        return generator
    if generator is None:
        generator = 0
    if isinstance(generator, bool) or not isinstance(generator, int):
        raise InvalidType(
            f"randomness is given as a torch.Generator or an integer seed, "
            f"not as {type(generator).__name__}"
        )
    if not 0 <= generator < 2**63:
        raise InvalidInput(f"a seed is an integer from 0 to 2^63 - 1, not {generator}")
    return torch.Generator(device).manual_seed(generator)


def seed_torch(seed: int) -> None:
    """Seed torch's global generators; only ever called where the caller's states are kept."""
    # not torch.manual_seed: without CUDA it keeps a stack trace of every call, 0.5 ms each
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def numpy_generator(generator: RandomSource) -> np.random.Generator:
    """NumPy's generator, with a seed drawn from a generator; the same for the same source.

    >>> int(numpy_generator(3).integers(100)) == int(numpy_generator(3).integers(100))
    True
    """
    return np.random.default_rng(int(torch.randint(2**62, (1,), generator=as_generator(generator))))


def gaussian(
    *shape: int,
    generator: torch.Generator,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Tensor:
    """A tensor of independent standard normal entries.

    >>> gaussian(2, 3, generator=as_generator(0), dtype=torch.float64).shape
    torch.Size([2, 3])
    """
    draws = torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)
    return draws.to(device)


def rademacher(
    *shape: int,
    generator: torch.Generator,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Tensor:
    """A tensor of independent fair signs, $\\pm 1$.

    >>> rademacher(5, generator=as_generator(0), dtype=torch.float64).abs().tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    # drawn in the type that is wanted: whole numbers would take several times the memory
    bits = torch.randint(0, 2, shape, generator=generator, device=generator.device, dtype=dtype)
    return bits.mul_(2).sub_(1).to(device)
