"""Escape and shorten text of a pod, an image or a CLI user for logs, messages and terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hook.core.base import digest

QUOTE_LIMIT = 256
"""Bytes of UTF-8 that are kept of one string in a message."""

MESSAGE_LIMIT = 4096
"""Maximum number of bytes of UTF-8 in a message to an engine or on standard error."""

WHERE_TO_LOOK = "; on the node: reassert help break-glass"
"""The end of every refusal. A shell that reads it starts no program, and no mark up is in it."""

REASONS_LISTED = 8
"""Maximum number of reasons that a refusal lists."""


def printable(text: str, keep: str = "") -> str:
    r"""The text with every character that a terminal could interpret escaped: `\x1b`, `\n`, `\u202e`.

    These are the characters that Unicode calls not printable: C0 and C1 controls, DEL, format characters (bidi
    controls, zero-width characters), line and paragraph separators, surrogates, private use, unassigned ones, and every
    space but U+0020. `keep`: characters that are not escaped.
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text])


def printable_lines(text: str) -> str:
    """The same for a text of several lines; newlines and tabs are kept."""
    return "\n".join([printable(line, "\t") for line in text.split("\n")])


def head(text: str, limit: int) -> str:
    """The longest prefix of at most `limit` bytes of UTF-8; the same object if nothing is cut."""
    if len(text) * 4 <= limit or (len(text) <= limit and text.isascii()):
        return text
    kept = text[:limit]
    excess = _size(kept) - limit
    while excess > 0:
        kept = kept[: len(kept) - (excess + 3) // 4]  # a character has at most four bytes, so never cuts too much
        excess = _size(kept) - limit
    return text if len(kept) == len(text) else kept


def inert(text: str, active: frozenset[str]) -> str:
    r"""The text with these characters of ASCII escaped: `\x24`."""
    return "".join([f"\\x{ord(c):02x}" if c in active else c for c in text])


def shortened(text: str, limit: int = QUOTE_LIMIT, escaped: Callable[[str], str] = str) -> str:
    """The text, or a prefix with the length and hash of the whole: `abc… (1000 bytes, sha256 12ab…)`.

    For text of a pod that a message quotes. The result is at most 60 bytes longer than `limit`. `escaped`: returns the
    text as it is shown.
    """
    kept = head(text, limit)
    whole = escaped(kept)
    shown = head(whole, limit)
    if kept is text and shown is whole:
        return whole
    size, hashed = digest.measure(text)
    return f"{shown}… ({size} bytes, sha256 {hashed})"


def joined(reasons: Sequence[object]) -> str:
    """Reasons in one line, each shortened. Beyond REASONS_LISTED of them, only their number follows."""
    listed = [shortened(str(reason)) for reason in reasons[:REASONS_LISTED]]
    if len(reasons) > REASONS_LISTED:
        listed.append(f"and {len(reasons) - REASONS_LISTED} more")
    return "; ".join(listed)


def message(text: str) -> str:
    """The text as one line for an engine or a terminal: escaped, at most MESSAGE_LIMIT bytes.

    WHERE_TO_LOOK stays at its end. Idempotent: message(message(text)) == message(text).
    """
    kept = head(text, MESSAGE_LIMIT)
    shown = printable(kept)
    if kept is text and head(shown, MESSAGE_LIMIT) is shown:
        return shown
    size, hashed = digest.measure(text)
    end = WHERE_TO_LOOK if text.endswith(WHERE_TO_LOOK) else ""
    return f"{head(shown, MESSAGE_LIMIT - 64 - len(end))}… ({size} bytes, sha256 {hashed}){end}"


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _size(text: str) -> int:
    return len(_utf8(text))
