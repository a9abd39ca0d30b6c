# real targets
from .networks import line_memorizer as line_memorizer
from .networks import shallow_memorizer as shallow_memorizer
from .networks import Memorizer as Memorizer
from .networks import memorizer_parameters as memorizer_parameters
from .networks import inverse_certificate as inverse_certificate

# Boolean functions
from .boolean import minterm_network as minterm_network
from .boolean import parity_network as parity_network
from .boolean import parity_tree as parity_tree
from .boolean import prime_implicants as prime_implicants
from .boolean import least_terms as least_terms

# other architectures
from .convolutional import convolutional_interpolant as convolutional_interpolant
from .convolutional import pooled_network as pooled_network
from .sontag import sontag_interpolant as sontag_interpolant

# labels in one number
from .label_coding import label_function as label_function
from .label_coding import read_labels as read_labels
from .label_coding import sine_frequency as sine_frequency
from .label_coding import sawtooth_position as sawtooth_position
