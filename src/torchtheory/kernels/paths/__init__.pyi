# norms and kernels
from .path_kernel import path_norms as path_norms
from .path_kernel import deep_path_kernel as deep_path_kernel
from .path_kernel import number_of_paths as number_of_paths

# features
from .deep_paths import path_features as path_features
from .deep_paths import PathFeatures as PathFeatures
from .angles import path_cosines as path_cosines
from .angles import PathAngles as PathAngles
from .angles import feature_norms as feature_norms

# path by path
from .graph import every_path as every_path
from .graph import PathTable as PathTable
from .graph import graph_path_norms as graph_path_norms
