"""From a user's module to a graph of operations with bounds, by watching one forward pass.

The values that run through the network are the stand-ins of `watched_pass`; here each operation of
torch on them becomes a vertex of a `Graph`. Two copies of a sample run, so that an operation that
mixes samples is seen, and nothing in the graph depends on the number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import module_with_values
from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import evaluating, global_randomness_kept
from torchtheory.models.untouched import copied
from torchtheory.robustness.bounds.affine_rules import (
    add,
    average,
    batch_norm,
    bilinear,
    convolution,
    divide,
    linear,
    multiply,
    negative,
    reduction,
    subtract,
    transposed_convolution,
)
from torchtheory.robustness.bounds.bending_rules import (
    ACTIVATIONS,
    adaptive_max_pool,
    bend,
    clamp,
    extreme,
    hard_sigmoid,
    log_sigmoid,
    max_of,
    max_pool,
    maximum,
    minimum,
    power,
    prelu,
)
from torchtheory.robustness.bounds.graph import Graph, Vertex
from torchtheory.robustness.bounds.moving_rules import JOINS, picks
from torchtheory.robustness.bounds.vertices import COPIES
from torchtheory.robustness.lipschitz.bound import signal_of
from torchtheory.robustness.lipschitz.operations import (
    CASTS,
    DECISIONS,
    DROPOUTS,
    MOVES,
    SELECTS,
    followed,
)
from torchtheory.robustness.lipschitz.watched_pass import Pass, Signal, placed, signals_in

PICKS = MOVES | SELECTS | JOINS | {
    "expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave", "index_select",
    "gather", "take_along_dim", "masked_fill", "where", "pad", "tril", "triu", "__getitem__",
    "unfold", "as_strided", "channel_shuffle", "upsample_nearest",
}  # fmt: skip
#: Sums of entries with coefficients that are not negative, within a sample.
MEANS = {
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "cumsum",
}  # fmt: skip


def trace(
    model: nn.Module,
    sample: Tensor,
    *,
    output: int | str | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    own: nn.Module | None = None,
) -> Graph:
    """The graph of a network in evaluation mode.

    Args:
        model: the network; a private copy of it runs.
        sample: one input, `[...]`, in the network's precision; only its shape and type matter.
        output: position or key of the output that is meant, where there are several.
        parameters: tensors to use in place of the network's parameters, which may carry a
            gradient.
        own: a copy of the network that may be run, where the caller has one.

    Raises:
        UnsupportedModel: if an operation has no rule; the message names it and its place.
    """
    module_with_values(model)
    if sample.dtype not in (torch.float32, torch.float64):
        raise UnsupportedModel(
            "bounds are for networks in float32 or float64, and this one is in "
            f"{str(sample.dtype).removeprefix('torch.')}: bound its copy "
            "(copy.deepcopy(model).float())"
        )
    own = copied(model).requires_grad_(False) if own is None else own
    given = torch.zeros(COPIES, *sample.shape, dtype=sample.dtype, device=sample.device)
    watch = Pass(centers=COPIES, apply=apply)
    start = Vertex(given, (), shape=tuple(sample.shape))
    watch.nodes.append(start)
    with torch.set_grad_enabled(parameters is not None), evaluating(own), global_randomness_kept():
        before = torch.get_rng_state()
        with placed(own, watch, _refuse_attention):
            signal = Signal(watch, start, (), given)
            made = torch.func.functional_call(own, dict(parameters or {}), (signal,))
        if not torch.equal(before, torch.get_rng_state()):
            raise UnsupportedModel("the network draws random numbers, so it is no one function")
    last = signal_of(made, output).current().node
    assert isinstance(last, Vertex)
    kept = tuple(v for v in watch.nodes if isinstance(v, Vertex))
    for vertex in kept:
        vertex.center, vertex.parents = vertex.center.new_empty(0), ()  # only shapes were of use
    return Graph(kept, last.place)


def _refuse_attention(watch: Pass, module: nn.Module) -> None:
    """Before its own transpositions are, which would be no help to a reader."""
    if isinstance(module, nn.MultiheadAttention):
        raise watch.refuse("the network uses attention, of which no bound is known here")


def apply(watch: Pass, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What a torch function does to signals."""
    return followed(_made, watch, function, args, options)


