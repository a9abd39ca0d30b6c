"""Networks as sums over paths: path features, path norms, path kernels."""
