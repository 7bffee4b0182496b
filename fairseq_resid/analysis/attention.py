"""Plot the attention of every decoder layer to the source while a model translates a sentence.

fairseq-resid attention RUN [--sentence 3 | --text "A sentence."] [--out attention.svg]
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli import frame
from ..console import say
from ..fairseq_patches.dictionaries import add_flag
from ..runs import settings
from ..scoring import kinds
from ..scoring.decoding import search_settings
from ..scoring.source import TextConverter
from .style import figure, plain

if TYPE_CHECKING:
    from torch import Tensor

    from ..scoring.loading import Loaded


@dataclass(frozen=True)
class Map:
    """Attention of one translated sentence.

    source, target: tokens, including EOS
    layers: the attention of each layer, (target, source): the mean over heads; each row sums to 1
    """

    source: list[str]
    target: list[str]
    layers: list[list[list[float]]]

    def mean(self) -> list[list[float]]:
        rows = range(len(self.target))
        columns = range(len(self.source))
        return [[sum(layer[i][j] for layer in self.layers) / len(self.layers) for j in columns] for i in rows]


def encode(loaded: Loaded, text: str) -> Tensor:
    """Return the token ids of a raw sentence.

    Raises: ValueError if the text is empty or the data folder has no subword model; OSError if it has no corpus.json.
    """
    task = loaded.task.cfg
    source = TextConverter.of_data(loaded.data, (task.source_lang, task.target_lang))
    tokens: Tensor | None = source.encode(text, loaded.task.source_dictionary)
    if tokens is None:
        raise ValueError("--text: empty; must be a sentence")
    return tokens


def of_data(loaded: Loaded, subset: str, number: int) -> Tensor:
    """Return the source tokens of sentence `number` of a subset; numbers start at 1.

    Raises: ValueError if the subset or the sentence does not exist.
    """
    from .model import choose_examples

    choose_examples(loaded, subset, 1)
    dataset = loaded.task.dataset(subset)
    if not 1 <= number <= len(dataset):
        raise ValueError(f"--sentence {number}: {subset} has {len(dataset):,} sentences; must be 1 to {len(dataset)}")
    source: Tensor = dataset[number - 1]["source"]
    return source


def attention(loaded: Loaded, source: Tensor) -> Map:
    """Translate a sentence with the settings of fairseq-resid evaluate and return the attention of each layer.

    Raises: ValueError if the sentence is too long for the model.
    """
    import torch

    model, task = loaded.model, loaded.task
    layers = [layer.encoder_attn for layer in model.decoder.layers]
    if len(source) > model.max_positions()[0]:
        raise ValueError(
            f"a sentence of {len(source):,} subwords; the model accepts at most {model.max_positions()[0]:,}"
        )
    source = source.to(loaded.device)
    inputs = {"src_tokens": source.unsqueeze(0), "src_lengths": torch.tensor([len(source)], device=loaded.device)}
    generator = task.build_generator([model], Namespace(**search_settings(settings.of(loaded.run).decoding)))
    target = generator.generate([model], {"net_input": inputs})[0][0]["tokens"]
    previous = target.roll(1).unsqueeze(0)  # moves EOS from the end to the beginning
    found: list[Tensor] = []

    def note(_: Any, __: Any, output: tuple[Tensor, Tensor]) -> None:
        weights = output[1]
        # The last layer returns the weights of each head, (H, 1, T, S); the others return their mean, (1, T, S).
        found.append(weights.mean(0) if weights.dim() == 4 else weights)

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.no_grad():
            model(**inputs, prev_output_tokens=previous)
    finally:
        for hook in hooks:
            hook.remove()
    return Map(
        [task.source_dictionary[int(token)] for token in source],
        [task.target_dictionary[int(token)] for token in target],
        [weights[0].float().cpu().tolist() for weights in found],
    )


def draw_attention(found: Map, path: Path) -> None:
    """Draw the mean over layers and each layer, with one row per target token and one column per source token."""
    tables = {"mean over layers": found.mean()}
    tables |= {f"layer {number}": layer for number, layer in enumerate(found.layers, start=1)}
    columns = min(2, len(tables))
    rows = -(-len(tables) // columns)
    height = max(2.2, 0.16 * len(found.target) + 0.9)
    with figure(path, rows, columns, (max(7.0, 0.36 * len(found.source) + 2), height)) as axes:
        for axis in axes.flat[len(tables) :]:
            axis.set_visible(False)
        for axis, (title, table) in zip(axes.flat, tables.items(), strict=False):
            axis.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            axis.set_title(title)
            axis.set_xticks(range(len(found.source)), shown(found.source), rotation=90, fontsize=7)
            axis.set_yticks(range(len(found.target)), shown(found.target), fontsize=7)
            axis.grid(False)
            axis.set_xlabel("source")
            axis.set_ylabel("translation")


def shown(tokens: Sequence[str]) -> list[str]:
    """Return subwords as tick labels, with sentencepiece's word boundary mark replaced by an underscore."""
    return [plain(token.replace("▁", "_")) for token in tokens]


@frame.command(
    "attention", "Plot the attention of a model while it translates a sentence: of each layer, and the mean."
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid attention`."""
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--sentence", type=int, default=1, metavar="N", help="sentence N of the subset (default 1)")
    chosen.add_argument("--text", help="a raw sentence")
    add("--out", type=Path, metavar="FILE", help="svg, png or pdf file (default RUN/analysis/attention.svg)")
    add("--data", type=Path, help="data folder (default: the data that the run was trained on)")
    add("--subset", default="valid", metavar="NAME", help="subset of the data (default valid)")
    add("--checkpoint", metavar="FILE", help="a checkpoint in RUN (default: averaged.pt, or else checkpoint_last.pt)")
    add_flag(parser)
    add("--cpu", action="store_true", help="use the CPU even if a GPU is available")
    options = parser.parse_args(argv)
    out = options.out or options.run / "analysis" / "attention.svg"
    # fairseq is imported here, after frame.command has silenced its libraries.
    from .model import load_for_analysis

    loaded = load_for_analysis(options.run, options.data, options.checkpoint, options.cpu)
    kind = kinds.of_checkpoint(loaded.cfg)
    if kind.folder.content != "text":
        raise ValueError(f"{options.run}: a model of {kind.words.examples} has no attention to a source sentence")
    given = options.text is not None
    source = encode(loaded, options.text) if given else of_data(loaded, options.subset, options.sentence)
    found = attention(loaded, source)
    draw_attention(found, out)
    say(f"{out}: {len(found.source)} source and {len(found.target)} target tokens, {len(found.layers)} layers")
