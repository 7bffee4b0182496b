"""Faults in fairseq_resid/analysis, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "images: gradients are normed over images together",
        "fairseq_resid/analysis/observe.py",
        "batch.by_example(y.grad.double()).flatten(1)",
        "y.grad.double().transpose(0, 1).flatten(1)",
        "images/test_image_analysis.py",
    ),
    Fault(
        "analysis: a branch that matters is called off",
        "fairseq_resid/analysis/results.py",
        "site.nll_without - self.nll < NOTHING",
        "site.nll_without - self.nll > NOTHING",
        "report/test_report.py",
    ),
]
