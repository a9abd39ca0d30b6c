# gradient steps
from .gradient_steps import FGSM as FGSM
from .gradient_steps import PGD as PGD
from .adaptive import APGD as APGD

# shortest perturbations
from .shortest import DeepFool as DeepFool
from .shortest import CarliniWagner as CarliniWagner
from .shortest import FAB as FAB
from .shortest import nearest_boundary as nearest_boundary

# without gradients
from .square import Square as Square

# together
from .ensemble import auto_attack as auto_attack
from .ensemble import AutoAttack as AutoAttack
from .ensemble import Ensemble as Ensemble
from .ensemble import EnsembleResult as EnsembleResult
from .ensemble import gradient_masking as gradient_masking
from .ensemble import GradientMasking as GradientMasking
from .ensemble import GradientMaskingWarning as GradientMaskingWarning

# writing one
from .attack import Attack as Attack
from .attack import AttackResult as AttackResult
from .goals import cross_entropy as cross_entropy
from .goals import margin as margin
from .goals import dlr as dlr
from .goals import targeted_dlr as targeted_dlr
from .goals import squared_error as squared_error

# balls
from .balls import project as project
from .balls import steepest_step as steepest_step
from .balls import random_perturbation as random_perturbation
from .balls import lengths as lengths
from .balls import dual_lengths as dual_lengths
