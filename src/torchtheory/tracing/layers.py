r"""The layer of `torch.nn` that an operation is: `F.relu` is `nn.ReLU`.

A layer is made from what the operation is called with, and holds the very parameters of the model.
A weight that is computed from parameters (a transpose, a normalization) is a parametrization of
theirs, as `torch.nn.utils.parametrize` has them; one that is a constant is a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchtheory.models.function_layers import LAYERS, TENSORS, Arguments, Maker
from torchtheory.tracing.network import (
    BatchSize,
    Network,
    Operation,
    Value,
    leaves,
    mapped,
    pair_up,
)


class Rearrangement(nn.Module):
    """A tensor method that only moves entries about, such as `x.view(len(x), -1)`.

    Args:
        method: its name.
        arguments: what it is given; None stands for the number of samples.
    """

    def __init__(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.method = method
        self.arguments = arguments
        self.keywords = keywords

    def forward(self, x: Tensor) -> Tensor:
        given = [len(x) if a is None else a for a in self.arguments]
        moved: Tensor = getattr(x, self.method)(*given, **self.keywords)
        return moved


class Average(nn.Module):
    """`x.mean(dims)`, the average over some dimensions.

    Args:
        dims: the dimensions.
        keepdim: whether they stay, with one entry.
    """

    def __init__(self, dims: tuple[int, ...], keepdim: bool = False) -> None:
        super().__init__()
        self.dims = dims
        self.keepdim = keepdim

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dims, keepdim=self.keepdim)


class Transposition(nn.Module):
    """`x.permute(...)` or `x.transpose(...)`, which leaves no dimension where it was.

    Args:
        method: its name.
        dims: what it is given.
    """

    def __init__(self, method: str, dims: tuple[Any, ...]) -> None:
        super().__init__()
        self.method = method
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = getattr(x, self.method)(*self.dims)
        return moved


class Sum(nn.Module):
    """The sum of two values of one network: where a shortcut ends."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Concatenation(nn.Module):
    """Values of one network side by side.

    Args:
        dim: the dimension along which they are joined.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, self.dim)


class Computed(nn.Module):
    """A tensor that a network computes from its parameters.

    Args:
        value: what stands for it.
        operations: those that it comes from, in order.
        tensors: what stands for buffers and constants among what they take.
        originals: what stands for the parameters among it.
    """

    def __init__(
        self,
        value: Value,
        operations: Sequence[Operation],
        tensors: Mapping[Value, Tensor],
        originals: Sequence[Value],
    ) -> None:
        super().__init__()
        self.value, self.operations = value, list(operations)
        self.tensors, self.originals = dict(tensors), list(originals)
        #: What `torch.nn.utils.parametrize` is told that the originals are.
        self.at_first: list[Tensor] = []

    def right_inverse(self, _: Tensor) -> list[Tensor]:
        """The originals, while they are first put in place; they are not unique."""
        return [tensor.clone() for tensor in self.at_first]

    def forward(self, *parameters: Tensor) -> Tensor:
        held: dict[Value, Any] = {
            **self.tensors, **dict(zip(self.originals, parameters, strict=True))
        }  # fmt: skip

        def of(leaf: Any) -> Any:
            return held[leaf] if isinstance(leaf, Value) else leaf

        for op in self.operations:
            pair_up(op.result, op.function(*mapped(op.args, of), **mapped(op.kwargs, of)), held)
        made: Tensor = held[self.value]
        return made


class LayerMaker:
    """Makes the layers of one network; the same operation on the same weights is one layer.

    Args:
        network: what `record` made.
        model: whose parameters the layers are to hold.
    """

    def __init__(self, network: Network, model: nn.Module) -> None:
        self.network = network
        self._own: dict[str, Tensor] = dict(model.named_buffers()) | dict(model.named_parameters())
        self._made: dict[tuple[Any, ...], nn.Module] = {}
        self._turned: dict[Value, tuple[Value, Operation]] = {}

    def layer(self, op: Operation) -> tuple[str, nn.Module] | None:
        """The layer that an operation is, with the path of its weights (empty if it has none).

        None if it is none, or takes something else than one value that follows the input.
        """
        following = [v for v in op.inputs if v.follows]
        bound = dict(op.arguments)
        if op.name in _JOINING:
            joined = _JOINING[op.name](bound, following)
            if joined is not None:
                return "", joined
        if len(following) != 1:
            return None
        if op.name in _MOVING:
            if self.network.rows is not None:
                return None  # it may be about the samples
            moved = _MOVING[op.name](op, bound)
            return None if moved is None else ("", moved)
        if op.name in ("matmul", "addmm"):
            return self._with_weights(LAYERS["linear"], self._as_linear(bound), following[0])
        return self._with_weights(LAYERS.get(op.name), bound, following[0])

    def _as_linear(self, bound: Arguments) -> Arguments:
        """A product with a matrix as the layer that multiplies by its transpose."""
        x = bound.get("mat1", bound.get("input"))
        matrix, bias = bound.get("mat2", bound.get("other")), None
        if "mat1" in bound:
            bias = bound["input"]
            if (bound["beta"], bound["alpha"]) != (1, 1) or len(bias.shape) != 1:
                return {}
        if not (isinstance(matrix, Value) and not matrix.follows and len(matrix.shape) == 2):
            return {}
        return {"input": x, "weight": self._transposed(matrix), "bias": bias}

    def _transposed(self, matrix: Value) -> Value:
        maker = self.network.makers.get(matrix)
        if maker is not None and maker.name in ("t", "T", "mT", "transpose"):
            return maker.inputs[0]
        if matrix not in self._turned:
            number = -1 - len(self._turned)
            turned = Value(number, matrix.shape[::-1], matrix.dtype)
            op = Operation(number, "t", torch.t, (matrix,), {}, turned, "", "")
            self._turned[matrix] = (turned, op)
        return self._turned[matrix][0]

    def _with_weights(
        self, make: Maker | None, bound: Arguments, x: Value
    ) -> tuple[str, nn.Module] | None:
        taken = bound.get("indices", bound.get("input"))
        weights = {k: bound[k] for k in TENSORS if isinstance(bound.get(k), Value)}
        rest = {k: v for k, v in bound.items() if k not in weights and v is not taken}
        if make is None or taken is not x:
            return None
        if any(isinstance(v, Value | BatchSize) for v in leaves(rest)):
            return None  # a size, or a tensor, that is none of a layer's
        layer = make({**rest, **weights, "ndim": len(x.shape)})
        if layer is None:
            return None
        path = _owner(weights)
        key = (repr(layer), *((k, v.number) for k, v in weights.items()))
        if key not in self._made:
            for name, value in weights.items():
                self._put(layer, name, value, owned=path is not None)
            counter = self._own.get(f"{path}.num_batches_tracked")
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and counter is not None:
                layer.num_batches_tracked = counter
            self._made[key] = layer.eval()  # what was recorded ran in evaluation mode
        return path or "", self._made[key]

    def _put(self, layer: nn.Module, name: str, value: Value, *, owned: bool) -> None:
        """Give a layer a parameter, a buffer, or how a weight is computed from some."""
        if owned:
            self._set(layer, name, self._own[value.name])
            return
        operations, leaves = self._sources(value)
        originals = [v for v in leaves if v.origin == "parameter"]
        fixed = {
            v: self._own.get(v.name, self.network.tensors[v]) for v in leaves if v not in originals
        }
        parameters = [self._own[v.name] for v in originals]
        computed = Computed(value, operations, fixed, originals)
        with torch.no_grad():
            tensor = computed(*parameters).detach().clone()
        if name in layer._buffers or not originals:
            self._set(layer, name, tensor)
            return
        layer.register_parameter(name, nn.Parameter(tensor))
        computed.at_first = [p.detach() for p in parameters]
        parametrize.register_parametrization(layer, name, computed, unsafe=True)
        computed.at_first = []
        held = layer.get_submodule(f"parametrizations.{name}")
        for k, parameter in enumerate(parameters):
            held.register_parameter(f"original{k}", parameter)  # type: ignore[arg-type]

    def _set(self, layer: nn.Module, name: str, tensor: Tensor) -> None:
        layer._parameters.pop(name, None)
        layer._buffers.pop(name, None)
        if isinstance(tensor, nn.Parameter):
            layer.register_parameter(name, tensor)
        else:
            layer.register_buffer(name, tensor)

    def _sources(self, value: Value) -> tuple[list[Operation], list[Value]]:
        """The operations that a value comes from, in order, and what they start with."""
        makers = {**self.network.makers, **dict(self._turned.values())}
        found: dict[int, Operation] = {}
        start: dict[Value, None] = {}
        waiting = [value]
        while waiting:
            one = waiting.pop()
            op = makers.get(one)
            if op is None:
                start[one] = None
            elif op.number not in found:
                found[op.number] = op
                waiting += op.inputs
        # a transpose that is no operation of the network comes last
        order = sorted(found, key=lambda number: (number < 0, number))
        return [found[number] for number in order], list(start)


def _owner(weights: Mapping[str, Value]) -> str | None:
    """The module whose weights these are under their own names; None if it is not one."""
    paths = set()
    for key, value in weights.items():
        path, _, last = value.name.rpartition(".")
        if last != key or value.origin not in ("parameter", "buffer"):
            return None
        paths.add(path)
    return paths.pop() if len(paths) == 1 else None if weights else ""


# ---------------------------------------------------------------------- what holds no weights


def _sum(bound: Arguments, following: list[Value]) -> nn.Module | None:
    if bound.get("alpha", 1) != 1:
        return None
    if len(following) == 2 and following[0].shape == following[1].shape:
        return Sum()
    # sum([a, b]) of Python starts with a zero
    other = bound.get("other")
    return nn.Identity() if isinstance(other, int | float) and other == 0 else None


def _concatenation(bound: Arguments, following: list[Value]) -> nn.Module | None:
    parts, dim = bound.get("tensors"), bound.get("dim", 0)
    if not isinstance(parts, list | tuple) or len(parts) != len(following) or not following:
        return None
    return Concatenation(dim) if dim % len(following[0].shape) else None


_JOINING: dict[str, Callable[[Arguments, list[Value]], nn.Module | None]] = {
    "add": _sum,
    "cat": _concatenation,
}


def _rearrangement(op: Operation, bound: Arguments) -> nn.Module | None:
    """A method that moves entries; one that makes a row of every sample is `nn.Flatten`."""
    (x,), (y,) = (v for v in op.inputs if v.follows), op.outputs
    if op.name in ("contiguous", "clone"):
        return nn.Identity()
    given = [v for v in bound.values() if v is not x]
    flat = [a for part in given for a in (part if isinstance(part, list | tuple) else [part])]
    sizes = [a for a in flat if isinstance(a, BatchSize)]
    if x.shape[:1] == y.shape[:1] and (len(x.shape) > 2 or sizes or op.name == "flatten"):
        inner = [s for s in x.shape[1:] if isinstance(s, int)]
        if len(inner) == len(x.shape) - 1 > 0 and y.shape[1:] == (math.prod(inner),):
            return nn.Flatten()
    if op.name == "flatten" and bound["start_dim"] % len(x.shape):
        return nn.Flatten(bound["start_dim"], bound["end_dim"])
    if sizes and (flat[0] is not sizes[0] or len(sizes) > 1 or sizes[0] != BatchSize(1)):
        return None  # sizes other than the number of samples
    if op.name == "unflatten":
        dim, into = bound["dim"], bound["sizes"]
        return None if sizes or not dim % len(x.shape) else nn.Unflatten(dim, tuple(into))
    arguments = tuple(None if isinstance(a, BatchSize) else a for a in flat)
    if op.name == "squeeze" and bound.get("dim") is None:
        arguments = ()
    if not all(a is None or isinstance(a, int) for a in arguments):
        return None
    return Rearrangement(op.name, arguments, {})


def _transposition(op: Operation, bound: Arguments) -> nn.Module | None:
    if op.name == "permute":
        dims = bound.get("dims")
        return Transposition("permute", tuple(dims)) if isinstance(dims, list | tuple) else None
    if op.name == "transpose":
        return Transposition("transpose", (bound["dim0"], bound["dim1"]))
    return Transposition("transpose", (-2, -1))


def _average(op: Operation, bound: Arguments) -> nn.Module | None:
    dims = bound.get("dim")
    places = (dims,) if isinstance(dims, int) else dims
    if not isinstance(places, list | tuple) or not places or bound.get("dtype") is not None:
        return None
    return Average(tuple(places), bool(bound.get("keepdim")))


def _same_type(op: Operation, bound: Arguments) -> nn.Module | None:
    (x,), (y,) = (v for v in op.inputs if v.follows), op.outputs
    return nn.Identity() if x.dtype == y.dtype else None


_MOVING: dict[str, Callable[[Operation, Arguments], nn.Module | None]] = {
    **dict.fromkeys(
        ("flatten", "view", "reshape", "squeeze", "unsqueeze", "contiguous", "clone", "unflatten"),
        _rearrangement,
    ),
    **dict.fromkeys(("permute", "transpose", "mT"), _transposition),
    **dict.fromkeys(("to", "float", "double", "type_as", "alias", "identity"), _same_type),
    "mean": _average,
}
