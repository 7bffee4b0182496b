"""A user's own text: a Chinese side, both directions, blank lines, a long line, and references that are too short.

Everything goes through commands, which run in this process, and the expected scores come from stock fairseq-generate
and sacrebleu.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU

from fairseq_resid.export.engine import OLDEST_PYTHON
from support import shells

pytestmark = pytest.mark.once

Command = Callable[..., Any]
WORDS = {"red": "红色", "green": "绿色", "blue": "蓝色", "old": "旧的", "new": "新的", "house": "房子"}
EMPTY, ZERO_WIDTH, SPACE, LONG = 3, 5, 7, 11  # lines of valid and test
SEARCH = ("--max-len-a", "0", "--max-len-b", "30")
MODEL = """
--arch transformer_resid --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32
--encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64 --encoder-attention-heads 2 --decoder-attention-heads 2
--share-all-embeddings --dropout 0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam
--lr 0.01 --max-tokens 256 --max-update 150 --save-interval-updates 50 --no-epoch-checkpoints --log-format json
"""


def resid(folder: Path, *words: object, text: str = "") -> str:
    done = shells.resid(folder, *words, text=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(folder: Path, *words: object) -> str:
    """Return the error of a command that fails with one line."""
    done = shells.resid(folder, *words)
    lines = [line for line in done.stderr.splitlines() if "error: " in line]
    assert done.returncode == 2 and len(lines) == 1, done.stdout + done.stderr
    return lines[0]


def trained(cli: Command, folder: Path, data: str, run: str, *flags: str) -> None:
    done = cli("fairseq-train", folder / data, *MODEL.split(), *flags, "--save-dir", folder / run)
    (folder / run / "train.log").write_text(done.output)


def write(folder: Path, split: str, english: list[str], chinese: list[str]) -> None:
    for language, lines in (("en", english), ("zh", chinese)):
        (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def prepare(folder: Path, out: str, *flags: str) -> tuple[str, ...]:
    languages = ("--source", "en", "--target", "zh", "--vocab-size", "60")
    texts = tuple(word for split in ("train", "valid", "test") for word in (f"--{split}", split))
    return ("prepare", "custom", "--name", "colours", *languages, *texts, "--out", out, "--workers", "1", *flags)


@pytest.fixture(scope="session")  # a worker may run tests of another file in between
def own(cli: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data/, and the runs `forward` (en-zh, 2,048 source positions) and `reverse` (zh-en)."""
    folder, choose = tmp_path_factory.mktemp("own"), random.Random(1)
    for split, count in (("train", 300), ("valid", 20), ("test", 20)):
        chosen = [choose.choices(list(WORDS), k=choose.randint(4, 7)) for _ in range(count)]
        english = [" ".join(line) for line in chosen]
        chinese = ["".join(WORDS[word] for word in line) + "。" for line in chosen]
        if split != "train":
            english[EMPTY], english[ZERO_WIDTH], chinese[SPACE] = "", "\u200b", " "
        if split == "test":
            english[LONG] = " ".join(choose.choices(list(WORDS), k=1100))
        write(folder, split, english, chinese)
    resid(folder, *prepare(folder, "data"))
    for run, flags in (("forward", ["--max-source-positions", "2048"]), ("reverse", ["-s", "zh", "-t", "en"])):
        trained(cli, folder, "data", run, *flags)
        write_command(folder / run, flags)
    resid(folder, "evaluate", "forward", "--last", "2", "--cpu", *SEARCH)
    resid(folder, "evaluate", "reverse", "--last", "2", "--cpu", "--subset", "valid", *SEARCH)
    return folder


def write_command(run: Path, flags: list[str]) -> None:
    """Write the record of a run that was trained with these flags."""
    (run / "run.json").write_text(json.dumps({"command": ["fairseq-train", "data", *flags], "finished": True}))


def lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").split("\n")[:-1]


def fairseq_generate(cli: Command, folder: Path, run: str, source: str, target: str, *flags: str) -> list[str]:
    """Return the translations of valid by the last checkpoint, as fairseq-generate prints them."""
    search = ("--beam", "4", "--lenpen", "0.6", *SEARCH, "--post-process", "sentencepiece", *flags)
    words = ("--gen-subset", "valid", "-s", source, "-t", target, "--path", folder / run / "checkpoint_last.pt")
    found = cli("fairseq-generate", folder / "data", *words, *search).lines("D")
    return [found[number].split("\t")[1] for number in sorted(found)]


def results(folder: Path, run: str, subset: str) -> dict[str, object]:
    name = "results.json" if subset == "test" else f"results.{subset}.json"
    found: dict[str, object] = json.loads((folder / run / name).read_text())
    return found


