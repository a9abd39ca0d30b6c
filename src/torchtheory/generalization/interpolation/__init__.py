"""Beyond the interpolation threshold: bias, variance, double descent."""
