"""Errors that users can correct."""

from __future__ import annotations

from ..console import printable


class UserError(ValueError, SystemExit):
    """A ValueError that, if uncaught, prints one line on stderr and exits with code 1, without a traceback."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, message)
        self.code = f"fairseq_resid: error: {printable(' '.join(message.split()))}"
