"""Finding: inputs of another scale than in training, in the test data or in all of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from torchtheory.audit.causes.layout import layouts
from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings.certificates import alarm_level
from torchtheory.audit.findings.input_neighbors import real_inputs
from torchtheory.core.diagnosis import Area
from torchtheory.core.errors import EmptyData, NonFinite
from torchtheory.core.intervals import mean_interval, median_interval
from torchtheory.core.naming import runs, several
from torchtheory.core.quantity import Quantity
from torchtheory.core.usual import Usual, at_most, below, between
from torchtheory.data.columns import NEARLY, common_share
from torchtheory.data.shift import ColumnShift, column_shift
from torchtheory.data.wide_rows import parts, rows_within
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.training.losses.risks import constant_loss, sample_losses

#: A scale so many times larger or smaller, or a shift by so many standard deviations, of half of
#: all columns is a defect; of single columns it takes more.
SCALE, SHIFT = 2.0, 0.5
SCALE_OF_ONE, SHIFT_OF_ONE = 3.0, 2.0

#: Fewest samples of training and test data that are compared, and that single columns are.
FEWEST, ENOUGH_FOR_ONE = 20, 100

#: Most samples whose columns are compared.
COMPARED = 5000

#: Samples the network is tried on with inputs of another scale.
TRIED = 512

#: Inputs of this size into a network without normalization are worth a look.
HUGE = 30.0

#: Pixels in 0..255 are larger than this, and pixels in 0..1 that were divided by 255 smaller.
LARGE, SMALL = 10.0, 0.02


@finding(
    "input-scale",
    area="data",
    title="Inputs of the scale that the network was trained on",
    cost="gradient",  # as long as several passes, and after what is known of the outputs
    needs=[real_inputs],
    whole=True,
)
def input_scale(problem: Problem, record: FindingRecord) -> None:
    """Test inputs against training inputs, and the network on inputs of other scales."""
    typical = _input_size(problem, record)
    size = typical.value
    accused = _other_scale_fits(problem, record)
    if problem.test is not None:
        accused = _test_against_train(problem, record) or accused
    if accused:
        return
    if size > HUGE and not _normalizes(problem):
        record.look(
            f"The inputs are of size {size:.3g}, and networks train best on inputs of size 1.",
            number=typical,
            usual=below(HUGE, "between 0.1 and 10"),
            action="Subtract the mean of every feature and divide by its standard deviation before "
            "training; pixels in 0..255 are divided by 255.",
        )
    elif problem.test is None:
        record.fine(
            "The network does not fit the data better at another scale of the inputs.",
        )  # fmt: skip


def _input_size(problem: Problem, record: FindingRecord) -> Quantity:
    """Root mean square of the entries of an input, over all training samples."""
    train = problem.train
    squares = torch.cat([rows.double().square().mean(1) for rows in parts(train.x)])
    name, label = "input-size", "root mean square of an input"
    value = float(squares.mean()) ** 0.5
    if len(train) == train.population:
        return record.quantity(name, label, value, samples=train)
    found = mean_interval(squares.cpu(), record.confidence)
    return record.quantity(
        name, label, value, low=max(0.0, found.low) ** 0.5, high=found.high**0.5,
        basis=f"{found.confidence:.4g} {found.test}", samples=train,
    )  # fmt: skip


def _normalizes(problem: Problem) -> bool:
    """Whether a normalization comes before every layer with a matrix."""
    for module in problem.model.modules():
        if not list(module.children()):
            if "Norm" in type(module).__name__:
                return True
            if any(p.ndim > 1 for p in module.parameters()):
                return False
    return False


# ------------------------------------------------------------------- all inputs, by the network


@dataclass(frozen=True, slots=True)
class Scaling:
    """Inputs of another scale: `(x - center) / scale`, and how it is called."""

    words: str
    center: Tensor | float
    scale: Tensor | float

    def of(self, samples: Samples) -> Samples:
        return replace(samples, x=(samples.x - self.center) / self.scale)


def scalings(x: Tensor) -> list[Scaling]:
    """What may have been forgotten before inputs of this size were given to a network."""
    flat = x.reshape(len(x), -1)
    mean, deviation, size = float(flat.mean()), float(flat.std(correction=0)), _size(x)
    found = []
    if size > LARGE:
        found.append(Scaling("divided by 255", 0.0, 255.0))
    if size < SMALL:
        found.append(Scaling("multiplied by 255", 0.0, 1 / 255))
    if deviation > 0 and (not 1 / SCALE < deviation < SCALE or abs(mean) > SHIFT * deviation):
        found.append(Scaling("shifted and scaled to mean 0 and variance 1", mean, deviation))
    every = flat.std(0, correction=0)
    typical = float(every.median())
    if typical > 0 and (
        not 1 / SCALE < typical < SCALE or float(flat.mean(0).abs().median()) > SHIFT * typical
    ):
        found.append(
            Scaling(
                "shifted and scaled to mean 0 and variance 1 in every feature",
                flat.mean(0).reshape(x.shape[1:]),
                every.clamp(min=1e-3 * deviation).reshape(x.shape[1:]),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Fit:
    """How the network does on inputs of one scale.

    Attributes:
        scaling: of the inputs.
        losses: of every sample; cross-entropy, or the loss of a regression.
        rescaled: the same with the outputs of a classifier divided by the number that serves it
            best, so that larger inputs are not better only because they make outputs larger.
    """

    scaling: Scaling
    losses: Tensor
    rescaled: Tensor


#: Numbers that the outputs of a classifier are divided by.
TEMPERATURES = tuple(2.0**k for k in range(-10, 13))


def _fit(problem: Problem, samples: Samples, scaling: Scaling) -> Fit | None:
    """None where the outputs are not numbers."""
    scaled = scaling.of(samples)
    try:
        if not problem.is_classification:
            losses = sample_losses(problem, scaled).double().cpu()
            return Fit(scaling, losses, losses)
        outputs = problem.outputs(scaled).double().cpu()
    except NonFinite:
        return None
    y = samples.y.cpu()
    tried = [cross_entropy(outputs / t, y) for t in TEMPERATURES]
    rescaled = min(tried, key=lambda losses: float(losses.mean()))
    return Fit(scaling, cross_entropy(outputs, y), rescaled)


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Of every sample `[n]`, with outputs for the logits of one or several classes."""
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return F.cross_entropy(outputs, y, reduction="none")
    flat, target = outputs.reshape(len(outputs)), y.reshape(len(y)).to(outputs)
    return F.binary_cross_entropy_with_logits(flat, target, reduction="none")


