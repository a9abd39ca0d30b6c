# norms
from .lipschitz import layer_norms as layer_norms
from .lipschitz import jacobian_norms as jacobian_norms
from .lipschitz_bound import lipschitz_bound as lipschitz_bound
from .lipschitz_bound import bounds_about as bounds_about

# certificates
from .margin_certificates import certified_radii as certified_radii
from .margin_certificates import boundary_distances as boundary_distances
