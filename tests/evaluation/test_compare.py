"""`fairseq-resid compare`: the same significance as the sacrebleu command, grouping of seeds, incomparable runs."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.evaluation import compare
from fairseq_resid.fairseq_patches import loading
from fairseq_resid.scoring import generated, translation_scores
from support.scored_runs import REFERENCES, data_folder, evaluated, sentences, translate, write

pytestmark = pytest.mark.once

BIN = Path(sys.executable).parent
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return data_folder(tmp_path / "data")


def rows(output: str) -> dict[str, list[str]]:
    """Return the rows of a Markdown table by run."""
    table = [line for line in output.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {row[0]: row for row in cells[2:]}


def test_figures_equal_those_of_sacrebleu_command(data: Path, capsys: Capture) -> None:
    qualities = {"base": 0.8, "better": 0.85, "same": 0.801}
    runs = [evaluated(data, name, quality, seed) for seed, (name, quality) in enumerate(qualities.items())]
    assert compare.main([*map(str, runs), "--markdown"]) == 0
    output = capsys.readouterr().out
    found = rows(output)
    assert [found[name][6] == "baseline" for name in qualities] == [True, False, False]
    for kind, column in (("bs", 5), ("ar", 6)):
        files = [str(run / "decode" / "test.averaged.hyp") for run in runs]
        command = [str(BIN / "sacrebleu"), str(data / "ref" / "test.xx"), "-i", *files, "-m", "bleu", "-f", "json"]
        told = subprocess.run([*command, f"--paired-{kind}"], check=True, capture_output=True, text=True).stdout
        for run, system in zip(runs, json.loads(told), strict=True):
            score = system["BLEU"]
            assert found[run.name][2] == f"{score['score']:.2f}"
            if run is not runs[0]:
                assert float(found[run.name][column]) == pytest.approx(score["p_value"], abs=5.1e-5)
    assert float(found["better"][3]) > 1 and float(found["better"][6]) < 0.05 < float(found["same"][6])
    for kind in ("bs:1000", "ar:10000"):
        assert re.search(rf"^BLEU nrefs:1\|{kind}\|seed:12345\|.*tok:13a", output, re.MULTILINE)


def test_last_checkpoint_is_compared_separately(data: Path, capsys: Capture) -> None:
    runs = [evaluated(data, "one", 0.8), evaluated(data, "two", 0.9, averaged_checkpoints=["a"])]
    assert compare.main([*map(str, runs), "--model", "last", "--markdown"]) == 0
    score = json.loads((runs[1] / "results.json").read_text())["bleu"]["last"]
    assert rows(capsys.readouterr().out)["two"][2] == f"{score:.2f}"


def test_runs_of_one_setting_are_grouped(data: Path, capsys: Capture) -> None:
    runs = [evaluated(data, f"base{seed}", 0.8, seed, "--lr 1") for seed in (1, 3, 5)]
    runs += [evaluated(data, f"other{seed}", 0.8, seed, "--lr 2") for seed in (1, 3)]
    runs.append(evaluated(data, "alone", 0.8, 7, "--lr 3"))
    assert compare.main(list(map(str, runs))) == 0
    output = capsys.readouterr().out
    scores = [json.loads((run / "results.json").read_text())["bleu"]["averaged"] for run in runs[:3]]
    told = f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}"
    assert f"arch_base1, 3 seeds (base1, base3, base5): BLEU {told}\n" in output
    assert "2 seeds (other1, other3)" in output and "seeds (alone" not in output and "one seed each" not in output
    assert compare.main([str(runs[0]), str(runs[-1])]) == 0
    assert "one seed each: p tells whether these models differ" in capsys.readouterr().out


def test_identical_runs_show_no_difference_and_no_seed_spread(data: Path, capsys: Capture) -> None:
    runs = [evaluated(data, name, 0.8) for name in ("one", "copy")]
    assert compare.main([*map(str, runs), "--markdown"]) == 0
    output = capsys.readouterr().out
    assert rows(output)["copy"][3:] == ["+0.00", rows(output)["one"][4], "1.0000", "1.0000"]
    assert "one, copy: same settings, but at least two have the same seed; no spread over seeds" in output


def test_data_is_found_from_another_folder(data: Path, capsys: Capture, monkeypatch: Any) -> None:
    runs = [evaluated(data, name, 0.8, seed) for name, seed in (("one", 1), ("two", 2))]
    for run in runs:
        results = json.loads((run / "results.json").read_text())
        (run / "results.json").write_text(json.dumps({**results, "data": "data-bin/tiny"}))
    monkeypatch.setattr(loading, "load_checkpoint", lambda path: path)
    monkeypatch.setattr(generated, "find_data", lambda run, state: data)
    assert compare.main(list(map(str, runs))) == 2
    assert "data-bin/tiny: no such data folder" in capsys.readouterr().err
    for run in runs:
        (run / "checkpoint_last.pt").touch()
    assert compare.main(list(map(str, runs))) == 0


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"corpus": "huge"}, "corpus differs (tiny and huge)"),
        ({"sentences": 7}, "number of examples differs (120 and 7)"),
        ({"decoding": {"beam": "5"}}, "decoding differs ({"),
        ({"averaged_checkpoints": ["a"]}, "number of averaged checkpoints differs (2 and 1)"),
        ({"subset": "valid"}, "test set differs (test and valid)"),
    ],
)
def test_incomparable_scores_are_refused(data: Path, changes: dict[str, Any], said: str, capsys: Capture) -> None:
    runs = [evaluated(data, "one", 0.8), evaluated(data, "two", 0.9, **changes)]
    assert compare.main(list(map(str, runs))) == 2
    error = capsys.readouterr().err
    assert f"{runs[0]} and {runs[1]} cannot be compared: " in error and said in error and error.count("\n") == 1


def test_scores_with_different_references_or_bleu_are_refused(data: Path, tmp_path: Path, capsys: Capture) -> None:
    one, two = evaluated(data, "one", 0.8), evaluated(data, "two", 0.9)
    lines, other = translate(0.9, 1), tmp_path / "other"
    (other / "ref").mkdir(parents=True)
    told = json.loads((data / "corpus.json").read_text())
    results = json.loads((two / "results.json").read_text())
    for references, tokenize, said in (
        (sentences(5), "13a", "reference texts differ"),
        (REFERENCES, "char", "BLEU differs (nrefs:1|case:mixed|eff:no|tok:13a"),
    ):
        write(other / "ref" / "test.xx", references)
        (other / "corpus.json").write_text(json.dumps({**told, "bleu_tokenize": tokenize}))
        score = translation_scores.bleu(lines, references, tokenize)
        changed = {"data": str(other), "bleu": {"averaged": score.score, "last": 0}, "signature": score.signature}
        (two / "results.json").write_text(json.dumps({**results, **changed}))
        assert compare.main([str(one), str(two)]) == 2
        assert said in capsys.readouterr().err


def test_hypotheses_that_do_not_match_results_are_refused(data: Path, capsys: Capture) -> None:
    one, two = evaluated(data, "one", 0.8), evaluated(data, "two", 0.9)
    hypotheses = two / "decode" / "test.averaged.hyp"
    hypotheses.write_text(hypotheses.read_text().replace("house", "home"))
    assert compare.main([str(one), str(two)]) == 2
    error = capsys.readouterr().err
    assert str(hypotheses) in error and f"run fairseq-resid evaluate {two} again" in error
