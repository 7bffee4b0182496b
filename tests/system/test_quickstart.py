"""scripts/quickstart.sh stops all processes that it started and gives runs with flags their own folders."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support.process_groups import begin, processes_of, wait_for

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]

# A fake fairseq-resid that records its arguments. If the file `wait` exists, `train` starts a long-running process and
# waits for it without forwarding signals.
FAKE_COMMAND = """#!/bin/bash
echo "$*" >>calls
if [[ $1 == train && -f wait ]]; then sleep 600; fi
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with the script and a fake environment."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy2(ROOT / "scripts" / "quickstart.sh", tmp_path / "scripts")
    setup, resid, python = "scripts/setup.sh", "bin/fairseq-resid", "bin/python"
    for name, text in ((setup, "#!/bin/bash\n"), (resid, FAKE_COMMAND), (python, FAKE_COMMAND)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("FAIRSEQ_RESID_VENV", str(tmp_path))
    return tmp_path


def calls(tree: Path) -> list[str]:
    return (tree / "calls").read_text().splitlines() if (tree / "calls").exists() else []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_to_the_script_stops_the_trainer(number: signal.Signals, tree: Path) -> None:
    (tree / "wait").touch()
    process = begin([str(tree / "scripts" / "quickstart.sh")])
    wait_for(lambda: sum("(sleep" in name for name in processes_of(process.pid)) == 3, process)
    os.kill(process.pid, number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number, output
    assert processes_of(process.pid) == []
    assert {call.split()[0] for call in calls(tree)[-3:]} == {"train"}, "no further command may start"


def test_runs_with_flags_have_their_own_folders(tree: Path) -> None:
    for flags in ([], ["--max-update", "500", "--lr=0.001"]):
        subprocess.run([tree / "scripts" / "quickstart.sh", *flags], check=True)
    folder = "checkpoints/quickstart-max-update-500-lr-0.001"
    assert "train quickstart --arch transformer --run checkpoints/quickstart-transformer" in calls(tree)
    assert any(call.endswith(f"--run {folder}-transformer --max-update 500 --lr=0.001") for call in calls(tree))
    assert calls(tree)[-1].endswith(f"--out {folder}.html")


def test_failed_command_ends_the_script(tree: Path) -> None:
    (tree / "bin" / "fairseq-resid").write_text(
        f'{FAKE_COMMAND}[[ "$*" != "train quickstart --arch transformer_sas"* ]] || exit 7\n'
    )
    assert subprocess.run([tree / "scripts" / "quickstart.sh"]).returncode == 7
    assert {call.split()[0] for call in calls(tree)} == {"data-prep/phrasebook.py", "prepare", "train", "evaluate"}
    assert not any(call == "evaluate checkpoints/quickstart-transformer_sas" for call in calls(tree))
