"""Results of studies: results.json, results.md and the plots, computed from kept runs."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from scipy import stats

from fairseq_resid.runs.run import Scored
from fairseq_resid.runs.training_log import Explosion
from fairseq_resid.study import kept, plan, plots, results, statistics, study, tables
from fairseq_resid.study.plan import Planned
from support.studies import TEXT, all_kept, keep, note, written

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]
COUNTS = "9\t9\t8\t6\t5\t4\t9\t7\t6\t5\n"  # the counts for BLEU of one sentence


def read(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


def rows_of(found: Any, at: str = "own") -> dict[tuple[str, str], Any]:
    """Return the rows at one choice of the tuned value, by setting and arm."""
    return {(row["setting"], row["arm"]): row for row in found["rows"] if row["at"] == at}


def difference_of(row: results.Row) -> float:
    return row["against"]["effects"]["NLL"]["difference"]


def test_complete_study_gives_all_results(file: Path, tmp_path: Path, capsys: Capture) -> None:
    trial = plan.read_study(file)
    folder = tmp_path / "trial"
    all_kept(folder, trial)
    assert study.main([str(file), "--results", "--work", str(tmp_path / "work")]) == 0
    assert "results.md" in capsys.readouterr().out
    found = read(folder)
    assert found["missing"] == [] and found["unnamed"] == 0 and found["sentences"] == {"NLL": 4, "BLEU": 4}
    own = rows_of(found)
    assert own["flat", "sas"]["value"] == 0.004 and own["flat", "base"]["value"] == 0.002
    assert difference_of(own["flat", "sas"]) == pytest.approx(-0.2, abs=1e-4)
    assert difference_of(own["deep", "sas"]) == pytest.approx(-0.5, abs=1e-4)
    (common,) = [row for row in found["rows"] if row["at"] == "baseline"]
    assert common["value"] == 0.002 and common["seeds"] == [1]
    (crossed,) = found["interactions"]
    assert (crossed["arm"], crossed["at"], crossed["setting"], crossed["than"]) == ("sas", "own", "deep", "flat")
    assert crossed["comparison"]["effects"]["NLL"]["difference"] == pytest.approx(-0.3, abs=1e-4)
    compared = [one["comparison"] for one in found["contrasts"]]
    assert [one["seeds"] for one in compared] == [[2, 2], [1, 2], [2, 2, 2, 2]]
    effects = [one["effects"]["NLL"] for one in compared]
    assert [one["difference"] for one in effects] == pytest.approx(
        [-0.3, 0.3 * math.log(2) ** 2 - 0.2 - 0.005, -0.3], abs=1e-3
    )
    numbers = [value for value in effects[0].values() if value is not None]
    assert len(numbers) == 7 and all(value == float(f"{value:.9g}") for value in numbers)
    assert effects[1]["p"] is None and compared[2]["effects"]["NLL"] == crossed["comparison"]["effects"]["NLL"]
    page = (folder / "results.md").read_text()
    assert "| (deep sas minus deep base) minus (flat sas minus flat base) | 2, 2, 2, 2 | -0.3000 | [" in page
    assert "| flat | sas | own best | 0.004 | 2 | 1,000 | 0.02 | 2.8" in page and "No runs are missing." in page
    assert page.index("No runs are missing.") < page.index("## NLL minus") < page.index("## How to read this page")
    assert page.index("## How to read this page") > page.rindex("\n| ")
    for plot in ("effects", "settings", "gap", "tuning", "curves"):
        assert (folder / f"{plot}.svg").read_text().startswith("<?xml")
        assert f"]({plot}.svg)" in page
    effects = (folder / "effects.svg").read_text()
    assert all(f"<!-- {title} -->" in effects for title in ("flat", "deep"))  # one panel for each setting


def test_every_arm_has_its_own_plot_style(file: Path) -> None:
    trial = plan.read_study(file)
    many = structs.replace(trial, arms={**trial.arms, **{f"arm{index}": "" for index in range(12)}})
    assert len({tuple(plots.look(many, arm).values()) for arm in many.arms}) == 14


@pytest.mark.parametrize(("best", "lost_in_deep"), [(0.004, 0.3 * math.log(2) ** 2), (0.002, 0.0)])
def test_interaction_is_also_shown_at_baseline_value(tmp_path: Path, best: float, lost_in_deep: float) -> None:
    """In `deep`, the best value of sas differs from the baseline's in the first case and equals it in the second."""
    file = written(tmp_path, TEXT + "  - {setting: deep, arms: [sas], seeds: 2, at: baseline}\n")
    trial = plan.read_study(file)
    found = results.build_results(trial, all_kept(tmp_path / "trial", trial, best), tmp_path / "trial")
    gains = {one["at"]: one["comparison"]["effects"]["NLL"]["difference"] for one in found["interactions"]}
    assert len(gains) == len(found["interactions"]) == 2
    assert gains["own"] == pytest.approx(-0.3, abs=1e-4)
    # In `flat`, sas has one seed at the baseline's value, which is compared with both seeds of the baseline.
    assert gains["baseline"] == pytest.approx(-0.3 + lost_in_deep - 0.3 * math.log(2) ** 2 + 0.005, abs=1e-4)
    page = tables.markdown(found)
    assert "| sas | own best | deep minus flat | 2, 2, 2, 2 |" in page
    assert "| sas | baseline's best | deep minus flat | 2, 2, 1, 2 |" in page
    plots.by_setting(trial, found, tmp_path / "settings.svg")
    assert "sas, baseline's value" in (tmp_path / "settings.svg").read_text()


