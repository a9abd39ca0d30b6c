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

from torchtheory.tracing.network import (
    BatchSize,
    Network,
    Operation,
    Value,
    leaves,
    mapped,
    pair_up,
)

Arguments = dict[str, Any]
#: Makes a layer out of bound arguments, in which a `Value` stands for a tensor.
Maker = Callable[[Arguments], nn.Module | None]

#: Tensors of a layer: the names that its operation gives them, which are its own as well.
_TENSORS = ("weight", "bias", "running_mean", "running_var")


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
            bound = self._as_linear(bound)
        return self._with_weights(_LAYERS.get(op.name), bound, following[0])

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
        weights = {k: bound[k] for k in _TENSORS if isinstance(bound.get(k), Value)}
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

# --------------------------------------------------------------------- what is a layer of torch


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
    return nn.Embedding(*a["weight"].shape, padding_idx=padding, device="meta")


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
    numbers = isinstance(low, int | float) and isinstance(high, int | float) and low < high
    return nn.Hardtanh(low, high) if numbers else None


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
_LAYERS: dict[str, Maker] = {
    "linear": _linear, "matmul": _linear, "addmm": _linear,
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
    "pad": _pad, "interpolate": _upsampling, "upsample_nearest1d": _nearest,
    "upsample_nearest2d": _nearest, "upsample_nearest3d": _nearest,
    "pixel_shuffle": _called(nn.PixelShuffle, "upscale_factor"),
    "pixel_unshuffle": _called(nn.PixelUnshuffle, "downscale_factor"),
    "channel_shuffle": _called(nn.ChannelShuffle, "groups"),
    "windows": _flat(nn.Unfold, "kernel_size", "dilation", "padding", "stride"),
}  # fmt: skip
