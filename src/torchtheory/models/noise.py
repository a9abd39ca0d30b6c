r"""Models that draw random numbers: their noise fixed, so that they are functions again.

A network with noise is a function $f(\theta, x, \omega)$. Here every sample, every batch and every
call gets the same $\omega$: an operation that would draw a tensor with one part per sample draws
one part and repeats it. What is left is a function of the parameters and the sample, whatever batch
it stands in, and averaging over $\omega$ gives the expectation of the model as it is used, because
the expectation of a sample's loss knows no other sample.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchtheory.core.random import seed_torch

#: Which dimension of a drawn tensor grows with the batch, and by how much a sample.
Growth = tuple[int, int] | None


@dataclass(frozen=True)
class Noise:
    """A fixed draw of a model's random numbers.

    Attributes:
        seed: of the draw.
        growth: of every tensor drawn in a pass, how its shape depends on the batch.
    """

    seed: int
    growth: tuple[Growth, ...] = ()


class SharedNoise(TorchFunctionMode):
    """Random operations inside give the same numbers for every sample, and in every call.

    They are normal and uniform numbers and what torch makes of them: `randn`, `rand`, `normal`,
    `bernoulli`, `exponential_`, `multinomial`, `randint`, dropout and their relatives. Others
    (`poisson`, `randperm`, what is drawn in numpy) draw as ever.

    Args:
        noise: the draw.
        batch: how many samples the pass is about.

    >>> with SharedNoise(Noise(0, ((0, 1),)), batch=2):
    ...     drawn = torch.randn(2, 3)
    >>> bool((drawn[0] == drawn[1]).all())
    True
    """

    def __init__(self, noise: Noise, batch: int) -> None:
        super().__init__()
        self.noise = noise
        self.batch = batch
        #: Shapes of what was drawn so far.
        self.drawn: list[tuple[int, ...]] = []
        self._source = np.random.Generator(np.random.PCG64(noise.seed))

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        shared = _SHARED.get(func)
        if shared is None or "out" in given:
            return func(*args, **given)
        return shared(self, *args, **given)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers in [0, 1) of a shape, in float64."""
        return self._repeated(self._source.random, shape)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers of a shape, in float64."""
        return self._repeated(self._source.standard_normal, shape)

    def _repeated(self, draw: Callable[[tuple[int, ...]], Any], shape: Sequence[int]) -> Tensor:
        size, place = tuple(shape), len(self.drawn)
        self.drawn.append(size)
        growth = self.noise.growth[place] if place < len(self.noise.growth) else None
        if growth is not None and len(size) > growth[0] and size[growth[0]] % self.batch == 0:
            dimension, copies = growth[0], self.batch
            one = (*size[:dimension], size[dimension] // copies, *size[dimension + 1 :])
            repeats = [copies if d == dimension else 1 for d in range(len(size))]
            return torch.from_numpy(np.tile(draw(one), repeats))
        # through numpy: under torch.func.vmap torch's own random operations are refused
        return torch.from_numpy(np.asarray(draw(size)))


@contextmanager
def noise_fixed(noise: Noise, batch: int) -> Iterator[SharedNoise]:
    """What a model draws inside is the given noise.

    What `SharedNoise` does not cover is drawn from the global generators with a fixed seed; whoever
    calls this keeps their states.
    """
    seed_torch(noise.seed)
    random.seed(noise.seed)
    np.random.seed(noise.seed % 2**32)  # noqa: NPY002
    with SharedNoise(noise, max(1, batch)) as shared:
        yield shared


def growth_of(two: Sequence[Sequence[int]], three: Sequence[Sequence[int]]) -> tuple[Growth, ...]:
    """How shapes depend on the batch, from those drawn for two samples and for three.

    >>> growth_of([(2, 5), (7, 4), (16, 16)], [(3, 5), (7, 6), (16, 16)])
    ((0, 1), (1, 2), None)
    """
    found: list[Growth] = []
    for few, more in zip(two, three, strict=False):
        grown = [d for d, (a, b) in enumerate(zip(few, more, strict=False)) if a != b]
        if len(grown) == 1 and 3 * few[grown[0]] == 2 * more[grown[0]]:
            found.append((grown[0], few[grown[0]] // 2))
        else:
            found.append(None)
    return tuple(found)


# ------------------------------------------------------------------------- the random operations


def _size(given: Sequence[Any], named: dict[str, Any]) -> tuple[int, ...]:
    sizes = given or (named["size"],)
    if len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = tuple(sizes[0])
    return tuple(int(s) for s in sizes)


def _placed(values: Tensor, named: dict[str, Any], like: Tensor | None = None) -> Tensor:
    """In the precision and on the device that the call asks for."""
    kind = named.get("dtype") or (torch.get_default_dtype() if like is None else like.dtype)
    device = named.get("device") or (None if like is None else like.device)
    made = values.to(device=device, dtype=kind)
    return made.requires_grad_() if named.get("requires_grad") else made


def _randn(noise: SharedNoise, *size: Any, **named: Any) -> Tensor:
    return _placed(noise.normal(_size(size, named)), named)


def _rand(noise: SharedNoise, *size: Any, **named: Any) -> Tensor:
    return _placed(noise.uniform(_size(size, named)), named)


def _randn_like(noise: SharedNoise, input: Tensor, **named: Any) -> Tensor:
    return _placed(noise.normal(input.shape), named, input)


def _rand_like(noise: SharedNoise, input: Tensor, **named: Any) -> Tensor:
    return _placed(noise.uniform(input.shape), named, input)


def _randint(noise: SharedNoise, *given: Any, **named: Any) -> Tensor:
    bounds = [int(b) for b in given if not isinstance(b, Sequence)]
    sizes = [b for b in given if isinstance(b, Sequence)]
    low = int(named.get("low", bounds[0] if len(bounds) == 2 else 0))
    high = int(named.get("high", bounds[-1] if bounds else 0))
    values = noise.uniform(_size(sizes, named)) * (high - low) + low
    return _placed(values.floor(), {"dtype": torch.long, **named})


def _normal(
    noise: SharedNoise, mean: Any, std: Any = 1.0, size: Any = None, **named: Any
) -> Tensor:
    if size is not None:
        return _placed(noise.normal(_size((size,), {})) * std + mean, named)
    center = mean + 0 * std  # of the shape and precision of the two
    drawn: Tensor = center + std * noise.normal(center.shape).to(center)
    return drawn


def _normal_(noise: SharedNoise, self: Tensor, mean: Any = 0, std: Any = 1, **_: Any) -> Tensor:
    return self.copy_(noise.normal(self.shape) * std + mean)


def _uniform_(noise: SharedNoise, self: Tensor, a: Any = 0, b: Any = 1, **named: Any) -> Tensor:
    low, high = named.get("from", a), named.get("to", b)
    return self.copy_(noise.uniform(self.shape) * (high - low) + low)


def _exponential_(noise: SharedNoise, self: Tensor, lambd: float = 1, **_: Any) -> Tensor:
    return self.copy_(-torch.log1p(-noise.uniform(self.shape)) / lambd)


def _bernoulli(noise: SharedNoise, input: Tensor, p: Any = None, **_: Any) -> Tensor:
    share = input if p is None else p
    return (noise.uniform(input.shape).to(input.device) < share).to(input.dtype)


def _bernoulli_(noise: SharedNoise, self: Tensor, p: Any = 0.5, **_: Any) -> Tensor:
    return self.copy_(noise.uniform(self.shape).to(self.device) < p)


def _multinomial(
    noise: SharedNoise, input: Tensor, num_samples: int, replacement: bool = False, **_: Any
) -> Tensor:
    """By the largest of logarithms with Gumbel noise, one for each draw or the largest few."""
    shape = (*input.shape, num_samples) if replacement else tuple(input.shape)
    gumbel = -torch.log(-torch.log(noise.uniform(shape).clamp(1e-300, 1 - 1e-16)))
    scores = input.double().log()
    if replacement:
        return (scores.unsqueeze(-1) + gumbel.to(input.device)).argmax(-2)
    return (scores + gumbel.to(input.device)).topk(num_samples, -1).indices


def _dropout(
    noise: SharedNoise,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    shape: Sequence[int] | None = None,
) -> Tensor:
    if not training or p == 0:
        return input
    kept = (noise.uniform(shape or input.shape).to(input.device) >= p).to(input.dtype)
    scaled = input * kept / (1 - p) if p < 1 else input * 0.0
    return input.copy_(scaled) if inplace else scaled


def _feature_dropout(
    noise: SharedNoise, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    features = [*input.shape[:2], *[1] * (input.ndim - 2)]
    return _dropout(noise, input, p, training, inplace, features)


def _gumbel_softmax(
    noise: SharedNoise,
    logits: Tensor,
    tau: float = 1,
    hard: bool = False,
    eps: float = 1e-10,
    dim: int = -1,
) -> Tensor:
    gumbel = -torch.log(-torch.log(noise.uniform(logits.shape).clamp(1e-300, 1 - 1e-16)))
    soft = ((logits + gumbel.to(logits)) / tau).softmax(dim)
    if not hard:
        return soft
    one = torch.zeros_like(soft).scatter(dim, soft.argmax(dim, keepdim=True), 1.0)
    return one - soft.detach() + soft


_SHARED: dict[Any, Callable[..., Tensor]] = {
    torch.randn: _randn,
    torch.rand: _rand,
    torch.randn_like: _randn_like,
    torch.rand_like: _rand_like,
    torch.randint: _randint,
    torch.normal: _normal,
    torch.bernoulli: _bernoulli,
    torch.multinomial: _multinomial,
    torch.dropout: _dropout,
    Tensor.normal_: _normal_,
    Tensor.uniform_: _uniform_,
    Tensor.exponential_: _exponential_,
    Tensor.bernoulli: _bernoulli,
    Tensor.bernoulli_: _bernoulli_,
    Tensor.multinomial: _multinomial,
    F.dropout: _dropout,
    F.dropout1d: _feature_dropout,
    F.dropout2d: _feature_dropout,
    F.dropout3d: _feature_dropout,
    F.gumbel_softmax: _gumbel_softmax,
}