def _statistics_reset(problem: Problem) -> bool:
    """Whether a batch normalization has the statistics it began with.

    Inputs of another scale may then fit better by accident, and the statistics are to blame.
    """
    layers = [m for m in problem.model.modules() if isinstance(m, _BatchNorm)]
    return any(
        m.running_mean is not None
        and m.running_var is not None
        and bool((m.running_mean == 0).all() and (m.running_var == 1).all())
        for m in layers
    )


def _other_scale_fits(problem: Problem, record: FindingRecord) -> bool:
    """A trained network fits its data at the scale it was trained on, and nowhere better.

    Accused is who has less than half the training loss at another scale, if training and test
    samples together leave no doubt that it is smaller; on inputs as large as pixels also who has
    less than half the test loss, outputs as they are, when inputs are divided by 255. In each case
    the loss there must be below that of the best constant: dividing the inputs of any other network
    by 255 makes it nearly constant.
    """
    if not problem.has_loss or not problem.deterministic or len(problem.train) < FEWEST:
        return False
    every = scalings(problem.train.x)
    if not every or _statistics_reset(problem):
        return False
    most = rows_within(TRIED, problem.train.x[0].numel(), least=FEWEST)
    tried = min(most, problem.affordable(2 * len(every) + 3, share=0.3))
    if tried < FEWEST:
        record.note("There was no time to try the network on inputs of other scales.")
        return False
    samples = problem.train.some(tried, record.generator)
    new = None
    if problem.test is not None and len(problem.test) >= FEWEST:
        new = problem.test.some(tried, record.generator)
    given = Scaling("as given", 0.0, 1.0)
    found = [_both(problem, samples, new, s) for s in (given, *every)]
    pairs = [f for f in found if f is not None]  # the first is that of the inputs as they are
    constant = None if found[0] is None else constant_loss(problem, samples)
    if found[0] is None or constant is None:
        return False
    record.table(
        "scales",
        ("inputs", "mean loss", "after rescaling the outputs"),
        [(f.scaling.words, float(f.losses.mean()), float(f.rescaled.mean())) for f, _ in pairs],
        caption=f"The network on {len(samples)} training samples with inputs of other scales. The "
        f"best constant output has a loss of {constant:.3g}.",
    )
    (here, here_new), confidence = found[0], 1 - alarm_level(record) / len(found)
    for there, there_new in pairs[1:]:
        before, after = float(here.rescaled.mean()), float(there.rescaled.mean())
        gain = here.rescaled - there.rescaled
        if here_new is not None and there_new is not None:
            gain = torch.cat([gain, here_new.rescaled - there_new.rescaled])
        if after < min(before / 2, constant) and mean_interval(gain, confidence).low > 0:
            _accuse(record, "training", here.rescaled, there.rescaled, there.scaling, samples)
            return True
    if (
        _size(samples.x) > HUGE
        and new is not None
        and here_new is not None
        and found[1] is not None
    ):
        there_new = found[1][1]
        assert there_new is not None
        gain = here_new.losses / 2 - there_new.losses
        if mean_interval(gain, confidence).low > 0 and float(there_new.losses.mean()) < constant:
            _accuse(record, "test", here_new.losses, there_new.losses, every[0], new)
            return True
    return False


