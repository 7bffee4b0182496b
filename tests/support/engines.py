"""Marks for tests that need an engine. Tests are skipped on Python 3.10 and, except in CI, without the engine."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest

from fairseq_resid.export.engine import ENGINES, OLDEST_PYTHON


def need(name: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests if an engine is not installed. If the variable CI is set, they fail instead."""
    if sys.version_info < OLDEST_PYTHON:
        return pytest.mark.skipif(True, reason="models are exported on Python 3.11 and later")
    is_missing = find_spec(ENGINES[name].package) is None and not os.environ.get("CI")
    return pytest.mark.skipif(is_missing, reason=f"{name} is not installed: scripts/setup.sh --with-tests")
