"""A data folder is what it says: checksums of what it is made from, ceilings, damage, sentences seen in training."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairseq_resid.corpora import custom, prepare, repeats
from fairseq_resid.corpora import manifest as manifests
from fairseq_resid.corpora.fingerprints import Fingerprints
from fairseq_resid.folders import data as data_folder
from fairseq_resid.folders.data import Corpus, Overlap, PairCounts
from fairseq_resid.folders.files import read_lines
from fairseq_resid.text import TextForm
from support import mirror

pytestmark = pytest.mark.once

Released = tuple[Path, Callable[..., int]]


def told(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((data / "corpus.json").read_text())
    return found


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Released:
    """A mirror of WMT'14 EN-DE whose archives the manifest knows by checksum, and what prepares it."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**13, 0, 10**13))
    host = mirror.wmt14(tmp_path / "host", "de")
    known = yaml.safe_load((manifests.MANIFESTS / "wmt14-en-de.yaml").read_text())
    for name, item in known["files"].items():
        item.pop("bytes", None)
        item.pop("sha256", None)
        if (host / name).is_file():
            item["md5"] = hashlib.md5((host / name).read_bytes()).hexdigest()
    for split, counts in {"train": [120, 120, 60], "valid": [20], "test": [20]}.items():
        for part, lines in zip(known["parts"][split], counts, strict=True):
            part["lines"] = lines
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "wmt14-en-de.yaml").write_text(yaml.safe_dump(known))
    monkeypatch.setattr(manifests, "MANIFESTS", tmp_path / "manifests")

    def main(out: str, *flags: object) -> int:
        given = ["--out", tmp_path / out, "--downloads", tmp_path / "dl", "--vocab-size", 250, "--workers", 1]
        return prepare.main(["wmt14-en-de", *map(str, [*given, *flags])])

    return host, main


def other_text(host: Path, name: str) -> None:
    """Put other text, of the same number of lines, under an official name."""
    left, right = mirror.sides(mirror.pairs(120, ("en", "de"), 77))
    mirror.archive(host / name, {"commoncrawl.de-en.de": right, "commoncrawl.de-en.en": left})


