# best terms
from .best_terms import haar_transform as haar_transform
from .best_terms import inverse_haar_transform as inverse_haar_transform
from .best_terms import best_terms_errors as best_terms_errors
from .best_terms import greedy_terms as greedy_terms

# networks of dictionaries
from .networks import dictionary_network as dictionary_network
from .networks import dictionary_element as dictionary_element
from .networks import transfer_bound as transfer_bound

# wavelets and shearlets
from .wavelets import bump_network as bump_network
from .wavelets import wavelet_generator as wavelet_generator
from .wavelets import wavelet_grid as wavelet_grid
from .shearlets import shearlet as shearlet
from .shearlets import shearlet_frame as shearlet_frame
from .shearlets import ShearletFrame as ShearletFrame

# edges
from .cartoons import cartoon as cartoon
from .cartoon_networks import cartoon_network as cartoon_network
from .cartoon_networks import cartoon_error as cartoon_error
from .horizons import heaviside_network as heaviside_network
from .horizons import horizon_network as horizon_network
from .horizons import indicator_network as indicator_network
from .horizons import gated_network as gated_network
from .horizons import boundary_exponent as boundary_exponent
