"""The operators that an exported network may call, and what their arguments must be.

A graph from elsewhere chooses operators *and* arguments, and ATen trusts the callers of its inner
operators: some read as far as a number tells them to. Listed here is what forward passes of
ordinary networks need, as `torch.export` writes them down and as its `run_decompositions` does.
Those that do not look at all of their arguments are given a check of ours. What is not listed is
not called.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.exported_arguments import LARGEST_SIZE, Schema

Arguments = Mapping[str, Any]
Check = Callable[[Arguments], bool]

# Beyond this a kernel, stride or padding only serves to overflow.
_LARGEST_WINDOW = 2**24
# Of a stride, squared, times channels: oneDNN multiplies that by 16, and dies where it overflows.
_MOST_STRIDES = 2**26
# Most tensors one operator may take apart another into.
_MOST_PARTS = 2**16

#: Every overload of these that takes numbers and tensors; after a dot, this overload alone.
_ALLOWED = """
    abs acos acosh add addbmm addcdiv addcmul addmm addmv addr alias all amax amin aminmax angle any
    arange argmax argmin argsort asin asinh atan atan2 atanh
    baddbmm bitwise_and bitwise_not bitwise_or bitwise_xor bmm bucketize
    cat cdist _cdist_forward ceil clamp clamp_max clamp_min clone complex concat concatenate conj
    contiguous copy cos cosh cosine_similarity count_nonzero cummax cummin cumprod cumsum
    deg2rad detach diag diag_embed diagonal div divide dot
    einsum embedding eq erf erfc erfinv exp exp2 expand expand_as expm1 eye
    fft_fft fft_fft2 fft_fftn fft_ifft fft_ifft2 fft_ifftn fft_irfft fft_irfft2 fft_irfftn fft_rfft
    fft_rfft2 fft_rfftn fft_fftshift fft_ifftshift fill flatten flip fliplr flipud float_power floor
    floor_divide fmax fmin fmod frac full full_like
    gather ge greater greater_equal gt heaviside hypot
    imag index_add index_copy index_fill index_put index_select inner isfinite isin isinf isnan
    isneginf isposinf
    kron kthvalue le lerp less less_equal lgamma lift_fresh lift_fresh_copy linalg_norm
    linalg_vector_norm linear linspace log log10 log1p log2 logaddexp logaddexp2 logcumsumexp
    logical_and logical_not logical_or logical_xor logit logspace logsumexp lt
    mH mT masked_fill matmul matrix_exp linalg_matrix_exp max maximum mean median meshgrid min
    minimum mm moveaxis movedim mul multiply mv
    nan_to_num nanmean nansum narrow ne neg negative new_full new_ones new_zeros norm not_equal
    numpy_T
    ones ones_like outer pairwise_distance permute polar positive pow prod
    rad2deg rand rand_like randn randn_like real reciprocal remainder repeat
    repeat_interleave.self_int reshape reshape_as resolve_conj resolve_neg roll rot90 round rsqrt
    rsub
    scalar_tensor scatter scatter_add scatter_reduce select select_scatter sgn sigmoid sign signbit
    sin sinc sinh slice slice_scatter sort sqrt square squeeze stack std std_mean sub subtract sum
    sum_to_size swapaxes swapdims sym_numel sym_size sym_storage_offset sym_stride
    t take_along_dim tan tanh tensordot tile to _to_copy topk trace transpose tril tril_indices triu
    triu_indices true_divide trunc
    type_as unflatten unfold unsqueeze var var_mean vdot view.default _unsafe_view view_as
    view_as_complex view_as_real where.self where.ScalarSelf where.ScalarOther where.Scalar xlogy
    zeros zeros_like __and__ __or__ __xor__ as_strided.default

    celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid
    log_sigmoid_forward log_softmax _log_softmax mish prelu relu relu6 rrelu selu silu softmax
    _softmax _safe_softmax softplus softshrink threshold
    alpha_dropout dropout feature_alpha_dropout feature_dropout native_dropout
    layer_norm native_layer_norm group_norm rms_norm
    affine_grid_generator bilinear channel_shuffle gru_cell lstm_cell pixel_shuffle pixel_unshuffle
    rnn_relu_cell rnn_tanh_cell

    abs_ add_ addcdiv_ addcmul_ atan_ baddbmm_ bitwise_and_ bitwise_not_ bitwise_or_ ceil_ celu_
    clamp_ clamp_max_ clamp_min_ copy_ cos_ cumsum_ detach_ div_ dropout_ elu_ eq_ erf_ exp_ exp2_
    expm1_ fill_ floor_ floor_divide_ fmod_ ge_ gt_ hardsigmoid_ hardswish_ hardtanh_ index_add_
    index_copy_ index_fill_ index_put_ le_ leaky_relu_ lerp_ log_ log1p_ log2_ logical_and_
    logical_not_ logical_or_ logit_ lt_ masked_fill_ mish_ mul_ nan_to_num_ ne_ neg_ pow_
    reciprocal_ relu_ relu6_ remainder_ round_ rsqrt_ scatter_ scatter_add_ scatter_reduce_ selu_
    sigmoid_ sign_ silu_ sin_ sqrt_ square_ sub_ tanh_ threshold_ tril_ triu_ true_divide_ trunc_
    zero_
