# sharpness
from .sharpness import ball_sharpness as ball_sharpness
from .sharpness import noise_sharpness as noise_sharpness
from .sharpness import hessian_sharpness as hessian_sharpness
from .sharpness import relative_hessian as relative_hessian
from .parameter_robustness import robust_parameter_ball as robust_parameter_ball

# rescaling
from .rescaling import rescalable_pairs as rescalable_pairs
from .rescaling import rescale_pair as rescale_pair
from .rescaling import rescaled as rescaled
from .rescaling import balanced as balanced
from .rescaling import sharpening_factor as sharpening_factor
from .rescaling import block_hessian as block_hessian
