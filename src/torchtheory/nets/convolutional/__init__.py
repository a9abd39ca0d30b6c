"""Convolution as mathematics: operators, matrices, spectra, receptive fields, equivariance."""
