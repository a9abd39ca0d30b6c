r"""A linear surrogate near an input (LIME): which features, left in, raise the score?

Sets of features are drawn by fair coins, $z\in\{0,1\}^p$, the score $v(z)$ is asked with only these
features left, and a linear function is fitted by weighted least squares,

$$
\min_{\beta_0,\beta}\ \sum_j\pi(z_j)\bigl(v(z_j)-\beta_0-\beta\cdot z_j\bigr)^2+\lambda\|\beta\|^2,
\qquad \pi(z)=\exp\Bigl(-\bigl(1-\sqrt{|z|/p}\bigr)^2/h^2\Bigr),
$$

with more weight on sets from which little is missing. Source: Mathematical Aspects of Deep
Learning, section 5.3.3; Ribeiro, Singh and Guestrin (2016).
"""

from __future__ import annotations

import time

import numpy as np
import torch
from sklearn.linear_model import lars_path_gram
from torch import Tensor, nn

from torchtheory.core.checks import nonnegative_number, positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.explanation.explanation import Explanation, explained
from torchtheory.explanation.removal import Baseline, Features, Patch, Removal
from torchtheory.explanation.score import Inputs, Target, open_score

#: Entries of masks that are drawn at once.
_ENTRIES_AT_ONCE = 2**22


