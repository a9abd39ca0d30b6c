r"""The functional view of a model: parameters in, outputs out, and the module left as it was."""

from __future__ import annotations

import copy
import dataclasses
import os
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchtheory.core.budget import check_time
from torchtheory.core.checks import all_finite, as_module, module_with_values
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    ModelRaised,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.foreign_code import ForeignCode, said
from torchtheory.models.arrangement import Arrangement
from torchtheory.models.inputs import Rows
from torchtheory.models.noise import Noise, growth_of, noise_fixed
from torchtheory.models.untouched import contents_kept, private_copy, refuse_compiled

Parameters = dict[str, Tensor]

Initial = nn.Module | Mapping[str, Tensor]
"""A point of parameter space: parameters by name, a state dict, or a module of the same shape."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every sub-module in evaluation mode, and the model back to what it was afterwards.

    Whatever the model writes while it runs is put back: parameters and buffers with their numbers
    and `requires_grad`, modules that it builds, hooks, attributes (a cached activation, a weight
    that a hook recomputes), and lists, dictionaries and sets that it fills. So are the global
    generators. A copy of the weights is kept meanwhile.

    Raises:
        UnsupportedModel: if the model has no values yet.
        ModelRaised: in place of what the model or one of its layers raises, also of what would end
            the program, such as `sys.exit()`.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> with evaluation_mode(net):
    ...     net.training, net[1].training
    (False, False)
    >>> net.training
    True
    """
    module_with_values(model)
    with (
        contents_kept(model, values=True),
        global_randomness_kept(),
        evaluating(model),
    ):
        yield


class _FaultsOf(ForeignCode):
    """What the model or one of its layers raises; the errors of other code that runs here pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__("the model", ModelRaised)
        self.model = model

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._passed_through(trace):
            super().__exit__(kind, raised, trace)

    def _passed_through(self, trace: TracebackType | None) -> bool:
        """Whether the model or one of its layers was running."""
        layers = {id(module) for module in self.model.modules()}
        while trace is not None:
            if id(trace.tb_frame.f_locals.get("self")) in layers:
                return True
            trace = trace.tb_next
        return False


def raised_on(inputs: str, error: ModelRaised) -> ModelRaised:
    """The same error with the inputs in its sentence, given in words to follow "on inputs"."""
    kind, _, sentence = said(error.raised).partition(": ")
    words = f": {sentence}" if sentence else ""
    return ModelRaised(f"the model raised {kind} on inputs {inputs}{words}")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Only the modes: what is written to the model inside stays, as for a callback of a trainer.

    What the model or one of its layers raises becomes `ModelRaised`.

    >>> net = nn.Dropout()
    >>> with evaluating(net):
    ...     net.p = 0.1
    >>> net.training, net.p
    (True, 0.1)
    """
    modes = [(module, module.training) for module in model.modules()]
    # the attribute, not .eval(): a model may override train() with effects of its own; and only
    # where it changes, for setting an attribute of a module is slow
    for module, mode in modes:
        if mode:
            module.training = False
    # fused attention kernels have no derivatives that torch.func could take twice
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), switches_kept(), _FaultsOf(model):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, mode in modes:
            if module.training != mode:
                module.training = mode


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


@contextmanager
def process_kept() -> Iterator[None]:
    """Generators, warning filters, environment variables and switches of torch are put back.

    Packages that are imported inside set some of them, and so may a user's model.
    """
    variables = dict(os.environ)
    try:
        with global_randomness_kept(), warnings.catch_warnings(), switches_kept():
            yield
    finally:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update({k: v for k, v in variables.items() if os.environ.get(k) != v})


@contextmanager
def switches_kept() -> Iterator[None]:
    """Of torch: the default precision, whether gradients are taken, the number of threads."""
    floats, threads = torch.get_default_dtype(), torch.get_num_threads()
    gradients = torch.is_grad_enabled()
    try:
        yield
    finally:
        if torch.get_default_dtype() != floats:
            torch.set_default_dtype(floats)
        if torch.is_grad_enabled() != gradients:
            torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


