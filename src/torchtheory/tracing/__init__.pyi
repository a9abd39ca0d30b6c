# a network as a list of operations
from .recorder import record as record
from .network import Network as Network
from .network import Operation as Operation
from .network import Value as Value
from .kinds import KIND_OF as KIND_OF

# an analysis is a table of rules
from .interpret import Rules as Rules
from .interpret import Call as Call
from .interpret import interpret as interpret
from .interpret import rule as rule

# layers in order
from .chain import as_chain as as_chain
from .chain import as_steps as as_steps
from .chain import straight_paths as straight_paths

# what a network does
from .watching import watch_units as watch_units
from .watching import watch_signals as watch_signals
from .last_features import last_features as last_features
from .layer_results import layer_outputs as layer_outputs

# activations
from .activations import activation_facts as activation_facts
from .activations import layer_facts as layer_facts

# how large it is
from .network_size import network_size as network_size
from .multiplications import multiplications as multiplications
from .operation_counts import count_operations as count_operations