"""
#: Checks of what the exporter saw (its precision, say), which are not part of the function.
ASSERTIONS = re.compile(
    r"torch\.ops\.aten\.(_assert\w*|_functional_assert\w*|sym_constrain_range\w*)\.\w+"
)
_RESULTS = {"Tensor", "List[Tensor]", "number", "int", "float", "bool"}
# (of a generator there is only the default, as an archive cannot hold one)
_PLAIN = _RESULTS | {"str", "Device", "ScalarType", "Layout", "MemoryFormat", "complex", "SymInt"}
_PLAIN |= {"Generator"}


@dataclass(frozen=True)
class Operator:
    """What a node of a graph calls, and what its arguments must fulfill.

    Attributes:
        name: as the archive names it.
        function: takes the arguments of the archive, by name if there is a schema.
        schema: what each argument may be; None for functions of numbers, which look themselves.
        check: of arguments that fit the schema, and that ATen itself would not refuse.
        creates: whether it makes a tensor out of numbers, on a device that it must be told.
    """

    name: str
    function: Callable[..., Any]
    schema: Schema | None = None
    check: Check | None = None
    creates: bool = False

    def refuse_others(self, arguments: list[tuple[str, Any]]) -> None:
        """Refuse arguments that are not of the kinds, ranges and lengths that it takes."""
        if self.schema is not None:
            self.schema.refuse_others(arguments)

    def __call__(self, arguments: list[tuple[str, Any]]) -> Any:
        if self.schema is None:
            return self.function(*(value for _, value in arguments))
        named = dict(arguments)
        if self.check is not None and not _passes(self.check, named):
            raise UnsupportedModel(
                f"the exported network calls {self.name} with arguments that do not fit together"
            )
        return self.function(**named)


def _passes(check: Check, arguments: Arguments) -> bool:
    try:
        return check(arguments)
    except (LookupError, TypeError, AttributeError, ValueError):
        return False  # not even arguments of the right kind


@cache
def find_operator(target: str) -> Operator | None:
    """The operator of that name, or None where it is not to be called.

    >>> find_operator("torch.ops.aten.relu.default").function is torch.ops.aten.relu.default
    True
    >>> find_operator("torch.ops.aten._ctc_loss.default") is None
    True
    """
    if target in _ON_NUMBERS:
        return Operator(target, _ON_NUMBERS[target])
    match = re.fullmatch(r"torch\.ops\.aten\.(\w+)\.(\w+)", target)
    if match is None:
        return None
    name, overload = match[1], match[2]
    function = getattr(getattr(torch.ops.aten, name, None), overload, None)
    full = f"{name}.{overload}"
    listed = {name, full} & (_NAMES | _CHECKED.keys() | _IN_PLACE_OF.keys())
    if not listed or not isinstance(function, OpOverload) or not _is_plain(function):
        return None
    arguments = function._schema.arguments
    creates = not any("Tensor" in str(a.type) for a in arguments)
    creates &= any(a.name == "device" for a in arguments)
    return Operator(
        full,
        _spread(function) if name in _TRUSTING else _IN_PLACE_OF.get(full, function),
        Schema.of(full, arguments),
        _CHECKED.get(name),
        creates,
    )


def _is_plain(function: OpOverload) -> bool:
    """Whether an operator maps numbers and tensors to such, and writes to no output given to it.

    What TorchScript calls under a name of ATen (`remainder.int`, which divides by 0 if asked to) is
    none of them: it does not pass through the dispatcher, and nothing is exported to it.
    """
    schema = function._schema
    name = function.name()  # type: ignore[no-untyped-call]
    if not torch._C._dispatch_has_kernel(name):
        return False
    kinds = [re.sub(r"Optional\[(.*)\]", r"\1", str(a.type)) for a in schema.arguments]
    inner = [re.sub(r"List\[(?:Optional\[)?(\w+)\]*", r"\1", kind) for kind in kinds]
    return (
        bool(schema.returns)
        and all(str(r.type) in _RESULTS for r in schema.returns)
        and all(kind in _PLAIN for kind in inner)
        and not any(a.is_out for a in schema.arguments)
    )


# -- numbers ---------------------------------------------------------------------------------------


def _on_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers that refuses other things, and results that are not sizes."""

    def apply(*numbers: Any) -> Any:
        if not all(isinstance(n, int | float) and abs(n) <= LARGEST_SIZE for n in numbers):
            raise UnsupportedModel("the exported network computes with sizes that are none")
        if function is operator.pow and not _is_small_power(*numbers):
            raise UnsupportedModel("the exported network computes a power beyond any size")
        try:
            result = function(*numbers)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise UnsupportedModel(
                f"the exported network computes a size that does not exist: {error}"
            ) from None
        if isinstance(result, complex) or abs(result) > LARGEST_SIZE:
            raise UnsupportedModel("the exported network computes a number beyond any size")
        return result

    return apply


