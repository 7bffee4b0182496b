"""A checkpoint does not silently continue as another residual structure whose weights fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid import connections
from fairseq_resid.fairseq_patches import UserError
from support.models import build, copied, logits
from support.structures import each

Command = Callable[..., Any]
WARNING = "its weights are now used with"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("--residual scaled_pre_ln", "--residual orthogonal"),
        ("--residual post_ln", "--residual xskip_ln"),
        ("--skip-lambda 2.0", "--skip-lambda 3.0"),
        ("--norm dyt", "--norm derf"),
    ],
)
def test_resuming_as_another_structure_is_an_error(before: str, now: str, train: Command, tmp_path: Path) -> None:
    common = () if "--residual" in now else ("--residual", "xskip_ln")
    train(tmp_path, *common, *before.split())
    last = tmp_path / "checkpoint_last.pt"
    content = last.read_bytes()
    refused = train(tmp_path, *common, *now.split(), "--max-update", 6, check=False)
    expected = f"error: {last}: trained with {before}; cannot be resumed with {now}; to start from"
    assert refused.code == 1 and expected in refused.output
    assert last.read_bytes() == content


def test_norm_without_effect_is_ignored_when_a_run_resumes(train: Command, tmp_path: Path) -> None:
    """Version 1.0.0 accepted --norm for structures without a norm."""
    train(tmp_path, "--residual", "xskip")
    last = tmp_path / "checkpoint_last.pt"
    state = torch.load(last, weights_only=False)
    state["cfg"]["model"].norm = "rms"
    torch.save(state, last)
    for updates, flags in ((6, ["--norm", "rms"]), (8, [])):
        resumed = train(tmp_path, "--residual", "xskip", *flags, "--max-update", updates)
        assert "Loaded checkpoint" in resumed.output and WARNING not in resumed.output


def test_options_that_set_initial_values_may_differ(train: Command, tmp_path: Path) -> None:
    """Checkpoints from before a default changed can be resumed."""
    train(tmp_path, "--residual", "sas", "--sas-alpha-bias", 0, "--sas-beta-bias", 0)
    resumed = train(tmp_path, "--residual", "sas", "--max-update", 6)
    assert "Loaded checkpoint" in resumed.output and WARNING not in resumed.output


SAME_AS_POST_LN = [
    {"residual": "rskip_ln", "skip_lambda": 1},
    {"residual": "xskip_ln", "skip_lambda": 1},
    {"residual": "mix_ln", "post_share": 1, "final_norm": "none"},
]


@pytest.mark.parametrize("given", SAME_AS_POST_LN, ids=str)
def test_options_that_give_post_ln_are_no_difference(given: dict[str, Any]) -> None:
    plain, same = build(residual="post_ln"), build(**given)
    same.load_state_dict(copied(plain))
    assert torch.equal(logits(same), logits(plain))
    assert plain.differences(same.cfg, resumes=False) is same.differences(plain.cfg, resumes=False) is None
    for other in ({"residual": "xskip_ln"}, {"residual": "post_ln", "norm": "rms"}, {"residual": "deep_norm"}):
        assert same.differences(build(**other).cfg, resumes=False)
    two = build(residual="xskip_ln", skip_lambda=2)
    one = build(residual="xskip_ln", skip_lambda=1)
    assert one.differences(two.cfg, resumes=True) == ("--skip-lambda 2.0", "--skip-lambda 1.0")


@pytest.mark.parametrize(
    ("residual", "warns"), [("post_ln", False), ("rskip_ln --skip-lambda 1", False), ("deep_norm", True)]
)
def test_weights_of_a_stock_checkpoint_start_a_run(
    residual: str, warns: bool, stock_checkpoint: Path, train: Command, tmp_path: Path
) -> None:
    tuned = train(tmp_path, "--residual", *residual.split(), "--finetune-from-model", stock_checkpoint)
    warning = f"{stock_checkpoint}: trained with --residual post_ln; {WARNING} --residual deep_norm"
    assert (warning in tuned.output) == warns and (WARNING in tuned.output) == warns


def test_resuming_a_stock_checkpoint_is_an_error(stock_checkpoint: Path, train: Command, tmp_path: Path) -> None:
    """Its parameters have another order, by which fairseq assigns the state of the optimizer."""
    last = tmp_path / "checkpoint_last.pt"
    shutil.copy(stock_checkpoint, last)
    refused = train(tmp_path, "--max-update", 60, check=False)
    assert refused.code == 1
    assert f"{last}: trained with --arch transformer; cannot be resumed with --residual post_ln" in refused.output


@each
def test_trained_model_depends_on_all_options_except_initial_values(name: str) -> None:
    """The trainer compares these options with those of a checkpoint (connections.function_differences)."""
    deep = {"encoder_layers": 4, "decoder_layers": 4}  # so that --post-share 0.5 differs from 0.25
    model = build(residual=name, **deep)
    weights = copied(model)
    for option in connections.options(name).values():
        for value in option.examples:
            try:
                other = build(residual=name, **deep, **{option.name: value})
            except UserError:  # the value needs another option
                continue
            is_same = value == option.default or option.is_initial
            if [weight.shape for weight in copied(other).values()] == [weight.shape for weight in weights.values()]:
                other.load_state_dict(weights)
                assert torch.equal(logits(other), logits(model)) == is_same, f"--{option.name} {value}: is_initial"
            else:
                assert not is_same, f"--{option.name} {value}: is_initial"
