"""The process of one engine, for serving.py. It imports torch and fairseq only to translate with fairseq.

    python benchmarks/serving_process.py VARIANT FOLDER THREADS SENTENCES

It loads a model and writes an empty line. Then it reads settings as lines of JSON, and answers each with the
seconds, the number of tokens, and the peak memory of the process in bytes.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fairseq_resid.export.engine import Search, load

FAIRSEQ, MODEL = "fairseq", "model.pt"


def fairseq_translate(folder: Path, threads: int) -> Callable[[list[list[str]], Search], int]:
    """Return a function that translates with fairseq's own search and returns the number of tokens."""
    import torch
    from fairseq.data import data_utils
    from fairseq.sequence_generator import SequenceGenerator

    import fairseq_resid.models  # noqa: F401  (registers the classes of the model)

    torch.set_num_threads(threads)
    model, source, target = torch.load(folder / MODEL, weights_only=False)
    model.eval()
    model.prepare_for_inference_(translation_settings())

    def translate(sources: list[list[str]], search: Search) -> int:
        generator = SequenceGenerator(
            [model],
            target,
            beam_size=search.beam,
            max_len_a=search.max_len_a,
            max_len_b=search.max_len_b,
            len_penalty=search.length_penalty,
        )
        tokens = 0
        order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
        for start in range(0, len(order), search.batch_size):
            rows = [
                torch.tensor([*map(source.index, sources[row]), source.eos()])
                for row in order[start : start + search.batch_size]
            ]
            batch = data_utils.collate_tokens(rows, source.pad(), source.eos(), left_pad=True)
            lengths = torch.tensor([len(row) for row in rows])
            with torch.no_grad():
                found = generator.generate([model], {"net_input": {"src_tokens": batch, "src_lengths": lengths}})
            tokens += sum(len(hypotheses[0]["tokens"]) for hypotheses in found)
        return tokens

    return translate


def translation_settings() -> Any:
    """Return the default configuration of fairseq-generate."""
    from fairseq.dataclass.configs import FairseqConfig
    from omegaconf import OmegaConf

    return OmegaConf.structured(FairseqConfig())


def engine_translate(folder: Path, threads: int) -> Callable[[list[list[str]], Search], int]:
    """Return a function that translates with an engine and returns the number of tokens, including </s>."""
    engine = load(folder, threads)

    def translate(sources: list[list[str]], search: Search) -> int:
        return sum(len(found[0].tokens) + 1 for found in engine.translate(sources, search))

    return translate


def largest_memory() -> int:
    """Return the peak resident memory of this process in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux, where getrusage also counts the process that started this one
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    variant, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    sources = json.loads(Path(sys.argv[4]).read_text(encoding="utf-8"))
    translate = (fairseq_translate if variant == FAIRSEQ else engine_translate)(folder, threads)
    print(flush=True)
    for line in sys.stdin:
        search = Search(**json.loads(line))
        # Batches of one sentence take longer, so use fewer sentences.
        chosen = sources if search.batch_size > 1 else sources[: len(sources) // 4]
        start = time.perf_counter()
        tokens = translate(chosen, search)
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, tokens, largest_memory()]), flush=True)


if __name__ == "__main__":
    main()
