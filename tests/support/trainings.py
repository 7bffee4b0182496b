"""Whole training runs in separate processes: settings, commands, logs and final states."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

# The settings of the fixture `train`, for runs in real processes.
SETTINGS = shlex.split("""
    --arch transformer_sas_tiny --optimizer adam --adam-betas (0.9,0.98) --lr 0.005
    --lr-scheduler inverse_sqrt --warmup-updates 4 --criterion label_smoothed_cross_entropy
    --label-smoothing 0.1 --share-all-embeddings --disable-validation
    --no-epoch-checkpoints --log-format json --log-interval 1 --num-workers 0 --cpu
""")


def updates(output: str) -> list[dict[str, Any]]:
    """Return the records of updates in a JSON log, ignoring any text before the JSON on a line."""
    return [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"num_updates"' in line]


def by_hand(command: list[str], port: int) -> list[tuple[list[str], dict[str, str]]]:
    """Return one command for each of two processes, with fairseq's own flags."""
    flags = (
        f"--distributed-init-method tcp://127.0.0.1:{port} --distributed-world-size 2 --distributed-no-spawn".split()
    )
    return [([*command, *flags, "--distributed-rank", str(rank)], {}) for rank in (0, 1)]


def launched(recipe: Path, run: Path) -> list[str]:
    words = ["-m", "fairseq_resid", "train", str(recipe), "--arch", "transformer_sas_tiny", "--run", str(run)]
    return [sys.executable, *words]


def launch_here(recipe: Path, run: Path) -> str:
    """Run `launched` in this process, and fairseq-train in a process; return the output of the former."""
    from fairseq_resid.runs import launch

    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert launch.main(launched(recipe, run)[4:]) == 0
    return output.getvalue()


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a run, without the buffers that 0.12.2 stores uninitialised."""
    found = torch.load(run / "checkpoint_last.pt", weights_only=False)["model"]
    return {name: value for name, value in found.items() if not name.endswith("_float_tensor")}


def assert_same_state(file: Path, other: Path) -> None:
    """Assert that weights and optimizer state are bitwise equal after the same number of updates."""
    first, second = (torch.load(path, weights_only=False) for path in (file, other))
    updates_done = [state["optimizer_history"][-1]["num_updates"] for state in (first, second)]
    assert updates_done[0] == updates_done[1]
    assert first["model"].keys() == second["model"].keys()
    for name, tensor in first["model"].items():
        if not name.endswith("._float_tensor"):  # a buffer that 0.12.2 stores uninitialised
            assert torch.equal(tensor, second["model"][name]), name
    moments = [state["last_optimizer_state"]["state"] for state in (first, second)]
    assert moments[0].keys() == moments[1].keys() and moments[0]
    for key, values in moments[0].items():
        for name, value in values.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(moments[1][key][name])), (key, name)


def reopen(run: Path, done: int, end: int) -> None:
    """Make a run that ended after `done` updates look like one that was stopped on its way to `end`."""
    record = json.loads((run / "run.json").read_text())
    record["command"] = [str(end) if word == str(done) else word for word in record["command"]]
    (run / "run.json").write_text(json.dumps({**record, "finished": False}))
