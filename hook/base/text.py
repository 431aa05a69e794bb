"""Text of a pod, an image or a CLI user, made fit for logs, messages and terminals. Start path: builtins only."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

STRING = 256
"""Bytes of UTF-8 that are kept of one string."""

MESSAGE = 4096
"""Bytes of UTF-8 that a message to an engine or on standard error has at most."""

REASONS = 8
"""Reasons that a refusal lists."""

_CHUNK = 1 << 16


def printable(text: str, keep: str = "") -> str:
    r"""The text with every character that a terminal could act on as an escape: `\x1b`, `\n`, `\u202e`.

    Escaped is what Unicode calls not printable: C0 and C1 controls, DEL, format characters (bidi controls, zero-width
    ones), line and paragraph separators, surrogates, private use, unassigned ones, and every space but U+0020.
    `keep`: characters that stay all the same.
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text])


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines, and may have tabs in them."""
    return "\n".join([printable(line, "\t") for line in text.split("\n")])


def head(text: str, limit: int) -> str:
    """The longest beginning that has at most `limit` bytes of UTF-8; the same object where nothing is cut."""
    if len(text) * 4 <= limit or (len(text) <= limit and text.isascii()):
        return text
    kept = text[:limit]
    excess = _size(kept) - limit
    while excess > 0:
        kept = kept[: len(kept) - (excess + 3) // 4]  # of at most four bytes each, so never one too many
        excess = _size(kept) - limit
    return text if len(kept) == len(text) else kept


def measure(text: str) -> "tuple[int, str]":
    """The length in bytes of UTF-8, and the first 16 hex digits of the sha256 of those bytes."""
    if sys.version_info >= (3, 12):  # an extension module for some Pythons: loaded only when something was cut
        from _sha2 import sha256
    else:
        from _sha256 import sha256  # type: ignore[import-not-found]
    digest, size = sha256(), 0
    for at in range(0, len(text), _CHUNK):  # in one piece it would be another copy of up to 32 MiB
        data = _utf8(text[at : at + _CHUNK])
        size += len(data)
        digest.update(data)
    return size, digest.hexdigest()[:16]


def shortened(text: str, limit: int = STRING) -> str:
    """For people: the text, or its beginning with the length and hash of the whole, `abc… (1000 bytes, sha256 12ab…)`.

    For what a message quotes of a pod. At most 60 bytes longer than `limit`.
    """
    kept = head(text, limit)
    if kept is text:
        return text
    size, digest = measure(text)
    return f"{kept}… ({size} bytes, sha256 {digest})"


def joined(reasons: "Sequence[object]") -> str:
    """Reasons in one line, each shortened, at most REASONS of them and then how many more there are."""
    said = [shortened(str(reason)) for reason in reasons[:REASONS]]
    if len(reasons) > REASONS:
        said.append(f"and {len(reasons) - REASONS} more")
    return "; ".join(said)


def message(text: str) -> str:
    """One line for an engine or a terminal: printable, at most MESSAGE bytes. A message of a message is the same."""
    kept = head(text, MESSAGE)
    shown = printable(kept)
    if kept is text and head(shown, MESSAGE) is shown:
        return shown
    size, digest = measure(text)
    return f"{head(shown, MESSAGE - 64)}… ({size} bytes, sha256 {digest})"


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _size(text: str) -> int:
    return len(_utf8(text))
