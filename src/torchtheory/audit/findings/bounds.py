"""Finding: every generalization bound that applies to the network, beside its test error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats

from torchtheory.audit.engine.finding import FindingRecord, finding
from torchtheory.audit.findings import bound_evaluation as evaluation
from torchtheory.audit.findings.bound_evaluation import Setting, Value
from torchtheory.audit.findings.certificates import (
    alarm_level,
    exchangeability,
    stochastic_test_error,
)
from torchtheory.audit.findings.hypotheses import (
    deterministic,
    has_parameters,
    one_label_per_sample,
)
from torchtheory.core.budget import time_left
from torchtheory.core.claim import Verdict
from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.usual import below
from torchtheory.kernels.paths.layers import CONVOLUTIONS
from torchtheory.models.problem import Problem
from torchtheory.report.numbers import share_words


@dataclass(frozen=True, slots=True)
class Method:
    """A theorem that bounds the error of a classifier.

    Attributes:
        name: for tables and figures.
        ids: of the catalogue.
        statement: LaTeX.
        measure: what it looks at.
        evaluate: its value for a network.
        held_out: whether it uses test data.
    """

    name: str
    ids: tuple[str, ...]
    statement: str
    measure: str
    evaluate: Callable[[Setting], Value]
    held_out: bool = False


_MARGIN = (
    r"R \le \min_\gamma\Bigl[\hat R_\gamma + \tfrac{2K^2}\gamma \hat{\mathfrak R}_S + "
    r"3\sqrt{\tfrac{\ln(2\cdot 129/\delta)}{2n}}\Bigr],\quad \hat{\mathfrak R}_S \le "
)

#: What the room of generalization can say about the error of a given classifier.
METHODS = (
    Method("test set, exact", ("B-11",),
           r"R \le \sup\{p : \Pr[\mathrm{Bin}(n,p) \le k] \ge \delta\}",
           "test error", evaluation.exact_test_set, held_out=True),
    Method("test set, Hoeffding", ("M-29", "B-11"),
           r"R \le \hat R_T + \sqrt{\ln(1/\delta)/(2n)}",
           "test error", evaluation.hoeffding_test_set, held_out=True),
    Method("path norm and margin", ("B-14", "A-65", "A-67", "B-20"),
           _MARGIN + r"2^a \Phi \sqrt{2\ln 2d}\, \max_j\|x_{\cdot j}\|_2 / n",
           "path norm Φ", evaluation.path_norm),
    Method("Frobenius norms, √L, and margin", ("A-64", "A-67", "M-52", "B-20"),
           _MARGIN + r"(\sqrt{2 \ln 2 \cdot L}+1) \prod_\ell\|W_\ell\|_F \|X\|_F / n",
           "product of Frobenius norms", evaluation.frobenius_root),
    Method("Frobenius norms, peeling, and margin", ("M-48", "A-64", "A-65", "A-67", "B-20"),
           _MARGIN + r"2^{L-1} \prod_\ell\|W_\ell\|_F \|X\|_F / n",
           "product of Frobenius norms", evaluation.frobenius_peeling),
    Method("robustness by the Lipschitz constant", ("B-04",),
           r"R \le \hat R_\gamma + \zeta + \sqrt{(2K\ln 2 + 2\ln(1/\delta))/n}",
           "product of spectral norms", evaluation.lipschitz_cells),
    Method("growth function", ("M-35", "M-38", "A-37", "A-62"),
           r"R \le \hat R_S + 2\sqrt{2(\log S(2n) + \log(2/\delta))/n}",
           "log₂ S(2n)", evaluation.growth_function),
    Method("VC dimension", ("M-39", "M-40", "A-38"),
           r"R \le \hat R_S + 2\sqrt{2(h(\log(2n/h)+1) + \log(2/\delta))/n}",
           "VC dimension h", evaluation.vc_dimension),
    Method("covering numbers", ("A-43", "A-44", "A-45"),
           r"R \le \hat R_S + \tfrac{24}{\sqrt n}\int_0^{1/2}\!\sqrt{\ln N_\alpha}\,d\alpha + "
           r"\sqrt{\ln(1/\delta)/(2n)}",
           "Dudley's integral", evaluation.covering_numbers),
    Method("parameters of finite precision", ("M-30", "A-46"),
           r"R \le \hat R_S + \sqrt{(bP\ln 2 + \ln(2/\delta))/(2n)}",
           "parameters P", evaluation.finite_precision),
    Method("PAC-Bayes, flat Gaussian", ("M-60", "M-63", "M-65", "B-05"),
           r"\mathbb E_Q R \le \mathrm{kl}^{-1}(\hat r \mid \tfrac1n[\mathrm{KL}(Q\|P) + "
           r"\ln\tfrac{J(n)}\delta])", "KL and scales, nats", evaluation.flat_gaussian),
)  # fmt: skip

#: Theorems that speak of something else than a network and its data, and of what.
ELSEWHERE = (
    ("A-38", r"|R - \hat R_S| \le c \sqrt{(h + \log(1/\delta))/n}",
     "the theorem says that a constant c exists and does not name it"),
    ("B-03", r"R - \hat R_S \le 2\beta + (4n\beta + M)\sqrt{\ln(1/\delta)/(2n)}",
     "uniform stability is a property of the algorithm, proved for all data sets; a trained "
     "network does not show it"),
    (("A-68", "B-05"), r"\max_{\|v\|\le\rho} L(\theta+v) - L(\theta)",
     "flatness alone bounds no risk: rescaling layers changes it and not the function; what noise "
     "in the weights proves is the PAC-Bayes bound"),
    (("B-19", "B-20"), r"R \le \hat R^{(\rho)} + 2 d_y^2 C_\sigma C_w / (\rho\sqrt{m_\sigma}) + "
     r"\sqrt{\ln(1/\delta)/(2 m_\sigma)}",
     "the gates of this network were trained on the samples the bound would be evaluated on; it "
     "needs training in two phases"),
)  # fmt: skip


NO_TIME = "there was no time left for it; give a larger budget"

#: Where a picture ends.
FARTHEST = 1e15


@dataclass(frozen=True, slots=True)
class Row:
    """A method with what it gave, or why it gave nothing."""

    method: Method
    value: Value | None
    missing: str = ""

    @property
    def vacuous(self) -> bool:
        return self.value is not None and self.value.bound >= 1


@finding(
    "generalization-bounds",
    area="generalization",
    title="What the generalization bounds promise",
    cost="gradient",
    covers=sorted({i for m in METHODS for i in m.ids}),
    needs=[one_label_per_sample, has_parameters, deterministic],
)
def generalization_bounds(problem: Problem, record: FindingRecord) -> None:
    """Every bound on the error, all valid at once: delta is divided among them."""
    if not problem.is_classification:
        _regression(problem, record)
        return
    setting = _setting(problem, record)
    rows = [_evaluate(method, setting) for method in METHODS]
    measured = None
    if problem.test is not None:
        wrong = problem.errors(problem.test)
        measured = clopper_pearson(int(wrong.sum()), len(wrong), record.confidence)
    for row in rows:
        _claim(problem, record, row, measured, setting.delta)
    for ids, statement, reason in ELSEWHERE:
        record.not_applicable(ids, statement, reason)
    _table(record, rows, guessing=1 - 1 / (problem.classes or 2))
    _quantities(record, rows)
    _headline(record, rows, measured)
    found = [row for row in rows if row.value is not None]
    if found:
        record.figure(
            "bounds",
            lambda ax: plot_bounds(ax, found, measured),
            caption="What each bound promises, smallest first. Right of 1 it says nothing; the "
            "band is the test error with its interval.",
            size=(7.2, 1.2 + 0.32 * len(found)),
        )
    if any(isinstance(module, CONVOLUTIONS) for module in problem.model.modules()):
        record.note(
            "The Lipschitz constant of a convolution is an upper bound with probability 0.999."
        )
    if problem.train.note:
        record.note(
            f"The bounds stand on {len(problem.train)} training samples ({problem.train.note}); "
            "with all of them they would be smaller."
        )


def _setting(problem: Problem, record: FindingRecord) -> Setting:
    center = problem.initial
    if problem.prior is not None and (
        problem.test is None
        or exchangeability(_cheap(problem, record), problem.prior).p_value >= alarm_level(record)
    ):
        center = problem.prior
    return Setting(
        problem,
        delta=(1 - record.confidence) / len(METHODS),
        samples=problem.train.some(
            problem.affordable(4 * len(evaluation.SPREADS), share=0.4), record.generator
        ),
        center=center,
        seed=int(torch.randint(2**31, (1,), generator=record.generator)),
    )


def _cheap(problem: Problem, record: FindingRecord) -> Problem:
    """The problem on so few samples that a pass over them is a small part of the time."""
    count = problem.affordable(2, share=0.1)
    return problem.restricted(count, count, record.generator)


def _evaluate(method: Method, setting: Setting) -> Row:
    if time_left() <= 0:
        return Row(method, None, NO_TIME)
    try:
        return Row(method, method.evaluate(setting))
    except TorchTheoryError as error:
        return Row(method, None, str(error))


def _claim(
    problem: Problem, record: FindingRecord, row: Row, measured: Interval | None, delta: float
) -> None:
    method, value = row.method, row.value
    if value is None:
        say = record.not_done if row.missing == NO_TIME else record.not_applicable
        say(method.ids, method.statement, f"{method.name}: {row.missing}")
        return
    words = f"{method.name}: {method.measure} {value.measure:.4g}"
    if row.vacuous:
        words += f"; vacuous because {value.because}"
    if method.held_out:
        _defining_probability(problem, record, row, delta)
        return
    if value.network is not None:
        measured = None
        if time_left() > 0:
            measured = stochastic_test_error(value.network, problem, record)
        words += "; measured is the test error of the network with noise in its weights"
    if measured is None:
        why = "no test data was given" if problem.test is None else NO_TIME
        say = record.not_done if why == NO_TIME else record.not_applicable
        say(
            method.ids,
            method.statement,
            f"promises an error of at most {value.bound:.4g}, which cannot be compared with "
            f"anything: {why}; {words}",
        )
        return
    record.states(method.ids, method.statement).at_most(
        measured, value.bound, trivial=1.0, where=words
    )


def _defining_probability(problem: Problem, record: FindingRecord, row: Row, delta: float) -> None:
    """A check of ours: were the error as large as the bound, so few errors would be unlikely."""
    assert problem.test is not None
    assert row.value is not None
    if row.vacuous:
        record.note(f"{row.method.name}: the bound is 1 or more, and says nothing.")
        return
    wrong, n = int(problem.errors(problem.test).sum()), len(problem.test)
    record.checks(
        row.method.ids,
        r"\Pr[\mathrm{Bin}(n, p) \le k] \le \delta \text{ for } p \text{ the bound}",
    ).at_most(
        float(stats.binom.cdf(wrong, n, row.value.bound)),
        delta * (1 + 1e-6),
        where=f"{row.method.name}: {wrong} errors on {n} test samples, and the bound "
        f"{row.value.bound:.4g}; equality up to rounding makes the exact bound the least one",
    )


def _table(record: FindingRecord, rows: list[Row], guessing: float) -> None:
    cells: list[tuple[str | float | None, ...]] = []
    for row in rows:
        value, method = row.value, row.method
        if value is None:
            kind = "not done" if row.missing == NO_TIME else "not applicable"
            cells.append((method.name, method.measure, None, None, f"{kind}: {row.missing}"))
        else:
            verdict = f"vacuous because {value.because}" if row.vacuous else "says something"
            if guessing <= value.bound < 1:
                verdict = f"no better than guessing: {value.because}"
            cells.append((method.name, method.measure, value.measure, value.bound, verdict))
    record.table(
        "bounds",
        ("bound", "what it looks at", "its value", "error at most", "verdict"),
        cells,
        caption=f"All hold at once with probability {record.confidence:.4g}: each fails with "
        f"probability {(1 - record.confidence) / len(METHODS):.2g} at most. Margins, norms and "
        "scales that were chosen after seeing the data are paid for. Where a margin bound says "
        "nothing, it is that of a margin which half the samples reach.",
    )


def _quantities(record: FindingRecord, rows: list[Row]) -> None:
    names = {
        "path norm Φ": "path-norm",
        "product of Frobenius norms": "frobenius-product",
        "product of spectral norms": "spectral-product",
        "VC dimension h": "vc-dimension",
    }
    taken: set[str] = set()
    for row in rows:
        name = names.get(row.method.measure)
        if row.value is None or name is None or name in taken:
            continue
        taken.add(name)
        label = "bound of the VC dimension" if name == "vc-dimension" else row.method.measure
        record.quantity(name, label, row.value.measure)
    found = [r.value.bound for r in rows if r.value is not None and not r.method.held_out]
    if found:
        record.quantity(
            "best-bound", "smallest bound on the error from the training data", min(found),
            low=0.0, high=min(found), basis="a bound, the least that there was time for",
        )  # fmt: skip
    every = [(r.value.bound, r.method.name) for r in rows if r.value is not None]
    if every and min(every)[0] < 1:
        bound, name = min(every)
        number = record.quantity(
            "best-of-all-bounds", "smallest bound on the error, test data included", bound,
            low=0.0, high=bound, basis=f"{record.confidence:.4g} {name}",
        )  # fmt: skip
        # a coin errs on half: a bound beyond that reassures nobody
        if bound < 0.5:
            record.fine(
                f"With {record.confidence:.0%} confidence it errs on at most {bound:.1%} of new "
                "data.",
                number=number, usual=below(0.5, "below 0.5, what a coin does"), figure="bounds",
            )  # fmt: skip


def _headline(record: FindingRecord, rows: list[Row], measured: Interval | None) -> None:
    found = sorted(
        ((row.value.bound, row) for row in rows if row.value is not None), key=lambda pair: pair[0]
    )
    if not found:
        return
    vacuous = sum(row.vacuous for _, row in found)
    own = [bound for bound, row in found if not row.method.held_out]
    said = "" if measured is None else f" (test error {share_words(measured)})"
    bound, best = found[0]
    late = any(row.missing == NO_TIME for row in rows)
    which = "there was time for" if late else "that applies"
    if bound >= 1:
        record.headline(
            f"Every generalization bound {which} ({len(found)}) is vacuous: it promises an "
            f"error of at most {bound:.2g} or more{said}.",
        )
        return
    alone = ""
    if best.method.held_out and own:
        alone = (
            f" From the training data alone, every bound {which} is vacuous."
            if own[0] >= 1
            else f" From the training data alone, the best promises {own[0]:.1%}."
        )
    record.headline(
        f"Of {len(found)} bounds {which.replace('applies', 'apply')} {vacuous} are vacuous; the "
        f"best ({best.method.name}) promises an error of at most {bound:.1%}{said}.{alone}",
    )


def plot_bounds(ax: Any, rows: list[Row], measured: Interval | None) -> None:
    """Every bound on a logarithmic axis, the smallest on top."""
    order = sorted(rows, key=lambda row: -row.value.bound if row.value is not None else 0.0)
    bounds = [row.value.bound for row in order if row.value is not None]
    places = range(len(bounds))
    least = min([*bounds, 1.0] + ([measured.low, measured.estimate] if measured else []), key=_size)
    left = min(0.5, max(1e-4, 0.5 * _size(least)))
    right = 30 * max(1.0, *[min(bound, FARTHEST) for bound in bounds])
    if measured is not None:
        ax.axvspan(max(measured.low, left), measured.high, color=COLORS[2], alpha=0.25, zorder=0)
        ax.axvline(max(measured.estimate, left), color=COLORS[2], label="test error")
    ax.axvspan(1, right, color="0.92", zorder=0)
    ax.axvline(1, color="0.3", linestyle="--", linewidth=1)
    for place, bound in zip(places, bounds, strict=True):
        color = COLORS[1] if bound >= 1 else COLORS[0]
        end = min(bound, FARTHEST)
        ax.plot([left, end], [place, place], color=color, linewidth=1, alpha=0.5)
        ax.plot(end, place, "o", color=color)
        ax.annotate(
            f"{bound:.1%}" if bound < 1 else f"{bound:.3g}",
            (end, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    ax.set_xscale("log")
    ax.set(
        xlim=(left, right),
        ylim=(-0.6, len(bounds) + 0.1),
        yticks=list(places),
        yticklabels=[row.method.name for row in order],
        xlabel="error at most",
    )
    ax.text(1.08, len(bounds) - 0.3, "says nothing", fontsize=8, color="0.3", va="center")
    ax.grid(visible=False, axis="y")
    if measured is not None:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)


def _size(value: float) -> float:
    return value if value > 0 else math.inf


# ------------------------------------------------------------------------------------ regression


def _regression(problem: Problem, record: FindingRecord) -> None:
    """Bounds on the risk need bounded losses; how often a residual is large has one."""
    for method in METHODS:
        record.not_applicable(
            method.ids,
            method.statement,
            f"{method.name}: it bounds the share of errors of a classifier, and the loss of a "
            "regression has no largest value",
        )
    if problem.test is None or len(problem.test) < 4:
        record.note("With test data, a bound on how often residuals are large would apply.")
        return
    delta = 1 - record.confidence
    difference = (problem.outputs(problem.test) - problem.test.y).double().cpu()
    sizes = difference.reshape(len(difference), -1).norm(dim=1)
    order = torch.randperm(len(sizes), generator=record.generator)
    one, two = sizes[order[: len(sizes) // 2]], sizes[order[len(sizes) // 2 :]]
    # the largest of m values leaves more than 1 - s above it with probability at most s^m
    promised = 1 - delta ** (1 / len(one))
    beyond = clopper_pearson(int((two > one.max()).sum()), len(two), record.confidence)
    made = record.states(
        "B-11", r"\Pr\bigl[\|f(x)-y\| > \max_{i\le m}\|f(x_i)-y_i\|\bigr] \le 1 - \delta^{1/m}"
    ).at_most(
        beyond,
        promised,
        trivial=1.0,
        where=f"the largest residual of {len(one)} test samples drawn at random, against the "
        f"other {len(two)}",
    )
    whole = 1 - delta ** (1 / len(sizes))
    largest = float(sizes.max())
    record.quantity(
        "largest-residual", "largest residual of the test data", largest, low=largest,
        high=largest if len(sizes) == problem.test.population else math.inf,
        basis="of the samples looked at; others may be larger", samples=problem.test,
    )  # fmt: skip
    if made.verdict is Verdict.HOLDS:
        record.headline(
            f"With {record.confidence:.0%} confidence a residual is beyond {largest:.3g}, the "
            f"largest of {len(sizes)} test samples, in at most {whole:.2%} of all cases; bounds on "
            "the mean loss need losses that are bounded.",
        )
