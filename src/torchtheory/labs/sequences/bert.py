"""BERT in small: what it reads, what it is asked, and what can be built on it."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.core.intervals import clopper_pearson
from torchtheory.labs.engine import Run, lab
from torchtheory.sequences.language.bert import Bert, FineTuned, Reading, best_span, pretraining_loss
from torchtheory.sequences.language.bert_inputs import (
    IGNORED,
    BertInputs,
    bert_inputs,
    mask_tokens,
    next_sentence_pairs,
)
from torchtheory.sequences.language.text import normalize, split_words
from torchtheory.sequences.language.wordpiece import SPECIAL, WordPiece, wordpiece

TOPICS = (
    ("cat", "dog", "horse", "sleeps", "runs", "eats"),
    ("ship", "boat", "ferry", "sails", "sinks", "drifts"),
    ("cook", "baker", "waiter", "stirs", "serves", "tastes"),
    ("judge", "lawyer", "witness", "rules", "argues", "swears"),
)

READINGS: dict[Reading, int | None] = {"sequence": len(TOPICS), "tokens": 3, "span": None}


@lab(
    "bert",
    room="sequences",
    covers=["N-91", "N-92", "N-93", "N-94"],
    title="BERT learns hidden words and consecutive sentences together, and is tuned to three tasks",
    full={"tokens": 2_000_000, "iterations": 600, "tuning": 200},
    least={"tokens": 10000, "iterations": 30, "tuning": 30},
)
def bert(run: Run, tokens: int = 60_000, iterations: int = 100, tuning: int = 60) -> None:
    """Pairs of sentences about four topics.

    Hidden words can be told from the words around them, and consecutive sentences by how they begin
    and by their topic.
    Both questions are asked at once, as in the paper, and both are answered better than by chance.
    Then the network is tuned to name the topic, to tag words and to find a span, with all of it
    trained or with its encoder frozen.

    Args:
        tokens: whose fates under masking are counted.
        iterations: of pre-training.
        tuning: iterations of fine-tuning.
    """
    pieces(run)
    masking(run, tokens)
    documents = corpus(run, 300)
    tokenizer = WordPiece.train([s for d in documents for s in d], 200)
    successors(run, documents)
    model = pretraining(run, documents, tokenizer, iterations)
    spans(run)
    tasks(run, model, tokenizer, tuning)


def corpus(run: Run, count: int) -> list[list[str]]:
    """Documents of two sentences about one topic; second sentences begin in their own way."""
    found = []
    for d in range(count):
        words = TOPICS[d % len(TOPICS)]
        a, b, c, v, w = torch.randint(3, (5,), generator=run.generator).tolist()
        first = f"the {words[a]} {words[3 + v]} near the {words[b]}"
        found.append([first, f"then it {words[3 + w]} with the {words[c]}"])
    return found


def pieces(run: Run) -> None:
    letters = "ab"
    draws = torch.randint(2, (200, 9), generator=run.generator).tolist()
    words = ["".join(letters[i] for i in row) for row in draws]
    parts = {w[i : i + n] for w in words[:8] for i in range(6) for n in (2, 3)}
    known = {*letters, *("##" + c for c in letters), *parts, *("##" + p for p in parts)}
    says = run.states("N-91", r"\text{WordPiece: each piece is the longest that fits}")
    says.equal(sum(not_longest(wordpiece(w, known), known) for w in words), 0, where="pieces that are not, 200 words")
    shortest = {*letters, *("##" + c for c in letters)}
    says.fails("cut by single letters", sum(not_longest(wordpiece(w, shortest), known) for w in words))
    text = " ".join(" ".join(d) for d in corpus(run, 8)).replace("near", "Near,")
    tokenizer = WordPiece.train([text], 50)

    def lost(given: str) -> float:
        plain = " ".join(split_words(normalize(given, lowercase=True, accents=False)))
        return float(tokenizer.decode(tokenizer.encode(given)) != plain)

    says = run.states("N-91", r"\mathrm{decode}(\mathrm{encode}(s))=\text{the normalized }s")
    says.equal(lost(text), 0.0, where="letters that were seen in training")
    says.fails("a letter that was not", lost(text + " Ωmega"))
    made = bert_inputs([("the cat runs", "the dog"), "the boat"], tokenizer)
    cls, sep, pad = (tokenizer.number[t] for t in ("[CLS]", "[SEP]", "[PAD]"))
    run.states("N-91", r"\text{[CLS] first, [SEP] after each sentence, segments 0 and 1, then padding}").equal(
        [
            int((made.ids[:, 0] != cls).sum()),
            int((made.ids == sep).sum()) - 3,
            int((made.segments.diff(dim=1)[0] == 1).sum()) - 1,
            int((made.present != (made.ids != pad)).sum()),
            int((made.segments[0][1:] - (made.ids[0] == sep).cumsum(0)[:-1])[:-1].abs().sum()),
        ]
    )


def not_longest(cut: list[str], known: set[str]) -> int:
    """How many pieces of a word could have been longer."""
    word = "".join(p.removeprefix("##") for p in cut)
    found = start = 0
    for piece in cut:
        size = len(piece.removeprefix("##"))
        mark = "##" if start else ""
        longer = (mark + word[start:end] for end in range(start + size + 1, len(word) + 1))
        found += any(p in known for p in longer)
        start += size
    return found


def masking(run: Run, tokens: int) -> None:
    vocabulary = 105
    ids = torch.randint(5, vocabulary, (tokens // 100, 100), generator=run.generator)
    special = torch.zeros_like(ids, dtype=torch.bool)
    special[:, 0] = True
    ids[:, 0] = SPECIAL.index("[CLS]")
    open_ = ~special
    fates = {}
    # what the function does unless told otherwise is what is met
    cases: dict[str, dict[str, Any]] = {"usual": {}, "always masked": {"split": (1.0, 0.0, 0.0)}}
    for name, options in cases.items():
        hidden, labels = mask_tokens(ids, vocabulary, special=special, generator=run.generator, **options)
        chosen = labels != IGNORED
        masked, same = hidden == SPECIAL.index("[MASK]"), chosen & (hidden == ids)
        fates[name] = {
            "masked": masked[open_].double(),
            "another": (chosen & ~masked & ~same)[open_].double(),
            "unchanged": same[open_].double(),
        }
        if name == "usual":
            run.states("N-92", r"\text{special tokens and those not chosen stay, labels are the originals}").equal(
                [
                    int((hidden[~chosen] != ids[~chosen]).sum()),
                    int(chosen[special].sum()),
                    int((labels[chosen] != ids[chosen]).sum()),
                ]
            )
    # a token that replaces another is the same one by chance, once in 100
    promised = {"masked": 0.12, "another": 0.015 * 0.99, "unchanged": 0.015 * 1.01}
    others = {"masked": (0.1, 0.15), "another": (0.0, 0.0225), "unchanged": (0.0, 0.0225)}
    for kind, value in promised.items():
        says = run.states("N-92", rf"\text{{of all tokens, {kind}: }}{value:g}")
        says.mean(fates["usual"][kind], value, against=others[kind], confidence=0.999)
        says.fails("all chosen tokens are masked", fates["always masked"][kind])
    run.figure(
        "masking",
        lambda ax: plot_fates(ax, {k: float(v.mean()) for k, v in fates["usual"].items()}, promised),
        caption="What becomes of the tokens: 15 percent are chosen, of which 80 percent are masked, 10 percent "
        "replaced and 10 percent left as they are.",
    )


def successors(run: Run, documents: list[list[str]]) -> None:
    pairs = next_sentence_pairs(documents, generator=run.generator)
    true = {(a, b) for d in documents for a, b in itertools.pairwise(d)}
    run.states("N-93", r"\text{half of the pairs are consecutive}").equal(2 * sum(p.follows for p in pairs), len(pairs))
    says = run.states("N-93", r"\text{pairs said to be not consecutive are so nowhere}")
    says.equal(sum((a, b) in true for a, b, follows in pairs if not follows), 0)
    order = torch.randperm(len(pairs), generator=run.generator).tolist()
    says.fails(
        "second sentences drawn from all, as they come",
        sum((p.first, pairs[o].second) in true for p, o in zip(pairs, order, strict=True) if not p.follows),
    )


def pretraining(run: Run, documents: list[list[str]], tokenizer: WordPiece, iterations: int) -> Bert:
    model = Bert(len(tokenizer), 32, 4, 2, length=40, generator=run.generator, dtype=torch.float32)
    new, answers = prepared(run, corpus(run, 400), tokenizer)
    before = answered(run, model, new, answers, len(tokenizer))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    curve: list[tuple[float, float]] = []
    data, follows = prepared(run, documents * 2, tokenizer)
    for k in run.track(range(iterations), "pre-training"):
        optimizer.param_groups[0]["lr"] = 0.005 * min(1, (k + 1) / 10)
        rows = torch.randint(len(follows), (48,), generator=run.generator)
        batch = BertInputs(*(t[rows] for t in data))
        hidden, labels = mask_tokens(batch.ids, len(tokenizer), special=batch.special, generator=run.generator)
        loss = pretraining_loss(model, batch._replace(ids=hidden), labels, follows[rows])
        optimizer.zero_grad()
        torch.autograd.backward(loss.total)
        optimizer.step()
        curve.append((float(loss.masked.detach()), float(loss.following.detach())))
    after = answered(run, model, new, answers, len(tokenizer))
    depends = "how well it learns depends on the training; no theorem says it"
    for place, (id, text, chance) in enumerate(
        (
            ("N-92", r"\text{masked tokens: right more often than the most frequent token is}", most_frequent(new)),
            ("N-93", r"\text{consecutive or not: right more often than by chance}", 0.5),
        )
    ):
        says = run.states(id, text)
        says.above(
            lower(after[place]),
            chance,
            loose=depends,
            where=f"lower end of a 99.9 % interval, new text, {iterations} iterations of both objectives at once",
        )
        says.fails("before training", lower(before[place]))
    run.note(
        "Both objectives are trained together. Of the pairs that are not consecutive about an eighth could be, "
        "being about the same topic in the right order, so that about 0.94 is the best there is."
    )
    run.curves(
        "pre-training",
        list(range(1, iterations + 1)),
        {"masked tokens": [a for a, _ in curve], "next sentence": [b for _, b in curve]},
        axes=("iterations", "loss (nats)"),
        caption="Both losses of the pre-training, batch by batch.",
    )
    return model


def prepared(run: Run, documents: list[list[str]], tokenizer: WordPiece) -> tuple[BertInputs, Tensor]:
    pairs = next_sentence_pairs(documents, generator=run.generator)
    made = bert_inputs([(p.first, p.second) for p in pairs], tokenizer, length=40)
    return made, torch.tensor([p.follows for p in pairs])


def answered(run: Run, model: Bert, data: BertInputs, follows: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Which masked tokens are right, and which pairs."""
    hidden, labels = mask_tokens(data.ids, vocabulary, special=data.special, generator=run.generator)
    asked = labels != IGNORED
    with torch.no_grad():
        found = model.masked_logits(model(data._replace(ids=hidden))[asked]).argmax(-1)
        # judged on text that is not masked
        pairs = model.next_logits(model(data)).argmax(-1)
    return found == labels[asked], pairs == follows.long()


