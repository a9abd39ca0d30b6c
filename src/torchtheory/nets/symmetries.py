r"""Symmetries: different parameters, the same function.

Permuting the units of a hidden layer,
$(W_\ell, b_\ell, W_{\ell+1}) \mapsto (P W_\ell, P b_\ell, W_{\ell+1} P^\top)$, leaves the network's
function unchanged for any activation that acts on each unit alone (Deep Learning notes, section
2.2). For a positively homogeneous activation so does scaling the units,
$(\Lambda W_\ell, \Lambda b_\ell, W_{\ell+1} \Lambda^{-1})$ with a positive diagonal $\Lambda$
(Mathematical Aspects of Deep Learning, Remark 1.5 and section 1.2.2).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.models.model import Parameters
from torchtheory.models.untouched import copied
from torchtheory.nets.activation_properties import inspect_activation
from torchtheory.nets.activations import Pointwise
from torchtheory.nets.chain import as_chain, has_own_forward
from torchtheory.primer.norms import pairwise_distances

_POINTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Softplus,
    nn.Softsign, nn.Tanhshrink, nn.Hardshrink, nn.Softshrink, nn.Threshold,
    nn.Identity, nn.Dropout, nn.AlphaDropout, Pointwise,
)  # fmt: skip

#: Members of an orbit that are still listed.
_LARGEST_ORBIT = 100_000


@dataclass(frozen=True, slots=True)
class HiddenLayer:
    """Two dense layers with only unit-wise functions between them.

    Attributes:
        incoming, outgoing: names of the two `nn.Linear` in the model.
        units: how many units lie between them.
    """

    incoming: str
    outgoing: str
    units: int


def hidden_layers(model: nn.Module) -> list[HiddenLayer]:
    """The hidden layers of a chain whose units may be permuted.

    Layers that share weights, are used twice or compute their weights from others are left out.

    >>> net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))
    >>> hidden_layers(net)
    [HiddenLayer(incoming='0', outgoing='2', units=5)]
    """
    return [layer for layer, _ in _with_activations(model)]


def rescalable_layers(model: nn.Module) -> list[HiddenLayer]:
    r"""The hidden layers whose units may be rescaled.

    Those between which only positively homogeneous functions stand,
    $\varrho(\lambda z)=\lambda\varrho(z)$ for $\lambda>0$; measured, not looked up.

    >>> net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> [layer.incoming for layer in rescalable_layers(net)]
    ['0']
    """
    return [
        layer
        for layer, between in _with_activations(model)
        if all(inspect_activation(m).positively_homogeneous for m in between)
    ]


def _with_activations(model: nn.Module) -> list[tuple[HiddenLayer, list[nn.Module]]]:
    chain = as_chain(model)
    uses = Counter(id(link.module) for link in chain)
    owners = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))

    def usual(layer: nn.Linear) -> bool:
        """Whether its weights stand under their own names and are nobody else's."""
        weights = [p for p in layer._parameters.values() if p is not None]
        unshared = uses[id(layer)] == 1 and all(owners[id(p)] == 1 for p in weights)
        return unshared and "weight" in layer._parameters and has_own_forward(layer)

    found = []
    last: tuple[str, nn.Linear] | None = None
    between: list[nn.Module] = []
    for link in chain:
        if isinstance(link.module, nn.Linear) and usual(link.module):
            if last is not None:
                layer = HiddenLayer(last[0], link.name, last[1].out_features)
                found.append((layer, between))
            last, between = (link.name, link.module), []
        elif isinstance(link.module, _POINTWISE) and has_own_forward(link.module):
            between.append(link.module)
        else:
            last = None
    return found


