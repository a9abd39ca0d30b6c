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

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from torchtheory.robustness.lipschitz.affine_operations import (
    add,
    affine,
    batch_norm,
    convolution,
    divide,
    function_of,
    item,
    join,
    linear,
    masked_fill,
    pad,
    subtract,
    transposed_convolution,
)
from torchtheory.robustness.lipschitz.entrywise_operations import (
    ACTIVATIONS,
    pointwise,
    power,
    square,
    steepness,
)
from torchtheory.robustness.lipschitz.maxima import (
    adaptive_max_pool,
    clamp,
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
from torchtheory.robustness.lipschitz.pointwise import pointwise_constant
from torchtheory.robustness.lipschitz.products import attention, einsum, glu, matmul, multiply
from torchtheory.robustness.lipschitz.watched_pass import Kind, Pass, Signal, signals_in

MOVES = {
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose",
    "movedim", "moveaxis", "swapaxes", "swapdims", "t", "contiguous", "clone", "detach", "flip",
    "roll", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "view_as", "reshape_as",
    "ravel", "alias",
}  # fmt: skip
SELECTS = {"select", "narrow", "chunk", "split", "unbind", "tensor_split", "diagonal"}
#: Affine in any one argument as long as the others are constants.
_AFFINE = {
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "mean", "sum", "cumsum", "pad", "interpolate", "upsample", "matmul",
    "mm", "bmm", "mv", "mul", "multiply", "neg", "negative", "add", "sub", "subtract", "rsub",
    "expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave", "index_select",
    "gather", "take_along_dim", "masked_fill", "where", "einsum", "unfold", "fold", "im2col",
    "tril", "triu", "stack", "cat", "concat", "concatenate", "hstack", "vstack", "lerp", "bilinear",
    "trace", "diff", "addmm", "baddbmm", "tensordot", "dot", "outer", "linear",
}  # fmt: skip
CASTS = {"to", "float", "double", "half", "bfloat16", "type", "type_as", "cpu", "cuda"}
DROPOUTS = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout",
    "feature_alpha_dropout",
}  # fmt: skip
DECISIONS = {
    "gt", "lt", "ge", "le", "eq", "ne", "argmax", "argmin", "item", "tolist", "numpy", "sort",
    "topk", "argsort", "nonzero", "any", "all", "isnan", "unique", "multinomial", "bernoulli",
}  # fmt: skip


def apply(watch: Pass, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What a torch function does to signals."""
    return followed(_made, watch, function, args, options)


def followed(
    made_of: Callable[[Pass, str, Any, tuple[Any, ...], dict[str, Any]], Any],
    watch: Pass,
    function: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """Run a rule for a torch function by its plain name; one that writes takes its place."""
    name, _, overload = getattr(function, "__name__", str(function)).partition(".")
    if name in ("batch_norm", "instance_norm") and (overload or function is getattr(torch, name)):
        # torch's own function and an exported one take weight and bias before the statistics
        x, weight, bias, mean, variance, *rest = args
        args, function = (x, mean, variance, weight, bias, *rest[:3]), getattr(F, name)
    for signal in signals_in((args, options)):
        signal.current()
    written = name.endswith("_") and not name.endswith("__")
    if written:
        name = name.rstrip("_")
        function = function_of(name)
    options = dict(options)
    written = options.pop("inplace", False) is True or written
    made = made_of(watch, name, function, args, options)
    if written and isinstance(made, Signal) and isinstance(args[0], Signal):
        return args[0].become(made)
    return made


def _made(
    watch: Pass, name: str, function: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    among = list(signals_in((args, options)))
    if name in CASTS:
        return args[0]
    if name in DROPOUTS:
        if options.get("training", args[2] if len(args) > 2 else True):
            raise watch.refuse("the network drops units at random")
        return args[0]
    if name in ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"):
        return function(among[0].value, *args[1:], **options)
    if name == "sym_size":  # of an exported program
        return among[0].shape[args[1]]
    if name in ("_assert_tensor_metadata", "_assert_async"):
        return None
    if name in DECISIONS:
        raise watch.refuse(f"the network decides by the numbers of its input ({name})")
    rule = _RULES.get(name)
    if rule is not None:
        made = rule(watch, *args, **options)
        if made is not NotImplemented:
            return made
    if name == "__getitem__":
        return item(watch, args[0], args[1])
    kind = _kind(name)
    if kind is not None and len(among) == 1:
        return affine(watch, function, kind, args, options)
    module = ACTIVATIONS.get(name)
    if module is not None:
        constant = pointwise_constant(module(args, options))
        return pointwise(watch, args[0], constant, name, args, options)
    raise watch.refuse(f"the network uses {name.strip('_')}, of which no bound is known here")


def _kind(name: str) -> Kind | None:
    if name in MOVES:
        return "moves"
    if name in SELECTS:
        return "selects"
    return "affine" if name in _AFFINE else None


_RULES: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "conv1d": convolution,
    "conv2d": convolution,
    "conv3d": convolution,
    "conv_transpose1d": transposed_convolution,
    "conv_transpose2d": transposed_convolution,
    "conv_transpose3d": transposed_convolution,
    "pad": pad,
    "batch_norm": batch_norm,
    "div": divide,
    "divide": divide,
    "true_divide": divide,
    "add": add,
    "sub": subtract,
    "subtract": subtract,
    "cat": join,
    "concat": join,
    "concatenate": join,
    "stack": lambda watch, tensors, dim=0: join(watch, tensors, dim, stack=True),
    "abs": steepness(1.0, "abs"),
    "sin": steepness(1.0, "sin"),
    "cos": steepness(1.0, "cos"),
    "atan": steepness(1.0, "atan"),
    "arctan": steepness(1.0, "atan"),
    "erf": steepness(2 / math.sqrt(math.pi), "erf"),
    "clamp": clamp,
    "clip": clamp,
    "clamp_min": steepness(1.0, "clamp_min"),
    "clamp_max": steepness(1.0, "clamp_max"),
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
    "maximum": lambda watch, a, b: either(watch, "maximum", a, b),
    "minimum": lambda watch, a, b: either(watch, "minimum", a, b),
    "norm": vector_norm,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "mul": multiply,
    "multiply": multiply,
    "matmul": matmul,
    "bmm": matmul,
    "einsum": einsum,
    "glu": glu,
    "masked_fill": masked_fill,
    "scaled_dot_product_attention": attention,
}
