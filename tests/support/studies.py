"""A small study: its file, its kept runs, and a script that replaces training."""

from __future__ import annotations

import gzip
import json
import math
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_resid import records
from fairseq_resid.files import pack
from fairseq_resid.runs.run import Run, Scored
from fairseq_resid.scoring import likelihood
from fairseq_resid.study import kept, plan
from fairseq_resid.study.kept import Note
from fairseq_resid.study.plan import Planned
from fairseq_resid.study.work import StudyFolders

TEXT = """
title: A trial
recipe: quickstart
data: data-bin/trial
tests: [test, test1]
flags: --arch transformer_resid
settings:
  flat: --encoder-layers 1
  deep: --encoder-layers 3
baseline: base
arms:
  base: --residual post_ln
  sas: --residual sas
tuning: {flag: --lr, grid: [1e-3, 2e-3, 4e-3], seed: 100, most: 0.02, length: 0.25, average: 3}
contrasts:
  - [deep sas, flat sas]
  - [flat sas 0.002, flat base]
  - [deep sas, deep base, flat sas, flat base]
plan:
  - {setting: flat, arms: [base, sas], seeds: 2}
  - {setting: deep, arms: [base, sas], seeds: 2}
  - {setting: flat, arms: [sas], seeds: 1, at: baseline}
"""


def written(folder: Path, text: str = TEXT, name: str = "trial") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)
    return folder / f"{name}.yaml"


def note(run: Planned, nll: float, flags: str = "", **changes: Any) -> Note:
    made = {
        model: {"NLL": Scored(nll, "nats"), "BLEU": Scored(30.0, "sig"), "chrF": Scored(50.0, "sig")}
        for model in ("averaged", "last")
    }
    valid = {"averaged": nll, "last": nll}
    return replace(Note("trial", run, flags, "finished", valid, {} if run.is_tuning else made, 60.0, 1000), **changes)


def keep(folder: Path, run: Planned, nll: float, trial: plan.Study, **changes: Any) -> Note:
    """Write the kept files of a run that has this NLL."""
    made = note(run, nll, shlex.join(plan.flags_of(trial, run).arguments), **changes)
    place = folder / run.name
    decode = Run(place).decode
    decode.mkdir(parents=True)
    for subset in trial.tests:
        likelihood.Sentence.write(
            decode / f"{subset}.averaged.nll", [likelihood.Sentence(nll * count, count) for count in (4, 9)]
        )
        (decode / f"{subset}.averaged.bleu").write_text("9\t9\t8\t6\t5\t4\t9\t7\t6\t5\n" * 2)
        for kind in ("nll", "bleu"):
            pack(decode / f"{subset}.averaged.{kind}", decode)
            (decode / f"{subset}.averaged.{kind}").unlink()
    lines = [json.dumps({"epoch": at, "num_updates": at, "loss": 9 - at, "valid_nll_loss": 3}) for at in (1, 2, 3)]
    (place / "train.log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    records.write(kept.note_file(place), made)
    return made


def all_kept(folder: Path, trial: plan.Study, best_of_deep_sas: float = 0.004, name: str = "trial") -> dict[str, Note]:
    """Write all planned runs. sas is better by 0.2 (0.5 in `deep`). Its best value is 0.004; that of base is 0.002."""
    found: dict[str, Note] = {}
    while True:
        nll = {each.run: each.valid["averaged"] for each in found.values()}
        missing = [run for run in plan.runs(trial, nll) if run.name not in found]
        if not missing:
            return found
        run = missing[0]
        gain = {"base": 0.0, "sas": 0.5 if run.setting == "deep" else 0.2}[run.arm]
        best = {"base": 0.002, "sas": best_of_deep_sas if run.setting == "deep" else 0.004}[run.arm]
        value = run.value or 0.0
        nll_of = 3.0 - gain + 0.01 * run.seed % 0.07 + (0.3 * math.log(value / best) ** 2 if value else 0)
        found[run.name] = keep(folder, run, nll_of, trial, study=name)


# This script records its call and writes the given note.
STUB = """
import sys, time
from pathlib import Path
name, note, work, kept = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
with open(work / "calls", "a") as calls:
    calls.write(name + "\\n")
time.sleep({seconds!r})
if name in {bad!r} and not (work / "mended").exists():
    print("fairseq-resid study: error: no space for " + name)
    sys.exit(3)
(kept / name).mkdir(parents=True)
(kept / name / "study.json").write_text(note)
"""


def stubbed(script: Path) -> Any:
    """Return a study.command that runs the script instead of training; --lr 0.002 is best."""

    def command(place: StudyFolders, run: Planned, weights: bool) -> list[str]:
        flags = shlex.join(plan.flags_of(plan.read_study(place.file), run).arguments)
        scores = {"averaged": {name: Scored(1.0, "made up") for name in ("NLL", "BLEU", "chrF")}}
        made = Note(place.name, run, flags, "finished", {"averaged": abs((run.value or 0) - 0.002)}, scores, 1.0)
        return [sys.executable, "-S", str(script), run.name, records.text(made), str(place.work), str(place.kept)]

    return command


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "work" / "calls").read_text().splitlines()


# One seed, without the deep setting.
SMALL = re.sub(r"  - (\{setting: |\[)deep.*\n", "", TEXT).replace("[base, sas], seeds: 2", "[base, sas], seeds: 1")

REAL = """
title: Real
recipe: {recipe}
data: {data}
flags: --arch transformer_resid --log-coefficients
baseline: base
average: 2
analyze: 1
arms:
  base: --residual post_ln
  wild: --residual xskip --lr 1e30
plan:
  - {{setting: recipe, arms: [base, wild], seeds: 1}}
"""
FLAGS = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16 "
    "--decoder-ffn-embed-dim 16 --encoder-attention-heads 2 --decoder-attention-heads 2 --share-all-embeddings "
    "--optimizer adam --lr 0.01 --batch-size 16 --max-update 6 --save-interval-updates 3 --no-epoch-checkpoints "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --log-interval 2 --num-workers 0 --cpu"
)