def _is_small_power(base: float, exponent: float) -> bool:
    return abs(exponent) <= 64 and abs(base) <= LARGEST_SIZE


def _item(values: Any, index: Any) -> Any:
    if not isinstance(values, list | tuple) or not isinstance(index, int):
        raise UnsupportedModel("the exported network takes a part of what has none")
    return values[index]


#: What a graph may compute with sizes; tensors are the business of ATen.
_ON_NUMBERS: dict[str, Callable[..., Any]] = {
    "_operator.getitem": _item,
    **{
        f"_operator.{name}": _on_numbers(getattr(operator, name))
        for name in (
            *("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pow", "pos"),
            *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_"),
        )
    },
    **{
        f"math.{name}": _on_numbers(getattr(math, name))
        for name in ("ceil", "floor", "trunc", "sqrt")
    },
    **{
        f"torch.{name}": _on_numbers(getattr(torch, name))
        for name in ("sym_int", "sym_float", "sym_max", "sym_min", "sym_not", "sym_ite")
    },
}


# -- arguments that ATen does not look at ----------------------------------------------------------


def _small_windows(given: Arguments) -> bool:
    numbers = (n for value in given.values() for n in _each(value))
    return all(abs(n) <= _LARGEST_WINDOW for n in numbers if isinstance(n, int))


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _convolves(given: Arguments) -> bool:
    """Strides whose square, times the channels, oneDNN can count: it does so in 32 bits."""
    weight: Tensor = given["weight"]
    strides = [n for n in _each(given.get("stride", 1)) if isinstance(n, int)]
    widest = max(map(abs, strides), default=1)
    channels = max(given["input"].shape[1:2] + weight.shape[:2], default=0)
    return _small_windows(given) and widest**2 * channels <= _MOST_STRIDES


def _one_entry_per_channel(given: Arguments) -> bool:
    x = given["input"]
    names = ("weight", "bias", "running_mean", "running_var")
    own = [t for name in names if (t := given.get(name)) is not None]
    return x.ndim >= 2 and all(t.shape == x.shape[1:2] for t in own)


def _sizes_of_the_groups(given: Arguments) -> bool:
    x, channels, groups = given["input"], given["C"], given["group"]
    sizes = (given["N"], channels, math.prod(x.shape[2:]))
    own = [t for name in ("weight", "bias") if (t := given.get(name)) is not None]
    return (
        x.ndim >= 2
        and sizes == (*x.shape[:2], given["HxW"])
        and all(t.shape == (channels,) for t in own)
        and groups > 0
        and channels % groups == 0
    )


