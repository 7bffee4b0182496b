"""ONNX Runtime: translate with the graphs that onnx.py writes, using fairseq's beam search in NumPy.

This module requires onnxruntime and NumPy, but neither torch nor fairseq.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import records
from .engine import EOS, PAD, UNK, WRITER, Engine, Hypothesis, Record, Search, Words, calling

ENCODER, STEP = "encoder.onnx", "decoder_step.onnx"
VOCABULARIES = ("source_vocabulary.json", "target_vocabulary.json")
# Inputs and outputs of both graphs; their shapes are in onnx_graph.py.
INPUTS = {
    ENCODER: ["tokens"],
    STEP: ["token", "step", "mask", "source_keys", "source_values", "keys", "values"],
}
OUTPUTS = {ENCODER: ["mask", "source_keys", "source_values"], STEP: ["log_p", "new_keys", "new_values"]}

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


class Vocabulary:
    """The symbols of one side, by id.

    Raises: OSError or ValueError naming the file that is missing or damaged.
    """

    def __init__(self, file: Path) -> None:
        self.words = records.read(file, list[str], WRITER)
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.end, self.padding, self.unknown = (self.numbers[word] for word in (EOS, PAD, UNK))

    def encode(self, sentence: Words) -> list[int]:
        return [self.numbers.get(word, self.unknown) for word in sentence]

    def decode(self, numbers: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.words[number] for number in numbers)


def largest(values: Floats, count: int) -> Numbers:
    """Return the positions of the `count` largest values of each row, largest first. Ties go to the first position.

    Shapes: (N, M) -> (N, count)
    """
    bounds = -np.partition(-values, count - 1, axis=1)[:, count - 1]
    found = np.empty((len(values), count), np.int64)
    for row, bound, positions in zip(values, bounds, found, strict=True):
        above = np.flatnonzero(row > bound)
        equal = np.flatnonzero(row == bound)[: count - len(above)]
        chosen = np.sort(np.concatenate([above, equal]))
        positions[:] = chosen[np.argsort(-row[chosen], kind="stable")]
    return found


class Model(Engine):
    """A model loaded by ONNX Runtime on the CPU."""

    def __init__(self, folder: Path, record: Record, threads: int = 0) -> None:
        self.source, self.target = (Vocabulary(folder / name) for name in VOCABULARIES)
        self.encoder, self.decoder = (session(folder / name, threads) for name in (ENCODER, STEP))
        self.longest = record.longest
        ((layers, _, heads, _, channels),) = [each.shape for each in self.decoder.get_inputs() if each.name == "keys"]
        self.empty: Floats = np.zeros((layers, 0, heads, 0, channels), np.float32)

    def decode(
        self, sources: Sequence[Words], prefixes: Sequence[Words] | None, search: Search, most: int
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses for a batch of sources, best first, as fairseq's SequenceGenerator does step by step.

        most: maximum number of subwords. Every step keeps 2 * beam candidates. Only candidates in the first
        half can end a hypothesis, and a sentence with `beam` finished hypotheses leaves the batch.
        Candidates with equal scores are ordered by hypothesis, then by word.
        """
        target, count = self.target, len(self.target.words)
        beam = min(search.beam, count - 1)  # <pad> is never chosen
        memory = [np.repeat(each, beam, axis=axis) for each, axis in zip(self.encode(sources), (0, 1, 1), strict=True)]
        keys = values = np.repeat(self.empty, len(memory[0]), axis=1)
        forced = None
        if prefixes is not None:
            forced = padded([target.encode(prefix) for prefix in prefixes], target.padding, left=False)
        tokens: Numbers = np.full((len(memory[0]), 1), target.end)
        total: Floats = np.zeros(len(memory[0]), np.float32)
        alive = np.arange(len(sources))  # the numbers of the sentences in the batch
        ignored = np.zeros((len(sources), beam), bool)  # hypotheses that can no longer end
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for step in range(most + 1):
            log_p, keys, values = self.step(tokens[:, step], step, memory, keys, values)
            log_p[np.isnan(log_p)] = -math.inf
            log_p[:, target.padding] = -math.inf
            if step == most:
                log_p[:, np.arange(count) != target.end] = -math.inf
            if forced is not None and step < forced.shape[1] and step < most:
                force(log_p, np.repeat(forced[alive, step], beam), target.padding)
            elif step == 0:  # fairseq's --min-len is 1
                log_p[:, target.end] = -math.inf
            sums = (log_p + total[:, None]).reshape(len(alive), beam, count)
            # Initially all hypotheses of a sentence are the same.
            sums = (sums[:, :1] if step == 0 else sums).reshape(len(alive), -1)
            best = largest(sums, min(2 * beam, sums.shape[1] - 1))
            best_sums, best_words, best_beams = np.take_along_axis(sums, best, 1), best % count, best // count

            is_end = (best_words == target.end) & (best_sums != -math.inf)
            is_end[:, :beam] &= ~ignored
            ended = np.argwhere(is_end[:, :beam])
            for row, column in ended:
                if len(found[alive[row]]) < beam:
                    words = tokens[row * beam + best_beams[row, column], 1 : step + 1]
                    score = best_sums[row, column] / np.float32((step + 1) ** search.length_penalty)
                    found[alive[row]].append(Hypothesis(target.decode(words.tolist()), float(score)))
            left = [row for row in range(len(alive)) if len(found[alive[row]]) < beam]
            if not left or step == most:
                break

            # Keep the best candidates that have not ended. If there are too few, ended ones fill the beam, and are
            # ignored from then on.
            is_end[:, :beam] |= ignored
            order = is_end[left] * (2 * beam) + np.arange(best.shape[1])
            going = np.argsort(order, axis=1, kind="stable")[:, :beam]
            ignored = np.take_along_axis(order, going, 1) >= 2 * beam
            beams = np.take_along_axis(best_beams[left], going, 1)
            rows = (np.array(left)[:, None] * beam + beams).ravel()
            chosen = np.take_along_axis(best_words[left], going, 1).reshape(-1, 1)
            tokens, keys, values = np.concatenate([tokens[rows], chosen], axis=1), keys[:, rows], values[:, rows]
            total = np.take_along_axis(best_sums[left], going, 1).ravel()
            if len(left) < len(alive):
                alive = alive[left]
                memory = [memory[0][rows], memory[1][:, rows], memory[2][:, rows]]
        return [sorted(hypotheses, key=lambda each: -each.score) for hypotheses in found]

    def log_p(self, sources: Sequence[Words], targets: Sequence[Words]) -> list[list[float]]:
        memory = self.encode(sources)
        words = [[*self.target.encode(target), self.target.end] for target in targets]
        table = padded(words, self.target.end, left=False)
        previous = np.full(len(words), self.target.end)
        keys = values = np.repeat(self.empty, len(words), axis=1)
        log_p: Floats = np.empty(table.shape, np.float32)
        for step in range(table.shape[1]):
            row_log_p, keys, values = self.step(previous, step, memory, keys, values)
            previous = table[:, step]
            log_p[:, step] = np.take_along_axis(row_log_p, previous[:, None], 1)[:, 0]
        return [each[: len(sentence)].tolist() for each, sentence in zip(log_p, words, strict=True)]

    def encode(self, sources: Sequence[Words]) -> list[Any]:
        ids = [[*self.source.encode(source), self.source.end] for source in sources]
        tokens = padded(ids, self.source.padding, left=True)
        return self.run(ENCODER, self.encoder, [tokens])

    def step(self, token: Numbers, step: int, memory: list[Any], keys: Floats, values: Floats) -> list[Any]:
        """Return log p of the next token, and the keys and values that the next step needs."""
        return self.run(STEP, self.decoder, [token, np.array(step), *memory, keys, values])

    def run(self, name: str, graph: Any, given: list[Any]) -> list[Any]:
        found: list[Any] = graph.run(OUTPUTS[name], dict(zip(INPUTS[name], given, strict=True)))
        return found


def padded(rows: list[list[int]], padding: int, left: bool) -> Numbers:
    """Return rows of different lengths as one array."""
    width = max(map(len, rows), default=0)
    made: Numbers = np.full((len(rows), width), padding)
    for row, numbers in zip(made, rows, strict=True):
        row[width - len(numbers) if left else 0 :][: len(numbers)] = numbers
    return made


def force(log_p: Floats, words: Numbers, padding: int) -> None:
    """In rows with a prefix, set log p to minus infinity for every word except the next word of the prefix."""
    rows = np.flatnonzero(words != padding)
    kept = log_p[rows, words[rows]]
    log_p[rows] = -math.inf
    log_p[rows, words[rows]] = kept


def session(file: Path, threads: int) -> Any:
    """Load a graph with ONNX Runtime and return it. Raises: ValueError naming the file if it is missing or damaged."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = threads, 4
    with calling("ONNX Runtime", file, "cannot load it"):
        return onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
