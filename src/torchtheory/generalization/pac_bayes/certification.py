r"""Risk certificates: a number that the test error of a stochastic network does not exceed.

With probability at least $1-\delta-\delta'$ over the samples and the draws of weights,

$$
\mathbb E_QR\le\mathrm{kl}^{-1}\Bigl(\hat r\;\Big|\;\frac1n\Bigl[\mathrm{KL}(Q\|P)
+\ln\frac{J(n)}\delta+\sum_\ell\ln\frac{\pi^2j_\ell^2}6\Bigr]\Bigr),
$$

where $\hat r\ge\mathbb E_QR_S$ but for $\delta'$ (`gibbs_risk`), $J$ is the
exact constant of the binary divergence (`bounds`) and the last sum pays for scales chosen
from a grid (`gaussian_prior`). Source: Foundations of Deep Learning, section 9.2; Dziugaite
and Roy (2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from scipy import stats
from torch import Tensor, nn

from torchtheory.core.checks import described, open_fraction, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.generalization.pac_bayes.bernoulli_kl import upper_kl_inverse
from torchtheory.generalization.pac_bayes.bound_training import BoundEpoch, minimize_bound
from torchtheory.generalization.pac_bayes.bounds import KL, log_moment
from torchtheory.generalization.pac_bayes.flat_minima import flatness
from torchtheory.generalization.pac_bayes.gaussian_prior import GaussianPrior, PriorChoice
from torchtheory.generalization.pac_bayes.gibbs_risk import GibbsRisk, gibbs_risk, mistakes
from torchtheory.generalization.pac_bayes.stochastic_network import (
    Noise,
    StochasticNetwork,
    fresh_initialization,
    spread_like,
)
from torchtheory.models.model import Parameters, PureFunction
from torchtheory.models.problem import Problem, Task
from torchtheory.models.samples import Data, Samples
from torchtheory.models.untouched import copied
from torchtheory.training.loop.seeds import derived_generator, derived_seed
from torchtheory.training.loop.trainer import fit

EVERYTHING = 10**12
LEAST_SAMPLES = 8
#: A prior that errs less on the bound's samples than on the test's, and by chance only so rarely,
#: has seen them.
SUSPICION = 1e-6


@dataclass(frozen=True)
class RiskCertificate:
    """A PAC-Bayes certificate with everything it rests on.

    Attributes:
        claimed: the bound the formula gives.
        confidence: probability that it holds, 1 - delta - delta_draws.
        delta: failure probability of the PAC-Bayes bound.
        samples: how many samples the bound stands on.
        kl: KL(Q‖P).
        scale_cost: paid for the prior's scales, in nats.
        log_constant: ln J(n).
        empirical: the stochastic network's risk on those samples, with its own failure probability.
        prior: how the prior was made, in words.
        prior_samples: how many samples the prior has seen; none of them is among `samples`.
        prior_variances: by the parameter's name.
        deterministic_error: of the network that the posterior started from, on the bound's samples.
        test: the stochastic network's risk on test data, if any was given.
        invalid: why the bound does not hold; empty if nothing speaks against it.
        history: the epochs of the minimization.
        network: the certified network; a prediction draws its weights anew.
        prior_law: the Gaussian prior itself, with its center.

    It can be copied by `copy.deepcopy`, and what it rests on is all there: `recomputed` is the
    bound from the network and the prior that it keeps.
    """

    claimed: float
    confidence: float
    delta: float
    samples: int
    kl: float
    scale_cost: float
    log_constant: float
    empirical: GibbsRisk
    prior: str
    prior_samples: int
    prior_variances: dict[str, float]
    deterministic_error: float
    test: GibbsRisk | None
    invalid: str
    history: tuple[BoundEpoch, ...]
    network: StochasticNetwork = field(repr=False, compare=False)
    prior_law: GaussianPrior = field(repr=False, compare=False)

    @property
    def valid(self) -> bool:
        """Whether nothing speaks against the certificate."""
        return not self.invalid

    @property
    def bound(self) -> float:
        """What the risk is certified not to exceed: 1, which is always true, if invalid."""
        return self.claimed if self.valid else 1.0

    @property
    def vacuous(self) -> bool:
        """Whether it says no more than that a risk is at most 1."""
        return self.bound >= 1

    def recomputed(self) -> float:
        """`claimed` once more, from the kept network, prior and empirical risk."""
        constant = self.log_constant - math.log(self.delta)
        choice = self.prior_law.settle(self.network)
        return _inverted(self.empirical.upper, choice, constant, self.samples)

    def summary(self) -> str:
        """The certificate in a few lines."""
        test = "" if self.test is None else f"; on test data {self.test.estimate:.4f}"
        lines = [
            f"risk <= {self.bound:.4f} with probability {self.confidence:g} "
            f"over {self.samples} samples",
            f"stochastic network: error {self.empirical.estimate:.4f} on them "
            f"(at most {self.empirical.upper:.4f} from {self.empirical.draws} draws){test}",
            f"KL(Q|P) {self.kl:.1f}, prior scales {self.scale_cost:.1f}, "
            f"ln J/delta {self.log_constant - math.log(self.delta):.1f}",
            f"prior: {self.prior}",
        ]
        if self.invalid:
            lines.insert(0, f"INVALID: {self.invalid} (the formula gives {self.claimed:.4f})")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Everything but the network and the prior's center, as plain data."""
        return {
            "bound": self.bound,
            "claimed": self.claimed,
            "valid": self.valid,
            "invalid": self.invalid,
            "confidence": self.confidence,
            "delta": self.delta,
            "samples": self.samples,
            "kl": self.kl,
            "scale_cost": self.scale_cost,
            "log_constant": self.log_constant,
            "empirical": self.empirical.to_json(),
            "prior": self.prior,
            "prior_samples": self.prior_samples,
            "prior_variances": dict(self.prior_variances),
            "deterministic_error": self.deterministic_error,
            "test": None if self.test is None else self.test.to_json(),
            "history": [epoch.to_json() for epoch in self.history],
        }


