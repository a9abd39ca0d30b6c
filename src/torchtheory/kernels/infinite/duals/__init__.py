"""What activations make of two correlated Gaussians: closed forms and expansions."""
