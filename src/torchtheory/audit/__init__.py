"""What theory says about a user's own network.

The module itself can be called: `tt.audit(model, train, test)`. `tt.audit.track` follows
quantities while a network is trained, `tt.audit.compare` says what changed between two audits,
`tt.audit.series` shows several side by side, and `tt.audit.weights` audits weights alone.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from torchtheory.audit.bare_weights.audit import weights
from torchtheory.audit.comparison.compare import Comparison, compare
from torchtheory.audit.comparison.series import AuditSeries, series
from torchtheory.audit.engine.audit import Audit, audit
from torchtheory.audit.engine.finding import FindingRecord, all_findings, finding
from torchtheory.audit.tracking import Tracker, Tracking, track, tracked

__all__ = [
    "Audit",
    "AuditSeries",
    "Comparison",
    "FindingRecord",
    "Tracker",
    "Tracking",
    "all_findings",
    "audit",
    "compare",
    "finding",
    "series",
    "track",
    "tracked",
    "weights",
]


class _CallableModule(types.ModuleType):
    """A module that is called like the function of its name, and shown as it in `help`."""

    __signature__ = inspect.signature(audit)

    def __call__(self, *args: Any, **kwargs: Any) -> Audit:
        return audit(*args, **kwargs)


_CallableModule.__call__.__doc__ = audit.__doc__
__doc__ = f"audit{inspect.signature(audit)}\n\n{inspect.getdoc(audit)}\n\n{__doc__}"
sys.modules[__name__].__class__ = _CallableModule
