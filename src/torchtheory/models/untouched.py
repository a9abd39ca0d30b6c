r"""A user's model and process, left as they were.

A forward pass may do anything: renormalize an embedding, count its calls, build a layer, seed a
generator. What runs it works on a private copy where one can be made (`private_copy`), and puts
back what can be put back where none can (`contents_kept`). `ModelState` tells whether that was
enough.
"""

from __future__ import annotations

import copy
import hashlib
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from torchtheory.core.checks import as_module
from torchtheory.core.errors import OutOfTime, UnsupportedModel

Container = list[Any] | dict[Any, Any] | set[Any] | deque[Any]

#: Attributes in which a module holds its tensors and children; reported under their own names.
_REGISTERED = ("_parameters", "_buffers", "_modules")

#: Containers inside of containers beyond which only their identity is looked at.
_DEEPEST = 6

#: How far the attributes of objects are followed: beyond it lies the rest of the program.
_OBJECTS = 2


# ------------------------------------------------------------------------------ a private copy


def copied(model: nn.Module) -> nn.Module:
    """A deep copy without gradients, also of a model that keeps activations of an earlier pass.

    Time and memory are those of the weights.

    Raises:
        UnsupportedModel: if it cannot be copied (it holds a lock or an open file), if the copy has
            the tensors of the original, if a function that an instance holds, such as a hook,
            speaks of the original, or if torch.jit compiled it.

    >>> net = nn.Linear(2, 1)
    >>> net.cache = net(torch.ones(1, 2))            # copy.deepcopy refuses a tensor with a graph
    >>> bool((copied(net).weight == net.weight).all())
    True
    """
    refuse_compiled(as_module(model))
    kind = f"the model ({type(model).__name__}) cannot be copied, which is needed here"
    if _speaks_of_itself(model):
        raise UnsupportedModel(f"{kind}: a function that it holds refers to the model itself")
    try:
        with _CopyOfActivations():
            own = copy.deepcopy(model, _copies_of_nothing(model))
    except (KeyboardInterrupt, OutOfTime):
        raise
    except BaseException as error:  # whatever the attributes of a user's model do when copied
        sentence = " ".join(str(error).split())[:120]
        raise UnsupportedModel(f"{kind}: {type(error).__name__}: {sentence}") from error
    if type(own) is not type(model) or not _storages(own).isdisjoint(_storages(model)):
        raise UnsupportedModel(f"{kind}: its copy shares tensors with it")
    for parameter in own.parameters():
        parameter.grad = None
    return own


def _copies_of_nothing(model: nn.Module) -> dict[int, Any]:
    """What the hooks of layers, which are mostly none, are copied to: else most of the time."""
    held = (value for module in model.modules() for value in vars(module).values())
    return {id(value): OrderedDict() for value in held if type(value) is OrderedDict and not value}


def refuse_compiled(model: nn.Module) -> None:
    """Refuse what torch.jit made: its code cannot be followed, nor its weights be exchanged."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModel(
            "the model was compiled by torch.jit, and its code cannot be followed; give the module "
            "it was made of"
        )


def private_copy(model: nn.Module) -> nn.Module:
    """A copy that can be run at will, or the model itself where none can be made (`copied`).

    >>> net = nn.Embedding(2, 1, max_norm=0.1)
    >>> before = net.weight.detach().clone()
    >>> _ = private_copy(net)(torch.tensor([0, 1]))
    >>> bool((net.weight == before).all())
    True
    """
    as_module(model)  # what is none has no copy and is no model either
    try:
        return copied(model)
    except UnsupportedModel:
        return model


class _CopyOfActivations(TorchFunctionMode):
    """Lets `copy.deepcopy` take tensors inside a graph, such as a cached activation."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


def _storages(model: nn.Module) -> set[int]:
    tensors = [t for t in (*model.parameters(), *model.buffers()) if _is_plain(t) and t.numel()]
    return {t.untyped_storage().data_ptr() for t in tensors}


