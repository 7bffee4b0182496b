"""Faults in fairseq_resid/commands, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "archives: a name that leads out of the folder is not noticed",
        "fairseq_resid/commands/extract.py",
        'or ".." in PurePosixPath(name).parts',
        "",
        "commands/test_extract.py",
    ),
    Fault(
        "archives: a wrong checksum passes",
        "fairseq_resid/commands/fetch.py",
        "if expected is not None and actual != expected:",
        'if expected is not None and kind == "bytes" and actual != expected:',
        "commands/test_fetch.py corpora/test_provenance.py",
    ),
    Fault(
        "references: written from the normalised text",
        "fairseq_resid/commands/extract.py",
        'LAYOUT = re.compile(r"[ \\t\\r\\n\\f\\v]+")',
        'LAYOUT = re.compile(r"\\s+")',
        "commands/test_extract.py corpora/test_provenance.py",
    ),
]
