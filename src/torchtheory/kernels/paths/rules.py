r"""What an operation does to the paths through a network: one table for all that sums over them.

A path goes from an input (or from a unit of value 1: a bias, a constant) to an output. An operation

* is linear, with weights on its connections, and with biases,
* multiplies by a slope (ReLU: 0 or 1), or
* chooses one of some candidates (max pooling, a maximum, a clamp, `torch.where`).

What is summed over the paths is up to what is carried (`Carried`): powers of weights for path
norms, products of slopes for path kernels, the paths themselves for lists. A parameter is a
connection also where it is 0; a constant is one where it is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import as_batch, as_module
from torchtheory.core.errors import ModelRaised, ShapeMismatch, UnsupportedModel
from torchtheory.core.foreign_code import said
from torchtheory.expressivity.bend_rules import per_dimension, pool_places
from torchtheory.models.model import PureFunction
from torchtheory.tracing.interpret import Call, Rule, Rules, in_terms_of, interpret
from torchtheory.tracing.kinds import AVERAGES, MAXIMA, PADS, RESIZES
from torchtheory.tracing.network import BatchSize, Network, Value, leaves
from torchtheory.tracing.recorder import record

#: What stands for a value in the place of which it is asked.
Get = Callable[[Any], Tensor]


class Carried(ABC):
    """What is carried along the paths to the units of a value."""

    network: PathNetwork

    @abstractmethod
    def linear(self, call: Call) -> Any:
        """Through a linear operation; `through` is what it does."""

    @abstractmethod
    def sloped(self, call: Call, slope: Slope) -> Any:
        """Through a slope at every unit."""

    @abstractmethod
    def choice(self, call: Call, choice: Choice) -> Any:
        """Through a choice at every unit."""


#: The slope of an operation at the values of its units, which `get` gives.
Slope = Callable[[Get], Tensor]


@dataclass(eq=False)
class Truth:
    """What a comparison says, or something that is made of such: constant between its changes."""

    call: Call

    def at(self, get: Get) -> Tensor:
        """At values."""
        args, kwargs = _filled(self.call, get, None)
        made: Tensor = self.call.function(*args, **kwargs)
        return made


@dataclass(eq=False)
class Choice:
    """Which of its candidates every unit takes.

    Attributes:
        candidates: the candidates of every unit along a new last dimension, of values (with the
            power None) or of what is summed over paths, where constants have a power.
        chosen: the numbers of those that are taken.
        constants: whether some candidates are no signals.
    """

    candidates: Callable[[Get, float | None], Tensor]
    chosen: Callable[[Get], Tensor]
    constants: bool = False


class PathNetwork:
    """A network whose paths can be summed over.

    Args:
        model: any module of linear operations, slopes and choices; it stays as it is.
        x: some inputs `[n, ...]`. A sample of a network whose rows belong together, as the nodes
            of a graph do, is the whole table.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.function = PureFunction(as_module(model))
        self.network = in_terms_of(self._recorded(x), RULES)
        if self.network.rows is None:
            for value in self.network.outputs:
                if value.shape[:1] != (BatchSize(1),):
                    raise ShapeMismatch(
                        f"the model maps n samples to an output of shape {list(value.shape)}; its "
                        "first dimension must be the samples"
                    )
        #: Values that are made of parameters.
        self.weights = {v for v in self.network.tensors if v.origin == "parameter"}
        for op in self.network:
            if not op.follows and not self.weights.isdisjoint(op.inputs):
                self.weights.update(op.outputs)

    def _recorded(self, x: Tensor) -> Network:
        try:
            return record(self.function, x)
        except ModelRaised as error:
            try:
                network = record(self.function, x[0]) if x.ndim > 2 else None
            except ModelRaised:
                network = None
            if network is not None and network.rows is not None:
                return network
            raise ShapeMismatch(
                f"the model does not take inputs of shape {list(x.shape[1:])} a sample: "
                f"{said(error.raised)}"
            ) from error

    @property
    def largest(self) -> int:
        """Units of the largest value, for one sample."""
        sizes = [1]
        for op in self.network:
            for v in op.outputs:
                size = 1
                for s in v.shape:
                    size *= s if isinstance(s, int) else s.of(self.rows)
                sizes.append(size)
        return max(sizes)

    @property
    def device(self) -> torch.device:
        return self.function.reference().device

    @property
    def rows(self) -> int:
        return self.network.rows or 1

    def samples(self, x: Tensor) -> Tensor:
        """Inputs as the network takes one at a time: `[n, 1, ...]`, or `[n, rows, ...]`."""
        return x if self.network.rows is not None else x.unsqueeze(1)

    def carry(self, start: Carried) -> Any:
        """Through all operations."""
        start.network = self
        made = interpret(self.network, RULES, [start], self.rows)
        if isinstance(made, Carried):
            return made
        raise UnsupportedModel(
            "the model returns several tensors; wrap it so that it returns one of them"
        )


