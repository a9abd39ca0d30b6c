"""The layers of an exported graph, where it is a chain of layers `torch.nn` has.

An export keeps operators and parameters and forgets `nn.Linear`. What is known of a network by
its layers (products of norms, certificates, symmetries) needs them back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Settings = dict[str, Any]


class ExportedChain(nn.Module):
    """Layers applied one after the other, under the names that their parameters had.

    Args:
        layers: names and layers in the order they are applied; one may occur twice.
    """

    def __init__(self, layers: list[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self._order = [name for name, _ in layers]
        for name, layer in dict(layers).items():
            *path, last = name.split(".")
            module: nn.Module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.add_module(last, layer)

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's output."""
        for name in self._order:
            x = self.get_submodule(name)(x)
        return x


def as_layers(graph_module: dict[str, Any], state: Mapping[str, Tensor]) -> nn.Module | None:
    """The graph as layers, or None where it is something else.

    Args:
        graph_module: the archive's description of the graph and its signature.
        state: parameters and buffers by name; the layers hold these very tensors.
    """
    graph, signature = graph_module["graph"], graph_module["signature"]
    names: dict[str, str] = {}
    inputs: list[str] = []
    for spec in signature["input_specs"]:
        ((kind, content),) = spec.items()
        if kind in ("parameter", "buffer"):
            names[content["arg"]["name"]] = content[f"{kind}_name"]
        elif kind == "user_input" and "as_tensor" in content["arg"]:
            inputs.append(content["arg"]["as_tensor"]["name"])
        else:
            return None
    if len(inputs) != 1:
        return None
    current = inputs[0]
    used: set[str | None] = set()
    layers: list[tuple[str, nn.Module]] = []
    for node in graph["nodes"]:
        if node["target"] == "torch.ops.aten.sym_size.int":
            continue  # a size; who uses it must be known below
        given = {i["name"]: i["arg"] for i in node["inputs"]}
        first = next(iter(given), "")
        if given.get(first) != {"as_tensor": {"name": current}} or len(node["outputs"]) != 1:
            return None
        weights = {
            key: names.get(argument["as_tensor"]["name"])
            for key, argument in given.items()
            if key != first and "as_tensor" in argument
        }
        if None in weights.values():
            return None
        made = node["outputs"][0].get("as_tensor", {}).get("name")
        if made is None:
            return None  # a number
        layer = _layer(node, given, weights, state, graph["tensor_values"], current, made)
        if layer is None:
            return None
        prefixes = {str(name).rpartition(".")[0] for name in weights.values()}
        if any(str(name).rpartition(".")[2] != key for key, name in weights.items()):
            return None
        if len(prefixes) > 1:
            return None
        layers.append((prefixes.pop() if prefixes else f"layer_{len(layers)}", layer))
        used |= set(weights.values())
        current = made
    unused = {n for n in names.values() if not n.endswith("num_batches_tracked")} - used
    (output, *more) = signature["output_specs"]
    if more or unused or output != {"user_output": {"arg": {"as_tensor": {"name": current}}}}:
        return None
    once = dict(layers)
    if any(repr(layer) != repr(once[name]) for name, layer in layers):
        return None  # the same weights in two different layers
    if "" in once and len(layers) > 1:
        return None
    chain = once[""] if "" in once else ExportedChain([(name, once[name]) for name, _ in layers])
    return chain if chain.state_dict().keys() == set(names.values()) else None


def _layer(
    node: dict[str, Any],
    given: dict[str, Any],
    weights: Mapping[str, str | None],
    state: Mapping[str, Tensor],
    shapes: dict[str, Any],
    before: str,
    after: str,
) -> nn.Module | None:
    """The layer that computes a node, with the tensors it uses put in place."""
    _, _, rest = node["target"].partition("torch.ops.aten.")
    operator, _, overload = rest.partition(".")
    sizes_before, sizes_after = (
        [s.get("as_int") for s in shapes[n]["sizes"]] for n in (before, after)
    )
    if operator in ("view", "reshape", "_unsafe_view"):
        if len(sizes_after) != 2 or None in sizes_before[1:] or sizes_after[0] is not None:
            return None
        return nn.Flatten() if sizes_after[1] == math.prod(sizes_before[1:]) else None
    if rest not in _LAYERS:
        return None
    schema = getattr(getattr(torch.ops.aten, operator), overload)._schema
    settings: Settings = {
        a.name: a.default_value for a in schema.arguments if a.has_default_value()
    }
    for key, argument in given.items():
        ((kind, content),) = argument.items()
        if kind in ("as_int", "as_ints", "as_bool", "as_float", "as_string"):
            settings[key] = content
        elif kind == "as_none":
            settings[key] = None
        elif kind != "as_tensor":
            return None
    tensors = {key: state[str(name)] for key, name in weights.items()}
    layer = _LAYERS[rest](settings, tensors, len(sizes_before))
    if layer is None:
        return None
    for key, tensor in tensors.items():
        setattr(layer, key, tensor)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        counter = f"{str(weights['running_mean']).rpartition('.')[0]}.num_batches_tracked"
        layer.num_batches_tracked = state.get(counter)
    return layer.eval()


