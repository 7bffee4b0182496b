"""Make the stored checkpoints in this folder, and the translations that every later version must reproduce.

    python tests/stored/make_stored_checkpoint.py

Run this script only for a new major version. A minor version must still load the stored checkpoints, and new
checkpoints would hide a failure to do so.

It writes FAMILY.pt (about 60 kB, without optimizer state) for every FAMILY in MODELS, their dictionaries dict.*.txt,
and expected.json:

    {"versions": {PACKAGE: VERSION}, "translations": {FAMILY: [{source, hypothesis, score}]}}

Sources and hypotheses are sentencepiece pieces, decoded with beam 4 and length penalty 0.6.
"""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE.parent)]

MODELS = {"transformer_sas": [], "transformer_rskip_ln": ["--skip-lambda", "3"]}
SIZE = shlex.split("""
    --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32
    --encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0 --share-all-embeddings
""")
TRAINING = shlex.split("""
    --optimizer adam --lr 0.02 --lr-scheduler inverse_sqrt --warmup-updates 50 --clip-norm 1 --max-update 800
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --batch-size 64 --max-epoch 0
    --disable-validation --no-epoch-checkpoints --num-workers 0 --cpu
""")
DECODING = shlex.split("--beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 8 --batch-size 16 --num-workers 0 --cpu")
SENTENCES = 12


def run(*words: object) -> str:
    """Run a fairseq command with the plugin; return its output."""
    command = [str(Path(sys.executable).parent / str(words[0])), *map(str, words[1:])]
    command += ["--user-dir", str(ROOT / "fairseq_resid")]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def strip(source: Path, target: Path) -> None:
    """Copy a checkpoint without its optimizer state and without local paths."""
    state = torch.load(source, map_location="cpu", weights_only=False)
    state["last_optimizer_state"] = None
    state["extra_state"] = {}
    cfg = state["cfg"]
    for group in (vars(cfg["model"]), cfg["task"], cfg["checkpoint"], cfg["common"]):
        for key, value in group.items():
            if isinstance(value, str) and value.startswith("/"):
                group[key] = ""
    torch.save(state, target)


def main() -> None:
    """Train a model of every family, strip its checkpoint, and store it with its translations."""
    from conftest import write_corpus
    from fairseq_resid.data.text import custom

    translations = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        data = work / "data"
        custom.build("tiny", write_corpus(work / "raw"), "en", "xx", 90, data, workers=1)
        for language in ("en", "xx"):
            shutil.copyfile(data / f"dict.{language}.txt", HERE / f"dict.{language}.txt")
        for family, flags in MODELS.items():
            save = work / family
            run("fairseq-train", data, "--arch", family, *flags, *SIZE, *TRAINING, "--save-dir", save)
            strip(save / "checkpoint_last.pt", HERE / f"{family}.pt")
            output = run("fairseq-generate", data, "--path", HERE / f"{family}.pt", *DECODING)
            lines: dict[str, dict[int, str]] = {"S": {}, "H": {}}
            for line in output.splitlines():
                kind, _, rest = line.partition("-")
                if kind in lines and "\t" in rest:
                    number, _, text = rest.partition("\t")
                    lines[kind][int(number)] = text
            translations[family] = [
                {"source": lines["S"][number], "hypothesis": text, "score": float(score)}
                for number in range(SENTENCES)
                for score, text in [lines["H"][number].split("\t")]
            ]
            print(output.splitlines()[-1])
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy")}
    for name in ("fairseq", "fairseq-fixed"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    expected = {"versions": versions, "translations": translations}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
