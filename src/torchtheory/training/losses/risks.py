r"""Risk: the mean loss over a law, over a sample, and over the part held out of training.

$$
R(f) = \mathbb E\,\ell(f(x), y), \qquad \hat R_s(f) = \frac1s \sum_i \ell(f(x_i), y_i).
$$

The empirical risk of samples that the model has not met, in training or in selecting it, is an
unbiased estimate of the risk with a standard error of order $s^{-1/2}$. The samples it was
trained on, or was early-stopped by, give a biased one. Sources: notes "Deep Learning", section
2.2; slides, "Objective"; The Modern Mathematics of Deep Learning, Definitions 1.7 and 1.11.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from torchtheory.core.checks import open_fraction
from torchtheory.core.errors import EmptyData
from torchtheory.core.estimate import Estimate
from torchtheory.core.mapping import Mapped
from torchtheory.models.losses import USUAL_LOSS, are_log_probabilities, are_probabilities
from torchtheory.models.model import global_randomness_kept
from torchtheory.models.problem import Loss, Problem, Task
from torchtheory.models.samples import Data, Samples, collect
from torchtheory.training.loop.seeds import derived_generator

#: Numbers of outputs of a constant, over all samples, up to which the best one is descended to.
_DESCENDED = 2**24

#: Outputs that are looked at to see whether they are probabilities.
_LOOKED_AT = 64

Sampler = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def split_indices(samples: int, fraction: float, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to hold out: `round(fraction * samples)` at random, at least 1.

    >>> kept, held = split_indices(10, 0.3)
    >>> len(kept), len(held), sorted([*kept.tolist(), *held.tolist()]) == list(range(10))
    (7, 3, True)
    """
    open_fraction(fraction, "the validation fraction")
    if samples < 2:
        raise EmptyData(f"{samples} sample cannot be split into two parts")
    held = min(max(round(fraction * samples), 1), samples - 1)
    order = torch.randperm(samples, generator=derived_generator(seed, "split"))
    return order[held:].sort().values, order[:held].sort().values


def hold_out(data: Data, fraction: float, *, seed: int = 0) -> tuple[Samples, Samples]:
    """Samples to train on, and a random `fraction` held out.

    >>> train, validation = hold_out((torch.arange(10.0), torch.zeros(10)), 0.2)
    >>> len(train), len(validation)
    (8, 2)
    """
    samples = collect(data, "train", limit=sys.maxsize, seed=seed)
    kept, held = split_indices(len(samples), fraction, seed=seed)
    return (
        Samples(samples.x[kept], samples.y[kept], samples.note),
        Samples(samples.x[held], samples.y[held], samples.note),
    )


def empirical_risk(
    model: nn.Module, data: Data, loss: Loss | None = None, task: Task | None = None
) -> Estimate:
    r"""The mean loss $\frac1s\sum_i \ell(f(x_i), y_i)$, with its standard error.

    Args:
        model: any module; run in evaluation mode and left as it was.
        data: `(x, y)`, a `Dataset` or a `DataLoader`; all of it is used.
        loss: mean over a batch of `loss(outputs, targets)`; the task's usual one unless given.
        task: inferred unless given, as for `Problem`.

    The standard error is that of an estimate of the risk only if the model was chosen without
    these samples.

    >>> net = nn.Linear(1, 1)
    >>> _ = nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    >>> risk = empirical_risk(net, (torch.ones(4, 1), torch.tensor([1.0, 1.0, 3.0, 3.0])))
    >>> risk.value, risk.samples
    (5.0, 4)
    """
    problem = Problem(model, data, loss=loss, task=task, limit=sys.maxsize)
    return Estimate.of(sample_losses(problem, problem.train))


