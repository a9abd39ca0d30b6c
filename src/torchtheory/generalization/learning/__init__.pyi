# distributions and tasks
from .finite_distributions import FiniteDistribution as FiniteDistribution
from .tasks import LearningTask as LearningTask
from .tasks import prediction_task as prediction_task
from .tasks import self_supervised_task as self_supervised_task

# Bayes optima
from .bayes import bayes_regression as bayes_regression
from .bayes import bayes_classifier as bayes_classifier
from .bayes import regression_excess as regression_excess
from .bayes import classification_excess as classification_excess

# where an error comes from
from .error_decomposition import decompose_error as decompose_error
from .error_decomposition import ErrorTerms as ErrorTerms
from .width_choice import choose_width as choose_width

# learners
from .learners import nearest_neighbor as nearest_neighbor
from .learners import majority as majority
from .learners import memorize as memorize
from .learners import minimize_errors as minimize_errors
from .learners import train_network as train_network

# no free lunch
from .no_free_lunch import no_free_lunch_bound as no_free_lunch_bound
from .no_free_lunch import target_census as target_census
from .no_free_lunch import slow_distribution as slow_distribution
from .no_free_lunch import missed_mass as missed_mass

# validation
from .validation_bound import validation_bounds as validation_bounds
from .validation_bound import validation_sample_size as validation_sample_size
from .validation_bound import validation_slack as validation_slack

# calibration
from .calibration import predicted_confidence as predicted_confidence
from .calibration import reliability_curve as reliability_curve
from .calibration import calibration_error as calibration_error
from .calibration import calibration_test as calibration_test
from .calibration import clustered_calibration as clustered_calibration
from .calibration import fit_temperature as fit_temperature
