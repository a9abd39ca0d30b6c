r"""Symmetries: different parameters, the same function.

Permuting the units of a hidden layer,
$(W_\ell, b_\ell, W_{\ell+1}) \mapsto (P W_\ell, P b_\ell, W_{\ell+1} P^\top)$, leaves the network's
function unchanged for any activation that acts on each unit alone (Deep Learning notes, section
2.2). For a positively homogeneous activation so does scaling the units,
$(\Lambda W_\ell, \Lambda b_\ell, W_{\ell+1} \Lambda^{-1})$ with a positive diagonal $\Lambda$
(Mathematical Aspects of Deep Learning, Remark 1.5 and section 1.2.2).

Channels of a convolution are units in this sense: what stands between two convolutions acts on
each of them alone, also a batch normalization in evaluation mode, pooling, and flattening, behind
which a channel is a block of columns of the next dense layer. Scales are those of the last affine
map before the activation, so of the batch normalization where there is one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from torchtheory.core.checks import first_entry, module_with_values
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.models.model import Parameters, PureFunction
from torchtheory.models.untouched import copied
from torchtheory.nets.activations.properties import inspect_activation
from torchtheory.nets.activations.table import POINTWISE_LAYERS, Pointwise
from torchtheory.primer.norms import pairwise_distances
from torchtheory.tracing.chain import (
    Average,
    Link,
    Rearrangement,
    has_own_forward,
    parameters_read,
    straight_paths,
)

#: Functions of each unit alone.
POINTWISE = (*POINTWISE_LAYERS, nn.Identity, nn.Dropout, nn.AlphaDropout, Pointwise)

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
#: Positively homogeneous functions of each channel alone.
CHANNELWISE = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
)  # fmt: skip

Affine = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d

#: Members of an orbit that are still listed.
_LARGEST_ORBIT = 100_000


@dataclass(frozen=True, slots=True)
class HiddenLayer:
    """Two affine layers with only functions of each unit between them.

    Attributes:
        incoming, outgoing: names of the two in the model, dense layers or convolutions; the
            incoming one may be a batch normalization, where units are rescaled.
        units: how many units, or channels, lie between them.
        normalizations: names of batch normalizations between them, which have numbers of their own
            for each unit.
    """

    incoming: str
    outgoing: str
    units: int
    normalizations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Between:
    """A hidden layer with what stands between its two affine ones."""

    layer: HiddenLayer
    activations: list[nn.Module]
    scaled: str | None


def hidden_layers(model: nn.Module | PureFunction, x: Tensor | None = None) -> list[HiddenLayer]:
    """The hidden layers whose units, or channels, may be permuted.

    In chains, and in the straight parts of other networks, such as the inside of a residual block.
    Layers that share weights, are used twice or compute their weights from others are left out, and
    so are convolutions in groups. Units that branches add up are permuted together by
    `torchtheory.nets.unit_groups`.

    Args:
        model: the network.
        x: a few inputs, `[n, ...]`; without them some are made up, where it can be seen what the
            network takes.

    Raises:
        UnsupportedModel: if the model cannot be traced.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
    ...                     nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 1))
    >>> hidden_layers(net)
    [HiddenLayer(incoming='0', outgoing='5', units=4, normalizations=('1',)),
     HiddenLayer(incoming='5', outgoing='7', units=5, normalizations=())]
    """
    return [between.layer for between in _all_between(model, x)]


def rescalable_layers(
    model: nn.Module | PureFunction, x: Tensor | None = None
) -> list[HiddenLayer]:
    r"""The hidden layers whose units may be rescaled.

    Those between which only positively homogeneous functions stand,
    $\varrho(\lambda z)=\lambda\varrho(z)$ for $\lambda>0$; measured, not looked up. Behind a batch
    normalization it is its weight and bias that scale, and it is the incoming layer.

    >>> net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> [layer.incoming for layer in rescalable_layers(net)]
    ['0']
    """
    return [
        HiddenLayer(between.scaled, between.layer.outgoing, between.layer.units)
        for between in _all_between(model, x)
        if between.scaled is not None
        and all(inspect_activation(m).positively_homogeneous for m in between.activations)
    ]


def _all_between(model: nn.Module | PureFunction, x: Tensor | None) -> list[_Between]:
    paths = straight_paths(model, x)
    apart = parameters_read(model, x)
    model = model.model if isinstance(model, PureFunction) else model
    uses = Counter(id(link.module) for path in paths for link in path)
    named = list(model.named_parameters(remove_duplicate=False))
    owners = Counter(id(p) for _, p in named)
    owners.update(id(p) for name, p in named if name in apart)

    def usual(layer: nn.Module) -> bool:
        """Whether its weights stand under their own names and are nobody else's."""
        weights = [p for p in layer._parameters.values() if p is not None]
        unshared = uses[id(layer)] == 1 and all(owners[id(p)] == 1 for p in weights)
        return unshared and "weight" in layer._parameters and has_own_forward(layer)

    return [found for path in paths for found in _along(path, usual)]


