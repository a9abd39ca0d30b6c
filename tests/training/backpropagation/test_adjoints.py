"""Every rule of backpropagation by hand against autograd, and what is refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.tracing.architectures import ALL_NAMES, NAMES, architecture, archived
from torch import Tensor, nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.tracing.interpret import rule
from torchtheory.tracing.recorder import record
from torchtheory.training.backpropagation.adjoints import ADJOINTS
from torchtheory.training.backpropagation.chain import backpropagate, pull_back


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def half_square(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square().sum() / 2


class With(nn.Module):
    """A function of the input and of weights."""

    def __init__(self, function: Callable[..., Any], *weights: Tensor) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(weights)

    def forward(self, x: Tensor) -> Tensor:
        made = self.function(x, *self.weights)
        made = made if isinstance(made, Tensor) else torch.cat([t.flatten(1) for t in made], 1)
        return made * 1.0


def gradients_agree(net: nn.Module, x: Tensor) -> None:
    leaf = x.clone().requires_grad_()
    outputs = net(leaf)
    y = randn(*outputs.shape, seed=9)
    found = backpropagate(net, x, y, half_square)
    named = dict(net.named_parameters())
    *expected, at_input = torch.autograd.grad(
        half_square(outputs, y), [*named.values(), leaf], materialize_grads=True
    )
    assert found.gradients.keys() == named.keys()
    for (name, own), theirs in zip(found.gradients.items(), expected, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-10, atol=1e-12, msg=name)
    torch.testing.assert_close(found.delta_input, at_input, rtol=1e-10, atol=1e-12)


VECTORS, IMAGES, SIGNALS = (4, 6), (2, 4, 6, 6), (2, 3, 7)
W = randn(6, 6, seed=1)
PLACES = torch.tensor([[0, 2, 1, 0, 3, 3]] * 4)


def _each(function: Callable[..., Any], **given: Any) -> tuple[Any, ...]:
    return VECTORS, lambda x: function(x, **given)


def _positive(function: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    return VECTORS, lambda x: function(x.square() + 1.5)


def _inside(function: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    """Of numbers between -1 and 1."""
    return VECTORS, lambda x: function(torch.tanh(x) * 0.9)


def _kernel(*shape: int) -> Tensor:
    return randn(*shape, seed=2)


#: Operation -> shape of the input, function, and weights that it takes as well.
CASES: dict[str, list[tuple[Any, ...]]] = {
    **{name: [_each(getattr(F, name))] for name in (
        "relu relu6 leaky_relu elu celu selu gelu silu mish logsigmoid softplus softsign"
        " tanhshrink hardtanh hardswish softshrink hardshrink rrelu"
    ).split()},
    "hardsigmoid": [],  # see the test of slopes in single precision
    "gelu": [_each(F.gelu), _each(F.gelu, approximate="tanh")],
    "elu": [_each(F.elu, alpha=0.7)],
    "celu": [_each(F.celu, alpha=0.5)],
    "softplus": [_each(F.softplus, beta=2.0, threshold=1.0)],
    "threshold": [_each(F.threshold, threshold=0.2, value=3.0)],
    **{name: [_each(getattr(torch, name))] for name in (
        "tanh sigmoid abs neg exp exp2 expm1 square reciprocal sin cos tan atan sinh cosh asinh erf"
        " erfc sinc nan_to_num"
    ).split()},
    **{name: [_positive(getattr(torch, name))] for name in
       "log log2 log10 log1p sqrt rsqrt acosh lgamma".split()},
    **{name: [_inside(getattr(torch, name))] for name in "asin acos atanh erfinv".split()},
    "logit": [(VECTORS, lambda x: torch.logit(torch.sigmoid(x))),
              (VECTORS, lambda x: torch.logit(x, eps=0.1))],
    "clamp_min": [_each(torch.clamp_min, min=0.1)],
    "clamp_max": [_each(torch.clamp_max, max=0.1)],
    "clamp": [_each(torch.clamp, min=-0.4, max=0.6), _each(torch.clamp, max=0.6),
              (VECTORS, lambda x, a, b: torch.clamp(x, a, b), randn(6) - 1, randn(6, seed=3))],
    "pow": [_each(torch.pow, exponent=3), (VECTORS, lambda x: (x.square() + 0.5) ** -1.5),
            (VECTORS, lambda x, w: w.square() ** x, randn(6)), (VECTORS, lambda x: torch.pow(2, x)),
            (VECTORS, lambda x: x**0)],
    "rpow": [(VECTORS, lambda x: 2.5**x)],
    "prelu": [(VECTORS, F.prelu, torch.tensor([0.3]).double()),
              (IMAGES, F.prelu, randn(4, seed=4))],
    "atan2": [(VECTORS, torch.atan2, randn(6))],
    "hypot": [(VECTORS, torch.hypot, randn(6))],
    "logaddexp": [(VECTORS, torch.logaddexp, randn(6))],
    # entries that are moved
    "view": [(VECTORS, lambda x: x.view(-1, 2, 3))],
    "reshape": [(VECTORS, lambda x: x.T.reshape(4, 6))],
    "flatten": [(IMAGES, lambda x: x.flatten(1))],
    "unflatten": [(VECTORS, lambda x: x.unflatten(1, (2, 3)))],
    "ravel": [(VECTORS, lambda x: x.ravel().reshape(-1, 6))],
    "squeeze": [(VECTORS, lambda x: x[:, :1].squeeze(1))],
    "unsqueeze": [(VECTORS, lambda x: x.unsqueeze(1))],
    "view_as": [(VECTORS, lambda x: x.T.contiguous().view_as(x))],
    "reshape_as": [(VECTORS, lambda x: x.T.reshape_as(x))],
    "contiguous": [(VECTORS, lambda x: x.T.contiguous().T)],
    "clone": [_each(torch.clone)],
    "identity": [],
    "alias": [],
    "positive": [_each(torch.positive)],
    "atleast_1d": [_each(torch.atleast_1d)],
    "atleast_2d": [_each(torch.atleast_2d)],
    "atleast_3d": [_each(torch.atleast_3d)],
    "requires_grad": [],
    "resolve_conj": [_each(torch.resolve_conj)],
    "resolve_neg": [_each(torch.resolve_neg)],
    "cpu": [(VECTORS, lambda x: x.cpu())],
    "to": [(VECTORS, lambda x: x.to(torch.float64))],
    "type": [(VECTORS, lambda x: x.type(torch.float64))],
    "type_as": [(VECTORS, lambda x: x.type_as(x))],
    "double": [(VECTORS, lambda x: x.double())],
    "float": [], "half": [], "bfloat16": [],  # see the test of casts
    "t": [(VECTORS, lambda x, w: x @ w.t(), W)],
    "T": [(VECTORS, lambda x, w: x @ w.T, W)],
    "mT": [(VECTORS, lambda x, w: x @ w.mT, W)],
    "transpose": [(IMAGES, lambda x: x.transpose(1, -1))],
    "permute": [(IMAGES, lambda x: x.permute(0, -1, 1, 2))],
    "cat": [(VECTORS, lambda x, w: torch.cat([x, w.expand(4, -1), x], -1), randn(5)),
            (VECTORS, lambda x: torch.cat([torch.zeros(0).double(), x], 1))],
    "embedding": [(VECTORS, lambda x, w: x[:, :2, None] * F.embedding(
        torch.tensor([[0, 2]] * 4), w), randn(3, 2)),
                  (VECTORS, lambda x, w: x[:, :2] + F.embedding(
                      torch.tensor([0, 2, 2, 1]), w, padding_idx=2), randn(3, 2))],
    "index_add": [(VECTORS, lambda x, w: w.expand(4, -1).index_add(
        1, torch.tensor([1, 1, 0]), x[:, :3], alpha=0.5), randn(6))],
    "scatter_add": [(VECTORS, lambda x, w: w.expand(4, -1).scatter_add(1, PLACES, x), randn(6)),
                    ],
    "scatter_reduce": [
        (VECTORS, lambda x, w: w.expand(4, -1).scatter_reduce(1, PLACES, x, "sum"), randn(6)),
        (VECTORS, lambda x, w: w.expand(4, -1).scatter_reduce(
            1, PLACES, x, "sum", include_self=False), randn(6)),
    ],
    "fold": [(IMAGES, lambda x: F.fold(F.unfold(x, 3), (6, 6), 3))],
    "col2im": [(IMAGES, lambda x: torch.ops.aten.col2im(
        F.unfold(x, 2), [6, 6], [2, 2], [1, 1], [0, 0], [1, 1]))],
    "im2col": [(IMAGES, lambda x: torch.ops.aten.im2col(x, [2, 2], [1, 1], [1, 1], [2, 2]))],
    "windows": [(IMAGES, lambda x: F.unfold(x, 3, padding=1, stride=2))],
    "tril": [(IMAGES, torch.tril)],
    "triu": [(IMAGES, torch.triu)],
    "diag": [(VECTORS, lambda x, w: x @ torch.diag(w), randn(6))],
    "diag_embed": [_each(torch.diag_embed)],
    "diagflat": [(VECTORS, lambda x, w: x @ torch.diagflat(w), randn(6))],
    "max_unpool1d": [(SIGNALS, lambda x: F.max_unpool1d(
        *F.max_pool1d(x, 2, return_indices=True), 2, output_size=(7,)))],
    "max_unpool2d": [(IMAGES, lambda x: F.max_unpool2d(
        *F.max_pool2d(x, 2, return_indices=True), 2))],
    "max_unpool3d": [((2, 1, 4, 4, 4), lambda x: F.max_unpool3d(
        *F.max_pool3d(x, 2, return_indices=True), 2))],
    "pad": [(IMAGES, lambda x: F.pad(x, (1, 0, 2, -1), value=0.5)),
            (IMAGES, lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect")),
            (IMAGES, lambda x: F.pad(x, (1, 2, 0, 1), mode="circular"))],
    "constant_pad_nd": [(VECTORS, lambda x: torch.constant_pad_nd(x, [1, 1], 2.0))],
    "reflection_pad1d": [(SIGNALS, lambda x: torch._C._nn.reflection_pad1d(x, [2, 1]))],
    "reflection_pad2d": [(IMAGES, lambda x: torch._C._nn.reflection_pad2d(x, [2, 1, 1, 0]))],
    "reflection_pad3d": [((1, 2, 3, 3, 3),
                          lambda x: torch._C._nn.reflection_pad3d(x, [1, 1, 1, 0, 0, 0]))],
    "replication_pad1d": [(SIGNALS, lambda x: torch._C._nn.replication_pad1d(x, [2, 1]))],
    "replication_pad2d": [(IMAGES, lambda x: torch._C._nn.replication_pad2d(x, [2, 1, 1, 0]))],
    "replication_pad3d": [((1, 2, 3, 3, 3),
                           lambda x: torch._C._nn.replication_pad3d(x, [1, 1, 1, 0, 0, 0]))],
    # affine
    "linear": [(VECTORS, F.linear, randn(3, 6), randn(3)), (SIGNALS, F.linear, randn(2, 7)),
               (VECTORS, F.linear, randn(6))],
    "conv1d": [(SIGNALS, lambda x, w, b: F.conv1d(x, w, b, 2, 1, 2), _kernel(4, 3, 3), randn(4)),
               (SIGNALS, lambda x, w: F.conv1d(x, w, padding="same", dilation=2), _kernel(2, 3, 2)),
               (SIGNALS, lambda x, w: F.conv1d(x, w, padding="valid"), _kernel(2, 3, 2))],
    "conv2d": [(IMAGES, lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 0), groups=2),
                _kernel(6, 2, 3, 2)),
               (IMAGES, lambda x, w: F.conv2d(x, w, padding="same"), _kernel(2, 4, 4, 3))],
    "conv3d": [((1, 2, 4, 4, 5), lambda x, w, b: F.conv3d(x, w, b, 2, 1), _kernel(2, 2, 3, 3, 3),
                randn(2))],
    "conv_transpose1d": [(SIGNALS, lambda x, w, b: F.conv_transpose1d(x, w, b, 3, 1, 1),
                          _kernel(3, 2, 3), randn(2))],
    "conv_transpose2d": [(IMAGES, lambda x, w, b: F.conv_transpose2d(
        x, w, b, 2, 1, 1, groups=2, dilation=2), _kernel(4, 3, 3, 3), randn(6))],
    "conv_transpose3d": [((1, 2, 3, 3, 3), lambda x, w: F.conv_transpose3d(x, w, stride=2),
                          _kernel(2, 2, 2, 2, 2))],
    "add": [(VECTORS, lambda x, w: torch.add(x, w, alpha=0.3), randn(6)),
            (VECTORS, lambda x, w: w + x, randn(1, 1))],
    "sub": [(VECTORS, lambda x, w: torch.sub(x, w, alpha=0.3), randn(4, 1)),
            (VECTORS, lambda x: 1 - x)],
    "avg_pool1d": [(SIGNALS, lambda x: F.avg_pool1d(x, 3, 2, 1)),
                   (SIGNALS, lambda x: F.avg_pool1d(x, 3, 2, 1, ceil_mode=True,
                                                    count_include_pad=False))],
    "avg_pool2d": [(IMAGES, lambda x: F.avg_pool2d(x, 2)),
                   (IMAGES, lambda x: F.avg_pool2d(x, (3, 2), (2, 3), (1, 0), ceil_mode=True)),
                   (IMAGES, lambda x: F.avg_pool2d(x, 4, 3, 1, ceil_mode=True,
                                                   count_include_pad=False)),
                   (IMAGES, lambda x: F.avg_pool2d(x, 3, 3, 1, divisor_override=2))],
    "avg_pool3d": [((1, 2, 4, 5, 6), lambda x: F.avg_pool3d(x, (2, 3, 2), (2, 1, 3), (0, 1, 1)))],
    "adaptive_avg_pool1d": [(SIGNALS, lambda x: F.adaptive_avg_pool1d(x, 3))],
    "adaptive_avg_pool2d": [(IMAGES, lambda x: F.adaptive_avg_pool2d(x, (4, 1))),
                            (IMAGES, lambda x: F.adaptive_avg_pool2d(x, (None, 7)))],
    "adaptive_avg_pool3d": [((1, 2, 3, 4, 5), lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)))],
    "interpolate": [(IMAGES, lambda x, m=m: F.interpolate(x, (9, 4), mode=m))
                    for m in ("nearest", "bilinear", "bicubic", "area")]
    + [(SIGNALS, lambda x: F.interpolate(x, scale_factor=1.5, mode="linear", align_corners=True)),
       ((1, 2, 3, 4, 5), lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"))],
    "upsample": [],
    "upsample_nearest1d": [(SIGNALS, lambda x: torch._C._nn.upsample_nearest1d(x, [9]))],
    "upsample_nearest2d": [(IMAGES, lambda x: torch._C._nn.upsample_nearest2d(x, [9, 4]))],
    "upsample_nearest3d": [((1, 2, 2, 3, 4),
                            lambda x: torch._C._nn.upsample_nearest3d(x, [3, 4, 6]))],
    "upsample_linear1d": [(SIGNALS, lambda x: torch._C._nn.upsample_linear1d(x, [9], False))],
    "upsample_bilinear2d": [(IMAGES,
                             lambda x: torch._C._nn.upsample_bilinear2d(x, [9, 4], True))],
    "upsample_bicubic2d": [(IMAGES, lambda x: torch._C._nn.upsample_bicubic2d(x, [9, 4], True))],
    "upsample_trilinear3d": [((1, 2, 2, 3, 4), lambda x: torch._C._nn.upsample_trilinear3d(
        x, [3, 4, 6], False))],
    # products
    "mul": [(VECTORS, lambda x, w: x * w, randn(4, 1)), (VECTORS, lambda x: x * x)],
    "div": [(VECTORS, lambda x, w: w / (x.square() + 1), randn(6)),
            (VECTORS, lambda x, w: x / (w.square() + 1), randn(6)), (VECTORS, lambda x: x / 3),
            (VECTORS, lambda x: 2 / (x.square() + 1))],
    "matmul": [(VECTORS, torch.matmul, W), (VECTORS, lambda x, w: w @ x, randn(4, 4)),
               (VECTORS, torch.matmul, randn(6)), (VECTORS, lambda x, w: (w @ x)[None], randn(4)),
               (VECTORS, lambda x, w: torch.dot(x[0], w)[None, None] * x, randn(6)),
               (IMAGES, lambda x, w: x @ w, randn(4, 6, 3)),
               (SIGNALS, lambda x: torch.bmm(x, x.mT)), (VECTORS, torch.mv, randn(6))],
    "rmatmul": [(VECTORS, lambda x, w: w.__rmatmul__(x), W)],
    "einsum": [(SIGNALS, lambda x, w: torch.einsum("nct,ck->nkt", x, w), randn(3, 2)),
               (SIGNALS, lambda x, w: torch.einsum("nct,tk,ck->n", x, w, w[:3]), randn(7, 2)),
               (SIGNALS, lambda x, w: torch.einsum("nct,a->nc", x, w), randn(2)),
               (IMAGES, lambda x, w: torch.einsum("...ij, ...jk -> ...ik", x, w), randn(4, 6, 3)),
               (IMAGES, lambda x, w: torch.einsum("...ij,...j->i...", x, w), randn(1, 1, 6)),
               (VECTORS, lambda x, w: torch.einsum("ij,jk", x, w), randn(6, 2))],
    "cross": [((5, 3), lambda x, w: torch.cross(x, w.expand(5, 3), dim=1), randn(3))],
    "linalg_cross": [((5, 3), torch.linalg.cross, randn(1, 3))],
    "inverse": [(VECTORS, lambda x, w: x @ torch.inverse(w), W)],
    "linalg_inv": [(VECTORS, lambda x, w: x @ torch.linalg.inv(w), W)],
    # reductions
    "sum": [(IMAGES, lambda x: x.sum((-1, 2))), (VECTORS, lambda x: x * x.sum()),
            (IMAGES, lambda x: x.sum(1, keepdim=True))],
    "mean": [(IMAGES, lambda x: x.mean((-1, 2))), (VECTORS, lambda x: x * x.mean()),
             (IMAGES, lambda x: x.mean(1, keepdim=True))],
    "cumsum": [(SIGNALS, lambda x: x.cumsum(-1))],
    "prod": [(SIGNALS, lambda x: x.prod(1)), (VECTORS, lambda x: F.relu(x).prod(-1, keepdim=True)),
             (VECTORS, lambda x: x * (x[:2, :2]).prod())],
    "norm": [(SIGNALS, lambda x: x.norm(dim=-1)), (VECTORS, lambda x: x.norm(dim=1, p=3)),
             (VECTORS, lambda x: (x * 0).norm(dim=1, keepdim=True))],
    "vector_norm": [(SIGNALS, lambda x: torch.linalg.vector_norm(x, dim=(1, 2))),
                    (SIGNALS, lambda x: torch.linalg.vector_norm(x, 1, dim=(1, 2)))],
    # extremes
    "max_pool1d": [(SIGNALS, lambda x: F.max_pool1d(x, 3, 2, 1, 2))],
    "max_pool2d": [(IMAGES, lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True)),
                   (IMAGES, lambda x: F.max_pool2d(x, 2))],
    "max_pool3d": [((1, 2, 4, 4, 4), lambda x: F.max_pool3d(x, 2))],
    "adaptive_max_pool1d": [(SIGNALS, lambda x: F.adaptive_max_pool1d(x, 3))],
    "adaptive_max_pool2d": [(IMAGES, lambda x: F.adaptive_max_pool2d(x, (2, 4)))],
    "adaptive_max_pool3d": [((1, 2, 3, 4, 5), lambda x: F.adaptive_max_pool3d(x, 2))],
    "max": [(SIGNALS, lambda x: x.max(-1)[0]), (VECTORS, lambda x: x * x.max()),
            (VECTORS, torch.max, randn(6))],
    "min": [(SIGNALS, lambda x: x.min(1, keepdim=True)[0]), (VECTORS, lambda x: x * x.min()),
            (VECTORS, torch.min, randn(6))],
    "amax": [(SIGNALS, lambda x: F.relu(x).amax((1, 2)))],
    "amin": [(SIGNALS, lambda x: F.relu(x).amin(-1, keepdim=True))],
    "maximum": [(VECTORS, torch.maximum, randn(6)),
                (VECTORS, lambda x: torch.maximum(F.relu(x), F.relu(-x) * 0))],
    "minimum": [(VECTORS, torch.minimum, randn(6))],
    "sort": [(SIGNALS, lambda x: x.sort(1, descending=True)[0])],
    "topk": [(VECTORS, lambda x: x.topk(3)[0])],
    "kthvalue": [(VECTORS, lambda x: x.kthvalue(2)[0])],
    "median": [(VECTORS, lambda x: x.median(1)[0])],
    "mode": [(VECTORS, lambda x: x.mode(1)[0])],
    "cummax": [(SIGNALS, lambda x: x.cummax(-1)[0])],
    "cummin": [(SIGNALS, lambda x: x.cummin(1)[0])],
    # normalization
    "softmax": [(SIGNALS, lambda x: F.softmax(x, 1)), (VECTORS, lambda x: F.softmax(x))],
    "log_softmax": [(SIGNALS, lambda x: F.log_softmax(x, 1)),
                    (VECTORS, lambda x: F.log_softmax(x))],
    "batch_norm": [(IMAGES, lambda x, w, b: F.batch_norm(
        x, torch.ones(4).double(), torch.full((4,), 2.0).double(), w, b), randn(4), randn(4)),
        (VECTORS, lambda x: F.batch_norm(x, torch.ones(6).double(), torch.ones(6).double())),
        (VECTORS, lambda x, w: F.batch_norm(x, None, None, w, training=True), randn(6))],
    "layer_norm": [(SIGNALS, lambda x, w, b: F.layer_norm(x, (3, 7), w, b), randn(3, 7),
                    randn(3, 7)), (VECTORS, lambda x: F.layer_norm(x, (6,)))],
    # refused: what they do depends on how a tensor lies in memory
    "as_strided": [], "as_strided_scatter": [],
}  # fmt: skip


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == set(ADJOINTS.by_name)


@pytest.mark.parametrize("name", [name for name, cases in CASES.items() if cases])
def test_a_rule_is_the_derivative(name: str) -> None:
    names = set()
    for shape, function, *weights in CASES[name]:
        net, x = With(function, *weights), randn(*shape, seed=5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a softmax without a dimension
            names |= {op.name for op in record(net, x, whole=True)}
            gradients_agree(net, x)
    assert name in names


#: Operations of a kind that has one rule for all, and some that are written out in others.
OTHERS: dict[str, tuple[Any, ...]] = {
    "chunk": (VECTORS, lambda x: x.chunk(3, 1)[1] * x.chunk(3, 1)[0]),
    "unbind": (SIGNALS, lambda x: x.unbind(1)[2]),
    "roll and flip": (SIGNALS, lambda x: x.roll(2, -1).flip(1)),
    "expand": (VECTORS, lambda x: x[:, None].expand(-1, 3, -1)),
    "repeat": (VECTORS, lambda x: x.repeat(1, 3)),
    "repeat_interleave": (VECTORS, lambda x: x.repeat_interleave(2, 1)),
    "indexing": (VECTORS, lambda x: x[:, [0, 0, 3]] + x[:, ::2]),
    "gather": (VECTORS, lambda x: x.gather(1, PLACES)),
    "index_select": (VECTORS, lambda x: x.index_select(1, torch.tensor([5, 0, 5]))),
    "take_along_dim": (VECTORS, lambda x: torch.take_along_dim(x, PLACES, 1)),
    "diagonal": (IMAGES, lambda x: x.diagonal(0, 2, 3)),
    "unfold": (SIGNALS, lambda x: x.unfold(-1, 3, 2)),
    "pixel_shuffle": (IMAGES, lambda x: F.pixel_shuffle(x, 2)),
    "stack": (VECTORS, lambda x, w: torch.stack([x, w * x, x], 1), randn(6)),
    "where": (VECTORS, lambda x, w: torch.where(x > 0, x, w), randn(6)),
    "masked_fill": (VECTORS, lambda x: F.softmax(x.masked_fill(x < -0.5, -math.inf), 1)),
    "scatter": (VECTORS, lambda x, w: x.scatter(1, PLACES[:, 1:3], w.expand(4, 2)), randn(2)),
    "index_put": (VECTORS, lambda x, w: x.index_put((torch.tensor([0, 2]),), w), randn(6)),
    "written in place": (VECTORS, lambda x, w: _written(x, w), randn(6)),
    "setitem of a view": (VECTORS, lambda x, w: _written_through_a_view(x, w), randn(3)),
    "masked softmax": (SIGNALS, lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
    "group_norm": (IMAGES, lambda x, w: F.group_norm(x, 2, w), randn(4)),
    "instance_norm": (IMAGES, F.instance_norm),
    "rms_norm": (VECTORS, lambda x, w: F.rms_norm(x, (6,), w), randn(6)),
    "normalize": (VECTORS, F.normalize),
    "local_response_norm": (IMAGES, lambda x: F.local_response_norm(x, 2)),
    "glu": (VECTORS, F.glu),
    "logsumexp": (SIGNALS, lambda x: torch.logsumexp(x, (1, 2))),
    "variance": (SIGNALS, lambda x: x.var(-1) + x.std(-1)),
    "bilinear": (VECTORS, lambda x, w: F.bilinear(x, x, w), randn(2, 6, 6)),
    "addmm": (VECTORS, lambda x, b, w: torch.addmm(b, x, w, beta=0.5, alpha=2), randn(6), W),
    "addcmul": (VECTORS, lambda x, w: torch.addcmul(x, x, w, value=0.5), randn(6)),
    "lerp": (VECTORS, lambda x, w: torch.lerp(x, w, 0.3), randn(6)),
    "cosine_similarity": (VECTORS, lambda x, w: F.cosine_similarity(x, w[None]), randn(6)),
    "tensordot": (SIGNALS, lambda x, w: torch.tensordot(x, w, ([1], [0])), randn(3, 2)),
    "detach": (VECTORS, lambda x: x * x.detach() + x.sign() * x.round()),
    "no_grad": (VECTORS, lambda x: x * _without_slopes(x)),
    "dropout in evaluation mode": (VECTORS, lambda x: F.dropout(x, 0.5, training=False)),
    "an unused result": (VECTORS, lambda x: (x.exp(), x * 2)[1]),
    "a way that depends on the input": (VECTORS, lambda x: x.exp() if x.sum() > 0 else x.sin()),
}  # fmt: skip


def _written(x: Tensor, w: Tensor) -> Tensor:
    made = torch.zeros(4, 6).double()
    made[:, 1:] = x[:, :5]
    made[0] = w
    made.mul_(x)
    return made


def _written_through_a_view(x: Tensor, w: Tensor) -> Tensor:
    made = x.clone()
    part = made[:, :3]
    part += w
    part[:, 0] = 7.0
    return made * x


def _without_slopes(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.exp()


@pytest.mark.parametrize("name", OTHERS)
def test_operations_by_their_kind_and_written_out(name: str) -> None:
    shape, function, *weights = OTHERS[name]
    gradients_agree(With(function, *weights), randn(*shape, seed=6))


def test_a_scatter_of_some_of_the_entries() -> None:
    """Of which torch has no derivative."""
    net = With(lambda x: torch.zeros(4, 6).double().scatter_add(1, PLACES[:, :4], x))
    below, _ = pull_back(net, randn(*VECTORS), torch.arange(24.0).reshape(4, 6).double())
    assert below[1].tolist() == [6.0, 8.0, 7.0, 6.0, 0.0, 0.0]


def test_slopes_where_torch_computes_with_single_precision() -> None:
    x = 3 * randn(*VECTORS, seed=5)
    below, _ = pull_back(nn.Hardsigmoid(), x, torch.ones_like(x))
    torch.testing.assert_close(below, (x.abs() < 3).double() / 6, rtol=1e-15, atol=0)
    below, _ = pull_back(nn.CELU(0.7), x, torch.ones_like(x))
    wanted = torch.where(x > 0, 1.0, torch.exp(x / 0.7))
    torch.testing.assert_close(below, wanted, rtol=1e-14, atol=0)


def test_a_padding_index_that_counts_from_the_end() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(3, 2))

        def forward(self, x: Tensor) -> Tensor:
            return F.embedding(x, self.table, padding_idx=-2)

    words = torch.tensor([[0, 1], [2, 1]])
    _, gradients = pull_back(Words(), words, torch.ones(2, 2, 2))
    assert gradients["table"].tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize("dim", [0, 1, None])
def test_normalized_weights_of_every_dimension(dim: int | None) -> None:
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4), dim=dim).double()
    x, delta = randn(2, 3), randn(2, 4, seed=1)
    own = dict(layer.named_parameters())
    wanted = torch.autograd.grad(layer(x), list(own.values()), delta)
    _, found = pull_back(layer, x, delta)
    for name, gradient in zip(own, wanted, strict=True):
        torch.testing.assert_close(found[name], gradient)


def test_a_spectral_norm() -> None:
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)).double().eval()
    x, delta = randn(2, 3), randn(2, 4, seed=1)
    own = dict(layer.named_parameters())
    wanted = torch.autograd.grad(layer(x), list(own.values()), delta)
    _, found = pull_back(layer, x, delta)
    for name, gradient in zip(own, wanted, strict=True):
        torch.testing.assert_close(found[name], gradient)


def test_casts() -> None:
    net = With(lambda x, w: (x.float() * w.float()).double() + x.half().bfloat16(), randn(6))
    x = randn(*VECTORS)
    found = backpropagate(net, x, torch.zeros(4, 6), lambda h, y: h.sum())
    leaf = x.clone().requires_grad_()
    weight, at_input = torch.autograd.grad(net(leaf).sum(), [net.weights[0], leaf])
    torch.testing.assert_close(found.gradients["weights.0"], weight)
    torch.testing.assert_close(found.delta_input, at_input)


@pytest.mark.parametrize(
    ("words", "function"),
    [
        ("scatter_reduce", lambda x: x.scatter_reduce(1, PLACES, x, "amax")),
        ("index_put", lambda x: x.index_put((torch.tensor([0, 0]),), x[:1], accumulate=True)),
        ("cumprod", lambda x: x.cumprod(1)),
        ("dropout", lambda x: F.dropout(x, 0.5, training=True)),
        ("fft", lambda x: torch.fft.fft(x).real),
        ("strided", lambda x: x.as_strided((4, 2), (6, 1))),
    ],
)
def test_what_has_no_rule_is_refused_with_its_name(words: str, function: Any) -> None:
    with pytest.raises(UnsupportedModel, match=f"no gradient by hand: .*{words}"):
        backpropagate(With(function), randn(*VECTORS), None, lambda h, _: h.sum())


def test_a_rule_of_your_own() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x**3

    @rule(ADJOINTS, Cube)
    def cube(call: Any) -> Any:
        return {"argument_0": call.delta * 30}  # not the derivative, to see that it is asked

    try:
        below, _ = pull_back(With(lambda x: Cube.apply(x)), torch.ones(2, 3), torch.ones(2, 3))
    finally:
        del ADJOINTS.added["Cube"]
    assert below.tolist() == [[30.0] * 3] * 2


# ------------------------------------------------------------------------ the architectures


class One(nn.Module):
    """One of several outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.model(x)
        if isinstance(outputs, Tensor):
            return outputs
        return outputs[0] if isinstance(outputs, tuple) else outputs["logits"]


