# by name
from .named import OPTIMIZERS as OPTIMIZERS
from .named import make_optimizer as make_optimizer

# momentum
from .momentum import HeavyBall as HeavyBall
from .momentum import Nesterov as Nesterov
from .momentum import nesterov_iterate as nesterov_iterate
from .momentum import effective_step as effective_step

# others
from .adam import UncorrectedAdam as UncorrectedAdam
from .projection import onto_ball as onto_ball

# schedules
from .schedules import PowerLaw as PowerLaw
from .schedules import RobbinsMonro as RobbinsMonro
from .schedules import robbins_monro as robbins_monro
