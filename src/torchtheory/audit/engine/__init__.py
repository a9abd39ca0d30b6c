"""Findings are registered, given their share of the time, run, and collected in a report."""
