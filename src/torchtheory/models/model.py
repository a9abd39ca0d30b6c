r"""The functional view of a model: parameters in, outputs out, and the module left as it was."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from torchtheory.core.budget import check_time
from torchtheory.core.checks import all_finite, as_module
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.models.inputs import Rows

Parameters = dict[str, Tensor]

Initial = nn.Module | Mapping[str, Tensor]
"""A point of parameter space: parameters by name, a state dict, or a module of the same shape."""


#: Note on an exception that comes out of a model's forward pass.
RAISED_BY_MODEL = "raised by the model's forward pass"

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every sub-module in evaluation mode, and back to what each was afterwards.

    Attributes that the model sets while it runs (a cached activation, a weight that a hook
    recomputes) are put back as well, and lists, dictionaries and sets that it fills. So are the
    parameters of a module used under two names, which `torch.func.functional_call` leaves
    replaced.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> with evaluation_mode(net):
    ...     net.training, net[1].training
    (False, False)
    >>> net.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    attributes = [dict(vars(module)) for module, _ in modes]
    filled = [
        (value, value.copy())
        for own in attributes
        for name, value in own.items()
        if name not in _OF_EVERY_MODULE and isinstance(value, list | dict | set)
    ]
    tensors: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (own, dict(own))
        for module, _ in modes
        for own in (module._parameters, module._buffers)
        if isinstance(own, dict)
    ]
    # the attribute, not .eval(): a model may override train() with effects of its own
    for module, _ in modes:
        module.training = False
    # fused attention kernels have no derivatives that torch.func could take twice
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for (module, mode), before in zip(modes, attributes, strict=True):
            for name in vars(module).keys() - before.keys():
                del vars(module)[name]
            vars(module).update(before)
            module.training = mode
        for container, contents in filled:
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(contents)
        for own, kept in tensors:
            own.update(kept)


@contextmanager
def global_randomness_kept() -> Iterator[None]:
    """Whatever runs inside may draw random numbers; the caller's generators do not notice."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


class PureFunction:
    r"""A module as a function $f(\theta, x)$ of its parameters and its input.

    The parameters are detached views of the module's own (no copy); buffers are copied for every
    call, so that a forward pass which writes to them changes neither the module nor the function.
    The module is run in evaluation mode and keeps its mode, buffers, gradients, hooks and
    `requires_grad`. Parameters that a call does not name keep their values.

    Args:
        model: the module.
        rows: the inputs, for a model that takes several: `x` then holds the numbers of rows.
        output: which part of a tuple or mapping of outputs to take; see `one_output`.

    >>> net = nn.Linear(3, 1)
    >>> f = PureFunction(net)
    >>> x = torch.ones(2, 3)
    >>> bool((f(f.parameters, x) == net(x)).all())
    True
    """

    def __init__(
        self, model: nn.Module, *, rows: Rows | None = None, output: int | str | None = None
    ) -> None:
        as_module(model)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
                raise UnsupportedModel(
                    f"{name} is a lazy tensor without values; run the model once on a batch first"
                )
            if tensor.is_meta:
                raise UnsupportedModel(
                    f"{name} is on the meta device, which holds no values; load the weights first"
                )
        self.model = model
        self.rows = rows
        self.output = output
        self.parameters: Parameters = {k: p.detach() for k, p in model.named_parameters()}
        self.buffers = {k: b.detach().clone() for k, b in model.named_buffers()}

    def __call__(self, parameters: Parameters, x: Tensor) -> Tensor:
        return one_output(self.call(parameters, x), self.output)

    def call(self, parameters: Parameters, x: Tensor) -> object:
        """What the model returns, whatever it is."""
        check_time()
        if self.rows is None:
            # a copy of the input: the model's first layer may write to it
            arguments: tuple[Any, ...] = (x.clone(),)
            named: dict[str, Any] = {}
        else:
            arguments, named = self.rows.arguments(self.model, x, self.reference())
        # copies, made inside whatever derivative is being taken: the model may write to them
        buffers = {k: b.clone() for k, b in self.buffers.items()}
        with evaluation_mode(self.model):
            try:
                outputs: object = torch.func.functional_call(
                    self.model, {**buffers, **self.parameters, **parameters}, arguments, named
                )
            except Exception as error:
                error.add_note(RAISED_BY_MODEL)
                raise
        return outputs

    def in_precision(self, dtype: torch.dtype) -> PureFunction:
        """The same function with floating parameters and buffers in another precision."""
        other = copy.copy(self)
        other.parameters = {k: _cast(p, dtype) for k, p in self.parameters.items()}
        other.buffers = {k: _cast(b, dtype) for k, b in self.buffers.items()}
        return other

    @property
    def trainable(self) -> Parameters:
        """The parameters that training moves: those with `requires_grad`, or all if none has it.

        Whatever differentiates, perturbs or follows "the parameters" of a model means these, unless
        it is told which. Frozen ones are constants. A model that is frozen as a whole, as for
        inference, counts as if nothing were.

        >>> net = nn.Linear(2, 1)
        >>> _ = net.bias.requires_grad_(False)
        >>> list(PureFunction(net).trainable)
        ['weight']
        """
        free = {k for k, p in self.model.named_parameters() if p.requires_grad}
        chosen = {
            k: p
            for k, p in self.parameters.items()
            if p.is_floating_point() and (k in free or not free)
        }
        if not chosen:
            raise UnsupportedModel("the model has no parameter")
        return chosen

    @property
    def count(self) -> int:
        """Number of parameters (a shared one counts once)."""
        return sum(p.numel() for p in self.parameters.values())

    def refuse_non_finite_parameters(self) -> None:
        """Raise if a parameter or buffer holds NaN or infinity, naming it."""
        for name, tensor in [*self.parameters.items(), *self.buffers.items()]:
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise NonFinite(f"{name} of the model contains NaN or infinity")

    def reference(self) -> Tensor:
        """A tensor with the model's dtype and device: its first floating parameter or buffer."""
        for tensor in [*self.parameters.values(), *self.buffers.values()]:
            if tensor.is_floating_point():
                return tensor
        return torch.empty(0)


