r"""A network replaced by its tangent at a point of parameter space.

$$
f_{\mathrm{lin}}(x,\theta) = f(x,\theta_0) + J(x,\theta_0)\,(\theta-\theta_0),
\qquad J(x,\theta)=\nabla_\theta f(x,\theta)^\top.
$$

It is affine in $\theta$, so training it with the squared loss is a convex problem, and its
tangent kernel is that of $f$ at $\theta_0$ wherever $\theta$ goes. Sources:
Foundations of Deep Learning, sections 6.4 (Problem 2) and 7.3; The Modern Mathematics of Deep
Learning, Eq. (1.25).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, ModelRaised, ShapeMismatch, UnsupportedModel
from torchtheory.kernels.tangent.derivatives import refuse_unusable_mode
from torchtheory.models.model import (
    Initial,
    Parameters,
    PureFunction,
    global_randomness_kept,
    parameters_from,
)
from torchtheory.models.untouched import copied
from torchtheory.nets.activations.table import ACTIVATIONS, Pointwise, as_layer
from torchtheory.tracing.activations import activation_facts, layer_facts


class LinearizedModel(nn.Module):
    r"""$f_{\mathrm{lin}}(x,\theta)$ with $\theta$ as its parameters.

    Make one with `linearize`. It is trained, saved and moved like any module; frozen
    parameters of the network are frozen here. Its parameters are named `displaced.<name>`, and
    its buffers `origin.<name>` hold $\theta_0$ and the network's own buffers, so that a
    state dict is all there is to know besides the architecture. The network is in evaluation mode
    whatever the mode of this module.

    A call costs one forward pass with its directional derivative (about two passes); memory is
    twice the network's.
    """

    def __init__(self, function: PureFunction, origin: Parameters, frozen: set[str]) -> None:
        super().__init__()
        self.displaced = _Tensors()
        self.origin = _Tensors()
        for name, tensor in origin.items():
            # two tensors: an optimizer changes one of them in place
            self.origin.hold(name, tensor.detach().clone())
            moving = nn.Parameter(tensor.detach().clone(), requires_grad=name not in frozen)
            self.displaced.hold(name, moving)
        for name, tensor in function.buffers.items():
            self.origin.hold(name, tensor)
        # only the architecture is needed of the copy: its tensors are those held above
        function.model.to("meta")
        function.parameters, function.buffers = {}, {}
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the linearized network, in the shape of the network's own."""
        constants, here = self._point()
        step = {name: here[name] - constants[name] for name in here}
        start = {name: constants.pop(name) for name in here}
        with global_randomness_kept():
            value, change = directional_derivative(self._function, constants, start, step, x)
        return value + change

    def exact(self, x: Tensor) -> Tensor:
        r"""The network itself at the displaced parameters, $f(x,\theta)$."""
        constants, here = self._point()
        with global_randomness_kept():
            return self._function({**constants, **here}, x)

    def displacement(self) -> Parameters:
        r"""$\theta-\theta_0$ by the network's own names, detached.

        >>> lin = linearize(nn.Linear(2, 1))
        >>> {name: step.abs().sum().item() for name, step in lin.displacement().items()}
        {'weight': 0.0, 'bias': 0.0}
        """
        constants, here = self._point()
        return {name: (here[name] - constants[name]).detach() for name in here}

    def _point(self) -> tuple[Parameters, Parameters]:
        r"""What does not move ($\theta_0$ and the buffers), and $\theta$."""
        return dict(self.origin.named_buffers()), dict(self.displaced.named_parameters())


class _Tensors(nn.Module):
    """Tensors under dotted names, which torch allows in a tree of modules only."""

    def hold(self, name: str, tensor: Tensor) -> None:
        first, _, rest = name.partition(".")
        if rest:
            if first not in self._modules:
                self.add_module(first, _Tensors())
            child = self._modules[first]
            assert isinstance(child, _Tensors)
            child.hold(rest, tensor)
        elif isinstance(tensor, nn.Parameter):
            self.register_parameter(first, tensor)
        else:
            self.register_buffer(first, tensor)


