"""Analysis of models, checked against independent computations."""

from __future__ import annotations

import copy
import json
import math
import shutil
import xml.etree.ElementTree as ElementTree
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_resid import connections, records
from fairseq_resid.analysis import analyze, attention, curves
from fairseq_resid.analysis.figures import analyze as analysed
from fairseq_resid.analysis.figures import learned
from fairseq_resid.analysis.model import choose_examples, load_for_analysis
from fairseq_resid.analysis.observe import gradient_norms, nll_without, observe
from fairseq_resid.analysis.results import BINS, Analysis
from fairseq_resid.analysis.style import numbered
from fairseq_resid.connections import sites
from fairseq_resid.runs.run import Run, RunRecord
from fairseq_resid.scoring.loading import Loaded
from fairseq_resid.scoring.translation import TRANSLATION
from support import structures

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def sas(sas_checkpoint: Path, corpus: Path) -> Loaded:
    return load_for_analysis(sas_checkpoint.parent, corpus, cpu=True)


def text(loaded: Loaded, max_tokens: int = 4096, count: int = 20) -> list[Any]:
    return list(TRANSLATION.batches(loaded, "valid", choose_examples(loaded, "valid", count), max_tokens))


@pytest.mark.both
def test_measurements_equal_those_of_single_sentences(sas: Loaded) -> None:
    """Coefficient statistics, norms and the branch share at a site equal those of one forward pass per sentence."""
    observer, nll, tokens = observe(sas.model, text(sas))
    values: dict[str, list[Tensor]] = {"alpha": [], "gamma": []}
    shortcut, shares, losses = [], [], []
    site = sas.model.decoder.layers[1].encoder_attn_residual

    def note(module: Any, given: Any, y: Tensor) -> None:
        x, f = given
        a, b = torch.sigmoid(module.gate(x, f)).unbind(-1)
        values["alpha"].append(a.flatten())
        values["gamma"].append(((1 - a) * (1 - b)).flatten())
        shortcut.append(x.norm(dim=-1).flatten())
        shares.append(((y - module.combine(x, 0 * f)).norm(dim=-1) / y.norm(dim=-1)).flatten())

    dataset = sas.task.dataset("valid")
    with torch.no_grad():
        hook = site.register_forward_hook(note)
        for index in choose_examples(sas, "valid", 20):
            sample = dataset.collater([dataset[index]])
            log = torch.log_softmax(sas.model(**sample["net_input"])[0].double(), dim=-1)
            losses.append(-log.gather(-1, sample["target"].unsqueeze(-1)).flatten())
        hook.remove()
    found = observer.sites["decoder.1.encoder_attn"]
    for name, rows in values.items():
        expected, made = torch.cat(rows).double(), found.coefficients[name]
        assert made.mean == pytest.approx(expected.mean().item(), abs=1e-6)
        assert made.sd == pytest.approx(expected.std(correction=0).item(), abs=1e-5)
        histogram = torch.histc(expected, BINS, 0, 1)
        assert (made.histogram[1:-1] - histogram).abs().sum() <= 2  # a value on a bin edge
        assert made.count == tokens == len(expected)
    assert found.shortcut.mean == pytest.approx(torch.cat(shortcut).mean().item(), rel=1e-5)
    assert found.share.mean == pytest.approx(torch.cat(shares).mean().item(), rel=1e-4)
    assert nll == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)


def test_batching_does_not_change_measurements(sas: Loaded) -> None:
    many, few = (analysed(sas, "valid", 15, size, True) for size in (40, 4096))
    assert len(text(sas, 40, 15)) > 5 * len(text(sas, 4096, 15)) > 0
    for name, site in many.sites.items():
        other = few.sites[name]
        for key in ("shortcut", "branch", "output", "share", "nll_without", "gradient", "start_gradient"):
            assert getattr(site, key) == pytest.approx(getattr(other, key), rel=1e-4, abs=1e-6), (name, key)
        for label, made in site.coefficients.items():
            assert made.mean == pytest.approx(other.coefficients[label].mean, abs=1e-6)
            for ours, theirs in zip(made.by_position, other.coefficients[label].by_position, strict=True):
                assert ours == pytest.approx(theirs, abs=1e-5)
            assert made.by_frequency == pytest.approx(other.coefficients[label].by_frequency, abs=1e-5)
    assert (many.nll, many.tokens) == (pytest.approx(few.nll, abs=1e-6), few.tokens)


