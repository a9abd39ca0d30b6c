r"""The smallest perturbation that changes the class of a small ReLU network, exactly.

Two ways, which agree where both run:

* *a mixed-integer program* for the norms $\ell_\infty$ and $\ell_1$ (Tjeng, Xiao and Tedrake
  2019), through HiGHS. A unit that bends is $z\ge0$, $z\ge y$, $z\le y-l(1-b)$, $z\le ub$ with a
  binary $b$; the bounds $l\le y\le u$ come from CROWN on a ball that is doubled until it holds an
  answer, and any answer inside the ball is the nearest of all;
* *the cells in the order of their distance*, for all three norms. A cell is a polytope on which
  the network is affine. Units are decided one after another, those first around which the lines of
  CROWN leave the most room. In the polytope of the decisions made so far the margin has a lower
  bound that is affine, and the distance from $x$ to where it is not positive, a projection (Lawson
  and Hanson's least distance program) or a linear program, is a lower bound for all cells inside
  of it; so the first cell whose wrong side is reached in the order of these bounds holds the
  nearest adversarial point.

Both take time exponential in the number of units that bend, at worst: some dozen of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.checks import as_batch, module_with_values, one_of, whole_number
from torchtheory.core.errors import InvalidInput, NotConverged
from torchtheory.models.untouched import copied
from torchtheory.robustness.attacks.balls import DUAL_EXPONENTS, Norm, as_norm
from torchtheory.robustness.bounds.balls import Ball, Limits
from torchtheory.robustness.bounds.certified import class_rows
from torchtheory.robustness.bounds.propagation import Propagation
from torchtheory.robustness.bounds.tracing import trace
from torchtheory.robustness.exact.cells import by_cells
from torchtheory.robustness.exact.piecewise_affine import Array, PiecewiseAffine, State
from torchtheory.robustness.exact.program import by_program

#: Doublings of the ball, from a distance that is surely too small.
_DOUBLINGS = 60


@dataclass(frozen=True)
class MinimalPerturbation:
    """The nearest input of another class.

    Attributes:
        distance: its distance from the sample; infinite if there is none.
        adversarial: the input itself, of the sample's shape, on the boundary between the classes.
        target: the class it borders on.
        searched: cells that were looked at, or nodes of the mixed-integer programs.
    """

    distance: float
    adversarial: Tensor | None
    target: int | None
    searched: int


def minimal_perturbation(
    model: nn.Module,
    x: Tensor,
    y: int,
    norm: str | float = "inf",
    *,
    method: Literal["auto", "milp", "cells"] = "auto",
    box: Limits | None = None,
    largest: float = 1e3,
    most: int = 20_000,
) -> MinimalPerturbation:
    r"""The distance from a sample to the nearest input that is not of class $y$.

    Args:
        model: a network of affine operations and ReLUs (leaky ones for `method="cells"`).
        x: one input, without a batch dimension.
        y: its class; the distance is 0 if the model does not choose it.
        norm: `"inf"`, `"2"` or `"1"`.
        method: `"milp"` for the mixed-integer program, `"cells"` for the cells in the order of
            their distance; the program where the norm allows it unless given, and the cells where
            the solver of the program fails.
        box: least and largest valid input.
        largest: distances beyond this are not looked for.
        most: cells to look at, at most.

    Raises:
        NotConverged: if there are more cells than `most`, or the solver fails.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    >>> for layer in (net[0], net[2]):
    ...     layer.weight.data, layer.bias.data = torch.eye(2).double(), torch.zeros(2).double()
    >>> x = torch.tensor([3.0, 1.0])                       # the classes part at equal entries
    >>> [round(minimal_perturbation(net, x, 0, norm).distance, 6) for norm in ("inf", "2", "1")]
    [1.0, 1.414214, 2.0]
    """
    module_with_values(model)
    named = as_norm(norm)
    one_of(method, "method", ("auto", "milp", "cells"))
    whole_number(most, "most", least=1)
    if method == "milp" and named == "2":
        raise InvalidInput("a mixed-integer linear program cannot hold the norm '2': use 'cells'")
    given = as_batch(x[None], "x").double()
    own = copied(model).double().requires_grad_(False)
    graph = trace(own, given)
    shape = graph.vertices[graph.output].shape
    rows = class_rows(torch.tensor([y]), graph.outputs)[0].double()
    network = PiecewiseAffine(graph)
    limits = None
    if box is not None:
        low, high = (
            torch.as_tensor(v, dtype=torch.float64).expand(given.shape[1:]).reshape(-1).numpy()
            for v in box
        )
        limits = (low, high)
    center = graph.centers(given)
    Ball(center, 0.0, named, box)  # refuses a sample outside of the box
    with torch.no_grad():
        margins = (rows @ own.eval()(given).reshape(-1)).numpy()
    targets = [k for k in range(len(rows) + 1) if k != y]
    if (margins <= 0).any():
        worst = int(margins.argmin())
        return MinimalPerturbation(0.0, x.clone(), targets[worst], 0)
    methods = [by_cells] if method == "cells" or named == "2" else [by_program]
    if method == "auto" and named != "2":
        methods.append(by_cells)
    searched = 0
    reach = _first_reach(network, given, rows, named)
    for _ in range(_DOUBLINGS):
        reach = min(reach, largest)
        run = Propagation(graph, Ball(center, reach, named, box))
        with torch.no_grad():
            run.relax()
            certain = (run.least(rows.reshape(1, len(rows), *shape), graph.output) > 0)[0]
        best: tuple[float, Array, int] | None = None
        for k, row in enumerate(rows.numpy()):
            check_time()
            if certain[k]:  # no input of the ball is of this class
                continue
            limit = reach if best is None else best[0]
            found, count = _searched(methods, network, run, row, named, limit, limits, most)
            searched += count
            if found is not None and (best is None or found[0] < best[0]):
                best = (*found, targets[k])
        if best is not None:
            point = torch.as_tensor(best[1]).reshape(x.shape)
            return MinimalPerturbation(best[0], point, best[2], searched)
        if reach >= largest:
            break
        reach *= 2
    return MinimalPerturbation(math.inf, None, None, searched)


def _searched(
    methods: Sequence[Callable[..., tuple[tuple[float, Array] | None, int]]], *given: Any
) -> tuple[tuple[float, Array] | None, int]:
    """What the first method finds that does not fail; the failure of the first if all do."""
    failure: NotConverged | None = None
    for method in methods:
        try:
            return method(*given)
        except NotConverged as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _first_reach(network: PiecewiseAffine, x: Tensor, rows: Tensor, norm: Norm) -> float:
    """Where the tangent plane at the sample would cross the boundary."""
    forms, shifts = _forms_at(network, x)
    slopes = rows.numpy() @ forms
    values = slopes @ x.reshape(-1).numpy() + rows.numpy() @ shifts
    sizes = np.linalg.norm(slopes, DUAL_EXPONENTS[norm], axis=1)
    near = np.where(sizes > 0, values / np.maximum(sizes, 1e-300), np.inf).min()
    return float(1.5 * near) if math.isfinite(near) and near > 0 else 1.0


def _forms_at(network: PiecewiseAffine, x: Tensor) -> tuple[Array, Array]:
    """The affine map of the output around a point."""
    state = State.start(network)
    while True:
        place = state.advance(network)
        if place is None:
            return state.forms[network.graph.output]
        forms, shifts = state.forms[network.graph.vertices[place].operands[0]]
        state = state.decided(network, place, forms @ x.reshape(-1).numpy() + shifts >= 0)
