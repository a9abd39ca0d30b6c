"""Shared by all tests and doctests."""

import os

import torch
from hypothesis import settings

# Properties must not flake: the same examples every time, and no deadline on a busy machine.
settings.register_profile("torchtheory", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("torchtheory")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
