r"""Batch normalization, folded into the layer beside it.

In evaluation mode batch normalization is the affine map $y=s(x-\mu)+\beta$ of each channel, with
$s=\gamma/\sqrt{v+\epsilon}$. Behind a linear layer it makes weights $w_{jk}s_k$ and biases
$(b_k-\mu_k)s_k+\beta_k$; before one, weights $w_{jk}s_j$ and biases
$b_k+\sum_jw_{jk}(\beta_j-s_j\mu_j)$. The second is exact only where every output sees all channels
everywhere: a convolution that pads with zeros pads what comes out of the normalization, and would
pad what goes in. Source: Mathematical Aspects of Deep Learning, section 5.4.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module, module_with_values
from torchtheory.models.exported import ExportedNetwork
from torchtheory.models.model import evaluating, global_randomness_kept, main_output, one_output
from torchtheory.models.opened import answer
from torchtheory.models.untouched import copied
from torchtheory.tracing.chain import has_own_forward, is_watched
from torchtheory.tracing.examples import example_input
from torchtheory.tracing.network import Network, Operation, Value, mapped
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
    parts = as_module(model).modules()
    return any(isinstance(m, _NORMS) for m in parts) or (
        isinstance(model, ExportedNetwork)
        and any(name.endswith("running_var") for name, _ in model.named_buffers())
    )


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
    folding = _ByOperation(network) if isinstance(model, ExportedNetwork) else _ByLayer(network)
    made = folding.start(model)
    into: dict[str, str] = {}
    kept: dict[str, str] = {}
    with torch.no_grad():
        for op in [op for op in network if op.name == "batch_norm"]:
            name = folding.name(op)
            target = folding.fold(op)
            if isinstance(target, str):
                kept[name] = target
            else:
                into[name] = folding.name(target)
        made = folding.finish(made)
        with evaluating(model), evaluating(made), global_randomness_kept():
            before, after = _outputs(copied(model).eval(), given), _outputs(made, given)
    made.eval()
    difference, size = float((after - before).abs().max()), float(before.abs().max())
    unchanged = difference <= torch.finfo(before.dtype).eps ** 0.5 * size
    return Folded(made, difference, unchanged, into, kept | folding.unseen(model, into, kept))


def _outputs(model: nn.Module, probe: Sequence[Tensor]) -> Tensor:
    returned = answer(model, *(t.clone() for t in probe))
    return one_output(returned, main_output(returned))


class _Folding:
    """What folding into operations and into layers have in common.

    Args:
        network: what was recorded of the model.
    """

    def __init__(self, network: Network) -> None:
        self.network = network

    def start(self, model: nn.Module) -> nn.Module:
        """What is changed."""
        raise NotImplementedError

    def finish(self, made: nn.Module) -> nn.Module:
        """The network without what was folded."""
        raise NotImplementedError

    def obstacle(self, op: Operation) -> str:
        """Why an operation cannot be changed by itself; empty if it can."""
        raise NotImplementedError

    def weights(self, op: Operation) -> dict[str, Tensor | None]:
        """Tensors that an operation is called with, by name, as they are by now."""
        raise NotImplementedError

    def change(self, op: Operation, weight: Tensor, bias: Tensor) -> None:
        """Give a linear operation another weight and bias."""
        raise NotImplementedError

    def remove(self, op: Operation) -> None:
        """Let a normalization pass on what it is given."""
        raise NotImplementedError

    def unseen(
        self, model: nn.Module, into: dict[str, str], kept: dict[str, str]
    ) -> dict[str, str]:
        """Normalizations that did not run."""
        return {}

    def name(self, op: Operation) -> str:
        """The layer that an operation is called by."""
        return op.layer

    def fold(self, norm: Operation) -> Operation | str:
        """Fold one normalization into an operation beside it; why not, if that is impossible."""
        bound = norm.arguments
        if self.network.decisions:
            return "the network asks what is in its input, and another input may go another way"
        if not norm.follows or bound.get("training") or bound.get("running_mean") is None:
            return "it has no running statistics"
        reason = self.obstacle(norm)
        if reason:
            return reason
        (given,), (made,) = (v for v in norm.inputs if v.follows), norm.outputs
        own = self.weights(norm)
        mean, variance = own["running_mean"], own["running_var"]
        assert mean is not None
        assert variance is not None
        scale = torch.rsqrt(variance + bound["eps"])
        scale = scale if own["weight"] is None else scale * own["weight"]
        shift = -mean * scale
        shift = shift if own["bias"] is None else shift + own["bias"]
        before = self.network.makers.get(given)
        if before is not None and self._can_take(before, given) and self._only(given) is norm:
            tensors = self.weights(before)
            weight, bias = tensors["weight"], tensors["bias"]
            assert weight is not None
            old = torch.zeros_like(scale) if bias is None else bias
            self.change(
                before, weight * scale.reshape(-1, *[1] * (weight.ndim - 1)), old * scale + shift
            )
            self.remove(norm)
            return before
        behind = self._only(made)
        if behind is not None and behind.name == "pad" and behind.arguments["mode"] != "constant":
            behind = self._only(behind.outputs[0])
        if behind is None or not self._can_take(behind, None):
            return "no linear layer alone feeds it, and none alone takes what it returns"
        if any(s for s in _numbers(behind.arguments.get("padding", 0))):
            return f"the convolution {self.name(behind)!r} behind it pads with zeros"
        if behind.name == "linear" and len(made.shape) != 2:
            return (
                f"the linear layer {self.name(behind)!r} behind it takes another dimension than "
                "channels"
            )
        tensors = self.weights(behind)
        assert tensors["weight"] is not None
        groups = behind.arguments.get("groups", 1)
        self.change(
            behind, *_folded_before(tensors["weight"], tensors["bias"], groups, scale, shift)
        )
        self.remove(norm)
        return behind

    def _can_take(self, op: Operation, made: Value | None) -> bool:
        if op.name not in _LINEAR or self.obstacle(op):
            return False
        # the channels of what a linear layer makes are its last dimension, not dimension 1
        return op.name != "linear" or made is None or len(made.shape) == 2

    def _only(self, value: Value) -> Operation | None:
        """The only operation that takes a value."""
        users = self.network.users.get(value, [])
        return users[0] if len(users) == 1 and value not in self.network.outputs else None


def _numbers(padding: Any) -> Sequence[Any]:
    if isinstance(padding, str):
        return [padding != "valid"]
    return padding if isinstance(padding, list | tuple) else [padding]


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


class _ByLayer(_Folding):
    """Changes the weights of layers, and puts `nn.Identity` in the place of normalizations."""

    def start(self, model: nn.Module) -> nn.Module:
        made = copied(model)
        self.modules = dict(made.named_modules())
        self.gone: set[nn.Module] = set()
        return made

    def finish(self, made: nn.Module) -> nn.Module:
        for name, module in [*made.named_modules(remove_duplicate=False)]:
            if module in self.gone:
                parent, _, own = name.rpartition(".")
                setattr(made.get_submodule(parent), own, nn.Identity())
        return made

    def obstacle(self, op: Operation) -> str:
        module = self.modules.get(op.layer)
        kinds = _NORMS if op.name == "batch_norm" else (_LINEAR[op.name],)
        if not isinstance(module, kinds):
            return "it is a function and no layer"
        own = module._parameters.keys() | module._buffers.keys()
        others = [o for o in self.network if o is not op and o.calls[-1:] == op.calls[-1:]]
        others = [o for o in others if o.follows and o.name != "pad"]
        if (
            not has_own_forward(module)
            or is_watched(module)
            or others
            or not {"weight", "bias"} <= own
        ):
            return "it does more than batch normalization"
        calls = {o.calls[-1] for o in self.network if o.layer == op.layer}
        if len(calls) != 1:
            return "it is not called exactly once"
        if op.layer == "":
            return "it is the whole network"
        return ""

    def weights(self, op: Operation) -> dict[str, Tensor | None]:
        module = self.modules[op.layer]
        names = ("weight", "bias", "running_mean", "running_var")
        return {name: getattr(module, name, None) for name in names}

    def change(self, op: Operation, weight: Tensor, bias: Tensor) -> None:
        module = self.modules[op.layer]
        # new tensors: a weight shared with another layer must keep its values there
        trained = module.get_parameter("weight").requires_grad
        module.register_parameter("weight", nn.Parameter(weight, requires_grad=trained))
        module.register_parameter("bias", nn.Parameter(bias, requires_grad=trained))

    def remove(self, op: Operation) -> None:
        self.gone.add(self.modules[op.layer])

    def unseen(
        self, model: nn.Module, into: dict[str, str], kept: dict[str, str]
    ) -> dict[str, str]:
        names = [n for n, m in model.named_modules() if isinstance(m, _NORMS)]
        return {n: "it is not called exactly once" for n in names if n not in into | kept}


class _ByOperation(_Folding):
    """Changes the operations of a network that has no layers."""

    def start(self, model: nn.Module) -> nn.Module:
        self.tensors: dict[Value, Tensor] = dict(self.network.tensors)
        self.instead: dict[Operation, Operation] = {}
        self.gone: dict[Value, Value] = {}
        return model

    def name(self, op: Operation) -> str:
        owner = op.arguments.get("running_mean" if op.name == "batch_norm" else "weight")
        return owner.name.rpartition(".")[0] if isinstance(owner, Value) else op.layer

    def obstacle(self, op: Operation) -> str:
        names = ("weight", "bias", "running_mean", "running_var")
        held = [op.arguments.get(name) for name in names]
        return "" if all(v is None or v in self.tensors for v in held) else (
            "its weights are computed from others"
        )  # fmt: skip

    def weights(self, op: Operation) -> dict[str, Tensor | None]:
        bound = self.instead.get(op, op).arguments
        names = ("weight", "bias", "running_mean", "running_var")
        held = {name: bound.get(name) for name in names}
        return {name: None if v is None else self.tensors[v] for name, v in held.items()}

    def change(self, op: Operation, weight: Tensor, bias: Tensor) -> None:
        bound = dict(self.instead.get(op, op).arguments)
        for key, tensor in (("weight", weight), ("bias", bias)):
            number = -1 - len(self.tensors)
            name = f"{self.name(op)}.{key}"
            bound[key] = Value(number, tuple(tensor.shape), tensor.dtype, "parameter", name)
            self.tensors[bound[key]] = tensor
        self.instead[op] = dataclasses.replace(op, args=(), kwargs=bound)

    def remove(self, op: Operation) -> None:
        (given,), (made,) = (v for v in op.inputs if v.follows), op.outputs
        self.gone[made] = given

    def finish(self, made: nn.Module) -> nn.Module:
        return Replayed(self.network, self.instead, self.gone, self.tensors)


class Replayed(nn.Module):
    """A recorded network as a module, some of whose operations are others or gone.

    Args:
        network: what was recorded.
        instead: operations that take the place of others.
        gone: what stands for a value whose operation is left out.
        tensors: parameters, buffers and constants.
    """

    def __init__(
        self,
        network: Network,
        instead: dict[Operation, Operation],
        gone: dict[Value, Value],
        tensors: dict[Value, Tensor],
    ) -> None:
        super().__init__()

        def kept(leaf: Any) -> Any:
            while isinstance(leaf, Value) and leaf in gone:
                leaf = gone[leaf]
            return leaf

        operations = [
            dataclasses.replace(o, args=mapped(o.args, kept), kwargs=mapped(o.kwargs, kept))
            for o in (instead.get(op, op) for op in network)
            if gone.keys().isdisjoint(o.outputs)
        ]
        used = {v for op in operations for v in op.inputs}
        own = {v: t for v, t in tensors.items() if v in used}
        self._network = dataclasses.replace(
            network, operations=operations, output=mapped(network.output, kept), tensors=own,
            opened=None,
        )  # fmt: skip
        self._values: dict[str, Value] = {}
        for value, tensor in own.items():
            name = value.name if value.origin in ("parameter", "buffer") else ""
            if name and name not in self._values:
                self._values[name] = value
                _register(self, name, tensor, trainable=value.origin == "parameter")
        #: Path and class of the module that the operation which runs now was part of.
        self.running_layer: tuple[str, str] | None = None

    def forward(self, *x: Tensor) -> Any:
        held = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        tensors = {value: held[name] for name, value in self._values.items()}

        def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self.running_layer = (op.layer, op.layer_kind)
            return op.function(*args, **kwargs)

        return self._network.evaluate(x, len(x[0]), step, tensors)


def _register(root: nn.Module, name: str, tensor: Tensor, *, trainable: bool) -> None:
    *path, last = name.split(".")
    module = root
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    if trainable:
        module.register_parameter(last, nn.Parameter(tensor.detach().clone()))
    else:
        module.register_buffer(last, tensor.detach().clone())
