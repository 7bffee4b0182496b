"""Faults that plant_faults.py plants in fairseq_resid/runs."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "resuming: a damaged checkpoint is considered intact",
        "fairseq_resid/runs/recovery.py",
        "return file.is_file() and zip_damage(file) is None",
        "return file.is_file()",
        "runs/test_kills.py",
    ),
    Fault(
        "plan: update-freq is ignored in the effective batch",
        "fairseq_resid/runs/plan.py",
        "        return self.world_size * self.size * self.update_freq",
        "        return self.world_size * self.size",
        "runs/test_plan.py",
    ),
    Fault(
        "plan: bf16 on GPUs without bf16",
        "fairseq_resid/runs/plan.py",
        "capability >= (8, 0)",
        "capability >= (7, 0)",
        "runs/test_plan.py",
    ),
    Fault(
        "launch: a run resumes with changed settings",
        "fairseq_resid/runs/launch.py",
        'PLACE_FLAGS = ("--user-dir", ',
        'PLACE_FLAGS = ("--lr", "--user-dir", ',
        "runs/test_launch.py",
    ),
    Fault(
        "Slurm: the device is chosen by the global rank",
        "fairseq_resid/runs/devices.py",
        '"SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")',
        '"SLURM_STEP_NUM_TASKS", "SLURM_PROCID")',
        "runs/test_plan.py",
    ),
    Fault(
        "averaging: checkpoint_best.pt counts as a numbered checkpoint",
        "fairseq_resid/runs/run.py",
        'r"checkpoint([0-9]+)\\.pt"',
        'r"checkpoint([0-9]+|_best)\\.pt"',
        "evaluation/test_averaging.py",
    ),
    Fault(
        "train: an interrupted run loads --restore-file again",
        "fairseq_resid/runs/launch.py",
        'if "--restore-file" in command and run.last.is_file():',
        "if False:",
        "runs/test_launch.py",
    ),
    Fault(
        "run: an outdated average is used",
        "fairseq_resid/runs/run.py",
        "if older and older[-1] != found[-1]:",
        "if False:",
        "runs/test_launch.py",
    ),
]
