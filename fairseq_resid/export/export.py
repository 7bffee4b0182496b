"""Export a trained translation model to a folder for another engine, and prove that the results are the same.

    fairseq-resid export RUN --to ctranslate2 --out DIR
    fairseq-resid translate DIR < text

DIR contains the engine's files, the subword model, export.json and a README. The files are first written to a
temporary folder, which is renamed after the proof has succeeded (proof.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from .. import records
from ..cli import frame
from ..console import code, say
from ..data.text import folder as text_folder
from ..data.text.folder import CORPUS, Corpus
from ..fairseq_patches import load_checkpoint
from ..fairseq_patches.dictionaries import add_flag
from ..files import partial_of, replacing, sha256, write_text
from ..runs import settings
from ..runs.run import Run
from ..runs.trained_on import find_data
from ..scoring import kinds
from .engine import ENGINES, FORMAT, RECORD, Record, Search, Text, check_installed, load
from .proof import NotEqual, Proof, prove

WITHOUT_STRUCTURE = "transformer"  # fairseq's own model
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


def text_of(data: Path, direction: tuple[str, str]) -> Text:
    """Return how the text of a data folder is converted. Without corpus.json, the text is not converted.

    direction: source and target language of the model
    Raises: ValueError naming corpus.json if it is damaged.
    """
    if not (data / CORPUS).is_file():
        return Text(*direction)
    known = text_folder.CorpusRecord.of(data)
    return Text(
        *direction,
        known.text.form,
        known.text.normalize,
        known.text.split_hyphens,
        known.restore.post_process,
        known.restore.model,
        known.tokenizer(direction[1]),
    )


def search_of(run: Run) -> Search:
    """Return the search settings that the evaluation of a run uses."""
    decoding = settings.of(run).decoding
    return Search(
        int(decoding["beam"]),
        float(decoding["lenpen"]),
        float(decoding["max-len-a"]),
        int(decoding["max-len-b"]),
    )


def structure_of(model: Any) -> dict[str, Any]:
    """Return the --residual name of a model and its options, or `transformer` for fairseq's own model."""
    from ..connections import sites

    site = next(iter(sites(model).values()), None)
    return {"arch": WITHOUT_STRUCTURE} if site is None else dict(site.described)


def export(
    run: Run,
    engine: str,
    out: Path,
    checkpoint: str | None = None,
    quantization: str | None = None,
    data: Path | None = None,
) -> Proof:
    """Write the export of a run to the new folder `out`, and return its proof.

    Raises: ValueError or OSError naming the flag or file and the problem; NotEqual if the proof fails. No folder
    is left in that case.
    """
    if out.exists():
        raise ValueError(f"--out {out}: already exists; choose another name or remove it")
    check_installed(engine)
    writer = import_module(f".{ENGINES[engine].writer}", __package__)
    if quantization is not None and quantization not in writer.QUANTIZATIONS:
        raise ValueError(f"--quantization {quantization}: choose one of {', '.join(writer.QUANTIZATIONS)}")
    file = run.checkpoint(checkpoint)
    state = load_checkpoint(file)
    if kinds.of_checkpoint(state.get("cfg")).folder.content != "text":
        raise ValueError(f"{file}: not a translation model; only translation models can be exported")
    path = (data or find_data(run, state)).resolve()
    from ..scoring.loading import load as load_model

    loaded = load_model(run, file, path, cpu=True)
    direction = loaded.task.cfg.source_lang, loaded.task.cfg.target_lang
    text = text_of(path, direction)
    corpus = Corpus.read(path, direction) if (path / CORPUS).is_file() else None
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial_of(out), ignore_errors=True)  # left by an export that was killed
    with replacing(out) as partial:
        partial.mkdir()
        if text.model is not None:
            shutil.copyfile(path / text.model, partial / text.model)
        dictionaries = loaded.task.source_dictionary, loaded.task.target_dictionary
        writer.write(loaded.model, *dictionaries, partial, quantization)
        source, target = loaded.model.max_positions()
        record = Record(
            FORMAT,
            engine,
            version(ENGINES[engine].package),
            str(run.path.resolve()),
            file.name,
            str(path),
            structure_of(loaded.model),
            quantization,
            (int(source), int(target)),
            text,
            search_of(run),
            sha256=sha256(file),
        )
        records.write(partial / RECORD, record)
        if hasattr(writer, "complete"):  # files that depend on the record as well as the model
            writer.complete(partial, record)
        proof = prove(loaded, load(partial), record, corpus)
        records.write(partial / RECORD, dataclasses.replace(record, proof=msgspec.to_builtins(proof)))
        more = writer.readme(partial, record) if hasattr(writer, "readme") else ""
        write_text(partial / "README.md", readme(record, run.name, proof) + more)
    return proof


def readme(record: Record, run: str, proof: Proof) -> str:
    """Return the text of an export's README."""
    return README.format(
        run=code(run),
        engine=record.engine,
        checkpoint=record.checkpoint,
        package=ENGINES[record.engine].package,
        version=record.engine_version,
        quantization=f", with weights in {record.quantization}" if record.quantization else "",
        proof="Compared with fairseq: " + "; ".join(proof.lines(record.engine)) + ".",
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
    for line in proof.lines(options.to):
        say(line)
    say(f"{options.out}: exported; translate with fairseq-resid translate {options.out} < text")
    return 0
