"""The layer of `torch.nn` that a function is: `F.relu` is `nn.ReLU`.

One table for functions that a network calls and for operators of an exported one. A layer is made
from the arguments of the function, without its weights: whoever asks puts these in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

#: Arguments of a function by name, of which weights need only have a shape; `ndim` is that of what
#: it is applied to.
Arguments = dict[str, Any]
#: Makes a layer out of them, or None where `torch.nn` has none.
Maker = Callable[[Arguments], nn.Module | None]

#: Tensors of a layer: the names that its function gives them, which are its own as well.
TENSORS = ("weight", "bias", "running_mean", "running_var")


def _called(kind: Callable[..., nn.Module], names: str = "", **wanted: Any) -> Maker:
    """A layer that takes arguments under the names that its operation gives them.

    Args:
        kind: the layer's class.
        names: of the arguments.
        wanted: other arguments of the operation, which the layer has no choice about.
    """

    def make(a: Arguments) -> nn.Module | None:
        if any(a.get(k, v) != v for k, v in wanted.items()):
            return None
        return kind(**{k: a[k] for k in names.split() if k in a})

    return make


def _linear(a: Arguments) -> nn.Module | None:
    weight = a["weight"]
    if len(weight.shape) != 2:
        return None
    out, inner = weight.shape
    return nn.Linear(inner, out, bias=a.get("bias") is not None, device="meta")


def _each(value: Any, count: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * count if len(values) == 1 else values


def _convolution(kind: Any) -> Maker:
    def make(a: Arguments) -> nn.Module | None:
        weight, groups = a["weight"].shape, a["groups"]
        space = len(weight) - 2
        if a["ndim"] != space + 2:
            return None
        names = ("stride", "padding", "dilation", "output_padding")
        sizes = {k: a[k] if isinstance(a[k], str) else _each(a[k], space) for k in names if k in a}
        channels = (weight[1] * groups, weight[0])
        if "output_padding" in a:  # of a transposed one
            channels = (weight[0], weight[1] * groups)
        bias = a.get("bias") is not None
        layer: nn.Module = kind(
            *channels, tuple(weight[2:]), groups=groups, bias=bias, device="meta", **sizes
        )
        return layer

    return make


def _batch_norm(a: Arguments) -> nn.Module | None:
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    mean = a.get("running_mean")
    if a.get("training") or mean is None or a["ndim"] not in kinds:
        return None
    if (a.get("weight") is None) != (a.get("bias") is None):
        return None
    affine, momentum = a.get("weight") is not None, float(a.get("momentum") or 0.1)
    return kinds[a["ndim"]](
        mean.shape[0], eps=float(a["eps"]), momentum=momentum, affine=affine, device="meta"
    )


def _layer_norm(a: Arguments) -> nn.Module | None:
    affine, bias = (a.get(k) is not None for k in ("weight", "bias"))
    if bias and not affine:
        return None
    shape, eps = list(a["normalized_shape"]), float(a["eps"])
    return nn.LayerNorm(shape, eps, elementwise_affine=affine, bias=bias, device="meta")


def _rms_norm(a: Arguments) -> nn.Module | None:
    shape, affine = list(a["normalized_shape"]), a.get("weight") is not None
    return nn.RMSNorm(shape, a.get("eps"), elementwise_affine=affine, device="meta")


def _group_norm(a: Arguments) -> nn.Module | None:
    if a.get("weight") is None or a.get("bias") is None:
        return None
    channels = a["weight"].shape[0]
    return nn.GroupNorm(a["num_groups"], channels, eps=float(a["eps"]), device="meta")


def _instance_norm(a: Arguments) -> nn.Module | None:
    kinds = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
    if a.get("running_mean") is not None or a["ndim"] not in kinds or a.get("weight") is None:
        return None
    channels = a["weight"].shape[0]
    return kinds[a["ndim"]](channels, eps=float(a["eps"]), affine=True, device="meta")


def _prelu(a: Arguments) -> nn.Module | None:
    weight = a["weight"].shape
    return nn.PReLU(math.prod(weight), device="meta") if len(weight) == 1 else None


def _embedding(a: Arguments) -> nn.Module | None:
    if a.get("max_norm") is not None:
        return None  # it writes to its weights
    padding = a.get("padding_idx")
    padding = None if padding in (None, -1) else padding
    count, size = a["weight"].shape
    return nn.Embedding(count, size, padding_idx=padding, device="meta")


def _pool(kind: Any) -> Maker:
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "count_include_pad",
             "divisor_override")  # fmt: skip

    def make(a: Arguments) -> nn.Module | None:
        if a.get("return_indices"):
            return None
        given = {k: a[k] for k in names if k in a}
        given["stride"] = given.get("stride") or given["kernel_size"]  # aten has [] for none
        given = {k: _plainly(v) for k, v in given.items()}
        layer: nn.Module = kind(**given)
        return layer

    return make


def _plainly(value: Any) -> Any:
    """Equal sizes as one number, as people write them."""
    if not isinstance(value, list | tuple):
        return value
    return value[0] if len(set(value)) == 1 else tuple(value)


def _adaptive(kind: Any) -> Maker:
    def make(a: Arguments) -> nn.Module | None:
        size = a["output_size"]
        sizes = _plainly(size) if isinstance(size, list | tuple) else size
        layer: nn.Module = kind(sizes)
        return None if a.get("return_indices") else layer

    return make


def _pad(a: Arguments) -> nn.Module | None:
    sides = tuple(a["pad"])
    count, mode, value = len(sides) // 2, a.get("mode", "constant"), a.get("value")
    if mode == "constant" and not value:
        kind = f"ZeroPad{count}d"
        made: Any = getattr(nn, kind, None)
        return None if made is None else made(sides)
    names = {"constant": "Constant", "reflect": "Reflection", "replicate": "Replication",
             "circular": "Circular"}  # fmt: skip
    made = getattr(nn, f"{names.get(mode, '')}Pad{count}d", None)
    if made is None:
        return None
    layer: nn.Module = made(sides, value) if mode == "constant" else made(sides)
    return layer


def _clamp(a: Arguments) -> nn.Module | None:
    low, high = a.get("min"), a.get("max")
    if low == 0 and high is None:
        return nn.ReLU()
    if not isinstance(low, int | float) or not isinstance(high, int | float) or low >= high:
        return None
    return nn.Hardtanh(low, high)


def _upsampling(a: Arguments) -> nn.Module | None:
    if a.get("antialias") or a.get("recompute_scale_factor"):
        return None
    size, scale = a.get("size"), a.get("scale_factor")
    if isinstance(size, list | tuple):
        size = tuple(size)
    scale = tuple(scale) if isinstance(scale, list | tuple) else scale
    return nn.Upsample(size, scale, a.get("mode", "nearest"), a.get("align_corners"))


def _nearest(a: Arguments) -> nn.Module | None:
    scale = a.get("scale_factors")  # of an exported network
    if a.get("output_size") is not None or not scale:
        return None
    return nn.Upsample(scale_factor=_plainly(scale))


def _dropout(kind: Any) -> Maker:
    def make(a: Arguments) -> nn.Module | None:
        layer: nn.Module = kind(float(a["p"]))
        return None if a.get("training", a.get("train", True)) else layer

    return make


def _flat(kind: Any, *names: str) -> Maker:
    def make(a: Arguments) -> nn.Module | None:
        layer: nn.Module = kind(*(_plainly(a[k]) for k in names))
        return layer

    return make


#: Plain name -> the layer that does the same.
LAYERS: dict[str, Maker] = {
    "linear": _linear,
    "conv1d": _convolution(nn.Conv1d), "conv2d": _convolution(nn.Conv2d),
    "conv3d": _convolution(nn.Conv3d), "conv_transpose1d": _convolution(nn.ConvTranspose1d),
    "conv_transpose2d": _convolution(nn.ConvTranspose2d),
    "conv_transpose3d": _convolution(nn.ConvTranspose3d),
    "batch_norm": _batch_norm, "layer_norm": _layer_norm, "rms_norm": _rms_norm,
    "group_norm": _group_norm, "instance_norm": _instance_norm,
    "local_response_norm": _called(nn.LocalResponseNorm, "size alpha beta k"),
    "embedding": _embedding,
    "relu": _called(nn.ReLU), "relu6": _called(nn.ReLU6), "tanh": _called(nn.Tanh),
    "sigmoid": _called(nn.Sigmoid), "silu": _called(nn.SiLU), "mish": _called(nn.Mish),
    "selu": _called(nn.SELU), "softsign": _called(nn.Softsign),
    "logsigmoid": _called(nn.LogSigmoid), "tanhshrink": _called(nn.Tanhshrink),
    "hardsigmoid": _called(nn.Hardsigmoid), "hardswish": _called(nn.Hardswish),
    "gelu": _called(nn.GELU, "approximate"),
    "elu": _called(nn.ELU, "alpha", scale=1, input_scale=1), "celu": _called(nn.CELU, "alpha"),
    "leaky_relu": _called(nn.LeakyReLU, "negative_slope"), "prelu": _prelu,
    "softplus": _called(nn.Softplus, "beta threshold"),
    "hardtanh": _called(nn.Hardtanh, "min_val max_val"), "clamp": _clamp, "clamp_min": _clamp,
    "softshrink": _called(nn.Softshrink, "lambd"), "hardshrink": _called(nn.Hardshrink, "lambd"),
    "threshold": _called(nn.Threshold, "threshold value"),
    "softmax": _called(nn.Softmax, "dim", dtype=None, half_to_float=False),
    "log_softmax": _called(nn.LogSoftmax, "dim", dtype=None, half_to_float=False),
    "softmin": _called(nn.Softmin, "dim", dtype=None), "glu": _called(nn.GLU, "dim"),
    "dropout": _dropout(nn.Dropout), "dropout1d": _dropout(nn.Dropout1d),
    "dropout2d": _dropout(nn.Dropout2d), "dropout3d": _dropout(nn.Dropout3d),
    "alpha_dropout": _dropout(nn.AlphaDropout), "feature_dropout": _dropout(nn.Dropout2d),
    "max_pool1d": _pool(nn.MaxPool1d), "max_pool2d": _pool(nn.MaxPool2d),
    "max_pool3d": _pool(nn.MaxPool3d), "avg_pool1d": _pool(nn.AvgPool1d),
    "avg_pool2d": _pool(nn.AvgPool2d), "avg_pool3d": _pool(nn.AvgPool3d),
    "adaptive_avg_pool1d": _adaptive(nn.AdaptiveAvgPool1d),
    "adaptive_avg_pool2d": _adaptive(nn.AdaptiveAvgPool2d),
    "adaptive_avg_pool3d": _adaptive(nn.AdaptiveAvgPool3d),
    "adaptive_max_pool1d": _adaptive(nn.AdaptiveMaxPool1d),
    "adaptive_max_pool2d": _adaptive(nn.AdaptiveMaxPool2d),
    "adaptive_max_pool3d": _adaptive(nn.AdaptiveMaxPool3d),
    "flatten": _called(nn.Flatten, "start_dim end_dim"),
    "pad": _pad, "interpolate": _upsampling, "upsample_nearest1d": _nearest,
    "upsample_nearest2d": _nearest, "upsample_nearest3d": _nearest,
    "pixel_shuffle": _called(nn.PixelShuffle, "upscale_factor"),
    "pixel_unshuffle": _called(nn.PixelUnshuffle, "downscale_factor"),
    "channel_shuffle": _called(nn.ChannelShuffle, "groups"),
    "windows": _flat(nn.Unfold, "kernel_size", "dilation", "padding", "stride"),
}  # fmt: skip
