"""What convolutional, recurrent, residual and skip-connected networks compute and approximate."""
