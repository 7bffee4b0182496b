"""The plan of a training run: effective batch on any number of devices, precision, rank of the process."""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_resid.cli import machine
from fairseq_resid.runs import devices, plan, recipe
from fairseq_resid.runs.devices import Gpu
from fairseq_resid.runs.training_command import TrainingCommand

pytestmark = pytest.mark.once

A100 = Gpu("A100", 80 << 30, (8, 0))
V100 = Gpu("V100", 32 << 30, (7, 0))
P100 = Gpu("P100", 16 << 30, (6, 0))


def command(words: str) -> TrainingCommand:
    return TrainingCommand.parse(words.split())


BASE = command("data --distributed-world-size 8 --max-tokens 4096")


def words(planned: plan.Plan) -> str:
    return " ".join(planned.argv)


@pytest.mark.parametrize(
    ("gpus", "extra", "expected"),
    [
        (8, "", "--distributed-world-size 8 --max-tokens 4096"),
        (1, "", "--distributed-world-size 1 --max-tokens 4096 --update-freq 8"),
        (2, "", "--distributed-world-size 2 --max-tokens 4096 --update-freq 4"),
        (16, "", "--distributed-world-size 16 --max-tokens 2048"),
        # 3 x 4096 x 3 = 36,864 would be 12.5% too large, so max-tokens is lowered
        (3, "", "--distributed-world-size 3 --max-tokens 3641 --update-freq 3"),
        (1, "--max-tokens 16384", "--distributed-world-size 1 --max-tokens 16384 --update-freq 2"),
        (1, "--max-tokens 40000", "--distributed-world-size 1 --max-tokens 32768"),
        (1, "--max-tokens 100", "--distributed-world-size 1 --max-tokens 100 --update-freq 328"),
        (1, "--max-tokens 3000", "--distributed-world-size 1 --max-tokens 2979 --update-freq 11"),
        (4, "--update-freq 4", "--distributed-world-size 4 --max-tokens 2048 --update-freq 4"),
        (4, "--distributed-world-size 2", "--distributed-world-size 2 --max-tokens 4096 --update-freq 4"),
        (0, "", "--distributed-world-size 1 --max-tokens 4096 --update-freq 8"),
        (0, "--cpu", "--distributed-world-size 1 --max-tokens 4096 --update-freq 8"),
    ],
)
def test_effective_batch_is_kept(gpus: int, extra: str, expected: str) -> None:
    planned = plan.plan_training(BASE, command(extra), [P100] * gpus, None)
    assert words(planned) == expected
    assert "32,768" in planned.line()


def test_recipe_that_accumulates_gradients_keeps_effective_batch() -> None:
    base = command("data --distributed-world-size 8 --max-tokens 1024 --update-freq 4")
    for gpus, expected in ((8, "--max-tokens 1024 --update-freq 4"), (16, "--max-tokens 1024 --update-freq 2")):
        planned = plan.plan_training(base, command(""), [P100] * gpus, None)
        assert words(planned).endswith(expected) and "32,768" in planned.line()


def test_batch_of_rskip_paper_works_on_three_gpus() -> None:
    base = command("data --distributed-world-size 4 --max-tokens 4096")
    three = plan.plan_training(base, command("--max-tokens 5461"), [P100] * 3, None)
    assert words(three) == "--distributed-world-size 3 --max-tokens 5461"
    assert "= 3 × 5,461 × 1 = 16,383 padded positions, for 16,384; " in three.line()
    assert words(plan.plan_training(base, command(""), [P100] * 3, None)).endswith("--max-tokens 2731 --update-freq 2")


@given(
    effective=st.integers(1_000, 100_000), world=st.integers(1, 64), most=st.integers(256, 20_000), given_=st.booleans()
)
@settings(max_examples=300, deadline=None)
def test_plan_gives_exact_batch_or_refuses(effective: int, world: int, most: int, given_: bool) -> None:
    steps = 2 if given_ else None
    try:
        size, freq = plan.split_batch(effective, world, most, steps, "--max-tokens")
    except ValueError as error:
        got = int(str(error).rsplit("--effective-batch ", 1)[1].split()[0])
        assert abs(got - effective) > 0.01 * effective
        return
    assert 1 <= size <= most and abs(world * size * freq - effective) <= 0.01 * effective
    enough = math.ceil(effective / (world * most))
    assert freq == 2 if given_ else 0.99 * enough - 1 <= freq <= enough


