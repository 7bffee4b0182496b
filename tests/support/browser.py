"""Open a page in Chromium, without a window and without a network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.shells import run_within

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needed = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")


def browse(url: str, width: int, folder: Path) -> tuple[str, str]:
    """Return a page after its scripts have run, and the browser's log; `folder` receives the browser's profile."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=6000"]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom"]
    done = run_within(120, [CHROMIUM, *flags, url])
    return done.stdout, done.stderr