def permute_units(parameters: Parameters, layer: HiddenLayer, permutation: Tensor) -> Parameters:
    r"""Parameters with the units of one hidden layer reordered.

    Unit `permutation[i]` becomes unit `i`. Nothing is written to: changed entries are new
    tensors, the others are shared.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> theta = permute_units(dict(net.named_parameters()), hidden_layers(net)[0],
    ...                       torch.tensor([2, 0, 1]))
    >>> x = torch.randn(4, 2)
    >>> torch.allclose(torch.func.functional_call(net, theta, (x,)), net(x))
    True
    """
    if not torch.equal(permutation.sort().values, torch.arange(layer.units)):
        raise InvalidInput(f"a permutation of {layer.units} units lists 0..{layer.units - 1} once")
    weight = parameters[f"{layer.outgoing}.weight"]
    changed = dict(parameters)
    changed[f"{layer.outgoing}.weight"] = weight[:, permutation]
    for part in ("weight", "bias"):
        if f"{layer.incoming}.{part}" in parameters:
            changed[f"{layer.incoming}.{part}"] = parameters[f"{layer.incoming}.{part}"][
                permutation
            ]
    return changed


def log10_equivalent_parameters(layers: list[HiddenLayer]) -> float:
    r"""Decimal logarithm of $\prod_\ell m_\ell!$, the parameter vectors permutation gives.

    >>> round(10 ** log10_equivalent_parameters([HiddenLayer("0", "2", 5)]))
    120
    """
    if not layers:
        raise UnsupportedModel("the network has no hidden layer between two dense layers")
    return sum(math.lgamma(layer.units + 1) for layer in layers) / math.log(10)


def is_permutation_matrix(matrix: Tensor) -> bool:
    """Whether entries are 0 or 1 and every row and column sums to 1.

    The sums alone do not suffice: the matrix with all entries 1/2 has them too.

    >>> is_permutation_matrix(torch.eye(3)[[2, 0, 1]])
    True
    >>> is_permutation_matrix(torch.full((2, 2), 0.5))
    False
    """
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    return square and bool(
        torch.isin(matrix, torch.tensor([0, 1], dtype=matrix.dtype, device=matrix.device)).all()
        and (matrix.sum(0) == 1).all()
        and (matrix.sum(1) == 1).all()
    )


def with_parameters(model: nn.Module, parameters: Parameters) -> nn.Module:
    """A copy of the model with other parameters; the model itself is left alone.

    >>> net = nn.Linear(1, 1)
    >>> with_parameters(net, {"weight": torch.ones(1, 1), "bias": torch.zeros(1)}).weight.item()
    1.0
    """
    made = copied(model)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in parameters:
                parameter.copy_(parameters[name])
    return made


def rescale_units(parameters: Parameters, layer: HiddenLayer, factors: Tensor) -> Parameters:
    r"""Parameters with the units of one hidden layer multiplied by positive factors.

    Unit $i$ gets $\lambda_i(w_i,b_i)$ on its way in and $1/\lambda_i$ on its
    way out. For a positively homogeneous activation (`rescalable_layers`) the function
    stays the same. Nothing is written to.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    >>> theta = rescale_units(dict(net.named_parameters()), hidden_layers(net)[0],
    ...                       torch.tensor([1e-3, 1.0, 50.0]))
    >>> x = torch.ones(1, 2, dtype=torch.float64)
    >>> torch.allclose(torch.func.functional_call(net, theta, (x,)), net(x))
    True
    """
    weight = parameters[f"{layer.outgoing}.weight"]
    if factors.shape != (layer.units,):
        raise ShapeMismatch(f"{layer.units} units need as many factors, not {list(factors.shape)}")
    factors = factors.to(weight)
    if not bool((factors > 0).all() and torch.isfinite(factors).all()):
        found = first_entry(factors, "factors", ~((factors > 0) & torch.isfinite(factors)))
        raise InvalidInput(f"the factors must be positive and finite: {found}")
    changed = dict(parameters)
    changed[f"{layer.outgoing}.weight"] = weight / factors
    changed[f"{layer.incoming}.weight"] = parameters[f"{layer.incoming}.weight"] * factors[:, None]
    if f"{layer.incoming}.bias" in parameters:
        changed[f"{layer.incoming}.bias"] = parameters[f"{layer.incoming}.bias"] * factors
    return changed


