r"""Texts to learn from: some that ship with Python, and Markov chains whose entropy is known.

A model's loss per token is the cross-entropy $-\mathbb E\log q(X_t\mid X_{<t})$, which no model
brings below the source's entropy rate $h$; the difference is the divergence from the source. For a
chain of order k, $h=H(X_t\mid X_{t-k},\dots,X_{t-1})$ in the stationary law; a model that sees only
j < k tokens cannot get below $H(X_t\mid X_{t-j},\dots,X_{t-1})$.
"""

from __future__ import annotations

from pydoc_data import topics

import torch
from torch import Tensor

from torchtheory.core.checks import described, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.sequences.attention.transformers import check_tokens

#: Contexts of a chain are listed one by one; more are refused.
MOST_CONTEXTS = 1 << 12


def python_manual() -> str:
    """The chapters of Python's reference manual that its `help()` shows, about 500 kB of English.

    They ship with Python, so that no download is needed; the text differs between versions.
    """
    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


class MarkovText:
    r"""Sequences of tokens, each drawn given the k before it.

    Args:
        transitions: $p(x_t\mid x_{t-k},\dots,x_{t-1})$ as a tensor with k + 1 axes of equal size,
            the oldest token first, all entries positive.

    >>> flip = MarkovText(torch.tensor([[0.1, 0.9], [0.9, 0.1]]))
    >>> flip.order, round(flip.entropy_rate, 4), round(flip.conditional_entropy(0), 4)
    (1, 0.3251, 0.6931)
    """

    def __init__(self, transitions: Tensor) -> None:
        if not isinstance(transitions, Tensor) or not transitions.is_floating_point():
            raise InvalidType(f"transitions must be a tensor, not {described(transitions)}")
        if transitions.ndim < 2 or len(set(transitions.shape)) != 1:
            raise ShapeMismatch(
                f"transitions of order k have k + 1 equal axes, not {list(transitions.shape)}"
            )
        table = transitions.detach().double()
        if not (table > 0).all() or not torch.allclose(table.sum(-1), table.new_ones(())):
            sums = table.sum(-1)
            raise InvalidInput(
                "transitions must be positive, and each context's must sum to 1; the least is "
                f"{float(table.min()):g}, and they sum to {float(sums.min()):g} to "
                f"{float(sums.max()):g}"
            )
        self.order, self.vocabulary = table.ndim - 1, table.shape[0]
        if self.vocabulary**self.order > MOST_CONTEXTS:
            raise InvalidInput(
                f"{self.vocabulary}^{self.order} contexts are more than {MOST_CONTEXTS}: take a "
                "shorter order or fewer tokens"
            )
        self.transitions = table / table.sum(-1, keepdim=True)

    @classmethod
    def random(
        cls,
        vocabulary: int,
        order: int,
        *,
        sharpness: float = 1.0,
        generator: RandomSource = None,
    ) -> MarkovText:
        """Transitions that are softmaxes of normal logits times `sharpness`."""
        whole_number(vocabulary, "vocabulary", least=2)
        whole_number(order, "order", least=1)
        positive_number(sharpness, "sharpness")
        if vocabulary**order > MOST_CONTEXTS:
            raise InvalidInput(f"{vocabulary}^{order} contexts are more than {MOST_CONTEXTS}")
        logits = torch.randn(
            (vocabulary,) * (order + 1), generator=as_generator(generator), dtype=torch.float64
        )
        return cls((sharpness * logits).softmax(-1))

    def stationary(self) -> Tensor:
        """The law of k tokens in a row that the next step keeps, with k axes.

        Solved as a linear system of all contexts.
        """
        contexts = self.vocabulary**self.order
        step = torch.zeros(contexts, contexts, dtype=torch.float64)
        before = torch.arange(contexts)
        flat = self.transitions.reshape(contexts, self.vocabulary)
        for token in range(self.vocabulary):
            step[before, (before * self.vocabulary + token) % contexts] += flat[:, token]
        system = step.T - torch.eye(contexts, dtype=torch.float64)
        system[-1] = 1.0
        right = torch.zeros(contexts, dtype=torch.float64)
        right[-1] = 1.0
        law: Tensor = torch.linalg.solve(system, right)
        return law.reshape((self.vocabulary,) * self.order)

    @property
    def entropy_rate(self) -> float:
        """$H(X_t|X_{t-k},...,X_{t-1})$ in nats: the lowest loss per token that any model has."""
        return self.conditional_entropy(self.order)

    def conditional_entropy(self, context: int) -> float:
        """$H(X_t|X_{t-j},...,X_{t-1})$ in nats for j = `context`, at most the order."""
        whole_number(context, "context", least=0, most=self.order)
        joint = self.stationary().unsqueeze(-1) * self.transitions
        for _ in range(self.order - context):
            joint = joint.sum(0)
        given = joint.sum(-1, keepdim=True)
        return float(-(joint * (joint / given).log()).sum())

    def sample(self, sequences: int, length: int, *, generator: RandomSource = None) -> Tensor:
        """Sequences `[sequences, length]` in the stationary law."""
        whole_number(sequences, "sequences", least=1)
        whole_number(length, "length", least=1)
        source = as_generator(generator)
        law = self.stationary().flatten().clamp_min(0)
        context = torch.multinomial(law, sequences, replacement=True, generator=source)
        powers = [self.vocabulary ** (self.order - 1 - i) for i in range(self.order)]
        found = [(context // p) % self.vocabulary for p in powers]
        flat = self.transitions.reshape(-1, self.vocabulary)
        for _ in range(length - self.order):
            new = torch.multinomial(flat[context], 1, generator=source).squeeze(1)
            found.append(new)
            context = (context * self.vocabulary + new) % (self.vocabulary**self.order)
        return torch.stack(found[:length], 1)

    def log_probabilities(self, tokens: Tensor) -> Tensor:
        """$\\log p(x_t|x_{<t})$ of the tokens after the first k, `[B, T - k]`."""
        check_tokens(tokens, self.vocabulary, "tokens")
        if tokens.shape[1] <= self.order:
            raise ShapeMismatch(
                f"tokens must be [sequences, more than {self.order}], not {list(tokens.shape)}"
            )
        windows = tokens.unfold(1, self.order + 1, 1)
        return self.transitions.log()[tuple(windows.unbind(-1))]
