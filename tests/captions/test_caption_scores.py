"""Scores of captions: they equal pycocoevalcap's, are compared over images, and are read by every command."""

from __future__ import annotations

import importlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairseq_resid.__main__ import main
from fairseq_resid.data.captions import caption_folder as folder
from fairseq_resid.files import sha256
from fairseq_resid.runs.run import Run
from fairseq_resid.scoring import caption_scores, kinds, likelihood
from fairseq_resid.scoring.caption_scores import CaptionScore
from fairseq_resid.tasks.cider import Cider
from support import training_here

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def random_captions(count: int = 120) -> tuple[list[str], list[list[str]]]:
    generator = random.Random(1)

    def caption(least: int) -> str:
        return " ".join(generator.choices(["a", "b", "c", "d", "e", "f", "g"], k=generator.randint(least, 12)))

    return [caption(0) for _ in range(count)], [
        [caption(1) for _ in range(generator.randint(1, 5))] for _ in range(count)
    ]


def test_cider_equals_that_of_pycocoevalcap() -> None:
    theirs = pytest.importorskip("pycocoevalcap.cider.cider")
    captions, references = random_captions()
    _, expected = theirs.Cider().compute_score(
        dict(enumerate(references)), {image: [caption] for image, caption in enumerate(captions)}
    )
    words = [[text.split() for text in texts] for texts in references]
    mine = Cider(words)
    found = [mine.score(caption.split(), texts) for caption, texts in zip(captions, words, strict=True)]
    assert found == pytest.approx(expected.tolist(), abs=1e-6)


def test_text_is_tokenised_as_by_pycocoevalcap(java: None) -> None:
    theirs = importlib.import_module("pycocoevalcap.tokenizer.ptbtokenizer")
    lines = ["It's a Dog (small) -- 3.5 m!", "", "café \u2028 \x85 naïve", "a <unk> ||| b", 'A cat, on the "grass".']
    found = caption_scores.tokenise(lines)
    expected = theirs.PTBTokenizer().tokenize(
        {n: [{"caption": " ".join(line.split())}] for n, line in enumerate(lines)}
    )
    assert found == [expected.get(number, [""])[0] for number in range(len(lines))]
    assert caption_scores.tokenise([]) == []


