# many networks at once
from .networks import fit_many as fit_many
from .networks import ManyResult as ManyResult
from .networks import mlp_family as mlp_family
from .networks import noisy_labels as noisy_labels
