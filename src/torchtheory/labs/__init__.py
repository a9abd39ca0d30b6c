"""Experiments with a verdict, one package per room, and the engine that runs them."""