@pytest.mark.both
@pytest.mark.parametrize(
    ("run", "source", "target", "tokenize", "blank"),
    [("forward", "en", "zh", "zh", [EMPTY, ZERO_WIDTH]), ("reverse", "zh", "en", "13a", [SPACE])],
)
def test_scores_equal_those_of_fairseq_generate_and_sacrebleu(
    own: Path, cli: Command, run: str, source: str, target: str, tokenize: str, blank: list[int]
) -> None:
    flags = ("--max-source-positions", "2048") if run == "forward" else ()
    translations = fairseq_generate(cli, own, run, source, target, *flags)
    assert all(translations[number] for number in blank)  # fairseq invents a translation of nothing
    expected = ["" if number in blank else line for number, line in enumerate(translations)]
    assert lines_of(own / run / "decode" / "valid.last.hyp") == expected
    references = lines_of(own / "data" / "ref" / f"valid.{target}")
    score = BLEU(tokenize=tokenize).corpus_score(expected, [references]).score
    found = results(own, run, "valid")
    assert score > 5 and found["bleu"]["last"] == pytest.approx(score, abs=1e-4)  # type: ignore[index]
    assert f"tok:{tokenize}|" in str(found["signature"])


def test_the_direction_of_a_run_is_part_of_its_corpus(own: Path) -> None:
    assert results(own, "reverse", "valid")["corpus"] == "colours zh-en"
    assert results(own, "forward", "valid")["corpus"] == "colours"
    error = refused(own, "compare", "forward", "reverse", "--subset", "valid")
    assert "corpus differs (colours and colours zh-en)" in error
    assert "colours zh-en" in (own / "reverse" / "card.md").read_text()
    resid(own, "report", "reverse", "--subset", "valid", "--out", "report.html")
    assert WORDS["red"] in (own / "report.html").read_text(encoding="utf-8")  # a Chinese source


def test_results_of_a_version_that_ignored_the_direction_are_refused(own: Path, tmp_path: Path) -> None:
    run = tmp_path / "old"
    run.mkdir()
    old = {key: value for key, value in results(own, "reverse", "valid").items() if key not in ("source", "target")}
    (run / "results.json").write_text(json.dumps(old | {"subset": "test"}))
    write_command(run, ["-s", "zh", "-t", "en"])
    assert f"ignored -s zh -t en; run fairseq-resid evaluate {run} again" in refused(own, "table", run)
    write_command(run, ["-s", "en", "-t", "zh"])  # the direction that was scored
    assert "tok:13a" in resid(own, "table", run)


def test_data_prepared_for_the_other_direction_is_translated_in_that_of_the_run(own: Path) -> None:
    shutil.copytree(own / "forward", own / "copy", ignore=shutil.ignore_patterns("decode", "results*"))
    texts = [word for split in ("train", "valid", "test") for word in (f"--{split}", split)]
    languages = ("--source", "zh", "--target", "en", "--vocab-from", "data")
    resid(own, "prepare", "custom", "--name", "colours", *languages, *texts, "--out", "swapped", "--workers", "1")
    flags = ("--last", "2", "--cpu", "--subset", "valid", "--data", "swapped", *SEARCH)
    resid(own, "evaluate", "copy", *flags)
    found, expected = results(own, "copy", "valid"), results(own, "forward", "valid")
    assert found["corpus"] == "colours en-zh"
    for name in ("bleu", "scores"):  # translations and NLL
        assert found[name] == expected[name]
    text = "old red house\n"
    forward = resid(own, "translate", "forward", "--cpu", text=text)
    assert forward == resid(own, "translate", "forward", "--cpu", "--data", "swapped", text=text)


def test_translate_returns_an_empty_line_for_every_blank_line(own: Path) -> None:
    given = ["old house", "", "  ", "\u200b", "\t\u00a0\ufeff", "red"]
    found = resid(own, "translate", "forward", "--cpu", text="".join(f"{line}\n" for line in given)).split("\n")[:-1]
    assert [bool(line) for line in found] == [True, False, False, False, False, True]


