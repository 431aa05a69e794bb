"""URLs in text of a pod or of the policy, for logs and terminals."""

from __future__ import annotations


def without_credentials(text: str) -> str:
    """The text with `***` for the user information of each URL (RFC 3986, 3.2.1) and of `user:password@host`."""
    if "@" not in text:
        return text
    first, *rest = text.split("://")
    shown = [first if rest else _hostname(first, ":")]
    return "://".join(shown + [_hostname(part, "") for part in rest])


def _hostname(text: str, needed: str) -> str:
    """The text with `***` for what is before the last `@` of its authority, if that has `needed`."""
    end = min([separator for separator in map(text.find, "/?# \"'") if separator >= 0], default=len(text))
    user, separator, host = text[:end].rpartition("@")
    return f"***@{host}{text[end:]}" if separator and needed in user else text
