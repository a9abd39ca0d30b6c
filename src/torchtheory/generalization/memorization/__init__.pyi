# random labels
from .experiment import memorization_test as memorization_test
from .experiment import Memorization as Memorization
from .experiment import fit_and_test as fit_and_test
from .puzzle_battery import puzzle_curve as puzzle_curve

# corrupted data
from .label_corruption import corrupted_labels as corrupted_labels
from .label_corruption import corrupted_images as corrupted_images
from .label_corruption import shuffled_pixels as shuffled_pixels
from .label_corruption import random_pixels as random_pixels
from .label_corruption import gaussian_images as gaussian_images

# fitting capacity
from .fitting_capacity import rademacher_from_fits as rademacher_from_fits
from .fitting_capacity import vc_dimension_from_fits as vc_dimension_from_fits
from .fitting_capacity import trained_class as trained_class

# linear models
from .linear import memorize_targets as memorize_targets
from .linear import far_interpolant as far_interpolant
