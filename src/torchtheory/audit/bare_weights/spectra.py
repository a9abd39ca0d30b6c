"""What the singular values of layers tell: ranks, and heavy tails."""

from __future__ import annotations

from statistics import median, median_low

from torchtheory.audit.bare_weights.figures import draw_heaviest_tail, draw_spectra
from torchtheory.audit.bare_weights.survey import Survey
from torchtheory.audit.bare_weights.wording import named_layers, say_undone
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.usual import above
from torchtheory.report.numbers import number_text
from torchtheory.report.wording import counted

#: The exponents that well-trained layers are reported to have.
USUAL_EXPONENTS = (2.0, 6.0)


def spectra(found: Survey, record: FindingRecord) -> None:
    """Ranks: how many directions a layer uses."""
    known = [m for m in found.matrices if m.singular is not None]
    say_undone(found, record, "Ranks of layers")
    if not known:
        return
    record.table(
        "ranks",
        ("layer", "full rank", "rank", "effective rank", "stable rank", "condition",
         "beyond noise"),
        [
            (
                m.name, m.short, m.rank, m.effective_rank, m.stable_rank, m.condition,
                m.outliers,
            )
            for m in known
        ],
        caption="Effective rank: the exponential of the entropy of the squared singular values. "
        "Stable rank: squared Frobenius over squared spectral norm. Beyond noise: singular values "
        "larger than those of random entries with the same bulk (Marchenko and Pastur's law with "
        "Tracy and Widom's fluctuation, at 99.99%).",
    )  # fmt: skip
    draw_spectra(known, record)
    record.checks((), r"\|W\|_F^2=\sum_i\sigma_i^2").equal(
        [float(s.square().sum().sqrt()) for m in known if (s := m.singular) is not None],
        [m.values.frobenius for m in known],
        1e-5,
    )
    shares = [m.effective_rank / m.short for m in known if m.effective_rank is not None]
    if not shares:
        return
    record.quantity(
        "stable-rank",
        "stable rank of the middle layer",
        median([m.stable_rank for m in known if m.stable_rank is not None]),
    )
    wide = [m for m in known if m.short >= 8]
    beyond = [m.outliers for m in wide if m.outliers is not None]
    if beyond:
        record.quantity(
            "beyond-noise",
            "singular values beyond noise, middle layer",
            median_low(beyond),
        )
    record.quantity("rank-used", "share of its rank that the middle layer uses", median(shares))
    collapsed = [m for m in wide if m.rank is not None and m.rank <= 1]
    deficient = [m for m in wide if m.rank is not None and 1 < m.rank <= m.short / 2]
    ranks = [m.rank / m.short for m in wide if m.rank is not None]
    usual = above(0.5, "above a half, unless it was factorized on purpose")
    least = record.quantity(
        "least-rank", "rank of a layer over the largest it could have, the least of all layers",
        min(ranks),
    ) if ranks else None  # fmt: skip
    if collapsed:
        record.defect(
            f"{named_layers(collapsed)} {_has(len(collapsed))} collapsed to a single direction.",
            number=least,
            usual=usual,
            action="Train again with another initialization or a smaller step: what has collapsed "
            "does not come back.",
            figure="spectra",
        )
    elif deficient:
        record.look(
            f"{named_layers(deficient)} {_use(len(deficient))} at most half of the possible "
            "directions.",
            number=least,
            usual=usual,
            action="A narrower layer would do the same at less cost.",
            figure="spectra",
        )
    else:
        record.fine(
            f"The middle layer uses {_percent(median(shares))} of the directions it has.",
            number=least,
            usual=usual if ranks else None,
            figure="spectra",
        )


def tails(found: Survey, record: FindingRecord) -> None:
    """Heavy tails of the spectra."""
    late = say_undone(found, record, "Tails of spectra")
    known = [m for m in found.matrices if m.tail is not None]
    if not known:
        if not late:
            record.not_applicable(
                (),
                r"\text{Tails of spectra}",
                "no layer has 50 singular values above 0, too few for a tail",
            )
        return
    laws = [law for m in known if (law := m.tail) is not None]
    middle = median([law.exponent for law in laws])
    ends = [
        median([law.exponent + sign * 2 * law.standard_error for law in laws]) for sign in (-1, 1)
    ]
    number = record.quantity(
        "exponent",
        "exponent of the tail of the middle layer",
        middle,
        low=min(ends[0], middle),
        high=max(ends[1], middle),
        basis="two standard errors, as if singular values were independent",
    )
    rows = []
    fits = tested = 0
    for m, law in zip(known, laws, strict=True):
        judged = m.spectrum
        assert judged is not None
        better = [
            other
            for other, ratio in judged.against.items()
            if ratio.normalized < 0 and ratio.p_value < 0.05
        ]
        good = judged.plausible is not None and judged.plausible >= 0.1 and not better
        fits += good
        tested += judged.plausible is not None
        rows.append(
            (
                m.name, law.exponent, 2 * law.standard_error, law.tail, judged.plausible,
                " and ".join(better) or "none", good if judged.plausible is not None else None,
            )
        )  # fmt: skip
    record.table(
        "tails",
        ("layer", "exponent", "error", "values in the tail", "p-value", "better law", "fits"),
        rows,
        caption="The density of squared singular values falls off with this power. A power law is "
        "taken to fit where its p-value is at least 0.1 and neither an exponential nor a lognormal "
        "law is better at 95 %.",
    )
    spectra_tested = counted(tested, "spectrum", "spectra")
    if tested < len(known):
        record.not_done(
            (),
            r"\text{Power laws of tails}",
            f"no time was left to test {len(known) - tested} of them; give a larger budget",
        )
    else:
        record.quantity("heavy-tails", "layers whose tail a power law fits", fits)
    record.headline(
        f"A power law fits the tail of {fits} of {spectra_tested} that were tested; the middle "
        f"exponent is {number_text(number.value, 2)}."
    )
    low, high = USUAL_EXPONENTS
    record.note(
        f"Well-trained large networks are reported to have exponents between {low:g} and {high:g}; "
        "this is an observation, not a theorem, and small networks lie above it."
    )
    draw_heaviest_tail(known, record)


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _use(count: int) -> str:
    return "uses" if count == 1 else "use"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%"
