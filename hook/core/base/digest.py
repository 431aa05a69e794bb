"""The hash of a text that a message or an event cuts. Its import is an extension module in some builds of Python."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 12):
    from _sha2 import sha256
else:
    from _sha256 import sha256  # type: ignore[import-not-found]  # typeshed does not know it

_CHUNK = 1 << 16


def measure(text: str) -> tuple[int, str]:
    """The length in bytes of UTF-8, and the first 16 hex digits of the sha256 of these bytes."""
    digest, size = sha256(), 0
    for start in range(0, len(text), _CHUNK):  # encoding all of it at once would copy up to 32 MiB
        data = text[start : start + _CHUNK].encode("utf-8", "surrogatepass")
        size += len(data)
        digest.update(data)
    return size, digest.hexdigest()[:16]
