"""What the package offers to type checkers: the names of `__init__.py`, and nothing else.

`audit` is a package that can be called, which a type checker does not know of modules. To it,
`audit` is a class of `Audit`s that are made with the arguments of the function, and that has the
names of the package: `tt.audit(...)`, `tt.audit.compare(...)` and annotations such as
`tt.audit.FindingRecord` mean what they do.
"""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeAlias

from torchtheory import approximation as approximation
from torchtheory import convolution as convolution
from torchtheory import core as core
from torchtheory import data as data
from torchtheory import equivariance as equivariance
from torchtheory import explanation as explanation
from torchtheory import expressivity as expressivity
from torchtheory import generalization as generalization
from torchtheory import graphs as graphs
from torchtheory import kernels as kernels
from torchtheory import labs as labs
from torchtheory import linalg as linalg
from torchtheory import models as models
from torchtheory import nets as nets
from torchtheory import neurons as neurons
from torchtheory import optimization as optimization
from torchtheory import primer as primer
from torchtheory import report as report
from torchtheory import robustness as robustness
from torchtheory import sequences as sequences
from torchtheory import tracing as tracing
from torchtheory import training as training
from torchtheory.audit.bare_weights.audit import weights as _weights
from torchtheory.audit.comparison.compare import Comparison as _Comparison
from torchtheory.audit.comparison.compare import compare as _compare
from torchtheory.audit.comparison.series import AuditSeries as _AuditSeries
from torchtheory.audit.comparison.series import series as _series
from torchtheory.audit.engine.audit import Audit as _Audit
from torchtheory.audit.engine.audit import audit as _audit
from torchtheory.audit.engine.finding import FindingRecord as _FindingRecord
from torchtheory.audit.engine.finding import all_findings as _all_findings
from torchtheory.audit.engine.finding import finding as _finding
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

def _made_like(
    function: Callable[_P, _Audit],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]: ...

class audit(_Audit):
    @_made_like(_audit)
    def __init__(self) -> None: ...

    Audit: TypeAlias = _Audit
    AuditSeries: TypeAlias = _AuditSeries
    Comparison: TypeAlias = _Comparison
    FindingRecord: TypeAlias = _FindingRecord
    Tracker: TypeAlias = _Tracker
    Tracking: TypeAlias = _Tracking
    all_findings = staticmethod(_all_findings)
    audit = staticmethod(_audit)
    compare = staticmethod(_compare)
    finding = staticmethod(_finding)
    series = staticmethod(_series)
    track = staticmethod(_track)
    tracked = staticmethod(_tracked)
    weights = staticmethod(_weights)
