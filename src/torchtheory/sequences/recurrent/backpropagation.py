r"""Backpropagation through time, with the part of each lag.

For Elman's network and a loss $L=\sum_i\ell_i(\hat y_i)$, with
$\dot\Phi_j=\operatorname{diag}\phi'(Uz_{j-1}+Vx_j)$,

$$
\frac{\partial L}{\partial z_t}=\sum_{i\ge t}(\dot\Phi_iU\cdots\dot\Phi_{t+1}U)^\top
\frac{\partial\ell_i}{\partial z_i},\qquad
\frac{\partial L}{\partial U}=\sum_t\epsilon_tz_{t-1}^\top,\quad
\frac{\partial L}{\partial V}=\sum_t\epsilon_tx_t^\top,\quad
\epsilon_t=\dot\Phi_t\frac{\partial L}{\partial z_t}.
$$

The terms with $i-t=k$ are what the loss learns about things k steps before. Sources: Deep Learning
(notes), chapter 5; The Modern Mathematics of Deep Learning, section 1.6.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_function, described, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.sequences.recurrent.cells import ElmanCell
from torchtheory.sequences.recurrent.networks import Recurrent


@dataclass(frozen=True, slots=True)
class ThroughTime:
    """The gradient of a loss through time.

    Attributes:
        loss: its value.
        at_states: the gradient in each state, `[..., T, m]`.
        recurrent_by_lag: what each lag adds to the gradient in U, `[K, m, m]`.
        entering_by_lag: what each lag adds to the gradient in V, `[K, m, n]`.
    """

    loss: float
    at_states: Tensor
    recurrent_by_lag: Tensor
    entering_by_lag: Tensor

    @property
    def recurrent(self) -> Tensor:
        """The gradient in U, `[m, m]`: the sum over lags."""
        return self.recurrent_by_lag.sum(0)

    @property
    def entering(self) -> Tensor:
        """The gradient in V, `[m, n]`."""
        return self.entering_by_lag.sum(0)

    @property
    def lengths(self) -> Tensor:
        """The Frobenius norm of what each lag adds to the gradient in U, `[K]`."""
        lengths: Tensor = torch.linalg.matrix_norm(self.recurrent_by_lag)
        return lengths


def backpropagate_through_time(
    network: Recurrent,
    x: Tensor,
    loss: Callable[[Tensor], Tensor],
    *,
    truncate: int | None = None,
) -> ThroughTime:
    r"""The gradient of a loss of the hidden states' outputs, lag by lag.

    Args:
        network: of an Elman cell; its head is part of the loss.
        x: sequences `[..., T, n]`.
        loss: from the outputs at every step, `[..., T, q]`, to one number; a sum over steps of
            functions of one step's output, as the lags are counted from there.
        truncate: the number of lags that are kept, 1 for the local terms only; all T unless given.

    Time $O(KTm^2)$ per sequence for K lags, against $O(Tm^2)$ without them. Memory $O(Tm+K(m+n)m)$.

    >>> net = Recurrent(ElmanCell(1, 1, torch.nn.Identity))
    >>> with torch.no_grad():
    ...     _ = net.cell.recurrent.fill_(0.5), net.cell.entering.fill_(1.0)
    >>> found = backpropagate_through_time(net, torch.ones(3, 1).double(), lambda y: y[-1].sum())
    >>> found.at_states.flatten().tolist(), found.recurrent_by_lag.flatten().tolist()
    ([0.25, 0.5, 1.0], [1.5, 0.5, 0.0])
    """
    if not isinstance(network, Recurrent) or not isinstance(network.cell, ElmanCell):
        raise InvalidType(f"a Recurrent of an ElmanCell is needed, not {described(network)}")
    if network.mode != "every":
        raise InvalidInput(
            f"the loss takes the outputs at every step, not mode={network.mode!r}: use mode='every'"
        )
    as_function(loss, "loss")
    cell = network.cell
    with torch.enable_grad():
        hidden = network.hidden(x).detach().requires_grad_()
        value = loss(network.head(hidden))
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ShapeMismatch(
                f"loss must return one number, a tensor with one entry, not {described(value)}"
            )
        (local,) = torch.autograd.grad(value.reshape(()), hidden)
        before = torch.cat([torch.zeros_like(hidden[..., :1, :]), hidden[..., :-1, :]], -2).detach()
        sums = cell._summed(before, x).detach().requires_grad_()
        (slopes,) = torch.autograd.grad(cell.activation(sums).sum(), sums)
    steps = x.shape[-2]
    lags = steps if truncate is None else whole_number(truncate, "truncate", least=1, most=steps)
    U = cell.recurrent.detach()
    at_states, passed = torch.zeros_like(local), local
    recurrent, entering = [], []
    for lag in range(lags):
        if lag:
            # from t + 1 to t; nothing comes from behind the end
            back = (slopes * passed)[..., 1:, :] @ U
            passed = torch.cat([back, torch.zeros_like(passed[..., :1, :])], -2)
        at_states = at_states + passed
        errors = (slopes * passed).flatten(0, -2)
        recurrent.append(errors.T @ before.flatten(0, -2))
        entering.append(errors.T @ x.flatten(0, -2))
    return ThroughTime(
        float(value.detach()), at_states, torch.stack(recurrent), torch.stack(entering)
    )
