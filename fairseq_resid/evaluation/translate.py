"""Translate raw text with a trained run: one output line for each input line, in order; empty lines stay empty.

    fairseq-resid translate RUN < text > translations

RUN is a run folder or an exported run (`fairseq-resid export`). An exported run translates with its own engine.
In Python:  Translator("checkpoints/RUN").translate(["A sentence.", "Another one."])

If a line cannot be translated, the translations of the lines before it are written, and the error names the line.

DATA/corpus.json determines how text is converted for the model and back (data/text/forms.py). Decoding uses the
settings of `fairseq-resid evaluate`: a beam of 4 and a length penalty of 0.6, unless the run's recipe sets others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ..cli import frame
from ..export import translator as exported
from ..export.engine import is_export
from ..fairseq_patches import load_checkpoint, naming
from ..fairseq_patches.dictionaries import add_flag, allowing
from ..runs import settings
from ..runs.run import Run
from ..runs.trained_on import direction_of, find_data
from ..scoring.decoding import search_settings
from ..scoring.source import TextConverter, check_length, read_line

if TYPE_CHECKING:
    from torch import Tensor

BUFFER = 512  # lines translated together when the input is not a terminal


class Translator:
    """A run's model, ready to translate: the averaged model if it exists, otherwise the last checkpoint.

    run: the run folder; data: the data folder, by default the data that the run was trained on
    checkpoint: a file name in the run folder; cpu: use the CPU even if a GPU is available
    allow_other_dictionary: accept data with another dictionary of the same size, like --allow-other-dictionary
    Raises: ValueError or OSError naming the missing or mismatched file.
    """

    def __init__(
        self,
        run: str | Path,
        data: str | Path | None = None,
        checkpoint: str | None = None,
        cpu: bool = False,
        allow_other_dictionary: bool = False,
    ) -> None:
        from fairseq.hub_utils import GeneratorHubInterface

        from ..scoring.loading import load

        folder = Run(Path(run))
        file = folder.checkpoint(checkpoint)
        state = load_checkpoint(file)
        path = Path(data) if data else find_data(folder, state)
        self.text = TextConverter.of_data(path, direction_of(state, file, path))
        self.search = search_settings(settings.of(folder).decoding)
        with allowing(allow_other_dictionary):
            loaded = load(folder, file, path.resolve(), cpu)
        with naming(str(file)):
            loaded.cfg.tokenizer = loaded.cfg.bpe = None  # the text is already tokenised
            loaded.cfg.dataset.max_tokens = max(4096, *loaded.model.max_positions())  # no line is too long for a batch
            self.hub: Any = GeneratorHubInterface(loaded.cfg, loaded.task, [loaded.model]).eval()
        self.longest: int = self.hub.max_positions[0]

    @overload
    def translate(self, lines: str) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def translate(self, lines: Iterable[str]) -> list[str]: ...
    def translate(self, lines: str | Iterable[str]) -> str | list[str]:
        """Return the translation of every line, or of one str; the translation of a blank line is empty.

        Raises: ValueError naming the line that is too long for the model.
        """
        if isinstance(lines, str):
            return self.translate([lines])[0]
        return self.decode([self.encode(line, number) for number, line in enumerate(lines, start=1)])

    def encode(self, line: str | bytes, number: int) -> Tensor | None:
        """Return the token ids of a line, or None for a blank line.

        Raises: ValueError naming the line if it is not UTF-8 or is too long for the model.
        """
        subwords: Tensor | None = self.text.encode(read_line(line, number), self.hub.src_dict)
        if subwords is not None:
            check_length(len(subwords), number, self.longest)
        return subwords

    def decode(self, encoded: Sequence[Tensor | None]) -> list[str]:
        """Return the translation of every encoded line, and "" for None."""
        translations = [""] * len(encoded)
        filled = {index: subwords for index, subwords in enumerate(encoded) if subwords is not None}
        if filled:
            generated = self.hub.generate(list(filled.values()), **self.search)
            for index, hypotheses in zip(filled, generated, strict=True):
                translations[index] = self.text.restore(self.hub.decode(hypotheses[0]["tokens"]))
        return translations


def encoded_batches(translator: Any, lines: Iterable[bytes], together: int) -> Iterator[list[Any]]:
    """Yield the encoded lines in batches of `together`.

    Raises: ValueError for an invalid line, after yielding the lines before it.
    """
    encoded: list[Any] = []
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


@frame.command("translate", "Translate stdin, one sentence per line, to stdout.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder, or an exported run")
    add("--checkpoint", metavar="FILE", help="a checkpoint in RUN (default: averaged.pt, or else checkpoint_last.pt)")
    add("--data", type=Path, help="data folder (default: the data that the run was trained on)")
    add_flag(parser)
    add("--cpu", action="store_true", help="use the CPU even if a GPU is available")
    options = parser.parse_args(argv)
    translator: Any
    if not is_export(options.run):
        translator = Translator(options.run, options.data, options.checkpoint, options.cpu)
    elif options.checkpoint is None and options.data is None:
        translator = exported.Translator(options.run)
    else:
        raise ValueError(
            f"{options.run}: an export contains one model and its text conversion; omit --checkpoint and --data"
        )
    for encoded in encoded_batches(translator, sys.stdin.buffer, 1 if sys.stdin.isatty() else BUFFER):
        sys.stdout.buffer.write("".join(line + "\n" for line in translator.decode(encoded)).encode())
        sys.stdout.buffer.flush()