def _made(
    watch: Pass, name: str, function: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    if torch.is_autocast_enabled(args[0].device.type if isinstance(args[0], Signal) else "cpu"):
        raise watch.refuse(
            "the network runs under autocast, which computes with fewer digits than bounds count: "
            "switch it off (torch.autocast(..., enabled=False))"
        )
    if name in CASTS:
        return _cast(watch, name, args, options)
    if name in DROPOUTS:
        if options.get("training", args[2] if len(args) > 2 else True):
            raise watch.refuse("the network drops units at random")
        return args[0]
    if name in DECISIONS:
        raise watch.refuse(f"the network decides by the numbers of its input ({name})")
    if name in ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"):
        return function(args[0].value, *args[1:], **options)
    if name == "sym_size":
        return args[0].shape[args[1]]
    rule = _RULES.get(name)
    if rule is not None:
        made = rule(watch, *args, **options)
        if made is not NotImplemented:
            return made
    if name in PICKS:
        return picks(watch, name, function, args, options)
    if name in MEANS:
        return average(watch, function, args, options)
    activation = ACTIVATIONS.get(name)
    if activation is not None and len(list(signals_in((args, options)))) == 1:
        made = bend(watch, args[0], activation(*args[1:], **options))
        # some functions of torch take the order to write to their input without its name
        return args[0].become(made) if any(a is True for a in args[1:]) else made
    raise watch.refuse(f"the network uses {name.strip('_')}, of which no bound is known here")


def _cast(watch: Pass, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Signal:
    """The value itself, if it keeps all of its digits."""
    x: Signal = args[0]
    named = {"float": torch.float32, "double": torch.float64, "half": torch.float16,
             "bfloat16": torch.bfloat16}.get(name)  # fmt: skip
    given = [
        a.dtype if isinstance(a, Tensor | Signal) else a for a in (*args[1:], *options.values())
    ]
    dtype = next((a for a in given if isinstance(a, torch.dtype)), named)
    if isinstance(dtype, torch.dtype) and not (
        dtype.is_floating_point and torch.finfo(dtype).eps <= torch.finfo(x.dtype).eps
    ):
        raise watch.refuse(
            f"the network turns values into {str(dtype).removeprefix('torch.')}, which has fewer "
            "digits than bounds count"
        )
    return x


_RULES: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "conv1d": convolution,
    "conv2d": convolution,
    "conv3d": convolution,
    "conv_transpose1d": transposed_convolution,
    "conv_transpose2d": transposed_convolution,
    "conv_transpose3d": transposed_convolution,
    "batch_norm": batch_norm,
    "mul": multiply,
    "multiply": multiply,
    "div": divide,
    "divide": divide,
    "true_divide": divide,
    "neg": negative,
    "negative": negative,
    "add": add,
    "sub": subtract,
    "subtract": subtract,
    "rsub": lambda watch, a, b, **options: subtract(watch, b, a, **options),
    "mean": reduction(torch.mean),
    "sum": reduction(torch.sum),
    "matmul": bilinear("matmul"),
    "mm": bilinear("matmul"),
    "bmm": bilinear("bmm"),
    "einsum": bilinear("einsum"),
    "clamp": clamp,
    "clip": clamp,
    "clamp_min": lambda watch, x, min: clamp(watch, x, min),
    "clamp_max": lambda watch, x, max: clamp(watch, x, None, max),
    "maximum": maximum,
    "minimum": minimum,
    "prelu": prelu,
    "logsigmoid": log_sigmoid,
    "log_sigmoid": log_sigmoid,
    "hardsigmoid": hard_sigmoid,
    "tanhshrink": lambda watch, x: x - torch.tanh(x),
    "pow": power,
    "max_pool1d": max_pool(1),
    "max_pool2d": max_pool(2),
    "max_pool3d": max_pool(3),
    "adaptive_max_pool1d": adaptive_max_pool(1),
    "adaptive_max_pool2d": adaptive_max_pool(2),
    "adaptive_max_pool3d": adaptive_max_pool(3),
    "amax": extreme,
    "max": max_of,
}
