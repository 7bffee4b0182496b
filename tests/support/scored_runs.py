"""Run folders like those after training and evaluation, with translations of a chosen quality."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fairseq_resid.runs import settings
from fairseq_resid.scoring import translation_scores

TEXT = "the a house ship river king sees follows finds old small red very and with of on to in day"
WORDS = TEXT.split()


def sentences(seed: int, count: int = 120) -> list[str]:
    choose = random.Random(seed)
    return [" ".join(choose.choices(WORDS, k=choose.randint(5, 20))) + " ." for _ in range(count)]


REFERENCES = sentences(0)


def translate(quality: float, seed: int) -> list[str]:
    """Return the references, each word of which is kept with probability `quality` and otherwise replaced."""
    choose = random.Random(seed)
    return [
        " ".join(word if choose.random() < quality else choose.choice(WORDS) for word in line.split())
        for line in REFERENCES
    ]


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines))


def data_folder(folder: Path) -> Path:
    """Make a data folder that contains only a test set."""
    (folder / "ref").mkdir(parents=True)
    told = {"name": "tiny", "source": "en", "target": "xx", "restore": {"post_process": None}, "bleu_tokenize": "13a"}
    (folder / "corpus.json").write_text(json.dumps(told))
    write(folder / "ref" / "test.xx", REFERENCES)
    return folder


def evaluated(data: Path, name: str, quality: float, seed: int = 1, flags: str = "", **changes: Any) -> Path:
    """Write a run folder like one after training and evaluation."""
    run = data.parent / name
    (run / "decode").mkdir(parents=True)
    scores = {}
    for model in ("averaged", "last"):
        hypotheses = translate(quality, seed + (model == "last"))
        write(run / "decode" / f"test.{model}.hyp", hypotheses)
        scores[model] = translation_scores.bleu(hypotheses, REFERENCES)
    results = {
        "architecture": f"arch_{name}",
        "parameters": 1,
        "training": {},
        "bleu": {model: round(score.score, 4) for model, score in scores.items()},
        "signature": scores["last"].signature,
        "corpus": "tiny",
        "data": str(data),
        "subset": "test",
        "sentences": len(REFERENCES),
        "averaged_checkpoints": ["a", "b"],
        "decoding": {**settings.DECODING, "post-process": None},
        **changes,
    }
    (run / "results.json").write_text(json.dumps(results))
    command = ["fairseq-train", "d", *flags.split(), "--seed", str(seed), "--save-dir", str(run)]
    (run / "run.json").write_text(json.dumps({"command": command, "finished": True}))
    return run
