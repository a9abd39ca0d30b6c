r"""Lipschitz constants of the operations networks are made of, one rule each.

All constants are with respect to Euclidean norms of whole tensors. With $L_a$, $r_a$ for the
Lipschitz constant of an operand $a$ and the distance that it keeps from its center $c_a$:

| operation | Lipschitz constant |
|---|---|
| affine map $A$ | $\lVert A\rVert_2$, neighboring ones multiplied out first (batch normalization in evaluation mode folds into its convolution, a shortcut into a linear branch) |
| $\varrho$ of each entry | $\sup\lvert\varrho'\rvert$ |
| maximum over windows | $\sqrt{m}$, $m$ the number of windows an entry is in (1 where they do not overlap) |
| $a + b$ | $L_a + L_b$ |
| $a$ and $b$ joined | $\sqrt{L_a^2 + L_b^2}$ |
| $a \odot b$ | $\sup\lVert b\rVert_\infty L_a + \sup\lVert a\rVert_\infty L_b$ |
| $a\,b$ of matrices | $\sup\lVert b\rVert_2 L_a + \sup\lVert a\rVert_2 L_b$ |
| softmax | $1/2$ |
| logarithm of the softmax of $d$ entries | $\sqrt d$ |
| layer, group, instance, root-mean-square normalization | $\max\lvert\gamma\rvert / \inf\sigma$ |
| attention | see `attention` |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torchtheory.robustness.lipschitz.affine_operations import (
    add,
    affine,
    batch_norm,
    convolution,
    divide,
    item,
    join,
    linear,
    masked_fill,
    padded,
    put_together,
    subtract,
    transposed_convolution,
)
from torchtheory.robustness.lipschitz.composed_layers import recurrent, several_heads
from torchtheory.robustness.lipschitz.entrywise_operations import (
    activation,
    power,
    square,
)
from torchtheory.robustness.lipschitz.maxima import (
    adaptive_max_pool,
    either,
    extreme,
    max_pool,
    vector_norm,
)
from torchtheory.robustness.lipschitz.normalizations import (
    group_norm,
    instance_norm,
    layer_norm,
    log_softmax,
    rms_norm,
    softmax,
)
from torchtheory.robustness.lipschitz.products import attention, einsum, matmul, multiply
from torchtheory.robustness.lipschitz.watched_pass import Kind, Pass, Untold, signals_in
from torchtheory.tracing.activations import ACTIVATION_FACTS
from torchtheory.tracing.interpret import Call, Rules
from torchtheory.tracing.kinds import AVERAGES, RESIZES
from torchtheory.tracing.network import leaves

#: Affine in any one argument as long as the others are constants.
_AFFINE = frozenset(AVERAGES + RESIZES).union(
    """
    mean sum cumsum neg rsub expand expand_as broadcast_to repeat tile repeat_interleave
    index_select gather take_along_dim unfold windows fold tril triu hstack vstack lerp bilinear
    trace diff addmm baddbmm tensordot outer rmatmul constant_pad_nd reflection_pad1d
    reflection_pad2d replication_pad1d replication_pad2d index_add scatter_add
    """.split()
)
_CASTS = frozenset("to float double half bfloat16 type type_as cpu cuda".split())
_SELECTS = frozenset(
    """
    select slice narrow chunk split split_with_sizes tensor_split unbind diagonal unsafe_chunk
    unsafe_split
    """.split()
)


def rules_of(watch: Pass) -> Rules:
    """The rules for a pass."""
    rule, known = partial(_followed, watch), {*_RULES, *_AFFINE, *_SELECTS}
    return Rules("no bound is known", dict.fromkeys(known, rule), {"moves": rule})


def _followed(watch: Pass, call: Call) -> Any:
    """What an operation does to signals."""
    before, watch.place = watch.place, call.operation.place
    watch.now = (call.function, call.args, call.kwargs)
    try:
        for leaf in leaves((call.args, call.kwargs)):
            if isinstance(leaf, Untold):
                raise watch.refuse(f"the network uses {leaf.what}, of which no bound is known")
        return _made(watch, call)
    finally:
        watch.place = before


def _made(watch: Pass, call: Call) -> Any:
    among = list(signals_in((call.args, call.kwargs)))
    if call.name in _CASTS:
        return among[0]
    rule = _RULES.get(call.name)
    if rule is not None:
        made = rule(watch, **call.arguments)
        if made is not NotImplemented:
            return made
    kind: Kind = "affine"
    if call.kind == "moves":
        kind = "moves"
    elif call.name in _SELECTS:
        kind = "selects"
    if len(among) > 1 or (rule is not None and call.name not in _LINEAR_WITH_CONSTANTS):
        return NotImplemented
    return affine(watch, call.function, kind, call.args, call.kwargs)


#: Have a rule for signals, and are affine where all but one argument are constants.
_LINEAR_WITH_CONSTANTS = frozenset(
    "linear einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split()
)

_RULES: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "conv1d": convolution,
    "conv2d": convolution,
    "conv3d": convolution,
    "conv_transpose1d": transposed_convolution,
    "conv_transpose2d": transposed_convolution,
    "conv_transpose3d": transposed_convolution,
    "pad": padded,
    "batch_norm": batch_norm,
    "div": divide,
    "add": add,
    "sub": subtract,
    "cat": join,
    "stack": partial(join, stack=True),
    "square": square,
    "pow": power,
    "max_pool1d": max_pool(1),
    "max_pool2d": max_pool(2),
    "max_pool3d": max_pool(3),
    "adaptive_max_pool1d": adaptive_max_pool(1),
    "adaptive_max_pool2d": adaptive_max_pool(2),
    "adaptive_max_pool3d": adaptive_max_pool(3),
    "amax": extreme("amax"),
    "amin": extreme("amin"),
    "max": extreme("max"),
    "min": extreme("min"),
    "maximum": either,
    "minimum": either,
    "norm": vector_norm,
    "vector_norm": vector_norm,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "mul": multiply,
    "matmul": matmul,
    "einsum": einsum,
    "masked_fill": masked_fill,
    "scaled_dot_product_attention": attention,
    "multi_head_attention_forward": several_heads,
    "lstm": recurrent("LSTM"),
    "gru": recurrent("GRU"),
    "rnn_tanh": recurrent("RNN_TANH"),
    "rnn_relu": recurrent("RNN_RELU"),
    "getitem": item,
    **dict.fromkeys(
        ("where", "put", "setitem", "copy", "scatter", "index_put", "index_copy", "masked_scatter"),
        put_together,
    ),
    **{name: activation(name) for name in ACTIVATION_FACTS},
}
