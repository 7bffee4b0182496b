"""Faults in fairseq_resid/vision, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "images: every epoch has the same crops",
        "fairseq_resid/vision/augmentation.py",
        "np.random.Philox(key=[seed, epoch])",
        "np.random.Philox(key=[seed, 1])",
        "vision/test_image_batches.py",
    ),
    Fault(
        "images: a mirrored crop is shifted to the wrong side",
        "fairseq_resid/vision/augmentation.py",
        "            right = -right\n",
        "            pass\n",
        "vision/test_image_batches.py",
    ),
    Fault(
        "images: the superclass is taken for the class",
        "fairseq_resid/vision/sources.py",
        'labels = np.concatenate([some["labels"][:, manifest.labels.index("class")] for some in images])',
        'labels = np.concatenate([some["labels"][:, 0] for some in images])',
        "vision/test_prepare_images.py",
    ),
    Fault(
        "images: the first of every class are held out",
        "fairseq_resid/vision/prepare.py",
        "np.arange(len(labels)) >= ends - held[labels]",
        "np.arange(len(labels)) < ends - (counts - held)[labels]",
        "vision/test_prepare_images.py",
    ),
    Fault(
        "images: the deviation is that of the whole training part",
        "fairseq_resid/vision/prepare.py",
        'if split == "train":',
        'if split != "test":',
        "vision/test_prepare_images.py",
    ),
    Fault(
        "images: an image of another size passes",
        "fairseq_resid/vision/by_class.py",
        "if shape is not None and (height, width) != shape[1:]:",
        "if shape is not None and height != shape[1]:",
        "vision/test_prepare_images_errors.py",
    ),
]
