r"""How often an operation multiplies: the one count of dense layers, convolutions and products.

A dense layer from $n$ to $m$ units multiplies $nm$ times, a convolution as often as its kernel has
numbers for each entry of its output, a product of $p\times q$ and $q\times r$ matrices $pqr$ times.
What is done entry by entry is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtheory.tracing.network import Operation, Size


def multiplications(operation: Operation, samples: int = 1) -> int:
    """Multiply-adds of one operation for so many samples.

    >>> import torch
    >>> from torchtheory.tracing.recorder import record
    >>> (op,) = record(torch.nn.Conv2d(3, 8, 3), torch.zeros(1, 3, 10, 10))
    >>> multiplications(op)                                    # 8·8·8 entries, 3·3·3 each
    13824
    """
    count = _COUNTS.get(operation.name)
    return 0 if count is None else int(count(_Sizes(operation, samples)))


def size(shape: Sequence[Size], samples: int = 1) -> int:
    """Entries of a value for so many samples."""
    return math.prod(_number(s, samples) for s in shape)


def _number(one: Size, samples: int) -> int:
    return one if isinstance(one, int) else one.of(samples)


class _Sizes:
    """Sizes of what an operation is given and makes."""

    def __init__(self, operation: Operation, samples: int) -> None:
        self.operation, self.samples = operation, samples

    def shape(self, value: Any) -> tuple[int, ...]:
        return tuple(_number(s, self.samples) for s in getattr(value, "shape", ()))

    def __getitem__(self, name: str) -> tuple[int, ...]:
        return self.shape(self.operation.arguments.get(name))

    @property
    def made(self) -> tuple[int, ...]:
        return self.shape(self.operation.outputs[0])


def _linear(s: _Sizes) -> int:
    return math.prod(s.made) * s["input"][-1]


def _convolution(s: _Sizes) -> int:
    return math.prod(s.made) * math.prod(s["weight"][1:])


def _transposed_convolution(s: _Sizes) -> int:
    return math.prod(s["input"]) * math.prod(s["weight"][1:])


def _product(s: _Sizes) -> int:
    values = list(s.operation.inputs)
    return math.prod(s.made) * s.shape(values[0])[-1] if len(values) > 1 else 0


def _convolution_backward(s: _Sizes) -> int:
    """A convolution for the input, and one for the kernel."""
    transposed = s.operation.arguments["transposed"]
    entries = s["input"] if transposed else s["grad_output"]
    passes = sum(s.operation.arguments["output_mask"][:2])
    return int(passes) * math.prod(entries) * math.prod(s["weight"][1:])


def _chain(s: _Sizes) -> int:
    """A product of several matrices, in the order that takes the fewest multiplications."""
    shapes = [s.shape(value) for value in s.operation.inputs]
    ends = [1 if len(shapes[0]) == 1 else shapes[0][0], *(shape[0] for shape in shapes[1:])]
    ends.append(1 if len(shapes[-1]) == 1 else shapes[-1][1])
    least = {(i, i + 1): 0 for i in range(len(shapes))}
    for width in range(2, len(shapes) + 1):
        for i in range(len(shapes) - width + 1):
            j = i + width
            least[i, j] = min(
                least[i, k] + least[k, j] + ends[i] * ends[k] * ends[j] for k in range(i + 1, j)
            )
    return least[0, len(shapes)]


def _matrices_last(s: _Sizes) -> int:
    return math.prod(s.made) * s.shape(s.operation.inputs[-1])[-2]


def _einsum(s: _Sizes) -> int:
    left = str(s.operation.arguments["equation"]).replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for letters, operand in zip(left, s.operation.arguments["operands"], strict=True):
        shape = s.shape(operand)
        before, dots, after = letters.partition("...")
        sizes |= dict(zip(before, shape, strict=False))
        sizes |= dict(zip(reversed(after), reversed(shape), strict=False)) if after else {}
        if dots:
            middle = shape[len(before) : len(shape) - len(after)]
            sizes["..."] = max(math.prod(middle), sizes.get("...", 1))
    return math.prod(sizes.values())


def _attention(s: _Sizes) -> int:
    query, key, value = s["query"], s["key"], s["value"]
    return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _heads(s: _Sizes) -> int:
    length, batch, width = s["query"] if len(s["query"]) == 3 else (s["query"][0], 1, s["query"][1])
    source = s["key"][0]
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    if s["in_proj_weight"]:
        into = (length + 2 * source) * math.prod(s["in_proj_weight"]) // 3
    else:
        times = (length, source, source)
        into = sum(t * math.prod(s[n]) for t, n in zip(times, names, strict=True))
    return batch * (into + length * math.prod(s["out_proj_weight"]) + 2 * length * source * width)


def _recurrent(s: _Sizes) -> int:
    given = s.operation.arguments
    shape = s["input"]
    steps = math.prod(shape[:-1])
    weights = [v for v in given["params"] if len(getattr(v, "shape", ())) == 2]
    return steps * sum(size(v.shape) for v in weights)


def _cell(s: _Sizes) -> int:
    rows = math.prod(s["input"][:-1])
    return rows * (math.prod(s["w_ih"]) + math.prod(s["w_hh"]))


_COUNTS: dict[str, Callable[[_Sizes], int]] = {
    "linear": _linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **{f"conv_transpose{n}d": _transposed_convolution for n in (1, 2, 3)},
    "convolution_backward": _convolution_backward,
    "matmul": _product,
    **dict.fromkeys(("multi_dot", "chain_matmul"), _chain),
    "rmatmul": lambda s: math.prod(s.made) * s["input"][-2],
    **dict.fromkeys(("addmm", "baddbmm", "addbmm"), _matrices_last),
    "einsum": _einsum,
    "bilinear": lambda s: math.prod(s.made) * math.prod(s["weight"][1:]),
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _heads,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _cell),
}

#: Operations that multiply, and are counted.
COUNTED = frozenset(_COUNTS)
