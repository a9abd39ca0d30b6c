# products by ReLU
from .squaring import square_network as square_network
from .squaring import squaring_levels as squaring_levels
from .squaring import recurrent_square as recurrent_square
from .products import product_network as product_network
from .products import many_product_network as many_product_network
from .relu import polynomial_network as polynomial_network
from .reciprocals import reciprocal_network as reciprocal_network
from .reciprocals import rational_network as rational_network

# by smooth activations
from .divided_differences import monomial_network as monomial_network
from .divided_differences import leshno_network as leshno_network
from .smooth_gates import smooth_square_network as smooth_square_network
from .smooth_gates import shallow_product_network as shallow_product_network
from .smooth_gates import deep_product_network as deep_product_network
from .shallow import shallow_polynomial as shallow_polynomial

# approximation by polynomials
from .bernstein import bernstein_approximant as bernstein_approximant
from .bernstein import BernsteinForm as BernsteinForm
from .bernstein import bernstein_degree as bernstein_degree
from .landau import landau_approximant as landau_approximant
from .fits import best_polynomial as best_polynomial
from .fits import weierstrass_degree as weierstrass_degree
from .fits import equispaced_interpolant as equispaced_interpolant

# spans
from .shallow import exponential_span as exponential_span
from .shallow import kolmogorov_width as kolmogorov_width
