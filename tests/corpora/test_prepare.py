"""The data-prep scripts from archives to a data folder, on mirrors with made-up text: whole, the same, or refused."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

import pytest

from fairseq_resid.commands import fetch, frame
from fairseq_resid.corpora import binarise, disk, pipeline, prepare, sources
from fairseq_resid.corpora import manifest as manifests
from fairseq_resid.corpora.manifest import SPLITS
from fairseq_resid.folders import records
from fairseq_resid.folders.files import read_lines
from fairseq_resid.text import TextForm, escape, unescape
from support import mirror

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]


def content(folder: Path) -> dict[str, str]:
    """Return every file of a folder and the hash of its bytes."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def main(name: str, out: Path, *flags: object) -> int:
    folder = out.parent / "downloads"
    size = {"iwslt15-en-vi": 150, "multi30k-en-de": 150}.get(name, 250)
    given = ["--out", out, "--downloads", folder, "--vocab-size", size, "--workers", 1, "--allow-other-data", *flags]
    return prepare.main([name, *map(str, given)])


def told(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((data / "corpus.json").read_text())
    return found


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Mirrors of both WMT'14 corpora. Not to be written to."""
    folder = tmp_path_factory.mktemp("hosts")
    return {target: mirror.wmt14(folder / target, target) for target in ("de", "fr")}


@pytest.fixture(scope="module")
def en_de(hosts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WMT'14 EN-DE made from its mirror. Not to be written to."""
    out = tmp_path_factory.mktemp("en-de") / "data"
    assert main("wmt14-en-de", out, "--mirror", hosts["de"].as_uri()) == 0
    return out


def decoded(data: Path, split: str, language: str) -> list[str]:
    """Return the text that a data folder's binary files hold, pieces joined."""
    from fairseq.data import Dictionary, data_utils

    words = Dictionary.load(str(data / f"dict.{language}.txt"))
    pair = "-".join(told(data)[side] for side in ("source", "target"))
    stored = data_utils.load_indexed_dataset(str(data / f"{split}.{pair}.{language}"), words, "mmap")
    return [words.string(item, bpe_symbol="sentencepiece") for item in stored]


# ------------------------------------------------------------------------------------------------ what comes out


@pytest.mark.parametrize("target", ["de", "fr"])
def test_wmt14(target: str, hosts: dict[str, Path], en_de: Path, tmp_path: Path) -> None:
    data = en_de
    if target == "fr":
        data = tmp_path / "data"
        assert main("wmt14-en-fr", data, "--mirror", hosts["fr"].as_uri()) == 0
    corpus = told(data)
    parts = {"de": 3, "fr": 5}[target]
    expected = {"train": 120 * parts - 60, "valid": {"de": 20, "fr": 40}[target], "test": 20}
    assert {split: counts["in"] for split, counts in corpus["lines"].items()} == expected
    assert sum(label.startswith("train") for label in corpus["texts"]) == 2 * parts
    for split in SPLITS:
        lines = corpus["lines"][split]
        assert lines["out"] == lines["in"] - sum(lines["dropped"].values())
        assert len(decoded(data, split, target)) == lines["out"]
    assert corpus["lines"]["train"]["dropped"]["ratio"] > 0
    assert corpus["lines"]["test"]["dropped"] == corpus["lines"]["valid"]["dropped"] == {}
    assert corpus["text"] == {"form": "moses", "normalize": "source", "split_hyphens": False}
    # The reference is the text of the test set, the source of the same line its translation.
    left, right = mirror.sides(mirror.pairs(20, ("en", target), 8))
    assert (data / "ref" / "test.en").read_text() == left and (data / f"ref/test.{target}").read_text() == right
    model_text = [TextForm(target, "moses").to_model(line) for line in right.split("\n")[:-1]]
    assert decoded(data, "test", target) == model_text
    if target == "fr":
        valid = "".join(mirror.sides(mirror.pairs(20, ("en", "fr"), seed))[1] for seed in (6, 7))
        assert (data / "ref" / "valid.fr").read_text() == valid
    assert corpus["checksums"] == {name: digest for name, digest in content(data).items() if name != "corpus.json"}
    assert not list(data.parent.glob("*.partial"))


def test_the_training_text_is_all_parts_in_order(en_de: Path) -> None:
    corpus = told(en_de)
    pairs = [pair for seed, count in ((1, 120), (2, 120), (3, 60)) for pair in mirror.pairs(count, ("en", "de"), seed)]
    forms = TextForm("en", "moses", True), TextForm("de", "moses")
    texts = [(forms[0].to_model(left), forms[1].to_model(right)) for left, right in pairs]
    found = list(zip(decoded(en_de, "train", "en"), decoded(en_de, "train", "de"), strict=True))
    kept = iter(texts)
    assert all(any(pair == text for text in kept) for pair in found)  # a subsequence
    assert len(found) == corpus["lines"]["train"]["out"]


def test_the_same_bytes_from_disk_from_elsewhere_and_with_more_workers(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairseq_resid.corpora.stream.FEW_PAIRS", 0)
    assert main("wmt14-en-de", tmp_path / "other" / "name", "--raw", hosts["de"], "--workers", 3) == 0
    assert content(tmp_path / "other" / "name") == content(en_de)
    # Unpacked by hand, partly: the texts are the same, the files that they come in are others.
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    for file in hosts["de"].iterdir():
        if "commoncrawl" in file.name:
            shutil.unpack_archive(file, unpacked)
        else:
            shutil.copy(file, unpacked)
    assert main("wmt14-en-de", tmp_path / "again", "--raw", unpacked) == 0
    mine, theirs = content(tmp_path / "again"), content(en_de)
    assert mine.pop("corpus.json") != theirs.pop("corpus.json") and mine == theirs


def test_parts_are_not_joined_within_a_line(tmp_path: Path) -> None:
    """EN-FR's valid set has two parts; the first one's last line may lack its line end."""
    host = mirror.wmt14(tmp_path / "host", "fr")
    members: dict[str, str | bytes] = {}
    for year in (2012, 2013):
        for language in ("en", "fr"):
            members[f"dev/newstest{year}.{language}"] = f"{language} {year} one .\n{language} {year} two ."
    mirror.archive(host / "dev.tgz", members)
    assert main("wmt14-en-fr", tmp_path / "data", "--raw", host) == 0
    assert told(tmp_path / "data")["lines"]["valid"]["out"] == 4
    assert len(read_lines(tmp_path / "data" / "ref" / "valid.fr")) == 4


def test_raw_text_may_be_moved_between_two_runs(tmp_path: Path) -> None:
    raw = mirror.iwslt15(tmp_path / "raw", "plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairseq_resid.corpora.tokenise.tokenise", fail)
        assert main("iwslt15-en-vi", tmp_path / "data", "--raw", raw) == 1
    raw.rename(tmp_path / "moved")
    assert main("iwslt15-en-vi", tmp_path / "data", "--raw", tmp_path / "moved") == 0


def test_what_a_run_fell_back_to_is_taken_by_the_next(hosts: dict[str, Path], tmp_path: Path) -> None:
    """Otherwise the corpus changed in the middle when the first host answers again."""
    flags = ["--mirror", hosts["de"].as_uri()]
    read = manifests.read(manifests.MANIFESTS / "wmt14-en-de.yaml")
    part = read.parts["train"][0]
    way = sources.Way((), hosts["de"].as_uri(), tmp_path / "downloads", True)
    assert not sources._is_there(way, part, 1)
    with tarfile.open(hosts["de"] / "training-parallel-europarl-v7.tgz") as tar:
        members = {item.name: tar.extractfile(item).read() for item in tar}  # type: ignore[union-attr]
    way.downloads.mkdir()
    mirror.archive(way.downloads / "training-parallel-europarl-v7.zip", dict(members))
    assert sources._is_there(way, part, 1)
    mirror.archive(hosts["de"].parent / "training-parallel-europarl-v7.zip", dict(members))
    shutil.copytree(hosts["de"], tmp_path / "host")
    shutil.copy(hosts["de"].parent / "training-parallel-europarl-v7.zip", tmp_path / "host")
    assert main("wmt14-en-de", tmp_path / "data", "--mirror", (tmp_path / "host").as_uri(), *flags[2:]) == 0
    files = {item["file"] for label, item in told(tmp_path / "data")["texts"].items() if "europarl" in label}
    assert files == {"training-parallel-europarl-v7.zip"}


def test_a_second_host_serves_where_the_first_does_not(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same members in zip archives, as the alternates have them."""
    other = tmp_path / "other"
    shutil.copytree(hosts["de"], other)
    for name in ("training-parallel-europarl-v7", "training-parallel-commoncrawl", "training-parallel-nc-v9"):
        with tarfile.open(other / f"{name}.tgz") as tar:
            members = {item.name: tar.extractfile(item).read() for item in tar}  # type: ignore[union-attr]
        mirror.archive(other / f"{name}.zip", dict(members))
        (other / f"{name}.tgz").unlink()
    assert main("wmt14-en-de", tmp_path / "data", "--mirror", other.as_uri()) == 0
    output = capsys.readouterr().out
    assert output.index("europarl-v7.tgz: ") < output.index("europarl-v7.zip: from")
    found, expected = content(tmp_path / "data"), content(en_de)
    assert found.pop("corpus.json") != expected.pop("corpus.json") and found == expected


def test_what_is_asked_for_is_made(hosts: dict[str, Path], tmp_path: Path) -> None:
    flags = ["--raw", hosts["de"], "--no-clean", "--normalize", "both", "--limit", 7, "--vocab-size", 120]
    assert main("wmt14-en-de", tmp_path / "data", *flags) == 0
    corpus = told(tmp_path / "data")
    assert corpus["lines"]["train"] == {"in": 21, "out": 21, "dropped": {}}
    assert (corpus["text"]["normalize"], corpus["vocab_size"], corpus["asked"]["limit"]) == ("both", 120, 7)
    assert corpus["lines"]["valid"]["in"] == corpus["lines"]["test"]["in"] == 7
    assert len(read_lines(tmp_path / "data" / "dict.en.txt")) <= 120


def test_a_finished_folder_is_reused(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(en_de, data)
    before = {file: file.stat().st_mtime_ns for file in data.rglob("*")}
    (tmp_path / "data.partial").mkdir()  # killed at its very end
    (tmp_path / "data.partial" / "text.json").write_text("{}")
    for flags in (["--mirror", "file:///nowhere"], ["--raw", hosts["de"]]):
        assert main("wmt14-en-de", data, *flags) == 0
        assert "holds this corpus already" in capsys.readouterr().out
    assert not (tmp_path / "data.partial").exists()
    assert {file: file.stat().st_mtime_ns for file in data.rglob("*")} == before


# ------------------------------------------------------------------------------------------------ IWSLT'15


@pytest.fixture(scope="module")
def en_vi(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """IWSLT'15 EN-VI made from each of its forms; the same sentences. FORM is the data folder, FORM.raw the text."""
    folder = tmp_path_factory.mktemp("en-vi")
    found = {}
    for form in ("stanford", "plain", "xml"):
        found[f"{form}.raw"] = mirror.iwslt15(folder / "raw" / form, form)
        found[form] = folder / form
        assert main("iwslt15-en-vi", found[form], "--raw", found[f"{form}.raw"]) == 0
    return found


def test_the_three_forms_hold_the_same_text(en_vi: dict[str, Path]) -> None:
    for split in SPLITS:
        for language in ("en", "vi"):
            texts = [decoded(en_vi[form], split, language) for form in ("stanford", "plain", "xml")]
            assert texts[0] == texts[1] == texts[2] and len(texts[0]) == (200 if split == "train" else 25)
    assert {form: told(en_vi[form])["text"]["form"] for form in ("stanford", "plain", "xml")} == {
        "stanford": "escaped",
        "plain": "moses",
        "xml": "moses",
    }
    assert told(en_vi["stanford"])["bleu_tokenize"] == "none" and told(en_vi["xml"])["bleu_tokenize"] == "13a"
    raw = en_vi["stanford.raw"] / "tst2013.vi"
    assert (en_vi["stanford"] / "ref" / "test.vi").read_bytes() == raw.read_bytes()
    assert b"&quot;" in raw.read_bytes()
    # What was escaped is escaped again; nothing else is lost.
    assert told(en_vi["stanford"])["round_trip"]["test"]["exact"] == 25


def test_forms_are_told_and_not_mixed(
    en_vi: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("stanford", "plain", "xml"):
        main("iwslt15-en-vi", tmp_path / form, "--raw", en_vi[f"{form}.raw"], "--vocab-size", 100000)
        assert f", form: {form}, " in capsys.readouterr().out
    mixed = tmp_path / "mixed"
    shutil.copytree(en_vi["stanford.raw"], mixed)
    shutil.copy(en_vi["plain.raw"] / "tst2013.vi", mixed)
    assert main("iwslt15-en-vi", tmp_path / "out", "--raw", mixed) == 2
    error = capsys.readouterr().err
    assert "mixes forms" in error and "test tst2013.vi is plain" in error and "is stanford" in error
    # Tests of one folder, training text of another.
    for side in ("en", "vi"):
        (mixed / f"train.{side}").unlink()
        shutil.copy(en_vi["stanford.raw"] / f"tst2013.{side}", mixed)
    assert main("iwslt15-en-vi", tmp_path / "out", "--raw", mixed, "--raw", en_vi["xml.raw"]) == 2
    assert "train train.vi is xml" in capsys.readouterr().err
    assert main("iwslt15-en-vi", tmp_path / "out", "--raw", mixed) == 2
    assert "the train text train is not there: none of " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_line_count_is_reported_and_accepted_only_when_asked_for(
    en_vi: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = ["iwslt15-en-vi", "--raw", str(en_vi["plain.raw"]), "--out", str(tmp_path / "out"), "--vocab-size", "150"]
    for _ in range(2):  # the second time from the extraction that is there
        assert prepare.main(raw) == 2
        assert "train train has 200 pairs, and 133,317 are expected" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert prepare.main([*raw, "--allow-other-data"]) == 0
    assert told(tmp_path / "out")["differences"][0] == "train train has 200 pairs, and 133,317 are expected"
    assert prepare.main(raw) == 0  # it is there, and says what it is


def test_the_released_test_sets_are_known_by_their_checksums(en_vi: dict[str, Path]) -> None:
    assert "test tst2013.vi is not the released text (its sha256 differs)" in told(en_vi["stanford"])["differences"]
    assert not any("sha256" in line for line in told(en_vi["plain"])["differences"])


@pytest.mark.parametrize("text", ["", "&", "&amp;", "&amp;amp; |", "a &quot;b&quot; [c] <d> 'e'", "&#124;"])
def test_escapes_come_back(text: str) -> None:
    assert unescape(escape(text)) == text


# ------------------------------------------------------------------------------------------------ interruptions

STEPS = ["extract", "tokenise", "learn", "encode", "binarise"]


def command(hosts: dict[str, Path], out: Path) -> list[str]:
    given = ["--mirror", hosts["de"].as_uri(), "--downloads", out.parent / "dl", "--out", out]
    flags = [*map(str, given), "--vocab-size", "250", "--allow-other-data", "--workers", "2"]
    return [sys.executable, "-m", "fairseq_resid", "prepare", "wmt14-en-de", *flags]


def killed(step: str, hosts: dict[str, Path], out: Path) -> str:
    """Run until a step is half done, then SIGKILL the process and all it started; return what it said."""
    environment = {**os.environ, "PREPARE_TEST_STOP": step, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    # The same program, that stops in the middle of one step and waits for its end.
    stopping = [sys.executable, "-c", "from support import stop_in_step; stop_in_step.main()", *command(hosts, out)[4:]]
    process = subprocess.Popen(stopping, cwd=ROOT, env=environment, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    seen = b""
    while b"STOPPED" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    assert not out.exists() and out.with_name("data.partial").exists()
    return seen.decode()


@pytest.mark.both
@pytest.mark.parametrize("step", ["download", *STEPS])
def test_killed_at_every_step_the_next_run_ends_with_the_same_bytes(
    step: str, hosts: dict[str, Path], en_de: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    killed(step, hosts, out)
    done = subprocess.run(command(hosts, out), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    finished = STEPS[: STEPS.index(step)] if step != "download" else []
    assert done.stdout.count("done before") == len(finished)
    assert content(out) == content(en_de)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "dl"}


@pytest.mark.both
def test_killed_within_a_step_the_next_run_goes_on_there(hosts: dict[str, Path], en_de: Path, tmp_path: Path) -> None:
    """Killed again and again, on two cores; the last run has one process and other chunks."""
    out = tmp_path / "data"
    for stop, goes_on in (
        ("tokenise train/3", None),
        ("tokenise train/4", "tokenise train: goes on after 60 pairs"),
        ("tokenise train/5", "tokenise train: goes on after 140 pairs"),
        ("tokenise test/1", "tokenise train: goes on after 240 pairs"),
        ("encode train/2", "tokenise test: goes on after 20 pairs"),
        ("encode train/6", "encode train: goes on after 40 pairs"),
        ("encode valid/1", "encode train: goes on after 160 pairs"),
    ):
        told = killed(stop, hosts, out)
        assert goes_on in told if goes_on else "goes on" not in told
        for output in (tmp_path / "data.partial").glob("*.partial/*.[de][en]"):
            with output.open("ab") as file:  # what was written after the journal
                file.write(b"half of a li")
    done = subprocess.run(command(hosts, out), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "encode valid: goes on after 20 pairs" in done.stdout
    assert content(out) == content(en_de)


@pytest.mark.both
def test_a_step_killed_before_it_has_its_name_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is there already; it is no file of the step."""
    runs = []

    def run(folder: Path) -> str:
        runs.append(folder)
        (folder / "text").write_text("text")
        return "result"

    def rename(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    step = pipeline.Step("only", "only", [], (), run, str, continues=True)
    some = pipeline.Pipeline(tmp_path, [step])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fairseq_resid.corpora.pipeline.os.replace", rename)
        some.run()
    partial = tmp_path / f"{some.folders['only'].name}.partial"
    for name in ("record.json", "record.json.partial"):
        (partial / name).write_text("{}")
    some.run()
    some.run()
    assert len(runs) == 2 and some._record(step) == pipeline.Record("result", {"text": 4})


@pytest.mark.both
@pytest.mark.parametrize(
    "where, number", [("worker", signal.SIGKILL), ("learner", signal.SIGKILL), ("learner", signal.SIGINT)]
)
def test_ended_by_a_signal_nothing_runs_on(
    where: str, number: signal.Signals, hosts: dict[str, Path], tmp_path: Path
) -> None:
    """The main process alone gets it: those that it started end too, and the next run is not in their way."""
    out = tmp_path / "data"
    environment = {**os.environ, "PREPARE_TEST_STOP": where, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    stopping = [sys.executable, "-c", "from support import stop_in_step; stop_in_step.main()", *command(hosts, out)[4:]]
    # What a shell has put in the background ignores SIGINT, and so does all that it starts.
    hearing = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(stopping, cwd=ROOT, env=environment, preexec_fn=hearing, **pipes)
    assert process.stdout is not None and process.stderr is not None
    worker = 0
    while not worker:
        line = process.stdout.readline()
        assert line
        worker = int(line.split()[1]) if line.startswith(b"WORKER") else 0
    process.send_signal(number)
    if number == signal.SIGINT:
        assert b"interrupted; the same command goes on\n" in process.stderr.read()
    assert process.wait(20) == (130 if number == signal.SIGINT else -number)
    process.stdout.close()
    process.stderr.close()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
    assert subprocess.run(command(hosts, out), cwd=ROOT, capture_output=True).returncode == 0


@pytest.mark.both
def test_a_result_that_was_damaged_is_made_again(hosts: dict[str, Path], en_de: Path, tmp_path: Path) -> None:
    """Every step's files, cut off between two runs: their size is remembered."""
    out = tmp_path / "data"
    flags = ["--mirror", hosts["de"].as_uri()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairseq_resid.corpora.binarise.preprocess", fail)
        assert main("wmt14-en-de", out, *flags) == 1
    for file in (tmp_path / "data.partial").rglob("train.*"):
        file.write_bytes(file.read_bytes()[:100])
    assert main("wmt14-en-de", out, *flags) == 0
    assert content(out) == content(en_de)


def fail(*_: Any) -> None:
    raise ChildProcessError("fairseq-preprocess failed")


@pytest.mark.both
def test_two_at_once_make_one_corpus(hosts: dict[str, Path], en_de: Path, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(command(hosts, tmp_path / "data"), cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in "ab"
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert any("another process is at work in it; waiting" in text for text in outputs)
    assert content(tmp_path / "data") == content(en_de)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "dl"}


# ------------------------------------------------------------------------------------------------ bad input


def spoiled(hosts: dict[str, Path], folder: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    shutil.copytree(hosts["de"], folder)
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    return folder


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("training-parallel-commoncrawl.tgz", lambda raw: raw[:-100], "commoncrawl.tgz: damaged or cut off"),
        ("training-parallel-nc-v9.tgz", lambda raw: raw[:-5] + b"?" + raw[-4:], "nc-v9.tgz: damaged or cut off (CRC"),
        ("test-full.tgz", lambda raw: b"<html>503</html>", "answers with a web page in place of the file"),
        ("dev.tgz", lambda raw: b"503", "answers with data of another format in place of the file"),
    ],
)
def test_a_bad_archive_stops_it_and_a_good_one_later_is_taken(
    name: str,
    change: Callable[[bytes], bytes],
    said: str,
    hosts: dict[str, Path],
    en_de: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = spoiled(hosts, tmp_path / "bad", name, change)
    out = tmp_path / "data"
    for _ in range(2):  # the first run leaves nothing that the second takes for whole
        assert main("wmt14-en-de", out, "--mirror", bad.as_uri()) == 2
        assert said in capsys.readouterr().err and not out.exists()
        assert not list((tmp_path / "downloads").glob(f"{name}*"))
    assert main("wmt14-en-de", out, "--mirror", hosts["de"].as_uri()) == 0
    assert content(out) == content(en_de)


@pytest.mark.parametrize("cached", ["<html>503</html>", "503"])
def test_what_an_earlier_version_kept_and_is_no_archive_is_removed(
    cached: str, hosts: dict[str, Path], en_de: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    path = downloads / "training-parallel-commoncrawl.tgz"
    path.write_text(cached)
    known = replace(fetch.describe(path), url="http://host/training-parallel-commoncrawl.tgz")
    records.write(path.with_name(path.name + ".json"), known)
    flags = ["--mirror", hosts["de"].as_uri()]
    assert main("wmt14-en-de", tmp_path / "data", *flags) == 2
    assert "it was removed, and the same command downloads it again" in capsys.readouterr().err
    assert main("wmt14-en-de", tmp_path / "data", *flags) == 0
    assert content(tmp_path / "data") == content(en_de)


def test_a_damaged_archive_of_the_users_stays(
    hosts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "training-parallel-nc-v9.tgz"
    bad = spoiled(hosts, tmp_path / "bad", name, lambda raw: raw[:-5] + b"?" + raw[-4:])
    before = content(bad)
    for _ in range(2):
        assert main("wmt14-en-de", tmp_path / "data", "--raw", bad) == 2
        error = capsys.readouterr().err
        assert f"{bad / name}: damaged or cut off" in error and "replace it with a whole file" in error
    assert content(bad) == before and not (tmp_path / "data").exists()


def test_wrong_checksums_are_refused(
    hosts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--mirror", hosts["de"].as_uri(), "--out", str(tmp_path / "data"), "--downloads", str(tmp_path / "dl")]
    assert prepare.main(["wmt14-en-de", *flags]) == 2
    error = capsys.readouterr().err
    assert "training-parallel-europarl-v7.tgz: wrong size" in error and "657632379 is expected" in error
    assert not (tmp_path / "data").exists()


def test_sides_of_unequal_length_in_an_archive(
    hosts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(hosts["de"], bad)
    left, right = mirror.sides(mirror.pairs(30, ("en", "de")))
    members = {"commoncrawl.de-en.de": right + "mehr\n", "commoncrawl.de-en.en": left}
    mirror.archive(bad / "training-parallel-commoncrawl.tgz", dict(members))
    assert main("wmt14-en-de", tmp_path / "data", "--raw", bad) == 2
    error = capsys.readouterr().err
    assert "commoncrawl.en has 30 lines" in error and "commoncrawl.de has 31: they must be equal" in error


def test_dirty_text_is_dropped_and_counted_and_evaluation_text_refused(
    hosts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(hosts["de"], bad)
    choose = random.Random(5)
    items = [(left.encode(), right.encode()) for left, right in mirror.pairs(60, ("en", "de"), 3)]
    dirt = {
        "not_utf8": b"caf\xe9",
        "too_long": b"x" * 1_000_000,
        "control_characters": b"nul \0 byte",
        "empty": b"",
    }
    for position, line in zip(choose.sample(range(60), 4), dirt.values(), strict=True):
        items[position] = (line, items[position][1])
    # Normalised and tokenised, these two sides would not be the same any more.
    items.append(("Berlin’s „wall“".encode(), " Berlin’s „wall“".encode()))
    stem = "training/news-commentary-v9.de-en"
    sides = [b"\xef\xbb\xbf" + b"".join(pair[side] + b"\r\n" for pair in items) for side in (0, 1)]
    members: dict[str, str | bytes] = {f"{stem}.en": sides[0], f"{stem}.de": sides[1]}
    mirror.archive(bad / "training-parallel-nc-v9.tgz", members)
    assert main("wmt14-en-de", tmp_path / "data", "--raw", bad) == 0
    dropped = told(tmp_path / "data")["lines"]["train"]["dropped"]
    assert {reason: dropped[reason] for reason in (*dirt, "source_equals_target")} == dict.fromkeys(
        (*dirt, "source_equals_target"), 1
    )
    assert "1 not utf8, 1 too long, 1 control characters, 1 empty, 1 source equals target" in capsys.readouterr().out
    assert main("wmt14-en-de", tmp_path / "other", "--raw", bad, "--no-clean") == 2
    assert "--clean drops such pairs" in capsys.readouterr().err
    for content_, said in ((b"\xff\n" * 20, ":1: not UTF-8"), (b"\xef\xbb\xbfa\n" * 20, "byte-order mark")):
        mirror.archive(bad / "dev.tgz", {"dev/newstest2013.en": content_, "dev/newstest2013.de": b"b\n" * 20})
        assert main("wmt14-en-de", tmp_path / "other", "--raw", bad) == 2
        error = capsys.readouterr().err
        assert "newstest2013.en" in error and said in error


def test_another_corpus_in_the_folder_is_refused(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(en_de, data)
    cases: list[tuple[str, list[object], str]] = [
        ("wmt14-en-fr", ["--raw", hosts["fr"]], "name is wmt14-en-de, not wmt14-en-fr"),
        ("wmt14-en-de", ["--raw", hosts["de"], "--vocab-size", 99], "vocab_size is 250, not 99"),
        ("wmt14-en-de", ["--raw", hosts["de"], "--no-clean"], "clean is True, not False"),
        ("wmt14-en-de", ["--raw", hosts["de"], "--limit", 5], "limit is None, not 5"),
        ("wmt14-en-de", ["--raw", mirror.wmt14(tmp_path / "other", "de", 90)], "not made from"),
    ]
    before = content(data)
    for name, flags, said in cases:
        assert main(name, data, *flags) == 2
        error = capsys.readouterr().err
        assert "holds another corpus" in error and said in error
    (data / "corpus.json").write_text("[]")
    assert main("wmt14-en-de", data, "--raw", hosts["de"]) == 2
    assert "no corpus.json that this version can read" in capsys.readouterr().err
    assert content(data).keys() == before.keys()


def test_unfinished_work_on_another_text_is_not_thrown_away(
    hosts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairseq_resid.corpora.binarise.preprocess", fail)
    out = tmp_path / "data"
    assert main("wmt14-en-de", out, "--raw", hosts["de"]) == 1
    before = content(tmp_path / "data.partial")
    capsys.readouterr()
    assert main("wmt14-en-de", out, "--raw", hosts["de"], "--limit", 5) == 2
    assert main("wmt14-en-fr", out, "--raw", hosts["fr"]) == 2
    error = capsys.readouterr().err
    assert "limit is None, not 5" in error and "name is wmt14-en-de, not wmt14-en-fr" in error
    assert content(tmp_path / "data.partial") == before
    # The same again begins where it was stopped.
    assert main("wmt14-en-de", out, "--raw", hosts["de"]) == 1
    assert capsys.readouterr().out.count("done before") == 4


def test_a_folder_that_is_not_ours_is_left_alone(
    hosts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.partial" / "thesis").mkdir(parents=True)
    (tmp_path / "data.partial" / "thesis" / "text").write_text("years of work")
    assert main("wmt14-en-de", tmp_path / "data", "--raw", hosts["de"]) == 2
    assert "holds thesis and is none of ours" in capsys.readouterr().err
    assert (tmp_path / "data.partial" / "thesis" / "text").exists()


@pytest.mark.both
def test_a_full_disk_is_one_line_and_the_next_run_ends_with_the_same_bytes(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path
) -> None:
    """No file may grow beyond 8 KB: the tokenised training text does."""
    small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))  # noqa: E731
    run = subprocess.run(command(hosts, tmp_path / "data"), cwd=ROOT, preexec_fn=small, capture_output=True, text=True)
    assert run.returncode == 2 and not (tmp_path / "data").exists()
    line = run.stderr.splitlines()[-1]  # what other packages say of files that they cannot write stands before
    assert "File too large" in line and "run the same command again" in line and "Traceback" not in run.stderr
    assert subprocess.run(command(hosts, tmp_path / "data"), cwd=ROOT, capture_output=True).returncode == 0
    assert content(tmp_path / "data") == content(en_de)


def test_a_full_disk_while_files_are_copied_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """shutil.copytree says it in an error of its own."""
    for folder in ("from", "to"):
        (tmp_path / folder).mkdir()
    for name in ("valid.en", "valid.de"):
        (tmp_path / "from" / name).write_text("text\n")
        (tmp_path / "to" / name).symlink_to("/dev/full")

    @frame.command("prepare", "")
    def copy(parser: Any, argv: Any) -> None:
        shutil.copytree(tmp_path / "from", tmp_path / "to", dirs_exist_ok=True)

    assert copy([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fairseq-resid prepare: error: [Errno 28] No space left on device")
    assert "; make room and run the same command again" in line and "[(" not in line


@pytest.mark.parametrize(
    "log, has_room, said, code",
    [
        (b"", False, "No space left on device; make room and run the same command again", 2),
        (
            b"OSError: [Errno 122] Disk quota exceeded\n",
            True,
            "Disk quota exceeded; make room and run the same command",
            1,
        ),
        (b"KeyError: 3\n", True, "failed with exit code 1:\nKeyError: 3\n", 1),
    ],
)
def test_a_full_disk_in_fairseq_preprocess_is_told(
    log: bytes,
    has_room: bool,
    said: str,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its log says so, unless the log's own disk is the full one."""

    def failing(argv: list[str], output: IO[bytes], lock: int | None, errors: IO[bytes]) -> int:
        errors.write(log)
        return 1

    monkeypatch.setattr(binarise.children, "run", failing)
    if not has_room:
        (tmp_path / "data.room").symlink_to("/dev/full")

    @frame.command("prepare", "")
    def preprocess(parser: Any, argv: Any) -> None:
        binarise.preprocess(tmp_path, tmp_path / "data", "a", "b", ("train", "valid", "test"), 1, 9)

    assert preprocess([]) == code
    assert said in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ disk


class Tells(SimpleHTTPRequestHandler):
    """A mirror that tells the size of a file by HEAD."""

    asked: list[str]

    def do_HEAD(self) -> None:
        self.asked.append(self.path)
        super().do_HEAD()

    def log_message(self, *_: Any) -> None:
        pass


class TellsNot(Tells):
    """One that does not."""

    def do_HEAD(self) -> None:
        self.send_error(405)


@contextlib.contextmanager
def web(folder: Path, handler: type[Tells]) -> Iterator[str]:
    handler.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def checked(name: str, folder: Path, mirror: str | None = None, raw: Path | None = None) -> None:
    """The check alone of a run into FOLDER."""
    read = manifests.read(manifests.MANIFESTS / f"{name}.yaml")
    way = sources.Way((raw,) if raw else (), mirror, folder / "downloads", True)
    disk.check(read, way, folder / "data", None, sources.find(read, way) if raw else None)


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12 - size, size))


def test_too_little_disk_is_said_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 10**9)
    assert main("wmt14-en-fr", tmp_path / "data", "--mirror", "file:///nowhere") == 2
    captured = capsys.readouterr()
    assert "GB are needed on its disk and 1.0 GB are free" in captured.err and "--out" in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["de", "fr"])
def test_a_small_mirror_or_folder_needs_little_disk(
    target: str, hosts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some 50 MB are for whatever the corpus."""
    free(monkeypatch, 60_000_000)
    name, host = f"wmt14-en-{target}", hosts[target]
    checked(name, tmp_path, raw=host)
    checked(name, tmp_path, host.as_uri())
    with web(host, Tells) as url:
        checked(name, tmp_path, url)
        # Every file once, alternates too; then those that are not there yet.
        files = list(manifests.read(manifests.MANIFESTS / f"{name}.yaml").files)
        assert sorted(Tells.asked) == sorted(f"/{file}" for file in files)
        (tmp_path / "downloads").mkdir()
        shutil.copy(host / "dev.tgz", tmp_path / "downloads")
        Tells.asked.clear()
        checked(name, tmp_path, url)
        assert sorted(Tells.asked) == sorted(f"/{file}" for file in files if file != "dev.tgz")
    with web(host, TellsNot) as url, pytest.raises(ValueError, match="GB are needed"):
        checked(name, tmp_path, url)
    with pytest.raises(ValueError, match="GB are needed"):
        checked(name, tmp_path)


def test_a_mirror_that_has_only_the_alternates_needs_little_disk(
    hosts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 60_000_000)
    for file in hosts["de"].iterdir():
        name = file.name.replace(".tgz", ".zip") if file.name.startswith("training") else file.name
        (tmp_path / name).write_bytes(bytes(1000))
    checked("wmt14-en-de", tmp_path / "out", tmp_path.as_uri())


def test_a_large_mirror_needs_much_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 GB in a file of its own, in place of the manifest's 0.7 GB."""
    free(monkeypatch, 15 * 10**9)
    checked("wmt14-en-de", tmp_path / "out")
    for name in manifests.read(manifests.MANIFESTS / "wmt14-en-de.yaml").files:
        with (tmp_path / name).open("wb") as file:
            file.truncate(20 * 10**9 if "europarl" in name else 1000)
    with pytest.raises(ValueError, match=r"20\.0 GB are needed"):
        checked("wmt14-en-de", tmp_path / "out", tmp_path.as_uri())


def test_no_place_for_the_text_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main("multi30k-en-de", tmp_path / "data", "--raw", tmp_path / "empty") == 2
    error = capsys.readouterr().err
    assert "the train text train is not there: none of train.en, train.en.gz" in error
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "flags, said",
    [
        (["nonesuch"], "invalid choice: 'nonesuch'"),
        (["wmt14-en-de", "--workers", "0"], "--workers 0: must be 1 or more"),
        (["wmt14-en-de", "--limit", "-3"], "--limit -3: must be 1 or more"),
        (["wmt14-en-de", "--vocab-size", "x"], "invalid int value"),
        (["wmt14-en-de", "--out", "."], "--out .: must name a folder to be made"),
        (["wmt14-en-de", "--raw", "/nowhere"], "--raw /nowhere: no such folder"),
        (["wmt14-en-de", "--raw", ".", "--mirror", "file:///x"], "not from both"),
    ],
)
def test_wrong_flags(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        prepare.main(flags)
    assert error.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv, error",
    [
        (
            ["custom", "--name", "x"],
            "fairseq-resid prepare custom: error: the following arguments are required: --train",
        ),
        (["phrasebook"], "fairseq-resid prepare phrasebook: error: the following arguments are required: --out"),
    ],
)
def test_the_first_word_chooses_the_command(argv: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        prepare.main(argv)
    assert error in capsys.readouterr().err
    with pytest.raises(SystemExit):
        prepare.main(["--help"])
    assert f"fairseq-resid prepare {argv[0]} ..." in capsys.readouterr().out


def test_normalisation_of_text_that_is_not_tokenised_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("multi30k-en-de", tmp_path / "data", "--normalize", "both") == 2
    assert "--normalize both: the text of multi30k-en-de is not tokenised here" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ manifests, sacrebleu


@pytest.mark.parametrize("name", manifests.names())
def test_every_manifest_is_whole(name: str) -> None:
    found = manifests.read(manifests.MANIFESTS / f"{name}.yaml")
    assert found.name == name and (ROOT / "data-prep" / f"{name}.sh").is_file()
    assert found.text_bytes > 0 and found.vocab_size >= 1000
    for split in SPLITS:
        assert found.parts[split] and all(part.lines for part in found.parts[split])
        labels = [part.name for part in found.parts[split]]
        assert len(set(labels)) == len(labels)
    for file in found.files.values():
        assert all(url.startswith(("http://", "https://")) for url in file.urls)
        assert file.md5 is None or len(file.md5) == 32
        assert file.sha256 is None or len(file.sha256) == 64


def test_a_file_of_two_corpora_is_the_same_file() -> None:
    read = [manifests.read(manifests.MANIFESTS / f"{name}.yaml").files for name in manifests.names()]
    for one in read:
        for other in read:
            assert all(one[name] == other[name] for name in one.keys() & other.keys())


def test_the_corpora_have_the_papers_sizes() -> None:
    lines = {
        name: {split: sum(part.lines or 0 for part in read.parts[split]) for split in SPLITS}
        for name in manifests.names()
        for read in [manifests.read(manifests.MANIFESTS / f"{name}.yaml")]
    }
    assert lines["iwslt15-en-vi"] == {"train": 133_317, "valid": 1553, "test": 1268}
    assert lines["wmt14-en-de"] == {"train": 4_520_620, "valid": 3000, "test": 3003}
    assert lines["wmt14-en-fr"] == {"train": 40_842_333, "valid": 6003, "test": 3003}


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda text: text.replace("source: en\n", ""), "missing required field `source`"),
        (lambda text: text.replace("form: moses", "form: odd"), "form 'odd': must be one of plain, moses, escaped"),
        (lambda text: text.replace("form: moses", "form: plain"), "cannot be normalised"),
        (lambda text: text.replace("normalize: source", "normalize: target"), "must be one of none, source, both"),
        (
            lambda text: text.replace("normalize: source", "normalize: yes"),
            "Expected `str`, got `bool` - at `normalize`",
        ),
        (lambda text: text.replace("  dev.tgz:\n", "  dev2.tgz:\n"), "`files` has no dev.tgz"),
        (lambda text: text + "\tx", "damaged: "),
        (lambda text: text.replace("vocab_size", "vocabulary"), "unknown field `vocabulary`"),
    ],
)
def test_a_broken_manifest_is_named(change: Callable[[str], str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(change((manifests.MANIFESTS / "wmt14-en-de.yaml").read_text()))
    with pytest.raises(ValueError, match=r"m\.yaml: ") as error:
        manifests.read(file)
    assert said in str(error.value)


def test_a_test_set_comes_from_sacrebleu_or_else_from_its_archive(
    hosts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """sacrebleu's own code, on a host and in a cache of this test: once as it should be, once with no network."""
    import sacrebleu.dataset.base
    import sacrebleu.utils

    read = manifests.read(manifests.MANIFESTS / "wmt14-en-de.yaml")
    part = read.parts["test"][0]
    dataset = sacrebleu.utils.DATASETS["wmt14/full"]
    archive = hosts["de"] / "test-full.tgz"
    monkeypatch.setattr(dataset, "data", [archive.as_uri()])
    monkeypatch.setattr(dataset, "md5", [hashlib.md5(archive.read_bytes()).hexdigest()])
    for module in (sacrebleu.utils, sacrebleu.dataset.base):
        monkeypatch.setattr(module, "SACREBLEU_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path / "cache" / "wmt14_full"), raising=False)
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / "cache" / "wmt14_full" / "raw"), raising=False)
    way = sources.Way((), None, tmp_path / "downloads", False)
    bring = lambda: sources._from_sacrebleu(read, way, "test", part, "wmt14/full")  # noqa: E731
    texts = bring()
    assert texts is not None and "sacrebleu -t wmt14/full -l en-de" in capsys.readouterr().out
    assert all(text.is_verified and text.address == "sacrebleu -t wmt14/full -l en-de" for text in texts)
    paths = sources.extract_all(texts, tmp_path / "out", None)
    expected = mirror.sides(mirror.pairs(20, ("en", "de"), 8))
    assert [path.read_text() for path in paths.values()] == list(expected)
    # Half a file in its cache, as a killed run leaves it.
    texts[1].file.write_bytes(texts[1].file.read_bytes()[:500])
    assert bring() is None
    assert "wrong md5 checksum" in capsys.readouterr().out

    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(dataset, "data", ["http://127.0.0.1:9/test-full.tgz"])
    assert bring() is None
    assert "sacrebleu could not download it" in capsys.readouterr().out
