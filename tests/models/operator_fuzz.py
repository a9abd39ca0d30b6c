"""Every operator that an archive may call, with arguments that an archive may give it.

Calls are drawn from an operator's schema (from a table where shapes must fit together), bent, and
put into a graph that is read and run like any other, with its gradient. The process that does so
must live: tensors of the archive end where memory ends, so that reading or writing past them is
seen. `python tests/models/operator_fuzz.py` tries them all and prints what died, `--calls` of each.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import random
import re
import resource
import signal
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchtheory.core import memory
from torchtheory.models import exported_operators
from torchtheory.models.exported import ExportedNetwork
from torchtheory.models.exported_archive import TYPES

#: Bytes that the tensors of a graph may take, and bytes that a process may; seconds of one call.
SPARE = 2**26
MOST_MEMORY = 3 * 2**30
TOO_LONG = 20

NUMBERS = {dtype: number for number, dtype in TYPES.items()}
FLOATS = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Array:
    """A tensor of the archive: indices run up to `below`, and strides may be anything inside."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    below: int = 0
    bent: str = ""


def array(*shape: int, dtype: torch.dtype = torch.float32) -> Array:
    return Array(shape, dtype)


def indices(*shape: int, below: int, dtype: torch.dtype = torch.int64) -> Array:
    return Array(shape, dtype, below)


Given = dict[str, Any]
X3, X4, X5 = array(2, 3, 8), array(2, 3, 8, 7), array(2, 3, 6, 5, 4)


def _recurrent(gates: int, state: Any, **more: Any) -> Given:
    sizes = (array(gates * 3, 4), array(gates * 3, 3), array(gates * 3), array(gates * 3))
    return {
        "input": array(2, 5, 4), "hx": state, "params": list(sizes), "has_biases": True,
        "num_layers": 1, "dropout": 0.0, "train": False, "bidirectional": False,
        "batch_first": True, **more,
    }  # fmt: skip


def _cell(gates: int, state: Any) -> Given:
    return {
        "input": array(2, 4), "hx": state, "w_ih": array(gates * 3, 4), "w_hh": array(gates * 3, 3),
        "b_ih": array(gates * 3), "b_hh": array(gates * 3),
    }  # fmt: skip


def _norm(x: Array, **more: Any) -> Given:
    own = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), array(3))
    return {"input": x, **own, "momentum": 0.1, "eps": 1e-5, **more}


def _windows(inputs: dict[int, Array], name: str = "self", **more: Any) -> dict[int, Given]:
    return {
        n: {name: x, **{k: [v] * n if isinstance(v, int) else v for k, v in more.items()}}
        for n, x in inputs.items()
    }


