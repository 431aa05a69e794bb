"""Patterns of names. Part of the start path: builtins only."""


def is_pattern(text: str) -> bool:
    """Whether a text stands for many: it has `*` or `?` in it."""
    return "*" in text or "?" in text


def literal_start(pattern: str) -> str:
    """What every text that matches begins with: the pattern up to its first wildcard."""
    return pattern.partition("*")[0].partition("?")[0]


def glob_match(pattern: str, text: str) -> bool:
    """Whole-text match; `*` stands for any characters, `/` too, `?` for exactly one. Case counts."""
    if pattern == "*":
        return True  # that of every rule for all namespaces
    if not is_pattern(pattern):
        return pattern == text
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
    """The first place from `at` on where a part without `*` fits and ends by `end`, -1 where there is none."""
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