def _along(path: list[Link], usual: Callable[[nn.Module], bool]) -> Iterator[_Between]:
    """The hidden layers of one run of layers."""
    last: tuple[str, Affine] | None = None
    flat = False  # whether a channel is a block of neighboring entries of a vector
    norms: tuple[str, ...] = ()
    activations: list[nn.Module] = []
    scaled: str | None = None
    for link in path:
        module = link.module
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            ours = usual(module)
            if last is not None and ours and _continues(last[1], module, flat):
                layer = HiddenLayer(last[0], link.name, _width(last[1]), norms)
                yield _Between(layer, activations, scaled)
            grouped = not isinstance(module, nn.Linear) and module.groups != 1
            last = (link.name, module) if ours and not grouped else None
            flat, norms, activations, scaled = False, (), [], link.name
        elif last is None or not has_own_forward(module):
            last = None
        elif isinstance(module, _NORMALIZATIONS):
            known = module.running_mean is not None and module.num_features == _width(last[1])
            if flat or not known or not (usual(module) or not module.affine):
                last = None
            else:
                norms = (*norms, link.name)
                activations, scaled = [], link.name if module.affine else None
        elif isinstance(module, POINTWISE):
            activations = [*activations, module]
        elif isinstance(last[1], nn.Linear) or flat:
            last = None
        elif flattens(module, last[1].weight.ndim - 2):
            flat = True
        elif not isinstance(module, CHANNELWISE):
            last = None


def _continues(one: Affine, two: Affine, flat: bool) -> bool:
    """Whether the second layer takes the units of the first, each as a channel or a block."""
    units = _width(one)
    if isinstance(two, nn.Linear):
        if isinstance(one, nn.Linear):
            return two.in_features == units
        return flat and two.in_features % units == 0
    return isinstance(one, _CONVOLUTIONS) and not flat and two.groups == 1


def _width(layer: Affine) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def flattens(module: nn.Module, space: int) -> bool:
    """Whether channels become blocks of a vector, or are averaged to one entry each.

    Args:
        module: a layer.
        space: dimensions besides those of samples and channels.

    >>> flattens(nn.Flatten(), 2), flattens(nn.Flatten(2), 2)
    (True, False)
    """
    if isinstance(module, nn.Flatten):
        return module.start_dim == 1 and module.end_dim == -1
    if isinstance(module, Average):
        places = {d if d >= 0 else d + space + 2 for d in module.dims}
        return not module.keepdim and places == set(range(2, space + 2))
    if isinstance(module, Rearrangement):
        if module.method == "flatten":
            return (*module.arguments, *module.keywords.values()) in ((1,), (1, -1))
        return module.method in ("view", "reshape") and module.arguments == (None, -1)
    return False


def permute_units(parameters: Parameters, layer: HiddenLayer, permutation: Tensor) -> Parameters:
    r"""Parameters with the units of one hidden layer reordered.

    Unit `permutation[i]` becomes unit `i`. Nothing is written to: changed entries are new
    tensors, the others are shared.

    Args:
        parameters: by name; of a layer with a batch normalization the running statistics as well,
            as in `{**dict(net.named_parameters()), **dict(net.named_buffers())}`.
        layer: one of `hidden_layers`.
        permutation: of its units.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> theta = permute_units(dict(net.named_parameters()), hidden_layers(net)[0],
    ...                       torch.tensor([2, 0, 1]))
    >>> x = torch.randn(4, 2)
    >>> torch.allclose(torch.func.functional_call(net, theta, (x,)), net(x))
    True
    """
    if not torch.equal(permutation.sort().values, torch.arange(layer.units)):
        raise InvalidInput(f"a permutation of {layer.units} units lists 0..{layer.units - 1} once")
    name = f"{layer.outgoing}.weight"
    weight = parameters[name]
    changed = dict(parameters)
    changed[name] = _by_unit(weight, layer)[:, permutation].reshape(weight.shape)
    for owner in (layer.incoming, *layer.normalizations):
        for part in ("weight", "bias", "running_mean", "running_var"):
            key = f"{owner}.{part}"
            if key in parameters:
                changed[key] = parameters[key][permutation]
            elif part.startswith("running") and owner in layer.normalizations:
                raise InvalidInput(
                    f"the units of layer {owner} have running statistics: give {key} as well, "
                    "{**dict(net.named_parameters()), **dict(net.named_buffers())}"
                )
    return changed


def _by_unit(weight: Tensor, layer: HiddenLayer) -> Tensor:
    """The weight of an outgoing layer as `[outputs, units, weights of a unit]`."""
    return weight.reshape(len(weight), layer.units, -1)


