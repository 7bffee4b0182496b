"""Faults that plant_faults.py plants in fairseq_resid/evaluation."""

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
        "averaging: the first checkpoints instead of the last",
        "fairseq_resid/evaluation/averaging.py",
        "return numbered[-last:]",
        "return numbered[:last]",
        "evaluation/test_averaging.py",
    ),
    Fault(
        "averaging: a different dtype is accepted",
        "fairseq_resid/evaluation/averaging.py",
        "            if (shape, dtype, tied) != actual[name]:",
        "            if shape != actual[name][0]:",
        "evaluation/test_averaging.py",
    ),
    Fault(
        "average: checkpoints of different structures are mixed",
        "fairseq_resid/evaluation/averaging.py",
        "        _check_same_structure(configs)\n",
        "",
        "evaluation/test_averaging.py",
    ),
]
