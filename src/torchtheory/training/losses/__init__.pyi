# losses for classification
from .classification import LOSSES as LOSSES
from .classification import ClassificationLoss as ClassificationLoss
from .classification import classification_loss as classification_loss
from .classification import loss_values as loss_values
from .cross_entropy import softmax_regression_loss as softmax_regression_loss
from .cross_entropy import softmax_regression_gradient as softmax_regression_gradient
from .cross_entropy import binary_cross_entropy as binary_cross_entropy

# surrogates
from .surrogates import zero_one_loss as zero_one_loss
from .surrogates import quadratic_loss as quadratic_loss
from .surrogates import logistic_surrogate as logistic_surrogate
from .surrogates import logistic_calibration as logistic_calibration

# smoothed labels
from .label_smoothing import smoothed_cross_entropy as smoothed_cross_entropy
from .label_smoothing import smooth_labels as smooth_labels
from .label_smoothing import uniform_confusion as uniform_confusion
from .label_smoothing import smoothed_gap as smoothed_gap

# a teacher's probabilities
from .distillation import Distillation as Distillation
from .distillation import distillation_loss as distillation_loss
from .distillation import distillation_gradient as distillation_gradient

# densities
from .density_losses import l2_density_loss as l2_density_loss
from .density_losses import surprisal as surprisal

# risks
from .risks import empirical_risk as empirical_risk
from .risks import risk as risk
from .risks import best_constant as best_constant
from .risks import least_empirical_risk as least_empirical_risk
from .risks import hold_out as hold_out
from .risks import split_indices as split_indices