def canonical_form(model: nn.Module, *, rescaling: bool = False) -> Parameters:
    r"""One representative of all parameters that permutations of hidden units make equivalent.

    From the first hidden layer to the last, the units are sorted by their incoming weights and
    bias, first entry first. Two networks that differ by permutations have the same canonical
    form unless two units of a layer have exactly the same incoming weights. With `rescaling`
    the units of every rescalable layer first get incoming weights and bias of length 1, which
    removes that symmetry too (units with length 0 are left).

    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> theta = {"0.weight": torch.tensor([[3.0], [-1.0]]), "2.weight": torch.tensor([[5.0, 7.0]])}
    >>> canonical_form(with_parameters(net, theta))
    {'0.weight': tensor([[-1.],
            [ 3.]]), '2.weight': tensor([[7., 5.]])}
    """
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    scaled = set(rescalable_layers(model)) if rescaling else set()
    for layer in hidden_layers(model):
        if layer in scaled:
            lengths = _incoming(parameters, layer).norm(dim=1)
            factors = torch.where(lengths > 0, 1 / lengths.clamp(min=1e-300), 1.0)
            parameters = rescale_units(parameters, layer, factors)
        rows = _incoming(parameters, layer).tolist()
        order = sorted(range(layer.units), key=rows.__getitem__)
        parameters = permute_units(parameters, layer, torch.tensor(order))
    return parameters


def permutation_distance(model: nn.Module, other: nn.Module) -> float:
    r"""Largest difference of parameters once the units of `other` are matched to the model's.

    Layer by layer from the input, the units are paired so that the squared distance of their
    incoming weights is least (an assignment problem, $O(m^3)$ a layer). It is 0 for
    permuted networks, and small for permuted networks with some noise; as the pairing looks at
    one layer at a time it is an upper bound on the distance to the orbit, not the distance.

    >>> net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))
    >>> theta = permute_units(dict(net.named_parameters()), hidden_layers(net)[0],
    ...                       torch.tensor([4, 0, 3, 1, 2]))
    >>> permutation_distance(net, with_parameters(net, theta))
    0.0
    """
    mine = {name: p.detach() for name, p in model.named_parameters()}
    theirs = {name: p.detach() for name, p in other.named_parameters()}
    if {k: v.shape for k, v in mine.items()} != {k: v.shape for k, v in theirs.items()}:
        raise ShapeMismatch("the two networks do not have the same parameters")
    for layer in hidden_layers(model):
        cost = pairwise_distances(_incoming(mine, layer), _incoming(theirs, layer)).square()
        _, columns = linear_sum_assignment(cost.cpu().numpy())
        theirs = permute_units(theirs, layer, torch.from_numpy(columns))
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


def permutation_orbit(model: nn.Module) -> Iterator[Parameters]:
    r"""All $\prod_\ell m_\ell!$ parameter vectors that permuting hidden units gives.

    Raises:
        InvalidInput: if there are more than 100 000.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    >>> sum(1 for _ in permutation_orbit(net))
    12
    """
    layers = hidden_layers(model)
    size = math.prod(math.factorial(layer.units) for layer in layers)
    if size > _LARGEST_ORBIT:
        raise InvalidInput(f"the orbit has {size} members, more than the limit of {_LARGEST_ORBIT}")
    own = {name: p.detach() for name, p in model.named_parameters()}
    return _orbit(own, layers)


def _orbit(parameters: Parameters, layers: list[HiddenLayer]) -> Iterator[Parameters]:
    for orders in itertools.product(*(itertools.permutations(range(m.units)) for m in layers)):
        member = parameters
        for layer, order in zip(layers, orders, strict=True):
            member = permute_units(member, layer, torch.tensor(order))
        yield member


def _incoming(parameters: Parameters, layer: HiddenLayer) -> Tensor:
    """Incoming weights and bias of every unit, one row a unit."""
    weight = parameters[f"{layer.incoming}.weight"]
    bias = parameters.get(f"{layer.incoming}.bias")
    return weight if bias is None else torch.cat([weight, bias.unsqueeze(1)], dim=1)
