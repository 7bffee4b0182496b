"""TrainingCommand parses any spelling of a command line and writes one canonical spelling, without loss."""

from __future__ import annotations

import shlex

import pytest

from fairseq_resid import records
from fairseq_resid.runs.run import Run, RunRecord
from fairseq_resid.runs.training_command import TrainingCommand
from fairseq_resid.study import archive
from support.shells import ROOT

pytestmark = pytest.mark.once
parse = TrainingCommand.parse
WORDS = ["data", "--lr", "0.1", "--adam-betas=(0.9, 0.98)", "--fp16", "--lenpen", "-1", "--lr", "0.2"]


def test_last_value_of_a_repeated_flag_counts() -> None:
    command = parse(WORDS)
    assert command.data == "data" and command.get("--lr") == ("0.2",) and command.value("--lr", "1") == "0.2"
    assert command.get("--fp16") == () and "--fp16" in command and command.value("--fp16", "no") == "no"
    assert command.get("--lenpen") == ("-1",) and command.get("--bf16") is None and "--bf16" not in command


def test_program_name_is_optional_and_synonyms_are_one_flag() -> None:
    assert parse(["fairseq-train", "d", "--max-sentences", "4"]) == parse(["d", "--batch-size", "4"])
    assert parse([]) == TrainingCommand() and TrainingCommand().arguments == []


def test_without_and_only_select_flags() -> None:
    command = parse(WORDS)
    rest = ["data", "--adam-betas", "(0.9, 0.98)", "--lenpen", "-1"]
    assert command.without(["--lr", "--fp16"]).arguments == rest
    assert command.only(["--fp16", "--lr", "--none"]).arguments == ["--fp16", "--lr", "0.2"]


def test_later_command_adds_flags_and_replaces_the_data() -> None:
    both = parse(["a", "--lr", "1"]).and_then(parse(["b", "--lr", "2"]))
    assert both.argv == ["fairseq-train", "b", "--lr", "1", "--lr", "2"]
    assert parse(["a"]).and_then(parse(["--fp16"])).arguments == ["a", "--fp16"]


def test_changes_do_not_depend_on_the_order_of_flags() -> None:
    assert parse(["a", "--x"]).changes(parse(["b", "--x", "1"])) == ["the data was a, now b", "--x was given, now 1"]
    assert parse(["a", "--x=1", "--y", "2"]).changes(parse(["a", "--y", "2", "--x", "1"])) == []


def test_chunked_criterion_is_the_setting_that_it_computes() -> None:
    chunked, fairseqs = (
        parse(["a", "--criterion", name, "--label-smoothing", "0.1", "--seed", "1"])
        for name in ("chunked_label_smoothed_cross_entropy", "label_smoothed_cross_entropy")
    )
    assert chunked.changes(fairseqs) == fairseqs.changes(chunked) == []
    assert chunked.setting() == fairseqs.setting() == fairseqs.without(["--seed"])
    assert chunked.changes(parse(["a", "--criterion", "cross_entropy", "--label-smoothing", "0.1", "--seed", "1"])) == [
        "--criterion was label_smoothed_cross_entropy, now cross_entropy"
    ]


def test_value_that_is_not_a_whole_number_is_reported() -> None:
    assert parse([]).integer("--n") == 0 and parse(["--n", "7"]).integer("--n", 3) == 7
    with pytest.raises(ValueError, match="--n 1,2: must be one whole number"):
        parse(["--n", "1,2"]).integer("--n")


@pytest.mark.parametrize("study", ["multi30k-depth", "cifar10-small", "mosaic-captions"])
def test_every_archived_command_is_read_and_written_unchanged(study: str) -> None:
    folders = archive.run_folders(archive.runs_folder(ROOT / "studies" / study))
    assert len(folders) > 5
    for folder in folders:
        command = records.read(Run(folder).record, RunRecord).command
        assert parse(command).argv == command
        assert parse(shlex.split(shlex.join(command))) == parse(command)