def _both(
    problem: Problem, samples: Samples, new: Samples | None, scaling: Scaling
) -> tuple[Fit, Fit | None] | None:
    """On training and on test samples; None where outputs are not numbers."""
    one = _fit(problem, samples, scaling)
    two = None if new is None else _fit(problem, new, scaling)
    return None if one is None or (new is not None and two is None) else (one, two)


def _accuse(
    record: FindingRecord, data: str, here: Tensor, there: Tensor, scaling: Scaling, used: Samples
) -> None:
    number = record.quantity(
        "loss-by-scale", f"loss on {data} data that another scale of the inputs saves",
        mean_interval(here - there, record.confidence), samples=used,
    )  # fmt: skip
    record.defect(
        "The inputs are not of the scale the network was trained on: as they are, its loss on the "
        f"{data} data is {float(here.mean()):.3g}, and {float(there.mean()):.3g} when they are "
        f"{scaling.words}.",
        number=number,
        usual=at_most(0, "0 or less"),
        action="Give the audit, and the network in use, inputs prepared as in training.",
    )


def _size(x: Tensor) -> float:
    total = sum(float(rows.double().square().sum()) for rows in parts(x))
    return float((total / max(1, x.numel())) ** 0.5)


# --------------------------------------------------------------------- test inputs, by columns


