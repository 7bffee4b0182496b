"""Studies: the plan, what is next, who runs it, what is kept, what the figures say."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from scipy import stats

from fairseq_resid.evaluation import likelihood, scoring
from fairseq_resid.folders import records
from fairseq_resid.folders.files import pack, read_lines
from fairseq_resid.folders.run import Run, Scored
from fairseq_resid.study import archive, executors, kept, plan, plots, results, statistics, study, tables
from fairseq_resid.study.kept import Note
from fairseq_resid.study.plan import Planned
from fairseq_resid.study.work import Place

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
Capture = pytest.CaptureFixture[str]
TEXT = """
title: A trial
recipe: quickstart
data: data-bin/trial
tests: [test, test1]
flags: --arch transformer_resid
settings:
  flat: --encoder-layers 1
  deep: --encoder-layers 3
baseline: base
arms:
  base: --residual post_ln
  sas: --residual sas
tuning: {flag: --lr, grid: [1e-3, 2e-3, 4e-3], seed: 100, most: 0.02, length: 0.25, average: 3}
contrasts:
  - [deep sas, flat sas]
  - [flat sas 0.002, flat base]
  - [deep sas, deep base, flat sas, flat base]
plan:
  - {setting: flat, arms: [base, sas], seeds: 2}
  - {setting: deep, arms: [base, sas], seeds: 2}
  - {setting: flat, arms: [sas], seeds: 1, at: baseline}
"""


def written(folder: Path, text: str = TEXT, name: str = "trial") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)
    return folder / f"{name}.yaml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path)


# ------------------------------------------------------------------------------------------------------------- the plan


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("baseline: base", "baseline: nobody", "baseline: nobody: no such arm; there are base, sas"),
        ("arms: [sas], seeds", "arms: [sars], seeds", "plan, 3: arm sars: there are base, sas"),
        ("setting: deep", "setting: depp", "plan, 2: setting depp: there are flat, deep"),
        ("seeds: 1,", "seeds: 0,", "plan, 3: seeds: 0: must be 1 or more"),
        ("seed: 100", "seed: 2", "tuning: seed: 2: plan, 1 uses it too"),
        ("grid: [1e-3, 2e-3, 4e-3]", "grid: [1e-3]", "grid: two or more values"),
        ("grid: [1e-3, 2e-3, 4e-3]", "grid: [2e-3, 1e-3]", "grid: two or more values"),
        ("grid: [1e-3, 2e-3, 4e-3]", "grid: [low, high]", "could not convert string to float"),
        ("length: 0.25", "length: 1.5", "length: 1.5: must be above 0"),
        ("most: 0.02", "factor: 1", "factor: 1: must be above 1"),
        ("tests: [test, test1]", "tests: []", "tests: no test set"),
        ("tests: [test, test1]", "tests: [test, test]", "tests: test, test: each must be named once"),
        ("average: 3", "average: 0", "tuning: average: 0: must be 1 or more"),
        (
            "setting: deep, arms: [base, sas]",
            "setting: deep, arms: [sas]",
            "plan: deep: no step has the baseline, base",
        ),
        ("[deep sas, flat", "[deep sas, flat base, flat", "contrasts, 1: 3 groups: must be 2 or 4"),
        (
            "[deep sas,",
            "[deep sars,",
            "contrasts, 1: deep sars: must be SETTING ARM or .* has flat base, flat sas, deep",
        ),
        ("sas 0.002,", "sas 0.002 1,", "contrasts, 2: flat sas 0.002 1: must be SETTING ARM or"),
        ("sas 0.002,", "sas low,", "contrasts, 2: flat sas low: could not convert string to float"),
        ("tuning:", "tuning: null\n#", "plan, 3: at: baseline: nothing is tuned"),
        ("title: A trial", "titel: A trial", "titel"),
        ("  sas: --", "  s/s: --", "arms: 's/s': a name is made of letters"),
        ("recipe: quickstart", "measure: ROUGE\nrecipe: quickstart", "ROUGE"),
    ],
)
def test_a_study_file_that_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    path = written(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(ValueError, match="trial.yaml: .*" + message.replace("[", r"\[")):
        plan.read(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--residual sas", "--residual sars", "sas in flat: .*sars"),
        ("--residual sas", "--residual sas --sas-gat single", "sas in flat: --sas-gat: fairseq-train has no such flag"),
        ("--residual sas", "--residual sas --skip-lambda 3", "sas in flat: .*skip.lambda"),
        ("--encoder-layers 3", "--encoder-layer 3 --max-update x", "base in deep: "),
        (
            "flags: --arch transformer_resid",
            "flags: --log-interval 9",
            "base in flat: arm base: .*names the architecture",
        ),
        ("recipe: quickstart", "recipe: quikstart", "base in flat: quikstart: no such recipe; did you mean quickstart"),
    ],
)
def test_flags_that_fairseq_does_not_know(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = written(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(ValueError, match="trial.yaml: " + message):
        plan.check(plan.read(path), path)


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_studies(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flag of every study is fairseq's or ours, and what is kept fits the file."""
    monkeypatch.chdir(tmp_path)  # the data that may lie in this checkout are not what is tested
    trial = plan.read(path)
    plan.check(trial, path)
    state = study.read_state(trial, Place(path, Path("none"), path.with_suffix("")))
    known = {run.name for run in plan.runs(trial, state.nll())}
    assert not set(state.notes) - known
    if state.notes:
        found = results.build(trial, state.notes, archive.runs(path.with_suffix("")))
        assert records.as_type(json.loads(path.with_suffix("").joinpath("results.json").read_text()), results.Results)
        assert found.missing == [name for name in found.missing if name not in state.notes]


def test_the_flags_of_a_run(file: Path) -> None:
    trial = plan.read(file)
    plan.check(trial, file)
    arch, flags = plan.arguments(trial, Planned("deep", "sas", 0.004, 7))
    assert arch == "transformer_resid"
    assert flags == ["data-bin/trial", "--encoder-layers", "3", "--residual", "sas", "--lr", "0.004", "--seed", "7"]
    arch, flags = plan.arguments(trial, Planned("deep", "sas", 0.004, 100, True))
    # A quarter of the recipe's 504 updates.
    assert flags[5:] == ["--max-update", "126", "--keep-interval-updates", "3", "--lr", "0.004", "--seed", "100"]
    assert plan.settings(trial, Planned("flat", "base", 0.001, 1))[0] == "data-bin/trial"


def tuning(**changes: Any) -> plan.Tuning:
    return plan.Tuning(**{"flag": "--lr", "grid": (1.0, 2.0, 4.0), "seed": 9, **changes})


