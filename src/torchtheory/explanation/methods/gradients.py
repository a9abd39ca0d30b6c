r"""Explanations from gradients: at the input, around it, and on the way to it.

$$
\partial_i f(x),\qquad x_i\,\partial_i f(x),\qquad
\mathbb E_{\nu\sim\mathcal N(0,\sigma^2 I)}\,\partial_i f(x+\nu),\qquad
(x_i-b_i)\int_0^1\partial_i f\bigl(b+t(x-b)\bigr)\,dt .
$$

Only the last one is complete: its entries add up to $f(x)-f(b)$ for every differentiable $f$.
Source: Mathematical Aspects of Deep Learning, sections 5.3.1 and 5.3.3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.core.checks import one_of, positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.explanation.explanation import Explanation, explained
from torchtheory.explanation.removal import Baseline, references
from torchtheory.explanation.score import Inputs, Score, Target, open_score, refuse_constant

Quadrature = Literal["gauss", "midpoint"]
Numbers = np.ndarray[Any, Any]


def sensitivity(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    *,
    power: Literal[1, 2] = 1,
    output: int | str | None = None,
) -> Explanation:
    r"""How fast the score changes with each input, $\partial_i f(x)$ or its square.

    It says which inputs a change of would matter, not which ones made the score: for a linear score
    it is the same for every input.

    Args:
        model, x, target, output: see `open_score`.
        power: 1 for the derivative with its sign, 2 for its square.

    Time: one pass forward and one backward; for words, and for many samples, one more forward.

    >>> net = nn.Linear(2, 1)
    >>> bool((sensitivity(net, torch.randn(3, 2)).relevance == net.weight).all())
    True
    """
    started = time.perf_counter()
    one_of(power, "power", (1, 2))
    with _with_gradient(model, x, target, output) as (score, gradient):
        name = "sensitivity" if power == 1 else "squared sensitivity"
        return explained(score, gradient**power, name, started=started)


def gradient_times_input(
    model: nn.Module, x: Inputs, target: Target = None, *, output: int | str | None = None
) -> Explanation:
    r"""$R_i = x_i\,\partial_i f(x)$.

    Of a network of ReLUs without biases it adds up to the score (Euler's identity); its `gap` is
    what biases, and every other departure from $f(cx)=cf(x)$, keep to themselves.

    Args:
        model, x, target, output: see `open_score`.

    Time: one pass forward and one backward; for words, and for many samples, one more forward.

    >>> net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    >>> bool(gradient_times_input(net, torch.randn(5, 4)).gap.abs().max() < 1e-5)
    True
    """
    started = time.perf_counter()
    with _with_gradient(model, x, target, output) as (score, gradient):
        nothing = torch.zeros_like(score.values)
        return explained(
            score, score.points * gradient, "gradient × input", started=started, reference=nothing
        )


def smooth_gradient(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    *,
    sigma: float | None = None,
    samples: int = 50,
    times_input: bool = False,
    output: int | str | None = None,
    generator: RandomSource = None,
) -> Explanation:
    r"""The mean of gradients at noisy copies of the input (SmoothGrad), with standard errors.

    $$
    R_i = \frac1m\sum_{j=1}^m\partial_i f(x+\nu_j),\qquad\nu_j\sim\mathcal N(0,\sigma^2 I),
    $$

    an unbiased estimate of the gradient of the smoothed score $\mathbb E f(x+\nu)$. Its variance
    falls as $1/m$; noise is independent from sample to sample.

    Args:
        model, x, target, output: see `open_score`.
        sigma: standard deviation of the noise; unless given, a tenth of the distance between the
            smallest and the largest entry of the inputs.
        samples: noisy copies of each input, 2 or more.
        times_input: whether to multiply by the input.
        generator: of the noise.

    Time: `samples` passes forward and backward, in chunks; memory is that of a chunk.

    >>> net = nn.Linear(2, 1)
    >>> found = smooth_gradient(net, torch.randn(3, 2), samples=4)
    >>> torch.allclose(found.relevance, net.weight), round(float(found.error.max()), 5)
    (True, 0.0)
    """
    started = time.perf_counter()
    samples = whole_number(samples, "samples", least=2)
    source = as_generator(generator)
    with open_score(model, x, target, output=output) as score:
        if sigma is None:
            width = float(score.points.max() - score.points.min()) / 10
            if width == 0:
                raise InvalidInput("all inputs are the same number: give sigma, the noise's size")
        else:
            width = positive_number(sigma, "sigma")
        scale = score.points if times_input else torch.ones_like(score.points)
        total = torch.zeros_like(score.points)
        # in double precision, or squares would lose a small spread
        sums = score.by_place(total).double().expand(2, -1, -1).clone()
        for start in range(0, len(score) * samples, score.at_once):
            stop = min(start + score.at_once, len(score) * samples)
            rows = torch.arange(start, stop, device=total.device) // samples
            points = score.points[rows]
            noise = gaussian(
                *points.shape, generator=source, dtype=points.dtype, device=points.device
            )
            gradient = score.gradients(points + width * noise, rows)[1] * scale[rows]
            total.index_add_(0, rows, gradient)
            numbers = score.by_place(gradient).double()
            sums[0].index_add_(0, rows, numbers)
            sums[1].index_add_(0, rows, numbers.square())
        variance = (sums[1] - sums[0].square() / samples).clamp(min=0) / (samples - 1)
        name = "SmoothGrad × input" if times_input else "SmoothGrad"
        error = score.shared((variance / samples).sqrt().to(total))
        return explained(score, total / samples, name, started=started, error=error)


def integrated_gradients(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    *,
    baseline: Baseline = 0.0,
    background: Inputs | None = None,
    steps: int = 32,
    rule: Quadrature = "gauss",
    output: int | str | None = None,
) -> Explanation:
    r"""Gradients integrated on the straight way from a baseline to the input.

    $$
    R_i = (x_i-b_i)\int_0^1\partial_i f\bigl(b+t(x-b)\bigr)\,dt,\qquad\sum_iR_i=f(x)-f(b).
    $$

    The `gap` of the explanation is the error of the quadrature in this sum, so a small one says
    that `steps` are enough.

    Args:
        model, x, target, output: see `open_score`.
        baseline: where the way begins: a number, or inputs of one sample or of each.
        background: several baselines, over which relevance and reference are averaged.
        steps: points on the way.
        rule: `gauss` is exact where the score is a polynomial of degree up to 2 steps on the way;
            `midpoint` takes points at equal distances, with an error of order `steps` to the -2.

    Time: `steps` passes forward and backward for each baseline, in chunks; memory is that of a
    chunk.

    >>> class Product(nn.Module):
    ...     def forward(self, x):
    ...         return x[:, 0] * x[:, 1]
    >>> integrated_gradients(Product(), torch.tensor([[2.0, 3.0]]), steps=1).relevance
    tensor([[3., 3.]])
    """
    started = time.perf_counter()
    steps = whole_number(steps, "steps", least=1)
    nodes, weights = _QUADRATURES[one_of(rule, "rule", tuple(_QUADRATURES))](steps)
    with open_score(model, x, target, output=output) as score:
        starts = references(score, baseline, background)
        t, w = (torch.as_tensor(a).to(score.points) for a in (nodes, weights))
        n, many = len(score), len(starts)
        own = starts.shape[1] > 1  # a baseline for each sample
        relevance, total = torch.zeros_like(score.points), n * many * steps
        for start in range(0, total, score.at_once):
            place = torch.arange(start, min(start + score.at_once, total), device=t.device)
            rows, which, node = place // (many * steps), place // steps % many, place % steps
            begin = starts[which, rows if own else 0]
            way = score.points[rows] - begin
            gradient = score.gradients(begin + t[node, None] * way, rows)[1]
            relevance.index_add_(0, rows, gradient * way * (w[node, None] / many))
        reference = torch.zeros_like(score.values)
        for place in torch.split(torch.arange(n * many, device=t.device), score.at_once):
            rows = place // many
            begin = starts[place % many, rows if own else 0]
            reference.index_add_(0, rows, score.in_chunks(begin, rows) / many)
        name = "integrated gradients"
        return explained(score, relevance, name, started=started, reference=reference)


@contextmanager
def _with_gradient(
    model: nn.Module, x: Inputs, target: Target, output: int | str | None
) -> Iterator[tuple[Score, Tensor]]:
    """A score and its gradient at the samples, `[n, d]`, by the pass that opens it if it can."""
    passed: list[Tensor] = []

    def first(score: Score, points: Tensor) -> Tensor:
        with torch.enable_grad():
            moved = points.detach().requires_grad_(True)
            passed[:] = moved, score.run(moved)
        return passed[1].detach()

    with open_score(model, x, target, output=output, first=first) as score:
        if not passed:
            yield score, score.gradients_in_chunks(score.points)[1]
            return
        with torch.enable_grad():
            values = score.selected(passed[1], None)
            refuse_constant(values)
            (gradient,) = torch.autograd.grad(values.sum(), passed[0])
        score.backwards += len(score)
        passed.clear()
        yield score, gradient


def _gauss(steps: int) -> tuple[Numbers, Numbers]:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return (nodes + 1) / 2, weights / 2


def _midpoint(steps: int) -> tuple[Numbers, Numbers]:
    return (np.arange(steps) + 0.5) / steps, np.full(steps, 1 / steps)


#: Nodes and weights on [0, 1].
_QUADRATURES: dict[Quadrature, Callable[[int], tuple[Numbers, Numbers]]] = {
    "gauss": _gauss,
    "midpoint": _midpoint,
}
