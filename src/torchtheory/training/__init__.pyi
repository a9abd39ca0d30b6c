# the trainer
from .trainer import fit as fit
from .many_networks import fit_many as fit_many
from .many_networks import mlp_family as mlp_family
from .many_networks import noisy_labels as noisy_labels

# losses and risks
from .losses import LOSSES as LOSSES
from .losses import classification_loss as classification_loss
from .losses import loss_values as loss_values
from .surrogates import zero_one_loss as zero_one_loss
from .surrogates import logistic_surrogate as logistic_surrogate
from .label_smoothing import smoothed_cross_entropy as smoothed_cross_entropy
from .risks import empirical_risk as empirical_risk

# backpropagation
from .backpropagation import backpropagate as backpropagate
from .graph_backpropagation import backpropagate_graph as backpropagate_graph
from .backpropagation import count_flops as count_flops

# optimizers
from .named_optimizers import OPTIMIZERS as OPTIMIZERS
from .named_optimizers import make_optimizer as make_optimizer
from .momentum import HeavyBall as HeavyBall
from .momentum import Nesterov as Nesterov

# initialization and signals
from .initialization import initialize as initialize
from .initialization import weight_variance as weight_variance
from .signal_propagation import predict_signal_of as predict_signal_of
from .signal_propagation import measure_signal as measure_signal

# regularizers
from .dropout import UnitDropout as UnitDropout
from .dropout import dropout_penalty as dropout_penalty
from .decay import weight_decay_groups as weight_decay_groups
from .shrinkage import shrink as shrink
from .augmentation import augmented as augmented

# distillation
from .distillation import distill as distill

# pruning
from .pruning.magnitude import prune as prune
from .pruning.lottery import lottery_tickets as lottery_tickets
