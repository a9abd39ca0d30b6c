# the trainer
from .loop.trainer import fit as fit
from .many.networks import fit_many as fit_many
from .many.networks import mlp_family as mlp_family
from .many.networks import noisy_labels as noisy_labels

# losses and risks
from .losses.classification import LOSSES as LOSSES
from .losses.classification import classification_loss as classification_loss
from .losses.classification import loss_values as loss_values
from .losses.surrogates import zero_one_loss as zero_one_loss
from .losses.surrogates import logistic_surrogate as logistic_surrogate
from .losses.label_smoothing import smoothed_cross_entropy as smoothed_cross_entropy
from .losses.risks import empirical_risk as empirical_risk

# backpropagation
from .backpropagation.chain import backpropagate as backpropagate
from .backpropagation.graph import backpropagate_graph as backpropagate_graph

# optimizers
from .optimizers.named import OPTIMIZERS as OPTIMIZERS
from .optimizers.named import make_optimizer as make_optimizer
from .optimizers.momentum import HeavyBall as HeavyBall
from .optimizers.momentum import Nesterov as Nesterov

# initialization and signals
from .initialization import initialize as initialize
from .initialization import weight_variance as weight_variance
from .signal_propagation import predict_signal_of as predict_signal_of
from .signal_propagation import measure_signal as measure_signal

# regularizers
from .regularizers.dropout import UnitDropout as UnitDropout
from .regularizers.dropout import dropout_penalty as dropout_penalty
from .regularizers.decay import weight_decay_groups as weight_decay_groups
from .regularizers.shrinkage import shrink as shrink
from .regularizers.augmentation import augmented as augmented

# distillation
from .regularizers.distillation import distill as distill

# pruning
from .pruning.magnitude import prune as prune
from .pruning.lottery import lottery_tickets as lottery_tickets

# topics
from . import loop as loop
from . import losses as losses
from . import backpropagation as backpropagation
from . import optimizers as optimizers
from . import regularizers as regularizers
from . import many as many
from . import pruning as pruning
