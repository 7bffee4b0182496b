"""Faults in fairseq_resid/tasks, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "images: every epoch has the same batches",
        "fairseq_resid/tasks/images.py",
        "np.random.Philox(key=[self.seed, self.epoch], counter=ORDER)",
        "np.random.Philox(key=[self.seed, 1], counter=ORDER)",
        "images/test_image_batches.py",
    ),
    Fault(
        "images: validation is cropped at random",
        "fairseq_resid/tasks/images.py",
        'self.open(split, split == getattr(self.args, "train_subset", "train"))',
        "self.open(split, True)",
        "images/test_image_batches.py",
    ),
]
