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

    For a linear score and baseline 0 they are $w_ix_i$ exactly. Otherwise they estimate the best
    linear fit over all sets, and depend on those that were drawn: `error` has their standard errors
    (of the sandwich estimator, for a misfit of any shape). Draws are independent from sample to
    sample. `reference` is $\beta_0$, so `gap` says by how much the surrogate misses the score.

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
            fitted, error = _fit(kept.double(), scores, weights, penalty, select)
            values.append(fitted[:, 1:])
            errors.append(error[:, 1:])
            intercepts.append(fitted[:, 0])
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
) -> tuple[Tensor, Tensor]:
    """Intercepts and coefficients `[n, 1 + p]` of weighted ridges, and their standard errors."""
    design = torch.cat([torch.ones_like(masks[..., :1]), masks], 2)
    weighted = design * weights[..., None]
    gram = weighted.mT @ design
    moments = (weighted.mT @ scores[..., None])[..., 0]
    shrunk = torch.full_like(moments[0], penalty)
    shrunk[0] = 0.0  # not the intercept
    used = torch.ones_like(moments)
    if select is not None:
        used[:, 1:] = _first_on_the_path(gram, moments, select)
    # what is not used has the equation "coefficient = 0"
    system = gram * used[:, :, None] * used[:, None] + torch.diag_embed(shrunk * used + (1 - used))
    inverse, failed = torch.linalg.inv_ex(system)
    if bool((failed > 0).any()):
        raise InvalidInput(
            "the sets that were drawn do not tell the features apart: give more samples, a larger "
            "width, or a penalty above 0"
        )
    fitted = (inverse @ (moments * used)[..., None])[..., 0]
    left = weights * (scores - (design @ fitted[..., None])[..., 0])
    influence = (design * left[..., None] * used[:, None]) @ inverse  # [n, samples, 1 + p]
    freedom = scores.shape[1] / (scores.shape[1] - used.sum(1, keepdim=True)).clamp(min=1)
    return fitted, (influence.square().sum(1) * freedom).sqrt() * used


def _first_on_the_path(gram: Tensor, moments: Tensor, select: int) -> Tensor:
    """Which features, 1 or 0, `[n, p]`, come first on the lasso's path."""
    centered = gram[:, 1:, 1:] - gram[:, 1:, :1] * gram[:, :1, 1:] / gram[:, :1, :1]
    products = moments[:, 1:] - gram[:, 1:, 0] * moments[:, :1] / gram[:, 0, :1]
    chosen = torch.zeros_like(products)
    for k, (square, product) in enumerate(zip(centered.cpu(), products.cpu(), strict=True)):
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
