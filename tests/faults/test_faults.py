"""tests/faults/plant_faults.py: every fault still applies to the source, and an undetected fault is reported."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from faults import plant_faults
from faults.fault import Fault
from support import core

pytestmark = pytest.mark.once

TESTS = plant_faults.ROOT / "tests"


def test_every_fault_applies_to_the_source(tmp_path: Path) -> None:
    assert len(plant_faults.FAULTS) >= 30
    assert len({fault.name for fault in plant_faults.FAULTS}) == len(plant_faults.FAULTS)
    for fault in plant_faults.FAULTS:
        copied = tmp_path / fault.file
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(plant_faults.ROOT / fault.file, copied)
        fault.plant(tmp_path)
        source = copied.read_text(encoding="utf-8")
        compile(source, fault.file, "exec")


def test_every_fault_names_test_files_that_exist() -> None:
    for fault in plant_faults.FAULTS:
        missing = [name for name in fault.tests.split() if not (TESTS / name).is_file()]
        assert fault.tests and not missing, f"{fault.name}: no such file in tests/: {', '.join(missing)}"


def test_core_tests_find_the_faults_of_the_core() -> None:
    """The core's faults are those in four packages and those that concern untrusted checkpoints."""
    modules = ("connections", "ops", "models", "evaluation")
    chosen = [fault for fault in plant_faults.FAULTS if fault.file.split("/")[1] in modules]
    chosen += [fault for fault in plant_faults.FAULTS if fault.name.startswith("checkpoints: ")]
    assert len(chosen) > 40
    files = {name: fault.name for fault in chosen for name in fault.tests.split()}
    missed = {name: fault for name, fault in files.items() if not core.is_core(TESTS / name)}
    assert missed == {}, "a test file that finds a fault of the core is not listed in tests/support/core.py"
    slow = {name for name in files if "mark.slow" in (TESTS / name).read_text(encoding="utf-8")}
    assert [fault.name for fault in chosen if set(fault.tests.split()) <= slow] == [], "--core may miss these faults"


def test_core_names_folders_and_files_that_exist() -> None:
    assert [name for name in core.FOLDERS if not (TESTS / name).is_dir()] == []
    assert [name for name in (*core.FILES, *core.LEFT_OUT) if not (TESTS / name).is_file()] == []


def test_page_names_tests_that_exist() -> None:
    page = (TESTS / "faults" / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"`(?:tests/)?([a-z]+/\w+\.py)(?:::|` `)(test_\w+)", page)
    assert len(found) > 90
    for file, test in found:
        source = TESTS / file
        assert source.is_file() and f"def {test}(" in source.read_text(encoding="utf-8"), f"{file} has no {test}"
    everything = "".join(source.read_text(encoding="utf-8") for source in TESTS.rglob("*.py"))
    assert all(f"def {test}(" in everything for test in re.findall(r"`(test_\w+)`", page))


def test_faults_of_every_package_are_planted() -> None:
    modules = {file.stem for file in Path(plant_faults.__file__).parent.glob("[a-z]*.py")}
    assert modules - {"fault", "plant_faults", "test_faults"} == set(plant_faults.PACKAGES)
    for package in plant_faults.PACKAGES:
        assert (plant_faults.ROOT / "fairseq_resid" / package).is_dir()


def test_fault_that_does_not_apply_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(ValueError, match=r"odd: a\.py contains its text 2 times, not once: 'x = 1'"):
        Fault("odd", "a.py", "x = 1", "x = 2", "faults/test_faults.py").plant(tmp_path)


@pytest.mark.slow
def test_undetected_fault_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Fault("harmless", "LICENSE", "MIT License", "MIT licence", "data/test_extract.py")
    real = next(fault for fault in plant_faults.FAULTS if "outside the folder" in fault.name)
    monkeypatch.setattr(plant_faults, "FAULTS", [harmless, real])
    assert plant_faults.main(["--no-baseline"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("MISSED") and "harmless" in lines[0]
    assert lines[1].startswith("found") and lines[2] == "1 of 2 faults found"
