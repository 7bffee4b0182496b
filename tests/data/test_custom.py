"""data/text/custom.py: the content of the data folder, refused input, and no half-made folders."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.data.text import custom, fairseq_preprocess

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {"train": 301, "valid": 43, "test": 203}


def flags(prefixes: dict[str, Path], out: Path, **changed: object) -> list[str]:
    settings: dict[str, object] = {"name": "tiny", "source": "en", "target": "xx", "vocab-size": 90, "workers": 1}
    settings |= {**prefixes, "out": out, **{key.replace("_", "-"): value for key, value in changed.items()}}
    return [str(word) for key, value in settings.items() for word in (f"--{key}", value)]


def content(folder: Path) -> dict[str, str]:
    """Return the hash of every file in a folder."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def copy(prefixes: dict[str, Path], folder: Path) -> dict[str, Path]:
    """Copy the raw text, so that a test can damage it."""
    shutil.copytree(prefixes["train"].parent, folder)
    return {split: folder / split for split in prefixes}


def test_data_folder_has_expected_files(corpus: Path, raw_text: dict[str, Path]) -> None:
    binary = {f"{split}.en-xx.{side}.{kind}" for split in COUNTS for side in ("en", "xx") for kind in ("bin", "idx")}
    reference = {f"ref/{split}.{side}" for split in ("valid", "test") for side in ("en", "xx")}
    beside = {"corpus.json", "spm.model", "dict.en.txt", "dict.xx.txt"}
    assert set(content(corpus)) == binary | reference | beside
    assert (corpus / "dict.en.txt").read_bytes() == (corpus / "dict.xx.txt").read_bytes()
    for name in reference:
        split, side = Path(name).name.split(".")
        assert (corpus / name).read_bytes() == Path(f"{raw_text[split]}.{side}").read_bytes()
    assert not corpus.with_name("data.partial").exists()


def test_corpus_json_records_the_preparation(corpus: Path, raw_text: dict[str, Path]) -> None:
    import sentencepiece

    record = json.loads((corpus / "corpus.json").read_text())
    assert (record["name"], record["source"], record["target"], record["vocab_size"]) == ("tiny", "en", "xx", 90)
    assert {split: lines["in"] for split, lines in record["lines"].items()} == COUNTS
    assert {split: lines["out"] for split, lines in record["lines"].items()} == COUNTS
    assert record["lines"]["train"]["dropped"] == {} and record["differences"] == []
    assert record["restore"] == {"post_process": "sentencepiece", "model": "spm.model"}
    assert record["text"] == {"form": "plain", "normalize": "none", "split_hyphens": False}
    assert record["subwords"] == {"model": "bpe", "normalizer": "nmt_nfkc"} and record["bleu_tokenize"] == "13a"
    assert record["unverified"] == []  # the user's own corpus has no release to compare with
    assert len(record["texts"]) == 6
    for label, item in record["texts"].items():
        split, file = label.split(" ")
        raw = Path(f"{raw_text[split]}.{file.split('.')[1]}").read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        unknown = {"member": None, "origin": None, "status": "unverified"}
        assert item == {"file": file, "lines": COUNTS[split], "sha256": digest, "file_sha256": digest, **unknown}
    assert record["round_trip"]["test"]["exact"] == record["round_trip"]["test"]["of"] == 203
    assert record["sizes"] == {name: (corpus / name).stat().st_size for name in record["checksums"]}
    assert record["checksums"] == {name: digest for name, digest in content(corpus).items() if name != "corpus.json"}
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(corpus / "spm.model"))
    for split, counts in record["tokens"].items():
        for side, count in counts.items():
            lines = Path(f"{raw_text[split]}.{side}").read_text().splitlines()
            assert count == sum(len(pieces.encode(line)) for line in lines)


def test_binary_files_contain_the_text(corpus: Path, raw_text: dict[str, Path]) -> None:
    from fairseq.data import Dictionary, data_utils

    words = Dictionary.load(str(corpus / "dict.en.txt"))
    for split in COUNTS:
        for side in ("en", "xx"):
            stored = data_utils.load_indexed_dataset(str(corpus / f"{split}.en-xx.{side}"), words, "mmap")
            lines = Path(f"{raw_text[split]}.{side}").read_text().splitlines()
            assert [words.string(item, bpe_symbol="sentencepiece") for item in stored] == lines
            assert all(words.unk() not in item for item in stored)


