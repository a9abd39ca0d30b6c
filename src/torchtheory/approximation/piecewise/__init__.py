"""Functions by pieces: boxes, hats, finite elements, charts, local Taylor polynomials."""
