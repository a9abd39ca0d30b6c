"""Optimizers that torch lacks, by name, and schedules of learning rates."""
