r"""Minimising a PAC-Bayes bound over means and variances by stochastic gradients.

The objective is the bound itself, :math:`\mathrm{kl}^{-1}(\hat r(\theta,s)\mid
\frac1n[\mathrm{KL}+\ln\frac{J}{\delta}])`, with a differentiable :math:`\hat r` in place of the
error. Nothing here needs to be right for the certificate to hold: it is computed afterwards.
Source: Foundations of Deep Learning, section 9.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.errors import InvalidInput, NonFinite
from torchtheory.core.model import global_randomness_kept
from torchtheory.core.progress import track
from torchtheory.core.samples import Samples
from torchtheory.generalization.pac_bayes.bernoulli_kl import upper_kl_inverse, upper_kl_slopes
from torchtheory.generalization.pac_bayes.gaussian_prior import GaussianPrior
from torchtheory.generalization.pac_bayes.stochastic_network import (
    NOISES,
    Noise,
    StochasticNetwork,
)
from torchtheory.training.seeds import epoch_order

LEAST_PROBABILITY = 1e-4


@dataclass(frozen=True, slots=True)
class BoundEpoch:
    """An epoch of the minimisation.

    Attributes:
        epoch: from 1.
        risk: mean of the differentiable risk over the epoch's batches.
        kl: KL(Q‖P) after the epoch.
        bound: the bound these two would give.
    """

    epoch: int
    risk: float
    kl: float
    bound: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def differentiable_risk(
    network: StochasticNetwork, x: Tensor, y: Tensor, noise: Noise = "mixed"
) -> Tensor:
    r"""A mean risk in [0, 1] with useful derivatives, under one draw of noise a row.

    For one logit that a dense layer computes, the error is integrated over that layer's weights:
    given the noise before it the output is :math:`N(m,v)`, and it has the wrong sign with
    probability :math:`\Phi(-(2y-1)m/\sqrt v)`, an unbiased estimate of the error itself.
    Otherwise it is the cross-entropy, cut off at the probability :math:`p_0=10^{-4}` and divided
    by :math:`\ln(1/p_0)`.

    Args:
        network: the stochastic network.
        x, y: a batch, targets as :class:`~torchtheory.core.problem.Problem` prepares them.
        noise: see :meth:`StochasticNetwork.forward`.
    """
    outputs = network(x, noise)
    law = network.law_of(outputs)
    if law is not None and outputs.numel() == len(x):
        mean, variance = (part.reshape(len(x)) for part in law)
        signed = (2 * y.reshape(len(x)) - 1) * mean
        wrong: Tensor = torch.special.ndtr(-signed / (variance + 1e-20).sqrt())
        return wrong.mean()
    if outputs.numel() == len(x):
        signs = 2 * y.reshape(len(x)) - 1
        logarithm = F.logsigmoid(signs * outputs.reshape(len(x)))
    else:
        logarithm = F.log_softmax(outputs, 1).gather(1, y.reshape(len(x), 1)).squeeze(1)
    most = math.log(1 / LEAST_PROBABILITY)
    return (-logarithm).clamp(max=most).mean() / most


def bound_step(
    network: StochasticNetwork,
    prior: GaussianPrior,
    x: Tensor,
    y: Tensor,
    *,
    n: int,
    constant: float,
    noise: Noise = "mixed",
) -> tuple[float, float]:
    """Gradients of the bound at one batch, into the parameters' ``.grad``; risk and divergence.

    Args:
        n: number of samples of the bound.
        constant: what is added to the divergence, such as ln(J/δ) and the cost of scales.
    """
    risk = differentiable_risk(network, x, y, noise)
    value = float(risk.detach())
    divergence = prior.divergence_parts(network)
    if not (math.isfinite(value) and math.isfinite(divergence.kl)):
        raise NonFinite("the bound stopped being finite; lower learning_rate")
    # the slope in the risk is infinite at 0
    allowed = max(0.0, divergence.kl + constant) / n
    _, by_risk, by_divergence = upper_kl_slopes(min(max(value, 1e-6), 1 - 1e-6), allowed)
    risk.backward(torch.full_like(risk, by_risk))  # type: ignore[no-untyped-call]
    divergence.add_gradient(by_divergence / n)
    return value, divergence.kl


def minimize_bound(
    network: StochasticNetwork,
    prior: GaussianPrior,
    samples: Samples,
    *,
    constant: float,
    epochs: int = 10,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    variance_rate: float = 3e-2,
    noise: Noise = "mixed",
    seed: int = 0,
    after_epoch: Callable[[BoundEpoch], object] | None = None,
) -> list[BoundEpoch]:
    """Change the network's means and variances so that the bound falls, by Adam.

    Both rates fall to zero along half a cosine. With mixed noise a step costs less than two of
    ordinary training; with local noise a little more, and its gradients are less noisy.

    Args:
        network: changed in place.
        prior: fixed.
        samples: those of the bound.
        constant: what is added to the divergence.
        learning_rate: for the means.
        variance_rate: for the logarithms of the variances.
        noise: see :meth:`StochasticNetwork.forward`.
        seed: of the order of the samples.
        after_epoch: called with each finished epoch.
    """
    if noise not in NOISES or noise == "none":
        raise InvalidInput(f"training noise must be local, mixed or weights, not {noise!r}")
    if epochs < 0 or batch_size < 1:
        raise InvalidInput("epochs must be at least 0 and batch_size at least 1")
    if epochs == 0:
        return []
    n = len(samples)
    groups = [
        {"params": list(network.means.values()), "lr": learning_rate},
        {"params": list(network.log_variances.values()), "lr": variance_rate},
    ]
    optimizer = torch.optim.Adam(groups, fused=True)
    steps = epochs * math.ceil(n / batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: 0.5 * (1 + math.cos(math.pi * min(i, steps) / steps))
    )
    history = []
    with torch.enable_grad(), global_randomness_kept():
        for epoch in track(range(1, epochs + 1), "PAC-Bayes bound", total=epochs):
            total, kl = 0.0, 0.0
            for index in torch.split(epoch_order(n, seed, epoch).to(samples.x.device), batch_size):
                optimizer.zero_grad()
                risk, kl = bound_step(
                    network,
                    prior,
                    samples.x.index_select(0, index),
                    samples.y.index_select(0, index),
                    n=n,
                    constant=constant,
                    noise=noise,
                )
                optimizer.step()
                schedule.step()
                total += risk * len(index)
            mean = total / n
            bound = upper_kl_inverse(min(mean, 1.0), max(0.0, kl + constant) / n)
            history.append(BoundEpoch(epoch, mean, kl, bound))
            if after_epoch is not None:
                after_epoch(history[-1])
    return history
