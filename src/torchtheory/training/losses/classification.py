r"""Twelve losses for classification, as one table: values, gradients, what is known of each.

With $k$ classes, $o\in\mathbb R^k$ the output of the last layer, $y$ the one-hot
label, $\hat y=2y-1\in\{\pm1\}^k$, $p=\mathrm{softmax}(o)$ and $p_y$ the
probability of the true class. Four pairs are one loss in two guises: Chebyshev is half the
expectation loss, the squared log loss the square of the log loss, the Cauchy-Schwarz divergence
half the log loss at doubled logits, and the regularized expectation loss the expectation loss plus
$\|p\|_2^2-1$. Source: slides "Deep Learning", Table 1, after Janocha and Czarnecki (2017).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.checks import first_entry
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    LabelOutOfRange,
    NonFinite,
    ShapeMismatch,
    UnknownName,
)

Rows = Callable[[Tensor, Tensor], Tensor]
"""Outputs `[..., k]` and one-hot rows `[..., k]` to losses `[...]` or gradients."""


@dataclass(frozen=True, slots=True)
class ClassificationLoss:
    r"""One row of the table.

    Attributes:
        name: what `classification_loss` takes.
        formula: the definition, LaTeX.
        function: the definition on outputs and one-hot rows, unchecked, safe under `vmap`.
        derivative: its gradient in the outputs, written out.
        least: the infimum over all outputs, for a one-hot label.
        on_probabilities: whether it sees the outputs through the softmax only; then it does not
            change when one number is added to all of them, and the infimum is not attained.
        convex: whether it is convex in the outputs.

    >>> hinge = classification_loss("hinge")
    >>> hinge(torch.zeros(1, 3), torch.tensor([0])), hinge.gradient(torch.zeros(3), torch.tensor(0))
    (tensor([1.5000]), tensor([-1.,  1.,  1.]))
    """

    name: str
    formula: str
    function: Rows
    derivative: Rows
    least: float
    on_probabilities: bool
    convex: bool

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss `[...]` of every sample; targets as in `one_hot_rows`."""
        return self.function(outputs, one_hot_rows(outputs, targets))

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The gradient `[..., k]` of every sample's loss in its outputs.

        Where the loss has a kink, the one torch's functions give there: 0 for the absolute value
        and for the hinge.
        """
        rows = one_hot_rows(outputs, targets)
        return self.derivative(outputs.detach(), rows)

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the samples: what training takes as its `loss`."""
        return self(outputs, targets).mean()


