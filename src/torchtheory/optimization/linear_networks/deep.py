r"""Deep linear networks $x\mapsto W_L\cdots W_1x$: risk, gradients, optimum, critical points.

Layers are a list `[W_1, ..., W_L]`, the first one first, with
$W_\ell\in\mathbb R^{n_\ell\times n_{\ell-1}}$; `linear_layers` takes them out of an
`nn.Sequential`. The risk $R(W)=\mathbb E\|y-W_L\cdots W_1x\|^2$ is a function of the `Covariances`.

Sources: Mathematical Aspects of Deep Learning, section 4.3.2; Foundations of Deep Learning, section
6.1.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_matrix, whole_numbers
from torchtheory.core.errors import (
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.optimization.descent.iterates import Function
from torchtheory.optimization.linear_networks.deep_factorization import factor_gradients, product_of
from torchtheory.optimization.linear_networks.second_moments import (
    Covariances,
    ReducedRank,
    least_squares_map,
    reduced_rank_regression,
)
from torchtheory.optimization.linear_networks.two_layer import column_projector
from torchtheory.tracing.chain import as_chain


def linear_layers(model: nn.Module) -> list[Tensor]:
    """The weights of a chain of dense layers without biases, first layer first, detached.

    >>> [list(w.shape) for w in linear_layers(nn.Sequential(
    ...     nn.Linear(5, 2, bias=False), nn.Linear(2, 3, bias=False)))]
    [[2, 5], [3, 2]]
    """
    found = []
    for link in as_chain(model):
        if isinstance(link.module, nn.Linear):
            if "bias" in dict(link.module.named_parameters()):
                raise UnsupportedModel(
                    f"layer {link.name} has a bias, and the theory is about weights only: build it "
                    "with bias=False, and give the inputs a constant feature if one is needed"
                )
            found.append(link.module.weight.detach())
        elif not isinstance(link.module, nn.Identity):
            raise UnsupportedModel(f"{link.module} is not a dense layer: the network is not linear")
    if not found:
        raise UnsupportedModel("the network has no dense layer")
    return found


def check_layers(layers: Sequence[Tensor], covariances: Covariances) -> None:
    """Refuse layers `[..., n_l, n_{l-1}]` that do not follow each other, or do not fit the
    data."""
    if not layers:
        raise InvalidInput("a linear network needs at least one layer")
    for layer in layers:
        if not isinstance(layer, Tensor) or layer.dtype != covariances.xx.dtype:
            kind = layer.dtype if isinstance(layer, Tensor) else type(layer).__name__
            raise InvalidType(f"a layer is {kind}, the covariances are {covariances.xx.dtype}")
        if layer.ndim < 2:
            raise ShapeMismatch(
                f"every layer must be a matrix [n_l, n_(l-1)], not {list(layer.shape)}"
            )
        all_finite(layer, "a layer")
    for below, above in pairwise(layers):
        if above.shape[-1] != below.shape[-2]:
            raise ShapeMismatch(
                f"a layer {list(above.shape)} does not follow one of shape {list(below.shape)}"
            )
    check_widths([layers[0].shape[-1], *(layer.shape[-2] for layer in layers)], covariances)


def deep_linear_gradients(layers: Sequence[Tensor], covariances: Covariances) -> list[Tensor]:
    r"""Gradient of the risk in each layer,
    $2(W_L\cdots W_{\ell+1})^\top(P\Sigma_{xx}-\Sigma_{yx})(W_{\ell-1}\cdots W_1)^\top$.

    $P$ is the whole product. Cost: two products per layer.

    >>> one = torch.ones(1, 1)
    >>> deep_linear_gradients([2 * one, 3 * one], Covariances(one, one, one))
    [tensor([[30.]]), tensor([[20.]])]
    """
    check_layers(layers, covariances)
    return factor_gradients(layers, covariances.risk_gradient)


def deep_linear_function(widths: Sequence[int], covariances: Covariances) -> Function:
    r"""The risk as a function of all weights in one vector `[..., p]`, first layer first.

    It is what `gradient_descent`, `critical_point` and `landscape_probe` take;
    `flat_layers` makes the vector.

    >>> one = torch.ones(1, 1)
    >>> float(deep_linear_function((1, 1, 1), Covariances(one, one, one))(torch.zeros(2)))
    1.0
    """
    check_widths(widths, covariances)

    def risk(theta: Tensor) -> Tensor:
        return covariances.risk(product_of(layers_of(theta, widths)))

    return risk


def deep_linear_slope(widths: Sequence[int], covariances: Covariances) -> Function:
    r"""The gradient of `deep_linear_function`, `[..., p]`, by the closed form of
    `deep_linear_gradients`.

    It is several times as fast as automatic differentiation, and takes many networks at once.

    >>> one = torch.ones(1, 1)
    >>> deep_linear_slope((1, 1, 1), Covariances(one, one, one))(torch.tensor([2.0, 3.0]))
    tensor([30., 20.])
    """
    check_widths(widths, covariances)

    def slope(theta: Tensor) -> Tensor:
        return flat_layers(factor_gradients(layers_of(theta, widths), covariances.risk_gradient))

    return slope


def flat_layers(layers: Sequence[Tensor]) -> Tensor:
    """All weights `[..., n_l, n_{l-1}]` in one vector `[..., p]`, first layer first.

    >>> flat_layers([torch.ones(2, 1), torch.zeros(1, 2)])
    tensor([1., 1., 0., 0.])
    """
    return torch.cat([layer.flatten(-2) for layer in layers], -1)


def layers_of(theta: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Vectors `[..., p]` cut into layers `[..., n_l, n_{l-1}]`; undoes `flat_layers`.

    >>> [list(w.shape) for w in layers_of(torch.zeros(7, 4), (1, 2, 1))]
    [[7, 2, 1], [7, 1, 2]]
    """
    sizes = [a * b for a, b in pairwise(widths)]
    if theta.shape[-1] != sum(sizes):
        raise ShapeMismatch(
            f"a network of widths {tuple(widths)} has {sum(sizes)} weights, not {theta.shape[-1]}"
        )
    pieces = torch.split(theta, sizes, dim=-1)
    shapes = zip(widths[1:], widths, strict=False)
    return [p.reshape(*theta.shape[:-1], *s) for p, s in zip(pieces, shapes, strict=True)]