def _test_against_train(problem: Problem, record: FindingRecord) -> bool:
    assert problem.test is not None
    if len(problem.test) < FEWEST or len(problem.train) < FEWEST:
        record.note(f"Fewer than {FEWEST} samples: the scales of test inputs were not compared.")
        return False
    most = rows_within(COMPARED, problem.train.x[0].numel(), least=FEWEST)
    some = [s.some(most, record.generator) for s in (problem.train, problem.test)]
    labels = (some[0].y, some[1].y) if problem.is_classification else None
    try:
        found = column_shift(some[0].x, some[1].x, labels)
    except EmptyData:
        return False
    found = _dense(found, problem)
    if len(found.columns) == 0:
        return False
    level = alarm_level(record)
    scale, shift = _ranges(found, record, problem)
    if _channels(problem, record, found, level):
        return True
    by = scale.value if scale.value >= 1 else 1 / scale.value
    if 2 * float(found.ratio_p_value.median()) < level and by >= SCALE:
        word = "more" if scale.value > 1 else "less"
        record.defect(
            f"The test inputs are of another scale: they vary {by:.3g} times {word} than the "
            "training inputs.",
            number=scale,
            usual=between(1 / SCALE, SCALE),
            action="Prepare training and test inputs in the same way: the same division by 255, "
            "the same mean and standard deviation.",
        )
        _doubt_test_error(record, scale, between(1 / SCALE, SCALE))
        return True
    if 2 * float(found.shift_p_value.median()) < level and shift.value >= SHIFT:
        record.defect(
            f"The test inputs are shifted: half of all features lie {shift.value:.2g} standard "
            "deviations or more from where they are in the training data.",
            number=shift,
            usual=below(SHIFT),
            action="Prepare training and test inputs in the same way, and draw both from the same "
            "source.",
        )
        _doubt_test_error(record, shift, below(SHIFT))
        return True
    fewer = min(len(problem.train), len(problem.test))
    return _single_columns(found, record, level, scale, fewer)


def _channels(problem: Problem, record: FindingRecord, found: ColumnShift, level: float) -> bool:
    """Channels of images, or features of sequences, that changed though others did not.

    Of a channel half of the places must differ, each channel at its part of the level.
    """
    assert problem.test is not None
    every = [layout for layout in layouts(problem) if not layout.flat]
    if not every or every[0].channel is None:
        return False
    (layout,) = every
    count = layout.shape[layout.channel - 1] if layout.channel is not None else 1
    axis = [1] * len(layout.shape)
    axis[(layout.channel or 1) - 1] = count
    number_of = torch.arange(count).reshape(axis).expand(layout.shape).reshape(-1)
    of = number_of[found.columns.cpu()]
    by, aside = torch.maximum(found.ratio, 1 / found.ratio).cpu(), found.shift.abs().cpu()
    bad: list[tuple[int, float, float]] = []
    for k in torch.unique(of).tolist():
        mine = of == k
        ratio, shift = float(found.ratio.cpu()[mine].median()), float(aside[mine].median())
        scaled = 2 * float(found.ratio_p_value.cpu()[mine].median()) < level / count
        moved = 2 * float(found.shift_p_value.cpu()[mine].median()) < level / count
        if (scaled and float(by[mine].median()) >= SCALE) or (moved and shift >= SHIFT):
            bad.append((k, ratio, shift))
    if not bad or len(bad) == count:
        return False
    what = "feature" if layout.places == (1,) else "channel"
    record.table(
        "channels",
        (what, "median scale over that in training", "median shift, standard deviations"),
        bad,
        caption=f"Those of {count} {what}s, numbered from 0, that differ between training and test "
        "data.",
    )
    share = record.quantity(
        "changed-channels", f"share of {what}s that differ in scale or place", len(bad) / count
    )
    worst = max(bad, key=lambda row: max(row[1], 1 / row[1]) + row[2])
    names = several(runs([k for k, _, _ in bad]))
    record.defect(
        f"{what.capitalize()}{'s' if len(bad) > 1 else ''} {names} (from 0) of {count} "
        f"{'are' if len(bad) > 1 else 'is'} of another scale in the test data: {what} {worst[0]} "
        f"varies {worst[1]:.3g} times as much as in training, and half of it lies {worst[2]:.2g} "
        "standard deviations or more off.",
        number=share, usual=at_most(0, "0"),
        action=f"Prepare this {what} in the same way for training and test data.",
    )  # fmt: skip
    _doubt_test_error(record, share, at_most(0, "0"))
    return True


