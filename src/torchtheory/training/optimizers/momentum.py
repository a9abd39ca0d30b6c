r"""Momentum as the notes write it: the heavy ball, Nesterov's extrapolation, the effective step.

`torch.optim.SGD` keeps a velocity $v_{t+1}=\beta v_t+(1-\tau)g_t$ ($v_1=g_0$,
dampening $\tau$) and multiplies it by the current learning rate. That *is* the heavy ball as
long as the learning rate does not change and $\tau=0$; with `nesterov=True` it is
Nesterov's method in another variable, see `nesterov_iterate`. The optimizers here are the
printed recursions in $\theta$ themselves. Source: notes "Deep Learning", section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import ParamsT

from torchtheory.core.checks import number_between, positive_number
from torchtheory.core.errors import InvalidInput, InvalidType


class HeavyBall(Optimizer):
    r"""Polyak's heavy ball,
    $\theta^{t+1}=\theta^t-\eta\nabla h(\theta^t)+\beta(\theta^t-\theta^{t-1})$,
    $\theta^{-1}=\theta^0$.

    The last displacement is what is kept, so a learning rate that changes acts on the gradient
    alone; `torch.optim.SGD(momentum=β)` would rescale the old displacement with it, by
    $\eta_t/\eta_{t-1}$. With a constant learning rate the two are equal.

    Args:
        params: parameters or parameter groups.
        lr: $\eta>0$.
        momentum: $\beta\in[0,1)$. The notes allow 1, for which a constant gradient gives
            steps that grow without end.

    One vector of state a parameter; $O(p)$ a step.

    >>> x = torch.tensor([1.0], requires_grad=True)
    >>> optimizer = HeavyBall([x], lr=0.1, momentum=0.5)
    >>> for _ in range(2):
    ...     x.grad = torch.ones(1)                     # a constant gradient
    ...     optimizer.step()
    >>> round(x.item(), 6)                             # 1 - 0.1 - 0.1 * (1 + 0.5)
    0.75
    """

    def __init__(self, params: ParamsT, lr: float = 1e-3, momentum: float = 0.9) -> None:
        positive_number(lr, "the learning rate")
        number_between(momentum, "the momentum", 0, 1, closed="left")
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update from the gradients in `.grad`; `closure` computes them first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "displacement" not in state:
                    state["displacement"] = torch.zeros_like(p)
                state["displacement"].mul_(group["momentum"]).add_(p.grad, alpha=-group["lr"])
                p.add_(state["displacement"])
        return loss


class Nesterov(Optimizer):
    r"""Nesterov's method as printed, the parameters being the iterates $\theta^t$.

    $$
    \chi^{t+1}=\theta^t+\beta_t(\theta^t-\theta^{t-1}),\qquad
    \theta^{t+1}=\chi^{t+1}-\eta\nabla h(\chi^{t+1}).
    $$

    The gradient is needed at the extrapolated point, so `step` takes a closure that computes it
    there. (`torch.optim.SGD(nesterov=True)` does without one by keeping $\chi$ in the
    parameters: `nesterov_iterate` is the change of variables.) If the closure raises, the
    parameters are back at $\theta^t$.

    Args:
        params: parameters or parameter groups.
        lr: $\eta>0$; $1/L$ in the guarantees.
        momentum: $\beta\in[0,1)$, or None for Nesterov's sequence
            $\beta_t=(t-1)/(t+2)$, $t=1,2,\dots$, which gives the gap
            $2L\|\theta^0-\theta^\star\|^2/(T+1)^2$ on every convex $L$-smooth function.
            Where it is $\mu$-strongly convex, the best constant is
            $(\sqrt\kappa-1)/(\sqrt\kappa+1)$, $\kappa=L/\mu$. Without convexity there
            is no such guarantee.

    One vector of state a parameter; $O(p)$ a step besides the closure.

    >>> x = torch.tensor([1.0], requires_grad=True)
    >>> optimizer = Nesterov([x], lr=0.5)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (x**2).sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> for _ in range(2):
    ...     _ = optimizer.step(closure)
    >>> x.item()                                       # (0.5 + (0.5 - 1) / 4) / 2
    0.1875
    """

    def __init__(self, params: ParamsT, lr: float = 1e-3, momentum: float | None = None) -> None:
        positive_number(lr, "the learning rate")
        if momentum is not None:
            number_between(momentum, "the momentum", 0, 1, closed="left")
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update; `closure` clears the gradients, computes them and returns the loss."""
        if closure is None:
            raise InvalidInput(
                "Nesterov needs the gradient at the extrapolated point: call step(closure), or "
                "use torch.optim.SGD(nesterov=True), which keeps that point in the parameters"
            )
        groups = [(g, p) for g in self.param_groups for p in g["params"] if p.requires_grad]
        here = [p.clone() for _, p in groups]
        try:
            for group, p in groups:
                state = self.state[p]
                # None is (t - 1) / (t + 2) with t = steps + 1
                steps = state.get("steps", 0)
                beta = steps / (steps + 3) if group["momentum"] is None else group["momentum"]
                p.add_(p - state.get("previous", p), alpha=beta)
            with torch.enable_grad():
                loss = closure()
        except BaseException:
            for (_, p), old in zip(groups, here, strict=True):
                p.copy_(old)
            raise
        for (group, p), old in zip(groups, here, strict=True):
            if p.grad is None:
                p.copy_(old)
                continue
            p.add_(p.grad, alpha=-group["lr"])
            state = self.state[p]
            state["previous"], state["steps"] = old, state.get("steps", 0) + 1
        return loss