def _table() -> dict[str, Given]:
    spaces = {1: X3, 2: X4, 3: X5}
    table: dict[str, Given] = {}
    for n, x in spaces.items():
        window = {"kernel_size": [2] * n, "stride": [2] * n, "padding": [1] * n}
        kernel = {"input": x, "weight": array(4, 3, *[2] * n), "bias": array(4)}
        for name in (f"max_pool{n}d", f"max_pool{n}d_with_indices"):
            table[name] = {"self": x, **window, "dilation": [1] * n, "ceil_mode": False}
        table[f"avg_pool{n}d"] = {"self": x, **window, "ceil_mode": True, "count_include_pad": True}
        for name in (f"adaptive_avg_pool{n}d", f"_adaptive_avg_pool{n}d", f"adaptive_max_pool{n}d"):
            table[name] = {"self": x, "output_size": [3] * n}
        table[f"conv{n}d"] = {
            **kernel, "stride": [1] * n, "padding": [1] * n, "dilation": [2] * n, "groups": 1
        }  # fmt: skip
        table[f"conv{n}d.padding"] = {**kernel, "padding": "same"}
        table[f"conv_transpose{n}d"] = {
            "input": x, "weight": array(3, 4, *[2] * n), "bias": array(4), "stride": [2] * n,
            "padding": [1] * n, "output_padding": [1] * n, "groups": 1, "dilation": [1] * n,
        }  # fmt: skip
        table[f"reflection_pad{n}d"] = {"self": x, "padding": [1, 2] * n}
        table[f"replication_pad{n}d"] = {"self": x, "padding": [1, 2] * n}
        up = f"upsample_{('linear1d', 'bilinear2d', 'trilinear3d')[n - 1]}"
        names = [up, f"upsample_nearest{n}d", f"_upsample_nearest_exact{n}d"]
        if n == 2:
            names += ["upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]
        scales = ["scales"] if n == 1 else [f"scales_{c}" for c in "dhw"[3 - n :]]
        for name in names:
            corners = {} if "nearest" in name else {"align_corners": False}
            size = [2 * s for s in x.shape[2:]]
            table[name] = {"self": x, "output_size": size, **corners, **dict.fromkeys(scales, 2.0)}
            table[f"{name}.vec"] = {
                "input": x, "output_size": None, **corners, "scale_factors": [2.0] * n
            }  # fmt: skip
    grids = {"interpolation_mode": 0, "padding_mode": 0, "align_corners": False}
    query = array(2, 2, 5, 4)
    table |= {
        "convolution": {
            "input": X4, "weight": array(4, 3, 3, 3), "bias": array(4), "stride": [1, 1],
            "padding": [1, 1], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0],
            "groups": 1,
        },
        "im2col": {
            "self": X4, "kernel_size": [2, 3], "dilation": [1, 1], "padding": [1, 1],
            "stride": [1, 1],
        },
        "col2im": {
            "self": array(2, 12, 20), "output_size": [5, 6], "kernel_size": [2, 2],
            "dilation": [1, 1], "padding": [0, 0], "stride": [1, 1],
        },
        "constant_pad_nd": {"self": X4, "pad": [1, 2, 0, 1], "value": 0},
        "pad": {"self": X4, "pad": [1, 2, 1, 1], "mode": "reflect", "value": None},
        "lstm.input": _recurrent(4, [array(1, 2, 3), array(1, 2, 3)]),
        "gru.input": _recurrent(3, array(1, 2, 3)),
        "rnn_tanh.input": _recurrent(1, array(1, 2, 3)),
        "rnn_relu.input": _recurrent(1, array(1, 2, 3)),
        "lstm_cell": _cell(4, [array(2, 3), array(2, 3)]),
        "gru_cell": _cell(3, array(2, 3)),
        "rnn_tanh_cell": _cell(1, array(2, 3)),
        "rnn_relu_cell": _cell(1, array(2, 3)),
        "batch_norm": _norm(X4, training=False, cudnn_enabled=True),
        "instance_norm": _norm(X4, use_input_stats=True, cudnn_enabled=True),
        "native_batch_norm": _norm(X4, training=False),
        "_native_batch_norm_legit": _norm(X4, training=False),
        "_native_batch_norm_legit.no_stats": {
            "input": X4, "weight": array(3), "bias": array(3), "training": True, "momentum": 0.1,
            "eps": 1e-5,
        },
        "_native_batch_norm_legit_no_training": _norm(X4),
        "layer_norm": {
            "input": X3, "normalized_shape": [8], "weight": array(8), "bias": array(8)
        },
        "native_layer_norm": {
            "input": X3, "normalized_shape": [8], "weight": array(8), "bias": array(8), "eps": 1e-5
        },
        "rms_norm": {"input": X3, "normalized_shape": [8], "weight": array(8)},
        "group_norm": {
            "input": array(2, 4, 5), "num_groups": 2, "weight": array(4), "bias": array(4)
        },
        "native_group_norm": {
            "input": array(2, 4, 5), "weight": array(4), "bias": array(4), "N": 2, "C": 4,
            "HxW": 5, "group": 2, "eps": 1e-5,
        },
        "scaled_dot_product_attention": {
            "query": query, "key": query, "value": query, "attn_mask": array(5, 5)
        },
        "_scaled_dot_product_flash_attention_for_cpu": {
            "query": query, "key": query, "value": query, "attn_mask": array(5, 5)
        },
        "grid_sampler": {"input": X4, "grid": array(2, 5, 6, 2), **grids},
        "grid_sampler_2d": {"input": X4, "grid": array(2, 5, 6, 2), **grids},
        "grid_sampler_3d": {"input": X5, "grid": array(2, 3, 5, 6, 3), **grids},
        "affine_grid_generator": {
            "theta": array(2, 2, 3), "size": [2, 3, 5, 6], "align_corners": False
        },
        "embedding": {"weight": array(9, 4), "indices": indices(2, 3, below=9), "padding_idx": 1},
        "embedding_bag": {
            "weight": array(9, 4), "indices": indices(6, below=9), "offsets": indices(3, below=1),
            "mode": 1, "per_sample_weights": None,
        },
        "one_hot": {"self": indices(2, 3, below=5), "num_classes": 5},
        "_weight_norm": {"v": array(4, 3), "g": array(4, 1), "dim": 0},
        "_fft_c2c": {
            "self": array(2, 8, dtype=torch.complex64), "dim": [1], "normalization": 0,
            "forward": True,
        },
        "_fft_c2r": {
            "self": array(2, 5, dtype=torch.complex64), "dim": [1], "normalization": 2,
            "last_dim_size": 8,
        },
        "_fft_r2c": {"self": array(2, 8), "dim": [1], "normalization": 1, "onesided": True},
        "linear": {"input": array(2, 5, 4), "weight": array(3, 4), "bias": array(3)},
        "bilinear": {
            "input1": array(2, 3), "input2": array(2, 4), "weight": array(5, 3, 4),
            "bias": array(5),
        },
        "einsum": {"equation": "bij,bjk->bik", "tensors": [array(2, 3, 4), array(2, 4, 5)]},
        "tensordot": {
            "self": array(2, 3, 4), "other": array(4, 3), "dims_self": [2], "dims_other": [0]
        },
        "prelu": {"self": X4, "weight": array(3)},
        "pixel_shuffle": {"self": array(2, 8, 3, 3), "upscale_factor": 2},
        "pixel_unshuffle": {"self": array(2, 2, 6, 6), "downscale_factor": 2},
        "channel_shuffle": {"self": array(2, 4, 3, 3), "groups": 2},
        "view_as_complex": {"self": array(3, 4, 2)},
        "view": {"self": array(4, 6), "size": [-1, 3]},
        "_unsafe_view": {"self": array(4, 6), "size": [8, 3]},
        "reshape": {"self": array(4, 6), "size": [-1, 3]},
        "unflatten": {"self": array(4, 6), "dim": 1, "sizes": [2, 3]},
        "unfold": {"self": array(4, 6), "dimension": 1, "size": 3, "step": 2},
        "as_strided": {"self": array(4, 6), "size": [3, 3], "stride": [6, 1], "storage_offset": 2},
        "expand": {"self": array(1, 6), "size": [4, 6]},
        "permute": {"self": array(2, 3, 4), "dims": [2, 0, 1]},
        "scatter": _scattered(), "scatter_": _scattered(), "scatter_add": _scattered(),
        "scatter_add_": _scattered(), "scatter_reduce": _scattered(reduce="amax"),
        "scatter_reduce_": _scattered(reduce="mean"),
        "scatter.reduce": _scattered(reduce="add"), "scatter_.reduce": _scattered(reduce="add"),
        "scatter.value": _scattered(value=2.0), "scatter_.value": _scattered(value=2.0),
        "scatter.value_reduce": _scattered(value=2.0, reduce="multiply"),
        "scatter_.value_reduce": _scattered(value=2.0, reduce="multiply"),
        "gather": {"self": array(4, 6), "dim": 1, "index": indices(4, 2, below=6)},
        "take_along_dim": {"self": array(4, 6), "indices": indices(4, 2, below=6), "dim": 1},
        "index": {"self": array(4, 6), "indices": [indices(3, below=4), None]},
        "index_put": _put(), "index_put_": _put(),
        "index_select": {"self": array(4, 6), "dim": 1, "index": indices(3, below=6)},
        "select_scatter": {"self": array(4, 6), "src": array(4), "dim": 1, "index": 2},
        "slice_scatter": {
            "self": array(4, 6), "src": array(4, 2), "dim": 1, "start": 1, "end": 5, "step": 2
        },
        "bucketize.Tensor": {"self": array(4, 6), "boundaries": array(5), "out_int32": False},
        "cdist": {"x1": array(2, 4, 6), "x2": array(2, 5, 6), "p": 2.0},
        "_cdist_forward": {"x1": array(4, 6), "x2": array(5, 6), "p": 1.0, "compute_mode": None},
        "topk": {"self": array(4, 6), "k": 2, "dim": 1}, "kthvalue": {"self": array(4, 6), "k": 2},
    }  # fmt: skip
    for name in ("index_add", "index_add_", "index_copy", "index_copy_"):
        table[name] = {
            "self": array(4, 6), "dim": 1, "index": indices(3, below=6), "source": array(4, 3)
        }  # fmt: skip
    for name in ("index_fill", "index_fill_"):
        table[name] = {
            "self": array(4, 6), "dim": 1, "index": indices(3, below=6), "value": 2.0
        }  # fmt: skip
    for name, shapes in {
        "addmm": ((2, 4), {"mat1": (2, 3), "mat2": (3, 4)}),
        "addmv": ((2,), {"mat": (2, 3), "vec": (3,)}),
        "addr": ((2, 3), {"vec1": (2,), "vec2": (3,)}),
        "addbmm": ((2, 4), {"batch1": (5, 2, 3), "batch2": (5, 3, 4)}),
        "baddbmm": ((5, 2, 4), {"batch1": (5, 2, 3), "batch2": (5, 3, 4)}),
        "baddbmm_": ((5, 2, 4), {"batch1": (5, 2, 3), "batch2": (5, 3, 4)}),
        "bmm": ((5, 2, 3), {"mat2": (5, 3, 4)}),
        "mm": ((2, 3), {"mat2": (3, 4)}),
        "mv": ((2, 3), {"vec": (3,)}),
        "matmul": ((2, 3), {"other": (3, 4)}),
        "dot": ((5,), {"tensor": (5,)}),
        "vdot": ((5,), {"other": (5,)}),
        "outer": ((3,), {"vec2": (4,)}),
        "trace": ((3, 3), {}),
        "matrix_exp": ((3, 3), {}),
        "linalg_matrix_exp": ((3, 3), {}),
    }.items():
        table[name] = {"self": array(*shapes[0]), **{k: array(*s) for k, s in shapes[1].items()}}
    return table


