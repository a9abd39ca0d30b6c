r"""Every path of a small network, one by one: which paths made this output.

In a directed acyclic graph of ReLU and max-pooling units an output is the sum over the paths
$j$ from an input (or from a bias, a unit of value 1) to it,

$$
f_k(x)=\sum_j\bar w_{k,j}\,\bar\sigma_j(x)\,\bar x_j ,
$$

of the product of the weights on the path, the product of the slopes of its units (0 or 1 for ReLU;
1 for the input that a max-pooling window selects), and the input it starts from. Here every unit
holds the list of its paths, and an operation makes the lists of its outputs out of those of its
inputs. Networks too large for a list are met by `torchtheory.kernels.paths.path_kernel`. Source:
Mathematical Aspects of Deep Learning, section 2.5.1, Eq. (2.1) and Table 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.kernels.paths.path_kernel import number_of_paths, over_lanes, path_norms
from torchtheory.kernels.paths.rules import (
    Carried,
    Choice,
    PathNetwork,
    Slope,
    carried_in,
    checked_inputs,
    through,
)
from torchtheory.nets.graph import GraphNetwork
from torchtheory.tracing.interpret import Call


@dataclass(frozen=True, slots=True)
class PathTable:
    r"""All paths to one output, for $n$ inputs and $P$ paths.

    Attributes:
        units: the units on each path by name, from the input (or `1`, a bias) to the output.
        inputs: $\bar x_j$, `[n, P]`.
        activity: $\bar\sigma_j$, `[n, P]`; 0 or 1 for ReLU and max pooling.
        weights: $\bar w_j$, `[P]`.
    """

    units: tuple[tuple[str, ...], ...]
    inputs: Tensor
    activity: Tensor
    weights: Tensor

    @property
    def features(self) -> Tensor:
        r"""$z_j(x_i)=\bar x_j\bar\sigma_j$, `[n, P]`."""
        return self.inputs * self.activity

    @property
    def contributions(self) -> Tensor:
        r"""$\bar w_j\bar\sigma_j\bar x_j$, `[n, P]`; a row sums to the output."""
        return self.features * self.weights

    @property
    def outputs(self) -> Tensor:
        """The output for every input, `[n]`."""
        return self.contributions.sum(1)

    def strongest(self, sample: int, count: int = 10) -> list[tuple[str, float, bool, float]]:
        """The paths that contribute most in size: path, weight, whether active, contribution."""
        if not -len(self.inputs) <= sample < len(self.inputs):
            raise InvalidInput(f"there are {len(self.inputs)} inputs, and no input {sample}")
        order = self.contributions[sample].abs().argsort(descending=True, stable=True)
        return [
            (
                " → ".join(self.units[j]),
                float(self.weights[j]),
                bool(self.activity[sample, j] != 0),
                float(self.contributions[sample, j]),
            )
            for j in order[:count].tolist()
        ]


def every_path(model: nn.Module, x: Tensor, *, output: int = 0, most: int = 20_000) -> PathTable:
    r"""List the paths to one output of a small network.

    Args:
        model: a network that `deep_path_kernel` takes.
        x: inputs `[n, ...]`.
        output: which one.
        most: more paths than this are refused.

    Time and memory are the number of paths times that of samples. At a net input of 0 the slope is
    the left one; of equal maxima the first is selected.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[2.0, -3.0]]))
    >>> _ = net[2].weight.data.fill_(5.0), net[2].bias.data.fill_(7.0)
    >>> table = every_path(net, torch.tensor([[4.0, 1.0]]))
    >>> table.strongest(0)[0], float(table.outputs)
    (('x[0] → 0[0] → 2[0]', 10.0, True, 40.0), 32.0)
    """
    if isinstance(output, bool) or not isinstance(output, int):
        raise InvalidType(f"output is the number of an output, not {output!r}")
    x = checked_inputs(model, x, "x")
    ends = listed(model, x, output=output, most=most)
    found = ends[output]
    names = found.names
    if isinstance(model, GraphNetwork):
        vertices = {id(model.vertex(v)): v for v in model.order if model.predecessors[v]}
        holders = {n: vertices.get(id(m)) for n, m in model.named_modules()}
        names = [tuple(_by_vertex(holders, unit) for unit in path) for path in names]
    return PathTable(tuple(names), found.inputs, found.activity, found.weights)


def _by_vertex(holders: Mapping[str, object], unit: str) -> str:
    """The name of a unit by the vertex whose layer it is in."""
    layer, _, place = unit.rpartition("[")
    vertex = holders.get(layer.rpartition(".")[0])
    return unit if vertex is None else f"{vertex}[{place}"


def graph_path_norms(network: GraphNetwork, *, order: float = 2) -> Tensor:
    r"""$\|\bar w_k\|_p$ of a graph network, `[outputs]`: one forward pass.

    `path_norms` of a network that knows the shape of its inputs.

    >>> import networkx as nx
    >>> g = nx.DiGraph([("x", "h"), ("h", "y"), ("x", "y")])
    >>> net = GraphNetwork(g, generator=0)
    >>> for v, w, b in (("h", [2.0], 0.0), ("y", [3.0, 1.0], 0.5)):
    ...     _ = net.vertex(v)[0].weight.data.copy_(torch.tensor([w]))
    ...     _ = net.vertex(v)[0].bias.data.fill_(b)
    >>> graph_path_norms(net, order=1)            # 3 · 2 + 1 + 0.5
    tensor([7.5000], dtype=torch.float64)
    """
    if not isinstance(network, GraphNetwork):
        raise InvalidType(f"a GraphNetwork is needed, not {type(network).__name__}; see path_norms")
    return path_norms(network, (network.features,), order=order)


# ------------------------------------------------------------------------------ lists of all paths

BIAS = "1"


@dataclass(frozen=True, slots=True)
class UnitPaths:
    """The paths into a unit: names of the units on them, start, activity and weight of each."""

    names: list[tuple[str, ...]]
    inputs: Tensor
    activity: Tensor
    weights: Tensor


def listed(model: nn.Module, x: Tensor, *, output: int, most: int) -> list[UnitPaths]:
    """The paths into every output, for inputs that were checked."""
    with torch.no_grad():
        network = PathNetwork(model, x)
        count = number_of_paths(model, x.shape[1:], output=0)
        if count > most:
            raise InvalidInput(
                f"there are {count:.6g} paths, more than most={most}; use deep_path_kernel and "
                "path_norms, which need none of them"
            )
        start = network.samples(x)
        one = torch.ones(len(x), 1, dtype=torch.float64, device=x.device)
        columns = x.flatten(1).double().mT.unsqueeze(2)
        units = [UnitPaths([(f"x[{i}]",)], v, one, one[0]) for i, v in enumerate(columns)]
        ends: Listed = network.carry(Listed(start, units))
    if not -len(ends.units) <= output < len(ends.units):
        raise InvalidInput(f"the network has {len(ends.units)} outputs, and no output {output}")
    return ends.units


class Listed(Carried):
    """The paths into every unit of a value, and the values `[n, ...]` there."""

    def __init__(self, values: Tensor, units: list[UnitPaths]) -> None:
        self.values, self.units = values, units

    def _made(self, values: Tensor, units: list[UnitPaths]) -> Listed:
        made = Listed(values, units)
        made.network = self.network
        return made

    def _through(self, call: Call, power: float | None, dtype: torch.dtype) -> tuple[Any, Any]:
        """Bias `[out]` and matrix `[out, in]` of every result, with their powers."""
        carried = carried_in(call)

        def run(get: Callable[[Any], Tensor]) -> tuple[Tensor, ...]:
            made = through(call, get, power)
            return tuple(made) if isinstance(made, tuple | list) else (made,)

        zeros = {id(c): torch.zeros_like(c.values[0], dtype=dtype) for c in carried}
        shifts = [t.flatten() for t in run(lambda c: zeros[id(c)])]
        parts: list[list[Tensor]] = [[] for _ in shifts]
        for own in carried:
            basis = torch.eye(len(own.units), dtype=dtype, device=own.values.device)
            basis = basis.reshape(-1, *own.values.shape[1:])
            at = partial(_one_of, own, zeros)
            images = torch.vmap(lambda e, at=at: run(partial(at, e)))(basis)
            for part, image, shift in zip(parts, images, shifts, strict=True):
                part.append((image.flatten(1) - shift).mT)
        return [s.double() for s in shifts], [torch.cat(p, 1).double() for p in parts]

    def linear(self, call: Call) -> Any:
        values = over_lanes(call, lambda c: c.values, lambda get: through(call, get, None))
        before = [u for c in carried_in(call) for u in c.units]
        shifts, matrices = self._through(call, None, self.values.dtype)
        starts, supports = self._through(call, 0, torch.float64)
        passing = call.kind in ("moves", "selects", "joins")
        label = _label(call)
        several = isinstance(values, tuple | list)
        made = []
        for k, (shift, matrix, start, support) in enumerate(
            zip(shifts, matrices, starts, supports, strict=True)
        ):
            units = []
            for i in range(len(shift)):
                sources = (support[i] != 0).nonzero().flatten().tolist()
                if passing and len(sources) == 1 and not start[i]:
                    units.append(before[sources[0]])
                    continue
                paths = [_onward(before[j], weight=matrix[i, j]) for j in sources]
                if start[i]:
                    paths.append(self._bias(shift[i]))
                units.append(self._ending(paths, f"{label}[{i}]"))
            made.append(self._made(values[k] if several else values, units))
        return type(values)(made) if several else made[0]

    def sloped(self, call: Call, slope: Slope) -> Any:
        factor = over_lanes(call, lambda c: c.values, slope)
        gates = factor.flatten(1).unbind(1)
        units = [_onward(u, gate=gate) for u, gate in zip(self.units, gates, strict=True)]
        return self._made(self.values * factor.to(self.values), units)

    def choice(self, call: Call, choice: Choice) -> Any:
        carried = carried_in(call)
        before = [u for c in carried for u in c.units]
        numbers, count = {}, 2.0  # 0 is nothing, 1 is a constant
        for c in carried:
            shape = c.values.shape[1:]
            numbers[id(c)] = torch.arange(count, count + len(c.units)).double().reshape(shape)
            count += len(c.units)
        sources = choice.candidates(lambda c: numbers[id(c)], 0.0).flatten(0, -2).long()
        constants = choice.candidates(lambda c: 0 * numbers[id(c)], None).flatten(0, -2)
        chosen = over_lanes(call, lambda c: c.values, choice.chosen)
        values = over_lanes(call, lambda c: c.values, lambda get: torch.gather(
            choice.candidates(get, None), -1, choice.chosen(get).unsqueeze(-1)).squeeze(-1)
        ).to(self.values)  # fmt: skip
        label, units = _label(call), []
        for i, gates in enumerate(chosen.flatten(1).unbind(1)):
            paths = []
            for k, source in enumerate(sources[i].tolist()):
                gate = (gates == k).double()
                if source > 1:
                    paths.append(_onward(before[source - 2], gate=gate))
                elif source == 1:
                    paths.append(_onward(self._bias(constants[i, k]), gate=gate))
            units.append(self._ending(paths, f"{label}[{i}]"))
        return self._made(values, units)

    def _bias(self, weight: Tensor) -> UnitPaths:
        one = torch.ones(len(self.values), 1, dtype=torch.float64, device=self.values.device)
        return UnitPaths([(BIAS,)], one, one, weight.double().reshape(1))

    def _ending(self, paths: Sequence[UnitPaths], name: str) -> UnitPaths:
        """All paths of some units, one unit longer."""
        if not paths:
            none = torch.zeros(len(self.values), 0, dtype=torch.float64, device=self.values.device)
            return UnitPaths([], none, none, none[:1].flatten())
        return UnitPaths(
            [(*path, name) for u in paths for path in u.names],
            torch.cat([u.inputs for u in paths], 1),
            torch.cat([u.activity for u in paths], 1),
            torch.cat([u.weights for u in paths]),
        )


def _one_of(own: Carried, others: dict[int, Tensor], e: Tensor, asked: Carried) -> Tensor:
    return e if asked is own else others[id(asked)]


def _onward(
    unit: UnitPaths, *, weight: Tensor | None = None, gate: Tensor | None = None
) -> UnitPaths:
    weights = unit.weights if weight is None else unit.weights * weight
    activity = unit.activity if gate is None else unit.activity * gate.unsqueeze(1)
    return UnitPaths(unit.names, unit.inputs, activity, weights)


def _label(call: Call) -> str:
    """The layer, or the operation where it is not the layer's own."""
    op = call.operation
    own = op.layer_kind.lower().startswith(op.name.split("_")[0].rstrip("123d")[:4])
    return op.layer if op.layer and own else f"{op.name}_{op.number}"
