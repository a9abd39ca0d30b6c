"""Data sets: generators, small real sets, files."""

from torchtheory.data.files import load_npz, read_idx
from torchtheory.data.image_sets import data_directory, load_image_set, locate_image_set
from torchtheory.data.real import digits, split
from torchtheory.data.synthetic import (
    PlantedSample,
    linear_sample,
    logistic_sample,
    separable_gaussians,
    unit_vectors,
    xor,
)

__all__ = [
    "PlantedSample",
    "data_directory",
    "digits",
    "linear_sample",
    "load_image_set",
    "load_npz",
    "locate_image_set",
    "logistic_sample",
    "read_idx",
    "separable_gaussians",
    "split",
    "unit_vectors",
    "xor",
]
