r"""How lazy a training was: did the network stay near the tangent at its initialization?

Three things that go to 0 together as a network in the NTK parametrization gets wider: the relative
movement of the parameters, the drift of the tangent kernel, and the distance to the linearized
network. Sources: The Modern Mathematics of Deep Learning, sections 1.2.1 and 1.5.2; Foundations
of Deep Learning, section 7.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import EmptyData, NonFinite, ShapeMismatch
from torchtheory.core.random import as_generator
from torchtheory.kernels.tangent.kernel import empirical_ntk
from torchtheory.kernels.tangent.linearization import outputs_on_tangent
from torchtheory.models.model import (
    Initial,
    Parameters,
    PureFunction,
    evaluation_mode,
    flatten,
    parameters_from,
)

# Rows of the kernel over inputs and outputs up to which it is compared in full.
LARGEST_KERNEL = 640


@dataclass(frozen=True, slots=True)
class Laziness:
    r"""How far a network is from where its training began, in parameters, kernel and function.

    Attributes:
        relative_movement: $\|\theta-\theta_0\|/\|\theta_0\|$ over the trainable parameters.
        movement_by_parameter: the same for each of them by name.
        kernel_drift: $\|\Theta-\Theta_0\|_F/\|\Theta_0\|_F$ on the samples.
        output_change: $\sup|f(x,\theta)-f(x,\theta_0)|$ over samples and outputs.
        linearization_gap: $\sup|f(x,\theta)-f_{\mathrm{lin}}(x,\theta)|$, the same.
        alignment_before, alignment_after: alignment of the kernel with the targets at
            $\theta_0$ and $\theta$; None without targets.
        samples: how many inputs it rests on.
        note: how they were chosen, and which kernel was compared.
        kernels: the kernels on them at $\theta_0$ and $\theta$, `[n, n, C, C]` or `[n, n]`.
        changes, gaps: what the two suprema are taken of, the root mean square over the outputs of
            each sample, `[n]`.
    """

    relative_movement: float
    movement_by_parameter: Mapping[str, float]
    kernel_drift: float
    output_change: float
    linearization_gap: float
    alignment_before: float | None
    alignment_after: float | None
    samples: int
    note: str
    kernels: tuple[Tensor, Tensor] = field(compare=False, repr=False)
    changes: Tensor = field(compare=False, repr=False)
    gaps: Tensor = field(compare=False, repr=False)

    @property
    def relative_gap(self) -> float:
        """The gap as a fraction of the change of the outputs: 0 for a lazy training."""
        return _ratio(self.linearization_gap, self.output_change)


def measure_laziness(
    model: nn.Module,
    initial: Initial,
    x: Tensor,
    targets: Tensor | None = None,
    *,
    limit: int = 64,
    generator: torch.Generator | int = 0,
) -> Laziness:
    r"""How far `model` has left the linear regime around `initial`, on the inputs `x`.

    Args:
        model: the trained network. It is looked at in evaluation mode and left as it is.
        initial: where training began: parameters by name, a state dict, or a module of the same
            shape. Buffers (running statistics) are the trained model's at both points, so that
            only the parameters differ.
        x: inputs `[n, ...]`.
        targets: `[n]` or `[n, C]` numbers, or `[n]` whole numbers as class labels.
        limit: most inputs used. Beyond it, so many are drawn at random without replacement.
        generator: of that draw.

    The kernel has a row for each of the $nC$ outputs while that is at most 640, else it is
    the kernel summed over outputs. Cost: two tangent kernels on `limit` inputs and one forward
    derivative; memory $O((nC)^2)$ and what `empirical_ntk` takes.

    >>> net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    >>> report = measure_laziness(net, net, torch.linspace(-1, 1, 5)[:, None])
    >>> report.relative_movement, report.kernel_drift, report.relative_gap
    (0.0, 0.0, 0.0)
    """
    whole_number(limit, "limit", least=1)
    if x.ndim == 0 or len(x) == 0:
        raise EmptyData(
            f"laziness is measured on inputs, and there is none (the shape is {list(x.shape)})"
        )
    if targets is not None and len(targets) != len(x):
        raise ShapeMismatch(f"there are {len(x)} inputs but {len(targets)} targets")
    f = PureFunction(model)
    f.refuse_non_finite_parameters()
    trained = list(f.trainable)
    start = parameters_from(model, initial)
    x, targets, note = _choose(x, targets, limit, generator)

    with evaluation_mode(model):
        now, before, tangent = outputs_on_tangent(model, start, x)
        full = now.numel() <= LARGEST_KERNEL
        first, last = (
            empirical_ntk(model, x, parameters=point, outputs="full" if full else "trace").detach()
            for point in ({**f.parameters, **start}, f.parameters)
        )
    if not (bool(torch.isfinite(now).all()) and bool(torch.isfinite(tangent).all())):
        raise NonFinite("the outputs of the model contain NaN or infinity")
    note += "" if full else "; kernels are summed over the outputs"
    moved = {k: f.parameters[k] - start[k] for k in trained}
    aligned: list[float | None] = [None, None]
    if targets is not None:
        aligned = [kernel_target_alignment(summed(k), targets) for k in (first, last)]
    return Laziness(
        relative_movement=_relative_length(moved, {k: start[k] for k in trained}),
        movement_by_parameter={k: _relative_length({k: moved[k]}, {k: start[k]}) for k in trained},
        kernel_drift=kernel_drift(first, last),
        output_change=float((now - before).abs().max()),
        linearization_gap=float((now - tangent).abs().max()),
        alignment_before=aligned[0],
        alignment_after=aligned[1],
        samples=len(x),
        note=note,
        kernels=(first, last),
        changes=_size_by_sample(now - before),
        gaps=_size_by_sample(now - tangent),
    )


def _size_by_sample(outputs: Tensor) -> Tensor:
    return outputs.detach().reshape(len(outputs), -1).square().mean(1).sqrt()


def kernel_drift(before: Tensor, after: Tensor) -> float:
    r"""$\|\Theta_t-\Theta_0\|_F/\|\Theta_0\|_F$ of two kernels of one shape.

    >>> kernel_drift(torch.eye(2), 3 * torch.eye(2))
    2.0
    """
    if before.shape != after.shape:
        raise ShapeMismatch(
            f"the kernels have the shapes {list(before.shape)} and {list(after.shape)}"
        )
    return _ratio(float((after - before).norm()), float(before.norm()))


def kernel_target_alignment(kernel: Tensor, targets: Tensor) -> float:
    r"""The cosine $\langle K,YY^\top\rangle_F/(\|K\|_F\|YY^\top\|_F)$, in [-1, 1].

    Args:
        kernel: `[n, n]`.
        targets: `[n]` or `[n, C]` numbers. Whole numbers `[n]` are classes: $Y$ has
            the column of a class 1 on its samples and 0 elsewhere, centered.

    >>> y = torch.tensor([1.0, -1.0])
    >>> round(kernel_target_alignment(torch.outer(y, y), y), 6)
    1.0
    """
    y = targets
    if not y.is_floating_point():
        if y.ndim == 1 and len(y):
            y = F.one_hot(y.long() - int(y.min())).to(kernel.dtype)
            y = y - y.mean(0)
        else:
            y = y.to(kernel.dtype)
    y = y.to(kernel).reshape(len(y), -1)
    if kernel.shape != (len(y), len(y)):
        raise ShapeMismatch(f"{len(y)} targets do not go with a kernel {list(kernel.shape)}")
    # <K, YY'> = tr(Y'KY), and |YY'| = |Y'Y|
    return _ratio(float((y * (kernel @ y)).sum()), float(kernel.norm() * (y.mT @ y).norm()))


def summed(kernel: Tensor) -> Tensor:
    """A kernel `[N, M, C, C]` summed over its outputs; one that is `[N, M]` as it is.

    >>> summed(torch.ones(3, 2, 5, 5)).shape
    torch.Size([3, 2])
    """
    return kernel if kernel.ndim == 2 else kernel.diagonal(dim1=-2, dim2=-1).sum(-1)


def _choose(
    x: Tensor, targets: Tensor | None, limit: int, generator: torch.Generator | int
) -> tuple[Tensor, Tensor | None, str]:
    if len(x) <= limit:
        return x, targets, f"all {len(x)} inputs"
    chosen = torch.randperm(len(x), generator=as_generator(generator))[:limit].sort().values
    note = f"{limit} of {len(x)} inputs, drawn at random"
    here = chosen.to(x.device)
    return x[here], None if targets is None else targets[chosen.to(targets.device)], note


def _relative_length(moved: Parameters, start: Parameters) -> float:
    return _ratio(float(flatten(moved).norm()), float(flatten(start).norm()))


def _ratio(part: float, whole: float) -> float:
    """A ratio; nothing out of nothing is nothing."""
    if whole == 0:
        return 0.0 if part == 0 else math.inf
    return part / whole
