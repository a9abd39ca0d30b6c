r"""Gradient steps on stacked parameters, with a learning rate and a weight decay for each network.

The formulas are those of `torch.optim`: entry $k$ of a stack moves exactly as a network
with learning rate $\eta_k$ and weight decay $\mu_k$ would move alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw

Step = Callable[[Sequence[Tensor]], None]


def stacked_steps(kind: str, parameters: Sequence[Tensor], rates: Tensor, decays: Tensor) -> Step:
    """A function that takes the gradients `[K, ...]` and moves the parameters in place.

    Args:
        kind: `sgd`, `momentum`, `nesterov`, `adam` or `adamw`.
        parameters: the stacked tensors.
        rates, decays: `[K]`.

    >>> p = torch.zeros(2, 3)
    >>> step = stacked_steps("sgd", [p], torch.tensor([1.0, 2.0]), torch.zeros(2))
    >>> step([torch.ones(2, 3)])
    >>> p
    tensor([[-1., -1., -1.],
            [-2., -2., -2.]])
    """
    alike = bool((rates == rates[0]).all() and (decays == decays[0]).all())
    if alike and kind in _FUSED and all(p.is_contiguous() for p in parameters):
        return _fused(_FUSED[kind], parameters, float(rates[0]), float(decays[0]))
    make = STEPS[kind]
    moves = [
        make(p, _beside(rates, p), _beside(decays, p) if bool(decays.any()) else None)
        for p in parameters
    ]

    @torch.no_grad()
    def step(gradients: Sequence[Tensor]) -> None:
        for move, gradient in zip(moves, gradients, strict=True):
            move(gradient)

    return step


Move = Callable[[Tensor], object]


def _sgd(p: Tensor, rate: Tensor, decay: Tensor | None) -> Move:
    return lambda g: p.addcmul_(_penalized(g, p, decay), rate, value=-1)


def _momentum(p: Tensor, rate: Tensor, decay: Tensor | None, nesterov: bool = False) -> Move:
    velocity = torch.zeros_like(p)

    def move(g: Tensor) -> None:
        g = _penalized(g, p, decay)
        velocity.mul_(0.9).add_(g)
        p.addcmul_(g.add(velocity, alpha=0.9) if nesterov else velocity, rate, value=-1)

    return move


def _nesterov(p: Tensor, rate: Tensor, decay: Tensor | None) -> Move:
    return _momentum(p, rate, decay, nesterov=True)


def _adam(p: Tensor, rate: Tensor, decay: Tensor | None, decoupled: bool = False) -> Move:
    first, second = torch.zeros_like(p), torch.zeros_like(p)
    t = 0

    def move(g: Tensor) -> None:
        nonlocal t
        t += 1
        if decay is not None and decoupled:
            p.mul_(1 - rate * decay)
        elif decay is not None:
            g = _penalized(g, p, decay)
        first.lerp_(g, 0.1)
        second.mul_(0.999).addcmul_(g, g, value=0.001)
        scale = second.sqrt().div_(math.sqrt(1 - 0.999**t)).add_(1e-8)
        p.addcmul_(torch.div(first, scale), rate, value=-1 / (1 - 0.9**t))

    return move


def _adamw(p: Tensor, rate: Tensor, decay: Tensor | None) -> Move:
    return _adam(p, rate, decay, decoupled=True)


STEPS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Move]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "adam": _adam,
    "adamw": _adamw,
}


#: Steps of torch that move a tensor in one pass over it, with one rate for all of its entries.
_FUSED: dict[str, Callable[..., None]] = {"adam": adam, "adamw": adamw}


def _fused(
    kind: Callable[..., None], parameters: Sequence[Tensor], rate: float, decay: float
) -> Step:
    """One rate and one decay for all networks: a step is a single pass, several times faster.

    torch's function, and not its `Optimizer`, which takes as long as the pass to get there.
    """
    moved = [p.detach() for p in parameters]
    first, second = [torch.zeros_like(p) for p in moved], [torch.zeros_like(p) for p in moved]
    counts = [torch.zeros((), device=p.device) for p in moved]

    @torch.no_grad()
    def step(gradients: Sequence[Tensor]) -> None:
        # it reads memory, whatever the strides
        given = [gradient.contiguous() for gradient in gradients]
        kind(
            moved, given, first, second, [], counts, fused=True, amsgrad=False, beta1=0.9,
            beta2=0.999, lr=rate, weight_decay=decay, eps=1e-8, maximize=False,
        )  # fmt: skip

    return step


def _penalized(g: Tensor, p: Tensor, decay: Tensor | None) -> Tensor:
    return g if decay is None else torch.addcmul(g, p, decay)


def _beside(values: Tensor, p: Tensor) -> Tensor:
    """`[K]` as `[K, 1, ...]` in the precision of `p`."""
    return values.to(p).view(-1, *[1] * (p.ndim - 1))
