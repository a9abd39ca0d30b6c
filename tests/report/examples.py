"""Runs and audits made by hand, and a strict reader of pages."""

from __future__ import annotations

import math
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from torchtheory.audit.engine.audit import Audit
from torchtheory.audit.engine.finding import FindingRecord
from torchtheory.core import catalogue
from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Area
from torchtheory.core.figure import Figure
from torchtheory.core.intervals import Interval, clopper_pearson
from torchtheory.core.quantity import Quantity
from torchtheory.core.record import Table
from torchtheory.core.statement import CounterExample
from torchtheory.core.usual import below
from torchtheory.labs.engine.registry import Lab
from torchtheory.labs.engine.run import Run

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 230.4">'
    '<clipPath id="p1"><rect width="9" height="9"/></clipPath></svg>'
)
PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
    + (1600).to_bytes(4, "big")
    + (512).to_bytes(4, "big")
    + b"\x08\x02\x00\x00\x00"
)
ERRATUM = next(iter(catalogue.errata()))
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'


def described() -> None:
    r"""The number of updates is at most $R^2/\gamma^2$.

    Look at `updates`:

    - it is below the bound;
    - it never ends on data that
      cannot be separated.
    """


def empty_run(name: str = "empty-lab", room: str = "nets", **fields: Any) -> Run:
    lab = Lab(name, room, "An empty lab", (), (), {}, lambda run: None)
    return Run(lab=lab, **fields)


def full_run(name: str = "perceptron-novikoff", room: str = "nets") -> Run:
    """All four verdicts, controls, an erratum, intervals, odd numbers, tables and figures."""
    lab = Lab(
        name,
        room,
        "The perceptron makes at most $R^2/\\gamma^2$ updates",
        ("N-06", "N-07", "N-08", "M-29"),
        (ERRATUM,),
        {},
        described,
    )
    run = Run(
        lab=lab,
        seed=7,
        parameters={"samples": 200, "margin": 0.1, "widths": (16, 32), "bias": True},
        seconds=4.213,
    )
    says = run.states("N-06, N-07", r"t \le \frac{R^2}{\gamma^2}")
    says.at_most([4, 96, 50], [100.0, 100.0, 100.0])
    says.fails("the labels are shuffled, $\\gamma < 0$", 12000)
    run.states("M-29", r"R \le \hat R_n + \sqrt{\frac{\log(2/\delta)}{2n}}").at_most(
        clopper_pearson(31, 1000), 0.05
    )
    run.states("M-29", r"R \le 1").at_most(0.2, 1.3, trivial=1)
    run.not_applicable("N-08", r"\Theta = 0", "The network has a BatchNorm layer.")
    run.states("N-08", r"a = \pi").equal(math.pi + 2e-13, math.pi, 1e-9)
    run.states("N-08", r"\kappa < \infty").below(1.3e19, math.inf)
    run.refutes(ERRATUM, r"t < R^2").below(1.5, 1, where="Take $d=2$.")
    run.table(
        "by-dimension",
        ["$d$", "updates", "ended", "comment"],
        [[2, 12, True, "tight"], [100000, 3.2e-7, False, None]],
        caption="Updates against $d$.",
    )
    run.figures.append(Figure("mistakes", "Updates stay below $R^2$.", SVG, PNG))
    run.figures.append(Figure("panels", "Three seeds.", None, PNG))
    run.note("Margins below $10^{-3}$ were drawn again.")
    return run


def failing_run(name: str = "failing-lab") -> Run:
    """A violated claim whose numbers agree to four digits, and a control that holds."""
    run = empty_run(name)
    says = run.states("N-08", r"L_{t+1} \le L_t")
    says.at_most(1.00002, 1.0, where="The step is too large.")
    says.fails("the step is twice as large", 0.5)
    return run


