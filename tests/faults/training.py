"""Faults in fairseq_resid/training, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "resuming: a hole in a checkpoint is not seen",
        "fairseq_resid/training/launch.py",
        "return file.is_file() and zip_damage(file) is None",
        "return file.is_file()",
        "training/test_kills.py",
    ),
    Fault(
        "plan: update-freq is ignored in the effective batch",
        "fairseq_resid/training/plan.py",
        "        return self.world_size * self.size * self.update_freq",
        "        return self.world_size * self.size",
        "training/test_plan.py",
    ),
    Fault(
        "plan: bf16 on GPUs that have none",
        "fairseq_resid/training/plan.py",
        "capability >= (8, 0)",
        "capability >= (7, 0)",
        "training/test_plan.py",
    ),
    Fault(
        "launch: a run goes on under changed settings",
        "fairseq_resid/training/launch.py",
        'PLACE_FLAGS = ("--user-dir", ',
        'PLACE_FLAGS = ("--lr", "--user-dir", ',
        "training/test_launch.py",
    ),
    Fault(
        "Slurm: the process's device is chosen by its rank among all",
        "fairseq_resid/training/devices.py",
        '"SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")',
        '"SLURM_STEP_NUM_TASKS", "SLURM_PROCID")',
        "training/test_plan.py",
    ),
]
