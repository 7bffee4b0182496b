"""Export a trained translation model to a folder for another engine, and prove that the results are the same.

    fairseq-resid export RUN --to ctranslate2 --out DIR
    fairseq-resid translate DIR < text

DIR contains the engine's files, the subword model, export.json and a README. The files are first written to a
temporary folder, which is renamed after the proof has succeeded (proof.py).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .. import records
from ..cli import frame
from ..connections import sites
from ..console import code, say
from ..data.text.folder import CORPUS, CorpusRecord
from ..fairseq_patches.dictionaries import add_flag
from ..fairseq_patches.loading import load_checkpoint
from ..files import partial_of, replacing, sha256, write_text
from ..runs import settings
from ..runs.run import Run
from ..runs.trained_on import find_data
from ..scoring import kinds
from .engine import ENGINES, FORMAT, RECORD, Record, Search, Text, check_installed, load
from .proof import NotEqual, prove, summary

README = """# {run} for {engine}

`{checkpoint}` of the run {run}, exported by `fairseq-resid export` for {package} {version}{quantization}.
{proof}

Translate text, one sentence per line, with `fairseq-resid translate DIR < text`, or in Python:

```python
from fairseq_resid.export.translator import Translator
translator = Translator("DIR")
print(translator.translate(["A sentence."]))
```

This requires fairseq_resid with its extra `{engine}`. `export.json` describes the files.
"""


def export(
    run: Run,
    engine: str,
    out: Path,
    checkpoint: str | None = None,
    quantization: str | None = None,
    data: Path | None = None,
) -> dict[str, Any]:
    """Write the export of a run to the new folder `out`, and return its proof.

    Raises: ValueError or OSError naming the flag or file and the problem; NotEqual if the proof fails. No folder
    is left in that case.
    """
    if out.exists():
        raise ValueError(f"--out {out}: already exists; choose another name or remove it")
    check_installed(engine)
    writer = import_module(f".{engine}", __package__)
    if quantization is not None and quantization not in writer.QUANTIZATIONS:
        raise ValueError(f"--quantization {quantization}: choose one of {', '.join(writer.QUANTIZATIONS)}")
    file = run.checkpoint(checkpoint)
    state = load_checkpoint(file)
    if kinds.of_checkpoint(state.get("cfg")).folder.content != "text":
        raise ValueError(f"{file}: not a translation model; only translation models can be exported")
    path = (data or find_data(run, state)).resolve()
    from ..scoring.loading import load as load_model

    loaded = load_model(run, file, path, cpu=True)
    model, task = loaded.model, loaded.task
    source, target = model.max_positions()
    site, decoding = next(iter(sites(model).values()), None), settings.of(run).decoding
    record = Record(
        FORMAT,
        engine,
        version(ENGINES[engine]),
        str(run.path.resolve()),
        file.name,
        str(path),
        {"arch": "transformer"} if site is None else dict(site.described),
        quantization,
        (int(source), int(target)),
        text_of(path, (task.cfg.source_lang, task.cfg.target_lang)),
        Search(
            int(decoding["beam"]), float(decoding["lenpen"]), float(decoding["max-len-a"]), int(decoding["max-len-b"])
        ),
        sha256=sha256(file),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial_of(out), ignore_errors=True)  # left by an export that was killed
    with replacing(out) as partial:
        partial.mkdir()
        if record.text.model is not None:
            shutil.copyfile(path / record.text.model, partial / record.text.model)
        section = writer.write(model, task.source_dictionary, task.target_dictionary, partial, record)
        records.write(partial / RECORD, record)
        say(f"{out}: comparing the export with fairseq")
        proof = prove(loaded, load(partial), record)
        records.write(partial / RECORD, replace(record, proof=proof))
        readme = README.format(
            run=code(run.name),
            engine=engine,
            checkpoint=file.name,
            package=ENGINES[engine],
            version=record.engine_version,
            quantization=f", with weights in {quantization}" if quantization else "",
            proof=f"Compared with fairseq: {summary(proof)}.",
        )
        write_text(partial / "README.md", readme + (section or ""))
    return proof


def text_of(data: Path, direction: tuple[str, str]) -> Text:
    """Return how the text of a data folder is converted. Without corpus.json, the text is not converted.

    direction: source and target language of the model
    Raises: ValueError naming corpus.json if it is damaged.
    """
    if not (data / CORPUS).is_file():
        return Text(*direction)
    known = CorpusRecord.of(data)
    return Text(
        *direction,
        known.text.form,
        known.text.normalize,
        known.text.split_hyphens,
        known.restore.post_process,
        known.restore.model,
        known.tokenizer(direction[1]),
    )


@frame.command(
    "export",
    "Export a trained translation model to a folder for another engine, and prove that the results equal fairseq's.",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Run `fairseq-resid export`."""
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder")
    add("--to", required=True, choices=list(ENGINES), help="the engine")
    add("--out", required=True, type=Path, metavar="DIR", help="the folder to create; it must not exist")
    add("--checkpoint", metavar="FILE", help="a checkpoint in RUN (default: averaged.pt, or else checkpoint_last.pt)")
    add(
        "--quantization",
        metavar="TYPE",
        help="type of the weights (default: float32). ctranslate2: int8, int8_float32, int8_float16, int8_bfloat16, "
        "int16, float16 or bfloat16; onnx: int8; huggingface: float16 or bfloat16",
    )
    add("--data", type=Path, help="data folder (default: the data that the run was trained on)")
    add_flag(parser)
    options = parser.parse_args(argv)
    try:
        proof = export(
            Run(options.run), options.to, options.out, options.checkpoint, options.quantization, options.data
        )
    except NotEqual as error:
        say(f"{parser.prog}: error: {error}; nothing was exported", file=sys.stderr)
        return 1
    say(summary(proof))
    say(f"{options.out}: exported; translate with fairseq-resid translate {options.out} < text")
    return 0
