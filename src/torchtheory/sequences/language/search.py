r"""The likeliest sequence: greedy, beam and exhaustive search.

All maximize $\log p(y_{1:N}\mid\text{prompt})=\sum_n\log p(y_n\mid y_{1:n-1})$, divided by
$N^\alpha$ with a length penalty $\alpha$. With K tokens, greedy search scores NK continuations, a
beam of width B at most NBK, and exhaustive search all $K+\dots+K^N$. A hypothesis ends with the
token `end`; ended ones are kept beside those that go on. Source: Foundations of Deep Learning,
section 10.4.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import finite_number, one_of, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.sequences.language.continuation import Continuation

Stopping = Literal["safe", "current", "full"]
STOPPING: tuple[Stopping, ...] = ("safe", "current", "full")
#: Exhaustive search refuses to enumerate more sequences than this.
MOST_SEQUENCES = 1 << 20


@dataclass(frozen=True, slots=True)
class Generated:
    """Sequences that were written, the best of each prompt first.

    Attributes:
        hypotheses: the prompt and what was written, `[B, H, T + n]`; after `end` comes padding.
        lengths: how many tokens were written, with `end`, `[B, H]`.
        log_probabilities: of what was written, under the model itself, `[B, H]`.
        scores: what the search maximized, `[B, H]`; log-probabilities over length^penalty.
        evaluations: how many continuations (a sequence and one more token) were scored.
    """

    hypotheses: Tensor
    lengths: Tensor
    log_probabilities: Tensor
    scores: Tensor
    evaluations: int

    @property
    def tokens(self) -> Tensor:
        """The best sequence of each prompt, `[B, T + n]`."""
        return self.hypotheses[:, 0]


def beam_search(
    writer: Continuation,
    prompt: Tensor,
    steps: int,
    *,
    beams: int,
    end: int | None = None,
    padding: int = 0,
    length_penalty: float = 0.0,
    stopping: Stopping = "safe",
) -> Generated:
    """Keep the `beams` best hypotheses at each step, expand them all, prune.

    A candidate that ends and is among the best `beams` is kept as finished; the best `beams` that
    do not end go on. The search stops when `beams` are finished and none that goes on can do
    better: `"safe"` allows for every length that is left, `"current"` compares at the present
    length, which can miss better and longer ones if the penalty is positive, and `"full"` does not
    compare.

    Cost: `steps` calls of the model on `beams` sequences of each prompt.
    """
    beams = whole_number(beams, "beams", least=1)
    finite_number(length_penalty, "length_penalty")
    one_of(stopping, "stopping", STOPPING)
    batch = len(prompt)
    device = prompt.device
    running = prompt.unsqueeze(1)
    logits = writer.read(prompt)
    vocabulary = logits.shape[-1]
    _check_beams(beams, vocabulary, steps)
    check_end(end, vocabulary)
    sums = logits.new_zeros(batch, 1)
    finished = _Finished(prompt, steps, beams, padding, logits)
    open_rows = torch.ones(batch, dtype=torch.bool, device=device)
    evaluations = 0
    for step in range(1, steps + 1):
        width = running.shape[1]
        evaluations += int(open_rows.sum()) * width * vocabulary
        grown = sums.unsqueeze(-1) + logits.log_softmax(-1).view(batch, width, vocabulary)
        # a hypothesis ends in one way, so that twice the beam holds enough that do not end
        kept, place = grown.flatten(1).topk(min(2 * beams, width * vocabulary), dim=1)
        parent, token = place // vocabulary, place % vocabulary
        candidates = torch.cat([_rows(running, parent), token.unsqueeze(-1)], -1)
        last = step == steps
        ends = _ending(token, end, last)
        best = torch.arange(kept.shape[1], device=device) < beams
        finished.add(candidates, kept, ends & best & open_rows.unsqueeze(1), step, length_penalty)
        if last:
            break
        # those that go on: the best that do not end, as many of them as there can be
        going = min(beams, width * (vocabulary - (end is not None)))
        if going == 0:
            break  # the only token ends
        sums, chosen = kept.masked_fill(ends, -torch.inf).topk(going, dim=1)
        running, parent = _rows(candidates, chosen), parent.gather(1, chosen)
        # log-probabilities are negative: with a positive penalty they look best at full length
        reach = steps if stopping == "safe" and length_penalty > 0 else step
        hope = sums[:, 0] / reach**length_penalty
        done = finished.full & ((hope <= finished.worst) | (stopping == "full"))
        open_rows = open_rows & ~done
        if not open_rows.any():
            break
        offset = torch.arange(batch, device=device).unsqueeze(1) * width
        writer.select((parent + offset).flatten())
        logits = writer.read(running[..., -1].reshape(-1, 1))
    return finished.result(evaluations)


def exhaustive_search(
    writer: Continuation,
    prompt: Tensor,
    steps: int,
    *,
    best: int = 1,
    end: int | None = None,
    padding: int = 0,
    length_penalty: float = 0.0,
) -> Generated:
    """The `best` sequences of all $K^N$: the truth that other searches are measured by.

    Cost: the model reads $1+K+\\dots+K^{N-1}$ sequences; more than a million sequences are refused.
    """
    whole_number(best, "beams", least=1)
    finite_number(length_penalty, "length_penalty")
    batch = len(prompt)
    logits = writer.read(prompt)
    vocabulary = logits.shape[-1]
    _check_beams(best, vocabulary, steps)
    check_end(end, vocabulary)
    if batch * vocabulary**steps > MOST_SEQUENCES:
        raise InvalidInput(
            f"exhaustive search would score {vocabulary}^{steps} sequences, and no more than "
            f"{MOST_SEQUENCES} are allowed: use fewer steps, or beam search"
        )
    finished = _Finished(prompt, steps, best, padding, logits)
    running, sums = prompt.unsqueeze(1), logits.new_zeros(batch, 1)
    evaluations = 0
    for step in range(1, steps + 1):
        width = running.shape[1]
        evaluations += batch * width * vocabulary
        grown = sums.unsqueeze(-1) + logits.log_softmax(-1).view(batch, width, vocabulary)
        token = torch.arange(vocabulary, device=prompt.device).expand(batch, width, -1)
        longer = running.unsqueeze(2).expand(-1, -1, vocabulary, -1)
        candidates = torch.cat([longer, token.unsqueeze(-1)], -1).flatten(1, 2)
        ends = _ending(token, end, step == steps).flatten(1)
        finished.add(candidates, grown.flatten(1), ends, step, length_penalty)
        if step == steps:
            break
        # the same tokens end in each row
        going = (~ends[0]).nonzero().squeeze(1)
        if going.numel() == 0:
            break
        running, sums = candidates[:, going], grown.flatten(1)[:, going]
        offset = torch.arange(batch, device=prompt.device).unsqueeze(1) * width
        writer.select((going // vocabulary + offset).flatten())
        logits = writer.read(running[..., -1].reshape(-1, 1))
    return finished.result(evaluations)


class _Finished:
    """The best hypotheses that have ended, `[B, H, T]`, best first."""

    def __init__(self, prompt: Tensor, steps: int, beams: int, padding: int, like: Tensor) -> None:
        batch, self.first = prompt.shape
        self.beams, self.length, self.padding = beams, self.first + steps, padding
        self.tokens = prompt.new_empty(batch, 0, self.length)
        self.lengths = prompt.new_empty(batch, 0)
        self.scores = self.sums = like.new_empty(batch, 0)

    def add(
        self, candidates: Tensor, sums: Tensor, ended: Tensor, step: int, penalty: float
    ) -> None:
        if not ended.any():
            return
        sums = sums.masked_fill(~ended, -torch.inf)
        scores = torch.cat([self.scores, sums / step**penalty], 1)
        missing = self.length - candidates.shape[-1]
        padded = torch.nn.functional.pad(candidates, (0, missing), value=self.padding)
        # equal ones stay in the order in which they were met
        order = scores.argsort(dim=1, descending=True, stable=True)[:, : self.beams]
        self.scores = scores.gather(1, order)
        self.sums = torch.cat([self.sums, sums], 1).gather(1, order)
        steps = torch.full_like(ended, step, dtype=torch.int64)
        self.lengths = torch.cat([self.lengths, steps], 1).gather(1, order)
        self.tokens = _rows(torch.cat([self.tokens, padded], 1), order)

    @property
    def full(self) -> Tensor:
        """Whether a row has as many as it may keep, `[B]`."""
        return self.worst > -torch.inf

    @property
    def worst(self) -> Tensor:
        """The lowest score that is kept, `[B]`; minus infinity where there is room."""
        if self.scores.shape[1] < self.beams:
            return self.scores.new_full((len(self.scores),), -torch.inf)
        return self.scores[:, -1]

    def result(self, evaluations: int) -> Generated:
        real = self.lengths.masked_fill(self.scores == -torch.inf, 0)
        tokens = self.tokens[..., : self.first + int(real.max())]
        return Generated(tokens, real, self.sums, self.scores, evaluations)


def _ending(token: Tensor, end: int | None, last: bool) -> Tensor:
    """Which candidates end: those with the end token, and all at the last step."""
    ends = torch.full_like(token, last, dtype=torch.bool)
    return ends if end is None else ends | (token == end)


def _rows(values: Tensor, order: Tensor) -> Tensor:
    """`values[b, order[b, i]]` for `values[B, H, T]` and `order[B, h]`."""
    return values.gather(1, order.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


def _check_beams(beams: int, vocabulary: int, steps: int) -> None:
    # of a large vocabulary or many steps there are more sequences than any beam keeps
    sequences = vocabulary ** min(steps, 64)
    if beams > sequences:
        raise InvalidInput(
            f"there are only {vocabulary}^{steps} = {sequences} sequences of {steps} tokens, "
            f"so a beam of {beams} cannot be filled"
        )


def check_end(end: int | None, vocabulary: int) -> None:
    if end is not None and not 0 <= end < vocabulary:
        raise InvalidInput(
            f"end is the token {end}, and there are {vocabulary}: 0 to {vocabulary - 1}"
        )
