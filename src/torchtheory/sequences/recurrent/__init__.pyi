# cells
from .cells import Cell as Cell
from .cells import ElmanCell as ElmanCell
from .cells import LSTMCell as LSTMCell
from .cells import GRUCell as GRUCell
from .cells import DeepTransitionCell as DeepTransitionCell
from .minimal import MinGRU as MinGRU
from .minimal import MinLSTM as MinLSTM
from .lru import LRU as LRU

# networks
from .networks import Recurrent as Recurrent
from .networks import Bidirectional as Bidirectional
from .networks import Stacked as Stacked
from .conversion import from_torch as from_torch
from .conversion import to_torch as to_torch

# sequence to sequence
from .sequence_to_sequence import Seq2Seq as Seq2Seq
from .sequence_to_sequence import greedy as greedy
from .sequence_to_sequence import sample as sample
from .sequence_to_sequence import sequence_logprob as sequence_logprob

# scans
from .scans import associative_scan as associative_scan
from .linear_scans import linear_scan as linear_scan

# linear recurrences
from .linear_systems import diagonalize as diagonalize
from .linear_systems import linear_states as linear_states
from .linear_systems import impulse_response as impulse_response
from .linear_systems import causal_convolution as causal_convolution
from .lru import ring_initialization as ring_initialization
from .lru import memory_horizon as memory_horizon

# gradients through time
from .gradients import recurrent_gradients as recurrent_gradients
from .gradients import lag_bounds as lag_bounds
from .gradients import state_jacobians as state_jacobians
from .backpropagation import backpropagate_through_time as backpropagate_through_time
