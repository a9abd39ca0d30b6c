"""What is said of weights alone: values, scale, origin, spectra, tails, units, statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from torchtheory.audit.bare_weights.figures import draw_heaviest_tail, draw_norms, draw_spectra
from torchtheory.audit.bare_weights.origins import FEWEST_UNIFORM
from torchtheory.audit.bare_weights.survey import Matrix, Survey, Values
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.report.numbers import number_text
from torchtheory.report.wording import counted

#: A share of a layer's units from which silent ones and copies are a defect, and worth a look.
MANY, SOME = 0.25, 0.02

#: A layer is out of line if its gain is so many times, and deviations, away from the others'.
TIMES, DEVIATIONS = 10.0, 6.0

#: Fewest layers that something can be out of line with.
FEWEST = 5

#: The exponents that well-trained layers are reported to have.
USUAL_EXPONENTS = (2.0, 6.0)


@dataclass(frozen=True, slots=True)
class WeightFinding:
    """A finding about weights alone: as those of an audit, of a survey instead of a problem.

    Attributes:
        name, area, title: as those of any finding.
        function: fills the record.
        of_parts: whether it has something to say where only a part of the tensors was looked at.
    """

    name: str
    area: Area
    title: str
    function: Callable[[Survey, FindingRecord], None]
    of_parts: bool = False

    def __call__(self, found: Survey, record: FindingRecord) -> None:
        if found.unseen and not self.of_parts:
            say_unseen(found, record, self.title)
        else:
            self.function(found, record)


def values(found: Survey, record: FindingRecord) -> None:
    """Not a number, infinite, zero; in which precision."""
    weights = [t for t in found.tensors if t.floating]
    trained = [t for t in weights if not t.buffer]
    for area in (
        Area.DATA,
        Area.FIT,
        Area.GENERALIZATION,
        Area.CALIBRATION,
        Area.ROBUSTNESS,
    ):
        needs = "Weights alone do not tell; give the model and its data."
        record.assessments.append(Assessment(area, State.UNMEASURED, needs, finding=record.name))
    record.quantity("parameters", "parameters", found.parameters)
    bad = sum(t.nans + t.infinite for t in weights)
    number = record.quantity("not-finite", "weights that are not finite numbers", bad)
    broken = [t for t in weights if not t.finite]
    if broken:
        record.defect(
            f"{counted(bad, 'number')} in {_named(broken)} {_are(bad)} NaN or infinite.",
            number=number,
            usual="0",
            action="Go back to a checkpoint from before the loss became NaN, and train on with a "
            "smaller step or clipped gradients.",
        )
    size = sum(t.frobenius**2 for t in trained)
    if trained and math.isfinite(size):
        record.quantity("norm", "norm of all weights", math.sqrt(size))
        largest = max(trained, key=lambda t: t.largest)
        record.quantity("largest-weight", "largest weight", largest.largest)
    zeros = sum(m.values.zeros for m in found.matrices)
    entries = sum(m.values.count for m in found.matrices)
    if entries:
        share = record.quantity("zeros", "share of weights that are exactly 0", zeros / entries)
        empty = [m for m in found.matrices if m.values.zeros == m.values.count]
        sparse = [m for m in found.matrices if 2 * m.values.zeros > m.values.count]
        if empty:
            record.defect(
                f"{_layers(empty)} {_are(len(empty))} nothing but zeros, and {_pass(len(empty))} "
                "no signal.",
                number=share,
                usual="none",
                action="Check whether the weights were saved and loaded under the right names, and "
                "whether the layer is trained.",
            )
        elif sparse:
            record.look(
                f"More than half of the weights of {_layers(sparse)} are exactly 0.",
                number=share,
                usual="0, unless the network was pruned",
                action="If it was not pruned, look for a mask or a wrong initialization.",
            )
    kinds: dict[str, int] = {}
    for m in found.matrices:
        kinds[m.values.dtype] = kinds.get(m.values.dtype, 0) + 1
    if len(kinds) > 1:
        listed = ", ".join(f"{n} in {kind}" for kind, n in kinds.items())
        record.note(f"The layers are not of one precision: {listed}.")
    if found.unseen:
        say_unseen(found, record, "Values of the weights")
    elif not broken:
        record.fine(
            f"All {found.parameters:,} weights are finite numbers.", number=number, usual="0"
        )
    record.table(
        "tensors",
        ("tensor", "shape", "precision", "norm", "largest", "zeros", "not finite"),
        [
            (
                t.name,
                " × ".join(map(str, t.shape)) or "number",
                t.dtype,
                t.frobenius if t.floating else None,
                t.largest if t.floating else None,
                t.zeros,
                t.nans + t.infinite,
            )
            for t in found.tensors
        ],
    )


def scale(found: Survey, record: FindingRecord) -> None:
    """How large the layers are, and which are out of line with the others."""
    layers = [m for m in found.matrices if m.spectrum is not None]
    late = _say_undone(found, record, "Norms of layers")
    if not layers:
        if not late:
            record.not_applicable((), r"\text{Norms of layers}", "there is no layer of weights")
        return
    largest = max(layers, key=lambda m: m.norm)
    high = largest.norm if largest.spectrum is None else largest.spectrum.norm_high
    label = "largest spectral norm of a layer"
    if high == largest.norm:
        record.quantity("largest-spectral-norm", label, high)
    else:
        basis = "Lanczos, its upper end with probability 0.999"
        record.quantity("largest-spectral-norm", label, largest.norm, low=largest.norm, high=high,
                        basis=basis)  # fmt: skip
    record.table(
        "norms",
        ("layer", "rows", "columns", "spectral norm", "Frobenius norm", "gain"),
        [(m.name, m.rows, m.columns, m.norm, m.values.frobenius, m.gain) for m in layers],
        caption="Gain: by how much a layer lengthens a random vector, per output. Where a norm was "
        "found by Lanczos it is a lower bound.",
    )
    draw_norms(layers, record)
    compared = [m for m in found.matrices if not m.is_table and m.gain > 0]
    if len(compared) < FEWEST:
        record.note(f"Fewer than {FEWEST} layers: none can be out of line with the others.")
        return
    logs = [math.log(m.gain) for m in compared]
    middle = median(logs)
    spread = 1.4826 * median([abs(x - middle) for x in logs])
    odd = [
        (abs(x - middle), m)
        for x, m in zip(logs, compared, strict=True)
        if abs(x - middle) > max(math.log(TIMES), DEVIATIONS * spread)
    ]
    apart = math.exp(max(abs(x - middle) for x in logs))
    number = record.quantity("gain-apart", "layer farthest from the usual gain, in times", apart)
    usual = f"below {TIMES:g} times"
    if odd:
        worst = max(odd, key=lambda pair: pair[0])[1]
        which = "larger" if math.log(worst.gain) > middle else "smaller"
        record.look(
            f"The weights of {_layers([m for _, m in odd])} are out of line: those of {worst.name} "
            f"are {number_text(apart, 2)} times {which} than the usual layer's.",
            number=number,
            usual=usual,
            action="Look at its initialization, its learning rate and its weight decay.",
            figure="norms",
        )
    else:
        record.fine(
            "No layer's weights are out of line with the others'.", number=number, usual=usual
        )


def origin(found: Survey, record: FindingRecord) -> None:
    """Whether the weights are still as they were drawn."""
    tested = [
        m
        for m in found.matrices
        if m.values.count >= FEWEST_UNIFORM and m.values.zeros < m.values.count
    ]
    if not tested:
        record.not_applicable(
            (),
            r"\text{Weights as they were drawn}",
            f"no layer has {FEWEST_UNIFORM} weights that are not all 0, too few to tell laws apart",
        )
        return
    fresh = [m for m in tested if _as_drawn(m)]
    witnessed = [m for m in fresh if _witnessed(found, m)]
    no_trace = len(fresh) == len(tested) and not _moved(found)
    untrained = no_trace and bool(witnessed)
    if not no_trace:
        fresh = witnessed
    number = record.quantity(
        "as-drawn", "layers that cannot be told from freshly drawn ones", len(fresh)
    )
    record.table(
        "origins",
        ("layer", "cannot be told from", "singular values beyond noise"),
        [
            (
                m.name,
                m.law.rule if m.law is not None else "–",
                m.outliers,
            )
            for m in tested
        ],
        caption="Entries against the laws of usual initializations (Kolmogorov and Smirnov's test "
        "at 99.9%), and singular values against those of noise.",
    )
    if untrained:
        record.defect(
            "The network looks untrained: "
            + (f"all {len(fresh)} layers" if len(fresh) > 1 else f"its layer {fresh[0].name}")
            + " cannot be told from freshly drawn weights.",
            number=number,
            usual="0",
            action="Check whether this is the checkpoint you meant, and whether the weights were "
            "loaded before they were saved.",
        )
    elif no_trace:
        record.note(
            "No layer can be told from freshly drawn weights, and no layer has a bias that would "
            "show more: a wide layer may learn while its weights hardly move."
        )
    elif fresh:
        record.look(
            f"{_layers(fresh)} cannot be told from freshly drawn weights, though the network was "
            "trained.",
            number=number,
            usual="0, unless layers are frozen on purpose",
            action="Check whether these layers are used, and whether the optimizer has them.",
        )
    else:
        record.fine(
            "No layer looks as it was drawn: training left its trace.",
            number=number,
            usual="0",
        )


def spectra(found: Survey, record: FindingRecord) -> None:
    """Ranks: how many directions a layer uses."""
    known = [m for m in found.matrices if m.singular is not None]
    _say_undone(found, record, "Ranks of layers")
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
    used = record.quantity(
        "rank-used", "share of its rank that the middle layer uses", median(shares)
    )
    collapsed = [m for m in wide if m.rank is not None and m.rank <= 1]
    deficient = [m for m in wide if m.rank is not None and 1 < m.rank <= m.short / 2]
    if collapsed:
        record.defect(
            f"{_layers(collapsed)} {_has(len(collapsed))} collapsed to a single direction.",
            number=used,
            usual="above a tenth",
            action="Train again with another initialization or a smaller step: what has collapsed "
            "does not come back.",
            figure="spectra",
        )
    elif deficient:
        record.look(
            f"{_layers(deficient)} {_use(len(deficient))} at most half of the possible directions.",
            number=used,
            usual="full rank, unless it was factorized on purpose",
            action="A narrower layer would do the same at less cost.",
            figure="spectra",
        )
    else:
        record.fine(
            f"The middle layer uses {_percent(median(shares))} of the directions it has.",
            number=used,
            usual="above a tenth",
            figure="spectra",
        )


def tails(found: Survey, record: FindingRecord) -> None:
    """Heavy tails of the spectra."""
    late = _say_undone(found, record, "Tails of spectra")
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


def units(found: Survey, record: FindingRecord) -> None:
    """Units that do nothing, and units that do the same."""
    layers = [m for m in found.matrices if not m.is_table and m.values.zeros < m.values.count]
    if not layers:
        record.not_applicable((), r"\text{Units of layers}", "no layer has units")
        return
    rows = sum(m.rows for m in layers)
    silent, copies = sum(m.units.silent for m in layers), sum(m.units.copies for m in layers)
    record.table(
        "units",
        ("layer", "units", "without incoming weights", "copies of another", "inputs never read"),
        [(m.name, m.rows, m.units.silent, m.units.copies, m.units.unread) for m in layers],
    )
    dead = record.quantity("silent-units", "share of units without weights", silent / rows)
    same = record.quantity("copied-units", "share of units that copy another", copies / rows)
    worst = max(layers, key=lambda m: m.units.silent / m.rows)
    told = f"{worst.units.silent} of {worst.rows} units of {worst.name} have no incoming weights."
    action = "Use a smaller step or another activation; what has died can be cut off."
    if worst.units.silent >= MANY * worst.rows:
        record.defect(told, number=dead, usual="below 2%", action=action)
    elif worst.units.silent > SOME * worst.rows:
        record.look(told, number=dead, usual="below 2%", action=action)
    twin = max(layers, key=lambda m: m.units.copies / m.rows)
    told = f"{twin.units.copies} of {twin.rows} units of {twin.name} are copies of another unit."
    action = "Draw the initial weights at random: equal units have equal gradients and stay equal."
    if twin.units.copies >= MANY * twin.rows:
        record.defect(told, number=same, usual="0", action=action)
    elif twin.units.copies > SOME * twin.rows:
        record.look(told, number=same, usual="0", action=action)
    if not record.assessments:
        record.fine(
            f"Of {counted(rows, 'unit')}, {silent or 'none'} {_are(silent)} without weights and "
            f"{copies or 'none'} {_are(copies)} copies of another.",
            number=dead,
            usual="below 2%",
        )


def statistics(found: Survey, record: FindingRecord) -> None:
    """Running statistics of normalizations."""
    if not found.normalizations:
        record.not_applicable((), r"\text{Running statistics}", "no layer keeps running statistics")
        return
    broken, still, flat, rows = [], [], [], []
    for place, kept in found.normalizations.items():
        variance, mean = kept.get("running_var"), kept.get("running_mean")
        batches = kept.get("num_batches_tracked")
        count = None if batches is None or batches.numel() != 1 else float(batches)
        bad = 0
        for part in (variance, mean):
            bad += 0 if part is None else int((~part.isfinite()).sum())
        bad += 0 if variance is None else int((variance < 0).sum())
        none = 0 if variance is None else int((variance == 0).sum())
        at_start = (
            variance is not None
            and mean is not None
            and bool((variance == 1).all())
            and bool((mean == 0).all())
        )
        if bad:
            broken.append(place)
        elif at_start:
            still.append(place)
        elif variance is not None and none > SOME * variance.numel():
            flat.append(place)
        low, high = (
            (None, None)
            if variance is None or bad or variance.numel() == 0
            else (float(variance.min()), float(variance.max()))
        )
        rows.append((place or "(model)", count, low, high, none, at_start))
    total = len(found.normalizations)
    record.table(
        "statistics",
        ("normalization", "batches seen", "smallest variance", "largest variance",
         "variances of 0", "as at the start"),
        rows,
    )  # fmt: skip
    number = record.quantity(
        "statistics-at-start", "normalizations whose statistics are those of the start", len(still)
    )
    again = "Run the training data through the model in training mode, without optimizer steps."
    if broken:
        record.defect(
            f"The running statistics of {_places(broken)} are negative, NaN or infinite.",
            usual="finite and positive",
            action="Go back to a checkpoint from before the loss became NaN.",
        )
    if still:
        untrained = all(_as_drawn(m) for m in found.matrices) and not _moved(found)
        say = record.look if untrained else record.defect
        say(
            f"The running statistics of {_places(still)} are those of the start (mean 0, variance "
            "1): they were reset, or never estimated.",
            number=number,
            usual="0",
            action=again,
        )
    if flat:
        record.look(
            f"Some channels of {_places(flat)} have no variance: they are constant.",
            usual="none",
            action="What is constant can be cut off.",
        )
    if not record.assessments:
        record.fine(
            f"The running statistics of all {counted(total, 'normalization')} were estimated."
            if total > 1
            else "The running statistics were estimated.",
            number=number,
            usual="0",
        )


FINDINGS: tuple[WeightFinding, ...] = (
    WeightFinding("weight-origin", Area.TRAINING, "Has it been trained?", origin),
    WeightFinding("weight-statistics", Area.TRAINING, "Running statistics", statistics),
    WeightFinding("weight-values", Area.SIGNALS, "The numbers in the weights", values, True),
    WeightFinding("weight-norms", Area.SIGNALS, "Sizes of the layers", scale),
    WeightFinding("weight-spectra", Area.CAPACITY, "Ranks of the layers", spectra),
    WeightFinding("weight-tails", Area.CAPACITY, "Heavy tails of the spectra", tails),
    WeightFinding("weight-units", Area.CAPACITY, "Units without weights, and copies", units),
)


def _as_drawn(m: Matrix) -> bool:
    """No test tells it from fresh weights: neither its entries nor its singular values."""
    return m.law is not None and not m.outliers


def _moved(found: Survey) -> bool:
    """Whether vectors show that the network was trained: biases that are not as they are drawn,
    scales of normalizations that are not 1, batches that were counted.
    """
    if any(float(k["num_batches_tracked"].sum()) > 0 for k in found.normalizations.values()
           if "num_batches_tracked" in k):  # fmt: skip
        return True
    bounds = {_place(m.name): 1 / math.sqrt(m.columns) for m in found.matrices}
    return any(not _fresh_vector(t, bounds.get(_place(t.name))) for t in _vectors(found))


def _witnessed(found: Survey, m: Matrix) -> bool:
    """Whether more than the bulk of its entries says that a layer is as it was drawn.

    A normal law has no ends that training would move weights beyond, so there its bias must be as
    it was drawn, too: a wide layer can learn much while its entries hardly move.
    """
    if m.law is not None and m.law.kind == "uniform":
        return True
    own = [t for t in _vectors(found) if _place(t.name) == _place(m.name)]
    return bool(own) and all(_fresh_vector(t, 1 / math.sqrt(m.columns)) for t in own)


def _vectors(found: Survey) -> list[Values]:
    return [t for t in found.tensors if t.floating and not t.buffer and len(t.shape) == 1]


def _place(name: str) -> str:
    return name.rpartition(".")[0]


def _fresh_vector(t: Values, bound: float | None) -> bool:
    """All the same, or uniform up to the bound as far as the largest and the mean square tell."""
    if t.constant or not t.finite:
        return True
    if bound is None or not t.name.rpartition(".")[2].startswith("bias"):
        return False
    size = t.frobenius / math.sqrt(t.count) * math.sqrt(3) / bound
    # four standard errors of the root of the mean square of uniform numbers, and rounding
    return t.largest <= 1.01 * bound and abs(size - 1) <= 4 * 0.447 / math.sqrt(t.count) + 0.01


def say_unseen(found: Survey, record: FindingRecord, what: str) -> None:
    """Say that there was no time to look at some tensors."""
    total = found.unseen + len(found.tensors)
    reason = f"no time was left for {found.unseen:,} of {total:,} tensors; give a larger budget"
    record.not_done((), rf"\text{{{what}}}", reason)


def _say_undone(found: Survey, record: FindingRecord, what: str) -> bool:
    """Say for which layers there was no time; whether there are such."""
    large = [m for m in found.matrices if m.too_large]
    late = [m for m in found.matrices if not m.too_large and m.singular is None]
    if large and what != "Norms of layers":
        record.note(
            f"{_layers(large)} {_are(len(large))} too large for all singular values; only the "
            "largest was computed."
        )
    if late:
        record.not_done(
            (),
            rf"\text{{{what}}}",
            f"no time was left for {_layers(late)}; give a larger budget",
        )
    return bool(late)


def _layers(chosen: Sequence[Matrix]) -> str:
    return _some([m.name for m in chosen], "layer")


def _places(chosen: Sequence[str]) -> str:
    if len(chosen) == 1:
        return f"normalization {chosen[0]}" if chosen[0] else "the model"
    return f"{len(chosen)} normalizations ({', '.join(chosen[:3])}{', …' * (len(chosen) > 3)})"


def _named(chosen: Sequence[Values]) -> str:
    return _some([t.name for t in chosen], "tensor")


def _some(names: Sequence[str], what: str) -> str:
    """At most three names, and how many there are where there are more."""
    if len(names) == 1:
        return names[0]
    shown = ", ".join(names[:3])
    if len(names) <= 3:
        first, _, last = shown.rpartition(", ")
        return f"{first} and {last}"
    return f"{len(names)} {what}s ({shown}, …)"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _use(count: int) -> str:
    return "uses" if count == 1 else "use"


def _pass(count: int) -> str:
    return "passes" if count == 1 else "pass"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%"
