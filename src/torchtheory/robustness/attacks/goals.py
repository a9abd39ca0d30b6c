r"""What an attack makes large: losses of one sample each, as functions of the scores $z$.

| name | $\ell(z,y)$ |
|---|---|
| `cross_entropy` | $\log\sum_je^{z_j}-z_y$ |
| `margin` | $\max_{j\ne y}z_j-z_y$ |
| `dlr` | $(\max_{j\ne y}z_j-z_y)\,/\,(z_{\pi_1}-z_{\pi_3})$ |
| `squared_error` | $\|z-y\|^2$, for regression |

$z_{\pi_1}\ge z_{\pi_2}\ge\dots$ are the scores in order. The margin is positive where the model
errs. The difference of logits ratio (Croce and Hein 2020) is the margin in units that do not change
when all scores are multiplied by a number, by which a cross-entropy can be made flat. Source:
Foundations of Deep Learning, section 12.1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.errors import InvalidInput

Goal = Callable[[Tensor, Tensor], Tensor]
"""Scores `[n, K]` and targets to one number per sample `[n]`."""


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    r"""$\log\sum_j\exp z_j-z_y$ `[n]`, without overflow; its gradient is $\mathrm{softmax}(z)-e_y$.

    >>> import torch
    >>> cross_entropy(torch.tensor([[0.0, 0.0], [2000.0, 0.0]]), torch.tensor([0, 1]))
    tensor([6.9315e-01, 2.0000e+03])
    """
    return F.cross_entropy(scores, y, reduction="none")


def margin(scores: Tensor, y: Tensor) -> Tensor:
    r"""$\max_{j\ne y}z_j-z_y$ `[n]`: positive where the model errs.

    >>> import torch
    >>> margin(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([0]))
    tensor([-1.])
    """
    own = scores.gather(1, y[:, None]).squeeze(1)
    return scores.scatter(1, y[:, None], -float("inf")).amax(1) - own


def dlr(scores: Tensor, y: Tensor) -> Tensor:
    """The margin over the difference of the first and the third score in order, `[n]`.

    >>> import torch
    >>> z = torch.tensor([[3.0, 1.0, 2.0]])
    >>> dlr(z, torch.tensor([0])), dlr(100 * z, torch.tensor([0]))
    (tensor([-0.5000]), tensor([-0.5000]))
    """
    if scores.shape[1] < 3:
        raise InvalidInput(
            f"the difference of logits ratio needs at least 3 classes, and there are "
            f"{scores.shape[1]}: use loss='margin'"
        )
    top = scores.topk(3, dim=1).values
    return margin(scores, y) / (top[:, 0] - top[:, 2]).clamp_min(1e-12)


def targeted_dlr(target: Tensor) -> Goal:
    r"""$(z_t-z_y)\,/\,(z_{\pi_1}-\frac12(z_{\pi_3}+z_{\pi_4}))$: how close class $t$ comes.

    >>> import torch
    >>> z = torch.tensor([[4.0, 3.0, 2.0, 0.0]])
    >>> targeted_dlr(torch.tensor([1]))(z, torch.tensor([0]))       # (3 - 4) / (4 - 1)
    tensor([-0.3333])
    """

    def goal(scores: Tensor, y: Tensor) -> Tensor:
        top = scores.topk(4, dim=1).values
        gap = (scores.gather(1, target[:, None]) - scores.gather(1, y[:, None])).squeeze(1)
        return gap / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2).clamp_min(1e-12)

    return goal


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared distance of outputs and targets, `[n]`.

    >>> import torch
    >>> squared_error(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
    tensor([25.])
    """
    return (outputs - y.reshape(outputs.shape)).square().reshape(len(outputs), -1).sum(1)


GOALS: dict[str, Goal] = {
    "cross_entropy": cross_entropy,
    "margin": margin,
    "dlr": dlr,
    "squared_error": squared_error,
}