def _speaks_of_itself(model: nn.Module) -> bool:
    """Whether a function held by an instance reaches one of the model's own modules.

    Functions are not copied with the module that holds them: `net.forward = lambda x: net.a(x)`
    would run the layers of the original.
    """
    own = {id(m) for m in model.modules()} | {id(p) for p in model.parameters()}
    held = [
        value
        for module in model.modules()
        for attribute in vars(module).values()
        for value in (attribute.values() if isinstance(attribute, dict) else [attribute])
    ]
    seen: set[int] = set()
    waiting = [f for f in held if isinstance(f, types.FunctionType)]
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for value in _mentioned(function):
            if id(value) in own:
                return True
            if isinstance(value, types.MethodType):
                if id(value.__self__) in own:
                    return True
                value = value.__func__
            if isinstance(value, types.FunctionType) and value.__closure__:
                waiting.append(value)
    return False


def _mentioned(function: types.FunctionType) -> Iterator[Any]:
    """What a function refers to: the variables of its closure, its defaults, global names."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    known = function.__globals__
    yield from (known[name] for name in function.__code__.co_names if name in known)


# ------------------------------------------------------------------------- what is put back


@contextmanager
def contents_kept(model: nn.Module, *, values: bool) -> Iterator[None]:
    """Put back what a module holds: attributes, hooks, registered tensors, children, modes.

    Lists, dictionaries and sets that it fills are emptied again.

    Args:
        model: the module.
        values: whether to keep the numbers and `requires_grad` of its tensors as well, arrays,
            and what lists, dictionaries and objects inside of others hold; a copy of all weights
            for as long as it lasts.
    """
    modules = list(model.modules())
    attributes = [dict(vars(module)) for module in modules]
    held = [value for own in attributes for value in own.values()]
    filled = _containers(held) if values else _direct_containers(held)
    numbers = list(_numbers(attributes, filled)) if values else []
    tensors = [_KeptTensor.of(t) for t in numbers if isinstance(t, Tensor) and _is_plain(t)]
    arrays = [(a, a.copy()) for a in numbers if isinstance(a, np.ndarray) and a.flags.writeable]
    try:
        yield
    finally:
        for module, before in zip(modules, attributes, strict=True):
            own = vars(module)
            for name in own.keys() - before.keys():
                del own[name]
            own.update(before)
        for container, contents in filled:
            # only what changed: another thread may look at what the model shares with it
            if (container or contents) and _identities(container) != _identities(contents):
                container.clear()
                if isinstance(container, list | deque):
                    container.extend(contents)
                else:
                    container.update(contents)
        for kept in tensors:
            kept.put_back()
        for array, entries in arrays:
            if array.tobytes() != entries.tobytes():
                array[...] = entries


def _direct_containers(held: list[Any]) -> list[tuple[Container, Container]]:
    """The lists, dictionaries and sets among the values, with copies of what they hold.

    At every call of a model: most are the hooks of its layers, and empty.
    """
    return [(c, _plain_copy(c) if c else []) for c in held if isinstance(c, _CONTAINERS)]


def _containers(held: list[Any]) -> list[tuple[Container, Container]]:
    """Those inside of others as well, and the attributes of objects, and of their objects."""
    found: list[tuple[Container, Container]] = []
    seen: set[int] = set()
    waiting = [(value, 0) for value in held]
    while waiting:
        value, objects = waiting.pop()
        if objects < _OBJECTS and (own := _attributes(value)) is not None:
            value, objects = own, objects + 1
        if isinstance(value, _CONTAINERS) and id(value) not in seen:
            seen.add(id(value))
            found.append((value, _plain_copy(value)))
        elif not isinstance(value, tuple):
            continue
        inside = value.values() if isinstance(value, dict) else value
        waiting += [(part, objects) for part in inside]
    return found


def _attributes(value: Any) -> dict[str, Any] | None:
    """Those of an object that is not a part of the language or of torch, which do not change."""
    if isinstance(value, _NO_OBJECTS):
        return None
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return own if isinstance(own, dict) else None


_CONTAINERS = (list, dict, set, deque)
_NO_OBJECTS = (*_CONTAINERS, tuple, type, nn.Module, Tensor, np.ndarray,
               types.ModuleType, types.FunctionType, types.MethodType)  # fmt: skip


def _plain_copy(container: Container) -> Container:
    """What a container holds, by the methods of the language's own."""
    if isinstance(container, dict):
        return dict(container)
    return set(container) if isinstance(container, set) else list(container)


