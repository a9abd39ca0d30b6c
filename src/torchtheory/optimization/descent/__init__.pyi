# descent
from .iterates import gradient_descent as gradient_descent
from .iterates import Descent as Descent
from .iterates import descend as descend
from .iterates import trajectory as trajectory
from .iterates import last_iterate as last_iterate
from .iterates import average_iterate as average_iterate
from .directions import descent_report as descent_report
from .objectives import objective_of as objective_of

# flow
from .flow import gradient_flow as gradient_flow
from .flow import function_flow as function_flow

# mini-batches and noise
from .minibatch import draw_batches as draw_batches
from .minibatch import minibatch_gradient as minibatch_gradient
from .minibatch import minibatch_direction as minibatch_direction
from .noise import with_gaussian_noise as with_gaussian_noise
from .noise import with_unit_noise as with_unit_noise
from .variance_reduction import svrg_direction as svrg_direction
from .variance_reduction import saga_direction as saga_direction

# second order
from .newton import newton_direction as newton_direction
from .newton import quadratic_model as quadratic_model
from .newton import quadratic_model_of as quadratic_model_of
from .newton import diagonal_blocks as diagonal_blocks

# quadratics
from .quadratic_dynamics import quadratic_descent as quadratic_descent
from .quadratic_dynamics import condition_report as condition_report
from .quadratic_dynamics import preconditioned_matrix as preconditioned_matrix
from .quadratic_dynamics import least_squares_bound as least_squares_bound
