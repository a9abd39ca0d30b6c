r"""Per-sample derivatives of a model, kept in factors where its operations allow it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.checks import all_finite, described, first_entry
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    ModelRaised,
    NonFinite,
    ShapeMismatch,
    TorchTheoryError,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.core.mapping import Agreement, looked_at, stacked
from torchtheory.core.random import as_generator
from torchtheory.core.workspace import Workspace
from torchtheory.kernels.tangent.features import (
    ByUse,
    Factors,
    Features,
    Group,
    Jacobians,
    LateJacobians,
    Outputs,
    factors_of,
    group_parameters,
    jacobian_of,
    measure,
)
from torchtheory.kernels.tangent.layered_network import (
    LayeredNetwork,
    LayersDiffer,
    agree,
    layered_network,
)
from torchtheory.kernels.tangent.parameter_uses.following import ParameterUses, ShapesDiffer
from torchtheory.kernels.tangent.parameter_uses.jacobians import Lookup, Use
from torchtheory.kernels.tangent.parameter_uses.rules import stays
from torchtheory.kernels.tangent.tiles import blocks
from torchtheory.models.cost import saved_sizes
from torchtheory.models.model import Parameters, PureFunction, global_randomness_kept, raised_on
from torchtheory.tracing.network import Network
from torchtheory.tracing.recorder import record_function

#: (parameters, batch of inputs) -> batch of outputs
Functional = Callable[[Parameters, Tensor], Tensor]


#: Inputs and derivatives of the uses of parameters, and Jacobians by whole parameters.
_Made = tuple[list[Tensor], list[Tensor], list[Tensor]]

#: Whether samples and whether outputs are mapped over at once, from the fastest way on. Some
#: operations are mapped over wrongly by two maps, one in the other, or not at all: see
#: `torchtheory.core.mapping`.
_WAYS = ((True, True), (True, False), (False, False))

#: Bytes of the values of some samples, for a forward pass.
_CACHED = 2**26


def refuse_unusable_mode(model: nn.Module) -> None:
    """Refuse a model whose output for a sample depends on the others or on chance, by its layers.

    >>> refuse_unusable_mode(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval())
    """
    for name, module in model.named_modules():
        where = f"{name} ({type(module).__name__})" if name else type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is None:
                raise UnsupportedModel(
                    f"{where} has no running statistics and always normalizes with those of the "
                    "batch, so the output for a sample depends on the other samples"
                )
            if module.training:
                raise UnsupportedModel(
                    f"{where} is in training mode, where the output for a sample depends on the "
                    "other samples of its batch; call model.eval() first"
                )
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        random = random or (isinstance(module, nn.RNNBase) and module.dropout > 0)
        random = random or isinstance(module, nn.RReLU)
        random = random or (isinstance(module, nn.MultiheadAttention) and module.dropout > 0)
        if random and module.training:
            raise UnsupportedModel(
                f"{where} is in training mode, where the output is random; call model.eval() first"
            )


def followed_names(
    model: nn.Module | Functional, parameters: Parameters, only: Sequence[str] | None
) -> list[str]:
    """The parameters to differentiate: the trainable ones, or those that `only` names.

    A name in `only` is a parameter's or that of a module that holds several.
    """
    if only is None:
        if isinstance(model, nn.Module):
            model = PureFunction(model)
        known = model.trainable if isinstance(model, PureFunction) else parameters
        chosen = {k for k in known if parameters[k].is_floating_point()}
    elif isinstance(only, str):
        raise InvalidType(
            "only must be a list of parameter or module names, not one string (given: "
            f"{described(only)})"
        )
    else:
        for wanted in only:
            if not any(k == wanted or k.startswith(f"{wanted}.") for k in parameters):
                raise UnknownName("parameter or module", wanted, list(parameters))
        chosen = {k for k in parameters if any(k == w or k.startswith(f"{w}.") for w in only)}
    if not chosen:
        raise InvalidInput("there is no trainable parameter, so the tangent kernel is 0")
    return [k for k in parameters if k in chosen]


class Differentiable:
    """A model at one point, checked: it maps samples one by one, to real numbers, not by chance.

    Args:
        model: a module, or a function of parameters and a batch.
        x: some inputs; the first two are looked at.
        parameters: the point; the module's own unless given.
        only: parameters or modules to differentiate by; the trainable ones unless given.

    Attributes:
        function: the model as a function of parameters and a batch.
        point: all its parameters.
        names: those to differentiate by.
        classes: number of outputs a sample, C.
        dtype: of the outputs.
    """

    def __init__(
        self,
        model: nn.Module | Functional,
        x: Tensor,
        *,
        parameters: Parameters | None = None,
        only: Sequence[str] | None = None,
    ) -> None:
        self.function, self.point = _function_and_point(model, parameters)
        self.names = followed_names(self.function, self.point, only)
        self._description = repr(model) if isinstance(model, nn.Module) else ""
        _refuse_unusable(x, "the inputs")
        with global_randomness_kept():
            self._refuse_coupled_or_random(x)

    def _evaluate(self, x: Tensor) -> Tensor:
        try:
            with torch.no_grad(), ForeignCode("the model", ModelRaised):
                out = self.function(self.point, x)
        except ModelRaised as error:
            inputs = f"of shape {list(x.shape)} and type {x.dtype}"
            raise raised_on(inputs, error) from error.raised
        if not isinstance(out, Tensor):
            raise UnsupportedModel(
                f"the model returns {type(out).__name__}; wrap it so that it returns one tensor"
            )
        if out.ndim == 0 or len(out) != len(x):
            raise ShapeMismatch(
                f"the model maps {len(x)} samples to an output of shape {list(out.shape)}; its "
                "first dimension must be the samples"
            )
        if not out.is_floating_point():
            raise UnsupportedModel(
                f"the model returns {out.dtype}; a derivative needs real numbers"
            )
        if not bool(torch.isfinite(out).all()):
            raise NonFinite(
                "the model's outputs contain NaN or infinity on finite inputs: "
                f"{first_entry(out, 'the value', ~torch.isfinite(out))}"
            )
        return out

    def _refuse_coupled_or_random(self, x: Tensor) -> None:
        first = self._evaluate(x[:2])
        if not torch.equal(first, self._evaluate(x[:2])):
            raise UnsupportedModel(
                "the model's output is random: the same input gave two different outputs, so there "
                "is no one tangent kernel"
            )
        alone = torch.cat([self._evaluate(v[None]) for v in x[:2]])
        scale = float(first.abs().max())
        if not torch.allclose(alone, first, rtol=1e-3, atol=1e-3 * scale):
            raise UnsupportedModel(
                "the model's output for a sample depends on the other samples of its batch, so "
                "there is no kernel of two samples"
            )
        self.classes = first[0].numel()
        self.dtype = first.dtype
        self._first_input, self._first_outputs = x[:1], first

    def identity(self) -> list[Any]:
        """What tells this function at this point from another: its code by what it computes."""
        buffers = self.function.buffers if isinstance(self.function, PureFunction) else {}
        gradient, _ = self.random_gradient(self._first_input)
        parts: list[Any] = [self._description, self.names, self._first_outputs]
        for tensors in (self.point, buffers, gradient):
            for name in sorted(tensors):
                parts += [name, tensors[name]]
        return parts

    def random_gradient(self, x: Tensor) -> tuple[dict[str, Tensor | None], Tensor]:
        """Gradient of a random combination of one sample's outputs, by plain autograd.

        A parameter on which the outputs do not depend has none. Notes what a forward pass of the
        sample keeps in memory.
        """
        cotangent = self._random_numbers(self.classes)
        with saved_sizes(self.point) as sizes:
            found = self._gradient(x, cotangent)
        self.saved_bytes = sum(sizes)
        self.largest_saved = max(sizes, default=0)
        return found, cotangent

    def _random_numbers(self, count: int) -> Tensor:
        numbers = torch.randn(count, generator=as_generator(0), dtype=torch.float64)
        return numbers.to(self._first_input.device, self.dtype)

    def _gradient(self, x: Tensor, cotangent: Tensor) -> dict[str, Tensor | None]:
        free = {k: self.point[k].detach().requires_grad_() for k in self.names}
        with torch.enable_grad():
            out = self.function({**self.point, **free}, x).reshape(-1)
            found: tuple[Tensor | None, ...] = (None,) * len(free)
            if out.requires_grad:
                found = torch.autograd.grad(out @ cotangent, list(free.values()), allow_unused=True)
        return dict(zip(free, found, strict=True))


class PathsDiffer(Exception):
    """The parameters did not enter as on the first sample."""


class Derivatives(Differentiable):
    """A model at one point, with what is known of how its parameters enter.

    Args:
        in_parts: whether to follow the parameters to where they enter; otherwise all are
            differentiated as a whole.

    Attributes:
        groups: the parameters that are kept in factors or Jacobians of their uses.
        sizes: of each group, for inputs like `x`.
        whole: parameters that are differentiated as a whole.
        layered: the layers of a network that is worked out layer by layer.
    """

    def __init__(
        self,
        model: nn.Module | Functional,
        x: Tensor,
        *,
        parameters: Parameters | None = None,
        only: Sequence[str] | None = None,
        in_parts: bool = True,
    ) -> None:
        super().__init__(model, x, parameters=parameters, only=only)
        self._way = 0
        self._right_at: set[tuple[int, int]] = set()
        self.whole: list[str] = []
        self._found: ParameterUses | None = None
        self.layered: LayeredNetwork | None = None
        self._find_uses(x, in_parts)

    def find_layers(self, x: Tensor) -> None:
        """From here on work layer by layer, if that computes the same for a sample `[1, ...]`."""
        if self.whole or self._found is None:
            return
        layered = layered_network(self.function, self.point, self.uses, self._found.network, x)
        if layered is None:
            return
        self.layered = layered
        uses = [self._by_tiles(group) for group in self.groups]
        in_factors = [g.outer and use is None for g, use in zip(self.groups, uses, strict=True)]
        # two combinations of the outputs: all of them may be too many for the memory
        two = torch.randn(2, self.classes, generator=as_generator(0), dtype=torch.float64)
        how = two.to(x), in_factors, [False] * len(uses)
        try:
            ours = self.layered_features(x, *how, "full", memory=0)
        except LayersDiffer:
            self.layered = None
            return
        for use, found, general in zip(uses, ours, self.features(x, *how, "full"), strict=True):
            for name in found.samples():
                expected = getattr(general, name)
                if use is not None:
                    expected = layered.tiled[use].reordered(expected)
                if not agree(getattr(found, name), expected):
                    self.layered = None
        layered.forget()

    def basis(self, classes: slice) -> Tensor:
        """Some of the outputs, as combinations of all, `[C, outputs]`."""
        eye = torch.eye(self.classes, dtype=self.dtype, device=self._first_input.device)
        return eye[classes]

    def _find_uses(self, x: Tensor, in_parts: bool) -> None:
        """Look at one sample; what cannot be followed, or comes out wrong, is taken as a whole."""
        gradient, cotangent = self.random_gradient(x[:1])
        # one without gradient is not met by this sample; if others meet it, PathsDiffer will say so
        names = [k for k in self.names if gradient[k] is not None]
        # in inference mode nothing has a gradient, but for torch.func
        in_parts = in_parts and not torch.is_inference_mode_enabled()
        network = self._recorded(x[:1]) if in_parts else None
        if network is not None and network.decisions:  # no two samples need take the same way
            self._way = len(_WAYS) - 1
        while network is not None:
            followed = [k for k in names if k not in self.whole]
            found = ParameterUses(network, followed)
            seen = {role.name for use in found.uses for _, role in use.roles()}
            doubtful = (found.unknown | set(followed)) - (seen - found.unknown)
            if not doubtful:
                self._found = found
                wrong = self._wrong_by(x, gradient, cotangent)
                if not wrong:
                    return
                # what is wrong as a whole is not made of the operations that were recorded
                network = None if wrong <= set(self.whole) else network
                doubtful = wrong
            # also what is used without a gradient, behind a detach: its Jacobian is 0
            self.whole = [k for k in self.names if k in {*self.whole, *doubtful}]
        self._found, self.whole = None, self.names
        self._wrong_by(x, gradient, cotangent)

    @property
    def uses(self) -> list[Use]:
        """Operations on parameters, in the order of the computation."""
        return [] if self._found is None else self._found.uses

    def _recorded(self, x: Tensor) -> Network | None:
        """The operations of the model on one sample, if it is made of such."""
        try:
            network = record_function(self.function, self.point, x, known=stays)
        except (UnsupportedModel, ModelRaised):
            return None
        return None if network.random else network

    def _wrong_by(
        self, x: Tensor, gradient: dict[str, Tensor | None], cotangent: Tensor
    ) -> set[str]:
        """Names whose gradient, put together from the uses, is not autograd's."""
        basis = self.basis(slice(None))
        made = self._derivatives(x[:1], basis)
        wrong = self._differing(gradient, self._totals(made, [0], cotangent[None]))
        if wrong:  # the uses, or vmap over the outputs, which a loop would tell
            plain = self._derivatives(x[:1], basis, len(_WAYS) - 1)
            truly = self._differing(gradient, self._totals(plain, [0], cotangent[None]))
            if truly != wrong:
                self._way, made, wrong = self._way + 1, plain, truly
        inputs, grads, _ = made
        self.groups = group_parameters(self.uses)
        self.sizes = [measure(g, self.uses, inputs, [v[:, :1] for v in grads]) for g in self.groups]
        return wrong

    def _totals(self, made: _Made, rows: list[int], along: Tensor) -> dict[str, Tensor]:
        """The gradient of a combination `[rows, C]` of some samples' outputs, from their own."""
        inputs, grads, jacobians = made
        totals = {
            k: torch.tensordot(along, j[rows], 2)
            for k, j in zip(self.whole, jacobians, strict=True)
        }
        for index, use in enumerate(self.uses):
            slopes = grads[index][rows]
            slope = torch.bmm(along[:, None], slopes.reshape(*along.shape, -1))
            slope = slope.reshape(len(rows), 1, *slopes.shape[2:])
            for part, role in use.roles():
                added = use.jacobian(part, inputs[index][rows], slope).sum(0).reshape(-1)
                totals[role.name] = totals[role.name] + added if role.name in totals else added
        return totals

    def _differing(self, gradient: dict[str, Tensor | None], totals: dict[str, Tensor]) -> set[str]:
        """Names of the parameters whose gradient is another in `totals`."""
        unit = torch.finfo(self.dtype).eps
        exact = {k: g.reshape(-1) for k, g in gradient.items() if g is not None}
        off = [total - exact[k] if k in exact else total for k, total in totals.items()]
        if not off:
            return set()
        # all at once: one by one would take longer than the gradients of a small network
        lengths = torch.stack(torch._foreach_norm([*exact.values(), *off])).tolist()
        sizes = dict(zip(exact, lengths, strict=False))
        scale = max(sizes.values(), default=0.0)
        return {
            name
            for name, distance in zip(totals, lengths[len(exact) :], strict=True)
            # the second term: gradients that vanish but for rounding
            if not distance <= unit**0.5 * sizes.get(name, 0.0) + 1e3 * unit * scale
        }

    @property
    def bytes_by_output(self) -> int:
        """Memory to differentiate one sample by one output, roughly."""
        if self.layered is not None:
            return self.layered.bytes_by_output
        item = torch.finfo(self.dtype).bits // 8
        shapes = [] if self._found is None else self._found.shapes
        outputs = sum(shape.numel() for shape in shapes)
        whole = sum(self.point[k].numel() for k in self.whole)
        return item * (2 * outputs + 2 * whole) + 3 * self.largest_saved

    @property
    def bytes_by_sample(self) -> int:
        """Memory of a sample's forward pass, roughly, and of its patches in convolutions."""
        if self.layered is not None:
            return self.layered.bytes_by_sample
        item = torch.finfo(self.dtype).bits // 8
        patches = sum(size.positions * size.left for size in self.sizes)
        return 2 * self.saved_bytes + item * patches

    # -- differentiating -------------------------------------------------------------------------

    def _differentiate(self, x: Tensor, basis: Tensor) -> _Made:
        """Derivatives as fast as they come out right, which is looked at for every new size."""
        while True:
            made = self._derivatives(x, basis)
            if self._right(made, x, basis):
                return made
            if self._way == len(_WAYS) - 1:  # it is not torch.func that is wrong
                raise PathsDiffer
            self._way += 1

    def _right(self, made: _Made, x: Tensor, basis: Tensor) -> bool:
        """Whether some samples' derivatives are those that autograd gives for each alone."""
        sizes = len(x), len(basis)
        one_by_one = self._way == len(_WAYS) - 1 and self._found is None  # as autograd does it
        if one_by_one or sizes in self._right_at:
            return True
        rows = looked_at(len(x))
        along = self._random_numbers(len(rows) * len(basis)).reshape(len(rows), -1)
        exact = self._gradient(x[rows], (along @ basis).reshape(-1))
        right = not self._differing(exact, self._totals(made, rows, along))
        if right or self._right_at_most(made, x, basis, rows, along):
            self._right_at.add(sizes)
            return True
        return False

    def _right_at_most(
        self, made: _Made, x: Tensor, basis: Tensor, rows: list[int], along: Tensor
    ) -> bool:
        """The same where they differ together, for which one at a kink may be the reason."""
        seen = Agreement()
        for k, row in enumerate(rows):
            exact = self._gradient(x[row : row + 1], along[k] @ basis)
            totals = self._totals(made, [row], along[k : k + 1])
            differing = self._differing(exact, totals)
            for name, total in totals.items():
                seen.add(name, total, agrees=name not in differing)
            if seen.decided:
                break
        return seen.right

    def _derivatives(self, x: Tensor, basis: Tensor, way: int | None = None) -> _Made:
        """Inputs `[n, ...]` and derivatives `[n, C, ...]` of the uses, and whole Jacobians.

        In the present way unless one is given, or in the first after it that torch knows.
        """
        while way is None and self._way < len(_WAYS) - 1:
            try:
                return self._derivatives(x, basis, self._way)
            except (RuntimeError, NotImplementedError) as error:
                if not isinstance(error, ModelRaised) and isinstance(error, TorchTheoryError):
                    raise
                self._way += 1  # vmap knows no rule for something the model does
        samples_at_once, outputs_at_once = _WAYS[self._way if way is None else way]
        found, whole = self._found, {k: self.point[k] for k in self.whole}
        shapes = [] if found is None else found.shapes
        zeros = tuple(torch.zeros(s, dtype=self.dtype, device=x.device) for s in shapes)

        def one(v: Tensor) -> tuple[Any, Any, Any]:
            uses = self._uses_of(v[None])

            def outputs(
                perturbations: tuple[Tensor, ...], free: Parameters
            ) -> tuple[Tensor, tuple[Tensor, ...]]:
                if uses is None:
                    return self.function({**self.point, **free}, v[None]).reshape(-1), ()
                out, inputs = uses.outputs(v[None], perturbations, free)
                return out.reshape(-1), inputs

            _, pull, inputs = torch.func.vjp(outputs, zeros, whole, has_aux=True)  # type: ignore[misc]
            grads, jacobians = _over(pull, basis, outputs_at_once)
            return inputs, grads, tuple(jacobians.values())

        check_time()
        try:
            inputs, grads, jacobians = _over(one, x, samples_at_once)
        except ShapesDiffer as differ:
            raise PathsDiffer from differ
        # a parameter without dimensions has no third one to flatten
        return list(inputs), list(grads), [j.reshape(*j.shape[:2], -1) for j in jacobians]

    def _uses_of(self, x: Tensor) -> ParameterUses | None:
        """How the parameters enter for a sample `[1, ...]`, which may depend on what is in it."""
        found = self._found
        if found is None or not found.network.decisions:
            return found
        network = self._recorded(x)
        own = network and ParameterUses(network, [k for k in self.names if k not in self.whole])
        if not own or (own.uses, own.shapes, own.unknown) != (found.uses, found.shapes, set()):
            raise PathsDiffer
        return own

    def features(
        self,
        x: Tensor,
        basis: Tensor,
        in_factors: Sequence[bool],
        late: Sequence[bool],
        outputs: Outputs,
    ) -> list[Features]:
        """What the kernel of these samples is made of: one entry per group, then the whole ones."""
        inputs, grads, jacobians = self._differentiate(x, basis)
        made = [
            self._feature(group, factors, later, inputs, grads, outputs)
            for group, factors, later in zip(self.groups, in_factors, late, strict=True)
        ]
        made.extend(Jacobians(j, outputs) for j in jacobians)
        return made

    def _feature(
        self,
        group: Group,
        factors: bool,
        late: bool,
        inputs: ByUse,
        grads: ByUse,
        outputs: Outputs,
    ) -> Features:
        if factors:
            return Factors(*factors_of(group, self.uses, inputs, grads), outputs)
        if late:
            use = self.uses[group.places[0][0]]
            rows = use.rows if isinstance(use, Lookup) else 0
            return LateJacobians(*factors_of(group, self.uses, inputs, grads), outputs, rows)
        return Jacobians(jacobian_of(group, self.uses, inputs, grads), outputs)

    def layered_features(
        self,
        x: Tensor,
        basis: Tensor,
        in_factors: Sequence[bool],
        late: Sequence[bool],
        outputs: Outputs,
        memory: int,
    ) -> list[Features]:
        """The same for any number of samples, layer by layer, in about so many bytes."""
        layered = self.layered
        assert layered is not None
        # by this thread: others must not run the model at the same time
        whole = blocks(len(x), max(1, min(memory, _CACHED) // layered.bytes_by_sample))
        with torch.no_grad():
            values = torch.cat([self.function(self.point, x[part]) for part in whole])
        made: dict[int, Features] = {}
        into: dict[int, Jacobians] = {}
        for k, group in enumerate(self.groups):
            use = self._by_tiles(group)
            if use is not None and not (in_factors[k] or late[k]):
                shape = (len(x), len(basis), self.sizes[k].jacobian)
                made[k] = into[use] = Jacobians.empty(shape, outputs, basis)
        tiled = set(made)
        begun = layered.begun(basis)
        allocating = threading.Lock()

        def work(part: slice, space: Workspace) -> None:
            places = {use: jacobians.by_sample[part] for use, jacobians in into.items()}
            inputs, grads = layered.differentiate(x[part], values[part], begun, places, space)
            for k, group in enumerate(self.groups):
                if k in tiled:
                    continue
                few = self._feature(group, in_factors[k], late[k], inputs, grads, outputs)
                with allocating:
                    if k not in made:
                        made[k] = few.room_for(len(x))
                made[k].put(part.start, few)

        threads, most = layered.shares(len(basis), memory)
        layered.share(blocks(len(x), most), threads, basis, work)
        return [made[k] for k in range(len(self.groups))]

    def _by_tiles(self, group: Group) -> int | None:
        """The use whose Jacobian is worked out by tiles, if the group is all of that use."""
        assert self.layered is not None
        use = group.places[0][0]
        whole = [use] == [k for other in self.groups for k, _ in other.places if k == use]
        alone = len(group.places) == 1 and group.places[0][1][0] == "weight"
        return use if alone and whole and use in self.layered.tiled else None

    def numbers_by_output(self, in_factors: Sequence[bool]) -> tuple[int, int]:
        """How many numbers the features of a sample hold: for each output, and besides.

        `in_factors` says of which groups factors are kept rather than Jacobians.
        """
        each, besides = sum(self.point[k].numel() for k in self.whole), 0
        for size, factors in zip(self.sizes, in_factors, strict=True):
            each += size.positions * size.right if factors else size.jacobian
            besides += size.positions * size.left if factors else 0
        return each, besides


def _function_and_point(
    model: nn.Module | Functional, parameters: Parameters | None
) -> tuple[Functional, Parameters]:
    if isinstance(model, nn.Module):
        pure = PureFunction(model)
        refuse_unusable_mode(model)
        pure.refuse_non_finite_parameters()
        if parameters is None:
            return pure, pure.parameters
        for name, own in pure.parameters.items():
            if name not in parameters:
                raise InvalidInput(f"the parameters given lack {name}")
            if parameters[name].shape != own.shape:
                raise ShapeMismatch(
                    f"{name} has shape {list(parameters[name].shape)}, the model's "
                    f"{list(own.shape)}"
                )
        point = {k: parameters[k].detach() for k in pure.parameters}
    elif callable(model):
        if parameters is None:
            raise InvalidInput(
                "a function f(parameters, x) needs its parameters: give parameters={name: tensor}"
            )
        # fresh tensors: two names of one tensor must not be taken for each other
        return model, {k: p.detach().view_as(p) for k, p in parameters.items()}
    else:
        raise InvalidType(
            f"the model must be a torch.nn.Module or a function f(parameters, x), not "
            f"{type(model).__name__}"
        )
    for name, tensor in point.items():
        all_finite(tensor, name)
    return pure, point


def _refuse_unusable(x: Tensor, name: str) -> None:
    if not isinstance(x, Tensor):
        raise InvalidType(f"{name} must be a tensor [n, ...], not {type(x).__name__}")
    if x.ndim == 0 or len(x) == 0:
        raise InvalidInput(f"{name} hold no sample")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise NonFinite(f"{name} contain NaN or infinity")


def _over(function: Callable[[Tensor], Any], items: Tensor, at_once: bool) -> Any:
    """The function on each item, results stacked: by vmap, or one after the other."""
    if at_once:
        return torch.func.vmap(function)(items)
    return stacked([function(item) for item in items])
