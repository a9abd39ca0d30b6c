"""Attention: dot products, heads, positions, transformers for sequences and images, their cost."""
