"""A tracker as a callback of Lightning, which is imported only when one is asked for."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from torchtheory.core.errors import MissingPackage

if TYPE_CHECKING:
    from torchtheory.audit.tracking.tracker import Tracker

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def callback_for(tracker: Tracker) -> Any:
    """A `Callback` that steps the tracker whenever the trainer's optimizers have stepped.

    Raises:
        MissingPackage: if Lightning is not installed.
    """
    base: Any = _callback_class()

    def on_train_start(self: Any, trainer: Any, module: Any) -> None:
        self.seen = int(trainer.global_step)
        if tracker.optimizer is None and tracker.learning_rate is None:
            optimizers = list(trainer.optimizers)
            tracker.optimizer = optimizers[0] if len(optimizers) == 1 else None
        tracker.begin()

    def on_train_batch_end(self: Any, trainer: Any, *_: Any, **__: Any) -> None:
        # with accumulated gradients a batch ends without a step, with two optimizers after two
        if int(trainer.global_step) > self.seen:
            self.seen = int(trainer.global_step)
            tracker.step()

    def on_train_end(self: Any, trainer: Any, module: Any) -> None:
        tracker.measure_last()

    made = type(
        "TrackingCallback",
        (base,),
        {
            "__doc__": "Steps a tracker after each step of the optimizer.",
            "seen": 0,
            "on_train_start": on_train_start,
            "on_train_batch_end": on_train_batch_end,
            "on_train_end": on_train_end,
        },
    )
    return made()


def _callback_class() -> Any:
    # both packages may be installed, and a trainer belongs to one: prefer what is in use
    for name in sorted(_PACKAGES, key=lambda package: package not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise MissingPackage(
        "Lightning is not installed (pip install lightning); without it, call tracker.step() "
        "after each step of the optimizer"
    )
