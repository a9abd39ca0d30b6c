# certificates of a run
from .certify import certify as certify
from .certify import ConvergenceCertificate as ConvergenceCertificate
from .assumptions import Assumptions as Assumptions
from .contradictions import contradictions_of as contradictions_of

# recorded runs
from .recorded_runs import record_run as record_run
from .recorded_runs import record_points as record_points
from .recorded_runs import record_optimizer as record_optimizer
from .recorded_runs import RecordedRun as RecordedRun
from .recorded_runs import as_recorded as as_recorded

# what theorems promise
from .convergence import sufficient_decrease as sufficient_decrease
from .convergence import iterations_to_critical_point as iterations_to_critical_point
from .convergence import polyak_lojasiewicz_constant as polyak_lojasiewicz_constant
from .convergence import geometric_bound as geometric_bound
from .convergence import accelerated_bound as accelerated_bound
from .convergence import averaged_descent_bound as averaged_descent_bound

# constants
from .convexity import probe_convexity as probe_convexity
from .convexity import tangent_excess as tangent_excess
from .run_constants import smoothness_from_run as smoothness_from_run
from .run_constants import convexity_from_run as convexity_from_run
from .run_constants import dominance_from_run as dominance_from_run
from .run_constants import minimum_from_run as minimum_from_run
from .regression_constants import ridge_constants as ridge_constants
from .regression_constants import logistic_ridge_constants as logistic_ridge_constants

# stochastic rates
from .stochastic_rates import step_budget as step_budget
from .stochastic_rates import stationarity_bound as stationarity_bound
from .stochastic_rates import stationarity_plan as stationarity_plan
from .stochastic_rates import expected_least_squares_error as expected_least_squares_error
from .stochastic_rates import stationary_least_squares_error as stationary_least_squares_error
from .stochastic_rates import gradient_variance as gradient_variance
