"""A tiny stock transformer, trained and evaluated, and a fake decoder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Result, run_fairseq
from fairseq_resid.evaluation import evaluate
from fairseq_resid.runs.run import Run
from fairseq_resid.scoring import decoding
from support.evaluation import MODEL, SENTENCES, Decoder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., Result]) -> Path:
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
    flags = (
        f"{MODEL} --max-update 12 --save-interval-updates 3 --no-epoch-checkpoints --save-dir checkpoints/run "
        "--log-interval 5 --log-format json --log-file checkpoints/run/train.log"
    )
    (folder / "checkpoints" / "run").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_fairseq("fairseq-preprocess", [*options.split(), *prefs]).code == 0
        cli("fairseq-train", "data", *flags.split())
    return folder


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(trained)
    return Run(Path("checkpoints/run"))


@pytest.fixture(scope="session")
def evaluated(trained: Path) -> str:
    """Return the output of `fairseq-resid evaluate`."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
        patch.chdir(trained)
        assert evaluate.main(["checkpoints/run", "--last", "2", "--cpu"]) == 0
    return output.getvalue()


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
