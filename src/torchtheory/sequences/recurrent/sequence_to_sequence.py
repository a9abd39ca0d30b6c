r"""Sequences to sequences: an encoder, a decoder, and attention between them.

$$
p(y_{1:n}\mid x_{1:m})=\prod_ip(y_i\mid x_{1:m},y_{1:i-1}).
$$

The encoder reads x into states $\zeta_1,\dots,\zeta_m$. Without attention the decoder sees the last
one only, as its first state; with attention it sees at each step $i$ the mean
$c_i=\sum_ja_{ij}\zeta_j$ with weights $a_{ij}=\operatorname{softmax}_j(v^\top\tanh(W_1z_{i-1}+
W_2\zeta_j))$ that depend on its state. Source: Deep Learning (notes), section 5.3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, whole_number
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.nets.feedforward import drawn_linear
from torchtheory.sequences.recurrent.cells import GRUCell
from torchtheory.sequences.recurrent.conversion import to_torch
from torchtheory.sequences.recurrent.networks import Bidirectional


class AdditiveAttention(nn.Module):
    r"""$a_j=\operatorname{softmax}_j(v^\top\tanh(W_1z+W_2\zeta_j))$ and $c=\sum_ja_j\zeta_j$.

    Args:
        state: size of z.
        memory: size of the $\zeta_j$.
        units: of the hidden layer.

    >>> attention = AdditiveAttention(3, 4, 5)
    >>> context, weights = attention(torch.zeros(2, 3).double(), torch.ones(2, 6, 4).double())
    >>> context.shape, weights.sum(1).round(decimals=9).tolist()
    (torch.Size([2, 4]), [1.0, 1.0])
    """

    def __init__(
        self,
        state: int,
        memory: int,
        units: int,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        source = as_generator(generator)
        self.of_state = drawn_linear(state, units, bias=False, generator=source, dtype=dtype)
        self.of_memory = drawn_linear(memory, units, bias=False, generator=source, dtype=dtype)
        self.score = drawn_linear(units, 1, bias=False, generator=source, dtype=dtype)

    def forward(self, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The context `[B, k]` and the weights `[B, m]` for z `[B, s]` and ζ `[B, m, k]`."""
        hidden = torch.tanh(self.of_state(state).unsqueeze(1) + self.of_memory(memory))
        weights = self.score(hidden).squeeze(-1).softmax(1)
        return (weights.unsqueeze(1) @ memory).squeeze(1), weights


class Decoding(NamedTuple):
    """What the decoder has at a step: its state, and what the encoder left."""

    state: Tensor
    memory: Tensor


