"""A clock that tests control, used instead of time.monotonic."""

from __future__ import annotations

import time

import pytest


class Clock:
    """A clock whose current time is `now`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
