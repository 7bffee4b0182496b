"""The content of RUN/train.log, the output of fairseq-train --log-format json."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..data import folders
from ..files import reading

T = TypeVar("T")
# A JSON record: alone on its line, or after time, level and logger.
LOGGED = re.compile(r"(?:[^|{]*\|){0,3} ?(\{.*\})\s*")
# The first line of a training session: its settings.
SESSION = "fairseq_cli.train | {"
# Lines of fairseq's trainer.
LOADED = re.compile(r"Loaded checkpoint .* @ ([0-9]{1,15}) updates\)")
SAVING = "Saving checkpoint to "
EXPLODED = 100  # a logged gradient norm above this multiple of the median of a run's norms counts as an explosion


@dataclass(frozen=True)
class Explosion:
    """The largest logged gradient norm of a run whose gradient exploded: a mean over a log interval, before clipping.

    update: the last update of that interval; median: of all logged norms
    """

    norm: float
    update: int
    median: float

    def __str__(self) -> str:
        norm = f"{self.norm:,.0f}" if self.norm < 1e6 else f"{self.norm:.1e}"
        return f"norm {norm} at update {self.update:,}, median {self.median:.2g}"


@dataclass(frozen=True)
class TrainingSummary:
    """Totals of a training run over all its sessions; None for values that the log does not contain.

    num_updates: includes those of the checkpoint of another run that training started from, `started_at`; all other
    values are of this run alone
    train_seconds: time spent in training steps, excluding validation, saving and start-up
    target_tokens: target tokens trained on, including EOS, or images; `unit` says which
    explosion: None if no logged gradient norm is more than EXPLODED times the median
    """

    num_updates: int | None = None
    epochs: int | None = None
    train_seconds: float | None = None
    target_tokens: int | None = None
    tokens_per_second: float | None = None
    best_valid_loss: float | None = None
    unit: str = "target tokens"
    explosion: Explosion | None = None
    started_at: int = 0


def lines(log: Path) -> Iterator[str]:
    """Yield the lines of a log; nothing if the file does not exist. Raises: ValueError if it is damaged."""
    try:
        with reading(log) as file:
            yield from (line.decode("utf-8", "replace") for line in file)
    except FileNotFoundError:
        return


def last_session(log: Path, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the matches of a pattern in the lines of the last training session."""
    found: list[re.Match[str]] = []
    for line in lines(log):
        if SESSION in line:
            found.clear()
        elif match := pattern.search(line):
            found.append(match)
    return found


def log_record(line: str) -> dict[str, Any] | None:
    """Return the JSON record on a line; None if there is no record, or if it has non-numeric values."""
    if (match := LOGGED.fullmatch(line)) is None:
        return None
    try:
        record: dict[str, Any] = json.loads(match[1])
        [float(value) for value in record.values()]
    except (ValueError, TypeError):  # the configuration, which fairseq prints as a Python dict, or a damaged line
        return None
    return record


def records(log: Path) -> Iterator[dict[str, Any]]:
    """Yield each JSON record of a log once, in order.

    Before version 0.3.3, fairseq itself wrote the file (--log-file), with k copies of each record of a process's
    k-th epoch. Values are rounded and stored as strings, except epoch and update.
    """
    previous = ""
    for line in lines(log):
        record = log_record(line)
        if record is not None and line != previous:
            previous = line
            yield record


def drop_later(rows: dict[int, T], last: int) -> None:
    """Remove the entries after `last`, where training restarted, from a dict with increasing keys."""
    while rows and next(reversed(rows)) > last:
        rows.popitem()


def summary(log: Path) -> TrainingSummary:
    """Compute the amount and speed of training and the best validation loss.

    Tokens are the sum over epochs of train_wpb (target tokens per update) times updates. Seconds are the sum of
    train_train_wall, which fairseq rounds to whole seconds per epoch; train_ups (updates per second, including
    validation) is used to refine it within the rounding error.
    If training was resumed in the middle of an epoch, the epoch is logged twice; the second record covers all of
    it, because the meters are in the checkpoint. If training was restarted from an older checkpoint, the new
    records replace the old ones written after that checkpoint.
    If training started from a checkpoint of another run, the seconds of the first epoch may be those of both runs,
    but train_ups is of this run.
    """
    epochs: dict[int, dict[str, Any]] = {}
    losses: dict[int, float] = {}
    norms: dict[int, float] = {}
    num_updates = None
    for record in records(log):
        updates = next((int(record[key]) for key in record if key.endswith("num_updates")), None)
        if updates is None:
            continue
        num_updates = updates
        drop_later(losses, updates)
        drop_later(norms, updates)
        if "gnorm" in record:
            norms[updates] = float(record["gnorm"])
        if "train_num_updates" in record and "epoch" in record:
            epoch = int(record["epoch"])
            drop_later(epochs, epoch - 1)
            epochs[epoch] = record
        elif (loss := record.get("valid_loss", record.get("test_loss"))) is not None:  # --valid-subset test
            losses[updates] = float(loss)

    tokens = seconds = 0.0
    done = started_at = _started_at(log)
    for record in epochs.values():
        added = int(record["train_num_updates"]) - done
        tokens += float(record.get("train_wpb", math.nan)) * added
        seconds += _epoch_seconds(record, added, is_shared=done == started_at > 0)
        done += added
    measured = math.isfinite(tokens) and 0 < seconds < math.inf
    return TrainingSummary(
        num_updates=num_updates,
        epochs=len(epochs) or None,
        train_seconds=round(seconds, 1) if measured else None,
        target_tokens=round(tokens) if measured else None,
        tokens_per_second=round(tokens / seconds, 1) if measured else None,
        best_valid_loss=min(filter(math.isfinite, losses.values()), default=None),
        unit=folders.of_log(next(iter(epochs.values()), {})).unit,
        explosion=_explosion(norms),
        started_at=started_at,
    )


def _started_at(log: Path) -> int:
    """Return the number of updates of the checkpoint of another run that training started from; 0 if none.

    It was loaded before this run saved its first checkpoint.
    """
    updates = 0
    for line in lines(log):
        if SAVING in line:
            break
        if loaded := LOADED.search(line):
            updates = int(loaded[1])
    return updates


def _epoch_seconds(record: dict[str, Any], updates: float, is_shared: bool) -> float:
    """Return the seconds of training steps; is_shared: whether train_train_wall may include updates of another run."""
    rounded = float(record.get("train_train_wall", math.nan))
    ups = float(record.get("train_ups", 0))
    least = 0.0 if is_shared else rounded - 0.5
    return min(max(updates / ups, least, 0.0), rounded + 0.5) if ups > 0 else rounded


def _explosion(norms: dict[int, float]) -> Explosion | None:
    """Return the largest gradient norm, by update, if it is more than EXPLODED times the median."""
    finite = {update: norm for update, norm in norms.items() if math.isfinite(norm)}
    if not finite:
        return None
    update, median = max(finite, key=finite.__getitem__), statistics.median(finite.values())
    return Explosion(finite[update], update, median) if finite[update] > EXPLODED * median > 0 else None
