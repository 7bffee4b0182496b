"""Flags that fairseq would evaluate: code in a recipe, a study or on the command line is refused and never runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import fairseq_resid.models  # noqa: F401  (applies the patches)
from fairseq_resid.__main__ import main
from fairseq_resid.study import plan
from support import studies

CODE = """__import__('pathlib').Path({!r}).touch()"""
# Evaluated while the command line is parsed, or while the optimizer or the model is built.
FLAGS = ("--adam-betas", "--lr", "--update-freq", "--adaptive-softmax-cutoff", "--encoder-xformers-att-config")


@pytest.mark.parametrize("flag", FLAGS)
def test_code_in_a_flag_is_refused(flag: str, corpus: Path, tmp_path: Path, cli: Any) -> None:
    ran = tmp_path / "ran"
    flags = ["--arch", "transformer_sas_tiny", "--optimizer", "adam", "--max-update", "1", "--cpu", "--no-save"]
    done = cli("fairseq-train", corpus, *flags, flag, CODE.format(str(ran)), check=False)
    assert done.code == 2 and f"argument {flag}: " in done.output and not ran.exists()


@pytest.mark.parametrize("value", ["1e-3 x", "[1e-3", "1e-3;", "(" * 500])
def test_typo_in_a_list_of_numbers_gives_a_one_line_error(value: str, corpus: Path, cli: Any) -> None:
    done = cli("fairseq-train", corpus, "--arch", "transformer_sas_tiny", "--lr", value, check=False)
    error = done.output.splitlines()[-1]
    assert done.code == 2 and "argument --lr: " in error and "only literals are allowed" in error


@pytest.mark.parametrize("flag", FLAGS[:2])
def test_code_in_a_recipe_is_refused(flag: str, corpus: Path, tmp_path: Path, capsys: Any) -> None:
    ran, recipe = tmp_path / "ran", tmp_path / "recipe.txt"
    recipe.write_text(f"{corpus}\n--optimizer adam --max-update 1 {flag} {shlex.quote(CODE.format(str(ran)))}\n")
    command = ["train", str(recipe), "--arch", "transformer_sas_tiny", "--run", str(tmp_path / "run")]
    assert main(command) == 2
    assert f"argument {flag}" in capsys.readouterr().err and not ran.exists()


def test_code_in_a_study_is_refused(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    flags = f"--residual sas --adam-betas {shlex.quote(CODE.format(str(ran)))}"
    path = studies.written(tmp_path, studies.TEXT.replace("--residual sas", flags, 1))
    with pytest.raises(ValueError, match=r"trial\.yaml: sas in flat: .*--adam-betas"):
        plan.check_study(plan.read_study(path), path)
    assert not ran.exists()


@pytest.mark.parametrize(
    "flag",
    [
        "--restore-file /elsewhere/checkpoint.pt",
        "--finetune-from-model other.pt",
        "--encoder-embed-path vectors",
        "--tensorboard-logdir ~/logs",
        "--valid-subset ../other/valid",
    ],
)
def test_study_names_no_file_outside_its_data(tmp_path: Path, flag: str) -> None:
    path = studies.written(tmp_path, studies.TEXT.replace("--residual sas", f"--residual sas {flag}", 1))
    with pytest.raises(ValueError, match=rf"trial\.yaml: sas in flat: {flag.replace('.', '[.]')}: names a file"):
        plan.check_study(plan.read_study(path), path)