def test_holm_family_includes_arms_compared_at_baseline_value() -> None:
    """The best value of sas is the baseline's, so its `own` row also counts in the family at the baseline's value."""

    def row(arm: str, at: str, value: float, p: float | None) -> results.Row:
        against = {"effects": {"NLL": {"p": p}}} if p else None
        return {"setting": "flat", "arm": arm, "at": at, "value": value, "against": against, "holm": None, "family": 0}

    rows = [row("base", "own", 2.0, None), row("sas", "own", 2.0, 0.02), row("other", "own", 4.0, 0.03)]
    rows.append(row("other", "baseline", 2.0, 0.01))
    results.add_corrected(rows, "base", "NLL")
    assert [(one["holm"], one["family"]) for one in rows] == [(None, 0), (0.04, 2), (0.04, 2), (0.02, 2)]


def test_arm_is_compared_with_all_baseline_seeds(tmp_path: Path) -> None:
    file = written(tmp_path, TEXT.replace("[base, sas], seeds: 2", "[base], seeds: 5", 1) +
                   "  - {setting: flat, arms: [sas], seeds: 2}\n")  # fmt: skip
    trial = plan.read_study(file)
    found = results.build_results(trial, all_kept(tmp_path / "trial", trial), tmp_path / "trial")
    row = rows_of(found)["flat", "sas"]
    assert row["against"]["seeds"] == [2, 5]
    base = rows_of(found)["flat", "base"]
    test = stats.ttest_ind(row["by_seed"], base["by_seed"], equal_var=False)
    assert row["against"]["effects"]["NLL"]["p"] == pytest.approx(test.pvalue)