class Seq2Seq(nn.Module):
    """An encoder that reads in both directions, a decoder, and attention unless it is left out.

    Symbols are whole numbers from 0; the decoder starts with a symbol of its own.

    Args:
        inputs: number of symbols that x is made of.
        outputs: number of symbols that y is made of.
        units: of the decoder's state; the encoder has half of them in each direction.
        attention: whether the decoder looks back at the encoder's states; it then starts from the
            state 0, and without attention from the encoder's last state.

    >>> model = Seq2Seq(5, 3, 8)
    >>> x, previous = torch.zeros(2, 4).long(), torch.zeros(2, 6).long()
    >>> model(x, previous).shape, model.alignment(x, previous).shape
    (torch.Size([2, 6, 3]), torch.Size([2, 6, 4]))
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        units: int,
        *,
        attention: bool = True,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.inputs = whole_number(inputs, "inputs", least=1)
        self.outputs = whole_number(outputs, "outputs", least=1)
        self.units = whole_number(units, "units", least=2)
        if units % 2:
            raise InvalidInput(f"units must be even, half for each direction, not {units}")
        source = as_generator(generator)

        def table(rows: int) -> nn.Embedding:
            values = gaussian(rows, units, generator=source, dtype=dtype)
            return nn.Embedding(rows, units, _weight=values)

        self.symbols, self.written = table(inputs), table(outputs + 1)
        half = [
            GRUCell(units, units // 2, reset="after", bias=True, generator=source, dtype=dtype)
            for _ in range(2)
        ]
        self.encoder = to_torch(Bidirectional(*half))
        seen = units if attention else 0
        self.decoder = GRUCell(units + seen, units, bias=True, generator=source, dtype=dtype)
        self.attention = (
            AdditiveAttention(units, units, units, generator=source, dtype=dtype)
            if attention
            else None
        )
        self.head = drawn_linear(units + seen, outputs, generator=source, dtype=dtype)

    def encode(self, x: Tensor) -> Decoding:
        """The encoder's states for `x[B, m]`, and the first state of the decoder."""
        _check_symbols(x, self.inputs, "x")
        memory, last = self.encoder(self.symbols(x))
        state = torch.cat([last[0], last[1]], -1)
        # with attention nothing passes but through it, so that it shows what is looked at
        return Decoding(state if self.attention is None else torch.zeros_like(state), memory)

    def step(self, previous: Tensor, given: Decoding) -> tuple[Tensor, Decoding, Tensor | None]:
        """Logits `[B, V]` of the next symbol after `previous[B]`, the decoder, its attention."""
        entering = self.written(previous)
        if self.attention is None:
            state = self.decoder(entering, given.state)
            return self.head(state), Decoding(state, given.memory), None
        context, weights = self.attention(given.state, given.memory)
        state = self.decoder(torch.cat([entering, context], -1), given.state)
        return self.head(torch.cat([state, context], -1)), Decoding(state, given.memory), weights

    def forward(self, x: Tensor, previous: Tensor) -> Tensor:
        """Logits `[B, n, V]` at each step, the decoder reading `previous[B, n]`."""
        return self._run(x, previous)[0]

    def alignment(self, x: Tensor, previous: Tensor) -> Tensor:
        """The weights $a_{ij}$, `[B, n, m]`: where the decoder looks at each step."""
        weights = self._run(x, previous)[1]
        if weights is None:
            raise InvalidInput("this network has no attention, so there is no alignment")
        return weights

    def after_start(self, y: Tensor) -> Tensor:
        """What the decoder reads for `y[B, n]`: the start symbol, then y without its end."""
        _check_symbols(y, self.outputs, "y")
        return torch.cat([torch.full_like(y[:, :1], self.outputs), y[:, :-1]], 1)

    def _run(self, x: Tensor, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        _check_symbols(previous, self.outputs + 1, "previous")
        given, logits, seen = self.encode(x), [], []
        for symbol in previous.unbind(1):
            made, given, weights = self.step(symbol, given)
            logits.append(made)
            seen.append(weights)
        looked = [w for w in seen if w is not None]
        return torch.stack(logits, 1), torch.stack(looked, 1) if looked else None


def sequence_logprob(model: Seq2Seq, x: Tensor, y: Tensor) -> Tensor:
    r"""$\log p(y\mid x)=\sum_i\log p(y_i\mid x,y_{1:i-1})$ of each pair, `[B]`.

    >>> model, x = Seq2Seq(2, 2, 4), torch.tensor([[0, 1, 1]]).expand(4, 3)
    >>> every = torch.cartesian_prod(torch.arange(2), torch.arange(2))
    >>> round(float(sequence_logprob(model, x, every).exp().sum().detach()), 9)
    1.0
    """
    logits = model(x, model.after_start(y)).log_softmax(-1)
    found: Tensor = logits.gather(-1, y.unsqueeze(-1)).squeeze(-1).sum(1)
    return found


def greedy(model: Seq2Seq, x: Tensor, length: int) -> Tensor:
    """The symbol of largest probability at every step, `[B, length]`.

    >>> greedy(Seq2Seq(2, 3, 4), torch.zeros(5, 3).long(), 4).shape
    torch.Size([5, 4])
    """
    return _written(model, x, length, None)


def sample(model: Seq2Seq, x: Tensor, length: int, *, generator: RandomSource = None) -> Tensor:
    """Sequences drawn with their probability, symbol by symbol, `[B, length]`.

    >>> x = torch.zeros(5, 3).long()
    >>> bool(torch.equal(sample(Seq2Seq(2, 3, 4), x, 4), sample(Seq2Seq(2, 3, 4), x, 4)))
    True
    """
    return _written(model, x, length, as_generator(generator))


def _written(model: Seq2Seq, x: Tensor, length: int, source: torch.Generator | None) -> Tensor:
    whole_number(length, "length", least=1)
    with torch.no_grad():
        given, found = model.encode(x), []
        symbol = torch.full_like(x[:, 0], model.outputs)
        for _ in range(length):
            logits, given, _ = model.step(symbol, given)
            if source is None:
                symbol = logits.argmax(-1)
            else:
                chances = logits.softmax(-1).to(source.device)
                symbol = torch.multinomial(chances, 1, generator=source)[:, 0].to(x.device)
            found.append(symbol)
    return torch.stack(found, 1)


def _check_symbols(x: Tensor, count: int, name: str) -> None:
    if not isinstance(x, Tensor) or x.dtype != torch.int64:
        raise InvalidType(f"{name} must be a tensor of symbols (torch.long), not {described(x)}")
    if x.ndim != 2:
        raise ShapeMismatch(f"{name} must be [sequences, steps], not {list(x.shape)}")
    if x.numel() == 0:
        raise EmptyData(f"{name} is empty, its shape is {list(x.shape)}")
    low, high = int(x.min()), int(x.max())
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise InvalidInput(
            f"{name} has the symbol {wrong}, and there are {count}: 0 to {count - 1}"
        )
