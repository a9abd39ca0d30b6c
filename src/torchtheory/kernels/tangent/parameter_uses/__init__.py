"""Where and how the parameters enter a computation, and the Jacobians of their uses."""