def risk(
    model: nn.Module,
    sampler: Sampler,
    samples: int,
    *,
    loss: Loss | None = None,
    task: Task | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""The risk $\mathbb E\,\ell(f(x), y)$ by Monte Carlo, with its standard error.

    Args:
        sampler: `sampler(n, generator)` -> `(x, y)`, `n` independent draws of the law.
        samples: how many fresh draws.

    >>> def coin(n, generator):
    ...     return torch.zeros(n, 1), torch.randint(0, 2, (n, 1), generator=generator).float()
    >>> net = nn.Linear(1, 1)
    >>> _ = nn.init.constant_(net.bias, 0.5)
    >>> risk(net, coin, 100, task="regression").value       # (1/2 - y)^2 whatever the coin shows
    0.25
    """
    if samples < 1:
        raise EmptyData(f"a risk needs at least one draw, not {samples!r}")
    source = generator if generator is not None else derived_generator(0, "risk")
    return empirical_risk(model, sampler(samples, source), loss, task)


def sample_losses(problem: Problem, samples: Samples) -> Tensor:
    """The loss `[n]` of every sample of a problem, in chunks."""
    each = Mapped(lambda o, y: problem.loss(o.unsqueeze(0), y.unsqueeze(0)))
    with torch.no_grad(), global_randomness_kept():
        outputs = problem.outputs(samples)
        parts = [
            each(o, y)
            for o, y in zip(
                torch.split(outputs, problem.chunk),
                torch.split(samples.y, problem.chunk),
                strict=True,
            )
        ]
    return torch.cat(parts)


def best_constant(problem: Problem, samples: Samples, *, unseen: float = 0.5) -> Tensor | None:
    r"""The outputs of one sample that serve all best, $\arg\min_c\sum_i\ell(c,y_i)$.

    The mean of the targets for the squared error, the logits of the shares of the classes for the
    cross entropy, and these shares, or their logarithms, where a model returns probabilities or
    theirs. For another loss it is found by descent from there, and for plain numbers from the
    medians as well, which are best for the absolute error; that is the minimum if the loss is
    smooth and convex. None where no constant is known.

    Args:
        problem: whose loss it is.
        samples: with the targets.
        unseen: as how many samples a class counts that does not occur. Its best logit is minus
            infinity, which would be a poor answer elsewhere.

    Cost: up to 50 evaluations of a loss of the user's, and their derivatives in the constant; two
    where these are more than $2^{24}$ numbers, which are then compared only.

    >>> y = torch.tensor([[1.0], [1.0], [2.0], [4.0]])
    >>> p = Problem(nn.Linear(1, 1), (torch.zeros(4, 1), y))
    >>> best_constant(p, p.train)
    tensor([2.])
    >>> p = Problem(nn.Linear(1, 1), (torch.zeros(3, 1), y[1:]), loss=nn.L1Loss())
    >>> best_constant(p, p.train)
    tensor([2.])
    """
    known = _usual_constant(problem, samples, unseen)
    if known is None or problem.loss is USUAL_LOSS.get(problem.task):
        return known
    starts = [known]
    if problem.task == "regression":
        middle = samples.y.to(known).median(0).values
        starts.append(middle.expand(known.shape))
    elif not problem.loss_takes_logits:
        # probabilities are not to be moved: not every number is one
        outputs = problem.outputs(samples.first(_LOOKED_AT))
        if are_log_probabilities(outputs):
            return known.log_softmax(-1)
        if are_probabilities(outputs):
            return known.softmax(-1)
        within = bool(((outputs >= 0) & (outputs <= 1)).all())
        if problem.task in ("binary", "multilabel", "ordinal") and within:
            return known.sigmoid()
    return least_constant(problem, samples, starts)


def _usual_constant(problem: Problem, samples: Samples, unseen: float) -> Tensor | None:
    """The best constant for the loss that `Problem` chooses for its task."""
    y = samples.y
    shape = problem.outputs(samples.first(1)).shape[1:]
    like = problem.function.reference()
    if problem.task in ("multiclass", "labeling"):
        labels = y[y >= 0].cpu()  # positions without a label are below 0
        counts = torch.bincount(labels, minlength=shape[-1])[: shape[-1]].to(like)
        return (counts.clamp_min(unseen) / max(1, len(labels))).log().expand(shape)
    if problem.task == "ranking":
        return torch.zeros(shape).to(like)
    if problem.task not in ("regression", "binary", "multilabel", "count", "ordinal"):
        return None
    mean = y.to(like).mean(0)
    few = unseen / len(y)
    if problem.task in ("binary", "multilabel") or (problem.task == "ordinal" and mean.numel() > 1):
        mean = torch.logit(mean.clamp(few, 1 - few))
    elif problem.task == "count" and problem.outputs_are_logarithms:
        mean = mean.clamp_min(few).log()
    return mean.expand(shape) if mean.numel() in (1, math.prod(shape)) else None


def least_constant(problem: Problem, samples: Samples, starts: Sequence[Tensor]) -> Tensor:
    """The constant with the smallest loss that descent from several finds, or one of them."""
    y = samples.y

    def loss(constant: Tensor) -> Tensor:
        return problem.loss(constant.expand(len(y), *constant.shape), y).reshape(())

    def height(constant: Tensor) -> float:
        value = math.nan
        # a loss of the user's may want something else
        with torch.no_grad(), global_randomness_kept(), suppress(Exception):
            value = float(loss(constant))
        return value if math.isfinite(value) else math.inf

    best = min(starts, key=height).detach()
    if height(best) == math.inf or best.numel() * len(y) > _DESCENDED:
        return best
    moved = best.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([moved], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(moved)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad(), global_randomness_kept(), suppress(Exception):  # no derivative, say
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return min((best, moved.detach()), key=height)


def constant_loss(problem: Problem, samples: Samples) -> float | None:
    """The loss of the best constant: the entropy of the classes for the cross entropy.

    None where no constant is known.

    >>> p = Problem(nn.Linear(1, 2), (torch.zeros(4, 1), torch.tensor([0, 1, 1, 0])))
    >>> round(constant_loss(p, p.train), 4)                 # log 2
    0.6931
    """
    y = samples.y
    usual = problem.loss is USUAL_LOSS.get(problem.task)
    if usual and (problem.is_classification or problem.task == "labeling"):
        labels = y[y >= 0].long()
        shares = torch.bincount(labels.flatten()).double() / max(1, labels.numel())
        return float(torch.special.entr(shares).sum())
    constant = best_constant(problem, samples)
    if constant is None:
        return None
    with torch.no_grad():
        return float(problem.loss(constant.expand(len(y), *constant.shape), y))


def most_frequent_errors(problem: Problem, samples: Samples) -> int:
    """How many samples always naming the most frequent class of the training data gets wrong.

    >>> p = Problem(nn.Linear(1, 2), (torch.zeros(4, 1), torch.tensor([0, 1, 1, 1])))
    >>> most_frequent_errors(p, p.train)
    1
    """
    frequent = torch.mode(problem.train.y.flatten()).values
    return int((samples.y.flatten() != frequent).sum())


def least_empirical_risk(
    hypotheses: Sequence[nn.Module],
    data: Data,
    loss: Loss | None = None,
    task: Task | None = None,
) -> tuple[int, list[float]]:
    r"""Empirical risk minimization over a finite class: the index of the best, and all risks.

    $\mathcal A^{\mathrm{erm}}(s) \in \arg\min_{f\in\mathcal F} \hat R_s(f)$; the first of
    equals wins.

    >>> nets = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    >>> for net, weight in zip(nets, (1.0, 2.0)):
    ...     _ = nn.init.constant_(net.weight, weight)
    >>> least_empirical_risk(nets, (torch.ones(2, 1), torch.tensor([2.0, 3.0])))
    (1, [2.5, 0.5])
    """
    if not hypotheses:
        raise EmptyData("empirical risk minimization needs at least one hypothesis")
    samples = collect(data, "train", limit=sys.maxsize)
    risks = [empirical_risk(f, samples, loss, task).value for f in hypotheses]
    return min(range(len(risks)), key=risks.__getitem__), risks
