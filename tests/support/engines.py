"""Engines for tests of exports: skipped on Python 3.10 and, except in CI, if they are not installed."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest

from fairseq_resid.export.engine import ENGINES, OLDEST_PYTHON


def need(name: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests without an engine. In CI (variable CI), they fail instead."""
    if sys.version_info < OLDEST_PYTHON:
        return pytest.mark.skipif(True, reason="models are exported on Python 3.11 and later")
    is_missing = find_spec(ENGINES[name].package) is None and not os.environ.get("CI")
    return pytest.mark.skipif(is_missing, reason=f"{name} is not installed: scripts/setup.sh --with-tests")
