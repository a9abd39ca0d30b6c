# slices
from .slices import loss_slice as loss_slice
from .slices import LossSlice as LossSlice
from .slices import random_directions as random_directions
from .slices import eigen_directions as eigen_directions
from .slices import grid_minima as grid_minima
from .slices import probe_segment as probe_segment

# critical points
from .critical_points import critical_point as critical_point
from .critical_points import classify as classify
from .critical_points import landscape_probe as landscape_probe
from .critical_points import escape_times as escape_times
from .network_points import classify_network as classify_network

# paths of low loss
from .low_loss_paths import low_loss_path as low_loss_path
from .low_loss_paths import LowLossPath as LowLossPath
from .low_loss_paths import make_monotone as make_monotone
from .low_loss_paths import minimize_last_layer as minimize_last_layer
from .trained_paths import bend_path as bend_path
from .low_loss_paths import path_losses as path_losses

# points of parameter space
from .parameter_space import point_vector as point_vector
from .parameter_space import losses_at as losses_at
from .parameter_space import segment_losses as segment_losses

# batch statistics
from .batch_statistics import with_renewed_statistics as with_renewed_statistics
from .batch_statistics import batch_normalizations as batch_normalizations

# models of landscapes
from .spin_glass import SphericalSpinGlass as SphericalSpinGlass
from .spin_glass import critical_points_of_glass as critical_points_of_glass
from .spin_glass import expected_index as expected_index
from .teacher_student import expected_square_loss as expected_square_loss
from .teacher_student import mean_unit_products as mean_unit_products