def hostile_run() -> Run:
    """Markup in every field that holds text."""
    bad = HOSTILE

    def function() -> None: ...

    function.__doc__ = f"{bad}\n\n- {bad}\n- ``{bad}``"
    lab = Lab(bad, bad, bad, (bad,), (bad,), {}, function)
    run = Run(lab=lab, parameters={bad: bad, "list": [bad]})
    interval = Interval(0.5, 0.4, 0.6, 0.95, 10, bad)
    statements = [
        bad,
        rf"\text{{{bad}}}",
        rf"\mathrm{{{bad}}}",
        r"\text{&lt;script&gt;&#x0003C;script&#x0003E;}",
        r"\href{javascript:alert(1)}{x}",
        r'\style{background:url(x)" onclick="alert(1)}{x}',
        r'\color{red" onclick="alert(1)}{x}',
        r"\class{x}{y}\cssId{z}{w}",
        rf"\frac{{{bad}}}{{",
        rf"\unknown{{{bad}}}",
        rf"\begin{{{bad}}} x \end{{{bad}}}",
        r'\operatorname{<img src=x onerror=alert(1)>}\mbox{<script>}\texttt{<b>}"',
    ]
    for statement in statements:
        control = Claim((bad,), statement, 1.0, "<=", 2.0, reason=bad)
        run.claims.append(
            Claim(
                (bad,),
                statement,
                1.0,
                "<=",
                0.5,
                reason=f"{bad} ${statement}$ `{bad}`",
                interval=interval,
                slack=18.0,
                loose=f"{bad} ${statement}$ `{bad}`",
                control=control,
            )
        )
    run.errata.append(CounterExample(bad, Claim((bad,), bad, 1.0, "<=", 2.0, reason=bad)))
    run.tables.append(Table(bad, (bad, "b"), ((bad, 1), (f"${bad}$", None)), bad))
    run.figures.append(Figure(bad, bad, f"</svg>{bad}", PNG))
    run.notes.append(bad)
    return run


def finding(name: str = "dead-units", title: str = "Units that never fire", **more: Any) -> Any:
    """A finding of the capacity, unless told."""
    fields = {"area": Area.CAPACITY, "cost": "forward", "seconds": 0.25} | more
    return FindingRecord(name=name, title=title, **fields)


SHARE = Quantity("share", "share of dead units", 0.25, 0.2, 0.3, "jackknife", "", 512, 3088)


def audit(*, hostile: bool = False) -> Audit:
    """Every state, verdict and part of a report; `hostile`: markup in every word."""
    content = hostile_run() if hostile else full_run()
    text = HOSTILE if hostile else ""
    findings = [
        finding(
            f"finding-{k}{text}",
            title + text,
            area=area,
            claims=list(content.claims),
            errata=content.errata,
            tables=content.tables,
            figures=[replace(f) for f in content.figures],
            notes=content.notes,
            advice=["Lower the learning rate." + text],
        )
        for k, (area, title) in enumerate(
            (
                (Area.CAPACITY, "Units that never fire"),
                (Area.SIGNALS, r"The loss is $\beta$-smooth"),
                (Area.CAPACITY, "Layers and parameters"),
            )
        )
    ]
    first, second, third = findings
    first.quantities.append(replace(SHARE, label=SHARE.label + text, basis=SHARE.basis + text))
    first.headline("On all samples 12 units are dead." + text)
    first.defect(
        "A quarter of the units is dead." + text,
        number=first.quantities[0],
        usual=below(0.05, "below 0.05" + text),
        action="Use a leaky activation." + text,
        figure="panels",
    )
    second.look("Gradients shrink fivefold." + text, figure="mistakes")
    second.fine("Inputs are of one scale." + text, area=Area.DATA)
    second.open(
        replace(SHARE, label="Distance of the classes' shares" + text, high=0.5),
        below(0.4),
        area=Area.CALIBRATION,
    )
    third.fine("It has 2 parameters per sample." + text)
    third.not_done("M-19", r"\lambda \le 2/\eta", "stopped after 2 s for want of time" + text)
    third.checks("N-08", r"\text{pieces are affine}").at_most(0.0, 1e-9)
    return Audit(
        title="What theory says about MLP" + text,
        facts={"model" + text: "MLP" + text, "parameters": "26,122", "task": "regression" + text},
        findings=findings,
        seconds=4.2,
    )


class Page(HTMLParser):
    """Reads a page, refuses tags that do not close, and keeps what was seen."""

    VOID = frozenset({"meta", "img", "wbr", "br", "hr", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} repeats an attribute"
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def words(self) -> str:
        """The text, spaces as one."""
        return " ".join("".join(self.text).split())

    def values(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]
