"""The published baseline: text preparation, evaluation options in recipes, patience, checkpoints without optimizer."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Result
from fairseq_resid.data.text import prepare
from fairseq_resid.data.text.folder import Corpus
from fairseq_resid.data.text.forms import TextForm
from fairseq_resid.data.text.segmentation import Segmenter
from fairseq_resid.evaluation import compare, evaluate
from fairseq_resid.fairseq_patches.loading import load_checkpoint
from fairseq_resid.files import read_lines
from fairseq_resid.runs import recipe, recovery, settings
from fairseq_resid.runs.run import Run
from fairseq_resid.runs.training_command import TrainingCommand
from fairseq_resid.scoring import published, translation_scores
from support.preparing import content

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]
SPLITS = {"train": 600, "val": 9, "test_2016_flickr": 9, "test_2017_flickr": 8, "test_2017_mscoco": 7}
SPLITS["test_2018_flickr"] = 6
MERGES = 120


@pytest.mark.parametrize(
    ("language", "raw", "tokens", "restored"),
    [
        ("en", 'A man\'s "red" hat & a well-known dog.', "a man &apos;s &quot; red &quot; hat &amp; a well-known dog .",
         'a man\'s "red" hat & a well-known dog.'),
        ("de", "Ein Mann sagt: „Halt“ [1|2].", "ein mann sagt : &quot; halt &quot; &#91; 1 &#124; 2 &#93; .",
         'ein mann sagt: "halt" [1 | 2].'),
        # The quotation mark moves in front of the full stop only if the normaliser sees the end of the line.
        ("de", 'Er sagt "Nein."', "er sagt &quot; nein &quot; .", 'er sagt "nein".'),
    ],
)  # fmt: skip
def test_lowercased_text_matches_the_published_preparation(language: str, raw: str, tokens: str, restored: str) -> None:
    form = TextForm(language, "lowercased")
    assert form.to_model(raw) == form.reference(raw) == tokens
    assert form.restore(tokens) == tokens and form.to_raw(tokens) == restored


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return generated text under the file names of Multi30k, with capitals and punctuation."""
    folder = tmp_path_factory.mktemp("raw")
    choose = random.Random(2)
    words = ["".join(choose.choices("abcdefghij", k=choose.randint(3, 7))) for _ in range(150)]
    for split, lines in SPLITS.items():
        for side in ("en", "de"):
            text = [f'{" ".join(choose.choices(words, k=5)).capitalize()}, "so".' for _ in range(lines)]
            (folder / f"{split}.{side}").write_text("".join(f"{line}\n" for line in text))
    return folder


