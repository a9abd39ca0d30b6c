r"""An upper bound of the Lipschitz constant of any network made of known operations.

The network runs once, and each operation turns what is known of its operands into what is known of
its result (`operations`): layers in series multiply, sums add, joined branches add in quadrature,
neighboring affine maps are multiplied out before their norm is taken. Where an operation is not
Lipschitz on the whole space, as attention and products are not, or where more is known nearby, as
of layer normalization, the bound is one for a ball of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, module_with_values
from torchtheory.core.errors import (
    InvalidInput,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.linalg.singular_values import FAILURE
from torchtheory.models.model import PureFunction, main_output, parts_of
from torchtheory.robustness.lipschitz.operations import rules_of
from torchtheory.robustness.lipschitz.watched_pass import Node, Pass, Signal, matrix_of, times
from torchtheory.tracing.interpret import interpret
from torchtheory.tracing.network import Network
from torchtheory.tracing.recorder import record


@dataclass(frozen=True)
class NetworkBounds:
    """Bounds of a network about some inputs; see `bounds_about`.

    Attributes:
        centers: the inputs `[b, ...]`.
        failure: probability, over random start vectors, that some norm is above its bound; 0 if
            all were computed as a whole.
    """

    centers: Tensor
    failure: float
    _passes: tuple[tuple[Pass, Signal], ...]

    def lipschitz(self, radius: float | Tensor = math.inf) -> Tensor:
        """Upper bounds `[b]` of the Lipschitz constant on the balls of a radius about the centers.

        A radius of 0 bounds the spectral norm of the Jacobian at the centers; an infinite one the
        Lipschitz constant on the whole space, and is infinite where there is no such bound.
        """
        parts = self._by_pass(radius, lambda watch, out, r: watch.extents(r)(out).lipschitz)
        return torch.cat(parts)

    def class_differences(self, radius: float | Tensor = math.inf) -> Tensor:
        r"""The same for the difference of two outputs, `[b, k, k]`.

        With a last affine map $f_c=\theta_c^\top\Phi+b_c$ it is
        $\mathrm{Lip}(\Phi)\|\theta_c-\theta_{c'}\|_2$, and $\sqrt2\,\mathrm{Lip}(f)$ without.
        """
        theta = self._rows

        def one(watch: Pass, out: Signal, r: Tensor) -> Tensor:
            k = out.value.numel() // watch.centers
            if theta is None:
                total = watch.extents(r)(out).lipschitz
                apart = math.sqrt(2) * (1 - torch.eye(k, dtype=total.dtype, device=total.device))
            else:
                total = watch.extents(r)(Signal(watch, out.node, (), out.node.center)).lipschitz
                apart = torch.linalg.vector_norm(theta[:, None] - theta[None], dim=-1)
            return times(total[:, None, None], apart[None].expand(len(total), k, k))

        return torch.cat(self._by_pass(radius, one))

    @property
    def _rows(self) -> Tensor | None:
        """The matrix of the last affine map, where there is one."""
        watch, out = self._passes[0]
        single = Signal(watch, out.node, out.steps, out.value)
        if not out.steps or watch.centers != 1:
            return None
        return matrix_of(single)

    def _by_pass(
        self, radius: float | Tensor, of: Callable[[Pass, Signal, Tensor], Tensor]
    ) -> list[Tensor]:
        count = len(self.centers)
        given = torch.as_tensor(radius, dtype=torch.float64, device=self.centers.device)
        radii = given.expand(count) if given.ndim == 0 else given
        if radii.shape != (count,) or bool((radii < 0).any()):
            raise InvalidInput(f"a radius must be one number >= 0, or one for each of {count}")
        found, start = [], 0
        for watch, out in self._passes:
            found.append(of(watch, out, radii[start : start + watch.centers]))
            start += watch.centers
        return found


def lipschitz_bound(
    model: nn.Module,
    input_shape: Sequence[int],
    *,
    radius: float = math.inf,
    center: Tensor | None = None,
) -> float:
    r"""An upper bound of $\sup\|f(x)-f(y)\|_2/\|x-y\|_2$ over a ball of inputs.

    Args:
        model: any network made of operations with a rule in `operations`, in evaluation mode; it is
            left as it is.
        input_shape: shape of one input, without the batch dimension.
        radius: of the ball; the whole space unless given.
        center: of the ball, of shape `input_shape`; the origin unless given.

    Returns:
        The bound, infinite where the network has none on the ball (attention on the whole space).
        Norms of maps between more than 512 entries on both sides are above the true ones with
        probability $1-10^{-6}$ each, over the random start of their computation. Every norm is
        lifted by $10^{-10}$ of itself for the rounding of its computation, in double precision;
        what torch rounds when the network runs is no part of the function that is bounded.

    Raises:
        UnsupportedModel: if an operation has no rule; the message names it and its place.

    Cost: a forward pass in double precision, and about 80 more of every affine map.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Sigmoid())
    >>> _ = net[0].weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> round(lipschitz_bound(net, (2,)), 6)
    1.0
    """
    if not radius >= 0:
        raise InvalidInput(f"a radius must be at least 0, not {radius}")
    shape = tuple(input_shape)
    where = torch.zeros(shape) if center is None else center
    if tuple(where.shape) != shape:
        raise ShapeMismatch(f"the center has shape {list(where.shape)} and an input {list(shape)}")
    return float(bounds_about(model, where[None]).lipschitz(radius)[0])


def bounds_about(
    model: nn.Module, centers: Tensor, *, output: int | str | None = None, chunk: int = 64
) -> NetworkBounds:
    """Bounds of a network on balls about inputs `[b, ...]`; see `lipschitz_bound`.

    The operator norms are computed once, and serve all centers and radii. All values at the
    centers are kept in double precision.

    Args:
        model, centers: the network, and inputs.
        output: position or key of the output that is meant, where there are several.
        chunk: inputs that are run at once.

    >>> net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    >>> bounds = bounds_about(net, torch.randn(5, 3))
    >>> bool((bounds.lipschitz(0.1) <= bounds.lipschitz()).all())
    True
    """
    module_with_values(model)
    all_finite(centers, "the centers")
    if centers.ndim < 1 or not len(centers):
        raise ShapeMismatch(f"centers must have one row for each input, not {list(centers.shape)}")
    if not centers.is_floating_point():
        kind = str(centers.dtype).removeprefix("torch.")
        raise UnsupportedModel(
            f"inputs of {kind} do not move, and a Lipschitz constant is about real ones: give the "
            "part of the network behind its embedding"
        )
    function = PureFunction(model)
    like = function.reference()
    own = centers[:1].detach().to(like if like.numel() else centers)
    network = record(function, own).in_precision(torch.float64)
    centers = centers.detach().to(device=own.device, dtype=torch.float64)
    if network.random:
        raise UnsupportedModel("the network draws random numbers, so it is no one function")
    with torch.no_grad():
        first = _run(network, centers[:1], None, output)
        watch = first[0]
        passes = [first]
        rest = centers[1:]
        while len(rest):
            # one input at a time where the network moves the dimension of samples about
            part = rest[: 1 if watch.mixed else chunk]
            more = _run(network, part, watch.norms, output)
            if more[0].mixed and len(part) > 1:
                watch.mixed = True
                continue
            passes.append(more)
            rest = rest[len(part) :]
    return NetworkBounds(centers, FAILURE * watch.random, tuple(passes))


def _run(
    network: Network, centers: Tensor, norms: list[float] | None, output: int | str | None
) -> tuple[Pass, Signal]:
    watch = Pass(known=None if norms is None else iter(norms), centers=len(centers))
    start = Node(centers, ())
    watch.nodes.append(start)
    made = interpret(network, rules_of(watch), [Signal(watch, start, (), centers)], len(centers))
    result = signal_of(made, output)
    assert result.factor >= 0  # asked for now: another pass takes the norms in this order
    return watch, result


def signal_of(made: object, output: int | str | None) -> Signal:
    """The output that is meant, of what a watched pass returned."""
    which = main_output_of(made) if output is None else output
    result = made if which is None else parts_of(made).get(which)
    if isinstance(result, Tensor):
        raise UnsupportedModel("the output does not depend on the input")
    if not isinstance(result, Signal):
        raise UnsupportedModel(f"the network returns {type(made).__name__}, not one tensor")
    return result


def main_output_of(made: object) -> int | str | None:
    """Which part of several outputs is meant, as for tensors."""
    if isinstance(made, Signal):
        return None
    known = parts_of(made)
    stand_ins = {k: torch.empty(0) if isinstance(v, Signal) else v for k, v in known.items()}
    if isinstance(made, tuple | list):
        return main_output(tuple(stand_ins.values()))
    return main_output(stand_ins)
