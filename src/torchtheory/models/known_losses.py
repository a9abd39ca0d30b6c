"""Which of the usual losses a user's loss is: by its class, or by what it does to numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.errors import InvalidType, UnknownName
from torchtheory.models.loading import call_without_arguments, is_named, named_object

#: What is known of a loss: of real numbers, of yes-or-no labels (by logits or probabilities), of
#: classes (by logits or logarithms of probabilities), of counts (by logarithms of rates or rates).
Kind = Literal[
    "squared",
    "real",
    "logistic",
    "bernoulli",
    "cross-entropy",
    "log-likelihood",
    "log-rate",
    "rate",
]

_CLASSES: tuple[tuple[type[nn.Module], Kind], ...] = (
    (nn.MSELoss, "squared"),
    (nn.L1Loss, "real"),
    (nn.SmoothL1Loss, "real"),
    (nn.HuberLoss, "real"),
    (nn.BCEWithLogitsLoss, "logistic"),
    (nn.MultiLabelSoftMarginLoss, "logistic"),
    (nn.BCELoss, "bernoulli"),
    (nn.CrossEntropyLoss, "cross-entropy"),
    (nn.NLLLoss, "log-likelihood"),
)

_FUNCTIONS: dict[object, Kind] = {
    F.mse_loss: "squared",
    F.l1_loss: "real",
    F.smooth_l1_loss: "real",
    F.huber_loss: "real",
    F.binary_cross_entropy_with_logits: "logistic",
    F.multilabel_soft_margin_loss: "logistic",
    F.binary_cross_entropy: "bernoulli",
    F.cross_entropy: "cross-entropy",
    F.nll_loss: "log-likelihood",
    F.poisson_nll_loss: "log-rate",
}

#: Random outputs on which a loss is compared with those it may be, and how closely.
_DRAWS, _CLOSE = 3, 1e-3

#: Samples it is compared on.
_SAMPLES = 16


def kind_of_loss(loss: Callable[..., Tensor], outputs: Tensor, y: Tensor) -> Kind | None:
    """What is known of a loss; None of one that is nobody else's.

    By its class or name; else by its values at random outputs, which are those of a usual loss up
    to a factor.

    Args:
        loss: `loss(outputs, targets)`.
        outputs: of the model, for their shape and kind, `[n, ...]`.
        y: targets, `[m, ...]`.

    >>> y = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> kind_of_loss(lambda f, t: 3 * F.binary_cross_entropy(f.sigmoid(), t), y, y)
    'logistic'
    """
    if isinstance(loss, nn.PoissonNLLLoss):
        return "log-rate" if loss.log_input else "rate"
    for known, kind in _CLASSES:
        if isinstance(loss, known):
            return kind
    found = _FUNCTIONS.get(loss)
    return found if found is not None else _by_values(loss, outputs, y)


def _by_values(loss: Callable[..., Tensor], outputs: Tensor, y: Tensor) -> Kind | None:
    y = y[:_SAMPLES]
    shape = (len(y), *outputs.shape[1:])
    if y[0].numel() != outputs[0].numel():
        return None
    target = y.to(outputs.dtype).reshape(shape)
    usual: dict[Kind, Callable[[Tensor], Tensor]] = {
        "squared": lambda f: F.mse_loss(f, target),
        "real": lambda f: F.l1_loss(f, target),
    }
    if bool(((target >= 0) & (target <= 1)).all()):
        usual["logistic"] = lambda f: F.binary_cross_entropy_with_logits(f, target)
        usual["bernoulli"] = lambda f: F.binary_cross_entropy(f, target)
    if bool((target >= 0).all()):
        usual["log-rate"] = lambda f: F.poisson_nll_loss(f, target)
        usual["rate"] = lambda f: F.poisson_nll_loss(f, target, log_input=False)
    draw = torch.Generator().manual_seed(0)
    points = [torch.rand(shape, generator=draw).to(outputs) for _ in range(_DRAWS)]
    for form in [y] if y.shape == target.shape else [y, target]:
        with torch.no_grad():
            try:
                own = [float(loss(p, form)) for p in points]
            except Exception:  # it wants something else, whatever it raises
                continue
            for kind, known in usual.items():
                theirs = [float(known(p)) for p in points]
                if _proportional(own, theirs):
                    return kind
    return None


def _proportional(own: list[float], theirs: list[float]) -> bool:
    """Whether both change alike, and not at all never counts."""
    if min(map(abs, theirs)) == 0 or max(theirs) - min(theirs) < _CLOSE * abs(theirs[0]):
        return False
    ratio = own[0] / theirs[0]
    return ratio > 0 and all(
        abs(a - ratio * b) <= _CLOSE * abs(a) for a, b in zip(own, theirs, strict=True)
    )


#: Losses that can be asked for by name.
NAMED_LOSSES: dict[str, type[nn.Module]] = {
    "squared": nn.MSELoss,
    "absolute": nn.L1Loss,
    "logistic": nn.BCEWithLogitsLoss,
    "bernoulli": nn.BCELoss,
    "cross-entropy": nn.CrossEntropyLoss,
    "log-likelihood": nn.NLLLoss,
    "poisson": nn.PoissonNLLLoss,
}


def named_loss(name: str) -> Callable[..., Tensor]:
    """The loss of a short name, or `package.module:loss`: a function, a module, or its class.

    >>> named_loss("squared")
    MSELoss()
    """
    if name in NAMED_LOSSES:
        made: nn.Module = NAMED_LOSSES[name]()
        return made
    if not is_named(name):
        raise UnknownName("loss", name, [*NAMED_LOSSES, "package.module:loss"])
    found = named_object(name, "loss", "loss")
    if isinstance(found, type):
        found = call_without_arguments(found, name)
    if not callable(found):
        raise InvalidType(f"{name} is a {type(found).__name__}, and a loss is called")
    return found


def name_of_loss(loss: object) -> str:
    """What a loss is called: its class, or its name.

    >>> name_of_loss(nn.L1Loss()), name_of_loss(F.mse_loss)
    ('L1Loss', 'mse_loss')
    """
    name = getattr(loss, "__name__", None)
    if name == "<lambda>":
        return "a function without a name"
    return str(name) if name else type(loss).__name__


def ignores_shifts(loss: Callable[..., Tensor], outputs: Tensor, y: Tensor) -> bool:
    """Whether a number added to all outputs of a sample changes nothing: only their order counts.

    >>> y = torch.tensor([[2.0, 0.0, 1.0]])
    >>> ignores_shifts(lambda f, t: F.cross_entropy(f, t.softmax(1)), y, y)
    True
    >>> ignores_shifts(F.mse_loss, y, y)
    False
    """
    y = y[:_SAMPLES]
    draw = torch.Generator().manual_seed(0)
    points = torch.randn((2, len(y), *outputs.shape[1:]), generator=draw).to(outputs)
    each = torch.randn((len(y), *[1] * (outputs.ndim - 1)), generator=draw).to(outputs)
    try:
        with torch.no_grad():
            here, there = float(loss(points[0], y)), float(loss(points[0] + 3 * each, y))
            elsewhere = float(loss(points[1], y))
    except Exception:
        return False
    moved = abs(here - elsewhere)
    return moved > 0 and abs(here - there) <= _CLOSE * moved
