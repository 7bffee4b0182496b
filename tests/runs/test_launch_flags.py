"""Recipes, architectures, data and flags that `fairseq-resid train` accepts or refuses."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fairseq_resid.runs import launch, plan, recipe, request
from fairseq_resid.runs.run import Run
from fairseq_resid.runs.training_command import TrainingCommand
from support.fake_training import calls, make_data

Capture = pytest.CaptureFixture[str]

RUN = ["--run", "run"]


def test_architecture_size_that_contradicts_recipe_is_refused(fake_train: Path, capsys: Capture) -> None:
    make_data(fake_train / "data")
    Path("mine.txt").write_text("data --encoder-embed-dim 512 --max-tokens 100\n")
    assert launch.main(["mine.txt", "--arch", "transformer_sas_big"]) == 2
    error = capsys.readouterr().err
    assert "--arch transformer_sas_big: has --encoder-embed-dim 1024, but the recipe has 512" in error
    assert launch.main(["mine.txt", "--arch", "transformer_sas_wmt_en_de"]) == 0
    assert launch.main(["mine.txt", "--arch", "transformer_sas_big", "--encoder-embed-dim", "1024"]) == 0


@pytest.mark.parametrize("extra", ["other --bf16", "--memory-efficient-fp16 other", "--restore-file other other --cpu"])
def test_given_data_folder_replaces_the_one_in_the_recipe(extra: str, fake_train: Path, capsys: Capture) -> None:
    """The folder may be at any position, and values of flags are not mistaken for it."""
    make_data(fake_train / "other")
    words = ["quickstart", *extra.split(), "--arch", "transformer", "--run", "run", "--precision", "auto"]
    assert launch.main([*words, "--dry-run"]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command[:3] == ["+", "fairseq-train", "other"] and "data-bin/phrasebook" not in command
    assert command.count("other") == extra.split().count("other")
    assert launch.main(words) == 0
    assert launch.main(["quickstart", "--arch", "transformer", "--run", "run"]) == 2
    assert "the data was other, now data-bin/phrasebook" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe_text", "extra", "said"),
    [
        ("data-bin/phrasebook --max-tokens 9", "other --seed 3 another", "data folder: other, another given; exactly"),
        ("--max-tokens 9", "", "data folder: none given; exactly one is needed"),
        ("data-bin/phrasebook --max-tokens 9 --arch transformer", "", "--arch: set by this command"),
        ("data-bin/phrasebook --max-tokens 9", "--save-dir x", "--save-dir: set by this command"),
        ("data-bin/phrasebook --max-tokens 9", "--drop-out=0.1", "--drop-out: fairseq-train has no such flag"),
        ("data-bin/phrasebook --max-tokens 9", "--amp --bf16", "--bf16 and --amp: give only one of them"),
        ("data-bin/phrasebook --max-tokens 9", "--run data-bin/phrasebook", "data-bin/phrasebook: is a data folder"),
        ("half --max-tokens 9", "", "half: incomplete data folder: train*.idx is missing for a language"),
    ],
)
def test_contradictory_flags_are_refused(
    recipe_text: str, extra: str, said: str, fake_train: Path, capsys: Capture
) -> None:
    make_data(fake_train / "half")
    (fake_train / "half" / "train.en-vi.en.idx").unlink()
    Path("mine.txt").write_text(recipe_text)
    assert launch.main(["mine.txt", *extra.split(), "--arch", "transformer", *([] if "--run" in extra else RUN)]) == 2
    assert said in capsys.readouterr().err and not calls(fake_train)


def test_recipe_is_parsed_as_by_a_shell(tmp_path: Path) -> None:
    text = (
        "\ufeff# It's mine: \\\ndata#2 --lr 1e-3 \\\n  --dropout 0.1# # 10%\n\t#--fp16\n--adam-betas '(0.9, 0.98)' #'\n"
    )
    (tmp_path / "mine.txt").write_text(text)
    words = ["data#2", "--lr", "1e-3", "--dropout", "0.1#", "--adam-betas", "(0.9, 0.98)"]
    assert recipe.read(str(tmp_path / "mine.txt")) == words


@pytest.mark.parametrize("name", recipe.available())
@pytest.mark.parametrize("arch", ["transformer", "transformer_sas", "transformer_rskip_ln"])
def test_shipped_recipes_parse_and_keep_checkpoints_to_average(name: str, arch: str, tmp_path: Path) -> None:
    from fairseq import options

    import fairseq_resid.models  # noqa: F401  (registers the architectures)

    words = recipe.read(name)
    if name.endswith("v3") and arch == "transformer":  # stock has no --final-norm, so our pre_ln is the baseline
        arch, words = "transformer_resid", [*words, "--residual", "pre_ln"]
    base = TrainingCommand.parse(words)
    planned = plan.plan_training(base, TrainingCommand(), [], None)
    command = request.build_command(base, arch, Run(tmp_path), TrainingCommand(), planned.argv)
    args = options.parse_args_and_arch(options.get_training_parser(), command.arguments)
    assert args.arch == arch and args.distributed_world_size == 1
    if "epoch" in recipe.evaluation(name):  # as published: keep all epochs and average the last ones
        assert not args.no_epoch_checkpoints and args.keep_last_epochs == -1 and args.save_interval_updates == 0
        return
    # the averaged checkpoints must span at most the final fifth of training
    assert args.no_epoch_checkpoints
    updates = args.max_update or 3570
    assert args.keep_interval_updates * args.save_interval_updates <= 0.2 * updates
