"""Any field of any untrusted file is replaced with a strange value: no traceback, no hang, no lost report."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import sacrebleu.significance

from support import strange_folders
from support.strange_folders import FILES, SECONDS

pytestmark = pytest.mark.once

# The seeds are 0, 1, 2, ...: `strange_folders.tried(folder, seed)` repeats a case.
TRIES = [pytest.param(200), pytest.param(10_000, marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("strange").resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        strange_folders.build(made)
    return made


@pytest.fixture(autouse=True)
def quick(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test significance with few resamples, and work in the folder."""
    few = functools.partial(sacrebleu.significance.PairedTest, n_samples=20)
    monkeypatch.setattr(sacrebleu.significance, "PairedTest", few)
    monkeypatch.chdir(folder)


def test_unaltered_files_are_read_without_error() -> None:
    """Otherwise the cases below would test the same refusal again and again."""
    refuse = ("attention b", "evaluate b", "analyze b", "translate b")  # there are no checkpoints
    commands = {words for file in FILES.values() for words in file.commands}
    words = {words for words in commands if words == strange_folders.KNOWN or not words.startswith(refuse)}
    with strange_folders.without_drawing():
        outcomes = {each: strange_folders.command_outcome(each) for each in sorted(words)}
    assert {each: outcome for each, outcome in outcomes.items() if outcome != ("", False)} == {}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tries", TRIES)
def test_strange_field_gives_one_line_and_loses_no_report(tries: int, folder: Path, fault: Callable[..., None]) -> None:
    cases = [strange_folders.tried(folder, seed) for seed in range(tries)]
    wrong = [case for case in cases if case.fault]
    assert not wrong, f"{len(wrong)} of {tries}; the first: {wrong[:5]}"
    refused = sum(case.is_refused for case in cases)
    assert tries // 10 < refused < tries
    fault(
        f"a field of one of {len(FILES)} kinds of files of run, study and data folders: a different type, magnitude or "
        "kind of string, missing, added",
        tries,
        f"{refused:,} gave a one-line error, all others were read; no traceback, none took over {SECONDS} s of "
        "processor time, and a report lost only the part that shows the file",
    )
