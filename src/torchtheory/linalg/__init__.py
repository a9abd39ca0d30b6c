"""Matrix-free linear algebra: operators, Krylov spaces, spectra, densities, traces, solvers."""