def path_network(model: nn.Module, input_shape: Sequence[int]) -> PathNetwork:
    """The network as it runs on inputs of a shape."""
    like = PureFunction(as_module(model)).reference()
    return PathNetwork(model, torch.ones(2, *input_shape, dtype=like.dtype, device=like.device))


def checked_inputs(model: nn.Module, x: Tensor, name: str) -> Tensor:
    """The inputs in the model's precision and on its device."""
    like = PureFunction(as_module(model)).reference()
    return as_batch(x, name).to(dtype=like.dtype, device=like.device)


# --------------------------------------------------------------------------------- arguments


def carried_in(call: Call) -> list[Any]:
    """What is carried into an operation, each once."""
    found: dict[int, Any] = {}
    for leaf in leaves((call.args, call.kwargs)):
        for one in carried_in(leaf.call) if isinstance(leaf, Truth) else [leaf]:
            if isinstance(one, Carried):
                found[id(one)] = one
    return list(found.values())


def _weigh(tensor: Tensor, power: float | None, *, weight: bool) -> Tensor:
    """A constant of a linear operation to a power."""
    if power is None or not tensor.is_floating_point():
        return tensor
    if power == 0 and not weight:
        return (tensor != 0).double()
    return tensor.double().abs() ** power


def _number(value: Any, power: float | None) -> Any:
    if power is None or not isinstance(value, int | float) or isinstance(value, bool):
        return value
    return float(_weigh(torch.tensor(float(value), dtype=torch.float64), power, weight=False))


def _filled(call: Call, get: Get, power: float | None) -> tuple[Any, Any]:
    """Arguments with what `get` gives, and with constants to a power."""
    weights = carried_in(call)[0].network.weights

    def one(raw: Any, held: Any) -> Any:
        if isinstance(held, Carried):
            return get(held)
        if isinstance(held, Truth):
            return held.at(get)
        if isinstance(held, Tensor):
            return _weigh(held, power, weight=isinstance(raw, Value) and raw in weights)
        if isinstance(held, list | tuple):
            return type(held)([one(r, h) for r, h in zip(raw, held, strict=True)])
        if isinstance(held, dict):
            return {k: one(raw[k], h) for k, h in held.items()}
        return held

    return one(call.operation.args, call.args), one(call.operation.kwargs, call.kwargs)


def through(call: Call, get: Get, power: float | None) -> Any:
    r"""What $x\mapsto Ax+b$ makes with weights to a power, $|A|^px+|b|^p$; itself without one."""
    if power is None:
        args, kwargs = _filled(call, get, None)
        return call.function(*args, **kwargs)
    return _POWERS.get(call.name, _with_powers)(call, get, power)


def _with_powers(call: Call, get: Get, power: float) -> Any:
    args, kwargs = _filled(call, get, power)
    return call.function(*args, **kwargs)


def _argument(call: Call, name: str, get: Get, power: float | None) -> Any:
    held, raw = call.get(name), call.operation.arguments.get(name)
    if isinstance(held, Carried):
        return get(held)
    if isinstance(held, Tensor):
        weights = carried_in(call)[0].network.weights
        return _weigh(held, power, weight=isinstance(raw, Value) and raw in weights)
    return _number(held, power)


