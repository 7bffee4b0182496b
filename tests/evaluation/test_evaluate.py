"""`fairseq-resid evaluate` on a tiny stock transformer trained by the tests."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.evaluation.evaluate import main
from fairseq_resid.evaluation.job import find_job
from fairseq_resid.fairseq_patches.loading import load_checkpoint
from fairseq_resid.files import read_lines
from fairseq_resid.runs.run import Run
from fairseq_resid.runs.settings import Settings
from fairseq_resid.scoring import decoding, likelihood, translation_scores
from support.evaluation import SENTENCES, SIGNATURE, Decoder, arguments, refuse

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


@pytest.mark.both
def test_evaluation_runs_end_to_end(evaluated: str, here: Run) -> None:
    results = json.loads(here.results().read_text())
    references = read_lines(Path("data/ref/test.fr"))
    assert results["sentences"] == len(references) == SENTENCES
    assert results["averaged_checkpoints"] == ["checkpoint_2_9.pt", "checkpoint_2_12.pt"]
    for name, checkpoint in (("averaged", here.averaged), ("last", here.last)):
        hypotheses = read_lines(here.decode / f"test.{name}.hyp")
        assert len(hypotheses) == SENTENCES and not any("@@" in line for line in hypotheses)
        score = translation_scores.bleu(hypotheses, references)
        assert results["bleu"][name] == pytest.approx(score.score, abs=1e-3)
        beside = results["scores"][name]
        assert beside["detokenised"] == {"score": round(score.score, 4), "signature": score.signature}
        sentences = likelihood.Sentence.read(here.decode / f"test.{name}.nll")
        assert [one.tokens for one in sentences] == [len(line.split()) + 1 for line in read_lines(Path("raw/test.fr"))]
        assert beside.pop("NLL") == {"score": round(likelihood.mean(sentences), 4), "signature": likelihood.UNIT}
        assert set(beside) == {"detokenised", "detokenised, lower case", "tokenised", "chrF"}
        assert all(found["signature"].startswith("nrefs:1|") for found in beside.values())
        assert score.signature == results["signature"] and score.signature.startswith(SIGNATURE)
        assert re.search(
            rf"^checkpoints/run test: BLEU .*{name} {score.score:.2f}\b.*  {re.escape(score.signature)}$",
            evaluated,
            re.M,
        )
        line = next(line for line in evaluated.splitlines() if f"--path {checkpoint} --gen-subset test" in line)
        assert line.startswith("+ ") and "fairseq-generate data --user-dir" in line
        settings = "--beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 50 --max-tokens 4096 --post-process subword_nmt"
        assert settings in line
    assert results["architecture"] == "transformer_iwslt_de_en"
    assert results["parameters"] == sum(
        tensor.numel()
        for name, tensor in load_checkpoint(here.last)["model"].items()
        if name.endswith((".weight", ".bias"))
        and name not in ("decoder.embed_tokens.weight", "decoder.output_projection.weight")
        and not name.removeprefix("encoder.layers.0.").startswith(("in_proj_", "out_proj_", "fc1_", "fc2_"))
    )
    assert json.loads(here.results("valid").read_text())["subset"] == "valid"
    assert evaluated.index("run valid: BLEU") < evaluated.index("run test: BLEU")
    assert results["training"]["num_updates"] == 12
    assert results["training"]["tokens_per_second"] > 0
    references = "\n".join(read_lines(Path("data/ref/test.fr")))
    assert results["test_set"] == hashlib.sha256(references.encode()).hexdigest()


@pytest.mark.both
def test_nll_equals_score_reference_of_fairseq_generate(evaluated: str, here: Run, cli: Callable[..., Any]) -> None:
    """fairseq-generate --score-reference gives the log-probability (base 2) of every reference token."""
    found = cli("fairseq-generate", "data", "--path", here.averaged, "--score-reference").lines("P")
    ours = likelihood.Sentence.read(here.decode / "test.averaged.nll")
    assert len(ours) == len(found) == SENTENCES
    for number, one in enumerate(ours):
        scores = [-math.log(2) * float(score) for score in found[number].split()]
        assert one.tokens == len(scores) and one.nll == pytest.approx(sum(scores), abs=1e-4 * one.tokens)


def test_damaged_data_is_not_evaluated(here: Run, tmp_path: Path) -> None:
    data = shutil.copytree("data", tmp_path / "data")
    corpus = json.loads((data / "corpus.json").read_text())
    corpus |= {"sizes": {"ref/test.fr": (data / "ref" / "test.fr").stat().st_size}, "limit": 3}
    corpus |= {"differences": ["cut"], "unverified": ["test a.en"], "asked": {"limit": 3}}
    (data / "corpus.json").write_text(json.dumps(corpus))
    job = find_job(here.path, data, Settings(last=2), "test", True)
    assert job.data.differences == ("cut",) and job.data.unverified == ("test a.en",)
    assert job.data.preparation == {"limit": 3}
    (data / "ref" / "test.fr").write_text("cut off")
    with pytest.raises(ValueError, match=r"damaged: ref/test\.fr has 7 bytes"):
        find_job(here.path, data, Settings(last=2), "test", True)


@pytest.mark.both
def test_hypotheses_are_in_data_order(evaluated: str, here: Run) -> None:
    log = read_lines(here.decode / "test.last.log")
    hypotheses = read_lines(here.decode / "test.last.hyp")
    for line in log:
        if line.startswith("D-"):
            number, _, text = line.split("\t")
            assert hypotheses[int(number[2:])] == text
    sources = read_lines(Path("data/ref/test.en"))
    printed = dict(line.split("\t") for line in log if line.startswith("S-"))
    assert [printed[f"S-{number}"] for number in range(SENTENCES)] == sources


def test_only_changed_parts_are_evaluated_again(copy: Run, decoder: Decoder, capsys: Capture) -> None:
    assert main(arguments(copy)) == 0
    first = copy.results().read_text()
    assert len(decoder.commands) == 2
    assert main(arguments(copy)) == 0
    assert len(decoder.commands) == 2 and copy.results().read_text() == first
    assert capsys.readouterr().out.count("reused\n") == 4

    first_file, *_, last_file = copy.numbered("update")
    copy.last.unlink()
    copy.last.write_bytes(first_file.read_bytes())
    assert main(arguments(copy)) == 0
    assert [words[words.index("--path") + 1] for words in decoder.commands[2:]] == [str(copy.last)]
    assert main([*arguments(copy), "--last", "1"]) == 0  # a different average
    assert [words[words.index("--path") + 1] for words in decoder.commands[3:]] == [str(copy.averaged)]
    assert [item["file"] for item in load_checkpoint(copy.averaged)["averaged_from"]] == [last_file.name]
    (copy.decode / "test.last.hyp").unlink()
    assert main([*arguments(copy), "--last", "1"]) == 0
    assert len(decoder.commands) == 5
    assert main([*arguments(copy), "--last", "1", "--cpu"]) == 0
    assert len(decoder.commands) == 7 and decoder.commands[-1][-1] == "--cpu"


def copied(source: Path, target: Path) -> Path:
    """Copy a folder as `cp -r` does: the content is the same, and the times are new."""
    return Path(shutil.copytree(source, target, copy_function=shutil.copyfile))


def test_copied_run_is_not_decoded_again(copy: Run, decoder: Decoder, tmp_path: Path, capsys: Capture) -> None:
    assert main(arguments(copy)) == 0 and len(decoder.commands) == 2
    other, data = Run(copied(copy.path, tmp_path / "other")), copied(Path("data"), tmp_path / "data")
    capsys.readouterr()
    for folder in (Path("data"), data, data):
        assert main([*arguments(other), "--data", str(folder)]) == 0
        out = capsys.readouterr().out
        assert out.count("reused\n") == 4 and "fairseq-resid average" not in out
    assert len(decoder.commands) == 2
    results = [json.loads(run.results().read_text()) for run in (copy, other)]
    assert results[0] | {"data": ""} == results[1] | {"data": ""}
    with (data / "test.en-fr.en.bin").open("r+b") as file:  # the same size
        file.write(b"\x05")
    assert main([*arguments(other), "--data", str(data)]) == 0
    assert len(decoder.commands) == 4


def test_notes_without_checksums_are_valid_until_the_times_change(copy: Run, decoder: Decoder, tmp_path: Path) -> None:
    """Version 1.0 did not record checksums."""
    assert main(arguments(copy)) == 0
    for note in [*copy.decode.glob("*.json"), copy.path / "averaged.json"]:
        note.write_text(re.sub(r',\s*"sha256": "[0-9a-f]{64}"', "", note.read_text()))
        assert "sha256" not in note.read_text()
    assert main(arguments(copy)) == 0
    assert len(decoder.commands) == 2
    assert main(arguments(Run(copied(copy.path, tmp_path / "other")))) == 0
    assert len(decoder.commands) == 4


def test_interrupted_evaluation_reuses_finished_model(
    copy: Run, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_averaged(words: list[str], log: Path, *_: Any) -> None:
        if str(copy.last) in words:
            raise KeyboardInterrupt
        decoder(words, log)

    monkeypatch.setattr(decoding, "decode", only_averaged)
    assert main(arguments(copy)) == 130
    assert not copy.results().exists()
    monkeypatch.setattr(decoding, "decode", decoder)
    assert main(arguments(copy)) == 0
    assert len(decoder.commands) == 2 and copy.results().is_file()


def test_each_subset_has_its_own_results(copy: Run, decoder: Decoder) -> None:
    assert main(arguments(copy)) == 0
    before = copy.results().read_text()
    decoder.lines = 8
    assert main(arguments(copy, "--subset", "valid")) == 0
    assert json.loads(copy.results("valid").read_text())["sentences"] == 8
    assert copy.results().read_text() == before


def test_missing_hypotheses_give_an_error(copy: Run, decoder: Decoder, capsys: Capture) -> None:
    copy.results().write_text("old")
    decoder.lines = 16
    assert main(arguments(copy)) == 1
    error = capsys.readouterr().err
    assert "16 hypotheses" in error and "test.fr has 19 lines" in error and error.count("\n") == 1
    assert copy.results().read_text() == "old" and not (copy.decode / "test.averaged.hyp").exists()


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.unlink() or file.write_text("damaged")])
def test_lost_last_checkpoint_is_restored_from_the_same_update(
    copy: Run, decoder: Decoder, capsys: Capture, damage: Any
) -> None:
    assert main(arguments(copy)) == 0
    expected = json.loads(copy.results().read_text())
    damage(copy.last)
    assert main(arguments(copy)) == 0
    before, saved = copy.numbered("update")[-2:]
    assert f"checkpoint_last.pt: missing or damaged; restored from {saved.name}" in capsys.readouterr().out
    assert json.loads(copy.results().read_text()) == expected
    damage(copy.last)
    saved.unlink()
    refuse(capsys, arguments(copy), "missing or damaged, and the newest intact", before.name, "update 9 of 12")


def test_scores_are_kept_if_the_card_fails(copy: Run, decoder: Decoder, capsys: Capture) -> None:
    copy.results("valid").write_text("{")
    assert main(arguments(copy)) == 0
    assert "card.md not written: " in capsys.readouterr().err
    assert copy.results().is_file() and not copy.file("card.md").exists()
    decoder.lines = 8
    assert main(arguments(copy, "--subset", "valid")) == 0
    assert copy.file("card.md").is_file()


def test_another_corpus_dictionary_is_refused(copy: Run, decoder: Decoder, capsys: Capture, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree("data", other)
    flags = ["--last", "2", "--subset", "test", "--data", str(other)]
    assert main([str(copy.path), *flags]) == 0  # same dictionaries in another folder
    decoder.commands.clear()
    words = (other / "dict.fr.txt").read_text().splitlines()
    (other / "dict.fr.txt").write_text("".join(line + "\n" for line in [*words[:-1], "autre 1"]))
    line = f"dict.fr.txt is another dictionary: its line {len(words)} has 'autre' instead of '{words[-1].split()[0]}'"
    refuse(capsys, [str(copy.path), *flags], "checkpoint_last.pt: trained with data/dict.fr.txt, but ", line)
    assert not decoder.commands


def test_evaluation_is_refused_during_training(here: Run, capsys: Capture) -> None:
    with here.lock():
        assert main([str(here.path), "--last", "2", "--cpu"]) == 2
    assert "in use by another training or evaluation process" in capsys.readouterr().err
