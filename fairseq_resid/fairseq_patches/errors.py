"""The mistake of a user: one line, whoever reads it."""

from __future__ import annotations

from ..foreign import printable_lines


class UserError(ValueError, SystemExit):
    """A mistake of the user: one line on stderr and exit code 1 if nothing catches it; else a ValueError."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, message)
        self.code = f"fairseq_resid: error: {printable_lines(message)}"