def test_variances_are_pooled_over_arms_that_did_not_diverge(tmp_path: Path) -> None:
    """All sentences have the same NLL, so that only seeds vary. The diverged arm does not count."""
    arms = "  sas: --residual sas\n  pre: --residual pre_ln\n  lost: --residual rskip_ln\n"
    text = TEXT.replace("  sas: --residual sas\n", arms).replace(
        "[base, sas], seeds: 2", "[base, sas, pre, lost], seeds: 4", 1
    )
    trial = plan.read_study(written(tmp_path, text))
    nll = {
        "base": [3.0, 3.1, 3.2, 3.3],
        "sas": [2.1, 2.0, 2.3, 2.4],
        "pre": [2.9, 2.9, 2.7],
        "lost": [5.0, 3.0, 2.0, 1.0],
    }
    notes = {}
    for arm, values in nll.items():
        for seed, value in enumerate(values, start=1):
            lost = {"outcome": "diverged", "valid": {}, "scores": {}} if (arm, seed) == ("lost", 4) else {}
            run = Planned("flat", arm, 0.002, seed)
            notes[run.name] = keep(tmp_path / "trial", run, value, trial, **lost)
        for tried in (0.001, 0.002, 0.004):
            run = Planned("flat", arm, tried, 100, True)
            notes[run.name] = note(run, 3.0 + abs(tried - 0.002))
    rows = rows_of(results.build_results(trial, notes, tmp_path / "trial"))
    squares = sum(np.var(nll[arm]) * len(nll[arm]) for arm in ("base", "sas", "pre"))
    effect = rows["flat", "sas"]["against"]["effects"]["NLL"]
    assert effect["pooled"]["freedom"] == 8 and effect["pooled"]["sd"] == pytest.approx(math.sqrt(squares / 8))
    reach = stats.t.ppf(0.975, 8) * math.sqrt(squares / 8 * (1 / 4 + 1 / 4))
    assert effect["pooled"]["high"] == pytest.approx(effect["difference"] + reach)
    assert effect["permutation"] == pytest.approx(2 / 70)
    # If the three highest scores are exchanged for those of pre, the difference is larger still.
    assert rows["flat", "pre"]["against"]["effects"]["NLL"]["permutation"] == pytest.approx(2 / 35)
    lost = rows["flat", "lost"]["against"]["effects"]["NLL"]
    assert lost == asdict(statistics.Effect(lost["difference"]))


def test_fixed_value_arms_are_compared_at_that_value(tmp_path: Path) -> None:
    text = TEXT + "  - {setting: flat, arms: [base, sas], seeds: 3, at: 1e-3}\n"
    file = written(tmp_path, text)
    trial = plan.read_study(file)
    found = results.build_results(trial, all_kept(tmp_path / "trial", trial), tmp_path / "trial")
    row = rows_of(found, "0.001")["flat", "sas"]
    assert row["against"]["seeds"] == [3, 3] and row["family"] == 1
    lost = {best: 0.3 * math.log(0.001 / best) ** 2 for best in (0.002, 0.004)}
    assert difference_of(row) == pytest.approx(-0.2 + lost[0.004] - lost[0.002], abs=1e-4)
    assert "| flat | sas | 0.001 | 3, 3 |" in tables.markdown(found)
    plots.effects(trial, found, tmp_path / "effects.svg")
    assert "<!-- flat, 0.001 -->" in (tmp_path / "effects.svg").read_text()


def test_each_measure_has_its_own_test_sets(tmp_path: Path) -> None:
    text = TEXT.replace("tests: [test, test1]", "tests: {NLL: [test, test1], BLEU: [test]}")
    trial = plan.read_study(written(tmp_path, text))
    folder = tmp_path / "trial"
    notes = {}
    for seed, arm in ((1, "base"), (2, "base"), (1, "sas"), (2, "sas")):
        run = Planned("flat", arm, 0.002, seed)
        notes[run.name] = keep(folder, run, 3.0 + 0.1 * seed, structs.replace(trial, tests=("test", "test1")))
    for arm in trial.arms:
        for value, nll in ((0.001, 3.5), (0.002, 3.0), (0.004, 3.5)):
            run = Planned("flat", arm, value, 100, True)
            notes[run.name] = note(run, nll)
    found = results.build_results(trial, notes, folder)
    assert found["sentences"] == {"NLL": 4, "BLEU": 2}
    page = tables.markdown(found)
    assert "Test sets: test, test1 taken together, 4 sentences (NLL); test, 2 sentences (BLEU)." in page


