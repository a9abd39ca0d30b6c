# side by side
from .evaluation import evaluate_explanations as evaluate_explanations
from .evaluation import Evaluation as Evaluation
from .property_scores import explanation_scores as explanation_scores
from .property_scores import PropertyScores as PropertyScores

# by removal
from .pixel_flipping import pixel_flipping as pixel_flipping
from .pixel_flipping import Flipping as Flipping
from .pixel_flipping import areas as areas

# by what should matter
from .localization import localization as localization
from .localization import Localization as Localization
from .localization import features_inside as features_inside

# by what should not
from .sanity import randomization_check as randomization_check
from .sanity import RandomizationCheck as RandomizationCheck
from .stability import explanation_stability as explanation_stability
from .stability import Stability as Stability
from .shattering import shattering as shattering
from .shattering import Shattering as Shattering

# clever Hans
from .clever_hans import clever_hans as clever_hans
from .clever_hans import CleverHans as CleverHans
from .clever_hans import own_heatmaps as own_heatmaps
from .heatmap_clusters import heatmap_clusters as heatmap_clusters
from .heatmap_clusters import HeatmapClusters as HeatmapClusters
