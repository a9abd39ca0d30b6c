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
from torchtheory.core.errors import UnsupportedModel
from torchtheory.models.model import global_randomness_kept, main_output, one_output
from torchtheory.models.opened import answer
from torchtheory.models.untouched import copied
from torchtheory.tracing.chain import has_own_forward, is_watched
from torchtheory.tracing.examples import example_input
from torchtheory.tracing.network import Network, Operation, Value
from torchtheory.tracing.recorder import record

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_LINEAR = {"linear": nn.Linear, "conv1d": nn.Conv1d, "conv2d": nn.Conv2d, "conv3d": nn.Conv3d}


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
    """Whether there is something to fold.

    >>> has_batch_norm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    True
    """
    return any(isinstance(module, _NORMS) for module in as_module(model).modules())


def fold_batch_norm(model: nn.Module, x: Tensor | Sequence[Tensor] | None = None) -> Folded:
    r"""A copy of the network with every batch normalization folded that can be.

    Behind a linear layer or a convolution $W'=\operatorname{diag}(s)W$,
    $b'=s\odot(b-\hat\mu)+\beta$ with $s=\gamma/\sqrt{\hat\sigma^2+\delta}$, before one as the
    module says. Each of the two must be called once, and nothing else may take what is between
    them; branches and shortcuts elsewhere do not matter.

    Args:
        model: the network, also one from an archive; it stays as it is.
        x: inputs `[n, ...]`, or several such tensors, to see which layer feeds which, and to
            compare outputs on; without them some are made up.

    Raises:
        UnsupportedModel: if the network cannot be copied, or runs on no input that was tried.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)).eval()
    >>> folded = fold_batch_norm(net)
    >>> folded.into, folded.model[1], folded.unchanged
    ({'1': '0'}, Identity(), True)
    """
    module_with_values(model)
    if not has_batch_norm(model):
        return Folded(copied(model).eval(), 0.0, True, {}, {})
    probe = example_input(model) if x is None else x
    given = (probe,) if isinstance(probe, Tensor) else tuple(probe)
    network = record(model, given[0] if len(given) == 1 else given)
    made = copied(model).eval()
    into: dict[str, str] = {}
    kept = {
        name: "it is not called exactly once"
        for name, module in model.named_modules()
        if isinstance(module, _NORMS)
    }
    with torch.no_grad(), global_randomness_kept():
        before = _outputs(made, given)
        folding = _Folding(network, made)
        for op in [op for op in network if op.name == "batch_norm"]:
            try:
                into[op.layer] = folding.fold(op)
                kept.pop(op.layer, None)
            except UnsupportedModel as error:
                kept[op.layer] = str(error)
        folding.finish()
        after = _outputs(made, given)
    difference, size = float((after - before).abs().max()), float(before.abs().max())
    unchanged = difference <= torch.finfo(before.dtype).eps ** 0.5 * size
    return Folded(made, difference, unchanged, into, kept)


def _outputs(model: nn.Module, probe: Sequence[Tensor]) -> Tensor:
    returned = answer(model, *(t.clone() for t in probe))
    return one_output(returned, main_output(returned))


