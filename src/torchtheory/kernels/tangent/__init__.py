"""The tangent kernel of a network, training in its closed form, and linearization."""