@pytest.mark.parametrize(
    ("extra", "gpus", "said"),
    [
        ("--update-freq 1", 1, "= 4,096 padded positions instead of 32,768 (--max-tokens at most 4,096"),
        ("--update-freq 1,2", 1, "--update-freq 1,2: must be one whole number"),
        ("--distributed-world-size 2", 0, "--distributed-world-size 2: more than the number of visible GPUs (0)"),
        ("--distributed-world-size 4", 2, "--distributed-world-size 4: more than the number of visible GPUs (2)"),
    ],
)
def test_impossible_plan_is_refused(extra: str, gpus: int, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        plan.plan_training(BASE, command(extra), [A100] * gpus, None)


def test_changed_effective_batch_must_be_explicit() -> None:
    with pytest.raises(ValueError, match="to accept it, give --effective-batch 4096"):
        plan.plan_training(BASE, command("--update-freq 1"), [A100], None)
    meant = plan.plan_training(BASE, command(""), [A100], None, effective=4096, precision="fp32")
    assert words(meant) == "--distributed-world-size 1 --max-tokens 4096"
    with pytest.raises(ValueError, match="give --max-tokens or --batch-size"):
        plan.plan_training(command("data"), command(""), [], None)


def test_effective_batch_in_pairs_is_kept() -> None:
    for flag in ("--batch-size", "--max-sentences"):
        both = plan.plan_training(BASE, command(f"{flag} 3"), [P100], None)
        assert words(both).endswith("--max-tokens 4096 --batch-size 3 --update-freq 8")
        assert "32,768 padded positions, at most 3 pairs per process (--batch-size); " in both.line()
        assert both.record()["maximum pairs per process"] == 3
    planned = plan.plan_training(command("data --batch-size 64"), command(""), [P100] * 2, None)
    assert words(planned) == "--distributed-world-size 2 --batch-size 32"
    assert "2 × 32 × 1 = 64 examples; " in planned.line()
    with pytest.raises(ValueError, match=r"3 processes × --batch-size 21 × update-freq 1 = 63 examples instead of 64"):
        plan.plan_training(command("data --batch-size 64"), command(""), [P100] * 3, None)


@pytest.mark.parametrize(
    ("found", "asked", "extra", "name", "flag"),
    [
        ([A100], "auto", "", "bf16", "--bf16"),
        ([V100], "auto", "", "fp16", "--fp16"),
        ([A100, V100], "auto", "", "fp16", "--fp16"),
        ([P100], "auto", "", "fp32", ""),
        ([], "auto", "", "fp32", ""),
        ([A100], "fp32", "", "fp32", ""),
        ([], "bf16", "", "bf16", "--bf16"),
        ([A100], "auto", "--memory-efficient-fp16", "memory-efficient-fp16", ""),
        ([A100], "auto", "--amp", "amp", ""),
    ],
)
def test_precision_depends_on_gpus_and_flags(found: list[Gpu], asked: str, extra: str, name: str, flag: str) -> None:
    planned = plan.plan_training(command("data --max-tokens 4096"), command(extra), found, None, precision=asked)
    assert planned.precision == name
    processes = max(1, len(found))
    expected = f"--distributed-world-size {processes} --max-tokens {4096 // processes} {flag}"
    assert words(planned) == expected.strip()


def test_image_models_keep_their_weights_in_fp32() -> None:
    images = command("data --task image_classification --batch-size 128")
    planned = [words(plan.plan_training(images, command(""), [gpu], None)) for gpu in (A100, P100)]
    assert planned == [f"--distributed-world-size 1 --batch-size 128{flag}" for flag in (" --amp", "")]


def test_contradictory_precision_flags_are_refused() -> None:
    with pytest.raises(ValueError, match="--precision bf16 and --fp16: give only one of them"):
        plan.plan_training(BASE, command("--fp16"), [A100], None, precision="bf16")


def configured(planned: plan.Plan, extra: str) -> argparse.Namespace:
    """Return the training configuration that fairseq makes from a plan."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    fixed = "--arch transformer --optimizer adam --lr 1e-3"
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(
        options.parse_args_and_arch(parser, ["data", *fixed.split(), *extra.split(), *planned.argv])
    )


@pytest.mark.parametrize("number", [1, 8])
@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("", "bf16"),
        ("--bf16", "bf16"),
        ("--fp16", "fp16"),
        ("--amp", "amp"),
        ("--memory-efficient-fp16", "fp16 memory_efficient_fp16"),
        ("--memory-efficient-bf16", "bf16 memory_efficient_bf16"),
        ("--ddp-backend fully_sharded", "fp16"),
        ("--ddp-backend fully_sharded --memory-efficient-fp16", "fp16 memory_efficient_fp16"),
        ("--ddp-backend fully_sharded --amp", "amp"),
        ("--ddp-backend legacy_ddp", "bf16"),
    ],
)
def test_fairseq_accepts_planned_precision(number: int, extra: str, expected: str) -> None:
    planned = plan.plan_training(BASE, command(extra), [A100] * number, None)
    made = configured(planned, extra)
    names = ("amp", "bf16", "fp16", "memory_efficient_bf16", "memory_efficient_fp16")
    assert [name for name in names if getattr(made.common, name)] == expected.split()
    sharded = "fully_sharded" in extra
    assert (made.distributed_training.ddp_backend == "fully_sharded") == sharded
    assert not (sharded and made.common.bf16)  # fairseq's Trainer refuses the two settings together
    assert made.distributed_training.distributed_world_size == number
    assert made.dataset.max_tokens * number * made.optimization.update_freq[0] == 32_768


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}


def test_torchrun_processes_are_recognised() -> None:
    rank = devices.rank(TORCHRUN, TrainingCommand(), 2)
    assert rank and (rank.rank, rank.world_size, rank.environment) == (3, 4, {})
    assert " ".join(rank.flags) == (
        "--distributed-init-method env:// --distributed-rank 3 --distributed-no-spawn --device-id 1"
    )
    seen_alone = devices.rank(TORCHRUN, TrainingCommand(), 1)
    assert seen_alone and seen_alone.flags[-1] == "0"
    assert devices.rank({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, TrainingCommand(), 2) is None
    with pytest.raises(ValueError, match="WORLD_SIZE=4: RANK must be set too"):
        devices.rank({"WORLD_SIZE": "4"}, TrainingCommand(), 2)


def test_launched_processes_share_the_effective_batch() -> None:
    rank = devices.rank(TORCHRUN, TrainingCommand(), 0)
    planned = plan.plan_training(BASE, command(""), [], rank)
    on_cpu = "--distributed-backend gloo --ddp-backend legacy_ddp"
    assert words(planned) == f"--distributed-world-size 4 --max-tokens 4096 --update-freq 2 {on_cpu}"
    assert planned.devices == "CPU, 4 processes"
    kept = plan.plan_training(BASE, command("--ddp-backend no_c10d"), [A100, A100], rank, precision="fp32")
    assert words(kept) == "--distributed-world-size 4 --max-tokens 4096 --update-freq 2"
    with pytest.raises(ValueError, match="--distributed-world-size 8: the launcher started 4 processes"):
        plan.plan_training(BASE, command("--distributed-world-size 8"), [], rank)


def slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    program = folder / "scontrol"
    program.write_text("#!/bin/sh\necho node7; echo node8\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    numbers = {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}
    return {**numbers, "SLURM_JOB_ID": "4711", "SLURM_STEP_NODELIST": "node[7-8]"}


def test_slurm_step_processes_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = slurm(tmp_path, monkeypatch)
    rank = devices.rank(environ, TrainingCommand(), 8)
    assert rank and (rank.rank, rank.world_size, rank.flags[-1]) == (9, 16, "1")
    # With cyclic distribution over the nodes, process 9 is the fifth on its node.
    cyclic = devices.rank({**environ, "SLURM_LOCALID": "4"}, TrainingCommand(), 8)
    assert cyclic and (cyclic.rank, cyclic.flags[-2:]) == (9, ("--device-id", "4"))
    assert rank.environment["MASTER_ADDR"] == "node7" and 20_000 <= int(rank.environment["MASTER_PORT"]) < 60_000
    batch_script = {name: value for name, value in environ.items() if "STEP" not in name}
    assert devices.rank(batch_script, TrainingCommand(), 8) is None


def test_manually_started_processes_are_recognised() -> None:
    words_ = ["--distributed-init-method", "tcp://a:1", "--distributed-rank", "1", "--distributed-world-size", "2"]
    rank = devices.rank({}, TrainingCommand.parse(words_), 0)
    assert rank and (rank.rank, rank.world_size, rank.flags) == (1, 2, ())


def test_gpus_are_queried_in_a_separate_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.cuda.is_available() or devices.gpus() == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "PROBE", "print('[[\"A100\", 85899345920, 8, 0]]')")
    assert devices.gpus() == [A100]
    monkeypatch.setattr(devices, "PROBE", "raise RuntimeError('driver too old')")
    with pytest.raises(ValueError, match="torch cannot use the GPUs: RuntimeError: driver too old"):
        devices.gpus()


def test_probe_prints_properties_of_every_gpu() -> None:
    done = subprocess.run([sys.executable, "-c", devices.PROBE], capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)) == torch.cuda.device_count()


def test_record_names_the_machine() -> None:
    assert A100.line == "A100, 80 GiB" and machine.processor() and machine.cores() > 0
    found = machine.versions(["torch", "no-such-package"])
    # The metadata of torch's CUDA build on PyPI lacks the local version.
    assert found.keys() == {"torch"} and torch.__version__.startswith(found["torch"])


PAPERS = {name for name in recipe.available() if name.startswith(("iwslt15", "wmt14")) and not name.endswith("small")}


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_paper_recipes_match_their_architecture_and_arithmetic(name: str) -> None:
    from fairseq.models import ARCH_CONFIG_REGISTRY

    import fairseq_resid.models  # noqa: F401  (registers the architectures)

    given_ = dict(TrainingCommand.parse(recipe.read(name)).flags)
    suffix = name.removeprefix("iwslt15-").removeprefix("wmt14-").removesuffix("-16k").removesuffix("-t2t-v3")
    suffix = suffix.replace("-", "_")
    arch = f"transformer_sas_{'iwslt' if name.startswith('iwslt') else 'wmt'}_{suffix}"
    preset = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](preset)
    for option in ("embed_dim", "ffn_embed_dim", "layers", "attention_heads"):
        for stack in ("encoder", "decoder"):
            flag = f"--{stack}-{option.replace('_', '-')}"
            assert int(given_[flag][0]) == getattr(preset, f"{stack}_{option}"), flag
    assert float(given_["--dropout"][0]) == preset.dropout
    numbers = [int(given_[flag][0]) for flag in ("--distributed-world-size", "--max-tokens")]
    expected = {"iwslt15": 4096, "wmt14": 16_384 if name.endswith("16k") else 32_768}[name.split("-")[0]]
    assert math.prod(numbers) == expected
    factor, warmup, betas = (2, 8000, "(0.9, 0.997)") if name.endswith("v3") else (1, 4000, "(0.9, 0.98)")
    peak = factor * preset.encoder_embed_dim**-0.5 * warmup**-0.5
    assert float(given_["--lr"][0]) == pytest.approx(peak, rel=1e-3)
    assert given_["--warmup-updates"] == (str(warmup),) and given_["--adam-betas"] == (betas,)
    # the last update must be saved, so that it is averaged
    assert int(given_["--max-update"][0]) % int(given_["--save-interval-updates"][0]) == 0
    updates = {"wmt14-en-de-big": 300_000, "wmt14-en-fr-big": 300_000}.get(name, 100_000)
    assert given_["--max-update"] == (str(550_000 if name.endswith("16k") else updates),)