@pytest.mark.skipif(sys.version_info < OLDEST_PYTHON, reason="engines require a newer Python")
@pytest.mark.parametrize("engine", ["ctranslate2", "onnx", "huggingface"])
def test_exports_keep_direction_and_blank_lines(own: Path, engine: str, tmp_path: Path) -> None:
    out = tmp_path / engine
    resid(own, "export", "reverse", "--to", engine, "--out", out, "--checkpoint", "checkpoint_last.pt")
    found = resid(own, "translate", out, text="红色绿色。\n\n\u200b\n").split("\n")[:-1]
    assert re.search("red|green", found[0]) and found[1:] == ["", ""]
    score = results(own, "reverse", "valid")["bleu"]["last"]  # type: ignore[index]
    assert f"BLEU {score:.2f}  " in resid(own, "evaluate", out, "--subset", "valid", *SEARCH)
    record = json.loads((out / "export.json").read_text())
    record["text"] |= {"source": "en", "target": "zh"}  # as version 1.0.0 wrote it
    (out / "export.json").write_text(json.dumps(record))
    assert f"{out}: written by an earlier version" in refused(own, "evaluate", out, "--subset", "valid")


@pytest.mark.both
def test_too_long_line_is_named_before_decoding(own: Path) -> None:
    error = refused(own, "evaluate", "reverse", "--last", "2", "--cpu")
    assert f"data/ref/test.en:{LONG + 1}: 1,101 subwords, but the model has 1,024 positions" in error
    assert "--max-target-positions" in error and not (own / "reverse" / "decode" / "test.last.log").exists()


@pytest.mark.both
def test_a_model_with_more_positions_translates_long_lines(own: Path) -> None:
    assert lines_of(own / "forward" / "decode" / "test.last.hyp")[LONG]
    long = lines_of(own / "test.en")[LONG]
    assert resid(own, "translate", "forward", "--cpu", text=f"{long}\n").strip()


def test_another_tokeniser_scores_the_same_translations(own: Path) -> None:
    hypotheses, references = own / "forward" / "decode" / "test.last.hyp", own / "data" / "ref" / "test.zh"
    score = BLEU(tokenize="char").corpus_score(lines_of(hypotheses), [lines_of(references)]).score
    table = resid(own, "table", "forward", "--tokenize", "char")
    assert f"{score:.2f}" in table and "tok:char" in table
    assert "tok:zh" in resid(own, "table", "forward")  # the results themselves are unchanged
    error = refused(own, "table", "forward", "--tokenize", "ja-mecab")
    assert "pip install 'sacrebleu[ja]'" in error


def test_folder_of_an_earlier_version_gets_the_tokeniser_of_its_language(own: Path, tmp_path: Path) -> None:
    from fairseq_resid.data.text.folder import Corpus

    record = json.loads((own / "data" / "corpus.json").read_text())
    del record["asked"]["tokenize"]
    (tmp_path / "corpus.json").write_text(json.dumps(record | {"bleu_tokenize": "13a"}))
    assert Corpus.read(tmp_path).tokenize == "zh"
    assert Corpus.read(tmp_path, ("zh", "en")).tokenize == "13a"
    assert "fr and zh, but the model translates zh to en" in refused(
        own, "translate", "reverse", "--data", other_pair(own, tmp_path)
    )


def other_pair(own: Path, folder: Path) -> Path:
    """Return a copy of the data folder whose corpus.json names another language."""
    record = json.loads((own / "data" / "corpus.json").read_text())
    for file in (own / "data").iterdir():
        if file.is_file() and file.name != "corpus.json":
            os.link(file, folder / file.name)
    (folder / "corpus.json").write_text(json.dumps(record | {"source": "fr"}))
    return folder


def test_short_references_are_not_refused_and_come_with_chrf(cli: Command, tmp_path: Path) -> None:
    folder, choose = tmp_path, random.Random(2)
    for split, count in (("train", 200), ("valid", 10), ("test", 10)):
        chosen = [choose.choices(list(WORDS), k=2) for _ in range(count)]
        # Full-width punctuation is changed by the default normaliser, but not by NFC.
        chinese = [" ".join(WORDS[word] for word in line) + "！" for line in chosen]
        write(folder, split, [" ".join(line) for line in chosen], chinese)
    error = refused(folder, *prepare(folder, "short", "--tokenize", "13a"))
    assert "--spm-normalizer identity" in error and "NFC" not in error
    for file in folder.glob("*.zh"):
        file.write_text(file.read_text(encoding="utf-8").replace("！", ""), encoding="utf-8")
    out = resid(folder, *prepare(folder, "short", "--tokenize", "13a"))
    assert "BLEU 0.00, because none of its references has four tokens" in out and "short: done" in out
    trained(cli, folder, "short", "run")
    out = resid(folder, "evaluate", "run", "--last", "2", "--cpu", "--subset", "valid")
    assert "a perfect translation would score BLEU 0.00, because no reference has four tokens" in out
    assert re.search(r"chrF averaged [1-9][0-9.]+, last", out)
