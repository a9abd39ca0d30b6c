"""Explanations to look at: pages, pictures, numbers with marks."""
