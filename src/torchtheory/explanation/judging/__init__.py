"""Judging explanations: by removal, randomization, stability, known places, and a clever Hans."""
