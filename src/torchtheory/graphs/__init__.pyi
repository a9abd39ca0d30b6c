# graphs
from .graph import Graph as Graph
from .graph_reading import as_graph as as_graph
from .pyg import from_pyg as from_pyg
from .pyg import to_pyg as to_pyg

# spectra
from .laplacians import graph_laplacian as graph_laplacian
from .laplacians import gcn_coupling as gcn_coupling
from .spectral import graph_fourier as graph_fourier
from .spectral import spectral_filter as spectral_filter

# layers and networks
from .convolutions import GCN as GCN
from .convolutions import GraphConvolution as GraphConvolution
from .graph_attention import GraphAttention as GraphAttention
from .convolutions import ChebyshevConvolution as ChebyshevConvolution
from .convolutions import GraphIsomorphism as GraphIsomorphism
from .message_passing import MessagePassing as MessagePassing

# functions of sets
from .deep_sets import DeepSet as DeepSet
from .deep_sets import EquivariantDeepSet as EquivariantDeepSet
from .point_net import PointNet as PointNet
from .power_sums import power_sum_encode as power_sum_encode
from .power_sums import power_sum_decode as power_sum_decode

# classes of nodes
from .node_classification import fit_nodes as fit_nodes
from .node_samples import OnNodes as OnNodes

# what can be told apart (Weisfeiler-Lehman)
from .weisfeiler_lehman import wl_colors as wl_colors
from .weisfeiler_lehman import wl_distinguishes as wl_distinguishes
from .weisfeiler_lehman import wl_kernel as wl_kernel
from .weisfeiler_lehman import gnn_distinguishes as gnn_distinguishes

# what is heard, and what becomes alike
from .over_smoothing import dirichlet_energy as dirichlet_energy
from .over_smoothing import smoothing_curve as smoothing_curve
from .graph_sensitivity import sensitivity_by_distance as sensitivity_by_distance
from .bottlenecks import bottleneck as bottleneck
from .relabeling import graph_equivariance as graph_equivariance
