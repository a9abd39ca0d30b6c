"""The smallest perturbation that changes the class of a small ReLU network, exactly."""

from torchtheory.robustness.exact.distance import minimal_perturbation as minimal_perturbation