@pytest.mark.parametrize(
    ("tried", "to_try", "best"),
    [
        ({}, (1.0, 2.0, 4.0), None),
        ({1.0: 3.0, 4.0: 2.0}, (2.0,), None),
        ({1.0: 3.0, 2.0: 1.0, 4.0: 2.0}, (), 2.0),
        ({1.0: 3.0, 2.0: 2.0, 4.0: 1.0}, (8.0,), None),
        ({1.0: 3.0, 2.0: 2.0, 4.0: 1.0, 8.0: 1.5}, (), 4.0),
        ({1.0: 3.0, 2.0: 2.0, 4.0: 1.0, 8.0: math.inf}, (), 4.0),
        ({1.0: 3.0, 2.0: 2.0, 4.0: 1.0, 8.0: 0.5}, (16.0,), None),
        ({1.0: 1.0, 2.0: 2.0, 4.0: 3.0}, (0.5,), None),
        ({0.5: 1.5, 1.0: 1.0, 2.0: 2.0, 4.0: 3.0}, (), 1.0),
        ({1.0: math.inf, 2.0: math.inf, 4.0: math.inf}, (0.5,), None),
        ({0.25: 1.0, 0.5: math.inf, 1.0: math.inf, 2.0: math.inf, 4.0: math.inf}, (0.125,), None),
        ({0.125: math.inf, 0.25: math.inf, 0.5: math.inf, 1.0: math.inf, 2.0: math.inf, 4.0: math.inf}, (), None),
    ],
)
def test_tuning_ends_off_the_edge(tried: dict[float, float], to_try: tuple[float, ...], best: float | None) -> None:
    found = plan.choose(tuning(), tried)
    assert (found.to_try, found.best) == (to_try, best)


def test_tuning_ends_at_its_limits() -> None:
    assert plan.choose(tuning(most=4.0), {1.0: 3.0, 2.0: 2.0, 4.0: 1.0}).best == 4.0
    assert plan.choose(tuning(least=0.6), {1.0: 1.0, 2.0: 2.0, 4.0: 3.0}).best == 1.0


def test_the_order_of_the_runs(file: Path) -> None:
    trial = plan.read(file)
    names = [run.name for run in plan.runs(trial, {})]
    assert names[:3] == ["flat.base.0.001.tuning", "flat.base.0.002.tuning", "flat.base.0.004.tuning"]
    assert [name.split(".")[:2] for name in names[3::3]] == [["flat", "sas"], ["deep", "base"], ["deep", "sas"]]
    assert len(names) == 12 and plan.unnamed(trial, {}) == 9
    nll = {Planned("flat", arm, lr, 100, True): abs(lr - best)
           for arm, best in (("base", 0.002), ("sas", 0.0039)) for lr in (0.001, 0.002, 0.004, 0.008)}  # fmt: skip
    names = [run.name for run in plan.runs(trial, nll)]
    # Seed by seed, so that arms can be compared early; a run of two steps stands once.
    wanted = ["flat.base.0.002.seed1", "flat.sas.0.004.seed1", "flat.base.0.002.seed2", "flat.sas.0.004.seed2"]
    assert names[8:12] == wanted
    assert names[-1] == "flat.sas.0.002.seed1" and len(names) == len(set(names))
    assert plan.unnamed(trial, nll) == 4


def test_without_tuning(tmp_path: Path) -> None:
    lines = [line for line in TEXT.splitlines() if not re.search("tuning|baseline}|sas 0.002", line)]
    trial = plan.read(written(tmp_path, "\n".join(lines)))
    assert [run.name for run in plan.runs(trial, {})][:2] == ["flat.base.seed1", "flat.sas.seed1"]
    assert plan.unnamed(trial, {}) == 0
    with pytest.raises(ValueError, match=r"0\.002: nothing is tuned"):
        plan.group(trial, "flat sas 0.002")


# -------------------------------------------------------------------------------------------------------------- figures


def table(values: list[float], sentences: int = 50, noise: float = 0.0) -> np.ndarray:
    """Return an arm whose seeds have these scores, with as much noise over sentences, the same for every seed."""
    shape = np.random.default_rng(3).normal(0, noise, sentences)
    return np.array(values)[:, None] + shape - shape.mean()


