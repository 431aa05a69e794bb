"""Patterns with more than a `*` at the end, in one pass. Part of the start path: builtins only."""


def fits(pattern: str, text: str) -> bool:
    """Whether the whole text matches; see `hook.core.base.compare.glob_match`."""
    first, *rest = pattern.split("*")
    if not rest:
        return len(pattern) == len(text) and _fits(pattern, text, 0)
    last = rest.pop()
    end = len(text) - len(last)
    if end < len(first) or not _fits(first, text, 0) or not _fits(last, text, end):
        return False
    at = len(first)
    for part in rest:
        at = _find(part, text, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _fits(part: str, text: str, at: int) -> bool:
    if "?" not in part:
        return text.startswith(part, at)
    return all(want in ("?", text[at + offset]) for offset, want in enumerate(part))


def _find(part: str, text: str, at: int, end: int) -> int:
    """The first index, from `at` on, at which a part without `*` matches and ends by `end`; -1 if there is none."""
    if "?" not in part:
        return text.find(part, at, end)
    literal = max(part.split("?"), key=len)
    offset = part.index(literal)
    while at + len(part) <= end:
        at = text.find(literal, at + offset, end) - offset if literal else at
        if at < 0 or at + len(part) > end:
            return -1
        if _fits(part, text, at):
            return at
        at += 1
    return -1