class _Folding:
    """Changes the weights of layers, and puts `nn.Identity` in the place of normalizations.

    Args:
        network: what was recorded of the model.
        made: the copy that is changed.
    """

    def __init__(self, network: Network, made: nn.Module) -> None:
        self.network, self.made = network, made
        self.modules = dict(made.named_modules())
        self.gone: set[nn.Module] = set()

    def finish(self) -> None:
        """Leave out what was folded."""
        for name, module in [*self.made.named_modules(remove_duplicate=False)]:
            if module in self.gone:
                parent, _, own = name.rpartition(".")
                setattr(self.made.get_submodule(parent), own, nn.Identity())

    def fold(self, norm: Operation) -> str:
        """Fold one normalization into a layer beside it, and say which one.

        Raises:
            UnsupportedModel: if that is impossible; the message says why.
        """
        if self.network.decisions:
            raise UnsupportedModel(
                "the network asks what is in its input, and another input may go another way"
            )
        module: Any = self._own_layer(norm, _NORMS)
        if norm.arguments.get("training") or module.running_mean is None:
            raise UnsupportedModel("it has no running statistics")
        scale = torch.rsqrt(module.running_var + module.eps)
        scale = scale if module.weight is None else scale * module.weight
        shift = -module.running_mean * scale
        shift = shift if module.bias is None else shift + module.bias
        (given,), (made,) = (v for v in norm.inputs if v.follows), norm.outputs
        before = self.network.makers.get(given)
        # the channels of what a linear layer makes are its last dimension, not dimension 1
        apart = before is not None and before.name == "linear" and len(given.shape) != 2
        alone = self._only(given) is norm and not apart
        if before is not None and alone and self._is_linear(before):
            weight, bias = self._weights(before)
            old = torch.zeros_like(scale) if bias is None else bias
            wide = scale.reshape(-1, *[1] * (weight.ndim - 1))
            self._change(before, weight * wide, old * scale + shift)
            self.gone.add(module)
            return before.layer
        behind = self._only(made)
        if behind is not None and behind.name == "pad" and behind.arguments["mode"] != "constant":
            behind = self._only(behind.outputs[0])
        if behind is None or not self._is_linear(behind):
            raise UnsupportedModel(
                "no linear layer alone feeds it, and none alone takes what it returns"
            )
        if _pads(behind.arguments.get("padding", 0)):
            raise UnsupportedModel(f"the convolution {behind.layer!r} behind it pads with zeros")
        if behind.name == "linear" and len(made.shape) != 2:
            raise UnsupportedModel(
                f"the linear layer {behind.layer!r} behind it takes another dimension than channels"
            )
        groups = behind.arguments.get("groups", 1)
        self._change(behind, *_folded_before(*self._weights(behind), groups, scale, shift))
        self.gone.add(module)
        return behind.layer

    def _own_layer(self, op: Operation, kinds: tuple[type[nn.Module], ...]) -> nn.Module:
        """The layer whose forward pass an operation is, called once and as it is."""
        module = self.modules.get(op.layer)
        if not isinstance(module, kinds) or not op.layer:
            raise UnsupportedModel("it is no layer by itself")
        own = module._parameters.keys() | module._buffers.keys()
        beside = [
            other
            for other in self.network
            if other is not op and other.follows and other.calls[-1:] == op.calls[-1:]
        ]
        if (
            not has_own_forward(module)
            or is_watched(module)
            or any(other.name != "pad" for other in beside)
            or not own >= {"weight", "bias"}
        ):
            raise UnsupportedModel("it does more than batch normalization")
        if len({other.calls[-1] for other in self.network if other.layer == op.layer}) != 1:
            raise UnsupportedModel("it is not called exactly once")
        return module

    def _is_linear(self, op: Operation) -> bool:
        try:
            return op.name in _LINEAR and bool(self._own_layer(op, (_LINEAR[op.name],)))
        except UnsupportedModel:
            return False

    def _only(self, value: Value) -> Operation | None:
        """The only operation that takes a value."""
        users = self.network.users.get(value, [])
        return users[0] if len(users) == 1 and value not in self.network.outputs else None

    def _weights(self, op: Operation) -> tuple[Tensor, Tensor | None]:
        module: Any = self.modules[op.layer]
        return module.weight, module.bias

    def _change(self, op: Operation, weight: Tensor, bias: Tensor) -> None:
        module = self.modules[op.layer]
        trained = module.get_parameter("weight").requires_grad
        # new tensors: a weight shared with another layer must keep its values there
        module.register_parameter("weight", nn.Parameter(weight, requires_grad=trained))
        module.register_parameter("bias", nn.Parameter(bias, requires_grad=trained))


def _pads(padding: Any) -> bool:
    if isinstance(padding, str):
        return padding != "valid"
    return any(padding) if isinstance(padding, list | tuple) else bool(padding)


def _folded_before(
    weight: Tensor, bias: Tensor | None, groups: int, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    spread = [1] * (weight.ndim - 2)
    # which input channel a weight [out, in / groups, ...] belongs to
    rows = len(weight) // groups
    of = [t.reshape(groups, 1, -1).expand(groups, rows, -1).reshape(len(weight), -1, *spread)
          for t in (scale, shift)]  # fmt: skip
    added = (weight * of[1]).flatten(1).sum(1)
    return weight * of[0], added if bias is None else bias + added
