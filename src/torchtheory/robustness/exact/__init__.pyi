# exact answers
from .distance import minimal_perturbation as minimal_perturbation
from .distance import MinimalPerturbation as MinimalPerturbation
