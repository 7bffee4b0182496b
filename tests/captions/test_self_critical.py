"""Self-critical training: sampled captions, rewards, gradient, and a rising CIDEr."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid import tasks
from fairseq_resid.models.likelihood import token_nll
from fairseq_resid.runs.run import Run
from fairseq_resid.tasks.captions import SELF_CRITICAL, ImageCaptioningTask
from fairseq_resid.tasks.cider import Cider
from fairseq_resid.tasks.self_critical_criterion import SelfCriticalCriterion, write_captions
from support import models
from support.captions import FLAGS, train
from support.training_here import train_in_two_processes
from support.trainings import reopen, weights

pytestmark = pytest.mark.once

tasks.register()


@pytest.fixture
def task(data: Path) -> ImageCaptioningTask:
    return ImageCaptioningTask.setup_task(Namespace(data=str(data), by_image=False, criterion=SELF_CRITICAL))


def build(task: ImageCaptioningTask, residual: str = "sas") -> Any:
    return models.build("captioning_resid_tiny", task=task, residual=residual, dropout=0.0)


def sample_of(task: ImageCaptioningTask, rows: list[int]) -> dict[str, Any]:
    task.load_dataset("train")
    return task.dataset("train").collater(rows)  # type: ignore[no-any-return]


def test_greedy_captions_equal_a_search_with_one_beam(task: ImageCaptioningTask) -> None:
    from fairseq.sequence_generator import SequenceGenerator

    model, sample, words = build(task), sample_of(task, [0, 1, 2, 7]), task.words
    generator = SequenceGenerator([model], words, beam_size=1, max_len_a=0, max_len_b=8, unk_penalty=1e9)
    expected = [found[0]["tokens"].tolist() for found in generator.generate([model], sample)]
    found = write_captions(model, sample["net_input"], words, 8, None)
    for row, tokens in zip(found.tolist(), expected, strict=True):
        assert [token for token in row if token != words.pad()][:8] == tokens[: min(8, len(tokens))]


def test_samples_follow_the_probabilities_of_the_model(task: ImageCaptioningTask) -> None:
    model, sample, words = build(task), sample_of(task, [0]), task.words
    net_input = sample["net_input"]
    torch.manual_seed(1)
    found = write_captions(model.train(), net_input, words, 3, 4000)
    assert model.training and found.shape[0] == 4000
    first = torch.bincount(found[:, 0], minlength=len(words)) / 4000
    start = net_input["prev_output_tokens"][:, :1]
    with torch.no_grad():
        output = model.eval()(net_input["src_tokens"], net_input["src_lengths"], start)
        expected = model.get_normalized_probs(output, log_probs=False)[0, 0]
    expected[[words.bos(), words.pad(), words.unk()]] = 0
    assert torch.allclose(first, expected / expected.sum(), atol=0.03)
    ended = found.eq(words.eos()).cumsum(1).gt(0)
    assert found[:, 1:][ended[:, :-1]].eq(words.pad()).all() and not found[~ended].eq(words.pad()).any()


def test_loss_is_the_formula_of_the_docstring(task: ImageCaptioningTask) -> None:
    model, sample, words = build(task).train(), sample_of(task, [0, 5, 9]), task.words
    never = [words.bos(), words.pad(), words.unk()]
    with torch.no_grad():  # make symbols likely that are never sampled
        model.decoder.output_projection.weight[never] *= 3
    criterion = SelfCriticalCriterion(task, 3, 6)
    torch.manual_seed(4)
    loss, size, logged = criterion(model, sample)
    torch.manual_seed(4)
    captions = write_captions(model, sample["net_input"], words, 6, 3)
    texts = task.dataset("train").captions
    cider = Cider([caption.tolist() for caption in each] for each in texts)
    expected, rewards, excluded = torch.zeros(()), [], 0.0
    for image in range(3):
        rows = [
            [token for token in row if token != words.pad()] for row in captions[3 * image : 3 * image + 3].tolist()
        ]
        rewards.append([cider.score(row, sample["references"][image]) for row in rows])
        length = sample["net_input"]["src_lengths"][image]
        regions = sample["net_input"]["src_tokens"][image : image + 1, :length]
        for place, row in enumerate(rows):
            others = [reward for number, reward in enumerate(rewards[-1]) if number != place]
            previous = torch.tensor([[words.eos(), *row[:-1]]])
            net_input = {"src_tokens": regions, "src_lengths": length.view(1), "prev_output_tokens": previous}
            p = model.get_normalized_probs(model(**net_input), log_probs=False)[0]
            allowed = p.sum(1) - p[:, never].sum(1)  # the probability of all words that write_captions samples
            excluded = max(excluded, 1 - float(allowed.detach().min()))
            nll = -(p[range(len(row)), row] / allowed).log().sum()
            expected = expected + (rewards[-1][place] - sum(others) / 2) * nll
    assert excluded > 0.2
    models.close(loss, expected, 1e-4)
    sources = list(model.parameters())
    for ours, theirs in zip(*(torch.autograd.grad(each, sources) for each in (loss, expected)), strict=True):
        models.close(ours, theirs, 1e-4)
    assert size == int(captions.ne(words.pad()).sum()) and logged["captions"] == 9
    assert logged["cider"] == pytest.approx(sum(map(sum, rewards)), rel=1e-5)


def test_validation_scores_greedy_captions(task: ImageCaptioningTask) -> None:
    model = build(task).eval()
    sample = task.read_split("valid", by_image=True).collater([0, 1, 2, 3])
    criterion = SelfCriticalCriterion(task, 3, 6)
    loss, size, logged = criterion(model, sample)
    nll = token_nll(model, sample["net_input"], sample["target"], task.words.pad()).sum()
    models.close(loss, nll)
    assert size == sample["ntokens"] and logged["captions"] == 4


def write_recipe(folder: Path, data: Path) -> Path:
    flags = FLAGS.replace("label_smoothed_cross_entropy --label-smoothing 0.1", "self_critical --sampled-length 10")
    (folder / "pets.txt").write_text(f"{data}\n{flags}\n")
    return folder / "pets.txt"


def test_reward_rises_and_training_resumes_bitwise(data: Path, trained: list[Path], tmp_path: Path) -> None:
    recipe, whole, halves = write_recipe(tmp_path, data), tmp_path / "whole", tmp_path / "halves"
    flags = ("--lr", "1e-3", "--finetune-from-model", str(trained[1] / "checkpoint_last.pt"))
    assert train(recipe, whole, *flags, "--max-update", "32", arch="captioning_sas") == 0
    found = [float(row["cider"]) for row in Run(whole).log_records() if "cider" in row]
    third = len(found) // 3
    assert sum(found[-third:]) > 1.2 * sum(found[:third])
    assert all("valid_cider" in row for row in Run(whole).log_records() if "valid_loss" in row)
    assert train(recipe, halves, *flags, "--max-update", "15", arch="captioning_sas") == 0
    reopen(halves, 15, 32)
    assert train(recipe, halves, *flags, "--max-update", "32", arch="captioning_sas") == 0
    assert all(torch.equal(weights(halves)[name], value) for name, value in weights(whole).items())


def test_two_processes_train_one_model(data: Path, trained: list[Path], tmp_path: Path) -> None:
    run, given = tmp_path / "two", ["--finetune-from-model", str(trained[1] / "checkpoint_last.pt")]
    flags = ["--arch", "captioning_sas", "--max-update", "4", *given]
    record = train_in_two_processes(write_recipe(tmp_path, data), run, *flags)
    assert record["plan"]["processes"] == 2 and Run(run).training_summary().num_updates == 4
