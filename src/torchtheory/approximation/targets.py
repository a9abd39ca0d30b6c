r"""How the functions to approximate are called: points `[n, d]` in, one value a point out.

The same in every dimension: a function of one variable gets `[n, 1]`, and may give `[n, 1]` back
or `[n]`. So what acts on each number (`torch.sin`, `lambda x: x**2`) serves as it is, and so do
`lambda x: x[:, 0]`, a network with one output, and an `Approximant`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import NonFinite, ShapeMismatch

#: A function of `d` real variables: from points `[n, d]` to values `[n]` or `[n, 1]`.
Function = Callable[[Tensor], Tensor]


def evaluate(function: Function, x: Tensor) -> Tensor:
    """The values `[n]` of a function at points `x[n, d]`, with their graph.

    >>> x = torch.tensor([[4.0], [9.0]])
    >>> evaluate(torch.sqrt, x).tolist(), evaluate(lambda x: x[:, 0] - 1, x).tolist()
    ([2.0, 3.0], [3.0, 8.0])
    """
    made = function(x)
    if not isinstance(made, Tensor) or made.shape not in ((len(x),), (len(x), 1)):
        found = list(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ShapeMismatch(
            f"the function was given points {list(x.shape)} and must give one value a point, "
            f"[{len(x)}] or [{len(x)}, 1], not {found}"
        )
    return made.reshape(len(x))


def values_of(function: Function, x: Tensor) -> Tensor:
    """The values `[n]` of a function at points `x[n, d]`: finite numbers in double precision.

    >>> values_of(torch.sqrt, torch.tensor([[4.0]])).tolist()
    [2.0]
    """
    made = evaluate(function, x).detach().double()
    if not bool(torch.isfinite(made).all()):
        raise NonFinite(
            "the function is not finite everywhere on the domain: "
            f"{first_entry(made, 'the value', ~torch.isfinite(made))}"
        )
    return made
