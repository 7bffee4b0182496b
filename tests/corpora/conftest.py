"""Mirrors of WMT'14 with made-up text, and a data folder made from one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import mirror
from support.preparing import main


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Mirrors of both WMT'14 corpora. Not to be written to."""
    folder = tmp_path_factory.mktemp("hosts")
    return {target: mirror.wmt14(folder / target, target) for target in ("de", "fr")}


@pytest.fixture(scope="session")
def en_de(hosts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WMT'14 EN-DE made from its mirror. Not to be written to."""
    out = tmp_path_factory.mktemp("en-de") / "data"
    assert main("wmt14-en-de", out, "--mirror", hosts["de"].as_uri()) == 0
    return out
