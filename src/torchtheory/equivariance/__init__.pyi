# what a network commutes with
from .measure import measure_equivariance as measure_equivariance
from .layers import equivariance_by_layer as equivariance_by_layer
