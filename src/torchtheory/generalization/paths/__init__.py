"""Networks taken apart into paths, and two-phase training."""
