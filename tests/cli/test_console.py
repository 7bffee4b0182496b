"""Names in tables, and scores that are missing from a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_resid.console import markdown, say
from fairseq_resid.evaluation import card, table
from support.scored_runs import data_folder, evaluated

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def test_printed_names_are_one_line_in_any_encoding(capsys: Capture) -> None:
    say("caf\udce9 \x1b[1m\n", "two\tcolumns")
    assert capsys.readouterr().out == "caf\\udce9 \\x1b[1m\\n\ntwo\tcolumns\n"


def test_markdown_escapes_markup_in_names() -> None:
    assert markdown("max_ratio <b> *y*") == "max_ratio &lt;b> \\*y\\*"
    assert markdown("a|b", in_table=True) == "a\\|b" and markdown("-0.5 of 3 runs [95%]") == "-0.5 of 3 runs [95%]"


def test_missing_last_score_is_a_dash_or_an_error(tmp_path: Path, capsys: Capture) -> None:
    path = evaluated(data_folder(tmp_path / "data"), "one", 0.7)
    results = json.loads((path / "results.json").read_text())
    one = {"score": 1.0, "signature": "s"}
    results["scores"] = {"averaged": {"BLEU": one, "chrF": one}, "last": {"BLEU": one, "TER": one}}
    (path / "results.json").write_text(json.dumps(results))
    assert card.main([str(path)]) == 0
    out = capsys.readouterr().out
    assert "| chrF | 1.00 | - | s |" in out and "| TER | - | 1.00 | s |" in out
    (path / "results.json").write_text(json.dumps({**results, "bleu": None}))
    assert table.main([str(path)]) == 2
    assert capsys.readouterr().err.endswith("one/results.json: scores: last has no error\n")
