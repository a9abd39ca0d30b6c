"""Generalization: what a sample says about the data it was drawn from."""

from torchtheory.generalization.bayes import (
    BayesOptimum,
    bayes_classifier,
    bayes_regression,
    classification_excess,
    regression_excess,
)
from torchtheory.generalization.error_decomposition import ErrorTerms, decompose_error
from torchtheory.generalization.finite_distributions import FiniteDistribution, multisets
from torchtheory.generalization.gap_decomposition import GapDecomposition, decompose_gap
from torchtheory.generalization.hypothesis_sets import (
    all_labellings,
    labellings_with_changes,
    threshold_network_labellings,
)
from torchtheory.generalization.learners import (
    majority,
    memorize,
    minimize_errors,
    nearest_neighbour,
    outside_hypothesis_set,
    train_network,
)
from torchtheory.generalization.learning_tasks import (
    LearningTask,
    induced_distribution,
    loss_interval,
    prediction_task,
    self_supervised_task,
    split_fibres,
)
from torchtheory.generalization.no_free_lunch import (
    TargetCensus,
    missed_mass,
    no_free_lunch_bound,
    slow_distribution,
    target_census,
)
from torchtheory.generalization.step_functions import best_steps, greedy_steps

__all__ = [
    "BayesOptimum",
    "ErrorTerms",
    "FiniteDistribution",
    "GapDecomposition",
    "LearningTask",
    "TargetCensus",
    "all_labellings",
    "bayes_classifier",
    "bayes_regression",
    "best_steps",
    "classification_excess",
    "decompose_error",
    "decompose_gap",
    "greedy_steps",
    "induced_distribution",
    "labellings_with_changes",
    "loss_interval",
    "majority",
    "memorize",
    "minimize_errors",
    "missed_mass",
    "multisets",
    "nearest_neighbour",
    "no_free_lunch_bound",
    "outside_hypothesis_set",
    "prediction_task",
    "regression_excess",
    "self_supervised_task",
    "slow_distribution",
    "split_fibres",
    "target_census",
    "threshold_network_labellings",
    "train_network",
]