def lower(right: Tensor) -> float:
    return clopper_pearson(int(right.sum()), right.numel(), 0.999).low


def most_frequent(data: BertInputs) -> float:
    counts = torch.bincount(data.ids[~data.special])
    return float(counts.max() / counts.sum())


def spans(run: Run) -> None:
    starts, ends = run.randn(40, 12), run.randn(40, 12)
    passage = torch.zeros(40, 12, dtype=torch.bool)
    passage[:, 3:11] = True
    found = best_span(starts, ends, passage=passage)
    every = [
        max(float(s[i] + e[j]) for i in range(3, 11) for j in range(i, 11)) for s, e in zip(starts, ends, strict=True)
    ]
    says = run.states("N-94", r"\max_{i\le j}s_i+e_j\text{ within the passage, of all spans}")
    says.equal(
        found.score, every, 1e-12, where="40 sequences of 12 tokens, the passage from the fourth to the eleventh"
    )
    says.fails("start and end chosen for themselves", starts.max(1).values + ends.max(1).values)


def tasks(run: Run, model: Bert, tokenizer: WordPiece, iterations: int) -> None:
    known = {kind: {w for t in TOPICS for w in part(t)} for kind, part in (("noun", nouns), ("verb", verbs))}
    # by part, then by what is read
    parts: list[tuple[BertInputs, dict[str, Tensor]]] = []
    for _ in range(2):
        texts = [d[0] for d in corpus(run, 80)]
        data = bert_inputs(texts, tokenizer)
        tags, verb = tagged(texts, tokenizer, known, data.ids.shape[1])
        parts.append((data, {"sequence": torch.arange(80) % len(TOPICS), "tokens": tags, "span": verb}))
    (train, wanted), (test, answers) = parts
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    rows = []
    for reading, classes in READINGS.items():
        for frozen in (True, False):
            copied = Bert(len(tokenizer), 32, 4, 2, length=40, dtype=torch.float32)
            copied.load_state_dict(kept)
            tuned = FineTuned(copied, reading, classes=classes, frozen=frozen, generator=run.generator)
            before = right_answers(tuned, test, answers[reading])
            tune(tuned, train, wanted[reading], iterations)
            after = right_answers(tuned, test, answers[reading])
            moved = max(float((v - kept[n]).abs().max()) for n, v in copied.state_dict().items())
            rows.append((reading, "frozen" if frozen else "full", before, after, moved))
    run.table(
        "tuning",
        ("reads", "encoder", "right before", "right after", "largest change of the encoder"),
        rows,
        caption="Share of new sentences answered rightly: the topic from [CLS], noun, verb or neither for each "
        "token, and the verb as a span.",
    )
    says = run.states("N-94", r"\text{frozen: the encoder's weights stay}")
    says.equal([r[4] for r in rows if r[1] == "frozen"], where="topic, tags, span")
    says.fails("full fine-tuning", [r[4] for r in rows if r[1] == "full"])
    says = run.states("N-94", r"\text{tuned in full, most answers are right: topic, tags, span}")
    says.above(
        [r[3] for r in rows if r[1] == "full"],
        0.75,
        loose="how well it learns depends on the training; no theorem says it",
        where=f"{iterations} iterations",
    )
    says.fails("before", [r[2] for r in rows if r[1] == "full"])


