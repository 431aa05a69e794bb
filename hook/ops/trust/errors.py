"""The error of `reassert trust`, apart from what reads certificates: `status` reads a store's generation alone."""

from __future__ import annotations

from collections.abc import Sequence

from hook.core.base.errors import ReassertError
from hook.core.base.text import printable_lines


class TrustError(ReassertError):
    """No trust store can be made of this. The message names file, entry and remedy; `details` are more lines."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = list(details)
        self.outcome = printable_lines("\n".join(self.details))  # for the terminal (hook.cli.main)