def test_measures_are_means_over_images(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (tmp_path / "decode").mkdir()
    scores = [CaptionScore("7", 120.0, 2), CaptionScore("9", 60.0, 1)]
    CaptionScore.write(run.decoded("test", "averaged", "cider"), scores)
    sentences = [likelihood.Sentence(2.0, 4), likelihood.Sentence(4.0, 2), likelihood.Sentence(6.0, 6)]
    likelihood.Sentence.write(tmp_path / "decode" / "test.averaged.nll", sentences)
    measures = kinds.of_measure("CIDEr").studied.measures
    assert measures["NLL"].parts(run, "test") == [[6.0, 6.0], [6.0, 6.0]]
    for name, expected in (("CIDEr", 90.0), ("NLL", 1.0)):
        parts = np.array(measures[name].parts(run, "test"))
        assert measures[name].score(parts.sum(axis=0)) == pytest.approx(expected)
    likelihood.Sentence.write(tmp_path / "decode" / "test.averaged.nll", sentences[:2])
    with pytest.raises(ValueError, match=r"test.averaged.nll: 2 captions, but 3 references in "):
        measures["NLL"].parts(run, "test")


def test_scores_are_those_of_the_decoded_captions(data: Path, runs: list[Path], capsys: Capture) -> None:
    from pycocoevalcap.bleu.bleu import Bleu

    results = Run(runs[1]).read_results()
    captions = (runs[1] / "decode" / "test.averaged.hyp").read_text().splitlines()
    references = folder.CaptionData(data, folder.CaptionRecord.of(data)).references("test")
    assert results.test_set == sha256(data / "ref" / "test.tsv")
    assert len(captions) == 6 == results.sentences and results.architecture == "captioning_sas"
    plain = [[text.lower().rstrip(".!").replace(",", "") for text in texts] for texts in references.texts]
    bleu, _ = Bleu(4).compute_score(dict(enumerate(plain)), {n: [one] for n, one in enumerate(captions)}, verbose=0)
    words = [[text.split() for text in texts] for texts in plain]
    cider = [Cider(words).score(one.split(), texts) for one, texts in zip(captions, words, strict=True)]
    scores = results.scores["averaged"]
    assert scores["BLEU-4"].score == pytest.approx(100 * bleu[3], abs=1e-3)
    assert scores["CIDEr"].score == pytest.approx(100 * float(np.mean(cider)), abs=1e-3)
    assert scores["CIDEr"].signature == "nrefs:2|tok:ptb|case:lc|pycocoevalcap:1.2"
    assert {"METEOR", "ROUGE-L", "BLEU-1", "NLL"} <= scores.keys() and "SPICE" not in scores
    nll = likelihood.Sentence.read(runs[1] / "decode" / "test.averaged.nll")
    assert len(nll) == 12 and scores["NLL"].score == pytest.approx(likelihood.mean(nll), abs=1e-4)
    assert main(["evaluate", str(runs[1]), "--subset", "test", "--cpu"]) == 0
    said = capsys.readouterr().out
    assert "made from the same files with the same settings, reused" in said
    assert "SPICE not computed (its language models are not installed)" in said
    assert "| test, 6 | CIDEr |" in (runs[1] / "card.md").read_text()


def test_caption_runs_appear_in_compare_table_and_report(runs: list[Path], tmp_path: Path, capsys: Capture) -> None:
    assert main(["compare", *map(str, runs), "--markdown"]) == 0
    said = capsys.readouterr().out
    assert "| run | architecture | CIDEr | difference | 95% interval | p bootstrap | BLEU-4 |" in said
    assert "pets test, 6 images, averaged" in said and "paired bootstrap, 1,000 resamples, seed 12345" in said
    assert main(["table", *map(str, runs), "--markdown"]) == 0
    assert "| CIDEr avg | CIDEr last | tokens/s |" in capsys.readouterr().out
    assert main(["table", *map(str, runs), "--at-least", "20"]) == 2
    assert "applies to BLEU, but " in capsys.readouterr().err
    assert main(["analyze", *map(str, runs), "--sentences", "6", "--cpu", "--subset", "test"]) == 0
    assert "nats per word on 6 captioned images of test" in capsys.readouterr().out
    found = json.loads((runs[1] / "analysis" / "analysis.json").read_text())["sites"]
    assert len(found) == 2 + 3
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "Where the captions differ most" in page and "image 12" in page and "left out" not in page


def test_damaged_or_different_scores_are_refused(runs: list[Path], tmp_path: Path, capsys: Capture) -> None:
    rows = (runs[1] / "decode" / "test.averaged.cider").read_text().splitlines()
    results: dict[str, Any] = json.loads((runs[1] / "results.json").read_text())
    cases = [
        ("decode/test.averaged.cider", "\n".join(rows[1:]) + "\n", "run fairseq-resid evaluate"),
        ("decode/test.averaged.cider", "\n".join([f"9{rows[0]}", *rows[1:]]) + "\n", "different images or references"),
        ("results.json", json.dumps({**results, "preparation": {"captions": "0"}}), "different images or references"),
        ("results.json", json.dumps({**results, "signature": "nrefs:1"}), "CIDEr differs (nrefs:2|tok"),
    ]  # fmt: skip
    for number, (file, content, message) in enumerate(cases):
        other = shutil.copytree(runs[1], tmp_path / str(number))
        (other / file).write_text(content)
        assert main(["compare", str(runs[0]), str(other)]) == 2
        assert message in capsys.readouterr().err, message


def test_folder_that_does_not_fit_the_model_is_refused(
    data: Path, trained: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    other = shutil.copytree(data, tmp_path / "other")
    words = (other / folder.DICTIONARY).read_text().splitlines()
    (other / folder.DICTIONARY).write_text("\n".join(reversed(words)) + "\n")
    assert main(["evaluate", str(trained[0]), "--data", str(other), "--cpu"]) == 2
    assert f"but {other / folder.DICTIONARY} is another dictionary: its line 1 has" in capsys.readouterr().err


def test_study_of_captions_runs_end_to_end(recipe: Path, runs: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "pets.yaml"
    file.write_text(
        f"title: Pets\nrecipe: {recipe}\nmeasure: CIDEr\naverage: 3\nbaseline: plain\n"
        "flags: --arch captioning_resid --max-update 21\n"
        "arms: {plain: --residual post_ln, recursive: --residual rskip_ln}\n"
        "plan: [{setting: recipe, arms: [plain, recursive], seeds: 1}]\n"
    )
    training_here.study(file, tmp_path / "work", "recipe.plain.seed1", "recipe.recursive.seed1")
    page = (tmp_path / "pets" / "results.md").read_text()
    assert "## CIDEr minus the baseline's" in page and "test, 6 captioned images" in page
    assert "| recipe | recursive |" in page and "METEOR" in page
