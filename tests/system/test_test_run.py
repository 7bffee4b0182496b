"""The test run itself fails after a crash, if a test hangs or if tests did not run; its number of threads is fixed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.process_groups import processes_of
from support.shells import run_within

pytestmark = pytest.mark.once

TESTS = Path(__file__).resolve().parents[1]


def run_pytest(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin `complete` on the test files of a folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "support.complete", "-p", "xdist.plugin", *flags, str(folder)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_crashed_worker_ends_the_run_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, time, pytest\n"
        "def test_crash(): os.abort()\n"
        "@pytest.mark.parametrize('number', range(40))\n"
        "def test_other(number): time.sleep(0.5)\n"
    )
    done = run_pytest(tmp_path, "-n", "2", "--dist", "worksteal", "--max-worker-restart=0")
    assert done.returncode == 1, done.stdout
    assert "crashed while running 'test_it.py::test_crash'" in done.stdout
    assert "FAILED test_it.py::test_crash" in done.stdout and "40 passed" not in done.stdout


def test_ci_ends_a_run_in_which_a_test_hangs(tmp_path: Path) -> None:
    """The flags in .ci/run, with two seconds instead of minutes: the run shows where the test was, and fails."""
    (tmp_path / "test_it.py").write_text(
        "import subprocess\n"
        "def test_hang(): subprocess.run(['sleep', '300'], capture_output=True)\n"
        "def test_other(): pass\n"
    )
    limit = re.search(r'^export PYTEST_ADDOPTS="(.+)"', (TESTS.parent / ".ci" / "run").read_text(), re.MULTILINE)
    assert limit is not None
    flags = re.sub(r"faulthandler_timeout=\d+", "faulthandler_timeout=2", limit[1]).split()
    done = run_pytest(tmp_path, *flags, "-n", "2", "--dist", "worksteal", "--max-worker-restart=0")
    assert done.returncode == 1 and "crashed while running 'test_it.py::test_hang'" in done.stdout, done.stdout
    assert "Timeout (0:00:02)!" in done.stderr and "in test_hang" in done.stderr


def test_a_command_is_killed_with_its_children(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_within(3, ["bash", "-c", "echo $$ > group; sleep 300 & wait"], cwd=tmp_path)
    group = int((tmp_path / "group").read_text())
    while processes_of(group) and time.monotonic() - start < 200:
        time.sleep(0.05)
    assert not processes_of(group) and time.monotonic() - start < 200


@pytest.mark.parametrize("flags", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_a_test_that_was_not_run_fails_the_run(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    assert run_pytest(tmp_path, *flags, "-k", "one").returncode == 0
    (tmp_path / "conftest.py").write_text("def pytest_runtest_protocol(item): return item.name == 'test_two' or None\n")
    done = run_pytest(tmp_path, *flags)
    assert done.returncode == 1 and "1 of 2 collected tests did not run" in done.stdout, done.stdout


def test_tests_use_one_thread() -> None:
    import torch

    assert torch.get_num_threads() == 1
    child = "import torch; print(torch.get_num_threads())"
    assert subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout == "1\n"
