"""A clock that a test sets, in place of the one that progress is measured by."""

from __future__ import annotations

import time

import pytest


class Clock:
    """The time, as a test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