def unpack(host: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in host.iterdir():
        shutil.unpack_archive(file, folder)
    return folder


# ------------------------------------------------------------------------------------------------ where text is from


@pytest.mark.parametrize("way", ["--raw", "--mirror"])
def test_other_text_under_an_official_name_is_refused_or_named(
    way: str, released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host, main = released
    other_text(host, "training-parallel-commoncrawl.tgz")
    source = host if way == "--raw" else host.as_uri()
    assert main("data", way, source) == 2
    error = capsys.readouterr().err
    assert "training-parallel-commoncrawl.tgz" in error and "wrong md5 checksum" in error
    assert "--allow-other-data accepts" in error and not (tmp_path / "data").exists()
    assert main("data", way, source, "--allow-other-data") == 0
    assert "not as released: training-parallel-commoncrawl.tgz: wrong md5" in capsys.readouterr().out
    corpus = told(tmp_path / "data")
    (difference,) = corpus["differences"]
    assert difference.startswith("training-parallel-commoncrawl.tgz: wrong md5 checksum: ")
    for label, item in corpus["texts"].items():
        if "commoncrawl" in label:
            assert (item["status"], item["origin"]) == ("other", None)
        else:
            assert item["status"] == "released" and item["origin"].startswith("https://www.statmt.org/")
    assert corpus["unverified"] == []


def test_text_without_a_known_checksum_is_taken_and_never_called_official(
    released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host, main = released
    assert main("data", "--raw", unpack(host, tmp_path / "unpacked")) == 0
    corpus = told(tmp_path / "data")
    assert corpus["differences"] == [] and len(corpus["unverified"]) == 10
    assert all((item["status"], item["origin"]) == ("unverified", None) for item in corpus["texts"].values())
    assert "not verified, because no checksum of them is known: train europarl-v7.en" in capsys.readouterr().out
    # As is a mirror's zip, in place of an archive that the mirror does not have.
    host_of_zips = shutil.copytree(host, tmp_path / "zips")
    (host_of_zips / "training-parallel-nc-v9.tgz").unlink()
    stem = "training/news-commentary-v9.de-en"
    members = {f"{stem}.{side}": (tmp_path / "unpacked" / f"{stem}.{side}").read_text() for side in ("en", "de")}
    mirror.archive(host_of_zips / "training-parallel-nc-v9.zip", dict(members))
    assert main("zipped", "--mirror", host_of_zips.as_uri()) == 0
    assert told(tmp_path / "zipped")["unverified"] == ["train news-commentary-v9.en", "train news-commentary-v9.de"]
    assert told(tmp_path / "zipped")["checksums"] == corpus["checksums"]


def test_a_limit_is_named_and_not_refused(released: Released, tmp_path: Path) -> None:
    host, main = released
    assert main("data", "--raw", host, "--limit", 9, "--vocab-size", 120) == 0
    said = "no more than the first 9 pairs of a text are used (--limit 9)"
    assert told(tmp_path / "data")["differences"] == [said]
    # One that cuts nothing is no difference.
    assert main("whole", "--raw", host, "--limit", 1000) == 0
    assert told(tmp_path / "whole")["differences"] == []


def test_another_line_count_is_other_text_and_refused_when_all_steps_are_done(
    released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, main = released
    raw = unpack(host, tmp_path / "unpacked")
    for side in ("en", "de"):
        file = raw / f"commoncrawl.de-en.{side}"
        file.write_text(file.read_text() + "one more\n")
    replaced = os.replace

    def killed(source: Any, target: Any) -> None:
        if Path(target).name == "data" and Path(source).name == "data":
            raise KeyboardInterrupt
        replaced(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        assert main("data", "--raw", raw, "--allow-other-data") == 130
    assert main("data", "--raw", raw) == 2
    assert "train commoncrawl has 121 pairs, and 120 are expected (--allow-other" in capsys.readouterr().err
    assert main("data", "--raw", raw, "--allow-other-data") == 0
    status = {label: item["status"] for label, item in told(tmp_path / "data")["texts"].items()}
    assert {label for label, kind in status.items() if kind == "other"} == {
        "train commoncrawl.en", "train commoncrawl.de",
    }  # fmt: skip


def test_a_known_checksum_is_compared_under_a_limit_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = mirror.iwslt15(tmp_path / "raw", "stanford")
    flags = ["--raw", str(raw), "--out", str(tmp_path / "data"), "--downloads", str(tmp_path / "dl")]
    assert prepare.main(["iwslt15-en-vi", *flags, "--limit", "20", "--vocab-size", "150"]) == 2
    assert "test tst2013.vi is not the released text (its sha256 differs)" in capsys.readouterr().err


def test_every_route_keeps_the_same_reference(released: Released, tmp_path: Path) -> None:
    """A no-break space is part of the sentence; line breaks within a <seg> are layout."""
    host, main = released
    left, right = mirror.sides(mirror.pairs(20, ("en", "de"), 8))
    right = right.replace(" ", "\u00a0", 1)
    stem = "test-full/newstest2014-deen"
    laid_out = mirror.sgm(right).replace('<seg id="2">', '<seg id="2">\n  ')
    members = {f"{stem}-src.en.sgm": mirror.sgm(left), f"{stem}-ref.de.sgm": laid_out}
    mirror.archive(host / "test-full.tgz", dict(members))
    assert main("data", "--raw", host, "--allow-other-data") == 0
    assert main("unpacked", "--raw", unpack(host, tmp_path / "u"), "--allow-other-data") == 0
    for out in ("data", "unpacked"):
        assert (tmp_path / out / "ref" / "test.de").read_text() == right
    assert told(tmp_path / "data")["round_trip"]["test"]["lost"]["normalizer"] == 1


# ------------------------------------------------------------------------------------------------ fingerprints


def test_a_file_is_read_once_for_its_checksum(
    released: Released, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, main = released
    from fairseq_resid.corpora import fingerprints

    read: list[str] = []
    whole = fingerprints.describe
    monkeypatch.setattr(fingerprints, "describe", lambda path: read.append(path.name) or whole(path))  # type: ignore
    assert main("data", "--raw", host) == 0
    assert sorted(read) == sorted(file.name for file in host.iterdir())
    assert main("data", "--raw", host) == 0 and len(read) == 5  # nothing to do, nothing read
    other_text(host, "training-parallel-commoncrawl.tgz")
    assert main("data", "--raw", host, "--allow-other-data") == 2  # holds another corpus
    assert read[5:] == ["training-parallel-commoncrawl.tgz"]
    assert main("data", "--raw", host, "--allow-other-data", "--verify") == 2 and len(read) == 11


def test_a_fingerprint_is_forgotten_where_the_file_changes(tmp_path: Path) -> None:
    import os

    file = tmp_path / "a.txt"
    file.write_text("one")
    known = Fingerprints(tmp_path / "memory.json").of(file)
    assert known.sha256 == hashlib.sha256(b"one").hexdigest()
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_text("two")  # the same size, and made to look as old
    os.utime(file, ns=times)
    assert Fingerprints(tmp_path / "memory.json").of(file).sha256 == hashlib.sha256(b"two").hexdigest()
    (tmp_path / "memory.json").write_text("[1")
    assert Fingerprints(tmp_path / "memory.json").of(file).sha256 == hashlib.sha256(b"two").hexdigest()


# ------------------------------------------------------------------------------------------------ ceilings


@pytest.fixture
def raw(raw_text: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """The tiny corpus, to be changed; its target text has an accent in every line."""
    folder = tmp_path / "raw"
    shutil.copytree(raw_text["train"].parent, folder)
    for split in raw_text:
        file = folder / f"{split}.xx"
        file.write_text(file.read_text().replace("o", "ộ"), encoding="utf-8")
    return {split: folder / split for split in raw_text}


def build(raw: dict[str, Path], out: Path, *flags: str) -> int:
    given = ["--name", "tiny", "--source", "en", "--target", "xx", "--vocab-size", "90", "--workers", "1"]
    prefixes = [word for split, prefix in raw.items() for word in (f"--{split}", str(prefix))]
    return custom.main([*given, *prefixes, "--out", str(out), *flags])


def decompose(raw: dict[str, Path]) -> None:
    for prefix in raw.values():
        file = Path(f"{prefix}.xx")
        file.write_text(unicodedata.normalize("NFD", file.read_text()), encoding="utf-8")


def test_a_reference_that_no_model_can_write_is_refused_with_its_cause(
    raw: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decompose(raw)
    assert build(raw, tmp_path / "data") == 2
    error = capsys.readouterr().err
    assert "a perfect model would score BLEU" in error and "sentencepiece's normaliser nmt_nfkc" in error
    assert "NFC" in error and "--spm-normalizer identity" in error and "--allow-low-ceiling" in error
    assert not (tmp_path / "data").exists()
    assert build(raw, tmp_path / "data", "--allow-low-ceiling") == 0
    output = capsys.readouterr().out
    assert output.count("done before") == 4 and "warning: a perfect model would score" in output
    assert told(tmp_path / "data")["round_trip"]["test"]["bleu"] < 95
    assert told(tmp_path / "data")["round_trip"]["test"]["lost"] == {"unknown": 0, "normalizer": 203, "form": 0}


def test_the_identity_normaliser_keeps_the_text_as_it_is(raw: dict[str, Path], tmp_path: Path) -> None:
    decompose(raw)
    assert build(raw, tmp_path / "data", "--spm-normalizer", "identity") == 0
    corpus = told(tmp_path / "data")
    assert corpus["subwords"]["normalizer"] == "identity"
    assert corpus["round_trip"]["test"]["exact"] == 203 and corpus["round_trip"]["test"]["bleu"] == 100.0


def test_characters_that_training_has_not_lower_the_ceiling_and_a_sample_is_only_warned(
    released: Released, raw: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(f"{raw['test']}.xx")
    file.write_text(file.read_text().replace("a", "ж"), encoding="utf-8")
    assert build(raw, tmp_path / "own") == 2
    assert "have characters that the subwords were not learned from" in capsys.readouterr().err
    host, main = released
    left, right = mirror.sides(mirror.pairs(20, ("en", "de"), 8))
    stem = "test-full/newstest2014-deen"
    strange = {f"{stem}-src.en.sgm": mirror.sgm(left), f"{stem}-ref.de.sgm": mirror.sgm(right.replace("e", "ж"))}
    mirror.archive(host / "test-full.tgz", dict(strange))
    flags = ["--raw", host, "--allow-other-data", "--vocab-size", 200]
    assert main("limited", *flags, "--limit", 15) == 0
    assert "warning: a perfect model would score" in capsys.readouterr().out
    assert main("uncut", *flags, "--limit", 1000) == 2
    assert main("whole", *flags) == 2


@pytest.mark.parametrize("space", ["\u00a0", "\u2028", "\u0085", "\u3000", "\x1f"])
@pytest.mark.parametrize("form", ["plain", "moses", "escaped"])
def test_no_white_space_but_the_plain_one_reaches_the_model(space: str, form: str) -> None:
    """fairseq parts a line of pieces at every white space: a piece that holds one would be two."""
    line = TextForm("en", form).to_model(f"one{space}two three")
    assert "two three" in line and not any(letter.isspace() for letter in line.replace(" ", ""))


# ------------------------------------------------------------------------------------------------ damage


def test_a_damaged_result_is_not_called_whole(
    released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host, main = released
    assert main("data", "--raw", host) == 0
    data = tmp_path / "data"
    assert main("data", "--raw", host) == 0
    assert "holds this corpus already (its sizes are right)" in capsys.readouterr().out
    binary = data / "train.en-de.de.bin"
    whole = binary.read_bytes()
    binary.write_bytes(whole[:100])
    (data / "ref" / "test.de").rename(tmp_path / "test.de")
    assert main("data", "--raw", host) == 2
    error = capsys.readouterr().err
    assert f"train.en-de.de.bin has 100 bytes, not {len(whole):,}" in error and "ref/test.de is missing" in error
    binary.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    (tmp_path / "test.de").rename(data / "ref" / "test.de")
    assert main("data", "--raw", host) == 0  # the size alone does not show it
    assert main("data", "--raw", host, "--verify") == 2
    assert "train.en-de.de.bin has another checksum than corpus.json says" in capsys.readouterr().err
    binary.write_bytes(whole)
    # A folder of an earlier version has checksums and no sizes, and was asked for less.
    corpus = told(data)
    del corpus["sizes"], corpus["overlap"], corpus["unverified"]
    corpus["asked"] = {name: corpus["asked"][name] for name in ("name", "source", "target", "vocab_size", "limit")}
    corpus["asked"] |= {"normalize": "source", "clean": True}
    (data / "corpus.json").write_text(json.dumps(corpus))
    assert main("data", "--raw", host) == 0
    output = capsys.readouterr().out
    assert "sizes unknown: an earlier version made it; --verify compares checksums" in output
    assert "not verified, because no checksum of them is known: all texts (an earlier version did not compare" in output
    assert Corpus.read(data).unverified == ("all texts (an earlier version did not compare them)",)
    assert main("data", "--raw", host, "--verify") == 0
    assert "its checksums are right" in capsys.readouterr().out
    assert main("data", "--raw", host, "--show") == 2
    assert "did not compare it with the training text" in capsys.readouterr().err
    for flags, said in (
        (["--max-ratio", "3"], "max_ratio is 1.5, not 3.0"),
        (["--profile", "tensor2tensor"], "form is moses, not plain"),
    ):
        assert main("data", "--raw", host, *flags) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": {"spm.model": "x"}}, {"differences": None}, {"overlap": {"test": {"source": [1]}}},
        {"overlap": None}, {"unverified": 3}, {"asked": None}, {"texts": {"a": {}}},
    ],
)  # fmt: skip
def test_an_odd_corpus_json_is_one_line(
    change: dict[str, Any], raw: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(raw, tmp_path / "data") == 0
    (tmp_path / "data" / "corpus.json").write_text(json.dumps({**told(tmp_path / "data"), **change}))
    assert build(raw, tmp_path / "data", "--show") == 2
    assert "corpus.json" in capsys.readouterr().err


# Parts of corpus.json as earlier versions wrote it.
EARLIER: dict[str, dict[str, Any]] = {
    "0.1.0": {
        "sentencepiece": "bpe",
        "inputs": {"train.en": {"file": "train.en", "sha256": "00"}},
        "lines": {"train": {"in": 3, "out": 2, "dropped_empty": 1}},
        "tools": {"sentencepiece": "0.2.0"},
    },
    "0.2.0": {
        "asked": {"name": "c", "vocab_size": 90, "normalize": "none", "clean": False, "limit": None},
        "files": {"train.en": {"bytes": 3, "url": None}},
        "texts": {"train t.en": {"file": "train.en", "member": None, "lines": 3, "sha256": "00"}},
        "differences": ["a difference"],
        "lines": {"train": {"in": 3, "out": 2, "dropped": {"empty": 1}}},
        "text": {"form": "moses", "normalize": "source"},
        "round_trip": {"test": {"exact": 1, "of": 2, "bleu": 99, "signature": "nrefs:1"}},
        "checksums": {"dict.en.txt": "00"},
    },
}


@pytest.mark.parametrize("version", EARLIER)
def test_a_data_folder_of_an_earlier_version_is_read(version: str, tmp_path: Path) -> None:
    both = {"name": "c", "source": "en", "target": "xx", "vocab_size": 90, "bleu_tokenize": "13a"}
    restore = {"post_process": "sentencepiece", "model": "spm.model"}
    (tmp_path / "corpus.json").write_text(json.dumps({**both, "restore": restore, **EARLIER[version]}))
    found = Corpus.read(tmp_path)
    assert (found.post_process, found.tokenize, found.unverified) == ("sentencepiece", "13a", ())
    assert found.form == TextForm("xx", "plain" if version == "0.1.0" else "moses")
    assert found.differences == (() if version == "0.1.0" else ("a difference",))
    assert found.preparation == EARLIER[version].get("asked", {})
    assert not data_folder.check(tmp_path)  # sizes are not known


def test_training_and_evaluation_refuse_a_damaged_folder(corpus: Path, tmp_path: Path) -> None:
    from fairseq_resid.training import launch

    data = shutil.copytree(corpus, tmp_path / "data")
    launch.check_data([str(data), "--arch", "transformer"])
    (data / "valid.en-xx.xx.idx").write_bytes(b"cut off")
    with pytest.raises(ValueError, match=r"data: damaged: valid\.en-xx\.xx\.idx has 7 bytes"):
        launch.check_data([str(data), "--arch", "transformer"])
    (data / "corpus.json").write_text("[]")
    with pytest.raises(ValueError, match=r"corpus\.json: damaged"):
        data_folder.check(data)
    (data / "corpus.json").unlink()  # made by fairseq-preprocess alone: nothing is known of it
    launch.check_data([str(data), "--arch", "transformer"])


# ------------------------------------------------------------------------------------------------ cleaning, profiles


def test_limits_of_cleaning(released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host, main = released
    dropped = {}
    for out, flags in {"default": [], "loose": ["--max-ratio", "9"], "short": ["--max-pieces", "14"]}.items():
        assert main(out, "--raw", host, *flags) == 0
        dropped[out] = told(tmp_path / out)["lines"]["train"]["dropped"]
    assert dropped["loose"]["ratio"] == 0 < dropped["default"]["ratio"]
    assert dropped["default"]["length"] == 0 < dropped["short"]["length"]
    capsys.readouterr()
    for flags, said in (
        (["--no-clean", "--max-ratio", "2"], "--max-ratio 2.0: nothing is dropped without --clean"),
        (["--max-ratio", "0.5"], "--max-ratio 0.5: must be 1 or more"),
        (["--max-ratio", "nan"], "--max-ratio nan: must be 1 or more"),
    ):
        assert main("refused", "--raw", host, *flags) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main("refused", "--raw", host, "--max-pieces", "0")
    assert "--max-pieces 0: must be 1 or more" in capsys.readouterr().err


def test_profiles_prepare_as_others_do(released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host, main = released
    left, right = mirror.sides(mirror.pairs(120, ("en", "de"), 2))
    lines = right.splitlines()
    lines[0] = "Ein wohl-bekannter „Satz“ ."
    text = "".join(line + "\n" for line in lines)
    mirror.archive(
        host / "training-parallel-commoncrawl.tgz", {"commoncrawl.de-en.de": text, "commoncrawl.de-en.en": left}
    )
    flags = ["--raw", host, "--allow-other-data", "--allow-low-ceiling", "--vocab-size", 250]
    assert main("t2t", *flags, "--profile", "tensor2tensor") == 0
    corpus = told(tmp_path / "t2t")
    assert corpus["text"] == {"form": "plain", "normalize": "none", "split_hyphens": False}
    assert corpus["lines"]["train"]["dropped"] == {} and corpus["subwords"]["normalizer"] == "identity"
    assert corpus["round_trip"]["test"]["exact"] == 20
    assert main("fairseq", *flags, "--profile", "fairseq") == 0
    corpus = told(tmp_path / "fairseq")
    assert corpus["text"] == {"form": "moses", "normalize": "both", "split_hyphens": True}
    form = data_folder.read(tmp_path / "fairseq").forms()["de"]
    assert form.to_model(lines[0]) == 'Ein wohl @-@ bekannter " Satz " .'
    assert form.restore(form.to_model("Ein wohl-bekannter Satz.")) == "Ein wohl-bekannter Satz."
    assert prepare.PROFILES["fairseq"]["vocab_size"] == 40_000  # a flag wins over it, as above
    capsys.readouterr()
    assert main("again", *flags, "--profile", "tensor2tensor", "--split-hyphens") == 2
    assert "--split-hyphens: the text of wmt14-en-de is not tokenised here" in capsys.readouterr().err


def test_profiles_of_text_that_comes_in_several_forms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def main(form: str, profile: str) -> int:
        raw = tmp_path / form
        if not raw.is_dir():
            mirror.iwslt15(raw, form)
        given = ["--raw", raw, "--out", tmp_path / f"{form}-{profile}", "--downloads", tmp_path / "dl"]
        flags = [*map(str, given), "--vocab-size", "200", "--allow-other-data", "--allow-low-ceiling"]
        return prepare.main(["iwslt15-en-vi", *flags, "--profile", profile])

    assert main("stanford", "fairseq") == 2
    assert "iwslt15-en-vi: comes tokenised, as Stanford released it: --profile fairseq" in capsys.readouterr().err
    found = {}
    for form, profile in (("stanford", "tensor2tensor"), ("plain", "tensor2tensor"), ("plain", "fairseq")):
        assert main(form, profile) == 0
        found[form, profile] = told(tmp_path / f"{form}-{profile}")["text"]
    assert found["stanford", "tensor2tensor"]["form"] == "escaped"
    assert found["plain", "tensor2tensor"] == {"form": "plain", "normalize": "none", "split_hyphens": False}
    assert found["plain", "fairseq"] == {"form": "moses", "normalize": "both", "split_hyphens": True}


# ------------------------------------------------------------------------------------------------ repeats


def test_evaluation_text_in_training_is_counted_listed_and_left_out(
    raw: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {side: read_lines(Path(f"{raw['train']}.{side}")) for side in ("en", "xx")}
    valid = {side: read_lines(Path(f"{raw['valid']}.{side}")) for side in ("en", "xx")}
    # Unlike anything else: a pair that is in training twice, a source alone, a target alone.
    pair, alone = ("the zebra sings .", "la zebro kantas ."), ("the zebra sits .", "la zebro sidas .")
    valid["en"][3:6] = [pair[0], alone[0], valid["en"][5]]
    valid["xx"][3:6] = [pair[1], valid["xx"][4], alone[1]]
    train["en"] += [pair[0], pair[0], alone[0], *train["en"][:7]]
    train["xx"] += [pair[1], pair[1], alone[1], *train["xx"][:7]]
    for name, text in (("train", train), ("valid", valid)):
        for side, lines in text.items():
            Path(f"{raw[name]}.{side}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    assert build(raw, tmp_path / "data", "--show") == 0
    output = capsys.readouterr().out
    found = told(tmp_path / "data")["overlap"]["valid"]
    assert 4 in found["pair"] and 4 in found["source"] and 4 in found["target"]
    assert 5 in found["source"] and 5 not in found["target"] and 5 not in found["pair"]
    assert 6 in found["target"] and 6 not in found["source"]
    assert f"; also in the training text: {len(found['source'])} sources, " in output
    assert f"valid:4 pair: {pair[0]} ||| {pair[1]}" in output and f"valid:6 target: {alone[1]}" in output
    # On a folder that is there, too.
    assert build(raw, tmp_path / "data", "--show") == 0
    assert f"valid:5 source: {alone[0]}" in capsys.readouterr().out

    everything = [*zip(train["en"], train["xx"], strict=True)]
    held_out = {*zip(valid["en"], valid["xx"], strict=True)}
    held_out |= {*zip(*(read_lines(Path(f"{raw['test']}.{side}")) for side in ("en", "xx")), strict=True)}
    kept = [one for number, one in enumerate(everything) if one not in held_out and one not in everything[:number]]
    assert build(raw, tmp_path / "less", "--deduplicate", "--allow-low-ceiling") == 0
    counts = told(tmp_path / "less")["lines"]["train"]
    assert counts["out"] == len(kept) and counts["in"] == len(everything)
    in_evaluation = sum(one in held_out for one in everything)
    repeated = len(everything) - len(kept) - in_evaluation
    assert counts["dropped"] == {"repeated": repeated, "in_evaluation": in_evaluation} and repeated >= 7
    assert told(tmp_path / "less")["overlap"]["valid"]["pair"] == []
    assert build(raw, tmp_path / "data", "--deduplicate") == 2
    assert "deduplicate is False, not True" in capsys.readouterr().err


def test_deduplication_keeps_the_first_of_each_in_order(tmp_path: Path) -> None:
    def write(name: str, lines: list[str]) -> Path:
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        return tmp_path / name

    train = write("train.a", ["x", "y", "x", "x", "z"]), write("train.b", ["1", "2", "1", "3", "4"])
    test = write("test.a", ["z"]), write("test.b", ["4"])
    outputs = tmp_path / "out.a", tmp_path / "out.b"
    assert repeats.deduplicate(train, [test], outputs, None) == PairCounts(5, 3, {"repeated": 1, "in_evaluation": 1})
    assert [file.read_text() for file in outputs] == ["x\ny\nx\n", "1\n2\n3\n"]
    found = repeats.overlap(train, {"test": test}, None)
    assert found == {"test": Overlap((1,), (1,), (1,))}


def test_the_card_tells_what_the_data_is(corpus: Path) -> None:
    from fairseq_resid.evaluation import card

    found = Corpus.read(corpus)
    assert found.unverified == () and found.preparation["vocab_size"] == 90
    said = "vocab_size 90, form plain, plain_form moses, normalize none, clean False, deduplicate False"
    assert said in card.prepared(found.preparation)