def lime(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    *,
    samples: int = 1000,
    width: float = 0.25,
    penalty: float = 0.0,
    select: int | None = None,
    features: Features | None = None,
    patch: Patch | None = None,
    baseline: Baseline = 0.0,
    background: Inputs | None = None,
    probabilities: bool = False,
    output: int | str | None = None,
    generator: RandomSource = None,
) -> Explanation:
    r"""The coefficients of a weighted linear fit to scores with features left out.

    For a linear score and baseline 0 they are $w_ix_i$, up to rounding. Otherwise they estimate the
    best linear fit over all sets, and depend on those that were drawn: `error` has their standard
    errors (of the sandwich estimator, for a misfit of any shape). Draws are independent from sample
    to sample. `reference` is $\beta_0$, so `gap` says by how much the surrogate misses the score.

    Args:
        model, x, target, output: see `open_score`.
        samples: sets of features that are tried for each input; more than there are features.
        width: $h$ of the weights.
        penalty: $\lambda$ of the ridge.
        select: at most so many features are left in the fit: those that come first on the path of
            the lasso; the others get 0. Errors do not count the choice.
        features: which entries make a feature, whole numbers in the shape of one sample; a number
            of a table, a pixel with its channels or a word unless given. What a feature is worth is
            shared equally among its entries.
        patch: side, or height and width, of patches of an image that make a feature.
        baseline: what is put in the place of a missing feature: a number, or inputs of one sample
            or of each.
        background: samples whose values stand in the place of missing features; scores are
            averaged over them.
        probabilities: whether to explain the probability of a class instead of its score.
        generator: of the sets.

    Time: `samples` passes forward for each input (times samples of the background), and a linear
    system with a row per feature. Memory: `samples` × features masks for a few inputs, and the
    chunk that goes through the network.

    Raises:
        InvalidInput: if there are fewer samples than coefficients.

    >>> net = nn.Linear(3, 1).double()
    >>> x = torch.randn(2, 3).double()
    >>> torch.allclose(lime(net, x, samples=50).relevance, net.weight * x)
    True
    """
    started = time.perf_counter()
    samples = whole_number(samples, "samples", least=2)
    positive_number(width, "width")
    nonnegative_number(penalty, "penalty")
    source = as_generator(generator)
    with open_score(model, x, target, output=output, probabilities=probabilities) as score:
        removal = Removal(
            score, features=features, patch=patch, baseline=baseline, background=background
        )
        p = removal.count
        if select is not None:
            whole_number(select, "select", least=1, most=p)
        if samples < p + 2:
            raise InvalidInput(
                f"a linear fit over {p} features needs samples={p + 2} or more, better ten times "
                f"as many, not {samples}; group features with features= or patch="
            )
        values, errors, intercepts = [], [], []
        rows = torch.arange(len(score), device=score.points.device)
        for some in torch.split(rows, max(1, _ENTRIES_AT_ONCE // (samples * p))):
            draws = torch.randint(
                2, (len(some), samples, p), generator=source, device=source.device, dtype=torch.int8
            )
            kept = draws.bool().to(rows.device)
            scores = removal(kept, some).double()
            share = kept.double().mean(2)
            weights = torch.exp(-(((1 - share.sqrt()) / width) ** 2))
            intercept, fitted, error = _fit(kept.double(), scores, weights, penalty, select)
            values.append(fitted)
            errors.append(error)
            intercepts.append(intercept)
        return explained(
            score,
            removal.spread(torch.cat(values).to(score.points)),
            "LIME",
            started=started,
            reference=torch.cat(intercepts).to(score.values),
            error=removal.spread(torch.cat(errors).to(score.points)),
        )


def _fit(
    masks: Tensor, scores: Tensor, weights: Tensor, penalty: float, select: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Intercepts `[n]` and coefficients `[n, p]` of weighted ridges, and their standard errors.

    All is seen from the set of the largest weight, and centered, before it is multiplied: with
    almost all of the weight on one set, differences of large sums would be rounding.
    """
    heaviest = (torch.arange(len(masks), device=masks.device), weights.argmax(1))
    here, score_here = masks[heaviest], scores[heaviest]
    centered, rest = masks - here[:, None], scores - score_here[:, None]
    share = weights / weights.sum(1, keepdim=True)
    middle, level = (centered * share[..., None]).sum(1), (rest * share).sum(1)
    centered, rest = centered - middle[:, None], rest - level[:, None]
    weighted = centered * weights[..., None]
    gram = weighted.mT @ centered
    moments = (weighted.mT @ rest[..., None])[..., 0]
    used = torch.ones_like(moments)
    if select is not None:
        used = _first_on_the_path(gram, moments, select)
    # what is not used has the equation "coefficient = 0"
    system = gram * used[:, :, None] * used[:, None]
    system = system + torch.diag_embed(penalty * used + (1 - used))
    scale = system.diagonal(dim1=1, dim2=2).sqrt()  # weights may be tiny, and all alike
    inverse, failed = torch.linalg.inv_ex(system / scale[:, None] / scale[..., None])
    size = inverse.abs().amax((1, 2))
    if bool((failed > 0).any() or not (size < 1e-3 / torch.finfo(size.dtype).eps).all()):
        raise InvalidInput(
            "the sets that were drawn do not tell the features apart: give more samples, a larger "
            "width, or a penalty above 0"
        )
    inverse = inverse / scale[:, None] / scale[..., None]
    fitted = (inverse @ (moments * used)[..., None])[..., 0]
    left = weights * (rest - (centered @ fitted[..., None])[..., 0])
    influence = (centered * left[..., None] * used[:, None]) @ inverse  # [n, samples, p]
    freedom = scores.shape[1] / (scores.shape[1] - 1 - used.sum(1, keepdim=True)).clamp(min=1)
    errors = (influence.square().sum(1) * freedom).sqrt() * used
    return score_here + level - ((here + middle) * fitted).sum(1), fitted, errors


def _first_on_the_path(gram: Tensor, moments: Tensor, select: int) -> Tensor:
    """Which features, 1 or 0, `[n, p]`, come first on the lasso's path.

    Args:
        gram, moments: `[n, p, p]` and `[n, p]`, of centered features.
        select: how many at most.
    """
    chosen = torch.zeros_like(moments)
    for k, (square, product) in enumerate(zip(gram.cpu(), moments.cpu(), strict=True)):
        scale = square.diagonal().sqrt()
        _, _, path = lars_path_gram(
            (product / scale).numpy(),
            (square / scale / scale[:, None]).numpy(),
            n_samples=1,
            method="lasso",
            return_path=True,
        )
        counts = (path != 0).sum(0)
        end = int(np.flatnonzero(counts <= select)[-1])
        chosen[k] = torch.as_tensor(path[:, end] != 0).to(chosen)
    return chosen