def linearize(model: nn.Module, parameters: Initial | None = None) -> LinearizedModel:
    r"""The first-order Taylor expansion of a network in its parameters, as a module.

    $$
    f_{\mathrm{lin}}(x,\theta) = f(x,\theta_0) + J(x,\theta_0)(\theta-\theta_0)
    $$

    Args:
        model: any `nn.Module` that maps a batch to one tensor. It is copied and left as it is.
            Batch normalization and dropout must be in evaluation mode: otherwise the output is
            not a function of the input and the parameters.
        parameters: $\theta_0$, by name or as a module of the same shape; the model's own
            unless given.

    Returns:
        A `LinearizedModel` at $\theta=\theta_0$, where it equals the network.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> lin, x = linearize(net), torch.ones(3, 2)
    >>> bool(torch.allclose(lin(x), net(x)))
    True
    >>> [name for name, _ in lin.named_parameters()][:2]
    ['displaced.0.weight', 'displaced.0.bias']
    """
    PureFunction(model)  # refuses what is not a module or has no values
    refuse_unusable_mode(model)
    origin = parameters_from(model, model if parameters is None else parameters)
    own = copied(model)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    return LinearizedModel(PureFunction(own), origin, frozen)


def directional_derivative(
    function: PureFunction, constants: Parameters, start: Parameters, step: Parameters, x: Tensor
) -> tuple[Tensor, Tensor]:
    r"""$f(x,\theta_0)$ and $J(x,\theta_0)v$ by one forward-mode pass.

    Args:
        function: the network.
        constants: buffers, and parameters that stay out of it.
        start, step: $\theta_0$ and $v$, by the same names.
        x: a batch.

    >>> f = PureFunction(nn.Linear(2, 1, bias=False))
    >>> step = {"weight": torch.tensor([[3.0, 4.0]])}
    >>> directional_derivative(f, {}, f.parameters, step, torch.eye(2))[1].flatten()
    tensor([3., 4.])
    """

    def output(theta: Parameters) -> Tensor:
        return function({**constants, **theta}, x)

    def pushforward() -> tuple[Tensor, Tensor]:
        pair: tuple[Tensor, Tensor] = torch.func.jvp(output, (start,), (step,))  # type: ignore[assignment]
        return pair

    try:
        return pushforward()
    except ModelRaised as error:
        if not isinstance(error.raised, NotImplementedError):
            raise
    try:
        # the fused recurrent layers have no forward derivative, the plain ones do
        with _no_warnings(), torch.backends.mkldnn.flags(enabled=False):
            return pushforward()
    except ModelRaised as error:
        if not isinstance(error.raised, NotImplementedError):
            raise
        raise UnsupportedModel(
            "the model uses an operation without a forward derivative: "
            + " ".join(str(error.raised).split())[:120]
        ) from None


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Torch remarks on an absent graphics card when the switch for fused layers is set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def linearization_gap(model: nn.Module, initial: Initial, x: Tensor) -> Tensor:
    r"""$|f(x,\theta)-f_{\mathrm{lin}}(x,\theta)|$, what the tangent at `initial` misses.

    Args:
        model: the network at $\theta$; its buffers are used at both points.
        initial: $\theta_0$.
        x: a batch.

    Returns:
        The gap, in the shape of the outputs. Evaluation mode; cost about three forward passes.

    >>> net = nn.Linear(2, 1)                        # linear in its parameters already
    >>> start = {k: p + 1 for k, p in net.named_parameters()}
    >>> linearization_gap(net, start, torch.eye(2)).max() < 1e-6
    tensor(True)
    """
    outputs, _, tangent = outputs_on_tangent(model, initial, x)
    return (outputs - tangent).abs()