@pytest.fixture
def small_profile(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Change the published profile for generated text: use fewer merges and remove the facts about the real text."""
    profile = {**prepare.PUBLISHED["multi30k-en-de"], "vocab_size": MERGES, "facts": {"dictionary": {}}}
    monkeypatch.setitem(prepare.PUBLISHED, "multi30k-en-de", profile)
    return profile


def run_prepare(raw: Path, out: Path, *flags: str) -> int:
    return prepare.main(
        ["multi30k-en-de", "--profile", "published", "--raw", str(raw), "--out", str(out), "--workers", "1", *flags]
    )


@pytest.mark.both
def test_published_profile_makes_a_data_folder(
    raw: Path, tmp_path: Path, small_profile: dict[str, Any], capsys: Capture
) -> None:
    out = tmp_path / "data"
    assert run_prepare(raw, out, "--allow-other-data") == 0
    told = json.loads((out / "corpus.json").read_text())
    assert told["profile"] == "published" and told["bleu_tokenize"] == "none"
    assert told["restore"] == {"post_process": "subword_nmt", "model": "bpe.codes"}
    codes = read_lines(out / "bpe.codes")
    assert codes[0] == "#version: 0.2" and len(codes) == MERGES + 1
    segmenter = Segmenter("subword_nmt", out / "bpe.codes")
    form = TextForm("en", "lowercased")
    lines = [form.to_model(line) for line in read_lines(raw / "train.en")]
    subwords = segmenter.encode(lines)
    assert [segmenter.join(" ".join(line)) for line in subwords] == lines
    tokens = told["facts"]["training tokens"]["en"]
    assert tokens == sum(map(len, subwords)) + len(lines)
    references = Corpus.read(out).references("test")
    assert references == [TextForm("de", "lowercased").to_model(line) for line in read_lines(out / "ref" / "test.de")]
    assert told["facts"]["reference tokens"]["test"] == sum(len(line.split()) for line in references)
    types = {
        word for side in ("en", "de") for line in read_lines(out / f"dict.{side}.txt") for word in [line.split()[0]]
    }
    assert told["facts"]["dictionary"]["types"] == len(types) + 4
    assert f"training tokens: {tokens:,} en" in capsys.readouterr().out


def test_facts_that_differ_are_refused_and_named(
    raw: Path, tmp_path: Path, small_profile: dict[str, Any], capsys: Capture
) -> None:
    small_profile["facts"] = {"reference tokens": {"test": 1}}
    # Line counts differ too, so --allow-other-data is needed; the folder then records the differences.
    assert run_prepare(raw, tmp_path / "data") == 2
    assert "multi30k-en-de" in capsys.readouterr().err
    assert run_prepare(raw, tmp_path / "data", "--allow-other-data") == 0
    differences = Corpus.read(tmp_path / "data").differences
    assert any(line.startswith("reference tokens of test: ") and "published: 1" in line for line in differences)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["multi30k-en-de", "--normalize", "both"], "--normalize both: not allowed with --profile published"),
        (["wmt14-en-de"], "--profile published: not available for wmt14-en-de; available for multi30k-en-de"),
    ],
)
def test_published_profile_cannot_be_changed(words: list[str], message: str, tmp_path: Path, capsys: Capture) -> None:
    assert prepare.main([*words, "--profile", "published", "--out", str(tmp_path / "data")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "data").exists()


def test_missing_test_sets_are_skipped_without_renaming_others(
    raw: Path, tmp_path: Path, small_profile: dict[str, Any], capsys: Capture
) -> None:
    small_profile["facts"] = {"reference tokens": {"test1": 9, "test2": 1}}
    out = tmp_path / "data"
    part = shutil.copytree(
        raw, tmp_path / "part", ignore=shutil.ignore_patterns("test_2017_flickr*", "test_2018_flickr*")
    )
    assert run_prepare(part, out, "--allow-other-data") == 0
    printed = capsys.readouterr().out
    assert "skipped: test set test1 (test_2017_flickr)" in printed and "test set test3 (test_2018_flickr)" in printed
    told = json.loads((out / "corpus.json").read_text())
    assert told["skipped"] == {"test1": "test_2017_flickr", "test3": "test_2018_flickr"}
    assert [*told["lines"]] == ["train", "valid", "test", "test2"]
    # Facts about a missing test set are not compared.
    assert not any("test1" in line for line in told["differences"]) and any("test2" in it for it in told["differences"])
    assert (out / "ref" / "test2.de").read_bytes() == (raw / "test_2017_mscoco.de").read_bytes()
    assert not [*out.glob("test1.*")] and not [*out.glob("test3.*")]
    from fairseq.data import Dictionary, data_utils

    words = Dictionary.load(str(out / "dict.de.txt"))
    stored = data_utils.load_indexed_dataset(str(out / "test2.en-de.de"), words, "mmap")
    references = Corpus.read(out).references("test2")
    assert [words.string(line, bpe_symbol="subword_nmt") for line in stored] == references and len(references) == 7

    before = content(out)
    assert run_prepare(raw, out, "--allow-other-data") == 2
    assert f"{out}: contains a different corpus (skipped is test1, test3, not None)" in capsys.readouterr().err
    assert content(out) == before


@pytest.mark.parametrize("missing", ["train", "test_2016_flickr", "test_2017_flickr.de"])
def test_missing_required_or_incomplete_text_is_still_an_error(
    missing: str, raw: Path, tmp_path: Path, small_profile: dict[str, Any], capsys: Capture
) -> None:
    part = tmp_path / "part"
    shutil.copytree(raw, part, ignore=shutil.ignore_patterns(f"{missing}*"))
    assert run_prepare(part, tmp_path / "data", "--allow-other-data") == 2
    assert f"{missing.partition('.')[0]} not found" in capsys.readouterr().err and not (tmp_path / "data").exists()


# ------------------------------------------------------------------------------------------------------- evaluation


def test_recipe_sets_evaluation_options(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("data --lr 1  # training\n[evaluate]\n--beam 5  # decoding\n--lenpen 1 --epochs 3-4\n")
    assert recipe.read(str(file)) == ["data", "--lr", "1"]
    assert recipe.evaluation(str(file)) == ["--beam", "5", "--lenpen", "1", "--epochs", "3-4"]


def test_evaluation_options_of_every_shipped_recipe_parse() -> None:
    for name in recipe.available():
        settings.parse(recipe.evaluation(name))
    assert settings.parse(recipe.evaluation("multi30k-en-de-published")).beam == 5


def write_record(run: Run, *evaluate: str) -> None:
    run.path.mkdir(parents=True, exist_ok=True)
    content = {"command": ["fairseq-train"], "finished": True, "evaluate": list(evaluate)}
    run.record.write_text(json.dumps(content))


def test_flags_override_the_recipe_which_overrides_defaults(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    assert settings.of(run).decoding == settings.DECODING
    write_record(run, "--beam", "5", "--lenpen", "1", "--last", "3", "--by", "epoch")
    found = settings.of(run, settings.parse(["--beam", "2", "--epochs", "4-6"]))
    assert (found.last, found.by, found.epochs) == (3, "epoch", ((4, 6),))
    assert found.decoding == {**settings.DECODING, "beam": "2", "lenpen": "1"}
    write_record(run, "--beams", "5")
    with pytest.raises(ValueError, match="unrecognized arguments: --beams"):
        settings.of(run)


TRAINED = ["--lr", "0.003", "--batch-size", "128", "--max-epoch", "4", "--max-update", "0"]


@pytest.fixture(scope="module")
def trained(raw: Path, tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., Result]) -> tuple[Path, Path]:
    """Return a data folder of the published profile, and a run of a stock model with recorded evaluation options."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        profile = {**prepare.PUBLISHED["multi30k-en-de"], "vocab_size": MERGES, "facts": {}}
        patch.setitem(prepare.PUBLISHED, "multi30k-en-de", profile)
        assert run_prepare(raw, folder / "data", "--allow-other-data") == 0
    small = (
        "--arch transformer --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 "
        "--encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 --share-all-embeddings --optimizer adam "
        "--log-format json --no-save-optimizer-state"
    )
    cli("fairseq-train", folder / "data", *small.split(), *TRAINED, "--save-dir", folder / "run")
    write_record(Run(folder / "run"), "--last", "2", "--epochs", "1-3", "--beam", "5", "--lenpen", "1")
    return folder / "data", folder / "run"


def evaluated(run: Path, *flags: str) -> int:
    return evaluate.main([str(run), "--cpu", "--subset", "test", *flags])


@pytest.mark.both
def test_evaluation_follows_the_recipe_and_scores_tokens(trained: tuple[Path, Path], capsys: Capture) -> None:
    data, run = trained
    assert evaluated(run) == 0
    told = json.loads((run / "results.json").read_text())
    assert "--beam 5 --lenpen 1 " in capsys.readouterr().out
    assert told["averaged_checkpoints"] == ["checkpoint3.pt", "checkpoint4.pt"]
    assert list(told["scores"]) == ["averaged", "epochs1-3", "last"] and "tok:none" in told["signature"]
    # The text differs from the published one, so no score is labelled as published.
    assert set(told["scores"]["averaged"]) == {"detokenised, lower case", "chrF", "NLL"}
    from sacrebleu.metrics import BLEU

    hypotheses, references = read_lines(run / "decode" / "test.averaged.hyp"), Corpus.read(data).references("test")
    score = BLEU(tokenize="none", force=True).corpus_score(hypotheses, [references]).score
    assert told["bleu"]["averaged"] == pytest.approx(score, abs=1e-3)
    three = [load_checkpoint(run / f"checkpoint{number}.pt")["model"] for number in (1, 2, 3)]
    mean = {name: sum(model[name] for model in three) / 3 for name in three[0] if three[0][name].is_floating_point()}
    made = load_checkpoint(run / "epochs1-3.pt")["model"]
    assert all(torch.allclose(made[name], value, atol=1e-6) for name, value in mean.items())
    assert "| averaged | " not in (run / "card.md").read_text() and "epochs1-3" in (run / "card.md").read_text()


def test_printed_sacrebleu_command_gives_the_score(trained: tuple[Path, Path], capsys: Capture) -> None:
    """Its references are in the form that is scored, unlike ref/test.de."""
    data, run = trained
    assert evaluated(run) == 0
    (command,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("+ sacrebleu ")]
    _, program, reference, _, averaged, *_, tokenise, kind = shlex.split(command)
    assert read_lines(Path(reference)) == Corpus.read(data).references("test") != read_lines(data / "ref" / "test.de")
    argv = [Path(sys.executable).with_name(program), reference, "-i", averaged, tokenise, kind, "-b", "-w", "4"]
    printed = subprocess.run([*argv, "--force"], check=True, capture_output=True, text=True).stdout
    assert float(printed) == json.loads((run / "results.json").read_text())["bleu"]["averaged"]


def test_runs_on_the_published_text_are_compared(trained: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
    data, run = trained
    assert evaluated(run) == 0
    references = Corpus.read(data).references("test")
    for name, kept in (("same", 99), ("shorter", 4)):
        copy = shutil.copytree(run, tmp_path / name)
        hypotheses = [" ".join(line.split()[:kept]) for line in references]
        (copy / "decode" / "test.averaged.hyp").write_text("".join(f"{line}\n" for line in hypotheses))
        told = json.loads((copy / "results.json").read_text())
        told["bleu"]["averaged"] = round(translation_scores.bleu(hypotheses, references, "none").score, 4)
        (copy / "results.json").write_text(json.dumps(told))
    assert told["bleu"]["averaged"] < 90
    assert compare.main([str(tmp_path / "same"), str(tmp_path / "shorter"), "--markdown"]) == 0
    output = capsys.readouterr().out
    assert "| same | transformer | 100.00 |" in output and f"| {told['bleu']['averaged']:.2f} |" in output


def test_as_published_refuses_a_run_with_other_settings(trained: tuple[Path, Path], capsys: Capture) -> None:
    assert evaluated(trained[1], "--as-published") == 2
    error = capsys.readouterr().err
    assert "--as-published: " in error and "pairs; expected 29,000" in error and "--max-len-b 50, not 200" in error


def test_evaluation_as_published_is_labelled(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    data = shutil.copytree(trained[0], tmp_path / "data")
    told = json.loads((data / "corpus.json").read_text())
    (data / "corpus.json").write_text(json.dumps({**told, "differences": []}))
    flags = ["--data", str(data), "--max-len-a", "0", "--max-len-b", "200", "--as-published"]
    assert evaluated(trained[1], *flags) == 2  # two checkpoints are averaged, not ten
    assert "2 checkpoints averaged" in capsys.readouterr().err
    known = published.PUBLICATIONS["multi30k-en-de"]
    monkeypatch.setitem(published.PUBLICATIONS, "multi30k-en-de", replace(known, count=2))
    assert evaluated(trained[1], *flags) == 0
    told = json.loads((trained[1] / "results.json").read_text())
    assert told["scores"]["averaged"]["as published"]["score"] == told["bleu"]["averaged"]
    assert "BLEU as published averaged" in (out := capsys.readouterr().out) and "published: 41.02 (Wu" in out
    assert evaluated(trained[1], *flags, "--tokenize", "intl") == 2
    assert "--tokenize intl, not none" in capsys.readouterr().err


def test_epochs_set_by_a_recipe_may_be_missing(trained: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained[1], run)
    write_record(Run(run), "--last", "2", "--epochs", "3-9")
    assert evaluated(run, "--data", str(trained[0])) == 0
    assert "some checkpoints of epochs 3 to 9 do not exist; skipping their average" in capsys.readouterr().out


def test_translate_writes_readable_text(trained: tuple[Path, Path], raw: Path) -> None:
    from fairseq_resid.evaluation.translate import Translator

    translator = Translator(trained[1], cpu=True)
    assert translator.search["beam"] == 5
    (translation,) = translator.translate([read_lines(raw / "val.en")[0]])
    assert "@@" not in translation and "&quot;" not in translation


# --------------------------------------------------------------------------------------- checkpoints and patience


@pytest.mark.both
def test_only_the_last_checkpoint_keeps_the_optimizer(trained: tuple[Path, Path]) -> None:
    run = trained[1]
    files = sorted(run.glob("checkpoint*.pt"))
    with_state = [file.name for file in files if "last_optimizer_state" in load_checkpoint(file)]
    assert with_state == ["checkpoint_last.pt"] and len(files) == 6
    last, numbered = load_checkpoint(run / "checkpoint_last.pt"), load_checkpoint(run / "checkpoint4.pt")
    assert all(torch.equal(last["model"][name], value) for name, value in numbered["model"].items())


@pytest.mark.both
def test_resuming_needs_the_optimizer_state(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.path.mkdir()
    (run.path / "checkpoint4.pt").write_bytes((trained[1] / "checkpoint4.pt").read_bytes())
    with pytest.raises(ValueError, match="have no optimizer state"):
        recovery.repair_to_resume(run, TrainingCommand.parse(["data", "--no-save-optimizer-state"]))


def states_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        # fairseq 0.12.2 saves an uninitialised tensor of this name.
        names = [name for name in one if not str(name).endswith("_float_tensor")]
        return one.keys() == other.keys() and all(states_equal(one[name], other[name]) for name in names)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.both
def test_patience_and_optimizer_survive_a_stop(train: Callable[..., Result], tmp_path: Path) -> None:
    """The learning rate is too small to change weights, so validation never improves, but Adam's state changes."""
    flags = ["--lr", "1e-30", "--batch-size", "128", "--max-update", "60", "--patience", "2"]
    flags += ["--no-save-optimizer-state"]
    without = ("--disable-validation", "--no-epoch-checkpoints")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    out = train(whole, *flags, without=without).output
    assert "hasn't improved for last 2 runs" in out
    epochs = len(Run(whole).numbered("epoch"))
    assert epochs == 3
    # Stop after every epoch: each process resumes from the checkpoint of the previous one.
    for epoch in range(1, epochs + 1):
        train(parts, *flags, "--max-epoch", epoch, without=without)
    assert len(Run(parts).numbered("epoch")) == epochs
    train(parts, *flags, without=without)  # patience is exhausted: no further training
    assert len(Run(parts).numbered("epoch")) == epochs
    ended = [load_checkpoint(folder / "checkpoint_last.pt") for folder in (whole, parts)]
    assert states_equal(*(state["model"] for state in ended))
    assert states_equal(*(state["last_optimizer_state"] for state in ended))
    assert ended[0]["extra_state"]["patience"] == ended[1]["extra_state"]["patience"]