def unit_products(
    parameters: Parameters, other: Parameters, layer: HiddenLayer
) -> tuple[Tensor, Tensor]:
    r"""Inner products of two sets of weights unit by unit, `[units]` each.

    Of what enters a unit, $\langle w_j,w_j'\rangle+b_jb_j'$, and of what leaves it,
    $\langle v_j,v_j'\rangle$. With a gradient as the second set they are the speeds at which the
    two sides grow under gradient flow, which are equal for `rescalable_layers`.

    >>> net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> theta = {k: torch.ones_like(p) for k, p in net.named_parameters()}
    >>> unit_products(theta, theta, hidden_layers(net)[0])
    (tensor([2., 2.]), tensor([1., 1.]))
    """
    entering = (_incoming(parameters, layer) * _incoming(other, layer)).sum(1)
    name = f"{layer.outgoing}.weight"
    leaving = _by_unit(parameters[name], layer) * _by_unit(other[name], layer)
    return entering, leaving.sum((0, 2))


def log10_equivalent_parameters(layers: list[HiddenLayer]) -> float:
    r"""Decimal logarithm of $\prod_\ell m_\ell!$, the parameter vectors permutation gives.

    >>> round(10 ** log10_equivalent_parameters([HiddenLayer("0", "2", 5)]))
    120
    """
    if not layers:
        raise UnsupportedModel(
            "the network has no hidden layer between two dense layers or convolutions"
        )
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
        for name, tensor in [*made.named_parameters(), *made.named_buffers()]:
            if name in parameters:
                tensor.copy_(parameters[name])
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
    leaving = _by_unit(weight, layer) / factors[:, None]
    changed[f"{layer.outgoing}.weight"] = leaving.reshape(weight.shape)
    entering = parameters[f"{layer.incoming}.weight"]
    wide = factors.reshape(-1, *[1] * (entering.ndim - 1))
    changed[f"{layer.incoming}.weight"] = entering * wide
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
    module_with_values(model)
    layers = hidden_layers(model)
    parameters = {name: p.clone() for name, p in _with_statistics(model, layers).items()}
    scaled = {found.outgoing: found for found in rescalable_layers(model)} if rescaling else {}
    for layer in layers:
        scales = scaled.get(layer.outgoing)
        if scales is not None:
            lengths = _incoming(parameters, scales).norm(dim=1)
            factors = torch.where(lengths > 0, 1 / lengths.clamp(min=1e-300), 1.0)
            parameters = rescale_units(parameters, scales, factors)
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
    module_with_values(model)
    layers = hidden_layers(model)
    mine, theirs = (_with_statistics(net, layers) for net in (model, other))
    if {k: v.shape for k, v in mine.items()} != {k: v.shape for k, v in theirs.items()}:
        odd = min(
            k
            for k in mine.keys() | theirs.keys()
            if k not in mine or k not in theirs or mine[k].shape != theirs[k].shape
        )
        sizes = [list(net[odd].shape) if odd in net else "missing" for net in (mine, theirs)]
        raise ShapeMismatch(
            f"the two networks do not have the same parameters: {odd} is {sizes[0]} in one and "
            f"{sizes[1]} in the other"
        )
    for layer in layers:
        rows = [_incoming(net, layer).double() for net in (mine, theirs)]
        cost = pairwise_distances(*rows).square()
        _, columns = linear_sum_assignment(cost.cpu().numpy())
        theirs = permute_units(theirs, layer, torch.from_numpy(columns))
    filled = [name for name, tensor in mine.items() if tensor.numel()]
    apart = [(mine[name].double() - theirs[name].double()).abs().max() for name in filled]
    return max(map(float, apart), default=0.0)


def permutation_orbit(model: nn.Module) -> Iterator[Parameters]:
    r"""All $\prod_\ell m_\ell!$ parameter vectors that permuting hidden units gives.

    Raises:
        InvalidInput: if there are more than 100 000.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    >>> sum(1 for _ in permutation_orbit(net))
    12
    """
    module_with_values(model)
    layers = hidden_layers(model)
    size = math.prod(math.factorial(layer.units) for layer in layers)
    if size > _LARGEST_ORBIT:
        raise InvalidInput(f"the orbit has {size} members, more than the limit of {_LARGEST_ORBIT}")
    return _orbit(_with_statistics(model, layers), layers)


def _orbit(parameters: Parameters, layers: list[HiddenLayer]) -> Iterator[Parameters]:
    for orders in itertools.product(*(itertools.permutations(range(m.units)) for m in layers)):
        member = parameters
        for layer, order in zip(layers, orders, strict=True):
            member = permute_units(member, layer, torch.tensor(order))
        yield member


def _with_statistics(model: nn.Module, layers: list[HiddenLayer]) -> Parameters:
    """The parameters, and the running statistics of the normalizations between layers."""
    owners = {name for layer in layers for name in layer.normalizations}
    kept: list[tuple[str, Tensor]] = [*model.named_parameters()]
    kept += [(n, b) for n, b in model.named_buffers() if n.rpartition(".")[0] in owners]
    return {n: t.detach() for n, t in kept if not n.endswith("num_batches_tracked")}


def _incoming(parameters: Parameters, layer: HiddenLayer) -> Tensor:
    """Incoming weights and bias of every unit, one row per unit."""
    weight = parameters[f"{layer.incoming}.weight"].reshape(layer.units, -1)
    bias = parameters.get(f"{layer.incoming}.bias")
    return weight if bias is None else torch.cat([weight, bias.unsqueeze(1)], dim=1)