def _recurrent(gates: int) -> Check:
    """Weights of the shapes that states and inputs have: the fast kernels read what they expect."""

    def fits(given: Arguments) -> bool:
        x, states = given["input"], list(_each(given["hx"]))
        if x.ndim != 3 or len(states) != (2 if gates == 4 else 1):
            return False
        sides, layers = 1 + bool(given["bidirectional"]), given["num_layers"]
        batch = x.shape[0 if given["batch_first"] else 1]
        out, hidden = states[0].shape[-1], states[-1].shape[-1]
        rows = [(sides * layers, batch, size) for size in (out, hidden)]
        if any(s.shape != row for s, row in zip(states, rows[-len(states) :], strict=True)):
            return False
        expected: list[tuple[int, ...]] = []
        for layer in range(layers):
            inner = x.shape[2] if layer == 0 else sides * out
            one: list[tuple[int, ...]] = [(gates * hidden, inner), (gates * hidden, out)]
            one += [(gates * hidden,)] * 2 * bool(given["has_biases"])
            one += [(out, hidden)] * (out != hidden)
            expected += one * sides
            if len(expected) > len(given["params"]):
                return False
        kinds = {t.dtype for t in (x, *states, *given["params"])}
        return [tuple(p.shape) for p in given["params"]] == expected and len(kinds) == 1

    return fits


def _attention(given: Arguments) -> bool:
    query, key, value = given["query"], given["key"], given["value"]
    if not query.ndim == key.ndim == value.ndim >= 2:
        return False
    mask = given.get("attn_mask")
    scores = (*query.shape[:-1], key.shape[-2])
    return (
        query.shape[-1] == key.shape[-1]
        and key.shape[:-1] == value.shape[:-1]
        and (mask is None or _stretches_to(mask.shape, scores))
    )


def _fused_attention(given: Arguments) -> bool:
    query, key, value = given["query"], given["key"], given["value"]
    return (
        _attention(given)
        and query.ndim == 4
        and query.shape[:2] == key.shape[:2]
        and query.shape[3] == value.shape[3]
    )


def _stretches_to(shape: Iterable[int], target: tuple[int, ...]) -> bool:
    sizes = tuple(shape)
    if len(sizes) > len(target):
        return False
    pairs = zip(sizes[::-1], target[::-1], strict=False)
    return all(size in (1, wanted) for size, wanted in pairs)


def _scales_agree(given: Arguments) -> bool:
    """Scales that lead to the size given: pixels are looked up where the scale says."""
    x: Tensor = given["input"] if "input" in given else given["self"]
    inner = x.shape[2:]
    names = ("scales", "scales_d", "scales_h", "scales_w")
    scales = given.get("scale_factors") or [given[n] for n in names if given.get(n) is not None]
    sizes = given.get("output_size")
    if not _small_windows(given) or not inner or 0 in inner:
        return False
    if any(not (math.isfinite(s) and 0 < s <= _LARGEST_WINDOW) for s in scales):
        return False
    if len(scales) not in (0, len(inner)) or (sizes is not None and len(sizes) != len(inner)):
        return False
    if not scales or sizes is None:
        return True
    return all(abs(i * s - n) <= 1 for i, s, n in zip(inner, scales, sizes, strict=True))


def _known_modes(given: Arguments) -> bool:
    x, grid = given["input"], given["grid"]
    modes = given["interpolation_mode"], given["padding_mode"]
    return (
        all(mode in (0, 1, 2) for mode in modes)
        and x.ndim in (4, 5)
        and grid.ndim == x.ndim
        and grid.shape[0] == x.shape[0]
        and grid.shape[-1] == x.ndim - 2
    )


def _one_length_per_direction(given: Arguments) -> bool:
    directions, lengths, dim = given["v"], given["g"], given.get("dim", 0)
    if dim == -1:
        return bool(lengths.numel() == 1)
    return bool(0 <= dim < directions.ndim and lengths.numel() == directions.shape[dim])


def _axes(given: Arguments) -> bool:
    x, axes = given["self"], list(given["dim"])
    if not axes or len(set(axes)) != len(axes) or not all(0 <= a < x.ndim for a in axes):
        return False
    last = given.get("last_dim_size")  # of the real signal; the complex one has half of it
    return last is None or x.shape[axes[-1]] == last // 2 + 1


