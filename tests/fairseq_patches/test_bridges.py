"""Small patches: --bf16, logging, hydra, imports, one-line errors."""

from __future__ import annotations

import logging
import shlex
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
BIN = Path(sys.executable).parent
Command = Callable[..., Any]


@pytest.mark.parametrize("flags", [[], ["--bf16"]])
def test_log_names_layer_norm_and_optimizer_in_use(flags: list[str], train: Command, tmp_path: Path) -> None:
    ours = train(tmp_path / "ours", "--max-update", 1, *flags).output
    stock = train(tmp_path / "stock", *STOCK, "--max-update", 1, *flags).output
    said = "layer norms: 10 torch.nn.modules.normalization.LayerNorm; optimizer: fairseq.optim.adam.Adam"
    assert said in ours and said in stock


def test_bf16_trains_on_a_cpu(train: Command, tmp_path: Path) -> None:
    done = train(tmp_path, "--bf16")
    assert '"train_num_updates": "4"' in done.output
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    for name, tensor in state["model"].items():  # fairseq stores fp32, but all values are bf16 values
        if name.endswith("._float_tensor"):
            continue  # a marker in fairseq's position embedding: uninitialised memory, sometimes NaN
        assert torch.equal(tensor, tensor.bfloat16().float()), name
    assert not state["cfg"]["common"]["tpu"]


@pytest.mark.parametrize(("flags", "tpu"), [([], False), (["--bf16"], False), (["--tpu"], True)])
def test_tpu_is_reset_only_if_bf16_set_it(flags: list[str], tpu: bool) -> None:
    from fairseq import options

    arguments = ["data", "--arch", "transformer_resid_tiny", *flags]
    assert options.parse_args_and_arch(options.get_training_parser(), arguments).tpu is tpu


def test_importing_leaves_root_logger_quiet() -> None:
    done = shell(sys.executable, "-c", "import logging, fairseq_resid.models; print(logging.getLogger().level)")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= logging.INFO


@pytest.mark.parametrize(("variable", "level"), [(None, "INFO"), ("ERROR", "ERROR"), ("debug", "DEBUG")])
def test_loglevel_is_respected(variable: str | None, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq_resid import fairseq_patches as compat

    monkeypatch.delenv("LOGLEVEL", raising=False)
    if variable:
        monkeypatch.setenv("LOGLEVEL", variable)
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", logging.DEBUG)
    compat.quiet_root_logger()
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
import sys
from fairseq_resid import connections
from fairseq import options, utils
import argparse
sys.argv = ["fairseq-train", "data", "--user-dir", sys.argv[1], "--arch", "transformer_sas_tiny"]
utils.import_user_module(argparse.Namespace(user_dir=sys.argv[3]))
args = options.parse_args_and_arch(options.get_training_parser())
from fairseq import checkpoint_utils
print(args.arch, args.encoder_embed_dim, checkpoint_utils.torch.__class__.__name__)
"""


def test_package_imported_first_still_works_as_plugin() -> None:
    """fairseq loads USER_DIR/models only if the package has not been imported before."""
    done = shell(sys.executable, "-c", IMPORTED_FIRST, ROOT / "fairseq_resid")
    assert done.stdout.splitlines()[-1:] == ["transformer_sas_tiny 64 StandIn"], done.stderr


def test_command_line_mistake_is_a_one_line_error(corpus: Path, tmp_path: Path) -> None:
    flags = shlex.split("--arch transformer_sas_tiny --skip-lambda 3 --optimizer adam --batch-size 8 --cpu")
    save = tmp_path / "run"
    done = shell(BIN / "fairseq-train", corpus, "--user-dir", "fairseq_resid", *flags, "--save-dir", save)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if "error" in line.lower()] == done.stderr.splitlines()[-1:]
    assert "--skip-lambda 3" in done.stderr and "Traceback" not in done.stdout + done.stderr
    assert not save.exists()
