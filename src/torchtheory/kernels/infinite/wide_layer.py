r"""A layer with as many units as there are samples fits any labels.

Such a layer generically maps the $m$ samples to linearly independent vectors; a linear map
of independent vectors can take any values, and the straight line to it in the last layer lowers the
risk all the way. Source: The Modern Mathematics of Deep Learning, section 1.5.1 (Nguyen and Hein).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_targets, module_with_values
from torchtheory.core.errors import InvalidInput
from torchtheory.models.untouched import copied
from torchtheory.nets.biases import homogeneous
from torchtheory.tracing.chain import as_chain
from torchtheory.tracing.layer_features import last_hidden_features, last_layer, layer_values


@dataclass(frozen=True, slots=True)
class LayerRank:
    """The features of the samples after one layer of a chain.

    Attributes:
        name: of the layer in the model.
        layer: its class.
        width: numbers a sample has there.
        rank: of the matrix `[samples, width]`, up to rounding.
        samples: how many samples there are; with that rank they are independent.
        smallest: the smallest singular value that counts (0 where samples are more than
            `width`): how well independent they are.
    """

    name: str
    layer: str
    width: int
    rank: int
    samples: int
    smallest: float

    @property
    def independent(self) -> bool:
        """Whether a linear map after this layer can give the samples any outputs."""
        return self.rank == self.samples


def layer_ranks(model: nn.Module, x: Tensor) -> list[LayerRank]:
    """The rank of the samples' features after every layer of a chain, in order.

    Costs one forward pass and a singular value decomposition a layer.

    >>> net = nn.Sequential(nn.Linear(1, 4, dtype=torch.float64), nn.Tanh())
    >>> [(r.layer, r.width, r.rank) for r in layer_ranks(net, torch.rand(3, 1).double())]
    [('Linear', 4, 2), ('Tanh', 4, 3)]
    """
    module_with_values(model)
    found = []
    for link, value in zip(as_chain(model, x), layer_values(model, x), strict=True):
        features = all_finite(value.flatten(1), f"the output of {type(link.module).__name__}")
        singular = torch.linalg.svdvals(features)
        rounding = max(features.shape) * torch.finfo(features.dtype).eps * float(singular[0])
        samples, width = features.shape
        found.append(
            LayerRank(
                name=link.name,
                layer=type(link.module).__name__,
                width=width,
                rank=int((singular > rounding).sum()),
                samples=samples,
                smallest=float(singular[-1]) if width >= samples else 0.0,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class ZeroRiskFit:
    r"""A network whose last layer has been solved for.

    Attributes:
        model: a copy of the given one with another last layer.
        residual: the largest $|\Phi(x^{(i)})-y^{(i)}|$ that is left.
        rank: of the features the last layer is given (with a constant one, if it has a bias).
        samples: how many samples there are; with that rank the residual is rounding.
    """

    model: nn.Module
    residual: float
    rank: int
    samples: int


def fit_last_layer(model: nn.Module, x: Tensor, y: Tensor) -> ZeroRiskFit:
    r"""The last layer nearest to the present one that fits the labels best, all others kept.

    With features $F$ (a column of ones added where there is a bias) and residuals
    $E$, the change is $F^+E$: of all least-squares solutions the one that moves the
    layer least. Where $F$ has rank $m$ the risk is 0, whatever the labels. The given
    model is not changed. Costs $O(m^2n)$.

    Args:
        model: a chain of layers that ends in an `nn.Linear`.
        x: `[m, ...]`.
        y: `[m]` or `[m, outputs]`.

    >>> net = nn.Sequential(nn.Linear(1, 16, dtype=torch.float64), nn.Tanh(),
    ...                     nn.Linear(16, 1, dtype=torch.float64))
    >>> fit = fit_last_layer(net, torch.linspace(-2, 2, 5).double()[:, None], torch.randn(5))
    >>> fit.rank, fit.residual < 1e-8
    (5, True)
    """
    features = last_hidden_features(model, x)
    solved = copied(model)
    head = last_layer(solved)
    y = as_targets(y, features)
    if y.ndim == 1:
        y = y[:, None]
    if y.shape != (len(x), head.out_features):
        raise InvalidInput(
            f"the model has {head.out_features} outputs; the targets {list(y.shape)} do not fit"
        )
    design = features if head.bias is None else homogeneous(features)
    with torch.no_grad():
        change = torch.linalg.lstsq(design, y - head(features), driver="gelsd").solution.T
        head.weight.add_(change[:, : head.in_features])
        if head.bias is not None:
            head.bias.add_(change[:, -1])
        residual = float((head(features) - y).abs().max())
    rank = int(torch.linalg.matrix_rank(design))
    return ZeroRiskFit(solved, residual, rank, len(x))


def last_layer_path(model: nn.Module, x: Tensor, y: Tensor, positions: Tensor) -> Tensor:
    r"""The mean squared error on the straight line from the model to its `fit_last_layer`.

    At position $t\in[0,1]$ the last layer is $(1-t)$ times the present and $t$
    times the solved one. The residuals are linear in the last layer, so where the end has risk 0
    the risk is $(1-t)^2$ times that of the start: it falls all the way.

    Returns:
        `[positions]`.

    >>> net = nn.Sequential(nn.Linear(1, 3, dtype=torch.float64), nn.Tanh(),
    ...                     nn.Linear(3, 1, dtype=torch.float64))
    >>> x = torch.tensor([[0.0], [1.0]]).double()
    >>> risks = last_layer_path(net, x, x[:, 0] ** 2, torch.tensor([0.0, 0.5, 1.0]))
    >>> round(float(risks[1] / risks[0]), 9)
    0.25
    """
    features = last_hidden_features(model, x)
    here, there = last_layer(model), last_layer(fit_last_layer(model, x, y).model)
    y = as_targets(y, features).reshape(len(x), -1)
    with torch.no_grad():
        start, end = here(features) - y, there(features) - y
        t = positions.to(features)[:, None, None]
        residuals: Tensor = (1 - t) * start + t * end
        return residuals.square().mean(dim=(1, 2))
