"""`fairseq-resid table`: the table of evaluated runs."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fairseq_resid.evaluation import layout, table
from fairseq_resid.files import read_lines
from fairseq_resid.runs.run import Run
from support.evaluation import SIGNATURE
from support.scored_runs import data_folder

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def results(folder: Path, name: str, architecture_: str, **changes: Any) -> Path:
    training = {"tokens_per_second": 12345.6, "train_seconds": 4000.2, "num_updates": 1}
    content = {
        "architecture": architecture_,
        "parameters": 125952060,
        "bleu": {"averaged": 28.456, "last": 27.9},
        "signature": SIGNATURE + "2.6.0",
        "corpus": "wmt14-en-de",
        "subset": "test",
        "training": training,
        **changes,
    }
    (folder / name).mkdir(parents=True)
    (folder / name / "results.json").write_text(json.dumps(content))
    return folder / name


def test_table_is_never_truncated(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "transformer_resid_iwslt_en_vi_big --residual linear_shortcut"
    runs = [results(tmp_path, "one[bold]", "transformer_sas"), results(tmp_path, "a-run-of-some-length", long)]
    assert table.main([*map(str, runs)]) == 0
    out = capsys.readouterr().out
    for text in ("one[bold]", long, "125,952,060", "28.46", "27.90", "12,346", "1:06:40", "BLEU avg"):
        assert any(text in line for line in out.splitlines()), out
    assert out.count(SIGNATURE) == 1 and f"\nBLEU {SIGNATURE}2.6.0\n" in out and out.isascii()


def test_table_in_terminal_shows_every_character(tmp_path: Path) -> None:
    long = "transformer_resid_iwslt_en_vi_big"
    path = results(tmp_path, "one", long)
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80, color_system=None)
    runs = {path: Run(path).read_results()}
    layout.show(table.headings(runs), table.rows(runs), table.notes(runs), terminal)
    lines = screen.getvalue().splitlines()
    assert "…" not in screen.getvalue() and max(map(len, lines)) <= 80
    assert "125,952,060" in screen.getvalue() and "1:06:40" in screen.getvalue()
    first = next(index for index, line in enumerate(lines) if "one" in line)
    rest = lines[first + 1 : lines.index("wmt14-en-de test")]
    assert lines[first].split()[1] + "".join(map(str.strip, rest)) == long


def test_test_sets_of_one_name_are_told_apart(tmp_path: Path, capsys: Capture) -> None:
    """The runs `old` were evaluated before results.json contained the checksum of the test set."""
    sha = {"one": "a" * 64, "same": "a" * 64, "other": "b" * 64}
    runs = {name: str(results(tmp_path, name, name, test_set=it)) for name, it in sha.items()}
    data = data_folder(tmp_path / "tiny")
    runs["old"] = str(results(tmp_path, "old", "old", data=str(data)))
    runs["old-without-data"] = str(results(tmp_path, "old-without-data", "old"))

    def shown(*names: str) -> str:
        assert table.main([runs[name] for name in names]) == 0
        return capsys.readouterr().out

    assert shown("one", "same").count("wmt14-en-de test\n") == 1
    out = shown("one", "other")
    assert "one: wmt14-en-de test (sha256 aaaaaaaaaaaa...)\n" in out
    assert "other: wmt14-en-de test (sha256 bbbbbbbbbbbb...)\n" in out
    lines = "\n".join(read_lines(data / "ref" / "test.xx"))
    of_data = hashlib.sha256(lines.encode()).hexdigest()[:12]
    assert f"old: wmt14-en-de test (sha256 {of_data}...)\n" in shown("one", "old")
    assert "old-without-data: wmt14-en-de test (sha256 unknown)\n" in shown("one", "old-without-data")


def test_differently_scored_runs_show_their_signatures(tmp_path: Path, capsys: Capture) -> None:
    training = {"tokens_per_second": None, "train_seconds": None}
    one = results(tmp_path, "one", "a")
    two = results(tmp_path, "two", "b", signature="nrefs:1|tok:char", training=training)
    assert table.main([str(one), str(two)]) == 0
    out = capsys.readouterr().out
    assert f"one: wmt14-en-de test\nBLEU {SIGNATURE}" in out
    assert "two: wmt14-en-de test\nBLEU nrefs:1|tok:char" in out


def test_table_is_printed_as_markdown(tmp_path: Path, capsys: Capture) -> None:
    assert table.main([str(results(tmp_path, "one", "transformer_sas")), "--markdown"]) == 0
    head, rule, row, blank, *note = capsys.readouterr().out.splitlines()
    assert head.startswith("| run | architecture | parameters |") and rule.count("---") == head.count("|") - 1
    assert row == "| one | transformer_sas | 125,952,060 | 28.46 | 27.90 | 12,346 | 1:06:40 |"
    assert not blank and note[0] == "wmt14-en-de test  " and note[1].startswith("BLEU nrefs:1|case:mixed")


def test_table_names_runs_without_scores(tmp_path: Path, capsys: Capture) -> None:
    """The table contains the other runs; the command fails if there are none or if --at-least requires a score."""
    runs = [str(tmp_path / "two"), str(results(tmp_path, "one", "a")), str(tmp_path / "three")]
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "checkpoint_last.pt").touch()
    assert table.main(runs) == 0
    shown = capsys.readouterr()
    without = f"{tmp_path / 'two'}/results.json: no such file: run fairseq-resid evaluate {tmp_path / 'two'} first"
    for line in (without, f"{tmp_path / 'three'}: no such run folder"):
        assert f"fairseq-resid table: warning: {line}\n" in shown.err
    assert "28.46" in shown.out and "two" not in shown.out
    assert table.main([*runs, "--at-least", "5"]) == 1 and "28.46" in capsys.readouterr().out
    assert table.main([runs[0], runs[2]]) == 2 and not capsys.readouterr().out


def test_runs_with_the_same_folder_name_are_named_by_path(tmp_path: Path, capsys: Capture) -> None:
    runs = [results(tmp_path / parent, "baseline", "a") for parent in ("one", "two")]
    found = json.loads((runs[1] / "results.json").read_text())
    (runs[1] / "results.json").write_text(json.dumps({**found, "corpus": "other"}))
    assert table.main([*map(str, runs), "--markdown"]) == 0
    shown = capsys.readouterr().out
    for run, corpus in zip(runs, ("wmt14-en-de", "other"), strict=True):
        assert f"| {run} | a |" in shown and f"\n{run}: {corpus} test" in shown