def _equal_autograd(model: nn.Module, x: Tensor) -> None:
    net, leaf = One(model), x.clone()
    wanted = [leaf.requires_grad_()] if x.is_floating_point() else []
    outputs = net(leaf)
    y = randn(*outputs.shape, seed=9)
    found = backpropagate(net, x, y, half_square)
    named = dict(net.named_parameters())
    *expected, at_input = [
        *torch.autograd.grad(
            half_square(outputs, y), [*named.values(), *wanted], allow_unused=True
        ),
        *([] if wanted else [None]),
    ]
    used = {k: g for (k, _), g in zip(named.items(), expected, strict=True) if g is not None}
    assert found.gradients.keys() == used.keys()
    for name, own in found.gradients.items():
        torch.testing.assert_close(own, used[name], rtol=1e-8, atol=1e-10, msg=name)
    if wanted:
        torch.testing.assert_close(found.delta_input, at_input, rtol=1e-8, atol=1e-10)
    else:
        assert found.delta_input is None


@pytest.mark.parametrize("name", ALL_NAMES)
def test_architectures(name: str) -> None:
    one = architecture(name)
    _equal_autograd(one.model, one.x)


@pytest.mark.parametrize("name", [n for n in NAMES if architecture(n).rows_are_samples])
def test_archives(name: str) -> None:
    _equal_autograd(archived(name), architecture(name).x)


def test_several_outputs_at_once() -> None:
    one = architecture("several-outputs")

    def loss(outputs: dict[str, Tensor], y: Tensor) -> Tensor:
        return (outputs["logits"] - y).square().sum() + outputs["value"].sum()

    found = backpropagate(one.model, one.x, torch.ones(3, 3), loss)
    named = dict(one.model.named_parameters())
    expected = torch.autograd.grad(loss(one.model(one.x), torch.ones(3, 3)), list(named.values()))
    for own, theirs in zip(found.gradients.values(), expected, strict=True):
        torch.testing.assert_close(own, theirs)
