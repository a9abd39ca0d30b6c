# graphs
from .graph import Graph as Graph
from .graph_reading import as_graph as as_graph

# networks on them
from .convolutions import GCN as GCN
