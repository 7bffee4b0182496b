"""Plot the attention of every decoder layer to the source while a model translates a sentence.

fairseq-resid attention RUN [--sentence 3 | --text "A sentence."] [--out attention.svg]
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cli import frame
from ..console import say
from ..fairseq_patches.dictionaries import add_flag
from ..runs import settings
from ..scoring import kinds
from ..scoring.decoding import search_settings
from ..scoring.source import TextConverter, token_ids
from .style import figure, plain

if TYPE_CHECKING:
    from torch import Tensor

    from ..scoring.loading import Loaded


def encode(loaded: Loaded, text: str) -> Tensor:
    """Return the token ids of a raw sentence.

    Raises: ValueError if the text is empty or the data folder has no subword model; OSError if it has no corpus.json.
    """
    task = loaded.task.cfg
    source = TextConverter.of_data(loaded.data, (task.source_lang, task.target_lang))
    subwords = source.subwords(text)
    if not subwords:
        raise ValueError("--text: empty; must be a sentence")
    tokens: Tensor = token_ids(subwords, loaded.task.source_dictionary)
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


def attention(loaded: Loaded, source: Tensor) -> tuple[list[str], list[str], list[Any]]:
    """Translate a sentence with the settings of fairseq-resid evaluate; return both texts and the layers' attention.

    Both texts are tokens, with EOS. The attention of a layer is the mean over heads, and each row sums to 1.
    Shapes: of each layer (target, source)
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
    return (
        [task.source_dictionary[int(token)] for token in source],
        [task.target_dictionary[int(token)] for token in target],
        [weights[0].float().cpu().numpy() for weights in found],
    )


def draw_attention(source: Sequence[str], target: Sequence[str], layers: Sequence[Any], path: Path) -> None:
    """Draw the mean over layers and each layer, with one row per target token and one column per source token."""
    tables = {"mean over layers": np.mean(layers, axis=0)}
    tables |= {f"layer {number}": layer for number, layer in enumerate(layers, start=1)}
    size = max(7.0, 0.36 * len(source) + 2), max(2.2, 0.16 * len(target) + 0.9)
    with figure(path, -(-len(tables) // 2), 2, size, panels=len(tables)) as axes:
        for axis, (title, table) in zip(axes.flat, tables.items(), strict=False):
            axis.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            axis.set_title(title)
            # Tick labels show sentencepiece's word boundary mark as an underscore.
            labels, rows = ([plain(token.replace("▁", "_")) for token in tokens] for tokens in (source, target))
            axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
            axis.set_yticks(range(len(rows)), rows, fontsize=7)
            axis.grid(False)
            axis.set_xlabel("source")
            axis.set_ylabel("translation")


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
    tokens, translation, layers = attention(loaded, source)
    draw_attention(tokens, translation, layers, out)
    say(f"{out}: {len(tokens)} source and {len(translation)} target tokens, {len(layers)} layers")
