r"""Shapley values: what a feature adds to the score, averaged over the orders of joining.

With $v(S)$ the score when only the features $S$ are there,

$$
\phi_i=\sum_{S\not\ni i}\frac{|S|!\,(p-1-|S|)!}{p!}\bigl(v(S\cup i)-v(S)\bigr).
$$

They are the only ones with four properties: they add up to $v(\text{all})-v(\emptyset)$, equal
players get equal shares, a feature that never changes the score gets 0, and the shares of a sum of
scores are the sums of shares. Source: Mathematical Aspects of Deep Learning, section 5.3.3;
Lundberg and Lee (2017).
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn

from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.explanation.explanation import Explanation, explained
from torchtheory.explanation.removal import Baseline, Features, Patch, Removal
from torchtheory.explanation.score import Inputs, Target, open_score

#: More features than this have too many sets to try them all.
MOST_FEATURES = 20

#: Random orders for each sample: a thousandth of the error of one.
MOST_ORDERS = 10**6

#: Scores of sets that are kept at once.
_SCORES_AT_ONCE = 2**22

#: Pairs of orders after which one looks whether the errors are small enough.
_LOOK_EVERY = 32


def shapley(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    *,
    permutations: int | None = None,
    within: float | None = None,
    features: Features | None = None,
    patch: Patch | None = None,
    baseline: Baseline = 0.0,
    background: Inputs | None = None,
    probabilities: bool = False,
    output: int | str | None = None,
    generator: RandomSource = None,
) -> Explanation:
    r"""The Shapley values of features, exactly or from random orders with standard errors.

    Exactly: all $2^p$ sets of features are tried in one batch, up to 20 features. Sampled: features
    join in random orders, each of which is also taken backwards, which removes the noise of every
    score that is quadratic in the presence of features. In both cases the values add up to
    $f(x)-v(\emptyset)$.

    Args:
        model, x, target, output: see `open_score`.
        permutations: random orders for each sample, an even number up to a million; all sets are
            tried unless given.
        within: sampling stops as soon as every standard error is at most this; `permutations`
            orders are taken at most. The errors it looks at are themselves estimates, so those
            that it stops at are somewhat too small.
        features: which entries make a feature, whole numbers in the shape of one sample; a number
            of a table, a pixel with its channels or a word unless given. What a feature is worth is
            shared equally among its entries.
        patch: side, or height and width, of patches of an image that make a feature.
        baseline: what is put in the place of a missing feature: a number, or inputs of one sample
            or of each.
        background: samples whose values stand in the place of missing features; scores are
            averaged over them.
        probabilities: whether to explain the probability of a class instead of its score.
        generator: of the orders.

    Time: $2^p$ passes forward for each sample, or $p-1$ for each order (times samples of the
    background). Memory: 2^p numbers for a sample, and the chunk that goes through the network.

    Raises:
        InvalidInput: for more than 20 features without `permutations`.

    >>> class Product(nn.Module):
    ...     def forward(self, x):
    ...         return x[:, 0] * x[:, 1]
    >>> shapley(Product(), torch.tensor([[2.0, 3.0]])).relevance
    tensor([[3., 3.]])
    """
    started = time.perf_counter()
    if within is not None:
        positive_number(within, "within")
        if permutations is None:
            raise InvalidInput("within= goes with permutations=, the most orders that are tried")
    with open_score(model, x, target, output=output, probabilities=probabilities) as score:
        removal = Removal(
            score, features=features, patch=patch, baseline=baseline, background=background
        )
        if permutations is None:
            values, reference, error = *_exact(removal), None
        else:
            values, reference, error = _sampled(removal, permutations, within, generator)
        return explained(
            score,
            removal.spread(values.to(score.points)),
            "Shapley values" if error is None else "sampled Shapley values",
            started=started,
            reference=reference.to(score.values),
            error=None if error is None else removal.spread(error.to(score.points)),
        )


def shapley_of_sets(scores: Tensor) -> Tensor:
    r"""Shapley values `[n, p]` from the scores `[n, 2^p]` of all sets, in double precision.

    The set with number $k$ has the features whose bits are 1 in $k$, feature 0 in the lowest bit.
    For each feature the sets with and without it stand in the two halves of an axis, so their
    differences are one subtraction, and each value is a mean of differences over sets, with weights
    that add up to 1. Time: p 2^p for each sample.

    >>> shapley_of_sets(torch.tensor([[0.0, 1.0, 2.0, 9.0]])).tolist()
    [[4.0, 5.0]]
    """
    n, p = len(scores), (scores.shape[1] - 1).bit_length()
    if p == 0 or scores.shape[1] != 2**p:
        raise InvalidInput(f"2^p scores of sets are needed for p features, not {scores.shape[1]}")
    sizes = torch.zeros(1, dtype=torch.long, device=scores.device)  # of the sets of other features
    for _ in range(p - 1):
        sizes = torch.cat([sizes, sizes + 1])
    shares = torch.tensor([1 / (p * math.comb(p - 1, s)) for s in range(p)], dtype=torch.float64)
    weights = shares.to(scores.device)[sizes]
    found = []
    for i in range(p):
        halves = scores.double().reshape(n, 2 ** (p - 1 - i), 2, 2**i)
        found.append((halves[:, :, 1] - halves[:, :, 0]).reshape(n, -1) @ weights)
    return torch.stack(found, 1)


def _exact(removal: Removal) -> tuple[Tensor, Tensor]:
    """All sets in one batch; values and the score of the empty set."""
    p = removal.count
    if p > MOST_FEATURES:
        raise InvalidInput(
            f"{p} features have 2^{p} sets, and all are tried up to {MOST_FEATURES} features: give "
            "permutations=200 to sample orders, or fewer features with features= or patch="
        )
    bits = torch.arange(p, device=removal.features.device)
    values, nothing = [], []
    rows = torch.arange(len(removal.score), device=bits.device)
    for some in torch.split(rows, max(1, _SCORES_AT_ONCE // 2**p)):
        scores = removal.of_sets(2**p, lambda _, which: (which[:, None] >> bits & 1).bool(), some)
        values.append(shapley_of_sets(scores))
        nothing.append(scores[:, 0])
    return torch.cat(values), torch.cat(nothing)


def _sampled(
    removal: Removal, permutations: int, within: float | None, generator: RandomSource
) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of opposite orders; values, the score of the empty set and standard errors."""
    pairs = whole_number(permutations, "permutations", least=4, most=MOST_ORDERS)
    if pairs % 2:
        raise InvalidInput(
            f"permutations come in pairs of opposite orders: {pairs + 1}, not {pairs}"
        )
    pairs //= 2
    source, n, p = as_generator(generator), len(removal.score), removal.count
    device = removal.features.device
    nothing = removal.nothing_left()
    ends = torch.stack([nothing, removal.score.values], 1).double()
    total = squares = error = torch.zeros(n, p, dtype=torch.float64, device=device)
    done = 0
    most = max(1, min(_LOOK_EVERY, _SCORES_AT_ONCE // (2 * n * p)))
    while done < pairs:
        some = min(most, pairs - done)
        ranks = torch.rand(n, some, p, generator=source, device=source.device).argsort(-1)
        ranks = torch.stack([ranks, p - 1 - ranks], 2).to(device)  # each feature's place
        marginal = _marginal(removal, ranks.reshape(n, 2 * some, p), ends)
        means = marginal.reshape(n, some, 2, p).mean(2)
        total = total + means.sum(1)
        squares = squares + means.square().sum(1)
        done += some
        if done > 1:
            variance = (squares - total.square() / done).clamp(min=0) / (done - 1)
            error = (variance / done).sqrt()
            if within is not None and done >= _LOOK_EVERY and float(error.max()) <= within:
                break
    return total / done, nothing, error


def _marginal(removal: Removal, ranks: Tensor, ends: Tensor) -> Tensor:
    """What each feature adds when it joins, `[n, m, p]`, for its places `ranks` `[n, m, p]`."""
    n, m, p = ranks.shape

    def kept(sample: Tensor, which: Tensor) -> Tensor:
        order, step = which // (p - 1), which % (p - 1)
        return ranks[sample, order] <= step[:, None]

    between = removal.of_sets(m * (p - 1), kept).double().reshape(n, m, p - 1)
    empty, whole = ends[:, None, :1].expand(n, m, 1), ends[:, None, 1:].expand(n, m, 1)
    gains = torch.cat([empty, between, whole], 2).diff(dim=2)  # of the feature that joins at a step
    return gains.gather(2, ranks)
