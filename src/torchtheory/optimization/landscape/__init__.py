"""The loss on parameter space: slices, paths, critical points."""
