"""Text of files on terminals and in Markdown: control characters, HTML and markup are escaped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.cli import frame
from fairseq_resid.cli.progress import Progress
from fairseq_resid.console import code, markdown, printable
from fairseq_resid.evaluation import card, table
from support.scored_runs import data_folder, evaluated

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]
RED = "\x1b[31mred\x1b]0;title\x07"
SCRIPT = "<script>alert(1)</script> [a](http://b) *c* `d` | e\n# f \x9b31m \u202eg"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (RED, "\\x1b[31mred\\x1b]0;title\\x07"),
        ("a\nb\rc\x00\x7f\x85", "a\\x0ab\\x0dc\\x00\\x7f\\x85"),
        ("\u202eevil\u2066\u2028", "\\u202eevil\\u2066\\u2028"),
        (os.fsdecode(b"caf\xe9"), "caf\\xe9"),
        ("ascii, ä, 漢字, \u200d, שלום, 1\u00a0000", "ascii, ä, 漢字, \u200d, שלום, 1\u00a0000"),
    ],
)
def test_printable_escapes_terminal_control_characters(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>&amp;", "&lt;b>&amp;amp;"),
        ("max_ratio _x_ *y* `z`", "max_ratio \\_x\\_ \\*y\\* \\`z\\`"),
        ("[a](b) \\ ~~c~~ $d$", "[a\\](b) \\\\ \\~\\~c\\~\\~ \\$d\\$"),
        ("a\n# b", "a\\\\x0a# b"),
    ],
)
def test_markdown_escapes_markup(text: str, shown: str) -> None:
    assert markdown(text) == shown and markdown("a|b") == "a|b" and markdown("a|b", in_table=True) == "a\\|b"


@pytest.mark.parametrize("text", ["3 runs", "-0.5", "--lr 3", "2026-11-25", "1.5", "a - b", "a # b", "[95%]"])
def test_markdown_leaves_plain_text_unchanged(text: str) -> None:
    assert markdown(text) == markdown(text, in_table=True) == text


@pytest.mark.parametrize(
    ("text", "shown"), [("a", "`a`"), ("a`b``c", "```a`b``c```"), ("`a", "`` `a ``"), ("", "`  `")]
)
def test_code_span_supports_any_text(text: str, shown: str) -> None:
    assert code(text) == shown


def test_error_escapes_quoted_text(capsys: Capture) -> None:
    @frame.command("quote", "")
    def main(*_: Any) -> None:
        raise ValueError(f"{RED}: no such thing")

    assert main([]) == 2
    assert capsys.readouterr().err == f"fairseq-resid quote: error: {printable(RED)}: no such thing\n"


def test_progress_shows_names_literally(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairseq_resid.cli.progress.EVERY", 0.0)
    with Progress(f"{RED} [bold]", 2, "lines") as progress:
        progress.advance(1)
    assert capsys.readouterr().out.startswith(f"  {printable(RED)} [bold]: 1 of 2 lines")


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
