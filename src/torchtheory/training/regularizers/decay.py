r"""Weight decay on the weights alone."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchtheory.core.checks import as_module
from torchtheory.core.errors import InvalidInput


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    r"""Parameter groups for any `torch.optim` optimizer: matrices decay, vectors do not.

    Weights are the parameters with at least two dimensions; biases, gains and scalars are the rest.

    The gradient descent of the lectures, $W\leftarrow W-(\eta\,\partial_WL+\lambda W)$,
    $b\leftarrow b-\eta\,\partial_bL$, does not multiply $\lambda$ by the learning rate.
    torch does: the same step is `torch.optim.SGD(weight_decay_groups(model, λ / η), lr=η)`, and
    the same as a penalty $\frac{\lambda}{2\eta}\|W\|^2$ added to the loss. With a learning
    rate that changes, the printed decay stays and torch's follows it. Source: Foundations of Deep
    Learning, section 2.7.4.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> groups = weight_decay_groups(net, 0.1)
    >>> [(len(g["params"]), g["weight_decay"]) for g in groups]
    [(2, 0.1), (2, 0.0)]
    """
    as_module(model)
    if not weight_decay >= 0:
        raise InvalidInput(f"the weight decay must be at least 0, not {weight_decay!r}")
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
