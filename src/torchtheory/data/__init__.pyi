# small real sets
from .real import digits as digits
from .real import split as split

# files
from .sources import load_data as load_data
from .files import load_npz as load_npz
from .files import load_npy_folder as load_npy_folder
from .tables import load_table as load_table
from .files import read_idx as read_idx
from .sources import load_idx_folder as load_idx_folder

# image sets
from .image_sets import load_image_set as load_image_set
from .cifar10 import load_cifar10 as load_cifar10
from .image_sets import locate_image_set as locate_image_set
from .image_sets import data_directory as data_directory
from .clevr import clevr as clevr
from .mini_clevr import mini_clevr as mini_clevr

# generators
from .synthetic import xor as xor
from .synthetic import separable_gaussians as separable_gaussians
from .synthetic import linear_sample as linear_sample
from .synthetic import logistic_sample as logistic_sample
from .synthetic import unit_vectors as unit_vectors
from .two_clouds import two_gaussian_clouds as two_gaussian_clouds
