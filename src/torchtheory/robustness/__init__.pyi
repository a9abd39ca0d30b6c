# norms
from .lipschitz.layers import layer_norms as layer_norms
from .lipschitz.layers import jacobian_norms as jacobian_norms
from .lipschitz.bound import lipschitz_bound as lipschitz_bound
from .lipschitz.bound import bounds_about as bounds_about
from .lipschitz.semidefinite import semidefinite_lipschitz as semidefinite_lipschitz

# attacks
from .attacks.gradient_steps import FGSM as FGSM
from .attacks.gradient_steps import PGD as PGD
from .attacks.adaptive import APGD as APGD
from .attacks.shortest import DeepFool as DeepFool
from .attacks.shortest import CarliniWagner as CarliniWagner
from .attacks.square import Square as Square
from .attacks.ensemble import auto_attack as auto_attack
from .attacks.ensemble import gradient_masking as gradient_masking

# certificates
from .margin_certificates import certified_radii as certified_radii
from .margin_certificates import boundary_distances as boundary_distances
from .bounds.output_bounds import output_bounds as output_bounds
from .bounds.certified import certified_accuracy as certified_accuracy
from .bounds.certified import certified_radius as certified_radius
from .smoothing import SmoothedClassifier as SmoothedClassifier
from .exact.distance import minimal_perturbation as minimal_perturbation

# both in one table
from .evaluation import evaluate as evaluate
from .evaluation import robust_radius as robust_radius
from .adversarial_risk import robust_accuracy as robust_accuracy
from .adversarial_risk import adversarial_risk as adversarial_risk

# training
from .adversarial_training import AdversarialTraining as AdversarialTraining
from .adversarial_training import Trades as Trades
from .bounds.training import IntervalTraining as IntervalTraining

# networks written down
from .robust_memorizer import robust_memorizer as robust_memorizer

# topics
from . import attacks as attacks
from . import bounds as bounds
from . import exact as exact
from . import lipschitz as lipschitz