def _scattered(**more: Any) -> Given:
    own = {"self": array(4, 6), "dim": 1, "index": indices(4, 3, below=6), **more}
    return own if "value" in more else {**own, "src": array(4, 3)}


def _put() -> Given:
    return {
        "self": array(4, 6), "indices": [indices(3, below=4), None], "values": array(3, 6),
        "accumulate": True,
    }  # fmt: skip


TABLE = _table()
#: What is drawn for a required argument that the table does not speak of, by its name.
USUAL: Given = {
    "dim": 1, "dim0": 0, "dim1": 1, "dims": [1], "size": [2, 3], "split_size": 2, "chunks": 2,
    "sections": 2, "split_sizes": [2, 2], "index": 1, "start": 0, "length": 1, "end": 6,
    "steps": 5, "step": 1, "repeats": [2, 1], "shifts": [1], "source": 0, "destination": 1,
    "axis0": 0, "axis1": 1, "row": 4, "col": 3, "n": 4, "m": 3, "k": 1, "indices_or_sections": 2,
    "physical_layout": [1, 0], "s": [4], "pad": [1, 1], "dtype": torch.float64, "p": 2,
    "indices": [1, 3], "correction": 1, "train": False, "equation": "ij->ji", "shape": [2, 3],
}  # fmt: skip
WORDS = (
    *("", "none", "tanh", "floor", "trunc", "same", "valid", "reflect", "circular", "replicate"),
    *("constant", "sum", "prod", "mean", "amax", "amin", "add", "multiply", "ij", "xy", "ortho"),
    *("forward", "backward", "fro", "nuc", "bij,bjk->bik", "ii->i", "...a,a->", "a" * 70, "\0"),
)
WHOLE = (
    *(-1, 0, 1, 2, 3, -2, -7, 7, 63, 64, 120, -128, 255, 2**15, 2**24, 2**24 + 1, 2**31 - 1),
    *(2**31, -(2**31), 2**32 + 1, 2**40, -(2**40), 2**62, -(2**62), 2**63 - 1, -(2**63), 10**30),
)
REAL = (0.0, -0.0, -1.0, 0.5, 1e-320, 1e308, -1e308, 3e38, 2.0**63, *map(float, ("inf", "nan")))


