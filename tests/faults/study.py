"""Faults that plant_faults.py plants in fairseq_resid/study."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "study: tuning stops at the edge of the grid",
        "fairseq_resid/study/plan.py",
        "if beyond is not None and",
        "if beyond is None and",
        "study/test_study_plan.py",
    ),
    Fault(
        "study: a diverged run ranks first",
        "fairseq_resid/study/kept.py",
        'self.valid.get("averaged", self.valid.get("last", math.inf))',
        'self.valid.get("averaged", self.valid.get("last", 0.0))',
        "study/test_study_kept.py",
    ),
    Fault(
        "study: Holm's factor is one too small",
        "fairseq_resid/study/statistics.py",
        "np.arange(len(known), 0, -1)",
        "np.arange(len(known) - 1, -1, -1)",
        "study/test_study_statistics.py",
    ),
    Fault(
        "study: the residual variance is counted twice",
        "fairseq_resid/study/statistics.py",
        " - sum(part for part, _ in residual)",
        "",
        "study/test_study_statistics.py",
    ),
    Fault(
        "study: degrees of freedom assume equal variances",
        "fairseq_resid/study/statistics.py",
        "variance**2 / spread if spread else",
        "float(sum(free for _, free in seeds)) if spread else",
        "study/test_study_statistics.py",
    ),
    Fault(
        "study: a p-value is computed although the baseline did not train",
        "fairseq_resid/study/results.py",
        "elif task.floor is not None:",
        "elif False:",
        "study/test_study_results.py",
    ),
    Fault(
        "study: the gap by epoch uses the first validation of an epoch",
        "fairseq_resid/study/results.py",
        'found[int(record["epoch"])] = factor * value',
        'found.setdefault(int(record["epoch"]), factor * value)',
        "study/test_study_results.py",
    ),
    Fault(
        "study: an interaction adds what it should subtract",
        "fairseq_resid/study/results.py",
        "(1.0, -1.0, -1.0, 1.0)",
        "(1.0, -1.0, 1.0, -1.0)",
        "study/test_study_results.py",
    ),
    Fault(
        "study: a contrast counts the tuning run as a seed",
        "fairseq_resid/study/results.py",
        "and not note.run.is_tuning",
        "",
        "study/test_study_results.py",
    ),
    Fault(
        "study: a contrast with a study on other data is computed",
        "fairseq_resid/study/results.py",
        "(its := digests(theirs)) and mine != its",
        "(its := digests(theirs)) and False",
        "study/test_study_results.py",
    ),
    Fault(
        "study: a contrast compares averages of different numbers of checkpoints",
        "fairseq_resid/study/plan.py",
        "study.task.has_averages and other.average",
        "False and other.average",
        "study/test_study_plan.py",
    ),
    Fault(
        "study: an arm whose best value is the baseline's is omitted from the comparison at that value",
        "fairseq_resid/study/results.py",
        '("own", "baseline", own.value)',
        '("own", "none", own.value)',
        "study/test_study_results.py",
    ),
    Fault(
        "study: kept files contain local paths",
        "fairseq_resid/study/kept.py",
        "TrainingCommand.parse(record.command).without(launch.PLACE_FLAGS).argv",
        "list(record.command)",
        "study/test_study_kept.py",
    ),
    Fault(
        "study: two runs share a slot",
        "fairseq_resid/study/executors.py",
        "if process.code() is None}",
        "if process.code() is not None}",
        "study/test_study_executors.py",
    ),
    Fault(
        "study: a folder with some of the runs hides its archive",
        "fairseq_resid/study/archive.py",
        "if lacking := sorted(",
        "if False and sorted(",
        "study/test_archive.py",
    ),
    Fault(
        "study: decoding flags that the recipe gained later are not compared",
        "fairseq_resid/study/kept.py",
        "for key in {**note.terms, **now}",
        "for key in note.terms",
        "study/test_study_kept.py",
    ),
]