def _few_parts(given: Arguments) -> bool:
    x, dim = given["self"], given.get("dim", 0)
    if any(isinstance(value, list) for value in given.values()):
        return True  # as many as the graph lists
    if not -x.ndim <= dim < x.ndim:
        return False
    if (size := given.get("split_size")) is not None:
        return bool(size > 0 and x.shape[dim] // size < _MOST_PARTS)
    count = given.get("chunks", given.get("sections", x.shape[dim]))
    return bool(count <= _MOST_PARTS)


def _no_masks(given: Arguments) -> bool:
    """Indices that are numbers: how many entries a mask selects depends on its values."""
    masks = (torch.bool, torch.uint8)
    return all(i is None or i.dtype not in masks for i in given["indices"])


def _bags(given: Arguments) -> bool:
    """Bags that begin one after the other within the indices, which are rows of the table."""
    table, indices, starts = given["weight"], given["indices"], given["offsets"]
    own = given.get("per_sample_weights")
    shapes = (
        table.ndim == 2
        and indices.ndim == starts.ndim == 1
        and given.get("mode", 0) in (0, 1, 2)
        and (own is None or own.shape == indices.shape)
    )
    if not shapes or indices.device.type == "meta":
        return bool(shapes)
    ordered = len(starts) > 0 and starts[0] == 0 and bool((starts.diff() >= 0).all())
    inside = bool(((indices >= 0) & (indices < len(table))).all())
    return bool(ordered and inside and starts[-1] <= len(indices))


def _counted_classes(given: Arguments) -> bool:
    return bool(0 < given.get("num_classes", -1) <= LARGEST_SIZE)


_CHECKED: dict[str, Check] = {
    "batch_norm": _one_entry_per_channel,
    "instance_norm": _one_entry_per_channel,
    "native_batch_norm": _one_entry_per_channel,
    "_native_batch_norm_legit": _one_entry_per_channel,
    "_native_batch_norm_legit_no_training": _one_entry_per_channel,
    "native_group_norm": _sizes_of_the_groups,
    "lstm": _recurrent(4),
    "gru": _recurrent(3),
    "rnn_tanh": _recurrent(1),
    "rnn_relu": _recurrent(1),
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _fused_attention,
    "grid_sampler": _known_modes,
    "grid_sampler_2d": _known_modes,
    "grid_sampler_3d": _known_modes,
    "_weight_norm": _one_length_per_direction,
    "_fft_c2c": _axes,
    "_fft_c2r": _axes,
    "_fft_r2c": _axes,
    "embedding_bag": _bags,
    "index": _no_masks,
    "one_hot": _counted_classes,
    **dict.fromkeys(
        ("chunk", "split", "split_with_sizes", "tensor_split", "unbind", "unsafe_chunk"),
        _few_parts,
    ),
    **dict.fromkeys(
        """
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution
        """.split(),
        _convolves,
    ),
    **dict.fromkeys(
        """
        avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices
        max_pool2d_with_indices max_pool3d_with_indices adaptive_avg_pool1d adaptive_avg_pool2d
        adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool1d
        adaptive_max_pool2d adaptive_max_pool3d pad constant_pad_nd reflection_pad1d
        reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
        im2col col2im
        """.split(),
        _small_windows,
    ),
    **dict.fromkeys(
        """
        upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d
        upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa
        _upsample_bicubic2d_aa
        """.split(),
        _scales_agree,
    ),
}
_NAMES = frozenset(_ALLOWED.split())


# -- memory that a kernel walks through without looking at strides ---------------------------------


def _spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same of tensors that have all their entries in memory, one beside the other or not.

    An expanded tensor has fewer numbers in memory than entries; a kernel that takes them to lie in
    a row reads what comes behind.
    """

    def apply(**given: Any) -> Any:
        return function(**{name: _written_out(value) for name, value in given.items()})

    return apply


def _written_out(value: Any) -> Any:
    if isinstance(value, list):
        return [_written_out(v) for v in value]
    if not isinstance(value, Tensor):
        return value
    last = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return value.contiguous() if last + 1 < value.numel() else value


_TRUSTING = frozenset(
    """
    median native_group_norm native_layer_norm native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training _scaled_dot_product_flash_attention_for_cpu _weight_norm
    _cdist_forward _fft_c2c _fft_c2r _fft_r2c
    """.split()
)


# -- memory that nobody wrote ----------------------------------------------------------------------


def _zeros(size: list[int], **options: Any) -> Tensor:
    kept = {k: v for k, v in options.items() if k in ("dtype", "device")}
    return torch.zeros(size, **kept)


#: What an exporter writes for memory it fills later holds zeros here, never what lay there before.
_IN_PLACE_OF: dict[str, Callable[..., Any]] = {
    "empty.memory_format": _zeros,
    "empty_permuted.default": _zeros,
    "empty_like.default": torch.ops.aten.zeros_like.default,
    "new_empty.default": torch.ops.aten.new_zeros.default,
}