def risk_certificate(
    model: nn.Module,
    train: Data,
    *,
    prior: Literal["init", "data"] | nn.Module = "init",
    prior_data: Sequence[int] | Tensor | None = None,
    prior_fraction: float = 0.5,
    prior_epochs: int = 20,
    prior_spread: float | None = None,
    test: Data | None = None,
    task: Task | None = None,
    delta: float = 0.025,
    delta_draws: float = 0.01,
    start_epochs: int = 1,
    start_spread: float = 0.5,
    epochs: int = 10,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    variance_rate: float = 3e-2,
    noise: Noise = "mixed",
    natural: bool = False,
    variance_every: int = 1,
    warm_up: float = 0.0,
    passes: int = 10,
    seed: int = 0,
    after_epoch: Callable[[BoundEpoch], object] | None = None,
) -> RiskCertificate:
    r"""Turn a network into a Gaussian stochastic network with a certified risk.

    Args:
        model: any feedforward or convolutional classifier, with one logit (binary) or one a
            class. It is not changed, and its weights are used only with `prior=module`. Frozen
            weights are random like the others: nothing tells what they have seen.
        train: independent samples of one law, `(x, y)`, a `Dataset` or a `DataLoader`.
        prior: where the prior is centered. `init`: at a random initialization drawn from
            `seed`. `data`: at a network trained on a random part of `train`, which the bound
            then does not use. A module: at its weights, and `prior_data` must say what it has
            seen; the posterior starts from the weights of `model`.
        prior_data: for a module, indices of the samples of `train` that any choice about it
            depended on; `()` if none. The bound stands on the others.
        prior_fraction: the part of `train` that `prior="data"` takes.
        prior_epochs: for which it is trained.
        prior_spread: standard deviation of the prior's weights as a fraction of each tensor's root
            mean square, fixed without looking at the bound's samples. Unless given it is chosen
            from a grid that is paid for; with `data` on the prior's own part, which is free.
        test: for the report, and to find out a prior that has seen the bound's samples.
        task: `binary` or `multiclass`; inferred unless given.
        delta: failure probability of the bound.
        delta_draws: failure probability of the empirical risk's estimate by draws.
        start_epochs: of ordinary training before the bound is minimized, for `init`.
        start_spread: standard deviation of the posterior's weights when that begins, as a fraction
            of each tensor's root mean square; unless the prior's is fixed, which is taken then.
        epochs, batch_size, learning_rate, variance_rate, noise, natural, variance_every,
            warm_up: of the minimization, see `minimize_bound`.
        passes: through the samples for the final estimate.
        seed: everything random follows from it.
        after_epoch: called with each epoch of the minimization.

    Returns:
        The `RiskCertificate`.

    >>> from torchtheory.data.real import digits
    >>> x, y = digits()
    >>> net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> certificate = risk_certificate(net, (x[:1500], y[:1500]), prior="data", epochs=1)
    >>> certificate.valid, certificate.bound < 0.25
    (True, True)
    """
    _refuse_settings(delta, delta_draws, prior_fraction, prior_spread, passes)
    problem = Problem(model, train, test, task=task, limit=EVERYTHING)
    if not problem.is_classification:
        raise InvalidInput("a certificate bounds the 0-1 risk of a classifier, not a regression")
    samples, n = problem.train, len(problem.train)

    def part(index: Tensor) -> Samples:
        return Samples(samples.x[index], samples.y[index])

    if isinstance(prior, nn.Module):
        seen = _indices(prior_data, n)
        words = f"given, having seen {len(seen)} of the samples"
        center_net, start = prior, PureFunction(model).parameters
        _refuse_other_parameters(prior, start)
    elif prior_data is not None:
        raise InvalidInput("prior_data goes with a module as prior: the others know what they saw")
    elif prior == "init":
        seen = torch.arange(0)
        words = f"random initialization, seed {seed}"
        center_net = fresh_initialization(model, derived_seed(seed, "prior"))
        start = _trained(center_net, samples, problem, start_epochs, batch_size, seed)
    elif prior == "data":
        order = torch.randperm(n, generator=derived_generator(seed, "prior data"))
        seen = order[: round(n * prior_fraction)].sort().values
        words = f"trained on {len(seen)} samples that the bound does not use"
        center_net = fresh_initialization(model, derived_seed(seed, "prior"))
        if len(seen) == 0:
            raise EmptyData("prior_fraction leaves the prior no sample; use prior='init'")
        start = _trained(center_net, part(seen), problem, prior_epochs, 64, seed)
        center_net = _with_parameters(center_net, start)
    else:
        raise InvalidInput(f"prior must be 'init', 'data' or a module, not {prior!r}")
    unseen = torch.ones(n, dtype=torch.bool)
    unseen[seen] = False
    kept = part(unseen)
    if len(kept) < LEAST_SAMPLES:
        raise EmptyData(
            f"the prior has seen {len(seen)} of the {n} samples: {len(kept)} are left, and a bound "
            f"needs at least {LEAST_SAMPLES} that it has not seen"
        )
    spread = _prior_spread(prior_spread, prior, center_net, part(seen), seed)
    network = StochasticNetwork(
        center_net,
        spread=spread_like(center_net, start_spread) if spread is None else spread,
        generator=derived_generator(seed, "training noise"),
    )
    center = {k: v.detach().clone() for k, v in network.means.items()}
    law = GaussianPrior(
        center, None if spread is None else {k: float(s) ** 2 for k, s in spread.items()}
    )
    suspicion = _suspicion(network, kept, problem.test)
    with torch.no_grad():
        for name, mean in network.means.items():
            mean.copy_(start[name])
    deterministic = _error(network, kept)
    constant = log_moment(KL, len(kept)) - math.log(delta)
    guess = 0.0 if spread is not None else law.settle(network).cost
    history = minimize_bound(
        network,
        law,
        kept,
        constant=constant + guess,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        variance_rate=variance_rate,
        noise=noise,
        natural=natural,
        variance_every=variance_every,
        warm_up=warm_up,
        seed=derived_seed(seed, "bound"),
        after_epoch=after_epoch,
    )
    choice = law.settle(network)
    # fresh noise: the posterior is final and does not depend on it
    network.generator.manual_seed(derived_seed(seed, "certificate"))
    empirical = gibbs_risk(network, kept, delta=delta_draws, passes=passes)
    on_test = None
    if problem.test is not None:
        on_test = gibbs_risk(network, problem.test, delta=delta_draws, passes=passes)
    return RiskCertificate(
        claimed=_inverted(empirical.upper, choice, constant, len(kept)),
        confidence=1 - delta - delta_draws,
        delta=delta,
        samples=len(kept),
        kl=choice.kl,
        scale_cost=choice.cost,
        log_constant=log_moment(KL, len(kept)),
        empirical=empirical,
        prior=words,
        prior_samples=len(seen),
        prior_variances=choice.variances,
        deterministic_error=deterministic,
        test=on_test,
        invalid=suspicion,
        history=tuple(history),
        network=network,
        prior_law=GaussianPrior(law.center, law.variances),
    )