def test_differences_by_difficulty(tmp_path: Path) -> None:
    """The quarters would be others if the NLL of only one arm decided which sentences are difficult."""
    trial = plan.read_study(written(tmp_path, TEXT.replace("[test, test1]", "{NLL: [test], BLEU: [test]}")))
    folder, notes = tmp_path / "trial", {}
    for arm, gains in (("base", [0.0] * 8), ("sas", [0, 3, 0, 0, 0, 0, -2.5, 0])):
        for seed in (1, 2):
            run = Planned("flat", arm, 0.002, seed)
            notes[run.name] = keep(folder, run, 3.0, structs.replace(trial, tests=("test",)))
            hard_first = [1.0 + at + gain + 0.01 * seed for at, gain in enumerate(gains)][::-1]
            lines = "".join(f"{10 * nll:.4f}\t10\n" for nll in hard_first)
            for kind, text in (("nll", lines), ("bleu", COUNTS * 8)):
                (folder / run.name / f"decode/test.averaged.{kind}.gz").write_bytes(gzip.compress(text.encode()))
        for value, nll in ((0.001, 3.5), (0.002, 3.0), (0.004, 3.5)):
            run = Planned("flat", arm, value, 100, True)
            notes[run.name] = note(run, nll)
    found = results.build_results(trial, notes, folder)
    row = rows_of(found)["flat", "sas"]
    quarters = [one["effects"]["NLL"] for one in row["quarters"]]
    assert [one["difference"] for one in quarters] == pytest.approx([0, 1.5, -1.25, 0], abs=1e-9)
    assert all(one["low"] is not None and one["low"] < one["difference"] for one in quarters)
    page = tables.markdown(found)
    assert "| flat | sas | own best | NLL | +0.0000 [" in page and "divided into four equal parts" in page
    for run in folder.glob("*.seed?"):
        (run / "decode/test.averaged.bleu.gz").write_bytes(gzip.compress((COUNTS * 7).encode()))
    with pytest.raises(ValueError, match=r"BLEU of 7 sentences of test, but NLL of flat.\w+.0.002.seed1 of 8"):
        results.build_results(structs.replace(trial, measure="BLEU"), notes, folder)


def test_additional_average_lists_the_seeds_that_have_it(file: Path, tmp_path: Path) -> None:
    trial = plan.read_study(file)
    notes = all_kept(tmp_path / "trial", trial)
    name = "flat.sas.0.004.seed2"
    further = {"NLL": Scored(2.5, "nats"), "BLEU": Scored(31.0, "sig"), "chrF": Scored(51.0, "sig")}
    notes[name] = replace(notes[name], scores={**notes[name].scores, "epochs41-50": further})
    page = tables.markdown(results.build_results(trial, notes, tmp_path / "trial"))
    (row,) = [line for line in page.splitlines() if line.startswith("| flat | sas | own best | 0.004")]
    assert row.endswith("| 2.5000 (1 of 2 seeds) |") and "| NLL, epochs41-50 |" in page


@pytest.mark.parametrize("collapsed", [(1, 2), (2,)])
def test_untrained_arms_get_no_p_value(file: Path, tmp_path: Path, collapsed: tuple[int, ...]) -> None:
    """One collapsed seed is enough: its distance from the others is not the noise that a test assumes."""
    trial = plan.read_study(file)
    folder = tmp_path / "trial"
    notes = all_kept(folder, trial)
    for seed in collapsed:
        name = f"deep.base.0.002.seed{seed}"
        scored = notes[name].scores["averaged"] | {"BLEU": Scored(9.0 + seed / 3, "sig")}
        notes[name] = replace(notes[name], scores=notes[name].scores | {"averaged": scored})
    found = results.build_results(trial, notes, folder)
    row = rows_of(found)
    flat, deep = row["flat", "sas"], row["deep", "sas"]
    assert flat["against"]["untested"] == "" and flat["holm"] is not None
    assert deep["against"]["untested"] == "BLEU below 10" and deep["holm"] is None
    assert deep["against"]["effects"]["NLL"] == asdict(statistics.Effect(pytest.approx(-0.5, abs=1e-4)))
    reasons = [one["comparison"]["untested"] for one in (*found["interactions"], found["contrasts"][0])]
    assert reasons == ["BLEU below 10", ""]
    page = tables.markdown(found)
    assert "| deep | sas | own best | 2, 2 | -0.5000 |  | none: BLEU below 10 |" in page
    assert "or a run did not train (BLEU below 10)" in page
    assert not plots.by_setting(trial, found, tmp_path / "settings.svg")  # only one setting remains


