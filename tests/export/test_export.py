"""`fairseq-resid export`: the folder, its proof, translation and evaluation."""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid import records
from fairseq_resid.connections.core import registry
from fairseq_resid.connections.core.folding import as_post_norm
from fairseq_resid.evaluation import evaluate
from fairseq_resid.evaluation.exported import is_same_folder, of_run
from fairseq_resid.export import engine as engines
from fairseq_resid.export import export, proof
from fairseq_resid.export.engine import Hypothesis, Search
from fairseq_resid.export.translator import Translator
from fairseq_resid.files import read_lines
from fairseq_resid.runs.made_from import FileState, MadeFrom
from fairseq_resid.runs.run import Results, Run
from fairseq_resid.runs.training_log import TrainingSummary
from fairseq_resid.scoring import translation_scores
from support.engines import need

pytestmark = pytest.mark.once

needs_engine = need("ctranslate2")


@pytest.fixture(scope="module")
def run(train: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of scaled_pre_ln, trained until many of its translations differ; tests must not change it."""
    folder = tmp_path_factory.mktemp("export") / "run"
    train(folder, "--residual", "scaled_pre_ln", "--batch-size", 64, "--max-update", 100, "--dropout", 0)
    return folder


@pytest.fixture(scope="module")
def recursive(train: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of rskip_ln with λ = 2, which only ONNX Runtime can express."""
    folder = tmp_path_factory.mktemp("export") / "recursive"
    train(folder, "--residual", "rskip_ln", "--batch-size", 64, "--max-update", 20)
    return folder


@pytest.fixture(scope="module")
def exported(run: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the exported run; tests must not change it."""
    out = tmp_path_factory.mktemp("export") / "out"
    assert export.main([str(run), "--to", "ctranslate2", "--out", str(out), "--data", str(corpus)]) == 0
    return out


def export_to(out: Path, run: Path, data: Path, *flags: str) -> int:
    return export.main([str(run), "--to", "ctranslate2", "--out", str(out), "--data", str(data), *flags])


def is_one_error(text: str, *parts: str) -> bool:
    last = text.strip().splitlines()[-1]
    return last.startswith("fairseq-resid export: error: ") and all(part in last for part in parts)


def nothing_was_written(folder: Path) -> bool:
    return not [file for file in folder.iterdir() if file.name.startswith("out")]


@needs_engine
def test_export_contains_everything_needed_to_translate(exported: Path, run: Path, corpus: Path) -> None:
    names = {"README.md", "export.json", "config.json", "model.bin", "shared_vocabulary.json", "spm.model"}
    assert {file.name for file in exported.iterdir()} == names
    assert (exported / "spm.model").read_bytes() == (corpus / "spm.model").read_bytes()
    known = engines.read(exported)
    assert (known.engine, known.run, known.checkpoint) == ("ctranslate2", str(run.resolve()), "checkpoint_last.pt")
    assert known.structure == {"residual": "scaled_pre_ln"} and known.quantization is None
    assert (known.search.beam, known.search.length_penalty, known.search.max_len_b) == (4, 0.6, 50)
    assert known.proof["sentences"] == known.proof["translations"] == known.proof["identical"] == 43
    assert known.proof["tokens"] > 500 and 0 < known.proof["largest"] < 1e-4 and known.proof["differences"] == []
    assert 'Translator("DIR")' in (exported / "README.md").read_text()


@pytest.fixture(scope="module")
def expected(run: Path, generate: Callable[..., Any]) -> list[str]:
    """Return fairseq-generate's translations of the test set, with the settings of scripts/evaluate.sh."""
    found = generate(run / "checkpoint_last.pt", "--max-len-b", 50, "--post-process", "sentencepiece").lines("D")
    return [found[number].split("\t", 1)[1] for number in range(len(found))]


@needs_engine
def test_export_translates_like_fairseq_generate(exported: Path, corpus: Path, expected: list[str]) -> None:
    assert len(set(expected)) > 15
    assert Translator(exported).translate(read_lines(corpus / "ref" / "test.en")) == expected


@needs_engine
def test_translate_command_recognises_an_export(exported: Path, corpus: Path) -> None:
    lines = read_lines(corpus / "ref" / "test.en")[:3]
    command = [sys.executable, "-m", "fairseq_resid", "translate", str(exported)]
    stdin = f"{lines[0]}\r\n\n{lines[1]}\n{lines[2]}".encode()
    done = subprocess.run(command, input=stdin, capture_output=True, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr
    first, second, third = Translator(exported).translate(lines)
    assert done.stdout.decode() == f"{first}\n\n{second}\n{third}\n"


@needs_engine
def test_translator_needs_neither_torch_nor_fairseq(exported: Path) -> None:
    code = f"""
import sys
sys.modules["torch"] = sys.modules["fairseq"] = None
from fairseq_resid.export.translator import Translator
print(Translator({str(exported)!r}, threads=1).translate(["the red fox sees a king ."])[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2]
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@needs_engine
def test_evaluate_shows_bleu_of_export_and_of_its_run(
    exported: Path, corpus: Path, expected: list[str], tmp_path: Path, capsys: Any
) -> None:
    shutil.copytree(exported, tmp_path / "out")
    known = json.loads((exported / "export.json").read_text())
    (tmp_path / "out" / "export.json").write_text(json.dumps({**known, "run": str(tmp_path / "run")}))
    assert evaluate.main([str(tmp_path / "out"), "--subset", "test"]) == 0
    assert f"(fairseq-resid evaluate {tmp_path / 'run'} scores the run)" in capsys.readouterr().out
    bleu = translation_scores.bleu(expected, read_lines(corpus / "ref" / "test.xx"))
    (tmp_path / "run").mkdir()
    scores = {"averaged": 1.0, "last": bleu.score}
    decoding = {"beam": "4", "lenpen": "0.6", "max-len-a": "1", "max-len-b": "50"}
    results = Results("", 1, "tiny", "test", TrainingSummary(), scores, bleu.signature, decoding=decoding)
    records.write(tmp_path / "run" / "results.json", results)
    assert evaluate.main([str(tmp_path / "out"), "--subset", "test"]) == 0
    beside = capsys.readouterr().out
    assert f"out test: BLEU {bleu.score:.2f}  {bleu.signature}  (fairseq, " in beside
    assert f"checkpoint_last.pt of run: {bleu.score:.2f})" in beside
    greedy = dataclasses.replace(results, decoding={**decoding, "beam": "1"})
    records.write(tmp_path / "run" / "results.json", greedy)
    assert evaluate.main([str(tmp_path / "out"), "--subset", "test"]) == 0
    assert "(not compared with the run: other decoding settings)" in capsys.readouterr().out
    assert evaluate.main([str(tmp_path / "out"), "--subset", "test", "--beam", "1"]) == 0
    assert "checkpoint_last.pt of run: " in capsys.readouterr().out
    records.write(tmp_path / "run" / "results.json", results)
    shutil.copytree(corpus, tmp_path / "data")
    (tmp_path / "run" / "checkpoint_last.pt").write_bytes(b"newer")
    assert (
        evaluate.main([str(tmp_path / "out"), "--subset", "test", "--data", str(tmp_path / "data"), "--beam", "1"]) == 0
    )
    reasons = "other data, other decoding settings, checkpoint_last.pt has changed since the export"
    assert f"(not compared with the run: {reasons})" in capsys.readouterr().out
    assert evaluate.main([str(tmp_path / "out"), "--last", "3"]) == 2
    assert "--last: " in capsys.readouterr().err
    assert evaluate.main([str(tmp_path / "out"), "--subset", "other", "--data", str(corpus)]) == 2
    assert "ref/other.en" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("checkpoint", "averaged", "updates", "expected"),
    [
        ("checkpoint_last.pt", "checkpoint2.pt", 50, "fairseq, checkpoint_last.pt of run: 2.00"),
        ("averaged.pt", "checkpoint2.pt", 50, "fairseq, averaged.pt of run: 1.00"),
        ("averaged.pt", "checkpoint1.pt", 50, "not compared with the run: averaged.pt has changed since it was scored"),
        ("checkpoint_last.pt", "checkpoint2.pt", 40, "not compared with the run: training went on after the scoring"),
    ],
)
def test_score_of_a_run_is_shown_only_if_the_run_is_unchanged(
    tmp_path: Path, checkpoint: str, averaged: str, updates: int, expected: str
) -> None:
    """The run ends at update 50, and its averaged.pt is made from checkpoint2.pt."""
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.train_log.write_text('2026-01-02 03:04:05 | INFO | train | {"num_updates": "50"}\n')
    note = MadeFrom([FileState("checkpoint2.pt", 1, 1), FileState("averaged.pt", 1, 1)])
    records.write(run.file("averaged.json"), note)
    decoding = {"beam": "4", "lenpen": "0.6", "max-len-a": "1", "max-len-b": "50"}
    training, scores = TrainingSummary(num_updates=updates), {"averaged": 1.0, "last": 2.0}
    results = Results("", 1, "tiny", "test", training, scores, "", averaged_checkpoints=[averaged], decoding=decoding)
    records.write(run.results(), results)
    text = engines.Text("a", "b")
    record = engines.Record(1, "onnx", "1", str(run.path), checkpoint, "data", {}, None, (9, 9), text, Search())
    assert of_run(record, "test", "", Path("data"), Search()) == f"({expected})"


@pytest.mark.parametrize(
    ("said", "is_same"),
    [("data-bin/x", True), ("/a/data-bin/x", True), ("data-bin/y", False), ("/b/data-bin/x", False)],
)
def test_folder_of_a_score_may_be_named_from_elsewhere(said: str, is_same: bool) -> None:
    assert is_same_folder(Path("/a/data-bin/x"), Path(said)) == is_same


@needs_engine
def test_stock_checkpoints_can_be_exported(stock_checkpoint: Path, corpus: Path, tmp_path: Path, capsys: Any) -> None:
    assert export_to(tmp_path / "out", stock_checkpoint.parent, corpus) == 0
    assert engines.read(tmp_path / "out").structure == {"arch": "transformer"}
    assert "43 of 43 translations are identical" in capsys.readouterr().out


@needs_engine
def test_quantised_export_only_measures_the_difference(run: Path, corpus: Path, tmp_path: Path, capsys: Any) -> None:
    assert export_to(tmp_path / "out", run, corpus, "--quantization", "int8") == 0
    known = engines.read(tmp_path / "out")
    assert known.proof["largest"] > proof.TOLERANCE and known.quantization == "int8"
    assert f"differs by at most {known.proof['largest']:.1e}; " in capsys.readouterr().out


@needs_engine
def test_export_without_corpus_json_expects_subwords(run: Path, corpus: Path, tmp_path: Path, capsys: Any) -> None:
    data = tmp_path / "data"
    shutil.copytree(corpus, data)
    (data / "corpus.json").unlink()
    assert export_to(tmp_path / "out", run, data) == 0
    assert engines.load(tmp_path / "out").score([["▁the"]], [["▁la"]])
    with pytest.raises(ValueError, match="contains no subword model"):
        Translator(tmp_path / "out")


@needs_engine
def test_an_existing_folder_is_not_overwritten(run: Path, corpus: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "out").mkdir()
    assert export_to(tmp_path / "out", run, corpus) == 2
    assert is_one_error(capsys.readouterr().err, "out: already exists")
    assert not list((tmp_path / "out").iterdir())


@needs_engine
def test_structure_without_a_fold_is_refused(recursive: Path, corpus: Path, tmp_path: Path, capsys: Any) -> None:
    assert export_to(tmp_path / "out", recursive, corpus) == 2
    assert is_one_error(capsys.readouterr().err, "--residual rskip_ln: λ = 2", "use --to onnx")
    assert nothing_was_written(tmp_path)


@needs_engine
def test_structure_in_the_wrong_graph_fails_the_proof(
    recursive: Path, corpus: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    wrong = dataclasses.replace(registry.structure("rskip_ln"), folds=as_post_norm)
    monkeypatch.setitem(registry._STRUCTURES, "rskip_ln", wrong)
    assert export_to(tmp_path / "out", recursive, corpus) == 1
    assert is_one_error(capsys.readouterr().err, "differs from fairseq: log p of ", "nothing was exported")
    assert nothing_was_written(tmp_path)


@needs_engine
def test_differing_translations_fail_the_proof(
    run: Path, corpus: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    load = export.load

    def load_wrong(folder: Path) -> Any:
        found = load(folder)
        right = found.translate

        def translated(sources: Any, search: Any) -> list[list[Hypothesis]]:
            made = right(sources, search)
            return [[Hypothesis(("▁la", *made[0][0].tokens), 0.0)], *made[1:]]

        monkeypatch.setattr(found, "translate", translated)
        return found

    monkeypatch.setattr(export, "load", load_wrong)
    assert export_to(tmp_path / "out", run, corpus) == 1
    assert is_one_error(
        capsys.readouterr().err, "42 of 43 translations are identical", "scores of the others differ by"
    )
    assert nothing_was_written(tmp_path)


@pytest.mark.parametrize(
    ("changed", "is_exact", "passes"),
    [
        ({"largest": 9e-4, "identical": 198}, True, True),
        ({"largest": 1.1e-3}, True, False),
        ({"identical": 197}, True, False),
        ({"largest": 0.5, "identical": 9}, False, True),
        ({"largest": float("nan")}, False, False),
    ],
)
def test_limits_of_the_proof(changed: dict[str, Any], is_exact: bool, passes: bool) -> None:
    good = {"subset": "valid", "tokens": 100, "largest": 0.0, "translations": 200, "identical": 200, "differences": []}
    with nullcontext() if passes else pytest.raises(proof.NotEqual, match="log p of 100 reference"):
        proof.check({**good, **changed}, is_exact)


@pytest.mark.parametrize("engine", [name for name, kind in engines.ENGINES.items() if find_spec(kind)])
def test_full_disk_is_reported_with_the_file(engine: str, run: Path, corpus: Path, tmp_path: Path, capsys: Any) -> None:
    """The limit on the size of files has the same effect."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        code = export.main([str(run), "--to", engine, "--out", str(tmp_path / "out"), "--data", str(corpus)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    error = capsys.readouterr().err
    assert code == 2 and is_one_error(error, str(tmp_path / "out"), "File too large")
    assert nothing_was_written(tmp_path)


@needs_engine
def test_moved_folder_still_translates(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "moved")
    line = ["the red fox sees a king ."]
    assert Translator(tmp_path / "moved").translate(line) == Translator(exported).translate(line)
