"""What stops a build of a trust store."""

from __future__ import annotations

from collections.abc import Sequence

from hook.core.base.errors import ReassertError


class TrustError(ReassertError):
    """No trust store can be made of this. The message names file, entry and remedy; `details` are more lines."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = list(details)
