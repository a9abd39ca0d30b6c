r"""The same function with sharper parameters: Dinh's re-parametrization of a ReLU network.

For consecutive layers $\ell$ and $\ell+1$ with only positively homogeneous functions
between them,

$$
(W_\ell, b_\ell, W_{\ell+1}) \mapsto (a W_\ell, a\,b_\ell, W_{\ell+1}/a), \qquad a>0,
$$

leaves the network's function alone, and with it risk and generalization gap. The Hessian of any
loss becomes $S^{-1}\nabla^2L\,S^{-1}$ with $S=a$ on layer $\ell$ and
$S=1/a$ on $W_{\ell+1}$: its block for $W_{\ell+1}$ is multiplied by $a^2$
and that for layer $\ell$ by $a^{-2}$. So flatness in the parameters cannot be needed
for generalization. Source: Mathematical Aspects of Deep Learning, section 2.2, after Dinh et al.
(2017).

Scaling the units of a dense layer one by one is
`rescale_units`; here one factor serves a whole layer, and layers
may be convolutions.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import module_with_values, positive_number
from torchtheory.core.errors import InvalidInput, UnknownName, UnsupportedModel
from torchtheory.core.estimate import Estimate
from torchtheory.core.random import RandomSource
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.trace import trace
from torchtheory.models.model import Parameters, flatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.activations.properties import inspect_activation
from torchtheory.nets.symmetries import with_parameters
from torchtheory.optimization.curvature.operators import hessian_operator
from torchtheory.tracing.chain import Rearrangement, as_chain, has_own_forward

_AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_HOMOGENEOUS = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Flatten, nn.Unflatten,
    Rearrangement, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
)  # fmt: skip
_ACTIVATIONS = (nn.ReLU, nn.LeakyReLU)


@dataclass(frozen=True, slots=True)
class LayerPair:
    """Two affine layers with only positively homogeneous functions between them.

    Attributes:
        incoming, outgoing: their names in the model.
    """

    incoming: str
    outgoing: str


def rescalable_pairs(model: nn.Module) -> list[LayerPair]:
    """The consecutive layers that can be scaled against each other.

    Dense and convolutional layers of a chain, between which stand ReLU, leaky ReLU, pooling,
    dropout and rearrangements. Layers used twice or sharing their weights are left out.

    >>> net = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3), nn.Tanh(),
    ...                     nn.Linear(3, 1))
    >>> rescalable_pairs(net)
    [LayerPair(incoming='0', outgoing='3')]
    """
    module_with_values(model)
    chain = as_chain(model)
    uses = Counter(id(link.module) for link in chain)
    owners = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))

    def own_weights(layer: nn.Module) -> bool:
        held = [p for p in layer._parameters.values() if p is not None]
        unshared = uses[id(layer)] == 1 and all(owners[id(p)] == 1 for p in held)
        return unshared and "weight" in layer._parameters and has_own_forward(layer)

    found: list[LayerPair] = []
    last: str | None = None
    for link in chain:
        layer = link.module
        if isinstance(layer, _AFFINE) and own_weights(layer):
            if last is not None:
                found.append(LayerPair(last, link.name))
            last = link.name
        elif not _homogeneous(layer):
            last = None
    return found


def rescale_pair(parameters: Parameters, pair: LayerPair, factor: float) -> Parameters:
    r"""Parameters with $(aW_\ell,ab_\ell,W_{\ell+1}/a)$ for one pair of layers.

    Nothing is written to: changed entries are new tensors, the others are shared.

    Args:
        parameters: by name, as `model.named_parameters()` gives them.
        pair: one of `rescalable_pairs`; for any other the function changes.
        factor: $a>0$.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    >>> theta = rescale_pair(dict(net.named_parameters()), rescalable_pairs(net)[0], 100.0)
    >>> x = torch.ones(1, 2, dtype=torch.float64)
    >>> torch.allclose(torch.func.functional_call(net, theta, (x,)), net(x))
    True
    """
    positive_number(factor, "the factor")
    changed = dict(parameters)
    scales = {
        f"{pair.incoming}.weight": factor,
        f"{pair.incoming}.bias": factor,
        f"{pair.outgoing}.weight": 1 / factor,
    }
    for name, scale in scales.items():
        if name in parameters:
            changed[name] = parameters[name] * scale
        elif not name.endswith("bias"):
            raise UnknownName("parameter", name, parameters)
    return changed


def rescaled(model: nn.Module, factor: float, pair: LayerPair | None = None) -> nn.Module:
    """A copy of the network that computes the same function with rescaled layers.

    Args:
        model: left as it is.
        factor: what the first layer of the pair is multiplied by.
        pair: which layers; the first of `rescalable_pairs` unless given.

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> other = rescaled(net, 2.0)
    >>> bool(other[0].weight == 2 * net[0].weight), bool(other[2].weight == net[2].weight / 2)
    (True, True)
    """
    chosen = _checked(model, pair)
    theta = {name: p.detach() for name, p in model.named_parameters()}
    return with_parameters(model, rescale_pair(theta, chosen, factor))


def balanced(model: nn.Module) -> nn.Module:
    r"""The same function at the smallest $\|\theta\|^2$ that rescaling layers can reach.

    One representative of all rescalings: in the logarithms of the factors the squared norm is
    strictly convex as long as no layer is zero, so there is one minimum, and
    $\|(W_\ell,b_\ell)\|=\|W_{\ell+1}\|$ there for every pair. The pairs are scaled in turn by
    $a=\sqrt{\|W_{\ell+1}\|/\|(W_\ell,b_\ell)\|}$ until nothing moves. Flatness measured at
    it does not depend on which of the rescaled networks was given.

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> _ = nn.init.constant_(net[0].weight, 8.0), nn.init.constant_(net[2].weight, 0.5)
    >>> [round(p.item(), 6) for p in balanced(net).parameters()]
    [2.0, 2.0]
    """
    pairs = rescalable_pairs(model)
    if not pairs:
        raise UnsupportedModel(_NO_PAIR)
    theta = {name: p.detach() for name, p in model.named_parameters()}
    for _ in range(1000):
        moved = 0.0
        for pair in pairs:
            first, second = _size(theta, pair.incoming, True), _size(theta, pair.outgoing, False)
            if first > 0 and second > 0:
                factor = math.sqrt(second / first)
                theta = rescale_pair(theta, pair, factor)
                moved = max(moved, abs(math.log(factor)))
        if moved < 1e-12:
            break
    return with_parameters(model, theta)


def block_hessian(
    problem: Problem,
    name: str,
    samples: Samples | None = None,
    *,
    parameters: Parameters | None = None,
) -> LinearOperator:
    r"""The diagonal block of $\nabla^2L(\theta)$ that belongs to one parameter.

    Args:
        problem: model, loss and data.
        name: of the parameter, such as `"2.weight"`.
        samples: the data of the loss; the training data unless given.
        parameters: the point $\theta$; the model's own unless given.

    >>> x = torch.tensor([[1.0], [2.0]])
    >>> p = Problem(nn.Linear(1, 1), (x, 3 * x), task="regression")
    >>> block_hessian(p, "bias").to_dense()
    tensor([[2.]])
    """
    point = problem.parameters if parameters is None else parameters
    if name not in point:
        raise UnknownName("parameter", name, point)
    whole = hessian_operator(problem, samples, parameters=point)
    start = 0
    for known, tensor in point.items():
        if known == name:
            break
        start += tensor.numel()
    size = point[name].numel()
    like = flatten(point)

    def product(v: Tensor) -> Tensor:
        padded = torch.zeros_like(like)
        padded[start : start + size] = v
        return (whole @ padded)[start : start + size]

    return LinearOperator(
        (size, size), product, symmetric=True, dtype=whole.dtype, device=whole.device
    )


def sharpening_factor(
    problem: Problem,
    largest: float,
    pair: LayerPair | None = None,
    *,
    samples: Samples | None = None,
    generator: RandomSource = None,
) -> float:
    r"""A factor $a$ after which $\lambda_{\max}(\nabla^2L)$ is at least `largest`.

    With $B$ the block of $W_{\ell+1}$, of $n$ weights,
    $\lambda_{\max}\ge a^2\operatorname{tr}B/n$, so $a=\sqrt{n\,\text{largest}/ \operatorname{tr}B}$
    will do, at any parameters with $\operatorname{tr}B>0$. The trace is
    exact up to 99 weights; beyond it is estimated, and three standard errors are taken off.

    Raises:
        InvalidInput: if the block has no positive trace.

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> _ = [nn.init.ones_(p) for p in net.parameters()]
    >>> p = Problem(net, (torch.ones(1, 1), torch.full((1, 1), 1.5)), task="regression")
    >>> round(sharpening_factor(p, 800.0), 4)               # the block is 2
    20.0
    """
    positive_number(largest, "the curvature wanted")
    chosen = _checked(problem.model, pair)
    block = block_hessian(problem, f"{chosen.outgoing}.weight", samples)
    found: Estimate = trace(block, generator=generator)
    least = found.value - 3 * found.standard_error
    if not least > 0:
        raise InvalidInput(
            f"the Hessian's block of {chosen.outgoing}.weight has the trace {found.value:.3g}: "
            "rescaling makes a positive curvature grow, and there is none to start from"
        )
    return math.sqrt(largest * block.shape[0] / least)


_NO_PAIR = (
    "the network has no two consecutive dense or convolutional layers with only positively "
    "homogeneous functions (ReLU, leaky ReLU, pooling) between them"
)


def _checked(model: nn.Module, pair: LayerPair | None) -> LayerPair:
    pairs = rescalable_pairs(model)
    if not pairs:
        raise UnsupportedModel(_NO_PAIR)
    if pair is None:
        return pairs[0]
    if pair not in pairs:
        names = ", ".join(f"{p.incoming} and {p.outgoing}" for p in pairs)
        raise InvalidInput(
            f"layers {pair.incoming!r} and {pair.outgoing!r} cannot be scaled against each other; "
            f"these can: {names}"
        )
    return pair


def _homogeneous(layer: nn.Module) -> bool:
    if not has_own_forward(layer):
        return False
    if isinstance(layer, _HOMOGENEOUS):
        return True
    return isinstance(layer, _ACTIVATIONS) and inspect_activation(layer).positively_homogeneous


def _size(theta: Parameters, layer: str, bias: bool) -> float:
    square = float(theta[f"{layer}.weight"].double().square().sum())
    if bias and f"{layer}.bias" in theta:
        square += float(theta[f"{layer}.bias"].double().square().sum())
    return math.sqrt(square)
