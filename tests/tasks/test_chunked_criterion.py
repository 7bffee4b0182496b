"""The chunked_label_smoothed_cross_entropy criterion does what fairseq's label_smoothed_cross_entropy does."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.distributed import ModuleProxyWrapper
from fairseq.models.lstm import LSTMModel
from torch import nn

from fairseq_resid import tasks
from support import captioning_models, models, two_processes
from support.models import PAD, TASK, sample
from support.trainings import updates

tasks.register()
NAME = "chunked_label_smoothed_cross_entropy"
Chunked = CRITERION_REGISTRY[NAME]
ARCHITECTURES = {
    "ours": lambda **given: models.build(residual="rskip_ln", **given),
    "stock": models.stock,
}
FAIRSEQS_EMBEDDINGS = {"share_all_embeddings": True}


def padded():
    batch = sample()
    batch["target"] = batch["target"].clone()
    batch["target"][0, -2:] = batch["target"][1, -1:] = PAD
    batch["ntokens"] = int(batch["target"].ne(PAD).sum())
    return batch


def computed(criterion, model, batch):
    """Return what a criterion returns, and the gradients of all parameters."""
    torch.manual_seed(2)  # dropout
    model.zero_grad()
    loss, size, logged = criterion(model, batch)
    if loss.requires_grad:
        loss.backward()
    return loss.detach(), size, logged, {name: each.grad for name, each in model.named_parameters()}


def assert_equal(model, batch, *options, chunked=True):
    mine, theirs = Chunked(TASK, *options), LabelSmoothedCrossEntropyCriterion(TASK, *options)
    assert bool(mine.reason(model)) != chunked
    loss, size, logged, gradients = computed(mine, model, batch)
    expected = computed(theirs, model, batch)
    torch.testing.assert_close(loss, expected[0])
    assert size == expected[1] and logged.keys() == expected[2].keys()
    for name, value in expected[2].items():
        torch.testing.assert_close(torch.as_tensor(logged[name]), torch.as_tensor(value))
    for name, gradient in expected[3].items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("given", [{}, FAIRSEQS_EMBEDDINGS], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_translation_equals_fairseqs_criterion(architecture, given, is_training):
    model = ARCHITECTURES[architecture](dropout=0.2, **given).train(is_training)
    with torch.set_grad_enabled(is_training):
        assert_equal(model, padded(), False, 0.1)
        assert_equal(model, padded(), True, 0.0)


def test_captioning_equals_fairseqs_criterion():
    model = captioning_models.build().train()
    regions, lengths = captioning_models.images()
    previous = captioning_models.captions()
    target = previous.roll(-1, 1)
    target[0, -2:] = PAD
    net_input = {"src_tokens": regions, "src_lengths": lengths, "prev_output_tokens": previous}
    batch = {"net_input": net_input, "target": target, "ntokens": int(target.ne(PAD).sum()), "nsentences": len(target)}
    assert_equal(model, batch, False, 0.1)


class Unused(nn.Module):
    """A model in fairseq's wrapper for torch's DDP with --find-unused-parameters."""

    find_unused_parameters = True

    def __init__(self, model):
        super().__init__()
        self.module = model

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


class FullyShardedDataParallel(Unused):
    """Has the name of fairscale's class, which also passes attributes on."""

    find_unused_parameters = False

    def __getattr__(self, name):
        return super().__getattr__(name) if name == "module" else getattr(self.module, name)


def adaptive():
    return models.build(adaptive_softmax_cutoff="10,20", tie_adaptive_weights=False)


def with_noise():
    model = models.build()
    model.decoder.output_projection.register_forward_pre_hook(lambda module, given: None)
    return model


OBSTACLES = {
    "FSDP": lambda: FullyShardedDataParallel(models.build()),
    "find-unused-parameters": lambda: ModuleProxyWrapper(Unused(models.build())),
    "not a matrix": with_noise,
}


@pytest.mark.parametrize("reason", OBSTACLES)
def test_obstacle_is_logged_once_and_the_loss_is_fairseqs(reason, caplog):
    model, batch = OBSTACLES[reason](), padded()
    assert_equal(model, batch, False, 0.1, chunked=False)
    criterion = Chunked(TASK, False, 0.1)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        criterion(model, batch)
        criterion(model, batch)
    assert [reason in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(("given", "reason"), [((2,), "--ignore-prefix-size"), ((0, True), "--report-accuracy")])
def test_options_that_need_all_logits_use_fairseqs_criterion(given, reason):
    criterion = Chunked(TASK, False, 0.1, *given)
    assert criterion.reason(models.build()) == reason
    assert_equal(models.build(), padded(), False, 0.1, *given, chunked=False)


def test_models_without_an_output_matrix_are_recognised():
    criterion = Chunked(TASK, False, 0.1)
    assert "not a matrix" in criterion.reason(adaptive())
    lstm = LSTMModel.build_model(models.settings("lstm", criterion="cross_entropy"), TASK)
    assert "not a matrix" in criterion.reason(lstm)


def test_losses_by_token_are_fairseqs():
    model, batch = models.build(), padded()
    found, expected = (one(TASK, False, 0.1)(model, batch, reduce=False)[0] for one in (Chunked, Chunked.__mro__[1]))
    assert found.shape == (batch["target"].numel(), 1) and torch.equal(found, expected)


def test_no_logits_are_computed():
    model = models.build()
    model.decoder.output_projection.register_forward_hook(lambda *_: pytest.fail("logits"))
    Chunked(TASK, False, 0.1)(model, padded())


def test_two_processes_give_the_gradients_of_one(tmp_path):
    command = [sys.executable, str(Path(two_processes.__file__))]
    processes = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in (0, 1)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    for name, given in two_processes.TIED.items():
        model = models.build(dropout=0.0, **given).train()
        for batch in two_processes.halves():
            two_processes.criterion()(model, batch)[0].backward()
        expected = two_processes.gradients(model)
        for rank in (0, 1):
            found = torch.load(tmp_path / f"{rank}.pt")
            for wrapper in two_processes.WRAPPERS:
                for parameter, gradient in expected.items():
                    torch.testing.assert_close(found[wrapper, name][parameter], gradient, msg=parameter)


@pytest.mark.parametrize(
    "names", [("label_smoothed_cross_entropy", NAME), (NAME, "label_smoothed_cross_entropy")], ids=str
)
def test_training_resumes_with_either_criterion(names, train, tmp_path):
    """A run that changes its criterion at update 4 logs what a run without a change logs."""
    flags = ["--arch", "transformer_rskip_ln_tiny", "--dropout", "0"]
    train(tmp_path / "changed", *flags, "--criterion", names[0])
    changed = train(tmp_path / "changed", *flags, "--criterion", names[1], "--max-update", "8")
    whole = train(tmp_path / "whole", *flags, "--criterion", names[0], "--max-update", "8")
    found, expected = (
        {float(line["num_updates"]): float(line["loss"]) for line in updates(one.output)} for one in (changed, whole)
    )
    assert set(found) == {5.0, 6.0, 7.0, 8.0}
    assert found == pytest.approx({number: expected[number] for number in found}, abs=2e-3)


def test_criterion_has_the_name_that_fairseqs_trainer_compares():
    assert Chunked.__name__ == "LabelSmoothedCrossEntropyCriterion"
