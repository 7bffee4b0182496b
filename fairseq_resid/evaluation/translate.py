"""Raw text in, raw text out, with an evaluated or trained run: in order, an empty line for an empty line.

    scripts/translate.sh RUN < text > translations

In Python:  Translator("checkpoints/RUN").translate(["A sentence.", "Another one."])

Text goes to the model and back as DATA/corpus.json says (fairseq_resid/text.py), and is decoded as scripts/evaluate.sh
decodes: beam 4, length penalty 0.6.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..runs import Run
from ..text import TextForm
from . import averaging
from .__main__ import Corpus, find_data
from .decoding import SETTINGS

BUFFER = 512  # lines translated together, where nobody waits for them at a terminal


class Translator:
    """A run's model, ready to translate: the averaged one where there is one, else the last checkpoint.

    run: the run folder; data: its data folder, by default the one that it was trained on
    checkpoint: a file name in the run folder; cpu: stay on the CPU even where there is a GPU
    Raises: ValueError or OSError naming what is missing or does not fit.
    """

    def __init__(
        self, run: str | Path, data: str | Path | None = None, checkpoint: str | None = None, cpu: bool = False
    ) -> None:
        import torch
        from fairseq import hub_utils

        folder = Run(Path(run))
        if not folder.path.is_dir():
            raise ValueError(f"{run}: no such run folder")
        file = folder.path / checkpoint if checkpoint else folder.averaged if folder.averaged.is_file() else folder.last
        state = averaging.load(file)
        corpus = Corpus.read(Path(data) if data else find_data(folder, state))
        model = corpus.path / "spm.model"
        if corpus.post_process != "sentencepiece" or not model.is_file():
            raise ValueError(f"{corpus.path}: has no spm.model: its text cannot be cut into pieces here")
        told = json.loads((corpus.path / "corpus.json").read_text(encoding="utf-8"))
        self.source = TextForm.of_corpus(told, corpus.source)
        self.target = corpus.form
        loaded = hub_utils.from_pretrained(
            str(folder.path.resolve()),
            file.name,
            str(corpus.path.resolve()),
            bpe="sentencepiece",
            sentencepiece_model=str(model),
        )
        self.hub: Any = hub_utils.GeneratorHubInterface(loaded["args"], loaded["task"], loaded["models"])
        self.hub.eval()
        if torch.cuda.is_available() and not cpu:
            self.hub.cuda()
        limits = [self.hub.max_positions[0], self.hub.cfg.dataset.max_tokens]
        self.longest = min(limit for limit in limits if limit is not None)

    def translate(self, lines: Sequence[str], first: int = 1) -> list[str]:
        """Return the translation of every line; that of a blank line is empty.

        first: the number of the first line, for errors
        Raises: ValueError naming the line that is too long for the model.
        """
        filled = [index for index, line in enumerate(lines) if line.strip()]
        tokens = []
        for index in filled:
            tokens.append(self.hub.encode(self.source.to_model(lines[index])))
            if len(tokens[-1]) > self.longest:
                pieces = f"{len(tokens[-1]):,} pieces, and the model takes {self.longest:,}"
                raise ValueError(f"line {first + index}: {pieces}")
        translations = [""] * len(lines)
        if tokens:
            settings = {
                "lenpen": float(SETTINGS["lenpen"]),
                "max_len_a": float(SETTINGS["max-len-a"]),
                "max_len_b": int(SETTINGS["max-len-b"]),
            }
            found = self.hub.generate(tokens, beam=int(SETTINGS["beam"]), **settings)
            for index, hypotheses in zip(filled, found, strict=True):
                translations[index] = self.target.restore(self.hub.decode(hypotheses[0]["tokens"]))
        return translations


def read(raw: bytes, number: int) -> str:
    """Return a line of input as text.

    Raises: ValueError naming the line where it is not UTF-8.
    """
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"line {number}: not UTF-8 ({error.reason} at byte {error.start})") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Translate stdin to stdout; returns the exit code: 2 for bad input."""
    parser = argparse.ArgumentParser(prog="translate.sh", description="Translate stdin, a sentence a line, to stdout.")
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder")
    add("--checkpoint", metavar="FILE", help="a checkpoint in it (default averaged.pt, else checkpoint_last.pt)")
    add("--data", type=Path, help="the data folder (default: the one that the run was trained on)")
    add("--cpu", action="store_true", help="stay on the CPU even where there is a GPU")
    options = parser.parse_args(arguments)
    number = 0
    try:
        translator = Translator(options.run, options.data, options.checkpoint, options.cpu)
        together = 1 if sys.stdin.isatty() else BUFFER
        stdin = enumerate(sys.stdin.buffer, start=1)
        while lines := [read(raw, number) for number, raw in islice(stdin, together)]:
            translations = translator.translate(lines, first=number + 1)
            number += len(lines)
            sys.stdout.buffer.write("".join(line + "\n" for line in translations).encode())
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        return 0  # whoever reads has read enough
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
