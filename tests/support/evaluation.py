"""Helpers for tests of evaluation; the fixtures are in evaluation/conftest.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairseq_resid.evaluation.evaluate import main
from fairseq_resid.runs.run import Run

BIN = Path(sys.executable).parent
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
SENTENCES = 19  # not a multiple of 8, so fairseq-fixed would drop the last batch without our patch
MODEL = (
    "--arch transformer_iwslt_de_en --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 "
    "--decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 "
    "--decoder-attention-heads 2 --share-all-embeddings --optimizer adam --lr 0.02 --max-tokens 128"
)
Capture = pytest.CaptureFixture[str]


class Decoder:
    """A replacement for fairseq-generate that writes a log and records its calls."""

    def __init__(self, lines: int = SENTENCES) -> None:
        self.commands: list[list[str]] = []
        self.lines = lines

    def __call__(self, argv: list[str], log: Path, lock: int | None = None, sentences: int | None = None) -> None:
        self.commands.append(argv)
        log.parent.mkdir(exist_ok=True)
        log.write_text("".join(f"D-{number}\t-0.5\trouge vert bleu neuf\n" for number in range(self.lines)))


def arguments(run: Run, *more: str) -> list[str]:
    subset = [] if "--subset" in more else ["--subset", "test"]
    return [str(run.path), "--last", "2", "--data", "data", *subset, *more]


def refuse(capsys: Capture, words: list[str], *messages: str) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("fairseq-resid evaluate: error: ") and error.count("\n") == 1, error
    for message in messages:
        assert message in error
