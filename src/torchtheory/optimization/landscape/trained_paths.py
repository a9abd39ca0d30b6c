r"""Paths of low loss that are trained, for networks of any kind.

The construction of `low_loss_paths` is for one hidden layer. Between
two solutions $\theta,\theta'$ of any network a corner $c$ can be looked for instead,
such that the loss is low on the two straight legs $\theta\to c\to\theta'$:

$$
\min_c\ \mathbb E_{t\sim U[0,1]}\,L(\phi_c(t)),\qquad
\phi_c(t)=\begin{cases}(1-2t)\theta+2tc,&t\le\tfrac12,\\
(2-2t)c+(2t-1)\theta',&t\ge\tfrac12.\end{cases}
$$

Nothing promises that there is such a corner or that descent finds it: the loss along the path that
was found is the only evidence. Source: Garipov et al. (2018), *Loss Surfaces, Mode Connectivity,
and Fast Ensembling of DNNs*, Eqs. (2) and (3).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import NonFinite
from torchtheory.core.progress import track
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.model import Parameters, unflatten
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.optimization.landscape.batch_statistics import normalized_by_batch
from torchtheory.optimization.landscape.parameter_space import Point, point_vector
from torchtheory.tracing.passes import evaluated, network_of


def bend_path(
    problem: Problem,
    start: Point,
    end: Point,
    *,
    steps: int = 500,
    batch: int = 128,
    learning_rate: float = 0.01,
    generator: RandomSource = None,
) -> Tensor:
    r"""The corners `[3, p]` of a path with one bend that is trained to have a low loss.

    The corner starts half way; every step draws a place $t$ on the path and a batch of
    samples, and moves the corner by Adam with a step that falls to 0 like a cosine. Batch
    normalization uses the statistics of the batch, everything else is in evaluation mode.
    `path_losses` of the result tells how low the path is, `probe_segment` how high the straight
    one.

    Args:
        problem: model, loss and data; the model is not changed.
        start, end: two solutions: networks of the model's shape, state dicts, or vectors `[p]`.
        steps: of training.
        batch: samples a step, drawn from the training data.
        learning_rate: of the first step: about how far a parameter moves in it.
        generator: seed or generator of places and batches.

    Costs `steps` gradients of a batch.

    >>> from torch import nn
    >>> one = torch.ones(1, 1)
    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> p = Problem(net, (one, one), task="regression")              # (1 - ab)²
    >>> ends = torch.tensor([2.0, 0.5]), torch.tensor([0.5, 2.0])
    >>> first, corner, last = bend_path(p, *ends, steps=200)
    >>> bool(((1 - corner.prod()) ** 2 < 0.1) & (corner < 1.25).all())
    True
    """
    whole_number(steps, "steps", least=1)
    whole_number(batch, "batch", least=1)
    positive_number(learning_rate, "learning_rate")
    ends = point_vector(problem, start, "the start"), point_vector(problem, end, "the end")
    corner = torch.lerp(*ends, 0.5).requires_grad_()
    optimizer = torch.optim.Adam([corner], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = as_generator(generator)
    places = torch.rand(steps, generator=generator).tolist()
    with torch.enable_grad():
        for t in track(places, "path"):
            part = problem.train.some(batch, generator)
            point = torch.lerp(ends[t > 0.5], corner, 1 - abs(2 * t - 1))
            loss = _loss(problem, part, unflatten(point, problem.trainable))
            if not bool(torch.isfinite(loss)):
                raise NonFinite(
                    f"the loss on the path is NaN or infinite, {float(loss)}: lower learning_rate"
                )
            (corner.grad,) = torch.autograd.grad(loss, corner)
            optimizer.step()
            schedule.step()
    return torch.stack([ends[0], corner.detach(), ends[1]])


def _loss(problem: Problem, part: Samples, parameters: Parameters) -> Tensor:
    """With every batch normalized by its own statistics."""
    network = network_of(problem.function, part.x)
    given = {network.parameters[k]: p for k, p in parameters.items() if k in network.parameters}
    returned = evaluated(problem.function, network, part.x, normalized_by_batch, given)
    return problem.loss(problem.function.chosen(returned), part.y).reshape(())