def _sum(call: Call, get: Get, power: float) -> Tensor:
    one, other = (_argument(call, name, get, power) for name in ("input", "other"))
    made: Tensor = one + _number(call.get("alpha", 1), power) * other
    return made


def _product(call: Call, get: Get, power: float) -> Tensor:
    one, other = (_argument(call, name, get, power) for name in ("input", "other"))
    made: Tensor = one / other if call.name == "div" else one * other
    return made


def _sum_with_product(call: Call, get: Get, power: float) -> Tensor:
    names = [name for name in call.arguments if name not in ("alpha", "beta")]
    added, left, right = (_argument(call, name, get, power) for name in names)
    beta, alpha = (_number(call.get(k, 1), power) for k in ("beta", "alpha"))
    made: Tensor = beta * added + alpha * (left @ right)
    return made


def _negative(call: Call, get: Get, power: float) -> Tensor:
    return get(call["input"])


def _averaged(call: Call, get: Get, power: float) -> Tensor:
    r"""Entries of a window have one weight $w$: $w^p$ times their sum is $w^{p-1}$ their mean."""
    v = get(call["input"])
    ones = torch.ones_like(v)
    made, mean = (through(call, at, None) for at in (get, lambda _: ones))
    weight = mean / _window_size(call, v, made)
    averaged: Tensor = made * weight ** (power - 1)
    return averaged


def _window_size(call: Call, v: Tensor, made: Tensor) -> Tensor:
    """How many entries every mean is of."""
    if call.name == "mean":
        return torch.full_like(made, v.numel() / max(made.numel(), 1))
    spatial = int(call.name[-2])
    inside, out = v.shape[-spatial:], made.shape[-spatial:]
    size = made.new_ones(out)
    for d in range(spatial):
        counts = []
        for i in range(out[d]):
            if call.name.startswith("adaptive"):
                first, last = i * inside[d] // out[d], -(-(i + 1) * inside[d] // out[d])
            else:
                kernel = per_dimension(call["kernel_size"], spatial)[d]
                stride = per_dimension(call.get("stride") or call["kernel_size"], spatial)[d]
                first = i * stride - per_dimension(call.get("padding", 0), spatial)[d]
                first, last = max(first, 0), min(first + kernel, inside[d])
            counts.append(float(last - first))
        size = size * made.new_tensor(counts).reshape(-1, *[1] * (spatial - 1 - d))
    return size


def _normalized(call: Call, get: Get, power: float) -> Tensor:
    """Batch normalization in evaluation mode: a scale and a shift for every channel."""
    v = get(call["input"])
    around = (-1, *[1] * (v.ndim - 2))
    scale = (call["running_var"].double() + call["eps"]).rsqrt()
    if call["weight"] is not None:
        scale = scale * call["weight"].double()
    shift = -call["running_mean"].double() * scale
    if call["bias"] is not None:
        shift = shift + call["bias"].double()
    made: Tensor = v * scale.reshape(around).abs() ** power + shift.reshape(around).abs() ** power
    return made


def _padded(call: Call, get: Get, power: float) -> Tensor:
    value = call.get("value")
    mode = call.get("mode", "constant")
    options = {"value": _number(value or 0.0, power)} if mode == "constant" else {}
    made: Tensor = F.pad(get(call["input"]), list(call["pad"]), mode=mode, **options)
    return made


def _masked(call: Call, get: Get, power: float) -> Tensor:
    value = torch.as_tensor(_argument(call, "value", get, power)).double()
    made: Tensor = torch.where(call["mask"], value, get(call["input"]))
    return made


def _written(call: Call, get: Get, power: float) -> Tensor:
    made: Tensor = _argument(call, "input", get, power).clone()
    made[call["index"]] = _argument(call, "value", get, power)
    return made


