"""What a training leaves behind besides the weights: a row of numbers for every epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torchtheory.core.claim import json_number, parse_number


@dataclass(frozen=True, slots=True)
class Epoch:
    """The numbers of one epoch.

    Attributes:
        epoch: counted from 1.
        train_loss: mean over the epoch of what was minimized, as met before each step (so with
            dropout, augmentation, smoothing and distillation as configured, and without the
            penalty that weight decay stands for).
        train_error: share of training samples misclassified in the same passes; None in
            regression.
        validation_loss, validation_error: after the epoch, in evaluation mode, with the plain
            loss; None without validation data, or where they were not looked at.
        learning_rate: of the first parameter group, at the epoch's last step.
        seconds: how long it took. Not part of equality: two runs never agree on it.
    """

    epoch: int
    train_loss: float
    train_error: float | None = None
    validation_loss: float | None = None
    validation_error: float | None = None
    learning_rate: float = 0.0
    seconds: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class History:
    """The epochs of a training, and how it ended.

    Attributes:
        epochs: one `Epoch` each, in order.
        stopped: why it ended, in words; empty while it runs.
        kept_epoch: the epoch whose weights the model has now.

    >>> h = History([Epoch(1, 2.0), Epoch(2, 1.0)], "all epochs done", 2)
    >>> h.train_losses, h.best_epoch
    ([2.0, 1.0], 2)
    >>> History.from_json(h.to_json()) == h
    True
    """

    epochs: list[Epoch] = field(default_factory=list)
    stopped: str = ""
    kept_epoch: int = 0

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def train_losses(self) -> list[float]:
        return [e.train_loss for e in self.epochs]

    @property
    def train_errors(self) -> list[float | None]:
        return [e.train_error for e in self.epochs]

    @property
    def validation_losses(self) -> list[float | None]:
        return [e.validation_loss for e in self.epochs]

    @property
    def validation_errors(self) -> list[float | None]:
        return [e.validation_error for e in self.epochs]

    @property
    def best_epoch(self) -> int:
        """The first epoch of least validation loss; of least training loss without validation."""
        losses = [
            (e.validation_loss, e.epoch) for e in self.epochs if e.validation_loss is not None
        ]
        losses = losses or [(e.train_loss, e.epoch) for e in self.epochs]
        return min(losses, key=lambda pair: pair[0])[1] if losses else 0

    @property
    def seconds(self) -> float:
        """Time of all epochs together."""
        return sum(e.seconds for e in self.epochs)

    def to_json(self) -> dict[str, Any]:
        """Plain data; non-finite numbers become strings."""
        rows = [{k: _plain(v) for k, v in asdict(e).items()} for e in self.epochs]
        return {"epochs": rows, "stopped": self.stopped, "kept_epoch": self.kept_epoch}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> History:
        """Inverse of `to_json`."""
        rows: list[dict[str, Any]] = [
            {k: v if k == "epoch" else parse_number(v) for k, v in row.items()}
            for row in data["epochs"]
        ]
        return cls([Epoch(**row) for row in rows], data["stopped"], data["kept_epoch"])

    def table(self) -> tuple[list[str], list[tuple[float | None, ...]]]:
        """Column names and rows, for `Run.table` or a data frame; empty columns are left out."""
        names = [
            f.name
            for f in fields(Epoch)
            if any(getattr(e, f.name) is not None for e in self.epochs)
        ]
        columns = [n.replace("_", " ") for n in names]
        return columns, [tuple(getattr(e, n) for n in names) for e in self.epochs]

    def __str__(self) -> str:
        columns, rows = self.table()
        lines = ["  ".join(f"{c:>15}" for c in columns)]
        lines += ["  ".join(f"{v:>15.6g}" if v is not None else " " * 15 for v in r) for r in rows]
        if self.stopped:
            lines.append(f"{self.stopped}; the model has the weights of epoch {self.kept_epoch}")
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    return json_number(value) if isinstance(value, float) else value
