"""Faults in fairseq_resid/folders, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "averaging: the best checkpoint counts",
        "fairseq_resid/folders/run.py",
        'r"checkpoint(\\d+)\\.pt"',
        'r"checkpoint(\\d+|_best)\\.pt"',
        "evaluation/test_averaging.py",
    ),
    Fault(
        "data folder: sizes are not compared",
        "fairseq_resid/folders/data.py",
        "file.stat().st_size != sizes[name]",
        "file.stat().st_size < 0",
        "corpora/test_data_folder.py",
    ),
]
