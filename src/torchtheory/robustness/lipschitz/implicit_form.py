r"""A network of affine maps and activations, with any branches, as one system of matrices.

With the input $v_0=x$, the pre-activations $z_k$ and units $v_k$ of the layers $k=1,\dots,h$ and
the output $y$, up to constants,

$$
z_k=\sum_{j<k}A_{kj}v_j,\qquad v_k=\varphi_k(z_k),\qquad y=\sum_{j\le h}A_{h+1,j}v_j .
$$
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import whole_numbers
from torchtheory.core.errors import UnsupportedModel
from torchtheory.core.naming import operation_words
from torchtheory.models.model import PureFunction
from torchtheory.tracing.activations import ACTIVATION_FACTS, activation_facts
from torchtheory.tracing.interpret import Call, Rule, Rules, in_terms_of, interpret
from torchtheory.tracing.network import Network, Value, leaves, mapped
from torchtheory.tracing.recorder import record

#: Units of a layer, and entries of an input, up to which the matrices are small; of all together.
LARGEST, ALTOGETHER = 2000, 10_000

#: Numbers of one value of the network, for all of these at once.
_ROOM = 100_000_000


@dataclass(frozen=True, slots=True)
class ImplicitForm:
    r"""The matrices of a network and the slopes of its activations.

    Attributes:
        maps: for $k=1,\dots,h+1$ the matrices $A_{kj}$ `[units of k, units of j]` that are not 0,
            by $j$; the last are those of the output.
        slopes: least and largest slope of $\varphi_1,\dots,\varphi_h$.
        sizes: entries of $v_0,\dots,v_h$; of the input, of what the network sees of it.
    """

    maps: tuple[dict[int, Tensor], ...]
    slopes: tuple[tuple[float, float], ...]
    sizes: tuple[int, ...]


def implicit_form(
    model: nn.Module, input_shape: Sequence[int], *, largest: int = LARGEST
) -> ImplicitForm:
    r"""The matrices of a network, read off its operations.

    All unit vectors of the input and of every layer of units, and 0, are carried through the affine
    operations as samples. Where the input has more entries than the matrices have rows, it is
    turned so that the first entries are all that the network sees, which changes no norm.

    Args:
        model: affine operations and activations of each entry.
        input_shape: of one sample.
        largest: units of a layer, and entries of an input, above which nothing is begun.

    Raises:
        UnsupportedModel: if there are other operations, or too many units; with their numbers.

    Time and memory: of a pass over as many samples as there are entries of input and units.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> form = implicit_form(net, (2,))
    >>> [{j: list(a.shape) for j, a in maps.items()} for maps in form.maps], form.slopes
    ([{0: [3, 2]}, {1: [1, 3]}], ((0.0, 1.0),))
    """
    shape = tuple(whole_numbers(input_shape, "input_shape", least=1))
    function = PureFunction(model).in_precision(torch.float64)
    example = torch.ones(2, *shape, dtype=torch.float64)
    reader = _Reader(math.prod(shape))
    network = in_terms_of(record(function, example), reader.rules)
    if not isinstance(network.output, Value):
        raise UnsupportedModel(
            f"{network.title} returns {len(network.outputs)} values in a structure: give a module "
            "that returns the one in question"
        )
    reader.make_room(network, largest)
    with torch.no_grad():
        made = interpret(network, reader.rules, [reader.basis(shape)], reader.samples)
    maps = _seen([*reader.maps, reader.matrices(made)])
    seen = next((a[0].shape[1] for a in maps if 0 in a), 0)
    return ImplicitForm(tuple(maps), tuple(reader.slopes), (seen, *reader.sizes[1:]))


def _seen(maps: list[dict[int, Tensor]]) -> list[dict[int, Tensor]]:
    """With the input turned to what the network sees of it."""
    rows = [a[0] for a in maps if 0 in a]
    if not rows or sum(map(len, rows)) >= rows[0].shape[1]:
        return maps
    turn = torch.linalg.qr(torch.cat(rows).mT).Q
    return [{j: m @ turn if j == 0 else m for j, m in a.items()} for a in maps]


@dataclass(frozen=True, eq=False)
class Carried:
    """What affine maps make of unit vectors of input and units, and of 0, as samples."""

    tensor: Tensor


#: Affine in all that they are given together.
_JOINT = frozenset(
    """
    add sub rsub neg cat stack hstack vstack dstack column_stack sum mean cumsum where
    """.split()
)
#: What is added by these, beside a bias.
_ADDED = {
    **dict.fromkeys(("add", "sub", "rsub"), ("input", "other")),
    "batch_norm": ("running_mean", "bias"),
}
#: Linear in either of two values.
_EITHER = frozenset("mul matmul rmatmul inner outer einsum tensordot".split())

#: Affine in the first, if the others are constants.
_FIRST = frozenset("div batch_norm instance_norm masked_fill lerp".split())


class _Reader:
    """Carries unit vectors through a network, and starts new ones at every activation."""

    def __init__(self, entries: int) -> None:
        #: Entries of the input and of every layer of units.
        self.sizes = [entries]
        self.maps: list[dict[int, Tensor]] = []
        self.slopes: list[tuple[float, float]] = []
        affine: Rule = self._affine
        self.rules = Rules(
            "no semidefinite bound",
            {
                **dict.fromkeys(_JOINT | _EITHER | _FIRST, affine),
                **dict.fromkeys(ACTIVATION_FACTS, self._units),
            },
            {"moves": affine, "selects": affine, "affine": affine, "constant": self._constant},
        )

    @property
    def samples(self) -> int:
        """All unit vectors, and 0."""
        return sum(self.sizes) + 1

    def make_room(self, network: Network, largest: int) -> None:
        """Count the units, and refuse what is too large."""
        widest = self.sizes[0]
        for op in network:
            if not op.follows or network.needed.isdisjoint(op.outputs):
                continue
            count = max((_entries(v) for v in op.outputs), default=0)
            widest = max(widest, count)
            if op.name in ACTIVATION_FACTS:
                self.sizes.append(count)
        if max(self.sizes) > largest or sum(self.sizes) > ALTOGETHER:
            raise UnsupportedModel(
                f"a layer has {max(self.sizes)} units and all together {sum(self.sizes)}, and the "
                f"matrices of semidefinite programming are made for up to {largest} in a layer and "
                f"{ALTOGETHER} in all: use lipschitz_bound"
            )
        if self.samples * widest > _ROOM:
            raise UnsupportedModel(
                f"a value of {widest} entries for each of {self.samples} unit vectors has more "
                f"than {_ROOM} numbers: use lipschitz_bound"
            )

    def basis(self, shape: tuple[int, ...], layer: int = 0) -> Carried:
        """The unit vectors of a layer in their places among all."""
        start, count = sum(self.sizes[:layer]), self.sizes[layer]
        made = torch.zeros(self.samples, count, dtype=torch.float64)
        made[start : start + count] = torch.eye(count, dtype=torch.float64)
        return Carried(made.reshape(self.samples, *shape))

    def matrices(self, value: Any) -> dict[int, Tensor]:
        """What stands before every layer in a value, by layer; what is 0 is left out."""
        if not isinstance(value, Carried):
            return {}
        rows = value.tensor.reshape(self.samples, -1)
        parts = torch.split(rows[:-1] - rows[-1], self.sizes)
        return {j: part.mT.contiguous() for j, part in enumerate(parts) if bool(part.any())}

    def _units(self, call: Call) -> Carried:
        """An activation: its slopes, what leads to it, and new unit vectors."""
        given = _carried(call)
        if given != ["input"]:
            raise call.refusal(
                f"no semidefinite bound: {operation_words(call.name)} depends on two values"
            )
        facts = activation_facts(call.name, **call.arguments)
        if not math.isfinite(facts.lipschitz):
            raise call.refusal(
                f"no semidefinite bound: {operation_words(call.name)} has no largest slope"
            )
        self.slopes.append(facts.slopes)
        x = call["input"]
        self.maps.append(self.matrices(x))
        return self.basis(x.tensor.shape[1:], len(self.maps))

    def _affine(self, call: Call) -> Any:
        """An operation that is affine in what is carried does to samples what it does."""
        given = _carried(call)
        several = call.name in _JOINT or (call.kind == "joins" and "input" in given)
        if call.name == "where" and "condition" in given:
            raise call.refusal("no semidefinite bound: the network chooses by its input")
        if call.name in _EITHER:
            if len(list(_values(call))) > 1:
                raise call.refusal("no semidefinite bound: there is a product of two values")
        elif not several and given not in (["input"], ["tensors"]):
            raise call.refusal(
                f"no semidefinite bound: {operation_words(call.name)} is not affine in what it is "
                "given here"
            )
        if call.get("training") or call.get("use_input_stats"):
            raise call.refusal("no semidefinite bound: statistics of the batch are used")
        _refuse_mixing(call)
        _refuse_steps(call)
        # what is only added is left out: in a large bias small weights would lose their digits
        names = _ADDED.get(call.name, ("bias",))
        added = [call.get(name) for name in names]
        # a tensor may be the weight as well
        others = leaves([v for k, v in call.arguments.items() if k not in names])

        def linear(leaf: Any) -> Any:
            if isinstance(leaf, Carried):
                return leaf.tensor
            if not any(leaf is a for a in added) or any(leaf is o for o in others):
                return leaf
            if isinstance(leaf, Tensor):
                return torch.zeros_like(leaf)
            return 0.0 if isinstance(leaf, float) else leaf

        args, kwargs = mapped((call.args, call.kwargs), linear)
        made = call.function(*args, **kwargs)
        return mapped(made, lambda v: Carried(v) if isinstance(v, Tensor) else v)

    def _constant(self, call: Call) -> Any:
        """What takes the shape of a value only."""
        args, kwargs = mapped(
            (call.args, call.kwargs), lambda v: v.tensor if isinstance(v, Carried) else v
        )
        return call.function(*args, **kwargs)


def _entries(value: Value) -> int:
    return math.prod(s if isinstance(s, int) else s.of(1) for s in value.shape)


def _values(call: Call) -> list[Carried]:
    return [v for v in leaves((call.args, call.kwargs)) if isinstance(v, Carried)]


def _carried(call: Call) -> list[str]:
    """The names of the arguments that follow the input."""
    return [
        name for name, value in call.arguments.items()
        if any(isinstance(v, Carried) for v in leaves(value))
    ]  # fmt: skip


def _refuse_steps(call: Call) -> None:
    """Rounding to whole numbers jumps."""
    whole = any(not v.dtype.is_floating_point for v in call.operation.outputs)
    if whole or call.get("rounding_mode") is not None:
        raise call.refusal(
            f"no semidefinite bound: {operation_words(call.name)} rounds to whole numbers here"
        )


def _refuse_mixing(call: Call) -> None:
    """Samples are unit vectors here, and stay apart."""
    dims = call.get("dim", call.get("dims"))
    if call.name == "roll" and not dims and dims != 0:  # all entries in one row
        dims = 0
    ndim = max(v.tensor.ndim for v in _values(call))
    named = dims if isinstance(dims, tuple | list) else [dims]
    touched = any(isinstance(d, int) and d % ndim == 0 for d in named)
    first = all(v.shape and not isinstance(v.shape[0], int) for v in call.operation.outputs)
    if touched or not first:
        raise call.refusal("no semidefinite bound: samples are not kept apart")
