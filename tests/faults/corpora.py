"""Faults in fairseq_resid/corpora and fairseq_resid/text.py, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "cleaning: the ratio is of the source alone",
        "fairseq_resid/corpora/clean.py",
        "max(source, target) > self.max_ratio * min(source, target)",
        "source > self.max_ratio * target",
        "corpora/test_clean.py",
    ),
    Fault(
        "cleaning: test text is cleaned too",
        "fairseq_resid/corpora/text_steps.py",
        "limits = job.limits if is_train else None",
        "limits = job.limits",
        "corpora/test_provenance.py corpora/test_prepare.py",
    ),
    Fault(
        "text: escapes undone twice",
        "fairseq_resid/text.py",
        "for character, entity in reversed(ESCAPES.items()):",
        "for character, entity in ESCAPES.items():",
        "corpora/test_prepare.py",
    ),
    Fault(
        "steps: a damaged result of an earlier step is used",
        "fairseq_resid/corpora/steps.py",
        "(folder / file).stat().st_size == size",
        "(folder / file).stat().st_size >= 0",
        "corpora/test_prepare_stopped.py",
    ),
    Fault(
        "shards: those of another text are used",
        "fairseq_resid/corpora/shards.py",
        "        key.update((source.sha256 + target.sha256).encode())\n",
        "",
        "corpora/test_shards.py",
    ),
    Fault(
        "shards: half a shard that a kill left is kept",
        "fairseq_resid/corpora/shards.py",
        "                    file.truncate(place)\n",
        "",
        "corpora/test_shards.py",
    ),
]