def _inverted(risk: float, choice: PriorChoice, constant: float, n: int) -> float:
    return upper_kl_inverse(risk, (choice.kl + choice.cost + constant) / n)


def _prior_spread(
    given: float | None,
    prior: object,
    center: nn.Module,
    seen: Samples,
    seed: int,
) -> Parameters | None:
    """The prior's standard deviations where they do not depend on the bound's samples."""
    if given is not None:
        return spread_like(center, given)
    if prior != "data":
        return None
    found = flatness(center, seen, tolerance=0.002, seed=derived_seed(seed, "flatness"))
    return found.spread or spread_like(center, found.fractions[0])


def _trained(
    net: nn.Module, samples: Samples, problem: Problem, epochs: int, batch_size: int, seed: int
) -> Parameters:
    """The weights of a copy after ordinary training."""
    whole_number(epochs, "epochs", least=0)
    trained = copied(net)
    if epochs:
        trained.requires_grad_(True)
        pair = (samples.x, samples.y)
        size = min(batch_size, len(samples))
        fit(trained, pair, task=problem.task, epochs=epochs, batch_size=size, seed=seed)
    return {k: v.clone() for k, v in PureFunction(trained).parameters.items()}


def _with_parameters(net: nn.Module, values: Parameters) -> nn.Module:
    new = copied(net)
    with torch.no_grad():
        for name, parameter in new.named_parameters():
            parameter.copy_(values[name])
    return new


