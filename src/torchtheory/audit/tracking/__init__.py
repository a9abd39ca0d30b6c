"""Following quantities of theory while a network is trained."""

from torchtheory.audit.tracking.quantities import Reading, Snapshot, find_quantities, tracked
from torchtheory.audit.tracking.result import Tracking
from torchtheory.audit.tracking.tracker import Tracker, track

__all__ = ["Reading", "Snapshot", "Tracker", "Tracking", "find_quantities", "track", "tracked"]