def test_gap_by_epoch_uses_the_last_validation_of_each_epoch(file: Path, tmp_path: Path) -> None:
    trial = plan.read_study(file)
    folder = tmp_path / "trial"
    notes = all_kept(folder, trial)
    for name in notes:
        worse = 4.0 if ".base." in name else 3.0
        rows = [(1, 9.0), (1, worse), (2, worse - 0.5), (3, 2.0 + (name.endswith("seed2") and worse))]
        lines = [json.dumps({"epoch": epoch, "valid_nll_loss": f"{value / math.log(2)}"}) for epoch, value in rows]
        (folder / name / "train.log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = results.build_results(trial, notes, folder)
    row = rows_of(found)["flat", "sas"]
    assert [epoch for epoch, _ in row["gap"]] == [1, 2, 3]
    assert [value for _, value in row["gap"]] == pytest.approx([-1.0, -1.0, -0.5])
    assert "| flat | sas | own best | -1.000 | -1.000 | -0.500 |" in tables.markdown(found)


def test_runs_whose_gradient_exploded_are_reported(file: Path, tmp_path: Path) -> None:
    trial = plan.read_study(file)
    folder = tmp_path / "trial"
    notes = all_kept(folder, trial)
    assert "exploded" not in tables.markdown(results.build_results(trial, notes, folder))
    norms = enumerate(["0.5"] * 9 + ["90"], start=1)
    lines = [json.dumps({"epoch": 1, "gnorm": norm, "num_updates": str(at)}) for at, norm in norms]
    for name in ("flat.sas.0.004.seed2", "flat.sas.0.004.tuning"):  # tuning tries rates that are too high
        (folder / name / "train.log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = results.build_results(trial, notes, folder)
    assert found["exploded"] == {"flat.sas.0.004.seed2": asdict(Explosion(90.0, 10, 0.5))}
    page = tables.markdown(found)
    assert "- The gradient exploded: flat.sas.0.004.seed2 (norm 90 at update 10, median 0.5).\n" in page
    assert "more than 100 times the median of all norms in the log" in page


def test_runs_without_a_data_fingerprint_are_reported(file: Path, tmp_path: Path) -> None:
    trial = plan.read_study(file)
    for seed, data in ((1, "aaaa"), (2, "")):
        keep(tmp_path / "trial", Planned("flat", "base", 0.001, seed), 3.0, trial, data=data)
    found = results.build_results(trial, kept.load_notes(trial, file, tmp_path / "trial"), tmp_path / "trial")
    assert found["without_data"] == ["flat.base.0.001.seed2"]
    page = tables.markdown(found)
    assert "1 run has no data fingerprint" in page and "flat.base.0.001.seed2" in page


@pytest.mark.parametrize(
    ("measure", "holm", "said"),
    [
        ("NLL", 0.049, "Better: also (-0.3000), sas (-0.2000)."),
        ("BLEU", 0.049, "Better: also (+3.00), sas (+1.00)."),
        ("NLL", 0.05, "No measurable difference: also (-0.3000), sas (-0.2000)."),
        ("NLL", None, "Not tested: also (-0.3000; single seed), sas (-0.2000; single seed)."),
    ],
)
def test_summary_follows_the_corrected_p(
    file: Path, tmp_path: Path, measure: str, holm: float | None, said: str
) -> None:
    trial = plan.read_study(file)
    complete = results.build_results(trial, all_kept(tmp_path / "trial", trial), tmp_path / "trial")
    base, sas = (rows_of(complete)["flat", arm] for arm in ("base", "sas"))

    def with_effects(row: results.Row, arm: str, nll: float, bleu: float) -> results.Row:
        effects = {"NLL": {"difference": nll}, "BLEU": {"difference": bleu}}
        return {**row, "arm": arm, "holm": holm, "against": {**row["against"], "effects": effects}}

    rows = [base, with_effects(sas, "sas", -0.2, 1.0), with_effects(sas, "also", -0.3, 3.0)]
    missing = ["deep.sas.0.004.seed1", "deep.sas.0.004.seed2", "deep.base.0.002.seed1"]
    lines = tables.summary({**complete, "measure": measure, "rows": rows, "missing": missing, "unnamed": 4})
    value = tables.mean_text(base["means"]["averaged"][measure], {"NLL": 4, "BLEU": 2}[measure])
    assert lines == [
        f"flat, own best: base has {measure} {value}. {said}",
        "Missing: 2 runs of deep sas, 1 run of deep base, 4 that depend on tuning.",
    ]


def test_page_shows_curves_although_there_is_nothing_to_compare(file: Path, tmp_path: Path) -> None:
    trial = plan.read_study(file)
    run = Planned("flat", "base", 0.001, 1)
    found = results.build_results(trial, {run.name: keep(tmp_path / "trial", run, 3.0, trial)}, tmp_path / "trial")
    assert tables.markdown(found, ["curves"]).count("](curves.svg)\n") == 1


def test_summary_names_arms_that_are_worse_diverged_or_not_compared(file: Path, tmp_path: Path) -> None:
    trial = plan.read_study(file)
    complete = results.build_results(trial, all_kept(tmp_path / "trial", trial), tmp_path / "trial")
    base, sas = (rows_of(complete)["flat", arm] for arm in ("base", "sas"))
    against = sas["against"]
    worse = {**sas, "arm": "worse", "holm": 0.01, "against": {**against, "effects": {"NLL": {"difference": 0.5}}}}
    some = {**sas, "arm": "some", "holm": None, "against": {**against, "untested": "1 diverged"}}
    gone = {**sas, "arm": "gone", "seeds": [], "diverged": [1, 2], "against": None}
    never = {"setting": "flat", "arm": "never", "tried": [(0.001, None)], "best": None}
    one_seed = {"averaged": {"NLL": {"mean": 7.0, "sd": None, "count": 1}}}
    other = {**base, "setting": "recipe", "at": "0.001", "seeds": [1], "means": one_seed}
    fixed = {**sas, "setting": "recipe", "at": "0.001", "holm": None}
    alone, rest = {**base, "setting": "deep", "at": ""}, {**sas, "setting": "rest", "at": "", "against": None}
    rows = [base, worse, some, gone, other, fixed, alone, rest]
    value = tables.mean_text(base["means"]["averaged"]["NLL"], 4)
    difference = f"{difference_of(sas):+.4f}"
    assert tables.summary({**complete, "rows": rows, "tuned": [never]}) == [
        f"flat, own best: base has NLL {value}. Worse: worse (+0.5000). Not tested: some ({difference}; 1 diverged). "
        "Diverged: gone, never (in tuning).",
        f"recipe, 0.001: base has NLL 7.0000 (1 of 2 seeds). Not tested: sas ({difference}; single seed).",
        f"deep: base has NLL {value}. No other arm has finished.",
        "rest: base has not finished. Not compared: sas.",
        "No runs are missing.",
    ]


def test_incomplete_study_gives_results_so_far(file: Path, tmp_path: Path) -> None:
    trial = plan.read_study(file)
    folder = tmp_path / "trial"
    notes = all_kept(folder, trial)
    for name in ("flat.sas.0.004.seed2", "deep.base.0.002.seed1", "deep.base.0.002.seed2"):
        del notes[name]
    diverged = replace(notes["flat.base.0.002.seed2"], outcome="diverged", valid={}, scores={})
    notes["flat.base.0.002.seed2"] = diverged
    found = results.build_results(trial, notes, folder)
    own = rows_of(found)
    assert own["flat", "base"]["diverged"] == [2] and own["flat", "base"]["seeds"] == [1]
    against = own["flat", "sas"]["against"]
    assert against is not None and against["effects"]["NLL"]["p"] is None and own["deep", "sas"]["against"] is None
    assert against["untested"] == "1 diverged" and against["seeds"] == [1, 1]
    assert len(found["missing"]) == 3 and not found["interactions"]
    assert [one["comparison"]["effects"] == {} for one in found["contrasts"]] == [False, False, True]
    assert found["contrasts"][1]["comparison"]["seeds"] == [1, 1]
    page = tables.markdown(found)
    assert "| (deep sas minus deep base) minus (flat sas minus flat base) | 2, 0, 1, 1 |  |" in page
    assert "| none: 1 diverged |" in page and "Missing: 1 run of flat sas, 2 runs of deep base." in page
    assert "deep, own best: base has not finished. Not compared: sas." in page
    assert "1 of 2, 1 diverged" in page


SECOND = TEXT.replace("title: A trial", "title: A second trial").replace(
    "  - [deep sas, flat sas]\n",
    "  - [flat sas, trial/deep sas]\n  - [flat sas, flat base, trial/flat sas, trial/flat base]\n",
)


def test_contrast_with_another_study(file: Path, tmp_path: Path) -> None:
    all_kept(tmp_path / "trial", plan.read_study(file))
    path = written(tmp_path, SECOND, "second")
    all_kept(tmp_path / "second", plan.read_study(path), name="second")
    assert study.main([str(path), "--results", "--work", str(tmp_path / "work")]) == 0
    found = read(tmp_path / "second")
    across, of_differences = (one["comparison"] for one in found["contrasts"][:2])
    assert across["seeds"] == [2, 2] and across["effects"]["NLL"]["difference"] == pytest.approx(0.3, abs=1e-4)
    assert of_differences["seeds"] == [2, 2, 2, 2]
    assert of_differences["effects"]["NLL"]["difference"] == pytest.approx(0, abs=1e-6)
    page = (tmp_path / "second" / "results.md").read_text()
    assert "| flat sas minus trial/deep sas | 2, 2 | +0.3000 | [" in page
    assert "| (flat sas minus flat base) minus (trial/flat sas minus trial/flat base) | 2, 2, 2, 2 | " in page


def test_contrast_with_other_data_is_refused(file: Path, tmp_path: Path) -> None:
    keep(tmp_path / "trial", Planned("flat", "base", 0.001, 1), 3.0, plan.read_study(file), data="bbbb")
    path = written(tmp_path, SECOND, "second")
    second = plan.read_study(path)
    made = keep(tmp_path / "second", Planned("flat", "base", 0.001, 1), 3.0, second, study="second", data="aaaa")
    with pytest.raises(ValueError, match="trial: was scored on different data than second: its dictionaries or refer"):
        results.other_studies(second, path, {made.run.name: made})


def results_of_second(folder: Path) -> Any:
    """Return the results of a complete second study."""
    path = written(folder, SECOND, "second")
    second = plan.read_study(path)
    notes = all_kept(folder / "second", second, name="second")
    return results.build_results(second, notes, folder / "second", results.other_studies(second, path, notes))


def test_contrast_with_an_unfinished_study_says_so(file: Path, tmp_path: Path) -> None:
    found = results_of_second(tmp_path)
    assert found["contrasts"][0]["comparison"] == {"seeds": [2, 0], "effects": {}, "untested": "not finished"}
    page = tables.markdown(found)
    assert "| flat sas minus trial/deep sas | 2, 0 |  |  | none: not finished |" in page
    assert "STUDY/NAME is a run or an arm of another study" in page


def test_warnings_about_runs_of_another_study(file: Path, tmp_path: Path) -> None:
    """They name runs in the contrasts that have no data fingerprint, or whose gradient exploded."""
    trial = plan.read_study(file)
    all_kept(tmp_path / "trial", trial)
    lines = [{"epoch": 1, "num_updates": at, "loss": 3, "gnorm": norm} for at, norm in ((1, 1), (2, 1), (3, 5000))]
    log = "\n".join(map(json.dumps, lines)).encode()
    (tmp_path / "trial" / "deep.sas.0.004.seed1" / "train.log.gz").write_bytes(gzip.compress(log))
    found = results_of_second(tmp_path)
    assert list(found["exploded"]) == ["trial/deep.sas.0.004.seed1"]
    assert {"trial/deep.sas.0.004.seed1", "trial/flat.base.0.002.seed2"} < set(found["without_data"])
    assert "trial/flat.base.0.004.tuning" not in found["without_data"]


def test_studies_can_name_each_other(file: Path, tmp_path: Path) -> None:
    second = written(tmp_path, SECOND, "second")
    written(tmp_path, TEXT.replace("[deep sas, flat sas]", "[deep sas, second/flat sas]"))
    for path in (file, second):
        trial = plan.read_study(path)
        assert results.build_results(trial, {}, tmp_path / "none", results.other_studies(trial, path, {}))["contrasts"]