def _linear(settings: Settings, tensors: Mapping[str, Tensor], _: int) -> nn.Module | None:
    if tensors["weight"].ndim != 2:
        return None
    out, inner = tensors["weight"].shape
    return nn.Linear(inner, out, bias="bias" in tensors, device="meta")


def _convolution(kind: Any) -> Callable[[Settings, Mapping[str, Tensor], int], nn.Module]:
    def make(settings: Settings, tensors: Mapping[str, Tensor], _: int) -> nn.Module:
        weight, groups = tensors["weight"], settings["groups"]
        sizes = {k: _each(settings[k], weight.ndim - 2) for k in ("stride", "dilation")}
        padding = settings["padding"]
        layer: nn.Module = kind(
            *(weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:])),
            padding=padding if isinstance(padding, str) else _each(padding, weight.ndim - 2),
            groups=groups,
            bias="bias" in tensors,
            device="meta",
            **sizes,
        )
        return layer

    return make


def _each(value: Any, count: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * count if len(values) == 1 else values


def _batch_norm(settings: Settings, tensors: Mapping[str, Tensor], ndim: int) -> nn.Module | None:
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    if settings.get("training") or "running_mean" not in tensors or ndim not in kinds:
        return None
    return kinds[ndim](
        len(tensors["running_mean"]),
        eps=float(settings["eps"]),
        momentum=float(settings["momentum"]),
        affine="weight" in tensors,
        device="meta",
    )


def _layer_norm(settings: Settings, tensors: Mapping[str, Tensor], _: int) -> nn.Module | None:
    if ("weight" in tensors) != ("bias" in tensors):
        return None
    return nn.LayerNorm(
        list(settings["normalized_shape"]),
        eps=float(settings["eps"]),
        elementwise_affine="weight" in tensors,
        device="meta",
    )


def _group_norm(settings: Settings, tensors: Mapping[str, Tensor], _: int) -> nn.Module | None:
    if "weight" not in tensors or "bias" not in tensors:
        return None
    return nn.GroupNorm(
        settings["num_groups"], len(tensors["weight"]), eps=float(settings["eps"]), device="meta"
    )


def _plain(make: Callable[[Settings], nn.Module | None]) -> Callable[..., nn.Module | None]:
    return lambda settings, tensors, ndim: None if tensors else make(settings)


def _pool(s: Settings) -> dict[str, Any]:
    return {
        "kernel_size": tuple(s["kernel_size"]),
        "stride": tuple(s["stride"]) or None,
        "padding": _each(s["padding"], len(s["kernel_size"])),
        "ceil_mode": s["ceil_mode"],
    }


_LAYERS: dict[str, Callable[[Settings, Mapping[str, Tensor], int], nn.Module | None]] = {
    "linear.default": _linear,
    "conv1d.default": _convolution(nn.Conv1d),
    "conv2d.default": _convolution(nn.Conv2d),
    "conv3d.default": _convolution(nn.Conv3d),
    "conv1d.padding": _convolution(nn.Conv1d),
    "conv2d.padding": _convolution(nn.Conv2d),
    "conv3d.padding": _convolution(nn.Conv3d),
    "batch_norm.default": _batch_norm,
    "layer_norm.default": _layer_norm,
    "group_norm.default": _group_norm,
    "relu.default": _plain(lambda s: nn.ReLU()),
    "relu_.default": _plain(lambda s: nn.ReLU()),
    "tanh.default": _plain(lambda s: nn.Tanh()),
    "sigmoid.default": _plain(lambda s: nn.Sigmoid()),
    "silu.default": _plain(lambda s: nn.SiLU()),
    "gelu.default": _plain(lambda s: nn.GELU(s["approximate"])),
    "elu.default": _plain(
        lambda s: nn.ELU(float(s["alpha"])) if s["scale"] == 1 == s["input_scale"] else None
    ),
    "selu.default": _plain(lambda s: nn.SELU()),
    "leaky_relu.default": _plain(lambda s: nn.LeakyReLU(float(s["negative_slope"]))),
    "softplus.default": _plain(lambda s: nn.Softplus(float(s["beta"]), float(s["threshold"]))),
    "dropout.default": _plain(lambda s: nn.Dropout(float(s["p"]))),
    "flatten.using_ints": _plain(lambda s: nn.Flatten(s["start_dim"], s["end_dim"])),
    "max_pool2d.default": _plain(
        lambda s: nn.MaxPool2d(**_pool(s), dilation=_each(s["dilation"], 2))
    ),
    "avg_pool2d.default": _plain(
        lambda s: nn.AvgPool2d(
            **_pool(s),
            count_include_pad=s["count_include_pad"],
            divisor_override=s["divisor_override"],
        )
    ),
    "adaptive_avg_pool2d.default": _plain(lambda s: nn.AdaptiveAvgPool2d(tuple(s["output_size"]))),
}
