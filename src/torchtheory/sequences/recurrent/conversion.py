"""Recurrent networks to torch's layers and back, with the same values.

torch's GRU resets after the product with the matrix: only such cells have a counterpart there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidType, UnsupportedModel
from torchtheory.sequences.recurrent.cells import Cell, ElmanCell, GRUCell, LSTMCell
from torchtheory.sequences.recurrent.networks import Bidirectional, Recurrent, Stacked

_TORCH = (nn.RNN, nn.LSTM, nn.GRU)


def from_torch(layer: nn.RNN | nn.LSTM | nn.GRU) -> Stacked:
    """Cells with the weights of torch's recurrent layer; sequences come batch first.

    Any number of layers, one direction or both. Dropout between layers is left out, as in
    evaluation; projections of the hidden state are refused.

    >>> net = from_torch(nn.LSTM(3, 4, num_layers=2, bidirectional=True))
    >>> net(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 5, 8])
    """
    if not isinstance(layer, _TORCH):
        raise InvalidType(f"an nn.RNN, nn.LSTM or nn.GRU is needed, not {described(layer)}")
    if layer.proj_size:
        raise UnsupportedModel("an LSTM with a projection (proj_size) has no cell here")
    made: list[Recurrent | Bidirectional] = []
    for k in range(layer.num_layers):
        onward = _cell_of(layer, f"l{k}")
        if layer.bidirectional:
            made.append(Bidirectional(onward, _cell_of(layer, f"l{k}_reverse")))
        else:
            made.append(Recurrent(onward))
    return Stacked(made)


def to_torch(network: Recurrent | Bidirectional | Stacked) -> nn.RNN | nn.LSTM | nn.GRU:
    """Torch's layer, batch first, with the weights of a network of cells of one kind.

    Heads are not part of it. Refused: activations other than tanh and ReLU, an LSTM with a matrix
    on its cell state, a GRU that resets before the product, layers of different kinds or sizes.

    >>> import torch
    >>> cell = ElmanCell(3, 4)
    >>> x = torch.ones(2, 5, 3).double()
    >>> bool(torch.allclose(to_torch(Recurrent(cell))(x)[0], Recurrent(cell)(x)))
    True
    """
    stack = network if isinstance(network, Stacked) else Stacked([network])
    cells = [_directions(layer) for layer in stack.layers]
    first = cells[0][0]
    kinds = {(type(c), c.units, _nonlinearity(c), len(pair)) for pair in cells for c in pair}
    if len(kinds) > 1:
        raise UnsupportedModel("torch's recurrent layers have one kind and size of cell throughout")
    bias = any(c.bias is not None for pair in cells for c in pair)
    options = {
        "num_layers": len(cells),
        "bidirectional": len(cells[0]) == 2,
        "batch_first": True,
        "bias": bias,
        "dtype": first.recurrent.dtype,
        "device": "meta",
    }
    made: nn.RNN | nn.LSTM | nn.GRU
    if isinstance(first, ElmanCell):
        made = nn.RNN(first.inputs, first.units, nonlinearity=_nonlinearity(first), **options)
    elif isinstance(first, LSTMCell):
        made = nn.LSTM(first.inputs, first.units, **options)
    else:
        made = nn.GRU(first.inputs, first.units, **options)
    # made without storage, so that torch draws no weights from its own randomness
    made.to_empty(device=first.recurrent.device)
    with torch.no_grad():
        for k, pair in enumerate(cells):
            for cell, suffix in zip(pair, (f"l{k}", f"l{k}_reverse"), strict=False):
                _give(made, suffix, cell)
    made.flatten_parameters()
    return made


def _directions(layer: nn.Module) -> list[Cell]:
    if isinstance(layer, Bidirectional):
        return [layer.onward.cell, layer.backward.cell]
    assert isinstance(layer, Recurrent)
    return [layer.cell]


def _nonlinearity(cell: Cell) -> str:
    """Torch's name of what the cell does, or a refusal."""
    if isinstance(cell, ElmanCell):
        if isinstance(cell.activation, nn.Tanh | nn.ReLU):
            return "tanh" if isinstance(cell.activation, nn.Tanh) else "relu"
        raise UnsupportedModel(f"nn.RNN has tanh or ReLU, not {cell.activation}")
    if isinstance(cell, LSTMCell):
        if cell.mixing is not None:
            raise UnsupportedModel("nn.LSTM has no matrix on the cell state: build without mixing")
        return "lstm"
    if isinstance(cell, GRUCell):
        if cell.reset != "after":
            raise UnsupportedModel(
                'nn.GRU resets after the product with its matrix: build with reset="after"'
            )
        return "gru"
    raise UnsupportedModel(f"torch has no layer for {type(cell).__name__}")


def _cell_of(layer: nn.RNN | nn.LSTM | nn.GRU, suffix: str) -> Cell:
    def weight(name: str) -> Tensor:
        found: Tensor = getattr(layer, f"{name}_{suffix}").detach()
        return found

    entering = weight("weight_ih")
    sizes, kind = (entering.shape[1], layer.hidden_size), entering.dtype
    cell: Cell
    if isinstance(layer, nn.LSTM):
        cell = LSTMCell(*sizes, bias=layer.bias, dtype=kind)
    elif isinstance(layer, nn.GRU):
        cell = GRUCell(*sizes, reset="after", bias=layer.bias, dtype=kind)
    else:
        cell = ElmanCell(*sizes, layer.nonlinearity, bias=layer.bias, dtype=kind)
    cell = cell.to(entering.device)
    with torch.no_grad():
        cell.entering.copy_(entering)
        cell.recurrent.copy_(weight("weight_hh"))
        if cell.bias is not None:
            outer, inner = weight("bias_ih"), weight("bias_hh").clone()
            if isinstance(cell, GRUCell) and cell.inner_bias is not None:
                # the candidate's own bias is multiplied by the reset
                cell.inner_bias.copy_(inner[2 * cell.units :])
                inner[2 * cell.units :] = 0
            cell.bias.copy_(outer + inner)
    return cell


def _give(layer: nn.Module, suffix: str, cell: Cell) -> None:
    getattr(layer, f"weight_ih_{suffix}").copy_(cell.entering)
    getattr(layer, f"weight_hh_{suffix}").copy_(cell.recurrent)
    outer = getattr(layer, f"bias_ih_{suffix}", None)
    if outer is None:
        return
    inner = getattr(layer, f"bias_hh_{suffix}")
    inner.zero_()
    outer.copy_(torch.zeros_like(outer) if cell.bias is None else cell.bias)
    if isinstance(cell, GRUCell) and cell.inner_bias is not None:
        inner[2 * cell.units :] = cell.inner_bias
