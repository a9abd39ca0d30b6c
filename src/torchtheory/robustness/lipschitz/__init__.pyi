# of a network
from .bound import lipschitz_bound as lipschitz_bound
from .bound import bounds_about as bounds_about
from .bound import NetworkBounds as NetworkBounds
from .semidefinite import semidefinite_lipschitz as semidefinite_lipschitz
from .implicit_form import implicit_form as implicit_form
from .semidefinite import SemidefiniteBound as SemidefiniteBound

# of its layers
from .layers import layer_norms as layer_norms
from .layers import weight_norms as weight_norms
from .layers import LayerNorm as LayerNorm

# at points
from .layers import jacobian_norms as jacobian_norms
