"""The card of a run matches the files of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_resid.evaluation import card
from fairseq_resid.runs.run import Run
from support.evaluation import SENTENCES

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def test_card_matches_run_files(evaluated: str, here: Run, tmp_path: Path, capsys: Capture) -> None:
    text = here.file("card.md").read_text()
    assert card.main([str(here.path)]) == 0
    assert capsys.readouterr().out == text
    results = json.loads(here.results().read_text())
    score = results["scores"]["averaged"]["detokenised"]
    last = results["scores"]["last"]["detokenised"]["score"]
    row = f"| test, {SENTENCES} | detokenised | {score['score']:.2f} | {last:.2f} | {score['signature']} |"
    assert row in text.replace("\\|", "|")
    assert "| valid, " in text and "- command: not recorded" in text and "- training: 12 updates, " in text
    assert "- decoding: beam 4, lenpen 0.6, " in text and "- log: `checkpoints/run/train.log`" in text

    copied = Run(tmp_path / "run")
    copied.path.mkdir()
    told = {"not_as_released": ["train has 3 pairs"], "unverified": ["test a.en", "test a.fr"]}
    settings = {"name": "colours", "max_ratio": 3.0, "limit": None}
    copied.results().write_text(json.dumps({**results, **told, "preparation": settings}))
    record = {"command": ["fairseq-train", "data", "--adam-betas", "(0.9, 0.98)"], "finished": False, "seed": "3"}
    hardware = {"cpu": "a CPU", "cores": 2, "gpus": ["A100, 80 GiB"]}
    session = {"started": "today", "hardware": hardware, "commit": "c0ffee", "versions": {"torch": "2.5"}}
    record |= {"sessions": [session, {**session, "commit": "decade"}]}
    plan = {"effective batch": 32768, "unit": "padded positions", "devices": "1 × A100", "precision": "bf16"}
    copied.record.write_text(json.dumps({**record, "plan": plan}))
    text = card.card_of(copied)
    for said in (
        "command: `fairseq-train data --adam-betas '(0.9, 0.98)'`", "hardware: a CPU, 2 cores; A100, 80 GiB",
        "effective batch: 32,768 padded positions on 1 × A100", "precision: bf16", "seed: 3", "not finished",
        "not as released: train has 3 pairs", "not verified: test a.en, test a.fr", "preparation: max_ratio 3.0\n",
        "commit: c0ffee; then decade", "versions: torch 2.5",
    ):  # fmt: skip
        assert f"- {said}" in text or said in text
    copied.results().write_text(json.dumps({**results, "training": {}}))  # trained without train.log
    assert "- training: not recorded" in card.card_of(copied)
    exploded = {"num_updates": 9, "explosion": {"norm": 1e300, "update": 7, "median": 0.5}}
    copied.results().write_text(json.dumps({**results, "training": exploded}))
    assert "- gradient: exploded: norm 1.0e+300 at update 7, median 0.5\n" in card.card_of(copied)
    later = {"training": {"num_updates": 20}, "decoding": {"beam": "5"}, "averaged_checkpoints": ["checkpoint2.pt"]}
    early = {"subset": "valid", "training": {"num_updates": 5}, "averaged_checkpoints": ["checkpoint1.pt"]}
    copied.results().write_text(json.dumps({**results, **later}))
    copied.results("valid").write_text(json.dumps({**results, "decoding": {"beam": "5"}, **early}))
    text = card.card_of(copied)
    assert "- training, valid: 5 updates, not finished\n- training, test: 20 updates, not finished\n" in text
    assert "- averaged, valid: checkpoint1.pt\n- averaged, test: checkpoint2.pt\n- decoding: beam 5\n" in text