def _doubt_test_error(record: FindingRecord, number: Quantity, usual: Usual) -> None:
    record.look(
        "The test error says little about new data: the test inputs are not like those of "
        "training.",
        number=number,
        usual=usual,
        action="Prepare training and test inputs in the same way, and audit again.",
        area=Area.GENERALIZATION,
    )


def _dense(found: ColumnShift, problem: Problem) -> ColumnShift:
    """Without the columns that nearly always have one value: their spread rests on a few samples.

    Where all are like that, as in sparse data, they are all there is.
    """
    assert problem.test is not None
    kept = torch.ones(len(found.columns), dtype=torch.bool)
    for samples in (problem.train, problem.test):
        flat = samples.x.reshape(len(samples), -1)
        kept &= (common_share(flat)[found.columns] <= NEARLY).cpu()
    if not bool(kept.any()):
        return found
    return ColumnShift(*(getattr(found, f.name)[kept] for f in fields(found)))


def _ranges(
    found: ColumnShift, record: FindingRecord, problem: Problem
) -> tuple[Quantity, Quantity]:
    """Medians over the columns; their range is over columns, each of which has its own error."""
    ratio, shift = found.ratio.cpu(), found.shift.abs().cpu()
    basis = f"{record.confidence:.4g} order statistics over the features"
    made = []
    for name, label, values in (
        ("input-scale-ratio", "median scale of a test feature over that in training", ratio),
        ("input-shift", "median shift of a test feature, standard deviations", shift),
    ):
        middle = median_interval(values, record.confidence)
        made.append(
            record.quantity(
                name,
                label,
                float(values.median()),
                low=max(middle.low, float(values.min())),
                high=min(middle.high, float(values.max())),
                basis=basis,
                samples=problem.test,
            )
        )
    return made[0], made[1]


def _single_columns(
    found: ColumnShift, record: FindingRecord, level: float, scale: Quantity, samples: int
) -> bool:
    """Columns that changed though most did not; each is tested at its part of the level.

    So small a part is far out in the tail, where few samples do not follow the normal law.
    """
    part = level / (2 * len(found.columns)) if samples >= ENOUGH_FOR_ONE else 0.0
    by = torch.maximum(found.ratio, 1 / found.ratio)
    scaled = (found.ratio_p_value.to(by.device) < part) & (by >= SCALE_OF_ONE)
    moved = (found.shift_p_value.to(by.device) < part) & (found.shift.abs() >= SHIFT_OF_ONE)
    bad = (scaled | moved).nonzero().flatten()
    if len(bad) == 0:
        record.fine(
            "Training and test inputs are of one scale.",
            number=scale,
            usual=between(1 / SCALE, SCALE),
        )
        return False
    record.table(
        "features",
        ("feature", "scale over that in training", "shift, standard deviations"),
        [
            (int(found.columns[j]), float(found.ratio[j]), float(found.shift[j]))
            for j in bad[:20].tolist()
        ],
        caption="Features that differ between training and test data by more than chance explains.",
    )
    names = several(runs(found.columns[bad].sort().values.tolist()))
    worst = int(bad[by[bad].argmax()])
    number = record.quantity(
        "changed-features", "share of features that differ in scale or by several deviations",
        len(bad) / len(found.columns),
    )  # fmt: skip
    record.defect(
        f"{len(bad)} of {len(found.columns)} features differ between training and test data: "
        f"{names}. Feature {int(found.columns[worst])} varies {float(found.ratio[worst]):.3g} "
        f"times as much, and is shifted by {float(found.shift[worst]):.2g} standard deviations.",
        number=number,
        usual=at_most(0, "0"),
        action="Look at the units and the preparation of these features.",
    )
    return True