def overloads() -> list[str]:
    """All overloads of ATen that an archive may call."""
    listed = exported_operators._NAMES | exported_operators._CHECKED.keys()
    listed |= exported_operators._IN_PLACE_OF.keys()
    names = sorted({name.partition(".")[0] for name in listed})
    return [
        f"{name}.{overload}"
        for name in names
        for overload in getattr(torch.ops.aten, name).overloads()
        if exported_operators.find_operator(f"torch.ops.aten.{name}.{overload}") is not None
    ]


def schema_of(full: str) -> Any:
    name, _, overload = full.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload)._schema


def honest(full: str, draw: random.Random) -> Given:
    """Arguments that the operator may well take."""
    schema = schema_of(full)
    base = full.partition(".")[0]
    known = TABLE.get(full, TABLE.get(base, {}))
    shape = draw.choice(((2, 6), (2, 6), (4, 4), (2, 3, 4), (5,), (2, 3, 4, 5), ()))
    given: Given = {}
    for argument in schema.arguments:
        kind = str(argument.real_type)
        if argument.name in known:
            given[argument.name] = known[argument.name]
        elif argument.has_default_value() and draw.random() < 0.6:
            continue
        else:
            given[argument.name] = _usual(argument.name, kind, shape, draw)
    return given


def _usual(name: str, kind: str, shape: tuple[int, ...], draw: random.Random) -> Any:
    if kind.startswith("Optional") and draw.random() < 0.4:
        return None
    kind = re.sub(r"^Optional\[(.*)\]$", r"\1", kind)
    if kind == "Tensor":
        if name == "mask" or name == "condition":
            return Array(shape, torch.bool)
        if name in ("index", "indices", "index1"):
            return Array(shape, torch.int64, max((1, *shape)))
        kinds = (*FLOATS, torch.int64, torch.bool, torch.complex64)
        return Array(shape, draw.choice(kinds) if draw.random() < 0.3 else torch.float32)
    if kind.startswith("List[") and "Tensor" in kind:
        return [Array(shape) for _ in range(draw.choice((1, 2, 3)))]
    value = USUAL.get(name)
    by_kind: dict[str, tuple[type, Any]] = {
        "int": (int, 1), "float": (float, 0.5), "number": (int, 2), "bool": (bool, False),
        "str": (str, "mean"), "ScalarType": (torch.dtype, torch.float64),
        "List[int]": (list, [0]), "List[float]": (list, [1.0]), "List[bool]": (list, [True]),
    }  # fmt: skip
    if kind in by_kind:
        wanted, other = by_kind[kind]
        return value if isinstance(value, wanted) else other
    return None


