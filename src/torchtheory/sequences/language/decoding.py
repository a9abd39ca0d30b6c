r"""Text from a model, token by token: one function for every way to choose the next token.

A model gives $p(y_n\mid y_{1:n-1})$ as logits. Greedy, beam and exhaustive search look for the
likeliest sequence; sampling draws one, from all tokens or from the likeliest. Source: Foundations
of Deep Learning, section 10.4.4; Deep Learning (notes), section 6.4.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import one_of, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.model import evaluating
from torchtheory.sequences.attention.transformers import check_tokens
from torchtheory.sequences.language.continuation import (
    Continuation,
    all_logits,
    as_prompt,
    continuation,
)
from torchtheory.sequences.language.filters import draw, filtered
from torchtheory.sequences.language.search import (
    Generated,
    Stopping,
    beam_search,
    check_end,
    exhaustive_search,
)

Method = Literal["greedy", "beam", "sample", "exhaustive"]
METHODS: tuple[Method, ...] = ("greedy", "beam", "sample", "exhaustive")


def generate(
    model: Any,
    prompt: Tensor,
    *,
    method: Method = "greedy",
    max_new_tokens: int,
    end: int | None = None,
    padding: int | None = None,
    beams: int | None = None,
    length_penalty: float = 0.0,
    stopping: Stopping = "safe",
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    source: Tensor | None = None,
    cache: bool = True,
    generator: RandomSource = None,
) -> Generated:
    r"""Continue a prompt.

    Args:
        model: a `LanguageModel`; a `Transformer`, `Seq2Seq` or encoder-decoder of Hugging Face's
            with `source`; or any function from tokens `[B, T]` to logits `[B, T, V]` or `[B, V]`,
            also as an attribute `logits` of what it returns. A module is put in evaluation mode
            meanwhile.
        prompt: tokens `[B, T]` or `[T]` to go on from, all of one length.
        method: `"greedy"` takes the likeliest token, `"beam"` keeps several hypotheses,
            `"sample"` draws, `"exhaustive"` tries every sequence.
        max_new_tokens: how many tokens are written at most.
        end: the token that ends a sequence; without one, all have `max_new_tokens`.
        padding: what follows `end` in shorter sequences; `end` itself unless given.
        beams: hypotheses kept by a beam (4 unless given), or returned by the exhaustive search
            (1 unless given).
        length_penalty: $\alpha$; a search maximizes the log-probability over length$^\alpha$, so
            that positive values favor long sequences.
        stopping: when a beam stops; see `torchtheory.sequences.language.search.beam_search`.
        temperature: of sampling; logits are divided by it.
        top_k: sampling keeps the k likeliest tokens.
        top_p: sampling keeps the smallest set of likeliest tokens with probability p.
        source: what the encoder of an encoder-decoder reads, `[B, m]` or `[m]`.
        cache: keep keys and values of tokens read, where the model can; the result is the same.
        generator: randomness of sampling.

    Cost: at most `max_new_tokens` calls of the model, on B sequences (beam: on B times `beams`).

    >>> table = torch.tensor([[0.0, 3.0, 0.0], [0.0, 0.0, 3.0], [3.0, 0.0, 0.0]])
    >>> generate(lambda tokens: table[tokens], torch.tensor([0]), max_new_tokens=4).tokens
    tensor([[0, 1, 2, 0, 1]])
    """
    prompt = as_prompt(prompt)
    one_of(method, "method", METHODS)
    steps = whole_number(max_new_tokens, "max_new_tokens", least=1)
    if end is not None:
        whole_number(end, "end", least=0)
    _refuse_unused(method, beams, temperature, top_k, top_p, length_penalty, stopping)
    if source is not None:
        source = as_prompt(source, "a source")
        if len(source) != len(prompt):
            raise ShapeMismatch(f"there are {len(source)} sources and {len(prompt)} prompts")
    pad = whole_number(padding, "padding", least=0) if padding is not None else (end or 0)
    quiet = evaluating(model) if isinstance(model, nn.Module) else nullcontext()
    with torch.no_grad(), quiet:
        writer = continuation(model, source=source, cache=cache)
        if method == "beam":
            return beam_search(
                writer,
                prompt,
                steps,
                beams=4 if beams is None else beams,
                end=end,
                padding=pad,
                length_penalty=length_penalty,
                stopping=stopping,
            )
        if method == "exhaustive":
            return exhaustive_search(
                writer,
                prompt,
                steps,
                best=1 if beams is None else beams,
                end=end,
                padding=pad,
                length_penalty=length_penalty,
            )
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        drawn = as_generator(generator) if method == "sample" else None
        return _written(writer, prompt, steps, end, pad, drawn, options)


def sequence_log_probability(model: Any, tokens: Tensor, *, prompt: int = 1) -> Tensor:
    r"""$\sum_n\log p(y_n\mid y_{1:n-1})$ of the tokens after the first `prompt` ones, `[B]`.

    One pass of the model over all positions, which is what training by teacher forcing sums.

    Args:
        model: from tokens `[B, T]` to logits `[B, T, V]`.
        tokens: `[B, T]`.
        prompt: how many tokens are given.

    >>> coin = lambda tokens: torch.zeros(*tokens.shape, 2)
    >>> sequence_log_probability(coin, torch.tensor([[0, 1, 1, 0]])).exp().tolist()
    [0.125]
    """
    tokens = as_prompt(tokens)
    whole_number(prompt, "prompt", least=1, most=max(tokens.shape[1] - 1, 1))
    if tokens.shape[1] < 2:
        raise InvalidInput("a probability needs a token after the prompt")
    logits = all_logits(model, tokens[:, :-1])
    if logits.ndim != 3 or logits.shape[:2] != tokens[:, 1:].shape:
        raise ShapeMismatch(
            f"for tokens {list(tokens[:, :-1].shape)} the model must give logits [B, T, V], "
            f"not {list(logits.shape)}"
        )
    check_tokens(tokens[:, 1:], logits.shape[-1], "tokens")
    found: Tensor = logits.log_softmax(-1).gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    return found[:, prompt - 1 :].sum(1)


def _written(
    writer: Continuation,
    prompt: Tensor,
    steps: int,
    end: int | None,
    padding: int,
    source: torch.Generator | None,
    options: dict[str, Any],
) -> Generated:
    """The likeliest token at each step, or one that is drawn if there is a source of randomness."""
    batch = len(prompt)
    going = torch.ones(batch, dtype=torch.bool, device=prompt.device)
    lengths = prompt.new_zeros(batch)
    written, evaluations = [prompt], 0
    total: Tensor | None = None
    new = prompt
    for step in range(steps):
        logits = writer.read(new)
        if step == 0:
            check_end(end, logits.shape[-1])
            total = logits.new_zeros(batch)
        assert total is not None
        evaluations += int(going.sum()) * logits.shape[-1]
        # rows that have ended draw as well, so that a row's draws do not depend on the others' ends
        token = logits.argmax(-1) if source is None else draw(filtered(logits, **options), source)
        chance = logits.log_softmax(-1).gather(1, token.unsqueeze(1)).squeeze(1)
        total = total + torch.where(going, chance, 0.0)
        written.append(torch.where(going, token, padding).unsqueeze(1))
        lengths = lengths + going
        if end is not None:
            going = going & (token != end)
        if not going.any():
            break
        new = token.unsqueeze(1)  # not the padding, which need not be a token of the model's
    assert total is not None
    found = torch.cat(written, 1).unsqueeze(1)
    return Generated(
        found, lengths.unsqueeze(1), total.unsqueeze(1), total.unsqueeze(1), evaluations
    )


def _refuse_unused(
    method: Method,
    beams: int | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    length_penalty: float,
    stopping: Stopping,
) -> None:
    if method != "sample" and (temperature != 1 or top_k is not None or top_p is not None):
        raise InvalidInput(
            f"temperature, top_k and top_p are for method='sample', and {method!r} draws nothing"
        )
    if method in ("greedy", "sample") and (beams is not None or length_penalty != 0):
        raise InvalidInput(
            f"beams and length_penalty are for method='beam', and {method!r} keeps one hypothesis"
        )
    if method != "beam" and stopping != "safe":
        raise InvalidInput(f"stopping is for method='beam', not for {method!r}")