def deep_linear_optimum(covariances: Covariances, widths: Sequence[int]) -> ReducedRank:
    r"""The best map a linear network of widths $(n_0,\dots,n_L)$ can be.

    The narrowest layer bounds the rank by $r=\min_\ell n_\ell$, and the risk is
    $\operatorname{tr}\Sigma_{yy}-\sum_{i\le r}\lambda_i$; depth changes neither.

    >>> moments = Covariances(torch.eye(2), torch.diag(torch.tensor([2.0, 1.0])), 4 * torch.eye(2))
    >>> deep_linear_optimum(moments, (2, 3, 1, 2)).value
    4.0
    """
    check_widths(widths, covariances)
    return reduced_rank_regression(covariances, min(widths))


def balanced_layers(matrix: Tensor, widths: Sequence[int]) -> list[Tensor]:
    r"""Factor a matrix into layers of the given widths that share its singular values equally.

    $Z=\mathcal U S\mathcal V^\top$ becomes $W_1=S^{1/L}\mathcal V^\top$,
    $W_\ell=S^{1/L}$, $W_L=\mathcal US^{1/L}$, filled up with zeros; then
    $W_{\ell+1}^\top W_{\ell+1}=W_\ell W_\ell^\top$.

    >>> [w.abs().tolist() for w in balanced_layers(torch.tensor([[8.0]]), (1, 1, 1, 1))]
    [[[2.0]], [[2.0]], [[2.0]]]
    """
    as_matrix(matrix)
    depth = len(widths) - 1
    if depth < 1 or matrix.shape != (widths[-1], widths[0]):
        raise ShapeMismatch(
            f"a matrix {list(matrix.shape)} is no product of layers of widths {tuple(widths)}"
        )
    left, sigma, right = torch.linalg.svd(matrix, full_matrices=False)
    rank = min(widths)
    lost = sigma[rank:]
    if len(lost) and float(lost[0]) > 1e-6 * float(sigma[0]):
        raise InvalidInput(
            f"the matrix has rank above {rank}, the narrowest width: truncate it first"
        )
    if depth == 1:
        return [matrix]
    root = sigma[:rank] ** (1 / depth)
    blocks = [
        root[:, None] * right[:rank],
        *[torch.diag(root)] * (depth - 2),
        left[:, :rank] * root,
    ]
    return [
        _filled_up(b, out, into) for b, out, into in zip(blocks, widths[1:], widths, strict=False)
    ]


