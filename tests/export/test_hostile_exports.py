"""Untrusted export folders: one line names the file, nothing outside the folder is opened, and nothing hangs."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid import records
from fairseq_resid.evaluation import evaluate, translate
from fairseq_resid.export.engine import ENGINES, RECORD, Search, Text, load
from fairseq_resid.export.translator import Translator
from support.engines import described, exported, need
from support.models import build, shaken

pytestmark = [need("ctranslate2"), need("onnx"), need("huggingface"), pytest.mark.once]

SMALL = {
    **{f"{stack}_{name}": 16 for stack in ("encoder", "decoder") for name in ("embed_dim", "ffn_embed_dim")},
    **{f"{stack}_attention_heads": 2 for stack in ("encoder", "decoder")},
    **{f"{stack}_layers": 1 for stack in ("encoder", "decoder")},
}
TEXT = Text("en", "xx", post_process="subword_nmt", model="bpe.codes")
SECRET = "the-secret-in-a-private-file"
each_engine = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an export for every engine; tests must not change it."""
    folder = tmp_path_factory.mktemp("exports")
    model = shaken(build(residual="post_ln", max_source_positions=64, max_target_positions=64, **SMALL), 7, 0.1)
    for name in ENGINES:
        out = folder / name
        exported(name, model, out)
        (out / "bpe.codes").write_text("#version: 0.2\nw 1</w>\n")
        records.write(out / RECORD, described(name, model, TEXT))
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies an engine's export, so that a test may change it."""
    return lambda name: Path(shutil.copytree(made / name, tmp_path / "out"))


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def error_of(folder: Path, monkeypatch: Any, capsys: Any) -> str:
    """Return the one-line error with which both `translate` and Translator refuse a folder."""
    with pytest.raises((ValueError, OSError)) as refused:
        Translator(folder).translate(["w1 w2"])
    reason = str(refused.value)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w1 w2\n")))
    assert translate.main([str(folder)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and error.startswith("fairseq-resid translate: error: ")
    assert str(folder) in reason and "\n" not in reason and SECRET not in reason + error
    return reason


@each_engine
def test_an_export_of_each_engine_translates(engine: str, made: Path) -> None:
    translator = Translator(made / engine)
    (translation,) = translator.translate(["w1 w2"])
    assert isinstance(translation, str) and translator.translate("w1 w2") == translation


# ---------------------------------------------------------------------------------- links, pipes, devices, huge files


def outside(path: Path) -> None:
    secret = path.parent.with_name("private.json")
    secret.write_text(json.dumps([SECRET]))
    path.symlink_to(secret)


def giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 43)


REPLACED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a link out of the folder": (outside, "outside"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "outside"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "a folder": (Path.mkdir, "[Dd]irectory"),
    "8 TiB of zeros": (giant, "bytes; at most"),
}


@each_engine
@pytest.mark.parametrize("how", REPLACED)
def test_every_file_must_be_a_regular_file_in_the_folder(
    how: str, engine: str, copied: Callable[[str], Path], monkeypatch: Any, capsys: Any
) -> None:
    folder = copied(engine)
    make, reason = REPLACED[how]
    loader = ENGINES[engine].load()
    for name in [*loader.FILES, "bpe.codes"]:
        file = folder / name
        kept = file.read_bytes() if file.exists() else None
        file.unlink(missing_ok=True)
        make(file)
        error = error_of(folder, monkeypatch, capsys)
        assert str(file) in error and re.search(reason, error), (name, error)
        file.rmdir() if how == "a folder" else file.unlink()
        if kept is not None:
            file.write_bytes(kept)
    Translator(folder).translate(["w1"])


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "short": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "foreign": lambda file: file.write_bytes(b"PK\x03\x04" + bytes(5000)),
}


@each_engine
@pytest.mark.parametrize("how", DAMAGED)
def test_every_file_must_be_complete(
    how: str, engine: str, copied: Callable[[str], Path], monkeypatch: Any, capsys: Any
) -> None:
    folder = copied(engine)
    for file in [folder / name for name in ENGINES[engine].load().FILES if (folder / name).exists()]:
        kept = file.read_bytes()
        DAMAGED[how](file)
        error_of(folder, monkeypatch, capsys)
        file.write_bytes(kept)
    Translator(folder).translate(["w1"])


@pytest.mark.parametrize("engine", ["ctranslate2", "huggingface"])
def test_files_that_a_library_would_also_open_are_refused(
    engine: str, copied: Callable[[str], Path], monkeypatch: Any, capsys: Any
) -> None:
    folder = copied(engine)
    for name in ENGINES[engine].load().FOREIGN:
        os.mkfifo(folder / name)
        assert f"{folder / name}: not written by fairseq-resid export; remove it" in error_of(
            folder, monkeypatch, capsys
        )
        (folder / name).unlink()