def test_effect_is_welchs_if_sentences_add_nothing() -> None:
    ours, theirs = [2.0, 2.3, 2.2, 2.6], [2.5, 2.7, 3.1]
    found = statistics.effect([(1.0, table(ours, noise=0.5)), (-1.0, table(theirs, noise=0.5))])
    test = stats.ttest_ind(ours, theirs, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert found.p == pytest.approx(test.pvalue) and found.difference == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_effect_is_a_paired_test_over_sentences_if_seeds_add_nothing() -> None:
    flat, shaped = table([2.0, 2.0]), table([3.0, 3.0, 3.0], noise=0.5)
    found = statistics.effect([(1.0, shaped), (-1.0, flat)])
    test = stats.ttest_rel(shaped.mean(axis=0), flat.mean(axis=0))
    assert found.p == pytest.approx(test.pvalue) and found.freedom == pytest.approx(49)
    assert (found.low, found.high) == pytest.approx(test.confidence_interval(0.95))


def test_variance_of_a_difference_is_unbiased() -> None:
    """The mean of the estimates is the variance of the differences, with noise of seeds, sentences and both."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(4000):
        shared = generator.normal(0, 3, 30)
        arms = [
            shared
            + generator.normal(0, own, 30)
            + generator.normal(0, seed, (count, 1))
            + generator.normal(0, 1.5, (count, 30))
            for count, seed, own in ((3, 0.3, 0.0), (5, 0.6, 2.0))
        ]
        variance, _ = statistics.two_way_variance([(1.0, arms[0]), (-1.0, arms[1])])
        found.append((variance, arms[0].mean() - arms[1].mean()))
    truth = 0.3**2 / 3 + 0.6**2 / 5 + 2**2 / 30 + 1.5**2 / (3 * 30) + 1.5**2 / (5 * 30)
    estimates, differences = np.array(found).T
    assert differences.var() == pytest.approx(truth, rel=0.05)
    assert estimates.mean() == pytest.approx(truth, rel=0.03)


def text_like(generator: Any, seeds: tuple[int, int], spread: tuple[float, float]) -> list[np.ndarray]:
    """Return NLLs of 3,532 sentences: sentences differ most, and the noise of seed and sentence together is small."""
    shared = generator.normal(0, 0.75, 3532)
    both = (shared + generator.normal(0, 0.15, 3532) - 0.3, shared)
    return [
        each + generator.normal(0, sd, (count, 1)) + generator.normal(0, 0.25, (count, 3532))
        for each, count, sd in zip(both, seeds, spread, strict=True)
    ]


def image_like(generator: Any, seeds: tuple[int, int], spread: tuple[float, float]) -> list[np.ndarray]:
    """Return errors of 10,000 images, 0 or 100: every seed gets other images wrong."""
    hard = generator.normal(-1.6, 2.2, 10_000)
    return [
        100.0 * (generator.logistic(size=(count, 10_000)) < hard + shift + generator.normal(0, sd, (count, 1)))
        for shift, count, sd in zip((-0.1, 0.0), seeds, spread, strict=True)
    ]


def image_truth(spread: tuple[float, float]) -> float:
    """Return the true difference of `image_like`, over all images and seeds."""
    at, weights = np.polynomial.hermite_e.hermegauss(80)
    means = [
        float((weights / weights.sum() * 100 / (1 + np.exp(1.6 - shift - math.hypot(2.2, sd) * at))).sum())
        for shift, sd in zip((-0.1, 0.0), spread, strict=True)
    ]
    return means[0] - means[1]


@pytest.mark.parametrize(
    ("draw", "seeds", "spread"),
    [
        (text_like, (3, 3), (0.005, 0.005)),
        (text_like, (3, 6), (0.011, 0.092)),
        (image_like, (3, 3), (0.0, 0.0)),
        (image_like, (3, 6), (0.05, 0.02)),
        (image_like, (4, 4), (0.1, 0.1)),
    ],
)
def test_intervals_cover_as_often_as_they_say(draw: Any, seeds: tuple[int, int], spread: tuple[float, float]) -> None:
    """Of 95% intervals, 92.5 to 97.5% contain the true difference, with new seeds and new sentences each time."""
    generator = np.random.default_rng(1)
    truth = -0.3 if draw is text_like else image_truth(spread)
    held = 0
    for _ in range(600):
        arms = draw(generator, seeds, spread)
        found = statistics.effect([(1.0, arms[0]), (-1.0, arms[1])])
        assert found.low is not None and found.high is not None and found.p is not None
        held += found.low < truth < found.high
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high)  # p and interval are of one test
    assert 0.925 <= held / 600 <= 0.975


@pytest.mark.parametrize(("count", "visible"), [(3, 0.91), (6, 0.54), (10, 0.40)])
def test_smallest_visible_effect(count: int, visible: float) -> None:
    spread = np.linspace(-1, 1, count)
    values = list(5 + 0.3 * spread / spread.std(ddof=1))
    found = statistics.effect([(1.0, table(values)), (-1.0, table(values))])
    assert found.visible == pytest.approx(visible, abs=0.006)


def test_power_is_what_it_says() -> None:
    """Of studies whose true effect is the smallest visible one, 80% find it at level 5%."""
    generator = np.random.default_rng(0)
    error = math.sqrt(2 / 5)
    effect = error * (stats.t.ppf(0.975, 8) + stats.t.ppf(0.8, 8))
    first, second = generator.normal(effect, 1, (4000, 5)), generator.normal(0, 1, (4000, 5))
    found = stats.ttest_ind(first, second, axis=1, equal_var=False).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.03)


def test_one_seed_has_no_p() -> None:
    found = statistics.effect([(1.0, table([2.0])), (-1.0, table([3.0]))])
    assert found == statistics.Effect(pytest.approx(-1))


def test_an_interaction_is_a_difference_of_differences() -> None:
    groups = [table([2.0, 2.2]), table([3.0, 3.2]), table([2.5, 2.6]), table([2.9, 3.0])]
    found = statistics.effect(list(zip((1.0, -1.0, -1.0, 1.0), groups, strict=True)))
    assert found.difference == pytest.approx((2.1 - 3.1) - (2.55 - 2.95))
    assert found.error == pytest.approx(math.sqrt((0.02 + 0.02 + 0.005 + 0.005) / 2))


def test_pseudo_values_of_a_mean_are_the_values() -> None:
    parts = np.array([[100.0, 1.0], [0.0, 1.0], [0.0, 1.0], [100.0, 1.0]])
    assert statistics.pseudo_values(parts, lambda summed: summed[0] / summed[1]) == pytest.approx(parts[:, 0])


def test_pseudo_values_give_the_spread_of_bleu() -> None:
    """Their standard error is that of a bootstrap over sentences, and their mean is BLEU."""
    generator = np.random.default_rng(2)
    length = generator.integers(6, 20, 300)
    totals = [np.maximum(length - order, 0) for order in range(4)]
    rates = generator.beta(4, 4, 300)
    matched = [generator.binomial(total, rates ** (order + 1)) for order, total in enumerate(totals)]
    parts = np.stack([length, length + generator.integers(-1, 3, 300), *matched, *totals], axis=1).astype(float)
    values = statistics.pseudo_values(parts, scoring.bleu_of)
    assert values.mean() == pytest.approx(scoring.bleu_of(parts.sum(axis=0)))
    drawn = [scoring.bleu_of(parts[generator.integers(300, size=300)].sum(axis=0)) for _ in range(500)]
    assert values.std(ddof=1) / math.sqrt(300) == pytest.approx(np.std(drawn), rel=0.1)


def test_holm() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, None]) == pytest.approx([0.03, 0.06, 0.06, None])
    assert statistics.holm([0.5, 0.9]) == [1.0, 1.0] and statistics.holm([]) == []


def test_bleu_of_summed_statistics_is_bleu() -> None:
    hypotheses = ["the cat sat on the mat .", "a dog runs fast today", "hello there my friend"]
    references = ["the cat sat on a mat .", "a dog runs very fast today", "hello there , my friend"]
    summed = np.array(scoring.statistics(hypotheses, references)).sum(axis=0)
    assert scoring.bleu_of(summed) == pytest.approx(scoring.bleu(hypotheses, references).value)


# ---------------------------------------------------------------------------------------------------------- kept, shown


def note(run: Planned, nll: float, flags: str = "", **changes: Any) -> Note:
    made = {
        model: {"NLL": Scored(nll, "nats"), "BLEU": Scored(30.0, "sig"), "chrF": Scored(50.0, "sig")}
        for model in ("averaged", "last")
    }
    valid = {"averaged": nll, "last": nll}
    return replace(Note("trial", run, flags, "finished", valid, {} if run.is_tuning else made, 60.0, 1000), **changes)


def keep(folder: Path, run: Planned, nll: float, trial: plan.Study, **changes: Any) -> Note:
    """Write what is kept of a run with this NLL."""
    made = note(run, nll, shlex.join(plan.settings(trial, run)), **changes)
    place = folder / run.name
    decode = Run(place).decode
    decode.mkdir(parents=True)
    for subset in trial.tests:
        likelihood.write(
            decode / f"{subset}.averaged.nll", [likelihood.Sentence(nll * count, count) for count in (4, 9)]
        )
        (decode / f"{subset}.averaged.bleu").write_text("9\t9\t8\t6\t5\t4\t9\t7\t6\t5\n" * 2)
        for kind in ("nll", "bleu"):
            pack(decode / f"{subset}.averaged.{kind}", decode)
            (decode / f"{subset}.averaged.{kind}").unlink()
    lines = [json.dumps({"epoch": at, "num_updates": at, "loss": 9 - at, "valid_nll_loss": 3}) for at in (1, 2, 3)]
    (place / "train.log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    records.write(kept.file(place), made)
    return made


def all_kept(folder: Path, trial: plan.Study, best_of_deep_sas: float = 0.004) -> dict[str, Note]:
    """Write runs as the plan wants them: sas is better by 0.2, in `deep` by 0.5; best are 0.002, and 0.004 for sas."""
    found: dict[str, Note] = {}
    while True:
        nll = {each.run: each.valid["averaged"] for each in found.values()}
        missing = [run for run in plan.runs(trial, nll) if run.name not in found]
        if not missing:
            return found
        run = missing[0]
        gain = {"base": 0.0, "sas": 0.5 if run.setting == "deep" else 0.2}[run.arm]
        best = {"base": 0.002, "sas": best_of_deep_sas if run.setting == "deep" else 0.004}[run.arm]
        value = run.value or 0.0
        nll_of = 3.0 - gain + 0.01 * run.seed % 0.07 + (0.3 * math.log(value / best) ** 2 if value else 0)
        found[run.name] = keep(folder, run, nll_of, trial)


def difference(row: results.Row) -> float:
    assert row.against is not None
    return row.against.effects["NLL"].difference


def test_results_of_a_whole_study(file: Path, tmp_path: Path, capsys: Capture) -> None:
    trial = plan.read(file)
    folder = tmp_path / "trial"
    all_kept(folder, trial)
    assert study.main([str(file), "--results", "--work", str(tmp_path / "work")]) == 0
    assert "results.md" in capsys.readouterr().out
    found = records.read(folder / "results.json", results.Results)
    assert found.missing == [] and found.unnamed == 0 and found.sentences == {"NLL": 4, "BLEU": 4}
    own = {(row.setting, row.arm): row for row in found.rows if row.at == "own"}
    assert own["flat", "sas"].value == 0.004 and own["flat", "base"].value == 0.002
    assert difference(own["flat", "sas"]) == pytest.approx(-0.2, abs=1e-4)
    assert difference(own["deep", "sas"]) == pytest.approx(-0.5, abs=1e-4)
    (common,) = [row for row in found.rows if row.at == "baseline"]
    assert common.value == 0.002 and common.seeds == [1]
    (crossed,) = found.interactions
    assert (crossed.arm, crossed.at, crossed.setting, crossed.than) == ("sas", "own", "deep", "flat")
    assert crossed.comparison.effects["NLL"].difference == pytest.approx(-0.3, abs=1e-4)
    compared = [one.comparison for one in found.contrasts]
    assert [one.seeds for one in compared] == [[2, 2], [1, 2], [2, 2, 2, 2]]
    effects = [one.effects["NLL"] for one in compared]
    assert [one.difference for one in effects] == pytest.approx(
        [-0.3, 0.3 * math.log(2) ** 2 - 0.2 - 0.005, -0.3], abs=1e-3
    )
    assert effects[1].p is None and compared[2].effects["NLL"] == crossed.comparison.effects["NLL"]
    page = (folder / "results.md").read_text()
    assert "| (deep sas minus deep base) minus (flat sas minus flat base) | 2, 2, 2, 2 | -0.3000 | [" in page
    assert "| flat | sas | own best | 0.004 | 2 | 1,000 | 0.02 | 2.8" in page and "Missing runs: none." in page
    for plot in ("effects", "settings", "gap", "tuning", "curves"):
        assert (folder / f"{plot}.svg").read_text().startswith("<?xml")
        assert f"]({plot}.svg)" in page
    effects = (folder / "effects.svg").read_text()
    assert all(f"<!-- {title} -->" in effects for title in ("flat", "deep"))  # a panel each


def test_no_two_arms_look_alike_in_the_plots(file: Path) -> None:
    trial = plan.read(file)
    many = structs.replace(trial, arms={f"arm{index}": "" for index in range(14)})
    assert len({tuple(plots.look(many, arm).values()) for arm in many.arms}) == 14


@pytest.mark.parametrize(("best", "lost_in_deep"), [(0.004, 0.3 * math.log(2) ** 2), (0.002, 0.0)])
def test_the_gain_in_two_settings_at_the_baselines_value(
    tmp_path: Path, best: float, lost_in_deep: float, capsys: Capture
) -> None:
    """In `deep` the baseline's value is sas's own too, or another one."""
    file = written(tmp_path, TEXT + "  - {setting: deep, arms: [sas], seeds: 2, at: baseline}\n")
    all_kept(tmp_path / "trial", plan.read(file), best)
    assert study.main([str(file), "--results", "--work", str(tmp_path / "work")]) == 0
    found = records.read(tmp_path / "trial" / "results.json", results.Results)
    gains = {one.at: one.comparison.effects["NLL"].difference for one in found.interactions}
    assert len(gains) == len(found.interactions) == 2
    assert gains["own"] == pytest.approx(-0.3, abs=1e-4)
    # One seed of sas at the baseline's value in `flat`, compared with both seeds of the baseline.
    assert gains["baseline"] == pytest.approx(-0.3 + lost_in_deep - 0.3 * math.log(2) ** 2 + 0.005, abs=1e-4)
    page = (tmp_path / "trial" / "results.md").read_text()
    assert "| sas | own best | deep minus flat | 2, 2, 2, 2 |" in page
    assert "| sas | baseline's best | deep minus flat | 2, 2, 1, 2 |" in page
    assert "sas, baseline's value" in (tmp_path / "trial" / "settings.svg").read_text()


def test_holm_counts_every_arm_that_is_compared_at_the_baselines_value(file: Path) -> None:
    """sas has that value as its own: it is one of two there, though its row is among those at their own."""

    def row(arm: str, at: str, value: float, p: float | None) -> results.Row:
        against = results.Comparison([2, 2], {"NLL": statistics.Effect(-1.0, p=p)}) if p else None
        return results.Row("flat", arm, at, value, [1, 2], [], 2, None, None, {}, against=against)

    rows = [row("base", "own", 2.0, None), row("sas", "own", 2.0, 0.02), row("other", "own", 4.0, 0.03)]
    found = results._corrected([*rows, row("other", "baseline", 2.0, 0.01)], plan.read(file))
    assert [(one.holm, one.family) for one in found] == [(None, 0), (0.04, 2), (0.04, 2), (0.02, 2)]


def test_an_arm_is_compared_with_all_seeds_of_the_baseline(tmp_path: Path) -> None:
    file = written(tmp_path, TEXT.replace("[base, sas], seeds: 2", "[base], seeds: 5", 1) +
                   "  - {setting: flat, arms: [sas], seeds: 2}\n")  # fmt: skip
    trial = plan.read(file)
    found = results.build(trial, all_kept(tmp_path / "trial", trial), tmp_path / "trial")
    (row,) = [row for row in found.rows if (row.setting, row.arm, row.at) == ("flat", "sas", "own")]
    assert row.against is not None and row.against.seeds == [2, 5]
    (base,) = [row for row in found.rows if (row.setting, row.arm) == ("flat", "base")]
    test = stats.ttest_ind(row.by_seed, base.by_seed, equal_var=False)
    assert row.against.effects["NLL"].p == pytest.approx(test.pvalue)


def test_arms_at_a_fixed_value_are_compared_with_the_baseline_at_it(tmp_path: Path) -> None:
    text = TEXT + "  - {setting: flat, arms: [base, sas], seeds: 3, at: 1e-3}\n"
    file = written(tmp_path, text)
    trial = plan.read(file)
    found = results.build(trial, all_kept(tmp_path / "trial", trial), tmp_path / "trial")
    (row,) = [row for row in found.rows if (row.setting, row.arm, row.at) == ("flat", "sas", "0.001")]
    assert row.against is not None and row.against.seeds == [3, 3] and row.family == 1
    lost = {best: 0.3 * math.log(0.001 / best) ** 2 for best in (0.002, 0.004)}
    assert difference(row) == pytest.approx(-0.2 + lost[0.004] - lost[0.002], abs=1e-4)
    assert "| flat | sas | 0.001 | 3, 3 |" in tables.markdown(found)
    plots.effects(found, tmp_path / "effects.svg")
    assert "<!-- flat, 0.001 -->" in (tmp_path / "effects.svg").read_text()


def test_each_measure_has_its_own_test_sets(tmp_path: Path) -> None:
    text = TEXT.replace("tests: [test, test1]", "tests: {NLL: [test, test1], BLEU: [test]}")
    trial = plan.read(written(tmp_path, text))
    folder = tmp_path / "trial"
    notes = {}
    for seed, arm in ((1, "base"), (2, "base"), (1, "sas"), (2, "sas")):
        run = Planned("flat", arm, 0.002, seed)
        notes[run.name] = keep(folder, run, 3.0 + 0.1 * seed, structs.replace(trial, tests=("test", "test1")))
    for arm in trial.arms:
        for value, nll in ((0.001, 3.5), (0.002, 3.0), (0.004, 3.5)):
            run = Planned("flat", arm, value, 100, True)
            notes[run.name] = note(run, nll)
    found = results.build(trial, notes, folder)
    assert found.sentences == {"NLL": 4, "BLEU": 2}
    page = tables.markdown(found)
    assert "Test sets: test, test1 taken together, 4 sentences (NLL); test, 2 sentences (BLEU)." in page


def test_a_further_average_is_shown_for_the_seeds_that_have_it(file: Path, tmp_path: Path) -> None:
    trial = plan.read(file)
    notes = all_kept(tmp_path / "trial", trial)
    name = "flat.sas.0.004.seed2"
    further = {"NLL": Scored(2.5, "nats"), "BLEU": Scored(31.0, "sig"), "chrF": Scored(51.0, "sig")}
    notes[name] = replace(notes[name], scores={**notes[name].scores, "epochs41-50": further})
    page = tables.markdown(results.build(trial, notes, tmp_path / "trial"))
    (row,) = [line for line in page.splitlines() if line.startswith("| flat | sas | own best | 0.004")]
    assert row.endswith("| 2.5000 (1 of 2 seeds) |") and "| NLL, epochs41-50 |" in page


def test_no_p_where_an_arm_did_not_train(file: Path, tmp_path: Path) -> None:
    trial = plan.read(file)
    folder = tmp_path / "trial"
    notes = all_kept(folder, trial)
    for seed in (1, 2):
        name = f"deep.base.0.002.seed{seed}"
        scored = notes[name].scores["averaged"] | {"BLEU": Scored(9.0 + seed / 3, "sig")}
        notes[name] = replace(notes[name], scores=notes[name].scores | {"averaged": scored})
    found = results.build(trial, notes, folder)
    row = {(row.setting, row.arm): row for row in found.rows if row.at == "own"}
    flat, deep = row["flat", "sas"], row["deep", "sas"]
    assert flat.against is not None and flat.against.untested == "" and flat.holm is not None
    assert deep.against is not None and deep.against.untested == "BLEU below 10" and deep.holm is None
    assert deep.against.effects["NLL"] == statistics.Effect(pytest.approx(-0.5, abs=1e-4))
    assert [one.comparison.untested for one in (*found.interactions, found.contrasts[0])] == ["BLEU below 10", ""]
    page = tables.markdown(found)
    assert "| deep | sas | own best | 2, 2 | -0.5000 |  | none: BLEU below 10 |" in page
    assert "or a group did not train (mean BLEU below 10)" in page
    assert not plots.by_setting(trial, found, tmp_path / "settings.svg")  # one setting is left


def test_gap_by_epoch_is_the_difference_of_the_last_validations(file: Path, tmp_path: Path) -> None:
    trial = plan.read(file)
    folder = tmp_path / "trial"
    notes = all_kept(folder, trial)
    for name in notes:
        worse = 4.0 if ".base." in name else 3.0
        rows = [(1, 9.0), (1, worse), (2, worse - 0.5), (3, 2.0 + (name.endswith("seed2") and worse))]
        lines = [json.dumps({"epoch": epoch, "valid_nll_loss": f"{value / math.log(2)}"}) for epoch, value in rows]
        (folder / name / "train.log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = results.build(trial, notes, folder)
    (row,) = [row for row in found.rows if (row.setting, row.arm, row.at) == ("flat", "sas", "own")]
    assert [epoch for epoch, _ in row.gap] == [1, 2, 3]
    assert [value for _, value in row.gap] == pytest.approx([-1.0, -1.0, -0.5])
    assert "| flat | sas | own best | -1.000 | -1.000 | -0.500 |" in tables.markdown(found)


def test_runs_without_a_data_fingerprint_are_named(file: Path, tmp_path: Path) -> None:
    trial = plan.read(file)
    for seed, data in ((1, "aaaa"), (2, "")):
        keep(tmp_path / "trial", Planned("flat", "base", 0.001, seed), 3.0, trial, data=data)
    found = results.build(trial, kept.load(trial, file, tmp_path / "trial"), tmp_path / "trial")
    assert found.without_data == ["flat.base.0.001.seed2"]
    assert "1 run has no data fingerprint" in tables.markdown(found) and "flat.base.0.001.seed2" in tables.markdown(
        found
    )


def test_results_of_what_there_is(file: Path, tmp_path: Path) -> None:
    trial = plan.read(file)
    folder = tmp_path / "trial"
    notes = all_kept(folder, trial)
    for name in ("flat.sas.0.004.seed2", "deep.base.0.002.seed1", "deep.base.0.002.seed2"):
        del notes[name]
    diverged = replace(notes["flat.base.0.002.seed2"], outcome="diverged", valid={}, scores={})
    notes["flat.base.0.002.seed2"] = diverged
    found = results.build(trial, notes, folder)
    own = {(row.setting, row.arm): row for row in found.rows if row.at == "own"}
    assert own["flat", "base"].diverged == [2] and own["flat", "base"].seeds == [1]
    against = own["flat", "sas"].against
    assert against is not None and against.effects["NLL"].p is None and own["deep", "sas"].against is None
    assert against.untested == "1 diverged" and against.seeds == [1, 1]
    assert len(found.missing) == 3 and not found.interactions
    assert [one.comparison.effects == {} for one in found.contrasts] == [False, False, True]
    assert found.contrasts[1].comparison.seeds == [1, 1]
    page = tables.markdown(found)
    assert "| (deep sas minus deep base) minus (flat sas minus flat base) | 2, 0, 1, 1 |  |" in page
    assert "| none: 1 diverged |" in page and "Missing runs: 1 of flat sas, 2 of deep base" in page
    assert "1 of 2, 1 diverged" in page


def test_a_diverged_training_is_the_worst(file: Path, tmp_path: Path) -> None:
    trial = plan.read(file)
    runs = [Planned("flat", "base", value, 100, True) for value in (0.001, 0.002, 0.004)]
    notes = {run.name: note(run, 2.0 + 100 * (run.value or 0)) for run in runs}
    notes[runs[0].name] = replace(notes[runs[0].name], outcome="diverged", valid={})
    state = study.State(trial, Place(file, tmp_path, tmp_path), notes)
    assert state.nll()[runs[0]] == math.inf
    assert plan.choices(trial, state.nll())["flat", "base"].best == 0.002


def test_nothing_kept_says_what_is_missing(file: Path, tmp_path: Path, capsys: Capture) -> None:
    assert study.main([str(file), "--plan"]) == 0
    said = capsys.readouterr().out
    assert "flat.base.0.001.tuning: missing" in said and "12 runs missing, and 9 that tuning has yet to name" in said


def test_a_damaged_kept_file_is_named(file: Path, tmp_path: Path, capsys: Capture) -> None:
    trial = plan.read(file)
    all_kept(tmp_path / "trial", trial)
    damaged = tmp_path / "trial" / "flat.sas.0.004.seed1" / "decode" / "test.averaged.nll.gz"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert study.main([str(file), "--results", "--work", str(tmp_path / "work")]) == 2
    assert "test.averaged.nll.gz: damaged" in capsys.readouterr().err


def test_changed_settings_are_refused(file: Path, tmp_path: Path, capsys: Capture) -> None:
    trial = plan.read(file)
    keep(tmp_path / "trial", Planned("flat", "base", 0.001, 100, True), 3.0, trial)
    file.write_text(TEXT.replace("--encoder-layers 1", "--encoder-layers 2"))
    assert study.main([str(file), "--plan"]) == 2
    error = capsys.readouterr().err
    assert "flat.base.0.001.tuning: was made with other settings (--encoder-layers was 1, now 2)" in error


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("recipe: quickstart", "average: 5\nrecipe: quickstart", "average was 10, now 5"),
        ("recipe: quickstart", "measure: BLEU\nrecipe: quickstart", "measure was NLL, now BLEU"),
        ("tests: [test, test1]", "tests: [test]", "tests was ['test', 'test1'], now ['test']"),
    ],
)
def test_changed_terms_are_refused(
    file: Path, tmp_path: Path, capsys: Capture, old: str, new: str, message: str
) -> None:
    trial = plan.read(file)
    run = Planned("flat", "base", 0.001, 1)
    keep(tmp_path / "trial", run, 3.0, trial, terms=kept.terms(trial, run))
    file.write_text(TEXT.replace(old, new))
    assert study.main([str(file), "--plan"]) == 2
    assert f"flat.base.0.001.seed1: was made with other settings ({message})" in capsys.readouterr().err


def test_runs_of_other_data_are_refused(file: Path, tmp_path: Path, capsys: Capture) -> None:
    trial = plan.read(file)
    for seed, data in ((1, "aaaa"), (2, "bbbb")):
        keep(tmp_path / "trial", Planned("flat", "base", 0.001, seed), 3.0, trial, data=data)
    assert study.main([str(file), "--plan"]) == 2
    assert "flat.base.0.001.seed2: was scored on other data than" in capsys.readouterr().err


def test_what_is_half_kept_is_not_there(file: Path, tmp_path: Path) -> None:
    trial = plan.read(file)
    keep(tmp_path / "trial", Planned("flat", "base", 0.001, 1), 3.0, trial)
    os.rename(tmp_path / "trial" / "flat.base.0.001.seed1", tmp_path / "trial" / "flat.base.0.001.seed1.partial")
    assert kept.load(trial, file, tmp_path / "trial") == {}


def test_an_arm_that_trains_nowhere_is_told(file: Path, tmp_path: Path, capsys: Capture) -> None:
    trial = plan.read(file)
    for value in (0.001, 0.002, 0.004, 0.0005, 0.00025, 0.000125):
        keep(tmp_path / "trial", Planned("flat", "sas", value, 100, True), 3.0, trial, outcome="diverged", valid={})
    assert study.main([str(file), "--plan"]) == 1
    said = capsys.readouterr()
    assert "sas in flat: diverges at every value of --lr" in said.err
    assert "and 7 that tuning has yet to name" in said.out  # those of base, and all in deep


def test_a_missing_test_set_is_told_before_any_run(tmp_path: Path, corpus: Path) -> None:
    text = REAL.format(recipe=tmp_path / "recipe.txt", data=corpus).replace(
        "average: 2", "tests: [test, test7]\naverage: 2"
    )
    (tmp_path / "recipe.txt").write_text(FLAGS)
    path = written(tmp_path, text, "real")
    with pytest.raises(ValueError, match=r"base in recipe: tests: test7: there is no reference text .*test7\.xx"):
        plan.check(plan.read(path), path)
    path = written(tmp_path, text.replace("[test, test7]", "[test]").replace("average: 2", "average: 20"), "real")
    (tmp_path / "recipe.txt").write_text(f"{FLAGS} --keep-interval-updates 3")
    with pytest.raises(ValueError, match="average: 20, but --keep-interval-updates 3 keeps fewer checkpoints"):
        plan.check(plan.read(path), path)


def test_folders_of_another_study_are_refused(file: Path, tmp_path: Path, capsys: Capture) -> None:
    trial = plan.read(file)
    keep(tmp_path / "trial", Planned("flat", "base", 0.001, 100, True), 3.0, trial, study="other")
    assert study.main([str(file), "--plan"]) == 2
    assert "holds flat.base.0.001.tuning of the study other, not of trial" in capsys.readouterr().err
    Place(file.with_name("other.yaml"), tmp_path / "work", tmp_path).claim()
    assert study.main([str(file), "--work", str(tmp_path / "work"), "--kept", str(tmp_path / "none")]) == 2
    assert "work: holds the runs of the study other, not of trial" in capsys.readouterr().err


def test_what_is_kept_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    run = Run(tmp_path / "secret-place" / "run")
    run.decode.mkdir(parents=True)
    session = {"started": "now", "commit": None, "hardware": {"cpu": "c", "cores": 1, "gpus": []}, "versions": {}}
    command = ["fairseq-train", "data", "--save-dir", str(run.path), "--user-dir", "/secret-place/x", "--lr", "1"]
    records.write(run.record, {"command": command, "finished": True, "sessions": [session]})
    line = '2026-01-01 00:00:00 | INFO | train | {"num_updates": "3", "loss": "4"}\n'
    run.train_log.write_text(f"config: {tmp_path}/secret-place\n{line}")
    (run.decode / "test.averaged.hyp").write_text("Ein Satz.\n")
    (run.path / "checkpoint_last.pt").write_bytes(b"weights")
    target = tmp_path / "kept" / "run"
    (target / "old").mkdir(parents=True)
    kept.keep(run, note(Planned("flat", "base", 0.1, 1), 2.0), target)
    files = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert files == ["decode/test.averaged.hyp.gz", "run.json", "study.json", "train.log.gz"]
    for path in target.rglob("*.gz"):
        assert b"secret-place" not in gzip.decompress(path.read_bytes())
    assert "secret-place" not in (target / "run.json").read_text()
    assert list(Run(target).log_records()) == [{"num_updates": "3", "loss": "4"}]
    assert read_lines(Run(target).decode / "test.averaged.hyp") == ["Ein Satz."]
    assert not list((tmp_path / "kept").glob("*.partial"))


# ---------------------------------------------------------------------------------------------------------- who runs it

# Writes down that it was called, and leaves the note that it is given.
STUB = """
import sys, time
from pathlib import Path
name, note, work, kept = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
with open(work / "calls", "a") as calls:
    calls.write(name + "\\n")
time.sleep({seconds!r})
if name in {bad!r} and not (work / "mended").exists():
    print("fairseq-resid study: error: no space for " + name)
    sys.exit(3)
(kept / name).mkdir(parents=True)
(kept / name / "study.json").write_text(note)
"""


@pytest.fixture
def stub(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let runs be done by a script that leaves a note: `stub(bad=(...), seconds=0)` -> the arguments of the command."""

    def install(bad: tuple[str, ...] = (), seconds: float = 0.0, text: str = TEXT) -> list[str]:
        file.write_text(text)
        (tmp_path / "work").mkdir(exist_ok=True)
        script = tmp_path / "stub.py"
        script.write_text(STUB.format(bad=bad, seconds=seconds))
        monkeypatch.setattr(study, "command", stubbed(script))
        monkeypatch.setattr(study, "POLL", 0.1)
        monkeypatch.setattr(tables, "write", lambda *_: [])
        return [str(file), "--work", str(tmp_path / "work")]

    return install


def stubbed(script: Path) -> Any:
    """Return study.command with the script in place of the run; it is best at --lr 0.002."""

    def command(place: Place, run: Planned, weights: bool) -> list[str]:
        flags = shlex.join(plan.settings(plan.read(place.file), run))
        made = Note(place.name, run, flags, "finished", {"averaged": abs((run.value or 0) - 0.002)}, {}, 1.0)
        return [sys.executable, "-S", str(script), run.name, records.text(made), str(place.work), str(place.kept)]

    return command


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "work" / "calls").read_text().splitlines()


