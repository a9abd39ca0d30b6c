"""Visual question answering: a relation network, and what its answers rest on."""
