"""What the package offers to type checkers: the names of `__init__.py`, and nothing else.

`audit` is a package that can be called, which a type checker does not know of modules. It is
declared as an object with the names that `torchtheory.audit` exports; in annotations, import the
classes from there.
"""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from torchtheory import approximation as approximation
from torchtheory import core as core
from torchtheory import data as data
from torchtheory import expressivity as expressivity
from torchtheory import generalization as generalization
from torchtheory import kernels as kernels
from torchtheory import labs as labs
from torchtheory import linalg as linalg
from torchtheory import models as models
from torchtheory import nets as nets
from torchtheory import optimization as optimization
from torchtheory import primer as primer
from torchtheory import report as report
from torchtheory import robustness as robustness
from torchtheory import training as training
from torchtheory.audit.comparison.compare import Comparison as _Comparison
from torchtheory.audit.comparison.compare import compare as _compare
from torchtheory.audit.engine.audit import Audit as _Audit
from torchtheory.audit.engine.audit import audit as _audit
from torchtheory.audit.engine.finding import FindingRecord as _FindingRecord
from torchtheory.audit.engine.finding import all_findings as _all_findings
from torchtheory.audit.engine.finding import finding as finding
from torchtheory.audit.tracking import Tracker as _Tracker
from torchtheory.audit.tracking import Tracking as _Tracking
from torchtheory.audit.tracking import track as _track
from torchtheory.audit.tracking import tracked as _tracked
from torchtheory.core.claim import Claim as Claim
from torchtheory.core.claim import Verdict as Verdict
from torchtheory.labs.engine.registry import find_lab as find_lab
from torchtheory.labs.engine.registry import lab as lab
from torchtheory.labs.engine.run import run_lab as run_lab
from torchtheory.models.problem import Problem as Problem

__version__: str

_P = ParamSpec("_P")
_R = TypeVar("_R")

def _method_like(
    function: Callable[_P, _R],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[Any, _P], _R]]: ...

class _AuditPackage:
    Audit = _Audit
    Comparison = _Comparison
    FindingRecord = _FindingRecord
    Tracker = _Tracker
    Tracking = _Tracking
    @_method_like(_audit)
    def __call__(self) -> None: ...
    @_method_like(_audit)
    def audit(self) -> None: ...
    @_method_like(_compare)
    def compare(self) -> None: ...
    @_method_like(_all_findings)
    def all_findings(self) -> None: ...
    @_method_like(finding)
    def finding(self) -> None: ...
    @_method_like(_track)
    def track(self) -> None: ...
    @_method_like(_tracked)
    def tracked(self) -> None: ...

audit: _AuditPackage
