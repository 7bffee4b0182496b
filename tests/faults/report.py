"""Faults in fairseq_resid/report, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "report: names given by users are not escaped",
        "fairseq_resid/report/report.py",
        "autoescape=True",
        "autoescape=False",
        "report/test_report.py",
    ),
    Fault(
        "report: the model's gradients are shown as the baseline's",
        "fairseq_resid/report/findings.py",
        "baseline {theirs[stack]:.1f}",
        "baseline {mine[stack]:.1f}",
        "report/test_report.py",
    ),
]
