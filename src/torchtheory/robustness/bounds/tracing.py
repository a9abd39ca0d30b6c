"""From a user's module to a graph of operations with bounds: a table of rules.

The network is recorded (`torchtheory.tracing`), and each of its operations becomes one or a few
vertices of a `Graph`. They are about one sample, a batch of one; that the samples of a batch do not
mix is found out first. Where a network runs on a certain number of rows only, as one whose rows are
the nodes of a graph, all rows together are one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import PureFunction, main_output, parts_of
from torchtheory.robustness.bounds import bending_rules, composed_rules
from torchtheory.robustness.bounds.affine_rules import (
    add,
    added_at,
    average,
    batch_norm,
    by_matrix,
    convolution,
    cumulative,
    linear,
    negative,
    reduction,
    upsampled,
)
from torchtheory.robustness.bounds.bending_rules import as_number
from torchtheory.robustness.bounds.graph import Graph
from torchtheory.robustness.bounds.moving_rules import picks, reshaped
from torchtheory.robustness.bounds.vertices import (
    Condition,
    Growing,
    Signal,
    Untold,
    run_with,
    signals_in,
)
from torchtheory.tracing.interpret import Call, Rule, Rules, interpret, no_rule
from torchtheory.tracing.kinds import AVERAGES, KIND_OF, PADS, RESIZES
from torchtheory.tracing.network import BatchSize, Network, Operation, Value, leaves
from torchtheory.tracing.recorder import record

_PRECISIONS = (torch.float32, torch.float64)


def trace(model: nn.Module, x: Tensor, *, output: int | str | None = None) -> Graph:
    """The graph of a network in evaluation mode.

    Args:
        model: the network; it is left as it is.
        x: some inputs, `[n, ...]`, in the network's precision.
        output: position or key of the output that is meant, where there are several.

    Raises:
        UnsupportedModel: if an operation has no rule; the message names it and its place.
    """
    network = recorded(model, x)
    graph = graph_of(network, x, output=output)
    refuse_mixed_samples(network, x)
    return graph


def recorded(model: nn.Module | PureFunction, x: Tensor) -> Network:
    """The network, if it is one function, and computed with as many digits as are counted."""
    if x.dtype not in _PRECISIONS:
        raise UnsupportedModel(
            "bounds are for networks in float32 or float64, and this one is in "
            f"{_word(x.dtype)}: bound its copy (copy.deepcopy(model).float())"
        )
    if torch.is_autocast_enabled(x.device.type):
        raise UnsupportedModel(
            "bounds do not count the digits that autocast leaves out: switch it off "
            "(torch.autocast(..., enabled=False))"
        )
    network = record(model, x)
    for op in network.random:
        if not network.needed.isdisjoint(op.outputs):
            raise no_rule(RULES, op)
    return network


def graph_of(
    network: Network,
    x: Tensor,
    *,
    output: int | str | None = None,
    tensors: Mapping[Value, Tensor] | None = None,
) -> Graph:
    """The graph of a recorded network.

    Args:
        network: what `recorded` gave.
        x: some inputs, of which the shape and the precision matter.
        output: as in `trace`.
        tensors: what stands for parameters and buffers, which may carry a gradient.
    """
    whole = network.rows is not None
    samples = 1 if network.rows is None else network.rows
    growing = Growing((samples, *x.shape[1:]), x)
    start = Signal(growing, 0, growing.vertices[0].shape)
    with torch.set_grad_enabled(tensors is not None):
        made = interpret(network, _rules(growing), [start], samples, tensors)
    return growing.finished(_one_of(made, output).place, whole)


def _one_of(made: Any, output: int | str | None) -> Signal:
    """The output that is meant."""
    known = {} if isinstance(made, Signal | Condition) else parts_of(made)
    if output is None and known:
        numbers = {k: torch.empty(0) if isinstance(v, Signal) else v for k, v in known.items()}
        sequence = isinstance(made, tuple | list)
        output = main_output(tuple(numbers.values()) if sequence else numbers)
    found = made if output is None else known.get(output)
    if isinstance(found, Tensor):
        raise UnsupportedModel("the output does not depend on the input")
    if isinstance(found, Condition):
        found = as_number(found)
    if not isinstance(found, Signal):
        raise UnsupportedModel(f"the network returns {type(made).__name__}, not one tensor")
    return found


# -- samples ---------------------------------------------------------------------------------------


def refuse_mixed_samples(network: Network, x: Tensor) -> None:
    """Samples are apart if what is no number in one of them stays in it.

    Nothing but numbers comes out of what does not depend on the missing ones: they spread through
    every sum, product and maximum.
    """
    if network.rows is not None:
        return
    rows = torch.cat([x[:1], x[-1:]]).detach().clone()
    for lost in range(2):
        given = rows.clone()
        given[lost] = torch.nan
        first: list[Operation] = []

        def step(op: Operation, args: Any, kwargs: Any, found: list[Operation] = first) -> Any:
            made = op.function(*args, **kwargs)
            if op.follows and not found and _spreads(op, made):
                found.append(op)
            return made

        with torch.no_grad():
            made = network.evaluate([given], 2, step)
        for value, tensor in zip(network.outputs, _tensors(made), strict=True):
            if not value.follows:
                continue
            apart = bool(value.shape) and value.shape[0] == BatchSize(1)
            if not apart or bool(tensor[1 - lost].isnan().any()):
                where = first[0] if first else network.makers.get(value)
                place = f" (in {where.place})" if where is not None else ""
                name = "" if where is None else f": {where.name.strip('_')}"
                raise UnsupportedModel(
                    "the network mixes the samples of a batch, or moves them to another "
                    f"dimension{name}{place}"
                )


def _spreads(op: Operation, made: Any) -> bool:
    """Whether more than one of two samples is lost."""
    return any(
        t.is_floating_point() and 2 * int(t.isnan().sum()) > t.numel() for t in _tensors(made)
    )


def _tensors(made: Any) -> list[Tensor]:
    return [t for t in leaves(made) if isinstance(t, Tensor)]


# -- rules -----------------------------------------------------------------------------------------


def _rules(growing: Growing) -> Rules:
    """The table, for a graph that grows."""
    by_name = {name: partial(_followed, growing, rule) for name, rule in RULES.by_name.items()}
    by_kind = {kind: partial(_followed, growing, rule) for kind, rule in RULES.by_kind.items()}
    added: dict[str, Rule] = {
        name: partial(_followed, growing, rule) for name, rule in RULES.added.items()
    }
    return Rules(RULES.subject, by_name, by_kind, added)


def _followed(growing: Growing, rule: Rule, call: Call) -> Any:
    """What a rule makes, if it is of the shape and the type that the network has."""
    op = call.operation
    growing.name = op.place
    given = list(leaves((call.args, call.kwargs)))
    if not any(isinstance(leaf, Signal | Condition | Untold) for leaf in given):
        return call.function(*call.args, **call.kwargs)
    if any(isinstance(leaf, Untold) for leaf in given):
        raise call.refusal("the network goes on with where its maxima are")
    _refuse_fewer_digits(call, growing.like)
    made = rule(call)
    if made is NotImplemented:
        return made
    for value, own in zip(leaves(op.result), leaves(made), strict=True):
        if isinstance(value, Value) and isinstance(own, Signal):
            shape = _shape(value, call.samples)
            if own.shape != shape:
                raise call.refusal(
                    f"{op.name} makes {list(own.shape)} of one sample, and {list(shape)} in a batch"
                )
    return made


def _refuse_fewer_digits(call: Call, like: Tensor) -> None:
    for value in call.operation.outputs:
        if value.dtype in _PRECISIONS or value.dtype == torch.bool:
            continue
        if any(isinstance(leaf, Condition) for leaf in leaves((call.args, call.kwargs))):
            continue
        if KIND_OF.get(call.name) == "extreme" and value is not call.operation.outputs[0]:
            continue
        raise call.refusal(
            f"the network turns values into {_word(value.dtype)}, which has fewer digits than "
            "bounds count"
        )


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(value: Value, samples: int) -> tuple[int, ...]:
    return tuple(n.of(samples) if isinstance(n, BatchSize) else n for n in value.shape)


def _squeezed(call: Call) -> Any:
    """The dimension of one sample is not squeezed out."""
    return reshaped(call["input"], *_shape(call.operation.outputs[0], call.samples))


def _constant(call: Call) -> Any:
    """What is made like a value does not depend on its numbers."""
    among = signals_in((call.args, call.kwargs))
    zeros = {id(s): s.graph.like.new_zeros(s.shape) for s in among}
    return run_with(call.function, call.args, call.kwargs, zeros, lambda t: t)


def _cast(call: Call) -> Any:
    """The value itself, which keeps all of its digits; of a condition the number."""
    x = call.args[0] if call.args else call["input"]
    if isinstance(x, Condition) and call.operation.outputs[0].dtype != torch.bool:
        return as_number(x)
    return x


def _negated(call: Call) -> Any:
    return negative(call["input"])


def _joined(call: Call) -> Any:
    """Entries put beside each other; conditions as numbers."""
    if any(isinstance(leaf, Condition) for leaf in leaves((call.args, call.kwargs))):
        raise call.refusal(f"the network decides by the numbers of its input ({call.name})")
    return picks(call)


_MATRICES = """
    windows fold col2im im2col tril triu trace diff diag diag_embed diagflat grid_sample conv_tbc
    fft_fftshift fft_ifftshift
""".split()

RULES = Rules(
    "no bound",
    {
        **bending_rules.RULES,
        **composed_rules.RULES,
        **dict.fromkeys(("add", "sub", "rsub"), add),
        **dict.fromkeys(("sum", "mean"), reduction),
        **dict.fromkeys(AVERAGES, average),
        **dict.fromkeys(
            [f"conv{kind}{d}d" for kind in ("", "_transpose") for d in (1, 2, 3)], convolution
        ),
        **dict.fromkeys(RESIZES, upsampled),
        **dict.fromkeys(PADS, _joined),
        **dict.fromkeys(("index_add", "scatter_add", "scatter_reduce", "index_put"), added_at),
        **dict.fromkeys(
            ("to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "bool",
             "short", "cpu", "cuda", "contiguous", "clone", "detach", "identity", "alias",
             "requires_grad", "positive", "lift_fresh"),
            _cast,
        ),
        **dict.fromkeys(_MATRICES, by_matrix),
        "linear": linear,
        "convolution": convolution,
        "batch_norm": batch_norm,
        "neg": _negated,
        "cumsum": cumulative,
        "squeeze": _squeezed,
    },
    {"moves": _joined, "selects": _joined, "joins": _joined, "constant": _constant},
)  # fmt: skip
