"""Small patches: --bf16, logging, padded batches, imports."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_resid.models  # noqa: F401  (applies the patches)
from conftest import STOCK
from support.shells import shell

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., Any]


def test_log_names_layer_norm_and_optimizer_in_use(train: Command, tmp_path: Path) -> None:
    """Other implementations give other results."""
    said = "layer norms: 10 torch.nn.modules.normalization.LayerNorm; optimizer: fairseq.optim.adam.Adam"
    for name, flags in (("ours", []), ("stock", STOCK)):
        assert said in train(tmp_path / name, *flags, "--max-update", 1).output


def test_bf16_trains_on_a_cpu(train: Command, tmp_path: Path) -> None:
    done = train(tmp_path, "--bf16")
    assert '"train_num_updates": "4"' in done.output
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    for name, tensor in state["model"].items():  # fairseq stores fp32, but all values are bf16 values
        if name.endswith("._float_tensor"):
            continue  # a marker in fairseq's position embedding: uninitialised memory, sometimes NaN
        assert torch.equal(tensor, tensor.bfloat16().float()), name
    assert not state["cfg"]["common"]["tpu"]


@pytest.mark.parametrize(("variable", "level"), [(None, "INFO"), ("ERROR", "ERROR"), ("debug", "DEBUG")])
def test_loglevel_is_respected(variable: str | None, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq_resid.fairseq_patches import command_line

    monkeypatch.delenv("LOGLEVEL", raising=False)
    if variable:
        monkeypatch.setenv("LOGLEVEL", variable)
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", logging.DEBUG)
    command_line.quiet_root_logger()
    assert logging.getLevelName(root.level) == level


def test_stock_baseline_decodes_left_padded_batches(stock_checkpoint: Path, generate: Command) -> None:
    """Stock fairseq 0.12.2 would crash in its BetterTransformer path. Batches of one sentence have no padding."""
    padded = generate(stock_checkpoint, "--gen-subset", "valid").hypotheses
    alone = generate(stock_checkpoint, "--gen-subset", "valid", "--batch-size", 1, "--num-shards", 4).hypotheses
    assert len(padded) == 43 and len(alone) > 8
    for number, (score, text) in alone.items():
        assert padded[number][1] == text
        assert padded[number][0] == pytest.approx(score, abs=1e-3)


IMPORTED_FIRST = """
import logging, sys
from fairseq_resid import connections
from fairseq import options, utils
import argparse
sys.argv = ["fairseq-train", "data", "--user-dir", sys.argv[1], "--arch", "transformer_sas_tiny"]
utils.import_user_module(argparse.Namespace(user_dir=sys.argv[3]))
args = options.parse_args_and_arch(options.get_training_parser())
from fairseq import checkpoint_utils
print(args.arch, args.encoder_embed_dim, checkpoint_utils.torch.__class__.__name__, logging.getLogger().level)
"""


def test_package_imported_first_still_works_as_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq loads USER_DIR/models only if the package has not been imported before."""
    monkeypatch.delenv("LOGLEVEL", raising=False)
    output = shell(sys.executable, "-c", IMPORTED_FIRST, ROOT / "fairseq_resid", cwd=ROOT)
    assert output.splitlines()[-1] == f"transformer_sas_tiny 64 StandIn {logging.INFO}"
