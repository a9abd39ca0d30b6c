# norms
from .lipschitz import layer_norms as layer_norms
from .lipschitz import jacobian_norms as jacobian_norms

# certificates
from .margin_certificates import certified_radii as certified_radii
from .margin_certificates import boundary_distances as boundary_distances
