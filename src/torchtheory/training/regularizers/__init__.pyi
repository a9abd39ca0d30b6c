# dropout
from .dropout import UnitDropout as UnitDropout
from .dropout import WeightDropout as WeightDropout
from .dropout import dropout_penalty as dropout_penalty
from .dropout import dropout_regression as dropout_regression
from .dropout import ensemble_mean as ensemble_mean
from .dropout import geometric_mean as geometric_mean
from .dropout import sampled_mean as sampled_mean

# weight decay and early stopping
from .decay import weight_decay_groups as weight_decay_groups
from .shrinkage import shrink as shrink
from .shrinkage import weight_decay_factors as weight_decay_factors
from .shrinkage import early_stopping_factors as early_stopping_factors
from .shrinkage import matching_steps as matching_steps

# augmentation
from .augmentation import augmented as augmented
from .augmentation import OneOf as OneOf
from .augmentation import Shift as Shift
from .augmentation import shifts as shifts
from .augmentation import invariance_gap as invariance_gap

# DARC
from .darc import darc1 as darc1
from .darc import WithDARC1 as WithDARC1
from .darc import free_optimum as free_optimum

# distillation
from .distillation import distill as distill
from .distillation import agreement as agreement
