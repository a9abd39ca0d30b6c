# through a network
from .chain import backpropagate as backpropagate
from .chain import Backpropagation as Backpropagation
from .chain import pull_back as pull_back

# on a graph
from .graph import backpropagate_graph as backpropagate_graph
from .graph import GraphBackpropagation as GraphBackpropagation
from .graph import error_by_paths as error_by_paths

# from scratch
from .from_scratch import MLP as MLP
from .from_scratch import LinearLayer as LinearLayer
from .from_scratch import ReLU as ReLU
from .from_scratch import BinaryCrossEntropy as BinaryCrossEntropy
from .from_scratch import GradientDescent as GradientDescent
from .from_scratch import train_mlp as train_mlp
from .from_scratch import lecture_run as lecture_run
