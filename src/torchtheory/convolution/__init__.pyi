# convolutions
from .discrete import convolve as convolve
from .discrete import cross_correlate as cross_correlate
from .integral_operators import convolve_functions as convolve_functions

# layers as linear maps
from .layer_matrices import layer_matrix as layer_matrix
from .layer_matrices import layer_operator as layer_operator
from .layer_matrices import toeplitz_matrix as toeplitz_matrix
from .layer_matrices import convolution_map as convolution_map
from .circulant_matrices import nearest_convolution as nearest_convolution
from .shift_equivariant import is_convolution as is_convolution

# spectra
from .spectra import convolution_singular_values as convolution_singular_values
from .spectra import convolution_norm as convolution_norm
from .spectra import singular_value_bounds as singular_value_bounds

# what a unit sees
from .receptive_fields import receptive_fields as receptive_fields
from .receptive_fields import dependence as dependence
from .receptive_fields import effective_receptive_field as effective_receptive_field

# sizes
from .layer_sizes import layer_table as layer_table
from .layer_sizes import weight_sharing as weight_sharing
from .layer_sizes import output_size as output_size

# networks
from .pooling import max_pool as max_pool
from .pooling import average_pool as average_pool
from .pooling import ConvolutionBlock as ConvolutionBlock
from .image_classifier import convolutional_network as convolutional_network
from .u_net import UNet as UNet
from .u_net import framelet_u_net as framelet_u_net

# framelets and filters
from .framelets import framelet as framelet
from .hankel import hankel as hankel
from .wiener import wiener_filter as wiener_filter
from .filter_gradients import learn_filter as learn_filter
from .filter_gradients import convolution_backward as convolution_backward
from .winograd import minimal_filtering as minimal_filtering