def nesterov_iterate(optimizer: SGD, parameter: Tensor) -> Tensor:
    r"""The iterate $\theta^t$ behind a parameter of `torch.optim.SGD(nesterov=True)`.

    torch keeps $\chi^{t+1}=\theta^t+\beta(\theta^t-\theta^{t-1})$ in the parameter and a
    velocity with $\theta^t-\theta^{t-1}=-\eta v_t$, so that
    $\theta^t=\chi^{t+1}+\eta\beta v_t$; valid while learning rate and momentum are constant
    and the dampening is 0. Returns a new tensor of the parameter's shape.

    >>> x = torch.tensor([1.0], requires_grad=True)
    >>> optimizer = SGD([x], lr=0.5, momentum=0.5, nesterov=True)
    >>> x.grad = torch.ones(1)
    >>> optimizer.step()
    >>> x.item(), nesterov_iterate(optimizer, x).item()
    (0.25, 0.5)
    """
    if not isinstance(optimizer, SGD):
        raise InvalidType(
            f"the optimizer must be a torch.optim.SGD, not {type(optimizer).__name__}"
        )
    group = next(
        (g for g in optimizer.param_groups if any(p is parameter for p in g["params"])), None
    )
    if group is None:
        raise InvalidInput("the tensor is not among the optimizer's parameters")
    if not group["nesterov"]:
        raise InvalidInput("the parameter is trained without nesterov=True: it is its own iterate")
    velocity = optimizer.state.get(parameter, {}).get("momentum_buffer")
    here = parameter.detach().clone()
    if velocity is None:
        return here
    return here.add_(velocity, alpha=float(group["lr"]) * group["momentum"])


def effective_step(step: float, momentum: float, steps: float = math.inf) -> float:
    r"""How far the heavy ball moves for a constant gradient of norm 1.

    $$
    \theta^{t+1}-\theta^t=-\eta\Bigl(\sum_{\tau=0}^{t}\beta^\tau\Bigr)\delta
    =-\eta\,\frac{1-\beta^{t+1}}{1-\beta}\,\delta\;\to\;-\frac{\eta}{1-\beta}\,\delta .
    $$

    Args:
        step: $\eta$.
        momentum: $\beta\in[0,1)$.
        steps: $t+1$, the number of gradients met so far; infinity for the limit.

    >>> effective_step(0.1, 0.5, 2), effective_step(0.1, 0.5)
    (0.15000000000000002, 0.2)
    """
    positive_number(step, "the learning rate")
    number_between(momentum, "the momentum", 0, 1, closed="left")
    if not steps >= 1:
        raise InvalidInput(f"at least one gradient must have been met, not {steps!r}")
    return step * (1 - math.pow(momentum, steps)) / (1 - momentum)
