r"""Dropout: the layer in both conventions, the ensemble it averages, the penalty it adds.

A unit with keep probability $\pi$ is multiplied by a Bernoulli variable
$b\sim\mathrm{Ber}(\pi)$ during training. The *plain* convention scales by $\pi$ in
evaluation; the *inverted* one divides by $\pi$ in training and does nothing in evaluation.
`torch.nn.Dropout(p)` is the inverted one with $p=1-\pi$ the *drop* probability. Sources:
Deep Learning (notes), section 8.4; Foundations of Deep Learning, section 11.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, described, number_between, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.model import evaluation_mode
from torchtheory.tracing.chain import as_chain

#: The most units whose masks are enumerated: a million masks.
MOST_UNITS = 20
_CHUNK = 4096


class UnitDropout(nn.Module):
    r"""Drops units, each with a probability of its own, in either convention.

    `torch.nn.Dropout` has one probability for all and draws from the global generator; this
    layer has one per unit and a generator of its own.

    Args:
        keep: $\pi\in(0,1]$, one number or `[d]` for the last dimension.
        inverted: divide by $\pi$ in training instead of multiplying by it in evaluation.
        generator: generator or seed.

    >>> layer = UnitDropout(torch.tensor([1.0, 0.5]), inverted=False)
    >>> layer.eval()(torch.tensor([[2.0, 2.0]]))
    tensor([[2., 1.]])
    >>> sorted(set(layer.train()(torch.full((50, 2), 2.0))[:, 1].tolist()))
    [0.0, 2.0]
    """

    keep: Tensor

    def __init__(
        self, keep: float | Tensor, *, inverted: bool = True, generator: RandomSource = None
    ) -> None:
        super().__init__()
        self.register_buffer("keep", check_keep(keep))
        self.inverted = inverted
        self.generator = as_generator(generator)

    def forward(self, x: Tensor) -> Tensor:
        keep = self.keep.to(x)
        if not self.training:
            return x if self.inverted else x * keep
        mask = _bernoulli(keep.expand(x.shape), self.generator)
        return x * mask / keep if self.inverted else x * mask

    def extra_repr(self) -> str:
        return f"keep={self.keep.tolist()}, inverted={self.inverted}"


class WeightDropout(nn.Module):
    r"""Drops single weights of a dense layer (DropConnect), not units.

    Every sample has its own mask $B\in\{0,1\}^{m\times n}$: outputs
    $(W\odot B/\pi)x+b$ in training, $Wx+b$ in evaluation. Memory $O(smn)$.

    >>> layer = WeightDropout(nn.Linear(3, 2), keep=0.5).eval()
    >>> x = torch.ones(4, 3)
    >>> bool((layer(x) == layer.layer(x)).all())
    True
    """

    def __init__(self, layer: nn.Linear, keep: float, *, generator: RandomSource = None) -> None:
        super().__init__()
        if not isinstance(layer, nn.Linear):
            raise UnsupportedModel(f"weights are dropped of an nn.Linear, not of {layer}")
        self.layer = layer
        self.keep = float(check_keep(keep))
        self.generator = as_generator(generator)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        if not self.training:
            result: Tensor = self.layer(x)
            return result
        keep = torch.full((), self.keep, dtype=weight.dtype, device=weight.device)
        mask = _bernoulli(keep.expand(*x.shape[:-1], *weight.shape), self.generator)
        product = (mask * weight / keep) @ x[..., None]
        output = product.squeeze(-1)
        return output if self.layer.bias is None else output + self.layer.bias


def all_masks(units: int, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Every vector of zeros and ones, `[2 ** units, units]`.

    >>> all_masks(2)
    tensor([[0., 0.],
            [0., 1.],
            [1., 0.],
            [1., 1.]], dtype=torch.float64)
    """
    if isinstance(units, bool) or not isinstance(units, int) or not 1 <= units <= MOST_UNITS:
        raise InvalidInput(
            f"masks are enumerated for 1 to {MOST_UNITS} units, not {units!r}; sample them instead"
        )
    places = torch.arange(units - 1, -1, -1)
    return ((torch.arange(2**units)[:, None] >> places) & 1).to(dtype)


