"""Settings that fairseq would evaluate: code in a checkpoint or a flag is refused, literals are accepted."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

import fairseq_resid.models  # noqa: F401  (applies the patches)
from fairseq_resid.fairseq_patches import UserError
from fairseq_resid.fairseq_patches.loading import is_literal


def resaved(source: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write a changed copy of one of our checkpoints."""
    state = torch.load(source, weights_only=False)
    change(state)
    torch.save(state, target)
    return target


def code(marker: Path) -> str:
    return f"__import__('pathlib').Path({str(marker)!r}).touch()"


PLACES: dict[str, Callable[[dict[str, Any], Any], object]] = {
    "adam_betas": lambda state, value: state["cfg"]["optimizer"].update(adam_betas=value),
    "conv_feature_layers": lambda state, value: setattr(
        state["cfg"]["model"], "nested", [{"inner": ({"x": argparse.Namespace(conv_feature_layers=value)},)}]
    ),
    "lamb_betas": lambda state, value: state.update(args=argparse.Namespace(lamb_betas=value)),
}


@pytest.mark.parametrize("name", PLACES)
def test_code_anywhere_in_a_config_is_refused(name: str, sas_checkpoint: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    file = resaved(sas_checkpoint, tmp_path / "planted.pt", lambda state: PLACES[name](state, code(ran)))
    with pytest.raises(UserError, match=name) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(file))
    assert str(file) in str(caught.value) and not ran.exists()


@pytest.mark.parametrize("value", ["[(512, 3)] * 20", None])
def test_literals_in_a_config_are_accepted(value: str | None, sas_checkpoint: Path, tmp_path: Path) -> None:
    change = PLACES["conv_feature_layers"]
    file = resaved(sas_checkpoint, tmp_path / "harmless.pt", lambda state: change(state, value))
    assert checkpoint_utils.load_checkpoint_to_cpu(str(file))["model"]


@pytest.mark.parametrize("flag", ["--adam-betas", "--encoder-xformers-att-config"])
def test_code_in_a_flag_is_refused(flag: str, corpus: Path, tmp_path: Path, cli: Any) -> None:
    ran = tmp_path / "ran"
    flags = ["--arch", "transformer_sas_tiny", "--optimizer", "adam", "--max-update", "1", "--cpu", "--no-save"]
    done = cli("fairseq-train", corpus, *flags, flag, code(ran), check=False)
    assert done.code == 2 and f"argument {flag}: " in done.output and not ran.exists()


@pytest.mark.parametrize("text", ["(0.9, 0.98)", "[1] + [2] * 3", "{'a': [1, -2, +3]}", "None", " 1 ", "'f(1)'"])
def test_literals_are_recognised(text: str) -> None:
    assert is_literal(text)


@pytest.mark.parametrize("text", ["f(1)", "x.y", "[x for x in (1,)]", "f'{f(1)}'", "{'a': f()}", "[0] * -f()", "("])
def test_code_is_not_a_literal(text: str) -> None:
    assert not is_literal(text)


@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
def test_numpy_values_load_in_both_spellings(core: str, sas_checkpoint: Path, tmp_path: Path) -> None:
    """numpy 1 writes numpy.core.multiarray, numpy 2 writes numpy._core.multiarray."""
    values = {"a": np.float64(1.5), "b": np.float32(2.5), "c": np.int64(3), "d": np.arange(4), "e": np.zeros((2, 2))}
    written = resaved(sas_checkpoint, tmp_path / "written.pt", lambda state: state.update(extra_state=values))
    file = tmp_path / "respelled.pt"
    with zipfile.ZipFile(written) as old, zipfile.ZipFile(file, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            if item.filename.endswith("/data.pkl"):
                names = ("numpy.core.multiarray", "numpy._core.multiarray")
                assert any(name.encode() in data for name in names)
                for name in names:
                    data = data.replace(f"c{name}\n".encode(), f"c{core}.multiarray\n".encode())
            new.writestr(item, data)
    loaded = checkpoint_utils.load_checkpoint_to_cpu(str(file))["extra_state"]
    for key, value in values.items():
        assert type(loaded[key]) is type(value) and loaded[key].dtype == value.dtype
        np.testing.assert_array_equal(loaded[key], value)
