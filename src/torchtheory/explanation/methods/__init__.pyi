# gradients
from .gradients import sensitivity as sensitivity
from .gradients import gradient_times_input as gradient_times_input
from .gradients import smooth_gradient as smooth_gradient
from .gradients import integrated_gradients as integrated_gradients

# expansions
from .taylor import taylor as taylor
from .taylor import find_root as find_root
from .deep_taylor import neuron_expansion as neuron_expansion
from .deep_taylor import product_expansion as product_expansion
from .deep_taylor import root_along as root_along
from .deep_taylor import relevance_variation as relevance_variation
from .linear import explain_linear as explain_linear

# removal and sampling
from .occlusion import occlusion as occlusion
from .lime import lime as lime
from .shapley import shapley as shapley
from .shapley import shapley_of_sets as shapley_of_sets
from .minimal_sets import minimal_relevant_set as minimal_relevant_set
from .minimal_sets import RelevantSet as RelevantSet

# by name
from .named import METHODS as METHODS
from .named import method_named as method_named
from .named import methods_with as methods_with
from .named import parse_rules as parse_rules
