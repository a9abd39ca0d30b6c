"""Backpropagation by its definition: along a chain, on a graph, and from scratch."""