# One seed, and nothing of the deep setting.
SMALL = re.sub(r"  - (\{setting: |\[)deep.*\n", "", TEXT).replace("[base, sas], seeds: 2", "[base, sas], seeds: 1")


def test_a_failed_run_is_named_and_the_others_go_on(stub: Any, tmp_path: Path, capsys: Capture) -> None:
    words = stub(bad=("flat.base.0.002.tuning",), text=SMALL)
    assert study.main([*words, "--jobs", "2"]) == 1
    said = capsys.readouterr()
    assert "flat.base.0.002.tuning: failed: fairseq-resid study: error: no space" in said.err
    assert "--retry tries it again" in said.err and "flat.base.0.002.tuning.out" in said.err
    # base's value is not known; sas went on to its end.
    assert sorted(calls(tmp_path)) == sorted(
        [
            *(f"flat.{arm}.{lr}.tuning" for arm in ("base", "sas") for lr in (0.001, 0.002, 0.004)),
            "flat.sas.0.002.seed1",
        ]
    )
    assert study.main(words) == 1 and len(calls(tmp_path)) == 7  # not tried again by itself
    (tmp_path / "work" / "mended").touch()
    assert study.main([*words, "--retry"]) == 0
    assert calls(tmp_path)[7:] == ["flat.base.0.002.tuning", "flat.base.0.002.seed1"]
    assert study.main(words) == 0 and len(calls(tmp_path)) == 9  # nothing twice
    assert "no run is missing" in capsys.readouterr().out


