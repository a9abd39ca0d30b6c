"""The audit room: what theory says about a user's own network.

The module itself can be called: ``tt.audit(model, train, test)``. ``tt.audit.track`` follows
quantities while a network is trained, and ``tt.audit.compare`` says what changed between two
audits.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from torchtheory.audit.tracking import Tracker, Tracking, track, tracked
from torchtheory.core.audit import Audit, audit
from torchtheory.core.comparison import Comparison, compare
from torchtheory.core.finding import FindingRecord, finding, findings

__all__ = [
    "Audit",
    "Comparison",
    "FindingRecord",
    "Tracker",
    "Tracking",
    "audit",
    "compare",
    "finding",
    "findings",
    "track",
    "tracked",
]


class _CallableModule(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Audit:
        return audit(*args, **kwargs)


_CallableModule.__call__.__doc__ = audit.__doc__
sys.modules[__name__].__class__ = _CallableModule
