r"""Networks from `torch.export` archives (`.pt2`), read as data.

`torch.export.load` is not used: it unpickles what an archive says is pickled and evaluates the
symbolic sizes as Python, so that opening a file can run code; it then writes the graph down as
source code, which it executes. Here the graph is a JSON document, its nodes may name operators of
ATen alone, and they are called one after the other; weights are raw bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchtheory.core.errors import FileProblem, InvalidType, TorchTheoryError, UnsupportedModel
from torchtheory.core.memory import refuse_too_large
from torchtheory.models.exported_archive import TYPES, Archive
from torchtheory.models.exported_arguments import (
    LARGEST_SIZE,
    Here,
    Named,
    Place,
    Precision,
    names_in,
    only,
    parsed,
    value_of,
    wrapped,
)
from torchtheory.models.exported_operators import ASSERTIONS, Operator, find_operator
from torchtheory.models.function_layers import LAYERS, TENSORS

#: The version of the archive's schema that is understood.
SCHEMA = 8

#: One module of "call,path,class;call,path,class".
_LAYER = re.compile(r"([^;,]{0,300}),([\w.]{0,200}),(?:[\w.]*\.)?(\w{1,200})")

# More dimensions than numpy has, or nested modules than a person names.
_MOST_DIMENSIONS = 64
_DEEPEST = 100
# Shapes of inputs and weights that are remembered.
_MOST_SIZED = 4096


def load_exported(path: str | Path) -> nn.Module:
    """The network in a `.pt2` file that `torch.export.save` wrote.

    Only operators of `torchtheory.models.exported_operators` are called, on arguments they are
    safe with, and the sizes of all tensors are computed before the first of them is made. Nothing
    is unpickled but plain tensors (`weights_only=True`), and nothing is evaluated. Example inputs
    and extra files in the archive are not looked at.

    The network is an ordinary module: parameters under the names they had, in evaluation mode,
    differentiable as often as its operators are, also by `torch.func`. An operator that is a layer
    of `torch.nn` on parameters of its own is that layer again, under the name that it had.

    Raises:
        FileProblem: if the file is none, or is refused for safety.
        UnsupportedModel: if it was exported for one batch size, in training mode, or calls an
            operator that is not listed.
    """
    archive = Archive(Path(path))
    document = archive.document("models/{}.json")
    version = archive.field(document, "schema_version", "major")
    if version != SCHEMA:
        raise FileProblem(
            f"{archive.file} has version {version} of the archive format, and {SCHEMA} is "
            "understood: save it again with torch.export.save of torch 2.8 or newer"
        )
    try:
        network = ExportedNetwork(document["graph_module"], archive.tensors(), str(archive.file))
        network.try_sizes(document["graph_module"]["graph"])
        return network.eval()
    except TorchTheoryError:
        raise
    except Exception as error:  # whatever a document of another shape leads to
        raise archive.damaged(error) from None


@dataclass(frozen=True)
class _Step:
    """A node of the graph: `outputs = function(*arguments)`, after which `last` can go.

    `result` is the name of its output where that is one tensor, as for most.
    `layers` has the paths and classes of the modules that ran when it was exported, outermost
    first, and a name of the call of each.
    """

    operator: Operator
    arguments: list[tuple[str, Any]]
    outputs: list[Any]
    last: list[str]
    layers: tuple[tuple[str, str, str], ...]
    result: str | None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Step:
        return self  # nothing writes to it


class ExportedNetwork(nn.Module):
    """The graph of an exported network, run node by node.

    Args:
        graph_module: the archive's own description of the graph and its signature.
        tensors: parameters, buffers and constants by name.
        name: what to call it in messages.
    """

    def __init__(
        self, graph_module: dict[str, Any], tensors: Mapping[str, Tensor], name: str
    ) -> None:
        super().__init__()
        graph, signature = graph_module["graph"], graph_module["signature"]
        self._state: dict[str, str] = {}
        self._inputs: list[str | None] = []
        for spec in signature["input_specs"]:
            kind, content = only(spec)
            if kind in ("parameter", "buffer", "tensor_constant"):
                target = content[f"{kind}_name"]
                if not isinstance(target, str) or target not in tensors:
                    raise FileProblem(f"{name} lacks the values of {target!r}")
                self._state[content["arg"]["name"]] = target
                tensor = tensors[target]
                if kind == "parameter" and not isinstance(tensor, nn.Parameter):
                    tensor = nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
                _register(self, target, tensor, content.get("persistent", False))
            elif kind == "user_input" and "as_tensor" in content["arg"]:
                self._inputs.append(content["arg"]["as_tensor"]["name"])
            elif kind == "constant_input" or kind == "user_input":
                self._inputs.append(None)  # a number the graph was specialized to
            else:
                raise UnsupportedModel(f"{name} takes a {kind}, and only tensors are understood")
        for given in self._inputs:
            if given is not None:
                _refuse_fixed_batch(graph["tensor_values"][given]["sizes"], name)
        top = next(entry for entry in graph_module["module_call_graph"] if entry["fqn"] == "")
        self._in_spec = json.loads(top["signature"]["in_spec"])[1]
        self._argument_names = list(top["signature"].get("forward_arg_names") or [])
        results = [only(spec) for spec in signature["output_specs"]]
        if other := sorted({kind for kind, _ in results} - {"user_output"}):
            raise UnsupportedModel(
                f"{name} changes its own state when it runs ({other[0]}); call model.eval() before "
                "torch.export.export"
            )
        outputs = [content["arg"] for _, content in results]
        self._steps = _steps(graph["nodes"], outputs, name)
        self._outputs = [parsed(output) for output in outputs]
        floating = (v for v in self._state.values() if tensors[v].is_floating_point())
        self._reference = next(floating, None)
        self._precision = None if self._reference is None else tensors[self._reference].dtype
        self._sized = _Sized()
        self._layers = _Layers(self, graph["tensor_values"])
        #: Sizes and types of the inputs that it was exported with, if the archive says so.
        self.examples: list[tuple[tuple[int, ...], torch.dtype]] | None = None
        #: Paths, classes and calls of the modules that the operation which runs now was part of.
        self.running_layers: tuple[tuple[str, str, str], ...] = ()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The network's output: one tensor, or a tuple where the exported one returned several."""
        leaves = self._leaves(inputs, named)
        if self._layers.tame and self.examples is not None:
            return self._compute(leaves, {}, Place(torch.device("cpu"), {}), {})
        state = self._weights()
        others = [v for v in leaves if not isinstance(v, Tensor)]
        if any(hasattr(v, "__torch_function__") for v in others):
            # what stands for a tensor, and is carried through, has no memory of its own
            return self._compute(leaves, state, self._place(leaves), {})
        tensors = [v for v in (*leaves, *state.values()) if isinstance(v, Tensor)]
        key = (
            tuple((v.shape, v.stride(), v.dtype) for v in tensors),
            tuple(state),
            self._layers.exchanged(self),
        )
        numbers = self._sized.get(key)
        if numbers is None:
            numbers = self._compute_sizes(leaves, state)
            self._sized.keep(key, numbers)
        return self._compute(leaves, state, self._place(leaves), numbers)

    def _weights(self) -> dict[str, Tensor]:
        """By the names of the graph; a layer that was exchanged for none has none."""
        return {
            node: _held(holder, target)
            for node, target in self._state.items()
            if not isinstance(holder := _holder(self, target), nn.Identity)
        }

    def try_sizes(self, graph: dict[str, Any]) -> None:
        """Refuse a graph that is too large at the very inputs it was exported with.

        Where the archive does not say what they were, it is found out when it runs.
        """
        leaves = []
        for name in self._inputs:
            if name is None:
                return
            given = graph["tensor_values"][name]
            sizes = [s.get("as_int", s.get("as_expr", {}).get("hint")) for s in given["sizes"]]
            sizes = [s.get("as_int") if isinstance(s, dict) else s for s in sizes]
            if not all(isinstance(s, int) and 0 <= s <= LARGEST_SIZE for s in sizes):
                return
            leaves.append(torch.empty(sizes, dtype=TYPES[given["dtype"]], device="meta"))
        state = self._weights()
        self._compute_sizes(leaves, state)
        self.examples = [(tuple(leaf.shape), leaf.dtype) for leaf in leaves]

    def _compute_sizes(self, leaves: list[Any], state: dict[str, Tensor]) -> dict[int, float]:
        """Run the graph on shapes alone; sizes do not depend on entries, so they are the real ones.

        Returns:
            The numbers that it computes, by the step that does.

        Raises:
            UnsupportedModel: if an operator is given what its schema does not allow.
            FileProblem: if a tensor, or all that are needed at once, are larger than what there is
                to spare.
        """
        numbers: dict[int, float] = {}
        # whoever watches the functions that run means those that compute numbers
        with torch.no_grad(), torch._C.DisableTorchFunction(), _Sizes():  # type: ignore[no-untyped-call]
            shapes = [_shape_of(leaf) for leaf in leaves]
            values = _Held({node: _shape_of(tensor) for node, tensor in state.items()})
            place = self._place(leaves)
            place = Place(torch.device("meta"), place.precision)
            self._compute(shapes, values, place, numbers, first=True)
        return numbers

    def _compute(
        self,
        leaves: list[Any],
        values: dict[str, Any],
        place: Place,
        numbers: dict[int, float],
        *,
        first: bool = False,
    ) -> Any:
        """Run the graph.

        Args:
            leaves: its inputs.
            values: its weights at first, and then what it computes.
            place: where.
            numbers: those it computes, which the first run on shapes fills in: what was too large
                then cannot be large now because a kernel chose other strides.
            first: whether arguments are still to be compared with schemas.
        """
        values |= {k: v for k, v in zip(self._inputs, leaves, strict=True) if k is not None}
        for number, step in enumerate(self._steps):
            self.running_layers = step.layers
            if number in self._layers and (not first or self._layers.is_none(self, number)):
                result = self._layers.run(self, number, values)
            else:
                arguments = [(k, value_of(a, values, place)) for k, a in step.arguments]
                if first:
                    step.operator.refuse_others(arguments)
                result = step.operator(arguments)
            if isinstance(result, int | float):
                result = numbers.setdefault(number, result)
            if step.result is not None:
                values[step.result] = result
            else:
                several = len(step.outputs) > 1
                parts = result if several else (result,)
                for output, value in zip(step.outputs, parts, strict=False):
                    _store(output, value, values)
            for name in step.last:
                values.pop(name, None)
        outputs = [value_of(output, values, place) for output in self._outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _place(self, leaves: list[Any]) -> Place:
        """Tensors the graph makes are made where its inputs are, and in its current precision."""
        device = next((v.device for v in leaves if isinstance(v, Tensor)), torch.device("cpu"))
        if self._reference is None:
            return Place(device, {})
        now = _attribute(self, self._reference).dtype
        return Place(device, {} if self._precision is None else {self._precision: now})

    def _leaves(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        positional, keywords = self._in_spec["children_spec"]
        keys = json.loads(keywords["context"]) if keywords["context"] else []
        wanted = len(positional["children_spec"])
        if wanted == 1 and not keys:  # one dictionary or tuple may also be given by its parts
            only = positional["children_spec"][0]
            if named and not inputs and only["type"] == "builtins.dict":
                inputs, named = (named,), {}
            elif len(inputs) > 1 and only["type"] in ("builtins.tuple", "builtins.list"):
                inputs = (inputs,)
        rest = [k for k in self._argument_names[len(inputs) : wanted] if k in named]
        inputs = (*inputs, *(named[k] for k in rest))
        left = {k: v for k, v in named.items() if k not in rest}
        if len(inputs) != wanted or left.keys() != set(keys):
            names = ", ".join([*self._argument_names[:wanted], *keys])
            raise InvalidType(f"the exported network takes {wanted + len(keys)} inputs: {names}")
        leaves: list[Any] = []
        _flatten(list(inputs), positional["children_spec"], leaves)
        _flatten([left[k] for k in keys], keywords["children_spec"], leaves)
        return leaves


#: Layers whose output may be as large as an archive says, whatever they are given.
_GROWING = (
    nn.modules.conv._ConvTransposeNd, nn.modules.padding._ConstantPadNd, nn.Upsample, nn.Unfold,
    nn.modules.padding._ReflectionPadNd, nn.modules.padding._ReplicationPadNd,
    nn.modules.padding._CircularPadNd, nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)  # fmt: skip


class _Layers:
    """The steps of a graph that are layers of `torch.nn`, which then run as such.

    A layer with parameters takes the place of the bare module that held them; one without has the
    path that the archive says, or none.

    Args:
        network: the network, with its parameters and steps.
        shapes: of the values of the graph, as the archive has them.
    """

    def __init__(self, network: ExportedNetwork, shapes: dict[str, Any]) -> None:
        self._steps: dict[int, tuple[str, nn.Module | str]] = {}
        grows = False
        for number, step in enumerate(network._steps):
            bound = _bound(step)
            taken = next((k for k in ("indices", "input", "self") if k in bound), "")
            x = bound.pop(taken, None)
            if not isinstance(x, Named) or x.name in network._state or x.name not in shapes:
                continue
            names = {
                k: network._state.get(v.name, "")
                for k, v in bound.items()
                if k in TENSORS and isinstance(v, Named)
            }
            rest = {k: v for k, v in bound.items() if k not in names}
            if not all(names.values()) or any(map(_is_computed, rest.values())):
                continue
            tensors = {k: _attribute(network, v) for k, v in names.items()}
            layer = _made(step, {**rest, **tensors, "ndim": len(shapes[x.name]["sizes"])})
            if layer is None:
                continue
            grows |= isinstance(layer, _GROWING)
            if names:
                # a layer whose weights another one uses, as attention does, was not called itself
                called = not step.layers or all(
                    name.rpartition(".")[0] == step.layers[-1][0] for name in names.values()
                )
                path = self._put(network, layer, names, tensors) if called else ""
                if path:
                    self._steps[number] = (x.name, path)
            else:
                self._steps[number] = (x.name, self._named(network, step, layer) or layer)

        #: Whether there is nothing else, and nothing that makes far more numbers than it is given.
        self.tame = len(self._steps) == len(network._steps) and not grows

    def __deepcopy__(self, memo: dict[int, Any]) -> _Layers:
        return self  # layers that it holds itself have no state, others it knows by their paths

    def __contains__(self, number: int) -> bool:
        return number in self._steps

    def exchanged(self, network: nn.Module) -> tuple[int, ...]:
        """The steps whose layers were exchanged for none."""
        return tuple(number for number in self._steps if self.is_none(network, number))

    def run(self, network: nn.Module, number: int, values: dict[str, Any]) -> Any:
        """What a step that is a layer makes of the values of the graph."""
        return self._layer(network, number)(values[self._steps[number][0]])

    def is_none(self, network: nn.Module, number: int) -> bool:
        """Whether a layer was exchanged for one that does nothing, as folding does."""
        return isinstance(self._layer(network, number), nn.Identity)

    def _layer(self, network: nn.Module, number: int) -> nn.Module:
        found = self._steps[number][1]
        return _submodule(network, found) if isinstance(found, str) else found

    def _put(
        self,
        network: nn.Module,
        layer: nn.Module,
        names: dict[str, str],
        tensors: dict[str, Tensor],
    ) -> str:
        """Put a layer where the archive has its parameters; nothing if they are not its own."""
        paths = {name.rpartition(".")[0] for name in names.values()}
        if len(paths) != 1 or any(n.rpartition(".")[2] != k for k, n in names.items()):
            return ""
        (path,) = paths
        if not path:
            return ""
        there = network.get_submodule(path)
        if type(there) is not nn.Module:
            return path if repr(there) == repr(layer) else ""
        held = {**there._parameters, **there._buffers}
        counted = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if there._modules or held.keys() - {"num_batches_tracked"} != names.keys():
            return ""
        if {k for k, t in tensors.items() if isinstance(t, nn.Parameter)} != (
            layer._parameters.keys() & names.keys()
        ):
            return ""
        for key, tensor in tensors.items():
            setattr(layer, key, tensor)
        if counted:
            layer.register_buffer("num_batches_tracked", there._buffers.get("num_batches_tracked"))
        parent, _, own = path.rpartition(".")
        network.get_submodule(parent).add_module(own, layer.eval())
        return path

    def _named(self, network: nn.Module, step: _Step, layer: nn.Module) -> str:
        """Put a layer without parameters where it was, if the archive says so."""
        layer.eval()
        path, kind, _ = step.layers[-1] if step.layers else ("", "", "")
        if not path or kind != type(layer).__name__:
            return ""
        module: nn.Module = network
        *parents, own = path.split(".")
        for part in parents[:_DEEPEST]:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        if own in module._modules:
            there = module.get_submodule(own)
            return path if repr(there) == repr(layer) else ""
        if (not own.isidentifier() and not own.isdigit()) or hasattr(module, own):
            return ""
        module.add_module(own, layer)
        return path


def _bound(step: _Step) -> dict[str, Any]:
    """The arguments of a step by name, with those that it leaves out."""
    schema = getattr(step.operator.function, "_schema", None)
    if schema is None:
        return {}
    left_out = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return left_out | dict(step.arguments)


def _is_computed(argument: Any) -> bool:
    """Whether the graph computes a part of an argument, or it is a type of numbers."""
    if isinstance(argument, list):
        return any(map(_is_computed, argument))
    return isinstance(argument, Named | Precision | Here)


def _made(step: _Step, arguments: dict[str, Any]) -> nn.Module | None:
    """The layer that a step is."""
    name = step.operator.name.removeprefix("torch.ops.aten.").partition(".")[0]
    make = LAYERS.get(name.removesuffix("_"))
    if make is None or len(step.outputs) != 1:
        return None
    try:
        layer = make(arguments)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # an operator may do what no layer is made for
    if layer is not None and name.endswith("_"):
        if "inplace" not in vars(layer):
            return None
        layer.inplace = True  # type: ignore[assignment]
    return layer


class _Sized:
    """The inputs and weights whose sizes were looked at, with the numbers computed of them.

    A network is copied often, and what a call writes to it is taken back; what is known of a graph
    stays true, so that copies share it and it is none of the containers that are put back.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Any, dict[int, float]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Sized:
        return self

    def get(self, key: Any) -> dict[int, float] | None:
        return self._known.get(key)

    def keep(self, key: Any, numbers: dict[int, float]) -> None:
        if len(self._known) >= _MOST_SIZED:
            self._known.clear()
        self._known[key] = numbers


class _Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses tensors that are too large, also those an operator makes on its way."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                _refuse_huge(tensor)
        return result


class _Held(dict[str, Any]):
    """Values of a graph, which together may not be too large; what is a view costs nothing."""

    count = 0

    def __setitem__(self, name: str, value: Any) -> None:
        self.count += _bytes(value) - _bytes(self.get(name))
        refuse_too_large(self.count, "what the exported network computes", FileProblem)
        super().__setitem__(name, value)

    def pop(self, name: str, default: Any = None) -> Any:
        value = super().pop(name, default)
        self.count -= _bytes(value)
        return value


def _bytes(value: Any) -> int:
    owns = isinstance(value, Tensor) and not value._is_view()
    return value.numel() * value.element_size() if owns else 0


def _refuse_huge(tensor: Tensor) -> None:
    size = tensor.numel() * tensor.element_size()
    refuse_too_large(size, "a tensor of the exported network", FileProblem)
    if tensor.ndim > _MOST_DIMENSIONS:
        raise FileProblem(f"a tensor of the exported network has {tensor.ndim} dimensions")


def _shape_of(value: Any) -> Any:
    """A tensor without memory in the place of another: a view, as it does not count anew."""
    if not isinstance(value, Tensor):
        return value
    last = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    whole = torch.empty(value.storage_offset() + last + 1, dtype=value.dtype, device="meta")
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def _register(root: nn.Module, name: str, tensor: Tensor, persistent: bool) -> None:
    *path, last = name.split(".")
    if len(path) > _DEEPEST:
        raise FileProblem(f"a parameter lies {len(path)} modules deep in the exported network")
    module = root
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    if last in module._parameters or last in module._buffers:
        return
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(last, tensor)
    else:
        module.register_buffer(last, tensor, persistent=bool(persistent))


def _attribute(root: nn.Module, name: str) -> Tensor:
    return _held(_holder(root, name), name)


def _holder(root: nn.Module, name: str) -> nn.Module:
    """The module that holds a tensor of that name."""
    return _submodule(root, name.rpartition(".")[0])


def _held(module: nn.Module, name: str) -> Tensor:
    last = name.rpartition(".")[2]
    found = module._parameters.get(last)
    return found if found is not None else getattr(module, last)


def _submodule(root: nn.Module, path: str) -> nn.Module:
    """As `get_submodule`, without its questions, which took longer than small layers."""
    for part in path.split(".") if path else ():
        root = root._modules[part]  # type: ignore[assignment]
    return root


def _refuse_fixed_batch(sizes: list[dict[str, Any]], name: str) -> None:
    if not sizes or "as_int" not in sizes[0]:
        return
    count = sizes[0]["as_int"]
    raise UnsupportedModel(
        f"{name} was exported for batches of exactly {count} sample{'s' if count != 1 else ''}; "
        "export it with a dynamic batch dimension: torch.export.export(model, (x,), "
        'dynamic_shapes=({0: torch.export.Dim("batch")},)), where x has at least two samples'
    )


def _steps(nodes: list[dict[str, Any]], outputs: list[Any], name: str) -> list[_Step]:
    kept = [node for node in nodes if not ASSERTIONS.fullmatch(node["target"])]
    needed = {n for output in outputs for n in names_in(output)}
    steps: list[_Step] = []
    for node in reversed(kept):
        found = find_operator(node["target"])
        if found is None:
            raise UnsupportedModel(
                f"{name} calls {node['target'][:200]}, which is not among the operators of ATen "
                "that are run for a file; give the model as package.module:factory with --weights "
                "instead"
            )
        for given in node["inputs"]:
            if given["name"] in ("train", "training") and given["arg"].get("as_bool") is True:
                raise UnsupportedModel(
                    f"{name} was exported in training mode ({node['target']}); call model.eval() "
                    "before torch.export.export"
                )
        arguments = [(i["name"], parsed(i["arg"])) for i in node["inputs"]]
        if found.creates:
            arguments = [pair for pair in arguments if pair[0] != "device"]
            arguments.append(("device", Here()))
        found.refuse_others(arguments)
        used = {n for i in node["inputs"] for n in names_in(i["arg"])}
        made = {n for output in node["outputs"] for n in names_in(output)}
        last = sorted((used | made) - needed)
        given_back = node["outputs"]
        result = given_back[0].get("as_tensor") if len(given_back) == 1 else None
        named = None if result is None else result["name"]
        steps.append(_Step(found, arguments, given_back, last, _layers_of(node), named))
        needed |= used
    return steps[::-1]


def _layers_of(node: dict[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """Paths, classes and calls of the modules that a node was part of, if the archive says so."""
    stack = (node.get("metadata") or {}).get("nn_module_stack")
    parts = stack.split(";")[:_DEEPEST] if isinstance(stack, str) else []
    found = [_LAYER.fullmatch(part) for part in parts]
    return tuple((f[2], f[3], f[1]) for f in found if f is not None) if all(found) else ()


def _store(output: Any, value: Any, values: dict[str, Any]) -> None:
    kind, content = only(output)
    if kind in ("as_tensors", "as_optional_tensors"):
        for inner, part in zip(content, value, strict=True):
            _store(inner if "as_tensor" in inner else wrapped(inner), part, values)
    elif kind != "as_none":
        for name in names_in(output):
            values[name] = value


def _flatten(values: list[Any], specs: list[dict[str, Any]], leaves: list[Any]) -> None:
    """The tensors of nested tuples, lists and dictionaries in the exporter's order."""
    for value, spec in zip(values, specs, strict=True):
        kind = spec["type"]
        if kind is None:
            leaves.append(value)
        elif kind == "builtins.dict":
            keys = json.loads(spec["context"])
            if not isinstance(value, Mapping) or value.keys() != set(keys):
                raise InvalidType(
                    f"the exported network takes a dictionary of {', '.join(map(str, keys))}"
                )
            _flatten([value[k] for k in keys], spec["children_spec"], leaves)
        elif kind in ("builtins.tuple", "builtins.list"):
            if not isinstance(value, tuple | list) or len(value) != len(spec["children_spec"]):
                raise InvalidType(
                    f"the exported network takes a sequence of {len(spec['children_spec'])} inputs"
                )
            _flatten(list(value), spec["children_spec"], leaves)
        else:
            raise UnsupportedModel(f"the exported network takes a {kind}")
