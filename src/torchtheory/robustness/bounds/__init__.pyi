# bounds of outputs
from .output_bounds import output_bounds as output_bounds
from .output_bounds import OutputBounds as OutputBounds
from .output_bounds import LayerBounds as LayerBounds
from .output_bounds import BoundedNetwork as BoundedNetwork
from .output_bounds import margin_rows as margin_rows
from .balls import Ball as Ball

# certificates
from .certified import certified_accuracy as certified_accuracy
from .certified import certified_radius as certified_radius
from .certified import margins_in_ball as margins_in_ball
from .certified import Certification as Certification

# training
from .training import IntervalTraining as IntervalTraining
from .training import interval_bounds as interval_bounds
from .training import worst_logits as worst_logits
