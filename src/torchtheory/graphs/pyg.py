"""Layers of PyTorch Geometric to ours and back, with the same values and derivatives.

So it is on any list of edges, also one that lists some of them several times. The exceptions are
about weights: GIN layers use them here, and those of a loop that is listed several times are added
here, where GCN layers of PyTorch Geometric keep one of them.

`from_pyg` needs nothing but the layer; `to_pyg` needs the package (`pip install torch-geometric`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidType, MissingPackage, UnsupportedModel
from torchtheory.graphs.convolutions import (
    ChebyshevConvolution,
    GraphConvolution,
    GraphIsomorphism,
)
from torchtheory.graphs.graph_attention import GraphAttention

Layer = GraphConvolution | GraphAttention | GraphIsomorphism | ChebyshevConvolution

_Made = TypeVar("_Made", bound=nn.Module)


def from_pyg(layer: nn.Module) -> Layer:
    """The layer here with copies of the weights of a GCNConv, GATConv, GINConv or ChebConv.

    Dropout is left out, as in evaluation. Options that have no counterpart here are refused:
    `improved`, `residual`, no normalization, two kinds of nodes.

    >>> from torch_geometric.nn import GCNConv
    >>> from_pyg(GCNConv(3, 2))
    GraphConvolution(
      3, 2
      (linear): Linear(in_features=3, out_features=2, bias=False)
    )
    """
    kinds: dict[str, Callable[[Any], Layer]] = {
        "GCNConv": _gcn,
        "GATConv": _gat,
        "GINConv": _gin,
        "ChebConv": _chebyshev,
    }
    name = next((k.__name__ for k in type(layer).__mro__ if k.__name__ in kinds), None)
    if name is None or not hasattr(layer, "aggr_module"):
        raise InvalidType(
            f"a GCNConv, GATConv, GINConv or ChebConv is needed, not {described(layer)}"
        )
    return kinds[name](layer)


def to_pyg(layer: Layer) -> Any:
    """The layer of PyTorch Geometric with copies of the weights of one of ours.

    >>> to_pyg(GraphConvolution(3, 2))
    GCNConv(3, 2)
    """
    try:
        from torch_geometric import nn as peer  # type: ignore[import-untyped]
    except ImportError as missing:
        raise MissingPackage(
            "PyTorch Geometric is not installed: pip install torch-geometric"
        ) from missing
    with torch.random.fork_rng():  # its layers draw their first weights from torch's randomness
        if isinstance(layer, GraphConvolution):
            weight = layer.linear.weight
            made = peer.GCNConv(layer.inputs, layer.outputs, bias=layer.bias is not None)
            return _given(made, weight, {"lin.weight": weight, "bias": layer.bias})
        if isinstance(layer, GraphAttention):
            return _gat_back(layer, peer)
        if isinstance(layer, GraphIsomorphism):
            learned = isinstance(layer.epsilon, nn.Parameter)
            made = peer.GINConv(
                copy.deepcopy(layer.network), float(layer.epsilon.detach()), train_eps=learned
            )
            # PyTorch Geometric draws the weights of the network anew, and rounds epsilon
            made.to(layer.epsilon.dtype)
            made.load_state_dict(
                {f"nn.{k}": v for k, v in layer.network.state_dict().items()}
                | {"eps": layer.epsilon.detach()}
            )
            return made
        if isinstance(layer, ChebyshevConvolution):
            if not layer.normalized or layer.largest not in (None, 2.0):
                raise UnsupportedModel(
                    "ChebConv takes another largest eigenvalue or Laplacian at each call, not as "
                    "part of the layer: give lambda_max there"
                )
            made = peer.ChebConv(
                layer.inputs, layer.outputs, layer.degree + 1, bias=layer.bias is not None
            )
            terms = {f"lins.{k}.weight": w.T for k, w in enumerate(layer.weight)}
            return _given(made, layer.weight, {**terms, "bias": layer.bias})
    raise InvalidType(f"there is no layer of PyTorch Geometric for {described(layer)}")


def _given(made: Any, like: Tensor, weights: dict[str, Tensor | None]) -> Any:
    made = made.to(like)
    made.load_state_dict({k: v.detach().clone() for k, v in weights.items() if v is not None})
    return made


def _refuse(layer: Any, **wanted: Any) -> None:
    for option, value in wanted.items():
        found = getattr(layer, option, value)
        if found != value:
            raise UnsupportedModel(
                f"{type(layer).__name__} with {option}={found!r} has no counterpart here"
            )


def _gcn(layer: Any) -> GraphConvolution:
    _refuse(layer, improved=False, add_self_loops=True, normalize=True, flow="source_to_target")
    weight = layer.lin.weight
    made = GraphConvolution(
        weight.shape[1], weight.shape[0], bias=layer.bias is not None, dtype=weight.dtype
    )
    return _filled(made, {"linear.weight": weight, "bias": layer.bias})


def _gat(layer: Any) -> GraphAttention:
    _refuse(layer, residual=False, flow="source_to_target", fill_value="mean")
    if layer.lin is None:
        raise UnsupportedModel("a GATConv between two kinds of nodes has no counterpart here")
    weight = layer.lin.weight  # [heads * c, d]
    heads, c = layer.heads, layer.out_channels
    edge = None if layer.lin_edge is None else layer.lin_edge.weight.reshape(heads, c, -1)
    made = GraphAttention(
        weight.shape[1],
        c,
        heads=heads,
        edge_features=0 if edge is None else edge.shape[2],
        activation=nn.LeakyReLU(layer.negative_slope),
        loops=layer.add_self_loops,
        joined=layer.concat,
        bias=layer.bias is not None,
        dtype=weight.dtype,
    )
    # u acts on the projected edge features there, and on the features themselves here
    along = None if edge is None else torch.einsum("hce,hc->he", edge, layer.att_edge[0])
    return _filled(
        made,
        {
            "values": weight,
            "receiving": layer.att_dst[0],
            "sending": layer.att_src[0],
            "along": along,
            "bias": layer.bias,
        },
    )


def _gat_back(layer: GraphAttention, peer: Any) -> Any:
    if not isinstance(layer.activation, nn.LeakyReLU):
        raise UnsupportedModel(f"GATConv has the leaky ReLU, not {layer.activation}")
    edges = layer.edge_features
    made = peer.GATConv(
        layer.inputs,
        layer.outputs,
        heads=layer.heads,
        concat=layer.joined,
        negative_slope=layer.activation.negative_slope,
        add_self_loops=layer.loops,
        edge_dim=edges or None,
        bias=layer.bias is not None,
    )
    weights: dict[str, Tensor | None] = {
        "lin.weight": layer.values,
        "att_dst": layer.receiving.unsqueeze(0),
        "att_src": layer.sending.unsqueeze(0),
        "bias": layer.bias,
    }
    if layer.along is not None:
        # the first of the c projected features is the score, and u picks it
        first = torch.zeros_like(layer.receiving)
        first[:, 0] = 1
        weights["att_edge"] = first.unsqueeze(0)
        weights["lin_edge.weight"] = torch.einsum("hc,he->hce", first, layer.along).reshape(
            -1, edges
        )
    return _given(made, layer.values, weights)


def _gin(layer: Any) -> GraphIsomorphism:
    _refuse(layer, flow="source_to_target")
    return GraphIsomorphism(
        copy.deepcopy(layer.nn),
        epsilon=float(layer.eps.detach()),
        learned=isinstance(layer.eps, nn.Parameter),
    )


def _chebyshev(layer: Any) -> ChebyshevConvolution:
    _refuse(layer, flow="source_to_target", normalization="sym")
    weight = torch.stack([lin.weight.T for lin in layer.lins])
    made = ChebyshevConvolution(
        weight.shape[1],
        weight.shape[2],
        len(weight) - 1,
        bias=layer.bias is not None,
        dtype=weight.dtype,
    )
    return _filled(made, {"weight": weight, "bias": layer.bias})


def _filled(made: _Made, weights: dict[str, Tensor | None]) -> _Made:
    made.load_state_dict({k: v.detach().clone() for k, v in weights.items() if v is not None})
    return made
