"""PAC-Bayes: bounds on the risk of stochastic classifiers, and certificates for networks."""

from torchtheory.generalization.pac_bayes.bernoulli_kl import (
    binary_kl,
    lower_kl_inverse,
    upper_kl_inverse,
    upper_kl_slopes,
)
from torchtheory.generalization.pac_bayes.bound_training import (
    BoundEpoch,
    bound_step,
    differentiable_risk,
    minimize_bound,
)
from torchtheory.generalization.pac_bayes.bounds import (
    KL,
    SQUARE,
    TWICE_SQUARE,
    Deviation,
    catoni_bound,
    deviation_bound,
    log_moment,
    maurer_bound,
    mcallester_bound,
    seeger_bound,
)
from torchtheory.generalization.pac_bayes.certification import RiskCertificate, risk_certificate
from torchtheory.generalization.pac_bayes.divergences import (
    discrete_kl,
    dominates,
    donsker_varadhan,
    gaussian_kl,
    tilted,
)
from torchtheory.generalization.pac_bayes.flat_minima import Flatness, flatness
from torchtheory.generalization.pac_bayes.gaussian_prior import (
    DivergenceParts,
    GaussianPrior,
    PriorChoice,
    ScaleGrid,
)
from torchtheory.generalization.pac_bayes.gibbs_risk import GibbsRisk, gibbs_risk, mistakes
from torchtheory.generalization.pac_bayes.stochastic_network import (
    StochasticNetwork,
    fresh_initialization,
    spread_like,
)

__all__ = [
    "KL",
    "SQUARE",
    "TWICE_SQUARE",
    "BoundEpoch",
    "Deviation",
    "DivergenceParts",
    "Flatness",
    "GaussianPrior",
    "GibbsRisk",
    "PriorChoice",
    "RiskCertificate",
    "ScaleGrid",
    "StochasticNetwork",
    "binary_kl",
    "bound_step",
    "catoni_bound",
    "deviation_bound",
    "differentiable_risk",
    "discrete_kl",
    "dominates",
    "donsker_varadhan",
    "flatness",
    "fresh_initialization",
    "gaussian_kl",
    "gibbs_risk",
    "log_moment",
    "lower_kl_inverse",
    "maurer_bound",
    "mcallester_bound",
    "minimize_bound",
    "mistakes",
    "risk_certificate",
    "seeger_bound",
    "spread_like",
    "tilted",
    "upper_kl_inverse",
    "upper_kl_slopes",
]