def outputs_on_tangent(
    model: nn.Module, initial: Initial, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""$f(x,\theta)$, $f(x,\theta_0)$ and $f_{\mathrm{lin}}(x,\theta)$.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> now, before, tangent = outputs_on_tangent(net, {"weight": net.weight - 2}, torch.ones(1, 1))
    >>> round((now - before).item(), 5), bool(torch.isclose(now, tangent))
    (2.0, True)
    """
    f = PureFunction(model)
    start = parameters_from(model, initial)
    step = {name: f.parameters[name] - tensor for name, tensor in start.items()}
    with torch.no_grad(), global_randomness_kept():
        outputs = f(f.parameters, x)
        before, change = directional_derivative(f, {}, start, step, x)
    return outputs, before, before + change


# ----------------------------------------------------------------------- the two-layer bound


def activation_smoothness(activation: str | nn.Module) -> float:
    r"""$\beta=\sup_{r\ne s}|\sigma'(r)-\sigma'(s)|/|r-s|$ of an activation, by name or as a layer.

    Infinite where the derivative jumps: no parabola then bounds the error of a tangent.

    >>> round(activation_smoothness("tanh"), 4), activation_smoothness(nn.Softplus(beta=2.0))
    (0.7698, 0.5)
    """
    layer = as_layer(activation) if activation in ACTIVATIONS else activation
    if isinstance(layer, nn.Identity):
        return 0.0
    if isinstance(layer, Pointwise):
        layer = {"arctan": "atan"}.get(layer.name, layer.name)
    return (activation_facts(layer) if isinstance(layer, str) else layer_facts(layer)).smoothness


def two_layer_gap_bound(
    displacement: Tensor, output_weights: Tensor, x: Tensor, smoothness: float
) -> Tensor:
    r"""How far a two-layer network can be from its tangent when its first layer moves.

    For $f(W)=\sum_ja_j\sigma(w_j^\top x)$ with a $\beta$-smooth $\sigma$,

    $$
    |f(W)-f_{\mathrm{lin}}(W)| \le \tfrac\beta2\max_j|a_j|\,\|W-W_0\|_F^2\,\|x\|^2,
    $$

    which for $a_j=\pm1/\sqrt m$ is $\beta\|W-W_0\|_F^2\|x\|^2/(2\sqrt m)$: at a fixed
    distance the network becomes linear in its weights as $m$ grows.

    Args:
        displacement: $W-W_0$, `[m, d]`.
        output_weights: $a$, `[m]`, or `[C, m]` for several outputs.
        x: `[n, d]`.
        smoothness: $\beta$, see `activation_smoothness`.

    Returns:
        `[n]`, or `[n, C]`.

    >>> step, a = torch.full((4, 1), 0.5), torch.tensor([0.5, -0.5, 0.5, 0.5])
    >>> two_layer_gap_bound(step, a, torch.tensor([[2.0]]), smoothness=1.0)
    tensor([1.])
    """
    if displacement.ndim != 2 or x.ndim != 2 or displacement.shape[1] != x.shape[1]:
        raise ShapeMismatch(
            f"the displacement must be [m, d] and x [n, d], not {list(displacement.shape)} and "
            f"{list(x.shape)}"
        )
    if output_weights.ndim not in (1, 2) or output_weights.shape[-1] != len(displacement):
        raise ShapeMismatch(
            f"there are {len(displacement)} hidden units but output weights of shape "
            f"{list(output_weights.shape)}"
        )
    if not smoothness >= 0:
        raise InvalidInput(f"a smoothness constant is a number >= 0, not {smoothness!r}")
    largest = output_weights.abs().amax(-1)
    moved = displacement.square().sum()
    squares = x.square().sum(1)
    if output_weights.ndim == 2:
        squares = squares[:, None]
    # 0 * inf: without movement there is no gap, smooth or not
    return smoothness / 2 * largest * moved * squares if moved > 0 else 0 * largest * squares
