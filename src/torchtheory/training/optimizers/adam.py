r"""Adam without bias correction, the form the notes print.

`torch.optim.Adam` is the algorithm of Kingma and Ba: base rate $\eta$, both averages
divided by $1-\beta^t$ and $1-\alpha^t$, the constant $\delta$ outside the root
and added after the correction. `torch.optim.RMSprop` has neither average of the gradient nor
correction, which is `UncorrectedAdam` with $\beta=0$.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from torchtheory.core.checks import number_between, positive_number
from torchtheory.core.errors import InvalidInput


class UncorrectedAdam(Optimizer):
    r"""Adam as printed in the notes, with a base learning rate.

    $$
    g_t=\beta g_{t-1}+(1-\beta)\nabla h,\quad
    \gamma_t=\alpha\gamma_{t-1}+(1-\alpha)(\nabla h)^{\odot2},\quad
    \theta_{t+1}=\theta_t-\frac{\eta}{\sqrt{\gamma_t}+\delta}\odot g_t,
    $$

    both averages starting from 0. The first step is therefore
    $\eta(1-\beta)/\sqrt{1-\alpha}$ in every coordinate (up to $\delta$), which is
    $3.16\,\eta$ with the usual constants, where `torch.optim.Adam` takes $\eta$.

    Args:
        params: parameters or parameter groups.
        lr: $\eta$; the notes print 1.
        betas: $(\beta,\alpha)$, each in [0, 1). With 1 an average would stay 0.
        eps: $\delta\ge0$.

    Two vectors of state a parameter; $O(p)$ a step. Source: notes "Deep Learning", 3.3.

    >>> x = torch.zeros(1, requires_grad=True)
    >>> optimizer = UncorrectedAdam([x], lr=1.0)
    >>> x.grad = torch.tensor([7.0])
    >>> optimizer.step()
    >>> round(x.item(), 4)
    -3.1623
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        positive_number(lr, "the learning rate")
        number_between(betas[0], "the first beta", 0, 1, closed="left")
        number_between(betas[1], "the second beta", 0, 1, closed="left")
        if not eps >= 0:
            raise InvalidInput(f"eps must be at least 0, not {eps!r}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

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
            beta, alpha = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["mean"].mul_(beta).add_(p.grad, alpha=1 - beta)
                state["square"].mul_(alpha).addcmul_(p.grad, p.grad, value=1 - alpha)
                size = state["square"].sqrt().add_(group["eps"])
                p.addcdiv_(state["mean"], size, value=-group["lr"])
        return loss
