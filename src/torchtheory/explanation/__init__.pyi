# relevance that adds up
from .lrp import lrp as lrp
from .lrp import layer_relevances as layer_relevances
from .composites import Composite as Composite
from .composites import preset as preset
from .suited import suited_rules as suited_rules
from .rules import Zero as Zero
from .rules import Epsilon as Epsilon
from .rules import Gamma as Gamma
from .rules import AlphaBeta as AlphaBeta
from .rules import Flat as Flat
from .rules import WSquare as WSquare
from .rules import ZBox as ZBox
from .rules import Product as Product

# its relatives
from .methods.gradients import sensitivity as sensitivity
from .methods.gradients import gradient_times_input as gradient_times_input
from .methods.gradients import smooth_gradient as smooth_gradient
from .methods.gradients import integrated_gradients as integrated_gradients
from .methods.taylor import taylor as taylor
from .methods.occlusion import occlusion as occlusion
from .methods.lime import lime as lime
from .methods.shapley import shapley as shapley
from .methods.minimal_sets import minimal_relevant_set as minimal_relevant_set

# several of them on one page
from .explain import explain as explain

# judged, and used
from .judging.evaluation import evaluate_explanations as evaluate_explanations
from .judging.pixel_flipping import pixel_flipping as pixel_flipping
from .judging.sanity import randomization_check as randomization_check
from .judging.stability import explanation_stability as explanation_stability
from .judging.clever_hans import clever_hans as clever_hans
from .tuning import tune as tune
from .pruning import prune_by_relevance as prune_by_relevance

# topics
from . import methods as methods
from . import judging as judging
from . import pages as pages
from . import visual_questions as visual_questions