def mask_probabilities(masks: Tensor, keep: float | Tensor) -> Tensor:
    r"""$p(b)=\prod_i\pi_i^{b_i}(1-\pi_i)^{1-b_i}$ for each row of `masks[k, d]`.

    >>> mask_probabilities(all_masks(2), torch.tensor([0.5, 0.25])).sum()
    tensor(1., dtype=torch.float64)
    """
    pi = check_keep(keep).to(masks).expand(masks.shape[-1])
    return torch.where(masks > 0, pi, 1 - pi).prod(-1)


def ensemble_mean(f: Callable[[Tensor], Tensor], x: Tensor, keep: float | Tensor) -> Tensor:
    r"""The exact average $\sum_bp(b)f(b\odot x)$ over all $2^d$ sub-networks.

    Args:
        f: what stands after the units, `[..., d]` to `[..., k]`: a head, a whole network.
        x: `[s, d]`, the units; $d\le20$.
        keep: $\pi$, one number or `[d]`.

    >>> ensemble_mean(lambda z: z.sum(-1, keepdim=True), torch.tensor([[2.0, 4.0]]), 0.5)
    tensor([[3.]])
    """
    masks = all_masks(_units(x), dtype=x.dtype).to(x.device)
    weights = mask_probabilities(masks, keep)
    total: Tensor | float = 0.0
    for b, p in _pieces(masks, weights, max(1, _CHUNK // len(x))):
        total = total + torch.einsum("b,b...->...", p, f(b[:, None, :] * x))
    assert isinstance(total, Tensor)
    return total


def sampled_mean(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    keep: float | Tensor,
    samples: int,
    *,
    generator: RandomSource = None,
) -> Tensor:
    r"""The same average over `samples` random masks; the error falls like
    $1/\sqrt{\text{samples}}$.

    Every row of `x[s, d]` meets the same masks, as one sub-network after another would.

    >>> sampled_mean(lambda z: z, torch.ones(1, 2), 1.0, samples=3)
    tensor([[1., 1.]])
    """
    d = _units(x)
    whole_number(samples, "samples", least=1)
    pi = check_keep(keep).to(x).expand(samples, d)
    masks = _bernoulli(pi, as_generator(generator))
    weights = torch.full((samples,), 1 / samples, dtype=x.dtype, device=x.device)
    total: Tensor | float = 0.0
    for b, p in _pieces(masks, weights, max(1, _CHUNK // len(x))):
        total = total + torch.einsum("b,b...->...", p, f(b[:, None, :] * x))
    assert isinstance(total, Tensor)
    return total


def geometric_mean(logits: Callable[[Tensor], Tensor], x: Tensor, keep: float | Tensor) -> Tensor:
    r"""Normalized geometric mean of the ensemble's class probabilities, exact over all masks.

    $\bar p(y|x)\propto\prod_b p_b(y|x)^{p(b)}$, where $p_b$ is the softmax of
    `logits(b * x)`. If the logits are affine in the units it equals the softmax at the scaled
    units $\pi\odot x$: the weight-scaling rule is then exact, for this mean and not for the
    arithmetic one.

    >>> head = nn.Linear(3, 2).double()
    >>> x = torch.ones(1, 3).double()
    >>> torch.allclose(geometric_mean(head, x, 0.5), head(x / 2).softmax(-1))
    True
    """
    return ensemble_mean(lambda z: logits(z).log_softmax(-1), x, keep).softmax(-1)


@dataclass(frozen=True, slots=True)
class DropoutPenalty:
    r"""What dropout before the last layer adds to the squared loss.

    Attributes:
        per_unit: `[d]`, $\frac p{1-p}\|W_{:,j}\|^2\hat a_j^2$.
        risk: the risk without dropout, $\frac1n\sum_i\|y_i-Wa_i-b\|^2$.
    """

    per_unit: Tensor
    risk: float

    @property
    def total(self) -> float:
        return float(self.per_unit.sum())

    @property
    def risk_with_dropout(self) -> float:
        """The expected risk over masks: the risk plus the penalty."""
        return self.risk + self.total


def penalty_per_unit(weight: Tensor, activations: Tensor, drop: float) -> Tensor:
    r"""$\frac p{1-p}\|W_{:,j}\|^2\,\frac1n\sum_ia_j(x_i)^2$ for each unit, `[d]`.

    Args:
        weight: `[k, d]`, the layer after the dropped units.
        activations: `[n, d]`, the units on the sample.
        drop: $p\in[0,1)$.

    >>> penalty_per_unit(torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 2.0]]), 0.5)
    tensor([9., 4.])
    """
    p = number_between(drop, "the drop probability", 0, 1, closed="left")
    if weight.ndim != 2 or activations.ndim != 2 or weight.shape[1] != activations.shape[1]:
        raise ShapeMismatch(
            f"a weight [k, d] and activations [n, d] are needed, not {list(weight.shape)} and "
            f"{list(activations.shape)}"
        )
    return p / (1 - p) * weight.square().sum(0) * activations.square().mean(0)


def dropout_penalty(model: nn.Module, x: Tensor, y: Tensor, drop: float) -> DropoutPenalty:
    r"""Theorem 74: dropout on the units before the last dense layer, in closed form.

    For the squared loss and masks $B_{jj}\sim\mathrm{Ber}(1-p)/(1-p)$,

    $$
    \frac1n\sum_i\mathbb E_B\|y_i-WBa(x_i)\|^2
    =\frac1n\sum_i\|y_i-Wa(x_i)\|^2
    +\frac p{1-p}\sum_j\|W_{:,j}\|^2\,\frac1n\sum_ia_j(x_i)^2 .
    $$

    An identity of the empirical risk of any network whose last layer is dense; it does not hold
    for other losses, nor for dropout in lower layers. One forward pass.

    Args:
        model: a chain of layers; it is run in evaluation mode, its own dropout layers off.
        x, y: `[n, ...]` and `[n, k]`.
        drop: $p$, the drop probability.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(2, 1, bias=False))
    >>> _ = nn.init.constant_(net[1].weight, 1.0)
    >>> r = dropout_penalty(net, torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]]), 0.5)
    >>> r.risk, r.per_unit, r.risk_with_dropout
    (0.0, tensor([1., 4.]), 5.0)
    """
    number_between(drop, "the drop probability", 0, 1, closed="left")
    chain = as_chain(model)
    head = chain[-1].module if chain else None
    if not isinstance(head, nn.Linear):
        raise UnsupportedModel(f"the last layer must be dense, not {type(head).__name__}")
    with torch.no_grad(), evaluation_mode(model):
        units = x.clone()
        for link in chain[:-1]:
            units = link.module(units)
        outputs: Tensor = head(units)
    if units.ndim != 2 or outputs.shape != y.shape:
        raise ShapeMismatch(
            f"targets must be [n, k] like the outputs {list(outputs.shape)}, not {list(y.shape)}"
        )
    risk = float((y - outputs).square().sum(1).mean())
    return DropoutPenalty(penalty_per_unit(head.weight.detach(), units, drop), risk)


def equalized_factors(matrix: Tensor, width: int) -> tuple[Tensor, Tensor]:
    r"""The factorization $Z=UV$ of a given width on which dropout's penalty is least.

    $\min\sum_i\|u_i\|^2\|v_i\|^2$ over all $UV=Z$ with $d$ columns $u_i$ and rows $v_i$ is
    $\|Z\|_*^2/d$; it is attained where all products $\|u_i\|\|v_i\|$ are equal. Here the singular
    values are spread evenly by a rotation: of $\operatorname{diag}(\sigma)$ padded with zeros, the
    one with a constant diagonal. Source: Mathematical Aspects of Deep Learning, 4.2 (dropout
    induces low rank); Cavazza et al., 2018.

    Args:
        matrix: $Z$, `[k, m]`.
        width: $d\ge\operatorname{rank}Z$.

    Returns:
        $U$ `[k, d]` and $V$ `[d, m]`.

    >>> u, v = equalized_factors(torch.diag(torch.tensor([3.0, 1.0])), 4)
    >>> (u.norm(dim=0) * v.norm(dim=1)).round(decimals=4)                      # (3 + 1) / 4
    tensor([1., 1., 1., 1.])
    """
    left, singular, right = torch.linalg.svd(matrix, full_matrices=False)
    rank = int((singular > torch.finfo(matrix.dtype).eps * max(matrix.shape) * singular[0]).sum())
    whole_number(width, "width", least=max(1, rank))
    spectrum = matrix.new_zeros(width)
    spectrum[:rank] = singular[:rank]
    turn = _constant_diagonal(spectrum)
    root = spectrum.sqrt()
    outer, inner = matrix.new_zeros(len(matrix), width), matrix.new_zeros(width, matrix.shape[1])
    outer[:, :rank], inner[:rank] = left[:, :rank], right[:rank]
    return outer * root @ turn, turn.T @ (root[:, None] * inner)


def _constant_diagonal(values: Tensor) -> Tensor:
    """A rotation Q for which QᵀDQ has a constant diagonal, D diagonal.

    A plane rotation of the smallest and the largest entry makes one of them the mean, which is then
    left alone (the simplest case of Schur and Horn's theorem).
    """
    mean, left = values.mean(), list(range(len(values)))
    rotation, current = torch.eye(len(values)).to(values), torch.diag(values)
    while len(left) > 1:
        entries = current.diagonal()[left]
        low, high = left[int(entries.argmin())], left[int(entries.argmax())]
        a, b, c = current[low, low] - mean, current[low, high], current[high, high] - mean
        if float(c) <= 0 or float(a) >= 0:  # all that are left equal the mean
            break
        # (cos, sin) along (low, high) meets the mean where a + 2 b t + c t² = 0, t the tangent
        tangent = (-b + torch.sqrt(b * b - a * c)) / c
        cosine = 1 / torch.sqrt(1 + tangent * tangent)
        pair = torch.stack([cosine, -tangent * cosine, tangent * cosine, cosine]).reshape(2, 2)
        rotation[:, [low, high]] = rotation[:, [low, high]] @ pair
        current[:, [low, high]] = current[:, [low, high]] @ pair
        current[[low, high]] = pair.T @ current[[low, high]]
        left.remove(low)
    return rotation


def dropout_regression(x: Tensor, y: Tensor, drop: float) -> Tensor:
    r"""Least squares with dropout on the inputs, solved: a ridge that knows the features' scale.

    Minimizes $\frac1n\mathbb E_B\|y-XBw\|^2$, i.e.
    $w=(X^\top X+\frac p{1-p}\operatorname{diag}(X^\top X))^{-1}X^\top y$. Time
    $O(nd^2+d^3)$.

    Args:
        x: `[n, d]`, no feature zero throughout.
        y: `[n]` or `[n, k]`.
        drop: $p\in(0,1)$; at 0 it is least squares, and the features must be independent.

    >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0])
    >>> dropout_regression(x, y, 0.5)
    tensor([0.5000])
    """
    p = number_between(drop, "the drop probability", 0, 1, closed="left")
    if x.ndim != 2 or len(x) == 0 or len(y) != len(x):
        raise ShapeMismatch(f"x [n, d] and y [n] are needed, not {list(x.shape)}, {list(y.shape)}")
    all_finite(x, "x")
    all_finite(y, "y")
    gram = x.T @ x
    if not bool((gram.diagonal() > 0).all()):
        raise InvalidInput("a feature is zero on the whole sample, so its weight is not determined")
    solution, failed = torch.linalg.solve_ex(
        gram + p / (1 - p) * gram.diagonal().diag(), (x.T @ y).reshape(len(gram), -1)
    )
    if int(failed):
        raise InvalidInput("without dropout the features must be linearly independent")
    result: Tensor = solution.reshape(len(gram), *y.shape[1:])
    return result


def check_keep(keep: float | Tensor) -> Tensor:
    """Keep probabilities as a tensor, each in (0, 1]."""
    pi = keep.detach() if isinstance(keep, Tensor) else torch.tensor(keep, dtype=torch.float64)
    if not pi.is_floating_point() or pi.ndim > 1 or not bool(((pi > 0) & (pi <= 1)).all()):
        raise InvalidInput(
            "a keep probability is a number in (0, 1], one or one per unit, not "
            f"{described(pi.tolist())}"
        )
    return pi


def _bernoulli(probability: Tensor, generator: torch.Generator) -> Tensor:
    draws = torch.rand(
        probability.shape, generator=generator, dtype=torch.float64, device=generator.device
    )
    return (draws.to(probability.device) < probability).to(probability.dtype)


def _units(x: Tensor) -> int:
    if x.ndim != 2 or x.numel() == 0:
        raise ShapeMismatch(f"units are [s, d], one row per sample, not {list(x.shape)}")
    return x.shape[1]


def _pieces(masks: Tensor, weights: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(masks), size):
        yield masks[start : start + size], weights[start : start + size]
