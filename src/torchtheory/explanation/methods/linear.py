r"""The linear score, which explains itself: $f(x)=\sum_iw_ix_i+b$, so $R_i=w_ix_i$.

Source: Mathematical Aspects of Deep Learning, Eqs. (5.1)–(5.4).
"""

from __future__ import annotations

import time

import torch
from torch import nn

from torchtheory.core.errors import UnsupportedModel
from torchtheory.explanation.explanation import Explanation, explained
from torchtheory.explanation.score import Inputs, Target, open_score


def explain_linear(
    model: nn.Module, x: Inputs, target: Target = None, *, output: int | str | None = None
) -> Explanation:
    r"""$R_i = w_ix_i$ of a score that is linear in its inputs; its `reference` is $b$.

    The weights are read off by a gradient at 0, so any module will do that computes a linear
    function, also a chain of linear layers.

    Args:
        model, x, target, output: see `open_score`.

    Raises:
        UnsupportedModel: if the scores of these inputs are not $w\cdot x+b$, up to rounding.

    Time: two passes forward and one backward.

    >>> net = nn.Linear(2, 1)
    >>> x = torch.randn(3, 2)
    >>> found = explain_linear(net, x)
    >>> torch.allclose(found.relevance, net.weight * x), torch.allclose(found.reference, net.bias)
    (True, True)
    """
    started = time.perf_counter()
    with open_score(model, x, target, output=output) as score:
        bias, weight = score.gradients_in_chunks(torch.zeros_like(score.points))
        relevance = weight * score.points
        linear = bias + relevance.sum(1)
        terms = bias.abs() + relevance.abs().sum(1) + score.values.abs()
        excess = (score.values - linear).abs() - torch.finfo(terms.dtype).eps ** 0.75 * terms
        if bool((excess > 0).any()):
            k = int(excess.argmax())
            raise UnsupportedModel(
                f"the score of sample {k} is {float(score.values[k]):.3g}, where a linear one "
                f"would be {float(linear[k]):.3g}: use gradient_times_input, "
                "integrated_gradients or lrp"
            )
        return explained(score, relevance, "linear score", started=started, reference=bias)
