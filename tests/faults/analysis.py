"""Faults that plant_faults.py plants in fairseq_resid/analysis."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "images: gradient norms are taken over the whole batch",
        "fairseq_resid/analysis/observe.py",
        "batch.by_example(y.grad.double()).flatten(1)",
        "y.grad.double().transpose(0, 1).flatten(1)",
        "images/test_image_analysis.py",
    ),
    Fault(
        "analysis: a branch that matters is reported as inactive",
        "fairseq_resid/analysis/results.py",
        "site.nll_without - self.nll < NOTHING",
        "site.nll_without - self.nll > NOTHING",
        "report/test_report.py",
    ),
    Fault(
        "b2t: norms are those of both vectors of the state",
        "fairseq_resid/analysis/observe.py",
        "return state[..., :dim] if leave is None",
        "return state if leave is None",
        "analysis/test_analysis.py",
    ),
]
