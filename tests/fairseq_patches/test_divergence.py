"""If training diverges, it fails with a one-line error that suggests a remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_resid.models  # noqa: F401  (applies the patches)
from conftest import STOCK

Command = Callable[..., Any]

NORM_FREE = {"xskip": "--residual xskip_ln", "highway": "--residual-norm layer"}
DIVERGED = "fairseq_resid: error: training diverged at update"


def diverge(train: Command, folder: Path, *flags: object) -> str:
    """Train until the gradient is not finite, check that the error is one line, and return it."""
    done = train(folder, *flags, "--max-update", 20, check=False)
    assert done.code == 1 and "Traceback" not in done.output and "StopIteration" not in done.output
    assert done.error.startswith(DIVERGED) and done.output.count(DIVERGED) == 1
    # fairseq saves the weights from before the failed update, and nothing else.
    assert [file.name for file in folder.iterdir()] == ["crash.pt"]
    assert torch.load(folder / "crash.pt", weights_only=False)["model"]
    return str(done.error)


@pytest.mark.parametrize("name", NORM_FREE)
def test_divergence_without_norm_names_structure_and_remedy(name: str, train: Command, tmp_path: Path) -> None:
    flags = ["--residual", name, "--lr", 10]
    error = diverge(train, tmp_path / "run", *flags)
    assert error.endswith(f"; --residual {name} has no norm: use {NORM_FREE[name]}, or a lower --lr")
    remedied = train(tmp_path / "remedied", *flags, *NORM_FREE[name].split(), "--max-update", 20)
    assert '"train_num_updates": "20"' in remedied.output


@pytest.mark.parametrize("flags", [["--residual", "highway", "--residual-norm", "layer"], STOCK], ids=" ".join)
def test_divergence_with_norms_is_a_one_line_error(flags: list[str], train: Command, tmp_path: Path) -> None:
    error = diverge(train, tmp_path, *flags, "--lr", "1e18")
    assert "(learning rate 5e+17): loss or gradient is not finite (NaN or infinite); use a lower --lr" in error


@pytest.mark.parametrize("flags", ["--memory-efficient-fp16 --fp16-init-scale 4 --min-loss-scale 3", "--bf16"])
def test_divergence_in_16_bits_gives_the_same_error(flags: str, train: Command, tmp_path: Path) -> None:
    """In fp16, fairseq gives up when the loss scale falls to --min-loss-scale."""
    assert "use --residual xskip_ln" in diverge(train, tmp_path, "--residual", "xskip", "--lr", 10, *flags.split())


@pytest.mark.parametrize("other", [math.nan, 1e4])
def test_gradient_check_between_gpus_reports_divergence(
    other: float, train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq compares gradient norms between GPUs and reports non-finite ones as "inconsistent between workers"."""
    from fairseq.distributed import utils
    from fairseq.trainer import Trainer

    original = Trainer._check_grad_norms

    def beside_another(self: Trainer, norm: torch.Tensor) -> None:
        self._grad_norm_buf = torch.zeros(2)
        original(self, norm)

    monkeypatch.setattr(Trainer, "_check_grad_norms", beside_another)
    monkeypatch.setattr(utils, "all_reduce", lambda buffer, group: buffer[1].fill_(other))
    if other == 1e4:
        with pytest.raises(FloatingPointError, match="inconsistent between workers"):
            train(tmp_path)
    else:
        assert "is not finite (NaN or infinite); use a lower --lr" in diverge(train, tmp_path)


def test_unrelated_stop_iteration_is_not_caught(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairseq.trainer import Trainer

    def exhausted(*_: Any) -> None:
        raise StopIteration("a bug")

    monkeypatch.setattr(Trainer, "_check_grad_norms", exhausted)
    with pytest.raises(StopIteration, match="a bug"):
        train(tmp_path)