def _identities(container: Container) -> list[int]:
    if isinstance(container, dict):
        return [id(part) for item in container.items() for part in item]
    found = [id(part) for part in container]
    return sorted(found) if isinstance(container, set) else found


def _numbers(
    attributes: list[dict[str, Any]], filled: list[tuple[Container, Container]]
) -> Iterator[Tensor | np.ndarray[Any, Any]]:
    """Each tensor and array once that modules hold, as an attribute or in a container."""
    seen: set[int] = set()
    groups: list[Iterable[Any]] = [own.values() for own in attributes]
    groups += [c.values() if isinstance(c, dict) else c for _, c in filled]
    for group in groups:
        for value in group:
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Tensor | np.ndarray) and id(part) not in seen:
                    seen.add(id(part))
                    yield part


def _is_plain(tensor: Tensor) -> bool:
    """Whether its numbers can be copied and compared."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout == torch.strided
        and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


@dataclass(slots=True)
class _KeptTensor:
    tensor: Tensor
    memory: Tensor  # the same memory, also when `tensor.data` is set to another
    numbers: Tensor
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _KeptTensor:
        memory = tensor.detach()
        return cls(tensor, memory, memory.clone(), tensor.requires_grad)

    def put_back(self) -> None:
        with torch.no_grad():
            if not _same_bits(self.memory, self.numbers):
                self.memory.copy_(self.numbers)
            moved = self.tensor.data_ptr() != self.memory.data_ptr()
            if moved or self.tensor.shape != self.memory.shape:
                self.tensor.data = self.memory
        if self.tensor.is_leaf and self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if torch.equal(a, b):
        return True
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


# -------------------------------------------------------------------------------- the witness


class ModelState:
    """What a model was like, by the names of its parts, to compare with what it is.

    Numbers are kept as hashes, so it takes no memory; time is that of reading the weights once.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> before = ModelState(net)
    >>> net[1].calls = 1
    >>> _ = net[0].bias.data.add_(1.0)
    >>> before.changes(net)
    ['0.bias', '1.calls']
    """

    def __init__(self, model: nn.Module) -> None:
        self.parts = dict(_parts(as_module(model)))

    def changes(self, model: nn.Module) -> list[str]:
        """Names of the tensors, attributes and modules that are not what they were."""
        now = dict(_parts(model))
        return [name for name in {**self.parts, **now} if self.parts.get(name) != now.get(name)]


def _parts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        yield path or "(model)", (id(module), type(module))
        for name, value in vars(module).items():
            if name in _REGISTERED and isinstance(value, dict):
                yield from ((prefix + key, _printed(held)) for key, held in value.items())
            else:
                yield prefix + name, _printed(value)


def _printed(value: Any, depth: int = 0) -> Any:
    """Something small that is equal for equal values."""
    if depth > _DEEPEST:
        return id(value)
    if isinstance(value, Tensor):
        if is_lazy(value):  # which nothing can be asked but its class, and that changes
            return id(value), type(value)
        gradient = value.grad if value.is_leaf else None
        return (
            id(value),
            value.requires_grad,
            _hash(value),
            gradient is not None and _hash(gradient),
        )
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return id(value), hashlib.blake2b(value.tobytes()).digest()
    if isinstance(value, dict):
        return id(value), [(id(k), _printed(v, depth + 1)) for k, v in value.items()]
    if isinstance(value, list | tuple | deque):
        same = 0 if isinstance(value, tuple) else id(value)
        return same, [_printed(v, depth + 1) for v in value]
    if isinstance(value, set | frozenset):
        return id(value), {id(v) for v in value}
    if isinstance(value, bool | int | float | complex | str):
        return repr(value)
    own = _attributes(value)
    return id(value), own is not None and _printed(own, depth + _DEEPEST // _OBJECTS)


def _hash(tensor: Tensor) -> Any:
    if not _is_plain(tensor):
        return tensor._version if not tensor.is_inference() else None
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    numbers = hashlib.blake2b(plain.view(torch.uint8).numpy().data).digest()
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), numbers
