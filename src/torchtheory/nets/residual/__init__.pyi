# networks
from .layers import residual_network as residual_network
from .layers import Residual as Residual
from .layers import ResidualLayer as ResidualLayer
from .layers import DenselyConnected as DenselyConnected
from .dense_blocks import DenseBlock as DenseBlock

# networks for images
from .image_resnets import ResNet as ResNet
from .image_resnets import resnet as resnet
from .image_resnets import resnet9 as resnet9
from .image_resnets import BasicBlock as BasicBlock
from .image_resnets import Bottleneck as Bottleneck

# Jacobians and gradients
from .jacobians import jacobian_profile as jacobian_profile
from .jacobians import gradient_profile as gradient_profile
from .jacobians import block_jacobian as block_jacobian

# the flow they follow
from .euler import EulerBlock as EulerBlock
from .euler import resnet_from_ode as resnet_from_ode
from .euler import ode_from_resnet as ode_from_resnet
