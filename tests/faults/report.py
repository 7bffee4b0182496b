"""Faults in fairseq_resid/report, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "report: what a user calls things is markup",
        "fairseq_resid/report/report.py",
        "autoescape=True",
        "autoescape=False",
        "report/test_report.py",
    ),
    Fault(
        "report: steeper gradients are called flatter",
        "fairseq_resid/report/findings.py",
        "mine[stack] < theirs[stack]",
        "mine[stack] > theirs[stack]",
        "report/test_report.py",
    ),
]