# -- what is given, as an archive writes it --------------------------------------------------------


class Archive:
    """The graph of one call, whose tensors are numbered as they come."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.draw = random.Random(0)

    def document(self, value: Any) -> Any:
        """An argument as an archive writes it."""
        if value is None:
            return {"as_none": True}
        if isinstance(value, Array):
            return {"as_tensor": self.named(value)}
        if isinstance(value, bool):
            return {"as_bool": value}
        if isinstance(value, int):
            return {"as_int": value}
        if isinstance(value, float):
            return {"as_float": value}
        if isinstance(value, str):
            return {"as_string": value}
        if isinstance(value, torch.dtype):
            return {"as_scalar_type": NUMBERS[value]}
        if isinstance(value, dict):
            return value
        assert isinstance(value, list)
        if any(isinstance(v, Array) for v in value):
            if None in value:
                return {"as_optional_tensors": [self.document(v) for v in value]}
            return {"as_tensors": [self.named(v) for v in value if isinstance(v, Array)]}
        if value and all(isinstance(v, bool) for v in value):
            return {"as_bools": value}
        if value and all(isinstance(v, float) for v in value):
            return {"as_floats": value}
        return {"as_ints": value}

    def named(self, given: Array) -> dict[str, str]:
        name = f"t{len(self.tensors)}"
        self.tensors[name] = made(given, self.draw)
        return {"name": name}


def made(given: Array, draw: random.Random) -> Tensor:
    """The tensor at the end of its memory (or at its beginning), in the order of memory or not."""
    shape, strides = list(given.shape), None
    if given.bent == "stretched":
        strides = [0] * len(shape)
    flat_shape = [1] if strides is not None else shape
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    if given.below:
        values = torch.randint(0, given.below, flat_shape, generator=generator)
    elif given.dtype is torch.bool:
        values = torch.randint(0, 2, flat_shape, generator=generator)
    else:
        values = torch.randn(flat_shape, generator=generator) * 2
    if given.bent == "outside" and values.numel():
        values = values.flatten()
        place = draw.randrange(values.numel())
        values = values.clone()
        if values.is_floating_point():
            values[place] = draw.choice((float("nan"), float("inf"), -1e30, 1e30))
        else:
            below = given.below
            values[place] = draw.choice((-1, below, -below - 1, 10**9, -(10**9), 2**62, -(2**63)))
        values = values.reshape(flat_shape)
    values = values.to(given.dtype)
    if given.bent == "turned" and len(shape) > 1:
        return guarded(values.transpose(0, -1).contiguous(), draw).transpose(0, -1)
    if given.bent == "rows" and len(shape) > 0:  # the same numbers along the last dimension
        return guarded(values[..., :1].contiguous(), draw).expand(shape)
    if given.bent == "halved" and len(shape) > 0:  # every other number
        double = values.repeat_interleave(2, -1)
        return guarded(double[..., :-1].contiguous(), draw)[..., ::2] if shape[-1] else values
    tensor = guarded(values, draw)
    return tensor if strides is None else tensor.as_strided(shape, strides)


_LIBRARY = ctypes.CDLL(None, use_errno=True)
_LIBRARY.mmap.restype = ctypes.c_void_p
_LIBRARY.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBRARY.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(values: Tensor, draw: random.Random) -> Tensor:
    """A copy between two pages that may be neither read nor written; it is never given back."""
    size = values.numel() * values.element_size()
    if size == 0:
        return values
    page = mmap.PAGESIZE
    room = -(-size // page) * page
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = _LIBRARY.mmap(None, room + 2 * page, 0, private, -1, 0)
    assert start not in (None, ctypes.c_void_p(-1).value)
    assert not _LIBRARY.mprotect(start + page, room, mmap.PROT_READ | mmap.PROT_WRITE)
    place = start + page + (room - size if draw.random() < 0.7 else 0)
    own = (ctypes.c_char * size).from_address(place)
    tensor = torch.frombuffer(own, dtype=values.dtype)
    tensor.copy_(values.flatten())
    return tensor.view(values.shape)


# -- bending it ------------------------------------------------------------------------------------


def bend(value: Any, draw: random.Random) -> Any:
    """Something else in the place of an argument, often of its own kind."""
    if draw.random() < 0.12:
        return draw.choice(_OTHERS)(draw)
    if isinstance(value, Array):
        return _bend_array(value, draw)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice((*WHOLE, value + 1, value - 1, -value, 2 * value))
    if isinstance(value, float):
        return draw.choice(REAL)
    if isinstance(value, str):
        return draw.choice(WORDS)
    if isinstance(value, torch.dtype):
        return draw.choice(list(NUMBERS))
    if isinstance(value, list):
        return _bend_list(value, draw)
    return draw.choice(_OTHERS)(draw)


_OTHERS: tuple[Any, ...] = (
    lambda draw: None,
    lambda draw: draw.choice(WHOLE),
    lambda draw: draw.choice(REAL),
    lambda draw: draw.random() < 0.5,
    lambda draw: draw.choice(list(NUMBERS)),
    lambda draw: draw.choice(WORDS),
    lambda draw: [draw.choice(WHOLE) for _ in range(draw.randrange(4))],
    lambda draw: Array((2, 3)),
    lambda draw: Array((3,), torch.int64, 2),
    lambda draw: [Array((2, 3))] * draw.choice((1, 2)),
    lambda draw: {"as_scalar_type": draw.choice((-1, 0, 1, 9, 14, 20, 28, 40, 120))},
    lambda draw: {"as_memory_format": draw.choice((-1, 0, 1, 2, 3, 4, 5, 120))},
    lambda draw: {"as_layout": draw.choice((-1, 0, 1, 2, 5, 7, 8, 120))},
    lambda draw: {"as_device": {"type": draw.choice(("cpu", "cuda", "meta", "x")), "index": 7}},
    lambda draw: {"as_complex": {"real": draw.choice(REAL), "imag": draw.choice(REAL)}},
    lambda draw: {"as_sym_int": {"as_int": draw.choice(WHOLE)}},
    lambda draw: {"as_sym_ints": [{"as_int": draw.choice(WHOLE)}, {"as_name": "x"}]},
    lambda draw: {"as_sym_int": {"as_name": "x"}},
)


def _bend_array(given: Array, draw: random.Random) -> Array:
    shape = list(given.shape)
    how = draw.randrange(10)
    if how == 0:
        kinds = list(NUMBERS)
        return replace(given, dtype=draw.choice(kinds))
    if how == 1:
        return replace(given, bent="outside")
    if how in (2, 7, 8, 9):
        return replace(given, bent=draw.choice(("stretched", "rows", "turned", "halved")))
    if how == 3 and shape:
        shape[draw.randrange(len(shape))] = draw.choice((0, 1, 2, 5, 9, 70))
    elif how == 4:
        shape.insert(draw.randrange(len(shape) + 1), draw.choice((0, 1, 2)))
    elif how == 5 and shape:
        del shape[draw.randrange(len(shape))]
    else:
        shape = list(draw.choice(((), (0,), (1,), (7, 2), (0, 3), (3, 0, 2), (1,) * 9)))
    return replace(given, shape=tuple(shape))


def _bend_list(values: list[Any], draw: random.Random) -> list[Any]:
    bent = list(values)
    how = draw.randrange(6)
    if how == 0 or not bent:
        bent.append(bent[-1] if bent else draw.choice(WHOLE))
    elif how == 1:
        del bent[draw.randrange(len(bent))]
    elif how == 2:
        return []
    else:
        place = draw.randrange(len(bent))
        bent[place] = bend(bent[place], draw)
    return bent


def network_of(full: str, draw: random.Random) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A graph with one call, and its tensors."""
    given = honest(full, draw)
    for _ in range(draw.choice((0, 0, 1, 1, 1, 1, 2, 3))):
        others = [a.name for a in schema_of(full).arguments]
        name = draw.choice(others)
        given[name] = bend(given.get(name), draw)
    archive = Archive()
    archive.draw = draw
    inputs = [{"name": k, "arg": archive.document(v), "kind": 1} for k, v in given.items()]
    if draw.random() < 0.02:
        del inputs[draw.randrange(len(inputs))]
    outputs = []
    for number, result in enumerate(schema_of(full).returns):
        if str(result.type) == "Tensor":
            outputs.append({"as_tensor": {"name": f"y{number}"}})
        elif str(result.type) == "List[Tensor]":
            outputs.append({"as_tensors": [{"name": f"y{number}{k}"} for k in range(2)]})
        else:
            outputs.append({"as_sym_int": {"as_name": f"y{number}"}})
    node = {"target": f"torch.ops.aten.{full}", "inputs": inputs, "outputs": outputs}
    # what is written to cannot be a parameter, and gradients are taken of nothing else
    own = "buffer" if "_." in full or draw.random() < 0.2 else "parameter"
    return graph_of(node, archive.tensors, own), archive.tensors


