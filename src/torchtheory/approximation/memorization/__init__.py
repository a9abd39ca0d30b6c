"""Networks that take given values at given points, written down instead of trained."""