class PureFunction:
    r"""A module as a function $f(\theta, x)$ of its parameters and its input.

    It is the function that the module was when it was given: a private copy of it is run, in
    evaluation mode, and later training does not move it. The module itself keeps its parameters,
    mode, buffers, gradients, hooks, attributes and `requires_grad`. Buffers are copied for every
    call, and so are the parameters of a model that writes to them (`nn.Embedding(max_norm=)`), so
    that no call depends on the one before. Parameters that a call does not name keep their values.

    Args:
        model: the module.
        rows: the inputs, for a model that takes several: `x` then holds the numbers of rows.
        output: which part of a tuple or mapping of outputs to take; see `one_output`. Several, as
            a tuple, stand side by side in one tensor `[n, K]`.
        private: whether to copy the module; without, one is run that nobody else has.
        with_values: whether its parameters must hold numbers; sizes alone can be asked for without.

    >>> net = nn.Linear(3, 1)
    >>> f = PureFunction(net)
    >>> x = torch.ones(2, 3)
    >>> bool((f(f.parameters, x) == net(x)).all())
    True
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        rows: Rows | None = None,
        output: int | str | tuple[int | str, ...] | None = None,
        private: bool = True,
        with_values: bool = True,
    ) -> None:
        refuse_compiled(module_with_values(model) if with_values else as_module(model))
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                kind = str(parameter.dtype).removeprefix("torch.")
                raise UnsupportedModel(
                    f"the parameter {name} of the model is {kind}, and the theory is about real "
                    "weights: convert it to a floating type, or make it a buffer if it is constant"
                )
        #: The private copy that is run; the model given where no copy of it can be made.
        self.model = private_copy(model) if private else model
        self.rows = rows
        self.output = output
        own = {k: p.detach() for k, p in self.model.named_parameters()}
        self.parameters: Parameters = (
            {k: p.clone() for k, p in own.items()} if self.model is model else own
        )
        self.buffers = {k: b.detach().clone() for k, b in self.model.named_buffers()}
        #: The draw of its random numbers that is used in every call, if it draws some.
        self.noise: Noise | None = None
        #: How outputs at positions become logits of classes, where they are none as they are.
        self.arranged: Arrangement | None = None
        #: Its operations as `torchtheory.tracing.passes` has recorded them, with what they are of.
        self.recorded: dict[Any, tuple[Parameters, dict[str, Tensor], Any]] = {}
        #: Whether the model is known to write to its parameters when it runs.
        self.writes = any(vars(m).get("max_norm") is not None for m in self.model.modules())

    def __call__(self, parameters: Parameters, x: Tensor) -> Tensor:
        return self.chosen(self.call(parameters, x))

    def chosen(self, returned: object) -> Tensor:
        """The tensor that is meant of what the model returns."""
        if isinstance(self.output, tuple):
            parts = [one_output(returned, key) for key in self.output]
            return torch.cat([p.reshape(len(p), -1) for p in parts], 1)
        outputs = one_output(returned, self.output)
        return outputs if self.arranged is None else self.arranged(outputs)

    def call(self, parameters: Parameters, x: Tensor) -> object:
        """What the model returns, whatever it is."""
        check_time()
        if self.rows is None:
            # a copy of the input: the model's first layer may write to it
            arguments: tuple[Any, ...] = (x.clone(),)
            named: dict[str, Any] = {}
        else:
            arguments, named = self.rows.arguments(self.model, x, self.reference())
        given = {**self.parameters, **parameters}
        # copies, made inside whatever derivative is being taken: the model may write to them
        if self.writes:
            given = {k: p.clone() for k, p in given.items()}
        buffers = {k: b.clone() for k, b in self.buffers.items()}
        versions = [_version(p) for p in given.values()]
        with ExitStack() as stack:
            stack.enter_context(contents_kept(self.model, values=False))
            stack.enter_context(evaluating(self.model))
            if self.noise is not None:
                stack.enter_context(global_randomness_kept())
                stack.enter_context(noise_fixed(self.noise, len(x) if x.ndim else 1))
            stack.enter_context(ForeignCode("the model", ModelRaised))
            outputs: object = torch.func.functional_call(
                self.model, {**buffers, **given}, arguments, named
            )
        if not self.writes and versions != [_version(p) for p in given.values()]:
            self.writes = True
        return outputs

    def with_noise(self, seed: int, x: Tensor) -> PureFunction:
        """The same function with one draw of its random numbers for all samples and calls.

        How what it draws depends on the batch is seen in passes of two and of three samples.

        Args:
            seed: of the draw.
            x: inputs, of which the first is used.
        """
        other = copy.copy(self)
        shapes = []
        with torch.no_grad(), global_randomness_kept():
            for size in (2, 3):
                rows = x[:1].expand(size, *x.shape[1:]).clone()
                other.noise = None  # what is drawn in this pass is seen here
                with noise_fixed(Noise(seed), size) as shared:
                    other.call(self.parameters, rows)
                shapes.append(shared.drawn)
        other.noise = Noise(seed, growth_of(*shapes))
        return other

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


def _version(tensor: Tensor) -> int:
    """Changes when something is written to the tensor."""
    return 0 if tensor.is_inference() else tensor._version


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
                + (
                    f"{', '.join(map(repr, known))} (output= says which is meant)"
                    if known
                    else type(outputs).__name__
                )
            )
        part = known[which]
    if isinstance(part, Tensor):
        if part.is_nested or part.layout != torch.strided:
            kind = "nested" if part.is_nested else "sparse"
            raise UnsupportedModel(
                f"the model returns a {kind} tensor; wrap it so that it returns a dense one"
            )
        if part.is_complex():
            raise UnsupportedModel(
                f"the model returns complex numbers ({str(part.dtype).removeprefix('torch.')}); "
                "wrap it so that it returns real ones, such as their real parts or sizes"
            )
        if part.ndim > 1 and part.shape[1:].numel() == 0:
            raise UnsupportedModel(f"the model returns no number a sample, {list(part.shape)}")
        return part
    raise UnsupportedModel(
        f"the model returns {type(part).__name__}; wrap it so that it returns one tensor"
    )


def real_rows(outputs: Tensor, samples: int) -> Tensor:
    """Outputs `[n, ...]` with one row of real numbers for each sample.

    >>> real_rows(torch.zeros(2, dtype=torch.long), 2)
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.UnsupportedModel: the model returns torch.int64; it must return real ...
    """
    if outputs.ndim == 0 or len(outputs) != samples:
        raise ShapeMismatch(
            f"the model maps {samples} samples to an output of shape {list(outputs.shape)}; "
            "its first dimension must be the samples"
        )
    if not outputs.is_floating_point():
        raise UnsupportedModel(
            f"the model returns {outputs.dtype}; it must return real numbers, such as the "
            "logits of the classes rather than the class"
        )
    return outputs


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
    module_with_values(model)
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