def graph_of(node: dict[str, Any], tensors: dict[str, Tensor], kind: str) -> dict[str, Any]:
    specs: list[Any] = [
        {kind: {"arg": {"name": n}, f"{kind}_name": n, "persistent": True}} for n in tensors
    ]
    specs.append({"user_input": {"arg": {"as_tensor": {"name": "x"}}}})
    sizes = [{"as_expr": {"hint": {"as_int": 2}}}, {"as_int": 6}]
    (result, first) = next(iter(node["outputs"][0].items()))
    name = first[0] if result == "as_tensors" else first
    leaf = {"type": None, "context": None, "children_spec": []}
    inner = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf]}
    named = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    spec = [1, {"type": "builtins.tuple", "context": "null", "children_spec": [inner, named]}]
    output = {"as_sym_int": name} if result == "as_sym_int" else {"as_tensor": name}
    return {
        "graph": {"nodes": [node], "tensor_values": {"x": {"sizes": sizes, "dtype": 7}}},
        "signature": {
            "input_specs": specs,
            "output_specs": [{"user_output": {"arg": output}}],
        },
        "module_call_graph": [
            {"fqn": "", "signature": {"in_spec": json.dumps(spec), "forward_arg_names": ["x"]}}
        ],
    }


def outcome(full: str, draw: random.Random) -> str:
    """What becomes of one call: refused, fails or runs."""
    graph, tensors = network_of(full, draw)
    try:
        network = ExportedNetwork(graph, tensors, "the archive")
        network.try_sizes(graph["graph"])
    except Exception as error:
        return f"refused {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    try:
        result = network(torch.linspace(-1, 1, 12).reshape(2, 6))
        if isinstance(result, Tensor):
            result.detach().sum()
            if result.requires_grad and not result.is_complex():
                result.double().sum().backward()
    except Exception as error:
        said = "exceeds" if "allocate" in str(error) else "fails"
        return f"{said} {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return "runs"


