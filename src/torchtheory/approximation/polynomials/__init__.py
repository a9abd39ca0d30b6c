"""Polynomials, products and quotients as networks."""
