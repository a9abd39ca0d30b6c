r"""How an error passes back through an operation: one rule for each, without autograd.

For an operation $h=F(u_1,\dots,u_k)$ of a recorded network and the error
$\delta=\partial E/\partial h$ at what it makes, a rule gives the errors at what it takes,

$$
\frac{\partial E}{\partial u_i}=\Bigl[\frac{\partial F}{\partial u_i}\Bigr]^\top\delta,
$$

whether $u_i$ is a value of the network or a weight: both are arguments of the operation. No
Jacobian is formed. A rule of your own: `torchtheory.tracing.rule(ADJOINTS, "name")`.
"""

from __future__ import annotations

from typing import Any

import torch

from torchtheory.tracing.interpret import Rules
from torchtheory.tracing.kinds import AVERAGES, MAXIMA, PADS, RESIZES
from torchtheory.training.backpropagation import affine_adjoints as affine
from torchtheory.training.backpropagation import curved_adjoints as curved
from torchtheory.training.backpropagation import moved_entries as entries
from torchtheory.training.backpropagation.evaluated import Errors, Evaluated
from torchtheory.training.backpropagation.slopes import SLOPES


def _unknown(call: Evaluated) -> Errors:
    return NotImplemented


_KEPT_IN_ORDER = """
    view reshape flatten unflatten ravel squeeze unsqueeze view_as reshape_as contiguous clone
    identity alias positive atleast_1d atleast_2d atleast_3d requires_grad resolve_conj resolve_neg
    cpu
""".split()

_MOVED = """
    windows im2col tril triu diag diag_embed diagflat max_unpool1d max_unpool2d max_unpool3d
""".split()

_BY_NAME: dict[str, Any] = {
    **{name: curved.entrywise(slope) for name, slope in SLOPES.items()},
    # moved, joined and added entries
    **dict.fromkeys(_KEPT_IN_ORDER, entries.reshaped),
    **dict.fromkeys((*PADS, *_MOVED), entries.moved),
    **dict.fromkeys(("to", "type", "type_as", "float", "double", "half", "bfloat16"), entries.cast),
    **dict.fromkeys(("t", "T", "mT"), entries.matrix_transposed),
    **dict.fromkeys(("as_strided", "as_strided_scatter"), _unknown),
    **dict.fromkeys(("fold", "col2im"), entries.folded),
    "transpose": entries.transposed,
    "permute": entries.permuted,
    "cat": entries.joined,
    "embedding": entries.embedded,
    "index_add": entries.index_added,
    "scatter_add": entries.scatter_added,
    "scatter_reduce": entries.scatter_reduced,
    # affine
    "linear": affine.dense,
    **{f"conv{n}d": affine.convolved for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": affine.transposed_convolution for n in (1, 2, 3)},
    "add": affine.added,
    "sub": affine.subtracted,
    **dict.fromkeys((*RESIZES, *AVERAGES), affine.resized),
    **{f"avg_pool{n}d": affine.averaged for n in (1, 2, 3)},
    # products
    "mul": curved.multiplied,
    "div": curved.divided,
    **dict.fromkeys(("matmul", "rmatmul"), curved.matrices_multiplied),
    "einsum": curved.contracted,
    **dict.fromkeys(("cross", "linalg_cross"), curved.crossed),
    **dict.fromkeys(("inverse", "linalg_inv"), curved.inverted),
    # reductions and extremes
    "sum": curved.summed,
    "mean": curved.mean,
    "cumsum": curved.summed_so_far,
    "prod": curved.product,
    **dict.fromkeys(("norm", "vector_norm"), curved.euclidean),
    **dict.fromkeys(MAXIMA, curved.largest_of_windows),
    **dict.fromkeys(("max", "min"), curved.largest),
    **dict.fromkeys(("amax", "amin"), curved.shared_by_equals),
    **dict.fromkeys(("maximum", "minimum"), curved.larger),
    **dict.fromkeys(
        ("sort", "topk", "kthvalue", "median", "cummax", "cummin", "mode"), curved.chosen
    ),
    # normalization
    "softmax": curved.softmax,
    "log_softmax": curved.log_softmax,
    "batch_norm": curved.batch_norm,
    "layer_norm": curved.layer_norm,
    # functions of each entry with more than one argument
    "pow": curved.power,
    "rpow": curved.power_of,
    "prelu": curved.prelu,
    "clamp": curved.clamp,
    "atan2": curved.two_arguments(lambda y, x, _: (x / (x**2 + y**2), -y / (x**2 + y**2))),
    "hypot": curved.two_arguments(lambda x, y, h: (x / h, y / h)),
    "logaddexp": curved.two_arguments(lambda x, y, h: (torch.exp(x - h), torch.exp(y - h))),
}

_BY_KIND: dict[Any, Any] = dict.fromkeys(("moves", "selects", "joins"), entries.moved)

#: The rules, by the plain names of operations and else by their kinds.
ADJOINTS = Rules("no gradient by hand", _BY_NAME, _BY_KIND)


def errors_of(call: Evaluated) -> Errors:
    """The errors at the arguments of an operation, by its rule.

    >>> from torchtheory.tracing.recorder import record
    >>> (op,) = record(torch.nn.Tanh(), torch.zeros(1, 2))
    >>> z = torch.zeros(1, 2)
    >>> errors_of(Evaluated(op, (z,), {}, 1, torch.tanh(z), torch.ones(1, 2)))
    {'input': tensor([[1., 1.]])}
    """
    if call.kind == "random":  # it does nothing in evaluation mode
        return {"input": call.delta}
    rule = ADJOINTS.find(call.name)
    assert rule is not None
    found: Errors = rule(call)
    return found
