"""A model is only loaded with the dictionaries that it was trained with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.analysis import analyze, attention
from fairseq_resid.evaluation import translate
from fairseq_resid.export import export

ALL = [
    (analyze.main, []),
    (attention.main, []),
    (translate.main, []),
    (export.main, ["--to", "onnx", "--out", "exported"]),
]


@pytest.mark.parametrize(("main", "flags"), ALL, ids=["analyze", "attention", "translate", "export"])
def test_dictionary_with_other_words_is_refused(
    main: Any, flags: list[str], sas_checkpoint: Path, corpus: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    """The words are as many as the model's, so that fairseq would load them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "check_installed", lambda engine: None)
    shutil.copytree(corpus, "other")
    file = Path("other/dict.en.txt")
    first, second, *rest = file.read_text().splitlines(keepends=True)
    file.write_text("".join([second, first, *rest]))
    assert main([str(sas_checkpoint.parent), "--data", "other", *flags]) == 2
    error = capsys.readouterr().err
    assert f"trained with {corpus / file.name}, but " in error and "other/dict.en.txt is another dictionary" in error
    assert f": its line 1 has '{second.split()[0]}' instead of '{first.split()[0]}'" in error
    assert error.count("error: ") == 1 and error.count("\n") == 1
    assert not Path("exported").exists()
