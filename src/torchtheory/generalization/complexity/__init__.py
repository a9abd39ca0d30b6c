"""Rademacher complexity, covering numbers, and bounds by margins and norms."""
