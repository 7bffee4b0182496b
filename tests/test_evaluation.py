"""From a run folder to BLEU and one table, with a tiny stock transformer trained here."""

from __future__ import annotations

import io
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fairseq_resid.commands import children
from fairseq_resid.compat import load_checkpoint
from fairseq_resid.evaluation import card, decoding, likelihood, scoring, table
from fairseq_resid.evaluation.evaluate import main, make_average, translate
from fairseq_resid.evaluation.job import Job, architecture, count_parameters, find
from fairseq_resid.evaluation.settings import Settings
from fairseq_resid.folders.data import Corpus, find_data
from fairseq_resid.folders.files import read_lines
from fairseq_resid.folders.run import Run
from fairseq_resid.text import TextForm, escape

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
SENTENCES = 19  # no multiple of 8: fairseq-fixed drops the rest of the last batch unless the plugin keeps it
Capture = pytest.CaptureFixture[str]
COMMAND = {"run.json": "train", "results.json": "evaluate"}


def shell(*words: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/ and run/: 12 updates of a one-layer stock transformer, a checkpoint every 3."""
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


@pytest.fixture(scope="module")
def evaluated(trained: Path) -> str:
    """What scripts/evaluate.sh prints."""
    environment = {**os.environ, "FAIRSEQ_RESID_VENV": str(BIN.parent)}
    command = [str(ROOT / "scripts" / "evaluate.sh"), "checkpoints/run", "--last", "2", "--cpu"]
    done = subprocess.run(command, cwd=trained, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_end_to_end(evaluated: str, here: Run) -> None:
    results = json.loads(here.results().read_text())
    references = read_lines(Path("data/ref/test.fr"))
    assert results["sentences"] == len(references) == SENTENCES
    assert results["averaged_checkpoints"] == ["checkpoint_2_9.pt", "checkpoint_2_12.pt"]
    for name, checkpoint in (("averaged", here.averaged), ("last", here.last)):
        hypotheses = read_lines(here.decode / f"test.{name}.hyp")
        assert len(hypotheses) == SENTENCES and not any("@@" in line for line in hypotheses)
        score = scoring.bleu(hypotheses, references)
        assert results["bleu"][name] == pytest.approx(score.value, abs=1e-3)
        beside = results["scores"][name]
        assert beside["detokenised"] == {"score": round(score.value, 4), "signature": score.signature}
        sentences = likelihood.read(here.decode / f"test.{name}.nll")
        assert [one.tokens for one in sentences] == [len(line.split()) + 1 for line in read_lines(Path("raw/test.fr"))]
        assert beside.pop("NLL") == {"score": round(likelihood.mean(sentences), 4), "signature": likelihood.UNIT}
        assert set(beside) == {"detokenised", "detokenised, lower case", "tokenised", "chrF"}
        assert all(found["signature"].startswith("nrefs:1|") for found in beside.values())
        assert score.signature == results["signature"] and score.signature.startswith(SIGNATURE)
        assert re.search(
            rf"^checkpoints/run test: BLEU .*{name} {score.value:.2f}\b.*  {re.escape(score.signature)}$",
            evaluated,
            re.M,
        )
        line = next(line for line in evaluated.splitlines() if f"--path {checkpoint} --gen-subset test" in line)
        assert line.startswith("+ ") and "fairseq-generate data --user-dir" in line
        settings = "--beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 50 --max-tokens 4096 --post-process subword_nmt"
        assert settings in line
    assert results["architecture"] == "transformer_iwslt_de_en"
    assert results["parameters"] == sum(
        tensor.numel()
        for name, tensor in load_checkpoint(here.last)["model"].items()
        if name.endswith((".weight", ".bias"))
        and name not in ("decoder.embed_tokens.weight", "decoder.output_projection.weight")
        and not name.removeprefix("encoder.layers.0.").startswith(("in_proj_", "out_proj_", "fc1_", "fc2_"))
    )
    assert json.loads(here.results("valid").read_text())["subset"] == "valid"
    assert evaluated.index("run valid: BLEU") < evaluated.index("run test: BLEU")
    assert results["training"]["num_updates"] == 12
    assert results["training"]["tokens_per_second"] > 0


def test_nll_is_what_fairseq_generate_scores(evaluated: str, here: Run, tmp_path: Path) -> None:
    """fairseq-generate --score-reference gives the log-probability (base 2) of every reference token."""
    flags = f"data --user-dir {children.PACKAGE} --path {here.averaged} --gen-subset test --score-reference --cpu"
    out = shell(BIN / "fairseq-generate", *flags.split(), cwd=Path.cwd())
    found = {}
    for number, scores in re.findall(r"^P-(\d+)\t(.*)$", out, re.MULTILINE):
        found[int(number)] = [-math.log(2) * float(score) for score in scores.split()]
    ours = likelihood.read(here.decode / "test.averaged.nll")
    assert [one.tokens for one in ours] == [len(found[number]) for number in range(SENTENCES)]
    for number, one in enumerate(ours):
        assert one.nll == pytest.approx(sum(found[number]), abs=1e-4 * one.tokens)


def test_damaged_data_is_not_evaluated(evaluated: str, here: Run, tmp_path: Path, capsys: Capture) -> None:
    data = shutil.copytree("data", tmp_path / "data")
    corpus = json.loads((data / "corpus.json").read_text())
    corpus |= {"sizes": {"ref/test.fr": (data / "ref" / "test.fr").stat().st_size}, "limit": 3}
    corpus |= {"differences": ["cut"], "unverified": ["test a.en"], "asked": {"limit": 3}}
    (data / "corpus.json").write_text(json.dumps(corpus))
    job = find(here.path, data, Settings(last=2), "test", True)
    assert job.corpus.differences == ("cut",) and job.corpus.unverified == ("test a.en",)
    assert job.corpus.preparation == {"limit": 3}
    (data / "ref" / "test.fr").write_text("cut off")
    assert main([str(here.path), "--data", str(data), "--last", "2", "--cpu"]) == 2
    assert "damaged: ref/test.fr has 7 bytes" in capsys.readouterr().err


def test_the_card_says_what_the_files_say(evaluated: str, here: Run, tmp_path: Path, capsys: Capture) -> None:
    text = here.card.read_text()
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
    text = card.write(copied)
    for said in (
        "command: `fairseq-train data --adam-betas '(0.9, 0.98)'`", "hardware: a CPU, 2 cores; A100, 80 GiB",
        "effective batch: 32,768 padded positions on 1 × A100", "precision: bf16", "seed: 3", "not finished",
        "not as released: train has 3 pairs", "not verified: test a.en, test a.fr", "preparation: max_ratio 3.0\n",
        "commit: c0ffee; then decade", "versions: torch 2.5",
    ):  # fmt: skip
        assert f"- {said}" in text or said in text
    for name, broken, said in (
        ("run.json", "{", "Input data was truncated"),
        ("results.json", "[]", "Expected `object`"),
    ):
        before = (copied.path / name).read_text()
        (copied.path / name).write_text(broken)
        assert card.main([str(copied.path)]) == 2
        assert f"{name}: damaged, or not written by fairseq-resid {COMMAND[name]}: {said}" in capsys.readouterr().err
        (copied.path / name).write_text(before)
    copied.results().write_text('{"training": {}}')
    assert card.main([str(copied.path)]) == 2
    assert "results.json: damaged, or not written by fairseq-resid evaluate: Object missing" in capsys.readouterr().err
    assert card.main([str(tmp_path)]) == 2 and "no results.json: run fairseq-resid evaluate" in capsys.readouterr().err


def test_hypotheses_stand_in_the_order_of_the_data(evaluated: str, here: Run) -> None:
    log = read_lines(here.decode / "test.last.log")
    hypotheses = read_lines(here.decode / "test.last.hyp")
    for line in log:
        if line.startswith("D-"):
            number, _, text = line.split("\t")
            assert hypotheses[int(number[2:])] == text
    sources = read_lines(Path("data/ref/test.en"))
    printed = dict(line.split("\t") for line in log if line.startswith("S-"))
    assert [printed[f"S-{number}"] for number in range(SENTENCES)] == sources


class Decoder:
    """Stands for fairseq-generate: writes a log, counts its calls."""

    def __init__(self, lines: int = SENTENCES) -> None:
        self.commands: list[list[str]] = []
        self.lines = lines

    def __call__(self, argv: list[str], log: Path, lock: int | None = None, sentences: int | None = None) -> None:
        self.commands.append(argv)
        log.parent.mkdir(exist_ok=True)
        log.write_text("".join(f"D-{number}\t-0.5\trouge vert bleu neuf\n" for number in range(self.lines)))


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    stand_in = Decoder()
    monkeypatch.setattr(decoding, "decode", stand_in)
    return stand_in


@pytest.fixture
def copy(here: Run, tmp_path: Path) -> Run:
    """A run folder of its own with the trained checkpoints."""
    run = Run(tmp_path / "copy")
    run.path.mkdir()
    for file in [*here.path.glob("checkpoint*.pt"), here.train_log]:
        os.link(file, run.path / file.name)
    return run


def arguments(run: Run, *more: str) -> list[str]:
    subset = [] if "--subset" in more else ["--subset", "test"]
    return [str(run.path), "--last", "2", "--data", "data", *subset, *more]


def test_what_is_finished_is_kept_and_what_changed_is_redone(copy: Run, decoder: Decoder, capsys: Capture) -> None:
    assert main(arguments(copy)) == 0
    first = copy.results().read_text()
    assert len(decoder.commands) == 2
    assert main(arguments(copy)) == 0
    assert len(decoder.commands) == 2 and copy.results().read_text() == first
    assert capsys.readouterr().out.count("kept\n") == 4

    content = copy.last.read_bytes()
    copy.last.unlink()
    copy.last.write_bytes(content)  # written again: a longer training's, say
    assert main(arguments(copy)) == 0
    assert [words[words.index("--path") + 1] for words in decoder.commands[2:]] == [str(copy.last)]
    assert main([*arguments(copy), "--last", "1"]) == 0  # another average
    assert [words[words.index("--path") + 1] for words in decoder.commands[3:]] == [str(copy.averaged)]
    assert len(load_checkpoint(copy.averaged)["averaged_from"]) == 1
    (copy.decode / "test.last.hyp").unlink()
    assert main([*arguments(copy), "--last", "1"]) == 0
    assert len(decoder.commands) == 5
    assert main([*arguments(copy), "--last", "1", "--cpu"]) == 0
    assert len(decoder.commands) == 7 and decoder.commands[-1][-1] == "--cpu"


def test_an_interrupted_evaluation_keeps_the_finished_half(
    copy: Run, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_averaged(words: list[str], log: Path, *_: Any) -> None:
        if str(copy.last) in words:
            raise KeyboardInterrupt
        decoder(words, log)

    monkeypatch.setattr(decoding, "decode", only_averaged)
    assert main(arguments(copy)) == 130
    assert not copy.results().exists()
    monkeypatch.setattr(decoding, "decode", decoder)
    assert main(arguments(copy)) == 0
    assert len(decoder.commands) == 2 and copy.results().is_file()


def test_another_subset_has_results_of_its_own(copy: Run, decoder: Decoder) -> None:
    assert main(arguments(copy)) == 0
    before = copy.results().read_text()
    decoder.lines = 8
    assert main(arguments(copy, "--subset", "valid")) == 0
    assert json.loads(copy.results("valid").read_text())["sentences"] == 8
    assert copy.results().read_text() == before


def test_missing_hypotheses_are_counted_not_scored(copy: Run, decoder: Decoder, capsys: Capture) -> None:
    copy.results().write_text("old")
    decoder.lines = 16
    assert main(arguments(copy)) == 1
    error = capsys.readouterr().err
    assert "16 hypotheses" in error and "test.fr has 19 lines" in error and error.count("\n") == 1
    assert copy.results().read_text() == "old" and not (copy.decode / "test.averaged.hyp").exists()


def test_a_failing_generate_is_told(copy: Run, capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    copy.results().write_text("old")
    failing = [sys.executable, "-c", "import sys; print('out'); sys.exit('cause')"]
    monkeypatch.setattr(decoding, "command", lambda *_: failing)
    assert main(arguments(copy)) == 1
    out, error = capfd.readouterr()
    log = copy.decode / "test.averaged.log"
    assert f"exit code 1; the last lines of {log}:\n    " in error and error.endswith("    cause\n")
    assert sorted(log.read_text().split()) == ["cause", "out"]
    assert "+ " in out and copy.results().read_text() == "old"


def refuse(capsys: Capture, words: list[str], *messages: str) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("fairseq-resid evaluate: error: ") and error.count("\n") == 1, error
    for message in messages:
        assert message in error


def test_bad_input_is_refused_before_anything_is_decoded(
    copy: Run, decoder: Decoder, capsys: Capture, tmp_path: Path
) -> None:
    refuse(capsys, [str(copy.path), "nowhere"], "holds 4 update-numbered")  # default --last 10
    refuse(capsys, [*arguments(copy), "nowhere"], "nowhere: no such run folder")
    refuse(capsys, arguments(copy, "--by", "epoch"), "0 epoch-numbered")
    refuse(capsys, arguments(copy, "--subset", "train"), "ref/train.fr: no such reference text")
    refuse(capsys, [str(copy.path), "--last", "2", "--data", str(tmp_path)], "corpus.json")
    refuse(capsys, [str(copy.path), "--last", "2", "--data", "nowhere"], "nowhere: no such data folder")
    (tmp_path / "corpus.json").write_text('{"name": "x"}')
    refuse(capsys, [str(copy.path), "--last", "2", "--data", str(tmp_path)], "corpus.json: damaged")
    (tmp_path / "corpus.json").write_text("{")
    refuse(capsys, [str(copy.path), "--last", "2", "--data", str(tmp_path)], "corpus.json: damaged")
    copy.last.unlink()
    refuse(capsys, arguments(copy), "checkpoint_last.pt: no such checkpoint")
    copy.last.write_text("damaged")
    refuse(capsys, arguments(copy), "checkpoint_last.pt: cannot be loaded")
    assert not decoder.commands


def test_scores_are_kept_where_there_can_be_no_card(copy: Run, decoder: Decoder, capsys: Capture) -> None:
    copy.results("valid").write_text("{")
    assert main(arguments(copy)) == 0
    assert "warning: no " in capsys.readouterr().err and copy.results().is_file() and not copy.card.exists()
    decoder.lines = 8
    assert main(arguments(copy, "--subset", "valid")) == 0
    assert copy.card.is_file()


def test_another_corpus_dictionary_is_refused(copy: Run, decoder: Decoder, capsys: Capture, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree("data", other)
    flags = ["--last", "2", "--subset", "test", "--data", str(other)]
    assert main([str(copy.path), *flags]) == 0  # the same words in another place
    decoder.commands.clear()
    words = (other / "dict.fr.txt").read_text().splitlines()
    (other / "dict.fr.txt").write_text("".join(line + "\n" for line in [*words[:-1], "autre 1"]))
    # The run's own data folder is known only where its folder is: a copy elsewhere is held to its size alone.
    refuse(capsys, ["checkpoints/run", *flags], "dict.fr.txt: other words than data/dict.fr.txt, which checkpoints/run")
    (other / "dict.en.txt").write_text("".join(line + "\n" for line in words[:-1]))
    said = f"dict.en.txt: {len(words) - 1} words, but {copy.last} was trained with {len(words)}"
    refuse(capsys, [str(copy.path), *flags], said)
    (other / "dict.en.txt").unlink()
    refuse(capsys, [str(copy.path), *flags], "dict.en.txt: no such file")
    assert not decoder.commands


def test_the_data_folder_is_found_again(here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = load_checkpoint(here.last)
    run = Run(here.path.resolve())
    assert find_data(here, state) == Path("data")
    monkeypatch.chdir(tmp_path)
    assert find_data(run, state) == run.path.parent.parent / "data"
    with pytest.raises(ValueError, match=r"was trained on data, which is not there.*--data"):
        find_data(Run(tmp_path), state)


def test_the_command_names_the_plugin_as_the_readme_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert children.user_dir() == "fairseq_resid"
    monkeypatch.chdir(tmp_path)
    assert children.user_dir() == str(ROOT / "fairseq_resid")
    (tmp_path / "fairseq_resid").mkdir()  # another one
    assert children.user_dir() == str(ROOT / "fairseq_resid")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert children.program("fairseq-generate") == str(BIN / "fairseq-generate")
    monkeypatch.setenv("PATH", str(BIN))
    assert children.program("fairseq-generate") == "fairseq-generate"
    assert "--post-process" not in decoding.command(Path("d"), Path("c"), "test", None)


def test_reading_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("INFO\nT-1\tx\nH-1\t-1\th\nD-1\t-1\tb\u2028c\td\x85\nD-0\t-inf\t\n", encoding="utf-8")
    assert decoding.read_hypotheses(log) == ["", "b\u2028c\td\x85"]
    log.write_text("D-0\t-1\ta\nD-2\t-1\tb\n")
    with pytest.raises(decoding.DecodingError, match="no hypothesis for sentence 1"):
        decoding.read_hypotheses(log)
    log.write_text("D-0\t-1\ta\nD-0\t-1\tb\n")
    with pytest.raises(decoding.DecodingError, match="two hypotheses for sentence 0"):
        decoding.read_hypotheses(log)


def test_bleu_is_sacrebleus_with_its_signature() -> None:
    lines = ["the cat sat on the mat .", "a dog barks , loudly"]
    assert scoring.bleu(lines, lines).value == pytest.approx(100)
    assert "tok:char" in scoring.bleu(lines, lines, "char").signature
    with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
        scoring.bleu(lines[:1], lines)
    with pytest.raises(ValueError, match="'13b'"):
        scoring.bleu(lines, lines, "13b")


def test_parameters_are_counted_once_without_marks_and_dead_copies() -> None:
    embedding = torch.zeros(10, 4)
    kept = {
        "encoder.embed_tokens.weight": embedding,
        "encoder.layers.0.fc1.weight": torch.zeros(8, 4),
        "encoder.layers.0.self_attn.out_proj.weight": torch.zeros(4, 4),
    }
    left_out = {
        "decoder.output_projection.weight": embedding,
        "encoder.version": torch.zeros(1),
        "decoder.embed_positions._float_tensor": torch.zeros(1),
        **{
            f"encoder.layers.11.{name}_{kind}": torch.zeros(3)
            for name in ("in_proj", "out_proj", "fc1", "fc2")
            for kind in ("weight", "bias")
        },
    }
    assert count_parameters({**kept, **left_out}) == 40 + 32 + 16


def test_the_architecture_names_the_residual_where_it_is_an_option() -> None:
    assert architecture({"cfg": {"model": {"_name": "transformer_sas", "residual": "sas"}}}) == "transformer_sas"
    option = {"_name": "transformer_resid", "arch": "transformer_resid", "residual": "highway"}
    assert architecture({"cfg": {"model": option}}) == "transformer_resid --residual highway"


def test_corpus_inputs_are_of_one_subset(here: Run) -> None:
    names = [path.name for path in Corpus.read(Path("data")).inputs("test")]
    assert "test.en-fr.fr.bin" in names and "dict.en.txt" in names and not any("train" in name for name in names)


# --- the training log

FIRST = [  # one process: the second epoch's records stand there twice, because fairseq adds a handler per epoch
    "{'_name': None, 'common': {'log_format': 'json'}}",
    '{"epoch": 1, "update": 0.4, "loss": "9", "wpb": "90", "num_updates": "4", "train_wall": "0", "wall": "3"}',
    '{"epoch": 1, "valid_loss": "5.5", "valid_num_updates": "10", "valid_best_loss": "5.5"}',
    '{"epoch": 1, "train_loss": "6", "train_ups": "0.5", "train_wpb": "100", "train_num_updates": "10", '
    '"train_train_wall": "12", "train_wall": "15"}',
    *['{"epoch": 2, "valid_loss": "4.5", "valid_num_updates": "15"}'] * 2,
    *[
        '{"epoch": 2, "train_loss": "5", "train_ups": "1", "train_wpb": "120", "train_num_updates": "15", '
        '"train_train_wall": "5", "train_wall": "20"}'
    ]
    * 2,
]
RESUMED = [  # from the middle of epoch 2, whose meters are in the checkpoint: its record covers all its ten updates
    '{"epoch": 2, "valid_loss": "4.75", "valid_num_updates": "20"}',
    '{"epoch": 2, "train_loss": "5", "train_ups": "1", "train_wpb": "110", "train_num_updates": "20", '
    '"train_train_wall": "10", "train_wall": "0"}',
    '{"epoch": 3, "loss": "9", "wpb": "90", "num_updates": "24", "train_wall": "0"',  # cut off by a kill
]


@pytest.fixture
def logged(tmp_path: Path) -> Callable[[list[str]], Any]:
    def summarise(lines: list[str]) -> Any:
        run = Run(tmp_path)
        run.train_log.write_text("\n".join(lines))
        return run.training_summary()

    return summarise


def test_training_summary(logged: Callable[[list[str]], Any]) -> None:
    summary = logged(FIRST)
    assert (summary.num_updates, summary.epochs, summary.best_valid_loss) == (15, 2, 4.5)
    assert summary.target_tokens == 10 * 100 + 5 * 120
    # 10 updates at 0.5 a second take 20 s with validation: more than rounding explains; 5 at 1 a second are 5 s
    assert summary.train_seconds == 12.5 + 5
    assert summary.tokens_per_second == pytest.approx(1600 / 17.5, abs=0.05)


def test_training_summary_of_a_resumed_run(logged: Callable[[list[str]], Any]) -> None:
    summary = logged(FIRST + RESUMED)
    assert (summary.num_updates, summary.epochs, summary.best_valid_loss) == (20, 2, 4.5)
    assert summary.target_tokens == 10 * 100 + 10 * 110
    assert summary.train_seconds == 12.5 + 10


def test_training_summary_of_a_training_begun_again(logged: Callable[[list[str]], Any]) -> None:
    again = logged(FIRST + FIRST[:4])
    assert (again.num_updates, again.epochs, again.best_valid_loss, again.target_tokens) == (10, 1, 5.5, 1000)


def test_training_summary_says_none_where_nothing_is_known(logged: Callable[[list[str]], Any], tmp_path: Path) -> None:
    empty = logged([])
    assert empty.num_updates is empty.tokens_per_second is empty.best_valid_loss is None
    (tmp_path / "train.log").unlink()
    assert Run(tmp_path).training_summary() == empty
    running = logged(FIRST[:2])
    assert running.num_updates == 4 and running.tokens_per_second is None
    nan = logged([line.replace("5.5", "nan") for line in FIRST[:3]])
    assert nan.best_valid_loss is None


def test_training_summary_of_the_trained_run(here: Run) -> None:
    summary = here.training_summary()
    assert summary.num_updates == 12
    # 60 sentences of two pieces a word and an end mark, every epoch
    targets = read_lines(Path("raw/train.fr"))
    epoch = sum(len(line.split()) + 1 for line in targets)
    steps = [json.loads(line) for line in here.train_log.read_text().splitlines() if '"train_wpb"' in line]
    assert summary.target_tokens == pytest.approx(epoch * 12 / int(steps[0]["train_num_updates"]), rel=0.2)
    assert summary.train_seconds and summary.train_seconds < 60


# --- the table


def results(folder: Path, name: str, architecture_: str, **changes: Any) -> Path:
    training = {"tokens_per_second": 12345.6, "train_seconds": 4000.2, "num_updates": 1}
    content = {
        "architecture": architecture_,
        "parameters": 125952060,
        "bleu": {"averaged": 28.456, "last": 27.9},
        "signature": SIGNATURE + "2.6.0",
        "corpus": "wmt14-en-de",
        "subset": "test",
        "training": training,
        **changes,
    }
    (folder / name).mkdir()
    (folder / name / "results.json").write_text(json.dumps(content))
    return folder / name


def test_the_table_is_never_cut_off(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "transformer_resid_iwslt_en_vi_big --residual linear_shortcut"
    runs = [results(tmp_path, "one[bold]", "transformer_sas"), results(tmp_path, "a-run-of-some-length", long)]
    baselines = tmp_path / "baselines.json"
    baselines.write_text(json.dumps({"copy": 1.25, "nearest_neighbour": 3.5, "signature": "nrefs:1|baselines"}))
    assert table.main([*map(str, runs), "--baselines", str(baselines)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    for text in ("one[bold]", long, "125,952,060", "28.46", "27.90", "12,346", "1:06:40", "BLEU avg"):
        assert any(text in line for line in lines), out
    assert out.count(SIGNATURE) == 1 and f"BLEU {SIGNATURE}2.6.0" in lines
    assert lines[-1] == "baselines: source copied 1.25, nearest neighbour 3.50  BLEU nrefs:1|baselines"
    assert "…" not in out and out.isascii()

    assert table.main([str(runs[0])]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_terminal_gets_every_character_too(tmp_path: Path) -> None:
    long = "transformer_resid_iwslt_en_vi_big"
    path = results(tmp_path, "one", long)
    screen = io.StringIO()
    table.show(
        {path: Run(path).read_results()}, None, Console(file=screen, force_terminal=True, width=80, color_system=None)
    )
    lines = screen.getvalue().splitlines()
    assert "…" not in screen.getvalue() and max(map(len, lines)) <= 80
    assert "125,952,060" in screen.getvalue() and "1:06:40" in screen.getvalue()
    first = next(index for index, line in enumerate(lines) if "one" in line)
    rest = lines[first + 1 : lines.index("wmt14-en-de test")]
    assert lines[first].split()[1] + "".join(map(str.strip, rest)) == long


def test_runs_scored_differently_say_so_each(tmp_path: Path, capsys: Capture) -> None:
    training = {"tokens_per_second": None, "train_seconds": None}
    one = results(tmp_path, "one", "a")
    two = results(tmp_path, "two", "b", signature="nrefs:1|tok:char", training=training)
    assert table.main([str(one), str(two)]) == 0
    out = capsys.readouterr().out
    assert f"one: wmt14-en-de test\nBLEU {SIGNATURE}" in out
    assert "two: wmt14-en-de test\nBLEU nrefs:1|tok:char" in out


def test_markdown(tmp_path: Path, capsys: Capture) -> None:
    assert table.main([str(results(tmp_path, "one", "transformer_sas")), "--markdown"]) == 0
    head, rule, row, blank, *note = capsys.readouterr().out.splitlines()
    assert head.startswith("| run | architecture | parameters |") and rule.count("---") == head.count("|") - 1
    assert row == "| one | transformer_sas | 125,952,060 | 28.46 | 27.90 | 12,346 | 1:06:40 |"
    assert not blank and note[0] == "wmt14-en-de test  " and note[1].startswith("BLEU nrefs:1|case:mixed")


def test_the_table_refuses_what_it_cannot_read(tmp_path: Path, capsys: Capture) -> None:
    good = results(tmp_path, "one", "a")
    (tmp_path / "two").mkdir()
    assert table.main([str(good), str(tmp_path / "two")]) == 2
    assert "two/results.json: no such file: run fairseq-resid evaluate" in capsys.readouterr().err
    for content in ("{", "[]", '{"architecture": "a"}'):
        (tmp_path / "two" / "results.json").write_text(content)
        assert table.main([str(tmp_path / "two")]) == 2
        error = capsys.readouterr().err
        assert "two/results.json: damaged" in error and error.count("\n") == 1
    baselines = tmp_path / "baselines.json"
    baselines.write_text('{"copy": 1}')
    assert table.main([str(good), "--baselines", str(baselines)]) == 2
    assert (
        "baselines.json: damaged, or not written by fairseq-resid baselines: Object missing required"
        in capsys.readouterr().err
    )


def test_the_average_is_of_the_checkpoints_that_are_asked_for(here: Run, capsys: Capture) -> None:
    files = here.numbered("update")

    def inputs() -> list[str]:
        return [item["file"] for item in load_checkpoint(here.averaged)["averaged_from"]]

    make_average(here.averaged, files[-3:])
    assert inputs() == [file.name for file in files[-3:]]
    make_average(here.averaged, files[-2:])  # of others: made again
    assert inputs() == [file.name for file in files[-2:]]
    capsys.readouterr()
    make_average(here.averaged, files[-2:])
    assert not capsys.readouterr().out  # of these: kept
    here.averaged.unlink()
    make_average(here.averaged, files[-2:])
    assert capsys.readouterr().out.startswith("+ fairseq-resid average --inputs ") and inputs()


def test_nobody_evaluates_while_somebody_trains(here: Run, capsys: Capture) -> None:
    with here.lock():
        assert main([str(here.path), "--last", "2", "--cpu"]) == 2
    assert "another training or evaluation is at work" in capsys.readouterr().err


@pytest.mark.parametrize(
    "form, decoded, restored",
    [
        ("plain", "It 's a 'b' &quot;", "It 's a 'b' &quot;"),
        ("moses", 'It \'s a " test " , see ?', 'It\'s a "test", see?'),
        ("escaped", 'It \'s a " test " & [ x ]', "It &apos;s a &quot; test &quot; &amp; &#91; x &#93;"),
    ],
)
def test_a_translation_is_restored_as_the_corpus_text_is(
    form: str, decoded: str, restored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fairseq-generate prints has its pieces joined; tokens and escapes are undone by what corpus.json says."""
    data = tmp_path / "data"
    data.mkdir()
    told = {"name": "c", "source": "vi", "target": "en", "restore": {"post_process": "sentencepiece"}}
    text = {"form": form, "normalize": "none"}
    (data / "corpus.json").write_text(json.dumps({**told, "bleu_tokenize": "13a", "text": text}))
    checkpoint = tmp_path / "c.pt"
    checkpoint.touch()

    def decode(words: list[str], log: Path, *_: Any) -> None:
        log.parent.mkdir(parents=True)
        log.write_text(f"D-1\t-0.5\t\nD-0\t-0.25\t{decoded}\n")

    monkeypatch.setattr(decoding, "decode", decode)
    corpus = Corpus.read(data)
    job = Job(Run(tmp_path / "run"), corpus, "test", ["a", "b"], [checkpoint], "transformer", 1, True)
    assert translate(job, "last", checkpoint, [checkpoint]) == [restored, ""]
    assert (tmp_path / "run" / "decode" / "test.last.hyp").read_text() == f"{restored}\n\n"


@pytest.mark.parametrize("text", [{"form": "odd"}, {"normalize": "both"}, [], "plain"])
def test_a_corpus_json_of_an_unknown_text_form_is_named(text: object, tmp_path: Path) -> None:
    told = {"name": "c", "source": "vi", "target": "en", "restore": {"post_process": None}, "bleu_tokenize": "13a"}
    (tmp_path / "corpus.json").write_text(json.dumps({**told, "text": text}))
    with pytest.raises(ValueError, match=r"corpus\.json: "):
        Corpus.read(tmp_path)


def some_text(seed: int, hyphens: bool = False) -> tuple[list[str], list[str]]:
    """Return hypotheses and references with much in common, untokenised."""
    choose = random.Random(seed)
    text = "the a house ship river king sees follows finds old small red very and with of on to in day"
    words = text.split()
    words += ["well-known", "EN-DE", "three-year-old"] if hyphens else []
    references, hypotheses = [], []
    for _ in range(60):
        line = [choose.choice(words) for _ in range(choose.randint(5, 25))]
        references.append(" ".join(line).capitalize() + ".")
        kept = [word if choose.random() < 0.8 else choose.choice(words) for word in line if choose.random() < 0.95]
        hypotheses.append(" ".join(kept).capitalize() + choose.choice([".", ".", "!"]))
    return hypotheses, references


def multi_bleu(hypotheses: list[str], references: list[str]) -> float:
    """BLEU as Papineni et al. 2002 define it, for one reference, of the tokens between spaces."""
    matched, total = [0] * 4, [0] * 4
    lengths = [0, 0]
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        sides = hypothesis.split(), reference.split()
        lengths = [length + len(side) for length, side in zip(lengths, sides, strict=True)]
        for n in range(1, 5):
            found = [Counter(tuple(side[i : i + n]) for i in range(len(side) - n + 1)) for side in sides]
            matched[n - 1] += sum((found[0] & found[1]).values())
            total[n - 1] += sum(found[0].values())
    precision = math.exp(sum(math.log(a / b) for a, b in zip(matched, total, strict=True)) / 4)
    return 100 * min(1.0, math.exp(1 - lengths[1] / lengths[0])) * precision


@pytest.mark.parametrize("form", ["plain", "moses", "escaped"])
def test_tokenised_bleu_is_that_of_an_independent_implementation(form: str) -> None:
    hypotheses, references = some_text(3, hyphens=True)
    moses = TextForm("de", "moses")
    tokens = [[moses.to_model(line) for line in side] for side in (hypotheses, references)]
    own = [[escape(line) for line in side] for side in tokens] if form == "escaped" else [hypotheses, references]
    found = scoring.side_by_side(*own, TextForm("de", form))
    assert found["tokenised"].value == pytest.approx(multi_bleu(*tokens), abs=1e-6)
    split = [[line.replace("-", " ##AT##-##AT## ") for line in side] for side in tokens]
    assert found["tokenised, compounds split"].value == pytest.approx(multi_bleu(*split), abs=1e-6)
    assert found["tokenised"].value != pytest.approx(found["tokenised, compounds split"].value, abs=0.1)
    # Whatever form the corpus has, the detokenised text is the same.
    assert found["detokenised"] == scoring.bleu(hypotheses, references)
    assert found["detokenised, lower case"].value > found["detokenised"].value
    assert (
        "tok:none|smooth:none" in found["tokenised"].signature
        and "case:lc" in found["detokenised, lower case"].signature
    )
    assert found["chrF"].signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_tokenised_bleu_is_that_of_fairseq_score(tmp_path: Path, capsys: Capture, monkeypatch: Any) -> None:
    from fairseq_cli.score import cli_main

    hypotheses, references = some_text(4)
    moses = TextForm("en", "moses")
    for name, side in (("sys", hypotheses), ("ref", references)):
        (tmp_path / name).write_text("".join(moses.to_model(line) + "\n" for line in side))
    monkeypatch.setattr(sys, "argv", ["fairseq-score", "--sys", str(tmp_path / "sys"), "--ref", str(tmp_path / "ref")])
    cli_main()
    theirs = re.search(r"BLEU4 = ([\d.]+),", capsys.readouterr().out)
    assert theirs
    mine = scoring.side_by_side(hypotheses, references, TextForm("en"))["tokenised"].value
    assert mine == pytest.approx(float(theirs[1]), abs=0.006)


@pytest.mark.parametrize(
    "line, split",
    [
        ("a rich-text format", "a rich ##AT##-##AT## text format"),
        ("x - y -z a-", "x - y -z a-"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # as Perl's s///g does: no two matches share a character
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
    ],
)
def test_compounds(line: str, split: str) -> None:
    assert scoring.split_compounds(line) == split
