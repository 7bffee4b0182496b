"""Raw text in, raw text out, with an evaluated or trained run: in order, an empty line for an empty line.

    fairseq-resid translate RUN < text > translations

In Python:  Translator("checkpoints/RUN").translate(["A sentence.", "Another one."])

A line that cannot be translated is an error that names the line. The lines before it have been written.

Text goes to the model and back as DATA/corpus.json says (data/text/forms.py). It is decoded as by
`fairseq-resid evaluate`: beam 4 and length penalty 0.6, unless the run's recipe states others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..cli import frame
from ..data.text import folder as data_folder
from ..data.text.folder import Corpus
from ..data.text.forms import plain_words
from ..fairseq_patches import load_checkpoint, naming
from ..runs import settings
from ..runs.run import Run
from ..runs.trained_on import find_data

if TYPE_CHECKING:
    from torch import Tensor

# Characters of a line for each subword that the model takes: more are not cut into subwords, which would take minutes.
CHARACTERS = 100
BUFFER = 512  # lines translated together, if nobody waits for them at a terminal


class Translator:
    """A run's model, ready to translate: the averaged one if there is one, else the last checkpoint.

    run: the run folder; data: its data folder, by default the one that it was trained on
    checkpoint: a file name in the run folder; cpu: stay on the CPU even if there is a GPU
    Raises: ValueError or OSError naming what is missing or does not fit.
    """

    def __init__(
        self, run: str | Path, data: str | Path | None = None, checkpoint: str | None = None, cpu: bool = False
    ) -> None:
        import torch
        from fairseq import hub_utils

        from .. import models  # noqa: F401  (bridges fairseq, registers the architectures)

        folder = Run(Path(run))
        if not folder.path.is_dir():
            raise ValueError(f"{run}: no such run folder")
        file = folder.path / checkpoint if checkpoint else folder.averaged if folder.averaged.is_file() else folder.last
        state = load_checkpoint(file)
        corpus = Corpus.read(Path(data) if data else find_data(folder, state))
        self.segmenter = corpus.segmenter()
        self.decoding = settings.of(folder).decoding
        self.source = data_folder.read(corpus.path).forms()[corpus.source]
        self.target = corpus.form
        loaded = hub_utils.from_pretrained(str(folder.path.resolve()), file.name, str(corpus.path.resolve()))
        with naming(str(file)):
            loaded["args"].tokenizer = loaded["args"].bpe = None  # the text has its form already
            self.hub: Any = hub_utils.GeneratorHubInterface(loaded["args"], loaded["task"], loaded["models"])
        self.hub.eval()
        if torch.cuda.is_available() and not cpu:
            self.hub.cuda()
        limits = [self.hub.max_positions[0], self.hub.cfg.dataset.max_tokens]
        self.longest = min(limit for limit in limits if limit is not None)

    def translate(self, lines: Iterable[str]) -> list[str]:
        """Return the translation of every line; that of a blank line is empty.

        Raises: ValueError naming the line that is too long for the model.
        """
        return self.decode([self.encode(line, number) for number, line in enumerate(lines, start=1)])

    def encode(self, line: str | bytes, number: int) -> Tensor | None:
        """Return a line's subwords as the model numbers them, None for a line of none.

        Raises: ValueError naming the line if it is not UTF-8, or too long for the model.
        """
        most = CHARACTERS * self.longest
        too_long = f"line {number}: more than {most:,} characters, and the model takes {self.longest:,} subwords"
        if isinstance(line, bytes):
            if len(line) > self.most_bytes:
                raise ValueError(too_long)
            try:
                line = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"line {number}: not UTF-8 ({error.reason} at byte {error.start})") from None
        if len(line) > most:
            raise ValueError(too_long)
        words = plain_words(self.segmenter.encode([self.source.to_model(line)])[0])
        if not words:
            return None
        subwords: Tensor = self.hub.binarize(" ".join(words))
        if len(subwords) > self.longest:
            raise ValueError(f"line {number}: {len(subwords):,} subwords, and the model takes {self.longest:,}")
        return subwords

    @property
    def most_bytes(self) -> int:
        """Bytes of a line, its end included, that are looked at: any line of as many characters as are allowed."""
        return 4 * CHARACTERS * self.longest + 2

    def decode(self, encoded: Sequence[Tensor | None]) -> list[str]:
        """Return the translation of every encoded line, "" for None."""
        translations = [""] * len(encoded)
        filled = {index: subwords for index, subwords in enumerate(encoded) if subwords is not None}
        if filled:
            flags = {
                "lenpen": float(self.decoding["lenpen"]),
                "max_len_a": float(self.decoding["max-len-a"]),
                "max_len_b": int(self.decoding["max-len-b"]),
            }
            generated = self.hub.generate(list(filled.values()), beam=int(self.decoding["beam"]), **flags)
            for index, hypotheses in zip(filled, generated, strict=True):
                text = self.segmenter.join(self.hub.decode(hypotheses[0]["tokens"]))
                translations[index] = self.target.to_raw(text)
        return translations


def lines_of(stream: IO[bytes], most: int) -> Iterator[bytes]:
    """Yield the lines of a stream; of one that is longer than `most` bytes no more than its beginning, at last."""
    while line := stream.readline(most + 1):
        yield line
        if len(line) > most:
            return


def batches(translator: Translator, lines: Iterable[bytes], together: int) -> Iterator[list[Tensor | None]]:
    """Yield the encoded lines, so many together; before the error of a bad line, all that come before it."""
    encoded: list[Tensor | None] = []
    for number, line in enumerate(lines, start=1):
        try:
            encoded.append(translator.encode(line, number))
        except ValueError:
            yield encoded
            raise
        if len(encoded) == together:
            yield encoded
            encoded = []
    yield encoded


@frame.command("translate", "Translate stdin, a sentence a line, to stdout.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid translate`."""
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder")
    add("--checkpoint", metavar="FILE", help="a checkpoint in it (default averaged.pt, else checkpoint_last.pt)")
    add("--data", type=Path, help="the data folder (default: the one that the run was trained on)")
    add("--cpu", action="store_true", help="stay on the CPU even if there is a GPU")
    options = parser.parse_args(argv)
    if sys.stdin is None:
        raise ValueError("stdin: closed; it must be open, and have a sentence on each line")
    translator = Translator(options.run, options.data, options.checkpoint, options.cpu)
    lines = lines_of(sys.stdin.buffer, translator.most_bytes)
    for encoded in batches(translator, lines, 1 if sys.stdin.isatty() else BUFFER):
        sys.stdout.buffer.write("".join(line + "\n" for line in translator.decode(encoded)).encode())
        sys.stdout.buffer.flush()
