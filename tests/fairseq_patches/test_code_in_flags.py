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
# fairseq evaluates these while it parses the command line or builds the optimizer or the model.
FLAGS = ("--adam-betas", "--lr", "--update-freq", "--adaptive-softmax-cutoff", "--encoder-xformers-att-config")


@pytest.mark.parametrize("flag", FLAGS)
def test_code_in_a_flag_is_refused(flag: str, corpus: Path, tmp_path: Path, cli: Any) -> None:
    ran = tmp_path / "ran"
    flags = ["--arch", "transformer_sas_tiny", "--optimizer", "adam", "--max-update", "1", "--cpu", "--no-save"]
    done = cli("fairseq-train", corpus, *flags, flag, CODE.format(str(ran)), check=False)
    assert done.code == 2 and f"argument {flag}: " in done.output and not ran.exists()


@pytest.mark.parametrize("value", ["1e-3 x", "[1e-3", "1e-3;", "(" * 500])
def test_typo_in_a_number_list_gives_a_one_line_error(value: str, corpus: Path, cli: Any) -> None:
    done = cli("fairseq-train", corpus, "--arch", "transformer_sas_tiny", "--lr", value, check=False)
    error = done.output.splitlines()[-1]
    assert done.code == 2 and "argument --lr: " in error and "only literals are allowed" in error


@pytest.mark.parametrize("flag", FLAGS[:2])
def test_code_in_a_recipe_is_refused(flag: str, corpus: Path, tmp_path: Path, capsys: Any) -> None:
    ran, recipe = tmp_path / "ran", tmp_path / "recipe.txt"
    recipe.write_text(f"{corpus}\n--optimizer adam --max-update 1 {flag} {shlex.quote(CODE.format(str(ran)))}\n")
    command = ["train", str(recipe), "--arch", "transformer_sas_tiny", "--run", str(tmp_path / "run")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert f"argument {flag}: " in error and "__import__('pathlib')" in error and not ran.exists()


def test_code_in_a_study_is_refused(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    flags = f"--residual sas --adam-betas {shlex.quote(CODE.format(str(ran)))}"
    path = studies.written(tmp_path, studies.TEXT.replace("--residual sas", flags, 1))
    with pytest.raises(ValueError, match=r"trial\.yaml: sas in flat: .*--adam-betas"):
        plan.check_study(plan.read_study(path), path)
    assert not ran.exists()


@pytest.mark.parametrize("words", ["--plan", "--results", "--only flat.sas.0.004.seed1"])
def test_study_and_its_recipe_import_no_code(words: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Checking a kept run parses its flags, and fairseq's parser would import the folder that --user-dir names."""
    monkeypatch.chdir(tmp_path)
    ran, plugin = tmp_path / "ran", tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(CODE.format(str(ran)))
    file = studies.written(tmp_path, studies.SMALL)
    studies.all_kept(tmp_path / "trial", plan.read_study(file))
    text = file.read_text()
    (tmp_path / "recipe.txt").write_text("data\n--user-dir plugin --lr 0.1 --max-update 9 --batch-size 9\n")
    for changed in (
        text.replace("--residual sas", "--residual sas --user-dir plugin", 1),
        text.replace("recipe: quickstart", f"recipe: {tmp_path / 'recipe.txt'}"),
    ):
        assert changed != text
        file.write_text(changed)
        assert main(["study", str(file), *words.split()]) == 2
        error = capsys.readouterr().err
        assert "trial.yaml: " in error and "--user-dir: set by this command" in error and not ran.exists()


@pytest.mark.parametrize("place", ["arm", "recipe"])
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
def test_study_cannot_name_a_file_outside_its_data(tmp_path: Path, flag: str, place: str) -> None:
    recipe = tmp_path / "recipe.txt"
    recipe.write_text(f"data\n--lr 0.1 --max-epoch 9 --batch-size 9 {flag if place == 'recipe' else ''}\n")
    text = studies.TEXT.replace("recipe: quickstart", f"recipe: {recipe}")
    if place == "arm":
        text = text.replace("--residual post_ln", f"--residual post_ln {flag}", 1)
    path = studies.written(tmp_path, text)
    with pytest.raises(ValueError, match=rf"trial\.yaml: base in flat: {flag.replace('.', '[.]')}: names a file"):
        plan.check_study(plan.read_study(path), path)
