# convolutions and what they see
from .shift_equivariant import is_convolution as is_convolution
from .spectra import convolution_singular_values as convolution_singular_values
from .receptive_fields import receptive_fields as receptive_fields
