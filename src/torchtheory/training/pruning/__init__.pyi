# weights
from .magnitude import prune as prune
from .magnitude import Pruned as Pruned
from .magnitude import magnitude_masks as magnitude_masks
from .masks import random_masks as random_masks
from .masks import masked as masked
from .masks import sparsity as sparsity
from .masks import prunable_weights as prunable_weights

# units
from .units import prune_units as prune_units
from .units import PrunedUnits as PrunedUnits
from .units import unit_scores as unit_scores
from .units import unit_masks as unit_masks
from .units import remove_units as remove_units

# lottery tickets
from .lottery import lottery_tickets as lottery_tickets
from .lottery import Tickets as Tickets

# without training
from .untrained import find_untrained_subnetwork as find_untrained_subnetwork
from .untrained import find_untrained_subnetworks as find_untrained_subnetworks
