# operators
from .operators import LinearOperator as LinearOperator

# eigenvalues
from .eigenvalues import top_eigenpairs as top_eigenpairs
from .eigenvalues import extremal_eigenvalues as extremal_eigenvalues
from .eigenvalues import EigenResult as EigenResult
from .eigenvalues import ExtremalEigenvalues as ExtremalEigenvalues

# singular values
from .singular_values import singular_values as singular_values
from .singular_values import operator_norm as operator_norm
from .singular_values import operator_norm_upper_bound as operator_norm_upper_bound
from .singular_values import SingularResult as SingularResult
from .singular_values import OperatorNorm as OperatorNorm

# spectral density
from .density import spectral_density as spectral_density
from .density import SpectralDensity as SpectralDensity

# traces
from .trace import trace as trace

# linear systems
from .conjugate_gradients import conjugate_gradients as conjugate_gradients
from .conjugate_gradients import Solution as Solution
from .conjugate_gradients import NotPositiveDefinite as NotPositiveDefinite
