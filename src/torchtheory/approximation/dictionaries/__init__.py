"""Dictionaries and edges: wavelets, shearlets, cartoon-like functions, and their networks."""