def one_output(outputs: object, which: int | str | None = None) -> Tensor:
    """The tensor that a model's outputs are about.

    Args:
        outputs: a tensor, or a tuple, list or mapping of some.
        which: position or key of the part that is meant.

    >>> one_output({"logits": torch.zeros(1), "hidden": torch.ones(2)}, "logits")
    tensor([0.])
    """
    part: object = outputs
    if which is not None:
        known = parts_of(outputs)
        if which not in known:
            raise UnsupportedModel(
                f"the model has no output {which!r}; it returns "
                + (", ".join(map(repr, known)) if known else type(outputs).__name__)
            )
        part = known[which]
    if isinstance(part, Tensor):
        return part
    raise UnsupportedModel(
        f"the model returns {type(part).__name__}; wrap it so that it returns one tensor"
    )


def main_output(outputs: object) -> int | str | None:
    """Which part of several outputs is most likely meant, or None for one tensor.

    The first of a tuple or list; the entry `logits` of a mapping or dataclass, or its only
    tensor.

    >>> main_output((torch.zeros(1), None)), main_output({"logits": torch.zeros(1), "h": None})
    (0, 'logits')
    """
    known = parts_of(outputs)
    tensors = [k for k, v in known.items() if isinstance(v, Tensor)]
    if isinstance(outputs, tuple | list) or not known:
        return 0 if known else None
    return "logits" if "logits" in tensors or len(tensors) != 1 else tensors[0]


def parts_of(outputs: object) -> dict[Any, object]:
    """Parts of a mapping or dataclass by name, of a tuple or list by position; else empty."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        return {f.name: getattr(outputs, f.name) for f in dataclasses.fields(outputs)}
    return dict(enumerate(outputs)) if isinstance(outputs, tuple | list) else {}


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors among the arguments or results of a function, lists and tuples entered."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def as_leaves(parameters: Parameters) -> Parameters:
    """The same values as leaves of a graph of their own, which gradients can be taken in."""
    own = {k: p.detach() for k, p in parameters.items()}
    return {k: p.requires_grad_() if p.is_floating_point() else p for k, p in own.items()}


def flatten(parameters: Parameters) -> Tensor:
    """All parameters as one vector, in the order of the dictionary.

    >>> flatten({"a": torch.ones(2, 2), "b": torch.zeros(1)})
    tensor([1., 1., 1., 1., 0.])
    """
    return torch.cat([p.reshape(-1) for p in parameters.values()])


def unflatten(vector: Tensor, like: Parameters) -> Parameters:
    """A vector cut into the shapes of `like`; the inverse of `flatten`.

    >>> unflatten(torch.arange(3.0), {"a": torch.ones(2), "b": torch.zeros(1)})
    {'a': tensor([0., 1.]), 'b': tensor([2.])}
    """
    pieces = torch.split(vector, [p.numel() for p in like.values()])
    return {k: v.view_as(p) for v, (k, p) in zip(pieces, like.items(), strict=True)}


def parameters_from(model: nn.Module, initial: Initial) -> Parameters:
    """The floating parameters of `model` at another point, by its own names.

    Args:
        model: says which names and shapes there are, and which dtype and device.
        initial: parameters by name, a state dict (its buffers are not looked at), or a module of
            the same shape.

    >>> net, other = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> bool((parameters_from(net, other.state_dict())["weight"] == other.weight).all())
    True
    """
    if isinstance(initial, nn.Module):
        given: Mapping[str, Tensor] = {k: p.detach() for k, p in initial.named_parameters()}
    elif isinstance(initial, Mapping):
        given = initial
    else:
        raise InvalidType(
            "parameters are given by name, as a state dict or as a module of the same shape, not "
            f"as {type(initial).__name__}"
        )
    wanted = {k: p.detach() for k, p in model.named_parameters() if p.is_floating_point()}
    if not wanted:
        raise UnsupportedModel("the model has no parameter")
    known = set(model.state_dict(keep_vars=True)) | {k for k, _ in model.named_parameters()}
    if other := [k for k in given if k not in known]:
        raise InvalidInput(
            f"the given parameters have {other[0]!r}, which the model does not: they belong to "
            "another architecture"
        )
    point = {}
    for name, p in wanted.items():
        if name not in given:
            raise InvalidInput(f"the given parameters have no {name!r}, which the model has")
        tensor = given[name]
        if not isinstance(tensor, Tensor):
            raise InvalidType(f"{name} must be a tensor, not {type(tensor).__name__}")
        if tensor.shape != p.shape:
            raise ShapeMismatch(
                f"{name} has shape {list(tensor.shape)} in the given parameters and "
                f"{list(p.shape)} in the model"
            )
        all_finite(tensor, f"{name} of the given parameters")
        point[name] = tensor.detach().to(dtype=p.dtype, device=p.device)
    return point