def _resized(call: Call, get: Get, power: float) -> Tensor:
    """Nearest entries are taken as they are; other ways have weights, found entry by entry."""
    if "nearest" in str(call.get("mode", call.name)):
        taken: Tensor = _with_powers(call, get, power)
        return taken
    v = get(call["input"])
    made: Tensor | None = None
    for part in torch.split(torch.arange(v.numel(), device=v.device), 256):
        basis = F.one_hot(part, v.numel()).to(v).reshape(-1, *v.shape)
        columns = torch.vmap(lambda e: through(call, lambda _: e, None))(basis)
        weights = (columns != 0).double() if power == 0 else columns.abs() ** power
        added = (weights * v.reshape(-1)[part].reshape(-1, *[1] * (columns.ndim - 1))).sum(0)
        made = added if made is None else made + added
    assert made is not None
    return made


#: Linear operations whose weights are not tensors among their arguments.
_POWERS: dict[str, Callable[[Call, Get, float], Any]] = {
    **dict.fromkeys(("add", "sub", "rsub"), _sum),
    **dict.fromkeys(("mul", "div"), _product),
    "neg": _negative,
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _sum_with_product),
    **dict.fromkeys(("mean", *AVERAGES), _averaged),
    "batch_norm": _normalized,
    **dict.fromkeys(("pad", "constant_pad_nd"), _padded),
    "masked_fill": _masked,
    "setitem": _written,
    **dict.fromkeys(RESIZES, _resized),
}


# ----------------------------------------------------------------------------------- the rules


def _checked(rule: Rule) -> Rule:
    """What is not carried is computed, and what is done to truths alone makes truths."""

    def checked(call: Call) -> Any:
        given = list(leaves((call.args, call.kwargs)))
        carried = any(isinstance(leaf, Carried) for leaf in given)
        if not any(isinstance(leaf, Truth) for leaf in given):
            return rule(call) if carried else call.function(*call.args, **call.kwargs)
        if call.name in ("where", "mul", "masked_fill") and carried:
            return rule(call)
        if carried:
            raise _refused(call, "jumps where a comparison changes")
        return Truth(call)

    return checked


def _refused(call: Call, why: str) -> UnsupportedModel:
    return call.refusal(f"{RULES.subject}: {call.name} {why}")


def _linear(call: Call) -> Any:
    return carried_in(call)[0].linear(call)


def _one_factor(call: Call) -> Any:
    """Linear in one of two factors."""
    given = [
        value
        for name, value in call.arguments.items()
        if name not in ("bias", "input") or not call.name.startswith(("add", "badd"))
    ]
    if sum(isinstance(leaf, Carried) for leaf in leaves(given)) > 1:
        raise _refused(call, "multiplies two values that depend on the input")
    if call.get("rounding_mode") is not None or (
        call.name == "div" and isinstance(call["other"], Carried)
    ):
        raise _refused(call, "divides by a value that depends on the input")
    return _linear(call)


def _times(call: Call) -> Any:
    """By a constant, or by the truth of a comparison, which is a slope."""
    both = [call["input"], call["other"]]
    for one, other in (both, both[::-1]):
        if isinstance(one, Truth) and isinstance(other, Carried):
            return other.sloped(call, partial(_holds, one))
    return _one_factor(call)


def _holds(truth: Truth, get: Get) -> Tensor:
    return truth.at(get).double()


def _shaped(call: Call) -> Any:
    """What depends on the shape of a value alone."""
    rows = carried_in(call)[0].network.rows

    def one(raw: Any, held: Any) -> Any:
        if isinstance(held, Carried) and isinstance(raw, Value):
            sizes = [s if isinstance(s, int) else s.of(rows) for s in raw.shape]
            return torch.zeros(sizes, dtype=raw.dtype)
        if isinstance(held, list | tuple):
            return type(held)([one(r, h) for r, h in zip(raw, held, strict=True)])
        return held

    kwargs = {k: one(call.operation.kwargs[k], v) for k, v in call.kwargs.items()}
    return call.function(*one(call.operation.args, call.args), **kwargs)


