"""Checkpoint averaging: arithmetic, rejected inputs, and values copied unchanged."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_resid.evaluation import averaging
from fairseq_resid.fairseq_patches.loading import load_checkpoint

ROOT = Path(__file__).resolve().parents[2]
# Averaging only needs torch and numpy. Hiding fairseq checks this and makes the import faster.
WITHOUT_FAIRSEQ = "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['fairseq'] = None\n"
SCRIPT = ROOT / "scripts" / "average_checkpoints.py"


def state(seed: int, **other: Any) -> dict[str, Any]:
    """Return a checkpoint like fairseq's, with several dtypes, a tied embedding, optimizer state and numpy values."""
    random = torch.Generator().manual_seed(seed)
    embedding = torch.randn(7, 4, generator=random)
    model = OrderedDict(
        [
            ("encoder.embed_tokens.weight", embedding),
            ("fp64", torch.randn(3, generator=random, dtype=torch.float64)),
            ("bf16", torch.randn(5, 3, generator=random).bfloat16()),
            ("fp16", torch.full((4,), 60000.0).half()),  # the sum of two overflows in fp16
            ("scalar", torch.tensor(float(seed))),
            ("steps", torch.tensor([seed])),
            ("mask", torch.tensor([seed % 2 == 0])),
            ("empty", torch.zeros(0, 4)),
            ("transposed", torch.randn(3, 5, generator=random).t()),
            ("decoder.output_projection.weight", embedding),
        ]
    )
    return {
        "args": None,
        "cfg": {"model": argparse.Namespace(arch="transformer", seed=seed), "task": {"data": "data-bin"}},
        "model": model,
        "optimizer_history": [{"num_updates": 0}, {"num_updates": 100 * seed}],
        "task_state": {},
        "extra_state": {"val_loss": np.float64(seed), "counts": np.arange(4), "best": np.float32(1.5)},
        "last_optimizer_state": {"state": torch.zeros(100)},
        **other,
    }


def save(path: Path, seed: int, **other: Any) -> Path:
    torch.save(state(seed, **other), path)
    return path


