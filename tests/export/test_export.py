"""`fairseq-resid export`: the folder, its proof, translation and evaluation."""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid import records
from fairseq_resid.connections.core import registry
from fairseq_resid.connections.core.folding import as_pre_norm
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
from support.shells import ROOT, shell

pytestmark = pytest.mark.once

needs_engine = need("ctranslate2")


# The files of each engine. ONNX Runtime is left out because its export takes seconds: test_onnx_search compares it with
# fairseq, and system/test_stored_v1 translates text with it.
FILES = {
    "ctranslate2": {"config.json", "model.bin", "shared_vocabulary.json"},
    "huggingface": {"config.json", "generation_config.json", "model.safetensors", "source.spm", "target.spm"}
    | {"tokenizer_config.json", "vocab.json"},
}
each_fast_engine = pytest.mark.parametrize(
    "exported", [pytest.param(name, marks=need(name)) for name in FILES], indirect=True
)


@pytest.fixture
def exported(request: Any, exported_to: Callable[[str], Path]) -> Path:
    """Return the run, exported to CTranslate2 unless a test names another engine."""
    return exported_to(getattr(request, "param", "ctranslate2"))


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    """Return a copy of the export, which a test may change."""
    return Path(shutil.copytree(exported, tmp_path / "out"))


DECODING = {"beam": "4", "lenpen": "0.6", "max-len-a": "1", "max-len-b": "50"}


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def export_to(out: Path, run: Path, data: Path, *flags: str) -> int:
    return export.main([str(run), "--to", "ctranslate2", "--out", str(out), "--data", str(data), *flags])


def is_one_error(text: str, *parts: str) -> bool:
    last = text.strip().splitlines()[-1]
    return last.startswith("fairseq-resid export: error: ") and all(part in last for part in parts)


def nothing_was_written(folder: Path) -> bool:
    return not [file for file in folder.iterdir() if file.name.startswith("out")]


@each_fast_engine
def test_export_contains_everything_needed_to_translate(exported: Path, run: Path, corpus: Path) -> None:
    known = engines.read(exported)
    names = {"README.md", "export.json", "spm.model", *FILES[known.engine]}
    assert {file.name for file in exported.iterdir()} == names
    assert (exported / "spm.model").read_bytes() == (corpus / "spm.model").read_bytes()
    assert (known.run, known.checkpoint) == (str(run.resolve()), "checkpoint_last.pt")
    assert known.structure == {"residual": "scaled_pre_ln"} and known.quantization is None
    assert (known.search.beam, known.search.length_penalty, known.search.max_len_b) == (4, 0.6, 50)
    assert known.proof["sentences"] == known.proof["translations"] == known.proof["identical"] == 43
    assert known.proof["tokens"] > 500 and 0 < known.proof["largest"] < 1e-4 and known.proof["differences"] == []
    texts = [file.read_text() for file in exported.glob("*.json") if file.name != engines.RECORD]
    assert str(exported.parent) not in "".join(texts)


@each_fast_engine
def test_export_translates_like_fairseq_generate(exported: Path, corpus: Path, expected: list[str]) -> None:
    assert Translator(exported).translate(read_lines(corpus / "ref" / "test.en")) == expected


@needs_engine
def test_translator_needs_neither_torch_nor_fairseq(exported: Path) -> None:
    code = f"""
import sys
sys.modules["torch"] = sys.modules["fairseq"] = None
from fairseq_resid.export.translator import Translator
print(Translator({str(exported)!r}, threads=1).translate(["the red fox sees a king ."])[0])
"""
    assert shell(sys.executable, "-c", code, cwd=ROOT).strip()


@needs_engine
def test_evaluate_shows_bleu_of_export_and_of_its_run(
    copied: Path, corpus: Path, expected: list[str], tmp_path: Path, capsys: Any
) -> None:
    def shown(*flags: str) -> str:
        assert evaluate.main([str(copied), "--subset", "test", *flags]) == 0
        return str(capsys.readouterr().out)

    change(copied / "export.json", run=str(tmp_path / "run"))
    assert f"(fairseq-resid evaluate {tmp_path / 'run'} scores the run)" in shown()
    bleu = translation_scores.bleu(expected, read_lines(corpus / "ref" / "test.xx"))
    (tmp_path / "run").mkdir()
    scores = {"averaged": 1.0, "last": bleu.score}
    results = Results("", 1, "tiny", "test", TrainingSummary(), scores, bleu.signature, decoding=DECODING)
    records.write(tmp_path / "run" / "results.json", results)
    beside = shown()
    assert f"out test: BLEU {bleu.score:.2f}  {bleu.signature}  (fairseq, " in beside
    assert f"checkpoint_last.pt of run: {bleu.score:.2f})" in beside
    greedy = dataclasses.replace(results, decoding={**DECODING, "beam": "1"})
    records.write(tmp_path / "run" / "results.json", greedy)
    assert "(not compared with the run: other decoding settings)" in shown()
    assert "checkpoint_last.pt of run: " in shown("--beam", "1")
    records.write(tmp_path / "run" / "results.json", results)
    shutil.copytree(corpus, tmp_path / "data")
    (tmp_path / "run" / "checkpoint_last.pt").write_bytes(b"newer")
    reasons = "other data, other decoding settings, checkpoint_last.pt has changed since the export"
    assert f"(not compared with the run: {reasons})" in shown("--data", str(tmp_path / "data"), "--beam", "1")


@needs_engine
def test_data_folder_of_other_languages_is_refused(copied: Path, corpus: Path, capsys: Any) -> None:
    change(copied / "export.json", text={**json.loads((copied / "export.json").read_text())["text"], "source": "de"})
    assert evaluate.main([str(copied), "--data", str(corpus)]) == 2
    assert f"{corpus / 'corpus.json'}: en and xx, but" in capsys.readouterr().err


def test_export_json_of_a_later_version_is_refused(tmp_path: Path) -> None:
    text = engines.Text("a", "b")
    record = engines.Record(2, "onnx", "1", "run", "last.pt", "data", {}, None, (9, 9), text, Search())
    records.write(tmp_path / "export.json", record)
    with pytest.raises(ValueError, match="format 2: this version reads format 1"):
        engines.read(tmp_path)


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
    training, scores = TrainingSummary(num_updates=updates), {"averaged": 1.0, "last": 2.0}
    results = Results("", 1, "tiny", "test", training, scores, "", averaged_checkpoints=[averaged], decoding=DECODING)
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
def test_structure_without_a_fold_is_refused(sas_checkpoint: Path, corpus: Path, tmp_path: Path, capsys: Any) -> None:
    assert export_to(tmp_path / "out", sas_checkpoint.parent, corpus) == 2
    assert is_one_error(capsys.readouterr().err, "--residual sas: ", "; use --to onnx")
    assert nothing_was_written(tmp_path)


@needs_engine
def test_structure_in_the_wrong_graph_fails_the_proof(
    run: Path, corpus: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    wrong = dataclasses.replace(registry.structure("scaled_pre_ln"), folds=as_pre_norm)
    monkeypatch.setitem(registry._STRUCTURES, "scaled_pre_ln", wrong)
    assert export_to(tmp_path / "out", run, corpus) == 1
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
