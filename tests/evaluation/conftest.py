"""A tiny stock transformer, trained and evaluated, and a fake decoder."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from fairseq_resid.cli import children
from fairseq_resid.runs.run import Run
from fairseq_resid.scoring import decoding
from support.evaluation import BIN, SENTENCES, Decoder, shell

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data/ and checkpoints/run/.

    The run is a one-layer stock transformer, trained for 12 updates and saved after every third.
    """
    folder = tmp_path_factory.mktemp("evaluation")
    (folder / "raw").mkdir()
    words = {"red": "ro@@ uge", "green": "ve@@ rt", "blue": "bl@@ eu", "old": "vi@@ eux", "new": "ne@@ uf"}
    choose = random.Random(1)
    (folder / "data" / "ref").mkdir(parents=True)
    for split, count in (("train", 60), ("valid", 8), ("test", SENTENCES)):
        lines = [choose.choices(list(words), k=choose.randint(4, 7)) for _ in range(count)]
        source = "".join(" ".join(line) + "\n" for line in lines)
        target = "".join(" ".join(words[word] for word in line) + "\n" for line in lines)
        (folder / "raw" / f"{split}.en").write_text(source)
        (folder / "raw" / f"{split}.fr").write_text(target)
        if split != "train":
            (folder / "data" / "ref" / f"{split}.en").write_text(source)
            (folder / "data" / "ref" / f"{split}.fr").write_text(target.replace("@@ ", ""))
    corpus = {"name": "colours", "source": "en", "target": "fr", "bleu_tokenize": "13a"}
    (folder / "data" / "corpus.json").write_text(json.dumps({**corpus, "restore": {"post_process": "subword_nmt"}}))
    sets = [f"--{split}pref" for split in ("train", "valid", "test")]
    prefs = [word for option in sets for word in (option, f"raw/{option[2:-4]}")]
    options = "-s en -t fr --joined-dictionary --destdir data"
    shell(BIN / "fairseq-preprocess", *options.split(), *prefs, cwd=folder)
    flags = (
        "--arch transformer_iwslt_de_en --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 "
        "--decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 "
        "--decoder-attention-heads 2 --share-all-embeddings --optimizer adam --lr 0.02 --max-tokens 128 --cpu "
        "--max-update 12 --save-interval-updates 3 --no-epoch-checkpoints --save-dir checkpoints/run --log-interval 5 "
        "--log-format json --log-file checkpoints/run/train.log"
    )
    (folder / "checkpoints" / "run").mkdir(parents=True)
    words_ = [BIN / "fairseq-train", "data", "--user-dir", children.PACKAGE, *flags.split()]
    out = shell(*words_, cwd=folder)
    (folder / "train.out").write_text(out)
    return folder


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(trained)
    return Run(Path("checkpoints/run"))


@pytest.fixture(scope="session")
def evaluated(trained: Path) -> str:
    """Return the output of scripts/evaluate.sh."""
    environment = {**os.environ, "FAIRSEQ_RESID_VENV": str(BIN.parent)}
    command = [str(ROOT / "scripts" / "evaluate.sh"), "checkpoints/run", "--last", "2", "--cpu"]
    done = subprocess.run(command, cwd=trained, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    stand_in = Decoder()
    monkeypatch.setattr(decoding, "decode", stand_in)
    return stand_in


@pytest.fixture
def copy(here: Run, tmp_path: Path) -> Run:
    """Return a separate run folder with the trained checkpoints."""
    run = Run(tmp_path / "copy")
    run.path.mkdir()
    for file in [*here.path.glob("checkpoint*.pt"), here.train_log]:
        os.link(file, run.path / file.name)
    return run