def _moved(call: Call) -> Any:
    return _shaped(call) if isinstance(call.get("input"), Tensor) else _linear(call)


def _joined(call: Call) -> Any:
    if isinstance(call.get("value"), int | float) and call.name not in _POWERS:
        raise _refused(call, "writes a number, for which there is no rule")
    return _linear(call)


def _batch_norm(call: Call) -> Any:
    if call.get("training") or call.get("running_mean") is None:
        raise _refused(call, "normalizes by the statistics of its batch even in evaluation mode")
    return _linear(call)


def _sloped(call: Call) -> Any:
    """A function with one slope on either side of 0; at 0 it has the left one."""

    def slope(get: Get) -> Tensor:
        z = get(call["input"])

        def at(value: float) -> Tensor:
            filled = torch.full_like(z, value)
            args, kwargs = _filled(call, lambda _: filled, None)
            made: Tensor = call.function(*args, **kwargs)
            return made / value

        return torch.where(z > 0, at(1.0), at(-1.0) + 0.0).double()  # not -0

    return call["input"].sloped(call, slope)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    shape = torch.broadcast_shapes(*(t.shape for t in parts))  # type: ignore[no-untyped-call]
    return torch.stack([t.expand(shape) for t in parts], -1)


def _stacked(*parts: tuple[str | float, int]) -> Rule:
    """A choice between arguments or numbers: in turn the larger (1) or the smaller (-1)."""

    def rule(call: Call) -> Any:
        raw: list[tuple[str | float, int]] = [
            p for p in parts if not isinstance(p[0], str) or call.get(p[0]) is not None
        ]

        def candidates(get: Get, power: float | None) -> Tensor:
            found = [
                torch.as_tensor(
                    _argument(call, name, get, power) if isinstance(name, str)
                    else _number(name, power)
                ).double()
                for name, _ in raw
            ]  # fmt: skip
            return _side_by_side(found)

        def chosen(get: Get) -> Tensor:
            z = candidates(get, None)
            number = torch.zeros_like(z[..., 0], dtype=torch.long)
            best = z[..., 0]
            for k, (_, sign) in enumerate(raw[1:], 1):
                better = sign * z[..., k] > sign * best
                number, best = torch.where(better, k, number), torch.where(better, z[..., k], best)
            return number

        constants = any(not isinstance(call.get(n), Carried) for n, _ in raw if isinstance(n, str))
        constants |= any(not isinstance(n, str) for n, _ in raw)
        return carried_in(call)[0].choice(call, Choice(candidates, chosen, constants))

    return rule


def _extreme(sign: int) -> Rule:
    """Along dimensions, or of two."""

    def rule(call: Call) -> Any:
        if call.get("other") is not None:
            return _stacked(("input", sign), ("other", sign))(call)

        def candidates(get: Get, power: float | None) -> Tensor:
            v = get(call["input"])
            dim = call.get("dim")
            dims = range(v.ndim) if dim is None or dim in ((), []) else dim
            dims = [d % v.ndim for d in ([dims] if isinstance(dims, int) else dims)]
            last = v.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))
            for d in sorted(dims) if call.get("keepdim") else ():
                last = last.unsqueeze(d)
            return last

        def chosen(get: Get) -> Tensor:
            return (sign * candidates(get, None)).argmax(-1)

        made = call["input"].choice(call, Choice(candidates, chosen))
        pair = isinstance(call.operation.result, tuple | list)
        return (made, None) if pair else made

    return rule


def _ordered(call: Call) -> Any:
    """Every rank is one of all entries."""

    def row(v: Tensor) -> Tensor:
        return v.movedim(call.get("dim", -1), -1)

    def chosen(get: Get) -> Tensor:
        z = get(call["input"])
        args, kwargs = _filled(call, lambda _: z, None)
        places: Tensor = call.function(*args, **kwargs)[1]
        return places

    def candidates(get: Get, power: float | None) -> Tensor:
        v = get(call["input"])
        dim = call.get("dim", -1) % v.ndim
        places = chosen(lambda _: v)
        along = row(v).unsqueeze(dim)
        return (
            along.expand(*places.shape, v.shape[dim])
            if places.ndim == v.ndim
            else along.squeeze(dim)
        )

    if call.get("dim", -1) is None:
        return NotImplemented
    return call["input"].choice(call, Choice(candidates, chosen)), None


