"""Attacks: inputs near the given ones at which a model errs."""