def test_no_run_is_started_after_so_many_hours(stub: Any, tmp_path: Path) -> None:
    words = stub(text=SMALL, seconds=0.5)
    assert study.main([*words, "--jobs", "1", "--hours", "0.0001"]) == 0
    assert calls(tmp_path) == ["flat.base.0.001.tuning"]


def test_runs_have_cores_of_their_own(tmp_path: Path) -> None:
    here = executors.Here(2, 1, tmp_path / "logs")
    show = "import os, time; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS']); time.sleep(0.5)"
    jobs = here.start({name: [sys.executable, "-c", f"import time; time.sleep(0.3)\n{show}"] for name in "ab"})
    assert here.room() == 0
    while any(job.code() is None for job in jobs.values()):
        time.sleep(0.05)
    assert here.room() == 2 and [job.code() for job in jobs.values()] == [0, 0]
    said = [(tmp_path / "logs" / f"{name}.out").read_text() for name in "ab"]
    if len(os.sched_getaffinity(0)) > 1:
        assert said[0] != said[1]
    assert all(text.endswith(" 1\n") and text.count(",") == 0 for text in said)


def test_runs_have_gpus_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub: Any, capsys: Capture
) -> None:
    assert executors.parted(["0", "1", "2", "3"], 2) == ["0,1", "2,3"]
    here = executors.Here(4, 1, tmp_path / "logs", ["0,1", "2,3"])
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    jobs = here.start({name: [sys.executable, "-S", "-c", show] for name in "abcd"})
    while any(job.code() is None for job in jobs.values()):
        time.sleep(0.05)
    assert [(tmp_path / "logs" / f"{name}.out").read_text().strip() for name in "abcd"] == ["0,1", "2,3"] * 2
    monkeypatch.setattr(study.devices, "gpus", lambda: [None] * 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    assert study.visible_gpus() == ["5", "6", "7"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert study.visible_gpus() == ["0", "1", "2"]
    monkeypatch.undo()
    monkeypatch.setattr(study, "visible_gpus", lambda: ["0", "1", "2"])
    options = study.parse(argparse.ArgumentParser(), ["x.yaml", "--gpus", "1"])
    executor, slots = study.make_executor(options, Place(Path("x.yaml"), tmp_path, tmp_path))
    assert slots == 3 and isinstance(executor, executors.Here)
    assert executor.threads is None and executor.gpus == ["0", "1", "2"]  # not held to one core
    assert study.main([*stub(text=SMALL), "--gpus", "2"]) == 2
    assert "--gpus 2: here are 3 GPUs, which cannot be parted so" in capsys.readouterr().err


def test_an_interrupt_ends_the_runs_too(stub: Any, tmp_path: Path) -> None:
    words = stub(text=SMALL, seconds=60)
    code = f"import sys; sys.path[:0] = {[str(ROOT), str(tmp_path)]!r}; import test_study_child"
    (tmp_path / "test_study_child.py").write_text(
        f"import sys\nsys.path.append({str(ROOT / 'tests')!r})\nfrom study import test_study\n"
        "from fairseq_resid.study import study\nfrom pathlib import Path\n"
        f"study.command = test_study.stubbed(Path({str(tmp_path / 'stub.py')!r}))\n"
        f"sys.exit(study.main({[*words, '--jobs', '2']!r}))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and not ((tmp_path / "work" / "calls").is_file() and len(calls(tmp_path)) == 2):
            time.sleep(0.1)
        assert len(calls(tmp_path)) == 2
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 143 and "interrupted; the same command goes on" in errors
    assert not subprocess.run(["pgrep", "-f", str(tmp_path / "stub.py")], capture_output=True, text=True).stdout
    assert not (tmp_path / "work" / "failed").exists()


@pytest.mark.parametrize("kind", ["local", "debug"])
def test_by_submitit(stub: Any, tmp_path: Path, kind: str, capsys: Capture) -> None:
    pytest.importorskip("submitit")
    words = stub(text=SMALL, bad=("flat.sas.0.004.tuning",))
    assert study.main([*words, "--cluster", kind, "--cluster-option", "timeout_min=5"]) == 1
    assert sorted(calls(tmp_path))[:2] == ["flat.base.0.001.tuning", "flat.base.0.002.seed1"]
    assert len(calls(tmp_path)) == 8
    assert "flat.sas.0.004.tuning: failed: fairseq-resid study: error: no space" in capsys.readouterr().err


SLURM = {
    # Gives the job a number, and leaves its tasks to a process of their own, which runs one after the other.
    "sbatch": """#!{python}
import os, subprocess, sys
root = {folder!r}
number = len([name for name in os.listdir(root) if name.endswith(".job")]) + 100
job = f"{{root}}/{{number}}.job"
open(job, "w").write(open(sys.argv[1]).read())
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen([sys.executable, f"{{root}}/tasks", job, str(number)], **quiet, start_new_session=True)
print(f"Submitted batch job {{number}}")
""",
    "tasks": """
import os, re, subprocess, sys
job, number = sys.argv[1:]
text = open(job).read()
count = int(re.search(r"--array=0-(\\d+)", text)[1]) + 1 if "--array" in text else 0
for task in range(count or 1):
    name = f"{{number}}_{{task}}" if count else number
    own = dict(SLURM_JOB_ID=str(int(number) + task), SLURM_NTASKS="1", SLURM_JOB_NUM_NODES="1", SLURM_NODEID="0",
               SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_JOB_NODELIST="here")
    if count:
        own |= dict(SLURM_ARRAY_JOB_ID=number, SLURM_ARRAY_TASK_ID=str(task))
    with open({folder!r} + f"/{{name}}.said", "w") as said:
        done = subprocess.run(["bash", job], env={{**os.environ, **own}}, stdout=said, stderr=said)
    with open({folder!r} + "/states", "a") as states:
        states.write(f"{{name}}|{{'FAILED' if done.returncode else 'COMPLETED'}}|here\\n")
""",
    "sacct": """#!/bin/sh
echo "JobID|State|NodeList"
cat {folder}/states 2>/dev/null || true
""",
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 == --unbuffered ]] || shift; shift; done
exec "$@"
""",
    "scancel": "#!/bin/sh\n",
}


def test_on_a_stand_in_for_slurm(stub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Every round of runs is one job array; a failed one is named, and the others go on."""
    pytest.importorskip("submitit")
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in SLURM.items():
        program = folder / name
        program.write_text(text.format(python=sys.executable, folder=str(folder)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    words = stub(text=SMALL)
    options = ["slurm_partition=gpu", "timeout_min=90", "gpus_per_node=1", "slurm_array_parallelism=4"]
    given = [word for option in options for word in ("--cluster-option", option)]
    assert study.main([*words, "--cluster", "slurm", *given]) == 0, [path.read_text() for path in folder.glob("*.said")]
    assert len(calls(tmp_path)) == 8
    first = (folder / "100.job").read_text()
    assert "#SBATCH --array=0-5%4" in first and "#SBATCH --partition=gpu" in first and "#SBATCH --time=90" in first
    assert "--signal=USR2" in first  # before its time is over, submitit queues it again
    assert (folder / "101.job").is_file()


def test_a_preempted_run_is_queued_again(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    command = executors.Command(["true"], tmp_path / "logs" / "run.out")
    assert command.checkpoint().function is command
    command()
    slow = executors.Command(["sleep", "60"], tmp_path / "slow.out")

    def leave(*_: Any) -> None:
        raise SystemExit(3)

    before = signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    began = time.monotonic()
    try:
        with pytest.raises(SystemExit):
            slow()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 20  # it has ended its child, and not waited for it
    with pytest.raises(RuntimeError, match="exit code 1"):
        executors.Command(["false"], tmp_path / "run.out")()


def test_what_slurm_sends_to_all_processes_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that Slurm preempts does not report its end before Slurm has put it back into the queue."""
    waited: list[float] = []
    monkeypatch.setattr(executors.time, "sleep", waited.append)
    ended = {"kill -USR2 $$; kill -USR1 $$; exit 7": 7, "kill -TERM $$": -15, "exit 143": 143}
    for text, code in ended.items():
        with pytest.raises(RuntimeError, match=f"exit code {code}$"):
            executors.Command(["bash", "-c", text], tmp_path / "run.out")()
    assert waited == [executors.KILLED_WITHIN] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jobs", "0"], "--jobs 0: must be above 0"),
        (["--hours", "-1"], "--hours -1: must be above 0"),
        (["--cluster-option", "a=b"], "--cluster-option: is for --cluster"),
        (["--cluster", "local", "--cluster-option", "nonsense"], "NAME=VALUE is needed"),
        (["--cluster", "local", "--cluster-option", "slurm_nonsense=1"], "slurm_nonsense"),
        (["--cluster", "slurm"], "give --cluster-option timeout_min=MINUTES"),
        (["--cluster", "slurm", "--cluster-option", "timeout_min=9"], "--cluster slurm: Could not detect"),
        (["--cluster", "local", "--jobs", "2"], "--jobs: is for this machine"),
    ],
)
def test_bad_options(
    stub: Any, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm's programs
    given = stub(text=SMALL)
    try:
        code = study.main([*given, *words])
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    assert code == 2 and message in capsys.readouterr().err


def test_an_unknown_run_or_file(file: Path, tmp_path: Path, capsys: Capture) -> None:
    assert study.main([str(tmp_path / "nowhere.yaml")]) == 2
    assert "nowhere.yaml: no such file" in capsys.readouterr().err
    assert study.main([str(file), "--work", str(tmp_path / "work"), "--only", "flat.nobody"]) == 2
    assert "--only flat.nobody: no run" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- one run, for real

REAL = """
title: Real
recipe: {recipe}
data: {data}
flags: --arch transformer_resid --log-coefficients
baseline: base
average: 2
analyze: 1
arms:
  base: --residual post_ln
  wild: --residual xskip --lr 1e30
plan:
  - {{setting: recipe, arms: [base, wild], seeds: 1}}
"""
FLAGS = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16 "
    "--decoder-ffn-embed-dim 16 --encoder-attention-heads 2 --decoder-attention-heads 2 --share-all-embeddings "
    "--optimizer adam --lr 0.01 --batch-size 16 --max-update 6 --save-interval-updates 3 --no-epoch-checkpoints "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --log-interval 2 --num-workers 0 --cpu"
)


@pytest.mark.both
def test_a_real_study(corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained, averaged, decoded, measured, analysed, kept; the NLL is fairseq's own; a divergence is a result."""
    (tmp_path / "recipe.txt").write_text(FLAGS)
    path = written(tmp_path, REAL.format(recipe=tmp_path / "recipe.txt", data=corpus), "real")
    monkeypatch.setattr(study, "POLL", 0.1)
    words = [str(path), "--work", str(tmp_path / "work"), "--weights", "--jobs", "2"]
    assert study.main(words) == 0, "".join(log.read_text() for log in (tmp_path / "work" / "logs").glob("*"))
    assert "recipe.wild.seed1: diverged" in capsys.readouterr().out
    kept_run = Run(tmp_path / "real" / "recipe.base.seed1")
    made = records.read(kept.file(kept_run.path), Note)
    sentences = likelihood.read(kept_run.decode / "test.averaged.nll")
    assert made.scores["averaged"]["NLL"].score == pytest.approx(likelihood.mean(sentences), abs=1e-4)
    assert kept_run.read_results().scores["averaged"]["NLL"].score == pytest.approx(
        likelihood.mean(sentences), abs=1e-4
    )
    # fairseq's own: the unsmoothed loss of the last validation, in bits.
    logged = [float(row["valid_nll_loss"]) for row in kept_run.log_records() if "valid_nll_loss" in row]
    assert made.valid["last"] == pytest.approx(logged[-1] * math.log(2), abs=2e-3)
    assert (kept_run.path / "analysis" / "analysis.json").is_file() and not list(kept_run.path.glob("*.pt"))
    assert (tmp_path / "work" / "recipe.base.seed1" / "averaged.pt").is_file()
    row = {each.arm: each for each in records.read(tmp_path / "real" / "results.json", results.Results).rows}
    assert row["wild"].diverged == [1] and row["base"].seeds == [1]
    assert "recipe | wild" in (tmp_path / "real" / "results.md").read_text()