@torch.no_grad()
def _error(network: StochasticNetwork, samples: Samples) -> float:
    """Error of the network of the means."""
    parts = [mistakes(network(x, "none"), y).double() for x, y in samples.chunks(2048)]
    return float(torch.cat(parts).mean())


def _suspicion(network: StochasticNetwork, kept: Samples, test: Samples | None) -> str:
    """Fisher's exact test: does the prior's center err less on the bound's samples than elsewhere?

    A prior that has not seen them finds them as hard as the test data.
    """
    if test is None:
        return ""
    here, there = _error(network, kept), _error(network, test)
    wrong, wrong_there = round(here * len(kept)), round(there * len(test))
    chance = float(
        stats.hypergeom.cdf(wrong, len(kept) + len(test), wrong + wrong_there, len(kept))
    )
    if chance >= SUSPICION:
        return ""
    return (
        f"the prior's network errs on {here:.4f} of the bound's samples and on {there:.4f} of the "
        f"test data, which happens with probability {chance:.0e} to a prior that has not seen them"
    )


# --------------------------------------------------------------------------------- refused input


def _refuse_settings(
    delta: float,
    delta_draws: float,
    prior_fraction: float,
    prior_spread: float | None,
    passes: int,
) -> None:
    for name, value in (("delta", delta), ("delta_draws", delta_draws)):
        open_fraction(value, name)
    if delta + delta_draws >= 1:
        raise InvalidInput(
            "delta and delta_draws leave no confidence: their sum must be below 1 (delta = "
            f"{delta!r}, delta_draws = {delta_draws!r})"
        )
    if not 0 < prior_fraction < 1:
        raise InvalidInput(f"prior_fraction lies strictly between 0 and 1, not at {prior_fraction}")
    if prior_spread is not None and not 0 < prior_spread < math.inf:
        raise InvalidInput(f"prior_spread must be a positive number, not {prior_spread}")
    whole_number(passes, "passes", least=1)


def _indices(prior_data: Sequence[int] | Tensor | None, n: int) -> Tensor:
    if prior_data is None:
        raise InvalidInput(
            "a module as prior needs prior_data: the indices of the training samples it has seen, "
            "or () if it has seen none; a prior that has seen the bound's samples proves nothing"
        )
    index = torch.as_tensor(prior_data)
    if index.numel() == 0:
        return torch.arange(0)
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise InvalidType(
            "prior_data must be a list of whole numbers, the indices of samples, not "
            f"{described(index)}"
        )
    if int(index.min()) < 0 or int(index.max()) >= n:
        raise InvalidInput(f"prior_data must hold indices from 0 to {n - 1}")
    different: Tensor = index.cpu().unique()  # type: ignore[no-untyped-call]
    return different


def _refuse_other_parameters(prior: nn.Module, start: Parameters) -> None:
    shapes = {k: list(p.shape) for k, p in prior.named_parameters()}
    wanted = {k: list(p.shape) for k, p in start.items()}
    if shapes != wanted:
        other = next(k for k in (*wanted, *shapes) if shapes.get(k) != wanted.get(k))
        raise ShapeMismatch(
            "the prior must be the same network as the model, other weights only: its parameter "
            f"{other} has the shape {shapes.get(other)}, the model's {wanted.get(other)}"
        )
