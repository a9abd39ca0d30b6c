"""Relevance on its way back through a network: which operation hands on what, and the books."""
