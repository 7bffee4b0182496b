"""The core tests, which `scripts/test.sh` runs by default: mathematics, models, decoding, averaging, checkpoints.

They are selected by test file. Tests that are marked `slow` are left out.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = ("analysis", "cli", "connections", "evaluation", "fairseq_patches", "files", "models", "ops", "structures")
# Test files from other folders. The first four detect faults in captioning and image models and in image scores.
FILES = (
    "captions/test_captioning_models.py",
    "images/test_image_connections.py",
    "images/test_image_models.py",
    "images/test_image_scores.py",
    "runs/test_kills.py",
    "runs/test_plan.py",
    "system/test_setup.py",
)
LEFT_OUT = ("cli/test_progress.py", "evaluation/test_published.py", "fairseq_patches/test_divergence.py")


def is_core(path: Path) -> bool:
    """Return whether a test file is one of the core tests."""
    name = path.resolve().relative_to(TESTS).as_posix()
    return name in FILES or (name.partition("/")[0] in FOLDERS and name not in LEFT_OUT)
