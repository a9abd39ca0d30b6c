r"""What every operation of torch does with relevance: the table `RULES`.

A rule gets a step of the pass, at least one of whose arguments is a signal, and returns the signal
that the operation makes; `NotImplemented` if it does not apply.

* *Moves* (reshaping, slicing, joining, repeating) and *choices* (maxima) need no rule: the
  derivative takes the relevance of every entry where the entry came from.
* *Linear* operations follow the rule that the composite chooses.
* *Functions of entries* hand on relevance unchanged, but for what they are at 0.
* *Products* of two signals follow the product rule; a denominator is a gate that gets nothing.
"""

from __future__ import annotations

from typing import Any

from torchtheory.explanation.propagation.affine import AFFINE
from torchtheory.explanation.propagation.choices import CHOICES
from torchtheory.explanation.propagation.entrywise import ENTRYWISE
from torchtheory.explanation.propagation.joins import JOINS
from torchtheory.explanation.propagation.moves import BY_KIND, MOVES
from torchtheory.explanation.propagation.normalizations import NORMALIZATIONS
from torchtheory.explanation.propagation.products import PRODUCTS
from torchtheory.explanation.propagation.sums import SUMS
from torchtheory.tracing.interpret import Rules
from torchtheory.tracing.kinds import Kind

_BY_NAME: dict[str, Any] = (
    MOVES | CHOICES | JOINS | ENTRYWISE | AFFINE | NORMALIZATIONS | SUMS | PRODUCTS
)
_BY_KIND: dict[Kind, Any] = {**BY_KIND}

RULES = Rules("no relevance", _BY_NAME, _BY_KIND)
