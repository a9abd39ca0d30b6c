r"""What every operation of torch does with relevance: the table `HANDLERS`, by plain names.

A handler gets the pass, the operation's name and its own arguments, at least one of which is a
signal, and returns the signal that the operation makes; `NotImplemented` if it does not apply.

* *Moves* (reshaping, slicing, joining, repeating) and *choices* (maxima) need no rule: the
  derivative takes the relevance of every entry where the entry came from.
* *Linear* operations follow the rule that the composite chooses.
* *Functions of entries* hand on relevance unchanged, but for what they are at 0.
* *Products* of two signals follow the product rule; a denominator is a gate that gets nothing.
"""

from __future__ import annotations

from torchtheory.explanation.propagation.affine import AFFINE
from torchtheory.explanation.propagation.choices import CHOICES
from torchtheory.explanation.propagation.entrywise import ENTRYWISE
from torchtheory.explanation.propagation.joins import JOINS
from torchtheory.explanation.propagation.moves import MOVES
from torchtheory.explanation.propagation.normalizations import NORMALIZATIONS
from torchtheory.explanation.propagation.products import PRODUCTS
from torchtheory.explanation.propagation.sums import SUMS
from torchtheory.explanation.propagation.tracing import Handler
from torchtheory.explanation.propagation.written_out import WRITTEN_OUT

HANDLERS: dict[str, Handler] = {
    **MOVES,
    **CHOICES,
    **JOINS,
    **ENTRYWISE,
    **AFFINE,
    **NORMALIZATIONS,
    **SUMS,
    **PRODUCTS,
    **WRITTEN_OUT,
}