def test_same_corpus_is_reused(
    corpus: Path, raw_text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(corpus, data)
    before = {file: file.stat().st_mtime_ns for file in data.rglob("*")}
    assert custom.main(flags(raw_text, data)) == 0
    assert "already contains this corpus" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in data.rglob("*")} == before
    # Moving the raw text does not change it.
    assert custom.main(flags(copy(raw_text, tmp_path / "moved"), data)) == 0


@pytest.mark.parametrize("change", ["vocabulary", "name", "text", "no corpus.json", "broken corpus.json"])
def test_another_corpus_is_refused(
    change: str, corpus: Path, raw_text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, prefixes, changed = tmp_path / "data", copy(raw_text, tmp_path / "raw"), {}
    shutil.copytree(corpus, data)
    if change == "vocabulary":
        changed = {"vocab_size": 80}
    elif change == "name":
        changed = {"name": "other"}
    elif change == "text":
        Path(f"{prefixes['train']}.xx").write_text("la vulpo .\n" * 301)
    elif change == "no corpus.json":
        (data / "corpus.json").unlink()
    else:
        (data / "corpus.json").write_text("{")
    before = content(data)
    assert custom.main(flags(prefixes, data, **changed)) == 2
    error = capsys.readouterr().err
    assert str(data) in error and "Traceback" not in error
    assert ("corpus.json" if "corpus.json" in change else "a different corpus") in error
    assert content(data) == before


def spoil(kind: str, prefixes: dict[str, Path]) -> tuple[Path, str]:
    """Damage the raw text; return the file that the error must name, and part of the message."""
    file = Path(f"{prefixes['valid']}.xx")
    lines = file.read_bytes().split(b"\n")
    if kind == "unequal":
        file.write_bytes(b"\n".join(lines[1:]))
        return file, "has 42;"
    if kind == "not UTF-8":
        lines[4] = b"la \xff\xfe vulpo"
        file.write_bytes(b"\n".join(lines))
        return file, ":5: not UTF-8"
    if kind == "NUL":
        lines[6] = b"la \0 vulpo"
        file.write_bytes(b"\n".join(lines))
        return file, ":7: contains a NUL"
    if kind == "missing":
        file.unlink()
        return file, "No such file"
    if kind == "empty":
        for side in ("en", "xx"):
            Path(f"{prefixes['valid']}.{side}").write_bytes(b"")
        return Path("tiny: "), "the valid text is empty"
    file = Path(f"{prefixes['test']}.en")  # "mark"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    return file, "byte-order mark"


@pytest.mark.parametrize("kind", ["unequal", "not UTF-8", "NUL", "missing", "empty", "mark"])
def test_bad_text_is_reported_and_nothing_is_written(
    kind: str, raw_text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefixes = copy(raw_text, tmp_path / "raw")
    file, said = spoil(kind, prefixes)
    assert custom.main(flags(prefixes, tmp_path / "out" / "data")) == 2
    error = capsys.readouterr().err
    assert error.startswith("fairseq-resid prepare custom: error: ") and len(error.splitlines()) == 1
    assert str(file) in error and said in error
    assert not (tmp_path / "out" / "data").exists()


def test_swapping_texts_makes_a_different_corpus(corpus: Path, raw_text: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "data")
    exchanged = {**raw_text, "valid": raw_text["test"], "test": raw_text["valid"]}
    assert custom.main(flags(exchanged, tmp_path / "data")) == 2


def test_test_set_that_is_no_longer_given_makes_a_different_corpus(
    raw_text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = flags(raw_text, tmp_path / "data")
    test = given.index("--test") + 1
    assert custom.main([*given[: test + 1], str(raw_text["valid"]), *given[test + 1 :]]) == 0
    assert custom.main(given) == 2
    assert "a different corpus (it also has test1 " in capsys.readouterr().err


def test_comma_in_output_path_is_refused_before_work_begins(
    raw_text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert custom.main(flags(raw_text, tmp_path / "one,two")) == 2
    assert "must not contain a comma" in capsys.readouterr().err and not [*tmp_path.iterdir()]


def test_subwords_are_learned_from_long_lines_too(raw_text: dict[str, Path], tmp_path: Path) -> None:
    prefixes = copy(raw_text, tmp_path / "raw")
    for side in ("en", "xx"):
        for split in ("train", "valid"):
            with open(f"{prefixes[split]}.{side}", "a", encoding="utf-8") as file:
                file.write("ж " * (4_900 if split == "train" else 1) + "\n")
    assert custom.main(flags(prefixes, tmp_path / "data")) == 0
    assert json.loads((tmp_path / "data" / "corpus.json").read_text())["round_trip"]["valid"]["bleu"] == 100.0


def test_training_pairs_with_an_empty_side_are_counted(
    raw_text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefixes = copy(raw_text, tmp_path / "raw")
    for side, line in (("en", 4), ("en", 9), ("xx", 2)):
        file = Path(f"{prefixes['train']}.{side}")
        lines = file.read_text().splitlines()
        lines[line] = " "
        file.write_text("".join(f"{text}\n" for text in lines))
    kept, clean = tmp_path / "kept", tmp_path / "clean"
    assert custom.main(flags(prefixes, kept)) == 0
    assert "; a side is empty in 3 of these pairs (--clean drops them)" in capsys.readouterr().out
    assert json.loads((kept / "corpus.json").read_text())["lines"]["train"]["half_empty"] == 3
    assert custom.main([*flags(prefixes, clean), "--clean"]) == 0
    assert "298 of 301 pairs" in (shown := capsys.readouterr().out) and "a side is empty" not in shown


def test_texts_may_share_a_name_in_different_folders(raw_text: dict[str, Path], tmp_path: Path) -> None:
    prefixes = {}
    for split, prefix in raw_text.items():
        prefixes[split] = tmp_path / split / "text"
        prefixes[split].parent.mkdir()
        for side in ("en", "xx"):
            shutil.copy(f"{prefix}.{side}", f"{prefixes[split]}.{side}")
    for _ in range(2):
        assert custom.main(flags(prefixes, tmp_path / "data")) == 0
    record = json.loads((tmp_path / "data" / "corpus.json").read_text())
    assert [item["lines"] for item in record["texts"].values()] == [301, 301, 43, 43, 203, 203]


@pytest.mark.parametrize(("size", "bound"), [(30_000, "at most"), (5, "at least")])
def test_impossible_vocabulary_size_is_reported(
    size: int, bound: str, raw_text: dict[str, Path], tmp_path: Path, capfd: Any
) -> None:
    """The bound in the message is exact: the text can be prepared with it."""
    assert custom.main(flags(raw_text, tmp_path / "data", vocab_size=size)) == 2
    end = f"error: --vocab-size {size}: must be {bound} ([0-9]+) for this training text\n"
    said = capfd.readouterr().err
    found = re.search(f"{end}$", said)
    assert "absl" not in said
    assert not (tmp_path / "data").exists()
    assert found and custom.main(flags(raw_text, tmp_path / "data", vocab_size=found[1])) == 0


def test_killed_preparation_can_be_repeated(corpus: Path, raw_text: dict[str, Path], tmp_path: Path) -> None:
    """A killed run leaves no OUT; the next run resumes with 2 workers and writes the same bytes."""
    data = tmp_path / "data"
    partial = tmp_path / "data.partial"
    command = [sys.executable, "-m", "fairseq_resid", "prepare", "custom", *flags(raw_text, data)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(partial.glob("encode-*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert partial.exists() and not data.exists()
    (partial / "binarise-0").mkdir()
    (partial / "binarise-0" / "dict.en.txt").write_text("left over\n")

    assert custom.main(flags(raw_text, data, workers=2)) == 0
    assert content(data) == content(corpus)
    assert not partial.exists()


def test_sentencepiece_model_contains_no_path(corpus: Path) -> None:
    """Otherwise spm.model would depend on the folder, and a shared model would reveal local paths."""
    assert str(corpus.parent).encode() not in (corpus / "spm.model").read_bytes()


def test_failing_preprocess_is_reported_and_leaves_no_data_folder(
    raw_text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def fail(argv: list[str], output: Any, lock: Any = None, **settings: Any) -> int:
        output.write(b"no space left\n")
        output.flush()
        return 3

    monkeypatch.setattr(fairseq_preprocess.children, "run", fail)
    assert custom.main(flags(raw_text, tmp_path / "data")) == 1
    error = capsys.readouterr().err
    assert "exit code 3" in error and "no space left" in error
    assert not (tmp_path / "data").exists()
