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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cli import frame
from ..export import translator as exported
from ..export.engine import is_export
from ..fairseq_patches.dictionaries import add_flag, allowing
from ..fairseq_patches.loading import load_checkpoint, naming
from ..runs import settings
from ..runs.run import Run
from ..runs.trained_on import direction_of, find_data
from ..scoring.decoding import search_settings
from ..scoring.source import LineTranslator, TextConverter, token_ids

BUFFER = 512  # lines translated together when the input is not a terminal


class Translator(LineTranslator):
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
        self.longest = self.hub.max_positions[0]

    def best(self, sources: Sequence[list[str]]) -> list[str]:
        ids = [token_ids(subwords, self.hub.src_dict) for subwords in sources]
        return [self.hub.decode(hypotheses[0]["tokens"]) for hypotheses in self.hub.generate(ids, **self.search)]


@frame.command("translate", "Translate stdin, one sentence per line, to stdout.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder, or an exported run")
    add("--checkpoint", metavar="FILE", help="a checkpoint in RUN (default: averaged.pt, or else checkpoint_last.pt)")
    add("--data", type=Path, help="data folder (default: the data that the run was trained on)")
    add_flag(parser)
    add("--cpu", action="store_true", help="use the CPU even if a GPU is available")
    options = parser.parse_args(argv)
    translator: LineTranslator
    if not is_export(options.run):
        translator = Translator(options.run, options.data, options.checkpoint, options.cpu)
    elif options.checkpoint is None and options.data is None:
        translator = exported.Translator(options.run)
    else:
        raise ValueError(
            f"{options.run}: an export contains one model and its text conversion; omit --checkpoint and --data"
        )
    for encoded in translator.encoded_batches(sys.stdin.buffer, 1 if sys.stdin.isatty() else BUFFER):
        sys.stdout.buffer.write("".join(line + "\n" for line in translator.decode(encoded)).encode())
        sys.stdout.buffer.flush()
