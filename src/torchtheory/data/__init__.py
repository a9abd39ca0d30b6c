"""Data sets: generators, small real sets, files."""

from torchtheory.data.cifar10 import load_cifar10
from torchtheory.data.files import load_npy_folder, load_npz, read_idx
from torchtheory.data.image_sets import data_directory, load_image_set, locate_image_set
from torchtheory.data.real import digits, split
from torchtheory.data.sources import load_data, load_idx_folder
from torchtheory.data.synthetic import (
    PlantedSample,
    linear_sample,
    logistic_sample,
    separable_gaussians,
    unit_vectors,
    xor,
)
from torchtheory.data.tables import load_table

__all__ = [
    "PlantedSample",
    "data_directory",
    "digits",
    "linear_sample",
    "load_cifar10",
    "load_data",
    "load_idx_folder",
    "load_image_set",
    "load_npy_folder",
    "load_npz",
    "load_table",
    "locate_image_set",
    "logistic_sample",
    "read_idx",
    "separable_gaussians",
    "split",
    "unit_vectors",
    "xor",
]
