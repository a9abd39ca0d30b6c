"""What stands out about targets, in a sentence for the head of a report."""

from __future__ import annotations

from torch import Tensor

from torchtheory.models.targets import Task

#: Scales of two targets, and a mean over its deviation, that are far apart.
FAR = 10.0

#: Whole numbers of more values than this are no levels of a scale.
LEVELS = 12


def scales(y: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations `[K]` of the entries of targets `[n, ...]`."""
    columns = y.double().reshape(len(y), -1)
    return columns.mean(0), columns.std(0, correction=0)


def remark_on_targets(task: Task, y: Tensor) -> str:
    """Scales that differ or lie far from 1, and whole numbers; nothing if there is nothing to say.

    >>> import torch
    >>> y = torch.tensor([[0.0, 100.0], [2.0, 5100.0]])
    >>> remark_on_targets("regression", y)
    '2 per sample, with standard deviations from 1 to 2.5e+03: a squared error is about the largest'
    """
    if task == "multilabel":
        count = y[0].numel()
        hard = bool(((y == 0) | (y == 1)).all())
        return f"{count} per sample, {'0 or 1' if hard else 'between 0 and 1'} each"
    if task == "ordinal":
        levels = y.flatten(1).sum(1) if y[0].numel() > 1 else y.flatten()
        return f"levels from {int(levels.min())} to {int(levels.max())}, in order"
    if task == "count":
        return (
            f"whole numbers from {int(y.min())} to {int(y.max())}, {float(y.mean()):.3g} on average"
        )
    if task == "ranking":
        return f"the relevance of {y[0].numel()} items per sample"
    if task == "own":
        return (
            f"of shape {list(y.shape[1:])} per sample, known to your loss alone: what compares "
            "outputs with targets in another way is left out"
        )
    return _numbers(y) if task == "regression" and y.numel() else ""


def _numbers(y: Tensor) -> str:
    mean, spread = scales(y)
    varying = spread > 0
    if len(y) < 2 or not bool(varying.any()):
        return ""
    low, high = float(spread[varying].min()), float(spread[varying].max())
    if len(spread) > 1:
        if high < FAR * low:
            return ""
        return (
            f"{len(spread)} per sample, with standard deviations from {low:.2g} to {high:.2g}: "
            "a squared error is about the largest"
        )
    said = []
    center = abs(float(mean))
    if center > FAR * high:
        said.append(
            f"their mean is {float(mean):.3g} and their standard deviation {high:.2g}: badly "
            "scaled for a network, which starts near 0; subtract the mean"
        )
    elif not 1 / FAR**2 < high < FAR**2:
        said.append(
            f"their standard deviation is {high:.2g}: badly scaled for a network, whose outputs "
            "start near 1; divide by it"
        )
    if bool((y == y.round()).all()):
        values = len(set(y.flatten().tolist()))
        if values <= LEVELS:
            said.append(
                f"whole numbers with {values} values; if they are levels in order, say "
                "task='ordinal'"
            )
        elif bool((y >= 0).all()):
            said.append("whole numbers from 0; if they are counts, say task='count'")
    return "; ".join(said)