def deep_critical_point(
    covariances: Covariances,
    widths: Sequence[int],
    chosen: Sequence[int],
    middle_rank: int | None = None,
) -> list[Tensor]:
    r"""Layers at a critical point that uses the eigenvectors $Q_J$ of $\Sigma$.

    $W_1=[Q_J^\top\Sigma_{yx}\Sigma_{xx}^+;0]$, $W_L=[Q_J,0]$, and between them
    identities of rank `middle_rank`, padded with zeros. The value is
    $\operatorname{tr}\Sigma_{yy}-\sum_{j\in J}\lambda_j$; where that is not the least one,
    the point is a saddle.

    Args:
        covariances: of inputs and targets.
        widths: $(n_0,\dots,n_L)$.
        chosen: $J$, numbers from 0, at most $\min_\ell n_\ell$ of them.
        middle_rank: from $|J|$ to the narrowest hidden width, which it is unless given.

    >>> moments = Covariances(torch.eye(2), torch.diag(torch.tensor([2.0, 1.0])), 4 * torch.eye(2))
    >>> float(moments.risk(product_of(deep_critical_point(moments, (2, 2, 2, 2), [1]))))
    7.0
    """
    check_widths(widths, covariances)
    if len(widths) < 3:
        raise InvalidInput(
            f"a network without a hidden layer has no such point (widths = {list(widths)})"
        )
    narrowest = min(widths[1:-1])
    rank = narrowest if middle_rank is None else middle_rank
    if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(covariances.outputs)):
        raise InvalidInput(
            f"chosen must be different numbers from 0 to {covariances.outputs - 1}, not {chosen}"
        )
    if not len(chosen) <= rank <= narrowest:
        raise InvalidInput(
            f"the middle layers' rank must be from {len(chosen)}, the number of directions, to "
            f"{narrowest}, the narrowest hidden width, not {rank}"
        )
    _, vectors = covariances.directions()
    picked = vectors[:, list(chosen)]
    first = picked.T @ least_squares_map(covariances)
    middle = torch.eye(rank, dtype=picked.dtype, device=picked.device)
    blocks = [first, *[middle] * (len(widths) - 3), picked]
    return [
        _filled_up(b, out, into) for b, out, into in zip(blocks, widths[1:], widths, strict=False)
    ]


def critical_product(
    layers: Sequence[Tensor], covariances: Covariances, least: float = 0.0
) -> Tensor:
    r"""What the whole product is at a critical point:
    $C(C^\top C)^-C^\top\Sigma_{yx}\Sigma_{xx}^+$ with $C=W_L\cdots W_2$.

    $C$ is often rank deficient, so the inverse is a generalized one and
    $C(C^\top C)^-C^\top$ the projector onto the columns of $C$. With a singular
    $\Sigma_{xx}$ the products agree on the range of the inputs only.

    Directions in which $C$ is smaller than `least` do not count. At a point where the
    gradient is only small, choose it such that gradient over `least` is small too.

    >>> one = torch.ones(1, 1)
    >>> critical_product([5 * one, 2 * one], Covariances(one, 3 * one, 9 * one))
    tensor([[3.]])
    """
    if len(layers) < 2:
        raise InvalidInput(
            f"the formula is about networks with a hidden layer ({len(layers)} layers)"
        )
    check_layers(layers, covariances)
    C = product_of(layers[1:])
    size = float(torch.linalg.matrix_norm(C, 2))
    tolerance = max(1e-9, least / size) if size > 0 else 1e-9
    return column_projector(C, tolerance) @ least_squares_map(covariances)


def check_widths(widths: Sequence[int], covariances: Covariances) -> None:
    """Refuse widths that are none, or do not fit the data."""
    whole_numbers(widths, "widths", fewest=2)  # inputs, hidden ..., outputs
    if (widths[0], widths[-1]) != (covariances.inputs, covariances.outputs):
        raise ShapeMismatch(
            f"the data have {covariances.inputs} inputs and {covariances.outputs} outputs, the "
            f"network {widths[0]} and {widths[-1]}"
        )


def _filled_up(block: Tensor, rows: int, columns: int) -> Tensor:
    made = block.new_zeros(rows, columns)
    made[: block.shape[0], : block.shape[1]] = block
    return made
