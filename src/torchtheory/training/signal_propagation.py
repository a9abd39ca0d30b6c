r"""How large activations and gradients are, layer by layer: predicted, and measured.

For independent weights of mean 0 in wide layers the second moments
$q^\ell=\frac1{n_\ell}\|z^\ell\|^2$ of the pre-activations and
$g^\ell=\frac1{n_\ell}\|\partial L/\partial z^\ell\|^2$ of their gradients follow

$$
q^{\ell+1}=n_\ell\sigma_{\ell+1}^2\;\mathbb E\varrho(\sqrt{q^\ell}Z)^2,\qquad
g^\ell=n_{\ell+1}\sigma_{\ell+1}^2\;\mathbb E\varrho'(\sqrt{q^\ell}Z)^2\;g^{\ell+1},
$$

with corrections of order $1/n$ a layer. Source: Deep Learning (notes), section 8.1; the
recursion is that of Poole et al. (2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_batch, first_entry
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.model import PureFunction, as_leaves
from torchtheory.nets.activations.moments import Function, second_moment, squared_slope
from torchtheory.nets.infinite_width.duals.angles import correlation
from torchtheory.nets.infinite_width.fields import Raw, output_field, same_place, variance
from torchtheory.nets.infinite_width.rules import (
    largest_places,
    limit_rules,
    refuse_shared_weights,
)
from torchtheory.tracing.interpret import Call, interpret
from torchtheory.tracing.network import Network, Operation, Value, called
from torchtheory.tracing.passes import layers_of_weights, network_of, run
from torchtheory.tracing.recorder import record
from torchtheory.tracing.watching import weighted_values

#: Entries of one block of the covariance between samples and places.
_AT_ONCE = 4_000_000

#: Places of a value, pixels of an image, whose pairs are carried.
LARGEST = 2000


@dataclass(frozen=True, slots=True)
class Signal:
    r"""Second moments over depth.

    Attributes:
        forward: `[..., L]`, $q^1,\dots,q^L$ of the pre-activations.
        backward: `[..., L]`, $g^1,\dots,g^L$ of the gradient in them;
            $g^L$ is that of the gradient handed to the output.
        names: the layers, where a model was looked at.
        entries: how many numbers a layer puts out for one sample.
        correlations: `[L]`, mean cosine of the angle between the pre-activations of two samples,
            over pairs of samples (of a prediction: pairs that fit into memory together). None where
            there is one sample.
    """

    forward: Tensor
    backward: Tensor
    names: tuple[str, ...] = ()
    entries: tuple[int, ...] = ()
    correlations: Tensor | None = None

    @property
    def depth(self) -> int:
        return self.forward.shape[-1]


def predict_signal(
    forward_gains: Tensor,
    backward_gains: Tensor,
    activation: Function,
    *,
    input_moment: float | Tensor = 1.0,
    output_gradient: float | Tensor = 1.0,
    bias_variance: float | Tensor = 0.0,
) -> Signal:
    r"""The mean-field recursion, for any number of networks at once.

    Args:
        forward_gains: `[..., L]`, $n_{\ell-1}\sigma_\ell^2$ of the layers 1 to L.
        backward_gains: `[..., L]`, $n_\ell\sigma_\ell^2$.
        activation: between the layers; not applied to the last one's output.
        input_moment: $\frac1{n_0}\|x\|^2$.
        output_gradient: $g^L$.
        bias_variance: added to every $q^\ell$.

    >>> ones = torch.ones(2, 4, dtype=torch.float64)
    >>> gains = torch.tensor([[1.0], [2.0]]) * ones          # Xavier and He in a square network
    >>> predict_signal(gains, gains, "relu").forward
    tensor([[1.0000, 0.5000, 0.2500, 0.1250],
            [2.0000, 2.0000, 2.0000, 2.0000]], dtype=torch.float64)
    """
    if forward_gains.shape != backward_gains.shape or forward_gains.ndim < 1:
        raise ShapeMismatch(
            f"the gains of L layers are [..., L] twice, not {list(forward_gains.shape)} and "
            f"{list(backward_gains.shape)}"
        )
    depth = forward_gains.shape[-1]
    if depth == 0:
        raise EmptyData("a network has at least one layer")
    for gains in (forward_gains, backward_gains):
        if not bool((gains >= 0).all()):
            raise InvalidInput(
                f"a gain is a number >= 0: {first_entry(gains, 'the value', ~(gains >= 0))}"
            )
    like = torch.zeros_like(forward_gains[..., 0])
    forward = [forward_gains[..., 0] * input_moment + bias_variance + like]
    for layer in range(1, depth):
        moment = second_moment(activation, forward[-1])
        forward.append(forward_gains[..., layer] * moment + bias_variance)
    q = torch.stack(forward, -1)
    backward = [output_gradient + like]
    if depth > 1:
        slopes = squared_slope(activation, q[..., :-1])
        for layer in range(depth - 1, 0, -1):
            gain = backward_gains[..., layer] * slopes[..., layer - 1]
            backward.append(gain * backward[-1])
    return Signal(q, torch.stack(backward[::-1], -1))


def predict_signal_of(model: nn.Module, x: Tensor) -> Signal:
    r"""What the limit of infinite width says of a given network, from the norms of its weights.

    Any network that the rules of `torchtheory.nets.infinite_width` cover: dense, convolutional and
    residual ones, sums, concatenations, pooling, normalization. The variances of the weights are
    their mean squares, so the gains of a dense layer are $\frac1{m}\|W\|_F^2$ forward and
    $\frac1n\|W\|_F^2$ backward, and the bias variance is the mean of the squared biases. For a
    freshly drawn network this agrees with `measure_signal`; where the two part, the weights have
    structure. Gradients are found with the tangents of the limit, which are linear in what layers
    add to them: a layer adds $\varepsilon_\ell$ times the identity, and the derivative of the last
    tangent in $\varepsilon_\ell$ is the squared length of the gradient in its outputs.

    Args:
        model: at its initialization; it is read as it is (normalization in evaluation mode), and
            left alone.
        x: `[s, ...]`. Moments are those of each sample, then the mean over samples and places.

    Raises:
        UnsupportedModel: where no limit is known, with the operation and its place; where an image
            or a sequence has more than 2000 places, since covariances of all pairs are carried.

    Time and memory: of all pairs of samples of a block, and of all pairs of places.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    >>> _ = net.requires_grad_(False)
    >>> net[0].weight.copy_(torch.eye(2)), net[2].weight.copy_(2 * torch.eye(2))
    (...)
    >>> predict_signal_of(net, torch.ones(1, 2)).forward
    tensor([1., 2.])
    """
    as_batch(x)
    all_finite(x, "x")
    function = PureFunction(model).in_precision(torch.float64)
    inputs = x.detach().double()
    network = record(function, inputs[:4])
    if isinstance(network.output, Value) and network.output.dtype.is_complex:
        raise UnsupportedModel("limits are those of real outputs, and these are complex")
    refuse_shared_weights(network)
    places = largest_places(network)
    if places > LARGEST:
        raise UnsupportedModel(
            f"values of the network have up to {places} places, and covariances of all pairs of "
            f"places are carried for up to {LARGEST}"
        )
    found = _Layers(layers_of_weights(network))
    step = max(2, math.isqrt(_AT_ONCE) // places)
    for block in torch.split(inputs, step):
        found.carry(network, block)
    return found.signal(x)


class _Layers:
    """What is seen at every layer with a weight matrix while covariances are carried."""

    def __init__(self, names: dict[Value, str]) -> None:
        self.known = names
        self.rules = limit_rules(self._own)
        #: By layer: name, entries of an output, sums over samples of moments, of squared gradients
        #: and of correlations.
        self.names: list[str] = []
        self.entries: list[int] = []
        self.sums: Tensor = torch.zeros(0, 3, dtype=torch.float64)
        self.samples = self.pairs = 0

    def carry(self, network: Network, x: Tensor) -> None:
        """A block of samples: forward by the rules, and back by differentiating the tangent."""
        self.names, self.entries = [], []
        self.seen: list[tuple[Tensor, Tensor]] = []
        with torch.enable_grad():
            output = output_field(interpret(network, self.rules, [Raw(x)], len(x)))
            if not self.seen:
                raise UnsupportedModel(f"{network.title} has no layer with a weight matrix")
            length = torch.stack([n * variance(p.tangent).sum() for n, p in output.parts]).sum()
            _refuse_cut_off(length)
            gradients = torch.autograd.grad(
                length, [e for _, e in self.seen], materialize_grads=True
            )
        rows = [
            torch.stack([variance(k).mean() * len(x), g, _cosines(k)])
            for (k, _), g in zip(self.seen, gradients, strict=True)
        ]
        block = torch.stack(rows)
        self.sums = block if not self.samples else self.sums + block
        self.samples += len(x)
        self.pairs += len(x) * (len(x) - 1) // 2

    def _own(self, call: Call, seen: Tensor, made: Tensor) -> Tensor | float:
        """A number times the identity; normalizations are no layers of their own."""
        if call["weight"] is None or call["weight"].ndim < 2:
            return 0.0
        weight = next((v for v in call.operation.inputs if v in self.known), None)
        self.names.append(call.operation.layer if weight is None else self.known[weight])
        half = made.shape[: made.ndim // 2]
        self.entries.append(len(call["weight"]) * math.prod(half[1:]))
        share = made.new_zeros(()).requires_grad_()
        self.seen.append((made, share))
        return share * torch.eye(math.prod(half)).to(made).reshape(made.shape)

    def signal(self, x: Tensor) -> Signal:
        """Means of what was summed."""
        entries = torch.tensor(self.entries, dtype=torch.float64)
        forward, backward = self.sums[:, 0] / self.samples, self.sums[:, 1] / self.samples / entries
        correlation = self.sums[:, 2].to(x) / self.pairs if self.pairs else None
        return Signal(
            forward.to(x), backward.to(x), tuple(self.names), tuple(self.entries), correlation
        )


def _refuse_cut_off(outputs: Tensor) -> None:
    if not outputs.requires_grad:
        raise UnsupportedModel(
            "the model detaches its outputs (torch.no_grad or .detach() in forward), so nothing is "
            "sent back through it"
        )


def _cosines(k: Tensor) -> Tensor:
    """The sum over pairs of samples of the cosine between their outputs."""
    products = same_place(k)
    size = products.diagonal().clamp_min(0).sqrt()
    return correlation(products, size[:, None] * size).triu(1).sum()


def measure_signal(model: nn.Module, x: Tensor, *, generator: RandomSource = None) -> Signal:
    r"""Second moments of a network's pre-activations and of a gradient sent back through it.

    The gradient handed to the output is standard normal and scaled to second moment 1. Layers are
    those with a weight matrix or kernel, in the order of their use. The model is run once each way,
    in evaluation mode, and is left as it was.

    Args:
        model: any network.
        x: `[s, ...]`.
        generator: for the gradient at the output.

    >>> net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> signal = measure_signal(net, torch.ones(4, 8))
    >>> signal.names, signal.forward.shape, round(float(signal.backward[-1]), 6)
    (('0', '2'), torch.Size([2]), 1.0)
    """
    as_batch(x)
    function = PureFunction(model)
    network = network_of(function, x)
    layers = weighted_values(network)
    found: dict[Value, Tensor] = {}

    def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = called(op, args, kwargs)
        if op.outputs and op.outputs[0] in layers:
            found[op.outputs[0]] = made[0] if isinstance(made, tuple | list) else made
        return made

    with torch.enable_grad():
        # every layer's output follows its weights, and so has a gradient
        free = as_leaves({k: network.tensors[v] for k, v in network.parameters.items()})
        given = {network.parameters[k]: p for k, p in free.items()}
        outputs = run(function, network, x, step, given)
        if not outputs.is_floating_point():
            kind = str(outputs.dtype).removeprefix("torch.")
            raise UnsupportedModel(f"gradients are those of real outputs, and these are {kind}")
        if not found:
            raise UnsupportedModel(f"{type(model).__name__} has no layer with a weight matrix")
        _refuse_cut_off(outputs)
        generator = as_generator(generator)
        start = torch.randn(
            outputs.shape, generator=generator, dtype=outputs.dtype, device=generator.device
        ).to(outputs.device)
        start = start / start.square().mean().sqrt()
        places = list(found.values())
        gradients = torch.autograd.grad(outputs, places, start, materialize_grads=True)
    values = [z.detach() for z in found.values()]
    forward = torch.stack([z.square().mean() for z in values])
    backward = torch.stack([g.square().mean() for g in gradients])
    if not bool(torch.isfinite(forward).all() & torch.isfinite(backward).all()):
        raise NonFinite("the activations or their gradients overflow on the way through the model")
    pairs = len(x) * (len(x) - 1) // 2
    rows = [z.flatten(1) for z in values]
    correlations = torch.stack([_cosines(z @ z.mT) for z in rows]) / pairs if pairs else None
    return Signal(
        forward, backward, tuple(layers[v] for v in found),
        tuple(z[0].numel() for z in values), correlations,
    )  # fmt: skip
