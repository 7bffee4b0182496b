"""Folders and files of version 1.0.0 can still be used: runs, data, exports, YAML."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.__main__ import main
from support import stored_v1
from support.engines import need

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = stored_v1.expected()
RUNS, EXPORTS, IMAGES = EXPECTED["runs"], EXPECTED["exports"], EXPECTED["images"]
YAML = json.loads((stored_v1.FOLDER / "yaml.json").read_text(encoding="utf-8"))
NUMBER = re.compile(r"\d+\.\d+")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unpack the files into the current folder of the test."""
    monkeypatch.chdir(tmp_path)
    return stored_v1.unpack(tmp_path)


def output_of(capfd: Capture, *words: str) -> str:
    capfd.readouterr()
    assert main(list(words)) == 0
    return capfd.readouterr().out


def translated(capfd: Capture, monkeypatch: pytest.MonkeyPatch, folder: str, *flags: str) -> list[str]:
    """Return the output of `fairseq-resid translate` for the sources of the test set."""
    text = Path("data-bin/text/ref/test.en").read_bytes()
    assert all(text.splitlines())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    return output_of(capfd, "translate", folder, *flags).splitlines()


def check_scores(output: str, expected: list[str], tolerance: float = 2e-4) -> None:
    """Check the lines with scores: the numbers up to a tolerance, and everything else."""
    found = stored_v1.score_lines(output)
    assert [NUMBER.sub("#", line) for line in found] == [NUMBER.sub("#", line) for line in expected]
    for line, other in zip(found, expected, strict=True):
        numbers = [[float(number) for number in NUMBER.findall(each)] for each in (line, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=tolerance), line


def only_test(lines: list[str]) -> list[str]:
    return [line for line in lines if " test: " in line]


def test_finished_run_is_evaluated_from_its_kept_files(stored: Path, capfd: Capture) -> None:
    kept = {file: file.stat().st_mtime_ns for file in (stored / "checkpoints" / "finished" / "decode").iterdir()}
    assert len(kept) >= 16
    output = output_of(capfd, "evaluate", "checkpoints/finished", "--cpu")
    assert stored_v1.score_lines(output) == RUNS["finished"]["evaluate"]
    assert {file: file.stat().st_mtime_ns for file in kept} == kept


def test_finished_run_evaluated_afresh_has_the_same_scores(
    stored: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stored / "checkpoints" / "finished"
    shutil.rmtree(run / "decode")
    for file in (*run.glob("averaged*"), *run.glob("results*"), run / "card.md"):
        file.unlink()
    output = output_of(capfd, "evaluate", "checkpoints/finished", "--cpu", "--subset", "test")
    check_scores(output, only_test(RUNS["finished"]["evaluate"]))
    assert translated(capfd, monkeypatch, "checkpoints/finished", "--cpu") == RUNS["finished"]["translate"]
    assert "already trained" in output_of(capfd, *RUNS["finished"]["train"])


@pytest.mark.once  # checkpoints of the two versions of fairseq have different names and cannot be averaged
def test_unfinished_run_resumes_and_has_the_same_scores(stored: Path, capfd: Capture) -> None:
    log = stored / "checkpoints" / "unfinished" / "train.log"
    before = log.read_text(encoding="utf-8")
    assert "done training" not in before
    output_of(capfd, *RUNS["unfinished"]["train"])
    resumed = log.read_text(encoding="utf-8").removeprefix(before)
    assert re.search(r"Loaded checkpoint \S+ \(epoch \d+ @ 5\d\d updates\)", resumed) and "done training" in resumed
    output = output_of(capfd, "evaluate", "checkpoints/unfinished", "--cpu", "--subset", "test")
    check_scores(output, RUNS["unfinished"]["evaluate"], 0.02)


@pytest.mark.parametrize("name", list(IMAGES))
def test_image_run_is_evaluated_with_the_same_scores(name: str, stored: Path, capfd: Capture) -> None:
    check_scores(output_of(capfd, "evaluate", f"checkpoints/{name}", "--cpu"), IMAGES[name]["evaluate"])


@pytest.mark.once
@pytest.mark.parametrize("engine", [pytest.param(name, marks=need(name)) for name in EXPORTS])
def test_export_translates_and_scores_the_same(
    engine: str, stored: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert translated(capfd, monkeypatch, f"exported/{engine}") == EXPORTS[engine]["translate"]
    output = output_of(capfd, "evaluate", f"exported/{engine}", "--subset", "test")
    check_scores(output, EXPORTS[engine]["evaluate"])


@pytest.mark.once
@pytest.mark.parametrize("kind", list(EXPECTED["prepare"]))
def test_data_folder_is_accepted_and_verified(kind: str, stored: Path, capfd: Capture) -> None:
    folder = stored / "data-bin" / kind
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    output_of(capfd, *EXPECTED["prepare"][kind], "--verify")
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert not list((stored / "data-bin").glob("*.partial"))


@pytest.mark.once
def test_stored_files_are_small_and_contain_no_path_of_a_machine(stored: Path) -> None:
    assert sum(file.stat().st_size for file in stored_v1.FOLDER.iterdir()) < 5_000_000
    with tarfile.open(stored_v1.FOLDER / "made.tar.xz") as archive:
        files = {member.name: archive.extractfile(member) for member in archive.getmembers() if member.isfile()}
        assert all(member.uname == "" and member.uid == 0 for member in archive.getmembers())
        assert len(files) > 200
        for name, file in files.items():
            assert file is not None
            found = set(re.findall(rb"/(?:root|home|Users|tmp|work|opt|mnt)/[\w./-]*", file.read()))
            assert all(path.startswith(b"/tmp/plasma") for path in found), name  # a default of fairseq


def read_yaml(file: Path) -> Any:
    """Read a file as the package does. This is the only function here that is not part of the documented interface."""
    from fairseq_resid import records

    return records.from_yaml(file.read_bytes())


@pytest.mark.once
@pytest.mark.parametrize("name", list(YAML))
def test_values_of_yaml_files_are_the_same(name: str) -> None:
    # A manifest may have moved to another folder, and its name is unique in the package.
    file = ROOT / name if name.startswith("studies/") else next((ROOT / "fairseq_resid").rglob(Path(name).name))
    assert json.dumps(read_yaml(file)) == json.dumps(YAML[name])  # unlike ==, this distinguishes 1, 1.0 and true