def _max_pool(call: Call) -> Any:
    spatial = int(call.name[-2])

    def windows(v: Tensor, outside: Tensor) -> Tensor:
        args, kwargs = _filled(call, lambda _: v, None)
        made = call.function(*args, **kwargs)
        out = (made[0] if isinstance(made, tuple) else made).shape[-spatial:]
        places = pool_places(call, v.shape[-spatial:], out).to(v.device)
        return torch.where(places >= 0, v.flatten(-spatial)[..., places.clamp(min=0)], outside)

    def candidates(get: Get, power: float | None) -> Tensor:
        v = get(call["input"])
        return windows(v, v.new_zeros(()))

    def chosen(get: Get) -> Tensor:
        z = get(call["input"])
        return windows(z, z.min() - 1).argmax(-1)

    made = call["input"].choice(call, Choice(candidates, chosen))
    return (made, None) if isinstance(call.operation.result, tuple | list) else made


def _where(call: Call) -> Any:
    """A choice by a comparison; by a constant condition it is linear."""
    condition = call["condition"] if call.name == "where" else call["mask"]
    if not isinstance(condition, Truth):
        return _linear(call)
    names = ("input", "other") if call.name == "where" else ("value", "input")

    def candidates(get: Get, power: float | None) -> Tensor:
        found = [torch.as_tensor(_argument(call, n, get, power)).double() for n in names]
        return _side_by_side(found)

    def chosen(get: Get) -> Tensor:
        made = candidates(get, None)[..., 0]
        return (1 - condition.at(get).long()).expand_as(made)

    constants = any(not isinstance(call[n], Carried) for n in names)
    return carried_in(call)[0].choice(call, Choice(candidates, chosen, constants))


#: Linear in one of their arguments, and in all that are added to it.
_FACTORS = """
    linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution
    matmul rmatmul einsum outer tensordot inner kron div addmm addmv baddbmm windows fold col2im
    im2col tril triu trace diag diag_embed diagflat mean
""".split()
_SUMS = "add sub rsub neg sum cumsum index_add scatter_add".split()

#: What an operation does to paths.
RULES = Rules(
    "no paths",
    {
        **{
            name: _checked(rule)
            for name, rule in {
                **dict.fromkeys(("relu", "leaky_relu", "prelu", "rrelu", "abs"), _sloped),
                "relu6": _stacked(("input", 1), (0.0, 1), (6.0, -1)),
                "hardtanh": _stacked(("input", 1), ("min_val", 1), ("max_val", -1)),
                **dict.fromkeys(
                    ("clamp", "clamp_min", "clamp_max"),
                    _stacked(("input", 1), ("min", 1), ("max", -1)),
                ),
                **dict.fromkeys(("max", "maximum", "amax"), _extreme(1)),
                **dict.fromkeys(("min", "minimum", "amin"), _extreme(-1)),
                **dict.fromkeys(("sort", "topk", "kthvalue", "median"), _ordered),
                **dict.fromkeys(MAXIMA, _max_pool),
                **dict.fromkeys(("gt", "ge", "lt", "le"), Truth),
                **dict.fromkeys(("where", "masked_fill"), _where),
                "mul": _times,
                **dict.fromkeys((*_FACTORS, *AVERAGES, *RESIZES, *PADS), _one_factor),
                **dict.fromkeys(_SUMS, _linear),
                "batch_norm": _batch_norm,
                "logical_not": Truth,
                "bitwise_not": Truth,
            }.items()
        },
    },
    {
        "moves": _checked(_moved),
        "selects": _checked(_moved),
        "joins": _checked(_joined),
        "constant": _checked(_shaped),
    },
)
