"""Fixtures for tests of studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.runs import launch
from fairseq_resid.study import study, tables
from support.studies import STUB, TEXT, stubbed, written


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.fixture
def stub(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace runs with a script that writes a note. `stub(bad=(...), seconds=0)` returns the command's arguments.

    The script needs no data.
    """

    def install(bad: tuple[str, ...] = (), seconds: float = 0.0, text: str = TEXT) -> list[str]:
        file.write_text(text)
        (tmp_path / "work").mkdir(exist_ok=True)
        script = tmp_path / "stub.py"
        script.write_text(STUB.format(bad=bad, seconds=seconds))
        monkeypatch.setattr(study, "command", stubbed(script))
        monkeypatch.setattr(launch, "check_data", lambda _: None)
        monkeypatch.setattr(study, "POLL", 0.1)
        monkeypatch.setattr(tables, "write_results", lambda *_: [])
        return [str(file), "--work", str(tmp_path / "work")]

    return install
