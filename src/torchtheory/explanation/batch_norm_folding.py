r"""Batch normalization, folded into the layer beside it.

In evaluation mode batch normalization is the affine map $y=s(x-\mu)+\beta$ of each channel, with
$s=\gamma/\sqrt{v+\epsilon}$. Behind a linear layer it makes weights $w_{jk}s_k$ and biases
$(b_k-\mu_k)s_k+\beta_k$; before one, weights $w_{jk}s_j$ and biases
$b_k+\sum_jw_{jk}(\beta_j-s_j\mu_j)$. The second is exact only where every output sees all channels
everywhere: a convolution that pads with zeros pads what comes out of the normalization, and would
pad what goes in. Source: Mathematical Aspects of Deep Learning, section 5.4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module, module_with_values
from torchtheory.core.errors import EmptyData
from torchtheory.models.model import (
    evaluating,
    global_randomness_kept,
    main_output,
    one_output,
    real_rows,
    tensors_in,
)
from torchtheory.models.opened import answer
from torchtheory.models.untouched import copied
from torchtheory.sequences.attention.tracing import NamedCalls

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_FOLDABLE = (nn.Linear, *_CONVOLUTIONS)
_LINEAR = ("linear", "conv1d", "conv2d", "conv3d")
_Linear = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True, slots=True)
class Folded:
    """A network without the batch normalizations that could be folded.

    Attributes:
        model: the copy, in evaluation mode, with `nn.Identity` in their places.
        difference: largest difference of outputs on the probe inputs.
        unchanged: whether that is rounding.
        into: by name of the normalization, the layer it went into.
        kept: by name of a normalization that stayed, why.
    """

    model: nn.Module
    difference: float
    unchanged: bool
    into: dict[str, str]
    kept: dict[str, str]


def has_batch_norm(model: nn.Module) -> bool:
    """Whether there is something to fold."""
    return any(isinstance(module, _NORMS) for module in as_module(model).modules())


def fold_batch_norm(model: nn.Module, probe: Tensor | Sequence[Tensor]) -> Folded:
    """A copy of the network with every batch normalization folded that can be.

    Args:
        model: the network; it stays as it is.
        probe: inputs `[n, ...]`, or several such tensors, to see which layer feeds which, and to
            compare outputs on.

    Raises:
        UnsupportedModel: if the network cannot be copied.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)).eval()
    >>> fold_batch_norm(net, torch.ones(1, 2)).into
    {'1': '0'}
    """
    module_with_values(model)
    probe = [probe] if isinstance(probe, Tensor) else probe
    for inputs in probe:
        if inputs.numel() == 0:
            raise EmptyData(f"the probe needs a sample, and its shape is {list(inputs.shape)}")
    made = copied(model).requires_grad_(False)
    with torch.no_grad(), evaluating(made), global_randomness_kept():
        calls = _Calls(made)
        with calls.named(), calls:
            before = _outputs(made, probe)
        calls.takers.setdefault(id(before), []).append(("", "output"))
        into: dict[str, str] = {}
        kept: dict[str, str] = {}
        modules = dict(made.named_modules())
        for name, module in modules.items():
            if isinstance(module, _NORMS):
                reason = _fold(name, module, modules, calls, into)
                if reason:
                    kept[name] = reason
        gone = {modules[name] for name in into}
        for name, module in [*made.named_modules(remove_duplicate=False)]:
            if module in gone:
                parent, _, own = name.rpartition(".")
                setattr(made.get_submodule(parent), own, nn.Identity())
        after = _outputs(made, probe)
    made.eval()
    difference, size = float((after - before).abs().max()), float(before.abs().max())
    unchanged = difference <= torch.finfo(before.dtype).eps ** 0.5 * size
    return Folded(made, difference, unchanged, into, kept)


def _outputs(model: nn.Module, probe: Sequence[Tensor]) -> Tensor:
    returned = answer(model, *(t.clone() for t in probe))
    return real_rows(one_output(returned, main_output(returned)), len(probe[0]))


class _Calls(NamedCalls):
    """Which layer made a tensor, which take it, and how often a layer is called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.maker: dict[int, str] = {}
        self.takers: dict[int, list[tuple[str, str]]] = {}
        self.given: dict[str, list[Tensor]] = {}
        self.made: dict[str, list[Tensor]] = {}

    def calls_function(
        self, func: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> None:
        name = getattr(func, "__name__", "")
        if not any(True for _ in tensors_in([result])):
            return  # a question, such as for the number of dimensions
        layer = self.path[-1][0]
        for t in tensors_in([*args, *named.values()]):
            self.takers.setdefault(id(t), []).append((layer, name))
        if name in _LINEAR or name == "batch_norm":
            (given, *_), (made, *_) = tensors_in(args), tensors_in([result])
            self.maker[id(made)] = layer
            # kept, so that their ids stay their own
            self.given.setdefault(layer, []).append(given)
            self.made.setdefault(layer, []).append(made)


def _fold(
    name: str, norm: Any, modules: dict[str, nn.Module], calls: _Calls, into: dict[str, str]
) -> str:
    """Fold one normalization into a layer beside it; why not, if that is impossible."""
    if not _is_plain(norm):
        return "it does more than batch normalization"
    if norm.running_mean is None or norm.running_var is None:
        return "it has no running statistics"
    if len(calls.given.get(name, [])) != 1:
        return "it is not called exactly once"
    given, made = calls.given[name][0], calls.made[name][0]
    scale = torch.rsqrt(norm.running_var + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -norm.running_mean * scale
    shift = shift if norm.bias is None else shift + norm.bias
    before = calls.maker.get(id(given), "")
    layer = modules.get(before)
    if (
        isinstance(layer, _FOLDABLE)
        and _is_plain(layer)
        and len(calls.made[before]) == 1
        and len(calls.takers.get(id(given), [])) == 1
        and not (isinstance(layer, nn.Linear) and given.ndim != 2)  # whose channels are dimension 1
    ):
        weight, bias = layer.weight, layer.bias
        layer.weight = nn.Parameter(
            weight * scale.reshape(-1, *[1] * (weight.ndim - 1)), requires_grad=False
        )
        old = torch.zeros_like(scale) if bias is None else bias
        layer.bias = nn.Parameter(old * scale + shift, requires_grad=False)
        into[name] = before
        return ""
    takers = {taker for taker, _ in calls.takers.get(id(made), [])}
    behind = next(iter(takers)) if len(takers) == 1 else ""
    layer = modules.get(behind)
    alone = isinstance(layer, _FOLDABLE) and len(calls.made.get(behind, [])) == 1
    if not (isinstance(layer, _FOLDABLE) and alone and _is_plain(layer)):
        return "no linear layer alone feeds it, and none alone takes what it returns"
    if isinstance(layer, _CONVOLUTIONS) and _pads_with_zeros(layer):
        return f"the convolution {behind!r} behind it pads with zeros"
    if isinstance(layer, nn.Linear) and made.ndim != 2:
        return f"the linear layer {behind!r} behind it takes another dimension than channels"
    _fold_before(layer, scale, shift)
    into[name] = behind
    return ""


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer does what its weights say, and nothing makes them, hooks or overrides it."""
    known = next(kind for kind in (*_FOLDABLE, *_NORMS) if isinstance(layer, kind))
    hooks = layer._forward_hooks or layer._forward_pre_hooks
    own = layer._parameters.keys() | layer._buffers.keys()
    return (
        type(layer).forward is known.forward
        and getattr(type(layer), "_conv_forward", None) is getattr(known, "_conv_forward", None)
        and not hooks
        and {"weight", "bias"} <= own
    )


def _fold_before(layer: _Linear, scale: Tensor, shift: Tensor) -> None:
    weight = layer.weight
    groups = 1 if isinstance(layer, nn.Linear) else layer.groups
    spread = [1] * (weight.ndim - 2)
    # which input channel a weight [out, in / groups, ...] belongs to
    rows = len(weight) // groups
    of = [t.reshape(groups, 1, -1).expand(groups, rows, -1).reshape(len(weight), -1, *spread)
          for t in (scale, shift)]  # fmt: skip
    added = (weight * of[1]).flatten(1).sum(1)
    layer.weight = nn.Parameter(weight * of[0], requires_grad=False)
    old = torch.zeros_like(added) if layer.bias is None else layer.bias
    layer.bias = nn.Parameter(old + added, requires_grad=False)


def _pads_with_zeros(layer: Any) -> bool:
    if layer.padding_mode != "zeros" or layer.padding == "valid":
        return False
    return layer.padding == "same" or any(layer.padding)
