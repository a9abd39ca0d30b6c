# problems
from .problem import Problem as Problem

# data
from .samples import Samples as Samples
from .samples import collect as collect
from .samples import from_numpy as from_numpy

# models as functions
from .model import PureFunction as PureFunction
from .model import evaluation_mode as evaluation_mode
from .model import flatten as flatten
from .model import unflatten as unflatten
from .model import parameters_from as parameters_from
from .evaluation import depends_on_batch as depends_on_batch

# files
from .loading import load_network as load_network
from .loading import load_model as load_model
from .loading import load_weights as load_weights
from .loading import read_weights as read_weights
from .exported import load_exported as load_exported

# estimators of scikit-learn
from .sklearn_estimators import as_network as as_network