def one_hot_rows(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets as rows `[..., k]` in the dtype of the outputs.

    Args:
        outputs: `[..., k]`, floating, with at least two classes.
        targets: class indices `[...]`, or rows of probabilities of the shape of the outputs.

    >>> one_hot_rows(torch.zeros(2, 3), torch.tensor([2, 0]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    for tensor, name in ((outputs, "outputs"), (targets, "targets")):
        if not isinstance(tensor, Tensor):
            raise InvalidType(f"{name} must be a torch tensor, not {type(tensor).__name__}")
    if not outputs.is_floating_point():
        raise InvalidType(f"outputs must be floating-point numbers, not {outputs.dtype}")
    if outputs.ndim == 0 or outputs.shape[-1] < 2:
        raise ShapeMismatch(
            f"outputs must be [samples, classes] with two classes or more, not "
            f"{list(outputs.shape)}"
        )
    if outputs.numel() == 0:
        raise EmptyData(
            f"there are no outputs to take a loss of (the shape is {list(outputs.shape)})"
        )
    if not bool(torch.isfinite(outputs.detach()).all()):
        found = first_entry(outputs.detach(), "the value", ~torch.isfinite(outputs.detach()))
        raise NonFinite(f"the outputs contain NaN or infinity: {found}")
    classes = outputs.shape[-1]
    if targets.is_floating_point():
        if targets.shape != outputs.shape:
            raise ShapeMismatch(
                f"rows of probabilities must have the outputs' shape {list(outputs.shape)}, not "
                f"{list(targets.shape)}; class labels are integers, call targets.long()"
            )
        total = targets.sum(-1)
        if not (bool((targets >= 0).all()) and bool(((total - 1).abs() <= 1e-5).all())):
            raise InvalidInput(
                "each row of targets must be non-negative and sum to 1; the least entry is "
                f"{float(targets.min()):g}, and rows sum to {float(total.min()):g} to "
                f"{float(total.max()):g}"
            )
        return targets.to(outputs)
    if targets.dtype == torch.bool or targets.shape != outputs.shape[:-1]:
        raise ShapeMismatch(
            f"labels must be integers of shape {list(outputs.shape[:-1])}, one per row of outputs, "
            f"not {targets.dtype} of shape {list(targets.shape)}"
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise LabelOutOfRange(f"labels must lie in 0..{classes - 1}, and one is {wrong}")
    return F.one_hot(targets.long(), classes).to(outputs)


def classification_loss(name: str) -> ClassificationLoss:
    r"""A row of the table by its name.

    >>> classification_loss("log").formula
    '-\\sum_jy_j\\log p_j'
    """
    if name not in LOSSES:
        raise UnknownName("loss", name, LOSSES)
    return LOSSES[name]


def loss_values(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """All twelve losses of the same outputs, by name.

    >>> values = loss_values(torch.zeros(3), torch.tensor(1))
    >>> round(float(values["log"]), 6), float(values["cubed hinge"])       # log 3, 3 / 8
    (1.098612, 0.375)
    """
    rows = one_hot_rows(outputs, targets)
    return {name: loss.function(outputs, rows) for name, loss in LOSSES.items()}


# ------------------------------------------------------------------------------- definitions


def _softmax(o: Tensor) -> Tensor:
    return torch.softmax(o, dim=-1)


def _through_softmax(p: Tensor, g: Tensor) -> Tensor:
    r"""The gradient in $o$ from that in $p$: $(\mathrm{diag}\,p-pp^\top)g$."""
    return p * (g - (p * g).sum(-1, keepdim=True))


def _shortfall(o: Tensor, y: Tensor) -> Tensor:
    r"""$\max(0,\frac12-\hat y_jo_j)$."""
    return torch.relu(0.5 - (2 * y - 1) * o)


def _hinge_slope(power: int) -> Rows:
    def slope(o: Tensor, y: Tensor) -> Tensor:
        gap = _shortfall(o, y)
        steepness = power * gap ** (power - 1) if power > 1 else (gap > 0).to(o)
        return -(2 * y - 1) * steepness

    return slope


def _expectation_slope(o: Tensor, y: Tensor) -> Tensor:
    p = _softmax(o)
    return _through_softmax(p, torch.sign(p - y))


def _regularized_slope(o: Tensor, y: Tensor) -> Tensor:
    p = _softmax(o)
    return _through_softmax(p, 2 * (p - y))


def _chebyshev_slope(o: Tensor, y: Tensor) -> Tensor:
    p = _softmax(o)
    gap = p - y
    largest = F.one_hot(gap.abs().argmax(-1), o.shape[-1]).to(o)
    return _through_softmax(p, largest * torch.sign(gap))


def _log(o: Tensor, y: Tensor) -> Tensor:
    return -(y * F.log_softmax(o, dim=-1)).sum(-1)


def _squared_log(o: Tensor, y: Tensor) -> Tensor:
    return (y * F.log_softmax(o, dim=-1)).square().sum(-1)


def _squared_log_slope(o: Tensor, y: Tensor) -> Tensor:
    g = 2 * y.square() * F.log_softmax(o, dim=-1)
    return g - _softmax(o) * g.sum(-1, keepdim=True)


def _tanimoto(o: Tensor, y: Tensor) -> Tensor:
    p = _softmax(o)
    common = (p * y).sum(-1)
    return -common / (p.square().sum(-1) + y.square().sum(-1) - common)


def _tanimoto_slope(o: Tensor, y: Tensor) -> Tensor:
    p = _softmax(o)
    common = (p * y).sum(-1, keepdim=True)
    union = (p.square() + y.square()).sum(-1, keepdim=True) - common
    return _through_softmax(p, (common * (2 * p - y) - union * y) / union.square())


def _cauchy_schwarz(o: Tensor, y: Tensor) -> Tensor:
    # by logarithms: the probability of the true class may underflow, its logarithm does not
    log_p = F.log_softmax(o, dim=-1)
    common = torch.logsumexp(log_p + torch.log(y), dim=-1)
    return torch.logsumexp(2 * log_p, dim=-1) / 2 + torch.log(y.square().sum(-1)) / 2 - common


def _cauchy_schwarz_slope(o: Tensor, y: Tensor) -> Tensor:
    posterior = torch.softmax(F.log_softmax(o, dim=-1) + torch.log(y), dim=-1)
    return _softmax(2 * o) - posterior


_ROWS = (
    ClassificationLoss(
        "L1", r"\|y-o\|_1",
        lambda o, y: (y - o).abs().sum(-1), lambda o, y: torch.sign(o - y),
        least=0.0, on_probabilities=False, convex=True,
    ),
    ClassificationLoss(
        "L2", r"\|y-o\|_2^2",
        lambda o, y: (y - o).square().sum(-1), lambda o, y: 2 * (o - y),
        least=0.0, on_probabilities=False, convex=True,
    ),
    ClassificationLoss(
        "expectation", r"\|y-p\|_1",
        lambda o, y: (y - _softmax(o)).abs().sum(-1), _expectation_slope,
        least=0.0, on_probabilities=True, convex=False,
    ),
    ClassificationLoss(
        "regularized expectation", r"\|y-p\|_2^2",
        lambda o, y: (y - _softmax(o)).square().sum(-1), _regularized_slope,
        least=0.0, on_probabilities=True, convex=False,
    ),
    ClassificationLoss(
        "Chebyshev", r"\max_j|p_j-y_j|",
        lambda o, y: (_softmax(o) - y).abs().amax(-1), _chebyshev_slope,
        least=0.0, on_probabilities=True, convex=False,
    ),
    ClassificationLoss(
        "hinge", r"\sum_j\max(0,\tfrac12-\hat y_jo_j)",
        lambda o, y: _shortfall(o, y).sum(-1), _hinge_slope(1),
        least=0.0, on_probabilities=False, convex=True,
    ),
    ClassificationLoss(
        "squared hinge", r"\sum_j\max(0,\tfrac12-\hat y_jo_j)^2",
        lambda o, y: _shortfall(o, y).square().sum(-1), _hinge_slope(2),
        least=0.0, on_probabilities=False, convex=True,
    ),
    ClassificationLoss(
        "cubed hinge", r"\sum_j\max(0,\tfrac12-\hat y_jo_j)^3",
        lambda o, y: (_shortfall(o, y) ** 3).sum(-1), _hinge_slope(3),
        least=0.0, on_probabilities=False, convex=True,
    ),
    ClassificationLoss(
        "log", r"-\sum_jy_j\log p_j",
        _log, lambda o, y: _softmax(o) * y.sum(-1, keepdim=True) - y,
        least=0.0, on_probabilities=True, convex=True,
    ),
    ClassificationLoss(
        "squared log", r"\sum_j[y_j\log p_j]^2",
        _squared_log, _squared_log_slope,
        least=0.0, on_probabilities=True, convex=True,
    ),
    ClassificationLoss(
        "Tanimoto", r"\frac{-p^\top y}{\|p\|_2^2+\|y\|_2^2-p^\top y}",
        _tanimoto, _tanimoto_slope,
        least=-1.0, on_probabilities=True, convex=False,
    ),
    ClassificationLoss(
        "Cauchy-Schwarz", r"-\log\frac{p^\top y}{\|p\|_2\|y\|_2}",
        _cauchy_schwarz, _cauchy_schwarz_slope,
        least=0.0, on_probabilities=True, convex=True,
    ),
)  # fmt: skip

LOSSES: Mapping[str, ClassificationLoss] = MappingProxyType({row.name: row for row in _ROWS})
"""The twelve, in the order of the table."""
