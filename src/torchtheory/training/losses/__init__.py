"""Losses and risks: for classification, their surrogates, and what they estimate."""
