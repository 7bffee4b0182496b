"""Open a page in Chromium, without a window and without a network."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.shells import run_within

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needed = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")


def browse(url: str, width: int, folder: Path, wait: int = 6000) -> tuple[str, str]:
    """Return a page after its scripts have run for `wait` ms of its own clock, and the browser's log.

    folder: receives the browser's profile. A browser that does not start or end is started again, at most twice.
    """
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--enable-logging=stderr"]
    flags += [f"--virtual-time-budget={wait}", "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", url]
    for last in (False, False, True):
        profile = folder / "profile"
        try:
            done = run_within(120, [CHROMIUM, f"--user-data-dir={profile}", *flags])
            return done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            if last:
                raise
            shutil.rmtree(profile, ignore_errors=True)
    raise AssertionError
