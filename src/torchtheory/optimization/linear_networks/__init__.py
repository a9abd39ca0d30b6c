"""Linear networks of two and more layers: gradients, critical points, factorizations."""