@each_engine
def test_the_description_must_be_in_the_folder(engine: str, copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(engine)
    (folder / RECORD).rename(tmp_path / "other.json")
    (folder / RECORD).symlink_to(tmp_path / "other.json")
    with pytest.raises(ValueError, match=r"export\.json: leads to .*, outside"):
        load(folder)


@pytest.mark.parametrize("model", ["../private", "/etc/passwd", "..", ".", "", "a/b", "x\0y", "missing"])
def test_the_subword_model_must_be_in_the_folder(
    model: str, copied: Callable[[str], Path], monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    (tmp_path / "private").write_text(SECRET)
    folder = copied("ctranslate2")
    change(folder / RECORD, text={"source": "en", "target": "xx", "post_process": "subword_nmt", "model": model})
    error_of(folder, monkeypatch, capsys)


# ------------------------------------------------------------------------------------------ settings of the search

SEARCHES: list[dict[str, Any]] = [
    {"beam": 10**6},
    {"beam": 0},
    {"beam": 2.5},
    {"beam": True},
    {"batch_size": 10**9},
    {"batch_size": -1},
    {"nbest": 5},
    {"nbest": 0},
    {"length_penalty": 1e300},
    {"length_penalty": "0.6"},
    {"length_penalty": None},
    {"max_len_a": 1e9},
    {"max_len_a": -1e9},
    {"max_len_b": 10**30},
    {"max_len_b": -5},
]


@each_engine
@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_search_settings_are_bounded(
    search: dict[str, Any], engine: str, copied: Callable[[str], Path], monkeypatch: Any, capsys: Any
) -> None:
    folder = copied(engine)
    change(folder / RECORD, search=search)
    assert str(folder / RECORD) in error_of(folder, monkeypatch, capsys)


@pytest.mark.parametrize("name", ["length_penalty", "max_len_a", "max_len_b"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e12])
def test_settings_given_in_python_are_bounded(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} .*: must be "):
        Search(**{name: value})


def test_a_wide_beam_makes_batches_smaller() -> None:
    assert Search().together == 32 and Search(beam=1000, batch_size=10_000).together == 4
    assert Search(beam=1000).together == 4 and Search(batch_size=1).together == 1


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"format": 2}, "format 2: this version reads format 1"),
    ({"format": "1"}, "damaged"),
    ({"engine": "pickle"}, "engine 'pickle': must be one of ctranslate2"),
    ({"engine": ["onnx"]}, "damaged"),
    ({"longest": [10**9, 10**9]}, "at most"),
    ({"longest": [0, 1]}, "must be positive"),
    ({"longest": [1, 2, 3]}, "damaged"),
    ({"longest": [1.5, 2]}, "damaged"),
    ({"text": {"source": "../../x", "target": "b"}}, "damaged"),
    ({"text": {"source": "a", "target": ""}}, "damaged"),
    ({"text": {"source": "a", "target": "b", "form": "code"}}, "form 'code': must be one of plain"),
    ({"text": {"source": "a", "target": "b", "form": 3, "model": "bpe.codes"}}, "damaged"),
    ({"text": {"source": "a", "target": "b", "normalize": "x", "model": "bpe.codes"}}, "normalize 'x': must be one"),
    ({"text": {"source": "a", "target": "b", "post_process": "--user-dir=x", "model": "bpe.codes"}}, "unknown kind"),
    ({"text": {"source": "a", "target": "b", "post_process": "sentencepiece", "model": "bpe.codes"}}, "not a sentence"),
    ({"text": {"source": "a", "target": "b", "model": "../../etc/passwd"}}, "must be the name of a file"),
    ({"text": []}, "damaged"),
    ({"search": []}, "damaged"),
    ({"structure": 3}, "damaged"),
    ({"run": 3}, "damaged"),
    ({"data": None}, "damaged"),
    ({"proof": 3}, "damaged"),
]


@pytest.mark.parametrize(("changes", "reason"), FIELDS, ids=str)
def test_fields_of_the_description_are_checked(
    changes: dict[str, Any], reason: str, copied: Callable[[str], Path], monkeypatch: Any, capsys: Any
) -> None:
    folder = copied("ctranslate2")
    change(folder / RECORD, **changes)
    assert reason in error_of(folder, monkeypatch, capsys)


@each_engine
def test_length_beyond_the_position_table_is_refused(
    engine: str, copied: Callable[[str], Path], monkeypatch: Any, capsys: Any
) -> None:
    folder = copied(engine)
    change(folder / RECORD, longest=[65, 64])
    assert re.search("must be (at least )?65", error_of(folder, monkeypatch, capsys))


# --------------------------------------------------------------------- sacrebleu's tokenisers and the data folder

ELSEWHERE = ["flores200", "flores101", "spm", "spBLEU-1K", "unknown", ""]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_tokenisers_that_need_a_download_are_refused(
    name: str, copied: Callable[[str], Path], corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    folder = copied("ctranslate2")
    whole = json.loads((folder / RECORD).read_text())
    change(folder / RECORD, text={**whole["text"], "tokenize": name})
    assert evaluate.main([str(folder)]) == 2
    assert f"{name!r}: must be one of 13a, none, zh, intl, char" in capsys.readouterr().err
    data = Path(shutil.copytree(corpus, tmp_path / "data"))
    change(data / "corpus.json", bleu_tokenize=name)
    (folder / RECORD).write_text(json.dumps({**whole, "data": str(data)}))
    assert evaluate.main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert str(data / "corpus.json") in error and f"{name!r}: must be one of 13a, none" in error


def test_evaluate_checks_the_data_folder_and_leaves_it_unchanged(
    copied: Callable[[str], Path], corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    folder = copied("ctranslate2")
    data = Path(shutil.copytree(corpus, tmp_path / "data"))
    change(folder / RECORD, data=str(data))
    (file,) = data.glob("test.*.en.bin")
    file.write_bytes(file.read_bytes()[:-1])
    before = {each: each.stat().st_mtime_ns for each in data.rglob("*")}
    assert evaluate.main([str(folder), "--subset", "test"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and file.name in error
    assert {each: each.stat().st_mtime_ns for each in data.rglob("*")} == before
    for wrong in ("/dev", "no such folder", "/proc/self", "x\0y", "a" * 5000):
        change(folder / RECORD, data=wrong)
        assert evaluate.main([str(folder), "--subset", "test"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