def test_gradient_norms_equal_those_of_single_sentences(sas: Loaded) -> None:
    found = gradient_norms(sas.model, text(sas, count=4))
    dataset = sas.task.dataset("valid")
    site, norms = sas.model.encoder.layers[0].ffn_residual, []
    for index in choose_examples(sas, "valid", 4):
        kept: list[Tensor] = []
        hook = site.register_forward_hook(lambda _, __, y, kept=kept: kept.append(y))
        sample = dataset.collater([dataset[index]])
        log = torch.log_softmax(sas.model(**sample["net_input"])[0], dim=-1)
        loss = -log.gather(-1, sample["target"].unsqueeze(-1)).sum()
        norms.append(torch.autograd.grad(loss, kept[0])[0].norm().item())
        hook.remove()
    assert found["encoder.0.ffn"] == pytest.approx(sum(norms) / 4, rel=1e-4)
    assert all(value > 0 for value in found.values())
    assert all(parameter.grad is None for parameter in sas.model.parameters())


def test_switched_off_site_is_reported(sas: Loaded) -> None:
    """A branch that outputs 0 can be removed without changing the NLL."""
    model = copy.deepcopy(sas.model)
    for parameter in model.encoder.layers[1].fc2.parameters():
        parameter.data.zero_()
    off = Loaded(sas.run, sas.checkpoint, sas.data, model, sas.task, sas.cfg, 50, sas.device)
    found = analysed(off, "valid", 20, 4096, True)
    assert found.sites["encoder.1.ffn"].nll_without == pytest.approx(found.nll, abs=1e-6)
    assert found.sites["encoder.1.ffn"].share == 0 and "encoder.1.ffn" in found.off()
    assert "decoder.0.encoder_attn" not in found.off() or found.sites["decoder.0.encoder_attn"].nll_without
    site = sites(model)["decoder.0.ffn"]
    without = nll_without(model, site, text(off))
    assert found.nll != pytest.approx(without, rel=1e-3) and "forward" not in vars(site)
    for parameter in model.decoder.layers[0].fc2.parameters():
        parameter.data.zero_()
    removed = sum(batch.nll(model).sum().item() for batch in text(off)) / found.tokens
    assert removed == pytest.approx(without, rel=1e-5)