# -- processes -------------------------------------------------------------------------------------


def child(seed: int, first: int, last: int, names: list[str]) -> None:
    """Try calls one after the other, saying which before and what came of it afterwards."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    memory.spare_memory = lambda: SPARE  # type: ignore[assignment]
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(first, last):
        full = names[number % len(names)]
        print(number, full, end=" ", flush=True)
        signal.alarm(TOO_LONG)
        print(outcome(full, random.Random(f"{seed} {number}")), flush=True)
        signal.alarm(0)


@dataclass(frozen=True)
class Death:
    """A call that its process did not survive."""

    number: int
    operator: str
    cause: str


def tried(
    seed: int, count: int, names: list[str] | None = None, per_process: int = 3000
) -> tuple[list[Death], Counter[tuple[str, str]]]:
    """Try so many calls in processes of their own; what died, and how often each came to what."""
    deaths, ends = [], Counter[tuple[str, str]]()
    first = 0
    while first < count:
        last = min(count, first + per_process)
        command = [sys.executable, str(Path(__file__)), "--child", f"{seed}", f"{first}", f"{last}"]
        ended = subprocess.run(
            [*command, *(names or [])], capture_output=True, text=True, check=False, timeout=1800
        )
        lines = ended.stdout.split("\n")
        for line in lines[:-1]:
            _, full, said = line.split(" ", 2)
            ends[full, said.partition(" ")[0]] += 1
            if said.startswith("exceeds"):
                deaths.append(Death(int(line.split(" ")[0]), full, said))
        if ended.returncode == 0:
            first = last
            continue
        if not lines[-1]:
            raise RuntimeError(ended.stderr[-2000:])
        number, full = lines[-1].split(" ")[:2]
        cause = _cause(ended.returncode)
        last_words = [line for line in ended.stderr.splitlines() if "Warning" not in line]
        deaths.append(Death(int(number), full, f"{cause} {' '.join(last_words)[-200:]}"))
        first = int(number) + 1
    return deaths, ends


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=100, help="of each overload")
    parser.add_argument("--only", nargs="*", help="overloads, such as scatter.src")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        seed, first, last, *names = asked.child
        child(int(seed), int(first), int(last), names or overloads())
        return
    names = asked.only or overloads()
    deaths, ends = tried(asked.seed, asked.calls * len(names), asked.only)
    for death in deaths:
        print(f"{death.operator} (call {death.number}): {death.cause}")
    total = Counter[str]()
    for (_, said), count in ends.items():
        total[said] += count
    never = [name for name in names if not ends[name, "runs"]]
    print(f"{len(names)} overloads, {sum(ends.values()) + len(deaths)} calls: {dict(total)}")
    print(f"{len(deaths)} deaths of {len({d.operator for d in deaths})} overloads")
    print(f"{len(never)} never ran: {' '.join(never)}")
    sys.exit(bool(deaths))


if __name__ == "__main__":
    main()
