"""Training: losses, backpropagation, optimizers, initializers, the trainer, regularizers."""

from torchtheory.data.two_clouds import (
    bayes_accuracy,
    cloud_posterior,
    legacy_stream,
    log_densities,
    two_gaussian_clouds,
)
from torchtheory.nets.activation_moments import second_moment, squared_slope
from torchtheory.primer.gaussian_means import gaussian_mean, gaussian_rule
from torchtheory.training.adam import UncorrectedAdam
from torchtheory.training.augmentation import OneOf, Shift, augmented, invariance_gap, shifts
from torchtheory.training.backpropagation import (
    Backpropagation,
    LayerStep,
    Unit,
    backpropagate,
    count_flops,
    pull_back,
)
from torchtheory.training.cross_entropy import (
    binary_cross_entropy,
    binary_cross_entropy_slope,
    slope_in_probability,
    softmax_regression_gradient,
    softmax_regression_loss,
)
from torchtheory.training.decay import weight_decay_groups
from torchtheory.training.density_losses import (
    histogram,
    l2_density_loss,
    squared_norm,
    surprisal,
    which_bin,
)
from torchtheory.training.distillation import (
    Distillation,
    agreement,
    distill,
    distillation_gradient,
    distillation_loss,
)
from torchtheory.training.dropout import (
    DropoutPenalty,
    UnitDropout,
    WeightDropout,
    all_masks,
    dropout_penalty,
    dropout_regression,
    ensemble_mean,
    geometric_mean,
    mask_probabilities,
    penalty_per_unit,
    sampled_mean,
)
from torchtheory.training.early_stopping import EarlyStopping
from torchtheory.training.graph_backpropagation import (
    GraphBackpropagation,
    PathSum,
    backpropagate_graph,
    error_by_paths,
)
from torchtheory.training.history import Epoch, History
from torchtheory.training.initialization import (
    Initialization,
    LayerDraw,
    draw_weight,
    fans,
    initialize,
    weight_variance,
)
from torchtheory.training.label_smoothing import (
    smooth_labels,
    smoothed_cross_entropy,
    smoothed_gap,
    smoothed_label_entropy,
    uniform_confusion,
)
from torchtheory.training.loop import Diverged
from torchtheory.training.losses import (
    LOSSES,
    ClassificationLoss,
    classification_loss,
    loss_values,
    one_hot_rows,
)
from torchtheory.training.many_networks import ManyResult, fit_many, mlp_family, noisy_labels
from torchtheory.training.momentum import HeavyBall, Nesterov, effective_step, nesterov_iterate
from torchtheory.training.named_optimizers import OPTIMIZERS, make_optimizer
from torchtheory.training.projection import onto_ball, onto_box, onto_simplex, project_after_step
from torchtheory.training.risks import empirical_risk, hold_out, least_empirical_risk, risk
from torchtheory.training.schedules import PowerLaw, RobbinsMonro, robbins_monro
from torchtheory.training.shrinkage import (
    Shrinkage,
    early_stopping_factors,
    factor_ratio,
    matching_steps,
    shrink,
    weight_decay_factors,
)
from torchtheory.training.signal_propagation import (
    Signal,
    measure_signal,
    predict_signal,
    predict_signal_of,
)
from torchtheory.training.surrogates import (
    logistic_calibration,
    logistic_surrogate,
    logistic_surrogate_slope,
    quadratic_loss,
    zero_one_loss,
)
from torchtheory.training.trainer import fit

__all__ = [
    "LOSSES",
    "OPTIMIZERS",
    "Backpropagation",
    "ClassificationLoss",
    "Distillation",
    "Diverged",
    "DropoutPenalty",
    "EarlyStopping",
    "Epoch",
    "GraphBackpropagation",
    "HeavyBall",
    "History",
    "Initialization",
    "LayerDraw",
    "LayerStep",
    "ManyResult",
    "Nesterov",
    "OneOf",
    "PathSum",
    "PowerLaw",
    "RobbinsMonro",
    "Shift",
    "Shrinkage",
    "Signal",
    "UncorrectedAdam",
    "Unit",
    "UnitDropout",
    "WeightDropout",
    "agreement",
    "all_masks",
    "augmented",
    "backpropagate",
    "backpropagate_graph",
    "bayes_accuracy",
    "binary_cross_entropy",
    "binary_cross_entropy_slope",
    "classification_loss",
    "cloud_posterior",
    "count_flops",
    "distill",
    "distillation_gradient",
    "distillation_loss",
    "draw_weight",
    "dropout_penalty",
    "dropout_regression",
    "early_stopping_factors",
    "effective_step",
    "empirical_risk",
    "ensemble_mean",
    "error_by_paths",
    "factor_ratio",
    "fans",
    "fit",
    "fit_many",
    "gaussian_mean",
    "gaussian_rule",
    "geometric_mean",
    "histogram",
    "hold_out",
    "initialize",
    "invariance_gap",
    "l2_density_loss",
    "least_empirical_risk",
    "legacy_stream",
    "log_densities",
    "logistic_calibration",
    "logistic_surrogate",
    "logistic_surrogate_slope",
    "loss_values",
    "make_optimizer",
    "mask_probabilities",
    "matching_steps",
    "measure_signal",
    "mlp_family",
    "nesterov_iterate",
    "noisy_labels",
    "one_hot_rows",
    "onto_ball",
    "onto_box",
    "onto_simplex",
    "penalty_per_unit",
    "predict_signal",
    "predict_signal_of",
    "project_after_step",
    "pull_back",
    "quadratic_loss",
    "risk",
    "robbins_monro",
    "sampled_mean",
    "second_moment",
    "shifts",
    "shrink",
    "slope_in_probability",
    "smooth_labels",
    "smoothed_cross_entropy",
    "smoothed_gap",
    "smoothed_label_entropy",
    "softmax_regression_gradient",
    "softmax_regression_loss",
    "squared_norm",
    "squared_slope",
    "surprisal",
    "two_gaussian_clouds",
    "uniform_confusion",
    "weight_decay_factors",
    "weight_decay_groups",
    "weight_variance",
    "which_bin",
    "zero_one_loss",
]
