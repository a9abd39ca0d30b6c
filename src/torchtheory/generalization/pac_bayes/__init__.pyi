# certificates
from .certification import risk_certificate as risk_certificate
from .certification import RiskCertificate as RiskCertificate

# bounds
from .bounds import mcallester_bound as mcallester_bound
from .bounds import maurer_bound as maurer_bound
from .bounds import seeger_bound as seeger_bound
from .bounds import catoni_bound as catoni_bound
from .bounds import deviation_bound as deviation_bound
from .bounds import Deviation as Deviation
from .bounds import KL as KL
from .bounds import SQUARE as SQUARE
from .bounds import TWICE_SQUARE as TWICE_SQUARE
from .bounds import log_moment as log_moment

# binary divergences
from .bernoulli_kl import binary_kl as binary_kl
from .bernoulli_kl import upper_kl_inverse as upper_kl_inverse
from .bernoulli_kl import lower_kl_inverse as lower_kl_inverse

# divergences
from .divergences import gaussian_kl as gaussian_kl
from .divergences import discrete_kl as discrete_kl
from .divergences import donsker_varadhan as donsker_varadhan
from .divergences import tilted as tilted
from .divergences import dominates as dominates

# stochastic networks
from .stochastic_network import StochasticNetwork as StochasticNetwork
from .gaussian_prior import GaussianPrior as GaussianPrior
from .gaussian_prior import ScaleGrid as ScaleGrid
from .gibbs_risk import gibbs_risk as gibbs_risk
from .gibbs_risk import GibbsRisk as GibbsRisk
from .gibbs_risk import mistakes as mistakes
from .bound_training import minimize_bound as minimize_bound
from .bound_training import bound_step as bound_step

# flat minima
from .flat_minima import flatness as flatness
from .flat_minima import Flatness as Flatness