@pytest.mark.both
@structures.each
def test_coefficients_of_every_structure_are_measured(name: str, sas: Loaded) -> None:
    config = SimpleNamespace(model=Namespace(**vars(sas.cfg.model)), common=sas.cfg.common)
    for option in connections.all_options():
        setattr(config.model, option, None)
    config.model.arch = config.model._name = "transformer_resid_tiny"
    config.model.residual, config.model.final_norm, config.model.residual_depths = name, None, None
    vars(config.model).update(structures.spec(name).deep or {})
    torch.manual_seed(1)
    model = sas.task.build_model(config.model).eval()
    loaded = Loaded(sas.run, sas.checkpoint, sas.data, model, sas.task, config, 0, sas.device)
    observer, nll, _ = observe(model, text(loaded, count=6))
    assert math.isfinite(nll) and all(math.isfinite(each.share.mean) for each in observer.sites.values())
    labels = {label for each in observer.sites.values() for label in each.coefficients}
    if (expected := structures.spec(name).coefficients) is not None:
        assert labels == expected
    if name in ("hyper", "mhc", "attn_residual", "dense_former", "dlcl"):
        assert len(labels) > 2
    if name == "attn_residual":  # weights that sum to 1
        sums = [
            sum(m.mean for m in each.coefficients.values()) for each in observer.sites.values() if each.coefficients
        ]
        assert sums == pytest.approx([1] * len(sums), abs=1e-5)
    # initial() rebuilds the model from the seed.
    for ours, theirs in zip(loaded.initial().parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_analysis_reports_effective_ratio_of_rskip() -> None:
    """The ratio is 1 + σ₁/w₁ + σ₁σ₂/(w₁w₂), elementwise."""
    torch.manual_seed(0)
    site = connections.build("rskip_ln", 8, skip_lambda=3).double()
    for norm in (site.norm, *site.recursive_norms):
        norm.weight.data.uniform_(0.5, 2)
    x, f = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    first = x + f
    y = torch.nn.functional.layer_norm(first, (8,), site.norm.weight, site.norm.bias)
    one = (first.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() / site.norm.weight
    two = ((x + y).var(-1, correction=0, keepdim=True) + 1e-5).sqrt() / site.recursive_norms[0].weight
    torch.testing.assert_close(site.coefficients(x, f)["ratio"], 1 + one + one * two, rtol=1e-6, atol=1e-6)


@pytest.mark.both
@pytest.mark.parametrize("residual", ["sas", "admin"])
def test_initial_model_equals_the_model_before_the_first_update(
    residual: str, train: Callable[..., Any], corpus: Path, tmp_path: Path
) -> None:
    train(tmp_path, "--residual", residual, "--lr", 0, "--max-update", 1, "--seed", 7)
    loaded = load_for_analysis(tmp_path, corpus, cpu=True)
    start = dict(loaded.initial().named_parameters())
    for key, value in loaded.model.named_parameters():
        assert torch.equal(value, start[key]), key


@pytest.mark.both
def test_stock_model_is_analyzed_without_coefficients(stock_checkpoint: Path, corpus: Path) -> None:
    loaded = load_for_analysis(stock_checkpoint.parent, corpus, cpu=True)
    found = analysed(loaded, "valid", 10, 4096, False)
    assert found.structure == "post_ln" and found.nll < found.start_nll
    assert found.notes == ["the structure post_ln has no coefficients to show"]
    assert all(site.nll_without is None and site.gradient for site in found.sites.values())


def test_norms_of_a_state_that_is_wide_within_a_layer_are_those_of_its_channels(
    train: Callable[..., Any], corpus: Path, tmp_path: Path
) -> None:
    """Before training, the norm at the end of each site of b2t returns vectors of length √C."""
    train(tmp_path, "--residual", "b2t", "--lr", 0, "--max-update", 1)
    loaded = load_for_analysis(tmp_path, corpus, cpu=True)
    observer, _, _ = observe(loaded.model, text(loaded))
    assert len(observer.sites) == 10
    for site in observer.sites.values():
        assert site.output.mean == pytest.approx(8, rel=0.01)


def test_run_that_started_from_another_checkpoint_is_noted(
    train: Callable[..., Any], corpus: Path, sas_checkpoint: Path, tmp_path: Path
) -> None:
    given = ["--residual", "sas", "--finetune-from-model", sas_checkpoint]
    train(tmp_path, *given)
    note = f"started from {sas_checkpoint}; the values before training are those of a new model"
    assert note in analysed(load_for_analysis(tmp_path, corpus, cpu=True), "valid", 10, 4096, False).notes
    # After fairseq-resid train has resumed it, only run.json names the checkpoint.
    train(tmp_path, "--residual", "sas", "--max-update", 6)
    loaded = load_for_analysis(tmp_path, corpus, cpu=True)
    assert loaded.started_from() is None
    command = ["fairseq-train", str(corpus), *map(str, given)]
    records.write(Run(tmp_path).record, RunRecord(command, True, {}, 1, []))
    assert loaded.started_from() == str(sas_checkpoint)


def test_learning_curves_of_coefficients_skip_unusable_checkpoints(
    train: Callable[..., Any], corpus: Path, sas_checkpoint: Path, tmp_path: Path
) -> None:
    train(tmp_path, "--residual", "wskip_ln", "--save-interval-updates", 2, "--max-update", 6, "--wskip-init", 2)
    (tmp_path / "checkpoint_1_4.pt").write_bytes(b"damaged")
    loaded = load_for_analysis(tmp_path, corpus, cpu=True)
    (tmp_path / "checkpoint_1_5.pt").write_bytes(sas_checkpoint.read_bytes())
    notes: list[str] = []
    found = learned(loaded, notes)
    assert [note.split()[:1] for note in notes] == [["skipped:"]] * 2 and "checkpoint_1_4.pt" in notes[0]
    assert len(found) == 10 and [at for at, _ in found["decoder.1.ffn"]["w"]] == [2, 6]
    trained = loaded.model.decoder.layers[1].ffn_residual.skip_weight.mean().item()
    assert found["decoder.1.ffn"]["w"][-1][1] == pytest.approx(trained, rel=1e-6)


# --- commands ---------------------------------------------------------------------------------------------


def test_analyze_writes_results_and_names_missing_runs(
    sas_checkpoint: Path, corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    run = tmp_path / "run"
    shutil.copytree(sas_checkpoint.parent, run)
    flags = ["--data", str(corpus), "--cpu", "--sentences", "8"]
    assert analyze.main([str(tmp_path / "none"), str(run), *flags]) == 2  # the other run is analysed
    said = capsys.readouterr()
    assert f"{tmp_path / 'none'}: no such run folder" in said.err and "NLL" in said.out
    found = records.read(analyze.analysis_file(Run(run)), Analysis)
    assert found.sentences == 8 and next(iter(found.sites)) == "encoder.0.self_attn" and len(found.sites) == 10
    plots = {path.stem for path in (run / "analysis").glob("*.svg")}
    assert plots == {"coefficients", "histograms", "places", "norms", "gradients", "losses"}
    for path in (run / "analysis").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    (run / "analysis" / "learning.svg").write_text("left from an earlier analysis")
    before = (run / "analysis" / "coefficients.svg").read_bytes()
    assert analyze.main([str(run), *flags, "--no-ablation"]) == 0
    assert (run / "analysis" / "coefficients.svg").read_bytes() == before  # same data, same file
    assert not (run / "analysis" / "learning.svg").exists() and not (run / "analysis" / "losses.svg").exists()
    capsys.readouterr()
    assert analyze.main([str(run), *flags, "--no-ablation"]) == 0
    assert "reused" in capsys.readouterr().out
    other = tmp_path / "other"  # the analysis of another data folder is not reused
    shutil.copytree(corpus, other)
    assert analyze.main([str(run), "--data", str(other), *flags[2:], "--no-ablation"]) == 0
    assert "reused" not in capsys.readouterr().out
    found = records.read(analyze.analysis_file(Run(run)), Analysis)
    assert found.data == str(other) and not found.is_own_data
    checkpoint = Run(run).checkpoint()
    assert not found.is_of(checkpoint, None, "valid", 8, False)  # without --data
    assert found.is_of(checkpoint, other, "valid", 8, False)
    copy = shutil.copyfile(checkpoint, tmp_path / checkpoint.name)
    assert found.is_of(copy, other, "valid", 8, False)
    with copy.open("r+b") as file:  # another file of the same size
        file.seek(-1, 2)
        file.write(b"\xff")
    assert not found.is_of(copy, other, "valid", 8, False)


def test_attention_decodes_with_settings_of_the_run(
    sas_checkpoint: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairseq import sequence_generator

    run = tmp_path / "run"
    shutil.copytree(sas_checkpoint.parent, run)
    record = {"command": [], "finished": True, "plan": {}, "sessions": []}
    evaluate = ["--beam", "5", "--lenpen", "1", "--max-len-b", "9"]
    (run / "run.json").write_text(json.dumps({**record, "evaluate": evaluate}))
    seen: dict[str, Any] = {}
    made = sequence_generator.SequenceGenerator.__init__

    def noted(self: Any, *args: Any, **flags: Any) -> None:
        seen.update(flags)
        made(self, *args, **flags)

    monkeypatch.setattr(sequence_generator.SequenceGenerator, "__init__", noted)
    loaded = load_for_analysis(run, corpus, cpu=True)
    attention.attention(loaded, attention.of_data(loaded, "valid", 3))
    assert {"beam_size": 5, "len_penalty": 1.0, "max_len_a": 1.0, "max_len_b": 9}.items() <= seen.items()


@pytest.mark.both
def test_attention_is_a_distribution_over_the_source(sas_checkpoint: Path, corpus: Path, tmp_path: Path) -> None:
    loaded = load_for_analysis(sas_checkpoint.parent, corpus, cpu=True)
    source, target, layers = attention.attention(loaded, attention.of_data(loaded, "valid", 3))
    assert source[-1] == target[-1] == "</s>" and len(layers) == 2
    for table in layers:
        assert table.shape == (len(target), len(source)) and table.sum(1) == pytest.approx(1, abs=1e-5)
    flags = [str(sas_checkpoint.parent), "--data", str(corpus), "--cpu", "--out"]
    assert attention.main([*flags, str(tmp_path / "a.png"), "--text", "the small dog sees a bird ."]) == 0
    assert (tmp_path / "a.png").stat().st_size > 5000


def record(updates: int, seconds: int, **more: Any) -> str:
    stamp = f"2026-01-01 {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    logged = {"epoch": 1, "num_updates": str(updates), "wall": "0", **{k: str(v) for k, v in more.items()}}
    return f"{stamp} | INFO | train_inner | {json.dumps(logged)}"


def made_up(folder: Path, seed: int, offset: float, lines: list[str] | None = None) -> Path:
    folder.mkdir(parents=True)
    own = [record(at, 10 * at, loss=8 - 0.1 * at + offset, gnorm=1 + offset, wps=100) for at in (10, 20, 30)]
    (folder / "train.log").write_text("\n".join(lines or own) + "\n")
    command = ["fairseq-train", "data", "--seed", str(seed), "--lr", "1", "--save-dir", str(folder)]
    (folder / "run.json").write_text(json.dumps({"command": command, "finished": True}))
    return folder


def test_learning_curves_of_seeds_form_a_band(tmp_path: Path) -> None:
    paths = [made_up(tmp_path / f"s{seed}", seed, offset) for seed, offset in ((1, 0.0), (2, 0.5), (3, 1.0))]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.log").write_text(record(10, 1, loss=3))
    grouped = curves.group_by_setting([Run(path) for path in [*paths, tmp_path / "other"]])
    assert list(grouped) == ["s1 (3 seeds)", "other"]
    seeds = [curves.read_curves(run) for run in grouped["s1 (3 seeds)"]]
    x, mean, least, greatest = curves.band(seeds, "train loss", "updates")
    nat = math.log(2)
    assert x == [10, 20, 30]
    assert mean == pytest.approx([7.5 * nat, 6.5 * nat, 5.5 * nat])
    assert (least[0], greatest[0]) == pytest.approx((7.0 * nat, 8.0 * nat))
    assert curves.band(seeds, "tokens/s", "hours")[0] == pytest.approx([0, 100 / 3600, 200 / 3600])
    out = tmp_path / "curves.svg"
    assert curves.main([*map(str, paths), str(tmp_path / "other"), "--out", str(out)]) == 0
    assert "svg" in out.read_text()[:200]


def test_curves_survive_truncated_logs_and_restarted_runs(tmp_path: Path, capsys: Any) -> None:
    began = "2026-01-01 02:00:00 | INFO | fairseq_cli.train | {'_name': None}"
    lines = [
        record(10, 100, loss=8), record(20, 200, loss=7, valid_loss=6), record(30, 300, loss="nan", valid_loss=5),
        began, record(15, 7250, loss=7.5), record(20, 7300, loss=6.5), '{"epoch": 1, "num_upda',
    ]  # fmt: skip
    found = curves.read_curves(Run(made_up(tmp_path / "run", 1, 0, lines))).points
    assert [(at, seconds) for at, seconds, _ in found["train loss"]] == [(10, 0), (15, 250), (20, 300)]
    assert "valid loss" not in found  # its records were replaced by the restarted training run
    made_up(tmp_path / "empty", 1, 0, ["no record"])
    out = tmp_path / "curves.svg"
    assert curves.main([str(tmp_path / "run"), str(tmp_path / "empty"), "--out", str(out)]) == 1
    assert "no training records" in capsys.readouterr().err and out.is_file()


def test_repeated_seed_is_not_another_seed(tmp_path: Path) -> None:
    paths = [made_up(tmp_path / name, seed, 0) for name, seed in (("a", 1), ("again", 1), ("b", 2))]
    grouped = curves.group_by_setting([Run(path) for path in paths])
    assert {label: [run.name for run in runs] for label, runs in grouped.items()} == {
        "a (2 seeds)": ["a", "b"],
        "again": ["again"],
    }


def test_runs_with_the_same_name_get_two_lines(tmp_path: Path) -> None:
    paths = [made_up(tmp_path / folder / "x", 1, 0) for folder in ("a", "b")]
    (paths[1] / "run.json").unlink()
    assert sorted(curves.group_by_setting([Run(path) for path in paths])) == sorted(map(str, paths))


@pytest.mark.both
def test_overlong_sentences_are_skipped(train: Callable[..., Any], corpus: Path, tmp_path: Path) -> None:
    longest = ["--max-source-positions", 20, "--max-target-positions", 20, "--skip-invalid-size-inputs-valid-test"]
    train(tmp_path, "--encoder-learned-pos", "--decoder-learned-pos", *longest, "--decoder-embed-dim", 32,
          "--decoder-output-dim", 32, "--residual", "wskip_ln", without=("--share-all-embeddings",))  # fmt: skip
    loaded = load_for_analysis(tmp_path, corpus, cpu=True)
    found = analysed(loaded, "valid", 400, 4096, False)
    assert "sentences are too long for the model and were skipped" in found.notes[0]
    assert found.is_whole and found.sentences < 40
    dataset = loaded.task.dataset("valid")
    number = 1 + next(index for index in range(len(dataset)) if dataset.src_sizes[index] > 20)
    with pytest.raises(ValueError, match="subwords; the model accepts at most 20"):
        attention.attention(loaded, attention.of_data(loaded, "valid", number))


def test_ids_in_a_plot_are_numbered() -> None:
    hashed = '<path id="m06d473eba4"/><g clip-path="url(#p3f1257ae24)"/><g clip-path="url(#p3f1257ae24)"/>'
    assert numbered(hashed) == '<path id="m0"/><g clip-path="url(#p1)"/><g clip-path="url(#p1)"/>'
