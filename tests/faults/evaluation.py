"""Faults in fairseq_resid/evaluation, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "averaging: the sum is divided by one too few",
        "fairseq_resid/evaluation/averaging.py",
        ".div_(len(paths))",
        ".div_(len(paths) - 1 or 1)",
        "evaluation/test_averaging.py",
    ),
    Fault(
        "averaging: the first files in place of the last",
        "fairseq_resid/evaluation/averaging.py",
        "return numbered[-last:]",
        "return numbered[:last]",
        "evaluation/test_averaging.py",
    ),
    Fault(
        "averaging: another dtype passes",
        "fairseq_resid/evaluation/averaging.py",
        "            if (shape, dtype, tied) != actual[name]:",
        "            if shape != actual[name][0]:",
        "evaluation/test_averaging.py",
    ),
]