def changed(path: Path, seed: int, name: str, value: torch.Tensor | None) -> Path:
    """Save a checkpoint with one tensor replaced or removed."""
    checkpoint = state(seed)
    if value is None:
        del checkpoint["model"][name]
    else:
        checkpoint["model"][name] = value
    torch.save(checkpoint, path)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = averaging.main([str(argument) for argument in arguments])
    return code, "".join(capsys.readouterr())


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [save(tmp_path / f"checkpoint_1_{100 * seed}.pt", seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize("count", [1, 3])
def test_average_equals_wide_precision_sum_divided_by_n(files: list[Path], tmp_path: Path, count: int) -> None:
    averaging.average(files[:count], tmp_path / "out.pt")
    got = load_checkpoint(tmp_path / "out.pt")["model"]
    models = [state(seed)["model"] for seed in (1, 2, 3)[:count]]
    assert list(got) == list(models[0])
    for name in got:
        tensors = [model[name] for model in models]
        assert got[name].dtype == tensors[0].dtype and got[name].shape == tensors[0].shape
        if tensors[0].is_floating_point():
            wide = torch.float64 if name == "fp64" else torch.float32
            total = torch.zeros(tensors[0].shape, dtype=wide)
            for tensor in tensors:
                total = total + tensor.to(wide)
            assert torch.equal(got[name], (total / count).to(tensors[0].dtype)), name
        else:
            assert torch.equal(got[name], tensors[-1]), name
    assert got["fp16"].isfinite().all()


def test_averaging_more_than_a_quarter_of_a_run_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [save(tmp_path / f"checkpoint{epoch}.pt", epoch) for epoch in (9, 10, 11, 12)]
    averaging.average(files, tmp_path / "out.pt")  # updates 900 to 1,200
    assert capsys.readouterr().err == ""
    averaging.average([save(tmp_path / "checkpoint8.pt", 8), *files], tmp_path / "out.pt")
    said = f"{tmp_path / 'out.pt'}: warning: averages checkpoints from update 800 to 1,200, 33% of the training: "
    assert capsys.readouterr().err.startswith(said)


def test_settings_come_from_the_newest_file(files: list[Path], tmp_path: Path) -> None:
    averaging.average([files[2], files[0], files[1]], tmp_path / "out.pt")
    out = load_checkpoint(tmp_path / "out.pt")
    assert out["model"]["steps"].tolist() == [3]
    assert out["cfg"]["model"].seed == 3 and out["extra_state"]["val_loss"] == 3.0


def test_tied_tensors_are_averaged_once_and_stay_tied(files: list[Path], tmp_path: Path) -> None:
    averaging.average(files, tmp_path / "out.pt")
    model = load_checkpoint(tmp_path / "out.pt")["model"]
    one, two = model["encoder.embed_tokens.weight"], model["decoder.output_projection.weight"]
    assert one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
    assert torch.allclose(one, sum(state(seed)["model"]["encoder.embed_tokens.weight"] for seed in (1, 2, 3)) / 3)
    one[0, 0] = 42
    assert two[0, 0] == 42


def test_average_drops_optimizer_and_records_inputs(files: list[Path], tmp_path: Path) -> None:
    averaging.average(files, tmp_path / "out.pt")
    out = load_checkpoint(tmp_path / "out.pt")
    assert "last_optimizer_state" not in out
    assert out["task_state"] == {} and out["optimizer_history"][-1]["num_updates"] == 300
    assert out["averaged_from"] == [
        {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "num_updates": 100 * seed}
        for seed, file in enumerate(files, start=1)
    ]


def test_checkpoint_format_before_torch_1_6_is_read(tmp_path: Path) -> None:
    torch.save(state(1), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save(tmp_path / "new.pt", 3)
    averaging.average([tmp_path / "old.pt", tmp_path / "new.pt"], tmp_path / "out.pt")
    assert load_checkpoint(tmp_path / "out.pt")["model"]["scalar"] == 2


# --- selecting files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ["checkpoint_1_900.pt", "checkpoint_2_1000.pt", "checkpoint_10_1100.pt", "checkpoint_best.pt"]
    names += ["checkpoint_last.pt", "checkpoint.best_loss_3.2100.pt", "checkpoint_3_50.pt.tmp", "averaged.pt"]
    for name in names:
        (tmp_path / name).touch()
    return tmp_path


def test_checkpoints_sort_numerically_without_best_and_last(folder: Path) -> None:
    names = [path.name for path in averaging.last_checkpoints(folder, 2)]
    assert names == ["checkpoint_2_1000.pt", "checkpoint_10_1100.pt"]
    with pytest.raises(ValueError, match=r"--last 4.* 3 update-numbered checkpoints: checkpoint_1_900\.pt, "):
        averaging.last_checkpoints(folder, 4)


def test_epochs_select_all_their_update_numbered_checkpoints(tmp_path: Path) -> None:
    for epoch, update in ((1, 10), (1, 20), (2, 30), (3, 40), (3, 50), (4, 60)):
        (tmp_path / f"checkpoint_{epoch}_{update}.pt").touch()
    found = [[file.name for file in averaging.epoch_checkpoints(tmp_path, first, 3)] for first in (1, 2)]
    names = ["checkpoint_2_30.pt", "checkpoint_3_40.pt", "checkpoint_3_50.pt"]
    assert found == [["checkpoint_1_10.pt", "checkpoint_1_20.pt", *names], names]
    (tmp_path / "checkpoint_1_10.pt").unlink()
    (tmp_path / "checkpoint_1_20.pt").unlink()
    for first, last in ((2, 3), (4, 5), (5, 5)):  # epoch 2 may have had more checkpoints; epoch 5 has none
        with pytest.raises(ValueError, match=f"--epochs {first}-{last} requires all checkpoints of these epochs"):
            averaging.epoch_checkpoints(tmp_path, first, last)


def test_mixed_checkpoint_kinds_require_the_by_flag(folder: Path) -> None:
    names = ["checkpoint9.pt", "checkpoint10.pt"]
    for name in names:
        (folder / name).touch()
    with pytest.raises(ValueError, match=r"checkpoint10\.pt.*checkpoint_10_1100\.pt.*--by epoch or --by update"):
        averaging.last_checkpoints(folder, 2)
    assert [path.name for path in averaging.last_checkpoints(folder, 2, "epoch")] == names
    assert averaging.last_checkpoints(folder, 1, "update")[0].name == "checkpoint_10_1100.pt"


# --- rejected inputs: one line, exit code 2, output unchanged


def test_structures_that_differ_are_refused(tmp_path: Path) -> None:
    """The weights of post_ln and deep_norm have the same names and shapes."""
    paths = [tmp_path / f"{name}.pt" for name in ("one", "two", "three")]
    for path, residual in zip(paths, ("post_ln", "deep_norm", None), strict=True):
        config = argparse.Namespace(encoder_normalize_before=False, **({"residual": residual} if residual else {}))
        torch.save({"model": {"weight": torch.ones(2)}, "cfg": {"model": config}}, path)
    averaging.average([paths[0], paths[2]], tmp_path / "average.pt")
    with pytest.raises(ValueError, match=r"one.pt and .*two.pt are models of different structures: "):
        averaging.average(paths[:2], tmp_path / "average.pt")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scalar", None, "scalar"),
        ("scalar", torch.zeros(2), r"in scalar: .* of shape \(\) .* of shape \(2,\)"),
        ("bf16", torch.zeros(5, 3), r"in bf16: torch.bfloat16 .* torch.float32"),
        ("extra", torch.zeros(1), "extra"),
        ("decoder.output_projection.weight", torch.zeros(7, 4), "in the memory of encoder.* and .* memory of decoder"),
    ],
)
def test_files_that_differ_are_refused(tmp_path: Path, name: str, value: torch.Tensor | None, message: str) -> None:
    one, other = save(tmp_path / "one.pt", 1), changed(tmp_path / "other.pt", 2, name, value)
    with pytest.raises(ValueError, match=message):
        averaging.average([one, other], tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("executed",))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no model", "code"])
def test_damaged_files_are_refused(files: list[Path], tmp_path: Path, capsys: Any, damage: str) -> None:
    bad, out = tmp_path / "bad.pt", tmp_path / "out.pt"
    out.write_text("old")
    content = files[0].read_bytes()
    if damage == "truncated":
        bad.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":  # one bit in the middle of a weight: only the checksum detects it
        weights = state(1)["model"]["encoder.embed_tokens.weight"].numpy().tobytes()
        at = content.index(weights)
        bad.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif damage == "no model":
        torch.save({"weights": torch.zeros(1)}, bad)
    else:
        save(bad, 1, extra_state=Evil())
    code, error = run(capsys, "--inputs", files[0], bad, "--output", out)
    assert code == 2 and str(bad) in error and error.count("\n") == 1 and "executed" not in error, error
    assert out.read_text() == "old" and not list(tmp_path.glob("*.partial"))


def test_average_in_a_run_folder_removes_the_note_on_an_earlier_one(
    files: list[Path], tmp_path: Path, capsys: Any
) -> None:
    for name in ("averaged.json", "other.json"):
        (tmp_path / name).write_text("{}")
    assert run(capsys, "--inputs", *files, "--output", tmp_path / "averaged.pt")[0] == 0
    assert not (tmp_path / "averaged.json").exists() and (tmp_path / "other.json").exists()


@pytest.mark.once
def test_output_that_cannot_or_must_not_be_written_is_refused(files: list[Path], tmp_path: Path, capsys: Any) -> None:
    assert "--last" in run(capsys, "--inputs", *files, "--last", 2, "--output", tmp_path / "out.pt")[1]
    code, error = run(capsys, "--inputs", *files, "--output", tmp_path / "no" / "out.pt")
    assert code == 2 and f"{tmp_path / 'no' / 'out.pt'}: cannot be written: " in error
    for name in ("checkpoint_last.pt", "checkpoint7.pt", "checkpoint_7_900.pt", "checkpoint.best_loss_2.51.pt"):
        (tmp_path / name).write_text("old")
        code, error = run(capsys, "--inputs", *files, "--output", tmp_path / name)
        assert code == 2 and "a checkpoint of fairseq-train; choose a name such as averaged.pt" in error
        assert (tmp_path / name).read_text() == "old"


# --- writing


def test_kill_keeps_old_output_and_script_runs_anywhere(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    out.write_text("old")
    kill = (
        f"{WITHOUT_FAIRSEQ}import os, pathlib, torch\n"
        "from fairseq_resid.evaluation import averaging\n"
        "torch.save = lambda state, path: (pathlib.Path(path).write_text('half'), os._exit(9))\n"
        "averaging.average([pathlib.Path(name) for name in sys.argv[3:]], pathlib.Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", kill, str(ROOT), str(out), *map(str, files)]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 9
    assert out.read_text() == "old"

    arguments = ["--inputs", str(tmp_path), "--last", "2", "--output", str(out)]
    done = subprocess.run([sys.executable, SCRIPT, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}: average of checkpoint_1_200.pt, checkpoint_1_300.pt\n"
    assert load_checkpoint(out)["model"]["scalar"] == 2.5
    assert not list(tmp_path.glob("*.partial"))


# --- memory


def test_slices_of_one_storage_are_averaged(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    for number in (1, 2):
        changed = state(number)
        data = whole * number
        changed["model"] = {"a": data[:4], "b": data[4:], "c": data[:4]}
        torch.save(changed, tmp_path / f"{number}.pt")
    averaging.average([tmp_path / "1.pt", tmp_path / "2.pt"], tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=False)["model"]
    assert torch.equal(found["b"], whole[4:] * 1.5) and found["a"].data_ptr() == found["c"].data_ptr()


@pytest.mark.once
def test_memory_is_largest_checkpoint_plus_one_model(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's /proc")
    mib = 2**20
    model, optimizer = 64 * mib, 64 * mib  # bytes of fp32
    files = [tmp_path / f"{number}.pt" for number in range(3)]
    for number, file in enumerate(files):
        weights = {f"w{index}": torch.full((model // 4 // 64,), float(number)) for index in range(64)}
        torch.save({"model": weights, "last_optimizer_state": torch.zeros(optimizer // 4)}, file)
    small = tmp_path / "small.pt"
    torch.save({"model": {"w0": torch.zeros(8)}, "last_optimizer_state": torch.zeros(8)}, small)
    # Linux refuses memory beyond this limit. Resident memory would also count library pages that were reclaimed and are
    # used again. Another copy of the model would be 64 MiB.
    limited = (
        f"{WITHOUT_FAIRSEQ}import pathlib, re, resource, torch\n"
        "from fairseq_resid.evaluation import averaging\n"
        "output, limit, small, *files = sys.argv[2:]\n"
        "torch.set_num_threads(1)\n"  # every further thread has a stack of 8 MiB
        "averaging.average([pathlib.Path(small)] * 2, pathlib.Path(output))\n"
        "used = int(re.search(r'VmData:\\s*(\\d+) kB', open('/proc/self/status').read())[1]) * 1024\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (used + int(limit),) * 2)\n"
        "averaging.average([pathlib.Path(file) for file in files], pathlib.Path(output))"
    )

    def average_within(limit: int) -> subprocess.CompletedProcess[str]:
        words = [str(ROOT), str(tmp_path / "out.pt"), str(limit), str(small), *map(str, files)]
        return subprocess.run([sys.executable, "-c", limited, *words], capture_output=True, text=True)

    done = average_within(model + (model + optimizer) + 32 * mib)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.pt").stat().st_size < model + mib
    assert load_checkpoint(tmp_path / "out.pt")["model"]["w7"][0] == 1
    done = average_within(model + optimizer)
    assert done.returncode == 1 and "memory" in done.stderr, done.stderr
    shutil.rmtree(tmp_path)