def nouns(topic: tuple[str, ...]) -> tuple[str, ...]:
    return topic[:3]


def verbs(topic: tuple[str, ...]) -> tuple[str, ...]:
    return topic[3:]


def tagged(texts: list[str], tokenizer: WordPiece, known: dict[str, set[str]], length: int) -> tuple[Tensor, Tensor]:
    """The class of each token (`IGNORED` at special ones), and first and last token of the verb."""
    tags = torch.full((len(texts), length), IGNORED)
    verb = torch.zeros(len(texts), 2, dtype=torch.int64)
    for row, text in enumerate(texts):
        place = 1
        for word in text.split():
            size = len(tokenizer.encode(word))
            tags[row, place : place + size] = 1 if word in known["noun"] else 2 if word in known["verb"] else 0
            if word in known["verb"]:
                verb[row] = torch.tensor([place, place + size - 1])
            place += size
    return tags, verb


def task_loss(model: FineTuned, outputs: Tensor, target: Tensor) -> Tensor:
    if model.reading == "span":
        return F.cross_entropy(outputs[..., 0], target[:, 0]) + F.cross_entropy(outputs[..., 1], target[:, 1])
    return F.cross_entropy(outputs.flatten(0, -2), target.flatten(), ignore_index=IGNORED)


def tune(model: FineTuned, data: BertInputs, target: Tensor, iterations: int) -> None:
    optimizer = torch.optim.Adam(model.trained_parameters(), lr=0.005)
    for _ in range(iterations):
        loss = task_loss(model, model(data), target)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def right_answers(model: FineTuned, data: BertInputs, target: Tensor) -> float:
    with torch.no_grad():
        outputs = model(data)
    if model.reading == "span":
        found = best_span(outputs[..., 0], outputs[..., 1], passage=~data.special)
        return float(((found.start == target[:, 0]) & (found.end == target[:, 1])).double().mean())
    asked = target != IGNORED
    return float((outputs.argmax(-1) == target)[asked].double().mean())


def plot_fates(ax: Any, measured: dict[str, float], promised: dict[str, float]) -> None:
    places = range(len(measured))
    ax.bar(places, [100 * v for v in measured.values()], width=0.5, label="measured")
    marks = [100 * promised[k] for k in measured]
    ax.hlines(marks, [x - 0.3 for x in places], [x + 0.3 for x in places], color="k", lw=1.2, label="promised")
    for place, value in zip(places, measured.values(), strict=True):
        ax.text(place, 100 * value + 0.3, f"{100 * value:.2f} %", ha="center")
    ax.set_xticks(list(places), list(measured))
    ax.set(ylabel="percent of all tokens")
    ax.grid(axis="x", visible=False)
    ax.legend()
