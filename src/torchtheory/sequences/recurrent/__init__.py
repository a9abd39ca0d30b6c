"""Recurrent networks: cells, prefix scans, linear recurrences, gradients through time."""
