# how large
from .budget import size_needed as size_needed
from .budget import SizeTable as SizeTable
from .table import theorems_of as theorems_of
from .theorems import RateTheorem as RateTheorem
from .theorems import Setting as Setting
from .table import exponent_gaps as exponent_gaps
from .table import depth_for_weights as depth_for_weights

# explicit sizes
from .explicit_sizes import interpolant_units as interpolant_units
from .explicit_sizes import box_units as box_units
from .explicit_sizes import barron_units as barron_units
from .explicit_sizes import yarotsky_units as yarotsky_units

# lower bounds
from .lower_bounds import vc_minimum_weights as vc_minimum_weights
from .lower_bounds import continuous_selection_floor as continuous_selection_floor
from .lower_bounds import continuous_selection_minimum as continuous_selection_minimum
from .lower_bounds import linear_witness as linear_witness
from .lower_bounds import antipodal_witness as antipodal_witness

# bits
from .code_length import code_length_bounds as code_length_bounds
from .code_length import LipschitzCodec as LipschitzCodec
from .code_length import smooth_packing as smooth_packing
from .code_length import cartoon_packing as cartoon_packing
from .code_length import network_bits as network_bits
from .code_length import encode_network as encode_network
from .code_length import decode_network as decode_network
from .code_length import minimum_weights_from_bits as minimum_weights_from_bits

# quantized weights
from .quantization import quantize as quantize
from .quantization import WeightGrid as WeightGrid
from .quantization import holder_network as holder_network

# risks
from .risk_gaps import risk_gap_bound as risk_gap_bound
from .risk_gaps import linear_class_chain as linear_class_chain
