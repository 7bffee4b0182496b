"""Progress of a training run: one live line on a terminal, a plain line every half minute in a log."""

from __future__ import annotations

import time
from typing import Any

from ..cli.progress import Progress, clock
from ..data import folders
from .training_command import TrainingCommand
from .training_log import TrainingSummary, log_record

# The quantities shown, in this order.
FACTS = ("epoch", "update", "loss", "valid loss", "test loss", "speed", "left")


class Display(Progress):
    """`with Display(name, command, begun) as shown: shown.take(line)` for every line of fairseq-train's log.

    command: the training command, with its limits on updates and epochs; begun: updates of earlier sessions
    """

    def __init__(self, name: str, command: TrainingCommand, begun: int = 0) -> None:
        # To fairseq, 0 means no limit.
        self.max_update, self.max_epoch = (command.integer(flag) or None for flag in ("--max-update", "--max-epoch"))
        super().__init__(name, self.max_update, "updates", begun)
        self.facts: dict[str, str] = {}
        self.since: tuple[float, float] | None = None  # fraction of training completed, and the time

    def take(self, line: str) -> None:
        """Read a line of the log, or "" if there is no new line."""
        record = log_record(line)
        updates = self.done
        if record is not None:
            updates = next((int(value) for key, value in record.items() if key.endswith("num_updates")), updates)
            self._read(record, updates)
        self.advance(
            max(0, updates - self.done),
            ", ".join(self.facts[name] for name in FACTS if name in self.facts) or "starting",
        )

    def _read(self, record: dict[str, Any], updates: int) -> None:
        if "epoch" in record:
            self.facts["epoch"] = f"epoch {record['epoch']}" + (f" of {self.max_epoch}" if self.max_epoch else "")
        self.facts["update"] = f"update {updates:,}" + (f" of {self.max_update:,}" if self.max_update else "")
        for key in ("loss", "valid_loss", "test_loss"):
            if key in record:
                name = key.replace("_", " ")
                self.facts[name] = f"{name} {record[key]}"
        if "wps" in record:
            self.facts["speed"] = f"{float(record['wps']):,.0f} {folders.of_log(record).unit.split()[-1]}/s"
        done = self._share(record, updates)
        now = time.monotonic()
        if done is None:
            return
        if self.since is None:
            self.since = done, now
        elif done > self.since[0]:
            self.facts["left"] = f"{clock(max(0.0, 1 - done) * (now - self.since[1]) / (done - self.since[0]))} left"

    def _share(self, record: dict[str, Any], updates: int) -> float | None:
        """Return the fraction of training completed, from 0 to 1, relative to the limit that will be reached first."""
        shares = [updates / self.max_update] if self.max_update else []
        if self.max_epoch and "update" in record:  # fairseq's name for the number of completed epochs, with a fraction
            shares.append(float(record["update"]) / self.max_epoch)
        return max(shares, default=None)


def summary(done: TrainingSummary) -> str:
    updates = done.num_updates or 0
    facts = [f"{updates:,} updates"]
    if done.started_at:
        facts.append(f"{updates - done.started_at:,} of them in this run")
    if done.train_seconds is not None and done.tokens_per_second is not None:
        facts += [
            f"{clock(done.train_seconds)} of training steps",
            f"{done.tokens_per_second:,.0f} {done.unit.split()[-1]}/s",
        ]
    if done.best_valid_loss is not None:
        facts.append(f"best valid loss {done.best_valid_loss:.3f}")
    return ", ".join(facts)
