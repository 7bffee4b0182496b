"""BLEU equals that of sacrebleu, and tokenised BLEU equals that of other tools."""

from __future__ import annotations

import math
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.data.text.forms import TextForm, escape
from fairseq_resid.scoring import translation_scores

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


@pytest.mark.both
def test_bleu_and_its_signature_equal_those_of_sacrebleu() -> None:
    lines = ["the cat sat on the mat .", "a dog barks , loudly"]
    assert translation_scores.bleu(lines, lines).score == pytest.approx(100)
    assert "tok:char" in translation_scores.bleu(lines, lines, "char").signature
    with pytest.raises(ValueError, match="1 hypotheses for 2 references: must be equal"):
        translation_scores.bleu(lines[:1], lines)
    with pytest.raises(ValueError, match="'13b'"):
        translation_scores.bleu(lines, lines, "13b")


def some_text(seed: int, hyphens: bool = False) -> tuple[list[str], list[str]]:
    """Return hypotheses and similar references, both untokenised."""
    choose = random.Random(seed)
    text = "the a house ship river king sees follows finds old small red very and with of on to in day"
    words = text.split()
    words += ["well-known", "EN-DE", "three-year-old"] if hyphens else []
    references, hypotheses = [], []
    for _ in range(60):
        line = [choose.choice(words) for _ in range(choose.randint(5, 25))]
        references.append(" ".join(line).capitalize() + ".")
        kept = [word if choose.random() < 0.8 else choose.choice(words) for word in line if choose.random() < 0.95]
        hypotheses.append(" ".join(kept).capitalize() + choose.choice([".", ".", "!"]))
    return hypotheses, references


def multi_bleu(hypotheses: list[str], references: list[str]) -> float:
    """Return BLEU as defined by Papineni et al. 2002, for one reference, on tokens separated by spaces."""
    matched, total = [0] * 4, [0] * 4
    lengths = [0, 0]
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        sides = hypothesis.split(), reference.split()
        lengths = [length + len(side) for length, side in zip(lengths, sides, strict=True)]
        for n in range(1, 5):
            found = [Counter(tuple(side[i : i + n]) for i in range(len(side) - n + 1)) for side in sides]
            matched[n - 1] += sum((found[0] & found[1]).values())
            total[n - 1] += sum(found[0].values())
    precision = math.exp(sum(math.log(a / b) for a, b in zip(matched, total, strict=True)) / 4)
    return 100 * min(1.0, math.exp(1 - lengths[1] / lengths[0])) * precision


@pytest.mark.parametrize("form", ["plain", "moses", "escaped"])
def test_tokenised_bleu_equals_that_of_independent_implementation(form: str) -> None:
    hypotheses, references = some_text(3, hyphens=True)
    moses = TextForm("de", "moses")
    tokens = [[moses.to_model(line) for line in side] for side in (hypotheses, references)]
    own = [[escape(line) for line in side] for side in tokens] if form == "escaped" else [hypotheses, references]
    found = translation_scores.side_by_side(*own, TextForm("de", form))
    assert found["tokenised"].score == pytest.approx(multi_bleu(*tokens), abs=1e-6)
    split = [[line.replace("-", " ##AT##-##AT## ") for line in side] for side in tokens]
    assert found["tokenised, compounds split"].score == pytest.approx(multi_bleu(*split), abs=1e-6)
    assert found["tokenised"].score != pytest.approx(found["tokenised, compounds split"].score, abs=0.1)
    # The detokenised text does not depend on the form of the corpus.
    assert found["detokenised"] == translation_scores.bleu(hypotheses, references)
    assert found["detokenised, lower case"].score > found["detokenised"].score
    assert (
        "tok:none|smooth:none" in found["tokenised"].signature
        and "case:lc" in found["detokenised, lower case"].signature
    )
    assert found["chrF"].signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


@pytest.mark.both
def test_tokenised_bleu_equals_that_of_fairseq_score(tmp_path: Path, capsys: Capture, monkeypatch: Any) -> None:
    from fairseq_cli.score import cli_main

    hypotheses, references = some_text(4)
    moses = TextForm("en", "moses")
    for name, side in (("sys", hypotheses), ("ref", references)):
        (tmp_path / name).write_text("".join(moses.to_model(line) + "\n" for line in side))
    monkeypatch.setattr(sys, "argv", ["fairseq-score", "--sys", str(tmp_path / "sys"), "--ref", str(tmp_path / "ref")])
    cli_main()
    theirs = re.search(r"BLEU4 = ([\d.]+),", capsys.readouterr().out)
    assert theirs
    mine = translation_scores.side_by_side(hypotheses, references, TextForm("en"))["tokenised"].score
    assert mine == pytest.approx(float(theirs[1]), abs=0.006)


@pytest.mark.parametrize(
    "line, split",
    [
        ("a rich-text format", "a rich ##AT##-##AT## text format"),
        ("x - y -z a-", "x - y -z a-"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # like Perl's s///g: matches do not overlap
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
    ],
)
def test_compounds_are_split_as_in_perl(line: str, split: str) -> None:
    assert translation_scores.split_compounds(line) == split
