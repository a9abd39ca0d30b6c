# what a dual is
from .moments import DualActivation as DualActivation
from .moments import Moments as Moments

# closed forms
from .closed_forms import PiecewiseLinear as PiecewiseLinear
from .closed_forms import SquaredRelu as SquaredRelu
from .closed_forms import Step as Step
from .closed_forms import ErrorFunction as ErrorFunction
from .closed_forms import Gelu as Gelu
from .closed_forms import Wave as Wave
from .closed_forms import Bell as Bell

# expansions
from .hermite import HermiteExpansion as HermiteExpansion
